"""The liveness over one peer, without a clock: when it is asked for a word, sought elsewhere, given up."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.base.limits import EventLoopLimiter, NetworkLimits
from p2p.session.liveness import PINGS_MAX, AnswerDeadline, Liveness, LivenessAction, Pings
from tests.p2p.silent_world import SilentWorld

LIMITS = NetworkLimits()
ENDS = {LivenessAction.END_SILENT, LivenessAction.END_LOST}
TICK_S = LIMITS.probe_s / 2


def watch(
    vigil: Liveness, until: float, *, since: float = 0.0, is_owed: bool = False
) -> list[tuple[float, LivenessAction]]:
    """Tick until something ends it; pings are sent as they are asked for, and nothing is heard."""
    found: list[tuple[float, LivenessAction]] = []
    now = since
    while now < until:
        now += TICK_S
        for act in vigil.tick(now, is_owed=is_owed, is_finding_path=False):
            found.append((now, act))
            if act is LivenessAction.PING:
                vigil.asked(now)
            if act in ENDS:
                return found
    return found


def test_a_silent_peer_is_asked_sought_elsewhere_and_given_up_in_this_order() -> None:
    acts = watch(Liveness(0.0, LIMITS), 3_600.0, is_owed=True)
    first = {act: at for at, act in reversed(acts)}
    assert (
        first[LivenessAction.PING]
        < first[LivenessAction.FIND_PATH]
        < first[LivenessAction.END_SILENT]
        == acts[-1][0]
    )
    assert first[LivenessAction.FIND_PATH] > LIMITS.stall_s
    assert LIMITS.idle_timeout_s < first[LivenessAction.END_SILENT] <= LIMITS.idle_timeout_s + TICK_S
    sought = [at for at, act in acts if act is LivenessAction.FIND_PATH]
    assert all(later - earlier > 2 * LIMITS.stall_s for earlier, later in pairwise(sought))


def test_to_whom_nothing_is_owed_is_left_alone_between_the_regular_pings() -> None:
    vigil = Liveness(0.0, LIMITS)
    vigil.asked(0.0)
    acts = watch(vigil, LIMITS.idle_timeout_s - TICK_S)
    pings = [at for at, act in acts if act is LivenessAction.PING]
    assert {act for _, act in acts} <= {LivenessAction.PING, LivenessAction.REKEY}
    young = [at for at in pings if at <= LIMITS.ping_interval_s]
    assert len(young) >= LIMITS.ping_interval_s // (LIMITS.probe_s + TICK_S)
    assert all(at - before > LIMITS.probe_s for before, at in pairwise([0.0, *young]))
    assert all(at - before > LIMITS.ping_interval_s for before, at in pairwise(pings[len(young) - 1 :]))
    vigil.attached(pings[-1])  # another connection is young again
    vigil.heard(pings[-1])
    assert watch(vigil, pings[-1] + 2, since=pings[-1])[0][1] is LivenessAction.PING


def test_without_a_connection_another_is_sought_until_the_time_for_it_is_over() -> None:
    vigil = Liveness(0.0, LIMITS)
    vigil.heard(5.0)
    vigil.detached(5.0)
    acts = watch(vigil, 3_600.0, since=5.0)
    assert {act for _, act in acts[:-1]} == {LivenessAction.FIND_PATH}
    assert acts[-1][1] in ENDS and acts[-1][0] <= 5.0 + min(LIMITS.resume_s, LIMITS.idle_timeout_s) + 2 * TICK_S
    vigil = Liveness(0.0, LIMITS)
    vigil.detached(0.0)
    assert vigil.tick(TICK_S, is_owed=True, is_finding_path=True) == []
    vigil.attached(TICK_S)
    assert vigil.tick(TICK_S, is_owed=False, is_finding_path=True) == [LivenessAction.PING]


@given(st.lists(st.sampled_from(["heard", "detached", "attached", "asked", "tick", "owed"]), max_size=80))
def test_an_end_comes_alone_and_never_for_whoever_speaks(course: list[str]) -> None:
    vigil, now = Liveness(0.0, LIMITS), 0.0
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
                acts = vigil.tick(now, is_owed=step == "owed", is_finding_path=False)
                assert len(set(acts)) == len(acts)
                is_silent = now - vigil.heard_at > LIMITS.idle_timeout_s
                is_lost = detached_at is not None and now - detached_at > LIMITS.resume_s
                assert (LivenessAction.END_SILENT in acts) == is_silent
                assert (LivenessAction.END_LOST in acts) == (is_lost and not is_silent)
                assert len(acts) == 1 or not ENDS & set(acts)
                if detached_at is not None:
                    assert not {LivenessAction.PING, LivenessAction.REKEY} & set(acts)


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
    share, now, worked_s = EventLoopLimiter(0.0, percent=percent, debt_s=debt_s), 0.0, 0.0
    for took_s, idle_s in works:
        now += took_s
        worked_s += took_s
        wait_s = share.wait_s(took_s, now)
        now += max(wait_s, 0.0)
        assert worked_s <= (now + debt_s) * percent / 100 + 1e-6
        now += idle_s


# -- doubt: another path is tried while the first is silent ------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rtt_ms=st.integers(5, 120),
    jitter=st.floats(0, 0.25),
    is_listener=st.booleans(),
)
def test_votes_are_back_within_a_second_of_a_silent_death(
    seed: int, rtt_ms: int, jitter: float, is_listener: bool
) -> None:
    """By another path that is as long, whether this end sends the votes or only hears them."""
    rtt_s, dies_at = rtt_ms / 1000, 12 + seed % 997 / 997
    world = SilentWorld(
        seed=seed, rtt_s=rtt_s, jitter_s=jitter * rtt_s, is_listener=is_listener, dies_at=dies_at
    ).run(20)
    [moved_at] = world.moves
    assert moved_at + rtt_s / 2 - dies_at <= 1.0


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rtt_ms=st.integers(5, 400),
    jitter=st.floats(0, 0.25),
    votes_every_s=st.sampled_from([0.02, 0.3, 1.0, 3.0]),
    is_listener=st.booleans(),
)
def test_a_line_that_loses_nothing_is_never_doubted(
    seed: int, rtt_ms: int, jitter: float, votes_every_s: float, is_listener: bool
) -> None:
    rtt_s = rtt_ms / 1000
    world = SilentWorld(
        seed=seed, rtt_s=rtt_s, jitter_s=jitter * rtt_s, votes_every_s=votes_every_s, is_listener=is_listener
    ).run(120)
    assert not world.tries


@pytest.mark.parametrize("votes_every_s", [0.02, 1.0])
@pytest.mark.parametrize(("rtt_s", "loss"), [(0.04, 0.01), (0.16, 0.01), (0.2, 0.03), (0.4, 0.03)])
def test_a_lossy_line_is_hardly_doubted_and_never_left(rtt_s: float, loss: float, votes_every_s: float) -> None:
    """Half an hour of each, a 3G line among them: a try is one handshake; the line has spoken before its end."""
    for seed in range(3):
        world = SilentWorld(
            seed=seed, rtt_s=rtt_s, jitter_s=rtt_s / 4, loss=loss, votes_every_s=votes_every_s
        ).run(600)
        assert not world.moves and world.refuted == len(world.tries) <= 12


def test_who_stood_still_itself_does_not_doubt_its_peer() -> None:
    rng = Random(1)
    world = SilentWorld(
        seed=1, rtt_s=0.05, votes_every_s=0.5, stands_still=lambda _now: rng.choice((0.0, 0.0, 0.4))
    ).run(120)
    assert not world.moves and not world.tries


def test_a_deadline_is_met_by_what_is_heard_and_by_nothing_else() -> None:
    vigil = Liveness(0.0, LIMITS)
    vigil.asked(0.0)
    vigil.heard(0.04)
    vigil.answered(0.04, 0.04, 0.04)
    assert vigil.voted(1.0)
    vigil.asked(1.0)
    assert not vigil.voted(1.05) and vigil.is_waiting
    due_at = vigil.due_at
    assert 1.0 + 0.04 < due_at < 1.0 + 0.65
    assert LivenessAction.FIND_PATH not in vigil.tick(due_at - 0.01, is_owed=True, is_finding_path=False)
    assert LivenessAction.FIND_PATH in vigil.tick(due_at, is_owed=True, is_finding_path=False)
    assert vigil.is_suspected and vigil.due_at == math.inf
    looks = (at / 10 for at in range(17, 100))
    again = [at for at in looks if LivenessAction.FIND_PATH in vigil.tick(at, is_owed=True, is_finding_path=False)]
    assert 2 <= len(again) <= 4  # seldom, and ever later
    vigil.heard(10.0)
    assert not vigil.is_suspected and not vigil.is_waiting


def test_a_late_answer_is_remembered_for_a_while() -> None:
    promptness = AnswerDeadline(2.5)
    assert promptness.patience_s(0.0) == 2.5
    promptness.answered(0.1, 0.1, 0.0)
    usual_s = promptness.patience_s(0.0)
    assert usual_s < 0.4
    promptness.answered(0.8, 0.1, 1.0)
    assert promptness.patience_s(1.0) == pytest.approx(1.0)
    promptness.answered(0.1, 0.1, 1_000.0)
    assert promptness.patience_s(1_000.0) == pytest.approx(usual_s)
    promptness.answered(60.0, 0.1, 1_001.0)
    assert promptness.patience_s(1_001.0) == 2.5
