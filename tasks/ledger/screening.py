"""What can be known against a job before anything is locked for it: its data set, its start, the machines.

A worker finds the same when it prepares; then the requester's coins are locked already. Nothing here keeps a job
from the chain, whose rules know neither blobs nor NumPy: whoever is about to post one asks first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from billing.prices import BPS, TERA
from state.primitives.amounts import format_amount
from state.primitives.errors import DekubeError
from state.view import Reader
from tasks.engines.datasets import DATASET_BLOB_BYTES_MAX, Dataset
from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.input_blobs import MODEL_SENT_BYTES_MAX
from tasks.engines.pass_plan import PassPlan
from tasks.engines.plan import TrainingPlan
from tasks.engines.tuning_plan import TuningPlan
from tasks.kinds.gpus import PART_WORD, gpu_words, is_part
from tasks.kinds.plan import JobPlan
from tasks.ledger.checkpoints import stays_until_ms
from tasks.ledger.fitting import REASONS, host_cores, lack, needs_of, traits_of
from tasks.ledger.matching import is_paused
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.quorum_records import SEATS, SEATS_FIRST
from tasks.ledger.registry import (
    Gpu,
    NodeRecord,
    NodeRole,
    NodeStatus,
    candidates,
    is_available,
    is_renewed,
    scan_nodes,
)
from tasks.ledger.settlement import budget_of
from tasks.spec import ClassifierPart, JobSpec, Requirements, container_of

__all__ = [
    "DatasetFacts",
    "Objection",
    "Outlook",
    "SideCosts",
    "check_start",
    "cost_objections",
    "dataset_objections",
    "kind_objections",
    "look_out",
    "machine_notices",
    "machine_objections",
    "rate_objections",
    "read_dataset_facts",
    "side_costs",
    "start_root",
]

MACHINES_MAX: Final = 1024
"""Machines that are looked at; where there are more, nothing is said of all of them."""
CARDS_TOLD_MAX: Final = 4
PATTERNS_TOLD_MAX: Final = 8
"""Patterns of names that an objection shows."""
QUICK_PARAMETERS_MAX: Final = 1 << 18
"""Parameters of a model whose start is computed for a stranger: some 40 ms. Whoever posts a job computes any."""


_KINDS_OF_TASK: Final = ("create_task", "accept_task", "start_task")
_KINDS_OF_WINDOW: Final = ("submit_window",)
_KINDS_OF_TICK: Final = ("meter_task",)
"""What is sent at least for a task, and for each of its windows."""
LEAST_SEGMENTS: Final = 128
"""A window of so many segments pays ``CHECKED_BPS`` of its price for checks at most."""
CHECKED_BPS: Final = 800
USUAL_VERIFIERS_MAX: Final = 2


class Objection(NamedTuple):
    """Something that is known against a job: a stable code, and what is wrong and what to do."""

    code: str
    text: str


# The data set


class DatasetFacts(NamedTuple):
    """What a blob is as a data set. ``error`` is empty for one; else it says why it is none."""

    size_bytes: int
    columns: int
    classes: int
    rows: int
    train_rows: int
    shift: int
    root: bytes
    error: str


def read_dataset_facts(data: bytes) -> DatasetFacts:
    """Return the facts of a blob's content; up to one and a half seconds for the largest."""
    try:
        found = Dataset.decode(data)
    except DekubeError as error:
        return DatasetFacts(len(data), 0, 0, 0, 0, 0, b"", str(error))
    return DatasetFacts(
        len(data), found.columns, found.classes, found.rows, found.train_rows, found.shift, found.root(), ""
    )


