"""Rules of the market that can be switched off here: what each prevents is then a figure.

Most are switched off by parameters, some by another function in their place. ``aims`` are the strategies against
which a rule was made; parameters that an aim does not fix are searched.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, NamedTuple

from state.primitives.address import ADDRESS_BYTES
from tasks.custody.errors import ChunkInvalid
from tasks.errors import MeterMismatch
from tasks.ledger import calls, checkpoints, games, groups, refusals
from tasks.ledger.checkpoint_records import load_checkpoints, save_checkpoints
from tasks.ledger.lifecycle import Phase
from tasks.ledger.quorum_records import seat_number

__all__ = ["ALL_RULES", "WITHOUT", "Absent", "Aim", "Patch", "absent"]

_LEDGER: Final = "tasks.ledger"
_PACKAGE: Final = "tasks."
Value = int | float | str | bool


class Aim(NamedTuple):
    """A strategy against which a rule was made, with the values that some of its parameters then have."""

    strategy: str
    setting: Mapping[str, Value] = {}


class Patch(NamedTuple):
    """What stands in the place of a function or number of a module while a rule is absent."""

    module: str
    name: str
    value: Any
    is_alone: bool = False
    """Whether other modules that imported it keep it."""


class Absent(NamedTuple):
    """A rule that is absent: ``parameters`` are the market's then. Chains never have these values."""

    name: str
    text: str
    parameters: Mapping[str, int] = {}
    aims: tuple[Aim, ...] = ()
    patches: tuple[Patch, ...] = ()
    ignores_operators: bool = False
    """Whether machines of one operator may check each other."""


@contextmanager
def absent(rule: Absent) -> Iterator[None]:
    """Replace what the rule's patches name, wherever it was imported, until the end of the block."""
    replaced: list[tuple[Any, str, Any]] = []
    try:
        for patch in rule.patches:
            for owner, name, old in _places(patch):
                replaced.append((owner, name, old))
                setattr(owner, name, patch.value)
        yield
    finally:
        for owner, name, old in reversed(replaced):
            setattr(owner, name, old)


def _places(patch: Patch) -> list[tuple[Any, str, Any]]:
    """Return where the patched object stands: in its class, or in each module that has it."""
    owner: Any = import_module(patch.module)
    *classes, name = patch.name.split(".")
    for part in classes:
        owner = getattr(owner, part)
    old = getattr(owner, name)
    if classes or patch.is_alone:
        return [(owner, name, old)]
    loaded = [sys.modules[at] for at in sorted(sys.modules) if at.startswith(_PACKAGE)]
    return [(user, name, old) for user in loaded if user.__dict__.get(name) is old]


def _always(*_arguments: object) -> bool:
    return True


def _no_asks(*_arguments: object) -> list[object]:
    return []


def _none(*_arguments: object) -> None:
    return None


def _never(*_arguments: object) -> bool:
    return False


def _limit(_call: object, _bid: object, below: int, _taken: int) -> int:
    return below


def _no_keeper(*_arguments: object) -> bytes:
    return b""


_NO: Final = property(_never)


def _no_chunk(*_arguments: object) -> None:
    raise ChunkInvalid("nothing shows other bytes")


def _kept_alone(case: Any, record: Any) -> Any:
    """Have the worker keep an output that none of the drawn machines has signed for."""
    custody = import_module("tasks.ledger.custody")
    return custody._kept(case, custody._with_author(case, record))


def _lose_at_once(case: Any, window: Any) -> None:
    import_module("tasks.ledger.serving").lose_unserved(case, window.number)


_recheck_as_is = games._recheck


def _recheck_in_time(case: Any, window: Any) -> None:
    """Draw others for a window without a verdict; the time of challenges goes on."""
    disputes = import_module("tasks.ledger.disputes")
    place = case.state, window.task, window.number
    before = disputes.load_docket(*place)
    _recheck_as_is(case, window)
    after = disputes.load_docket(*place)
    if not after.until_ms:
        disputes.save_docket(*place, after._replace(until_ms=before.until_ms, extended=before.extended))


