"""Inputs in custody: a bid waits for its receipts, garbage and wrong data end the task (market.md R44 to R46)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest

from billing.escrow import Line, Movement, Pool, Purpose, escrow_totals
from state.primitives.codec import Value
from state.view.accounts import balance_of
from tasks.claims import Fault, layout_of
from tasks.custody.inputs import PlainClaim, find_plain_fault, plain_claim_to_value
from tasks.custody.keys import derive_key, input_key_name, public_key_root
from tasks.custody.sealed import open_input, public_input, seal_input
from tasks.engines.dataset_layout import NodePlace
from tasks.engines.datasets import Dataset
from tasks.ledger import queries
from tasks.ledger.claims import load_claim
from tasks.ledger.custody import custody_budget
from tasks.ledger.custody_inputs import input_budget
from tasks.ledger.custody_queries import custody_duties, inputs_kept, outputs_kept
from tasks.ledger.custody_records import (
    INPUT_WINDOW,
    CustodyPhase,
    find_custody,
    find_terms,
    is_unreliable,
    load_custody,
)
from tasks.ledger.custody_transitions import ASK_CUSTODY, CLAIM_PLAIN, END_CUSTODY, KEEP_INPUT
from tasks.ledger.lifecycle import ENDED, Phase, Reason
from tasks.ledger.parameters import DAY_MS
from tasks.ledger.queries import Action
from tasks.ledger.registry import require_node
from tasks.ledger.transitions import CANCEL_TASK, CREATE_TASK, task_id_of
from tasks.spec import JobSpec, classifier_of, encode_spec
from tests.tasks.keepers import KEPT, TASK_KEY, KeptWorld
from tests.tasks.ledger.test_custody import until
from tests.tasks.signed import CHECK, WORK
from tests.tasks.strays import crooked_job, stray_job
from tests.tasks.world import DKB, QUICK, REQUESTER, Manners, World, spec

IDLE = Manners(silent=frozenset({Action.START, Action.COMPUTE}))


@lru_cache
def data() -> tuple[JobSpec, bytes]:
    """A job and bytes of its data set's form, which are not under its root."""
    return crooked_job(spec(match_ms=600_000))


def market(
    *, keepers: int = 4, parameters: object = KEPT, manners: Manners = IDLE, is_kept: bool = True, **how: object
) -> tuple[KeptWorld, bytes]:
    """A world with a worker, a verifier and keepers, and a task that asks to have its input kept."""
    world = KeptWorld(parameters=parameters)  # type: ignore[arg-type]
    world.add_machine(1, roles=WORK, manners=manners)
    world.add_machine(2, roles=CHECK)
    for at in range(keepers):
        world.add_keeper(10 + at)
    world.block()
    job, content = data()
    task = world.create(job)
    if is_kept:
        assert world.keep_input(task, content, **how) is None  # type: ignore[arg-type]
    return world, task


def lines(world: World, task: bytes, purpose: Purpose) -> list[Line]:
    return [line for line in queries.bill(world.state, task).lines if line.purpose == purpose]


def waits(world: World, task: bytes) -> bool:
    record = world.task(task)
    return record.phase == Phase.MATCHING and not record.match_at_ms and not record.parked


def test_n8_a_bid_waits_until_two_machines_have_signed_for_its_input() -> None:
    world, task = market()
    world.unsigning = set(world.machines)
    for _ in range(5):
        assert waits(world, task)
        world.block()
        world.act()
    world.unsigning = set()
    until(world, task, INPUT_WINDOW, lambda record: record.phase is CustodyPhase.KEPT)
    record = world.task(task)
    assert record.match_at_ms == record.changed_ms == world.time_ms, "a new bid, not one that was put off"
    holders = world.holders(task, INPUT_WINDOW)
    assert len(holders) == 2
    assert [inputs_kept(world.state, holder) for holder in holders] == [[task], [task]]
    assert outputs_kept(world.state, holders[0]) == []
    assert world.run_to(task, Phase.PREPARING).worker


def test_a_task_that_asks_for_outputs_alone_is_a_bid_at_once() -> None:
    world, task = market(is_kept=False)
    assert not waits(world, task)
    world.run_to(task, Phase.ASSIGNED, blocks=3)