def dataset_objections(spec: JobSpec, facts: DatasetFacts) -> list[Objection]:
    """Return what keeps a job from being trained on the data set that it names; of rows the size alone."""
    if spec.is_metered:
        return []
    if not isinstance(spec.part, ClassifierPart):
        size = spec.inputs()[0].size_bytes
        if facts.size_bytes == size:
            return []
        text = f"the rows 0x{spec.dataset.blob.hex()} have {facts.size_bytes} bytes, their shape {size}"
        return [Objection("dataset_size_differs", text)]
    blob = f"the data set 0x{spec.dataset.blob.hex()}"
    if facts.size_bytes > DATASET_BLOB_BYTES_MAX:
        text = f"{blob} has {facts.size_bytes} bytes, at most {DATASET_BLOB_BYTES_MAX} are taken"
        return [Objection("dataset_too_large", text)]
    if facts.error:
        text = (
            f"blob 0x{spec.dataset.blob.hex()} is not a data set ({facts.error}): other files, CSV say, must be "
            'converted first (docs/tasks.md, "A data set")'
        )
        return [Objection("dataset_invalid", text)]
    found = []
    if facts.root != spec.dataset.root:
        text = f"{blob} has the root 0x{facts.root.hex()}, dataset.root says 0x{spec.dataset.root.hex()}"
        found.append(Objection("dataset_root_differs", text))
    named = spec.part.dataset
    for code, name, has, what, says in (
        ("dataset_rows_differ", "rows", facts.rows, "rows", named.rows),
        ("dataset_samples_differ", "samples", facts.train_rows, "training rows", named.samples),
        ("dataset_shift_differs", "shift", facts.shift, "as its shift", named.shift),
    ):
        if has != says:
            found.append(Objection(code, f"{blob} has {has} {what}, dataset.{name} says {says}"))
    begin, end = spec.part.model.widths[0], spec.part.model.widths[-1]
    if (facts.columns, facts.classes) != (begin, end):
        text = (
            f"{blob} has {facts.columns} features and {facts.classes} classes, model.widths begins with {begin} "
            f"and ends with {end}"
        )
        found.append(Objection("dataset_widths_differ", text))
    return found


# The start


def check_start(spec: JobSpec, *, any_size: bool = True) -> list[Objection]:
    """Return that ``init_root`` is not the root of the state before the first step, where that is so.

    Without ``any_size`` a large model is not looked at: its start takes up to three seconds to compute.
    """
    if spec.is_metered or spec.start() is not None:  # the state of another task is no function of the job
        return []
    plan = spec.plan()
    if not any_size and plan.parameters > QUICK_PARAMETERS_MAX:
        return []
    root = start_root(plan)
    if root == spec.init_root:
        return []
    text = f"init_root is 0x{spec.init_root.hex()}; for this seed and this model it must be 0x{root.hex()}"
    return [Objection("init_root_differs", text)]


def start_root(plan: JobPlan) -> bytes:
    """Return the root of the state before the first step. NumPy only where it is asked for."""
    if isinstance(plan, TrainingPlan):
        from tasks.engines.training import initial_state

        return initial_state(plan).root(plan)
    if isinstance(plan, PassPlan):
        return plan.first_state().root(plan)
    if isinstance(plan, GeneratingPlan):
        from tasks.engines import generating

        return generating.first_state(plan).root(plan)
    if isinstance(plan, DecoderPlan):
        from tasks.engines import decoder_training

        return decoder_training.first_state(plan).root(plan)
    from tasks.engines.tuning import first_state

    assert isinstance(plan, TuningPlan)
    return first_state(plan).root(plan)


# The kind


def kind_objections(spec: JobSpec) -> list[Objection]:
    """Return that nodes of this version do not run a job, where that is so: its model is too large for them."""
    size = spec.model_bytes()
    if size <= MODEL_SENT_BYTES_MAX:
        return []
    text = f"nodes of this version run models of {MODEL_SENT_BYTES_MAX} bytes at most, this one has {size}"
    return [Objection("model_too_large", text)]


# The machines