def _own_parties(node: Any) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys((node.address, node.profile.operator)))


def _nothing(*_arguments: object) -> int:
    return 0


def _endless(*_arguments: object) -> int:
    return 1 << 99


def _as_is(_case: object, record: Any, *_others: object) -> Any:
    return record


def _backing(node: Any, *_arguments: object) -> int:
    return int(node.backing)


def _void(case: Any, number: int, event: Any, reason: Any, *, blamed: bytes) -> None:
    window = case.window(number)
    if window.phase.name != "VOID":
        import_module("tasks.ledger.endings").reject(case, window, event, reason, blamed=blamed)


def _void_silent(case: Any, window: Any) -> None:
    import_module("tasks.ledger.games").void_silent(case, window.number)


def _reject_unserved(case: Any, window: Any) -> None:
    import_module("tasks.ledger.verification")._reject_unserved(case, window)


def _void_unserved(case: Any, number: int) -> None:
    """Void a window that nobody could fetch, and leave its worker's bond alone."""
    games = import_module("tasks.ledger.games")
    lifecycle = import_module("tasks.ledger.lifecycle")
    window, events = case.window(number), lifecycle.WindowEvent
    can_reject = (window.phase, events.REJECT) in lifecycle.NEXT_WINDOW_PHASE
    event = events.REJECT if can_reject else events.DROP
    games.void_window(case, number, event, lifecycle.Reason.WORK_REJECTED, blamed=window.worker)


def _of(name: str, function: Any, module: str) -> Patch:
    return Patch(f"{_LEDGER}.{module}", name, function)


ALL_RULES: Final = Absent("", "all present rules hold")
_ALL: Final[Mapping[str, Value]] = {"windows": 1.0, "segments": 1.0, "cost": 0.5}
_ALONE: Final[Mapping[str, Value]] = {**_ALL, "share": 10}
_FORGER: Final[Mapping[str, Value]] = {**_ALONE, "honest_first": 0, "price": 1.0}
_MANY: Final[Mapping[str, Value]] = {**_ALL, "share": 45, "honest_first": 0}
_HIDES: Final[Mapping[str, Value]] = {
    **_ALL, "share": 10, "serves_checks": False, "serves_results": True, "answers": True,
}  # fmt: skip
_PREPARES: Final[Mapping[str, Value]] = {
    "cancels": "preparing",
    "withholds": False,
    "demands": False,
    "accuses": False,
}
_DEMANDS: Final[Mapping[str, Value]] = {
    "cancels": "never",
    "withholds": False,
    "demands": True,
    "accuses": False,
}
_IDLE: Final[Mapping[str, Value]] = {"share": 45, "rate": 1.0, "way": "keeps nothing"}
_SILENT: Final[Mapping[str, Value]] = {"share": 45, "rate": 1.0, "way": "signs nothing"}
_DEAR: Final[Mapping[str, Value]] = {"price": 2.0, "silent": False}
_HOARDS: Final[Mapping[str, Value]] = {"length": 24, "cost": 1.0, "ransom": 0.5, "rate": 1.0}
_DENIES: Final[Mapping[str, Value]] = {
    "accuses": True, "cancels": "never", "withholds": False, "demands": False,
}  # fmt: skip
_LEAVES: Final[Mapping[str, Value]] = {"silent": False, "reason": "left", "rate": 1.0}
_FAST: Final[Mapping[str, Value]] = {"speed": 0.5, "blocks": 1_000, "cost": 0.5}
_ONE_DEVICE: Final[Mapping[str, Value]] = {"share": 20, "machines": 3, "blocks": 20, "cost": 0.5}
_BREAKS: Final[Mapping[str, Value]] = {"members": 8, "machines": 2, "place": "compute", "price": 2.5, "cost": 0.5}
_CALLED: Final[Mapping[str, Value]] = {
    "share": 20, "way": "leaves at call", "breaks": True, "cost": 0.5, "length": 4,
}  # fmt: skip


def _no_machines(*_arguments: object) -> list[Any]:
    return []


