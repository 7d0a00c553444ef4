"""``dekube task list``, ``show``, ``proof`` and ``bill``: the chain's data of tasks."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from node.cli.arguments import TASK, WholeNumber
from node.cli.option_conflicts import not_with
from node.cli.output import counted, json_option, show, show_amount, show_fields, show_rows, show_time
from node.cli.prices import PER_TERA_UNIT
from node.cli.session import Session, reading_options
from node.cli.tasks.container_live import told_view, view_of
from node.cli.tasks.group import group_bill, show_group
from node.cli.tasks.told import COMPARED, UNPROVEN, decoding_told
from node.cli.tasks.watch import record_of, show_sums
from node.cli.terminal import printable
from node.market.posting import next_of
from rpc.client.core import hexed
from rpc.client.results import Bill, BillLine
from rpc.protocol.task_views import TaskView
from tasks.kinds.container import KIND_CONTAINER
from tasks.kinds.embed import KIND_EMBED
from tasks.kinds.evaluate import KIND_EVALUATE
from tasks.kinds.finetune import KIND_FINETUNE
from tasks.kinds.generate import KIND_GENERATE
from tasks.ledger.lifecycle import Phase

__all__ = ["bill", "list_", "proof", "show_", "show_bill"]

PAGE_MAX: Final = 100
PARTY_SUMS: Final = ("locked", "paid", "refunded")
"""Movements that a party pays or receives."""
LIVE_PHASES: Final = ("preparing", "running")
"""Phases in which a machine has the container of a task."""
_MERGED: Final = ("movement", "purpose", "pool", "party")
_LIST_COLUMNS: Final = ("id", "phase", "windows", "worker", "price", "created")


@not_with(("--cursor", "--limit"), "--all")
@click.command(name="list")
@reading_options
@click.option(
    "--phase", type=click.Choice([phase.name.lower() for phase in Phase]), help="Show only tasks in this phase."
)
@click.option("--requester", metavar="ADDRESS|NAME", help="Show only tasks created by this account.")
@click.option("--worker", metavar="ADDRESS|NAME", help="Show only tasks ever assigned to this machine.")
@click.option("--mine", is_flag=True, help="Show only tasks of the node in --home, or of the only account.")
@click.option("--cursor", metavar="TEXT", help="Continue after an earlier page: its `next` value.")
@click.option(
    "--limit", default=20, show_default=True, type=WholeNumber(1, PAGE_MAX), help="Number of tasks on one page."
)
@click.option("--all", "shows_all", is_flag=True, help="Show all pages.")
@json_option
def list_(
    session: Session, phase: str | None, requester: str | None, worker: str | None, mine: bool,
    cursor: str | None, limit: int, shows_all: bool, as_json: bool,
) -> None:  # fmt: skip
    """List tasks, oldest first; all pages show the same height.

    \b
    Examples:
      dekube task list --phase running
      dekube task list --mine --all --json
    """
    if sum(1 for chosen in (phase, requester, worker, mine or None) if chosen is not None) > 1:
        raise click.UsageError("give at most one of --phase, --requester, --worker and --mine")
    if mine or requester is not None:
        requester = "0x" + session.address(requester, known=False).hex()
    if worker is not None:
        worker = "0x" + session.address(worker, known=False).hex()
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
            "price": show_amount(int(item["price_per_tera_unit"])) if int(item["price_per_tera_unit"]) else None,
            "created": f"height {item['created_height']}",
        }
        for item in items
    ]
    show_rows(rows, _LIST_COLUMNS, as_json=False, title="Tasks")
    if following is not None:
        click.echo(f"More: --cursor {shlex.quote(printable(following))}")


@click.command(name="show")
@reading_options
@click.argument("task_id", type=TASK, metavar="TASK")
@json_option
def show_(session: Session, task_id: bytes, as_json: bool) -> None:
    """Show a task: job, phase, history, windows and the verifiers' findings.

    Of a group its seats are shown.

    \b
    Example:
      dekube task show 0xTASK
    """
    with session.client() as client:
        if client.task(task_id) is None and (group := client.group(task_id)) is not None:
            show_group(group, as_json=as_json)
            return
        task = record_of(client, task_id)
        record = task.document
        changes = list(client.items("dekube_getTaskHistory", task=hexed(task_id)))
        windows = list(client.items("dekube_getTaskWindows", task=hexed(task_id)))
        following = [] if as_json else next_of(client, task, record["phase"], record["reason"])
    live = None if record["phase"] not in LIVE_PHASES else view_of(session, task)
    if as_json:
        show({"task": record, "history": changes, "windows": windows, "live": _live(live)})
        return
    spec = record["spec"]
    show_fields(
        {
            "phase": f"{record['phase']} ({record['reason'].replace('_', ' ')})",
            "requester": record["requester"],
            "worker": record["worker"],
            "price": f"{show_amount(int(record['price_per_tera_unit']))} {PER_TERA_UNIT}, at most "
            f"{show_amount(int(spec['max_price_per_tera_unit']))}",
            "job": _job(spec),
            **_progress(record),
            **({} if live is None else {"now": told_view(live)}),
            **_claim(record),
            **_waits(record),
            **_said(record),
            "created": f"height {record['created_height']}",
            "changed": f"height {record['changed_height']}",
            **({"next": "; ".join(following)} if following else {}),
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


def _progress(record: Mapping[str, Any]) -> dict[str, str]:
    """Return how far a task is: windows that are proven, or seconds that were paid."""
    meter = record.get("meter")
    if meter is None:
        return {
            "data set": record["spec"]["dataset"]["blob"],
            "windows": f"{record['final_windows']} of {record['windows']} final, "
            f"{record['proved_windows']} proved",
            **_ended_early(record),
            "state root": record["final_root"] or record["state_root"],
        }
    quorum = record.get("quorum")
    if quorum is not None:
        return _quorum(record, quorum)
    found = {
        "assurance": UNPROVEN,
        "metered": f"{counted(meter['seconds'], 'second')} of {record['spec']['schedule']['total_steps']}, "
        f"paid {show_amount(int(meter['paid']))}",
    }
    found |= _machines(meter)
    end = meter["exit"]
    if end is not None:
        code = f" {end['code']}" if end["kind"] in ("exited", "signalled") else ""
        found["ended"] = f"{end['kind'].replace('_', ' ')}{code}, says its machine {end['worker']}"
    elif meter["stop_ms"]:
        found["ended"] = "its machine is to stop it"
    return found


def _ended_early(record: Mapping[str, Any]) -> dict[str, str]:
    """Return why a task has fewer windows than its job: a lower validation loss did not come in time."""
    spec = record["spec"]
    patience, schedule = spec.get("loop", {}).get("patience", 0), spec["schedule"]
    planned = -(-schedule["total_steps"] // schedule["window_steps"])
    if not patience or record["windows"] == planned or record["phase"] not in ("output", "verifying", "settled"):
        return {}
    return {"ended early": f"of {planned} windows; {counted(patience, 'evaluation')} brought no lower loss"}


def _quorum(record: Mapping[str, Any], quorum: Mapping[str, Any]) -> dict[str, str]:
    """Return how far the machines of a quorum are, and which of them agree."""
    most = record["spec"]["schedule"]["total_steps"]
    found = {
        "assurance": COMPARED,
        "quorum": f"{quorum['phase']}" + (f" ({quorum['reason'].replace('_', ' ')})" if quorum["reason"] else ""),
    }
    for seat in quorum["seats"]:
        if seat["state"] == "idle":
            continue
        result = f", result {seat['result'][:12]}" if seat["result"] else ""
        who, seconds = seat["worker"] or "none yet", counted(seat["seconds"], "second")
        found[f"machine {seat['seat'] + 1}"] = (
            f"{seat['state']}{result}: {who}, {seconds} of {most}, paid {show_amount(int(seat['paid']))}"
        )
    return found


def _machines(meter: Mapping[str, Any]) -> dict[str, str]:
    """Return which machines ran a container, what of it another one does again, and what is stored."""
    found = {}
    machines = meter.get("machines", ())  # a gateway of an earlier version does not say
    if len(machines) > 1 or any(machine["lost"] for machine in machines):
        told = (
            f"{machine['worker']}: {counted(machine['seconds'], 'second')}"
            + (f", of which {machine['lost']} were lost and not paid" if machine["lost"] else "")
            for machine in machines
        )
        found["machines"] = "; ".join(told)
    stored = meter.get("checkpoint")
    if stored is not None:
        what = f"{stored['bytes']} bytes" if stored["blob"] else "none that could be stored"
        found["checkpoint"] = f"{what}, after {counted(stored['seconds'], 'second')}"
    if int(meter.get("waiting", 0)):
        found["waits for a checkpoint"] = show_amount(int(meter["waiting"]))
    return found


def _live(view: TaskView | None) -> dict[str, Any] | None:
    """Return what a machine says of a container, as JSON; without its log."""
    if view is None:
        return None
    found = view._asdict() | {"gpus": [gpu._asdict() for gpu in view.gpus], "pull": list(view.pull)}
    return {name: value for name, value in found.items() if name not in ("log", "points")}


def _job(spec: Mapping[str, Any]) -> str:
    """Return what a task computes, in one line."""
    if spec["kind"] == KIND_CONTAINER:
        image, command = spec["image"], " ".join(spec["process"]["command"])
        return f"container {image['repository']}@sha256:{image['digest'][2:]} {command}".rstrip()
    model, data = spec["model"], spec["dataset"]
    steps = f"{counted(spec['schedule']['total_steps'], 'step')}, batch {spec['batch']}"
    shape = f"{spec['kind']} {model['name']}"
    layers = counted(model.get("layers", 0), "layer")
    if spec["kind"] == KIND_GENERATE:
        new, decoding = counted(spec["decoding"]["new_tokens"], "token"), decoding_told(**spec["decoding"])
        asked = f"{counted(data['rows'], 'prompt')}, {new} each at most"
        return f"{shape} of {layers}: {asked}, in {steps}, {decoding}, {spec['profile']}"
    if spec["kind"] in (KIND_EMBED, KIND_EVALUATE):
        what = "text" if spec["kind"] == KIND_EMBED else "row"
        return f"{shape} of {layers}: {counted(data['rows'], what)}, in {steps}, {spec['profile']}"
    if spec["kind"] == KIND_FINETUNE:
        shape += f" of {layers}: {counted(data['rows'], 'row')}, rank {spec['adapters']['rank']}"
    elif "widths" in model:
        shape += f" {'-'.join(map(str, model['widths']))}"
    else:
        shape += f" of {layers}, width {model['width']}: {counted(data['rows'], 'row')}"
    return f"{shape} in {steps}, {spec['optimiser']['name']}, {spec['profile']}"


def _claim(record: Mapping[str, Any]) -> dict[str, str]:
    claim = record.get("claim")
    return {"proven": claim["text"]} if claim else {}


def _waits(record: Mapping[str, Any]) -> dict[str, str]:
    if record.get("parked"):  # a gateway of an earlier version does not say
        return {"waits for": "a machine that fits: one that registers, changes its entry or has a slot free again"}
    open_charge = int(record.get("open_charge", 0))
    return {"not final yet": show_amount(open_charge)} if open_charge else {}


def _said(record: Mapping[str, Any]) -> dict[str, str]:
    """Return what machines said against the task's inputs; a gateway of an earlier version does not say."""
    count = len(record.get("complaints", ()))
    if not count:
        return {}
    said = f"{counted(count, 'machine')} could not fetch the inputs"
    until_ms = record.get("aside_until_ms")
    if until_ms:
        said += f"; the search waits until {show_time(until_ms)} (steady time)"
    return {"inputs": said}


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
            "charge": show_amount(int(window["charge"])),
        }
        for window in windows
    ]
    columns = ("window", "phase", "steps", "state after", "charge")
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


