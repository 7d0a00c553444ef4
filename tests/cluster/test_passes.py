"""Job files on a network of processes: vectors of texts; models that are trained, tuned, evaluated and asked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tasks.models.row_results import vectors_of
from tests.cluster.network import Network
from tests.cluster.test_cli import ask, net
from tests.tasks.models.checkpoints import write_folder
from tests.tasks.models.test_encoders import done as computed
from tests.tasks.models.test_encoders import made, write_encoder
from tests.tasks.tuned import TINY

__all__ = ["net"]
pytestmark = [pytest.mark.cluster, pytest.mark.nightly]


def test_a_file_embeds_tunes_evaluates_and_asks(net: Network, tmp_path: Path) -> None:
    for name in ("model", "encoder"):
        (tmp_path / name).mkdir()
    write_folder(tmp_path / "model", TINY)
    write_encoder(tmp_path / "encoder")
    rows = [{"input_ids": [number, number + 1, number + 2, number + 3]} for number in range(8)]
    texts = [{"input_ids": [number % 40, 3 + number % 7, 1][: 1 + number % 3]} for number in range(512)]
    for file, lines in (("rows", rows), ("texts", texts), ("test", rows * 16), ("prompts", rows * 22)):
        (tmp_path / f"{file}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    job = tmp_path / "all.yaml"
    job.write_text(
        "budget: 60 DKB\ncustody: false\njobs:\n"
        "  vectors: {kind: embed, model: encoder, data: texts.jsonl, batch: 4}\n"
        "  tune: {kind: finetune, model: model, data: rows.jsonl, steps: 128, batch: 2}\n"
        "  test: {kind: evaluate, model: model, data: test.jsonl, batch: 1, adapter: job:tune}\n"
        "  ask: {kind: generate, model: model, data: prompts.jsonl, new_tokens: 4, ends: [7], adapter: job:tune}\n"
    )
    posted = ask(net, "task", "create", "--file", job, "--watch")
    assert posted["phase"] == "settled"
    tasks = {one["job"]: one["task"] for one in posted["tasks"]}
    assert list(tasks) == ["vectors", "tune", "test", "ask"]

    told = ask(net, "task", "result", tasks["vectors"], "--out", tmp_path / "vectors")
    assert (told["proved"], told["embedded"], told["width"]) == (True, 512, 8)
    wanted = made(tmp_path / "encoder", texts, batch=7)  # another batch, and another machine
    found = np.load(tmp_path / "vectors/vectors.npy", allow_pickle=False)
    assert found.tobytes() == vectors_of(wanted.spec, computed(wanted)).tobytes()

    told = ask(net, "task", "result", tasks["test"], "--out", tmp_path / "losses")
    assert (told["proved"], told["evaluated"], told["tokens"]) == (True, 128, 384)
    whole = json.loads((tmp_path / "losses/evaluation.json").read_text())
    assert whole["loss"] == told["loss"] and whole["adapter_root"] is not None
    tuned = ask(net, "task", "result", tasks["tune"])["state_root"]
    assert whole["adapter_root"] == tuned
    for folder in ("vectors", "losses"):
        checked = ask(net, "verify", tmp_path / folder)
        assert checked["proved"] and checked["not_checked"] == []


def test_a_file_trains_a_model_tunes_it_evaluates_and_asks_it(net: Network, tmp_path: Path) -> None:
    """The second job's base is what the first one has left; nobody names a file of a model (R169)."""
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog. " * 40)
    rows = [{"prompt": "the q", "completion": f"uilt covers bed {number}"} for number in range(8)]
    prompts = [{"prompt": "the q"}] * 128
    for file, lines in (("rows", rows), ("test", rows * 16), ("prompts", prompts)):
        (tmp_path / f"{file}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    job = tmp_path / "all.yaml"
    job.write_text(
        "budget: 60 DKB\ncustody: false\njobs:\n"
        "  learn: {kind: train, data: book.txt, steps: 128, batch: 2,"
        " shape: {layers: 1, width: 16, heads: 2, context: 32}}\n"
        "  tune: {kind: finetune, model: job:learn, data: rows.jsonl, steps: 128, batch: 2}\n"
        "  test: {kind: evaluate, model: job:learn, adapter: job:tune, data: test.jsonl, batch: 1}\n"
        "  ask: {kind: generate, model: job:learn, adapter: job:tune, data: prompts.jsonl, new_tokens: 4}\n"
    )
    posted = ask(net, "task", "create", "--file", job, "--watch")
    assert posted["phase"] == "settled"
    tasks = {one["job"]: one["task"] for one in posted["tasks"]}
    told = ask(net, "task", "result", tasks["tune"], "--out", tmp_path / "adapters", "--base", "learned")
    checked = ask(net, "verify", tmp_path / "adapters")
    assert checked["proved"] and checked["not_checked"] == []
    assert ask(net, "task", "result", tasks["test"], "--out", tmp_path / "losses")["proved"]
    whole = json.loads((tmp_path / "losses/evaluation.json").read_text())
    assert whole["adapter_root"] == told["state_root"]
    assert ask(net, "task", "result", tasks["ask"])["proved"]
