"""The published descriptions of the system contracts are those that the code makes, and others can read them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from eth_utils.abi import function_signature_to_4byte_selector

from node.cli.contracts import TESTNET_CHAIN_ID, contracts
from rpc.ethereum.contracts import CONTRACTS, VIEWS, abi_json, rules_of
from rpc.ethereum.interfaces import KINDS, RESERVED, contract_files, interface_of, text_of
from rpc.ethereum.texts import TEXTS
from state.primitives.address import format_address
from tasks.ledger.events import EVENTS
from testnet.plan import CHAIN_ID

PUBLISHED = Path(__file__).parents[2] / "docs" / "contracts"
FILES = dict(contract_files(KINDS, TESTNET_CHAIN_ID))
ABIS = {name: abi_json(address, (), EVENTS) for address, name in CONTRACTS.items()}
DESCRIBED = [name for name in FILES if name.endswith(".erc7730.json")]
FORMATS = {"raw": set(), "amount": set(), "addressName": {"types", "sources", "senderAddress"}, "enum": {"$ref"}}
"""Formats of ERC-7730 (version 2 of its schema) that are used here, with the parameters that they take."""


def test_the_published_files_are_made_by_the_code() -> None:
    """If this fails: ``dekube contracts docs/contracts``."""
    assert {path.name: path.read_text() for path in PUBLISHED.iterdir()} == FILES
    assert TESTNET_CHAIN_ID == CHAIN_ID


def test_every_member_and_parameter_has_a_text_and_no_text_is_for_nothing() -> None:
    members = set()
    for contract, abi in ABIS.items():
        for item in abi:
            members.add((contract, item["name"]))
            assert text_of(contract, item["name"]).endswith(".")
            named = [p["name"] for p in (*item["inputs"], *item.get("outputs", []))]
            assert all(text_of(contract, item["name"], name) for name in named)
            assert TEXTS[contract, item["name"]].parameters.keys() <= set(named)
    assert members == TEXTS.keys()


@pytest.mark.parametrize("contract", sorted(ABIS))
def test_the_documented_functions_are_those_of_the_contract(contract: str) -> None:
    text = (PUBLISHED.parent / "rpc.md").read_text()
    row = re.search(rf"^\| `0x…070\d` \| {contract} \| (.*)$", text, re.MULTILINE)
    assert row is not None
    documented = {(name, bool(bold)) for bold, name in re.findall(r"(\*\*)?`(\w+)`", row[1])}
    functions = [item for item in ABIS[contract] if item["type"] == "function"]
    assert documented == {(item["name"], item["stateMutability"] == "payable") for item in functions}


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_writes_the_chosen_files(kind: str, tmp_path: Path) -> None:
    chain = ["--chain-id", "5"] if kind == "erc7730" else []  # no other file names a chain
    done = CliRunner().invoke(contracts, [str(tmp_path), f"--{kind}", *chain, "--json"])
    assert done.exit_code == 0, done.output
    wanted = dict(contract_files([kind], 5))
    assert json.loads(done.output)["files"] == list(wanted)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == wanted


# Solidity


def members_of(source: str) -> dict[str, str]:
    """Return signature and rest of each function and event of an interface."""
    code = re.sub(r"\s+", " ", re.sub(r"//.*", "", source))
    found = {}
    for kind, name, arguments, rest in re.findall(r"(function|event) (\w+)\(([^)]*)\)([^;]*);", code):
        types = [argument.split()[0] for argument in arguments.split(", ") if argument]
        found[f"{kind} {name}({','.join(types)})"] = rest.strip()
    return found


@pytest.mark.parametrize("contract", ABIS)
def test_an_interface_declares_what_is_dispatched(contract: str) -> None:
    members = members_of(FILES[f"{interface_of(contract)}.sol"])
    address = next(who for who, name in CONTRACTS.items() if name == contract)
    forms = [
        rule.call for rule in rules_of(()).values() if rule.call is not None and rule.call.contract == address
    ]
    writes = {f"function {form.function.signature}": form.is_payable for form in forms}
    views = {f"function {view.function.signature}" for view in VIEWS if view.contract == address}
    events = {f"event {event.signature}" for event in EVENTS.values() if event.address == address}
    assert members.keys() == writes.keys() | views | events
    for form in forms:
        assert function_signature_to_4byte_selector(form.function.signature) == form.function.selector
    assert all(("payable" in members[name]) == payable for name, payable in writes.items())
    assert all("view returns (" in members[name] for name in views)


def test_no_name_of_an_interface_is_a_word_of_solidity() -> None:
    for name, source in FILES.items():
        if name.endswith(".sol"):
            code = re.sub(r"//.*", "", source)
            assert not {word for word in re.findall(r" (\w+)[,)]", code) if word in RESERVED}, name
            assert all(len(line) <= 115 and line.isascii() for line in source.splitlines()), name


# ERC-7730


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_description_has_the_structure_that_wallets_expect(name: str) -> None:
    document = json.loads(FILES[name])
    assert document.keys() == {"$schema", "context", "metadata", "display"}
    context, metadata, display = document["context"], document["metadata"], document["display"]
    assert context.keys() == {"$id", "contract"}
    assert context["contract"].keys() == {"deployments"}
    [deployment] = context["contract"]["deployments"]
    contract = name.removeprefix("calldata-").removesuffix(".erc7730.json")
    address = next(who for who, known in CONTRACTS.items() if known == contract)
    assert deployment == {"chainId": TESTNET_CHAIN_ID, "address": format_address(address)}
    assert metadata.keys() - {"enums"} == {"owner", "contractName"}
    assert display.keys() == {"formats"}
    for signature, shown in display["formats"].items():
        assert re.fullmatch(r"\w+\((\w+ \w+(, \w+ \w+)*)?\)", signature)
        assert shown.keys() == {"$id", "intent", "fields"}
        assert shown["intent"]
        for field in shown["fields"]:
            check_field(field, metadata)


def check_field(field: dict[str, Any], metadata: dict[str, Any]) -> None:
    assert {"path", "label", "format"} <= field.keys() <= {"path", "label", "format", "params", "visible"}
    assert field["label"]
    assert field.get("visible", "always") in ("always", "never", "optional")
    params = field.get("params", {})
    assert params.keys() <= FORMATS[field["format"]]
    if field["format"] == "enum":
        values = metadata["enums"][params["$ref"].removeprefix("$.metadata.enums.")]
        assert all(key.isdigit() and text for key, text in values.items())


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_wallet_that_has_a_description_shows_every_argument_and_the_value_of_every_write(name: str) -> None:
    formats = json.loads(FILES[name])["display"]["formats"]
    contract = name.removeprefix("calldata-").removesuffix(".erc7730.json")
    writes = [i for i in ABIS[contract] if i["type"] == "function" and i["stateMutability"] != "view"]
    signatures = {f"{i['name']}({', '.join(p['type'] + ' ' + p['name'] for p in i['inputs'])})": i for i in writes}
    assert formats.keys() == signatures.keys()
    for signature, item in signatures.items():
        paths = [field["path"] for field in formats[signature]["fields"]]
        value = ["@.value"] if item["stateMutability"] == "payable" else []
        assert paths == [*value, *(f"#.{p['name']}" for p in item["inputs"])]


def test_contracts_that_are_only_read_have_no_description() -> None:
    assert len(DESCRIBED) == 3
    assert not any("billing" in name for name in DESCRIBED)
