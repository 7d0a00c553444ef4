"""What a task asks for: a job with every degree of freedom fixed, so that re-execution proves it (market.md 4.1).

The specification is canonical bytes of at most SPEC_LIMIT_BYTES; they stand in the creating transaction and in the
task's record as they were sent, and their hash names the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES, digest
from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.errors import UnsupportedJob
from tasks.engines.plan import TrainingPlan
from tasks.engines.starting import Start
from tasks.engines.tuning_plan import TuningPlan
from tasks.kinds.classifier import (
    CLASSIFIER_FIELDS,
    CLASSIFIER_NAMES,
    KIND_TRAIN,
    MODEL_MLP,
    OPTIMISER_ADAMW,
    ClassifierPart,
    Dataset,
    Model,
    Optimiser,
)
from tasks.kinds.container import (
    CONTAINER_FIELDS,
    CONTAINER_NAMES,
    KIND_CONTAINER,
    LEVEL_METERED,
    LEVEL_QUORUM,
    MEMORY_MIB_MIN,
    METER_RESERVED,
    PROFILE_METERED_1,
    SECOND_UNITS_MAX,
    SECONDS_MAX,
    TICK_S_MAX,
    TICK_S_MIN,
    ContainerPart,
    ContainerPlan,
    check_container,
)
from tasks.kinds.decoder import DECODER_FIELDS, DECODER_NAMES, DecoderPart, TextRows
from tasks.kinds.embed import EMBED_FIELDS, KIND_EMBED, EmbedPart
from tasks.kinds.evaluate import EVALUATE_FIELDS, EVALUATE_NAMES, KIND_EVALUATE, EvaluatePart, LabelledRows
from tasks.kinds.fields import INTEGER_MAX, SPEC_VERSION, Found, KindFields, fields_by_name, read_fields
from tasks.kinds.finetune import (
    DECODERS,
    FINETUNE_FIELDS,
    FINETUNE_NAMES,
    KIND_FINETUNE,
    FinetunePart,
    RowSet,
)
from tasks.kinds.generate import GENERATE_FIELDS, GENERATE_NAMES, KIND_GENERATE, GeneratePart, PromptSet
from tasks.kinds.gpus import order_fault
from tasks.kinds.plan import Input, JobPlan
from tasks.kinds.verifiers import ANYBODY, Verifiers
from tasks.programs.program import Program, SourceKind

__all__ = [
    "GPUS_MAX",
    "KIND_CONTAINER",
    "KIND_EMBED",
    "KIND_EVALUATE",
    "KIND_FINETUNE",
    "KIND_GENERATE",
    "KIND_TRAIN",
    "LEVEL_EXACT",
    "LEVEL_METERED",
    "LEVEL_QUORUM",
    "MODEL_MLP",
    "OPTIMISER_ADAMW",
    "PROFILE_EXACT_2",
    "PROFILE_METERED_1",
    "RATE_BAND_BPS",
    "SEGMENTS_MAX",
    "SPEC_LIMIT_BYTES",
    "ClassifierPart",
    "ContainerPart",
    "Dataset",
    "DecoderPart",
    "EmbedPart",
    "EvaluatePart",
    "FinetunePart",
    "GeneratePart",
    "JobSpec",
    "Model",
    "Optimiser",
    "Part",
    "Requirements",
    "Schedule",
    "classifier_job",
    "classifier_of",
    "classifier_plan",
    "container_job",
    "container_of",
    "decode_spec",
    "encode_spec",
    "read_checked_spec",
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
RATE_BAND_BPS: Final = 15_000
"""Rate of the fastest machine that is matched with a container, as a part of the least one."""
DISK_UNITS: Final = 1 << 16
"""Work units of a second of a MiB of a container's disk: 10 GiB are a fifteenth of a core of 10^10."""
STEP_UNITS_PER_MS: Final = 1 << 22
"""Work units (about a multiplication and addition each) that one slow processor core does in a millisecond: less
than half of what was measured, on a busy machine too, for models that do not fit its caches (0032)."""
WINDOW_UNITS_MAX: Final = SEGMENTS_MAX * SEGMENT_MS_MAX * STEP_UNITS_PER_MS
"""Work units of a window: as many as its segments may have. Deadlines are multiples of the time that a slow core
takes for them, eight and a half hours, and so stay within the clock's range."""
GPUS_MAX: Final = 16
"""GPUs of a machine that the registry takes: nobody could ever have more."""
MATCH_MS_MAX: Final = 24 * 3_600_000
MEMORY_MIB_MAX: Final = 1 << 32

