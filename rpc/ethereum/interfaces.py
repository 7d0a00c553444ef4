"""Files that describe the system contracts to others: Solidity interfaces, ABI, clear signing (ERC-7730).

All of them are made from the declarations that calls are dispatched by (``contracts.abi_json``); only what a name
means, and in which unit it counts, is written here. ``dekube contracts`` writes them, docs/contracts has them.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from typing import Final

from rpc.ethereum.contracts import CONTRACTS, abi_json
from rpc.ethereum.text import COMMON, UNIT
from rpc.ethereum.texts import ABOUT, TEXTS
from rpc.methods.method import Json
from state.primitives.address import format_address
from tasks.ledger.events import EVENTS
from tasks.ledger.lifecycle import Reason

__all__ = ["KINDS", "contract_files", "text_of"]

KINDS: Final = ("solidity", "abi", "erc7730")
SCHEMA: Final = "https://eips.ethereum.org/assets/eip-7730/erc7730-v2.schema.json"
OWNER: Final = "DEKUBE"
WIDTH: Final = 110
RESERVED: Final = frozenset(
    (
        "after", "alias", "apply", "auto", "byte", "case", "copyof", "default", "define", "final", "implements",
        "in", "inline", "let", "macro", "match", "mutable", "null", "of", "partial", "promise", "reference",
        "relocatable", "sealed", "sizeof", "static", "supports", "switch", "typedef", "typeof", "var",
        "address", "bool", "bytes", "string", "constant", "event", "external", "function", "mapping", "payable",
        "pure", "return", "returns", "storage", "struct", "this", "view", "virtual",
    )
)  # fmt: skip
"""Words that are no names in Solidity; a parameter of such a name has an underscore after it there."""


def text_of(contract: str, name: str, parameter: str = "") -> str:
    """Return what a function or event means, or a parameter or result of it. A KeyError is a text to write."""
    text = TEXTS[contract, name]
    if not parameter:
        return text.notice
    return text.parameters[parameter] if parameter in text.parameters else COMMON[parameter]


def contract_files(kinds: Iterable[str], chain_id: int) -> Iterator[tuple[str, str]]:
    """Yield name and content of the files of ``kinds``; wallets find ERC-7730's by ``chain_id`` and address."""
    wanted = set(kinds)
    for address, name in CONTRACTS.items():
        abi = abi_json(address, (), EVENTS)
        if "solidity" in wanted:
            yield f"{interface_of(name)}.sol", _solidity(name, address, abi)
        if "abi" in wanted:
            yield f"{name}.json", _json(abi)  # generators name a class by all before the last dot
        if "erc7730" in wanted and any(_writes(abi)):
            yield f"calldata-{name}.erc7730.json", _json(_clear_signing(name, address, abi, chain_id))


def interface_of(contract: str) -> str:
    """Return the name of a contract's interface in Solidity."""
    return f"IDekube{contract.capitalize()}"


def _json(document: Json) -> str:
    return json.dumps(document, indent=2) + "\n"


def _writes(abi: Json) -> Iterator[Json]:
    return (item for item in abi if item["type"] == "function" and item["stateMutability"] != "view")


# Solidity


def _solidity(contract: str, address: bytes, abi: Json) -> str:
    lines = [
        "// SPDX-License-Identifier: Apache-2.0",
        "pragma solidity >=0.8.4;",
        "",
        *_comment(
            [
                f"@title DEKUBE: the {contract} contract",
                f"@notice {ABOUT[contract]}",
                f"@dev At {format_address(address)} on every chain; the node itself is behind it, no EVM. Amounts "
                f"are {UNIT}. What is refused reverts with Error(string): a stable code.",
            ],
            "",
        ),
        f"interface {interface_of(contract)} {{",
    ]
    for item in sorted(abi, key=lambda item: item["type"], reverse=True):  # functions, then events, in their order
        lines += [*_member(contract, item), ""]
    return "\n".join([*lines[:-1], "}"]) + "\n"


