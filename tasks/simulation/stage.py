"""One market from its number: conditions drawn from the seed, honest machines, one plot, and the outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tasks.ledger.audits import SURE
from tasks.ledger.lifecycle import ENDED, Phase, WindowPhase
from tasks.ledger.records import TaskRecord
from tasks.ledger.registry import NodeRole
from tasks.simulation.actions import Account, Action, Offer
from tasks.simulation.agents.base import Agent, Machine, Requester
from tasks.simulation.agents.challengers import Watcher
from tasks.simulation.agents.groups import GroupRequester
from tasks.simulation.agents.hosts import Host
from tasks.simulation.agents.keepers import KeepingRequester
from tasks.simulation.agents.plot import Plot
from tasks.simulation.agents.tenants import Tenant
from tasks.simulation.boxes import Terms, box_job, is_right, is_seat, needed_s
from tasks.simulation.dice import Dice
from tasks.simulation.market import DKB, JobShape, Leader, Market, job_of
from tasks.simulation.rules import ALL_RULES, Absent, absent
from tasks.simulation.work import Costs, OffChain
from tasks.spec import SEGMENT_MS_MAX, JobSpec

__all__ = ["BLOCKS_MAX", "Conditions", "Outcome", "Setting", "Stage", "draw_conditions", "play", "run_market"]

Setting = Mapping[str, int | float | str | bool]
"""A strategy's own parameters. ``share`` is the percentage of bonds that its verifiers have."""

COST: Final = "cost"
LENGTH: Final = "length"
CUSTODY: Final = "custody"
WORTH: Final = "worth"
DEMANDS: Final = "demands_part"
COMMON: Final = (COST, LENGTH, CUSTODY, WORTH, DEMANDS)
"""Parameters that each setting may have besides those of its strategy; they hold for honest agents too."""
BLOCKS_MAX: Final = 6_000
"""More than the longest market takes: one that is cut off counts what is locked as spent."""
FAR_MS: Final = 1 << 50
BONDING_BLOCKS: Final = 3
"""A machine registers, accepts a sponsor, and is bonded for."""
HONEST_MACHINES: Final = 8
VERIFIERS_MAX: Final = 4
BOND: Final = 10 * DKB
"""The least bond of a machine by the default parameters."""
FUNDS: Final = 100_000 * DKB
SEASONED: Final = 10**6 * DKB
UNPAYABLE: Final = 1 << 90
_STEP: Final = job_of(JobShape(1, 1, 1, 1, 1, bytes(32)))
STEP_UNITS: Final = _STEP.step_units
SEGMENT_STEPS_MAX: Final = SEGMENT_MS_MAX // _STEP.step_ms
"""Steps of the longest segment that a job may have."""
HOUR_MS: Final = 3_600_000
RATE: Final = 5 * 10**9
"""Work units a second of a machine: more than twice those of a slow core, by which deadlines are set."""
MATCH_MS: Final = HOUR_MS
WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY
VALUE_MILLI: Final = 3_000
"""What a correct window is worth to a requester, in thousandths of its cost: more than its price."""


