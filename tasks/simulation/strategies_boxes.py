"""Strategies about containers: V0, whose seconds nobody proves, and V1, where two of three have to agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tasks.simulation.actions import Account, Offer, Terms
from tasks.simulation.agents.base import Agent
from tasks.simulation.agents.hosts import STORES, WAYS_OUT, Host, IdleHost, LeavingHost, MissingHost, QuorumFriend
from tasks.simulation.agents.sponsors import Sponsor
from tasks.simulation.agents.tenants import NEVER, REFUSALS, GreedyTenant, RefusingTenant
from tasks.simulation.boxes import Terms as BoxTerms
from tasks.simulation.stage import BOND, TASKS, Cast, Setting, Stage, honest_cast
from tasks.simulation.strategy import BOTH, SHARES, Strategy

__all__ = ["BOXED", "boxed"]

_EVERY: Final = (2, 4)
"""Ticks between checkpoints."""
_BONDED: Final = Terms(0, 0, 2 * BOND)


def boxed(cast: Cast, terms: BoxTerms) -> Cast:
    """Return a cast whose requester posts containers."""

    def with_boxes(stage: Stage, setting: Setting) -> Sequence[Agent]:
        stage.box = terms
        return cast(stage, setting)

    return with_boxes


def _boxed(stage: Stage, setting: Setting) -> None:
    """Have the honest requester post containers, as the setting says."""
    stage.box = BoxTerms(
        every=int(setting.get("every", 0)), looks=int(setting.get("looks", 2)), level=int(setting.get("level", 0)),
        stays=bool(setting.get("stays", False)), mount=float(setting.get("mount", 0)),
    )  # fmt: skip


def _honest_box(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """The same containers, and honest machines."""
    _boxed(stage, setting)
    return honest_cast(stage, setting)


def _idle(stage: Stage, setting: Setting) -> IdleHost:
    host = IdleHost(stage.worker, stage.worker_offer(), stage.costs(0), stage.off)
    host.works, host.is_faking = float(setting.get("works", 1)), bool(setting["fakes"])
    host.stored, host.exits = str(setting["stored"]), bool(setting["exits"])
    return host


def _idling(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """A machine that bills more than it works."""
    _boxed(stage, setting)
    return [_idle(stage, setting), *stage.honest_verifiers()]


def _crowding(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """A machine that takes several containers at once, and has one device for all of them."""
    _boxed(stage, setting)
    host = _idle(stage, setting)
    host.offer = host.offer._replace(slots=int(setting["slots"]))
    return [host, *stage.honest_verifiers()]


def _leaving(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """A machine that leaves before its containers have ended."""
    _boxed(stage, setting)
    host = LeavingHost(stage.worker, stage.worker_offer(), stage.costs(0), stage.off)
    host.after, host.offset = int(setting["after"]), float(setting["offset"])
    host.way, host.stored = str(setting["way"]), str(setting["stored"])
    host.works = 1.0 if host.stored == "real" else 0.0
    return [host, *stage.honest_verifiers()]


def _taking_over(kind: type[Host], times: int) -> Cast:
    """Return a cast whose machines go on with what an honest stranger has left, and say so of its checkpoints."""

    def cast(stage: Stage, setting: Setting) -> Sequence[Agent]:
        _boxed(stage, setting)
        stranger = LeavingHost(
            Account("stranger", 0), _asking(stage.worker_offer(), 0.8), stage.costs(0), stage.off
        )
        stranger.after, stranger.offset = int(setting["after"]), 0.02
        stage.strangers.append(stranger)
        offers = [_asking(stage.verifier_offer(), 0.9)] * (1 + len(stage.verifiers))
        hosts = [
            kind(account, offer, stage.costs(0), stage.off)
            for account, offer in zip([stage.worker, *stage.verifiers], offers, strict=True)
        ]
        for host in hosts:
            if isinstance(host, MissingHost):
                host.times = times or int(setting["times"])
        return hosts

    return cast


def _asking(offer: Offer, part: float) -> Offer:
    return offer._replace(price_per_tera_unit=max(1, int(offer.price_per_tera_unit * part)))


def _greedy(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """A requester that stops its containers before they are paid, and honest machines of others."""
    _boxed(stage, setting)
    assert stage.box is not None
    tenant = GreedyTenant(stage.requester, stage.jobs(TASKS), stage.off, stage.box, stage.box_work_s)
    tenant.at_part = float(setting["at"])
    return [stage.idle_worker(), *stage.honest_verifiers(), tenant]


def _refusing(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """A requester that refuses good work and takes it, and honest machines of others."""
    return _taking_work(stage, setting, pays=False)


def _paying(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """The same requester, which stops its containers and pays for what it takes."""
    return _taking_work(stage, setting, pays=True)


def _taking_work(stage: Stage, setting: Setting, *, pays: bool) -> Sequence[Agent]:
    _boxed(stage, setting)
    assert stage.box is not None
    tenant = RefusingTenant(stage.requester, stage.jobs(TASKS), stage.off, stage.box, stage.box_work_s)
    tenant.at_part, tenant.pays = float(setting["at"]), pays
    tenant.by = str(setting.get("by", "name"))
    if tenant.by == "end":  # nothing is taken before it
        tenant.at_part = NEVER
    tenant.rest_cost = stage.conditions.window_cost * stage.conditions.windows
    return [stage.idle_worker(), *stage.honest_verifiers(), tenant]


def _quorum(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """Machines of one owner under several accounts, that leave a lie where two of them have a seat."""
    _boxed(stage, {**setting, "level": 1})
    offers = [stage.worker_offer(), *[stage.verifier_offer()] * len(stage.verifiers)]
    friends: list[QuorumFriend] = []
    for account, offer in zip([stage.worker, *stage.verifiers], offers, strict=True):
        friend = QuorumFriend(account, offer, stage.costs(0), stage.off, stage.plot)
        friend.lies, friend.waits = str(setting["lies"]), float(setting["waits"])
        friends.append(friend)
    sponsors = str(setting.get("sponsors", "none"))
    if sponsors == "none":
        return list(friends)
    parts = [friends] if sponsors == "one" else [[friend] for friend in friends]
    agents: list[Agent] = [*friends]
    for number, part in enumerate(parts):
        bond = part[0].offer.bond
        agents.append(Sponsor(Account("sponsor", number), part, bond, _BONDED))
    for friend in friends:
        friend.offer = friend.offer._replace(bond=0)
    return agents


def _honest_quorum(stage: Stage, setting: Setting) -> Sequence[Agent]:
    return _honest_box(stage, {**setting, "level": 1})


BOXED: Final[tuple[Strategy, ...]] = (
    Strategy(
        "idle host",
        "bills containers after it has stopped their work, shows a false log, and names false checkpoints",
        {
            "share": (20,), "works": (0.0, 0.1, 0.25, 0.5, 0.6, 0.75, 0.9), "fakes": BOTH, "stored": STORES,
            "exits": BOTH, "every": _EVERY,
        },
        _idling,
        baseline=_honest_box,
        known=({"share": 20, "works": 0.0, "fakes": True, "stored": "stale", "exits": True, "every": 4},),
    ),
    Strategy(
        "crowded host",
        "takes several containers at once, and runs all of them on one device",
        {
            "share": (20,), "slots": (2, 3, 4), "works": (1.0, 0.75, 0.5), "fakes": BOTH, "stored": STORES[:3],
            "exits": BOTH, "every": _EVERY,
        },
        _crowding,
        baseline=_honest_box,
    ),
    Strategy(
        "leaving host",
        "leaves its containers before or after a checkpoint, or reports itself in place of leaving",
        {
            "share": (20,), "after": (0, 1, 2, 4), "offset": (0.0, 0.02, 0.5, 0.98), "way": WAYS_OUT,
            "stored": STORES, "every": _EVERY, "stays": BOTH, "mount": (0.0, 4.0),
        },
        _leaving,
        baseline=_honest_box,
        known=(
            {
                "share": 20, "after": 1, "offset": 0.0, "way": "names and leaves", "stored": "stale", "every": 4,
                "stays": False, "mount": 0.0,
            },
            {
                "share": 20, "after": 0, "offset": 0.98, "way": "gives up", "stored": "nothing", "every": 2,
                "stays": False, "mount": 4.0,
            },
        ),
    ),
    Strategy(
        "missing host",
        "says of checkpoints of others that it cannot have them, and bills their intervals again",
        {
            "share": SHARES, "after": (1, 2, 3, 4), "times": (1, 2, 3), "every": _EVERY,
            "cost": (0.05, 0.1, 0.5, 1.0),
        },
        _taking_over(MissingHost, 0),
        baseline=_taking_over(Host, 0),
        known=({"share": 45, "after": 2, "times": 1, "every": 2, "cost": 0.5},),
    ),
    Strategy(
        "greedy tenant",
        "stops its containers before the last seconds are paid, and keeps what they stored",
        {
            "share": (20,), "every": (0, *_EVERY), "looks": (1, 2, 4, 8),
            "at": (0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97, 0.99, 1.0),
        },
        _greedy,
        own_tasks=True,
        baseline=_honest_box,
    ),
    Strategy(
        "refusing tenant",
        "refuses good checkpoints by name or by machine and does the rest itself, or refuses a good end",
        {
            "share": (20,), "every": _EVERY, "at": tuple(part / 40 for part in range(1, 39)),
            "cost": (0.1, 0.5, 1.0), "by": REFUSALS,
        },
        _refusing,
        own_tasks=True,
        baseline=_paying,
    ),
    Strategy(
        "quorum friends",
        "takes seats of quorums with several machines that agree on a lie",
        {
            "share": SHARES, "lies": ("always", "paired"),
            "waits": (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5), "sponsors": ("none", "one", "each"),
        },
        _quorum,
        baseline=_honest_quorum,
    ),
    Strategy(
        "quorum copier",
        "takes seats of quorums, runs nothing, and repeats what another one has sealed or revealed",
        {
            "share": SHARES, "lies": ("copies",), "sponsors": ("none", "one", "each"),
            "waits": (
                0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0, 1.1, 1.2, 1.25, 1.4, 1.5,
            ),
        },
        _quorum,
        baseline=_honest_quorum,
    ),
)  # fmt: skip
