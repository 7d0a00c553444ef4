"""What a machine must have for a job: one table, from which all follows that asks whether one fits (R159).

The look at one machine and one job, the sets of a call (``ask_index``), and the reasons that a quote tells are
made from ``REQUIREMENTS``. Prices, pauses and money are no part of it. Pure: it reads no state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from tasks.kinds.container import MachineLimit
from tasks.kinds.egress import covering
from tasks.kinds.gpus import PART_WORD, common_words, is_part
from tasks.ledger.bit_sets import Thresholds
from tasks.ledger.registry import Gpu, NodeProfile, NodeRole, is_limited
from tasks.spec import JobSpec

__all__ = [
    "PARTS",
    "RATE_TOP",
    "REASONS",
    "REQUIREMENTS",
    "AtLeast",
    "Named",
    "Needs",
    "Reason",
    "Requirement",
    "Traits",
    "Within",
    "Without",
    "host_cores",
    "lack",
    "needs_of",
    "traits_of",
    "usable_gpus",
]

PARTS: Final = 1 << 32
"""Among the limits, which are bits of roles below it: its GPUs are parts of cards."""
CARDS_KEPT: Final = 16_384
"""Lists of GPUs whose words are remembered: a call looks at the same machines again."""
RATE_TOP: Final = 1 << 64
"""Above all rates."""


class Reason(NamedTuple):
    """Why a machine does not fit: a stable code, and words that follow "machines"."""

    code: str
    told: str


class Traits(NamedTuple):
    """What a machine has. A field each of ``Needs``, in the same order; without a value it has nothing.

    ``gpus`` are those that one job may use, ``rate`` is in work units a second. ``host_cores`` are its cores if it
    runs containers. It stays until ``until_ms`` of steady time; 0: it may leave at any time. ``egress`` are
    patterns of the names that containers may reach there. ``limits`` are bits of what it does not do. Each of its
    GPUs has ``gpu_words`` in its name and ``gpu_memory_mib`` or more.
    """

    gpus: int = 0
    memory_mib: int = 0
    rate: int = 0
    host_cores: int = 0
    until_ms: int = 0
    egress: tuple[str, ...] = ()
    limits: int = 0
    gpu_words: tuple[str, ...] = ()
    gpu_memory_mib: int = 0


class Needs(NamedTuple):
    """What a job wants of a machine. A field each of ``Traits``, in the same order; without a value it wants none.

    ``rate`` are the lowest and the highest. ``egress`` are entries that must be covered. ``limits`` are those that
    the machine must not have.
    """

    gpus: int = 0
    memory_mib: int = 0
    rate: tuple[int, int] = (0, RATE_TOP)
    host_cores: int = 0
    until_ms: int = 0
    egress: tuple[str, ...] = ()
    limits: int = 0
    gpu_words: tuple[str, ...] = ()
    gpu_memory_mib: int = 0


_Has = TypeVar("_Has", contravariant=True)
_Wants = TypeVar("_Wants", contravariant=True)


class Requirement(Protocol[_Has, _Wants]):
    """One row: it compares a field of the traits with the same field of a job's needs."""

    def reasons(self) -> Iterable[Reason]:
        """Return all that ``lack`` may return."""

    def lack(self, has: _Has, wants: _Wants) -> Reason | None:
        """Return why a machine with ``has`` does not do, None if it does."""

    def sets(self, offered: Sequence[_Has]) -> Callable[[_Wants], int]:
        """Return what finds the machines that do, of those at the places of ``offered``."""


class AtLeast(NamedTuple):
    """The machine has as much as the job wants, or more."""

    reason: Reason

    def reasons(self) -> Iterable[Reason]:
        """Return the one reason."""
        return (self.reason,)

    def lack(self, has: int, wants: int) -> Reason | None:
        """Return the reason if the machine has less."""
        return self.reason if has < wants else None

    def sets(self, offered: Sequence[int]) -> Callable[[int], int]:
        """A search for each job."""
        return Thresholds(offered).at_least


class Within(NamedTuple):
    """What the machine has lies between two bounds of the job."""

    below: Reason
    above: Reason

    def reasons(self) -> Iterable[Reason]:
        """Return both reasons."""
        return self

    def lack(self, has: int, wants: tuple[int, int]) -> Reason | None:
        """Return the reason of the bound that is not kept."""
        least, most = wants
        if has < least:
            return self.below
        return self.above if has > most else None

    def sets(self, offered: Sequence[int]) -> Callable[[tuple[int, int]], int]:
        """Two searches for each job."""
        within = Thresholds(offered).within
        return lambda wants: within(*wants)


class Without(NamedTuple):
    """The machine has none of the bits that the job refuses. The first of ``bits`` that it has is told."""

    bits: Mapping[int, Reason]

    def reasons(self) -> Iterable[Reason]:
        """Return a reason for each bit."""
        return self.bits.values()

    def lack(self, has: int, wants: int) -> Reason | None:
        """Return the reason of the first bit that is refused."""
        refused = has & wants
        return next((reason for bit, reason in self.bits.items() if bit & refused), None) if refused else None

    def sets(self, offered: Sequence[int]) -> Callable[[int], int]:
        """An operation for each bit, however many machines there are."""
        having = {bit: sum(1 << at for at, bits in enumerate(offered) if bits & bit) for bit in self.bits}
        everyone = (1 << len(offered)) - 1

        def found(wants: int) -> int:
            left = everyone
            for bit, those in having.items():
                if bit & wants:
                    left &= ~those
            return left

        return found


