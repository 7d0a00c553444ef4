"""What stands in docs/kubernetes: the rights, no more and no less; values that have a schema."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from tasks.executor.containers.kubernetes.rights import RIGHTS

FOLDER = Path(__file__).parents[4] / "docs" / "kubernetes"


def granted(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    found = [
        (verb, resource, group)
        for rule in rules for group in rule["apiGroups"] for resource in rule["resources"]
        for verb in rule["verbs"]
    ]  # fmt: skip
    assert len(found) == len(set(found)), "granted twice"
    return set(found)


NEEDED = {(one.verb, f"{one.resource}/{one.inner}" if one.inner else one.resource, one.group) for one in RIGHTS}


def test_the_chart_grants_what_the_node_asks_for_and_no_more() -> None:
    assert granted(yaml.safe_load((FOLDER / "chart" / "files" / "rules.yaml").read_text())) == NEEDED


OFFERED = {("create", "priorityclasses", "scheduling.k8s.io")}
"""What the account may do beside: the chart makes the class, without it the node does."""


def test_the_account_grants_what_the_node_asks_for_and_one_class() -> None:
    (role,) = [
        one for one in yaml.safe_load_all((FOLDER / "account.yaml").read_text()) if one["kind"] == "ClusterRole"
    ]
    assert granted(role["rules"]) == NEEDED | OFFERED


def test_n56_the_chart_takes_the_name_of_a_secret_and_makes_none() -> None:
    texts = {path.name: path.read_text() for path in (FOLDER / "chart" / "templates").iterdir()}
    assert not [
        name for name, text in texts.items() if "kind: Secret" in text or re.search(r"\b(rand|gen)[A-Z]", text)
    ]
    taken = [line.strip() for text in texts.values() for line in text.splitlines() if ".Values.keys." in line]
    assert taken == [
        "secretName: {{ .Values.keys.secret }}",
        "- {key: {{ .Values.keys.account }}, path: account.json}",
        "- {key: {{ .Values.keys.passphrase }}, path: passphrase}",
    ]
    schema = json.loads((FOLDER / "chart" / "values.schema.json").read_text())["properties"]
    assert schema["config"]["properties"]["keys"]["not"] == {}, "no key of the configuration either"


def test_each_value_of_the_chart_is_in_its_schema() -> None:
    values = yaml.safe_load((FOLDER / "chart" / "values.yaml").read_text())
    schema = json.loads((FOLDER / "chart" / "values.schema.json").read_text())
    check_described(values, schema, "values")


def check_described(values: dict[str, Any], schema: dict[str, Any], path: str) -> None:
    """Each value has its description, and nothing else is taken."""
    assert schema["additionalProperties"] is False, path
    properties = schema["properties"]
    assert set(values) <= set(properties), path
    for name, value in values.items():
        if isinstance(value, dict) and "properties" in properties[name] and name != "config":
            check_described(value, properties[name], f"{path}.{name}")
