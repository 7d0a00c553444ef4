"""``dekube task result``: fetches the state after a window, verifies its proof, and writes what it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from node.cli.arguments import OUTPUT_FILE, TASK, PathName, WholeNumber
from node.cli.blobs import download_folder, show_progress
from node.cli.files import check_overwrite, overwrite_option
from node.cli.jobs import FORMATS, encode_state, write_file
from node.cli.option_conflicts import not_with, only_with
from node.cli.output import json_option, show_fields
from node.cli.session import Session, session_options
from node.cli.tasks.container_result import show_container
from node.cli.tasks.custody import show_garbage
from node.cli.tasks.storing import put_result, temporary_out
from node.cli.tasks.watch import record_of, say
from rpc.client import NoResult
from rpc.client.core import hexed
from rpc.client.tasks import TaskResult, spec_of
from state.primitives.errors import ConfigError
from tasks.custody.sealed import OutputIsGarbage
from tasks.engines.errors import EngineMissing
from tasks.engines.tuning_plan import TuningPlan
from tasks.kinds.generate import GeneratePart
from tasks.models.errors import ModelError
from tasks.spec import ClassifierPart, DecoderPart, EmbedPart, EvaluatePart, FinetunePart, JobSpec, container_of

__all__ = ["result"]

COMPLETIONS: Final = ".jsonl"
"""Suffix of a file of completions."""


@only_with(("--yes", "--base", "--model"), "--out", "--to")
@not_with(("--to",), "--out")
@click.command()
@session_options
@click.argument("task_id", type=TASK, metavar="TASK")
@click.option("--out", type=OUTPUT_FILE, metavar="FILE",
              help="Write the result to FILE. The suffix selects the format: "
              f"{', '.join(FORMATS)}, {COMPLETIONS}. With --base: a folder of adapters. Without a "
              "suffix: the folder of a trained language model, of vectors or losses.")  # fmt: skip
@click.option("--to", metavar="STORE", help="Write the result to s3://BUCKET/PREFIX, or into a folder.")
@click.option("--base", default="", metavar="NAME",
              help="For a folder of adapters: name or path of the model that loads them.")  # fmt: skip
@click.option("--model", type=PathName(), metavar="PATH",
              help=f"For {COMPLETIONS}: the model's folder or GGUF file, to write texts.")  # fmt: skip
@click.option("--stop", "stops", multiple=True, metavar="TEXT",
              help="With --model: end each text before TEXT. May be repeated.")  # fmt: skip
@click.option(
    "--window", type=WholeNumber(0), help="Fetch the state after this window. Default: the last final window."
)
@click.option("--step", type=WholeNumber(1), help="Fetch the state after this step, where a window has ended.")
@overwrite_option
@json_option
def result(
    session: Session, task_id: bytes, out: Path | None, to: str | None, base: str, model: Path | None,
    stops: tuple[str, ...], window: int | None, step: int | None, yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Fetch the result and verify its proof; a classifier is also tested.

    The test uses data that the classifier was not trained on. The node in --home fetches the state.
    It asks the machines that keep it, or the worker. With --rpc, or without that node, the gateway's node
    fetches it. An interrupted download resumes on the next run.

    The result of a private task is opened with the key of its requester's account. If
    machines keep false bytes for the worker, the command asks to show that. --yes confirms it. Shown on chain,
    it proves a lie of the worker.

    Of a container the output is unpacked into the new folder --out. The end of its logs is shown. Nobody has
    proven any of it.

    The result of fine-tuning is a folder in the layout of PEFT. A trained language model is one in that of
    transformers. Vectors of texts, and losses of rows, are folders too. `dekube verify` checks them.
    Completions of prompts are a file of JSON lines, in the order of the prompts.

    With --to the files are uploaded, and then a manifest with their hashes. Repeated, the command sends
    only what is missing. Keys of S3 come from the variables and files of AWS.

    \b
    Examples:
      dekube task result 0x1234... --out model.npz
      dekube task result 0x1234... --out my-adapters --base HuggingFaceTB/SmolLM2-135M
      dekube task result 0x1234... --out at-200 --base HuggingFaceTB/SmolLM2-135M --step 200
      dekube task result 0x1234... --out my-model
      dekube task result 0x1234... --out completions.jsonl --model models/tiny
      dekube task result 0x1234... --out my-vectors
      dekube task result 0x1234... --to s3://my-bucket/results
    """
    if window is not None and step is not None:
        raise click.UsageError("--window and --step: give one of them")
    if stops and (model is None or "" in stops):
        raise click.UsageError("--stop ends texts, which are written with --model; an empty one ends nothing")
    with nullcontext(out) if to is None else temporary_out(session, task_id, to, base) as place:
        asked = _Asked(task_id, place, to, base, model, stops, window, step)
        _show_result(session, asked, yes=yes, as_json=as_json)


