"""The official client for Python, unchanged, against ``dekube api``: one life cycle with interruptions."""

from __future__ import annotations

import base64
import io
import json
import signal
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import openai
import pytest

from tasks.programs.generate import ByRow
from tasks.spec import decode_spec
from tests.cluster.api_server import SHAPE, WORDS, ApiServer, batch_lines, rows_of, write_model
from tests.cluster.network import Network, network, run_here, wait_for

pytestmark = pytest.mark.cluster

BUDGET: Final = "80"
"""DKB: room for one job of fine-tuning, which reserves 42, and for the batches."""
EPOCHS: Final = 32
STEPS: Final = 5 * EPOCHS
"""Four batches of an epoch, and one of its evaluation."""
END_S: Final = 150.0
"""A job takes some 20 seconds."""


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Network]:
    with network(tmp_path / "net", "--workers", "1", "--no-task") as made:
        made.start()
        made.wait_up()
        wait_for(lambda: len(made.call("validator-0", "dekube_getNodes")["items"]) == 5, "machines are registered")
        yield made


def connected(server: ApiServer, key: str | None = None) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url, api_key=server.key if key is None else key)


def upload(client: openai.OpenAI, content: bytes, purpose: Any) -> str:
    return client.files.create(file=("data.jsonl", content), purpose=purpose).id


def jsonl(lines: list[dict[str, Any]]) -> bytes:
    return "\n".join(map(json.dumps, lines)).encode()


def ask_batch(client: openai.OpenAI, lines: list[dict[str, Any]]) -> Any:
    return client.batches.create(
        input_file_id=upload(client, jsonl(lines), "batch"),
        endpoint="/v1/chat/completions",
        completion_window="24h",
    )


