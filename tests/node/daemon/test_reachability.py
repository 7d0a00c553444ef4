from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.daemon.reachability import RelayOutage, assess_reachability
from p2p.base.endpoint import Endpoint
from p2p.path.endpoint_status import EndpointStatus

HERE, THERE = Endpoint("8.8.4.4", 1), Endpoint("1.1.1.1", 1)
RELAY = Endpoint("9.9.9.9", 2, b"r" * 20)


@pytest.mark.parametrize(
    ("listens", "configured", "verdicts", "relays", "how", "says"),
    [
        (False, [], {}, [], "outbound", "p2p.listen is empty); no relay is known"),
        (False, [], {}, [RELAY], "relays", "p2p.listen is empty"),
        (True, [], {}, [], "none", "p2p.advertise); no relay is known"),
        (True, [], {HERE: EndpointStatus.PUBLIC}, [], "direct", "have dialled tcp:8.8.4.4:1"),
        (True, [HERE], {HERE: EndpointStatus.UNKNOWN}, [], "unconfirmed", "no peers of two networks have tried"),
        (True, [HERE], {HERE: EndpointStatus.UNKNOWN}, [RELAY], "relays", "no peers of two networks have tried"),
        (
            True,
            [HERE],
            {HERE: EndpointStatus.CLOSED},
            [],
            "none",
            "could not dial tcp:8.8.4.4:1; no relay is known",
        ),
        (True, [], {HERE: EndpointStatus.CLOSED}, [RELAY], "relays", "could not dial tcp:8.8.4.4:1"),
        (
            True,
            [HERE],
            {HERE: EndpointStatus.CLOSED, THERE: EndpointStatus.PUBLIC},
            [RELAY],
            "direct",
            "dialled tcp:1.1.1.1:1",
        ),
    ],
)
def test_an_owner_is_told_how_the_node_is_reached_and_why(
    listens: bool, configured: list[Endpoint], verdicts: dict[Endpoint, EndpointStatus], relays: list[Endpoint],
    how: str, says: str,
) -> None:  # fmt: skip
    found = assess_reachability(listens=listens, configured=configured, verdicts=verdicts, relays=relays)
    assert found.how == how and says in found.why
    assert found.relays == tuple(map(str, relays))


@pytest.mark.parametrize("listens", [False, True])
def test_a_relay_that_is_down_is_named_instead_of_none_being_known(listens: bool) -> None:
    down = RelayOutage(str(RELAY), "2027-01-15 08:00:00", 1_800_000_000_000, "connection refused")
    found = assess_reachability(listens=listens, configured=[], verdicts={}, relays=[], down=[down])
    assert found.how == "none" and found.relays_down == (down,)
    assert f"{RELAY} is down since 2027-01-15 08:00:00 UTC (connection refused)" in found.why
    assert "no relay is known" not in found.why
    beside = assess_reachability(listens=listens, configured=[], verdicts={}, relays=[RELAY], down=[down])
    assert beside.how == "relays" and beside.relays_down == (down,)


@given(
    st.booleans(),
    st.sets(st.sampled_from([HERE, THERE])),
    st.dictionaries(st.sampled_from([HERE, THERE]), st.sampled_from(EndpointStatus)),
    st.booleans(),
)
def test_nobody_is_told_of_a_way_that_is_not_there(
    listens: bool, configured: set[Endpoint], verdicts: dict[Endpoint, EndpointStatus], has_relay: bool
) -> None:
    found = assess_reachability(
        listens=listens, configured=sorted(configured, key=str), verdicts=verdicts, relays=[RELAY] * has_relay
    )
    assert (found.how == "direct") == (EndpointStatus.PUBLIC in verdicts.values())
    assert has_relay or found.how != "relays"
