"""``dekube status``: the state of a running node and its chain."""

from __future__ import annotations

from typing import Any

import click

from node.cli.options import ask_home, home_option
from node.cli.output import (
    counted,
    json_option,
    log_field,
    show,
    show_amount,
    show_fields,
    show_rows,
    show_span,
    show_time,
)
from node.home.paths import Home

__all__ = ["is_following", "is_reachable", "is_slashed", "status"]

BEHIND_MS_MAX = 60_000
FAULTS = {
    "E1": "two NOTARIZE in one view",
    "E2": "two FINALIZE in one view",
    "E3": "NULLIFY and FINALIZE in one view",
}
SILENT_MAX = 8
"""Maximum number of seats shown; `--json` shows all."""
REACHED = {
    "direct": "directly",
    "relays": "through relays",
    "unconfirmed": "perhaps directly",
    "none": "by nobody, it dials others",
    "outbound": "not at all, as configured: it only dials others",
}


def is_following(state: dict[str, Any]) -> bool:
    """Tell whether a node with this status follows the chain: synced, connected, with a recent newest block."""
    return not state["syncing"] and state["peers"] > 0 and state["behind_ms"] <= BEHIND_MS_MAX


def is_reachable(state: dict[str, Any]) -> bool:
    """Tell whether peers can reach the node, if it is configured to be reached."""
    reachability = state.get("reachability")
    return reachability is None or reachability["how"] != "none"


def is_slashed(state: dict[str, Any]) -> bool:
    """Tell whether the node is a slashed validator. It does not vote any more."""
    return state.get("slashed") is not None and "validator" in state["roles"]


@click.command()
@home_option
@click.option(
    "--check",
    is_flag=True,
    help="Return exit status 1 unless the node follows the chain, is reachable and not slashed.",
)
@json_option
def status(home: Home, check: bool, as_json: bool) -> None:
    """Show height, peers, consensus and jobs of the node in --home.

    \b
    Examples:
      dekube status
      dekube status --check --json
    """
    state = ask_home(home, "status")
    if as_json:
        show(state)
    else:
        is_validator = "validator" in state["roles"] and state.get("state_sync") is None
        _show(state, ask_home(home, "admin", method="admin_getValidator") if is_validator else None)
    if check and not (is_following(state) and is_reachable(state) and not is_slashed(state)):
        raise click.exceptions.Exit(1)


def _show(state: dict[str, Any], seat: dict[str, Any] | None) -> None:
    fields = {
        "health": _health(state),
        "chain": f"{state['chain']} (id {state['chain_id']})",
        "height": _height(state),
        "block": "0x" + state["block"],
        "state root": "0x" + state["state_root"],
        "consensus": f"epoch {state['epoch']}, view {state['view']:,}",
        "peers": state["peers"],
        "relays": _relays(state),
        "reached": _reached(state.get("reachability")),
        **_gateway(state),
        **_log(state.get("log")),
        "mempool": counted(state["mempool"], "transaction"),
        "roles": state["roles"],
        **({} if seat is None else {"seat": _seat(seat)}),
        **_disputes(state.get("disputes")),
        **_slashed(state.get("slashed")),
        **_silent(state.get("votes")),
        **_clocks(state.get("clocks")),
        "version": state["version"],
        **_upgrade(state),
    }
    show_fields(fields, as_json=False, title=f"Node {state['address']}")
    jobs = [
        {"task": "0x" + job["task"], "step": f"{job['step']}/{job['total_steps']}", "device": job["device"],
         "ended by itself": _ends(job)}
        for job in state["jobs"]
    ]  # fmt: skip
    columns = ("task", "step", "device", *(("ended by itself",) if any(map(_ends, state["jobs"])) else ()))
    show_rows(jobs, columns, as_json=False, title="Jobs")
    troubles = [_trouble(state, trouble) for trouble in state.get("troubles", ())]
    if troubles:
        show_rows(troubles, ("duty", "task", "why"), as_json=False, title="Not done yet")


def _disputes(found: dict[str, int] | None) -> dict[str, str]:
    """Return the disputes of the machine; empty if it has none now and lost none."""
    counts = {name: (found or {}).get(name, 0) for name in ("open", "suspended", "won", "lost")}
    if not any(counts[name] for name in ("open", "suspended", "lost")):
        return {}
    said = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
    return {"disputes": f"{said} (dekube verifier disputes)"}


