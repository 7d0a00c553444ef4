"""Claims against a data set: each blob that is not the one of the job has a proof, and the right one has none."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from state.primitives.manifests import manifest_of
from tasks.claims import (
    BlobChunk,
    ClaimUnproven,
    Fault,
    InputClaim,
    check_claim,
    claim_from_value,
    claim_to_value,
    find_fault,
    layout_of,
    say_divergence,
    say_fault,
)
from tasks.engines.dataset_layout import NodePlace
from tasks.engines.datasets import Dataset
from tasks.spec import Dataset as Named
from tasks.spec import JobSpec, Model
from tests.tasks.executor.helpers import make_diverging
from tests.tasks.world import spec

TASK: Final = b"t" * 32
SHAPES: Final = ((1, 1, 2), (3, 5, 2), (40, 130, 10), (1100, 9, 256), (2100, 64, 10))


def dataset(rows: int, columns: int, classes: int) -> Dataset:
    features = bytes((row * 7 + column * 3) % 251 for row in range(rows) for column in range(columns))
    labels = bytes(row % classes for row in range(rows))
    return Dataset(rows, columns, classes, 4, max(1, rows - 1), features, labels)


def job_on(data: Dataset, content: bytes, root: bytes = b"") -> JobSpec:
    """Return a job that names ``content`` as its data set ``data``."""
    named = Named(
        manifest_of(BytesIO(content)).blob_id, root or data.root(), data.rows, data.train_rows, data.shift
    )
    return spec().changed(dataset=named, model=Model("mlp", (data.columns, data.classes), "relu"))


def claimed(data: Dataset, content: bytes, root: bytes = b"") -> InputClaim | None:
    """Return the claim that the software finds, after it was judged, and read again from its bytes."""
    job = job_on(data, content, root)
    claim = find_fault(TASK, job, content)
    if claim is not None:
        raw = encode(claim_to_value(claim))
        assert len(raw) < 24 * 1024 and claim_from_value(decode(raw, limit_bytes=len(raw))) == claim
        check_claim(job, claim)
        assert say_fault(job, claim.fault, claim.place, claim.size)
    return claim


@pytest.mark.parametrize("shape", SHAPES)
def test_a_right_data_set_has_no_fault_and_its_layout(shape: tuple[int, int, int]) -> None:
    data = dataset(*shape)
    content = data.encode()
    assert claimed(data, content) is None
    assert len(content) == data.layout.size and all(
        content[at : at + len(part)] == part for at, part in data.layout.fixed()
    )
    assert Dataset.decode(content) == data and layout_of(job_on(data, content)) == data.layout


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@given(st.data())
@settings(max_examples=30, deadline=None)
def test_each_changed_byte_of_a_data_set_is_proven(shape: tuple[int, int, int], draw: st.DataObject) -> None:
    data = dataset(*shape)
    content = bytearray(data.encode())
    at = draw.draw(st.integers(0, len(content) - 1))
    content[at] ^= draw.draw(st.integers(1, 255))
    claim = claimed(data, bytes(content))
    assert claim is not None and claim.fault is not Fault.SIZE


@pytest.mark.parametrize("junk", [b"x", b"1,2,3\n" * 500, bytes(1 << 21)])
def test_a_stray_file_is_proven_by_its_size_alone(junk: bytes) -> None:
    claim = claimed(dataset(40, 130, 10), junk)
    assert claim is not None and (claim.fault, claim.chunks, claim.hashes) == (Fault.SIZE, (), ())


def test_each_fault_has_its_claim() -> None:
    data = dataset(2100, 64, 10)
    content, layout = data.encode(), data.layout

    def changed(at: int, to: int) -> Fault:
        claim = claimed(data, content[:at] + bytes([to]) + content[at + 1 :])
        assert claim is not None
        return claim.fault

    assert changed(0, 1) is Fault.FORM
    assert changed(layout.labels_at + 2099, 10) is Fault.LABEL
    assert changed(layout.labels_at + 2099, (data.labels[2099] + 1) % 10) is Fault.NODE
    assert changed(layout.features_at + 777, 255) is Fault.NODE
    assert changed(layout.node_span(NodePlace(0, len(layout.stages(0)), 0))[0], 1) is Fault.NODE
    other = claimed(data, content, b"r" * 32)
    assert other is not None and other.fault is Fault.ROOT
    # A data set that is right in itself, but not under the root of the task.
    swapped = replace(data, features=bytes(len(data.features)))
    claim = claimed(data, swapped.encode())
    assert claim is not None and claim.fault is Fault.ROOT


def test_what_is_not_shown_proves_nothing() -> None:
    data = dataset(2100, 64, 10)
    content = bytearray(data.encode())
    at = data.layout.features_at + 777
    content[at] ^= 1
    job = job_on(data, bytes(content))
    claim = find_fault(TASK, job, bytes(content))
    assert claim is not None and len(claim.chunks) >= 2
    chunk = claim.chunks[0]
    lies = (
        claim._replace(chunks=claim.chunks[1:]),
        claim._replace(chunks=(chunk._replace(number=chunk.number + 1), *claim.chunks[1:])),
        claim._replace(chunks=(chunk._replace(content=chunk.content[:-1] + b"?"), *claim.chunks[1:])),
        claim._replace(chunks=(chunk._replace(siblings=chunk.siblings[1:]), *claim.chunks[1:])),
        claim._replace(chunks=(*claim.chunks, BlobChunk(10**6, b"x", ()))),
        claim._replace(hashes=()), claim._replace(size=claim.size + 1), claim._replace(pieces=bytes(32)),
        claim._replace(place=claim.place._replace(number=claim.place.number + 1)),
        claim._replace(place=claim.place._replace(stage=0)), claim._replace(place=NodePlace(1, 31, 0)),
        claim._replace(place=claim.place._replace(number=2**34)),
        *(claim._replace(fault=fault) for fault in Fault if fault is not Fault.NODE),
    )  # fmt: skip
    for lie in lies:
        with pytest.raises(ClaimUnproven):
            check_claim(job, lie)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_nothing_is_proven_against_a_right_data_set(draw: st.DataObject) -> None:
    data = dataset(40, 130, 10)
    content = data.encode()
    job = job_on(data, content)
    wrong = find_fault(TASK, job_on(data, content, b"r" * 32), content)
    assert wrong is not None
    place = NodePlace(*(draw.draw(st.integers(0, most)) for most in (1, 4, len(content))))
    with pytest.raises(ClaimUnproven):
        check_claim(job, wrong._replace(fault=draw.draw(st.sampled_from(Fault)), place=place))


@pytest.mark.parametrize(
    "change",
    [{0: b"t"}, {1: 6}, {2: [2, 0, 0]}, {2: [0, 0]}, {3: -1}, {5: b"x"}, {5: bytes(32 * 80)},
     {6: [[0, b"x", []]] * 5}, {6: [[0, b"", []]]}, {6: [[0, b"x", [b"short"]]]}],
)  # fmt: skip
def test_a_claim_of_another_form_is_no_claim(change: dict[int, object]) -> None:
    claim = find_fault(TASK, job_on(dataset(3, 5, 2), b"junk"), b"junk")
    assert claim is not None
    value: list[object] = list(claim_to_value(claim))
    for at, item in change.items():
        value[at] = item
    with pytest.raises(DecodeError):
        claim_from_value(value)


def test_where_a_job_diverges_is_said_in_plain_words() -> None:
    spec = make_diverging()
    store = spec.program().stores["parameter/0/weight"]
    said = say_divergence(spec, 10, store, 3, 4)
    assert said == (
        "training diverges in step 11: value 3, 4 of parameter/0/weight is not below 2^40; "
        "the result is the state after 10 steps; a lower learning rate may help"
    )
    assert "the gradient is not below 2^100" in say_divergence(spec, 0, spec.program().probe, 0, 0)
