"""``dekube task``: post a task, follow it, fetch its result and its bill."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click

from node.cli.blobs import download_folder, show_progress
from node.cli.commands import Commands
from node.cli.jobs import FORMATS, encode_state, read_spec, spec_to_json, write_file
from node.cli.options import AMOUNT
from node.cli.output import counted, json_option, show, show_amount, show_fields, show_rows
from node.cli.session import Session, send, session_options
from node.cli.terminal import printable_lines
from node.posting import NEXT, follow, make_digits_job, put_digits_of
from rpc.client import Client, NoResult, TaskEnded, TransactionRefused
from rpc.client.core import hexed
from rpc.client.shapes import EscrowTotals, Task
from state.primitives.address import format_address, parse_address
from state.primitives.codec import Value
from state.primitives.errors import ConfigError, DekubeError
from state.primitives.hashing import HASH_BYTES, digest
from state.primitives.keys import SecretKey
from tasks.lifecycle import Phase
from tasks.spec import decode_spec, encode_spec
from tasks.transitions import CANCEL_TASK, DEMAND_RESULT, RESUME_TASK, TOP_UP_TASK

__all__ = ["task"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

MAX_PRICE_DEFAULT: Final = "0.0002"
GPU_MS_PER_STEP_DEFAULT: Final = 500
SEGMENT_STEPS: Final = 25
DIGITS_ENDS: Final = (64, 10)
"""Features and classes of the built-in data set: a job of other widths is refused by its worker, after the fee."""
STEPS_DEFAULT: Final = 600
WINDOWS_DEFAULT: Final = 3
WATCH_TIMEOUT_S: Final = 24 * 3600.0
PAGE_MAX: Final = 100


class _TaskId(click.ParamType[bytes]):
    name = "task"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        if isinstance(value, bytes):
            return value
        digits = str(value).strip().removeprefix("0x").lower()
        if len(digits) != 2 * HASH_BYTES or any(digit not in "0123456789abcdef" for digit in digits):
            self.fail(f"{value!r} is not a task's id: 0x and 64 hex digits", param, ctx)
        return bytes.fromhex(digits)


class _Address(click.ParamType[str]):
    name = "address"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return "0x" + parse_address(str(value)).hex()
        except DekubeError as error:
            self.fail(str(error), param, ctx)


TASK: Final = _TaskId()
ADDRESS: Final = _Address()


@click.group(cls=Commands)
def task() -> None:
    """Post a task, follow it, fetch its result and its bill.

    \b
    Try on a test network (dekube testnet up):
      dekube task create --home .testnet/validator-0 --watch
      dekube task list --home .testnet/validator-0
      dekube task result --home .testnet/validator-0 TASK --out model.npz
      dekube task bill --home .testnet/validator-0 TASK
    """


# The job


class _Recipe(NamedTuple):
    spec_file: Path | None
    data: str
    steps: int
    windows: int
    widths: str
    max_price: int
    gpu_ms_per_step: int
    match_s: int
    seed: str


def _recipe_options(function: _Function) -> _Function:
    def wrapped(
        spec_file: Path | None, data: str, steps: int, windows: int, widths: str, max_price: int,
        gpu_ms_per_step: int, match_s: int, seed: str, **arguments: Any,
    ) -> Any:  # fmt: skip
        recipe = _Recipe(
            spec_file, data, steps, windows, widths, max_price, gpu_ms_per_step, match_s, seed
        )  # fmt: skip
        return function(recipe=recipe, **arguments)

    wrapped.__name__, wrapped.__doc__ = function.__name__, function.__doc__
    wrapped.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option("--seed", default="", metavar="TEXT",
                     help="Fixes weights and order of the samples; the same seed trains the same bits. "
                     "Default: random."),
        click.option("--match-s", default=600, show_default=True, type=click.IntRange(1, 86_400),
                     help="Seconds to look for a worker before the task expires."),
        click.option("--gpu-ms-per-step", default=GPU_MS_PER_STEP_DEFAULT, show_default=True,
                     type=click.IntRange(1), help="GPU time that one step may be charged at most."),
        click.option("--max-price", default=MAX_PRICE_DEFAULT, show_default=True, type=AMOUNT,
                     help="Most that is paid for a GPU-second, in DKB."),
        click.option("--widths", default="64,256,128,10", show_default=True, metavar="N,N,...",
                     help="Units of the model's layers, features to classes."),
        click.option("--windows", default=WINDOWS_DEFAULT, show_default=True, type=click.IntRange(1, 10_000),
                     help="Parts that are proved, checked and paid one by one."),
        click.option("--steps", default=STEPS_DEFAULT, show_default=True, type=click.IntRange(1),
                     help=f"Training steps in all, a multiple of {SEGMENT_STEPS} for each window."),
        click.option("--data", default="digits", show_default=True, type=click.Choice(["digits"]),
                     help="Built-in data set: handwritten digits (scikit-learn's)."),
        click.option("--spec", "spec_file", type=click.Path(path_type=Path), metavar="FILE",
                     help="A whole job instead: canonical bytes or JSON (see `task quote --save`)."),
    ):  # fmt: skip
        option(wrapped)
    return wrapped  # type: ignore[return-value]


def _job(client: Client, session: Session, recipe: _Recipe, key: SecretKey | None = None) -> bytes:
    """Return the canonical bytes of the job; with a ``key`` a built-in data set goes to where workers find it."""
    if recipe.spec_file is not None:
        raw = read_spec(recipe.spec_file)
        if key is not None:
            shown = show_progress("Uploading the data set")
            put_digits_of(client, raw, control=session.control(), key=key, progress=shown)
        return raw
    if recipe.steps % recipe.windows or recipe.steps // recipe.windows % SEGMENT_STEPS:
        raise click.UsageError(
            f"{counted(recipe.steps, 'step')} in {counted(recipe.windows, 'window')}: each window must have a "
            f"multiple of {SEGMENT_STEPS} steps"
        )
    try:
        widths = tuple(int(width) for width in recipe.widths.split(","))
    except ValueError:
        raise click.BadParameter(f"{recipe.widths!r}: numbers with commas expected, e.g. 64,32,10") from None
    if (widths[0], widths[-1]) != DIGITS_ENDS:
        begin, end = DIGITS_ENDS
        raise click.BadParameter(f"{recipe.widths!r}: of this data set they begin with {begin} and end with {end}")
    seed = digest(b"task-seed", recipe.seed.encode()) if recipe.seed else secrets.token_bytes(HASH_BYTES)
    job = make_digits_job(
        client,
        control=None if key is None else session.control(),
        key=key,
        progress=show_progress("Uploading the data set"),
        seed=seed,
        max_price_per_gpu_s=recipe.max_price,
        gpu_ms_per_step_max=recipe.gpu_ms_per_step,
        widths=widths,
        total_steps=recipe.steps,
        segment_steps=SEGMENT_STEPS,
        window_steps=recipe.steps // recipe.windows,
        match_ms=recipe.match_s * 1000,
    )
    raw = encode_spec(job.spec)
    try:
        decode_spec(raw)
    except DekubeError as error:
        raise ConfigError(f"this job cannot be run: {error}") from None
    return raw


@task.command()
@session_options
@_recipe_options
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Write the job to FILE (JSON).")
@json_option
def quote(session: Session, recipe: _Recipe, save: Path | None, as_json: bool) -> None:
    """Show what creating a task would lock; nothing is sent.

    The whole price is locked, what is not used comes back.

    \b
    Examples:
      dekube task quote --steps 1200 --windows 6 --max-price 0.0001
      dekube task quote --save job.json    # edit it, then: dekube task create --spec job.json
    """
    with session.client() as client:
        raw = _job(client, session, recipe)
        amounts = client.quote_task(raw)
    spec = spec_to_json(decode_spec(raw))
    if save is not None:
        import json

        write_file(save, (json.dumps(spec, indent=2) + "\n").encode())
    if as_json:
        parts = ("price", "verification", "fee", "total")
        show({**{name: amounts.document[name] for name in parts}, "spec": spec})
        return
    show_fields(
        {
            "work, at the price limit": show_amount(amounts.price),
            "verification": show_amount(amounts.verification),
            "protocol fee": show_amount(amounts.fee),
            "locked in all": show_amount(amounts.total),
        },
        as_json=False,
        title="Quote",
    )
    if save is not None:
        click.echo(f"The job is in {save}.")


@task.command()
@session_options
@_recipe_options
@click.option("--watch", "watches", is_flag=True, help="Follow the task until it ends.")
@json_option
def create(session: Session, recipe: _Recipe, watches: bool, as_json: bool) -> None:
    """Post a task: lock its price and let the chain find a worker.

    Without options it trains a classifier of handwritten digits in 600 steps: a few seconds on one processor.
    The data set goes to the blob store of the node in --home; with --rpc, or without a node there, to that of a
    gateway that takes uploads, signed for by the key. Workers fetch it from there. Where the node that is asked
    does not hold the data set of a job (--spec), that is said before anything is paid.

    \b
    Examples:
      dekube task create --watch
      dekube task create --steps 1200 --windows 6 --max-price 0.0001 --seed mine
      dekube task create --spec job.json --rpc http://127.0.0.1:8545 --key wallet.json
    """
    key = session.key()
    with session.client() as client:
        raw = _job(client, session, recipe, key)
        _tell_of_data(client, decode_spec(raw).dataset.blob)
        _say(f"Locking {show_amount(client.quote_task(raw).total)} and waiting until the task is final ...")
        made = client.create_task(key, raw)
        answer = {
            "task": hexed(made.id),
            "transaction": made.receipt.transaction_hash,
            "height": made.receipt.block.height,
            "locked": str(made.locked),
        }
        if not watches:
            if not as_json:
                answer["locked"] = show_amount(made.locked)
            show_fields(answer, as_json=as_json)
            if not as_json:
                click.echo(f"\nFollow it: dekube task watch {hexed(made.id)}")
            return
        if not as_json:
            click.echo(f"Task {hexed(made.id)}")
        answer["phase"] = _watch(client, made.id, as_json, WATCH_TIMEOUT_S)
    if as_json:
        show(answer)
    _expect_settled(made.id, str(answer["phase"]))


def _tell_of_data(client: Client, blob: bytes) -> None:
    """Say where the data set of a job is not known to be had, before anything is paid for it."""
    if client.is_held(blob) is False:
        _say(
            f"Mind: the node that is asked does not hold the data set {hexed(blob)}, and nobody else is known to. "
            "The worker will ask the whole network; where nobody has it, the task expires: its price comes back, "
            "the fee of this transaction does not. `dekube blob put FILE` puts a data set there."
        )


def _say(line: str, *, err: bool = True) -> None:
    click.echo(printable_lines(line), err=err)


def _watch(client: Client, task_id: bytes, as_json: bool, timeout_s: float) -> str:
    try:
        phase = follow(client, task_id, partial(_say, err=as_json), timeout_s=timeout_s)
    except KeyboardInterrupt:
        told = hexed(task_id)
        _say(f"\nThe task goes on: `dekube task watch {told}` follows it, `dekube task cancel` ends it early.")
        raise
    if not as_json:
        _show_sums(client.bill(task_id).totals)
        click.echo(f"The task has ended: {phase}.")
    return phase


def _expect_settled(task_id: bytes, phase: str) -> None:
    if phase != "settled":
        raise TaskEnded(f"task {hexed(task_id)} ended {phase}")


# Looking at tasks

_LIST_COLUMNS: Final = ("id", "phase", "windows", "worker", "price", "created")


@task.command(name="list")
@session_options
@click.option("--phase", type=click.Choice([phase.name.lower() for phase in Phase]), help="Only in this phase.")
@click.option("--requester", type=ADDRESS, metavar="ADDRESS", help="Only created by this account.")
@click.option("--worker", type=ADDRESS, metavar="ADDRESS", help="Only ever given to this machine.")
@click.option("--mine", is_flag=True, help="Only created by the signing key.")
@click.option("--cursor", metavar="TEXT", help="Go on after an earlier page: its `next`.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, PAGE_MAX), help="Tasks of a page.")
@click.option("--all", "shows_all", is_flag=True, help="All pages.")
@json_option
def list_(
    session: Session, phase: str | None, requester: str | None, worker: str | None, mine: bool,
    cursor: str | None, limit: int, shows_all: bool, as_json: bool,
) -> None:  # fmt: skip
    """List tasks, the oldest first; a list is of one height, whatever happens meanwhile.

    \b
    Examples:
      dekube task list --phase running
      dekube task list --mine --all --json
    """
    if sum(1 for chosen in (phase, requester, worker, mine or None) if chosen is not None) > 1:
        raise click.UsageError("one of --phase, --requester, --worker and --mine at most")
    if shows_all and cursor is not None:
        raise click.UsageError("--all begins with the first page: leave --cursor out")
    if mine:
        requester = "0x" + session.key().address.hex()
    following = cursor
    with session.client() as client:
        if shows_all:
            items = list(client.items("dekube_getTasks", phase=phase, requester=requester, worker=worker))
        else:
            page = client.call(
                "dekube_getTasks", phase=phase, requester=requester, worker=worker, cursor=cursor, limit=limit
            )
            items, following = page["items"], page["next"]
    if as_json:
        show({"items": items, "next": following})
        return
    rows = [
        {
            "id": item["id"],
            "phase": item["phase"],
            "windows": f"{item['final_windows']}/{item['windows']}",
            "worker": item["worker"],
            "price": show_amount(int(item["price_per_gpu_s"])) + "/s" if int(item["price_per_gpu_s"]) else None,
            "created": f"height {item['created_height']}",
        }
        for item in items
    ]
    show_rows(rows, _LIST_COLUMNS, as_json=False, title="Tasks")
    if following is not None:
        click.echo(f"More: --cursor {following}")


def _record(client: Client, task_id: bytes) -> Task:
    record = client.task(task_id)
    if record is None:
        raise ConfigError(f"no task has the id {hexed(task_id)}")
    return record


@task.command(name="show")
@session_options
@click.argument("task_id", type=TASK, metavar="TASK")
@json_option
def show_(session: Session, task_id: bytes, as_json: bool) -> None:
    """Show a task: its job, its phase, every change, its windows and what their verifiers found."""
    with session.client() as client:
        record = _record(client, task_id).document
        changes = list(client.items("dekube_getTaskHistory", task=hexed(task_id)))
        windows = list(client.items("dekube_getTaskWindows", task=hexed(task_id)))
    if as_json:
        show({"task": record, "history": changes, "windows": windows})
        return
    spec = record["spec"]
    schedule = spec["schedule"]
    show_fields(
        {
            "phase": f"{record['phase']} ({record['reason'].replace('_', ' ')})",
            "requester": record["requester"],
            "worker": record["worker"],
            "price": f"{show_amount(int(record['price_per_gpu_s']))} a GPU-second, at most "
            f"{show_amount(int(spec['price']['max_price_per_gpu_s']))}",
            "job": f"{spec['kind']} {spec['model']['name']} {'-'.join(map(str, spec['model']['widths']))} in "
            f"{counted(schedule['total_steps'], 'step')}, batch {spec['batch']}, {spec['optimiser']['name']}, "
            f"{spec['profile']}",
            "data set": spec["dataset"]["blob"],
            "windows": f"{record['final_windows']} of {record['windows']} final, "
            f"{record['proved_windows']} proved",
            "created": f"height {record['created_height']}",
            "changed": f"height {record['changed_height']}",
            "state root": record["final_root"] or record["state_root"],
            **({"next": NEXT[record["phase"]]} if record["phase"] in NEXT else {}),
        },
        as_json=False,
        title=f"Task {hexed(task_id)}",
    )
    rows = [
        {"height": change["height"], "phase": change["after"], "why": change["reason"], "by": _actor(change)}
        for change in changes
    ]
    show_rows(rows, ("height", "phase", "why", "by"), as_json=False, title="\nHistory")
    _show_proofs(windows)
    _show_verdicts(windows)


def _actor(change: dict[str, Any]) -> str:
    # The end of a block acts for nobody: a match, a draw, a deadline.
    acts = change["actor"] is not None and int(change["actor"], 16)
    return str(change["actor"]) if acts else "the chain"


def _show_proofs(windows: list[dict[str, Any]]) -> None:
    rows = [
        {
            "window": window["number"],
            "phase": window["phase"],
            "steps": f"{window['proof']['step_from']}-{window['proof']['step_to']}",
            "state after": window["proof"]["state_root_out"],
            "GPU ms": window["proof"]["meter"]["gpu_ms"],
            "charge": show_amount(int(window["charge"])),
        }
        for window in windows
    ]
    columns = ("window", "phase", "steps", "state after", "GPU ms", "charge")
    show_rows(rows, columns, as_json=False, title="\nProofs of work")


def _show_verdicts(windows: list[dict[str, Any]]) -> None:
    rows = [
        {
            "window": window["number"],
            "verifier": seat["address"] + (" (jury)" if role == "jurors" else ""),
            "segments": ", ".join(str(f["segment"]) for f in seat["findings"] or ()) or None,
            "verdict": _verdict(seat),
        }
        for window in windows
        for role in ("verifiers", "jurors")
        for seat in window[role]
    ]
    show_rows(rows, ("window", "verifier", "segments", "verdict"), as_json=False, title="\nVerdicts")


def _verdict(seat: dict[str, Any]) -> str:
    if seat["findings"] is not None:
        return ", ".join(sorted({finding["code"] for finding in seat["findings"]}))
    return "sealed" if seat["seal"] else "awaited"


@task.command()
@session_options
@click.argument("task_id", type=TASK, metavar="TASK")
@json_option
def proof(session: Session, task_id: bytes, as_json: bool) -> None:
    """Show the proofs of work of a task: one for each window, with what was drawn, re-run and opened."""
    with session.client() as client:
        _record(client, task_id)
        windows = list(client.items("dekube_getTaskWindows", task=hexed(task_id)))
    if as_json:
        show(windows)
        return
    if not windows:
        click.echo("No window is proved yet.")
    for window in windows:
        found = window["proof"]
        show_fields(
            {
                "phase": f"{window['phase']} ({window['reason'].replace('_', ' ')})",
                "worker": window["worker"],
                "steps": f"{found['step_from']} to {found['step_to']} in {counted(found['segments'], 'segment')}",
                "state before": found["state_root_in"],
                "state after": found["state_root_out"],
                "root of segments": found["segment_root"],
                "blob of segments": found["leaves_blob"],
                "blob of the state": found["output_blob"],
                "measured": f"{found['meter']['gpu_ms']} ms, {counted(found['meter']['samples'], 'sample')}",
                "re-run segments": window["sampled"],
            },
            as_json=False,
            title=f"\nWindow {window['number']}",
        )
    _show_verdicts(windows)


@task.command()
@session_options
@click.argument("task_id", type=TASK, metavar="TASK")
@click.option("--timeout", "timeout_s", default=WATCH_TIMEOUT_S, show_default=True, help="Seconds to wait.")
@json_option
def watch(session: Session, task_id: bytes, timeout_s: float, as_json: bool) -> None:
    """Follow a task until it ends; exit status 1 unless it settles.

    With --json the progress goes to standard error and the outcome to standard output.
    """
    with session.client() as client:
        _record(client, task_id)
        phase = _watch(client, task_id, as_json, timeout_s)
    if as_json:
        show({"task": hexed(task_id), "phase": phase})
    _expect_settled(task_id, phase)


# The bill


@task.command()
@session_options
@click.argument("task_id", type=TASK, metavar="TASK")
@json_option
def bill(session: Session, task_id: bytes, as_json: bool) -> None:
    """Show the bill line by line, and its sums: locked + paid + refunded + burned = deposited, exactly."""
    with session.client() as client:
        _record(client, task_id)
        found = client.bill(task_id)
    if as_json:
        totals = found.totals.document
        lines = [line.document for line in found.lines]
        show({"lines": lines, "totals": totals, "exact": found.totals.is_exact})
        return
    rows = [{**line.document, "amount": show_amount(line.amount)} for line in found.lines]
    columns = ("height", "movement", "purpose", "window", "party", "amount")
    show_rows(rows, columns, as_json=False, title=f"Bill of task {hexed(task_id)}")
    _show_sums(found.totals)


def _show_sums(totals: EscrowTotals) -> None:
    parts = {"locked": totals.locked, "paid": totals.paid, "refunded": totals.refunded, "burned": totals.burned}
    told = " + ".join(f"{name} {show_amount(amount)}" for name, amount in parts.items())
    exact = "exact" if totals.is_exact else "DOES NOT ADD UP"
    click.echo(f"Sums: deposited {show_amount(totals.deposited)} = {told} ({exact})")


# The result


@task.command()
@session_options
@click.argument("task_id", type=TASK, metavar="TASK")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE",
              help=f"Write the trained state; its suffix picks the form: {', '.join(FORMATS)}.")  # fmt: skip
@click.option("--window", type=click.IntRange(0), help="The state after this window; default: the last final one.")
@json_option
def result(session: Session, task_id: bytes, out: Path | None, window: int | None, as_json: bool) -> None:
    """Fetch the trained state, check it against the proof on chain, and test it on data it has not seen.

    The node in --home fetches it from the worker, through relays where it must; with --rpc, or without a node
    there, the gateway's node does. What has come is kept for the next try when this is interrupted.

    \b
    Example:
      dekube task result 0x1234... --out model.npz
    """
    if out is not None and out.suffix not in FORMATS:
        raise click.BadParameter(f"{out}: the name must end in {', '.join(FORMATS)}", param_hint="--out")
    _say("Fetching the state from its worker ...")
    with session.client() as client:
        _record(client, task_id)
        found = client.result(
            task_id,
            control=session.control(),
            window=window,
            progress=show_progress("Fetching"),
            folder=download_folder(),
        )
    plan = found.spec.plan()
    if out is not None:
        write_file(out, encode_state(found.state, plan, out.suffix))
    answer: dict[str, Any] = {
        "task": hexed(task_id),
        "window": found.window.number,
        "step": found.window.proof.step_to,
        "state_root": found.window.proof.state_root_out,
        "proved": True,
        "bytes": len(found.data),
        "accuracy": None,
    }
    try:
        right, samples = found.test()
        answer |= {"accuracy": right / samples if samples else None, "right": right, "samples": samples}
    except NoResult as error:
        _say(f"The state is not tested: {error}")
    if out is not None:
        answer["file"] = str(out)
    if not as_json and answer["accuracy"] is not None:
        answer["accuracy"] = f"{answer['accuracy']:.2%} ({answer['right']} of {answer['samples']} unseen samples)"
        del answer["right"], answer["samples"]
    show_fields(answer, as_json=as_json, title="Result")


# What only the requester may do


@task.command()
@session_options
@click.argument("task_id", type=TASK, metavar="TASK")
@json_option
def cancel(session: Session, task_id: bytes, as_json: bool) -> None:
    """End a task early; what is not earned comes back.

    A window under way is still finished and paid; a worker that has begun to prepare is paid for its time.
    """
    _act(session, task_id, CANCEL_TASK, [task_id], as_json)


@task.command(name="top-up")
@session_options
@click.argument("task_id", type=TASK, metavar="TASK")
@click.argument("amount", type=AMOUNT)
@json_option
def top_up(session: Session, task_id: bytes, amount: int, as_json: bool) -> None:
    """Add AMOUNT (0.5 is 0.5 DKB) to what pays a task's verification; unused it comes back."""
    if not amount:
        raise click.BadParameter("an amount above zero", param_hint="AMOUNT")
    _act(session, task_id, TOP_UP_TASK, [task_id, amount], as_json)