class Named(NamedTuple):
    """Each entry of the job is covered by a pattern of the machine; ``covering`` tells all patterns that do."""

    reason: Reason
    covering: Callable[[Any], Iterable[Hashable]]

    def reasons(self) -> Iterable[Reason]:
        """Return the one reason."""
        return (self.reason,)

    def lack(self, has: Sequence[Hashable], wants: Sequence[Hashable]) -> Reason | None:
        """Return the reason if an entry is not covered."""
        is_met = all(any(pattern in has for pattern in self.covering(entry)) for entry in wants)
        return None if is_met else self.reason

    def sets(self, offered: Sequence[Sequence[Hashable]]) -> Callable[[Sequence[Hashable]], int]:
        """A few look-ups for each entry, however many machines there are."""
        everyone = (1 << len(offered)) - 1

        @cache
        def having() -> dict[Hashable, int]:
            sets: dict[Hashable, int] = {}
            for at, patterns in enumerate(offered):
                for pattern in patterns:
                    sets[pattern] = sets.get(pattern, 0) | 1 << at
            return sets

        def found(wants: Sequence[Hashable]) -> int:
            left = everyone
            for entry in wants:  # most calls have no such job: the machines are looked at for the first, once
                covered = 0
                for pattern in self.covering(entry):
                    covered |= having().get(pattern, 0)
                left &= covered
            return left

        return found


REQUIREMENTS: Final[tuple[Requirement[Any, Any], ...]] = (
    AtLeast(Reason("gpus", "with too few GPUs for one task")),
    AtLeast(Reason("memory", "with too little memory")),
    Within(Reason("slow", "that are too slow"), Reason("fast", "that are faster than the job pays for")),
    AtLeast(Reason("cores", "with too few cores for containers")),
    AtLeast(Reason("stay", "that have not offered to stay to the end")),
    Named(Reason("egress", "whose owners do not let containers reach all of its names"), covering),
    Without(
        {
            int(NodeRole.ONLY_CONTAINERS): Reason("only_containers", "that take containers alone"),
            int(MachineLimit.UNISOLATED): Reason(
                "unisolated", "whose containers may reach a network (`allow: [unisolated]` takes them too)"
            ),
            int(MachineLimit.NO_ROOT): Reason("no_root", "that run no container as user 0"),
            int(MachineLimit.NO_ARCHIVES): Reason("no_archives", "that take images from registries alone"),
            PARTS: Reason("parts", "that lend parts of cards (`mig` orders them)"),
        }
    ),
    Named(Reason("gpu_model", "whose GPUs are not all of that model"), lambda word: (word,)),
    AtLeast(Reason("gpu_memory", "whose GPUs do not all have that memory")),
)
"""A row for each field of ``Traits`` and ``Needs``, in their order. Of several reasons the first is told."""

REASONS: Final = {reason.code: reason for row in REQUIREMENTS for reason in row.reasons()}
_LIMITS: Final = int(sum(MachineLimit)) | int(NodeRole.ONLY_CONTAINERS)


class _Cards(NamedTuple):
    """What all GPUs of a machine have: words, MiB, and the bit of parts if one of them is a part."""

    words: tuple[str, ...]
    memory_mib: int
    parts: int


@lru_cache(maxsize=CARDS_KEPT)
def _cards(gpus: tuple[Gpu, ...]) -> _Cards:
    names = {gpu.model for gpu in gpus}
    parts = PARTS if any(is_part(name) for name in names) else 0
    return _Cards(common_words(names), min((gpu.memory_mib for gpu in gpus), default=0), parts)


def usable_gpus(profile: NodeProfile) -> int:
    """Return how many of a machine's GPUs one job may use: one, if it misses the admission rule."""
    count = len(profile.gpus)
    return min(count, 1) if is_limited(profile) else count


def host_cores(profile: NodeProfile) -> int:
    """Return how many cores a machine has for containers: 0 unless its owner takes them (R93)."""
    return profile.cores if profile.roles & NodeRole.CONTAINER else 0


def traits_of(profile: NodeProfile) -> Traits:
    """Return what a machine has, by what it registered."""
    cards = _cards(profile.gpus)
    return Traits(
        gpus=usable_gpus(profile),
        memory_mib=profile.memory_mib,
        rate=profile.rate,
        host_cores=host_cores(profile),
        until_ms=profile.until_ms,
        egress=profile.egress,
        limits=int(profile.roles) & _LIMITS | cards.parts,
        gpu_words=cards.words,
        gpu_memory_mib=cards.memory_mib,
    )


def needs_of(spec: JobSpec, until_ms: int = 0) -> Needs:
    """Return what a job wants of a machine, which must have offered to stay ``until_ms``."""
    wanted, cores = spec.requirements, spec.host_cores
    return Needs(
        gpus=wanted.gpus,
        memory_mib=wanted.memory_mib,
        rate=(wanted.rate_min, spec.rate_max),
        host_cores=cores,
        until_ms=until_ms,
        egress=spec.egress,
        limits=spec.refused_limits
        | (0 if cores else int(NodeRole.ONLY_CONTAINERS))
        | (PARTS if wanted.orders_card and PART_WORD not in wanted.gpu_words else 0),
        gpu_words=wanted.gpu_words,
        gpu_memory_mib=wanted.gpu_memory_mib,
    )


def lack(traits: Traits, needs: Needs) -> Reason | None:
    """Return the first reason of the table for which a machine does not fit a job, None if it fits."""
    for row, has, wants in zip(REQUIREMENTS, traits, needs, strict=True):
        found = row.lack(has, wants)
        if found is not None:
            return found
    return None
