"""``dekube task result``: fetches the trained state, verifies its proof and tests it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
from tasks.custody.sealed import OutputIsGarbage

__all__ = ["result"]


@only_with(("--yes",), "--out")
@click.command()
@session_options
@click.argument("task_id", type=TASK, metavar="TASK")
@click.option("--out", type=OUTPUT_FILE, metavar="FILE",
              help="Write the trained state to FILE. The suffix selects the format: "
              f"{', '.join(FORMATS)}.")  # fmt: skip
@click.option(
    "--window", type=WholeNumber(0), help="Fetch the state after this window. Default: the last final window."
)
@overwrite_option
@json_option
def result(
    session: Session, task_id: bytes, out: Path | None, window: int | None, yes: bool, as_json: bool
) -> None:  # fmt: skip
    """Fetch the trained state, verify its proof and test it.

    The test uses data that the model was not trained on. The node in --home fetches the state.
    It asks the machines that keep it, or the worker. With --rpc, or without that node, the gateway's node
    fetches it. An interrupted download resumes on the next run.

    The result of a private task is opened with the key of its requester's account. If
    machines keep false bytes for the worker, the command asks to show that. --yes confirms it. Shown on chain,
    it proves a lie of the worker.

    \b
    Example:
      dekube task result 0x1234... --out model.npz
    """
    if out is not None and out.suffix not in FORMATS:
        raise click.BadParameter(f"{out}: the name must end in {', '.join(FORMATS)}", param_hint="--out")
    check_overwrite(out, yes=yes)
    say("Fetching the state ...")
    with session.client() as client:
        record_of(client, task_id)
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
    plan = found.spec.plan()
    if out is not None:
        write_file(out, encode_state(found.state, plan, out.suffix))
    answer: dict[str, Any] = {
        "task": hexed(task_id),
        "window": found.window.number,
        "step": found.state.step,
        "state_root": found.window.proof.result_root or found.window.proof.state_root_out,
        "proved": True,
        "bytes": len(found.data),
        "accuracy": None,
    }
    try:
        right, samples = found.test()
        answer |= {"accuracy": right / samples if samples else None, "right": right, "samples": samples}
    except NoResult as error:
        say(f"The state is not tested: {error}")
    if out is not None:
        answer["file"] = str(out)
    if not as_json and answer["accuracy"] is not None:
        answer["accuracy"] = f"{answer['accuracy']:.2%} ({answer['right']} of {answer['samples']} unseen samples)"
        del answer["right"], answer["samples"]
    show_fields(answer, as_json=as_json, title="Result")
