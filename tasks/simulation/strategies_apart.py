"""Strategies about groups of tasks, and about speed trials on chains that have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tasks.ledger.lifecycle import Reason
from tasks.ledger.queries import Action as Asked
from tasks.simulation.actions import Account
from tasks.simulation.agents.base import Agent, Machine
from tasks.simulation.agents.groups import SPARE_WAYS, FalseSpare, GroupRequester
from tasks.simulation.agents.trials import JUDGE_WAYS, TRIED_BLOCKS, Device, SharedMachine, TrialFriend, TrialLiar
from tasks.simulation.agents.workers import Quitter
from tasks.simulation.stage import HONEST_MACHINES, LENGTH, RATE, Setting, Stage
from tasks.simulation.strategy import BOTH, SHARES, Strategy
from tasks.simulation.work import Costs

__all__ = ["APART"]

_PLACES: Final = {"accept": Asked.ACCEPT, "start": Asked.START, "compute": Asked.COMPUTE}
WINDOWS_MAX: Final = 2
"""Windows of a member: a group has many."""
_TRIAL_MS: Final = 10_000
_FIRST_MS: Final = 60_000
"""From the first trial to the first round: jobs come in between."""
_POSTS_AT: Final = 4 * TRIED_BLOCKS + 48
"""The block in which jobs come: by then each machine has been tried."""
_RATE_MIN: Final = RATE * 4 // 5
"""What the jobs of a market with trials require: honest machines have nine tenths of ``RATE`` and more."""
_LINES: Final = (0.999, 1.001, 1.1, 1.25, 1.5, 2.0, 2.5)


# Groups


def _grouped(stage: Stage, setting: Setting) -> None:
    """Have the honest requester post groups. All machines are as fast: they are in one band."""
    windows = min(stage.conditions.windows, WINDOWS_MAX) if LENGTH not in setting else stage.conditions.windows
    stage.conditions = stage.conditions._replace(rates=(RATE,) * HONEST_MACHINES, windows=windows)
    stage.group = int(setting["members"]) + int(setting.get("breaks", False)), 1


def _owned(stage: Stage, setting: Setting) -> list[Account]:
    """Return further machines of the plot."""
    accounts = [Account("machine", number) for number in range(1, int(setting["machines"]))]
    stage.plot.members |= {account.address for account in accounts}
    return accounts


def _priced(stage: Stage, accounts: Sequence[Account], price: float) -> list[Machine]:
    offer = stage.worker_offer()._replace(price_per_tera_unit=max(1, int(stage.conditions.ask * price)))
    return [Machine(account, offer, stage.costs(0), stage.off) for account in accounts]


def _honest_group(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """All machines of the plot work, and ask nearly what others ask."""
    _grouped(stage, setting)
    return [*_priced(stage, [stage.worker, *_owned(stage, setting)], 0.999), *stage.honest_verifiers()]


def _breaking(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """Cheap machines that take seats and leave them; one of their owner, which asks more, waits for these."""
    _grouped(stage, setting)
    offer = stage.worker_offer()._replace(price_per_tera_unit=1)
    quitters = []
    for number, account in enumerate(_owned(stage, setting)):
        dice = stage.dice.fork(f"quitter {number}")
        quitter = Quitter(account, offer, stage.costs(0), stage.off, dice)
        quitter.place, quitter.is_silent = _PLACES[str(setting["place"])], bool(setting["silent"])
        quitter.reason = Reason.WORKER_LEFT
        quitters.append(quitter)
    return [*_priced(stage, [stage.worker], float(setting["price"])), *quitters, *stage.honest_verifiers()]


def _seating(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """An owner of several machines that asks more for each."""
    _grouped(stage, setting)
    accounts = [stage.worker, *_owned(stage, setting)]
    return [*_priced(stage, accounts, float(setting["price"])), *stage.honest_verifiers()]


def _standing(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """The dearest machine, which so is the spare; with ``breaks`` a cheap one of its owner leaves its seat."""
    _grouped(stage, setting)
    offer = stage.worker_offer()._replace(price_per_tera_unit=int(stage.conditions.ask * 1.001) + 1)
    spare = FalseSpare(stage.worker, offer, stage.costs(0), stage.off)
    spare.way, spare.leaves_ms = str(setting["way"]), 60_000 * int(setting["minutes"])
    agents: list[Agent] = [spare, *stage.honest_verifiers()]
    if setting["breaks"]:
        account = Account("machine", 1)
        stage.plot.members.add(account.address)
        quitter = Quitter(
            account, offer._replace(price_per_tera_unit=1), stage.costs(0), stage.off, stage.dice.fork("quitter")
        )
        quitter.place, quitter.from_window = Asked.COMPUTE, stage.conditions.windows - 1
        agents.append(quitter)
    return agents


def _honest_spare(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """The same machine as an honest spare."""
    _grouped(stage, setting)
    (spare,) = _priced(stage, [stage.worker], 1.001)
    spare.offer = spare.offer._replace(price_per_tera_unit=int(stage.conditions.ask * 1.001) + 1)
    others: list[Machine] = []
    if setting["breaks"]:
        account = Account("machine", 1)
        stage.plot.members.add(account.address)
        others = _priced(stage, [account], 0.999)
    return [spare, *stage.honest_verifiers(), *others]


def _crowding(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """Honest machines; groups that no machine takes stand before the tasks of others."""
    jobs = [
        job._replace(max_price_per_tera_unit=max(1, int(job.max_price_per_tera_unit * float(setting["limit"]))))
        for job in stage.jobs(int(setting["groups"]))
    ]
    crowd = GroupRequester(Account("crowd", 0), jobs, stage.off, int(setting["members"]), 0)
    return [stage.honest_worker(), *stage.honest_verifiers(), crowd]


# Speed trials


def _tried(stage: Stage, setting: Setting) -> None:
    """Have a chain with speed trials, and jobs that require a rate."""
    stage.parameters |= {
        "trial_ms": _TRIAL_MS, "trial_blocks": int(setting.get("blocks", 1_000)), "trial_first_ms": _FIRST_MS,
    }  # fmt: skip
    stage.rate_min, stage.from_height = _RATE_MIN, _POSTS_AT


def _slow(stage: Stage, setting: Setting) -> Costs:
    return Costs(int(RATE * float(setting["speed"])), stage.conditions.cost_per_tera)


def _claiming_speed(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """A slow machine that claims the rate that jobs require, with verifiers of its plot."""
    _tried(stage, setting)
    kind = TrialLiar if setting["forges"] else Machine
    worker = kind(
        stage.worker, stage.worker_offer()._replace(rate=RATE), _slow(stage, setting), stage.off
    )  # fmt: skip
    return [worker, *_judges(stage, str(setting["judges"]))]


def _judges(stage: Stage, way: str) -> list[Machine]:
    judges: list[Machine] = []
    for account in stage.verifiers:
        judge = TrialFriend(account, stage.verifier_offer(), stage.costs(0), stage.off, stage.plot)
        judge.way = way
        judges.append(judge)
    return judges


def _truly_slow(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """The same machine with the rate that it has. No job takes it, so it saves the fees of trials."""
    _tried(stage, setting)
    costs = _slow(stage, setting)
    worker = Machine(stage.worker, stage.worker_offer()._replace(rate=costs.rate), costs, stage.off)
    worker.is_tried = costs.rate >= stage.rate_min
    return [worker, *stage.honest_verifiers()]


def _denying(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """An honest worker, whose owner's verifiers call the trials of its rivals wrong."""
    _tried(stage, setting)
    return [stage.honest_worker(), *_judges(stage, str(setting["judges"]))]


