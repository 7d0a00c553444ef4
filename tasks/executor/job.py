"""A job as the executor runs it, and the frames between the supervisor and the job's process.

A frame is a length of 4 bytes and canonical CBOR. Both sides decode strictly: the process is built-in code, but it
works on untrusted data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeAlias

from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from tasks.dispute.moves import MOVE_LIMIT_BYTES
from tasks.engines.datasets import DATASET_BLOB_BYTES_MAX
from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.embedding_plan import EmbeddingPlan
from tasks.engines.errors import UnsupportedJob
from tasks.engines.evaluation_plan import EvaluationPlan
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.input_blobs import MODEL_SENT_BYTES_MAX
from tasks.engines.pass_plan import PassPlan
from tasks.engines.plan import TrainingPlan
from tasks.engines.plan_values import plan_from_value, plan_to_value
from tasks.engines.state import TrainingState
from tasks.engines.tuning_plan import TuningPlan
from tasks.executor.linking import Links, RunLinks, links_from, links_to_value, run_links_from
from tasks.executor.playing import (
    ANSWER_LIMIT_BYTES,
    MOVES_LIMIT_BYTES,
    MoreMoves,
    Play,
    Played,
    moves_from,
    play_from,
    play_to_value,
)
from tasks.programs.divergence import Divergence, diverged_root, divergence_from_value, divergence_to_value
from tasks.programs.errors import ProgramInvalid
from tasks.programs.llama_shape import frozen_bytes
from tasks.programs.looped import EVALUATION_LOSSES
from tasks.spec import JobSpec

__all__ = [
    "Cancel", "ChildFrame", "Failed", "Finished", "FrameReader", "Hello", "Job", "Order", "Progress", "Segment",
    "SegmentRecord", "Train", "answer_limit", "child_frame_limit",
    "decode_child_frame", "decode_parent_frame", "encode_frame", "frame", "segment_from", "segment_to_value",
]  # fmt: skip

FRAME_HEADER_BYTES: Final = 4
SMALL_FRAME_BYTES: Final = 4096
"""Limit of every frame of the process but a segment, which also carries a state."""
FRAME_ITEMS_MAX: Final = 32
"""Values of a frame of the process, at all depths."""
STATE_SENT_BYTES_MAX: Final = 1 << 28
"""State of an order, with all that is small in it."""
TEXT_MAX: Final = 400
FrozenPlan: TypeAlias = TuningPlan | GeneratingPlan | PassPlan
"""Of a job with a frozen model."""
RunPlan: TypeAlias = TrainingPlan | DecoderPlan | FrozenPlan
_PLANS: Final[Mapping[int, type[RunPlan]]] = {
    1: TrainingPlan, 2: TuningPlan, 3: GeneratingPlan, 4: EmbeddingPlan, 5: DecoderPlan, 6: EvaluationPlan,
}  # fmt: skip
"""Plans by the number that stands in a job's bytes."""
STEPS_MAX: Final = 1 << 40
SEGMENTS_MAX: Final = 1 << 20

