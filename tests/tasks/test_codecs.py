"""Specifications, proofs and payloads: one spelling, bounded, and nothing but DecodeError on anything else."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from tasks.executor.resource_needs import needs_of
from tasks.executor.supervisor import ProcessOptions
from tasks.ledger.lifecycle import Phase
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.progress import window_span_ms
from tasks.ledger.registry import Gpu, NodeProfile, NodeRole, profile_from_value, profile_to_value
from tasks.ledger.transitions import rules
from tasks.proofs import (
    Code,
    Finding,
    LeavesInvalid,
    check_leaves,
    check_opening,
    decode_leaves,
    encode_leaves,
    findings_from_value,
    findings_to_value,
    make_opening,
    opening_from_value,
    opening_to_value,
    verdict_seal,
    window_proof_from_value,
    window_proof_to_value,
)
from tasks.spec import (
    RATE_MAX,
    SEGMENT_MS_MAX,
    SEGMENTS_MAX,
    SPEC_LIMIT_BYTES,
    STEP_UNITS_PER_MS,
    WINDOW_STATES_BYTES_MAX,
    WINDOW_UNITS_MAX,
    JobSpec,
    Model,
    Requirements,
    Schedule,
    classifier_of,
    decode_spec,
    encode_spec,
    spec_hash,
)
from tests.tasks.world import DKB, QUICK, World, leaves_of, proof_of, salt, spec, work_of

JOB = spec(total=55)
LEAVES = leaves_of(JOB, 2, b"i" * 32)
PROOF = proof_of(JOB, b"t" * 32, 2, LEAVES)
OPENING = make_opening(LEAVES, 1, work_of(LEAVES[1]), salt(LEAVES[1].step_from))
PROFILE = NodeProfile(b"o" * 20, NodeRole.COMPUTE, (), 8, 16_000, 16, 10**15, 100, 1, 0, ("tcp:h:1",), "1.0")
VALUES = st.recursive(
    st.none() | st.integers(-(2**255), 2**255) | st.binary(max_size=40) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=12),
    max_leaves=30,
)


def received(value: Any) -> Any:
    return decode(encode(value), limit_bytes=1 << 20)


def reader(from_value: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    return lambda data: from_value(decode(data, limit_bytes=4096))


def test_round_trips() -> None:
    assert decode_spec(encode_spec(JOB)) == JOB
    assert decode_leaves(encode_leaves(LEAVES)) == tuple(LEAVES)
    assert window_proof_from_value(received(window_proof_to_value(PROOF))) == PROOF
    assert opening_from_value(received(opening_to_value(OPENING))) == OPENING
    assert profile_from_value(received(profile_to_value(PROFILE))) == PROFILE
    findings = (
        Finding(0, Code.COMPUTED, b"p" * 32, b"s" * 32, 7),
        Finding(3, Code.UNAVAILABLE, bytes(32), bytes(32), 0),
    )
    assert findings_from_value(received(findings_to_value(findings))) == findings


def test_the_encodings_of_a_job_and_a_seal_never_change() -> None:
    assert spec_hash(encode_spec(JOB)).hex() == SPEC_HASH
    findings = (Finding(0, Code.COMPUTED, b"p" * 32, b"s" * 32, 7),)
    assert verdict_seal(b"t" * 32, 1, b"v" * 20, findings, b"n" * 32).hex() == VERDICT_SEAL
    assert PROOF.segment_root.hex() == SEGMENT_ROOT


SPEC_HASH = "8fcb206a21d190d3de88683f6ff8d758200b55fbf0c83d14b17b022dba5d3ed2"
VERDICT_SEAL = "faa25106ad822ecc8f506ce50be42d62928c3ae37076122b5404da41fd5df8d4"
SEGMENT_ROOT = "56d6d26d3fe5c7bde8e333d726ff9ca6c3df9753e6ca28e69390b6d5ae975b08"


def test_windows_and_segments_cover_the_steps_once_and_in_order() -> None:
    covered: list[int] = []
    for window in range(JOB.windows):
        start, stop = JOB.window_range(window)
        ranges = [JOB.segment_range(window, segment) for segment in range(JOB.window_segments(window))]
        assert (ranges[0][0], ranges[-1][1]) == (start, stop)
        covered += [step for step_from, step_to in ranges for step in range(step_from, step_to)]
    assert covered == list(range(55))


@pytest.mark.parametrize(
    "bad",
    [
        JOB._replace(kind="infer"),
        JOB._replace(level=2),
        JOB._replace(profile="fp32"),
        JOB.changed(model=Model("mlp", (64, 10), "gelu")),
        JOB.changed(model=Model("mlp", (64, 0, 10), "relu")),
        JOB.changed(model=Model("mlp", (64, 1 << 40, 10), "relu")),
        JOB.changed(batch=0),
        JOB._replace(seed=b"short"),
        JOB._replace(schedule=Schedule(55, 0, 20)),
        JOB._replace(schedule=Schedule(55, 6, 20)),
        JOB._replace(schedule=Schedule(10, 5, 20)),
        JOB._replace(schedule=Schedule(1 << 40, 5, 20)),
        JOB._replace(schedule=Schedule(2000, 1, 1000)),
        JOB._replace(max_price_per_tera_unit=0),
        JOB._replace(max_price_per_tera_unit=(1 << 100) + 1),
        JOB._replace(requirements=Requirements(0, 0, RATE_MAX + 1)),
        JOB.changed(dataset=classifier_of(JOB).dataset._replace(samples=(1 << 22) + 1)),
        JOB._replace(match_ms=0),
    ],
)
def test_a_job_that_cannot_be_run_is_refused(bad: JobSpec) -> None:
    with pytest.raises(DecodeError):
        decode_spec(encode_spec(bad))


def test_the_longest_profile_fits_a_record_and_a_longer_one_is_refused() -> None:
    wide = PROFILE._replace(gpus=(Gpu("ü" * 40, 1),) * 16, endpoints=("ü" * 80,) * 3)
    assert profile_from_value(received(profile_to_value(wide))) == wide
    for profile in (
        PROFILE._replace(gpus=(Gpu("ü" * 128, 1),) * 16),
        PROFILE._replace(gpus=(Gpu("x", 1),) * 17),
        PROFILE._replace(endpoints=("x",) * 5),
        PROFILE._replace(version="x" * 129),
        PROFILE._replace(price_per_tera_unit=0),
        PROFILE._replace(rate=RATE_MAX + 1),
        PROFILE._replace(slots=0),
    ):
        with pytest.raises(DecodeError):
            profile_from_value(received(profile_to_value(profile)))


def test_the_longest_job_does_not_leave_the_clocks_range() -> None:
    steps = SEGMENT_MS_MAX // JOB.step_ms
    window = SEGMENTS_MAX * steps
    long = JOB._replace(schedule=Schedule(1_000 * window, steps, window))
    assert decode_spec(encode_spec(long)) == long
    with pytest.raises(DecodeError):
        decode_spec(encode_spec(long._replace(schedule=Schedule(window, steps + 1, window))))
    slowest = replace(TaskParameters(), window_slack=100)
    assert 0 < window_span_ms(long, 0, 0, slowest) < 1 << 33
    world = World()
    world.add_machine(1, rate=0), world.add_machine(2)
    world.fund(bytes([1]) * 20, 10**6 * DKB)  # the bond is four times the price
    task = world.create(long._replace(schedule=Schedule(window, steps, window)))
    world.run_to(task, Phase.SETTLED)


@given(
    st.lists(st.integers(1, 4096), min_size=1, max_size=8), st.integers(2, 256), st.integers(1, 4096),
    st.integers(1, 256), st.integers(1, 1 << 20),
)  # fmt: skip
def test_no_job_asks_more_of_a_machine_than_is_bounded(
    widths: list[int], classes: int, batch: int, segments: int, steps: int
) -> None:
    """A segment can be re-run in time, a window's states can be kept, and its units are bounded."""
    job = JOB.changed(
        model=Model("mlp", (*widths, classes), "silu"), batch=batch, max_price_per_tera_unit=1,
        schedule=Schedule(segments * steps, steps, segments * steps),
    )  # fmt: skip
    try:
        found = decode_spec(encode_spec(job))
    except DecodeError:
        return
    plan = found.plan()
    assert steps * plan.program.units <= SEGMENT_MS_MAX * STEP_UNITS_PER_MS
    assert found.step_ms * steps <= SEGMENT_MS_MAX
    assert found.window_units(0) <= WINDOW_UNITS_MAX
    assert (segments + 1) * 12 * plan.parameters <= WINDOW_STATES_BYTES_MAX
    needs = needs_of(found, open_windows_max=3)
    assert needs.blobs + needs.journal <= 6 * WINDOW_STATES_BYTES_MAX
    assert needs.node <= 2 << 30
    assert needs.process <= ProcessOptions().memory_mib << 20  # so every verifier can re-run what a spec may ask