class Outlook(NamedTuple):
    """The machines that are registered for compute, and how far a job gets with them.

    ``capable`` machines have what it requires, ``affordable`` ones of these ask for no more than its highest
    price, ``free`` ones of these can be given it now. ``why`` counts what keeps the others from it;
    ``least_price`` is the lowest that a capable machine asks, 0 without one. ``is_whole``: all were looked at.
    """

    machines: int
    capable: int
    affordable: int
    free: int
    why: dict[str, int]
    least_price: int
    most_gpus: int
    most_memory_mib: int
    most_rate: int
    is_whole: bool
    host_rates: tuple[int, ...] = ()
    """Rates of machines that run containers, ascending."""
    reached: tuple[str, ...] = ()
    """Patterns of names that containers may reach on some machine, sorted."""
    cards: tuple[str, ...] = ()
    """GPUs of machines that run containers, as text, the nearest to a job's order first; none without an order."""


def _machines(state: Reader) -> list[NodeRecord]:
    """Return up to MACHINES_MAX + 1 machines, first those that can be found: to register costs nothing."""
    found = candidates(state, NodeRole.COMPUTE, b"", MACHINES_MAX + 1)
    known = {node.address for node in found}
    others = [node for node in scan_nodes(state, b"", MACHINES_MAX + 1) if node.address not in known]
    return [*found, *others][: MACHINES_MAX + 1]


def look_out(
    state: Reader, spec: JobSpec, now_ms: int, parameters: TaskParameters, excluded: Sequence[bytes] = ()
) -> Outlook:
    """Look at the registered machines for a job; ``excluded`` ones are not offered it again."""
    nodes = _machines(state)
    found = [node for node in nodes[:MACHINES_MAX] if node.profile.roles & NodeRole.COMPUTE]
    reasons = [_why_not(node, spec, now_ms, parameters, excluded) for node in found]
    capable = [node for node, why in zip(found, reasons, strict=True) if why not in REASONS]
    counts = Counter(reasons)
    free = counts.pop("", 0)
    return Outlook(
        machines=len(found),
        capable=len(capable),
        affordable=len(capable) - counts["price"],
        free=free,
        why=dict(sorted((why, count) for why, count in counts.items() if count)),
        least_price=min((node.profile.price_per_tera_unit for node in capable), default=0),
        most_gpus=max((len(node.profile.gpus) for node in found), default=0),
        most_memory_mib=max((node.profile.memory_mib for node in found), default=0),
        most_rate=max((node.profile.rate for node in found), default=0),
        is_whole=len(nodes) <= MACHINES_MAX,
        host_rates=tuple(sorted(node.profile.rate for node in found if host_cores(node.profile))),
        cards=_nearest_cards(found, spec) if spec.requirements.orders_card else (),
        reached=tuple(sorted({one for node in found if host_cores(node.profile) for one in node.profile.egress})),
    )


def _why_not(
    node: NodeRecord, spec: JobSpec, now_ms: int, parameters: TaskParameters, excluded: Sequence[bytes]
) -> str:
    """Return the first thing that keeps a machine from a job, what lasts before what passes; empty for nothing."""
    profile = node.profile
    missing = lack(traits_of(profile), needs_of(spec, stays_until_ms(spec, 0, now_ms, parameters)))
    if missing is not None:
        return missing.code
    if profile.price_per_tera_unit > spec.max_price_per_tera_unit:
        return "price"
    if node.address in excluded:
        return "left"
    if node.status != NodeStatus.ACTIVE:
        return node.status.name.lower()
    if is_paused(node, now_ms):
        return "paused"
    if not is_available(node, now_ms, parameters):
        return "away" if node.backing >= parameters.node_bond_min else "bond"
    if not is_renewed(node, now_ms, parameters):
        return "expired"
    return "busy" if node.busy_slots >= min(profile.slots, parameters.slots_max) else ""


_WHY: Final = {
    **{reason.code: reason.told for reason in REASONS.values()},
    "price": "above its highest price",
    "left": "that has left this task",
    "retiring": "retiring",
    "suspended": "switched off",
    "paused": "in a pause",
    "away": "silent for too long",
    "expired": "with a registration that is too old",
    "bond": "below the least bond",
    "busy": "at work",
}