def _nobody(*_arguments: object) -> set[bytes]:
    return set()


def _pay_refused(case: Any, _blob: bytes) -> bool:
    """Pay a machine whose checkpoint is refused what waits, as after an end."""
    import_module("tasks.ledger.checkpoints").pay_what_waits(case)
    return True


def _pay_at_end(case: Any) -> None:
    """Pay what waits at once as a container ends."""
    import_module("tasks.ledger.checkpoints").pay_what_waits(case)


_begin_as_is = checkpoints.begin_run


def _pay_at_start(case: Any) -> None:
    """Pay the machine before as another one starts, and forget what may be refused of it."""
    _begin_as_is(case)
    found = load_checkpoints(case.state, case.record.id)
    save_checkpoints(case.state, case.record.id, checkpoints.pay_closing(case, found))


def _prepared_at_once(case: Any) -> None:
    """Pay a preparation with the first seconds that are metered."""
    import_module("tasks.ledger.settlement").pay_preparation(case)


def _with_preparation(case: Any, group: Any) -> int:
    """Pay a spare for its word that it has prepared."""
    settlement, prices = import_module("tasks.ledger.settlement"), import_module("billing.prices")
    units = settlement.preparation_units(case.spec, case.parameters)
    word = prices.work_price(units, case.record.price_per_tera_unit)
    return int(_earned_as_is(case, group) + word)


_refused_as_is = refusals._refused


def _by_name(case: Any, found: Any, name: bytes, every_s: int) -> Any:
    """Refuse nothing by the address of a machine while no machine has the task."""
    is_idle = case.record.phase in (Phase.DEGRADED, Phase.PAUSED)
    if is_idle and name == refusals.all_of_machine(name[-ADDRESS_BYTES:]):
        raise MeterMismatch("not by its address")
    return _refused_as_is(case, found, name, every_s)


_bid_of_quorum_as_is = calls._Call._bid_of_quorum


def _lowest_first(call: Any, case: Any, bid: Any) -> Any:
    """Have the first seat of a quorum take the lowest ask."""
    found = _bid_of_quorum_as_is(call, case, bid)
    return found if seat_number(case.state, case.record.id) else bid._replace(barred=found.barred)


