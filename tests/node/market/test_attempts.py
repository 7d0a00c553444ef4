"""Which duty is tried when: never twice at once, not before its rest is over, and its trouble is told once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.market.attempts import Attempts, Trouble

RETRY_S = 6.0
KEYS = st.sampled_from(("a", "b", "c"))
ENDS = st.sampled_from(("well", "refused", "failed"))
HEADS = st.lists(st.tuples(st.floats(0.1, 10), st.sets(KEYS), st.lists(st.tuples(KEYS, ENDS))), max_size=30)


@given(HEADS)
def test_a_duty_runs_once_at_a_time_and_rests_after_it_failed(heads: list[tuple[float, set[str], list]]) -> None:  # type: ignore[type-arg]
    attempts = Attempts(RETRY_S)
    running: set[str] = set()
    rests: dict[str, float] = {}
    now = 0.0
    for passed_s, asked, ends in heads:
        now += passed_s
        attempts.look(now)
        for key in asked:
            is_free = key not in running and rests.get(key, 0.0) <= now
            assert attempts.begin(key, now) is is_free
            running |= {key} if is_free else set()
        attempts.looked()
        assert set(attempts.troubles) <= asked | running
        for key, end in ends:
            if key not in running:
                continue
            if end == "well":
                attempts.went_well(key)
                assert key not in attempts.troubles
            else:
                attempts.failed(key, Trouble(end, "why"))
                attempts.rest(key, now)
                rests[key] = now + RETRY_S
            attempts.ended(key)
            running.remove(key)
        assert attempts.running == len(running)
        assert all(attempts.is_running(key) for key in running)


def test_a_trouble_is_news_once_and_when_its_code_changes() -> None:
    attempts = Attempts(RETRY_S)
    assert attempts.failed("a", Trouble("insufficient_funds", "1 of 7"))
    assert not attempts.failed("a", Trouble("insufficient_funds", "2 of 7"))
    assert attempts.troubles == {"a": Trouble("insufficient_funds", "2 of 7")}
    assert attempts.failed("a", Trouble("io_error", "disk full"))
    attempts.went_well("a")
    assert attempts.failed("a", Trouble("io_error", "disk full"))


def test_what_nobody_asks_for_any_more_is_no_trouble() -> None:
    attempts = Attempts(RETRY_S)
    attempts.look(0.0)
    assert attempts.begin("a", 0.0)
    attempts.failed("a", Trouble("io_error", "disk full"))
    attempts.looked()
    attempts.look(1.0)
    attempts.looked()
    assert "a" in attempts.troubles  # it runs
    attempts.ended("a")
    attempts.looked()
    assert not attempts.troubles


def test_what_is_given_up_is_not_begun_while_it_is_asked_for() -> None:
    attempts = Attempts(RETRY_S)
    assert attempts.begin("a", 0.0)
    attempts.failed("a", Trouble("job_given_up", "killed"))
    attempts.give_up("a")
    attempts.ended("a")
    for now in (1.0, 1_000.0):
        attempts.look(now)
        assert not attempts.begin("a", now)
        attempts.looked()
        assert "a" in attempts.troubles
    attempts.look(2_000.0)
    attempts.looked()
    attempts.look(2_001.0)
    assert attempts.begin("a", 2_001.0), "the chain asks for it anew"
