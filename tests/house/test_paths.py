"""The files that ARCHITECTURE.md and docs/reading.md name exist."""

from __future__ import annotations

import pytest

from tests.house import paths
from tests.house.imports import ROOT


def test_named_files_exist() -> None:
    assert not paths.missing()


@pytest.mark.parametrize("document", paths.READERS_DOCUMENTS)
def test_paths_and_links_are_found(document: str) -> None:
    text = (ROOT / document).read_text()
    assert len(paths.paths(text)) > 20
    assert paths.links(text)


def test_a_path_is_told_from_other_code() -> None:
    text = "`node/cli` and `node/nothing.py`, not `dekube node run`, `p2p.listen` or `nodes/x`; [a](b.md#c), [d](https://e)"
    assert paths.paths(text) == ["node/cli", "node/nothing.py"]
    assert paths.links(text) == ["b.md"]
