"""What a task asks for: a job with every degree of freedom fixed, so that re-execution proves it (market.md 4.1).

The specification is canonical bytes of at most SPEC_LIMIT_BYTES; they stand in the creating transaction and in the
task's record as they were sent, and their hash names the job.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES, digest
from tasks.engines.datasets import ROWS_MAX
from tasks.engines.errors import UnsupportedJob
from tasks.engines.plan import TrainingPlan
from tasks.programs.operators.storage import SHIFT_MAX
from tasks.programs.program import Program

__all__ = [
    "GPUS_MAX",
    "KIND_TRAIN",
    "LEVEL_EXACT",
    "MODEL_MLP",
    "OPTIMISER_ADAMW",
    "PROFILE_EXACT_2",
    "SEGMENTS_MAX",
    "SPEC_LIMIT_BYTES",
    "Dataset",
    "JobSpec",
    "Model",
    "Optimiser",
    "Requirements",
    "Schedule",
    "decode_spec",
    "encode_spec",
    "spec_hash",
]

SPEC_LIMIT_BYTES: Final = 2048
SEGMENTS_MAX: Final = 256
"""Segments of a window: its proof's Merkle paths stay short and its list of leaves below 64 KiB."""
WINDOWS_MAX: Final = 10_000
STEPS_MAX: Final = 1 << 32
PRICE_MAX: Final = 1 << 100
"""Of 10^12 work units."""
RATE_MAX: Final = (1 << 53) - 1
"""Work units a second of a machine: JSON shows integers up to here without loss."""
WINDOW_STATES_BYTES_MAX: Final = 2 << 30
"""The states of a window: its worker keeps those of every open window on its disk, where verifiers fetch them."""
SEGMENT_MS_MAX: Final = 120_000
"""A segment costs a verifier at most so long by ``JobSpec.step_ms``: it can be sealed in time, and no draw keeps a
machine for long."""
STEP_UNITS_PER_MS: Final = 1 << 22
"""Work units (about a multiplication and addition each) that one slow processor core does in a millisecond: less
than half of what was measured, on a busy machine too, for models that do not fit its caches (0032)."""
WINDOW_UNITS_MAX: Final = SEGMENTS_MAX * SEGMENT_MS_MAX * STEP_UNITS_PER_MS
"""Work units of a window: as many as its segments may have. Deadlines are multiples of the time that a slow core
takes for them, eight and a half hours, and so stay within the clock's range."""
PLANS_HELD_MAX: Final = 1024
"""Plans kept in memory: every step of a task asks what its work is."""
GPUS_MAX: Final = 16
"""GPUs of a machine that the registry takes: nobody could ever have more."""
MATCH_MS_MAX: Final = 24 * 3_600_000
MEMORY_MIB_MAX: Final = 1 << 32

KIND_TRAIN: Final = "train"
LEVEL_EXACT: Final = 3
"""Assurance V3: sampled segments are re-run and must agree to the bit. V0 to V2 are refused until they exist."""
PROFILE_EXACT_2: Final = "exact/2"
"""A step is a program of operators (market.md 4.6)."""
MODEL_MLP: Final = "mlp"
OPTIMISER_ADAMW: Final = "adamw"

_VERSION: Final = 1


class Model(NamedTuple):
    """A classifier of fully connected layers; ``widths`` runs from the features to the classes."""

    name: str
    widths: tuple[int, ...]
    activation: str


class Dataset(NamedTuple):
    """The data: content address of the blob, and root of the tensors that it holds (features and labels).

    Of ``rows`` rows the first ``samples`` are for training. A feature is a byte times 2^-shift.
    """

    blob: bytes
    root: bytes
    rows: int
    samples: int
    shift: int


class Optimiser(NamedTuple):
    """The step rule; rates are in units of 1e-9."""

    name: str
    learning_rate_nano: int
    beta1_nano: int
    beta2_nano: int
    epsilon_nano: int
    weight_decay_nano: int