_earned_as_is = groups._earned
WITHOUT: Final[Mapping[str, Absent]] = {
    rule.name: rule
    for rule in (
        # Money of a worker
        Absent(
            "hold", "nothing of a window's pay is held until the end", {"hold_bps": 0},
            (Aim("colluding set", {**_ALL, "honest_first": 2}),),
        ),
        Absent(
            "bond", "a worker locks no more than the fees", {"bond_windows_bps": 0, "bond_floor_bps": 0},
            (Aim("cornered liar", {**_ALONE, "escape": "plays"}),),
        ),
        Absent(
            "late-fine", "no fine for leaving a task", {"late_fine_bps": 0},
            (Aim("griefing worker", {**_LEAVES, "place": "compute"}),),
        ),
        Absent(
            "opening-fine", "no fine for opening late", {"opening_fine_bps": 0},
            (Aim("cornered liar", {**_ALONE, "escape": "unopened"}),),
        ),
        Absent(
            "opening-extra", "no second time to open", {"opening_extra_ms": 1},
            (Aim("line cutter", {"at": "opening", "minutes": 4}),),
        ),
        Absent(
            "late-window", "no second time for a window, and the lowest ask takes a lost task",
            {"window_extra_ms": 0}, (Aim("line cutter", {"at": "opening", "minutes": 35, "cuts": 4}),),
            (_of("_Call._replacing", _no_asks, "calls"),),
        ),
        Absent(
            "replacement-draw", "the lowest ask takes a task that has lost its worker",
            aims=(
                Aim("line cutter", {"at": "opening", "minutes": 1_500}),
                Aim("ask decoys", {"price": 1.1, "decoys": 1, "place": "start", "silent": True}),
            ),
            patches=(_of("_Call._replacing", _no_asks, "calls"),),
        ),
        # Verification
        Absent(
            "verifier-fine", "no fine for a silent verifier", {"verifier_fine_bps": 0},
            (Aim("lazy verifier", {"way": "silent", "rate": 1.0, "share": 45}),),
        ),
        Absent(
            "fine-bound", "no bound on a day's fines of a verifier", {"late_fines_per_day_max": 1 << 99},
            (Aim("overloading requester", {"tasks": 12}), Aim("line cutter", {"at": "sealing", "cuts": 16})),
        ),
        Absent(
            "newcomers", "new workers are audited as often as others", {"new_windows": 0},
            (Aim("colluding set", _MANY), Aim("colluding set", {**_MANY, "share": 33})),
        ),
        Absent(
            "jury", "one juror decides", {"jury": 1},
            (Aim("griefing requester", {"accuses": True, "cancels": "never", "withholds": False}),),
        ),
        Absent(
            "draw-delay", "verifiers are drawn in the block after the proof", {"draw_blocks": 1},
            (Aim("dishonest leader", _MANY),),
        ),
        Absent(
            "least-fee", "a check has no least pay besides its gas", {"check_fee_min": 0},
            (Aim("lazy verifier", {"rate": 1.0, "share": 45}), Aim("price shader")),
        ),
        Absent(
            "samples", "one segment of a window is re-run", {"samples": 1},
            (
                Aim("forging worker", {**_FORGER, "segments": 0.25}),
                Aim("forging worker", {**_FORGER, "segments": 0.5}),
            ),
        ),
        Absent(
            "operators", "machines of one operator may check each other",
            aims=(Aim("sybil machines", {**_MANY, "declares": True}),), ignores_operators=True,
        ),
        Absent(
            "sponsor-seats", "machines of one sponsor may check each other",
            aims=(Aim("sponsored set", {**_MANY, "sponsors": "one"}),),
            patches=(_of("NodeRecord.parties", property(_own_parties), "registry"),),
        ),
        Absent(
            "capacity", "machines are drawn for more than they can do",
            aims=(Aim("overloading requester", {"tasks": 12}), Aim("overloading requester")),
            patches=(_of("has_room", _always, "capacity"),),
        ),
        Absent(
            "audits", "no window is audited",
            aims=(Aim("forging worker", _FORGER),),
            patches=(_of("is_hit", _never, "audits"),),
        ),
        Absent(
            "audit-chance", "windows are audited a tenth as often",
            aims=(Aim("forging worker", _FORGER), Aim("colluding set", _MANY)),
            patches=(_of("AUDIT_MARGIN", (1, 1), "audits"),),
        ),
        Absent(
            "bond-floors", "a worker's bond has no least amount besides its windows",
            aims=(Aim("forging worker", _FORGER), Aim("fund drainer")),
            patches=(_of("BOND_FLOORS", 1, "audits"),),
        ),
        Absent(
            "register", "a draw counts bonds as they are in its block",
            aims=(Aim("late bonder", _MANY), Aim("late bonder", {**_MANY, "share": 33})),
            patches=(_of("stake_as_of", _backing, "registry"),),
        ),
        Absent(
            "fund-cover", "windows on another worker's are checked whatever its bond covers",
            aims=(Aim("fund drainer", {"keys": 2}), Aim("fund drainer")),
            patches=(_of("check_limit", _endless, "settlement"),),
        ),
        Absent(
            "served-windows", "a window that a small jury could not fetch is void, and its worker keeps its bond",
            aims=(Aim("withholding worker", _HIDES), Aim("withholding worker", {**_HIDES, "answers": False})),
            patches=(
                _of("wait_for_worker", _reject_unserved, "serving"),
                _of("lose_unserved", _void_unserved, "serving"),
            ),
        ),
        Absent(
            "serving-answer", "a worker is not asked before it loses its bond to a small jury",
            aims=(Aim("griefing requester", {**_DENIES, "share": 45}), Aim("griefing requester", _DENIES)),
            patches=(_of("wait_for_worker", _lose_at_once, "serving"),),
        ),
        Absent(
            "round-time", "another round of verdicts has no time for challenges of its own",
            aims=(Aim("silent friends", {**_MANY, "way": "silent", "rate": 1.0, "watchers": 1}),),
            patches=(_of("_recheck", _recheck_in_time, "games"),),
        ),
        # Custody
        Absent(
            "custody", "no output is kept by others, and a jury decides whether a result can be fetched",
            {"custody_copies": 0},
            (Aim("griefing requester", {**_DEMANDS, "share": 33}), Aim("griefing requester", _DEMANDS)),
        ),
        Absent(
            "custody-commitment", "a proof commits to an output in custody only if its worker likes",
            aims=(Aim("hoarding worker", {**_HOARDS, "commits": False}),),
            patches=(_of("check_custody", _none, "custody"),),
        ),
        Absent(
            "other-bytes", "bytes in custody that are no state prove nothing",
            aims=(Aim("false output", {"way": "keeps", "ransom": 0.5}),),
            patches=(Patch("tasks.custody.layout", "check_mismatch", _no_chunk),),
        ),
        Absent(
            "receipts", "a window is final before custodians have signed for its output",
            aims=(Aim("garbage custodian"), Aim("idle custodian", _IDLE)),
            patches=(_of("is_held_up", _never, "custody"),),
        ),
        Absent(
            "garbage-proof", "garbage in custody proves nothing",
            aims=(Aim("garbage custodian", {"way": "keeps", "ransom": 0.5}),),
            patches=(Patch("tasks.custody.chunks", "is_garbage", _never),),
        ),
        Absent(
            "custody-bond", "a custodian locks no more than the least pay",
            {"custody_bond_bps": 0, "custody_last_bps": 0},
            aims=(Aim("idle custodian", _IDLE),),
        ),
        Absent(
            "last-bond", "the last output has the bond of any other window", {"custody_last_bps": 0},
            aims=(Aim("idle custodian", {**_IDLE, "way": "serves nobody", "serves_results": False}),),
        ),
        Absent(
            "custody-demands", "a requester can demand nothing of custodians", {"custody_demands_max": 0},
            aims=(
                Aim("idle custodian", {**_IDLE, "way": "serves nobody", "serves_results": False}),
                Aim("idle custodian", {**_IDLE, "serves_results": False}),
            ),
        ),
        Absent(
            "custody-looks", "no custodian has to show a chunk as custody ends",
            aims=(Aim("idle custodian", _IDLE),),
            patches=(Patch("tasks.custody.looks", "is_looked_at", _never),),
        ),
        Absent(
            "author-bond", "a worker's bond returns while its outputs are in custody",
            aims=(Aim("garbage custodian", {"way": "keeps"}),),
            patches=(Patch("tasks.ledger.progress", "custody_count", _nothing, is_alone=True),),
        ),
        Absent(
            "custodian-redraw", "nobody else is drawn for a custodian that does not sign",
            aims=(Aim("idle custodian", _SILENT), Aim("garbage custodian", {"way": "signs nothing"})),
            patches=tuple(
                Patch("tasks.ledger.custody", name, 2, is_alone=True) for name in ("DRAWN_MAX", "TRIED_MAX")
            ),
        ),
        Absent(
            "author-keeps", "a worker does not answer for an output that drawn machines did not sign for",
            aims=(
                Aim("idle custodian", {**_SILENT, "serves_results": False}),
                Aim("garbage custodian", {"way": "signs nothing"}),
            ),
            patches=(_of("_with_author", _as_is, "custody"),),
        ),
        Absent(
            "custody-misses", "machines without receipts are drawn all the same",
            {"custody_misses_per_day": 1 << 16},
            aims=(Aim("idle custodian", _SILENT),),
        ),
        Absent(
            "delivery-bond", "a custodian that delivers to nobody loses no bond",
            aims=(
                Aim("idle custodian", {**_IDLE, "way": "serves nobody", "serves_results": False}),
                Aim("idle custodian", _IDLE),
            ),
            patches=(_of("_lose", _as_is, "custody"),),
        ),
        Absent(
            "unkept", "an output that no custodian has stays with its worker, whose pay is held",
            aims=(Aim("hoarding worker", {**_HOARDS, "commits": True, "worth": 5.0}),),
            patches=(_of("_unkept", _kept_alone, "custody"), Patch("tasks.ledger.custody", "TRIED_MAX", 4)),
        ),
        Absent(
            "result-custodians", "one custodian is enough for a result, however many have not signed",
            aims=(
                Aim(
                    "hoarding worker",
                    {**_HOARDS, "commits": True, "last": True, "way": "keeps nothing", "worth": 3.0},
                ),
            ),
            patches=(_of("_is_result", _never, "custody"),),
        ),
        Absent(
            "sole-keeper", "who alone keeps its outputs is paid for them as for others",
            aims=(Aim("hoarding worker", {**_HOARDS, "commits": True}),),
            patches=(
                _of("_unkept", _kept_alone, "custody"),
                Patch("tasks.ledger.custody", "TRIED_MAX", 4),
                _of("sole_keeper", _no_keeper, "custody_records"),
                _of("CustodyRecord.is_kept_alone", _NO, "custody_records"),
            ),
        ),
        # Claims
        Absent(
            "claim-proof", "a claim against the inputs is believed",
            aims=(Aim("false claimer", {"rate": 1.0}),),
            patches=(Patch("tasks.claims", "check_claim", _none),),
        ),
        Absent(
            "preparation", "nothing is paid for fetching inputs",
            aims=(Aim("stray requester", {"tasks": 16, "claims": False}), Aim("griefing requester", _PREPARES)),
            patches=(_of("pay_preparation", _none, "settlement"),),
        ),
        # Matching
        Absent(
            "decline-pause", "no pause for declining", {"decline_ms": 0, "decline_doublings_max": 0},
            (Aim("griefing worker", {"place": "accept"}), Aim("ask decoys"), Aim("griefing requester")),
        ),
        Absent(
            "decline-fine", "no fine for declining without an excuse", {"decline_fine": 0},
            (Aim("griefing worker", {**_LEAVES, "place": "start"}), Aim("ask decoys", {"reason": "left"})),
        ),
        Absent(
            "cool-down", "no pause after a fault", {"cool_down_ms": 0, "cool_down_doublings_max": 0},
            (Aim("griefing worker", {"place": "compute"}), Aim("ask decoys", {"silent": True})),
        ),
        Absent(
            "complaints", "whoever cannot have the inputs of a task has a pause",
            aims=(Aim("griefing requester", {"cancels": "never", "withholds": True}), Aim("ask decoys")),
            patches=(_of("take_complaint", _never, "complaints"),),
        ),
        Absent(
            "drawn-offers", "offers always go to the lowest ask", {"offers_ranked": 64},
            (Aim("ask decoys"), Aim("griefing worker", {"price": 0.01})),
        ),
        Absent(
            "dear-draws", "a task that was left goes to a machine that asks much as to others",
            aims=(
                Aim("ask decoys", {**_DEAR, "decoys": 4, "place": "start", "reason": "inputs"}),
            ),
            patches=(_of("BOUNDED_DRAWS", 0, "calls"),),
        ),
        Absent(
            "firm-orders", "orders count at once and may leave", {"order_blocks": 0},
            (Aim("auction shader", {"cancels": "assigned"}), Aim("auction shader", {"cancels": "matching"})),
        ),
        Absent("calls", "each block has a call", {"call_ms": 0}, (Aim("auction shader"),)),
        Absent(
            "price-bound", "a match may cost more than an ask that is left free",
            aims=(Aim("auction shader"), Aim("auction shader", {"limit": 1.0, "decoys": 8})),
            patches=(_of("_Call._spare", _limit, "auction"),),
        ),
        Absent(
            "kill-fee", "nothing for a worker whose task is cancelled", {"kill_fee_bps": 0},
            (Aim("griefing requester", {"cancels": "running", "accuses": False, "demands": False}),),
        ),
        # Disputes
        Absent(
            "silence-burn", "silence in a game costs nothing", {"dispute_silence_bps": 0},
            (Aim("cornered liar", {**_ALONE, "escape": "silent"}),),
        ),
        Absent(
            "proofs-first", "what voids a window comes before proofs of a lie in the same block",
            aims=(Aim("cornered liar", {**_ALONE, "escape": "unopened"}), Aim("cornered liar", _ALONE)),
            patches=(_of("void_window", _void, "games"),),
        ),
        Absent(
            "reruns", "after a silence nobody runs segments again",
            aims=(
                Aim("cornered liar", {**_ALONE, "escape": "silent"}),
                Aim("cornered liar", {**_ALONE, "escape": "unopened"}),
            ),
            patches=(_of("_run_again", _void_silent, "games"),),
        ),
        Absent(
            "equal-slash", "agreeing with a proven lie costs nothing", {"dispute_equal_fees": 0},
            (Aim("cornered liar", {**_ALL, "escape": "plays", "share": 45}), Aim("briber", {**_ALL, "share": 10})),
        ),
        Absent(
            "resume-price", "resuming a game costs nothing", {"dispute_resume_bps": 0},
            (
                Aim("freezing challenger", {"way": "resumes", "rate": 1.0}),
                Aim("cornered liar", {**_ALONE, "escape": "resumes"}),
            ),
        ),
        Absent(
            "resumption", "who misses a clock of a game cannot resume it", {"dispute_resume_ms": 1},
            (Aim("line cutter", {"at": "game", "minutes": 4}),),
        ),
        Absent(
            "challenge-bond", "a challenge of an outsider locks nothing",
            aims=(Aim("freezing challenger", {"by": "outsider", "rate": 1.0}),),
            patches=(Patch("tasks.dispute.shares", "challenge_bond", _nothing),),
        ),
        Absent(
            "challenge-price", "further challenges on a window cost no more",
            aims=(Aim("freezing challenger", {"by": "outsider", "rate": 1.0, "seals": 16}),),
            patches=(Patch("tasks.dispute.shares", "CHALLENGES_PER_DOUBLING", 1 << 30),),
        ),
        Absent(
            "false-verdict", "a verifier that loses its game keeps its bond",
            aims=(Aim("freezing challenger", {"by": "verifier", "rate": 1.0, "share": 45}),),
            patches=(Patch("tasks.ledger.stakes", "CHALLENGE_BPS", 0, is_alone=True),),
        ),
        Absent(
            "fitting-leaves", "nobody looks whether the leaves of a window fit",
            aims=(Aim("torn window", {**_ALONE, "honest_first": 0}),),
            patches=(
                Patch("tasks.proofs", "find_break", _none), Patch("tasks.proofs", "opening_fits", _always),
            ),
        ),
        Absent(
            "shown-break", "who shows leaves that do not fit gets as much as who found a root",
            aims=(Aim("torn window", {**_ALONE, "honest_first": 0, "shows": True}),),
            patches=(Patch("tasks.ledger.stakes", "WITNESS_BPS", 1_000, is_alone=True),),
        ),
        Absent(
            "standing-verdict", "a window is accepted without a verdict that stands",
            aims=(Aim("silent friends", {**_MANY, "way": "silent", "rate": 1.0}),),
            patches=(_of("has_verdict", _always, "seats"),),
        ),
        Absent(
            "challenge-time", "windows are final at once", {"final_ms": 1, "final_ms_min": 1},
            (Aim("slot flooder", {**_ALL, "share": 45, "seals": 1}),),
        ),
        # Groups
        Absent(
            "spares", "no spare is called to a seat that has lost its machine",
            aims=tuple(Aim("seat breaker", {**_BREAKS, "silent": silent}) for silent in (False, True)),
            patches=(_of("_call_spares", _none, "groups"),),
        ),
        Absent(
            "barred-seats", "a machine that has lost a seat of a group may have another one of it",
            aims=(Aim("seat breaker", {"place": "compute", "machines": 5, "silent": False, "cost": 0.5}),),
            patches=(_of("barred_of", _nobody, "group_records"),),
        ),
        Absent(
            "standby-hold", "a spare keeps what it has earned if it leaves when it is called",
            aims=(Aim("false spare", _CALLED),),
            patches=(Patch("tasks.ledger.progress", "forfeit_hold", _none, is_alone=True),),
        ),
        Absent(
            "spare-word", "a spare is paid for saying that it has prepared",
            aims=(Aim("false spare", {"way": "unprepared", "breaks": False, "cost": 0.5}),),
            patches=(_of("_earned", _with_preparation, "groups"),),
        ),
        # Containers
        Absent(
            "burnt-seconds", "a machine whose checkpoint is refused is paid what waits",
            aims=(
                Aim("idle host", {"works": 0.0, "fakes": True, "stored": "stale", "every": 4}),
                Aim("leaving host", {"stored": "nothing", "every": 4}),
            ),
            patches=(_of("refuse_stored", _pay_refused, "refusals"),),
        ),
        Absent(
            "refused-end", "pay that waits is due as the container ends",
            aims=(Aim("idle host", {"works": 0.9, "fakes": True, "stored": "real", "exits": True, "every": 4}),),
            patches=(_of("leave_to_requester", _pay_at_end, "checkpoints"),),
        ),
        Absent(
            "refused-after", "pay of a machine that has left is due as the next one starts",
            aims=(Aim("leaving host", {"way": "names and leaves", "stored": "stale", "every": 4}),),
            patches=(
                _of("begin_run", _pay_at_start, "checkpoints"),
                _of("REFUSED_IN", frozenset({Phase.RUNNING}), "refusals"),
            ),
        ),
        Absent(
            "refused-machine", "a machine that has left is refused by the name of its checkpoint alone",
            aims=(Aim("leaving host", {"way": "names and leaves", "stored": "unstorable", "every": 4}),),
            patches=(_of("_refused", _by_name, "refusals"),),
        ),
        Absent(
            "preparation-waits", "a preparation is paid with the first seconds",
            aims=(Aim("leaving host", {"after": 0, "way": "gives up", "stored": "nothing", "mount": 4.0}),),
            patches=(_of("prepare_run", _prepared_at_once, "checkpoints"),),
        ),
        Absent(
            "first-seat", "the first seat of a quorum takes the lowest ask",
            aims=(
                Aim("quorum friends", {"share": 20, "lies": "paired", "waits": 1.0, "sponsors": "none"}),
            ),
            patches=(_of("_Call._bid_of_quorum", _lowest_first, "calls"),),
        ),
        # Speed trials
        Absent(
            "trials", "a claimed speed is believed", {"trial_ms": 0},
            (Aim("speed liar", {**_FAST, "share": 20, "forges": False}),),
            (_of("check_measured", _none, "settlement"),),
        ),
        Absent(
            "trial-checks", "nobody checks the links of a speed trial",
            aims=(Aim("speed liar", {**_FAST, "share": 20, "forges": True}),),
            patches=(Patch("tasks.ledger.trials", "CHECKS_MAX", 0, is_alone=True),),
        ),
        Absent(
            "trial-answers", "one answer of a verifier decides a speed trial",
            aims=(Aim("trial denier", {"share": 33, "cost": 0.5}),),
            patches=(Patch("tasks.ledger.trials", "ANSWERS_NEEDED", 1, is_alone=True),),
        ),
        Absent(
            "trial-rounds", "machines are tried one by one, never together", {"trial_first_ms": 0},
            (Aim("shared device", _ONE_DEVICE),),
            (Patch("tasks.ledger.trials", "_go_round", _no_machines, is_alone=True),),
        ),
        Absent(
            "first-trials", "the rate of a trial alone counts until the first round", {"trial_first_ms": 0},
            (Aim("shared device", {**_ONE_DEVICE, "blocks": 1_050}),),
        ),
        Absent(
            "copies", "a root that was public earns a share of the liar's bond",
            aims=(Aim("challenge copier", {**_ALONE, "escape": "plays"}),),
            patches=(_of("_is_copy", _never, "games"),),
        ),
    )
}  # fmt: skip
"""Rules by name."""
