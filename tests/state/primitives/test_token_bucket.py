"""Token buckets keep to their rate whatever is asked when, and their memory is bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from state.primitives.token_bucket import RateLimiter, TokenBucket

RATES = st.integers(1, 50)
BURSTS = st.integers(1, 20)
PAUSES_MS = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 5)), max_size=60)


@given(RATES, BURSTS, PAUSES_MS)
def test_a_bucket_gives_no_more_than_its_burst_and_its_rate(
    rate: int, burst: int, pauses: list[tuple[int, int]]
) -> None:
    bucket, now_ms, taken = TokenBucket(rate, burst, 0), 0, 0
    for pause_ms, amount in pauses:
        now_ms += pause_ms
        before = taken
        taken += amount if bucket.take(now_ms, amount) else 0
        assert 1000 * taken <= 1000 * burst + now_ms * rate
        if taken == before:  # refused: after the time for ``amount`` tokens it is granted, if it may ever be
            assert amount > burst or bucket.take(now_ms + -(-1000 * amount // rate), amount)
            return
    assert bucket.is_full(now_ms + -(-1000 * burst // rate))


@given(RATES, BURSTS, st.integers(1, 60))
def test_tokens_taken_ahead_are_waited_for(rate: int, burst: int, count: int) -> None:
    bucket = TokenBucket(rate, burst, 0)
    waits = [bucket.reserve(0) for _ in range(count)]
    assert waits == [max(0, number + 1 - burst) / rate for number in range(count)]
    assert bucket.take(-(-1000 * (max(0, count - burst) + 1) // rate))


def test_a_clock_that_goes_back_adds_nothing() -> None:
    bucket = TokenBucket(1, 1, 10_000)
    assert bucket.take(10_000) and not bucket.take(0)
    assert not bucket.take(10_999) and bucket.take(11_000)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 2), st.sampled_from(["allows", "spend", "owe"]))))
def test_no_key_gets_more_than_its_burst_and_its_rate_and_none_pays_for_another(
    steps: list[tuple[str, float, str]],
) -> None:
    limiter, now = RateLimiter(per_s=2, burst=3, debt_max=4), 0.0
    granted = {"a": 0.0, "b": 0.0}
    for key, pause, what in steps:
        now += pause
        if what == "allows":
            granted[key] += limiter.allows(key, now)
            assert granted[key] <= 3 + 2 * now + 1e-6
        elif what == "spend":
            wait = limiter.spend(key, 1, now)
            granted[key] += wait == 0
            assert granted[key] <= 3 + 2 * now + 1 + 1e-6, "the last may exceed what was left"
            assert 0 <= wait <= 5 / 2
        else:
            limiter.add_debt(key, 100, now)
            assert limiter.spend(key, 1, now) > 0
            assert limiter.spend(key, 1, now + 2.01) == 0, "no debt is larger than it may be"
            return
    assert limiter.allows("unseen", now)


def test_memory_is_bounded_and_who_keeps_trying_is_remembered() -> None:
    limiter = RateLimiter(per_s=0.001, burst=1, keys_max=10)
    assert limiter.allows("busy", 0)
    for number in range(100):
        assert limiter.allows(number, 0)
        assert not limiter.allows("busy", 0)
        assert limiter.spend("busy", 1, 0) > 0
    assert len(limiter._buckets) == 10
    assert limiter.allows(0, 0), "forgotten long ago"


def test_without_a_rate_there_is_no_limit() -> None:
    limiter = RateLimiter(per_s=0, burst=0)
    limiter.add_debt("a", 100, 0)
    assert limiter.spend("a", 100, 0) == 0