class _Asked(NamedTuple):
    """What is fetched, and where it is written; ``to`` is the store that it is put to then."""

    task: bytes
    out: Path | None
    to: str | None
    base: str
    model: Path | None
    stops: tuple[str, ...]
    window: int | None
    step: int | None


def _show_result(session: Session, asked: _Asked, *, yes: bool, as_json: bool) -> None:
    """Fetch a result, write it, and show it."""
    task_id, out, to, base, model, stops, window, step = asked
    is_folder = bool(base) or (out is not None and not out.suffix)
    is_lines = out is not None and out.suffix == COMPLETIONS and not base
    if model is not None and not is_lines:
        raise click.UsageError(f"--model is for a file of completions: --out FILE{COMPLETIONS}")
    if not is_folder:
        _check_suffix(out)
        check_overwrite(out, yes=yes)
    done: list[list[int]] | None = None
    with session.client() as client:
        record = record_of(client, task_id)
        spec = spec_of(record)
        if spec.is_metered:
            is_private = container_of(spec).is_private
            show_container(session, client, task_id, out, is_private=is_private, to=to, as_json=as_json)
            return
        why = record.reason.replace("_", " ")
        if record.has_ended and not record.final_windows:
            raise NoResult(f"task {hexed(task_id)} ended {record.phase} ({why}): no window became final")
        if record.has_ended and record.phase != "settled":
            say(f"The task ended {record.phase} ({why}); this is its last proven state.")
        is_tested, is_generated = isinstance(spec.part, ClassifierPart), isinstance(spec.part, GeneratePart)
        is_by_row = isinstance(spec.part, EmbedPart | EvaluatePart)
        if is_folder:
            _check_folder(out, base, spec, yes=yes)
        if is_lines and not is_generated:
            raise click.BadParameter(f"{out}: a task of kind {spec.kind} has no completions", param_hint="--out")
        decode = _bytes_decoder(spec) if model is None else _decoder(model, spec)
        say("Fetching the state ...")
        terms = client.custody_terms(task_id)
        key = None if terms is None or terms.is_public else session.key()
        try:
            found = client.result(
                task_id,
                control=session.control(),
                window=window,
                step=step,
                progress=show_progress("Fetching"),
                folder=download_folder(),
                key=key,
            )
        except OutputIsGarbage as error:
            if key is not None:
                show_garbage(client, key, task_id, window, error, yes=yes)
            raise
    if out is not None and is_folder:
        _write_folder(out, base, found)
    elif out is not None and is_lines:
        done = found.completions()
        write_file(out, _completions(found, done, decode, stops))
    elif out is not None:
        write_file(out, encode_state(found.state, found.spec.plan(), out.suffix))
    answer: dict[str, Any] = {
        "task": hexed(task_id),
        "phase": record.phase,
        "reason": record.reason,
        "window": found.window.number,
        "step": found.state.step,
        "state_root": found.window.proof.result_root or found.window.proof.state_root_out,
        "proved": True,
        "bytes": len(found.data),
    }
    if is_by_row:
        answer |= _told_rows(found)
    elif is_generated:
        answer |= _told_completions(found, done)
    elif is_tested:
        answer |= _tested(found)
    if out is not None and to is not None:
        answer |= put_result(out, to, {"task": hexed(task_id), "step": str(found.state.step)})
    elif out is not None:
        answer["file"] = str(out)
    if not as_json and answer.get("accuracy") is not None:
        answer["accuracy"] = f"{answer['accuracy']:.2%} ({answer['right']} of {answer['samples']} unseen samples)"
        del answer["right"], answer["samples"]
    show_fields(answer, as_json=as_json, title="Result")


def _tested(found: TaskResult) -> dict[str, Any]:
    """Return how many unseen samples a classifier knows."""
    try:
        right, samples = found.test()
    except NoResult as error:
        say(f"The state is not tested: {error}")
        return {"accuracy": None}
    return {"accuracy": right / samples if samples else None, "right": right, "samples": samples}


def _told_completions(found: TaskResult, done: list[list[int]] | None = None) -> dict[str, Any]:
    """Return how many prompts are done, and how many tokens came after them; ``done`` are those that were read."""
    part: Any = found.spec.part
    try:
        done = found.completions() if done is None else done
    except NoResult as error:
        say(f"The completions are not read: {error}")
        return {"rows": part.dataset.rows, "completed": None}
    return {"rows": part.dataset.rows, "completed": len(done), "tokens": sum(map(len, done))}