def test_an_input_is_kept_for_its_requester_once_for_its_whole_budget_and_size_before_there_is_a_worker() -> None:
    world, task = market(is_kept=False)
    job, content = data()
    assert world.keep_input(task, content, sender=b"x" * 20) == "not_yours"
    assert world.keep_input(task, content + b"x") == "custody_refused"
    assert world.keep_input(task, content, less=1) == "payment_missing"
    assert world.keep_input(task, content) is None
    assert world.keep_input(task, content) == "custody_refused"
    nonce = world.nonces[REQUESTER]
    assert world.send(REQUESTER, CREATE_TASK, [encode_spec(job)]) is None
    assert world.keep_input(task_id_of(REQUESTER, nonce), content) == "custody_off", "nobody asked for custody"
    other = world.create(job)
    world.run(other, until=lambda record: bool(record.worker))
    assert world.keep_input(other, content) == "wrong_phase"


def test_the_input_of_a_public_task_is_kept_and_nothing_is_claimed_with_a_key() -> None:
    world = KeptWorld()
    world.add_machine(1, roles=WORK, manners=IDLE)
    world.add_machine(2, roles=CHECK)
    for at in range(3):
        world.add_keeper(10 + at)
    world.block()
    job, content = data()
    task = World.create(world, job)
    root = public_key_root(job.windows)
    assert world.send(REQUESTER, ASK_CUSTODY, [task, root, 0, custody_budget(job, KEPT)]) is None
    blob = world.outputs[task, INPUT_WINDOW] = public_input(job.dataset.root, content)
    assert world.send(REQUESTER, KEEP_INPUT, [task, *blob.commitment, input_budget(job, KEPT)]) is None
    assert waits(world, task)
    worker = world.run_to(task, Phase.PREPARING).worker
    assert len(world.holders(task, INPUT_WINDOW)) == 2
    assert world.claim_garbage(task, 0, worker) == "key_invalid", "nobody needs a key to read it"


def test_a_chain_without_custody_keeps_no_inputs() -> None:
    world = KeptWorld(parameters=QUICK)
    job, content = data()
    task = World.create(world, job)
    assert input_budget(job, QUICK) == 0
    assert world.keep_input(task, content) == "custody_off"
    assert not waits(world, task)


def test_who_would_leave_a_call_that_it_is_firm_in_is_refused() -> None:
    world = KeptWorld(parameters=replace(KEPT, order_blocks=2, call_ms=3_000))
    job, content = data()
    task = world.create(job)
    world.block()
    assert world.keep_input(task, content) == "wrong_phase"


@pytest.mark.parametrize("keepers", [0, 1, 6])
def test_without_receipts_the_bid_stays_out_and_gets_the_rest_back_and_may_ask_again(keepers: int) -> None:
    """No worker can keep it instead: whoever was matched could not have it."""
    world, task = market(keepers=keepers)
    before = balance_of(world.state, REQUESTER)
    world.unsigning = set(world.machines)
    for _ in range(40):
        world.block()
        world.act()
    assert find_custody(world.state, task, INPUT_WINDOW) is None and waits(world, task)
    job, content = data()
    assert balance_of(world.state, REQUESTER) == before + input_budget(job, KEPT)
    assert all(require_node(world.state, machine).bad == 0 for machine in world.machines)
    world.unsigning = set()
    for at in range(2):
        world.add_keeper(30 + at)
    for _ in range(KEPT.draw_blocks):  # machines count from the next epoch of draws on
        world.block()
    assert world.keep_input(task, content) is None
    world.run_to(task, Phase.ASSIGNED)


def test_a_requester_that_hands_over_to_nobody_is_refused_for_a_day() -> None:
    """It would take honest custodians out of the draws by its own silence."""
    world, task = market(keepers=6, parameters=replace(KEPT, custody_misses_per_day=3))
    world.unsigning = set(world.machines)
    for _ in range(40):
        world.block()
        world.act()
    assert find_custody(world.state, task, INPUT_WINDOW) is None
    assert world.keep_input(task, data()[1]) == "custody_refused"
    world.block(86_400_000)
    late = world.create(data()[0])
    assert world.keep_input(late, data()[1]) is None