@pytest.mark.parametrize(
    ("widths", "activation", "batch", "rows", "measured_ms"),
    [
        ((4096, 2), "relu", 4096, 8192, 199),
        ((1, 1, 1, 1, 1, 1, 1, 1, 2), "silu", 1, 10, 2.5),
        ((1, 2), "silu", 4096, 4, 62),
        ((64, 256, 128, 10), "relu", 64, 1797, 3.0),
        ((1024, 1024, 10), "relu", 256, 256, 55),
        ((1024, 1024, 10), "silu", 4096, 256, 740),
        ((4096, 3900, 150, 2), "silu", 1, 256, 830),
        ((4096, 3900, 150, 2), "silu", 1024, 256, 3_500),
        ((2, 4096, 2), "silu", 4096, 256, 1_135),
        ((4096, 4, 4096, 4, 4096, 4, 4096, 4, 2), "silu", 4096, 256, 7_560),
    ],
)
def test_a_step_is_called_twice_as_long_as_it_was_measured(
    widths: tuple[int, ...], activation: str, batch: int, rows: int, measured_ms: float
) -> None:
    """As measured on one core of a busy AMD EPYC (0032)."""
    job = JOB.changed(
        model=Model("mlp", widths, activation),
        batch=batch,
        dataset=classifier_of(JOB).dataset._replace(rows=rows, samples=rows),
    )
    assert job.step_ms >= 1.95 * measured_ms


