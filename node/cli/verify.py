"""``dekube verify``: whether the folder of a result holds what a task's workers proved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from node.cli.arguments import PathName
from node.cli.option_conflicts import refuse_given
from node.cli.output import json_option, show_fields
from node.cli.session import Session, reading_options
from node.home.files import read_bounded
from rpc.client.core import hexed
from rpc.client.results import Window
from rpc.client.tasks import spec_of, step_of
from tasks.engines.tuning_plan import TuningPlan
from tasks.kinds.decoder import DecoderModel, DecoderPart
from tasks.models.errors import FolderInvalid
from tasks.models.trained import TrainedReceipt
from tasks.programs.looped import layout_of
from tasks.spec import JobSpec

if TYPE_CHECKING:
    from typing import TypeAlias

    from rpc.client import Client
    from rpc.client.results import Task
    from tasks.models.adapters import Receipt
    from tasks.models.row_results import RowReceipt

    AnyReceipt: TypeAlias = Receipt | TrainedReceipt

__all__ = ["check_spec", "matching_window", "read_folder", "verify"]

FILE_BYTES_MAX: Final = 2 << 30
_STATE: Final = PathName(exists=True, dir_okay=False)


@click.command()
@reading_options
@click.argument("folder", type=PathName(exists=True, file_okay=False))
@click.option("--state", type=_STATE, metavar="FILE", help="Compare with the state in FILE as well.")
@click.option("--offline", is_flag=True, help="Ask no node: check the files against the receipt alone.")
@json_option
def verify(session: Session, folder: Path, state: Path | None, offline: bool, as_json: bool) -> None:
    """Check the folder of a result against its task.

    The files must give the state root of the receipt, byte for byte. The node must show
    a final window of the task with this root. The task must name the same model and rows.

    \b
    Example:
      dekube verify my-adapters
    """
    if _is_by_row(folder):
        if state is not None:
            raise click.UsageError("--state is for a folder of adapters or of a model")
        _verify_rows(session, folder, offline=offline, as_json=as_json)
        return
    receipt, names = _receipt_of(folder)
    if state is not None:
        _compare(receipt, state)
    if offline:
        refuse_given(("--home", "--rpc"), "--offline asks no node")
    window = None if offline else _proved(session, receipt)
    answer: dict[str, Any] = {
        "folder": str(folder),
        **({} if isinstance(receipt, TrainedReceipt) else {"base": receipt.base}),
        "step": receipt.step,
        "state_root": hexed(receipt.state_root),
        **({} if isinstance(receipt, TrainedReceipt) else {"model_root": hexed(receipt.model_root)}),
        "rows_root": hexed(receipt.rows_root),
        "task": None if receipt.task is None else hexed(receipt.task),
        "window": window,
        "proved": window is not None,
        "not_checked": sorted(path.name for path in folder.iterdir() if path.name not in names),
    }
    show_fields(answer, as_json=as_json, title="Folder")


def _receipt_of(folder: Path) -> tuple[AnyReceipt, Sequence[str]]:
    """Return the receipt of a folder whose files agree with it, and the names of these. Raises FolderInvalid."""
    from tasks.models import adapters, trained
    from tasks.models.receipts import RECEIPT

    place = folder / RECEIPT
    is_trained = place.exists() and trained.is_of_training(_read(place))
    names = trained.FILES if is_trained else adapters.FILES
    files = read_folder(folder, names)
    return (trained.check_model_folder(files) if is_trained else adapters.check_folder(files)), names


def read_folder(folder: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the files of a folder with these names, of those that exist. Raises FolderInvalid."""
    return {name: _read(folder / name) for name in names if (folder / name).exists()}


def _is_by_row(folder: Path) -> bool:
    """Tell whether the receipt of a folder is of vectors or losses."""
    from tasks.models.receipts import RECEIPT
    from tasks.models.row_results import is_of_rows

    place = folder / RECEIPT
    return place.exists() and is_of_rows(_read(place))