@click.command()
@reading_options
@click.argument("task_id", type=TASK, metavar="TASK")
@json_option
def proof(session: Session, task_id: bytes, as_json: bool) -> None:
    """Show the proof of work of each window of a task.

    It includes the drawn, re-run and opened segments.

    \b
    Example:
      dekube task proof 0xTASK
    """
    with session.client() as client:
        record_of(client, task_id)
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
                "charge": show_amount(int(window["charge"])),
                "re-run segments": window["sampled"],
            },
            as_json=False,
            title=f"\nWindow {window['number']}",
        )
    _show_verdicts(windows)


@click.command()
@reading_options
@click.argument("task_id", type=TASK, metavar="TASK")
@click.option("--lines", "all_lines", is_flag=True, help="Show every payment in its order.")
@json_option
def bill(session: Session, task_id: bytes, all_lines: bool, as_json: bool) -> None:
    """Show the bill of a task or a group: every payment and the sums.

    Equal payments of several windows share one row; --lines shows each payment. Locked + paid + refunded +
    burned = deposited, exactly. The bill of a group has the payments of all its tasks.

    \b
    Example:
      dekube task bill 0xTASK --lines
    """
    with session.client() as client:
        group = client.group(task_id) if client.task(task_id) is None else None
        if group is None:
            record_of(client, task_id)
        found = client.bill(task_id) if group is None else group_bill(client, group)
    if as_json:
        totals = found.totals.document
        lines = [line.document for line in found.lines]
        parties = {
            party: {name: str(amount) for name, amount in sums.items()}
            for party, sums in sums_by_party(found.lines).items()
        }
        show({"lines": lines, "totals": totals, "exact": found.totals.is_exact, "parties": parties})
        return
    what = "task" if group is None else "group"
    show_bill(found, title=f"Bill of {what} {hexed(task_id)}", all_lines=all_lines)