class Conditions(NamedTuple):
    """What differs from market to market and is nobody's choice."""

    windows: int
    segments: int
    segment_steps: int
    cost_per_tera: int
    """What 10^12 work units cost to compute."""
    margin_milli: int
    """What honest machines ask, in thousandths of their cost."""
    price_slack_milli: int
    """The job's highest price, in thousandths of what honest machines ask."""
    rates: tuple[int, ...]
    """Work units a second of each honest machine."""
    is_seasoned: bool
    """Whether the machines have a record, or are new."""

    @property
    def window_units(self) -> int:
        """Work units of a window."""
        return self.segments * self.segment_steps * STEP_UNITS

    @property
    def window_cost(self) -> int:
        """What computing a window costs."""
        return self.window_units * self.cost_per_tera // 10**12

    @property
    def ask(self) -> int:
        """The price of 10^12 work units that leaves an honest machine its margin."""
        return max(1, self.cost_per_tera * self.margin_milli // 1000)

    @property
    def window_price(self) -> int:
        """What an honest machine asks for a window."""
        return self.window_units * self.ask // 10**12


def conditions_of(number: int, setting: Setting) -> Conditions:
    """Return what the market ``number`` is like; with ``cost`` in a setting a window costs so many coins.

    Where windows are cheap, bonds are hundreds of their prices, and the mean of few markets says little. With
    ``length`` a task has so many windows of an hour.
    """
    drawn = draw_conditions(Dice(number.to_bytes(8, "big")).fork("conditions"))
    if LENGTH in setting:
        steps = HOUR_MS * RATE // (1000 * drawn.segments * STEP_UNITS)
        drawn = drawn._replace(windows=int(setting[LENGTH]), segment_steps=min(steps, SEGMENT_STEPS_MAX))
    if COST not in setting:
        return drawn
    return drawn._replace(cost_per_tera=int(float(setting[COST]) * DKB) * 10**12 // drawn.window_units)


def draw_conditions(dice: Dice) -> Conditions:
    """Draw what a market is like."""
    segments = dice.pick((16, 32, 64))
    window_ms = dice.between(30_000, 3_600_000)
    steps = window_ms * RATE // (1000 * segments * STEP_UNITS)
    segment_steps = max(1, min(steps, SEGMENT_STEPS_MAX))
    cost = dice.between(10**15, 5 * 10**18)
    return Conditions(
        windows=1 + dice.below(4), segments=segments, segment_steps=segment_steps,
        cost_per_tera=max(1, cost * 10**12 // (segments * segment_steps * STEP_UNITS)),
        margin_milli=1_250 + dice.below(750), price_slack_milli=1_200 + dice.below(1_800),
        rates=tuple(RATE * (900 + dice.below(200)) // 1000 for _ in range(HONEST_MACHINES)),
        is_seasoned=dice.chance(0.5),
    )  # fmt: skip


class Outcome(NamedTuple):
    """What a market came to; amounts in 10^-18 DKB."""

    profit: int
    """The plot's: change of what its accounts have, plus the value of correct results, minus the cost of work."""
    honest_loss: int
    """The most that an honest machine lost of its bonds."""
    honest_profit: int
    """Of all honest machines together."""
    forged_windows_paid: int
    """Windows with a forged segment that a requester outside the plot has paid for."""
    forged_windows: int
    """Windows with a forged segment that were proved to such a requester."""
    audits: float
    """How many of these were audited on average: the sum of their probabilities."""
    tasks_failed: int
    """Tasks of requesters outside the plot that were not settled."""
    tasks: int
    fund: int
    """What the check fund has at the end."""
    requester_profit: int
    """Of the honest requester: change of what it has, plus the value of correct results that it paid."""
    wait_ms: int
    """From the creation of its tasks to their ends, together."""
    gas_max: int
    changes_max: int
    events_max: int
    refused: dict[str, int]
    endings: dict[str, int]
    """How disputes ended."""
    reasons: dict[str, int]
    """Why tasks and windows changed."""
    unworked_ticks: float
    """The most ticks of a container of such a requester that were counted without work behind them."""
    is_over: bool
    """Whether every task ended within the blocks that a run may have."""


@dataclass
class Stage:
    """Accounts and conditions of one market, before roles are given."""

    conditions: Conditions
    share: int
    dice: Dice
    own_tasks: bool = False
    """Whether the plot's requester posts the tasks."""
    worth: float = 0.0
    """What a correct window is worth to a requester, in prices; 0 for the usual part of its cost."""
    off: OffChain = field(default_factory=OffChain)
    plot: Plot = field(default_factory=Plot)
    leader: Leader | None = None
    custody: bool = False
    """Whether outputs lie in custody."""
    strangers: list[Agent] = field(default_factory=list)
    """Others that are neither honest nor of the plot."""
    watchers: int = 0
    """Honest outsiders that run windows again and challenge what is wrong."""
    parameters: dict[str, int] = field(default_factory=dict)
    """Parameters of the chain that are not the defaults."""
    rate_min: int = 0
    """The rate that the jobs require."""
    from_height: int = 0
    """The block before which the honest requester posts nothing."""
    group: tuple[int, int] | None = None
    """Members and spares of each job of the honest requester, if these are groups."""
    demands_part: float = 0.0
    """In which part of its tasks the honest requester demands a drawn output of a drawn custodian."""
    box: Terms | None = None
    """How jobs are run, if they are containers."""
    honest_kind: Callable[[Account, Offer, Costs, OffChain], Machine] = Machine

    def __post_init__(self) -> None:
        self.worker = Account("worker", 0)
        self.requester, self.operator = Account("requester", 0), Account("operator", 0)
        total = HONEST_MACHINES * BOND * self.share // (100 - self.share)
        count = max(1, min(VERIFIERS_MAX, total // BOND))
        self.verifiers = [Account("friend", number) for number in range(count)]
        self.verifier_bond = max(BOND, total // count)
        self.honest = [Account("honest", number) for number in range(HONEST_MACHINES)]
        accounts = [self.worker, *self.verifiers] + [self.requester] * self.own_tasks
        self.plot.members = {account.address for account in accounts}

    def costs(self, number: int) -> Costs:
        """Return the costs of the honest machine ``number``; those of the plot are as the first one's."""
        return Costs(self.conditions.rates[number], self.conditions.cost_per_tera)

    def worker_offer(self) -> Offer:
        """Return the honest offer of the plot's worker: a little below all others, so that it is matched."""
        return self._offer(WORK | self._hosts(), max(1, self.conditions.ask * 9 // 10), self.costs(0).rate, BOND)

    def verifier_offer(self) -> Offer:
        """Return the offer of the plot's verifiers."""
        roles = CHECK | self._keeps() | (WORK | self._hosts() if self.box else NodeRole(0))
        return self._offer(roles, self.conditions.ask, self.costs(0).rate, self.verifier_bond)

    def _offer(self, roles: NodeRole, price: int, rate: int, bond: int) -> Offer:
        stays = self.box is not None and self.box.stays
        return Offer(roles, price, rate, bond, until_ms=FAR_MS if stays else 0)

    def jobs(self, tasks: int, segment_steps: int | None = None) -> list[JobSpec]:
        """Return the jobs of a requester, with other segments than those of the conditions if these are given."""
        at = self.conditions
        steps, price_max = segment_steps or at.segment_steps, at.ask * at.price_slack_milli // 1000
        if self.box is not None:
            return [box_job(at.window_units, at.windows, self.box, price_max, MATCH_MS)] * tasks
        shape = JobShape(at.windows, at.segments, steps, price_max, MATCH_MS, b"", self.rate_min)
        return [job_of(shape._replace(seed=bytes([task]) * 32)) for task in range(tasks)]

    def honest_worker(self) -> Machine:
        """Return the plot's worker as an honest one."""
        return self._kind()(self.worker, self.worker_offer(), self.costs(0), self.off)

    def idle_worker(self) -> Machine:
        """Return the plot's worker as one that asks more than anybody pays."""
        worker = self.honest_worker()
        worker.offer = worker.offer._replace(price_per_tera_unit=UNPAYABLE)
        return worker

    def honest_verifiers(self) -> list[Machine]:
        """Return the plot's verifiers as honest ones."""
        kind = self._kind()
        return [kind(account, self.verifier_offer(), self.costs(0), self.off) for account in self.verifiers]

    def _kind(self) -> type[Machine]:
        return Machine if self.box is None else Host

    def _hosts(self) -> NodeRole:
        return NodeRole(0) if self.box is None else NodeRole.CONTAINER

    def _keeps(self) -> NodeRole:
        return NodeRole.STORAGE if self.custody else NodeRole(0)

    def honest_requester(self) -> Requester:
        """Return a requester that wants its results."""
        requester = self._requester()
        requester.from_height = self.from_height
        return requester

    def _requester(self) -> Requester:
        if self.box is not None:
            return Tenant(self.requester, self.jobs(TASKS), self.off, self.box, self.box_work_s)
        if self.group is not None:
            return GroupRequester(self.requester, self.jobs(TASKS), self.off, *self.group)
        if self.custody:
            keeping = KeepingRequester(self.requester, self.jobs(TASKS), self.off, self.plot)
            keeping.demands_part, keeping.dice = self.demands_part, self.dice.fork("demands")
            return keeping
        return Requester(self.requester, self.jobs(TASKS), self.off)

    @property
    def box_work_s(self) -> int:
        """Seconds of work of a container."""
        return needed_s(self.conditions.window_units, self.conditions.windows)

    def honest_watchers(self) -> list[Watcher]:
        """Return the honest outsiders."""
        accounts = (Account("watcher", number) for number in range(self.watchers))
        return [
            Watcher(account, self.costs(0), self.off, self.dice.fork(f"watcher {number}"))
            for number, account in enumerate(accounts)
        ]

    def honest_machines(self) -> list[Machine]:
        """Return the machines outside the plot."""
        roles = WORK | CHECK | self._keeps() | self._hosts()
        kind = self.honest_kind if self.box is None else Host
        return [
            kind(
                account, self._offer(roles, self.conditions.ask, self.costs(at).rate, BOND),
                self.costs(at), self.off,
            )
            for at, account in enumerate(self.honest)
        ]  # fmt: skip


TASKS: Final = 2
CUSTODY_COPIES: Final = 2
"""Machines that keep an output where there is custody."""
Cast = Callable[[Stage, Setting], Sequence[Agent]]
"""Gives the accounts of the plot their agents; returns those, the requester of its tasks included."""


def honest_cast(stage: Stage, _setting: Setting) -> Sequence[Agent]:
    """Give the plot's accounts honest agents. Where it posts the tasks, machines of others do the work."""
    if stage.own_tasks:
        return [stage.idle_worker(), *stage.honest_verifiers(), stage.honest_requester()]
    return [stage.honest_worker(), *stage.honest_verifiers()]


def play(
    cast: Cast, setting: Setting, number: int, rules: Absent = ALL_RULES, *, own_tasks: bool = False,
    custody: bool = False, conditions: Conditions | None = None,
) -> Outcome:  # fmt: skip
    """Play the market ``number`` with the plot as ``cast`` makes it; the same number is the same market.

    Its conditions are drawn unless given. Raises AssertionError if money is made or lost.
    """
    dice, custody = Dice(number.to_bytes(8, "big")), bool(setting.get(CUSTODY, custody))
    share = int(setting.get("share", 20))
    stage = Stage(conditions or conditions_of(number, setting), share, dice, own_tasks, custody=custody)
    stage.worth = float(setting.get(WORTH, 0))
    stage.demands_part = float(setting.get(DEMANDS, 0))
    plotting = list(cast(stage, setting))
    machines = stage.honest_machines()
    requesters = [] if own_tasks else [stage.honest_requester()]
    agents: list[Agent] = [*plotting, *machines, *requesters, *stage.honest_watchers(), *stage.strangers]
    with absent(rules):
        return _play(stage, rules, agents, plotting, machines)


def _play(
    stage: Stage, rules: Absent, agents: Sequence[Agent], plotting: Sequence[Agent], machines: Sequence[Machine]
) -> Outcome:
    funds = {agent.address: FUNDS for agent in agents}
    if rules.ignores_operators:
        for agent in agents:
            if isinstance(agent, Machine):
                agent.offer = agent.offer._replace(operator=None)
    custody = {"custody_copies": CUSTODY_COPIES} if stage.custody else {}
    parameters = {**custody, **stage.parameters, **rules.parameters}
    market = Market(funds, parameters, stage.dice)
    market.leader, market.leads_share = stage.leader, stage.share / 100
    run_market(market, agents, is_seasoned=stage.conditions.is_seasoned)
    market.check_sums()
    return _outcome(market, stage, plotting, machines)


def run_market(
    market: Market, agents: Sequence[Agent], *, is_seasoned: bool, blocks: int = BLOCKS_MAX
) -> None:  # fmt: skip
    """Let agents act block by block until nothing is left to happen, for ``blocks`` at most.

    Time passes as fast as nothing happens. First machines register, are bonded for, and wait for the next epoch of
    draws. ``is_seasoned`` machines have a record from then on.
    """
    for _ in range(BONDING_BLOCKS):
        market.block([action for agent in agents for action in agent.act(market)])
        market.wait_until(0)
    if is_seasoned:
        for agent in agents:
            if market.node(agent.address) is not None:
                market.vouch(agent.address, SEASONED)
    is_tried = market.parameters.trial_ms > 0
    while market.height < market.parameters.draw_blocks:
        market.block([action for agent in agents for action in agent.act(market)] if is_tried else ())
        market.wait_until(0)
    asks_ms = 0  # agents are asked again if something happened, or at this time
    while market.height < blocks:
        actions: list[Action] = []
        if asks_ms <= market.time_ms:
            actions = [action for agent in agents for action in agent.act(market)]
        has_news = market.block(actions)
        if has_news:  # machines look at once at what changed
            market.wait_until(asks_ms := 0)
            continue
        times = [at for agent in agents for at in agent.wake_ms()]
        asks_ms = min(times, default=FAR_MS)
        if market.awaits_draw():
            market.wait_until(0)
            continue
        due_ms = market.next_due_ms()
        if due_ms is not None:
            times.append(due_ms)
        if not times:
            return
        market.wait_until(min(times))


def _outcome(market: Market, stage: Stage, plotting: Sequence[Agent], machines: Sequence[Machine]) -> Outcome:
    def profit(agents: Iterable[Agent]) -> int:
        return sum(market.wealth(agent.address) - FUNDS - agent.spent for agent in agents)

    tasks = [
        task for task in market.tasks_of(stage.requester.address)
        if not market.is_spare(task) and not (task.is_metered and is_seat(market.state, task.id))
    ]  # fmt: skip
    ids = [task.id for task in tasks]
    correct = forged = ransoms = 0
    unit = stage.conditions.window_cost * VALUE_MILLI // 1000
    if stage.worth:
        unit = int(stage.conditions.window_price * stage.worth)
    for task in tasks:
        if task.is_metered and stage.box is not None:
            is_done = is_right(market.state, task.id) or task.id in stage.off.obtained
            correct += is_done * stage.conditions.windows
            forged += task.phase is Phase.SETTLED and not is_done
        for number in range(task.next_window):
            window = market.window(task.id, number)
            if window.phase not in (WindowPhase.FINAL, WindowPhase.LOST):
                continue
            if stage.off.is_forged(task.id, number, window.proof.state_root_out):
                forged += 1
            elif task.id not in stage.off.lost:
                correct += 1
            elif window.worker in stage.plot.members:
                ransoms += int(unit * stage.plot.ransom)
                correct += stage.plot.ransom > 0
    lies = [
        chance
        for (task, number, root_out), chance in market.chances.items()
        if task in ids and stage.off.is_forged(task, number, root_out)
    ]
    value = correct * unit
    waits = [(task.changed_ms if task.phase in ENDED else market.time_ms) - task.created_ms for task in tasks]
    requester_profit = value - ransoms + market.wealth(stage.requester.address) - FUNDS
    failed = sum(task.phase != Phase.SETTLED for task in tasks)
    figures = market.figures
    return Outcome(
        profit=profit(plotting) + value * stage.own_tasks - stage.plot.bribes_paid + ransoms,
        honest_loss=max(market.bond_lost(machine.address, machine.offer.bond, ids) for machine in machines),
        honest_profit=profit(machines),
        forged_windows_paid=0 if stage.own_tasks else forged,
        forged_windows=0 if stage.own_tasks else len(lies),
        audits=0.0 if stage.own_tasks else sum(lies) / SURE,
        tasks_failed=0 if stage.own_tasks else failed,
        tasks=len(tasks),
        fund=market.fund(),
        requester_profit=0 if stage.own_tasks else requester_profit,
        wait_ms=0 if stage.own_tasks else sum(waits),
        gas_max=figures.gas_max,
        changes_max=figures.changes_max,
        events_max=figures.events_max,
        refused=dict(figures.refused),
        endings=dict(market.endings(ids)),
        reasons=dict(market.reasons(ids)),
        unworked_ticks=0
        if stage.own_tasks
        else max((_unworked(market, stage, task) for task in tasks), default=0),
        is_over=market.is_over(),
    )


def _unworked(market: Market, stage: Stage, task: TaskRecord) -> float:
    """Return how many ticks of a container were counted that no work stands behind."""
    if not task.is_metered:
        return 0
    unworked_s = market.meter_of(task.id).seconds - stage.off.boxes.worked_s.get(task.id, 0.0)
    return max(0, unworked_s) / market.job(task.id).tick_s