LEVEL_EXACT: Final = 3
"""Assurance V3: sampled segments are re-run and must agree to the bit. Containers have level 0; others are
refused until they exist."""
PROFILE_EXACT_2: Final = "exact/2"
"""A step is a program of operators (market.md 4.6)."""


class Schedule(NamedTuple):
    """Steps in all, in a segment (the unit of checking) and in a window (the unit of proof and pay)."""

    total_steps: int
    segment_steps: int
    window_steps: int


class Requirements(NamedTuple):
    """What a worker must have registered. ``gpus`` 0 lets processors do the work.

    ``rate_min`` is in work units a second. Of a container each GPU has ``gpu_words`` in its name and
    ``gpu_memory_mib`` or more (``tasks.kinds.gpus``); nothing: any one does.
    """

    gpus: int
    memory_mib: int
    rate_min: int
    gpu_words: tuple[str, ...] = ()
    gpu_memory_mib: int = 0

    @property
    def orders_card(self) -> bool:
        """Whether not any GPU does."""
        return bool(self.gpu_words or self.gpu_memory_mib)

    def to_value(self) -> list[Value]:
        """Return the fields in their order; the last two are left out where they say nothing."""
        return [*self[:3], *([[*self.gpu_words], self.gpu_memory_mib] if self.orders_card else ())]

    @classmethod
    def of(cls, found: Found) -> Requirements:
        """Return the requirements of fields whose types are checked."""
        more: tuple[tuple[str, ...], int] | tuple[()] = ()
        if "requirements.gpu_words" in found:
            more = tuple(found["requirements.gpu_words"]), found["requirements.gpu_memory_mib"]
        return cls(*[found[f"requirements.{field}"] for field in cls._fields[:3]], *more)


Part = ClassifierPart | ContainerPart | DecoderPart | FinetunePart | GeneratePart | EmbedPart | EvaluatePart