def wrong_requests_raise_the_client_s_errors(server: ApiServer, client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        connected(server, "sk-another").models.list()
    broken = rows_of(WORDS * 2) + b'\n{"messages": [\n' + rows_of()
    with pytest.raises(openai.BadRequestError, match="line 17") as refused:
        upload(client, broken, "fine-tune")
    assert (refused.value.code, refused.value.param) == ("invalid_jsonl", "file")
    with pytest.raises(openai.NotFoundError):
        client.fine_tuning.jobs.create(model="tiny", training_file="file-none")
    rows = upload(client, rows_of() + b'\n{"messages": [{"role": "user", "content": "x"}]}', "fine-tune")
    with pytest.raises(openai.BadRequestError, match="line 9") as refused:
        client.fine_tuning.jobs.create(model="tiny", training_file=rows)
    assert (refused.value.code, refused.value.param) == ("invalid_training_file", "training_file")
    good = upload(client, rows_of(), "fine-tune")
    with pytest.raises(openai.BadRequestError, match="line 9") as refused:
        client.fine_tuning.jobs.create(model="tiny", training_file=good, validation_file=rows)
    assert (refused.value.code, refused.value.param) == ("invalid_validation_file", "validation_file")
    with pytest.raises(openai.BadRequestError) as refused:
        client.batches.create(input_file_id=rows, endpoint="/v1/moderations", completion_window="24h")
    assert refused.value.param == "endpoint"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x"}])


def test_a_client_tunes_a_model_asks_it_and_is_kept_within_its_budget(net: Network, tmp_path: Path) -> None:
    run_here("model", "add", write_model(tmp_path / "tiny"), "--home", net.root / "validator-0")
    server = ApiServer(net.root / "validator-0", BUDGET)
    server.start()
    try:
        play(server, net, tmp_path)
    finally:
        server.end()


def play(server: ApiServer, net: Network, folder: Path) -> None:
    client = connected(server)
    assert [model.id for model in client.models.list()] == ["tiny"]
    wrong_requests_raise_the_client_s_errors(server, client)

    rows = upload(client, rows_of(), "fine-tune")
    held = upload(client, rows_of(("qr", "st")), "fine-tune")
    settings: Any = {
        "model": "tiny",
        "training_file": rows,
        "hyperparameters": {"n_epochs": EPOCHS, "batch_size": 2},
    }
    answer = client.fine_tuning.jobs.with_raw_response.create(
        **settings, validation_file=held, seed=7, suffix="mirror"
    )
    job = answer.parse()
    assert job.validation_file == held
    with pytest.raises(openai.ConflictError):
        client.files.delete(held)
    extra: Any = (job.model_extra or {})["dekube"]
    assert answer.headers["x-dekube-price"] == extra["reserved"]
    with pytest.raises(openai.RateLimitError, match="budget") as refused:
        client.fine_tuning.jobs.create(**settings, validation_file=held)
    assert refused.value.code == "insufficient_quota"
    server.end(signal.SIGKILL)  # wherever it is: the job goes on, and has one task
    server.start()
    client = connected(server)
    with pytest.raises(openai.RateLimitError):
        client.fine_tuning.jobs.create(**settings, validation_file=held)

    cancelled = client.batches.cancel(ask_batch(client, batch_lines("tiny")).id)
    assert cancelled.status == "cancelling"
    short = client.fine_tuning.jobs.create(**settings | {"hyperparameters": {"n_epochs": 8, "batch_size": 2}})
    assert client.fine_tuning.jobs.cancel(short.id).status == "queued"
    job = wait_for(lambda: tuned(client, job.id), "the job has ended", patience_s=END_S)
    assert (job.status, job.error, job.trained_tokens) == ("succeeded", None, 6_400)
    told = [event.message for event in client.fine_tuning.jobs.list_events(job.id)]
    assert told[0] == "The job is done." and told[-1].startswith("The job was created.")
    points = client.fine_tuning.jobs.checkpoints.list(job.id).data
    assert [(point.step_number, point.fine_tuning_job_id) for point in points] == [(STEPS, job.id)]
    the_validation_losses_are_told(client, job, points[0].metrics)
    root = the_folder_and_the_receipt_prove_the_job(client, job, net, folder)

    model = job.fine_tuned_model
    assert model is not None and model.startswith("ft:tiny:dekube:mirror:")
    assert model in [one.id for one in client.models.list()]
    a_batch_answers_what_it_can(client, model, root)
    cancelled = wait_for(lambda: ended(client, cancelled.id), "the batch is cancelled", patience_s=END_S)
    assert cancelled.status == "cancelled"
    assert (
        wait_for(lambda: tuned(client, short.id), "the job is cancelled", patience_s=END_S).status == "cancelled"
    )
    a_batch_gives_vectors(client)
    assert client.models.delete(model).deleted
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve(model)


def the_validation_losses_are_told(client: openai.OpenAI, job: Any, metrics: Any) -> None:
    """Once an epoch, and the last one with the checkpoint."""
    told = [one for one in client.fine_tuning.jobs.list_events(job.id, limit=100) if one.type == "metrics"]
    losses = [cast("Any", one.data)["full_valid_loss"] for one in reversed(told)]
    assert len(losses) == EPOCHS and losses[-1] < losses[0]
    assert [cast("Any", one.data)["step"] for one in reversed(told)] == list(range(5, STEPS + 1, 5))
    assert (metrics.full_valid_loss, metrics.valid_loss) == (losses[-1], losses[-1])


def tuned(client: openai.OpenAI, number: str) -> Any:
    job = client.fine_tuning.jobs.retrieve(number)
    return job if job.status in ("succeeded", "failed", "cancelled") else None


def ended(client: openai.OpenAI, number: str) -> Any:
    batch = client.batches.retrieve(number)
    return batch if batch.status in ("completed", "failed", "cancelled", "expired") else None


def the_folder_and_the_receipt_prove_the_job(client: openai.OpenAI, job: Any, net: Network, folder: Path) -> str:
    """Return the root of the proved state."""
    contents = {client.files.retrieve(one).filename: client.files.content(one).read() for one in job.result_files}
    assert contents.keys() == {"step_metrics.csv", "adapters.zip", "receipt.json"}
    head, *lines = contents["step_metrics.csv"].decode().splitlines()
    rows = [line.split(",") for line in lines]
    losses = {int(row[0]): float(row[1]) for row in rows if row[1]}
    assert (head, list(losses)) == ("step,train_loss,valid_loss", list(range(2, STEPS + 1, 2)))  # of segments
    assert losses[STEPS] < losses[2]
    assert [int(row[0]) for row in rows if row[2]] == list(range(5, STEPS + 1, 5))
    with zipfile.ZipFile(io.BytesIO(contents["adapters.zip"])) as archive:
        archive.extractall(folder / "adapters")
    home = net.root / "validator-0"
    checked = run_here("verify", folder / "adapters", "--home", home)
    receipt = json.loads(contents["receipt.json"])
    kept = ("task", "result", receipt["task"], "--base", "tiny", "--home", home)
    run_here(*kept, "--out", folder / "kept", "--step", STEPS)
    for file in (folder / "adapters").iterdir():
        assert (folder / "kept" / file.name).read_bytes() == file.read_bytes()
    assert (checked["proved"], checked["step"], checked["task"]) == (True, STEPS, receipt["task"])
    mine = run_here("task", "list", "--mine", "--all", "--home", home)["items"]
    assert [item["id"] for item in mine].count(receipt["task"]) == 1 and len(mine) <= 3  # and the cancelled ones
    return str(receipt["windows"][-1]["proof"]["state_root_out"]).removeprefix("0x")


def a_batch_answers_what_it_can(client: openai.OpenAI, model: str, root: str) -> None:
    """``root`` is that of the adapters, as the task that trained them proved it."""
    lines = batch_lines(model)
    lines = [{**one, "body": {**one["body"], "temperature": 0.8, "top_p": 0.9, "seed": 5}} for one in lines]
    lines[0]["body"]["n"] = 2
    lines.append({**lines[0], "custom_id": "cooler", "body": {**lines[0]["body"], "temperature": 0.7}})
    lines.append({**lines[0], "custom_id": "two", "body": {**lines[0]["body"], "temperature": 2.1}})
    batch = ask_batch(client, lines)
    batch = wait_for(lambda: ended(client, batch.id), "the batch has ended", patience_s=END_S)
    counts = batch.request_counts
    assert (batch.status, counts.total, counts.completed, counts.failed) == ("completed", 10, 9, 1)
    found = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert [one["custom_id"] for one in found] == [*WORDS, "cooler"]
    for one in found:
        answer = openai.types.chat.ChatCompletion.model_validate(one["response"]["body"])
        assert answer.model == model and answer.choices[0].finish_reason in ("stop", "length")
        assert len(answer.choices) == 1 + (one in (found[0], found[-1]))
        assert answer.usage is not None and 0 < answer.usage.completion_tokens <= 4 * len(answer.choices)
    receipt = json.loads(client.files.content(batch.model_extra["dekube"]["receipt_file"]).read())
    part: Any = decode_spec(bytes.fromhex(receipt["spec"][2:])).part
    assert part.adapter.root.hex() == root
    assert (part.by_row, part.decoding.sampling) == (ByRow(0), None)  # each row has its own
    [refused] = [json.loads(line) for line in client.files.content(batch.error_file_id).text.splitlines()]
    assert (refused["custom_id"], refused["response"]["status_code"]) == ("two", 400)
    assert refused["response"]["body"]["error"]["param"] == "temperature"


def a_batch_gives_vectors(client: openai.OpenAI) -> None:
    """The last two requests are of one text: as numbers, and as the bytes of binary32."""
    inputs: list[Any] = [["ab", "cd"] * 64, [97, 98], "ab", "ab"]  # so many that checks cost less than the work
    lines = [
        {
            "custom_id": str(number),
            "method": "POST",
            "url": "/v1/embeddings",
            "body": {"model": "tiny", "input": one},
        }
        for number, one in enumerate(inputs)
    ]
    lines[-1]["body"] = {"model": "tiny", "input": "ab", "encoding_format": "base64"}
    lines.append({**lines[0], "custom_id": "short", "body": {"model": "tiny", "input": "ab", "dimensions": 4}})
    batch = client.batches.create(
        input_file_id=upload(client, jsonl(lines), "batch"), endpoint="/v1/embeddings", completion_window="24h"
    )
    batch = wait_for(lambda: ended(client, batch.id), "the vectors are there", patience_s=END_S)
    counts = batch.request_counts
    assert counts is not None
    assert (batch.status, counts.total, counts.completed, counts.failed) == ("completed", 5, 4, 1)
    assert batch.output_file_id is not None and batch.error_file_id is not None
    found = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    answers = [openai.types.CreateEmbeddingResponse.model_validate(one["response"]["body"]) for one in found[:3]]
    assert [len(one.data) for one in answers] == [128, 1, 1]
    vectors = [one.data[0].embedding for one in answers]
    assert len(vectors[0]) == SHAPE.width and vectors[0] == vectors[2]
    assert sum(value * value for value in vectors[0]) == pytest.approx(1.0, abs=1e-5)
    told = found[3]["response"]["body"]["data"][0]["embedding"]
    assert np.frombuffer(base64.b64decode(told), "<f4").tolist() == np.array(vectors[0], "<f4").tolist()
    [refused] = [json.loads(line) for line in client.files.content(batch.error_file_id).text.splitlines()]
    assert refused["response"]["body"]["error"]["param"] == "dimensions"
