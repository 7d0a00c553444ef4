"""A market without a network: the real rules and hooks over a real overlay, and machines that do their duties."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from billing.escrow import Pool, Vault, check_escrows, check_touched_escrows
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, encode
from state.primitives.errors import ProtocolError
from state.primitives.genesis import ChainParameters
from state.primitives.hashing import digest
from state.primitives.receipts import Event
from state.transition.rules import BlockContext, Context
from state.transition.steady import save_steady_time, steady_time
from state.view import EMPTY, Overlay, Table
from state.view.accounts import balance_of, burned, credit
from tasks.claims import claim_to_value, find_fault
from tasks.dispute.game import Side
from tasks.dispute.moves import decode_move, encode_move
from tasks.dispute.records import decode_game
from tasks.dispute.shares import challenge_bond
from tasks.ledger import queries
from tasks.ledger.claim_transitions import CLAIM_DIVERGED, CLAIM_INPUT
from tasks.ledger.dispute_transitions import MOVE, OPEN_CHALLENGE, RESUME_DISPUTE, SEAL_CHALLENGE, SHOW_BREAK
from tasks.ledger.disputes import challenge_seal, load_dispute, load_docket, load_moves
from tasks.ledger.lifecycle import Phase
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.queries import Action, CheckDuty, DisputeDuty, WorkDuty
from tasks.ledger.questions import diverged_in
from tasks.ledger.records import TaskRecord, load_window
from tasks.ledger.registry import Gpu, NodeProfile, NodeRole, load_node, read_node, require_node, save_node
from tasks.ledger.serving_transitions import SERVE_WINDOW
from tasks.ledger.transitions import (
    ACCEPT_TASK,
    CREATE_TASK,
    HOLDINGS,
    OPEN_WINDOW,
    REGISTER_NODE,
    REVEAL_VERDICT,
    SEAL_VERDICT,
    START_TASK,
    SUBMIT_WINDOW,
    endowments,
    hooks,
    node_payload,
    rules,
    task_id_of,
)
from tasks.programs.divergence import Divergence
from tasks.proofs import (
    Break,
    Code,
    Finding,
    SegmentLeaf,
    ShownLeaf,
    WindowProof,
    break_to_value,
    delivery_digest,
    encode_leaf,
    find_break,
    findings_to_value,
    make_opening,
    opening_to_value,
    segment_root,
    verdict_seal,
    window_proof_to_value,
    work_seal,
)
from tasks.spec import Dataset, JobSpec, Model, Optimiser, Requirements, Schedule, classifier_job, encode_spec
from tests.tasks.toywork import INIT_ROOT, Diverged, end_of, found_of, next_move, toy_question

DKB: Final = 10**18
REQUESTER: Final = b"R" * 20
WHOLE_CHECK_BLOCKS: Final = 16
"""Every so many blocks all escrows are checked against their whole bills; in between, those that it touched."""
WORLDS_KEPT: Final = 8
START_MS: Final = 1_700_000_000_000
QUICK: Final = TaskParameters(
    presence_ms=10**12,
    registration_valid_ms=10**12, samples=2, verifiers=1, verifiers_sure=1, new_windows=0, accept_ms=5_000,
    prepare_ms=10_000, window_grace_ms=20_000, replace_ms=30_000, pause_ms=60_000, draw_retry_ms=2_000,
    seal_ms_min=10_000, seal_slack=1, reveal_ms=5_000, final_ms=3_000, bond_release_ms=20_000, cool_down_ms=4_000,
    cool_down_doublings_max=2, match_retry_ms=2_000, retire_ms=10_000, check_fee_min=10**12,
    decline_ms=1_000, decline_doublings_max=2, reputation_charge_min=1, open_windows_max=3, opening_extra_ms=5_000,
    window_extra_ms=0,
    dispute_move_ms=5_000, dispute_side_ms=60_000, dispute_resume_ms=20_000,
    call_ms=0, order_blocks=0, serve_ms=20_000, audit_bps=10_000, segments_per_sample=1, draw_blocks=2,
    custody_copies=0,
)  # fmt: skip
"""Short times, and no custody: tests of that are played with ``tests.tasks.keepers.KEPT``."""


WORTH: Final = 6_600 * DKB
"""Price of 10^12 work units at which a window of ``spec()`` costs about 2 DKB."""


def spec(
    *, total: int = 60, segment: int = 5, window: int = 20, price: int = WORTH // 1000, match_ms: int = 60_000,
    gpus: int = 0,
) -> JobSpec:  # fmt: skip
    return classifier_job(
        kind="train", level=3, profile="exact/2", model=Model("mlp", (64, 32, 10), "relu"),
        dataset=Dataset(b"d" * 32, b"D" * 32, 1797, 1437, 4), batch=32,
        optimiser=Optimiser("adamw", 1_000_000, 900_000_000, 999_000_000, 10, 0), seed=b"s" * 32,
        init_root=INIT_ROOT, schedule=Schedule(total, segment, window),
        max_price_per_tera_unit=price, requirements=Requirements(gpus, 0, 0), match_ms=match_ms,
    )  # fmt: skip


_works: dict[bytes, bytes] = {}


def work_of(leaf: SegmentLeaf) -> bytes:
    """The work digest under the seal of a leaf, for who made the leaf."""
    return _works[leaf.seal]


def salt(step: int) -> bytes:
    return digest(b"test-salt", step.to_bytes(8, "big"))


def leaves_of(
    job: JobSpec, window: int, root_in: bytes, *, lie: bool = False, gap: int = -1
) -> list[SegmentLeaf]:  # fmt: skip
    """The leaves of a window; each state of a liar's is wrong. Segment ``gap`` starts from a state of nobody's."""
    leaves, before = [], root_in
    for segment in range(job.window_segments(window)):
        step_from, step_to = job.segment_range(window, segment)
        before = digest(b"test-gap", before) if segment == gap else before
        end = end_of(before, step_from, step_to, lie=lie)
        seal = work_seal(end.work_digest, salt(step_from))
        _works[seal] = end.work_digest
        leaves.append(
            SegmentLeaf(segment, step_from, step_to, before, end.state_root, end.loss_total, seal, b"B" * 32)
        )
        before = end.state_root
    return leaves


def claim_leaves(
    job: JobSpec, window: int, root_in: bytes, step: int, *, forged: bool = False
) -> tuple[list[SegmentLeaf], Divergence]:
    """The leaves of a window of which ``step`` is claimed to diverge."""
    leaves, before = [], root_in
    for segment in range(job.window_segments(window)):
        step_from, step_to = job.segment_range(window, segment)
        made = Diverged(before, step_from, step + 1, forged=forged) if step < step_to else None
        end = end_of(before, step_from, step_to) if made is None else made.end
        seal = work_seal(end.work_digest, salt(step_from))
        _works[seal] = end.work_digest
        leaf = SegmentLeaf(
            segment, step_from, min(step_to, step + 1), before, end.state_root, end.loss_total, seal, b"B" * 32
        )
        leaves.append(leaf)
        if made is not None:
            return leaves, made.claim
        before = end.state_root
    raise AssertionError(f"step {step} is not in window {window}")


def found(leaf: SegmentLeaf, *, lie: bool = False, claim: Divergence | None = None) -> Finding:
    """What a verifier finds of the segment that a leaf is about."""
    if lie:
        end = end_of(leaf.state_root_before, leaf.step_from, leaf.step_to, lie=True)
    else:
        end = found_of(leaf.state_root_before, leaf.step_from, leaf.step_to, claim)
    return Finding(leaf.segment, Code.COMPUTED, end.work_digest, end.state_root, end.loss_total).against(leaf)


def proof_of(job: JobSpec, task: bytes, window: int, leaves: Sequence[SegmentLeaf]) -> WindowProof:
    step_from, step_to = job.window_range(window)
    return WindowProof(
        task, window, step_from, step_to, leaves[0].state_root_before, leaves[-1].state_root_after,
        segment_root(leaves), len(leaves), b"L" * 32, b"O" * 32,
    )  # fmt: skip


@dataclass
class Manners:
    """What a machine does wrong."""

    silent: frozenset[Action] = frozenset()
    """Actions it never takes."""
    lies: bool = False
    """As a worker its states are wrong; as a verifier it reports something else than it found."""
    blind: bool = False
    """As a verifier it reports everything as unavailable."""
    picky: bool = False
    """As a worker it gives its blobs to juries, and to nobody else."""
    forgetful: bool = False
    """As a worker it gives nobody the result of a task that has ended."""
    gap: int = -1
    """As a worker it begins this segment of each window in a state that nobody computed."""
    careless: bool = False
    """As a verifier it does not look whether leaves fit."""
    claims: int = -1
    """As a worker it claims that this step diverges; whether it does depends on the job."""
    forges: bool = False
    """As a worker that claims, it makes up a value that would diverge."""


HONEST: Final = Manners()


class Challenge(NamedTuple):
    """What an outsider sealed; ``is_opened`` tells whether it opens it when it is called."""

    address: bytes
    segment: int
    work_digest: bytes
    state_root_after: bytes
    loss_bits: int
    salt: bytes
    is_opened: bool


@dataclass
class World:
    parameters: TaskParameters = QUICK
    seed: int = 0
    state: Overlay = field(default_factory=lambda: Overlay(EMPTY))
    height: int = 1
    time_ms: int = START_MS
    issued: int = 0
    nonces: dict[bytes, int] = field(default_factory=dict)
    machines: dict[bytes, Manners] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    published: dict[tuple[bytes, int], list[SegmentLeaf]] = field(default_factory=dict)
    """What workers put into blobs."""
    sealed: dict[tuple[bytes, bytes, int, bool], tuple[Finding, ...]] = field(default_factory=dict)
    """What verifiers keep until they reveal it."""
    nonce_of_verdict: bytes = b"n" * 32
    strays: dict[bytes, bytes] = field(default_factory=dict)
    """Blobs that are no data sets, by name."""
    steady_interval_ms_max: int = 1 << 40
    """Most tests make one block after hours."""
    challenges: dict[tuple[bytes, int, int], Challenge] = field(default_factory=dict)
    """What outsiders sealed, by task, window and number."""

    def __post_init__(self) -> None:
        MADE.append(self)
        self.rules = {rule.kind: rule for rule in rules(self.parameters, toy_question)}
        self._hooks = hooks(self.parameters, toy_question)
        self.fund(REQUESTER, 1_000_000 * DKB)
        for address, amount in endowments(self.parameters).items():
            self.fund(address, amount)

    def fund(self, address: bytes, amount: int) -> None:
        credit(self.state, address, amount)
        self.issued += amount

    def context(self) -> BlockContext:
        beacon = digest(b"test-beacon", self.seed.to_bytes(8, "big") + self.height.to_bytes(8, "big"))
        chain = ChainParameters(steady_interval_ms_max=self.steady_interval_ms_max)
        return BlockContext(
            self.height, self.time_ms, 1, b"\xee" * 20, beacon, chain, 7, b"g" * 32, 0,
            steady_time(self.state, self.time_ms, chain),
        )  # fmt: skip

    def send(self, sender: bytes, kind: int, payload: list[Value]) -> str | None:
        """Apply a transaction as the runtime would; returns the code of the refusal, or None."""
        rule = self.rules[kind]
        nonce = self.nonces.get(sender, 0)
        self.nonces[sender] = nonce + 1
        emitted: list[Event] = []
        transaction_hash = digest(b"test-tx", sender + nonce.to_bytes(8, "big"))
        value = rule.decode([_received(item) for item in payload])
        before = balance_of(self.state, sender)
        self.state.mark()
        try:
            rule.apply(self.state, value, Context(self.context(), sender, nonce, transaction_hash, emitted.append))
        except ProtocolError as error:
            self.state.revert()
            return error.code
        self.state.keep()
        self.events += emitted
        assert before - balance_of(self.state, sender) <= rule.moves(value)
        return None

    def block(self, milliseconds: int = 1_000) -> None:
        """End the block and begin the next."""
        for hook in self._hooks:
            hook(self.state, self.context(), self.events.append)
        save_steady_time(self.state, self.time_ms, self.context().steady_ms)
        self.check_money()
        self.check_machines()
        before, base = Overlay(EMPTY), self.state.base
        before.changes = (
            {**base.changes, **self.state.changes} if isinstance(base, Overlay) else self.state.changes
        )
        self.state = Overlay(before)
        self.height += 1
        self.time_ms += milliseconds

    def check_machines(self) -> None:
        """Check that what is remembered of each machine that the block wrote is what another node reads."""
        for key, data in self.state.changes.items():
            if key[0] == Table.NODE and data is not None and len(key) == 1 + ADDRESS_BYTES:
                assert repr(load_node(self.state, key[1:])) == repr(read_node(key[1:], data))

    def check_money(self) -> None:
        """Check what the block did to escrows, all of these now and then, and the sum of all money."""
        if self.height % WHOLE_CHECK_BLOCKS == 0:
            check_escrows(self.state)
        check_touched_escrows(self.state)
        free = sum(
            int.from_bytes(value, "big") & (1 << 128) - 1
            for _, value in self.state.scan(bytes([Table.ACCOUNT]), bytes([Table.ACCOUNT + 1]), 10_000)
        )
        locked = sum(
            holding.amount_of(value)
            for holding in HOLDINGS
            for _, value in self.state.scan(bytes([holding.table]), bytes([holding.table + 1]), 10_000)
        )
        assert free + locked + burned(self.state) == self.issued

    # Actors

    def add_machine(
        self, name: int, *, roles: NodeRole = NodeRole.COMPUTE | NodeRole.VERIFY, manners: Manners = HONEST,
        price: int = WORTH // 2000, rate: int = 10**10, operator: bytes | None = None, gpus: int = 0,
        slots: int = 1, egress: tuple[str, ...] = (),
    ) -> bytes:  # fmt: skip
        address = bytes([name]) * 20
        self.fund(address, 1_000 * DKB)
        profile = NodeProfile(
            address, roles, tuple(Gpu("card", 1_000) for _ in range(gpus)), 64, 64_000, 64, price,
            rate, slots, 0, (), "test", egress=egress,
        )  # fmt: skip
        assert self.send(address, REGISTER_NODE, node_payload(profile, self.parameters.node_bond_min)) is None
        if operator is not None:  # as if it had signed: accounts of this world have no keys
            save_node(
                self.state, require_node(self.state, address)._replace(profile=profile._replace(operator=operator))
            )
        self.machines[address] = manners
        return address

    def create(self, job: JobSpec | None = None) -> bytes:
        nonce = self.nonces.get(REQUESTER, 0)
        assert self.send(REQUESTER, CREATE_TASK, [encode_spec(job or spec())]) is None
        return task_id_of(REQUESTER, nonce)

    def task(self, task_id: bytes) -> TaskRecord:
        return queries.find_task(self.state, task_id)

    def act(self, order: Callable[[Sequence[bytes]], Sequence[bytes]] = sorted) -> None:
        """Let every machine do what is asked of it, once."""
        for address in order(list(self.machines)):
            manners = self.machines[address]
            for work in queries.work_duties(self.state, address, self.parameters):
                if work.action not in manners.silent:
                    self.work(address, work, manners)
            for check in queries.verification_duties(self.state, address):
                if check.action not in manners.silent:
                    self.check(address, check, manners)
            for game in queries.dispute_duties(self.state, address, self.parameters):
                if Action.PLAY not in manners.silent:
                    self.play(address, game)
        self.open_called()

    def work(self, address: bytes, duty: WorkDuty, manners: Manners) -> None:
        job = queries.task_spec(self.state, duty.task)
        match duty.action:
            case Action.ACCEPT:
                refusal = self.send(address, ACCEPT_TASK, [duty.task, duty.bond])
            case Action.START if job.dataset.blob in self.strays:
                claim = find_fault(duty.task, job, self.strays[job.dataset.blob])
                assert claim is not None
                refusal = self.send(address, CLAIM_INPUT, [claim_to_value(claim)])
            case Action.START:
                refusal = self.send(address, START_TASK, [duty.task, b"m" * 32])
            case Action.METER:  # a test says what the machine of a container sends
                return
            case Action.COMPUTE if duty.blocked:
                return
            case Action.COMPUTE if duty.window == manners.claims // job.schedule.window_steps:
                refusal = self.claim(address, duty, manners)
            case Action.COMPUTE:
                leaves = leaves_of(job, duty.window, duty.state_root, lie=manners.lies, gap=manners.gap)
                self.published[duty.task, duty.window] = leaves
                proof = proof_of(job, duty.task, duty.window, leaves)._replace(state_root_in=duty.state_root)
                proof = self.proof(job, proof)
                refusal = self.send(address, SUBMIT_WINDOW, [window_proof_to_value(proof)])
            case Action.SERVE:
                refusal = self.send(address, SERVE_WINDOW, [duty.task, duty.window])
            case _:
                leaves = self.published[duty.task, duty.window]
                openings: list[Value] = [
                    opening_to_value(make_opening(leaves, at, work_of(leaves[at]), salt(leaves[at].step_from)))
                    for at in duty.segments
                ]
                refusal = self.send(address, OPEN_WINDOW, [duty.task, duty.window, openings])
        # What was asked a moment ago may be over by what the machine did since, but only then is it refused.
        assert refusal is None or duty not in queries.work_duties(self.state, address, self.parameters), refusal

    def claim(self, address: bytes, duty: WorkDuty, manners: Manners, **changes: Any) -> str | None:
        """Claim that a step of the window that is due diverges; ``changes`` are made to the proof."""
        job = queries.task_spec(self.state, duty.task)
        leaves, claim = claim_leaves(job, duty.window, duty.state_root, manners.claims, forged=manners.forges)
        self.published[duty.task, duty.window] = leaves
        proof = proof_of(job, duty.task, duty.window, leaves)
        proof = proof._replace(step_to=claim.step + 1, diverged=claim, state_root_in=duty.state_root)
        proof = self.proof(job, proof._replace(**changes))
        return self.send(address, CLAIM_DIVERGED, [window_proof_to_value(proof)])

    def proof(self, job: JobSpec, proof: WindowProof) -> WindowProof:
        """Return the proof that a worker sends; worlds with custody have commitments in it."""
        return proof

    def findings(self, duty: CheckDuty, manners: Manners) -> tuple[Finding, ...]:
        author = load_window(self.state, duty.task, duty.window).worker
        theirs = self.machines.get(author, HONEST)
        if duty.is_delivery and not (manners.blind or theirs.forgetful):
            result = self.published[duty.task, duty.window][-1].state_root_after
            result = digest(b"test-lie", result) if manners.lies else result
            return (
                Finding(duty.segments[0], Code.COMPUTED, delivery_digest(duty.salt, b"state" + result), result, 0),
            )
        broken = self.find_break(duty.task, duty.window)
        if broken is not None and not manners.careless and not manners.blind:
            return tuple(Finding(at, Code.BROKEN, bytes(32), bytes(32), 0) for at in duty.segments)
        if manners.blind or theirs.picky > duty.is_jury or duty.is_delivery:
            return tuple(Finding(at, Code.UNAVAILABLE, bytes(32), bytes(32), 0) for at in duty.segments)
        leaves = [self.published[duty.task, duty.window][at] for at in duty.segments]
        window = load_window(self.state, duty.task, duty.window)
        return tuple(found(leaf, lie=manners.lies, claim=diverged_in(window, leaf.segment)) for leaf in leaves)

    def check(self, address: bytes, duty: CheckDuty, manners: Manners) -> None:
        kept = (address, duty.task, duty.window, duty.is_jury)
        if duty.action == Action.SEAL:
            findings = self.sealed[kept] = self.findings(duty, manners)
            sealed = verdict_seal(duty.task, duty.window, address, findings, self.nonce_of_verdict)
            refusal = self.send(address, SEAL_VERDICT, [duty.task, duty.window, sealed])
        else:
            if self.sealed[kept][0].code == Code.BROKEN:
                self.show_break(address, duty.task, duty.window)
            payload: list[Value] = [
                duty.task, duty.window, findings_to_value(self.sealed[kept]), self.nonce_of_verdict,
            ]  # fmt: skip
            refusal = self.send(address, REVEAL_VERDICT, payload)
        assert refusal is None or duty not in queries.verification_duties(self.state, address), refusal

    def find_break(self, task: bytes, window: int) -> Break | None:
        """Return the first place where the leaves of a window do not fit."""
        proof, leaves = load_window(self.state, task, window).proof, self.published[task, window]
        return find_break(queries.task_spec(self.state, task), proof, leaves)

    def show_break(self, address: bytes, task: bytes, window: int) -> str | None:
        """Show where the leaves of a window do not fit; its first leaf if they do."""
        leaf = make_opening(leaves := self.published[task, window], 0, bytes(32), bytes(32))
        fine = Break(0, ShownLeaf(encode_leaf(leaves[0]), leaf.siblings), None)
        broken = self.find_break(task, window) or fine
        return self.send(address, SHOW_BREAK, [task, window, *break_to_value(broken)])

    def challenge(
        self, address: bytes, task: bytes, window: int, segment: int, *, lie: bool = False,
        root: tuple[bytes, bytes] | None = None, is_opened: bool = True, bond: int | None = None,
    ) -> str | None:  # fmt: skip
        """Seal a challenge: by default that the segment leads where running it leads, or with a lie elsewhere."""
        leaf = self.published[task, window][segment]
        claim = diverged_in(load_window(self.state, task, window), segment)
        end = found_of(leaf.state_root_before, leaf.step_from, leaf.step_to, claim)
        if lie:
            end = end_of(leaf.state_root_before, leaf.step_from, leaf.step_to, lie=True)
        work_digest, state_root = root or (end.work_digest, end.state_root)
        docket = load_docket(self.state, task, window)
        salt = digest(b"test-challenge", address + docket.seals.to_bytes(4, "big"))
        sealed = challenge_seal(task, window, segment, work_digest, state_root, end.loss_total, address, salt)
        if bond is None:
            held = Vault.load(self.state, task, self.events.append, 0).held(
                Pool.BOND, load_window(self.state, task, window).worker
            )
            bond = challenge_bond(held, docket.seals - docket.first_seal)
        made = Challenge(address, segment, work_digest, state_root, end.loss_total, salt, is_opened)
        refusal = self.send(address, SEAL_CHALLENGE, [task, window, sealed, bond])
        if refusal is None:
            self.challenges[task, window, docket.seals] = made
        return refusal

    def open_called(self) -> None:
        """Have outsiders open what is called of them, and play their games."""
        for (task, window, number), made in self.challenges.items():
            called = load_docket(self.state, task, window).called
            if made.is_opened and number in (at for at, _ in called):
                self.send(made.address, OPEN_CHALLENGE, [task, window, number, *made[1:6]])
        for address in {made.address for made in self.challenges.values()} - self.machines.keys():
            for game in queries.dispute_duties(self.state, address, self.parameters):
                self.play(address, game)

    def play(self, address: bytes, duty: DisputeDuty) -> None:
        """Make the move that is due in a dispute, or resume it, if that is still in time."""
        if duty.deadline_ms <= self.context().steady_ms:
            return
        job, place = queries.task_spec(self.state, duty.task), (duty.task, duty.window, duty.game)
        if duty.resume_price is not None:
            self.send(address, RESUME_DISPUTE, [*place, duty.resume_price])
            return
        dispute = load_dispute(self.state, *place)
        if dispute.opened is None:
            leaves = self.published[duty.task, duty.window]
            leaf = leaves[dispute.segment]
            opening = make_opening(leaves, dispute.segment, work_of(leaf), salt(leaf.step_from))
            self.send(address, MOVE, [*place, duty.number, encode(opening_to_value(opening))])
            return
        opened, side = dispute.opened, dispute.clock.side
        question = toy_question(job, load_window(self.state, duty.task, duty.window), opened)
        mine = opened if side is Side.ACCUSED else dispute
        moves = [decode_move(move) for move in load_moves(self.state, *place)]
        game = decode_game(dispute.game)
        move = next_move(question, game, side, moves, mine.work_digest, mine.state_root_after)
        if move is not None:
            refusal = self.send(address, MOVE, [*place, duty.number, encode_move(move)])
            now = queries.dispute_duties(self.state, address, self.parameters)
            assert refusal in (None, "move_too_soon") or duty not in now, refusal

    def run(self, task_id: bytes, *, until: Callable[[TaskRecord], bool], blocks: int = 400) -> TaskRecord:
        """Let the market run until ``until`` holds of the task."""
        for _ in range(blocks):
            for step in (self.block, self.act):
                step()
                if until(self.task(task_id)):
                    return self.task(task_id)
        raise AssertionError(f"not within {blocks} blocks: {self.task(task_id)}")

    def run_to(self, task_id: bytes, *phases: Phase, blocks: int = 400) -> TaskRecord:
        return self.run(task_id, until=lambda task: task.phase in phases, blocks=blocks)


def _received(value: Value) -> Value:
    return [_received(item) for item in value] if isinstance(value, (list, tuple)) else value


MADE: Final[deque[World]] = deque(maxlen=WORLDS_KEPT)
"""The worlds that were made last: tests/tasks/conftest.py checks all escrows of each once its test has passed."""