def _ends(job: dict[str, Any]) -> str:
    """Return how often a job's process ended unexpectedly within the last hour; empty if never."""
    return f"{counted(job['ends'], 'time')}, last: {job['last_end']}" if job.get("ends") else ""


def _trouble(state: dict[str, Any], trouble: dict[str, Any]) -> dict[str, str]:
    task = "0x" + trouble["task"] if trouble["task"] else ""
    why = f"{trouble['error']} [{trouble['code']}]"
    if trouble["code"] == "insufficient_funds":
        why = f"{state['address']} lacks the coins: send it some [insufficient_funds]"
    return {"duty": trouble["duty"], "task": task, "why": why}


def _seat(validator: dict[str, Any]) -> str:
    """Return whether the validator has a seat."""
    if validator["seat"] is None:
        return f"none of {validator['seats']} in epoch {validator['epoch']}{_why(validator)} (dekube validators)"
    listens = ", does not vote yet" * validator["listens_before_voting"]
    if left_s := validator.get("listens_s_max"):
        listens = f", listens whether its key votes elsewhere: votes in {left_s} s at the latest"
    out = _why(validator).replace(", for it", ", but") if validator["jail"] is not None else ""
    return f"{validator['seat']} of {validator['seats']} in epoch {validator['epoch']}{listens}{out}"


def _why(validator: dict[str, Any]) -> str:
    """Return why a validator has no seat, if known. Otherwise it is new, or was not selected."""
    if (jail := validator["jail"]) is not None:
        until = jail["until_epoch"]
        return ", for it is out for ever" if until is None else f", for it is jailed until epoch {until}"
    return "" if int(validator["stake"]) else ", for it has no stake"


def _gateway(state: dict[str, Any]) -> dict[str, str]:
    """Return the gateway's state if it is not healthy."""
    gateway = state.get("gateway")
    if gateway is None or state.get("draining") or not gateway["failures"]:
        return {}
    times = "" if gateway["failures"] == 1 else f" {gateway['failures']} times in a row"
    if gateway["running"]:
        return {"gateway": f"runs again; it had ended by itself{times} (see the log)"}
    return {"gateway": f"ended by itself{times}, is started again (see the log)"}


def _log(log: dict[str, Any] | None) -> dict[str, str]:
    if log is None:
        return {}
    failing = log["failing"] or {"since_ms": 0, "reason": ""}
    return log_field(log["dropped"], failing["since_ms"], failing["reason"])


def _upgrade(state: dict[str, Any]) -> dict[str, str]:
    """Return what the owner has to do before a protocol version that this release does not know becomes active."""
    coming = state.get("upgrade")
    if coming is None:
        return {}
    text = f"{coming['percent']} % of the weight signals version {coming['version']} of the protocol"
    if (last := coming["last_height"]) is not None:
        text = f"version {coming['version']} of the protocol holds after block {last:,}, where this node ends"
    return {"upgrade": f"{text}: install a release that knows it"}


def _relays(state: dict[str, Any]) -> list[str]:
    """Return the relays with a reservation, and the relays that are down, with times."""
    lines = [f"reserved at {state['relays']}" if state["relays"] else "none"]
    down = (state.get("reachability") or {}).get("relays_down", ())
    return lines + [f"{relay['relay']} is down since {relay['since']} UTC ({relay['why']})" for relay in down]


def _reached(reachability: dict[str, Any] | None) -> str:
    if reachability is None:
        return "not known yet"
    return f"{REACHED[reachability['how']]}: {reachability['why']}"


def _pace(sync: dict[str, Any]) -> str:
    """Return the sync speed and the remaining time."""
    if not sync["blocks_per_s"]:
        return ""
    hours, rest = divmod(sync["left_s"], 3_600)
    minutes, seconds = divmod(rest, 60)
    left = f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
    return f", {sync['blocks_per_s']:,} blocks/s from {counted(sync['peers'], 'peer')}, {left} left"


def _votes(votes: dict[str, Any] | None) -> str:
    """Return the share of the weight that votes while no block is made."""
    if votes is None:
        return ""
    heard = f"{votes['heard_percent']} % of the weight votes in view {votes['view']:,}"
    if votes["enough"]:
        return f", although {heard}, which is enough"
    return f": {heard}, and a block needs more than two thirds of it"


def _silent(votes: dict[str, Any] | None) -> dict[str, list[str]]:
    """Return the seats whose votes are missing."""
    if votes is None or votes["enough"]:
        return {}
    silent, more = votes["silent"][:SILENT_MAX], len(votes["silent"]) - SILENT_MAX
    return {"silent": [*silent, f"and {more} more"] if more > 0 else silent}