def _member(contract: str, item: Json) -> list[str]:
    name, outputs = item["name"], item.get("outputs", [])
    tags = [f"@notice {text_of(contract, name)}"]
    tags += [f"@param {_name(p)} {text_of(contract, name, p['name'])}" for p in item["inputs"]]
    tags += [f"@return {_name(p)} {text_of(contract, name, p['name'])}" for p in outputs]
    if item["type"] == "event":
        arguments = [f"{p['type']}{' indexed' if p['indexed'] else ''} {_name(p)}" for p in item["inputs"]]
        return [*_comment(tags, "    "), *_declaration(f"event {name}", arguments, ";")]
    arguments = [f"{_type(p, 'calldata')} {_name(p)}" for p in item["inputs"]]
    results = [f"{_type(p, 'memory')} {_name(p)}" for p in outputs]
    mutability = "" if item["stateMutability"] == "nonpayable" else f" {item['stateMutability']}"
    returned = f" returns ({', '.join(results)})" if results else ""
    tail = f" external{mutability}{returned};"
    return [
        *_comment(tags, "    "),
        *_declaration(f"function {name}", arguments, tail),
    ]


def _name(parameter: Json) -> str:
    name: str = parameter["name"]
    return f"{name}_" if name in RESERVED else name


def _type(parameter: Json, place: str) -> str:
    kind: str = parameter["type"]
    return f"{kind} {place}" if kind in ("bytes", "string") else kind


def _declaration(head: str, arguments: list[str], tail: str) -> list[str]:
    return textwrap.wrap(
        f"{head}({', '.join(arguments)}){tail}", WIDTH, initial_indent="    ", subsequent_indent="        ",
        break_on_hyphens=False,
    )  # fmt: skip


def _comment(tags: list[str], indent: str) -> list[str]:
    lines = []
    for tag in tags:
        lines += textwrap.wrap(
            tag, WIDTH, initial_indent=f"{indent}/// ", subsequent_indent=f"{indent}///   ", break_on_hyphens=False
        )
    return lines


# Clear signing


def _clear_signing(contract: str, address: bytes, abi: Json, chain_id: int) -> Json:
    formats = {}
    enums: dict[str, dict[str, str]] = {}
    for item in _writes(abi):
        name = item["name"]
        declared = ", ".join(f"{p['type']} {p['name']}" for p in item["inputs"])
        fields = [{"path": "@.value", "label": "Amount", "format": "amount"}]
        fields = fields if item["stateMutability"] == "payable" else []
        fields += [_field(p, enums) for p in item["inputs"]]
        formats[f"{name}({declared})"] = {
            "$id": name, "intent": TEXTS[contract, name].intent, "fields": fields,
        }  # fmt: skip
    metadata: Json = {"owner": OWNER, "contractName": f"{OWNER} {contract}"}
    return {
        "$schema": SCHEMA,
        "context": {
            "$id": f"{OWNER} {contract}",
            "contract": {"deployments": [{"chainId": chain_id, "address": format_address(address)}]},
        },
        "metadata": metadata | ({"enums": enums} if enums else {}),
        "display": {"formats": formats},
    }


def _field(parameter: Json, enums: dict[str, dict[str, str]]) -> Json:
    name, kind = parameter["name"], parameter["type"]
    field: Json = {"path": f"#.{name}", "label": _label(name), "format": "raw"}
    if name == "amount":
        field["format"] = "amount"
    elif kind == "address":
        field |= {"format": "addressName", "params": {"types": ["eoa"]}}
    elif name == "reason":
        enums["reason"] = {str(int(item)): item.name.lower().replace("_", " ").capitalize() for item in Reason}
        field |= {"format": "enum", "params": {"$ref": "$.metadata.enums.reason"}}
    elif kind == "bytes":  # an encoding for machines: shown where there is room
        field["visible"] = "optional"
    return field


def _label(name: str) -> str:
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)
    return words.capitalize().replace("Vrf", "VRF")