def _completions(
    found: TaskResult, done: list[list[int]], decode: Callable[[Sequence[int]], str] | None,
    stops: Sequence[str] = (),
) -> bytes:  # fmt: skip
    """Return the file of completions."""
    from tasks.models.prompts import completion_lines

    part: Any = found.spec.part
    if len(done) < part.dataset.rows:
        say(f"{len(done)} of {part.dataset.rows} prompts are done after this window, and written.")
    return completion_lines(done, part.decoding.ends, decode, stops, found.stops())


def _bytes_decoder(spec: JobSpec) -> Callable[[Sequence[int]], str] | None:
    """Return what makes texts of tokens that are bytes, of a model that a task has trained; None for another."""
    from tasks.models.byte_tokens import BYTES_VOCABULARY, ByteTokens

    part = spec.part
    if not isinstance(part, GeneratePart) or part.adapter is None or part.adapter.rank:
        return None
    return ByteTokens().decode if part.model.vocabulary == BYTES_VOCABULARY else None


def _decoder(path: Path, spec: JobSpec) -> Callable[[Sequence[int]], str]:
    """Return what makes texts of a job's tokens, of the model at ``path``. Raises ConfigError."""
    from tasks.models.opening import open_model

    part: Any = spec.part
    try:
        with open_model(path) as opened:
            if opened.shape != part.model.shape:
                raise ConfigError(f"{path}: this model has another shape than the task's; name the task's model")
            return opened.tokeniser().decode
    except ModelError as error:
        raise ConfigError(f"{path}: {error}") from None
    except EngineMissing as error:
        raise ConfigError(str(error)) from None


def _check_suffix(out: Path | None) -> None:
    if out is not None and out.suffix not in (*FORMATS, COMPLETIONS):
        names = ", ".join([*FORMATS, COMPLETIONS])
        raise click.BadParameter(
            f"{out}: the name must end in {names}; a folder of adapters needs --base NAME", param_hint="--out"
        )


def _told_rows(found: TaskResult) -> dict[str, Any]:
    """Return how many rows are done, and what was found in all."""
    part: Any = found.spec.part
    if isinstance(part, EmbedPart):
        return {"rows": part.dataset.rows, "embedded": len(found.vectors()), "width": part.model.width}
    evaluation = found.evaluation()
    total = evaluation.total
    return {
        "rows": part.dataset.rows, "evaluated": len(evaluation.rows), "tokens": total.tokens, "loss": total.loss,
        "perplexity": total.perplexity,
    }  # fmt: skip


def _check_folder(out: Path | None, base: str, spec: JobSpec, *, yes: bool) -> None:
    """Check what a folder of adapters needs, before anything is fetched."""
    from tasks.models.adapters import BASE

    if not base and not isinstance(spec.part, DecoderPart | EmbedPart | EvaluatePart):
        _check_suffix(out)
    if out is not None and out.exists() and not yes:
        raise ConfigError(f"{out}: exists; add --yes to write into it, or name another folder")
    if not base:
        return
    if not isinstance(spec.part, FinetunePart):
        raise click.UsageError("--base is only for tasks that fine-tune a model")
    if not BASE.fullmatch(base):
        raise click.UsageError("--base is the model's name or path: only letters, digits and ._/-")


def _write_folder(folder: Path, base: str, found: TaskResult) -> None:
    """Write adapters, a model, vectors or losses. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from None
    for name, content in _folder_of(base, found).items():
        write_file(folder / name, content)


def _folder_of(base: str, found: TaskResult) -> Mapping[str, bytes]:
    """Return the files of a folder by name."""
    from tasks.models.adapters import adapter_folder, receipt_of
    from tasks.models.row_results import RowReceipt, row_folder
    from tasks.models.trained import left_model

    spec, plan, state = found.spec, found.spec.plan(), found.state
    if isinstance(spec.part, EmbedPart | EvaluatePart):
        return row_folder(RowReceipt(found.task, spec, state.step, state.root(plan)), state)
    if (trained := left_model(spec, state, found.task)) is not None:
        return trained
    assert isinstance(plan, TuningPlan)
    receipt = receipt_of(
        plan.shape, state, base=base, model_root=spec.model_root(), rows_root=spec.dataset.root, task=found.task
    )
    return adapter_folder(receipt, state.tensors)