class JobSpec(NamedTuple):
    """A job of one kind; ``part`` is what that kind has of its own.

    ``seed`` fixes the order of the samples and the initial weights, ``init_root`` commits to the state before the
    first step. ``max_price_per_tera_unit`` is the most that is paid for 10^12 work units. ``match_ms`` is how long
    a worker is looked for before the task expires. ``verifiers`` says who may verify its windows.
    """

    kind: str
    level: int
    profile: str
    part: Part
    seed: bytes
    init_root: bytes
    schedule: Schedule
    max_price_per_tera_unit: int
    requirements: Requirements
    match_ms: int
    verifiers: Verifiers = ANYBODY

    @property
    def dataset(self) -> Dataset | TextRows | RowSet | PromptSet | LabelledRows:
        """The rows that the job reads."""
        return self.part.dataset

    def changed(self, **fields: Any) -> JobSpec:
        """Return the job with other values for fields of its own or of its part."""
        own = {name: value for name, value in fields.items() if name in self._fields}
        rest = {name: value for name, value in fields.items() if name not in own}
        return self._replace(part=self.part._replace(**rest), **own)

    def inputs(self) -> tuple[Input, ...]:
        """Return the blobs that the job starts from; the first is its data set."""
        return self.part.inputs()

    @property
    def is_metered(self) -> bool:
        """Whether seconds are paid and nothing is proven: a container (R93)."""
        return self.level in (LEVEL_METERED, LEVEL_QUORUM)

    @property
    def is_quorum(self) -> bool:
        """Whether several machines run it and their outputs are compared (R113)."""
        return self.level == LEVEL_QUORUM

    @property
    def host_cores(self) -> int:
        """Cores that a container needs; 0 for a job that is no container."""
        return self.part.cores if isinstance(self.part, ContainerPart) else 0

    @property
    def disk_units(self) -> int:
        """Work units of a second of a container's disk (R95); 0 for a job that is no container."""
        return self.part.storage.disk_mib * DISK_UNITS if isinstance(self.part, ContainerPart) else 0

    @property
    def egress(self) -> tuple[str, ...]:
        """Names that a container may reach (R129); none for a job that is no container."""
        return self.part.process.egress if isinstance(self.part, ContainerPart) else ()

    @property
    def refused_limits(self) -> int:
        """The limits of a machine's containers with which it is not matched (R122); 0 for a job that is none."""
        return int(self.part.refused) if isinstance(self.part, ContainerPart) else 0

    @property
    def rate_max(self) -> int:
        """The highest rate of a machine that is matched: a faster one would be paid for a slower one."""
        if isinstance(self.part, ContainerPart):
            return self.requirements.rate_min * RATE_BAND_BPS // 10_000
        return RATE_MAX

    @property
    def tick_s(self) -> int:
        """Seconds of a tick of a metered job."""
        return self.schedule.window_steps

    def inputs_bytes(self) -> int:
        """Return the bytes of all blobs that the job starts from."""
        if isinstance(self.part, ContainerPart):
            return self.part.inputs_bytes
        return sum(given.size_bytes for given in self.inputs())

    def model_bytes(self) -> int:
        """Return the bytes of all inputs but the data: frozen model, adapters, the state that it goes on from."""
        return sum(given.size_bytes for given in self.inputs() if given.kind is not SourceKind.DATA)

    def model_root(self) -> bytes:
        """Return the root of the job's frozen model; empty if it has none."""
        return b"".join(given.root for given in self.inputs() if given.kind == SourceKind.MODEL)

    def adapter_root(self) -> bytes:
        """Return the root of the state with the model's adapters; empty if it has none."""
        adapter = self.part.adapter if isinstance(self.part, GeneratePart | EvaluatePart | EmbedPart) else None
        return b"" if adapter is None else adapter.root

    def start(self) -> Start | None:
        """Return the state of another task that the job goes on from (R133). Raises UnsupportedJob."""
        plan, start = self.plan(), self.part.start if isinstance(self.part, FinetunePart | DecoderPart) else None
        if start is None or not isinstance(plan, TuningPlan | DecoderPlan):
            return None
        return start.begun(plan)

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
    def state_limit_bytes(self) -> int:
        """Upper bound of an encoded state. Raises UnsupportedJob."""
        return self.plan().state_limit_bytes

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

    def losses_of(self, step_from: int, step_to: int) -> int:
        """Return how many losses the sum of losses of some steps has: of a training loop, those of its updates."""
        plan = self.plan()
        if not isinstance(plan, TuningPlan | DecoderPlan):
            return step_to - step_from
        return plan.loop.updated_by(step_to) - plan.loop.updated_by(step_from)

    def program(self) -> Program:
        """Return the program of a step. Raises UnsupportedJob."""
        return self.plan().program

    def plan(self) -> JobPlan:
        """Return the plan of the job's steps. Raises UnsupportedJob."""
        if isinstance(self.part, ContainerPart):
            # A second is the rate that the job asks for on each of its GPUs, or cores: a faster one earns no more.
            devices = self.requirements.gpus or self.part.cores
            return ContainerPlan(self.requirements.rate_min * devices + self.disk_units)
        return self.part.plan(self.seed, self.schedule.total_steps)


def classifier_job(
    *, model: Model, dataset: Dataset, batch: int, optimiser: Optimiser, seed: bytes, init_root: bytes,
    schedule: Schedule, max_price_per_tera_unit: int, requirements: Requirements, match_ms: int,
    kind: str = KIND_TRAIN, level: int = LEVEL_EXACT, profile: str = PROFILE_EXACT_2,
) -> JobSpec:  # fmt: skip
    """Return the training of a classifier."""
    part = ClassifierPart(model, dataset, batch, optimiser)
    return JobSpec(
        kind, level, profile, part, seed, init_root, schedule, max_price_per_tera_unit, requirements, match_ms
    )


def container_job(
    part: ContainerPart, *, ticks: int, tick_s: int, max_price_per_tera_unit: int, requirements: Requirements,
    match_ms: int, level: int = LEVEL_METERED,
) -> JobSpec:  # fmt: skip
    """Return the job of a container that runs for ``ticks`` of ``tick_s`` seconds at most."""
    nothing = bytes(HASH_BYTES)
    return JobSpec(
        KIND_CONTAINER, level, PROFILE_METERED_1, part, nothing, nothing,
        Schedule(ticks * tick_s, tick_s, tick_s), max_price_per_tera_unit, requirements, match_ms,
    )  # fmt: skip


def container_of(spec: JobSpec) -> ContainerPart:
    """Return the part of a container's job. Raises UnsupportedJob for a job of another kind."""
    if not isinstance(spec.part, ContainerPart):
        raise UnsupportedJob(f"a container is expected, not a job of the kind {spec.kind}")
    return spec.part


