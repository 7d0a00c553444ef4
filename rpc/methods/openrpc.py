"""The OpenRPC document, made from the method table."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rpc.methods.method import Json, Method
from rpc.methods.schema import Schema

__all__ = ["describe"]


def _version() -> str:
    try:
        return version("dekube-node")
    except PackageNotFoundError:  # run from a source tree
        return "0"


def describe(
    table: Mapping[str, Method],
    *,
    title: str,
    description: str,
    schemas: Mapping[str, Schema] | None = None,
    errors: Mapping[str, Any] | None = None,
) -> Json:
    """Return the OpenRPC document of a table; ``schemas`` and ``errors`` are the components it names."""
    return {
        "openrpc": "1.3.2",
        "info": {
            "title": title,
            "version": _version(),
            "description": description,
            "license": {"name": "Apache-2.0"},
        },
        "methods": [
            {
                "name": method.name,
                "summary": method.summary,
                "paramStructure": "either",
                "params": [
                    {
                        "name": param.name,
                        "description": param.text,
                        "required": param.required,
                        "schema": param.type.schema,
                    }
                    for param in method.all_params
                ],
                "result": {"name": "result", "schema": method.result},
                "tags": [{"name": method.group}],
                "x-cost": method.cost,
                "x-websocket-only": method.needs_session,
            }
            for method in table.values()
        ],
        "components": {
            "schemas": dict(schemas or {}),
            "errors": dict(errors or {}),
        },
    }
