from __future__ import annotations

import re
from pathlib import Path

from rpc.surface import SURFACE

DOCUMENT = Path(__file__).parents[2] / "docs" / "rpc.md"


def method_table() -> str:
    """Return the table of methods as it has to stand in docs/rpc.md."""
    lines = ["| method | parameters | what |", "|---|---|---|"]
    for method in SURFACE.values():
        names = [p.name if p.required else f"{p.name}?" for p in method.all_params if p.name != "min_height"]
        lines.append(f"| `{method.name}` | {', '.join(names) or '-'} | {method.summary} |")
    return "\n".join(lines) + "\n"


def test_the_documented_methods_are_those_that_are_dispatched() -> None:
    found = re.search(r"<!-- methods -->\n(.*?)<!-- end -->", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None
    assert found[1] == method_table(), "run: python -m tests.rpc.test_documented"


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
