"""``dekube verify``: files are compared with the receipt, with a state, and with windows of a task."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from node.cli import group
from node.cli.verify import check_spec, matching_window
from rpc.client.results import Amount, Proof, Window
from state.primitives.errors import ConfigError
from tasks.models.errors import FolderInvalid
from tasks.models.gguf import read_gguf
from tests.tasks.models import test_trained as trained
from tests.tasks.models.test_adapters import FOLDER, MADE, STATE, random_state
from tests.tasks.trained import trained as tasks_trained


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "adapters"
    found.mkdir()
    for name, content in FOLDER.items():
        (found / name).write_bytes(content)
    return found


def run(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(group, ["verify", *words, "--json"], standalone_mode=False, catch_exceptions=False)
    found: dict[str, Any] = json.loads(done.output)
    return found


def test_a_folder_is_checked_without_a_node(folder: Path, tmp_path: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    (tmp_path / "state").write_bytes(STATE.encode())
    found = run(str(folder), "--offline", "--state", str(tmp_path / "state"))
    assert (found["state_root"], found["step"]) == ("0x" + MADE.state_root.hex(), 5)
    assert (found["proved"], found["not_checked"]) == (False, ["notes.txt"])


def test_a_folder_that_was_changed_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(random_state(8).encode())
    with pytest.raises(FolderInvalid, match="state is not the one"):
        run(str(folder), "--offline", "--state", str(tmp_path / "state"))
    (folder / "README.md").write_text("# Load another model")
    with pytest.raises(FolderInvalid, match=r"README.md: other bytes"):
        run(str(folder), "--offline")
    (folder / "README.md").unlink()
    with pytest.raises(FolderInvalid, match=r"README.md: the file is missing"):
        run(str(folder), "--offline")


def test_a_folder_of_a_trained_model_is_checked_by_its_receipt(tmp_path: Path) -> None:
    for name, content in trained.FOLDER.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "state").write_bytes(trained.STATE.encode())
    found = run(str(tmp_path), "--offline", "--state", str(tmp_path / "state"))
    assert (found["state_root"], found["step"]) == ("0x" + trained.MADE.state_root.hex(), 7)
    assert "base" not in found and found["not_checked"] == ["state"]
    (tmp_path / "state").write_bytes(trained.state_of(trained.MODEL, 5).encode())
    with pytest.raises(FolderInvalid, match="state is not the one"):
        run(str(tmp_path), "--offline", "--state", str(tmp_path / "state"))
    (tmp_path / "config.json").write_bytes(b"{}")
    with pytest.raises(FolderInvalid, match=r"config\.json: other bytes"):
        run(str(tmp_path), "--offline")


def test_a_trained_model_is_of_a_task_with_its_shape_and_rows() -> None:
    spec, plan, _ = tasks_trained()
    receipt = trained.MADE.__class__(None, spec.dataset.root, 6, bytes(32), plan.shape.model, {})
    check_spec(receipt, spec)
    for other in (replace(receipt, rows_root=bytes(32)), replace(receipt, model=trained.MODEL)):
        with pytest.raises(FolderInvalid, match="the task"):
            check_spec(other, spec)


def test_a_checked_folder_is_exported_for_llama_cpp(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "adapters.gguf"

    def export(*more: str) -> Any:
        words = ["model", "export", str(folder), str(file), "--json", *more]
        return CliRunner().invoke(group, words, standalone_mode=False, catch_exceptions=False)

    assert json.loads(export().output) == {
        "file": str(file), "bytes": file.stat().st_size, "base": "a/base-1"
    }  # fmt: skip
    assert read_gguf(file.read_bytes()).settings["adapter.type"] == "lora"
    with pytest.raises(ConfigError, match="add --yes"):
        export()
    assert json.loads(export("--yes").output)["bytes"] == file.stat().st_size
    (folder / "README.md").write_text("another")
    with pytest.raises(FolderInvalid, match=r"README.md: other bytes"):
        export("--yes")


def window(number: int, phase: str, **changes: Any) -> Window:
    proof = Proof(
        document={}, step_from=0, step_to=5, state_root_in=bytes(32), state_root_out=MADE.state_root,
        segment_root=bytes(32), output_blob=bytes(32),
    )  # fmt: skip
    return Window(
        document={}, number=number, phase=phase, reason="", worker=bytes(20), height=1,
        proof=replace(proof, **changes), charge=Amount(0),
    )  # fmt: skip


def test_only_a_final_window_with_this_state_proves_a_folder() -> None:
    other = window(2, "final", state_root_out=bytes(32))
    assert matching_window(MADE, [other, window(3, "final")]) == 3
    diverged = window(4, "final", state_root_out=b"d" * 32, step_to=6, result_step=5, result_root=MADE.state_root)
    assert matching_window(MADE, [other, diverged]) == 4
    for windows in ([], [other], [window(3, "proved")], [window(3, "final", step_to=6)]):
        with pytest.raises(FolderInvalid, match="no final window"):
            matching_window(MADE, windows)
