"""The strategies that are judged: who plays what, which of its own parameters are searched, and what it needs.

A strategy that needs a rule that does not exist yet has ``needs`` and no cast: it is reported as not yet judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.queries import Action as Asked
from tasks.simulation.actions import JUNK_BLOB, Account, Offer, Terms
from tasks.simulation.agents.base import Agent, Requester
from tasks.simulation.agents.challengers import CUT_AT, BreakShower, CopyingChallenger, FalseChallenger, LineCutter
from tasks.simulation.agents.keepers import KEEPER_WAYS, FalseKeeper, GarbageWorker
from tasks.simulation.agents.leader import DishonestLeader
from tasks.simulation.agents.players import FALSE_WAYS
from tasks.simulation.agents.plot import Plot
from tasks.simulation.agents.requesters import GriefingRequester
from tasks.simulation.agents.sponsors import Sponsor, succeed
from tasks.simulation.agents.verifiers import (
    LAZY_WAYS,
    BribableVerifier,
    FreezingVerifier,
    Friend,
    LazyVerifier,
)
from tasks.simulation.agents.workers import (
    ESCAPES,
    CorneredLiar,
    FalseClaimer,
    ForgingWorker,
    JunkWorker,
    Quitter,
    TornWorker,
    Withholder,
)
from tasks.simulation.stage import BOND, SEGMENT_STEPS_MAX, TASKS, Setting, Stage
from tasks.simulation.strategies_apart import APART
from tasks.simulation.strategies_boxes import BOXED
from tasks.simulation.strategy import BOTH, PARTS, SHARES, Strategy, Values
from tasks.simulation.work import Costs, OffChain
from tasks.spec import RATE_MAX

__all__ = ["JUDGED", "STRATEGIES", "Strategy"]


def _friends(stage: Stage) -> list[Friend]:
    return [
        Friend(account, stage.verifier_offer(), stage.costs(0), stage.off, stage.plot)
        for account in stage.verifiers
    ]


def _forger(stage: Stage, setting: Setting) -> ForgingWorker:
    worker = ForgingWorker(
        stage.worker, stage.worker_offer(), stage.costs(0), stage.off, stage.plot, stage.dice.fork("forger")
    )
    worker.windows_share = float(setting["windows"])
    worker.segments_share = float(setting["segments"])
    worker.honest_first = int(setting.get("honest_first", 0))
    return worker


def _forging(stage: Stage, setting: Setting) -> Sequence[Agent]:
    forger = _forger(stage, setting)
    price = int(forger.offer.price_per_tera_unit * float(setting.get("price", 1)))
    forger.offer = forger.offer._replace(price_per_tera_unit=max(1, price))
    return [forger, *stage.honest_verifiers()]


def _colluding(stage: Stage, setting: Setting) -> Sequence[Agent]:
    return [_forger(stage, setting), *_friends(stage)]


def _sybil(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """The colluding set; with ``declares`` its machines name one operator, so that they never check each other."""
    agents = [_forger(stage, setting), *_friends(stage)]
    if setting["declares"]:
        for agent in agents:
            agent.offer = agent.offer._replace(operator=stage.operator)
    return agents


def _leading(stage: Stage, setting: Setting) -> Sequence[Agent]:
    stage.leader = DishonestLeader(stage.plot)
    return _colluding(stage, setting)


def _bribing(stage: Stage, setting: Setting) -> Sequence[Agent]:
    def bribable(account: Account, offer: Offer, costs: Costs, off: OffChain) -> BribableVerifier:
        machine = BribableVerifier(account, offer, costs, off, stage.plot)
        machine.ask = float(setting["ask"])
        return machine

    stage.honest_kind = bribable
    stage.plot.bribe_bps = int(10_000 * float(setting["bribe"]))
    return _cornered(stage, setting)


def _lazy(stage: Stage, setting: Setting) -> Sequence[Agent]:
    verifiers = []
    for number, account in enumerate(stage.verifiers):
        dice = stage.dice.fork(f"lazy {number}")
        verifier = LazyVerifier(account, stage.verifier_offer(), stage.costs(0), stage.off, dice)
        verifier.way, verifier.rate = str(setting["way"]), float(setting["rate"])
        verifiers.append(verifier)
    return [stage.honest_worker(), *verifiers]


def _copying(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """Jurors that copy the opening. Every juror sees one, for the plot's worker forges and is caught."""
    return [_forger(stage, setting), *_lazy(stage, setting)[1:]]


