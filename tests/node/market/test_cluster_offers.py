"""What a node says of the cluster that it sells."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from node.home.options import ExecutorOptions, KubernetesOptions, NodeOptions
from node.market.cluster_offers import GPUS_MAX, is_less, offered
from node.market.machine import describe_machine, stays_until
from state.primitives.codec import decode, encode
from tasks.executor.containers.backend import Offer
from tasks.ledger.registry import NodeProfile, NodeRole, is_limited, profile_from_value, profile_to_value

LENT = KubernetesOptions(enabled=True, tasks_max=4, notice_s=30)
OPTIONS = NodeOptions(roles=("compute",), executor=ExecutorOptions(kubernetes=LENT))
NOTHING = Offer(0, 0, 0, "", 0, 0)
OFFERS = st.one_of(
    st.just(NOTHING),
    st.builds(
        Offer, st.integers(1, 1 << 20), st.integers(16, 1 << 30), st.integers(0, 64), st.text(max_size=64),
        st.integers(0, 200_000), st.integers(1, 10_000),
    ),
)  # fmt: skip


def profile() -> NodeProfile:
    return describe_machine(b"\x01" * 20, OPTIONS, 1_000, containers=True)


def test_a_cluster_takes_containers_alone_and_promises_no_stay() -> None:
    made = profile()
    assert made.roles == NodeRole.COMPUTE | NodeRole.CONTAINER | NodeRole.ONLY_CONTAINERS
    assert made.notice_ms == 30_000
    until = replace(OPTIONS.executor, docker=replace(OPTIONS.executor.docker, until="2100-01-01T00:00+00:00"))
    assert stays_until(replace(OPTIONS, executor=until), 5, 5) == 0


@given(OFFERS, st.integers(0, 20))
def test_every_offer_is_a_profile_and_never_more_than_there_is(offer: Offer, busy: int) -> None:
    made = offered(profile(), offer, busy, LENT)
    assert profile_from_value(decode(encode(profile_to_value(made)), limit_bytes=4_096)) == made
    if offer.places:
        assert made.cores == offer.cores and len(made.gpus) == min(offer.gpus, GPUS_MAX)
        assert busy <= made.slots or made.slots == LENT.tasks_max
        assert made.slots <= max(1, min(LENT.tasks_max, busy + offer.places))
    elif busy:
        assert made.slots == busy, "no slot is free"
    else:
        assert (made.cores, made.memory_mib, made.gpus) == (0, 0, ()), "no container can ask for less"


def test_what_shrank_is_told_from_what_grew() -> None:
    more = offered(profile(), Offer(8, 65_536, 2, "A", 4_096, 3), 1, LENT)
    assert more.pcie_lanes == 32 and not is_limited(more), "a task of several GPUs may come"
    for offer, busy in (
        (Offer(7, 65_536, 2, "A", 4_096, 3), 1), (Offer(8, 65_535, 2, "A", 4_096, 3), 1),
        (Offer(8, 65_536, 1, "A", 4_096, 3), 1), (Offer(8, 65_536, 2, "A", 4_096, 1), 1), (NOTHING, 1),
        (NOTHING, 0),
    ):  # fmt: skip
        less = offered(more, offer, busy, LENT)
        assert is_less(less, more) and not is_less(more, less)
    assert not is_less(more, more)
