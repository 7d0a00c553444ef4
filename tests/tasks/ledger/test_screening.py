"""What is known against a job before its coins are locked: each mistake is named, and no right job is refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.market.posting import DIGITS_BLOB, DIGITS_FACTS
from state.primitives.errors import DecodeError
from state.view.accounts import credit
from tasks.engines import plan
from tasks.engines.builtin_datasets import make_dataset
from tasks.engines.datasets import DATASET_BLOB_BYTES_MAX, DATASET_BYTES_MAX, DATASET_LEAVES_MAX, ROWS_MAX
from tasks.ledger.group_transitions import CREATE_GROUP
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.registry import NodeRole, require_node, save_node
from tasks.ledger.screening import (
    MACHINES_MAX,
    DatasetFacts,
    check_start,
    cost_objections,
    dataset_objections,
    look_out,
    machine_notices,
    machine_objections,
    rate_objections,
    read_dataset_facts,
)
from tasks.ledger.transitions import CREATE_TASK, RETIRE_NODE, rules
from tasks.programs.errors import ProgramInvalid
from tasks.programs.program import Program
from tasks.recipes import digits_spec
from tasks.spec import GPUS_MAX, Dataset, JobSpec, Model, Requirements, Schedule, decode_spec, encode_spec
from tests.tasks.executor.helpers import BLOB, DATA, make_spec
from tests.tasks.world import DKB, QUICK, REQUESTER, World, spec

JOB = make_spec()
FACTS = read_dataset_facts(BLOB)


def codes(objections: object) -> list[str]:
    return [code for code, _ in objections]  # type: ignore[attr-defined]


# The data set


def test_nothing_is_known_against_a_job_that_fits() -> None:
    expected = DatasetFacts(
        len(BLOB), DATA.columns, DATA.classes, DATA.rows, DATA.train_rows, DATA.shift, DATA.root(), ""
    )
    assert expected == FACTS
    assert dataset_objections(JOB, FACTS) == check_start(JOB) == []


@pytest.mark.parametrize(
    "content", [b"", b"a,b,label\n1,2,0\n3,4,1\n", b"\x80", b"\x89PNG\r\n", BLOB[:-1], BLOB + b"\0"]
)
def test_a_file_that_is_not_a_data_set_is_named(content: bytes) -> None:
    [(code, text)] = dataset_objections(JOB, read_dataset_facts(content))
    assert code == "dataset_invalid"
    assert "0x" + JOB.dataset.blob.hex() in text and "not a data set" in text and "CSV" in text


def test_a_blob_that_is_too_large_is_named_without_being_read() -> None:
    facts = DatasetFacts(DATASET_BLOB_BYTES_MAX + 1, 0, 0, 0, 0, 0, b"", "too large")
    assert codes(dataset_objections(JOB, facts)) == ["dataset_too_large"]


def test_another_data_set_than_the_jobs_is_named_with_what_differs() -> None:
    other = read_dataset_facts(replace(DATA, train_rows=DATA.train_rows - 1, shift=DATA.shift - 1).encode())
    assert codes(dataset_objections(JOB, other)) == ["dataset_samples_differ", "dataset_shift_differs"]
    longer = replace(
        DATA, rows=DATA.rows + 1, features=DATA.features + bytes(DATA.columns), labels=DATA.labels + bytes(1)
    )
    facts = read_dataset_facts(longer.encode())
    assert codes(dataset_objections(JOB, facts)) == ["dataset_root_differs", "dataset_rows_differ"]
    changed = JOB.changed(model=Model("mlp", (13, 16, 4), "relu"))
    [(code, text)] = dataset_objections(changed, FACTS)
    assert (code, "12 features and 4 classes" in text, "begins with 13" in text) == (
        "dataset_widths_differ", True, True,
    )  # fmt: skip


@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    assert read_dataset_facts(data).error


def test_what_is_said_of_the_digits_is_so() -> None:
    assert read_dataset_facts(make_dataset("digits").encode()) == DIGITS_FACTS
    digits = make_dataset("digits")
    job = digits_spec(digits, dataset_blob=DIGITS_BLOB, seed=b"s" * 32, max_price_per_tera_unit=1)
    assert dataset_objections(job, DIGITS_FACTS) == check_start(job) == []


# The start


@pytest.mark.parametrize(
    "change",
    [
        {"model": Model("mlp", (12, 17, 4), "relu")},
        {"seed": b"?" * 32},
        {"init_root": bytes(32)},
    ],
)
def test_an_init_root_of_other_widths_or_another_seed_is_named(change: dict[str, object]) -> None:
    changed: JobSpec = JOB.changed(**change)
    [(code, text)] = check_start(changed)
    assert code == "init_root_differs"
    right = changed._replace(init_root=bytes.fromhex(text.rpartition("0x")[2]))
    assert check_start(right) == [], "the text says what it must be"


def test_a_stranger_has_only_small_starts_computed() -> None:
    large = JOB.changed(model=Model("mlp", (12, 4096, 500, 4), "relu"))
    assert check_start(large, any_size=False) == []
    assert codes(check_start(JOB._replace(init_root=bytes(32)), any_size=False)) == ["init_root_differs"]


# The machines


def seen(
    world: World, job: JobSpec, excluded: tuple[bytes, ...] = ()
) -> tuple[list[str], list[str], dict[str, int]]:
    outlook = look_out(world.state, job, world.time_ms, world.parameters, excluded)
    return codes(machine_objections(job, outlook)), codes(machine_notices(job, outlook)), outlook.why


GAS = {rule.name: rule.gas for rule in rules(QUICK)}


def test_a_job_whose_gas_and_checks_cost_more_than_its_work_is_refused_and_told_the_least_size() -> None:
    job, base_fee = spec(price=DKB // 1000), 10**9
    parameters = TaskParameters()
    [(code, text)] = cost_objections(job, parameters, GAS, base_fee)
    assert code == "costs_exceed_work"
    found = re.search(r"one window of (\d+) segments and (\d+) steps", text)
    assert found is not None
    segments, steps = int(found[1]), int(found[2])

    def of(count: int) -> JobSpec:
        segment = -(-count // segments)
        return job._replace(schedule=Schedule(segment * segments, segment, segment * segments))

    assert cost_objections(of(steps), parameters, GAS, base_fee) == []
    assert codes(cost_objections(of(steps // 2), parameters, GAS, base_fee)) == ["costs_exceed_work"]
    assert cost_objections(of(steps), parameters, GAS, 0) == []
    assert cost_objections(of(steps), replace(parameters, audit_bps=10_000), GAS, base_fee) == []


def test_what_no_machine_has_is_refused_and_what_one_has_is_not() -> None:
    world = World()
    world.add_machine(1, gpus=2)
    world.add_machine(2, roles=NodeRole.VERIFY, gpus=8)
    wanted = spec()._replace(requirements=Requirements(2, 64_000, 10**10))
    assert seen(world, wanted) == ([], [], {})
    for lacks, reason in (
        (Requirements(3, 0, 0), "gpus"),
        (Requirements(0, 64_001, 0), "memory"),
        (Requirements(0, 0, 10**10 + 1), "slow"),
    ):
        objections, _, why = seen(world, wanted._replace(requirements=lacks))
        assert (objections, why) == (["no_such_machine"], {reason: 1})


def test_a_network_without_machines_is_told_and_nothing_more() -> None:
    assert seen(World(), spec()) == ([], ["no_machine"], {})


def test_a_price_below_all_asks_is_told_with_the_lowest() -> None:
    world = World()
    world.add_machine(1, price=DKB // 1000)
    world.add_machine(2, price=DKB // 100)
    low = spec(price=DKB // 2000)
    assert seen(world, low) == ([], ["price_below_all"], {"price": 2})
    outlook = look_out(world.state, low, world.time_ms, QUICK)
    [(_, text)] = machine_notices(low, outlook)
    assert "0.0005 DKB" in text and "0.001 DKB and more" in text
    assert seen(world, spec(price=DKB // 1000))[1] == []


def test_what_keeps_each_machine_from_a_job_now_is_told() -> None:
    world = World()
    busy, paused, retiring, left = (world.add_machine(n) for n in (1, 2, 3, 4))
    save_node(world.state, require_node(world.state, busy)._replace(busy_slots=1))
    save_node(world.state, require_node(world.state, paused)._replace(match_from_ms=world.time_ms + 1))
    assert world.send(retiring, RETIRE_NODE, []) is None
    assert seen(world, spec(), (left,)) == (
        [], ["no_machine_free"], {"busy": 1, "left": 1, "paused": 1, "retiring": 1},
    )  # fmt: skip
    assert seen(world, spec())[1] == []


def test_of_more_machines_than_are_looked_at_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.add_machine(1)
    world.add_machine(2)
    monkeypatch.setattr("tasks.ledger.screening.MACHINES_MAX", 1)
    assert MACHINES_MAX > 1
    assert seen(world, spec()._replace(requirements=Requirements(4, 0, 0))) == ([], [], {"gpus": 1})


# What the chain knows by itself


def test_the_chain_refuses_a_job_whose_numbers_could_leave_the_exact_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No specification within the limits is known to have such a program."""

    def refused(_shape: object, _rates: object) -> Program:
        raise ProgramInvalid("values from 2^-1000")

    monkeypatch.setattr(plan, "classifier_program", refused)
    world = World()
    raw = encode_spec(spec().changed(model=Model("mlp", (64, 31, 10), "relu")))
    credit(world.state, b"q" * 20, 1000 * DKB)
    assert world.send(b"q" * 20, CREATE_TASK, [raw]) == "unsupported_job"


