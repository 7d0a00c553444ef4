"""The vigil over one peer, without a clock: when it is asked for a word, sought elsewhere, given up."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2p.limits import LoopShare, NetworkLimits
from p2p.vigil import PINGS_MAX, Act, Pings, Vigil

LIMITS = NetworkLimits()
ENDS = {Act.END_SILENT, Act.END_LOST}
TICK_S = LIMITS.probe_s / 2


def watch(vigil: Vigil, until: float, *, since: float = 0.0, is_owed: bool = False) -> list[tuple[float, Act]]:
    """Tick until something ends it; pings are sent as they are asked for, and nothing is heard."""
    found: list[tuple[float, Act]] = []
    now = since
    while now < until:
        now += TICK_S
        for act in vigil.tick(now, is_owed=is_owed, is_finding_way=False):
            found.append((now, act))
            if act is Act.PING:
                vigil.asked(now)
            if act in ENDS:
                return found
    return found


def test_a_silent_peer_is_asked_sought_elsewhere_and_given_up_in_this_order() -> None:
    acts = watch(Vigil(0.0, LIMITS), 3_600.0, is_owed=True)
    first = {act: at for at, act in reversed(acts)}
    assert first[Act.PING] < first[Act.FIND_WAY] < first[Act.END_SILENT] == acts[-1][0]
    assert first[Act.FIND_WAY] > LIMITS.stall_s
    assert LIMITS.idle_timeout_s < first[Act.END_SILENT] <= LIMITS.idle_timeout_s + TICK_S
    sought = [at for at, act in acts if act is Act.FIND_WAY]
    assert all(later - earlier > 2 * LIMITS.stall_s for earlier, later in pairwise(sought))


def test_to_whom_nothing_is_owed_is_left_alone_between_the_regular_pings() -> None:
    vigil = Vigil(0.0, LIMITS)
    vigil.asked(0.0)
    acts = watch(vigil, LIMITS.idle_timeout_s - TICK_S)
    pings = [at for at, act in acts if act is Act.PING]
    assert {act for _, act in acts} <= {Act.PING, Act.REKEY}
    young = [at for at in pings if at <= LIMITS.ping_interval_s]
    assert len(young) >= LIMITS.ping_interval_s // (LIMITS.probe_s + TICK_S)
    assert all(at - before > LIMITS.probe_s for before, at in pairwise([0.0, *young]))
    assert all(at - before > LIMITS.ping_interval_s for before, at in pairwise(pings[len(young) - 1 :]))
    vigil.attached(pings[-1])  # another connection is young again
    vigil.heard(pings[-1])
    assert watch(vigil, pings[-1] + 2, since=pings[-1])[0][1] is Act.PING


def test_without_a_connection_another_is_sought_until_the_time_for_it_is_over() -> None:
    vigil = Vigil(0.0, LIMITS)
    vigil.heard(5.0)
    vigil.detached(5.0)
    acts = watch(vigil, 3_600.0, since=5.0)
    assert {act for _, act in acts[:-1]} == {Act.FIND_WAY}
    assert acts[-1][1] in ENDS and acts[-1][0] <= 5.0 + min(LIMITS.resume_s, LIMITS.idle_timeout_s) + 2 * TICK_S
    vigil = Vigil(0.0, LIMITS)
    vigil.detached(0.0)
    assert vigil.tick(TICK_S, is_owed=True, is_finding_way=True) == []
    vigil.attached(TICK_S)
    assert vigil.tick(TICK_S, is_owed=False, is_finding_way=True) == [Act.PING]


@given(st.lists(st.sampled_from(["heard", "detached", "attached", "asked", "tick", "owed"]), max_size=80))
def test_an_end_comes_alone_and_never_for_whoever_speaks(course: list[str]) -> None:
    vigil, now = Vigil(0.0, LIMITS), 0.0
    detached_at: float | None = None
    for step in course:
        now += LIMITS.stall_s
        match step:
            case "heard":
                vigil.heard(now)
            case "detached":
                vigil.detached(now)
                detached_at = now
            case "attached":
                vigil.attached(now)
                detached_at = None
            case "asked":
                vigil.asked(now)
            case _:
                acts = vigil.tick(now, is_owed=step == "owed", is_finding_way=False)
                assert len(set(acts)) == len(acts)
                is_silent = now - vigil.heard_at > LIMITS.idle_timeout_s
                is_lost = detached_at is not None and now - detached_at > LIMITS.resume_s
                assert (Act.END_SILENT in acts) == is_silent
                assert (Act.END_LOST in acts) == (is_lost and not is_silent)
                assert len(acts) == 1 or not ENDS & set(acts)
                if detached_at is not None:
                    assert not {Act.PING, Act.REKEY} & set(acts)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 11), st.floats(0, 5)), max_size=60))
def test_only_who_has_heard_a_ping_can_answer_it_and_once(course: list[tuple[bool, int, float]]) -> None:
    """Whatever a peer says unasked, again or too late, no round trip is shorter than an answer took."""
    pings, now = Pings(), 0.0
    due: dict[bytes, float] = {}
    least_s = math.inf
    for is_ping, number, pause_s in course:
        now += pause_s
        token = bytes((number,))
        if is_ping and token not in due:
            pings.ask(token, now)
            due[token] = now
            if len(due) > PINGS_MAX:
                del due[min(due, key=lambda known: due[known])]
        elif not is_ping:
            before_s = pings.rtt_s
            pings.answered(token, now)
            if token not in due:
                assert pings.rtt_s is before_s
            else:
                least_s = min(least_s, now - due.pop(token))
        assert pings.rtt_s is None if least_s == math.inf else (pings.rtt_s or 0.0) >= least_s - 1e-9


def test_a_shorter_round_trip_counts_at_once_and_a_longer_one_by_and_by() -> None:
    pings = Pings()
    for took_s, rtt_s in ((0.4, 0.4), (0.1, 0.1), (0.5, 0.2), (0.2, 0.2)):
        pings.ask(b"token", 10.0)
        pings.answered(b"token", 10.0 + took_s)
        assert pings.rtt_s == pytest.approx(rtt_s)


@given(st.integers(1, 100), st.lists(st.tuples(st.floats(0, 0.1), st.floats(0, 1)), max_size=60))
def test_nobody_has_more_of_the_loop_than_its_share(percent: int, works: list[tuple[float, float]]) -> None:
    """Of the time that has passed, and of what it may owe, if it waits as it is told."""
    debt_s = 0.05
    share, now, worked_s = LoopShare(0.0, percent=percent, debt_s=debt_s), 0.0, 0.0
    for took_s, idle_s in works:
        now += took_s
        worked_s += took_s
        wait_s = share.wait_s(took_s, now)
        now += max(wait_s, 0.0)
        assert worked_s <= (now + debt_s) * percent / 100 + 1e-6
        now += idle_s
