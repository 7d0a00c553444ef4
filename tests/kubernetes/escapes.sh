# What a container in a pod tries beside what one on an engine does (tests/tasks/executor/containers/escapes.sh). Each line:
# a name, a bar, and commands that succeed only if it got out. HOST_HOME is the folder of the cluster on its machine.
the token of an account|cat /var/run/secrets/kubernetes.io/serviceaccount/token /run/secrets/kubernetes.io/serviceaccount/token | grep .
the runtime's socket|ls /run/containerd/containerd.sock "$HOST_HOME/run/containerd.sock" | grep .
the kubelet's folder|ls /var/lib/kubelet "$HOST_HOME/kubelet" | grep .
the logs of other pods|ls /var/log/pods /var/log/containers "$HOST_HOME/logs" | grep .
the keys of the cluster|cat "$HOST_HOME/admin.conf" "$HOST_HOME/sa.key" | grep .
the first process of the pod|ls /proc/1/root/ || cat /proc/1/environ | grep . || kill -STOP 1
the files of the helper|ls /proc/$(helper)/root/dekube/stage
the programs of the helper|: >> /proc/$(helper)/root/dekube/stage/socket.py
the environment of the helper|cat /proc/$(helper)/environ | grep .
the memory of the helper|head -c 1 /proc/$(helper)/mem || cat /proc/$(helper)/maps | grep .
the descriptors of the helper|ls /proc/$(helper)/fd | grep .
a signal to the helper|kill -STOP $(helper) || kill -9 $(helper)
the namespaces of the helper|nsenter -t $(helper) -m true
the helper's programs by the agent|ls /proc/$(agent)/root/dekube/stage
the inputs by the agent|: >> /proc/$(agent)/root/dekube/inputs/0
rights by the agent|grep CapEff /proc/$(agent)/status | grep -v 0000000000000000
the runtime's socket by the agent|ls /proc/$(agent)/root/run/containerd | grep .
the machine's files by the agent|cat "/proc/$(agent)/root$HOST_SECRET"