def machine_objections(spec: JobSpec, outlook: Outlook) -> list[Objection]:
    """Return that no registered machine has what a job requires, where that is so."""
    wanted = spec.requirements
    if outlook.capable or not outlook.is_whole or not any(wanted):
        return []
    if spec.is_metered:
        text = (
            f"no machine runs containers with {spec.host_cores} cores, {wanted.gpus} GPUs, {wanted.memory_mib} MiB"
            f" and a rate from {wanted.rate_min} to {spec.rate_max}; {_rates_told(outlook.host_rates)}"
        )
        if outlook.machines:
            text += f"; of {outlook.machines} machines there are {_reasons_told(outlook)}"
        if wanted.orders_card:
            text += f"; {_order_told(wanted)}: {_cards_told(outlook)}"
        if not container_of(spec).is_interruptible:
            text += "; it must have offered to stay until the end of the job (`interruptible: true` needs no such)"
        if spec.egress:
            text += f"; its owner must let containers reach {', '.join(spec.egress)} ({_reached_told(outlook)})"
        return [Objection("no_such_machine", text)]
    asked = ", ".join(
        f"requirements.{name} is {amount}, the most that a machine has is {most}"
        for name, amount, most in (
            ("gpus", wanted.gpus, outlook.most_gpus),
            ("memory_mib", wanted.memory_mib, outlook.most_memory_mib),
            ("rate_min", wanted.rate_min, outlook.most_rate),
        )
        if amount > most
    )
    text = f"no registered machine has what the job requires: {asked or 'not all of it in one machine'}"
    if outlook.machines:
        text += f" ({_reasons_told(outlook)})"
    return [Objection("no_such_machine", text)]


def _nearest_cards(found: Sequence[NodeRecord], spec: JobSpec) -> tuple[str, ...]:
    """Return the GPUs of machines that run containers, those with most words of an order first, each once."""
    words, memory = set(spec.requirements.gpu_words), spec.requirements.gpu_memory_mib
    cards = {gpu for node in found if host_cores(node.profile) for gpu in node.profile.gpus}

    def distance(gpu: Gpu) -> tuple[int, int, str]:
        missing = len(words.difference(gpu_words(gpu.model))) + (is_part(gpu.model) != (PART_WORD in words))
        return missing, max(0, memory - gpu.memory_mib), gpu.model

    return tuple(f"{gpu.model} with {gpu.memory_mib} MiB" for gpu in sorted(cards, key=distance))


def _order_told(wanted: Requirements) -> str:
    """Return which GPUs a job orders."""
    named = " ".join(wanted.gpu_words) or "of any model"
    return f"GPUs {named} with {wanted.gpu_memory_mib} MiB or more are ordered"


def _cards_told(outlook: Outlook) -> str:
    if not outlook.cards:
        return "machines for containers have none"
    return f"the nearest that there are: {', '.join(outlook.cards[:CARDS_TOLD_MAX])}"


def _reasons_told(outlook: Outlook) -> str:
    """Return how many machines each reason keeps from a job."""
    return ", ".join(f"{count} {_WHY[why]}" for why, count in outlook.why.items())


def _reached_told(outlook: Outlook) -> str:
    if not outlook.reached:
        return "no machine lets them reach any: bring what is needed by mounts or in the image"
    more = len(outlook.reached) - PATTERNS_TOLD_MAX
    named = ", ".join(outlook.reached[:PATTERNS_TOLD_MAX]) + (f" and {more} more" if more > 0 else "")
    return f"machines let them reach {named}: ask for these, or bring the rest by mounts"


def _rates_told(rates: Sequence[int]) -> str:
    if not rates:
        return "no machine runs containers at all"
    return f"those that run containers have rates from {rates[0]} to {rates[-1]}: ask for one of these"