def test_a_job_needs_no_room_for_more_open_windows_than_it_has() -> None:
    job = JOB._replace(schedule=Schedule(20, 5, 10))
    assert needs_of(job, open_windows_max=64) == needs_of(job, open_windows_max=2)
    assert needs_of(job, open_windows_max=2).blobs > needs_of(job, open_windows_max=1).blobs


def test_the_largest_models_can_be_trained_a_step_a_segment() -> None:
    for widths, batch in (((4096, 3900, 150, 2), 4096), ((4096, 4080, 10), 4096), ((1448,) * 8 + (10,), 1024)):
        job = JOB.changed(model=Model("mlp", widths, "silu"), batch=batch, schedule=Schedule(55, 1, 5))
        assert decode_spec(encode_spec(job)).step_ms <= SEGMENT_MS_MAX
        assert needs_of(job, open_windows_max=3).process <= ProcessOptions().memory_mib << 20


@given(VALUES)
def test_payloads_of_any_shape_give_the_typed_error_or_a_value(value: Any) -> None:
    payload = received(value if isinstance(value, list) else [value])
    for rule in rules(QUICK):
        try:
            decoded = rule.decode(payload)
        except DecodeError:
            continue
        assert rule.moves(decoded) >= 0


@given(st.integers(0, 2**32))
def test_mutated_bytes_give_the_typed_error_or_a_value(seed: int) -> None:
    chance = random.Random(seed)
    originals: list[tuple[bytes, Callable[[bytes], Any]]] = [
        (encode_spec(JOB), decode_spec),
        (encode_leaves(LEAVES), decode_leaves),
        (encode(window_proof_to_value(PROOF)), reader(window_proof_from_value)),
        (encode(opening_to_value(OPENING)), reader(opening_from_value)),
        (encode(profile_to_value(PROFILE)), reader(profile_from_value)),
    ]
    data, read = chance.choice(originals)
    mutated = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(mutated))
        match chance.randrange(3):
            case 0:
                mutated[at] ^= 1 << chance.randrange(8)
            case 1:
                del mutated[at : at + chance.randrange(1, 9)]
            case _:
                mutated[at:at] = chance.randbytes(chance.randrange(1, 9))
    with contextlib.suppress(DecodeError):
        read(bytes(mutated))


def test_a_specification_beyond_its_limit_is_not_looked_at() -> None:
    with pytest.raises(DecodeError):
        decode_spec(b"\x00" * (SPEC_LIMIT_BYTES + 1))


def test_leaves_must_chain_and_be_the_committed_ones() -> None:
    check_leaves(JOB, PROOF, LEAVES)
    broken = [LEAVES[0], LEAVES[1]._replace(state_root_before=b"x" * 32), *LEAVES[2:]]
    cases = [
        (PROOF, LEAVES[:-1]),
        (PROOF, broken),
        (proof_of(JOB, b"t" * 32, 2, broken), broken),
        (PROOF._replace(state_root_out=b"x" * 32), LEAVES),
        (PROOF._replace(window=1), LEAVES),
    ]
    for proof, leaves in cases:
        with pytest.raises(LeavesInvalid):
            check_leaves(JOB, proof, leaves)


def test_an_opening_is_of_one_leaf_only() -> None:
    assert check_opening(PROOF, OPENING)
    assert not check_opening(PROOF, OPENING._replace(leaf=LEAVES[0]))
    assert not check_opening(PROOF._replace(segments=4), OPENING)
    assert not check_opening(PROOF, OPENING._replace(siblings=()))
