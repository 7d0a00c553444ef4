"""As much of JSON Schema as the documents of the gateway use; an unknown keyword fails the test."""

from __future__ import annotations

import re
from typing import Any

KNOWN = {
    "type", "properties", "required", "additionalProperties", "description", "items", "maxItems", "anyOf", "$ref",
    "pattern", "minimum", "maximum", "maxLength", "enum",
}  # fmt: skip
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), "null": (type(None),),
    "integer": (int,), "number": (int, float),
}  # fmt: skip


def validate(value: Any, schema: dict[str, Any], components: dict[str, Any], where: str = "$") -> None:
    assert schema.keys() <= KNOWN, (where, schema.keys() - KNOWN)
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")
        validate(value, components[name], components, where)
        return
    if "anyOf" in schema:
        errors = []
        for arm in schema["anyOf"]:
            try:
                validate(value, arm, components, where)
                return
            except AssertionError as error:
                errors.append(error)
        raise AssertionError((where, value, errors))
    if "type" in schema:
        assert type(value) in TYPES[schema["type"]], (where, value, schema["type"])
    if type(value) is str:
        if "pattern" in schema:
            assert re.search(schema["pattern"], value), (where, value)
        assert len(value) <= schema.get("maxLength", len(value)), where
        assert value in schema.get("enum", [value]), (where, value)
    if type(value) is int:
        assert schema.get("minimum", value) <= value <= schema.get("maximum", value), (where, value)
    if type(value) is list:
        assert len(value) <= schema.get("maxItems", len(value)), where
        for index, item in enumerate(value):
            validate(item, schema.get("items", {}), components, f"{where}[{index}]")
    if type(value) is dict:
        properties = schema.get("properties", {})
        for name in schema.get("required", ()):
            assert name in value, (where, name)
        for name, item in value.items():
            extra = schema.get("additionalProperties", True)
            if name in properties:
                validate(item, properties[name], components, f"{where}.{name}")
            elif extra is not True:
                assert extra is not False, (where, name)
                validate(item, extra, components, f"{where}.{name}")
