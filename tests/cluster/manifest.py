"""Networks of real processes from one number: what befalls them, and what their operators do meanwhile.

Nothing is simulated but the clock of a process, the speed and the failures of its syncs, all by a preloaded
library (``disturb.c``). A full disk is a small file system of the member's own; a split drops packets between
members in a network of this process alone. Where this process may not make the one, what would fill it is a kill;
without the other a pause takes the place of a split.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Final

from tests.cluster.links import Cut

__all__ = [
    "CHILDREN", "ENDS_NODES", "KINDS", "NETWORK", "RELAY", "SIGNER", "SIGNER_FAULTS", "WORKER", "Deed",
    "Disturbance", "Manifest", "draw",
]  # fmt: skip

KINDS: Final = {
    "kill": 3, "pause": 2, "clock": 2, "full": 2, "split": 6, "start": 2, "child": 2, "power": 1, "move": 2,
    "slow": 2, "broken": 1, "relay": 2, "signer": 2, "worker": 2,
}  # fmt: skip
"""How often each is drawn: killed, stopped, wrong clock, full disk, cut links, killed while it starts, a child of
it killed, all killed at once, back at another port, slow syncs, failing syncs; and what befalls a relay, a signer
and a worker, where there is one that matters."""
NETWORK: Final = "network"
"""The member that a disturbance of all, or of the links, names."""
RELAY: Final = "relay-0"
WORKER: Final = "worker-0"
SIGNER: Final = "signer"
STEP_MS_MAX: Final = 8_000
"""More than the two seconds that a voter bears, in both directions."""
SHORT_S: Final = (1.0, 8.0)
LONG_S: Final = (12.0, 25.0)
"""Connections are given up meanwhile, and who is back has missed much."""
SYNC_MS_MAX: Final = 1_500
START_S_MAX: Final = 4.0
CHILDREN: Final = ("rpc.gateway.process", "node.process.signature_worker")
SIGNER_FAULTS: Final = ("kill", "pause", "slow", "broken")
ENDS_NODES: Final = frozenset(("full", "broken"))
"""After these a node may end by itself."""
VOTERS_LEFT: Final = 4
"""Whoever is no founder, or leaves, is one more than these."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """``member`` is disturbed from ``at_s`` after the network is up, for ``for_s``."""

    at_s: float
    for_s: float
    kind: str
    member: str
    amount: int = 0
    """Milliseconds: of a clock's step, of a sync, until a start is killed. Else which child, or how."""
    cuts: tuple[Cut, ...] = ()

    @property
    def until_s(self) -> float:
        """When it ends."""
        return round(self.at_s + self.for_s, 1)


@dataclass(frozen=True, slots=True)
class Deed:
    """What the operator of ``member`` sets about at ``at_s`` and sees through, whatever happens meanwhile."""

    at_s: float
    kind: str
    """stake, unstake, rotate (its vote key), upgrade (to a release that knows the protocol's next version), or
    post a task."""
    member: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A network and what happens to it."""

    seed: int
    validators: int
    late: str
    """Who starts only after ``late_s``; empty if nobody does."""
    late_s: float
    late_sync: str
    """How it gets the chain that there is: "blocks", or "state" of the end of an epoch."""
    epoch_blocks: int
    """Of epochs of some seconds, after which who was away may be jailed; 0: an hour's."""
    has_rests: bool
    """One thing at a time, and a block that follows before the next."""
    homes: tuple[str, ...]
    """Who accepts no connection and is reached through the relay."""
    lights: tuple[str, ...]
    """Who keeps little of the past, and no snapshot."""
    signer: str
    """Whose vote key is with a process of its own; empty if nobody's is."""
    joins: str
    """Who is no founder; empty if all are."""
    has_task: bool
    """A worker computes a task, which must be settled, and paid once."""
    deeds: tuple[Deed, ...]
    disturbances: tuple[Disturbance, ...]

    @property
    def names(self) -> list[str]:
        """The validators."""
        return [f"validator-{number}" for number in range(self.validators)]

    @property
    def is_upgraded(self) -> bool:
        """Whether the protocol changes its version."""
        return any(deed.kind == "upgrade" for deed in self.deeds)

    def to_json(self) -> str:
        """Return what a person needs to see what was played."""
        return json.dumps(asdict(self))


