"""What a kind weighs covers what replaying it takes, counted as calls of functions: the same on every machine.

A call here is about half a microsecond of one core with all that is between two of them, so a block full of the
dearest kind takes less than a second or so of the core that replays it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from billing.escrow import Pool, Purpose, Vault
from state.primitives.codec import Value, encode
from state.primitives.keys import SecretKey
from state.primitives.manifests import BLOB_CHUNK_BYTES
from state.primitives.merkle import MerkleProof, ancestor_of, leaf_hash, root_of_top, verify_merkle_proof
from state.primitives.transactions import sign_transaction
from state.transition.calls import NOTE_LIMIT_BYTES
from state.transition.transfer import TRANSFER_GAS
from state.view.accounts import credit
from tasks.claims import BlobChunk, Fault, InputClaim, claim_to_value
from tasks.custody.chunks import CHUNK_BYTES, CHUNKS_MAX, SIBLINGS_MAX
from tasks.custody.inputs import PLAIN_CHUNKS_MAX, PlainClaim, plain_claim_to_value
from tasks.custody.layout import PlainChunk
from tasks.dispute.game import begin
from tasks.dispute.moves import (
    LEAVES_OPENED_MAX,
    MOVE_LIMIT_BYTES,
    TENSORS_MAX,
    LeafOpening,
    Name,
    TensorOpening,
    decode_move,
    encode_move,
)
from tasks.engines import tuning_plan
from tasks.engines.dataset_layout import NodePlace
from tasks.kinds.container import CHECKPOINT_BYTES_MAX, LOG_BYTES_MAX, OUTPUT_BYTES_MAX, SECONDS_MAX, ExitKind
from tasks.kinds.finetune import STEP_CALLS_MAX, TrainingLoop
from tasks.ledger import (
    bonds,
    checkpoint_transitions,
    claim_transitions,
    custody_transitions,
    dispute_transitions,
    group_transitions,
    metering_transitions,
    quorum_transitions,
    serving_transitions,
    tampering,
    transitions,
    trial_transitions,
)
from tasks.ledger.custody_records import load_custody
from tasks.ledger.disputes import MOVE_GAS
from tasks.ledger.group_transitions import CANCEL_GROUP
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.meter_records import ContainerEnd
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.queries import Action
from tasks.ledger.questions import question_of
from tasks.ledger.records import Opened, TaskRecord, load_window
from tasks.ledger.registry import (
    PROFILE_LIMIT_BYTES,
    TEXT_MAX,
    Gpu,
    NodeProfile,
    NodeRole,
    bond_vault,
    require_node,
    save_node,
)
from tasks.ledger.settlement import RELEASES_MAX
from tasks.ledger.transitions import REVEAL_VERDICT, SEAL_VERDICT
from tasks.programs.divergence import Divergence
from tasks.programs.finetune import CLIPPED_MAX, PROJECTIONS
from tasks.programs.llama_shape import LAYERS_MAX
from tasks.programs.operators.scalars import NANO
from tasks.proofs import (
    CUSTODY_SIZE_LIMIT,
    LEAF_LIMIT_BYTES,
    SAMPLED_MAX,
    Break,
    Code,
    Finding,
    Opening,
    SegmentLeaf,
    ShownLeaf,
    WindowProof,
    break_to_value,
    encode_leaf,
    findings_to_value,
    opening_to_value,
    window_proof_to_value,
)
from tasks.spec import Model, decode_spec, encode_spec
from tasks.trials import LINKS_MAX, SAMPLES_MAX, ShownLink, shown_to_value
from tests.ethereum import sign_dynamic
from tests.tasks import containers, groups, quorums
from tests.tasks.generated import generated
from tests.tasks.keepers import KEPT, KeptWorld
from tests.tasks.ledger.test_conservation import play
from tests.tasks.ledger.test_custody_conservation import play_kept
from tests.tasks.ledger.test_trials import play_trials
from tests.tasks.trained import trained
from tests.tasks.tuned import tuned
from tests.tasks.world import DKB, HONEST, QUICK, REQUESTER, Manners, World, leaves_of, proof_of, spec

CALLS_PER_1000_GAS: Final = 4
PROGRAM_CALLS_PER_1000_GAS: Final = 9
"""Of calls that build a program: they make small tuples. A block full of new jobs takes some 0.3 s (0138)."""
PROGRAM_CALLS: Final = 32_000
"""Of building the largest program of a job."""
WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY


def calls_of(work: Callable[[], Any]) -> int:
    """Count the calls of Python and built-in functions that ``work`` makes."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


