"""Token buckets: limits of a rate with a burst, for one user (TokenBucket) or for many by key (RateLimiter)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

__all__ = ["RateLimiter", "TokenBucket"]

KEYS_MAX: Final = 4_096


class TokenBucket:
    """Holds at most ``burst`` tokens; ``rate_per_s`` tokens flow in. It counts milliseconds in exact integers."""

    __slots__ = ("_at_ms", "_burst", "_level", "_rate_per_s")

    def __init__(self, rate_per_s: int, burst: int, now_ms: int) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst * 1000
        self._level = self._burst
        """In thousandths of a token."""
        self._at_ms = now_ms

    def take(self, now_ms: int, amount: int = 1) -> bool:
        """Take ``amount`` tokens if there are as many; else return False and take none."""
        self._refill(now_ms)
        if self._level < amount * 1000:
            return False
        self._level -= amount * 1000
        return True

    def reserve(self, now_ms: int) -> float:
        """Take a token, also from an empty bucket; return the seconds until the debt is repaid."""
        self._refill(now_ms)
        self._level -= 1000
        return max(0, -self._level) / (1000 * self._rate_per_s)

    def is_full(self, now_ms: int) -> bool:
        """Return whether the bucket is full, as a new one."""
        self._refill(now_ms)
        return self._level == self._burst

    def _refill(self, now_ms: int) -> None:
        elapsed = max(0, now_ms - self._at_ms)  # clocks of threads and peers may differ
        self._at_ms = max(now_ms, self._at_ms)
        self._level = min(self._burst, self._level + elapsed * self._rate_per_s)


class RateLimiter:
    """A token bucket for each key, in seconds. ``per_s`` 0 means no limit for ``spend`` and ``add_debt``.

    Memory is bounded: the key that was not seen for the longest time is forgotten, and starts with a full bucket.
    A refused attempt counts as seen, so a key that keeps trying is not forgotten.
    """

    __slots__ = ("_buckets", "_burst", "_debt_max", "_keys_max", "_per_s")

    def __init__(
        self, *, per_s: float, burst: float, keys_max: int = KEYS_MAX, debt_max: float = float("inf")
    ) -> None:
        """``debt_max``: how far below zero a bucket may fall."""
        self._per_s = per_s
        self._burst = burst
        self._keys_max = keys_max
        self._debt_max = debt_max
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def allows(self, key: Hashable, now: float) -> bool:
        """Take one token of ``key`` if there is one."""
        tokens, since = self._buckets.pop(key, (self._burst, now))
        tokens = min(self._burst, tokens + (now - since) * self._per_s)
        allowed = tokens >= 1.0
        self._keep(key, tokens - 1.0 if allowed else tokens, now)
        return allowed

    def spend(self, key: Hashable, amount: float, now: float) -> float:
        """Take ``amount`` tokens and return 0 if any is left; else return the seconds until a try can succeed.

        ``amount`` may exceed what is left, so that an action which costs more than the burst is possible. The key
        then waits until the rate has made up for it.
        """
        if not self._per_s:
            return 0.0
        tokens, since = self._buckets.pop(key, (self._burst, now))
        tokens = min(self._burst, tokens + (now - since) * self._per_s)
        # Not by ``_keep``: every request of a gateway comes here.
        self._buckets[key] = (tokens - amount if tokens > 0 else tokens), now
        if len(self._buckets) > self._keys_max:
            self._buckets.popitem(last=False)
        return 0.0 if tokens > 0 else (1 - tokens) / self._per_s

    def add_debt(self, key: Hashable, amount: float, now: float) -> None:
        """Take ``amount`` tokens for work that is done, down to a debt of ``debt_max``."""
        if self._per_s and amount:
            tokens, since = self._buckets.pop(key, (self._burst, now))
            tokens = min(self._burst, tokens + (now - since) * self._per_s)
            self._keep(key, max(tokens - amount, -self._debt_max), now)

    def _keep(self, key: Hashable, tokens: float, now: float) -> None:
        self._buckets[key] = tokens, now
        if len(self._buckets) > self._keys_max:
            self._buckets.popitem(last=False)
