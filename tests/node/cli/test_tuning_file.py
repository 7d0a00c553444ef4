"""Files of fine-tuning jobs: what they describe; what is refused, with file and line, before anything is paid."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from node.cli.tasks.job_file import read_job
from node.cli.tasks.told import told_job
from node.home.models import add_model
from node.home.paths import Home
from rpc.client.jobs import make_job
from state.primitives.errors import ConfigError, DecodeError
from tasks.engines.input_blobs import check_tensors, split_tensors
from tasks.evaluations import least_steps
from tasks.kinds.finetune import Packing, Preference
from tasks.ledger.screening import check_start
from tasks.programs.llama_shape import GPT2_PROJECTIONS
from tasks.requests.errors import RequestInvalid
from tasks.spec import Schedule, decode_spec, encode_spec
from tests.tasks.models.checkpoints import config_of, write_folder
from tests.tasks.models.test_gpt2 import laid_out, written
from tests.tasks.programs.gpt2s import GPT2
from tests.tasks.tuned import TINY

ROWS = [{"input_ids": [1, 2, 3, 4, 5]}, {"input_ids": [7, 8, 9], "labels": [-100, 8, 9]}, {"input_ids": [3, 4]}]
FILE = """
kind: finetune
model: model
data: rows.jsonl
steps: 6
batch: 2
learning_rate: 1e-2
lora:
  rank: 2
  alpha: 4
  targets: [v_proj, q]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    write_folder(tmp_path / "model", TINY)
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    (tmp_path / "tune.yaml").write_text(FILE)
    return tmp_path


def made(folder: Path) -> Any:
    return make_job(
        read_job(folder / "tune.yaml").request, seed=b"s" * 32, max_price_per_tera_unit=10**15, match_ms=60_000
    )


def test_a_job_is_made_of_a_model_and_rows(folder: Path) -> None:
    job = made(folder)
    assert decode_spec(encode_spec(job.spec)) == job.spec and check_start(job.spec) == []
    for given, blob in zip(job.spec.inputs(), (job.rows, job.model), strict=True):
        check_tensors(given.tensors, given.root, blob)
    part = job.spec.part
    assert (part.dataset.rows, part.dataset.length, part.dataset.slots) == (3, 4, 4)
    assert (part.adapters, part.batch) == ((2, 4, ("query", "value")), 2)
    assert (part.optimiser.learning_rate_nano, part.rates) == (10_000_000, ("cosine", 0, 10**9))
    assert job.spec.schedule == Schedule(6, 1, 6)
    assert made(folder) == job
    text = FILE.replace("steps: 6", "epochs: 100")
    (folder / "tune.yaml").write_text(text)
    assert made(folder).spec.schedule == Schedule(200, 2, 200)  # an epoch of three rows has two batches
    (folder / "tune.yaml").write_text(text.replace("batch: 2", "batch: 2\nwindow_steps: 60"))
    assert made(folder).spec.schedule == Schedule(200, 2, 60)


def looped(folder: Path, *lines: str) -> Any:
    """Return the job of a file of seven rows with more fields."""
    rows = [{"input_ids": [at, at + 1, at + 2]} for at in range(7)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "tune.yaml").write_text(FILE + "\n".join(lines))
    return made(folder)


def test_fields_of_the_training_loop_are_those_of_the_specification(folder: Path) -> None:
    job = looped(folder, "accumulate: 3", "validation: 0.3", "evaluate_every: 4", "keep: best")
    assert decode_spec(encode_spec(job.spec)) == job.spec and check_start(job.spec) == []
    part, plan = job.spec.part, job.spec.plan()
    assert (part.dataset.rows, part.dataset.samples, part.loop) == (7, 5, (3, 4, 1, 0))
    # Six updates of an epoch of three batches each; two evaluations of a batch.
    assert (plan.loop.updates, job.spec.schedule.total_steps) == (6, 6 * 3 + 2)
    told = told_job(job)
    assert told["updates"] == "6, 3 x 2 rows each; 20 steps"
    assert told["validation"] == "2 rows, 2 evaluations, one every 4 updates; the best state is kept"
    assert told["memory"].endswith("MiB for the process of the job")
    assert looped(folder, "validation: 0.3").spec.part.loop == (1, 3, 0, 0)  # once an epoch


