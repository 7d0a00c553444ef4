"""Ethereum's forms and the native one say the same: the same payload, so the same state, events and fee."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, ClassVar, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.relay import Receipt
from node.chain.runtime import make_runtime
from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError, InvalidTransaction
from state.primitives.receipts import decode_receipt
from state.primitives.transactions import (
    CALL_KIND,
    DYNAMIC_FORM,
    NATIVE_FORM,
    TRANSACTION_LIMIT_BYTES,
    Transaction,
    decode_transaction,
)
from state.transition.calls import NOTE_LIMIT_BYTES, CallForm
from state.transition.errors import CallRefused, InvalidPayload, UnknownKind
from state.transition.runtime import Runtime
from state.transition.staking import (
    STAKE_KIND,
    STAKING_ADDRESS,
    UNSTAKE_KIND,
    begin_withdrawals,
    stake_payload,
    unstake_payload,
)
from state.transition.transfer import TRANSFER_GAS, TRANSFER_KIND
from state.view import Overlay
from state.view.accounts import Account, balance_of, save_account
from tasks.claims import Fault, claim_to_value
from tasks.custody.inputs import find_plain_fault, plain_claim_to_value
from tasks.kinds.container import SECONDS_MAX
from tasks.ledger import proving
from tasks.ledger.bonds import SET_TERMS, SPONSOR_NODE, WITHDRAW_SPONSOR
from tasks.ledger.carriage import FUND_CARRIAGE, SETTLE_CARRIAGE, WITHDRAW_CARRIAGE
from tasks.ledger.checkpoint_transitions import CHECKPOINT_TASK, MISS_CHECKPOINT
from tasks.ledger.claim_transitions import CLAIM_DIVERGED, CLAIM_INPUT
from tasks.ledger.custody_transitions import (
    ANSWER_DEMAND,
    ASK_CUSTODY,
    CLAIM_GARBAGE,
    CLAIM_KEYED,
    CLAIM_PLAIN,
    DEMAND_CUSTODY,
    END_CUSTODY,
    KEEP_INPUT,
    RECEIVE_CUSTODY,
    REVEAL_GARBAGE,
    REVEAL_MISMATCH,
    TAKE_CUSTODY,
)
from tasks.ledger.dispute_transitions import MOVE, OPEN_CHALLENGE, RESUME_DISPUTE, SEAL_CHALLENGE, SHOW_BREAK
from tasks.ledger.disputes import DisputePhase, load_dispute
from tasks.ledger.group_transitions import ADD_SEATS, CANCEL_GROUP, CREATE_GROUP
from tasks.ledger.lifecycle import ENDED, Phase, Reason
from tasks.ledger.metering_transitions import FINISH_TASK, METER_TASK
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.queries import Action
from tasks.ledger.quorum_transitions import REVEAL_OUTPUT, SEAL_OUTPUT
from tasks.ledger.records import load_window
from tasks.ledger.registry import NodeRole
from tasks.ledger.serving_transitions import SERVE_WINDOW
from tasks.ledger.settlement import delivery_fees
from tasks.ledger.tampering import REPORT_TAMPERING
from tasks.ledger.transitions import (
    ACCEPT_TASK,
    CANCEL_TASK,
    CREATE_TASK,
    DECLINE_SEAT,
    DEMAND_RESULT,
    GIVE_UP_TASK,
    HEARTBEAT,
    OPEN_WINDOW,
    POKE,
    REGISTER_NODE,
    RESUME_TASK,
    RETIRE_NODE,
    REVEAL_VERDICT,
    SEAL_VERDICT,
    SET_PAYOUT,
    START_TASK,
    SUBMIT_WINDOW,
    SUSPEND_NODE,
    TOP_UP_TASK,
    UPDATE_NODE,
    node_payload,
)
from tasks.ledger.trial_transitions import ASK_TRIAL, COMMIT_TRIAL, JUDGE_TRIAL, SHOW_TRIAL
from tasks.programs.divergence import Divergence
from tasks.proofs import (
    Break,
    Code,
    Finding,
    ShownLeaf,
    break_to_value,
    findings_to_value,
    opening_to_value,
    window_proof_to_value,
)
from tasks.spec import encode_spec
from tests.ethereum import sign_dynamic, sign_legacy
from tests.state.transition.chain import CHAIN_ID, COIN, FEE, USERS, Ledger, genesis, signed
from tests.tasks import containers, groups, quorums
from tests.tasks.keepers import KEPT, KeptWorld
from tests.tasks.ledger.test_carriage import GENESIS_HASH, RELAY, WORKER, Market, receipt
from tests.tasks.ledger.test_trials import TRIALS, play_trials
from tests.tasks.strays import CLAIM, STRAY, crooked_job, stray_job
from tests.tasks.test_codecs import OPENING, PROFILE
from tests.tasks.toywork import diverging_root
from tests.tasks.world import QUICK, REQUESTER, Manners, World, leaves_of, proof_of, spec

RUNTIME = make_runtime(genesis())
ALICE, BOB = USERS[:2]
TASK = b"t" * 32
BROKEN = Break(2, ShownLeaf(b"leaf", (b"s" * 32,)), ShownLeaf(b"before", (b"s" * 32,)))
amounts = st.integers(0, 1000 * COIN)
hashes = st.binary(min_size=32, max_size=32)
windows = st.integers(0, 2**32 - 1)
outputs = st.integers(0, 9_999)
chunks = st.builds(lambda content, h: [1, content, [h], h, [h]], st.binary(min_size=1, max_size=99), hashes)
sizes = st.integers(0, 2**62)
CARRIED = Receipt(b"g" * 32, b"r" * 20, b"p" * 20, b"c" * 32, 1, 1, 1, 10**16, 2)


def proof_value(task: bytes, window: int, diverged: Divergence | None = None) -> Value:
    job = spec()
    proof = proof_of(job, task, window % job.windows, leaves_of(job, 0, b"r" * 32))
    return window_proof_to_value(proof._replace(diverged=diverged))


DIVERGENCE = Divergence(7, 99, 1, 2, b"b" * 32)


KINDS: dict[int, st.SearchStrategy[list[Any]]] = {
    TRANSFER_KIND: st.builds(lambda value: [BOB.address, value], amounts),
    STAKE_KIND: st.builds(
        lambda amount: stake_payload(
            amount, ALICE, genesis_hash=RUNTIME.genesis_hash, address=ALICE.address
        ),
        amounts,
    ),
    UNSTAKE_KIND: st.builds(unstake_payload, st.integers(1, COIN)),
    REGISTER_NODE: st.builds(lambda bond: node_payload(PROFILE, bond), amounts),
    UPDATE_NODE: st.builds(lambda bond: node_payload(PROFILE, bond), amounts),
    RETIRE_NODE: st.just([]),
    SUSPEND_NODE: st.just([]),
    HEARTBEAT: st.just([]),
    CREATE_TASK: st.builds(lambda match_ms: [encode_spec(spec(match_ms=match_ms))], st.integers(1, 10**6)),
    CANCEL_TASK: st.builds(lambda task: [task], hashes),
    ACCEPT_TASK: st.builds(lambda task, amount: [task, amount], hashes, amounts),
    START_TASK: st.builds(lambda task, machine: [task, machine], hashes, hashes),
    SUBMIT_WINDOW: st.builds(lambda task, window: [proof_value(task, window)], hashes, windows),
    SEAL_VERDICT: st.builds(lambda task, window, seal: [task, window, seal], hashes, windows, hashes),
    REVEAL_VERDICT: st.builds(
        lambda task, window, nonce: [
            task, window, findings_to_value((Finding(3, Code.COMPUTED, b"p" * 32, b"e" * 32, 7),)), nonce,
        ],
        hashes, windows, hashes,
    ),
    CLAIM_INPUT: st.builds(
        lambda task, number: [claim_to_value(CLAIM._replace(task=task, size=number))], hashes, windows
    ),
    CLAIM_DIVERGED: st.builds(lambda task, window: [proof_value(task, window, DIVERGENCE)], hashes, windows),
    SET_PAYOUT: st.builds(lambda payout: [ALICE.address, payout], st.binary(min_size=20, max_size=20).filter(any)),
    DECLINE_SEAT: st.builds(lambda task, window: [task, window], hashes, windows),
    MOVE: st.builds(
        lambda task, window, number, move: [task, window, number, number, move],
        hashes, windows, windows, st.binary(min_size=1, max_size=99),
    ),
    SEAL_CHALLENGE: st.builds(
        lambda task, window, seal, bond: [task, window, seal, bond], hashes, windows, hashes, amounts
    ),
    OPEN_CHALLENGE: st.builds(
        lambda task, window, challenge, root, salt: [task, window, challenge, 3, root, root, 5, salt],
        hashes, windows, windows, hashes, hashes,
    ),
    RESUME_DISPUTE: st.builds(
        lambda task, window, game, amount: [task, window, game, amount], hashes, windows, windows, amounts
    ),
    SHOW_BREAK: st.builds(lambda task, window: [task, window, *break_to_value(BROKEN)], hashes, windows),
    ASK_CUSTODY: st.builds(
        lambda task, inputs, amount: [task, task, inputs, amount], hashes, st.integers(0, 64), amounts
    ),
    TAKE_CUSTODY: st.builds(lambda task, window, bond: [task, window, bond], hashes, outputs, amounts),
    DEMAND_CUSTODY: st.builds(
        lambda task, window, amount: [task, window, BOB.address, amount], hashes, outputs, amounts
    ),
    ANSWER_DEMAND: st.builds(lambda task, window, chunk: [task, window, chunk], hashes, outputs, chunks),
    RECEIVE_CUSTODY: st.builds(lambda task, window: [task, window], hashes, outputs),
    REVEAL_GARBAGE: st.builds(
        lambda task, window, key, chunk: [task, window, key, [3, 9, [key]], chunk], hashes, outputs, hashes, chunks
    ),
    REVEAL_MISMATCH: st.builds(
        lambda task, window, h: [task, window, [1, h, [h]], [2, h, [h], 3, h, [h]]], hashes, outputs, hashes
    ),
    METER_TASK: st.builds(lambda task, seconds: [task, seconds], hashes, st.integers(0, SECONDS_MAX)),
    FINISH_TASK: st.builds(
        lambda task, seconds, code: [task, seconds, [1, code, task, 5, b"", 0]], hashes,
        st.integers(0, SECONDS_MAX), st.integers(0, 255),
    ),
    CHECKPOINT_TASK: st.builds(
        lambda task, seconds, has: [task, seconds, task * has, 5 * has], hashes, st.integers(1, SECONDS_MAX),
        st.integers(0, 1),
    ),
    MISS_CHECKPOINT: st.builds(lambda task, blob: [task, blob], hashes, hashes),
    REPORT_TAMPERING: st.builds(lambda task, sign: [task, sign], hashes, st.integers(1, 8)),
    SEAL_OUTPUT: st.builds(lambda task, seconds: [task, seconds, task], hashes, st.integers(0, SECONDS_MAX)),
    REVEAL_OUTPUT: st.builds(lambda task, salt: [task, task, salt], hashes, hashes),
    SERVE_WINDOW: st.builds(lambda task, window: [task, window], hashes, windows),
    CREATE_GROUP: st.builds(
        lambda match_ms, members: [encode_spec(spec(match_ms=match_ms)), members, 1],
        st.integers(1, 10**6), st.integers(1, 64),
    ),
    ADD_SEATS: st.builds(
        lambda group, root, amount: [group, [root, b""], amount], hashes, hashes, amounts
    ),
    CANCEL_GROUP: st.builds(lambda group: [group], hashes),
    ASK_TRIAL: st.just([]),
    COMMIT_TRIAL: st.builds(lambda root, amount: [9, root, amount], hashes, amounts),
    SHOW_TRIAL: st.builds(lambda before, after: [[[3, before, after, [after], []]]], hashes, hashes),
    JUDGE_TRIAL: st.builds(lambda result: [ALICE.address, [result]], hashes),
    END_CUSTODY: st.builds(lambda task, window: [task, window], hashes, outputs),
    KEEP_INPUT: st.builds(
        lambda root, size, amount: [root, size, root, root, amount], hashes, st.integers(1, 2**42 - 1), amounts
    ),
    CLAIM_GARBAGE: st.builds(lambda task, key, chunk: [task, key, [3, 9, [key]], chunk], hashes, hashes, chunks),
    CLAIM_KEYED: st.builds(
        lambda key: [claim_to_value(CLAIM), key, [3, 9, [key]]], hashes
    ),
    CLAIM_PLAIN: st.builds(
        lambda task, number: [[task, int(Fault.NODE), [1, 2, number], [[1, b"p" * 9, [task]]]]], hashes, windows
    ),
    SET_TERMS: st.builds(lambda until: [ALICE.address, BOB.address, 1_000, 5_000, until], amounts),
    SPONSOR_NODE: st.builds(lambda amount: [ALICE.address, 1_000, 5_000, amount, amount + 1], amounts),
    WITHDRAW_SPONSOR: st.builds(lambda amount: [ALICE.address, amount], amounts),
    OPEN_WINDOW: st.builds(lambda task, window: [task, window, [opening_to_value(OPENING)]], hashes, windows),
    POKE: st.builds(lambda task: [task], hashes),
    TOP_UP_TASK: st.builds(lambda task, amount: [task, amount], hashes, amounts),
    RESUME_TASK: st.builds(lambda task: [task], hashes),
    DEMAND_RESULT: st.builds(lambda task, amount: [task, amount], hashes, amounts),
    GIVE_UP_TASK: st.builds(lambda task: [task, int(Reason.JOB_UNFIT)], hashes),
    SETTLE_CARRIAGE: st.builds(lambda size: [replace(CARRIED, size_bytes=size).encode(), b"certificate"], sizes),
    FUND_CARRIAGE: st.builds(lambda amount: [amount], st.integers(1, 1000 * COIN)),
    WITHDRAW_CARRIAGE: st.builds(lambda amount: [amount], amounts),
}  # fmt: skip


def call_of(kind: int, payload: list[Any], runtime: Runtime = RUNTIME) -> tuple[bytes, int, bytes]:
    """The call that says the same: recipient, value, data."""
    rule = runtime.rules[kind]
    if rule.call is None:
        return payload[0], payload[1], b""
    return rule.call.contract, *rule.call.call_of(payload, rule.moves(rule.decode(payload)))


def dynamic(key: Any, nonce: int, to: bytes, value: int, data: bytes, *, gas: int = 16_000_000) -> Transaction:
    transaction = decode_transaction(
        sign_dynamic(key, chain_id=CHAIN_ID, nonce=nonce, to=to, value=value, data=data, gas=gas, fee=FEE)
    )
    transaction.recover_sender()
    return transaction


def legacy(key: Any, nonce: int, to: bytes, value: int, data: bytes, *, gas: int = 16_000_000) -> Transaction:
    transaction = decode_transaction(
        sign_legacy(key, chain_id=CHAIN_ID, nonce=nonce, to=to, value=value, data=data, gas=gas, price=FEE)
    )
    transaction.recover_sender()
    return transaction


def test_every_kind_can_be_called_and_is_tested_here() -> None:
    assert KINDS.keys() == RUNTIME.rules.keys()
    assert {kind for kind, rule in RUNTIME.rules.items() if rule.call is None} == {TRANSFER_KIND}


@settings(max_examples=150)
@given(st.data(), st.sampled_from(sorted(KINDS)), st.sampled_from([dynamic, legacy]))
def test_both_forms_of_an_action_are_the_same_to_the_runtime(data: st.DataObject, kind: int, form: Any) -> None:
    payload = data.draw(KINDS[kind])
    native = RUNTIME.check(signed(ALICE, 3, kind, payload, gas_limit=16_000_000))
    called = RUNTIME.check(form(ALICE, 3, *call_of(kind, payload)))
    # What execution takes from a transaction: its rule, payload, sender, nonce and fees.
    assert (called.rule, called.payload, called.cost_max) == (native.rule, native.payload, native.cost_max)
    assert called.transaction.sender == native.transaction.sender == ALICE.address
    assert called.transaction.nonce == native.transaction.nonce


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(sorted(KINDS)))
def test_execution_leaves_the_same_state_events_and_fee(data: st.DataObject, kind: int) -> None:
    payload = data.draw(KINDS[kind])
    native = signed(ALICE, 0, kind, payload, gas_limit=16_000_000)
    called = dynamic(ALICE, 0, *call_of(kind, payload))
    called.hash = native.hash  # a task's history names the transaction, which is another one here
    outcomes = []
    for transaction in (native, called):
        ledger = Ledger(RUNTIME)
        execution = ledger.step(transaction)
        outcomes.append((execution.changes, execution.receipts, execution.gas_used))
    assert outcomes[0] == outcomes[1]


def runtime_of(parameters: TaskParameters) -> Runtime:
    given = ((f"tasks.{name}", value) for name, value in asdict(parameters).items())
    return make_runtime(replace(genesis(), parameters=tuple(sorted((*genesis().parameters, *given)))))


QUICK_RUNTIME, KEPT_RUNTIME, TRIAL_RUNTIME = map(runtime_of, (QUICK, KEPT, TRIALS))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("registerNode", "registerNode: profile is not canonical CBOR"),
        ("createTask", "createTask: an argument is not canonical CBOR"),
        ("submitWindow", "submitWindow: proof is not canonical CBOR"),
    ],
)
def test_junk_is_refused_without_a_word_of_the_insides(function: str, said: str) -> None:
    runtime = QUICK_RUNTIME
    form = next(r.call for r in runtime.rules.values() if r.call is not None and r.call.function.name == function)
    for junk in (b"", b"\xa0", b"\xf6\xf6", b"\xff", b"junk"):
        call: list[Value] = [form.contract, 0, form.function.encode(junk)]
        transaction = Transaction(
            b"", DYNAMIC_FORM, CHAIN_ID, 0, 0, FEE, 16_000_000, CALL_KIND, call, (b"", 0, 0, b""), b""
        )
        transaction.sender = bytes(range(20))
        with pytest.raises(CallRefused) as caught:
            runtime.check(transaction)
        assert str(caught.value).removeprefix(CallRefused.prefix) == said


def phase_of(world: Market, task: bytes) -> DisputePhase:
    return load_dispute(world.state, task, 0, 0).phase


class Compared(World):
    """A world whose every transaction is executed by the runtime in both forms, on the state of that moment."""

    runtime: ClassVar[Runtime] = QUICK_RUNTIME

    def __post_init__(self) -> None:
        self.succeeded: set[int] = set()
        super().__post_init__()

    def send(self, sender: bytes, kind: int, payload: list[Value]) -> str | None:
        self.compare(sender, kind, payload)
        return super().send(sender, kind, payload)

    def compare(self, sender: bytes, kind: int, payload: list[Value]) -> Overlay:
        """Check that both forms leave the same; return the state after it."""
        runtime, outcomes = self.runtime, []
        received = decode(encode(payload), limit_bytes=TRANSACTION_LIMIT_BYTES)
        assert isinstance(received, list)
        called = list(call_of(kind, received, runtime))
        for form, of_form, items in ((NATIVE_FORM, kind, received), (DYNAMIC_FORM, CALL_KIND, called)):
            nonce = self.nonces.get(sender, 0)
            transaction = Transaction(
                b"", form, CHAIN_ID, nonce, 0, FEE, 16_000_000, of_form, items, (b"", 0, 0, b""), b""
            )
            transaction.sender = sender
            after = Overlay(self.state)
            save_account(after, sender, Account(nonce, balance_of(after, sender)))
            told = runtime._apply_all(after, self.context(), [runtime.check(transaction)])
            outcomes.append((after.changes, *told))
        assert outcomes[0] == outcomes[1]
        [receipt] = outcomes[0][1]
        if decode_receipt(receipt).reason is None:
            self.succeeded.add(kind)
        return after


class BothForms(Compared, Market):
    """The market with relays."""


class KeptForms(Compared, KeptWorld):
    """The market with custody."""

    runtime = KEPT_RUNTIME


CUSTODY_KINDS: Final = frozenset(range(ASK_CUSTODY, CLAIM_KEYED + 1))
TRIAL_KINDS: Final = frozenset((ASK_TRIAL, COMMIT_TRIAL, SHOW_TRIAL, JUDGE_TRIAL))


class TrialForms(Compared):
    """The market with speed trials."""

    runtime = TRIAL_RUNTIME


def test_both_forms_of_what_succeeds_in_speed_trials_leave_the_same_state_events_and_fee() -> None:
    world = TrialForms(parameters=TRIALS)
    play_trials(world)
    assert world.succeeded >= TRIAL_KINDS


def test_both_forms_of_what_succeeds_in_custody_leave_the_same_state_events_and_fee() -> None:
    world = KeptForms()
    world.fund(BOB.address, COIN)
    world.add_machine(1)
    world.add_machine(2)
    for name in range(3, 8):
        world.add_keeper(name)
    for manner in ("right", "garbage", "other"):
        world.manner = manner
        task = world.create()
        world.run_to(task, Phase.SETTLED)
        if manner == "garbage":
            assert world.reveal(task, 0, 0, BOB.address) is None
        if manner == "other":
            assert world.mismatch(task, 0, 0, BOB.address) is None
        holder = world.holders(task, 1)[0]
        for _ in range(2):
            assert world.demand(task, 1, holder) is None
            for _ in range(6):
                world.block()
                world.act()
        assert world.end(task, 2) is None
    world.machines = {
        machine: Manners(silent=frozenset({Action.START})) if machine[0] < 3 else manners
        for machine, manners in world.machines.items()
    }  # fmt: skip
    job, content = crooked_job()
    task = world.create(stray_job(b"no cipher" * 9, job))
    worker = world.run_to(task, Phase.PREPARING).worker
    assert world.claim_keyed(task, b"no cipher" * 9, b"", worker) is None
    for manner in ("right", "garbage"):
        task = world.create(job)
        assert world.keep_input(task, content, manner=manner) is None
        worker = world.run_to(task, Phase.PREPARING).worker
        if manner == "garbage":
            assert world.claim_garbage(task, 0, worker) is None
        else:
            found = find_plain_fault(task, job, content)
            assert found is not None
            assert world.send(worker, CLAIM_PLAIN, [plain_claim_to_value(found)]) is None
    assert world.succeeded >= CUSTODY_KINDS


@pytest.mark.slow
@settings(max_examples=2, deadline=None)
@given(st.integers(0, 2**32))
def test_both_forms_of_what_succeeds_leave_the_same_state_events_and_fee(seed: int) -> None:
    world = BothForms(seed=seed)
    names = [world.add_machine(name) for name in range(1, 6)]
    assert world.settle(receipt()) is None
    assert world.send(WORKER.address, FUND_CARRIAGE, [COIN]) is None
    assert world.send(WORKER.address, WITHDRAW_CARRIAGE, [COIN // 2]) is None
    assert world.send(RELAY, RETIRE_NODE, []) is None
    profile = PROFILE._replace(operator=names[0], roles=NodeRole.COMPUTE | NodeRole.VERIFY)
    assert world.send(names[0], SUSPEND_NODE, []) is None
    assert world.send(names[0], UPDATE_NODE, node_payload(profile, 0)) is None
    assert world.send(names[0], SET_PAYOUT, [names[0], BOB.address]) is None
    assert world.send(names[2], HEARTBEAT, []) is None
    terms: list[Value] = [1_000, 0, 100 * COIN]
    assert world.send(names[1], SET_TERMS, [names[1], REQUESTER, *terms]) is None
    assert world.send(REQUESTER, SPONSOR_NODE, [names[1], *terms, 20 * COIN]) is None
    assert world.send(REQUESTER, WITHDRAW_SPONSOR, [names[1], 20 * COIN]) is None
    settled = world.create()
    world.run_to(settled, Phase.SETTLED)
    result = load_window(world.state, settled, world.task(settled).final_windows - 1)
    assert world.send(REQUESTER, DEMAND_RESULT, [settled, delivery_fees(result, world.parameters)]) is None

    declined = world.create()
    world.run(
        declined,
        until=lambda task: task.next_window > 0 and load_window(world.state, declined, 0).verifiers != (),
    )
    verifier = load_window(world.state, declined, 0).verifiers[0].address
    assert world.send(verifier, DECLINE_SEAT, [declined, 0]) is None
    world.run_to(declined, Phase.SETTLED)

    disputed = world.create()
    world.run(disputed, until=lambda task: task.next_window > 0)
    assert world.challenge(names[4], disputed, 0, 1, lie=True) is None
    world.run(disputed, until=lambda _: MOVE in world.succeeded)
    manners = dict(world.machines)
    world.machines = dict.fromkeys(world.machines, Manners(silent=frozenset({Action.PLAY})))
    world.run(disputed, until=lambda _: {phase_of(world, disputed)} == {DisputePhase.SUSPENDED})
    world.machines = manners
    world.run_to(disputed, Phase.SETTLED)

    broken = world.create()
    world.machines = dict.fromkeys(manners, Manners(gap=1))
    world.run(broken, until=lambda _: SHOW_BREAK in world.succeeded)
    world.machines = manners
    world.run(broken, until=lambda task: bool(task.excluded))

    missed = world.create()
    world.machines = dict.fromkeys(manners, Manners(blind=True))
    world.run(missed, until=lambda _: SERVE_WINDOW in world.succeeded)
    world.machines = manners
    world.run(missed, until=lambda task: task.phase in ENDED)

    diverging = world.create(spec()._replace(init_root=diverging_root(4)))
    world.machines = dict.fromkeys(manners, Manners(claims=6))
    with pytest.MonkeyPatch.context() as patch:
        # The world's program is a toy, whose stores the runtime does not know.
        patch.setattr(proving, "is_store", lambda *_: True)
        world.run(diverging, until=lambda _: CLAIM_DIVERGED in world.succeeded)
    world.machines = manners

    world.strays[stray_job().dataset.blob] = STRAY
    world.run_to(world.create(stray_job()), Phase.FAILED)

    containers.host(world, 77)
    held, hosted = containers.started(world)
    world.block(60_000)
    assert containers.meter(world, hosted, held, 60) is None
    assert containers.finish(world, hosted, held, 60) is None
    containers.host(world, 78)
    held, hosted = containers.started(world, containers.container(checkpoint=containers.STORED))
    world.block(60_000)
    assert containers.store(world, hosted, held, 60) is None
    assert world.send(hosted, GIVE_UP_TASK, [held, int(Reason.WORKER_LEFT)]) is None
    while not (other := world.task(held).worker):
        world.block()
    assert world.send(other, ACCEPT_TASK, [held, 0]) is None
    assert containers.miss(world, other, held) is None
    containers.host(world, 82)  # who said so has left
    while not (third := world.task(held).worker):
        world.block()
    assert world.send(third, ACCEPT_TASK, [held, 0]) is None
    assert world.send(third, START_TASK, [held, b"m" * 32]) is None
    assert containers.finish(world, third, held, 0) is None
    assert [world.send(machine, SUSPEND_NODE, []) for machine in (hosted, other, third)] == [None] * 3
    containers.host(world, 79)
    held, hosted = containers.started(world)
    assert world.send(hosted, REPORT_TAMPERING, [held, 5]) is None
    assert world.send(REQUESTER, CANCEL_TASK, [held]) is None  # else it takes the next machine
    hosted = containers.host(world, 80)
    twin = containers.host(world, 81)
    quorums.Play(world=world, at_work={hosted: quorums.Hand(), twin: quorums.Hand()}).play()
    for host in (hosted, twin):
        assert world.send(host, SUSPEND_NODE, []) is None

    given_up = world.create()
    worker = world.run_to(given_up, Phase.ASSIGNED).worker
    assert world.send(worker, GIVE_UP_TASK, [given_up, int(Reason.WORKER_LEFT)]) is None
    assert world.send(REQUESTER, CANCEL_TASK, [given_up]) is None

    for name in world.machines:
        world.machines[name] = Manners(silent=frozenset({Action.COMPUTE}))
    paused = world.create()
    world.run_to(paused, Phase.PAUSED)
    assert world.send(REQUESTER, TOP_UP_TASK, [paused, COIN]) is None
    assert world.send(REQUESTER, RESUME_TASK, [paused]) is None

    group = groups.create(world, 2, 1)
    assert world.send(REQUESTER, CANCEL_GROUP, [group]) is None

    late = world.create()
    world.time_ms += spec().match_ms
    assert world.send(REQUESTER, POKE, [late]) is None

    world.fund(ALICE.address, 10_000 * COIN)
    begin_withdrawals(world.state, 10_000 * COIN)  # as the end of an epoch does
    staking = stake_payload(5_000 * COIN, ALICE, genesis_hash=GENESIS_HASH, address=ALICE.address)
    last: list[tuple[int, list[Value]]] = [
        (TRANSFER_KIND, [BOB.address, COIN]),
        (STAKE_KIND, staking),
        (UNSTAKE_KIND, unstake_payload(COIN)),
    ]
    for kind, payload in last:
        world.state = world.compare(ALICE.address, kind, payload)
        world.nonces[ALICE.address] = world.nonces.get(ALICE.address, 0) + 1
    assert world.succeeded == QUICK_RUNTIME.rules.keys() - CUSTODY_KINDS - TRIAL_KINDS


def test_a_call_to_an_account_is_a_transfer_and_its_data_is_not_read() -> None:
    checked = RUNTIME.check(dynamic(ALICE, 0, BOB.address, 5, b"for the coffee", gas=TRANSFER_GAS))
    assert (checked.rule.kind, checked.payload) == (TRANSFER_KIND, (BOB.address, 5))
    RUNTIME.check(dynamic(ALICE, 0, BOB.address, 5, b"x" * NOTE_LIMIT_BYTES))
    with pytest.raises(CallRefused, match=f"at most {NOTE_LIMIT_BYTES} bytes"):
        RUNTIME.check(dynamic(ALICE, 0, BOB.address, 5, b"x" * (NOTE_LIMIT_BYTES + 1)))
    with pytest.raises(InvalidPayload):
        RUNTIME.check(dynamic(ALICE, 0, BOB.address, 2**200, b""))


UNSTAKE = RUNTIME.rules[UNSTAKE_KIND].call
assert UNSTAKE is not None
WITHDRAWAL = UNSTAKE.function.encode(5)


@pytest.mark.parametrize(
    ("to", "value", "data", "reason"),
    [
        (STAKING_ADDRESS, 0, b"", "unknown function"),
        (STAKING_ADDRESS, 1, b"", "unknown function"),
        (STAKING_ADDRESS, 0, WITHDRAWAL[:3], "unknown function"),
        (STAKING_ADDRESS, 0, b"\1\2\3\4", "unknown function"),
        ((0x0701).to_bytes(20, "big"), 0, WITHDRAWAL, "unknown function"),
        ((0x07FF).to_bytes(20, "big"), 0, WITHDRAWAL, "unknown function"),
        (STAKING_ADDRESS, 0, WITHDRAWAL[:-1], "unstake: call data"),
        (STAKING_ADDRESS, 0, WITHDRAWAL + b"\0", "unstake: call data"),
        (STAKING_ADDRESS, 1, WITHDRAWAL, "unstake takes no value"),
        (STAKING_ADDRESS, 0, UNSTAKE.function.encode(0), "unstake: not an unstake"),
        (STAKING_ADDRESS, 0, UNSTAKE.function.encode(2**200), "unstake: not an unstake"),
    ],
)
def test_a_call_that_no_contract_takes_is_inadmissible(to: bytes, value: int, data: bytes, reason: str) -> None:
    with pytest.raises(CallRefused, match=f"execution reverted: {reason}"):
        RUNTIME.check(dynamic(ALICE, 0, to, value, data))


def test_the_value_is_what_the_kind_moves() -> None:
    to, value, data = call_of(CREATE_TASK, [encode_spec(spec())])
    assert value > 0
    RUNTIME.check(dynamic(ALICE, 0, to, value, data))
    for wrong in (0, value - 1, value + 1):
        with pytest.raises(CallRefused, match=f"takes a value of {value}, not {wrong}"):
            RUNTIME.check(dynamic(ALICE, 0, to, wrong, data))


def test_nested_bytes_have_one_spelling() -> None:
    form = RUNTIME.rules[REGISTER_NODE].call
    assert form is not None
    for content in (b"", b"\x18\x01", b"\x9f\xff", b"\x80\x80", b"\xa0"):
        with pytest.raises(CallRefused):
            RUNTIME.check(dynamic(ALICE, 0, form.contract, 0, form.function.encode(content)))


def test_the_native_form_does_not_carry_calls() -> None:
    with pytest.raises(UnknownKind):
        RUNTIME.check(signed(ALICE, 0, CALL_KIND, [BOB.address, 5, b""]))


@given(
    st.sampled_from([rule.call for rule in RUNTIME.rules.values() if rule.call is not None]),
    st.integers(0, 2**256 - 1),
    st.binary(max_size=400),
    st.booleans(),
)
def test_any_call_data_gives_the_typed_error(form: CallForm, value: int, data: bytes, is_named: bool) -> None:
    transaction = Transaction(
        b"", DYNAMIC_FORM, CHAIN_ID, 0, 0, FEE, 16_000_000, CALL_KIND,
        [form.contract, value, (form.function.selector if is_named else b"") + data], (b"", 0, 0, b""), b"",
    )  # fmt: skip
    transaction.sender = ALICE.address
    try:
        RUNTIME.check(transaction)
    except InvalidTransaction:
        pass
    try:
        form.payload_of(value, data[:TRANSACTION_LIMIT_BYTES])
    except DecodeError:
        pass
