"""``dekube task keep -f``: a job of a file is finished with the file that it was made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

import node.cli.tasks.keeping
import node.market.posting
from node.cli import group
from node.cli.session import Session
from node.market.private_jobs import make_private
from rpc.client import Client
from state.primitives.errors import ConfigError
from tasks.custody.keys import public_key_root
from tasks.ledger.custody_records import INPUT_WINDOW, CustodyPhase, find_terms
from tasks.ledger.transitions import CREATE_TASK
from tasks.spec import encode_spec
from tests.node.cli.test_interrupted import KEY, Chain, tasks_of
from tests.node.cli.test_tuning_file import FILE, folder, made
from tests.rpc.harness import hexed

__all__ = ["folder"]


class Posted(Chain):
    """A chain whose node takes the contents of jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.contents: list[bytes] = []

    def put_contents(self, contents: Sequence[bytes], **_: Any) -> None:
        self.contents += contents


@pytest.mark.parametrize("is_private", [False, True], ids=["public", "private"])
def test_the_rows_and_the_model_of_an_interrupted_job_are_brought_from_its_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_private: bool
) -> None:
    chain, job = Posted(), made(folder)
    monkeypatch.setattr(node.market.posting, "INPUT_POLL_S", 0)
    monkeypatch.setattr(Session, "key", lambda _session, name=None: KEY)
    monkeypatch.setattr(Session, "control", lambda _session: folder / "control")
    monkeypatch.setattr(Session, "client", lambda _session: cast(Client, chain))
    monkeypatch.setattr(node.cli.tasks.keeping, "ask_node", chain.control)
    private = make_private(KEY, job.spec, job.rows)
    spec = private.spec if is_private else job.spec
    chain.wait(chain.sign(KEY, CREATE_TASK, [encode_spec(spec)]))
    (task,) = tasks_of(chain)

    def keep() -> None:
        words = [
            "keep",
            hexed(task),
            "-f",
            folder / "tune.yaml",
            "--keep-input",
            "--yes",
            "--home",
            "/nonexistent",
        ]
        done = CliRunner().invoke(group, ["task", *map(str, words)], standalone_mode=False)
        if done.exception is not None:
            raise done.exception

    (folder / "tune.yaml").write_text(FILE.replace("steps: 6", "steps: 12"))
    with pytest.raises(ConfigError, match="made of another job"):
        keep()
    assert not chain.contents
    (folder / "tune.yaml").write_text(FILE)
    keep()
    assert chain.contents == ([job.model] if is_private else [job.model, job.rows])
    assert chain.uploads == is_private, "the encrypted rows"
    terms = find_terms(chain.world.state, task)
    assert terms is not None
    assert terms.key_root == (private.key_root if is_private else public_key_root(spec.windows))
    assert chain.world.phase(task, INPUT_WINDOW) is CustodyPhase.KEPT