def rate_objections(spec: JobSpec, parameters: TaskParameters) -> list[Objection]:
    """Return that a job requires a rate on a chain that measures none, which refuses it (R64)."""
    if not spec.requirements.rate_min or parameters.trial_ms or spec.is_metered:
        return []
    text = "requirements.rate_min has to be 0: this chain has no speed trials, so rates are claims"
    return [Objection("trials_off", text)]


def cost_objections(
    spec: JobSpec, parameters: TaskParameters, gas: Mapping[str, int], base_fee: int
) -> list[Objection]:  # fmt: skip
    """Return that checks and gas cost more than the work, and from which size on they do not.

    ``gas`` is by the kinds of transactions, ``base_fee`` the present one. The checks include the gas of verifiers.
    Checks that a genesis demands beyond the usual (audits of all, more verifiers) do not count: no job helps that.
    """
    found = side_costs(spec, parameters, gas, base_fee)
    if found.total <= found.price:
        return []
    if spec.is_metered:
        text = (
            f"gas of its ticks costs {format_amount(found.total)}, its time {format_amount(found.price)} at most; "
            "longer ticks cost less"
        )
        return [Objection("costs_exceed_work", text)]
    text = (
        f"checks and gas of it cost {format_amount(found.total)}, its work {format_amount(found.price)} at most; "
        f"it takes {found.least_size(0)}"
    )
    return [Objection("costs_exceed_work", text)]


class SideCosts(NamedTuple):
    """What checks and gas of a job cost in all, and of one window; ``price`` is that of its work, at most."""

    total: int
    of_one: int
    price: int
    step_price: int
    share_left_bps: int

    def least_size(self, beside: int) -> str:
        """Return from which size on the work costs as much as these and ``beside`` of one window, in words.

        The window has so many segments that its checks are a bounded share of its price.
        """
        paid = max(1, self.step_price * self.share_left_bps)
        steps = max(LEAST_SEGMENTS, -(-(self.of_one + beside) * TERA * BPS // paid))
        return f"one window of {LEAST_SEGMENTS} segments and {steps} steps or more"


def side_costs(spec: JobSpec, parameters: TaskParameters, gas: Mapping[str, int], base_fee: int) -> SideCosts:
    """Return what checks and gas of a job cost; arguments are as of ``cost_objections``."""
    parameters = replace(
        parameters, audit_bps=0, verifiers=1, verifiers_sure=min(parameters.verifiers_sure, USUAL_VERIFIERS_MAX)
    )  # fmt: skip
    once = base_fee * sum(gas[kind] for kind in _KINDS_OF_TASK)
    each = base_fee * sum(gas[kind] for kind in (_KINDS_OF_TICK if spec.is_metered else _KINDS_OF_WINDOW))
    budget = budget_of(spec, parameters)
    return SideCosts(
        once + spec.windows * each + budget.verification, once + each, budget.price,
        max(1, spec.step_units * spec.max_price_per_tera_unit),
        max(0, BPS - max(parameters.verification_bps, CHECKED_BPS)),
    )  # fmt: skip


def machine_notices(spec: JobSpec, outlook: Outlook) -> list[Objection]:
    """Return what lets a job wait for a machine, though one may come."""
    if not outlook.machines:
        return [Objection("no_machine", "no machine for compute is registered")]
    if not outlook.is_whole or not outlook.capable:
        return []
    if spec.is_quorum and outlook.affordable < SEATS:
        text = (
            f"{SEATS_FIRST} machines of different owners run it, and another one if they differ; of those that "
            f"could, {outlook.affordable} ask what it pays"
        )
        return [Objection("few_machines", text)]
    if not outlook.affordable:
        text = (
            f"its highest price, {format_amount(spec.max_price_per_tera_unit)} per 10^12 work units, is below "
            f"what every machine asks that could do it: {format_amount(outlook.least_price)} and more"
        )
        return [Objection("price_below_all", text)]
    if not outlook.free:
        text = f"none of {outlook.machines} machines for compute can take it now ({_reasons_told(outlook)})"
        return [Objection("no_machine_free", text)]
    return []