def classifier_of(spec: JobSpec) -> ClassifierPart:
    """Return the part of a classifier's job. Raises UnsupportedJob for a job of another kind."""
    if not isinstance(spec.part, ClassifierPart):
        raise UnsupportedJob(f"a classifier is expected, not a job of the kind {spec.kind}")
    return spec.part


def classifier_plan(spec: JobSpec) -> TrainingPlan:
    """Return the plan of a classifier's job. Raises UnsupportedJob for a job of another kind."""
    return classifier_of(spec).plan(spec.seed, spec.schedule.total_steps)


def _to_value(spec: JobSpec) -> Value:
    return [
        SPEC_VERSION, spec.kind, spec.level, spec.profile, *spec.part.to_value(), spec.seed, spec.init_root,
        list(spec.schedule), spec.max_price_per_tera_unit, spec.requirements.to_value(), spec.match_ms,
        *([spec.verifiers.to_value()] if spec.verifiers.is_chosen else ()),
    ]  # fmt: skip


def encode_spec(spec: JobSpec) -> bytes:
    """Return the canonical bytes of ``spec``."""
    return encode(_to_value(spec))


def spec_hash(data: bytes) -> bytes:
    """Return the hash that names the job of these specification bytes."""
    return digest(b"job-spec", data)


_FIELDS: Final = KindFields(
    fields=(
        ("version", int, ()), ("kind", str, ()), ("level", int, ()), ("profile", str, ()),
        ("seed", bytes, ()), ("init_root", bytes, ()), ("schedule", list, Schedule._fields),
        ("max_price_per_tera_unit", int, ()), ("requirements", list, Requirements._fields), ("match_ms", int, ()),
    ),
    ranges={
        "version": (SPEC_VERSION, SPEC_VERSION),
        "level": (0, INTEGER_MAX),
        "schedule.total_steps": (1, STEPS_MAX),
        "schedule.window_steps": (1, STEPS_MAX),
        "schedule.segment_steps": (1, STEPS_MAX),
        "max_price_per_tera_unit": (1, PRICE_MAX),
        "requirements.gpus": (0, GPUS_MAX),
        "requirements.memory_mib": (0, MEMORY_MIB_MAX),
        "requirements.rate_min": (0, RATE_MAX),
        "requirements.gpu_memory_mib": (0, MEMORY_MIB_MAX),
        "match_ms": (1, MATCH_MS_MAX),
    },
    hashes=frozenset({"seed", "init_root"}),
    texts=frozenset({"kind", "profile"}),
    names=frozenset({"requirements.gpu_words"}),
    trailing={"requirements": 2},
)  # fmt: skip
_PART_AT: Final = 4
"""Fields that come before those of the kind."""


class _Kind(NamedTuple):
    fields: KindFields
    part: type[Part]
    names: tuple[str | tuple[str, ...], ...]
    """What must be named; of several names any one."""

    def allows(self, names: tuple[str, ...]) -> bool:
        """Tell whether a part names what this version runs."""
        return len(names) == len(self.names) and all(
            name in one if isinstance(one, tuple) else name == one
            for name, one in zip(names, self.names, strict=True)
        )

    @property
    def told(self) -> list[str]:
        """What must be named, as text."""
        return [" or ".join(one) if isinstance(one, tuple) else one for one in self.names]


_KINDS: Final[Mapping[str, _Kind]] = MappingProxyType(
    {
        KIND_TRAIN: _Kind(_FIELDS.with_more(CLASSIFIER_FIELDS, _PART_AT), ClassifierPart, CLASSIFIER_NAMES),
        KIND_FINETUNE: _Kind(_FIELDS.with_more(FINETUNE_FIELDS, _PART_AT), FinetunePart, FINETUNE_NAMES),
        KIND_GENERATE: _Kind(_FIELDS.with_more(GENERATE_FIELDS, _PART_AT), GeneratePart, GENERATE_NAMES),
        KIND_CONTAINER: _Kind(_FIELDS.with_more(CONTAINER_FIELDS, _PART_AT), ContainerPart, CONTAINER_NAMES),
        KIND_EMBED: _Kind(_FIELDS.with_more(EMBED_FIELDS, _PART_AT), EmbedPart, ()),
        KIND_EVALUATE: _Kind(_FIELDS.with_more(EVALUATE_FIELDS, _PART_AT), EvaluatePart, EVALUATE_NAMES),
    }
)
_DECODER: Final = _Kind(_FIELDS.with_more(DECODER_FIELDS, _PART_AT), DecoderPart, DECODER_NAMES)