class Schedule(NamedTuple):
    """Steps in all, in a segment (the unit of checking) and in a window (the unit of proof and pay)."""

    total_steps: int
    segment_steps: int
    window_steps: int


class Requirements(NamedTuple):
    """What a worker must have registered. ``gpus`` 0 lets processors do the work.

    ``rate_min`` is in work units a second.
    """

    gpus: int
    memory_mib: int
    rate_min: int


class JobSpec(NamedTuple):
    """A training job.

    ``seed`` fixes the order of the samples and the initial weights, ``init_root`` commits to the state before the
    first step. ``max_price_per_tera_unit`` is the most that is paid for 10^12 work units. ``match_ms`` is how long
    a worker is looked for before the task expires.
    """

    kind: str
    level: int
    profile: str
    model: Model
    dataset: Dataset
    batch: int
    optimiser: Optimiser
    seed: bytes
    init_root: bytes
    schedule: Schedule
    max_price_per_tera_unit: int
    requirements: Requirements
    match_ms: int

    @property
    def windows(self) -> int:
        """Number of windows; the last may be shorter."""
        return -(-self.schedule.total_steps // self.schedule.window_steps)

    def window_range(self, window: int) -> tuple[int, int]:
        """Return (step_from, step_to) of ``window``, step_to exclusive."""
        start = window * self.schedule.window_steps
        return start, min(start + self.schedule.window_steps, self.schedule.total_steps)

    def window_segments(self, window: int) -> int:
        """Number of segments of ``window``; its last may be shorter."""
        start, stop = self.window_range(window)
        return -(-(stop - start) // self.schedule.segment_steps)

    def segment_range(self, window: int, segment: int) -> tuple[int, int]:
        """Return (step_from, step_to) of segment ``segment`` (from 0 in each window), step_to exclusive."""
        start, stop = self.window_range(window)
        step_from = start + segment * self.schedule.segment_steps
        return step_from, min(step_from + self.schedule.segment_steps, stop)

    @property
    def step_units(self) -> int:
        """Work units of one step: those of its program. Raises UnsupportedJob."""
        return self.plan().step_units

    @property
    def step_ms(self) -> int:
        """Milliseconds that a step costs at most whoever has nothing but one slow processor core (0032)."""
        return -(-self.step_units // STEP_UNITS_PER_MS)

    def window_units(self, window: int) -> int:
        """Work units of ``window``: what its price is counted by."""
        start, stop = self.window_range(window)
        return (stop - start) * self.step_units

    def segment_units(self, window: int, segment: int) -> int:
        """Work units of segment ``segment`` of ``window``."""
        start, stop = self.segment_range(window, segment)
        return (stop - start) * self.step_units

    def program(self) -> Program:
        """Return the program of a step. Raises UnsupportedJob."""
        return self.plan().program

    def plan(self) -> TrainingPlan:
        """Return the engine's view of the job. Raises UnsupportedJob."""
        return _plan(self.model, self.dataset, self.batch, self.optimiser, self.seed)


@lru_cache(maxsize=PLANS_HELD_MAX)
def _plan(model: Model, dataset: Dataset, batch: int, optimiser: Optimiser, seed: bytes) -> TrainingPlan:
    return TrainingPlan(
        widths=model.widths,
        activation=model.activation,
        batch=batch,
        rows=dataset.rows,
        train_rows=dataset.samples,
        shift=dataset.shift,
        seed=seed,
        learning_rate_nano=optimiser.learning_rate_nano,
        beta1_nano=optimiser.beta1_nano,
        beta2_nano=optimiser.beta2_nano,
        epsilon_nano=optimiser.epsilon_nano,
        weight_decay_nano=optimiser.weight_decay_nano,
    )


def _to_value(spec: JobSpec) -> Value:
    return [
        _VERSION,
        spec.kind,
        spec.level,
        spec.profile,
        [spec.model.name, list(spec.model.widths), spec.model.activation],
        list(spec.dataset),
        spec.batch,
        list(spec.optimiser),
        spec.seed,
        spec.init_root,
        list(spec.schedule),
        spec.max_price_per_tera_unit,
        list(spec.requirements),
        spec.match_ms,
    ]


def encode_spec(spec: JobSpec) -> bytes:
    """Return the canonical bytes of ``spec``."""
    return encode(_to_value(spec))


def spec_hash(data: bytes) -> bytes:
    """Return the hash that names the job of these specification bytes."""
    return digest(b"job-spec", data)


def _integers(items: list[Any], count: int, *, below: int = 1 << 63) -> bool:
    return len(items) == count and all(type(item) is int and 0 <= item < below for item in items)


_PARTS: Final[tuple[tuple[str, type, tuple[str, ...]], ...]] = (
    ("version", int, ()), ("kind", str, ()), ("level", int, ()), ("profile", str, ()),
    ("model", list, ("name", "widths", "activation")), ("dataset", list, Dataset._fields), ("batch", int, ()),
    ("optimiser", list, Optimiser._fields), ("seed", bytes, ()), ("init_root", bytes, ()),
    ("schedule", list, Schedule._fields), ("max_price_per_tera_unit", int, ()),
    ("requirements", list, Requirements._fields), ("match_ms", int, ()),
)  # fmt: skip
_INTEGER_LIMIT: Final = 1 << 63
_RANGES: Final[dict[str, tuple[int, int]]] = {
    "version": (_VERSION, _VERSION),
    "dataset.rows": (1, ROWS_MAX),
    "dataset.samples": (1, ROWS_MAX),
    "dataset.shift": (0, SHIFT_MAX),
    "schedule.total_steps": (1, STEPS_MAX),
    "schedule.window_steps": (1, STEPS_MAX),
    "schedule.segment_steps": (1, STEPS_MAX),
    "max_price_per_tera_unit": (1, PRICE_MAX),
    "requirements.gpus": (0, GPUS_MAX),
    "requirements.memory_mib": (0, MEMORY_MIB_MAX),
    "requirements.rate_min": (0, RATE_MAX),
    "match_ms": (1, MATCH_MS_MAX),
    **{f"optimiser.{rate}": (0, _INTEGER_LIMIT - 1) for rate in Optimiser._fields[1:]},
}
_HASHES: Final = frozenset({"dataset.blob", "dataset.root", "seed", "init_root"})


def _fault(value: Value) -> str:
    """Return which field of a decoded value is not what a specification has there, and what is expected."""
    if not isinstance(value, list) or len(value) != len(_PARTS):
        return f"a list of {len(_PARTS)} fields is expected"
    fields: dict[str, Any] = {}
    for (name, kind, inner), item in zip(_PARTS, value, strict=True):
        if type(item) is not kind:
            return f"{name}: {kind.__name__} expected"
        if not isinstance(item, list):
            fields[name] = item
        elif len(item) != len(inner):
            return f"{name}: {len(inner)} fields expected"
        else:
            fields |= {f"{name}.{part}": found for part, found in zip(inner, item, strict=True)}
    for name, found in fields.items():
        if name in _HASHES and (type(found) is not bytes or len(found) != HASH_BYTES):
            return f"{name}: {HASH_BYTES} bytes expected"
        if name in _RANGES:
            first, last = _RANGES[name]
            if type(found) is not int or not first <= found <= last:
                return f"{name}: an integer from {first} to {last} expected, not {str(found)[:80]}"
    if fields["dataset.samples"] > fields["dataset.rows"]:
        return f"dataset.samples: at most the {fields['dataset.rows']} rows, not {fields['dataset.samples']}"
    widths = fields["model.widths"]
    if type(widths) is not list or not _integers(widths, len(widths)):
        return "model.widths: a list of integers expected"
    total, segment, window = (fields[f"schedule.{name}_steps"] for name in ("total", "segment", "window"))
    if not segment <= window <= total:
        return f"schedule: segment_steps {segment} <= window_steps {window} <= total_steps {total} expected"
    if window % segment:
        return f"schedule.window_steps: a multiple of segment_steps ({segment}) expected, not {window}"
    if window // segment > SEGMENTS_MAX:
        return f"schedule: {window // segment} segments in a window, at most {SEGMENTS_MAX}"
    if total > window * WINDOWS_MAX:
        return f"schedule: {-(-total // window)} windows, at most {WINDOWS_MAX}"
    return "model.name, model.activation or optimiser.name: a text expected"


def decode_spec(data: bytes) -> JobSpec:
    """Return the specification of ``data``.

    Raises DecodeError for anything that this version cannot run: malformed, out of range, unknown profile.
    """
    value = decode(data, limit_bytes=SPEC_LIMIT_BYTES)
    match value:
        case [
            1, str(kind), int(level), str(profile),
            [str(model), list(widths), str(activation)],
            [bytes(blob), bytes(root), int(rows), int(samples), int(shift)],
            int(batch),
            [str(optimiser), *rates],
            bytes(seed), bytes(init_root),
            [int(total_steps), int(segment_steps), int(window_steps)],
            int(max_price),
            [int(gpus), int(memory_mib), int(rate_min)],
            int(match_ms),
        ] if (
            _integers(widths, len(widths)) and _integers(rates, 5)
            and {len(blob), len(root), len(seed), len(init_root)} == {HASH_BYTES}
            and 0 < samples <= rows <= ROWS_MAX and 0 <= shift <= SHIFT_MAX
            and 0 < segment_steps <= window_steps <= total_steps <= STEPS_MAX
            and window_steps % segment_steps == 0 and window_steps // segment_steps <= SEGMENTS_MAX
            and total_steps <= window_steps * WINDOWS_MAX
            and 0 < max_price <= PRICE_MAX
            and 0 <= gpus <= GPUS_MAX and 0 <= memory_mib <= MEMORY_MIB_MAX and 0 <= rate_min <= RATE_MAX
            and 0 < match_ms <= MATCH_MS_MAX
        ):  # fmt: skip
            pass
        case _:
            raise DecodeError(f"not a job specification: {_fault(value)}")
    if (kind, level, profile, model, optimiser) != (
        KIND_TRAIN, LEVEL_EXACT, PROFILE_EXACT_2, MODEL_MLP, OPTIMISER_ADAMW,
    ):  # fmt: skip
        raise DecodeError(
            f"only {KIND_TRAIN}, level {LEVEL_EXACT}, {PROFILE_EXACT_2}, {MODEL_MLP}, {OPTIMISER_ADAMW} can be run"
        )
    spec = JobSpec(
        kind=kind,
        level=level,
        profile=profile,
        model=Model(model, tuple(widths), activation),
        dataset=Dataset(blob, root, rows, samples, shift),
        batch=batch,
        optimiser=Optimiser(optimiser, *rates),
        seed=seed,
        init_root=init_root,
        schedule=Schedule(total_steps, segment_steps, window_steps),
        max_price_per_tera_unit=max_price,
        requirements=Requirements(gpus, memory_mib, rate_min),
        match_ms=match_ms,
    )
    try:
        plan = spec.plan()
    except UnsupportedJob as error:
        raise DecodeError(str(error)) from None
    if (window_steps // segment_steps + 1) * plan.state_limit_bytes > WINDOW_STATES_BYTES_MAX:
        raise DecodeError(f"the states of a window exceed {WINDOW_STATES_BYTES_MAX} bytes")
    if segment_steps * spec.step_ms > SEGMENT_MS_MAX:
        raise DecodeError(f"a segment of {segment_steps} steps costs more than {SEGMENT_MS_MAX} ms to check")
    return spec