def test_the_chain_refuses_what_no_machine_and_no_data_set_can_ever_be() -> None:
    wanted = spec()._replace(requirements=Requirements(GPUS_MAX, 0, 0))
    assert decode_spec(encode_spec(wanted)) == wanted
    with pytest.raises(DecodeError, match="gpus"):
        decode_spec(encode_spec(spec()._replace(requirements=Requirements(GPUS_MAX + 1, 0, 0))))
    for width, rows, fits in (
        (64, ROWS_MAX, True), (64, ROWS_MAX + 1, False),
        (128, DATASET_BYTES_MAX // 129, True), (128, DATASET_BYTES_MAX // 129 + 1, False),
        (129, DATASET_LEAVES_MAX // 3, True), (129, DATASET_LEAVES_MAX // 3 + 1, False),
        (4096, DATASET_BYTES_MAX // 4097, True), (4096, DATASET_BYTES_MAX // 4097 + 1, False),
    ):  # fmt: skip
        job = spec().changed(
            dataset=Dataset(b"d" * 32, b"D" * 32, rows, 1, 8), model=Model("mlp", (width, 10), "relu")
        )
        if fits:
            assert decode_spec(encode_spec(job)) == job
        else:
            with pytest.raises(DecodeError, match="rows"):
                decode_spec(encode_spec(job))


@pytest.mark.parametrize("trial_ms", [0, 10_000])
@pytest.mark.parametrize("rate_min", [0, 1])
def test_a8_a_job_requires_no_rate_of_a_chain_that_measures_none(trial_ms: int, rate_min: int) -> None:
    """Who claimed the rate took such jobs from machines that have it (R64)."""
    parameters = replace(QUICK, trial_ms=trial_ms, group_members_max=8)
    world, job = World(parameters=parameters), spec()._replace(requirements=Requirements(0, 0, rate_min))
    refused = "trials_off" if rate_min and not trial_ms else None
    assert world.send(REQUESTER, CREATE_TASK, [encode_spec(job)]) == refused
    assert world.send(REQUESTER, CREATE_GROUP, [encode_spec(job), 2, 0]) == refused
    assert codes(rate_objections(job, parameters)) == [refused] * (refused is not None)