_DECODED: Final = [[name] for name in DECODERS]


def _kind_of(value: Any) -> _Kind | None:
    """Return the kind of a decoded array, None for one that is not known. The model says what is trained."""
    name = value[1] if isinstance(value, list) and len(value) > _PART_AT else None
    if name == KIND_TRAIN and isinstance(value[_PART_AT], list) and value[_PART_AT][:1] in _DECODED:
        return _DECODER
    return _KINDS.get(name) if isinstance(name, str) else None


def _schedule_of(found: Found) -> Schedule:
    return Schedule(*[found[f"schedule.{field}"] for field in Schedule._fields])


def _divided(value: Any) -> tuple[Any, Verifiers]:
    """Return a decoded array without its last element of R166, and what that says. Raises DecodeError."""
    if isinstance(value, list) and value and isinstance(value[-1], list):  # the field before it is a number
        return value[:-1], Verifiers.of(value[-1])
    return value, ANYBODY


def _spec_of(found: Found, kind: _Kind, verifiers: Verifiers) -> JobSpec:
    return JobSpec(
        kind=found["kind"],
        level=found["level"],
        profile=found["profile"],
        part=kind.part.of(found),
        seed=found["seed"],
        init_root=found["init_root"],
        schedule=_schedule_of(found),
        max_price_per_tera_unit=found["max_price_per_tera_unit"],
        requirements=Requirements.of(found),
        match_ms=found["match_ms"],
        verifiers=verifiers,
    )


def read_checked_spec(data: bytes) -> JobSpec:
    """Return the specification of bytes that ``decode_spec`` took before. Raises DecodeError, LookupError.

    No range and no plan is checked again: that takes ten times as long as reading.
    """
    value, verifiers = _divided(decode(data, limit_bytes=SPEC_LIMIT_BYTES))
    kind = _kind_of(value)
    if kind is None:
        raise LookupError("a kind that is not known")
    return _spec_of(fields_by_name(value, kind.fields), kind, verifiers)


def _check_schedule(schedule: Schedule) -> None:
    total, segment, window = schedule
    fault = ""
    if not segment <= window <= total:
        fault = f": segment_steps {segment} <= window_steps {window} <= total_steps {total} expected"
    elif window % segment:
        fault = f".window_steps: a multiple of segment_steps ({segment}) expected, not {window}"
    elif window // segment > SEGMENTS_MAX:
        fault = f": {window // segment} segments in a window, at most {SEGMENTS_MAX}"
    elif total > window * WINDOWS_MAX:
        fault = f": {-(-total // window)} windows, at most {WINDOWS_MAX}"
    if fault:
        raise DecodeError(f"not a job specification: schedule{fault}")