def _slashed(slashed: dict[str, Any] | None) -> dict[str, str]:
    """Return why an account was slashed, and its remaining stake."""
    if slashed is None:
        return {}
    fault = FAULTS.get(slashed["fault"], "another fault")
    return {
        "slashed": (
            f"for {fault} ({slashed['fault']}: epoch {slashed['epoch']}, view {slashed['view']:,}), proven in "
            f"block {slashed['height']:,} by {slashed['reporter']}: {show_amount(int(slashed['taken']))} were "
            f"taken, {show_amount(int(slashed['left']))} are left. The account sits in no committee again: "
            "`dekube tx unstake` takes out what is left; a new validator needs another account and other keys"
        )
    }


def _height(state: dict[str, Any]) -> str:
    if state["height"] or state.get("genesis_time_ms") is None:
        return f"{state['height']:,}, {state['behind_ms'] / 1000:.1f} s old"
    return f"0: no block here yet, the genesis is of {show_time(state['genesis_time_ms'])}"


def _age(state: dict[str, Any]) -> str:
    """Return why a starting node first looks for a snapshot."""
    since_ms = state.get("since_genesis_ms", 0)
    if since_ms <= 0:
        return ""
    return f"; the genesis time was {show_span(since_ms)} ago, so it asks peers for a newer state before it begins"


def _begins(state: dict[str, Any]) -> str:
    """Return when a chain without a block begins, or what it waits for."""
    if state.get("height") or (since_ms := state.get("since_genesis_ms")) is None:
        return ""
    if since_ms < 0:
        return f"waits for the genesis time: the chain begins in {show_span(-since_ms)}"
    if since_ms <= BEHIND_MS_MAX:
        return ""
    return (
        f"no block yet{_votes(state.get('votes'))}. The genesis time was {show_span(since_ms)} ago, which does no "
        "harm: the chain begins when more than two thirds of the weight vote, and the first block has that time"
    )


def _clocks(clocks: list[dict[str, Any]] | None) -> dict[str, list[str]]:
    """Return the wrong clocks: blocks of such a validator arrive late or are refused."""
    named = [
        f"{off['validator']} is {_seconds(off['ahead_ms'])} {'ahead' if off['ahead_ms'] > 0 else 'behind'}"
        for off in clocks or ()
    ]
    more = len(named) - SILENT_MAX
    return {"wrong clocks": [*named[:SILENT_MAX], *([f"and {more} more"] if more > 0 else [])]} if named else {}


def _seconds(off_ms: int) -> str:
    seconds = abs(off_ms) / 1000
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:,.0f} s"


def _health(state: dict[str, Any]) -> str:
    state_sync = state.get("state_sync")
    if state_sync is not None and not state["peers"]:
        return (
            "no peer answers yet: look at p2p.bootstrap and p2p.relays, and whether genesis.json is the network's "
            f"(its hash is the block below){_age(state)}"
        )
    if state_sync is not None:
        pieces = f", {state_sync['pieces_done']:,} of {counted(state_sync['pieces'], 'piece')}"
        pieces *= bool(state_sync["pieces"])
        return f"begins with the state of block {state_sync['target']:,}: {state_sync['stage']}{pieces}"
    if state["syncing"] and (oldest := state["sync"].get("oldest_height")):
        return (
            f"stuck at block {state['height']:,}: the peers ahead keep none before {oldest:,}; start with "
            "--checkpoint HEIGHT:HASH, or name a peer that keeps all"
        )
    if state["syncing"]:
        return f"catching up: {state['height']:,} of {counted(state['highest'], 'block')}{_pace(state['sync'])}"
    if state.get("draining"):
        return "drains: takes no new work (dekube node drain)"
    if is_slashed(state):
        return "slashed: this validator no longer votes (see below, and dekube slashes)"
    if begins := _begins(state):
        return begins
    if off_ms := state.get("clock_off_ms"):
        way = "ahead of" if off_ms > 0 else "behind"
        return f"the clock of this machine is {_seconds(off_ms)} {way} the validators': set it (timedatectl)"
    if not state["peers"]:
        return f"alone: no peer is connected (p2p.bootstrap, p2p.relays){_votes(state.get('votes'))}"
    if not is_following(state):
        return f"no new block for {state['behind_ms'] // 1000} s{_votes(state.get('votes'))}"
    return "follows the chain"
