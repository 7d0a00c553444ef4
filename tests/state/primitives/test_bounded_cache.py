"""A bounded cache stays within its weight and drops what was not used for the longest time."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from state.primitives.bounded_cache import BoundedCache

STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 12)), max_size=80)


@given(STEPS)
def test_it_keeps_the_values_used_last_within_its_weight(steps: list[tuple[bool, int, int]]) -> None:
    cache: BoundedCache[int, int] = BoundedCache(20)
    model: OrderedDict[int, tuple[int, int]] = OrderedDict()
    for number, (is_put, key, weight) in enumerate(steps):
        if is_put and 2 * weight <= 20:
            cache.put(key, number, weight)
            model.pop(key, None)
            model[key] = number, weight
            while sum(one for _, one in model.values()) > 20:
                model.popitem(last=False)
        elif is_put:
            cache.put(key, number, weight)  # more than half: what was there stays
        else:
            assert cache.get(key) == (model[key][0] if key in model else None)
            if key in model:
                model.move_to_end(key)
        assert len(cache) == len(model)
    cache.clear()
    assert len(cache) == 0 and cache.get(0) is None