@pytest.fixture
def dearest(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """The most calls of each kind that was sent in any world, with decoding."""
    found: dict[int, int] = {}
    send = World.send

    def counting(world: World, sender: bytes, kind: int, payload: list[Value]) -> str | None:
        answer: list[str | None] = []
        calls = calls_of(lambda: answer.append(send(world, sender, kind, payload)))
        found[kind] = max(found.get(kind, 0), calls)
        return answer[0]

    monkeypatch.setattr(World, "send", counting)
    return found


GAS_PER_BYTE_MIN: Final = 50
CHUNK: Final[list[Value]] = [
    CHUNKS_MAX - 1, b"c" * CHUNK_BYTES, [b"h" * 32] * SIBLINGS_MAX, b"p" * 32, [b"h" * 32] * SIBLINGS_MAX,
]  # fmt: skip


def largest(kind: int) -> list[Value]:
    """Return the payload of a kind with the most bytes that it may have, more or less."""
    task, amount, window = b"t" * 32, (1 << 127) - 1, (1 << 32) - 1
    gpus = tuple(Gpu("g" * TEXT_MAX, 1 << 39) for _ in range(8))
    wide, text, h = 1 << 39, "e" * TEXT_MAX, b"h" * 32
    profile = NodeProfile(
        b"o" * 20, CHECK, gpus, wide, wide, wide, (1 << 100) - 1, wide, 1 << 15, wide, (text,) * 4, text, b"c" * 65
    )
    leaf = SegmentLeaf(255, 1 << 31, 1 << 31, h, h, (1 << 64) - 1, h, h)
    shown = ShownLeaf(b"l" * LEAF_LIMIT_BYTES, (b"h" * 32,) * 8)
    opening = Opening(leaf, shown.siblings, b"s" * 32, b"p" * 32, ShownLeaf(encode_leaf(leaf), shown.siblings))
    job = spec().changed(model=Model("mlp", (4096, *[300] * 7, 16), "relu"))
    match kind:
        case transitions.REGISTER_NODE | transitions.UPDATE_NODE:
            payload = transitions.node_payload(profile, amount)
            assert len(encode(payload[0])) > 0.8 * PROFILE_LIMIT_BYTES
            return payload
        case transitions.RETIRE_NODE | transitions.SUSPEND_NODE | transitions.HEARTBEAT:
            return []
        case transitions.CREATE_TASK:
            return [encode_spec(job)]
        case group_transitions.CREATE_GROUP:
            return [encode_spec(job), 64, 8]
        case group_transitions.ADD_SEATS:
            return [task, [h] * 8, amount]
        case transitions.START_TASK:
            return [task, task]
        case transitions.SUBMIT_WINDOW:
            proof = proof_of(spec(), task, 0, leaves_of(spec(), 0, b"i" * 32))
            return [window_proof_to_value(proof._replace(step_from=1 << 31, step_to=1 << 31))]
        case transitions.SEAL_VERDICT:
            return [task, window, task]
        case transitions.DECLINE_SEAT | serving_transitions.SERVE_WINDOW:
            return [task, window]
        case dispute_transitions.MOVE:
            return [task, window, window, window, b"m" * MOVE_LIMIT_BYTES]
        case dispute_transitions.SEAL_CHALLENGE:
            return [task, window, task, amount]
        case dispute_transitions.OPEN_CHALLENGE:
            return [task, window, window, 255, task, task, (1 << 64) - 1, task]
        case dispute_transitions.RESUME_DISPUTE:
            return [task, window, window, amount]
        case dispute_transitions.SHOW_BREAK:
            return [task, window, *break_to_value(Break(255, shown, shown))]
        case custody_transitions.ASK_CUSTODY:
            return [task, task, 64, amount]
        case custody_transitions.TAKE_CUSTODY:
            return [task, 9_999, amount]
        case custody_transitions.DEMAND_CUSTODY:
            return [task, 9_999, b"c" * 20, amount]
        case custody_transitions.ANSWER_DEMAND:
            return [task, 9_999, CHUNK]
        case custody_transitions.RECEIVE_CUSTODY | custody_transitions.END_CUSTODY:
            return [task, 9_999]
        case custody_transitions.REVEAL_GARBAGE:
            return [task, 9_999, task, [9_999, 10_064, [h] * 14], CHUNK]
        case custody_transitions.KEEP_INPUT:
            return [task, CUSTODY_SIZE_LIMIT - 1, h, h, amount]
        case custody_transitions.CLAIM_GARBAGE:
            return [task, h, [9_999, 10_064, [h] * 14], CHUNK]
        case custody_transitions.CLAIM_KEYED:
            return [*largest(claim_transitions.CLAIM_INPUT), h, [9_999, 10_064, [h] * 14]]
        case custody_transitions.CLAIM_PLAIN:
            plain = PlainChunk(CHUNKS_MAX - 1, b"c" * CHUNK_BYTES, (h,) * SIBLINGS_MAX)
            shown_of = (plain,) * PLAIN_CHUNKS_MAX
            return [plain_claim_to_value(PlainClaim(task, Fault.NODE, NodePlace(1, 3, 1 << 34), shown_of))]
        case custody_transitions.REVEAL_MISMATCH:
            leaf_of_state: list[Value] = [1 << 15, h, [h] * 17, 1 << 24, b"v" * 128, [h] * SIBLINGS_MAX]
            return [task, 9_999, [CHUNKS_MAX - 1, b"c" * CHUNK_BYTES, [h] * SIBLINGS_MAX], leaf_of_state]
        case claim_transitions.CLAIM_DIVERGED:
            claim = Divergence(wide, 99_999, 9_999, 9_999, h)
            claimed = WindowProof(task, 9_999, 1, wide, h, h, h, 256, h, h, (wide, h, h), claim)
            return [window_proof_to_value(claimed)]
        case claim_transitions.CLAIM_INPUT:
            chunk = BlobChunk((1 << 23) - 1, b"c" * BLOB_CHUNK_BYTES, (h,) * 9)
            place = NodePlace(1, 3, 1 << 34)
            return [claim_to_value(InputClaim(task, Fault.NODE, place, 1 << 35, h, (h,) * 66, (chunk,) * 4))]
        case trial_transitions.ASK_TRIAL:
            return []
        case trial_transitions.COMMIT_TRIAL:
            return [LINKS_MAX, h, amount]
        case trial_transitions.SHOW_TRIAL:
            return [[shown_to_value(ShownLink(LINKS_MAX - 1, h, h, (h,) * 17, (h,) * 17))] * SAMPLES_MAX]
        case trial_transitions.JUDGE_TRIAL:
            return [b"m" * 20, [h] * SAMPLES_MAX]
        case transitions.SET_PAYOUT:
            return [b"m" * 20, b"p" * 20]
        case bonds.SET_TERMS:
            return [b"m" * 20, b"s" * 20, bonds.SHARE_BPS_MAX, 5_000, amount]
        case bonds.SPONSOR_NODE:
            return [b"m" * 20, bonds.SHARE_BPS_MAX, 5_000, amount, amount]
        case bonds.WITHDRAW_SPONSOR:
            return [b"m" * 20, amount]
        case transitions.REVEAL_VERDICT:
            finding = Finding(255, Code.COMPUTED, b"p" * 32, b"s" * 32, (1 << 64) - 1)
            return [task, window, findings_to_value((finding,) * SAMPLED_MAX), task]
        case transitions.OPEN_WINDOW:
            return [task, window, [opening_to_value(opening)] * SAMPLED_MAX]
        case tampering.REPORT_TAMPERING:
            return tampering.report_values(task, tampering.TamperSign.DRIFT)
        case metering_transitions.METER_TASK:
            return [task, SECONDS_MAX]
        case metering_transitions.FINISH_TASK:
            end = ContainerEnd(ExitKind.EXITED, 255, h, OUTPUT_BYTES_MAX, h, LOG_BYTES_MAX, b"")
            return metering_transitions.finish_values(task, SECONDS_MAX, end)
        case checkpoint_transitions.CHECKPOINT_TASK:
            return [task, SECONDS_MAX, h, CHECKPOINT_BYTES_MAX]
        case checkpoint_transitions.MISS_CHECKPOINT:
            return [task, h]
        case quorum_transitions.SEAL_OUTPUT:
            return [task, SECONDS_MAX, h]
        case quorum_transitions.REVEAL_OUTPUT:
            return [task, h, h]
        case _:
            return [task, amount]


def test_no_kind_fills_a_block_for_little() -> None:
    key, big = SecretKey(b"k" * 32), (1 << 60) - 1
    for kind, rule in World().rules.items():
        raw = sign_transaction(
            key, chain_id=1 << 40, nonce=1 << 40, kind=kind, payload=largest(kind), gas_limit=big,
            max_fee_per_gas=big, max_priority_fee_per_gas=big,
        )  # fmt: skip
        assert rule.gas >= GAS_PER_BYTE_MIN * len(raw), (rule.name, len(raw))
    noted = sign_dynamic(
        key, chain_id=1 << 40, nonce=1 << 40, to=b"t" * 20, value=1 << 100, data=b"n" * NOTE_LIMIT_BYTES,
        gas=1 << 40, fee=big,
    )  # fmt: skip
    assert GAS_PER_BYTE_MIN * len(noted) <= TRANSFER_GAS < 2 * GAS_PER_BYTE_MIN * len(noted)


def check(dearest: dict[int, int]) -> None:
    gas = {kind: rule.gas for kind, rule in World().rules.items()}
    assert {kind: calls for kind, calls in dearest.items() if 1000 * calls > CALLS_PER_1000_GAS * gas[kind]} == {}


def play_unserved() -> None:
    """A worker of whose window nobody gets anything answers, and loses its bond."""
    world = World()
    world.add_machine(1, roles=WORK)
    for at in range(20):
        world.add_machine(at + 100, roles=CHECK, manners=Manners(blind=True))
    world.run(world.create(), until=lambda record: record.reason == Reason.NOT_SERVED)


def play_groups() -> None:
    """A group of as many seats as there may be is made, and ends; the last seats make it a bid."""
    world = World()
    for at in range(80):
        world.add_machine(at + 1, roles=WORK)
    groups.create(world, 64, 8)
    world.block()
    other = groups.create(world, 64, 8)
    assert world.send(REQUESTER, CANCEL_GROUP, [other]) is None


def play_containers() -> None:
    """A container is metered, and ends."""
    world = World()
    containers.host(world, 1)
    task, worker = containers.started(world)
    world.block(359_000)
    assert containers.meter(world, worker, task, 300) is None
    assert containers.finish(world, worker, task, 303) is None
    containers.host(world, 2)
    task, worker = containers.started(world, containers.container(checkpoint=containers.STORED))
    world.block(359_000)
    for at, seconds in enumerate((100, 200, 300)):
        assert containers.store(world, worker, task, seconds, bytes([at]) * 32) is None
    assert world.send(worker, transitions.GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)]) is None
    while not (other := world.task(task).worker):
        world.block()
    assert world.send(other, transitions.ACCEPT_TASK, [task, 0]) is None
    assert containers.miss(world, other, task, b"\2" * 32) is None
    while not (other := world.task(task).worker):
        world.block()
    assert world.send(other, transitions.ACCEPT_TASK, [task, 0]) is None
    assert world.send(other, transitions.START_TASK, [task, b"m" * 32]) is None
    assert containers.store(world, other, task, 1, b"\3" * 32) == "meter_ahead"
    world.block(61_000)
    assert containers.store(world, other, task, 61, b"\3" * 32) is None
    assert world.send(REQUESTER, checkpoint_transitions.MISS_CHECKPOINT, [task, b"\3" * 32]) is None
    containers.host(world, 3)
    task, worker = containers.started(world)
    assert world.send(worker, tampering.REPORT_TAMPERING, [task, 1]) is None