def test_requesters_that_hand_over_to_nobody_take_no_machine_out_of_the_draws() -> None:
    """Accounts are free: each of a few hundred would have had eight honest machines miss an input."""
    world, _ = market(keepers=4, parameters=replace(KEPT, custody_misses_per_day=1))
    world.unsigning = set(world.machines)
    for _ in range(40):
        world.block()
        world.act()
    day = world.time_ms // DAY_MS
    assert is_unreliable(world.state, REQUESTER, day, world.parameters)
    assert not any(is_unreliable(world.state, machine, day, world.parameters) for machine in world.machines)


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_bid_that_is_cancelled_pays_for_the_time_and_gets_the_rest_back(is_kept: bool) -> None:
    price = 10**6 * DKB
    parameters = replace(KEPT, custody_price_per_gib_hour=price)
    world, task = market(parameters=parameters)
    world.machines = {machine: IDLE for machine in world.machines if machine[0] >= 10}
    if is_kept:
        record = until(world, task, INPUT_WINDOW, lambda record: record.phase is CustodyPhase.KEPT)
        assert world.task(task).match_at_ms
        bonds = sum(holder.bond for holder in record.holders)
        world.block(30_000)
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    world.block()
    world.block()
    assert world.task(task).phase == Phase.CANCELLED
    assert escrow_totals(world.state, task).locked == 0 and find_custody(world.state, task, INPUT_WINDOW) is None
    paid = lines(world, task, Purpose.CUSTODY_PAY)
    assert len(paid) == 2 * is_kept
    if is_kept:
        half = input_budget(data()[0], parameters) // 2
        assert all(KEPT.custody_fee_min < line.amount < half for line in paid)
        back = [line.amount for line in lines(world, task, Purpose.BOND_RETURN) if line.pool == Pool.CUSTODY]
        assert sum(back) == bonds
    terms = find_terms(world.state, task)
    assert terms is not None and (terms.live, terms.reserved) == (0, 0)