def _honest_tried(stage: Stage, setting: Setting) -> Sequence[Agent]:
    _tried(stage, setting)
    return [stage.honest_worker(), *stage.honest_verifiers()]


def _sharing(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """One device that stands behind several machines."""
    _tried(stage, setting)
    device, offer = Device(), stage.worker_offer()._replace(rate=RATE)
    costs = Costs(RATE, stage.conditions.cost_per_tera)
    accounts = [stage.worker, *_owned(stage, setting)]
    machines = [SharedMachine(account, offer, costs, stage.off, device) for account in accounts]
    return [*machines, *stage.honest_verifiers()]


def _one_device(stage: Stage, setting: Setting) -> Sequence[Agent]:
    return _sharing(stage, {**setting, "machines": 1})


APART: Final[tuple[Strategy, ...]] = (
    Strategy(
        "seat breaker",
        "has cheap machines take seats of a group and leave them, and a dearer one that gets what they lost",
        {
            "share": SHARES, "members": (2, 4, 6, 8), "machines": (2, 3, 5), "place": tuple(_PLACES),
            "silent": BOTH,
            "price": _LINES,
        },
        _breaking,
        baseline=_honest_group,
    ),
    Strategy(
        "dear seats",
        "asks more for each of several machines in groups",
        {"share": SHARES, "members": (2, 3, 4, 5), "machines": (1, 2, 3), "price": (0.9, *_LINES)},
        _seating,
        baseline=_honest_group,
    ),
    Strategy(
        "false spare",
        "takes the pay of a spare without having prepared, or leaves when it is needed",
        {
            "share": SHARES, "members": (8,), "way": SPARE_WAYS, "breaks": BOTH,
            "minutes": (1, 2, 5, 10, 20, 30, 60, 120, 240),
        },
        _standing,
        baseline=_honest_spare,
    ),
    Strategy(
        "group crowd",
        "posts groups that no machine takes, before tasks of others",
        {
            "share": SHARES, "groups": (2, 4, 8, 16), "members": (1, 2, 4),
            "limit": (0.001, 0.1, 0.2, 0.3, 0.4),
        },
        _crowding,
    ),
    Strategy(
        "speed liar",
        "claims the speed that jobs require; shows links that it has not computed to friends",
        {
            "share": SHARES, "speed": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7), "forges": BOTH,
            "judges": JUDGE_WAYS[:2], "blocks": (200, 1_000),
        },
        _claiming_speed,
        baseline=_truly_slow,
        known=({"share": 33, "speed": 0.5, "forges": True, "judges": "agrees", "blocks": 1_000},),
    ),
    Strategy(
        "trial denier",
        "has its verifiers call the trials of rivals wrong",
        {"share": SHARES, "judges": JUDGE_WAYS[2:], "blocks": tuple(range(50, 2_550, 50))},
        _denying,
        baseline=_honest_tried,
    ),
    Strategy(
        "shared device",
        "answers for several machines with one device",
        {"share": SHARES, "machines": (2, 3, 4), "blocks": (20, *range(50, 1_650, 100))},
        _sharing,
        baseline=_one_device,
    ),
)  # fmt: skip
