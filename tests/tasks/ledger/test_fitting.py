"""One table tells whether a machine fits a job (R159): matching, a call's index and the quote agree with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from state.view import Overlay
from tasks.kinds.container import ARCHIVED, Allowance, Image, MachineLimit, Process
from tasks.kinds.gpus import has_card
from tasks.ledger.ask_index import AskIndex
from tasks.ledger.auction import Ask, Bid
from tasks.ledger.bit_sets import places_of
from tasks.ledger.checkpoints import stays_until_ms
from tasks.ledger.fitting import PARTS, REASONS, REQUIREMENTS, Named, Needs, Traits, lack, needs_of, traits_of
from tasks.ledger.matching import may_admit
from tasks.ledger.parking import move_parked, parked_for
from tasks.ledger.registry import Gpu, NodeProfile, NodeRole, require_node
from tasks.ledger.screening import _why_not
from tasks.spec import JobSpec, Requirements, container_of
from tests.tasks.containers import HOST, container, host
from tests.tasks.world import QUICK, World, spec

WORLD: Final = World()
NODE: Final = require_node(WORLD.state, host(WORLD, 1))
PRICE: Final = NODE.profile.price_per_tera_unit
RATE: Final = NODE.profile.rate
STAYS: Final = 10**13
"""A machine that offers to stay so long stays to the end of each job here."""
CARD: Final = Gpu("card", 8_000)
TASK: Final = WORLD.task(WORLD.create(spec(price=PRICE)))


@st.composite
def cards(draw: st.DrawFn) -> tuple[Gpu, ...]:
    one = st.sampled_from((CARD, Gpu("NVIDIA H100 80GB", 81_559), Gpu("NVIDIA-H100-80GB-MIG-1g.10gb", 9_856)))
    count, first = draw(st.integers(0, 3)), draw(one)
    return tuple(draw(one) if draw(st.booleans()) else first for _ in range(count))


@st.composite
def profiles(draw: st.DrawFn) -> NodeProfile:
    roles = HOST if draw(st.booleans()) else NodeRole.COMPUTE
    for limit in (NodeRole.ONLY_CONTAINERS, NodeRole.UNISOLATED, NodeRole.NO_ROOT, NodeRole.NO_ARCHIVES):
        roles |= limit if draw(st.sampled_from((False, False, True))) else NodeRole(0)
    return NODE.profile._replace(
        roles=roles,
        gpus=draw(cards()),
        cores=draw(st.sampled_from((2, 4, 8, 16))),
        memory_mib=draw(st.sampled_from((1_000, 16_000, 48_000))),
        pcie_lanes=draw(st.sampled_from((8, 64))),
        price_per_tera_unit=draw(st.sampled_from((PRICE, PRICE, PRICE + 1))),
        rate=draw(st.sampled_from((RATE // 4, RATE, RATE, 4 * RATE))),
        until_ms=draw(st.sampled_from((0, STAYS, STAYS))),
        egress=draw(st.sampled_from(((), ("*:443",), ("*.example.org:443",), ("files.example.org:443",)))),
    )


@st.composite
def jobs(draw: st.DrawFn) -> JobSpec:
    gpus, memory = draw(st.integers(0, 2)), draw(st.sampled_from((0, 1_000, 16_000, 16_001)))
    if draw(st.booleans()):
        made = spec(price=PRICE)
        return made._replace(requirements=Requirements(gpus, memory, draw(st.sampled_from((0, RATE)))))
    allows = draw(st.sampled_from((0, int(Allowance.LEAVING), int(Allowance.LEAVING | Allowance.UNISOLATED))))
    egress = draw(st.sampled_from(((), (), ("files.example.org:443",), ("*.example.org:443", "other.net:443"))))
    made = container(allows=allows, process=Process(("a",), (), draw(st.sampled_from((0, 65_534))), egress=egress))
    part = container_of(made)._replace(cores=draw(st.sampled_from((1, 4, 8))))
    if draw(st.booleans()):
        part = part._replace(image=Image(ARCHIVED, b"d" * 32, b"b" * 32, 1))
    words = draw(st.sampled_from(((), (), ("card",), ("80gb", "h100"), ("1g.10gb", "mig"), ("mig",), ("nvidia",))))
    wanted = Requirements(gpus, memory or 64, RATE)
    if gpus and (words or draw(st.booleans())):
        wanted = wanted._replace(gpu_words=words, gpu_memory_mib=draw(st.sampled_from((0 if words else 1, 9_857))))
    return made._replace(part=part, requirements=wanted, max_price_per_tera_unit=PRICE)


def fits_plainly(profile: NodeProfile, job: JobSpec, until_ms: int) -> bool:
    """The definition of market.md R159, condition by condition, beside the table."""
    wanted, is_container = job.requirements, job.is_metered
    vram = sum(gpu.memory_mib for gpu in profile.gpus)
    keeps_rule = (
        profile.cores >= 4 * len(profile.gpus)
        and profile.memory_mib >= 2 * vram
        and profile.pcie_lanes >= 8 * len(profile.gpus)
    )
    if len(profile.gpus) < wanted.gpus or (wanted.gpus > 1 and not keeps_rule):
        return False
    if profile.memory_mib < wanted.memory_mib or profile.rate < wanted.rate_min:
        return False
    if not is_container:
        return not profile.roles & NodeRole.ONLY_CONTAINERS
    part = container_of(job)
    reaches = all(
        entry in profile.egress
        or "*:443" in profile.egress
        or (entry.endswith(".example.org:443") and "*.example.org:443" in profile.egress)
        for entry in part.process.egress
    )
    return (
        bool(profile.roles & NodeRole.CONTAINER)
        and profile.cores >= part.cores
        and profile.rate <= job.rate_max
        and profile.until_ms >= until_ms
        and reaches
        and (not profile.roles & NodeRole.UNISOLATED or bool(part.allows & Allowance.UNISOLATED))
        and (not profile.roles & NodeRole.NO_ROOT or part.process.user != 0)
        and (not profile.roles & NodeRole.NO_ARCHIVES or not part.image.blob)
        and (
            not wanted.orders_card
            or all(
                has_card(gpu.model, gpu.memory_mib, wanted.gpu_words, wanted.gpu_memory_mib)
                for gpu in profile.gpus
            )
        )
    )


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(profiles(), min_size=1, max_size=12), st.lists(jobs(), min_size=1, max_size=4))
def test_all_agree_on_who_fits(machines: list[NodeProfile], wanted: list[JobSpec]) -> None:
    asks = [
        Ask(bytes([at]), profile.price_per_tera_unit, 1, 0, traits_of(profile), 0, bytes([at]))
        for at, profile in enumerate(machines)
    ]
    index = AskIndex(asks)
    for job in wanted:
        until_ms = stays_until_ms(job, 0, WORLD.time_ms, QUICK)
        bid = Bid(b"t", job.max_price_per_tera_unit, needs_of(job, until_ms), frozenset(), b"t")
        met = places_of(index.meeting(bid))
        for at, profile in enumerate(machines):
            expected = fits_plainly(profile, job, until_ms)
            is_paid = profile.price_per_tera_unit <= job.max_price_per_tera_unit
            why = _why_not(NODE._replace(profile=profile), job, WORLD.time_ms, QUICK, ())
            assert (lack(traits_of(profile), needs_of(job, until_ms)) is None) == expected
            assert (why not in REASONS) == expected
            assert (why in {"", "busy"}) == may_admit(profile, job, until_ms) == (expected and is_paid)
            assert (at in met) == (expected and is_paid)


@settings(max_examples=100, deadline=None)
@given(profiles(), jobs())
@example(NODE.profile._replace(gpus=(CARD,) * 3, cores=16, memory_mib=48_000, pcie_lanes=64), spec(price=PRICE))
def test_a_machine_finds_every_parked_job_that_it_admits(profile: NodeProfile, job: JobSpec) -> None:
    """A job's place by class hides it from no machine that fits it."""
    state = Overlay(WORLD.state)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tasks.ledger.parking.load_job", lambda _state, _task: job)
        move_parked(state, None, TASK._replace(parked=1))
    if may_admit(profile, job, STAYS):
        assert TASK.id in list(parked_for(state, profile, b"seed"))