def show_bill(found: Bill, *, title: str, all_lines: bool = False) -> None:
    """Print a bill: its movements (equal ones of several windows in one row), each party's sums, and the
    totals.
    """
    if all_lines:
        rows = [{**line.document, "amount": show_amount(line.amount)} for line in found.lines]
        every = ("height", "movement", "purpose", "pool", "window", "party", "amount")
        show_rows(rows, every, as_json=False, title=title)
    else:
        columns = ("movement", "purpose", "pool", "windows", "party", "amount")
        show_rows(merged_lines(found.lines), columns, as_json=False, title=title)
    by_party = [
        {"party": party, **{name: show_amount(amount) for name, amount in sums.items() if amount}}
        for party, sums in sums_by_party(found.lines).items()
    ]
    show_rows(by_party, ("party", *PARTY_SUMS), as_json=False, title="\nBy party")
    show_sums(found.totals)


def merged_lines(lines: Sequence[BillLine]) -> list[dict[str, Any]]:
    """Return one row for all movements of the same kind, pool and party, with their windows."""
    groups: dict[tuple[Any, ...], list[BillLine]] = {}
    for line in lines:
        key = tuple(_text(line.document.get(name)) for name in _MERGED)
        groups.setdefault(key, []).append(line)
    return [
        {
            **dict(zip(_MERGED, key, strict=True)),
            "windows": _ranges(sorted({line.window for line in group if line.window is not None})) or None,
            "amount": show_amount(sum(line.amount for line in group)),
        }
        for key, group in groups.items()
    ]


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _ranges(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def sums_by_party(lines: Sequence[BillLine]) -> dict[str, dict[str, int]]:
    """Return what each party locked, was paid and was refunded. Burned and withheld amounts belong to no party."""
    found: dict[str, dict[str, int]] = {}
    for line in lines:
        if line.movement in PARTY_SUMS and line.party is not None:
            sums = found.setdefault(str(line.document["party"]), dict.fromkeys(PARTY_SUMS, 0))
            sums[line.movement] += line.amount
    return found
