"""Every decoder against changed bytes: typed errors or the one spelling, bounded time, bounded memory.

A quick look with every run of the tests, dear decoders with fewer inputs; the long one, with N inputs to each, is
tests/fuzz/campaign.py (``make fuzz N=...``).
"""

from __future__ import annotations

import gc
from random import Random
from time import perf_counter

import pytest

from tests.fuzz.campaign import OTHERS
from tests.fuzz.decoders import TARGETS, Target
from tests.fuzz.kept import CORPUS, corpus_of
from tests.fuzz.mutate import mutate
from tests.fuzz.reading import SECONDS_MAX, greedy

INPUTS = 1_000
"""`make nightly` tries 100,000."""
SEED = "1"


def read(name: str, target: Target, data: bytes) -> bool:
    """Run one input; tell whether it was accepted."""
    started = perf_counter()
    try:
        target.run(data)
        accepted = True
    except target.raises:
        accepted = False
    except Exception as error:
        raise AssertionError(f"{name}: {error!r} from {data[:4000].hex()}") from error
    assert perf_counter() - started < SECONDS_MAX, f"{name}: slow: {data[:4000].hex()}"
    return accepted


@pytest.mark.parametrize("name", TARGETS)
def test_the_first_sample_is_good(name: str) -> None:
    target = TARGETS[name]
    assert read(name, target, target.samples[0]) == (name != "sealed record")


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_changed_bytes_raise_typed_errors_only(name: str) -> None:
    target = TARGETS[name]
    random = Random(f"{SEED}/{name}")
    pool = [*target.samples, *corpus_of(name)]
    for _ in range(max(10, INPUTS // target.cost)):
        data = mutate(random, random.choice(pool), OTHERS)
        # What was accepted though changed leads further than the samples do.
        if read(name, target, data) and len(pool) < 50 and len(data) < 10_000:
            pool.append(data)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_memory_is_bounded_by_the_size_of_the_input(name: str) -> None:
    target = TARGETS[name]
    random = Random(f"memory {SEED}/{name}")
    for sample in target.samples:
        read(name, target, sample)  # what is made once and kept is not the input's
    gc.collect()
    gc.freeze()  # else each decoder would walk through all that the process has imported since it began
    inputs = [
        mutate(random, random.choice(target.samples), OTHERS) for _ in range(max(5, INPUTS // 20 // target.cost))
    ]
    for what, data in greedy(target, inputs):
        raise AssertionError(f"{what}: {data[:4000].hex()}")


def test_what_once_failed_or_led_further_is_read() -> None:
    for file in sorted(CORPUS.glob("*.hex")):
        name, *inputs = file.read_text().splitlines()
        for data in inputs:
            read(name, TARGETS[name], bytes.fromhex(data))