def play_quorums() -> None:
    """Machines of a quorum agree, one differs, all differ, and a requester cancels."""
    hands = quorums.Hand(), quorums.Hand(b"other"), quorums.Hand(b"third")
    for machines in ((hands[0],) * 2, (hands[0], hands[1], hands[0]), hands):
        quorums.Play(*machines).play()
    play = quorums.Play(quorums.Hand(run_s=10), quorums.Hand(run_s=10**6))
    task = play.create()
    play.run_until(lambda: any(seat.seal for seat in play.quorum.seats))  # seats are drawn
    assert play.world.send(REQUESTER, transitions.CANCEL_TASK, [task]) is None
    play.run()


@pytest.mark.slow
def test_every_kind_pays_for_what_it_does_in_histories_of_everything(dearest: dict[int, int]) -> None:
    kinds = World().rules.keys()
    play_trials()
    play_groups()
    play_containers()
    play_quorums()
    for seed in range(6):
        play_kept(seed)
    for seed in range(9, 40):  # as many as hold every kind
        play(seed)
        if dearest.keys() == kinds - {serving_transitions.SERVE_WINDOW}:
            break
    play_unserved()
    assert dearest.keys() == kinds
    check(dearest)


@pytest.mark.parametrize(
    ("width", "kind", "seats"), [(3, transitions.CREATE_TASK, []), (4, group_transitions.CREATE_GROUP, [1, 0])]
)
def test_a_job_pays_for_the_program_that_its_specification_is_checked_with(
    width: int, kind: int, seats: list[Value]
) -> None:
    """The largest, which nobody asked for before; later ones of the same sizes are found."""
    raw = encode_spec(spec().changed(model=Model("mlp", (5, width, 5, width, 5, width, 5, width, 2), "silu")))
    world, requester, answers = World(), b"q" * 20, list[str | None]()
    credit(world.state, requester, 1000 * DKB)
    assert calls_of(lambda: decode_spec(raw)) < 1_100, "nobody pays for what is refused"
    calls = calls_of(lambda: answers.append(world.send(requester, kind, [raw, *seats])))
    assert answers == [None]
    gas = world.rules[kind].gas
    assert 20_000 < calls < PROGRAM_CALLS_PER_1000_GAS * gas / 1000


