"""Jobs from a model's own files: numbers that a request left open, chats, models of the home."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from node.api.errors import ApiError
from node.api.making import Maker, MakerOptions, ModelFile, trained_tokens
from node.api.records import BATCH, TUNING, JobRecord, SignedTask
from node.api.requests import CHAT, EMBEDDINGS
from node.api.results import metrics_file
from node.api.store import Store, new_id
from node.home.paths import Home
from rpc.client.metrics import LossPoint
from tasks.engines.input_blobs import read_rows
from tasks.evaluations import Evaluation
from tasks.programs.generate import OWN, ByRow
from tasks.programs.operators.scalars import NANO
from tasks.spec import encode_spec
from tests.cluster.api_server import WORDS, batch_lines, rows_of, write_model

OPEN: dict[str, Any] = {"epochs": None, "batch": None, "rate_factor": None}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


def made(folder: Path, model: Path) -> tuple[Store, Maker]:
    store = Store(folder / "api")
    return store, Maker([ModelFile("tiny", model)], Home(folder), store, MakerOptions(10**15, 60_000))


def tuning(store: Store, content: bytes) -> JobRecord:
    file = store.add_file(content, "rows.jsonl", "fine-tune", 1)
    return JobRecord(new_id(TUNING), TUNING, 1, {}, "queued", "tiny", file.id, 7)


def batch(store: Store, lines: list[dict[str, Any]], model: str = "tiny") -> JobRecord:
    file = store.add_file("\n".join(map(json.dumps, lines)).encode(), "b.jsonl", "batch", 1)
    return JobRecord(new_id(BATCH), BATCH, 1, {"endpoint": CHAT}, "validating", model, file.id, 0)


def test_a_tuning_has_numbers_for_what_was_left_open_and_is_made_the_same_again(
    tmp_path: Path, model: Path
) -> None:
    store, maker = made(tmp_path, model)
    job = maker.settled(tuning(store, rows_of()), **OPEN)
    assert (job.settings["epochs"], job.settings["batch"], job.settings["rate_factor"]) == (3, 4, 1.0)
    first = maker.make(job)
    store.close()
    store, again = made(tmp_path, model)
    assert encode_spec(again.make(job).spec) == encode_spec(first.spec)
    other = again.make(replace(job, id="ftjob-other", settings={**job.settings, "rate_factor": 0.5}))
    part: Any = other.spec.part
    assert part.optimiser.learning_rate_nano == 100_000
    store.close()


def test_rows_that_a_model_does_not_take_are_named(tmp_path: Path, model: Path) -> None:
    store, maker = made(tmp_path, model)
    bad = rows_of() + b'\n{"messages": [{"role": "user", "content": "x", "weight": 1}]}'
    with pytest.raises(ApiError, match="line 9") as error:
        maker.settled(tuning(store, bad), **OPEN)
    assert (error.value.reason, error.value.param) == ("invalid_training_file", "training_file")
    long = json.dumps({"prompt": "a" * 80, "completion": "b"}).encode()
    with pytest.raises(ApiError, match="line 1: 82 tokens") as error:
        maker.make(maker.settled(tuning(store, long), **OPEN))
    assert error.value.param == "training_file"
    with pytest.raises(ApiError) as error:
        maker.settled(replace(tuning(store, rows_of()), model="ft:tiny:none"), **OPEN)
    assert (error.value.status, error.value.reason) == (404, "model_not_found")
    store.close()


def test_a_model_without_turns_of_chats_takes_no_chats(tmp_path: Path, model: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    for file in model.iterdir():
        text = file.read_bytes()
        (plain / file.name).write_bytes(
            text.replace(b"<|im_start|>", b"<|turn|>") if file.suffix == ".json" else text
        )
    store, maker = made(tmp_path, plain)
    for ask in (lambda: maker.settled(tuning(store, rows_of()), **OPEN), lambda: maker.plan(batch(store, LINES))):
        with pytest.raises(ApiError, match="no chats") as error:
            ask()
        assert error.value.reason == "unsupported_parameter"
    rows = [json.dumps({"prompt": word, "completion": word}).encode() for word in WORDS]
    assert maker.settled(tuning(store, b"\n".join(rows)), **OPEN).settings["tokens"] == 8 * 5
    store.close()


LINES = batch_lines("tiny")


def test_a_batch_is_rows_with_the_model_s_end(tmp_path: Path, model: Path) -> None:
    store, maker = made(tmp_path, model)
    job = batch(store, LINES)
    assert maker.lines(job) == ("tiny", [])
    part: Any = maker.make(job).spec.part
    assert (part.dataset.rows, part.batch, part.decoding.new_tokens, part.decoding.ends) == (8, 8, 4, (257,))
    unknown = maker.lines(batch(store, batch_lines("gpt-none")))
    assert [fault.reason for fault in unknown[1]] == ["model_not_found"]
    store.close()


def test_a_batch_is_drawn_as_its_requests_say(tmp_path: Path, model: Path) -> None:
    """Without a seed a row has one of the job's, which each job has for itself (R136)."""
    store, maker = made(tmp_path, model)

    def made_of(name: str, own: int, **body: Any) -> tuple[Any, dict[str, list[Any]]]:
        job: Any = maker.make(replace(batch(store, batch_lines("tiny", **body)), id=name, seed=own))
        plan = job.spec.plan()
        rows = read_rows(plan.shape, job.rows)
        return job.spec, {
            name: np.frombuffer(rows[name], dtype="<i4").reshape(plan.shape.rows, -1).tolist()
            for name in rows if name in OWN
        }  # fmt: skip

    usual, own = made_of("batch_a", 7)
    assert usual.part.by_row == ByRow(0) and usual.part.decoding.sampling is None
    assert own["temperatures"] == [[10**6]] * 8 and len({tuple(key) for key in own["keys"]}) == 8
    assert made_of("batch_b", 8)[1]["keys"] != own["keys"] == made_of("batch_c", 7)[1]["keys"]
    _, drawn = made_of("batch_d", 7, temperature=0.7, top_p=0.9, seed=3)
    assert drawn["temperatures"][0] == [700_000] and drawn["top_p"][0] == [9 * NANO // 10]
    keys = made_of("batch_e", 8, temperature=1, seed=3)[1]["keys"]
    assert drawn["keys"] == keys and len({tuple(key) for key in keys}) == 1
    assert made_of("batch_f", 7, temperature=0, top_p=0.9, seed=3)[0].part.by_row is None
    twice, answers = made_of("batch_g", 7, n=2, seed=3)
    assert twice.part.dataset.rows == 2 * usual.part.dataset.rows and answers["keys"][0] != answers["keys"][1]
    store.close()


def test_a_tuned_model_needs_the_state_that_the_chain_has(tmp_path: Path, model: Path) -> None:
    store, maker = made(tmp_path, model)
    job = maker.settled(tuning(store, rows_of()), **OPEN)
    spec = maker.make(job).spec
    from tasks.engines.tuning import first_state
    from tasks.engines.tuning_plan import TuningPlan

    plan = spec.plan()
    assert isinstance(plan, TuningPlan)
    state = first_state(plan)
    job = replace(
        job, status="succeeded", spec=encode_spec(spec).hex(), signed=SignedTask("ab" * 32, "", None),
        tuned_model="ft:tiny:x", state_root=state.root(plan).hex(),
    )  # fmt: skip
    store.add_job(job, budget=0, now_ms=0)
    asked = batch(store, batch_lines("ft:tiny:x"), "ft:tiny:x")
    with pytest.raises(ApiError, match="No such state"):
        maker.make(asked)
    store.keep_state(job.id, state.encode())
    part: Any = maker.make(asked).spec.part
    assert part.adapter.root == state.root(plan)
    store.keep_state(job.id, state.encode()[:-1])
    with pytest.raises(ApiError, match="damaged"):
        maker.make(replace(asked, id="batch_2"))
    store.keep_state(job.id, bytes([state.encode()[0]]) + state.encode()[1:-1] + bytes([state.encode()[-1] ^ 1]))
    with pytest.raises(ApiError, match="damaged"):
        maker.make(replace(asked, id="batch_3"))
    store.delete_model("ft:tiny:x")
    with pytest.raises(ApiError, match="No such model"):
        maker.base_of("ft:tiny:x")
    assert maker.base_of("ft:tiny:x", is_deleted_too=True)[1] is not None
    store.close()


def test_a_tuned_model_is_tuned_again_and_makes_vectors(tmp_path: Path, model: Path) -> None:
    """Its jobs go on from its adapters, and name their task. The base of a model that was tuned twice is found."""
    store, maker = made(tmp_path, model)
    from tasks.engines.tuning import first_state

    state: Any = None
    names = ["tiny", "ft:tiny:one", "ft:tiny:two"]
    for before, after in pairwise(names):
        job = replace(tuning(store, rows_of()), id=f"ftjob-{after[8:]}", model=before)
        job = maker.settled(job, **OPEN)
        spec = maker.make(job).spec
        part: Any = spec.part
        if state is not None:
            assert part.start.root == state.root(spec.plan())
        plan: Any = spec.plan()
        state = first_state(plan)
        job = replace(
            job, status="succeeded", spec=encode_spec(spec).hex(), signed=SignedTask("ab" * 32, "", None),
            tuned_model=after, state_root=state.root(plan).hex(),
        )  # fmt: skip
        store.add_job(job, budget=0, now_ms=0)
        store.keep_state(job.id, state.encode())
    assert maker.base_of("ft:tiny:two")[0].name == maker.base_name("ft:tiny:two") == "tiny"
    removed = Maker([], Home(tmp_path / "other"), store, MakerOptions(1, 1))
    with pytest.raises(ApiError, match="base model tiny is not served"):
        removed.base_of("ft:tiny:two")
    assert removed.base_name("ft:tiny:two") == "tiny"  # the result of a paid job is named without its files
    lines = [{
        "custom_id": "a", "method": "POST", "url": EMBEDDINGS, "body": {"model": names[-1], "input": WORDS[0]},
    }]  # fmt: skip
    file = store.add_file("\n".join(map(json.dumps, lines)).encode(), "v.jsonl", "batch", 1)
    asked = JobRecord(new_id(BATCH), BATCH, 1, {"endpoint": EMBEDDINGS}, "validating", names[-1], file.id, 0)
    part = maker.make(asked).spec.part
    assert part.adapter.root == state.root(plan)
    store.close()


def test_preferences_are_pairs_of_turns(tmp_path: Path, model: Path) -> None:
    store, maker = made(tmp_path, model)
    rows = [{
        "input": {"messages": [{"role": "user", "content": word}]},
        "preferred_output": [{"role": "assistant", "content": "a"}],
        "non_preferred_output": [{"role": "assistant", "content": "b"}],
    } for word in WORDS]  # fmt: skip
    asked = tuning(store, "\n".join(map(json.dumps, rows)).encode())
    job = maker.settled(replace(asked, request={"method": "dpo"}), **OPEN, beta=0.5)
    part: Any = maker.make(job).spec.part
    assert (part.preference.beta_nano, part.dataset.rows) == (NANO // 2, len(WORDS))
    shown = job.to_json()["method"]
    assert shown["type"] == "dpo" and shown["dpo"]["hyperparameters"]["beta"] == 0.5
    with pytest.raises(ApiError, match="prompt, chosen and rejected expected"):
        maker.settled(replace(tuning(store, rows_of()), request={"method": "dpo"}), **OPEN, beta=None)
    with pytest.raises(ApiError, match="line 1: input: an object with messages"):
        wrong = json.dumps({**rows[0], "input": {"messages": [], "tools": []}}).encode()
        maker.settled(replace(tuning(store, wrong), request={"method": "dpo"}), **OPEN, beta=None)
    store.close()


def test_models_of_the_home_are_served_and_those_that_are_named_go_first(tmp_path: Path, model: Path) -> None:
    from node.home.models import add_model

    store, maker = made(tmp_path, model)
    home = Home(tmp_path)
    add_model(home, str(model), name="kept")
    assert sorted(name for name, _ in maker.models()) == ["kept", "tiny"]
    assert maker.base_of("kept")[0].path.is_relative_to(tmp_path)
    assert maker.base_of("tiny")[0].path == model
    store.close()


def test_rows_for_validation_are_those_of_their_file_and_cost_an_evaluation_an_epoch(
    tmp_path: Path, model: Path
) -> None:
    store, maker = made(tmp_path, model)
    held = store.add_file(rows_of(("qr", "st", "uv")), "held.jsonl", "fine-tune", 1)
    job = replace(tuning(store, rows_of()), request={"validation_file": held.id})
    job = maker.settled(job, **OPEN)
    spec: Any = maker.make(job).spec
    rows = spec.part.dataset
    assert (rows.rows, rows.samples, spec.part.loop) == (11, 8, (1, 2, 0, 0))
    assert spec.schedule.total_steps == 3 * (2 + 1)
    assert job.to_json()["validation_file"] == held.id
    loop = spec.plan().loop
    assert [trained_tokens(job, loop, steps) for steps in (2, 3, 9)] == [
        job.settings["tokens"] * times for times in (1, 1, 3)
    ]
    store.add_job(replace(job, status="running"), budget=10**30, now_ms=0)
    with pytest.raises(ApiError) as error:
        store.delete_file(held.id)
    assert error.value.reason == "file_in_use"
    for content, why in ((b'{"text": 5}', "line 1"), (rows_of() + b"\n{}", "line 9")):
        bad = store.add_file(content, "bad.jsonl", "fine-tune", 1)
        with pytest.raises(ApiError, match=why) as error:
            maker.settled(replace(job, request={"validation_file": bad.id}), **OPEN)
        assert (error.value.reason, error.value.param) == ("invalid_validation_file", "validation_file")
    store.close()


def test_losses_are_a_table_with_a_column_for_validation_where_there_is_some() -> None:
    points = [LossPoint(0, 0, 2, 2.5, True), LossPoint(0, 2, 3, 1.25, True)]
    assert metrics_file(points) == b"step,train_loss\n2,2.5\n3,1.25\n"
    found = metrics_file(points, [Evaluation(2, 3, 1.5), Evaluation(4, 6, 1.0)])
    assert found == b"step,train_loss,valid_loss\n2,2.5,\n3,1.25,1.5\n6,,1\n"