def test_a_job_with_patience_keeps_the_best_adapters_if_nothing_else_is_asked_for(folder: Path) -> None:
    job = looped(folder, "validation: 0.3", "evaluate_every: 1", "patience: 2")
    assert decode_spec(encode_spec(job.spec)) == job.spec and check_start(job.spec) == []
    assert job.spec.part.loop == (1, 1, 1, 2) and least_steps(job.spec) == 6
    assert told_job(job)["ends early"] == "after 2 evaluations in a row without a lower loss"
    assert looped(folder, "validation: 0.3", "patience: 2", "keep: last").spec.part.loop == (1, 3, 0, 2)


def test_states_are_kept_every_so_many_updates(folder: Path) -> None:
    """A window ends at each: two updates of two batches, or with the evaluation after them."""
    assert looped(folder, "save_every: 2").spec.schedule == Schedule(6, 1, 2)
    assert looped(folder, "accumulate: 2", "save_every: 2").spec.schedule.window_steps == 4
    schedule = looped(folder, "validation: 0.3", "evaluate_every: 1", "save_every: 2").spec.schedule
    assert schedule == Schedule(6 + 6, 1, 4)
    assert looped(folder, "save_every: 100").spec.schedule == Schedule(6, 1, 6)
    for lines, why in (
        (("accumulate: 3", "save_every: 1"), "epochs end in between; a multiple of 2 expected"),
        (("validation: 0.3", "evaluate_every: 2", "save_every: 3"), "evaluations end in between; a multiple of 2"),
        (("segment_steps: 4", "save_every: 2"), "save_every, in batches, is 2: a multiple of 4"),
        (("window_steps: 2", "save_every: 2"), "save_every and window_steps: give one"),
        (("save_every: 0.5",), "save_every: a whole number of 1 or more"),
    ):  # fmt: skip
        with pytest.raises(RequestInvalid, match=why):
            looped(folder, *lines)


def test_rows_for_validation_do_not_depend_on_the_seed_and_nothing_is_lost(folder: Path) -> None:
    def firsts(seed: bytes) -> list[int]:
        job = make_job(
            read_job(folder / "tune.yaml").request, seed=seed, max_price_per_tera_unit=10**15, match_ms=60_000
        )
        tensors = split_tensors(job.spec.inputs()[0].tensors, job.rows)
        return [int(row[0]) for row in np.frombuffer(tensors["tokens"], dtype="<i4").reshape(7, -1)]

    looped(folder, "validation: 0.3")
    one = firsts(b"a" * 32)
    assert one == firsts(b"b" * 32) and sorted(one) == list(range(7))
    assert one[:5] == sorted(one[:5]) and one[5:] == sorted(one[5:])


def test_rows_for_validation_may_have_a_file_of_their_own(folder: Path) -> None:
    (folder / "held.jsonl").write_text('{"input_ids": [9, 8, 7, 6]}\n{"input_ids": [9, 8]}')
    job = looped(folder, "validation: held.jsonl")
    part = job.spec.part
    assert (part.dataset.rows, part.dataset.samples, part.dataset.length) == (9, 7, 3)
    tensors = split_tensors(job.spec.inputs()[0].tensors, job.rows)
    assert np.frombuffer(tensors["tokens"], dtype="<i4").reshape(9, 3)[7:].tolist() == [[9, 8, 7], [9, 0, 0]]
    (folder / "held.jsonl").write_text('{"input_ids": [9, 8, 7, 6]}\n{"input_ids": [99, 8]}')
    with pytest.raises(RequestInvalid, match=r"held\.jsonl: line 2: input_ids: 99") as caught:
        looped(folder, "validation: held.jsonl")
    assert (caught.value.field, caught.value.line) == ("validation", 2)
    with pytest.raises(RequestInvalid, match="one row is left"):
        (folder / "rows.jsonl").write_text('{"input_ids": [9, 8, 7, 6]}')
        (folder / "tune.yaml").write_text(FILE + "validation: 0.5")
        made(folder)