_HELLO, _PROGRESS, _SEGMENT, _FINISHED, _FAILED, _PLAYED, _LINKS = 1, 2, 3, 4, 5, 6, 7
_TRAIN, _CANCEL, _PLAY, _MORE_MOVES, _RUN_LINKS = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class Job:
    """A plan with its data, its start and its division: segments are what is checked, windows what is paid."""

    plan: RunPlan
    dataset_root: bytes
    init_root: bytes
    total_steps: int
    segment_steps: int
    window_steps: int
    model_root: bytes = b""
    """Root of the frozen model of a job that has one."""
    adapter_root: bytes = b""
    """Root of the state with the model's adapters, of a job that has some."""

    def __post_init__(self) -> None:
        if len(self.dataset_root) != 32 or len(self.init_root) != 32:
            raise UnsupportedJob("roots of 32 bytes")
        is_tuned = isinstance(self.plan, GeneratingPlan | PassPlan) and self.plan.adapter_plan is not None
        frozen = model_size(self.plan) if isinstance(self.plan, FrozenPlan) else 0
        if len(self.model_root) != (HASH_BYTES if frozen else 0):
            raise UnsupportedJob("a root of a model where there is one")
        if len(self.adapter_root) != (HASH_BYTES if is_tuned else 0):
            raise UnsupportedJob("a root of adapters where there are some")
        if frozen > MODEL_SENT_BYTES_MAX:
            raise UnsupportedJob(f"this executor takes models of {MODEL_SENT_BYTES_MAX} bytes at most")
        if not 1 <= self.segment_steps <= self.window_steps <= self.total_steps < STEPS_MAX:
            raise UnsupportedJob("steps: a segment within a window within the whole")
        if self.window_steps % self.segment_steps or self.segments > SEGMENTS_MAX:
            raise UnsupportedJob("a window of whole segments")

    @classmethod
    def of(cls, spec: JobSpec) -> Job:
        """Return what ``spec`` asks for. Raises UnsupportedJob."""
        plan = spec.plan()
        if not isinstance(plan, TrainingPlan | DecoderPlan | FrozenPlan):
            raise UnsupportedJob(f"this executor runs no jobs of the kind {spec.kind}")
        return cls(plan, spec.dataset.root, spec.init_root, *spec.schedule, spec.model_root(), spec.adapter_root())

    @property
    def to_the_end(self) -> Job:
        """The job without an early end: who checks a segment runs the steps that its leaf says."""
        if not isinstance(self.plan, TuningPlan | DecoderPlan) or not self.plan.patience:
            return self
        return replace(self, plan=replace(self.plan, patience=0))

    def ends_at(self, state: TrainingState) -> bool:
        """Tell whether the job ends early with a state (R87)."""
        plan = self.plan
        if not isinstance(plan, TuningPlan | DecoderPlan) or not plan.patience:
            return False
        return plan.ends_at(state.step, state.tensors[EVALUATION_LOSSES])

    @property
    def segments(self) -> int:
        """Number of segments; the last may be shorter."""
        return -(-self.total_steps // self.segment_steps)

    @property
    def windows(self) -> int:
        """Number of windows; the last may be shorter."""
        return -(-self.total_steps // self.window_steps)

    def window_of(self, step_from: int) -> int:
        """Return the window of the segment that starts at ``step_from``."""
        return step_from // self.window_steps

    def segment_end(self, step_from: int) -> int:
        """Return where the segment that starts at ``step_from`` ends."""
        return min(step_from + self.segment_steps, self.total_steps)

    def encode(self) -> bytes:
        """Return the canonical bytes, by which the journal and the process know the job."""
        number = next(number for number, kind in _PLANS.items() if type(self.plan) is kind)
        return encode([number, plan_to_value(self.plan), *(getattr(self, name) for name in _REST)])

    @classmethod
    def decode(cls, data: bytes) -> Job:
        """Read a job. Raises DecodeError or UnsupportedJob."""
        match decode(data, limit_bytes=SMALL_FRAME_BYTES):
            case [
                int(number), list(plan), bytes(dataset_root), bytes(init_root), int(total), int(segment),
                int(window), bytes(model_root), bytes(adapter_root),
            ] if number in _PLANS:  # fmt: skip
                try:
                    made = plan_from_value(_PLANS[number], plan)
                except ProgramInvalid as error:
                    raise UnsupportedJob(str(error)) from None
                return cls(made, dataset_root, init_root, total, segment, window, model_root, adapter_root)
            case _:
                raise DecodeError("not a job")


def model_size(plan: FrozenPlan) -> int:
    """Return the bytes of a job's frozen model, without adapters."""
    if isinstance(plan, PassPlan):
        return plan.model_bytes
    return frozen_bytes(plan.shape.model, plan.shape.adapter if isinstance(plan, GeneratingPlan) else None)


_REST: Final = tuple(one.name for one in fields(Job) if one.name != "plan")


@dataclass(frozen=True)
class Train:
    """To the process: run ``job`` from ``state`` (None: its start) until ``step_to``, then evaluate if asked."""

    job: Job
    dataset: bytes
    state: bytes | None
    step_to: int
    evaluate: bool
    model: bytes = b""
    """Blob of the frozen model, of a job that has one."""
    guess: bytes = b""
    """Tokens that may stand in the state after the last step, of a job that decodes. They change only the time."""


@dataclass(frozen=True)
class Cancel:
    """To the process: end now."""


Order: TypeAlias = Train | Play | RunLinks
ParentFrame: TypeAlias = Order | MoreMoves | Cancel


@dataclass(frozen=True)
class Hello:
    """From the process: shut in as ``isolation`` says, computing on ``device``."""

    device: str
    isolation: frozenset[str]


@dataclass(frozen=True)
class Progress:
    """From the process: ``step`` steps are done."""

    step: int


@dataclass(frozen=True)
class SegmentRecord:
    """The record of a completed segment without its state, which may have hundreds of megabytes."""

    step_from: int
    step_to: int
    state_root_before: bytes
    state_root_after: bytes
    work_digest: bytes
    loss_bits: int
    compute_ms: int
    diverged: Divergence | None = field(default=None, kw_only=True)
    """How its last step diverges (R34): the segment ends with it."""
    ended: bool = field(default=False, kw_only=True)
    """Whether the job ends early with its last step (R87): so does the segment."""

    @property
    def is_last(self) -> bool:
        """Whether no segment follows, whatever the job's steps are."""
        return self.ended or self.diverged is not None

    @property
    def result_step(self) -> int:
        """Steps that led to the state that it leaves."""
        return self.step_to if self.diverged is None else self.diverged.step

    @property
    def result_root(self) -> bytes:
        """Root of that state."""
        return self.state_root_after if self.diverged is None else self.diverged.state_before


@dataclass(frozen=True)
class Segment(SegmentRecord):
    """From the process: a segment is done; ``state`` is the encoded state that it leaves."""

    state: bytes

    @property
    def record(self) -> SegmentRecord:
        """The segment without its state."""
        return SegmentRecord(**{one.name: getattr(self, one.name) for one in fields(SegmentRecord)})


def segment_to_value(segment: Segment) -> list[Value]:
    """Return a segment as a codec value."""
    diverged: Value = [] if segment.diverged is None else divergence_to_value(segment.diverged)
    return [
        segment.step_from, segment.step_to, segment.state_root_before, segment.state_root_after,
        segment.work_digest, segment.loss_bits, segment.compute_ms, segment.state, diverged, int(segment.ended),
    ]  # fmt: skip


def segment_from(value: list[Any]) -> Segment:
    """Return the segment of a decoded codec value. Raises DecodeError."""
    match value:
        case [
            int(step_from), int(step_to), bytes(before), bytes(after), bytes(work_digest), int(loss_bits),
            int(compute_ms), bytes(state), list(diverged), (0 | 1) as ended,
        ] if (
            0 <= step_from < step_to < STEPS_MAX and 0 <= loss_bits < 1 << 64 and 0 <= compute_ms < 1 << 48
            and all(len(root) == HASH_BYTES for root in (before, after, work_digest))
        ):  # fmt: skip
            claim = divergence_from_value(diverged) if diverged else None
            if claim is None or (not ended and claim.step + 1 == step_to and diverged_root(claim) == after):
                return Segment(
                    step_from, step_to, before, after, work_digest, loss_bits, compute_ms, state,
                    diverged=claim, ended=bool(ended),
                )  # fmt: skip
    raise DecodeError("not a segment")


@dataclass(frozen=True)
class Finished:
    """From the process: all steps are done; ``right`` of ``samples`` test samples were answered rightly."""

    right: int
    samples: int


@dataclass(frozen=True)
class Failed:
    """From the process: it cannot go on."""

    reason: str
    text: str


ChildFrame: TypeAlias = Hello | Progress | Segment | Played | Links | Finished | Failed


def frame(body: bytes) -> bytes:
    """Return ``body`` with its length before it."""
    return len(body).to_bytes(FRAME_HEADER_BYTES, "big") + body


def encode_frame(message: ParentFrame | ChildFrame) -> bytes:
    """Return a message as a frame. Of an order's model it has the size: the contents are handed over as a file."""
    match message:
        case Train(job, dataset, state, step_to, evaluate, model, guess):
            return frame(encode([_TRAIN, job.encode(), dataset, state, step_to, int(evaluate), len(model), guess]))
        case Play():
            return frame(encode([_PLAY, *play_to_value(message)]))
        case RunLinks():
            return frame(encode([_RUN_LINKS, *links_to_value(message)]))
        case Links(results):
            return frame(encode([_LINKS, b"".join(results)]))
        case MoreMoves(moves):
            return frame(encode([_MORE_MOVES, list(moves)]))
        case Cancel():
            return frame(encode([_CANCEL]))
        case Played(move):
            return frame(encode([_PLAYED, move]))
        case Hello(device, isolation):
            return frame(encode([_HELLO, device, tuple(sorted(isolation))]))
        case Progress(step):
            return frame(encode([_PROGRESS, step]))
        case Segment():
            return frame(encode([_SEGMENT, *segment_to_value(message)]))
        case Finished(right, samples):
            return frame(encode([_FINISHED, right, samples]))
        case Failed(reason, text):
            return frame(encode([_FAILED, reason[:64], text[:TEXT_MAX]]))


def decode_parent_frame(body: bytes, model: bytes = b"") -> ParentFrame:
    """Read what the supervisor sent; ``model`` came as a file. Raises DecodeError or UnsupportedJob."""
    match decode(body, limit_bytes=parent_frame_limit()):
        case [1, bytes(job), bytes(dataset), (bytes() | None) as state, int(step_to), (0 | 1) as evaluate,
              int(size), bytes(guess)] if size == len(model):  # fmt: skip
            return Train(Job.decode(job), dataset, state, step_to, bool(evaluate), model, guess)
        case [2]:
            return Cancel()
        case [3, *play]:
            return play_from(play, model)
        case [4, list(moves)]:
            return MoreMoves(moves_from(moves))
        case [5, *links]:
            return run_links_from(links)
        case _:
            raise DecodeError("not a frame for a job")


def parent_frame_limit() -> int:
    """Return the size that no frame to a process exceeds."""
    return DATASET_BLOB_BYTES_MAX + STATE_SENT_BYTES_MAX + MOVES_LIMIT_BYTES


def child_frame_limit(plan: RunPlan) -> int:
    """Return the size that no frame from a process running ``plan`` exceeds."""
    return SMALL_FRAME_BYTES + plan.state_limit_bytes


def answer_limit(order: Order) -> int:
    """Return the size that no frame from a process with ``order`` exceeds."""
    match order:
        case Train():
            return child_frame_limit(order.job.plan)
        case Play():
            return ANSWER_LIMIT_BYTES
        case RunLinks():
            return SMALL_FRAME_BYTES


def decode_child_frame(body: bytes, limit_bytes: int) -> ChildFrame:
    """Read what a process sent. Raises DecodeError."""
    match decode(body, limit_bytes=limit_bytes, limit_items=FRAME_ITEMS_MAX):
        case [1, str(device), list(isolation)] if (
            len(device) <= 64 and len(isolation) <= 16 and all(type(i) is str and len(i) <= 32 for i in isolation)
            and isolation == sorted(set(isolation))
        ):  # fmt: skip
            return Hello(device, frozenset(isolation))
        case [2, int(step)] if 0 <= step < STEPS_MAX:
            return Progress(step)
        case [3, *segment]:
            return segment_from(segment)
        case [4, int(right), int(samples)] if 0 <= right <= samples < 1 << 32:
            return Finished(right, samples)
        case [5, str(reason), str(text)] if len(reason) <= 64 and len(text) <= TEXT_MAX:
            return Failed(reason, text)
        case [6, bytes(move)] if len(move) <= MOVE_LIMIT_BYTES:
            return Played(move)
        case [7, bytes(results)]:
            return links_from(results)
        case _:
            raise DecodeError("not a frame of a job")


class FrameReader:
    """Cuts a byte stream into frames of at most ``limit_bytes``."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit, self._buffer = limit_bytes, bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take what arrived and return the frames that are now whole. Raises DecodeError on an oversized one."""
        self._buffer += data
        whole: list[bytes] = []
        while len(self._buffer) >= FRAME_HEADER_BYTES:
            size = int.from_bytes(self._buffer[:FRAME_HEADER_BYTES], "big")
            if size > self._limit:
                raise DecodeError(f"a frame of {size} bytes, limit {self._limit}")
            end = FRAME_HEADER_BYTES + size
            if len(self._buffer) < end:
                break
            whole.append(bytes(self._buffer[FRAME_HEADER_BYTES:end]))
            del self._buffer[:end]
        return whole
