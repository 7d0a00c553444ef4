"""Records of the state: whatever bytes stand in the place of one, its loader reads them or names the damage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from billing.escrow import Pool, _line, _record, _share, add_earnings, earnings_of
from billing.prices import Role
from state.primitives.codec import Value, encode
from state.primitives.committee import Committee
from state.transition import epochs, jail, slashing, staking
from state.transition.jail import JailRecord
from state.transition.slashing import SlashRecord
from state.transition.staking import StakeRecord
from state.view import Overlay, Reader, Table
from state.view.accounts import Account, issued, load_account, save_account, set_issued
from tasks.custody.chunks import BlobCommitment
from tasks.dispute.clock import Clock
from tasks.dispute.game import Side
from tasks.kinds.container import ExitKind
from tasks.ledger import (
    calls,
    carriage,
    checkpoint_records,
    claims,
    custody_records,
    disputes,
    group_records,
    meter_records,
    quorum_records,
    records,
    registration,
    registry,
    tampering,
    trials,
)
from tasks.ledger.jobs import JobSizes
from tasks.ledger.lifecycle import Reason
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.records import HistoryEntry, JobReport, Opened, Seat, TaskRecord, WindowRecord
from tasks.ledger.registry import NodeProfile, NodeRecord
from tasks.proofs import Finding, WindowProof
from tests.state.transition.chain import Memory

WHO = b"w" * 20
TASK = b"t" * 32
CUSTODY = custody_records.CustodyRecord(
    TASK, 3, WHO, custody_records.CustodyPhase.KEPT, BlobCommitment(40_000, b"p" * 32, b"c" * 32), 7, 5, 1, 0,
    9_000, 0, 3, (b"v" * 20,), (custody_records.Holder(b"h" * 20, 5, 1_000, 1, 0),), (b"u" * 20, b"h" * 20),
    custody_records.Demand(
        custody_records.DemandKind.DELIVERY, b"h" * 20, 9, 2, 4, -1, b"r" * 20, 1, 8_000, (b"r" * 20,)
    ),
    b"",
)  # fmt: skip


@dataclass(frozen=True)
class StateRecord:
    """``save`` writes one, ``load`` reads it and all that is listed with it; ``covers`` is as of a target."""

    save: Callable[[Overlay], object]
    load: Callable[[Reader], object]
    covers: tuple[str, ...]

    def sample(self) -> tuple[bytes, bytes]:
        """Return key and value of the record: the longest of what was written."""
        state = Overlay(Memory({}))
        self.save(state)
        return max(((key, value) for key, value in state.changes.items() if value), key=lambda item: len(item[1]))

    def reader(self) -> Callable[[bytes], None]:
        """Return what loads bytes in the place of the record."""
        key = self.sample()[0]

        def run(data: bytes) -> None:
            self.load(Memory({key: data}))

        return run


def _plain(record: type[Any], **given: Any) -> Any:
    """Return a record of small values of the right types."""

    def value(kind: Any) -> Any:
        if kind is bytes:
            return b"x" * 32
        return next(iter(kind)) if hasattr(kind, "__members__") else 1 if kind is int else ()

    return record(**{name: given.get(name, value(kind)) for name, kind in get_type_hints(record).items()})


def _list(load: Callable[[Reader], object], list_all: Callable[[Reader], object]) -> Callable[[Reader], object]:
    return lambda state: (load(state), list_all(state))


def _freeze(state: Overlay) -> None:
    entry: list[Value] = [WHO, b"v" * 32, b"d" * 32, 7]
    state.put(epochs._FROZEN + b"\0", encode([entry, entry]))


def state_records(
    committee: Committee, profile: NodeProfile, proof: WindowProof, findings: tuple[Finding, ...], spec: bytes
) -> dict[str, StateRecord]:
    """Return every kind of record, by name."""
    window = _plain(
        WindowRecord, task=TASK, number=3, proof=proof, sampled=(1, 2), used=(WHO,), missed=(1,),
        verifiers=(Seat(WHO, b"", None), Seat(WHO, b"s" * 32, findings)),
        opened=(Opened(1, b"b" * 32, b"s" * 32, b"p" * 32, 7),),
    )  # fmt: skip
    task = _plain(TaskRecord, id=TASK, excluded=(WHO, WHO), group=b"g" * 33, sizes=JobSizes(9, 8, 7, 6, 5))
    where = "state.transition."
    return {
        "account": StateRecord(
            lambda state: save_account(state, WHO, Account(3, 5)),
            lambda state: load_account(state, WHO),
            ("state.view.accounts:load_account",),
        ),
        "amount": StateRecord(lambda state: set_issued(state, 7), issued, ("state.view.accounts:_load_amount",)),
        "stake": StateRecord(
            lambda state: staking.save_stake(state, WHO, StakeRecord(5, b"v" * 32, b"d" * 32, 1)),
            _list(lambda state: staking.load_stake(state, WHO), staking.list_stakes),
            (
                where + "staking:load_stake",
                where + "staking:list_stakes",
                where + "staking:_stake_record",
                "state.view.records:read_record",
            ),
        ),
        "committee": StateRecord(
            lambda state: staking.save_committee(state, 4, committee),
            lambda state: staking.load_committee(state, 4),
            (where + "staking:load_committee", where + "staking:_committee"),
        ),
        "jail": StateRecord(
            lambda state: jail.save_jail(state, WHO, JailRecord(7, 2)),
            _list(lambda state: jail.load_jail(state, WHO), jail.list_jails),
            (where + "jail:load_jail", where + "jail:list_jails"),
        ),
        "slash": StateRecord(
            lambda state: slashing._save_slash(state, WHO, SlashRecord(1, 2, 3, 4, 5, 6, 7, 8, 9, WHO)),
            _list(lambda state: slashing.load_slash(state, WHO), lambda s: slashing.list_slashes(s, limit=9)),
            (where + "slashing:load_slash", where + "slashing:list_slashes"),
        ),
        "tally": StateRecord(
            lambda state: epochs._save_tally(state, 4, epochs._new_tally(committee, b"r" * 32)),
            lambda state: epochs.load_tally(state, 4),
            (where + "epochs:load_tally",),
        ),
        "epoch of the state": StateRecord(
            lambda state: epochs._save_record(state, 4, epochs._Record(b"r" * 32, 1, 2)),
            lambda state: epochs._load_record(state, 4),
            (where + "epochs:_load_record",),
        ),
        "frozen stakes": StateRecord(_freeze, epochs._load_frozen, (where + "epochs:_load_frozen",)),
        "node of the market": StateRecord(
            lambda state: registry.save_node(
                state, _plain(NodeRecord, address=WHO, profile=profile, payout=b"p" * 20, sponsor=b"s" * 20)
            ),
            _list(lambda state: registry.load_node(state, WHO), lambda s: registry.scan_nodes(s, b"", 9)),
            (
                "tasks.ledger.registry:load_node",
                "tasks.ledger.registry:_record",
                "tasks.ledger.registry:read_node",
            ),
        ),
        "record of a retired node": StateRecord(
            lambda state: registration._save_past(
                state, _plain(NodeRecord, address=WHO, profile=profile, payout=b"p" * 20, sponsor=b"s" * 20)
            ),
            lambda state: registration._load_past(state, WHO),
            ("tasks.ledger.registration:_load_past",),
        ),
        "task": StateRecord(
            lambda state: records.save_task(state, task),
            lambda state: records.load_task(state, TASK),
            ("tasks.ledger.records:load_task",),
        ),
        "specification of a task": StateRecord(
            lambda state: records.save_spec(state, TASK, spec),
            lambda state: records.load_job(state, task),
            (
                "tasks.ledger.records:load_job",
                "tasks.ledger.records:load_spec",
                "tasks.ledger.records:load_spec_bytes",
            ),
        ),
        "window": StateRecord(
            lambda state: records.save_window(state, window),
            lambda state: records.load_window(state, TASK, 3),
            ("tasks.ledger.records:load_window",),
        ),
        "docket": StateRecord(
            lambda state: disputes.save_docket(
                state, TASK, 3, disputes.Docket(4, 1, 6, 2, 5, ((4, 1_000),), (1, 3), 2_000, 1, (2,), 3, 2)
            ),
            lambda state: disputes.load_docket(state, TASK, 3),
            ("tasks.ledger.disputes:load_docket", "tasks.ledger.disputes:_docket"),
        ),
        "terms of custody": StateRecord(
            lambda state: custody_records.save_terms(
                state, TASK, custody_records.Terms(b"k" * 32, 1, 3, 10, 7, 21, 3, 1, 2)
            ),
            lambda state: custody_records.find_terms(state, TASK),
            ("tasks.ledger.custody_records:find_terms", "tasks.ledger.custody_records:_terms"),
        ),
        "input in custody": StateRecord(
            lambda state: custody_records.save_input(state, TASK, CUSTODY.blob),
            lambda state: custody_records.find_input(state, TASK),
            ("tasks.ledger.custody_records:find_input", "tasks.ledger.custody_records:_blob"),
        ),
        "custody": StateRecord(
            lambda state: custody_records.save_custody(state, CUSTODY, 5),
            lambda state: custody_records.find_custody(state, TASK, 3),
            tuple(
                f"tasks.ledger.custody_records:{name}"
                for name in ("find_custody", "load_custody", "_custody", "_addresses", "_demand")
            ),
        ),
        "hand-overs": StateRecord(
            lambda state: custody_records.count_hand_over(state, WHO, 7, is_done=True),
            lambda state: custody_records.is_unreliable(state, WHO, 7, TaskParameters()),
            tuple(f"tasks.ledger.custody_records:{name}" for name in ("_hand_overs", "_numbers", "is_unreliable")),
        ),
        "dispute": StateRecord(
            lambda state: disputes.save_dispute(
                state,
                _plain(
                    disputes.DisputeRecord,
                    task=TASK,
                    window=3,
                    number=1,
                    challenger=WHO,
                    clock=Clock(Side.CHALLENGER, 5, 6, 7),
                    opened=Opened(1, b"b" * 32, b"s" * 32, b"p" * 32, 7),
                ),
            ),
            lambda state: disputes.load_dispute(state, TASK, 3, 1),
            ("tasks.ledger.disputes:load_dispute", "tasks.ledger.disputes:_dispute"),
        ),
        "sealed challenge": StateRecord(
            lambda state: disputes.save_seal(state, TASK, 3, 1, disputes.SealedChallenge(WHO, TASK, 5, 1, 1)),
            lambda state: disputes.load_seal(state, TASK, 3, 1),
            ("tasks.ledger.disputes:load_seal", "tasks.ledger.disputes:_seal"),
        ),
        "history": StateRecord(
            lambda state: records.append_history(state, TASK, _plain(HistoryEntry, number=0)),
            lambda state: records.load_history(state, TASK),
            ("tasks.ledger.records:load_history",),
        ),
        "report on a job": StateRecord(
            lambda state: records.save_report(state, TASK, _plain(JobReport)),
            lambda state: records.load_report(state, TASK),
            ("tasks.ledger.records:load_report",),
        ),
        "claim against a task": StateRecord(
            lambda state: claims.save_claim(
                state, TASK, claims.UpheldClaim(Reason.INPUT_INVALID, 4, (1, 2, 1 << 34), 1 << 35)
            ),
            lambda state: claims.load_claim(state, TASK),
            ("tasks.ledger.claims:load_claim",),
        ),
        "meter of a container": StateRecord(
            lambda state: meter_records.save_meter(
                state,
                TASK,
                meter_records.MeterRecord(
                    600,
                    10**18,
                    1_000,
                    60,
                    9_000,
                    meter_records.ContainerEnd(ExitKind.EXITED, 3, b"o" * 32, 10_240, b"l" * 32, 7, b"w" * 20),
                ),
            ),
            lambda state: meter_records.load_meter(state, TASK),
            ("tasks.ledger.meter_records:load_meter",),
        ),
        "checkpoints of a container": StateRecord(
            lambda state: checkpoint_records.save_checkpoints(
                state,
                TASK,
                checkpoint_records.Checkpoints(
                    9_000,
                    checkpoint_records.Stored(b"l" * 32, 10_240, 60, b"w" * 20),
                    checkpoint_records.Stored(b"", 0, 30, b"w" * 20),
                    checkpoint_records.Stored(b"b" * 32, 10_240, 20, b"v" * 20),
                    30,
                    10**17,
                    30,
                    10**16,
                    10**15,
                    3,
                    1,
                    1,
                    (b"w" * 20, b"v" * 20),
                    2,
                    (checkpoint_records.Run(b"w" * 20, 60, 5),),
                ),
            ),
            lambda state: checkpoint_records.load_checkpoints(state, TASK),
            ("tasks.ledger.checkpoint_records:load_checkpoints",),
        ),
        "quorum of a container": StateRecord(
            lambda state: quorum_records.save_quorum(
                state,
                quorum_records.QuorumRecord(
                    TASK,
                    quorum_records.QuorumPhase.SHOWING,
                    5_000,
                    9_000,
                    0,
                    0,
                    b"r" * 32,
                    tuple(
                        quorum_records.QuorumSeat(
                            quorum_records.SeatState.REVEALED, bytes([at]) * 20, b"s" * 32, b"r" * 32, 605
                        )
                        for at in range(quorum_records.SEATS)
                    ),
                ),
            ),
            lambda state: quorum_records.load_quorum(state, TASK),
            ("tasks.ledger.quorum_records:load_quorum",),
        ),
        "prices of calls": StateRecord(
            lambda state: state.put(
                bytes([Table.CALL]) + b"\0\3\1", encode([[1_000, 2, 10**16, 10**16, 10**17]] * 2)
            ),
            lambda state: calls.last_prices(state, b"\0\3\1"),
            ("tasks.ledger.calls:last_prices",),
        ),
        "last call": StateRecord(
            lambda state: state.put(bytes([Table.CALL]), encode([1_000])),
            lambda state: calls.bids_due(state, 10_000, TaskParameters()),
            ("tasks.ledger.calls:_last_call_ms",),
        ),
        "group": StateRecord(
            lambda state: group_records.save_group(
                state,
                group_records.GroupRecord(
                    TASK,
                    WHO,
                    b"s" * 32,
                    group_records.GroupPhase.PAUSED,
                    Reason.NO_REPLACEMENT,
                    1,
                    2,
                    3,
                    4,
                    5,
                    8,
                    1,
                    9,
                    100,
                    1,
                    1,
                    2,
                    1,
                    30,
                    1,
                    0,
                    0,
                    0,
                    (group_records.GroupChange(3, 4, group_records.GroupPhase.PAUSED, Reason.NO_REPLACEMENT),),
                ),
            ),
            lambda state: group_records.load_group(state, TASK),
            ("tasks.ledger.group_records:load_group", "tasks.ledger.group_records:_record"),
        ),
        "speed trial": StateRecord(
            lambda state: state.put(
                bytes([Table.TRIAL]) + WHO,
                encode(
                    [
                        [b"s" * 32, b"r" * 32, b"l" * 32, b"b" * 128, [b"v" * 20] * 2, [b"w" * 32]],
                        [4, 9, 1_000, 2_000, 64, 30, 10_000, 10**9, 900, 1, 3, 10**8, 800, 2, 2, 10**7, 700],
                    ]
                ),
            ),
            lambda state: trials.find_trial(state, WHO),
            ("tasks.ledger.trials:find_trial", "tasks.ledger.trials:_trial"),
        ),
        "report of tampering": StateRecord(
            lambda state: state.put(bytes([Table.NODE_TAMPER]) + WHO, encode([6, TASK, 1_000, 90_000, 2])),
            lambda state: tampering.load_tamper(state, WHO),
            ("tasks.ledger.tampering:load_tamper",),
        ),
        "round of speed trials": StateRecord(
            lambda state: state.put(bytes([Table.TRIAL]), encode([b"s" * 32, 3, 1 << 60])),
            trials.find_round,
            ("tasks.ledger.trials:find_round", "tasks.ledger.trials:_round"),
        ),
        "rounds of speed trials that are over": StateRecord(
            lambda state: state.put(bytes([Table.TRIAL]) + b"\x00", encode([7])),
            trials.rounds_over,
            ("tasks.ledger.trials:rounds_over",),
        ),
        "call that was put off": StateRecord(
            lambda state: calls.put_off(state, 7),
            lambda state: calls.was_put_off(state, 8),
            ("tasks.ledger.calls:was_put_off",),
        ),
        "escrow": StateRecord(
            lambda state: state.put(b"e", encode([WHO, 1, 5, 1, 1, 0, [3, *[0] * (len(Pool) - 1)]])),
            lambda state: _record(state.get(b"e") or b""),
            ("billing.escrow:_record",),
        ),
        "share of an escrow": StateRecord(
            lambda state: state.put(b"share", encode(5)),
            lambda state: _share(state.get(b"share") or b""),
            ("billing.escrow:_share", "billing.escrow:_share_of"),
        ),
        "line of a bill": StateRecord(
            lambda state: state.put(b"bill", encode([1, 1, 1, 1, WHO, 5, None])),
            lambda state: _line(bytes(4), state.get(b"bill") or b""),
            ("billing.escrow:_line", "billing.escrow:_line_of"),
        ),
        "earnings": StateRecord(
            lambda state: add_earnings(state, WHO, Role(1), 5),
            lambda state: earnings_of(state, WHO),
            ("billing.escrow:earnings_of",),
        ),
        "carriage": StateRecord(
            lambda state: carriage._save(state, WHO, WHO, carriage._Record(b"c" * 32, 1, 2, 3, 4, 5, 6)),
            lambda state: carriage._load(state, WHO, WHO),
            ("tasks.ledger.carriage:_record", "tasks.ledger.carriage:_load"),
        ),
        "deposit for carriage": StateRecord(
            lambda state: carriage._save_deposit(state, WHO, carriage.NO_DEPOSIT, carriage.Deposit(5, 3, 7)),
            _list(
                lambda state: carriage.deposit_of(state, WHO),
                lambda state: carriage._held(state.get(bytes([Table.CARRIAGE]) + WHO) or encode([b"none"])),
            ),
            ("tasks.ledger.carriage:_deposit", "tasks.ledger.carriage:_held"),
        ),
    }