@pytest.mark.parametrize(
    ("was", "now", "why"),
    [
        ("steps: 6", "steps: [6", "tune.yaml: line 6, column 6: not valid YAML: "),
        ("steps: 6", "stesp: 6", "tune.yaml: line 5: stesp is not a known field; did you mean steps?"),
        ("rank: 2", "rnak: 2", "tune.yaml: line 9: lora.rnak is not a known field; did you mean lora.rank?"),
        ("steps: 6", "zzz: 6", "tune.yaml: line 5: zzz is not a known field; known are kind, model, data"),
        ("steps: 6", 'steps: "6"', "tune.yaml: line 5: steps: a whole number of 1 or more"),
        ("steps: 6", "steps: 6e0", "tune.yaml: line 5: steps: a whole number of 1 or more"),
        ("steps: 6", "steps: 06", "tune.yaml: line 5: 06 has two meanings: write a decimal number"),
        ("steps: 6", "steps: 6\nepochs: 2", "tune.yaml: line 5: steps and epochs: give one"),
        ("steps: 6", "steps: 6\nsteps: 6", "tune.yaml: line 6: steps is there twice, first in line 5"),
        ("batch: 2", "batch: 0", "tune.yaml: line 6: batch: a whole number"),
        ("batch: 2", "batch:", "tune.yaml: line 6: a field without a value"),
        ("batch: 2", "batch: true", "tune.yaml: line 6: batch: a whole number"),
        ("1e-2", "1e-10", "tune.yaml: line 7: learning_rate: at most nine digits"),
        ("1e-2", ".nan", "tune.yaml: line 7: .nan has two meanings"),
        ("1e-2", "0", "tune.yaml: the job cannot run: "),
        ("rank: 2", "rank: 1000", "tune.yaml: the job cannot run: adapters of rank 1000"),
        ("v_proj", "lm_head", "tune.yaml: line 11: targets: a list of some of query"),
        ("kind: finetune", "kind: finetun", "tune.yaml: line 2: kind: 'finetun' is not known; did you mean fine"),
        ("kind: finetune", "kind: mine", "tune.yaml: line 2: kind: 'mine' is not known; train, finetune"),
        ("lora:", "long_rows: cut\nlora:", "tune.yaml: line 8: long_rows: refuse, truncate, drop, split expected"),
        ("lora:", "preference: dpo\nlong_rows: split\nlora:", "line 9: long_rows: refuse, truncate, drop"),
        ("lora:", "max_length: 17\nlora:", "tune.yaml: the job cannot run: rows of 17 tokens"),
        ("lora:", "max_length: 3\nlora:", "rows.jsonl: line 1: 5 tokens, at most 4"),
        ("lora:", "budget: 2.5\nlora:", "tune.yaml: line 8: budget: an amount above 0 with its unit"),
        ("lora:", "budget: 0 DKB\nlora:", "tune.yaml: line 8: budget: an amount above 0 with its unit"),
        ("lora:", "match_s: 86401\nlora:", "tune.yaml: line 8: match_s: 86400 seconds at most"),
        ("lora:", "seed: 7\nlora:", "tune.yaml: line 8: seed: a text expected, in quotes"),
        ("data: rows.jsonl", "", "tune.yaml: data is missing"),
        ("batch: 2", "segment_steps: 2\nwindow_steps: 5", "cannot run: window_steps is 5: a multiple of 2"),
        ("batch: 2", "accumulate: 0", "tune.yaml: line 6: accumulate: a whole number"),
        ("batch: 2", "accumulate: 65537", "tune.yaml: the job cannot run: "),
        ("batch: 2", "validation: 1.5", "tune.yaml: line 6: validation: a share of the rows above 0 and below 1"),
        ("batch: 2", "validation: 0", "tune.yaml: line 6: validation: a share of the rows above 0 and below 1"),
        ("batch: 2", "validation: none.jsonl", "none.jsonl: No such file"),
        ("batch: 2", "keep: best", "tune.yaml: line 6: keep needs rows for validation"),
        ("batch: 2", "keep: first", "tune.yaml: line 6: keep: last, best expected"),
        ("batch: 2", "patience: 2", "tune.yaml: line 6: patience needs rows for validation"),
        ("batch: 2", "validation: 0.3\npatience: -1", "tune.yaml: line 7: patience: a whole number of 1 or more"),
        ("batch: 2", "validation: 0.3\npatience: 129", "tune.yaml: the job cannot run: a patience of 129"),
        ("batch: 2", "evaluate_every: 2", "tune.yaml: line 6: evaluate_every needs rows for validation"),
        ("steps: 6", "steps: 600\nvalidation: 0.3\nevaluate_every: 1", "cannot run: 600 evaluations, at most 128"),
        ("batch: 2", "window_steps: 7", "the job cannot run: window_steps is 7: a multiple of 1 up to 6"),
        ("rows.jsonl", "none.jsonl", "none.jsonl: No such file"),
        ("model: model", "model: none", "none: config.json: not readable"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_named_with_its_line(folder: Path, was: str, now: str, why: str) -> None:
    assert was in FILE
    (folder / "tune.yaml").write_text(FILE.replace(was, now))
    with pytest.raises(RequestInvalid) as caught:
        made(folder)
    assert why in str(caught.value)
    line = re.search(r"line (\d+)", why)
    assert caught.value.line == (int(line[1]) if line else None)


def test_wrong_rows_and_models_are_named_with_file_line_and_remedy(folder: Path) -> None:
    (folder / "rows.jsonl").write_text('{"input_ids": [1, 2]}\n{"input_ids": [1, 40]}')
    with pytest.raises(ConfigError, match=r"rows.jsonl: line 2: input_ids: 40 at place 1, the vocabulary has 40"):
        made(folder)
    config = folder / "model" / "config.json"
    config.write_text(json.dumps(config_of(TINY) | {"hidden_act": "gelu"}))
    with pytest.raises(ConfigError, match=r"model: config.json: hidden_act 'gelu' is not supported, silu is"):
        made(folder)


def test_text_is_read_with_the_tokeniser_of_the_model(folder: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers (extra models) IS NOT INSTALLED: TEXT WAS NOT READ")
    vocabulary = {chr(code): at for at, code in enumerate(range(ord("a"), ord("z") + 1), 2)} | {"<|end|>": 1}
    (folder / "model" / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        "added_tokens": [{
            "id": 1, "content": "<|end|>", "special": True, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False,
        }],
    }))  # fmt: skip
    (folder / "rows.jsonl").write_text('{"prompt": "ab", "completion": "cd"}\n{"text": "abc"}')
    job = made(folder)
    assert (job.spec.part.dataset.rows, job.spec.part.dataset.length, job.spec.part.dataset.slots) == (2, 4, 3)
    (folder / "rows.jsonl").write_text('{"prompt": "ab"}')
    with pytest.raises(ConfigError, match=r"rows.jsonl: line 1: fields prompt; prompt and completion, messages"):
        made(folder)


def test_text_without_a_tokeniser_is_refused_with_what_to_install_or_add(folder: Path) -> None:
    (folder / "rows.jsonl").write_text('{"text": "abc"}')
    with pytest.raises(
        ConfigError, match=r"tokenizers is not installed: pip install|tokenizer.json: not readable"
    ):
        made(folder)


def test_a_model_of_the_home_is_found_by_its_name_unless_a_file_beside_the_job_has_it(tmp_path: Path) -> None:
    home, made, jobs = Home(tmp_path / "home"), tmp_path / "Made", tmp_path / "jobs"
    made.mkdir()
    jobs.mkdir()
    write_folder(made, TINY)
    add_model(home, str(made), "tiny")
    file = jobs / "tune.yaml"
    for model, place in (("tiny", home.root / "models" / "tiny"), ("./tiny/x", jobs / "tiny" / "x"),
                         ("other", jobs / "other")):  # fmt: skip
        file.write_text(f"kind: finetune\nmodel: {model}\ndata: rows.jsonl\n", encoding="utf-8")
        assert Path(read_job(file, home).request.model) == place
    (jobs / "tiny").mkdir()
    file.write_text("kind: finetune\nmodel: tiny\ndata: rows.jsonl\n", encoding="utf-8")
    assert Path(read_job(file, home).request.model) == jobs / "tiny"


@pytest.mark.parametrize(
    ("named", "wanted"),
    [
        ("[c_attn, c_proj, c_fc]", GPT2_PROJECTIONS), ("[q, k, v, o]", GPT2_PROJECTIONS[:2]),
        ("[mlp.c_proj, attn.c_attn]", ("query_key_value", "down")), ("[c_proj, attn.c_proj]", None),
        ("[q, v]", "the model has no weight query; it has query_key_value, output, up, down"),
        ("[gate]", "the model has no weight gate"),
    ],
)  # fmt: skip
def test_targets_of_gpt2_are_pefts_names(folder: Path, named: str, wanted: tuple[str, ...] | str | None) -> None:
    """R154. A name that is given twice is refused, and so is one that the model does not have."""
    written(folder / "model", laid_out(GPT2))
    (folder / "tune.yaml").write_text(FILE.replace("[v_proj, q]", named))
    if isinstance(wanted, tuple):
        spec = made(folder).spec
        assert spec.part.model.name == "gpt2" and spec.part.adapters.targets == wanted
        assert decode_spec(encode_spec(spec)) == spec
        return
    with pytest.raises(RequestInvalid, match=wanted or "targets: a list of some of"):
        made(folder)


def test_packing_puts_short_rows_in_one_sequence(folder: Path) -> None:
    """R155: three rows of 4, 2 and 1 tokens; fewer steps, the same tokens, one encoding."""
    alone = made(folder)
    (folder / "tune.yaml").write_text(FILE.replace("steps: 6", "epochs: 4\npacking: true\nmax_length: 5"))
    job = made(folder)
    part = job.spec.part
    assert (part.dataset.rows, part.dataset.samples, part.dataset.length) == (2, 2, 5)
    assert part.packing == (1,) and alone.spec.part.packing is None
    assert "3 rows share 2 sequences of 5 tokens" in job.notes
    assert decode_spec(encode_spec(job.spec)) == job.spec and check_start(job.spec) == []
    (given, _) = job.spec.inputs()
    check_tensors(given.tensors, given.root, job.rows)
    assert sorted(given.tensors) == ["places", "positions", "slots", "starts", "targets", "tokens"]
    assert job.spec.schedule.total_steps == 4
    for other in (part._replace(packing=Packing(2)), part._replace(preference=Preference(1))):
        with pytest.raises(DecodeError, match="packing"):
            decode_spec(encode_spec(job.spec._replace(part=other)))


@pytest.mark.parametrize("more", ["packing: 1", "packing: yes please", "packing: true\npreference: dpo"])
def test_packing_is_true_or_false_and_not_of_pairs(folder: Path, more: str) -> None:
    (folder / "tune.yaml").write_text(f"{FILE}{more}\n")
    with pytest.raises(RequestInvalid, match="packing"):
        made(folder)