def _asking(stage: Stage, setting: Setting) -> Sequence[Agent]:
    worker = stage.honest_worker()
    highest = stage.jobs(1)[0].max_price_per_tera_unit
    price = max(1, min(int(worker.offer.price_per_tera_unit * float(setting["price"])), highest))
    rate = min(RATE_MAX, max(1, int(worker.offer.rate * float(setting.get("rate", 1)))))
    worker.offer = worker.offer._replace(price_per_tera_unit=price, rate=rate)
    return [worker, *stage.honest_verifiers()]


def _best_ask(stage: Stage, _setting: Setting) -> Sequence[Agent]:
    """Honest machines, whose worker asks nearly what the next one asks: the most that an ask alone can bring."""
    worker = stage.honest_worker()
    worker.offer = worker.offer._replace(price_per_tera_unit=max(1, stage.conditions.ask * 999 // 1000))
    return [worker, *stage.honest_verifiers()]


def _shading(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """A seller whose decoys stand just below the requester's bids, so that who gets its machine pays more."""
    account = Account("decoy", 0)
    decoys = stage.jobs(int(setting["decoys"]))
    requester = GriefingRequester(
        account,
        [
            job._replace(
                max_price_per_tera_unit=max(1, int(job.max_price_per_tera_unit * float(setting["limit"])))
            )
            for job in decoys
        ],
        stage.off,
        stage.plot,
    )
    requester.cancels_in = _CANCELS[str(setting["cancels"])]
    return [*_asking(stage, setting), requester]


def _withholding(stage: Stage, setting: Setting) -> Sequence[Agent]:
    worker = Withholder(
        stage.worker, stage.worker_offer(), stage.costs(0), stage.off, stage.plot, stage.dice.fork("forger")
    )
    worker.windows_share = float(setting["windows"])
    worker.segments_share = float(setting["segments"])
    worker.serves_checks, worker.serves_results = bool(setting["serves_checks"]), bool(setting["serves_results"])
    worker.answers_missed = bool(setting["answers"])
    return [worker, *_friends(stage)]


_PLACES: Final = {"accept": Asked.ACCEPT, "start": Asked.START, "compute": Asked.COMPUTE, "open": Asked.OPEN}
_REASONS: Final = {
    "left": Reason.WORKER_LEFT, "unfit": Reason.JOB_UNFIT,
    "inputs": Reason.INPUT_UNAVAILABLE,
}  # fmt: skip


def _quitting(stage: Stage, setting: Setting) -> Sequence[Agent]:
    offer = stage.worker_offer()
    offer = offer._replace(price_per_tera_unit=max(1, int(offer.price_per_tera_unit * float(setting["price"]))))
    worker = Quitter(stage.worker, offer, stage.costs(0), stage.off, stage.dice.fork("quitter"))
    worker.place, worker.reason = _PLACES[str(setting["place"])], _REASONS[str(setting["reason"])]
    worker.is_silent, worker.rate = bool(setting["silent"]), float(setting["rate"])
    return [worker, *stage.honest_verifiers()]


_CANCELS: Final = {
    "never": None, "matching": Phase.MATCHING, "assigned": Phase.ASSIGNED, "preparing": Phase.PREPARING,
    "running": Phase.RUNNING,
}  # fmt: skip


def _griefing(stage: Stage, setting: Setting) -> Sequence[Agent]:
    requester = GriefingRequester(stage.requester, stage.jobs(TASKS), stage.off, stage.plot, keeps=stage.custody)
    requester.cancels_in = _CANCELS[str(setting["cancels"])]
    requester.cancels_after_windows = int(setting["cancels_after"])
    requester.withholds_inputs = bool(setting["withholds"])
    requester.demands, requester.accuses = bool(setting["demands"]), bool(setting["accuses"])
    friends = _friends(stage)
    for friend in friends:
        friend.lies_about_others = requester.accuses
    return [stage.idle_worker(), *friends, requester]


def _overloading(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """Tasks of the plot, with windows that its own worker proves at once and others must re-run."""
    tasks = int(setting["tasks"])
    steps = min(SEGMENT_STEPS_MAX, stage.conditions.segment_steps * int(setting["slowness"]))
    jobs = stage.jobs(tasks, steps)
    requester = GriefingRequester(stage.requester, jobs, stage.off, stage.plot, keeps=stage.custody)
    worker = JunkWorker(
        stage.worker, stage.worker_offer()._replace(slots=tasks, price_per_tera_unit=1), stage.costs(0), stage.off,
        stage.plot, stage.dice.fork("forger"),
    )  # fmt: skip
    return [worker, *_friends(stage), requester]


def _flooding(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """The colluding set, an accomplice that fills the games on its own windows, and an honest watcher outside."""
    stage.watchers = 1
    return [*_colluding(stage, setting), _false_challenger(stage, setting, for_own=True)]


def _false_challenger(stage: Stage, setting: Setting, *, for_own: bool) -> FalseChallenger:
    outsider = FalseChallenger(Account("outsider", 0), stage.off, stage.plot, stage.dice.fork("outsider"))
    outsider.for_own, outsider.seals, outsider.way = for_own, int(setting["seals"]), str(setting["way"])
    outsider.rate = float(setting.get("rate", 1))
    return outsider


def _cornered(stage: Stage, setting: Setting) -> Sequence[Agent]:
    return [_liar(stage, setting, stage.worker), *_friends(stage)]


def _liar(stage: Stage, setting: Setting, account: Account) -> CorneredLiar:
    worker = CorneredLiar(
        account, stage.worker_offer(), stage.costs(0), stage.off, stage.plot, stage.dice.fork("forger")
    )
    worker.windows_share, worker.segments_share = float(setting["windows"]), float(setting["segments"])
    worker.escape = str(setting["escape"])
    return worker


def _tearing(stage: Stage, setting: Setting) -> Sequence[Agent]:
    worker = TornWorker(
        stage.worker, stage.worker_offer(), stage.costs(0), stage.off, stage.plot, stage.dice.fork("forger")
    )
    worker.windows_share, worker.segments_share = float(setting["windows"]), float(setting["segments"])
    worker.honest_first = int(setting["honest_first"])
    shower = [BreakShower(Account("outsider", 0), stage.plot)] if setting.get("shows") else []
    return [worker, *stage.honest_verifiers(), *shower]


def _silencing(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """A forger whose friends find something else and fall silent in their games: agreeing could be slashed."""
    forger = _forger(stage, setting)
    forger.is_frank = True
    stage.watchers = int(setting.get("watchers", 0))
    return [forger, *_freezers(stage, setting, for_own=True)]


def _freezing(stage: Stage, setting: Setting) -> Sequence[Agent]:
    if setting["by"] == "outsider":
        plot = [stage.honest_worker(), *stage.honest_verifiers()]
        return [*plot, _false_challenger(stage, setting, for_own=False)]
    return [stage.honest_worker(), *_freezers(stage, setting, for_own=False)]


def _freezers(stage: Stage, setting: Setting, *, for_own: bool) -> list[FreezingVerifier]:
    verifiers = []
    for number, account in enumerate(stage.verifiers):
        dice = stage.dice.fork(f"freezer {number}")
        verifier = FreezingVerifier(account, stage.verifier_offer(), stage.costs(0), stage.off, stage.plot, dice)
        verifier.rate, verifier.way, verifier.for_own = float(setting["rate"]), str(setting["way"]), for_own
        verifiers.append(verifier)
    return verifiers


def _cutting(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """An honest worker whose owner cuts the lines of its rivals."""
    cutter = LineCutter(Account("outsider", 0), stage.off, stage.plot, stage.dice.fork("outsider"))
    cutter.cut_at, cutter.cut_ms = str(setting["at"]), int(setting["minutes"]) * 60_000
    cutter.cuts_max, cutter.seals = int(setting["cuts"]), int(cutter.cut_at == "game")
    return [stage.honest_worker(), *stage.honest_verifiers(), cutter]


def _copying_challenges(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """Honest machines, and an outsider that copies what verifiers find."""
    copier = CopyingChallenger(Account("outsider", 0), stage.off, stage.plot)
    return [*_beside_a_liar(stage, setting), copier]


def _beside_a_liar(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """Honest machines; somebody else forges."""
    account = Account("stranger", 0)
    liar = CorneredLiar(account, stage.worker_offer(), stage.costs(0), stage.off, Plot(), stage.dice.fork("liar"))
    liar.windows_share, liar.segments_share = float(setting["windows"]), float(setting["segments"])
    liar.escape = str(setting["escape"])
    liar.offer = liar.offer._replace(price_per_tera_unit=max(1, liar.offer.price_per_tera_unit * 9 // 10))
    stage.strangers.append(liar)
    return [stage.honest_worker(), *stage.honest_verifiers()]


def _claiming(stage: Stage, setting: Setting) -> Sequence[Agent]:
    offer = stage.worker_offer()
    offer = offer._replace(price_per_tera_unit=max(1, int(offer.price_per_tera_unit * float(setting["price"]))))
    worker = FalseClaimer(stage.worker, offer, stage.costs(0), stage.off, stage.dice.fork("claimer"))
    worker.place, worker.rate = _PLACES[str(setting["place"])], float(setting["rate"])
    return [worker, *stage.honest_verifiers()]


def _straying(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """Honest machines, and a requester whose data sets are other files; ``claims``: its own worker takes them."""
    jobs = [
        job.changed(
            dataset=job.dataset._replace(blob=JUNK_BLOB),
            max_price_per_tera_unit=max(1, int(job.max_price_per_tera_unit * float(setting["limit"]))),
        )
        for job in stage.jobs(int(setting["tasks"]))
    ]
    worker = stage.honest_worker()
    if setting["claims"]:
        worker.offer = worker.offer._replace(price_per_tera_unit=1)
    return [worker, *stage.honest_verifiers(), Requester(Account("stray", 0), jobs, stage.off)]


def _reposting(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """A requester that bids low, cancels and bids again."""
    jobs = [
        job._replace(max_price_per_tera_unit=max(1, int(job.max_price_per_tera_unit * float(setting["limit"]))))
        for job in stage.jobs(TASKS)
    ]
    requester = GriefingRequester(stage.requester, jobs, stage.off, stage.plot, keeps=stage.custody)
    requester.cancels_in = _CANCELS[str(setting["cancels"])]
    requester.reposts = int(setting["reposts"])
    return [stage.idle_worker(), *stage.honest_verifiers(), requester]


def _late(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """The colluding set, whose verifiers lock their bonds when its worker has the work."""
    friends = _friends(stage)
    for friend in friends:
        friend.predecessor = stage.worker.address
    return [_forger(stage, setting), *friends]


def _junk_worker(stage: Stage, account: Account, tasks: int) -> JunkWorker:
    offer = stage.worker_offer()._replace(slots=tasks, price_per_tera_unit=1)
    return JunkWorker(account, offer, stage.costs(0), stage.off, stage.plot, stage.dice.fork("junk"))


def _filling(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """The colluding set, and tasks of its own whose junk windows keep other verifiers busy."""
    account, tasks = Account("filler", 0), int(setting["tasks"])
    stage.plot.members.add(account.address)
    steps = min(SEGMENT_STEPS_MAX, stage.conditions.segment_steps * int(setting["slowness"]))
    requester = GriefingRequester(Account("filling", 0), stage.jobs(tasks, steps), stage.off, stage.plot)
    return [*_colluding(stage, setting), _junk_worker(stage, account, tasks), requester]


def _draining(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """Own tasks of own workers, one after the other, whose checks the fund pays to verifiers of the plot."""
    keys, tasks = int(setting["keys"]), int(setting["tasks"])
    accounts = [stage.worker, *(Account("key", number) for number in range(1, keys))]
    stage.plot.members |= {account.address for account in accounts}
    machines = [_liar(stage, setting, account) for account in accounts]
    for machine in machines:
        machine.offer = machine.offer._replace(slots=tasks)
    jobs = [
        job._replace(max_price_per_tera_unit=max(1, int(job.max_price_per_tera_unit * float(setting["limit"]))))
        for job in stage.jobs(tasks)
    ]
    return [*machines, *_friends(stage), GriefingRequester(Account("draining", 0), jobs, stage.off, stage.plot)]


def _keeping(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """A worker that gives its results to nobody, in league with custodians."""
    worker = GarbageWorker(
        stage.worker, stage.worker_offer(), stage.costs(0), stage.off, stage.plot, stage.dice.fork("forger")
    )
    worker.windows_share, worker.segments_share = 1.0, float(setting.get("segments", 0.0))
    worker.garbage, worker.serves_results = bool(setting["garbage"]), bool(setting["serves_results"])
    worker.serves_keepers = bool(setting.get("serves_keepers", True))
    worker.hoards_last = bool(setting.get("last", False))
    worker.other_bytes, worker.commits = bool(setting.get("other", False)), bool(setting.get("commits", True))
    stage.plot.ransom = float(setting["ransom"])
    keepers = []
    for number, account in enumerate(stage.verifiers):
        dice = stage.dice.fork(f"keeper {number}")
        keeper = FalseKeeper(account, stage.verifier_offer(), stage.costs(0), stage.off, dice)
        keeper.way, keeper.rate = str(setting["way"]), float(setting["rate"])
        keepers.append(keeper)
    return [worker, *keepers]


def _terms(setting: Setting) -> Terms:
    return Terms(0, int(setting["withhold"]), 2 * BOND)


def _whitewashing(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """Forging workers that follow each other under new keys, bonded by themselves or by a sponsor."""
    accounts = [stage.worker, *(Account("key", number) for number in range(1, int(setting["keys"])))]
    stage.plot.members |= {account.address for account in accounts}
    machines = [_liar(stage, setting, account) for account in accounts]
    succeed(machines)
    agents: list[Agent] = [*machines, *_friends(stage)]
    if setting["sponsored"]:
        for machine in machines:
            machine.offer = machine.offer._replace(bond=0)
        agents.append(Sponsor(stage.operator, machines, BOND, _terms(setting)))
    return agents


def _sponsoring(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """The colluding set, its verifiers bonded for by one sponsor, or by one each."""
    forger, friends = _forger(stage, setting), _friends(stage)
    for friend in friends:
        friend.offer = friend.offer._replace(bond=0)
    parts = [friends] if setting["sponsors"] == "one" else [[friend] for friend in friends]
    sponsors = [
        Sponsor(Account("sponsor", number), part, stage.verifier_bond, _terms(setting))
        for number, part in enumerate(parts)
    ]
    return [forger, *friends, *sponsors]


def _undercutting(stage: Stage, setting: Setting) -> Sequence[Agent]:
    """A dear seller, whose cheap machines take the jobs first and leave them."""
    dear = {"price": setting["price"]}
    worker, *others = _asking(stage, dear)
    decoys: list[Agent] = []
    for number in range(int(setting["decoys"])):
        offer = stage.worker_offer()._replace(price_per_tera_unit=1, operator=None)
        dice = stage.dice.fork(f"decoy {number}")
        decoy = Quitter(Account("decoy", number), offer, stage.costs(0), stage.off, dice)
        decoy.place, decoy.reason = _PLACES[str(setting["place"])], _REASONS[str(setting["reason"])]
        decoy.is_silent = bool(setting["silent"])
        decoys.append(decoy)
    return [worker, *others, *decoys]


_RATES: Final = tuple(round(at / 10, 1) for at in range(1, 11))
_PRICES: Final = tuple(round(1 + at / 20, 2) for at in range(51))
_PRICES_BELOW: Final = tuple(round(at / 20, 2) for at in range(11, 21))
_KEEPING: Final[Mapping[str, Values]] = {
    "share": SHARES, "rate": (0.2, 0.4, 0.6, 0.8, 1.0), "ransom": (0.1, 0.25, 0.5, 0.9),
}  # fmt: skip
_FORGING: Final[Mapping[str, Values]] = {
    "share": SHARES, "windows": (0.25, 0.5, 1.0), "segments": PARTS, "honest_first": (0, 1, 2),
}  # fmt: skip
STRATEGIES: Final[tuple[Strategy, ...]] = (
    Strategy(
        "forging worker",
        "leaves out segments, alone; it may ask little, so that it is audited less",
        {**_FORGING, "price": (0.0001, 0.01, 0.5, 1.0)},
        _forging,
        known=({"share": 10, "windows": 1.0, "segments": 1.0, "honest_first": 0, "price": 0.0001},),
    ),
    Strategy("colluding set", "forges, and its verifiers agree", _FORGING, _colluding),
    Strategy(
        "sybil machines",
        "the same, with its machines declared or not as of one operator",
        {**_FORGING, "declares": BOTH},
        _sybil,
    ),
    Strategy("dishonest leader", "forges, and skips blocks that draw strangers", _FORGING, _leading),
    Strategy(
        "briber",
        "forges, and pays whoever is drawn for agreeing, or only who runs segments again after a silence",
        {
            "share": SHARES,
            "windows": (0.5, 1.0),
            "segments": PARTS,
            "bribe": (0.05, 0.1, 0.2, 0.4, 0.8),
            "ask": (0.25, 0.5, 0.7, 1.0),
            "escape": ("plays", "silent", "unopened", "resumes"),
        },
        _bribing,
        known=(
            {"share": 10, "windows": 1.0, "segments": 1.0, "bribe": 0.1, "ask": 0.25, "escape": "silent"},
            {"share": 33, "windows": 1.0, "segments": 1.0, "bribe": 0.1, "ask": 1.0, "escape": "silent"},
        ),
    ),
    Strategy(
        "lazy verifier",
        "reports without running",
        {"share": SHARES, "way": LAZY_WAYS, "rate": _RATES},
        _lazy,
    ),
    Strategy(
        "copier",
        "as a juror copies what the worker opened; its own worker forges, so that juries sit",
        {"share": SHARES, "way": ("juror copies",), "rate": (0.25, 0.5, 0.75, 1.0), "windows": (1.0,),
         "segments": PARTS, "honest_first": (0, 1, 2)},
        _copying,
    ),
    Strategy(
        "rate liar",
        "claims a multiple of its speed, and asks for more",
        {"share": (20,), "rate": (0.01, 0.5, 2.0, 10.0, 1000.0, 1e9), "price": _PRICES},
        _asking,
        baseline=_best_ask,
    ),
    Strategy(
        "price shader",
        "asks for less or more than its cost and margin",
        {"share": (20,), "price": tuple(round(0.5 + at / 80, 4) for at in range(201))},
        _asking,
        baseline=_best_ask,
        known=({"share": 20, "price": 1.1},),
    ),
    Strategy(
        "withholding worker",
        "serves verifiers or the requester only if they are its friends",
        {
            "share": SHARES,
            "windows": (0.5, 1.0),
            "segments": (0.0, *PARTS),
            "serves_checks": BOTH,
            "serves_results": BOTH,
            "answers": BOTH,
        },
        _withholding,
        known=tuple(
            {"share": share, "windows": 1.0, "segments": 1.0, "serves_checks": False, "serves_results": True,
             "answers": answers}
            for share in (10, 33, 45)
            for answers in BOTH
        ),
    ),
    Strategy(
        "griefing worker",
        "takes tasks and leaves them",
        {
            "share": (20,),
            "place": tuple(_PLACES),
            "reason": tuple(_REASONS),
            "silent": BOTH,
            "rate": (0.25, 0.5, 0.75, 1.0),
            "price": (0.01, 0.5, 1.0),
        },
        _quitting,
    ),
    Strategy(
        "griefing requester",
        "cancels, withholds inputs, or has its verifiers deny that work or results are served",
        {
            "share": SHARES,
            "cancels": tuple(_CANCELS),
            "cancels_after": (0, 1),
            "withholds": BOTH,
            "demands": BOTH,
            "accuses": BOTH,
        },
        _griefing,
        own_tasks=True,
    ),
    Strategy(
        "overloading requester",
        "posts tasks of junk windows that honest verifiers must re-run",
        {"share": SHARES, "tasks": (1, 2, 3, 4, 6, 8, 12), "slowness": (1, 2, 3, 4, 6, 8, 12, 16)},
        _overloading,
        own_tasks=True,
    ),
    Strategy(
        "auction shader",
        "asks for more, and bids under another name beside the requester",
        {
            "share": (20,),
            "price": (0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.7, 2.0),
            "decoys": (0, 1, 8, 12),
            "limit": (0.5, 0.8, 0.95, 0.999, 1.0, 1.1),
            "cancels": ("matching", "assigned"),
        },
        _shading,
        baseline=_best_ask,
    ),
    Strategy(
        "slot flooder",
        "forges, and fills the games about its windows with false challenges of its own",
        {
            "share": SHARES,
            "windows": (0.5, 1.0),
            "segments": (0.1, 0.5, 1.0),
            "seals": (1, 4, 8, 16),
            "way": FALSE_WAYS,
        },
        _flooding,
    ),
    Strategy(
        "line cutter",
        "cuts the lines of rivals when a move, an opening or a verdict is due from them",
        {"share": SHARES, "at": CUT_AT, "minutes": (2, 4, 10, 35, 1_500), "cuts": (1, 2, 4, 16)},
        _cutting,
        known=({"share": 20, "at": "opening", "minutes": 35, "cuts": 4},),
    ),
    Strategy(
        "freezing challenger",
        "opens false games about windows of others, and delays them",
        {
            "share": SHARES,
            "by": ("outsider", "verifier"),
            "way": FALSE_WAYS,
            "rate": (0.25, 0.5, 0.75, 1.0),
            "seals": (1, 4, 16),
        },
        _freezing,
    ),
    Strategy(
        "challenge copier",
        "challenges a forgery of others with the root that a verifier has found",
        {
            "share": SHARES,
            "windows": (0.25, 0.5, 0.75, 1.0),
            "segments": PARTS,
            "escape": ESCAPES,
        },
        _copying_challenges,
        baseline=_beside_a_liar,
    ),
    Strategy(
        "torn window",
        "begins segments in states that nobody computed; a friend shows it first when it is found",
        {
            "share": SHARES, "windows": (0.25, 0.5, 0.75, 1.0), "segments": PARTS, "honest_first": (0, 1, 2),
            "shows": BOTH,
        },
        _tearing,
    ),
    Strategy(
        "silent friends",
        "forges, and its verifiers differ and fall silent in their games",
        {**_FORGING, "way": ("prompt", "silent", "resumes"), "rate": (0.5, 1.0), "watchers": (0, 1)},
        _silencing,
    ),
    Strategy(
        "cornered liar",
        "forges with friends, and takes the cheapest way out when it is caught",
        {"share": SHARES, "windows": (0.25, 0.5, 1.0), "segments": PARTS, "escape": ESCAPES},
        _cornered,
    ),
    Strategy(
        "whitewasher",
        "forges under one key after the other, bonded by itself or by a sponsor",
        {
            "share": SHARES,
            "windows": (0.5, 1.0),
            "segments": (0.25, 0.5, 1.0),
            "escape": ("silent", "inconsistent", "unopened"),
            "keys": (1, 2, 4),
            "sponsored": BOTH,
            "withhold": (0, 10_000),
        },
        _whitewashing,
    ),
    Strategy(
        "sponsored set",
        "forges, and its verifiers are bonded for by one sponsor or by several",
        {**_FORGING, "sponsors": ("one", "each"), "withhold": (0, 5_000, 10_000)},
        _sponsoring,
    ),
    Strategy(
        "ask decoys",
        "asks much, and has cheap machines that take the jobs first and leave them",
        {
            "share": (20,),
            "price": (0.9, 1.0, 1.1, 1.3, 1.6, 2.0),
            "decoys": (1, 2, 4),
            "place": ("accept", "start"),
            "reason": tuple(_REASONS),
            "silent": BOTH,
        },
        _undercutting,
        baseline=_best_ask,
        known=(
            {"share": 20, "price": 1.1, "decoys": 1, "place": "start", "reason": "left", "silent": True},
        ),
    ),
    Strategy(
        "false claimer",
        "says of good inputs that they are another file",
        {"share": (20,), "place": ("start", "compute"), "rate": _RATES, "price": _PRICES_BELOW},
        _claiming,
    ),
    Strategy(
        "stray requester",
        "posts tasks whose data sets are other files, for its own worker to claim or for others",
        {
            "share": SHARES,
            "tasks": (1, 2, 4, 8, 16),
            "claims": BOTH,
            "limit": (0.7, 0.8, 0.9, 1.0, 1.2),
        },
        _straying,
    ),
    Strategy(
        "reposting requester",
        "bids low, cancels and bids again",
        {
            "share": SHARES,
            "limit": (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
            "cancels": ("never", "matching", "assigned", "preparing"),
            "reposts": (1, 2, 4, 8),
        },
        _reposting,
        own_tasks=True,
    ),
    Strategy("late bonder", "forges; its verifiers lock their bonds once it has the work", _FORGING, _late),
    Strategy(
        "verifier filler",
        "forges, and keeps other verifiers busy with junk windows of tasks of its own",
        {
            "share": SHARES,
            "windows": (0.5, 1.0),
            "segments": (0.25, 0.5, 1.0),
            "tasks": (1, 4, 8, 12),
            "slowness": (1, 4, 16),
        },
        _filling,
    ),
    Strategy(
        "fund drainer",
        "has its own tasks checked at the fund's cost, and leaves its workers' bonds short of that",
        {
            "share": SHARES,
            "windows": (0.5, 1.0),
            "segments": (0.25, 1.0),
            "tasks": (1, 4, 8),
            "keys": (1, 2),
            "limit": (0.5, 1.0),
            "escape": ESCAPES,
        },
        _draining,
    ),
    Strategy(
        "garbage custodian",
        "hands over bytes that open to nothing, and sells the result",
        {**_KEEPING, "garbage": (True,), "serves_results": (False,), "way": KEEPER_WAYS},
        _keeping,
        custody=True,
    ),
    Strategy(
        "false output",
        "hands over bytes that are no state, and sells the result",
        {**_KEEPING, "garbage": (False,), "other": (True,), "serves_results": (False,), "way": KEEPER_WAYS},
        _keeping,
        custody=True,
    ),
    Strategy(
        "idle custodian",
        "signs for outputs that it does not keep, or serves to nobody",
        {**_KEEPING, "garbage": (False,), "serves_results": BOTH, "way": KEEPER_WAYS[1:]},
        _keeping,
        custody=True,
        known=tuple(
            {"share": 45, "rate": 1.0, "ransom": 0.5, "garbage": False, "serves_results": serves, "way": way}
            for serves in BOTH
            for way in KEEPER_WAYS[1:]
        ),
    ),
    Strategy(
        "hoarding worker",
        "hands its outputs to no custodian, and sells the result of a long task",
        {
            "share": SHARES, "rate": (0.2, 1.0), "ransom": (0.1, 0.25, 0.5, 0.9), "length": (4, 16, 24),
            "cost": (0.2, 1.0),
            "garbage": (False,), "serves_results": (False,), "serves_keepers": (False,), "commits": BOTH,
            "way": ("keeps", "keeps nothing"), "last": BOTH,
        },
        _keeping,
        custody=True,
        known=(
            {"share": 20, "rate": 1.0, "ransom": 0.5, "length": 24, "cost": 1.0, "garbage": False,
             "serves_results": False, "serves_keepers": False, "commits": True, "way": "keeps", "last": False},
            {"share": 20, "rate": 1.0, "ransom": 0.5, "length": 24, "cost": 1.0, "garbage": False,
             "serves_results": False, "serves_keepers": False, "commits": True, "way": "keeps nothing",
             "last": True, "worth": 3.0},
        ),
    ),
    *APART,
    *BOXED,
    Strategy("key withholder", "gives keys of inputs to nobody", needs="keys of inputs in the simulation"),
)  # fmt: skip
JUDGED: Final = tuple(strategy for strategy in STRATEGIES if strategy.cast is not None)