def test_a_row_of_the_table_is_a_field_of_both_sides() -> None:
    assert Traits._fields == Needs._fields
    assert len(REQUIREMENTS) == len(Needs._fields)
    assert len(REASONS) == sum(len(list(row.reasons())) for row in REQUIREMENTS), "two reasons have one code"
    assert lack(Traits(), Needs()) is None, "who wants nothing takes any machine"


ALL: Final = Traits(1, 1_000, 100, 4, 50, ("a.example.org:443",), 0, ("80gb", "h100"), 81_559)
WANTS: Final = Needs(1, 1_000, (90, 110), 4, 50, ("a.example.org:443",), 0, ("h100",), 81_000)
LACKS: Final[tuple[tuple[str, dict[str, object], dict[str, object]], ...]] = (
    ("gpus", {"gpus": 0}, {}),
    ("memory", {"memory_mib": 999}, {}),
    ("slow", {"rate": 89}, {}),
    ("fast", {"rate": 111}, {}),
    ("cores", {"host_cores": 3}, {}),
    ("stay", {"until_ms": 49}, {}),
    ("egress", {"egress": ("b.example.org:443",)}, {}),
    ("only_containers", {"limits": int(NodeRole.ONLY_CONTAINERS)}, {"limits": int(NodeRole.ONLY_CONTAINERS)}),
    ("unisolated", {"limits": int(MachineLimit.UNISOLATED)}, {"limits": int(MachineLimit.UNISOLATED)}),
    ("no_root", {"limits": int(MachineLimit.NO_ROOT)}, {"limits": int(MachineLimit.NO_ROOT)}),
    ("no_archives", {"limits": int(MachineLimit.NO_ARCHIVES)}, {"limits": int(MachineLimit.NO_ARCHIVES)}),
    ("parts", {"limits": PARTS}, {"limits": PARTS}),
    ("gpu_model", {"gpu_words": ("80gb", "a100")}, {}),
    ("gpu_memory", {"gpu_memory_mib": 80_999}, {}),
)


