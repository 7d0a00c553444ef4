"""Files of decoding jobs: what they describe, what their workers make of them, and the file of completions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from node.cli.tasks.job_file import read_job
from node.cli.tasks.result import _completions, _decoder, _told_completions
from node.cli.tasks.told import told_generating
from node.cli.tasks.views import _job
from rpc.client import NoResult, ResultMismatch
from rpc.client.jobs import blobs_of, make_job, rows_from
from rpc.client.tasks import TaskResult
from rpc.methods.jobs import spec_to_json
from state.primitives.errors import ConfigError
from tasks.engines.generating import Generator, first_state
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.input_blobs import check_tensors, read_model, read_rows
from tasks.engines.state import TrainingState
from tasks.engines.tuning import first_state as first_tuned
from tasks.kinds.finetune import FinetunePart
from tasks.kinds.generate import Decoding, GeneratePart
from tasks.ledger.screening import check_start
from tasks.models.decoding import Decoder
from tasks.models.generating import GeneratingJob
from tasks.models.jobs import name_of
from tasks.models.opening import open_model
from tasks.programs.operators.scalars import NANO
from tasks.programs.sampling import Sampling
from tasks.requests.errors import RequestInvalid
from tasks.requests.generating import GeneratingRequest
from tasks.requests.reading import request_of
from tasks.requests.references import TaskRef
from tasks.spec import JobSpec, Schedule, decode_spec, encode_spec
from tests.tasks.models.checkpoints import write_folder
from tests.tasks.programs.engines import engine
from tests.tasks.tuned import TINY, tuned

PROMPTS = [[1, 2, 3, 4, 5], [7], [3, 4], [9, 8, 7]]
FILE = """
kind: generate
model: model
data: prompts.jsonl
new_tokens: 4
batch: 2
ends: [12, 7]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    write_folder(tmp_path / "model", TINY)
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps({"input_ids": one}) for one in PROMPTS))
    (tmp_path / "ask.yaml").write_text(FILE)
    return tmp_path


def made(folder: Path) -> GeneratingJob:
    job = make_job(
        read_job(folder / "ask.yaml").request, seed=b"s" * 32, max_price_per_tera_unit=10**15, match_ms=60_000
    )
    assert isinstance(job, GeneratingJob)
    return job


def result_after(job: GeneratingJob, steps: int, *, dataset: bytes | None) -> TaskResult:
    """Return the result after ``steps`` steps, computed as a worker does from the job's blobs alone."""
    plan: Any = job.spec.plan()
    run = Generator(
        plan,
        read_model(plan.shape, job.model),
        read_rows(plan.shape, job.rows),
        engine("numpy"),
        first_state(plan),
    )
    run.run_segment(steps)
    window: Any = None  # of the chain: nothing of it is written to the file
    return TaskResult(b"t" * 32, window, job.spec, run.state(), b"", dataset)


def lines(content: bytes) -> list[Any]:
    return [json.loads(line) for line in content.splitlines()]


def test_a_job_is_made_of_a_model_and_prompts(folder: Path) -> None:
    job = made(folder)
    assert decode_spec(encode_spec(job.spec)) == job.spec and check_start(job.spec) == []
    for given, blob in zip(job.spec.inputs(), (job.rows, job.model), strict=True):
        check_tensors(given.tensors, given.root, blob)
    part: Any = job.spec.part
    assert (part.dataset.rows, part.dataset.length, part.batch) == (4, 5, 2)
    assert part.decoding == Decoding("greedy", 4, (7, 12))
    assert job.spec.schedule == Schedule(16, 1, 16) and job.notes == ()
    assert told_generating(job)["prompts"] == "4 rows of 5 tokens at most, 2 at a time"
    assert told_generating(job)["completions"] == "4 tokens a row at most; end tokens: 7, 12"
    shown = _job(spec_to_json(job.spec))
    assert shown == (
        "generate llama of 1 layer: 4 prompts, 4 tokens each at most, in 16 steps, batch 2, greedy, exact/2"
    )
    assert told_generating(job)["tokens"] == "greedy"
    assert _job(spec_to_json(tuned()[0])).startswith("finetune llama of 1 layer: 4 rows, rank ")
    (folder / "ask.yaml").write_text(FILE.replace("batch: 2", "").replace("ends: [12, 7]", ""))
    part = made(folder).spec.part
    assert (part.batch, part.decoding.ends) == (4, ())


