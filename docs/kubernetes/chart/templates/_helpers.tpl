{{- define "dekube.name" -}}
{{- if contains "dekube" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "dekube-%s" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- /* Names of objects that belong to no namespace. */ -}}
{{- define "dekube.global" -}}
{{ printf "%s-%s" .Release.Namespace (include "dekube.name" .) }}
{{- end }}

{{- define "dekube.selector" -}}
app.kubernetes.io/name: dekube-node
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dekube.labels" -}}
{{ include "dekube.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "dekube.account" -}}
{{- if .Values.account.name }}{{ .Values.account.name }}{{ else if .Values.account.create }}{{ include "dekube.name" . }}{{ else }}default{{ end }}
{{- end }}

{{- define "dekube.image" -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- end }}

{{- define "dekube.helper" -}}
{{- if .Values.helperImage.repository }}{{ .Values.helperImage.repository }}@{{ required "helperImage.digest is missing" .Values.helperImage.digest }}{{ else }}{{ include "dekube.image" . }}{{ end }}
{{- end }}

{{- define "dekube.priority" -}}
{{- with .Values.tasks.priorityClass }}{{ if .name }}{{ .name }}{{ else if .create }}{{ include "dekube.global" $ }}-tasks{{ end }}{{ end -}}
{{- end }}

{{- /* A value of TOML. A text of JSON is one of TOML too. Whole numbers of values are floats to Helm. */ -}}
{{- define "dekube.value" -}}
{{- if kindIs "slice" . -}}
[{{ range $number, $one := . }}{{ if $number }}, {{ end }}{{ include "dekube.value" $one }}{{ end }}]
{{- else if kindIs "float64" . -}}
{{ if eq . (floor .) }}{{ printf "%.0f" . }}{{ else }}{{ . }}{{ end }}
{{- else if kindIs "string" . -}}
{{ toJson . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end }}

{{- /* Options, each by its whole name: (list PREFIX OPTIONS). */ -}}
{{- define "dekube.options" -}}
{{- $prefix := index . 0 -}}
{{- range $name, $value := index . 1 -}}
{{- if kindIs "map" $value -}}
{{ include "dekube.options" (list (printf "%s%s." $prefix $name) $value) }}
{{- else if not (kindIs "invalid" $value) -}}
{{ $prefix }}{{ $name }} = {{ include "dekube.value" $value }}
{{ end -}}
{{- end -}}
{{- end }}

{{- /* config.toml: what the values say, and what follows from how the pod is made. */ -}}
{{- define "dekube.config" -}}
{{- $pods := dict "helper_image" (include "dekube.helper" .) -}}
{{- with .Values.tasks.nodeSelector }}{{ $labels := list }}{{ range $name, $value := . }}{{ $labels = append $labels (printf "%s=%s" $name $value) }}{{ end }}{{ $_ := set $pods "node_selector" $labels }}{{ end -}}
{{- with .Values.tasks.tolerations -}}
{{- $texts := list -}}
{{- range . -}}
{{- $texts = append $texts (printf "%s%s:%s" .key (eq (.operator | default "Equal") "Exists" | ternary "" (printf "=%s" (.value | default ""))) .effect) -}}
{{- end -}}
{{- $_ := set $pods "tolerations" $texts -}}
{{- end -}}
{{- with .Values.tasks.egress }}{{ $_ := set $pods "egress" . }}{{ end -}}
{{- with .Values.tasks.mirrors }}{{ $rows := list }}{{ range $name, $mirror := . }}{{ $rows = append $rows (printf "%s=%s" $name $mirror) }}{{ end }}{{ $_ := set $pods "mirrors" $rows }}{{ end -}}
{{- with .Values.tasks.storageClass }}{{ $_ := set $pods "storage_class" . }}{{ end -}}
{{- $_ := set $pods "priority_class" (include "dekube.priority" .) -}}
{{- $given := dict "executor" (dict "kubernetes" $pods) -}}
{{- $fixed := dict "metrics" (dict "listen" ":9100") "keys" (dict "account" "/run/dekube/keys/account.json" "passphrase_file" "/run/dekube/keys/passphrase") -}}
{{- printf "kind = \"node\"\n" -}}
{{- include "dekube.options" (list "" (mergeOverwrite $given (deepCopy .Values.config) $fixed)) -}}
{{- end }}