def test_each_reason_has_its_case() -> None:
    assert {code for code, _, _ in LACKS} == set(REASONS)


@pytest.mark.parametrize(("code", "has", "wants"), LACKS, ids=[case[0] for case in LACKS])
def test_each_row_alone_keeps_a_machine_from_a_job(
    code: str, has: dict[str, object], wants: dict[str, object]
) -> None:
    assert lack(ALL, WANTS) is None
    traits, needs = ALL._replace(**has), WANTS._replace(**wants)  # type: ignore[arg-type]
    assert lack(traits, needs) == REASONS[code]
    asks = [Ask(bytes([at]), 1, 1, 0, each, 0, b"") for at, each in enumerate((ALL, traits))]
    assert places_of(AskIndex(asks).meeting(Bid(b"t", 1, needs, frozenset(), b""))) == [0]


def test_machines_that_let_nothing_be_reached_are_looked_at_once_however_many_jobs_there_are() -> None:
    class Offered(list[tuple[str, ...]]):
        looks = 0

        def __iter__(self) -> Iterator[tuple[str, ...]]:
            self.looks += 1
            return super().__iter__()

    offered = Offered([(), ()])
    row = next(row for row in REQUIREMENTS if isinstance(row, Named))
    meets = row.sets(offered)
    assert meets(()) == 0b11 and offered.looks == 0
    assert [meets(("a.example.org:443",)) for _ in range(3)] == [0, 0, 0]
    assert offered.looks == 1
