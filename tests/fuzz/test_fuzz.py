"""Every decoder against changed bytes: typed errors or the one spelling, bounded time, bounded memory.

``FUZZ_INPUTS`` sets the inputs for each decoder (``make fuzz N=...``); ``FUZZ_SEED`` another sequence of them.
"""

from __future__ import annotations

import gc
import os
import tracemalloc
from pathlib import Path
from random import Random
from time import perf_counter

import pytest

from tests.fuzz.decoders import TARGETS, Target
from tests.fuzz.mutate import mutate

INPUTS = int(os.environ.get("FUZZ_INPUTS", "3000"))
SEED = os.environ.get("FUZZ_SEED", "1")
SECONDS_MAX = 5.0
"""For one input, on a machine that does other things; what is quadratic in a whole message takes longer."""
MEMORY_FIXED_BYTES = 512 * 1024
CORPUS = Path(__file__).parent / "corpus"
OTHERS = tuple(sample for target in TARGETS.values() for sample in target.samples[:2])


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


@pytest.mark.parametrize("name", TARGETS)
def test_changed_bytes_raise_typed_errors_only(name: str) -> None:
    target = TARGETS[name]
    random = Random(f"{SEED}/{name}")
    pool = list(target.samples)
    for _ in range(max(10, INPUTS // target.cost)):
        data = mutate(random, random.choice(pool), OTHERS)
        # What was accepted though changed leads further than the samples do.
        if read(name, target, data) and len(pool) < 50 and len(data) < 10_000:
            pool.append(data)


@pytest.mark.parametrize("name", TARGETS)
def test_memory_is_bounded_by_the_size_of_the_input(name: str) -> None:
    target = TARGETS[name]
    random = Random(f"memory {SEED}/{name}")
    for sample in target.samples:
        read(name, target, sample)  # what is made once and kept is not the input's
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(max(5, INPUTS // 20 // target.cost)):
            data = mutate(random, random.choice(target.samples), OTHERS)
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            read(name, target, data)
            used = tracemalloc.get_traced_memory()[1] - before
            assert used <= target.memory * len(data) + MEMORY_FIXED_BYTES, f"{used} bytes: {data[:4000].hex()}"
    finally:
        tracemalloc.stop()


def test_what_once_failed_does_not_again() -> None:
    for file in sorted(CORPUS.glob("*.hex")):
        name, data = file.read_text().splitlines()
        read(name, TARGETS[name], bytes.fromhex(data))