@task.command()
@session_options
@click.argument("task_id", type=TASK, metavar="TASK")
@click.argument("amount", type=AMOUNT)
@json_option
def demand(session: Session, task_id: bytes, amount: int, as_json: bool) -> None:
    """Have drawn machines fetch a result that cannot be had, within a day of the task's end.

    AMOUNT (0.01 is 0.01 DKB) pays them if they can, and each then has a copy to download; it comes back, with the
    last window's price, if its worker does not serve it. What is too much comes back too.
    """
    _act(session, task_id, DEMAND_RESULT, [task_id, amount], as_json, is_over=True)


@task.command()
@session_options
@click.argument("task_id", type=TASK, metavar="TASK")
@json_option
def resume(session: Session, task_id: bytes, as_json: bool) -> None:
    """Look for another worker for a paused task; it goes on from its last final window.

    A machine that has lost or left the task is not offered it again, also when it is back: where no other one is
    registered, the task pauses again. That is said before the fee is paid.
    """
    _act(session, task_id, RESUME_TASK, [task_id], as_json, only_in="paused", tell=_tell_of_machines)


def _tell_of_machines(client: Client, record: Task) -> None:
    """Say where a paused task would pause again: what its checks cost is used up, or no machine will take it."""
    if record.document["reason"] == "funds_low":
        _say(
            "Mind: it was paused because what is locked for its checks is used up: unless `dekube task top-up` "
            "has added to that, it pauses again at once."
        )
    search_ms = int(client.call("dekube_genesis")["parameters"]["tasks.replace_ms"])
    until_ms = client.head().time_ms + search_ms
    machines = [node for node in client.items("dekube_getNodes") if "compute" in node["roles"]]
    reasons = Counter(_why_not(node, record.document, until_ms) for node in machines)
    if reasons[""]:
        return
    told = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()) if reason)
    _say(
        f"Mind: of {counted(len(machines), 'machine')} for compute none will take this task"
        f"{f' ({told})' if told else ''}: unless another one comes within {search_ms // 1000} s, it pauses again. "
        "`dekube task cancel` ends it and pays what is proved."
    )


