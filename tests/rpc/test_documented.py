from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import rpc
import rpc.ethereum.errors
import rpc.protocol.errors
from rpc.gateway.method_table import DOCUMENT as SPECIFIED
from rpc.gateway.method_table import METHOD_TABLE, table_of
from rpc.methods.method import Method

DOCUMENT = Path(__file__).parents[2] / "docs" / "rpc.md"


def method_table() -> str:
    """Return the table of methods as it has to stand in docs/rpc.md."""
    lines = ["| method | parameters | what |", "|---|---|---|"]
    for method in METHOD_TABLE.values():
        names = [p.name if p.required else f"{p.name}?" for p in method.all_params if p.name != "min_height"]
        lines.append(f"| `{method.name}` | {', '.join(names) or '-'} | {method.summary} |")
    return "\n".join(lines) + "\n"


def test_the_documented_methods_are_those_that_are_dispatched() -> None:
    found = re.search(r"<!-- methods -->\n(.*?)<!-- end -->", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None
    assert found[1] == method_table(), "run: python -m tests.rpc.test_documented"


def test_what_a_module_has_of_methods_is_dispatched() -> None:
    root = Path(rpc.__path__[0])
    found: dict[str, Method] = {}
    for file in root.rglob("*.py"):
        if re.search(r"^\w*METHODS: Final", file.read_text(), re.MULTILINE):
            module = import_module(".".join(file.relative_to(root.parent).with_suffix("").parts))
            for name, methods in vars(module).items():
                if name.endswith("METHODS") and not name.startswith("_"):
                    found |= {method.name: method for method in methods}
    assert found.keys() == METHOD_TABLE.keys() - {"rpc.discover"}
    assert all(METHOD_TABLE[name] is method for name, method in found.items())


def test_every_native_method_states_its_rest_paths() -> None:
    paths = []
    for method in METHOD_TABLE.values():
        if method.name.startswith("dekube_"):
            assert method.routes is not None, f"{method.name}: name its REST paths, or () for none"
        for path in method.routes or ():
            names = set(re.findall(r"\{(\w+)\}", path))
            assert names <= {param.name for param in method.params}, path
            assert not method.needs_session and not method.needs_caller and method.submission is None, path
            paths.append(path)
    assert len(set(paths)) == len(paths) > 30


def test_every_number_of_an_error_is_described() -> None:
    modules = (rpc.protocol.errors, rpc.ethereum.errors)
    numbers = {v for m in modules for n, v in vars(m).items() if type(v) is int and n.isupper()}
    assert {error["code"] for error in SPECIFIED["components"]["errors"].values()} == numbers
    rows = re.findall(r"^\| ((?:-?\d+(?:, )?)+) \|", DOCUMENT.read_text(), re.MULTILINE)
    described = {int(number) for row in rows for number in row.split(", ")}
    assert described == numbers


def test_every_reason_of_a_number_is_described() -> None:
    of_rules = rpc.protocol.errors.SERVER_ERROR
    rows = re.findall(r"^\| ((?:-?\d+(?:, )?)+) \| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    shown = {int(number): text for numbers, text in rows for number in numbers.split(", ")}
    for number, error in SPECIFIED["components"]["errors"].items():
        reasons = set(error["data"]["reason"].split(" | "))
        known = {reason for reason, of in rpc.protocol.errors._NUMBERS.items() if of == int(number)}
        if int(number) < 0:  # the others are those of one error each
            assert reasons == (known or {"*"}), number
            assert bool(known) == (int(number) != of_rules)
        assert all(f"`{reason}`" in shown[int(number)] for reason in known), number


def test_two_methods_of_one_name_are_refused() -> None:
    method = METHOD_TABLE["dekube_head"]
    with pytest.raises(AssertionError):
        table_of((method, METHOD_TABLE["dekube_status"], method))


if __name__ == "__main__":  # writes the table anew
    text = DOCUMENT.read_text()
    DOCUMENT.write_text(
        re.sub(
            r"(<!-- methods -->\n).*?(<!-- end -->)",
            lambda m: m[1] + method_table() + m[2],
            text,
            flags=re.DOTALL,
        )
    )