def draw(seed: int, *, lasts_s: float = 40.0) -> Manifest:
    """Return the manifest of a number.

    A member suffers one thing at a time; several members may suffer at once, unless there are rests.
    """
    rng = random.Random(seed)
    validators = rng.choice((4, 4, 5, 6))
    names = [f"validator-{number}" for number in range(validators)]
    late = rng.choice(names[1:]) if rng.random() < 0.5 else ""
    epoch_blocks, has_rests = rng.choice((0, 0, 12, 25)), rng.random() < 0.6
    homes = tuple(sorted(rng.sample(names, rng.choice((1, 2))))) if rng.random() < 0.3 else ()
    lights = tuple(name for name in names if rng.random() < 0.15)
    joins = names[-1] if epoch_blocks and validators > VOTERS_LEFT and rng.random() < 0.6 else ""
    signer = rng.choice([name for name in names if name != joins]) if rng.random() < 0.3 else ""
    has_task = rng.random() < 0.25
    deeds = _draw_deeds(rng, names, joins, signer, lasts_s) if epoch_blocks else []
    deeds += [Deed(round(rng.uniform(0, 10), 1), "task", names[0])] if has_task else []
    rotates = [deed.member for deed in deeds if deed.kind == "rotate"]
    free_of = {
        "relay": [RELAY] if homes or has_task else [],
        "signer": [SIGNER] if signer else [],
        "worker": [WORKER] if has_task else [],
        "move": [name for name in names if name not in (*homes, *rotates)],
        "split": [NETWORK],
        "power": [NETWORK],
    }
    busy_until = dict.fromkeys([*names, NETWORK, RELAY, SIGNER, WORKER], 0.0)
    found: list[Disturbance] = []
    at_s = 1.0
    while at_s < lasts_s - 5:
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        for_s = round(rng.uniform(*(LONG_S if rng.random() < 0.15 else SHORT_S)), 1)
        free = [name for name in free_of.get(kind, names) if name != late and busy_until[name] <= at_s]
        if free:
            member = rng.choice(free)
            cuts = _draw_cuts(rng, names) if kind == "split" else ()
            found.append(Disturbance(at_s, for_s, kind, member, _draw_amount(rng, kind), cuts))
            busy_until[member] = at_s + for_s + 1
        at_s = round(at_s + (for_s if has_rests else rng.uniform(0.5, 6.0)), 1)
    splits = [one for one in found if one.kind == "split"]
    late_s = round(rng.uniform(5, lasts_s - 5), 1) if late else 0.0
    if late and splits and rng.random() < 0.5:  # it begins while others are cut
        late_s = round(rng.choice(splits).at_s + 0.5, 1)
    late_sync = rng.choice(("blocks", "state")) if late and epoch_blocks else "blocks"
    return Manifest(
        seed, validators, late, late_s, late_sync, epoch_blocks, has_rests, homes, lights, signer, joins, has_task,
        tuple(deeds), tuple(found),
    )  # fmt: skip


def _draw_deeds(rng: random.Random, names: Sequence[str], joins: str, signer: str, lasts_s: float) -> list[Deed]:
    """Return what operators do in a chain of short epochs."""

    def at_s() -> float:
        return round(rng.uniform(2, 0.6 * lasts_s), 1)

    deeds = [Deed(at_s(), "stake", joins)] if joins else []
    if len(names) > VOTERS_LEFT and rng.random() < 0.3:
        deeds.append(Deed(at_s(), "unstake", rng.choice([name for name in names if name != joins])))
    what = rng.random()
    if what < 0.3:
        deeds += [Deed(at_s(), "upgrade", name) for name in names]
    elif what < 0.7:
        deeds.append(Deed(at_s(), "rotate", rng.choice([name for name in names if name not in (joins, signer)])))
    return deeds


def _draw_amount(rng: random.Random, kind: str) -> int:
    match kind:
        case "clock":
            return rng.choice((-1, 1)) * rng.randrange(500, STEP_MS_MAX)
        case "slow":
            return rng.randrange(50, SYNC_MS_MAX)
        case "start":
            return rng.randrange(50, int(START_S_MAX * 1_000))
        case "child":
            return rng.randrange(len(CHILDREN))
        case "signer":
            return rng.randrange(len(SIGNER_FAULTS))
        case "worker":
            return rng.randrange(2)
        case _:
            return 0


def _draw_cuts(rng: random.Random, names: Sequence[str]) -> tuple[Cut, ...]:
    """Two sides, in one or both directions; or single links, of which some are cut one way only."""
    if rng.random() < 0.7:
        side = rng.sample(names, rng.randint(1, len(names) // 2))
        other = [name for name in names if name not in side]
        ways = rng.choice((("out",), ("in",), ("out", "in"), ("out", "in")))
        pairs = [*product(side, other)] if "out" in ways else []
        pairs += [*product(other, side)] if "in" in ways else []
        return tuple(pairs)
    links = [(one, other) for one in names for other in names if one != other]
    return tuple(sorted(rng.sample(links, rng.randint(1, len(links) // 2))))
