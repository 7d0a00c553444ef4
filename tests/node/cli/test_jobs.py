from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.cli.jobs import encode_state, read_spec, spec_from_json, spec_to_json, write_file
from state.primitives.errors import ConfigError
from tasks.engines.datasets import ROWS_MAX
from tasks.engines.state import TrainingState
from tasks.engines.training import initial_state
from tasks.spec import (
    KIND_TRAIN,
    LEVEL_EXACT,
    MODEL_MLP,
    OPTIMISER_ADAMW,
    PROFILE_EXACT_2,
    Dataset,
    JobSpec,
    Model,
    Optimiser,
    Requirements,
    Schedule,
    classifier_job,
    classifier_of,
    classifier_plan,
    decode_spec,
    encode_spec,
)


def make_spec() -> JobSpec:
    return classifier_job(
        kind=KIND_TRAIN,
        level=LEVEL_EXACT,
        profile=PROFILE_EXACT_2,
        model=Model(MODEL_MLP, (8, 6, 3), "relu"),
        dataset=Dataset(b"\1" * 32, b"\2" * 32, 600, 500, 4),
        batch=16,
        optimiser=Optimiser(OPTIMISER_ADAMW, 2_000_000, 900_000_000, 999_000_000, 10, 0),
        seed=b"\3" * 32,
        init_root=b"\4" * 32,
        schedule=Schedule(100, 10, 50),
        max_price_per_tera_unit=3 * 10**27,
        requirements=Requirements(0, 0, 0),
        match_ms=60_000,
    )


SPEC = make_spec()


def test_a_job_survives_its_json_form_even_with_amounts_beyond_what_json_readers_keep() -> None:
    assert spec_from_json(json.loads(json.dumps(spec_to_json(SPEC)))) == SPEC


@given(
    st.integers(1, ROWS_MAX),
    st.integers(1, 1 << 100),
    st.binary(min_size=32, max_size=32),
    st.sampled_from(["relu", "silu"]),
)
def test_every_valid_job_survives(samples: int, price: int, seed: bytes, activation: str) -> None:
    spec = SPEC.changed(
        seed=seed,
        max_price_per_tera_unit=price,
        dataset=classifier_of(SPEC).dataset._replace(rows=max(600, samples), samples=samples),
        model=Model(MODEL_MLP, (8, 6, 3), activation),
    )
    assert spec_from_json(spec_to_json(spec)) == decode_spec(encode_spec(spec))


def test_a_file_may_hold_bytes_json_or_the_answer_of_the_gateway(tmp_path: Path) -> None:
    raw = encode_spec(SPEC)
    shown = spec_to_json(SPEC) | {"hash": "0x00", "raw": "0x" + raw.hex()}
    for content in (
        raw,
        json.dumps(spec_to_json(SPEC)).encode(),
        json.dumps({"task": {"phase": "settled", "spec": shown}, "history": []}).encode(),
    ):
        (tmp_path / "job").write_bytes(content)
        assert read_spec(tmp_path / "job") == raw


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in spec_to_json(SPEC).items() if key != name}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (_without("batch"), "batch is missing"),
        (spec_to_json(SPEC) | {"colour": 1}, "unknown field colour"),
        (spec_to_json(SPEC) | {"batch": "many"}, "batch: not a whole number"),
        (spec_to_json(SPEC) | {"batch": True}, "batch: not a whole number"),
        (spec_to_json(SPEC) | {"batch": 0}, "the job cannot run"),
        (spec_to_json(SPEC) | {"seed": "0x12"}, "seed: not 64 hex digits"),
        (spec_to_json(SPEC) | {"model": []}, "model: not a JSON object"),
        (spec_to_json(SPEC) | {"model": {"name": "mlp", "widths": 3, "activation": "relu"}}, "model.widths"),
        (spec_to_json(SPEC) | {"kind": 7}, "kind: not a text"),
        (spec_to_json(SPEC) | {"raw": "0x00"}, "raw: does not match the other fields"),
        ([1], "not a JSON object"),
    ],
)
def test_a_bad_job_is_refused_by_name(tmp_path: Path, document: Any, said: str) -> None:
    (tmp_path / "job.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=said):
        read_spec(tmp_path / "job.json")


@given(st.binary(max_size=200))
def test_any_file_is_a_job_or_one_clear_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "anything"
    for data in (content, b"{" + content, encode_spec(SPEC)[: len(content)] + content):
        path.write_bytes(data)
        try:
            decode_spec(read_spec(path))
        except ConfigError:
            pass


def test_missing_and_huge_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_spec(tmp_path / "none")
    (tmp_path / "huge").write_bytes(bytes(1 << 20))
    with pytest.raises(ConfigError, match="too large"):
        read_spec(tmp_path / "huge")


# Training states


def test_a_state_reads_back_from_numpy(tmp_path: Path) -> None:
    plan = classifier_plan(SPEC)
    state = replace(initial_state(plan), step=7)
    write_file(tmp_path / "model.npz", encode_state(state, plan, ".npz"))
    with np.load(tmp_path / "model.npz", allow_pickle=False) as loaded:
        assert int(loaded["step"]) == 7
        for name, kind in plan.tensors().items():
            assert loaded[name].shape == (kind.rows, kind.columns)
            assert loaded[name].astype("<f4").tobytes() == state.tensors[name]


def test_a_safetensors_file_has_its_header_and_every_tensor_where_the_header_says() -> None:
    plan = classifier_plan(SPEC)
    state = initial_state(plan)
    data = encode_state(state, plan, ".safetensors")
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    assert size % 8 == 0
    assert header.pop("__metadata__") == {"step": "0"}
    assert set(header) == set(plan.tensors())
    end = 0
    for entry in header.values():
        assert entry["data_offsets"][0] == end  # no gaps, no overlaps
        end = entry["data_offsets"][1]
    assert end == len(body)
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        assert (body[start:stop], entry["dtype"]) == (state.tensors[name], "F32")


def test_canonical_bytes_are_those_of_the_blob_and_other_suffixes_are_refused() -> None:
    plan = classifier_plan(SPEC)
    state = initial_state(plan)
    assert TrainingState.decode(encode_state(state, plan, ".state"), plan).root(plan) == state.root(plan)
    with pytest.raises(ConfigError, match="npz"):
        encode_state(state, plan, ".pickle")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_file(tmp_path / "a", b"first")
    write_file(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"second"
    with pytest.raises(ConfigError):
        write_file(tmp_path / "none" / "a", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