@pytest.mark.parametrize(
    ("layers", "clip", "least", "beta", "kind", "seats"),
    [
        (CLIPPED_MAX // 14, NANO, 0.45, 0, transitions.CREATE_TASK, []),
        (75, 0, 0.9, 0, transitions.CREATE_TASK, []),
        (75, 0, 0.9, 0, group_transitions.CREATE_GROUP, [1, 0]),
        (CLIPPED_MAX // 14, NANO, 0.6, NANO // 10, transitions.CREATE_TASK, []),
        (58, 0, 0.9, NANO // 10, group_transitions.CREATE_GROUP, [1, 0]),
    ],
)
def test_the_largest_step_of_fine_tuning_pays_for_its_check_and_its_program(
    layers: int, clip: int, least: float, beta: int, kind: int, seats: list[Value]
) -> None:
    """All of a layer that a job may have: no other check or pattern of a program takes more.

    Clipping is for fewer layers: a step with it has half of the calls, but more for each layer. With preferences
    (R135), accumulation, evaluations and the best adapters there are the most.
    """
    loop = TrainingLoop(accumulate=2, evaluate_every=1, keeps_best=1) if beta else TrainingLoop()
    job = tuned(1, PROJECTIONS, samples=3, loop=loop, preference=beta)[0]
    part: Any = job.part
    job = job.changed(
        model=part.model._replace(layers=layers, tied=0, biased=1), rates=part.rates._replace(clip_nano=clip),
        optimiser=part.optimiser._replace(weight_decay_nano=1, beta1_nano=layers + kind),
    )  # fmt: skip
    raw, world, requester, answers = encode_spec(job), World(), b"q" * 20, list[str | None]()
    credit(world.state, requester, 1000 * DKB)
    assert calls_of(lambda: decode_spec(raw)) < 7_000, "nobody pays for what is refused"
    plan = job.plan()
    assert isinstance(plan, tuning_plan.TuningPlan)
    assert STEP_CALLS_MAX * least < plan.step_calls <= STEP_CALLS_MAX
    calls = calls_of(lambda: answers.append(world.send(requester, kind, [raw, *seats])))
    assert answers == [None]
    assert 50_000 < calls < PROGRAM_CALLS_PER_1000_GAS * world.rules[kind].gas / 1000

    def use() -> None:
        program = job.program()
        assert program.size_bytes and program.places[program.loss] and len(program.traced)

    assert 50_000 < calls_of(use) < PROGRAM_CALLS_PER_1000_GAS * MOVE_GAS / 1000
    assert calls_of(use) < 2_000, "what was built is found"


@pytest.mark.parametrize(("layers", "clip"), [((CLIPPED_MAX - 3) // 9, NANO), (130, 0)])
def test_the_largest_step_that_trains_a_decoder_pays_for_its_check_and_its_program(layers: int, clip: int) -> None:
    job = trained()[0]
    part: Any = job.part
    job = job.changed(
        model=part.model._replace(layers=layers, tied=0), rates=part.rates._replace(clip_nano=clip),
        optimiser=part.optimiser._replace(weight_decay_nano=1, beta1_nano=layers),
    )  # fmt: skip
    raw, world, requester, answers = encode_spec(job), World(), b"q" * 20, list[str | None]()
    credit(world.state, requester, 1000 * DKB)
    assert calls_of(lambda: decode_spec(raw)) < 7_000, "nobody pays for what is refused"
    calls = calls_of(lambda: answers.append(world.send(requester, transitions.CREATE_TASK, [raw])))
    assert answers == [None]
    weight = world.rules[transitions.CREATE_TASK].gas
    assert 30_000 < calls < PROGRAM_CALLS_PER_1000_GAS * weight / 1000

    def use() -> None:
        program = job.program()
        assert program.size_bytes and program.places[program.loss] and len(program.traced)

    assert 30_000 < calls_of(use) < PROGRAM_CALLS_PER_1000_GAS * MOVE_GAS / 1000


def test_decoding_with_the_deepest_model_pays_for_its_check_and_its_program() -> None:
    job = generated()[0]
    part: Any = job.part
    job = job.changed(model=part.model._replace(layers=LAYERS_MAX, tied=0, biased=1))
    raw, world, requester, answers = encode_spec(job), World(), b"q" * 20, list[str | None]()
    credit(world.state, requester, 1000 * DKB)
    assert calls_of(lambda: decode_spec(raw)) < 7_000, "nobody pays for what is refused"
    calls = calls_of(lambda: answers.append(world.send(requester, transitions.CREATE_TASK, [raw])))
    assert answers == [None]
    assert 10_000 < calls < PROGRAM_CALLS_PER_1000_GAS * world.rules[transitions.CREATE_TASK].gas / 1000

    def use() -> None:
        program = job.program()
        assert program.size_bytes and program.places[program.loss] and len(program.traced)

    assert 5_000 < calls_of(use) < PROGRAM_CALLS_PER_1000_GAS * MOVE_GAS / 1000
    assert calls_of(use) < 2_000, "what was built is found"


def test_a_move_that_opens_as_many_leaves_as_it_may_weighs_what_judging_it_takes() -> None:
    leaf = b"l" * 64
    depth = MOVE_LIMIT_BYTES // (LEAVES_OPENED_MAX * 34) - 3
    siblings = tuple(bytes([at]) * 32 for at in range(depth))
    root = root_of_proof(leaf, siblings)
    each = LEAVES_OPENED_MAX // TENSORS_MAX
    tensors = tuple(
        TensorOpening(at, root, (), (LeafOpening(0, leaf, siblings),) * each) for at in range(TENSORS_MAX)
    )
    data = encode_move(Name(1, 1, 1, tensors))
    assert 0.8 * MOVE_LIMIT_BYTES < len(data) <= MOVE_LIMIT_BYTES

    def judge() -> None:
        move = decode_move(data)
        assert isinstance(move, Name)
        for opening in move.openings:
            for opened in opening.leaves:
                proof = MerkleProof(0, 1 << depth, opened.siblings)
                assert verify_merkle_proof(opening.root, opened.content, proof)

    # The rest of the judgement is a small part of it; the program may have to be built first.
    assert 1000 * (calls_of(judge) + PROGRAM_CALLS) <= CALLS_PER_1000_GAS * MOVE_GAS


SPONSOR: Final = b"s" * 20


def sponsored(world: World, address: bytes, withhold_to: int) -> None:
    """Have all that a machine earns be divided: its sponsor's share, what its bond grows by, and the rest."""
    node = require_node(world.state, address)
    world.fund(SPONSOR, DKB)
    bond_vault(world.state, address, world.events.append, world.height).lock(
        Pool.BOND, SPONSOR, DKB, Purpose.SPONSOR_BOND, owner=SPONSOR
    )
    save_node(
        world.state,
        node._replace(
            sponsor=SPONSOR, sponsored=DKB, share_bps=1_000, withhold_bps=5_000, withhold_to=withhold_to,
            payout=b"p" * 20,
        ),
    )  # fmt: skip


@pytest.mark.parametrize("phase", [Phase.ASSIGNED, Phase.PREPARING, Phase.RUNNING])
@pytest.mark.parametrize("grows", [1, DKB])
@pytest.mark.parametrize("kind", [transitions.CANCEL_TASK, transitions.GIVE_UP_TASK])
def test_who_ends_a_task_or_leaves_it_pays_for_that_also_with_a_sponsored_worker_and_holds(
    kind: int, phase: Phase, grows: int
) -> None:
    """What is held for 16 sponsored workers takes 10,000 calls more: a deadline pays it, and no transaction."""
    world = World()
    world.add_machine(99, roles=CHECK)
    silent = {Phase.ASSIGNED: Action.ACCEPT, Phase.PREPARING: Action.START, Phase.RUNNING: Action.COMPUTE}[phase]
    worker = world.add_machine(1, roles=WORK, manners=Manners(silent=frozenset({silent})))
    task = world.create(spec(match_ms=3_600_000))
    world.run_to(task, phase)
    for at in range(100, 100 + RELEASES_MAX):
        other = world.add_machine(at, roles=CHECK)
        sponsored(world, other, 1 << 100)
        Vault.load(world.state, task, world.events.append, world.height).hold(
            Pool.PRICE, Pool.HOLD, 1_000, Purpose.WINDOW_HOLD, target_owner=other
        )
    sponsored(world, worker, QUICK.node_bond_min + grows)
    cancels = kind == transitions.CANCEL_TASK
    sender = REQUESTER if cancels else worker
    payload: list[Value] = [task] if cancels else [task, int(Reason.WORKER_LEFT)]
    answers: list[str | None] = []
    calls = calls_of(lambda: answers.append(world.send(sender, kind, payload)))
    assert answers == [None]
    assert 1000 * calls <= CALLS_PER_1000_GAS * world.rules[kind].gas
    if cancels and phase != Phase.RUNNING:
        assert world.task(task).phase == Phase.CANCELLED
        world.block()
        world.block()
        assert Vault.load(world.state, task, world.events.append, world.height).total(Pool.HOLD) == 0


def test_opening_a_window_builds_no_program_for_the_games_that_it_begins() -> None:
    job = spec().changed(model=Model("mlp", (5, 3, 5, 3, 5, 3, 5, 3, 2), "relu"))
    world = World()
    world.add_machine(1, roles=WORK)
    world.add_machine(2, roles=CHECK)
    task = world.create(spec(total=20))
    world.run(task, until=lambda record: record.next_window > 0)
    window = load_window(world.state, task, 0)
    opened = Opened(0, b"b" * 32, b"s" * 32, b"w" * 32, 0)

    def begin_game() -> None:
        begin(question_of(job, window, opened, needs_program=False))

    assert calls_of(begin_game) < 200 < 5_000 < calls_of(lambda: question_of(job, window, opened))


def root_of_proof(leaf: bytes, siblings: tuple[bytes, ...]) -> bytes:
    """The root of a tree in whose first leaf ``leaf`` is, with these siblings."""
    node = leaf_hash(leaf)
    for sibling in siblings:
        node = ancestor_of([node, sibling], 1)
    return root_of_top(1 << len(siblings), node)


def test_the_last_word_of_a_jury_leaves_what_it_ends_to_the_end_of_the_block(dearest: dict[int, int]) -> None:
    """That voids as many windows as may be open, with all their verifiers, of a machine that is new."""
    parameters = replace(
        QUICK, samples=TaskParameters().samples, verifiers_sure=3, new_windows=10, final_ms=100_000,
        seal_ms_min=60_000, reveal_ms=60_000, jury=3,
    )  # fmt: skip
    world = World(parameters=parameters)
    worker = world.add_machine(1, roles=WORK, manners=HONEST)
    for at in range(30):
        world.add_machine(at + 100, roles=CHECK, manners=Manners(blind=True))
    task = world.create(spec(total=320, segment=1, window=20, match_ms=3_600_000))

    def two_wait(record: TaskRecord) -> bool:
        return record.next_window == 3 and all(
            load_window(world.state, task, number).phase >= WindowPhase.REVEALING for number in range(2)
        )

    world.run(task, until=two_wait)
    world.run(task, until=lambda record: record.reason == Reason.NOT_SERVED)
    assert world.task(task).next_window == 0 and worker in world.task(task).excluded
    assert world.task(task).phase == Phase.DEGRADED
    assert dearest[SEAL_VERDICT] and 0 < dearest[REVEAL_VERDICT] < 1_500
    check(dearest)


@pytest.mark.parametrize("copies", [2, 4])
def test_who_ends_custody_pays_for_what_its_sponsored_custodians_get(copies: int) -> None:
    """Four are paid, with a share for their sponsors and one for their bonds, and have their bonds back."""
    world = KeptWorld(parameters=replace(KEPT, custody_copies=copies))
    world.add_machine(1, roles=WORK)
    world.add_machine(2, roles=CHECK)
    for at in range(6):
        world.add_keeper(10 + at)
    task = world.create()
    world.run_to(task, Phase.SETTLED)
    for holder in world.holders(task, 0):
        sponsored(world, holder, 1 << 100)
    answers: list[str | None] = []
    calls = calls_of(lambda: answers.append(world.end(task, 0)))
    assert answers == [None]
    assert 1000 * calls <= CALLS_PER_1000_GAS * world.rules[custody_transitions.END_CUSTODY].gas, calls


def test_a_receiver_pays_for_what_it_and_its_sponsor_get() -> None:
    world = KeptWorld()
    world.add_machine(1, roles=WORK)
    world.add_machine(2, roles=CHECK)
    for at in range(6):
        world.add_keeper(10 + at)
    task = world.create()
    world.run_to(task, Phase.SETTLED)
    holder = world.holders(task, 2)[0]
    for _ in range(2):
        world.unsigning = set(world.machines)
        assert world.demand(task, 2, holder) is None
        for _ in range(4):
            world.block()
            world.keep()
    asked = load_custody(world.state, task, 2).demand
    assert asked is not None and asked.receiver
    sponsored(world, asked.receiver, 1 << 100)
    answers: list[str | None] = []
    kind = custody_transitions.RECEIVE_CUSTODY
    calls = calls_of(lambda: answers.append(world.send(asked.receiver, kind, [task, 2])))
    assert answers == [None]
    assert 1000 * calls <= CALLS_PER_1000_GAS * world.rules[kind].gas, calls