def _verify_rows(session: Session, folder: Path, *, offline: bool, as_json: bool) -> None:
    """Check a folder of vectors or losses."""
    from tasks.models.row_results import FILES, check_row_folder

    names = {name for known in FILES.values() for name in known}
    receipt = check_row_folder(read_folder(folder, names))
    if offline:
        refuse_given(("--home", "--rpc"), "--offline asks no node")
    window = None
    if not offline:
        task_id = _named_task(receipt.task)
        with session.client() as client:
            if spec_of(_known_task(client, task_id)) != receipt.spec:
                raise FolderInvalid("the task is another job than the receipt says")
            window = matching_window(receipt, client.task_windows(task_id))
    known = FILES[receipt.spec.kind]
    answer: dict[str, Any] = {
        "folder": str(folder),
        "kind": receipt.spec.kind,
        "step": receipt.step,
        "state_root": hexed(receipt.state_root),
        "model_root": hexed(receipt.spec.model_root()),
        "rows_root": hexed(receipt.spec.dataset.root),
        "task": None if receipt.task is None else hexed(receipt.task),
        "window": window,
        "proved": window is not None,
        "not_checked": sorted(path.name for path in folder.iterdir() if path.name not in known),
    }
    show_fields(answer, as_json=as_json, title="Folder")


def _named_task(task: bytes | None) -> bytes:
    if task is None:
        raise FolderInvalid("the receipt names no task", remedy="Use --offline to check the files alone")
    return task


def _known_task(client: Client, task: bytes) -> Task:
    found = client.task(task)
    if found is None:
        raise FolderInvalid(f"the node knows no task {hexed(task)}", remedy="Check --rpc")
    return found


def _read(path: Path) -> bytes:
    content = read_bounded(path, FILE_BYTES_MAX)
    if len(content) > FILE_BYTES_MAX:
        raise FolderInvalid(f"more than {FILE_BYTES_MAX} bytes", file=path.name)
    return content


def _compare(receipt: AnyReceipt, file: Path) -> None:
    from tasks.engines.decoder_plan import DecoderPlan
    from tasks.engines.state import TrainingState
    from tasks.engines.tuning import TuningPlan
    from tasks.models.adapters import check_state
    from tasks.models.trained import check_trained_state
    from tasks.programs.adamw import Rates
    from tasks.programs.finetune import FinetuneRates
    from tasks.programs.generate import whole_shape
    from tasks.programs.llama_shape import Adapter

    # The layout of a state follows from its shape alone.
    if isinstance(receipt, TrainedReceipt):
        whole = whole_shape(receipt.model, Adapter(0, 0, (), receipt.step, receipt.layout))
        like = DecoderPlan(whole, FinetuneRates(Rates(1)), bytes(32))
        check_trained_state(receipt, TrainingState.decode(read_bounded(file, like.state_limit_bytes), like))
        return
    plan = TuningPlan(receipt.shape, FinetuneRates(Rates(1)), bytes(32))
    check_state(receipt, TrainingState.decode(read_bounded(file, plan.state_limit_bytes), plan))


def _proved(session: Session, receipt: AnyReceipt) -> int:
    """Return the window of the task whose result the folder is. Raises FolderInvalid."""
    task_id = _named_task(receipt.task)
    with session.client() as client:
        check_spec(receipt, spec_of(_known_task(client, task_id)))
        return matching_window(receipt, client.task_windows(task_id))


def check_spec(receipt: AnyReceipt, spec: JobSpec) -> None:
    """Check that a task is the one of a receipt. Raises FolderInvalid, which says what differs."""
    if spec.dataset.root != receipt.rows_root:
        raise FolderInvalid("the task names other rows than the receipt")
    if isinstance(receipt, TrainedReceipt):
        model = getattr(spec.part, "model", None)
        if not isinstance(model, DecoderModel) or model.shape != receipt.model:
            raise FolderInvalid("the task trains another model than the receipt says")
        if not isinstance(spec.part, DecoderPart) or layout_of(spec.part.shape) != receipt.layout:
            raise FolderInvalid("the task has states of another layout than the receipt says")
        return
    if spec.model_root() != receipt.model_root:
        raise FolderInvalid("the task names another model than the receipt")
    plan = spec.plan()
    if not isinstance(plan, TuningPlan) or plan.shape != receipt.shape:
        raise FolderInvalid("the task has other adapters than the receipt")


def matching_window(receipt: AnyReceipt | RowReceipt, windows: Iterable[Window]) -> int:
    """Return the final window that leaves the state of a receipt. Raises FolderInvalid if there is none."""
    for window in windows:
        proof = window.proof
        root = proof.result_root or proof.state_root_out
        if window.phase == "final" and (step_of(window), root) == (receipt.step, receipt.state_root):
            return window.number
    raise FolderInvalid("no final window of the task leaves this state", remedy="Fetch the result again")
