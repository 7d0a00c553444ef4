"""Every file, folder and heading that a document names or links exists."""

from __future__ import annotations

import pytest

from tests.house import paths
from tests.house.imports import ROOT


def test_named_files_exist() -> None:
    assert not paths.missing_paths()


def test_named_classes_and_functions_are_in_the_files_of_their_section() -> None:
    text = (ROOT / "docs/reading.md").read_text()
    assert len(paths.names(text)) > 15
    assert not paths.missing_names("docs/reading.md")


def test_links_lead_to_a_file_and_a_heading() -> None:
    assert not paths.missing_links()


@pytest.mark.parametrize("document", paths.READERS_DOCUMENTS)
def test_the_documents_for_readers_name_files(document: str) -> None:
    text = (ROOT / document).read_text()
    assert len(paths.paths(text)) > 20
    assert paths.links(text)


def test_a_path_is_told_from_other_code() -> None:
    text = "`node/cli` and `node/nothing.py`, not `dekube node run`, `p2p.listen` or `nodes/x`"
    assert paths.paths(text) == ["node/cli", "node/nothing.py"]


@pytest.mark.parametrize(
    ("name", "exists"),
    [
        ("p2p.listen", True),
        ("node.home", True),
        ("node.home.nothing", False),
        ("node.home.keys.load_key", True),
        ("node.home.keys.load_nothing", False),
    ],
)
def test_a_module_is_told_from_an_option(name: str, exists: bool) -> None:
    assert paths.is_module_or_option(name) is exists


def test_links_and_anchors_are_found() -> None:
    text = "# A node's home\n\n[a](b.md#c), [d](https://e)\n\n```\n# no heading\n[x](y)\n```\n## `db`: what, why\n"
    assert paths.links(text) == ["b.md#c"]
    assert paths.anchors(text) == {"a-nodes-home", "db-what-why"}