def test_a_bid_that_nobody_takes_leaves_in_time_and_its_custody_with_it() -> None:
    world, task = market()
    world.machines = {machine: IDLE for machine in world.machines if machine[0] >= 10}
    job = data()[0]
    for _ in range(25):
        world.act()
        world.block(job.match_ms // 20)
    assert world.task(task).phase == Phase.EXPIRED
    assert escrow_totals(world.state, task).locked == 0 and find_custody(world.state, task, INPUT_WINDOW) is None


def test_a_whole_task_ends_with_bonds_and_custody_of_its_input_returned() -> None:
    world, task = market(manners=Manners())
    world.run_to(task, Phase.SETTLED)
    world.block()
    world.block()
    assert find_custody(world.state, task, INPUT_WINDOW) is None
    for window in range(3):
        assert world.end(task, window) is None
    for _ in range(4):
        world.block(60_000)
    assert escrow_totals(world.state, task).locked == 0
    assert all(custody_duties(world.state, machine) == [] for machine in world.machines)


def test_an_input_that_its_custodians_lost_takes_the_bid_out_of_the_book() -> None:
    world, task = market()
    del world.machines[b"\x01" * 20]
    until(world, task, INPUT_WINDOW, lambda record: record.phase is CustodyPhase.KEPT)
    world.machines[b"\x01" * 20] = Manners(silent=frozenset(Action))
    for holder in world.holders(task, INPUT_WINDOW):
        world.unanswering.add(holder)
        if world.task(task).phase != Phase.MATCHING:
            return
        assert world.demand(task, INPUT_WINDOW, holder) is None
        for _ in range(20):
            world.block()
    assert find_custody(world.state, task, INPUT_WINDOW) is None
    assert world.task(task).phase != Phase.MATCHING or waits(world, task)


def test_custody_of_an_input_is_not_ended_by_word() -> None:
    world, task = market()
    until(world, task, INPUT_WINDOW, lambda record: record.phase is CustodyPhase.KEPT)
    with pytest.raises(Exception, match="expected"):
        world.send(REQUESTER, END_CUSTODY, [task, INPUT_WINDOW])


# Claims


def test_garbage_in_an_input_ends_the_task_and_pays_its_preparation() -> None:
    world, task = market(manner="garbage")
    worker = world.run_to(task, Phase.PREPARING).worker
    assert world.claim_garbage(task, 1, b"x" * 20) == "not_yours"
    assert world.claim_garbage(task, 1, worker) is None
    record = world.task(task)
    assert (record.phase, record.reason) == (Phase.FAILED, Reason.INPUT_INVALID)
    (paid,) = [line for line in lines(world, task, Purpose.PREPARATION) if line.movement == Movement.PAID]
    assert paid.party == worker and paid.amount > 0
    told = load_claim(world.state, task)
    assert told is not None and (told.fault, told.place[2]) == (Fault.GARBAGE, 1)
    for _ in range(4):
        world.block(60_000)
    assert escrow_totals(world.state, task).locked == 0
    assert require_node(world.state, worker).bad == 0


def test_nobody_proves_garbage_of_an_honest_input() -> None:
    world, task = market()
    worker = world.run_to(task, Phase.PREPARING).worker
    for number in range(3):
        assert world.claim_garbage(task, number, worker) == "claim_unproven"
    assert world.task(task).phase == Phase.PREPARING


def claim(task: bytes, **changed: object) -> list[Value]:
    found = find_plain_fault(task, *data())
    assert found is not None
    return [plain_claim_to_value(found._replace(**changed))]  # type: ignore[arg-type]


def test_an_input_that_is_not_the_jobs_data_set_ends_the_task() -> None:
    world, task = market()
    worker = world.run_to(task, Phase.PREPARING).worker
    assert world.send(REQUESTER, CLAIM_PLAIN, claim(task)) == "not_yours"
    assert world.send(worker, CLAIM_PLAIN, claim(task, fault=Fault.LABEL)) == "claim_unproven"
    assert world.send(worker, CLAIM_PLAIN, claim(task, chunks=())) == "claim_unproven"
    assert world.send(worker, CLAIM_PLAIN, claim(task)) is None
    told = load_claim(world.state, task)
    assert world.task(task).phase in ENDED and told is not None and told.fault == Fault.ROOT


def test_a_claim_needs_a_commitment_and_chunks_under_it() -> None:
    world, task = market(is_kept=False)
    worker = world.run_to(task, Phase.PREPARING).worker
    assert world.send(worker, CLAIM_PLAIN, claim(task)) == "custody_off"
    job, content = data()
    other = bytearray(content)
    other[len(content) // 2] ^= 1
    found = find_plain_fault(task, job, bytes(other))
    world, task = market()
    worker = world.run_to(task, Phase.PREPARING).worker
    assert found is not None and found.fault is not Fault.ROOT
    against: list[Value] = [plain_claim_to_value(found._replace(task=task))]
    assert world.send(worker, CLAIM_PLAIN, against) == "claim_unproven"


@pytest.mark.parametrize("fault", [Fault.FORM, Fault.LABEL, Fault.NODE])
def test_each_fault_of_a_plain_input_is_found_and_proven(fault: Fault) -> None:
    job, content = data()
    wrong = bytearray(content)
    place = {Fault.FORM: 0, Fault.LABEL: layout_of(job).labels_at, Fault.NODE: len(content) - 1}[fault]
    wrong[place] ^= 0xFF
    found = find_plain_fault(b"t" * 32, job, bytes(wrong))
    assert isinstance(found, PlainClaim) and found.fault is fault
    world = KeptWorld()
    world.add_machine(1, roles=WORK, manners=IDLE)
    world.add_machine(2, roles=CHECK)
    for at in range(3):
        world.add_keeper(10 + at)
    world.block()
    task = world.create(job)
    assert world.keep_input(task, bytes(wrong)) is None
    worker = world.run_to(task, Phase.PREPARING).worker
    assert world.send(worker, CLAIM_PLAIN, [plain_claim_to_value(found._replace(task=task))]) is None
    told = load_claim(world.state, task)
    assert told is not None and told.fault == fault and NodePlace(*told.place) == found.place
    assert load_custody(world.state, task, INPUT_WINDOW).phase is CustodyPhase.VOID


def keyed(content: bytes, *, is_garbage: bool = False) -> tuple[JobSpec, bytes, bytes]:
    """A job whose blob is the cipher of ``content``, the blob, and what it decrypts to."""
    job, key = data()[0], derive_key(TASK_KEY, input_key_name(0))
    blob = seal_input(key, job.dataset.root, content).blob
    if is_garbage:
        blob = bytes(len(blob))
    return stray_job(blob, job), blob, open_input(key, job, blob)


@pytest.mark.parametrize("fault", [Fault.SIZE, Fault.FORM, Fault.LABEL, Fault.NODE, Fault.ROOT, Fault.GARBAGE])
def test_a_private_blob_that_is_no_cipher_of_the_data_set_ends_the_task(fault: Fault) -> None:
    """Without that a requester of a private task could have machines fetch and prepare anything for nothing."""
    content = bytearray(data()[1])
    layout = layout_of(data()[0])
    match fault:
        case Fault.SIZE:
            content += b"x"
        case Fault.FORM:
            content[0] ^= 1
        case Fault.LABEL:
            content[layout.labels_at] = 99
        case Fault.NODE:
            content[layout.features_at + 20_000] ^= 1
        case _:
            pass  # the bytes are of the right form, and not under the root
    job, cipher, plain = keyed(bytes(content), is_garbage=fault is Fault.GARBAGE)
    world = KeptWorld()
    world.add_machine(1, roles=WORK, manners=IDLE)
    world.add_machine(2, roles=CHECK)
    task = world.create(job)
    worker = world.run_to(task, Phase.PREPARING).worker
    assert world.claim_keyed(task, cipher, plain, b"x" * 20) == "not_yours"
    assert world.claim_keyed(task, cipher, plain, worker, key=b"k" * 32) == "key_invalid"
    if fault is not Fault.SIZE:
        assert world.claim_keyed(task, cipher, plain, worker, chunks=()) == "claim_unproven"
    assert world.claim_keyed(task, cipher, plain, worker) is None
    told = load_claim(world.state, task)
    assert told is not None and told.fault == (Fault.FORM if fault is Fault.GARBAGE else fault)
    assert world.task(task).phase == Phase.FAILED
    assert lines(world, task, Purpose.PREPARATION)[-1].amount > 0


def test_nothing_is_claimed_with_a_key_about_an_honest_private_blob() -> None:
    part = classifier_of(data()[0])
    named, (columns, *_, classes) = part.dataset, part.model.widths
    right = Dataset(
        named.rows, columns, classes, named.shift, named.samples, bytes(named.rows * columns), bytes(named.rows)
    )
    job = data()[0].changed(dataset=named._replace(root=right.root()))
    blob = seal_input(derive_key(TASK_KEY, input_key_name(0)), right.root(), right.encode()).blob
    job = stray_job(blob, job)
    world = KeptWorld()
    world.add_machine(1, roles=WORK, manners=IDLE)
    world.add_machine(2, roles=CHECK)
    task = world.create(job)
    worker = world.run_to(task, Phase.PREPARING).worker
    for fault in (Fault.SIZE, Fault.FORM, Fault.LABEL, Fault.NODE, Fault.ROOT):
        # The chunks are those of a claim about other bytes: all stand under the name, and none shows a fault.
        wrong = bytearray(right.encode())
        wrong[20_000] ^= 1
        refusal = world.claim_keyed(task, blob, bytes(wrong), worker, fault=fault)
        assert refusal == "claim_unproven"
    assert world.task(task).phase == Phase.PREPARING


def test_a_task_without_keys_takes_no_claim_with_one() -> None:
    world = KeptWorld()
    world.add_machine(1, roles=WORK, manners=IDLE)
    world.add_machine(2, roles=CHECK)
    job, cipher, plain = keyed(data()[1])
    task = World.create(world, job)
    worker = world.run_to(task, Phase.PREPARING).worker
    assert world.claim_keyed(task, cipher, plain, worker) == "custody_off"