def test_a_job_samples_if_its_file_says_a_temperature(folder: Path) -> None:
    fields = "temperature: 0.7\ntop_p: 0.9\ntop_k: 40\n"
    (folder / "ask.yaml").write_text(FILE + fields)
    job = made(folder)
    assert decode_spec(encode_spec(job.spec)) == job.spec and check_start(job.spec) == []
    part: Any = job.spec.part
    assert part.decoding == Decoding("sampled", 4, (7, 12), 7 * NANO // 10, 9 * NANO // 10, 40)
    assert told_generating(job)["tokens"] == "sampled with temperature 0.7, top_p 0.9, top_k 40"
    assert ", sampled with temperature 0.7, top_p 0.9, top_k 40, exact/2" in _job(spec_to_json(job.spec))
    greedy, whole = made_plain(folder), result_after(job, 16, dataset=job.rows)
    assert job.spec.step_units > greedy.spec.step_units
    assert whole.completions() != result_after(greedy, 16, dataset=greedy.rows).completions()
    assert whole.completions() == result_after(made(folder), 16, dataset=job.rows).completions()
    for fields, wanted in (
        ("temperature: 1.5", Sampling(3 * NANO // 2)), ("temperature: 1\ntop_p: 0", Sampling(NANO, 0)),
        ("temperature: 1\ntop_p: 1\ntop_k: 0", Sampling(NANO)), ("temperature: 0", None),
        ("temperature: 0\ntop_k: 40\ntop_p: 0.5", None),
    ):  # fmt: skip
        (folder / "ask.yaml").write_text(f"{FILE}{fields}\n")
        part = made(folder).spec.part
        assert part.decoding == Decoding.of(4, (7, 12), wanted)
    assert encode_spec(made(folder).spec) == encode_spec(greedy.spec)


class Left(NamedTuple):
    """What a task of fine-tuning has left."""

    spec: JobSpec
    state: TrainingState


def test_a_tuned_model_is_asked_with_the_state_that_its_task_has_left(folder: Path) -> None:
    (folder / "ask.yaml").write_text(FILE + f'adapter: "task:0x{"ab" * 32}"\n')
    request = read_job(folder / "ask.yaml").request
    assert isinstance(request, GeneratingRequest) and request.adapter == TaskRef(b"\xab" * 32)
    terms: dict[str, Any] = {"seed": b"s" * 32, "max_price_per_tera_unit": 10**15, "match_ms": 60_000}
    with pytest.raises(RequestInvalid, match="result of its task"):
        make_job(request, **terms)
    tuning, plan, _ = tuned()
    left, part = Left(tuning, replace(first_tuned(plan), step=5)), cast("FinetunePart", tuning.part)
    stranger = tuning.changed(model=part.model._replace(root=bytes(32)))
    with pytest.raises(RequestInvalid, match="trained on another model"):
        make_job(request, tuned=Left(stranger, left.state), **terms)
    with pytest.raises(RequestInvalid, match="has no adapters"):
        make_job(request, tuned=Left(made_plain(folder).spec, left.state), **terms)
    job = make_job(request, tuned=left, **terms)
    assert isinstance(job, GeneratingJob)
    assert decode_spec(encode_spec(job.spec)) == job.spec and check_start(job.spec) == []
    given, made = job.spec.inputs()[2], job.spec.part
    assert isinstance(made, GeneratePart)
    assert made.adapter == (
        name_of(job.adapter), left.state.root(plan), plan.shape.rank, plan.shape.alpha, plan.shape.targets, 5, 0,
    )  # fmt: skip
    assert given.check is not None and given.size_bytes == len(job.adapter)
    given.check(job.adapter)
    assert blobs_of(job) == (job.model, job.adapter, job.rows)
    assert told_generating(job)["adapters"] == f"rank {plan.shape.rank}, after 5 steps"
    spec = job.spec.plan()
    assert isinstance(spec, GeneratingPlan)
    run = Generator(
        spec, read_model(spec.shape, job.model + job.adapter), read_rows(spec.shape, job.rows), engine("numpy"),
        first_state(spec),
    )  # fmt: skip
    run.run_steps(1)


def made_plain(folder: Path) -> GeneratingJob:
    (folder / "plain.yaml").write_text(FILE)
    job = make_job(
        read_job(folder / "plain.yaml").request, seed=b"s" * 32, max_price_per_tera_unit=10**15, match_ms=60_000
    )
    assert isinstance(job, GeneratingJob)
    return job


def test_completions_are_those_of_the_decoder_in_the_order_of_the_prompts(folder: Path) -> None:
    job = made(folder)
    with open_model(folder / "model") as opened:
        wanted = Decoder(opened.load(), engine("numpy")).decode(PROMPTS, 4, frozenset({7, 12})).tokens
    whole = result_after(job, 16, dataset=job.rows)
    assert lines(_completions(whole, whole.completions(), None)) == [
        {"row": row, "output_ids": one, "ended": one[-1] in (7, 12)} for row, one in enumerate(wanted)
    ]
    assert _told_completions(whole) == {"rows": 4, "completed": 4, "tokens": sum(map(len, wanted))}
    half = result_after(job, 11, dataset=job.rows)  # the second batch is under way
    texts = lines(
        _completions(half, half.completions(), lambda tokens: "".join(chr(0xE0 + token) for token in tokens))
    )
    assert [line["output_ids"] for line in texts] == wanted[:2]
    assert texts[0]["text"] == "".join(chr(0xE0 + token) for token in wanted[0])
    lacking = result_after(job, 16, dataset=None)
    assert _told_completions(lacking) == {"rows": 4, "completed": None}
    with pytest.raises(NoResult, match="prompts"):
        lacking.completions()
    with pytest.raises(ResultMismatch, match="root"):
        result_after(job, 16, dataset=bytes(len(job.rows))).completions()


def test_lines_say_how_they_are_decoded_and_where_their_texts_end(folder: Path) -> None:
    """Limits and stop texts stand with the prompts: the result needs nothing but the job (R136)."""
    rows: list[dict[str, Any]] = [
        {"input_ids": PROMPTS[0]}, {"input_ids": PROMPTS[1], "temperature": 1.5, "seed": 4, "max_new_tokens": 6},
        {"input_ids": PROMPTS[2], "stop": ["zz", chr(0xE0)]},
        {"input_ids": PROMPTS[1], "temperature": 1.5, "seed": 4},
    ]  # fmt: skip
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    job = made(folder)
    part: Any = job.spec.part
    assert part.by_row.stop_columns > 0 and part.decoding == Decoding("greedy", 4, (7, 12))
    assert decode_spec(encode_spec(job.spec)) == job.spec and check_start(job.spec) == []
    assert told_generating(job)["tokens"] == "as each line says"
    with open_model(folder / "model") as opened:
        wanted = Decoder(opened.load(), engine("numpy")).decode(PROMPTS, 4, frozenset({7, 12})).tokens
    whole = result_after(job, 16, dataset=job.rows)
    done = whole.completions()
    assert (done[0], done[2]) == (wanted[0], wanted[2]) and done[3] == done[1][:4]
    assert whole.stops() == [(), (), ("zz", chr(0xE0)), ()]
    found = lines(_completions(whole, done, lambda tokens: "".join(chr(0xE0 + token) for token in tokens)))
    assert [("stopped" in line) for line in found] == [False, False, True, False]
    (folder / "prompts.jsonl").write_text('{"input_ids": [1]}\n{"input_ids": [2], "top_p": 0.5}')
    with pytest.raises(RequestInvalid, match=r"prompts.jsonl: line 2: top_p: without a temperature"):
        made(folder)


def test_completions_are_rows_of_a_job_that_trains_on_them_alone(folder: Path) -> None:
    """Of a task that has done two of four prompts; nothing is tokenised again."""
    asked = made(folder)
    half = result_after(asked, 11, dataset=asked.rows)
    done = half.completions()
    fields = {"kind": "finetune", "model": str(folder / "model"), "data": f"task:0x{'ab' * 32}@11", "steps": 2}
    request = request_of(fields)
    terms: dict[str, Any] = {"seed": b"s" * 32, "max_price_per_tera_unit": 10**15}
    with pytest.raises(RequestInvalid, match="the result of its task is needed"):
        make_job(request, **terms)
    job = make_job(request, data=rows_from(request, half), **terms)
    rows = lines(rows_from(request, half))
    assert rows == [
        {"input_ids": [*prompt, *made_tokens], "labels": [*[-100] * len(prompt), *made_tokens]}
        for prompt, made_tokens in zip(PROMPTS, done, strict=False)
    ]
    part: Any = job.spec.part
    assert (part.dataset.rows, part.dataset.slots) == (2, max(map(len, done)))
    embedded = request_of({"kind": "embed", "model": str(folder / "model"), "data": f"task:0x{'ab' * 32}"})
    assert lines(rows_from(embedded, half)) == [{"input_ids": row["input_ids"]} for row in rows]
    with pytest.raises(RequestInvalid, match="no prompt of that task is done yet"):
        rows_from(request, result_after(asked, 3, dataset=asked.rows))
    with pytest.raises(RequestInvalid, match="a task of kind finetune has no completions"):
        rows_from(request, replace(half, spec=job.spec))


@pytest.mark.parametrize(
    ("was", "now", "why"),
    [
        ("new_tokens: 4", "new_tokens: [4", "ask.yaml: line 6, column 6: not valid YAML: "),
        ("new_tokens: 4", "epochs: 4", "ask.yaml: line 5: epochs is not a known field; known are kind, model"),
        ("new_tokens: 4", "new_tokens: 4\nlora: {rank: 2}", "ask.yaml: line 6: lora is not a known field"),
        ("new_tokens: 4", "new_tokens: 0", "ask.yaml: line 5: new_tokens: a whole number of 1 or more"),
        ("new_tokens: 4", "new_tokens: 17", "ask.yaml: the job cannot run: new_tokens is 17, and the model"),
        ("new_tokens: 4", "new_tokens: 13", "prompts.jsonl: line 1: 5 tokens, at most 4: shorten it, or lower"),
        ("batch: 2", "batch: 3", "4 prompts are not a multiple of batch 3: set batch to 2, or add 2"),
        ("[12, 7]", "[12, 12]", "ask.yaml: line 7: ends: a list of 8 token numbers at most"),
        ("[12, 7]", "[-1]", "ask.yaml: line 7: ends: a list of 8 token"),
        ("batch: 2", "adapter: my-adapters", "ask.yaml: line 6: adapter: task: and the ID of a task"),
        ("batch: 2", "adapter: 7", "ask.yaml: line 6: adapter: a text expected"),
        ("batch: 2", "temperature: -1", "ask.yaml: line 6: temperature: a number from 0 to 100 expected"),
        ("batch: 2", "temperature: 101", "ask.yaml: line 6: temperature: a number from 0 to 100 expected"),
        ("batch: 2", "temperature: warm", "ask.yaml: line 6: temperature: a number"),
        ("batch: 2", "top_p: 0.9", "ask.yaml: line 6: top_p: without a temperature the likeliest token is taken"),
        ("batch: 2", "top_k: 9", "ask.yaml: line 6: top_k: without a temperature"),
        ("batch: 2", "temperature: 1\ntop_p: 1.5", "ask.yaml: line 7: top_p: a number from 0 to 1 expected"),
        ("batch: 2", "temperature: 1\ntop_k: -1", "ask.yaml: line 7: top_k: a whole number of 0 or more"),
        ("batch: 2", "temperature: 1\ntop_k: 400000000", "ask.yaml: line 7: top_k: 268435456 at most"),
        ("batch: 2", "temperatur: 1", "ask.yaml: line 6: temperatur is not a known field; did you mean"),
        ("[12, 7]", "7", "ask.yaml: line 7: ends: a list expected"),
        ("[12, 7]", "[40]", "ask.yaml: the job cannot run: end tokens: up to 8 of the vocabulary"),
        ("generate", "ask", "ask.yaml: line 2: kind: 'ask' is not known; "),
        ("data: prompts.jsonl", "", "ask.yaml: data is missing"),
        ("prompts.jsonl", "none.jsonl", "none.jsonl: No such file"),
        ("model: model", "model: none", "none: config.json: not readable"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_named_with_its_line(folder: Path, was: str, now: str, why: str) -> None:
    assert was in FILE
    (folder / "ask.yaml").write_text(FILE.replace(was, now))
    with pytest.raises(ConfigError) as caught:
        made(folder)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"input_ids": [40]}', "input_ids: 40 at place 0, the vocabulary has 40"),
        ('{"input_ids": [true]}', "input_ids: a list of integers expected"),
        ('{"input_ids": []}', "a prompt without a token"),
        ('{"input_ids": [1], "labels": [1]}', "fields input_ids, labels; one of prompt, messages and input_ids"),
        ('{"prompt": 5}', "prompt: a text expected, not int"),
        ('{"prompt": "a", "prompt": "b"}', "not valid JSON: duplicate name"),
        ('{"messages": []}', "messages: a list of 1 to"),
    ],
)
def test_wrong_prompts_are_named_with_their_line(folder: Path, line: str, why: str) -> None:
    (folder / "prompts.jsonl").write_text('{"input_ids": [1, 2]}\n\n' + line)
    with pytest.raises(ConfigError, match=r"prompts.jsonl: line 3[:,]") as caught:
        made(folder)
    assert why in str(caught.value)


def test_a_number_of_prompts_that_nothing_divides_is_told(folder: Path) -> None:
    text = "\n".join(json.dumps({"input_ids": [one]}) for one in range(11))
    (folder / "prompts.jsonl").write_text(text)
    (folder / "ask.yaml").write_text(FILE.replace("batch: 2", ""))
    job = made(folder)
    part: Any = job.spec.part
    assert part.batch == 1 and "11 prompts are decoded one at a time" in job.notes[0]


def test_text_goes_in_and_out_with_the_tokeniser_of_the_model(folder: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers (extra models) IS NOT INSTALLED: TEXT WAS NOT READ")
    letters = {chr(code): at for at, code in enumerate(range(ord("a"), ord("z") + 1), 2)}
    (folder / "model" / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "model": {"type": "BPE", "vocab": letters | {"<|end|>": 1}, "merges": []},
        "added_tokens": [{
            "id": 1, "content": "<|end|>", "special": True, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False,
        }],
    }))  # fmt: skip
    (folder / "prompts.jsonl").write_text('{"prompt": "ab"}\n{"prompt": "abc"}')
    (folder / "ask.yaml").write_text(FILE.replace("ends: [12, 7]", ""))
    job = made(folder)
    part: Any = job.spec.part
    assert (part.dataset.length, part.decoding.ends) == (3, (1,))
    assert "".join(_decoder(folder / "model", job.spec)([2, 3, 1]).split()) == "ab"
    with pytest.raises(ConfigError, match="another shape"):
        _decoder(folder / "model", tuned(layers=2)[0])
    (folder / "prompts.jsonl").write_text('{"messages": [{"role": "assistant", "content": "ab"}]}')
    with pytest.raises(ConfigError, match=r"line 1: messages: the last one is the assistant's"):
        made(folder)