def decode_spec(data: bytes) -> JobSpec:
    """Return the specification of ``data``.

    Raises DecodeError for anything that this version cannot run: malformed, out of range, unknown profile. Whether
    the program of a step can leave the exact range is not looked at: who creates a task pays for that.
    """
    value, verifiers = _divided(decode(data, limit_bytes=SPEC_LIMIT_BYTES))
    name = value[1] if isinstance(value, list) and len(value) > 1 else None
    kind = _kind_of(value)
    if kind is None and isinstance(name, str) and name not in _KINDS:
        raise DecodeError(f"jobs of the kinds {', '.join(_KINDS)} can be run, not {name[:40]!r}")
    kind = kind or _KINDS[KIND_TRAIN]
    found = read_fields(value, kind.fields)
    schedule = _schedule_of(found)
    if name == KIND_CONTAINER:
        if verifiers.is_chosen:
            raise DecodeError("not a job specification: verifiers: nothing of a container is verified")
        return _container(found, kind)
    if "requirements.gpu_words" in found:
        raise DecodeError("not a job specification: requirements: containers alone order a model of GPUs")
    samples, rows = found.get("dataset.samples", 0), found["dataset.rows"]
    if samples > rows:
        raise DecodeError(f"not a job specification: dataset.samples: at most the {rows} rows, not {samples}")
    _check_schedule(schedule)
    names = kind.part.of(found).names
    if (found["level"], found["profile"]) != (LEVEL_EXACT, PROFILE_EXACT_2) or not kind.allows(names):
        raise DecodeError(
            f"only {found['kind']}, level {LEVEL_EXACT}, {PROFILE_EXACT_2}, {', '.join(kind.told)} can be run"
        )
    spec = _spec_of(found, kind, verifiers)
    try:
        plan = spec.plan()
    except UnsupportedJob as error:
        raise DecodeError(str(error)) from None
    if (schedule.window_steps // schedule.segment_steps + 1) * plan.state_limit_bytes > WINDOW_STATES_BYTES_MAX:
        raise DecodeError(f"the states of a window exceed {WINDOW_STATES_BYTES_MAX} bytes")
    if schedule.segment_steps * spec.step_ms > SEGMENT_MS_MAX:
        raise DecodeError(
            f"a segment of {schedule.segment_steps} steps costs more than {SEGMENT_MS_MAX} ms to check"
        )
    return spec


def _check_order(wanted: Requirements) -> None:
    """Raise DecodeError for an order of GPUs that has another form."""
    fault = order_fault(wanted.gpu_words)
    if not wanted.orders_card:
        fault = "left out where any GPU does"
    elif not wanted.gpus:
        fault = "with one GPU or more"
    if fault:
        raise DecodeError(f"not a job specification: requirements.gpu_words: {fault}")


def _container(found: Found, kind: _Kind) -> JobSpec:
    """Return the job of a container. Raises DecodeError."""
    spec = _spec_of(found, kind, ANYBODY)
    part, (seconds, segment_s, tick_s) = container_of(spec), spec.schedule
    if not spec.is_metered or spec.profile != PROFILE_METERED_1 or part.metering.name not in kind.names:
        raise DecodeError(
            f"only {spec.kind}, level {LEVEL_METERED} or {LEVEL_QUORUM}, {PROFILE_METERED_1}, "
            f"{' or '.join(kind.told)} can be run"
        )
    check_container(part)
    if "requirements.gpu_words" in found:
        _check_order(spec.requirements)
    if "process.egress" in found and not part.process.egress:
        raise DecodeError("not a job specification: process.egress: left out where nothing is to be reached")
    if spec.is_quorum and part.process.egress:
        raise DecodeError(
            "not a job specification: process.egress: none with level 1: what others answer may differ"
        )
    if spec.is_quorum and not part.storage.output:
        raise DecodeError("not a job specification: storage.output: level 1 compares what is left there")
    if spec.is_quorum and part.metering.name != METER_RESERVED:
        raise DecodeError(
            "not a job specification: metering.name: reserved with level 1, which compares how it ends"
        )
    if spec.is_quorum and part.checkpoint is not None:
        raise DecodeError("not a job specification: checkpoint: none with level 1, whose machines run all of it")
    if spec.is_quorum and part.metering.again:
        raise DecodeError("not a job specification: metering.again: none with level 1, which compares how it ends")
    if spec.is_quorum and part.sealed is not None:
        raise DecodeError("not a job specification: sealed: nothing is with level 1, which compares outputs")
    fault = ""
    if any(spec.seed) or any(spec.init_root):
        fault = "seed, init_root: zeros expected: a container has no state"
    elif not TICK_S_MIN <= tick_s <= TICK_S_MAX or segment_s != tick_s:
        fault = f"schedule: a tick of {TICK_S_MIN} to {TICK_S_MAX} seconds, and a segment as long, expected"
    elif seconds % tick_s or seconds > min(SECONDS_MAX, tick_s * WINDOWS_MAX):
        fault = f"schedule.total_steps: whole ticks, {WINDOWS_MAX} and {SECONDS_MAX} seconds at most"
    elif part.metering.idle_s % tick_s:
        fault = "metering.idle_s: whole ticks expected"
    elif not spec.requirements.rate_min:
        fault = "requirements.rate_min: above 0: it is what a second counts as"
    elif spec.requirements.memory_mib < MEMORY_MIB_MIN:
        fault = f"requirements.memory_mib: {MEMORY_MIB_MIN} or more"
    elif spec.step_units > SECOND_UNITS_MAX:
        fault = f"a second counts as {spec.step_units} work units, at most {SECOND_UNITS_MAX}"
    if fault:
        raise DecodeError(f"not a job specification: {fault}")
    return spec