def _why_not(node: Mapping[str, Any], record: Mapping[str, Any], until_ms: int) -> str:
    """Return why a machine is not offered a task before ``until_ms``; empty where it may be."""
    if node["address"].lower() in {address.lower() for address in record["excluded"]}:
        return "lost or left this task, which is for ever"
    if node["status"] != "active":
        return str(node["status"])
    if int(node["price_per_gpu_s"]) > int(record["spec"]["price"]["max_price_per_gpu_s"]):
        return "above its price limit"
    if max(node["cool_down_until_ms"], node["match_from_ms"]) > until_ms:
        return "in a longer pause after a fault"
    return ""


def _act(
    session: Session, task_id: bytes, kind: int, payload: list[Value], as_json: bool, *,
    only_in: str | None = None, is_over: bool = False, tell: Callable[[Client, Task], None] | None = None,
) -> None:  # fmt: skip
    key = session.key()
    with session.client() as client:
        record = _record(client, task_id)
        if record.has_ended != is_over:
            state = "has ended" if record.has_ended else "has not ended"
            raise TaskEnded(f"task {hexed(task_id)} {state}: {record.phase}")
        if only_in is not None and record.phase != only_in:
            # Known beforehand: a transaction that can only fail would still cost its fee.
            raise TransactionRefused(f"the task is {record.phase}; this is for a task that is {only_in}")
        if record.requester != key.address:
            owner = format_address(record.requester)
            raise ConfigError(f"the task is {owner}'s; sign with that account's key (--key, --home)")
        if tell is not None:
            tell(client, record)
        _say("Waiting until it is final ...")
        receipt = send(client, key, kind, payload)
        record = _record(client, task_id)
    answer = {
        "task": hexed(task_id),
        "phase": record.phase,
        "transaction": receipt.transaction_hash,
        "height": receipt.block.height,
    }
    show_fields(answer, as_json=as_json)
