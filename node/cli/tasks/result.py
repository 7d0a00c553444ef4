"""``dekube task result``: fetches the trained state, verifies its proof and tests it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import click

from node.cli.arguments import OUTPUT_FILE, TASK, WholeNumber
from node.cli.blobs import download_folder, show_progress
from node.cli.files import check_overwrite, overwrite_option
from node.cli.jobs import FORMATS, encode_state, write_file
from node.cli.option_conflicts import only_with
from node.cli.output import json_option, show_fields
from node.cli.session import Session, session_options
from node.cli.tasks.custody import show_garbage
from node.cli.tasks.watch import record_of, say
from rpc.client import NoResult
from rpc.client.core import hexed
from rpc.client.tasks import TaskResult, spec_of
from state.primitives.errors import ConfigError
from tasks.custody.sealed import OutputIsGarbage
from tasks.engines.tuning_plan import TuningPlan
from tasks.spec import FinetunePart

__all__ = ["result"]

_BASE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
"""As in a receipt (tasks.models.adapters), which needs NumPy."""


@only_with(("--yes", "--base"), "--out")
@click.command()
@session_options
@click.argument("task_id", type=TASK, metavar="TASK")
@click.option("--out", type=OUTPUT_FILE, metavar="FILE",
              help="Write the trained state to FILE. The suffix selects the format: "
              f"{', '.join(FORMATS)}. With --base: a folder of adapters.")  # fmt: skip
@click.option("--base", default="", metavar="NAME",
              help="For a folder of adapters: name or path of the model that loads them.")  # fmt: skip
@click.option(
    "--window", type=WholeNumber(0), help="Fetch the state after this window. Default: the last final window."
)
@overwrite_option
@json_option
def result(
    session: Session, task_id: bytes, out: Path | None, base: str, window: int | None, yes: bool, as_json: bool
) -> None:  # fmt: skip
    """Fetch the trained state, verify its proof and test it.

    The test uses data that the model was not trained on. The node in --home fetches the state.
    It asks the machines that keep it, or the worker. With --rpc, or without that node, the gateway's node
    fetches it. An interrupted download resumes on the next run.

    The result of a private task is opened with the key of its requester's account. If
    machines keep false bytes for the worker, the command asks to show that. --yes confirms it. Shown on chain,
    it proves a lie of the worker.

    The result of fine-tuning is a folder in the layout of PEFT. `dekube verify` checks it.

    \b
    Examples:
      dekube task result 0x1234... --out model.npz
      dekube task result 0x1234... --out my-adapters --base HuggingFaceTB/SmolLM2-135M
    """
    is_folder = bool(base)
    if not is_folder:
        _check_suffix(out)
        check_overwrite(out, yes=yes)
    with session.client() as client:
        is_tuned = isinstance(spec_of(record_of(client, task_id)).part, FinetunePart)
        if is_folder:
            _check_folder(out, base, is_tuned=is_tuned, yes=yes)
        say("Fetching the state ...")
        terms = client.custody_terms(task_id)
        key = None if terms is None or terms.is_public else session.key()
        try:
            found = client.result(
                task_id,
                control=session.control(),
                window=window,
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
    elif out is not None:
        write_file(out, encode_state(found.state, found.spec.plan(), out.suffix))
    answer: dict[str, Any] = {
        "task": hexed(task_id),
        "window": found.window.number,
        "step": found.state.step,
        "state_root": found.window.proof.result_root or found.window.proof.state_root_out,
        "proved": True,
        "bytes": len(found.data),
    }
    if not is_tuned:
        answer |= _tested(found)
    if out is not None:
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


def _check_suffix(out: Path | None) -> None:
    if out is not None and out.suffix not in FORMATS:
        raise click.BadParameter(
            f"{out}: the name must end in {', '.join(FORMATS)}; a folder of adapters needs --base NAME",
            param_hint="--out",
        )


def _check_folder(out: Path | None, base: str, *, is_tuned: bool, yes: bool) -> None:
    """Check what a folder of adapters needs, before anything is fetched."""
    if not is_tuned:
        raise click.UsageError("--base has an effect for tasks that tune a model alone")
    if not _BASE.fullmatch(base):
        raise click.UsageError("--base is the model's name or path: letters, digits and ._/- alone")
    if out is not None and out.exists() and not yes:
        raise ConfigError(f"{out}: exists; add --yes to write into it, or name another folder")


def _write_folder(folder: Path, base: str, found: TaskResult) -> None:
    """Write adapters in the layout of PEFT. Raises ConfigError."""
    from tasks.models.adapters import adapter_folder, receipt_of

    spec, plan = found.spec, found.spec.plan()
    assert isinstance(plan, TuningPlan)
    receipt = receipt_of(
        plan.shape, found.state, base=base, model_root=spec.model_root(), rows_root=spec.dataset.root,
        task=found.task,
    )  # fmt: skip
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from None
    for name, content in adapter_folder(receipt, found.state.tensors).items():
        write_file(folder / name, content)
