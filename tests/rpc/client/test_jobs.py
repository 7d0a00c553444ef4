"""Jobs of the client: the price within a budget, and what is refused before anything is signed or sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpc.client import JobRefused, NoResult
from rpc.client.jobs import FEE_MARGIN, Price, _made, _price_within, _requested, _Wanted, make_job
from rpc.client.tasks import _left_by
from state.primitives.amounts import DECIMALS
from tasks.kinds.generate import GeneratePart
from tasks.ledger.custody_transitions import ASK_CUSTODY
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.settlement import budget_of
from tasks.ledger.transitions import CREATE_TASK
from tasks.requests.errors import RequestInvalid
from tasks.requests.reading import request_of
from tasks.spec import PRICE_MAX, DecoderPart, JobSpec, decode_spec
from tests.rpc.client.answers import at, window
from tests.rpc.client.test_core import Pool
from tests.rpc.client.world import World
from tests.tasks.executor.helpers import make_spec
from tests.tasks.models.checkpoints import write_folder
from tests.tasks.tuned import TINY

COIN = 10**DECIMALS
SPEC = make_spec()
PARAMETERS = TaskParameters()
CUSTODY = 10**15


class Market(Pool):
    """A gateway that quotes by the rules of the chain."""

    def answer(self, method: str, params: Any) -> Any:
        if method == "dekube_quoteTask":
            spec = decode_spec(bytes.fromhex(params["spec"][2:]))
            budget = budget_of(spec, PARAMETERS)
            return {
                "at": at(5), "price": str(budget.price), "verification": str(budget.verification),
                "fee": str(budget.fee), "preparation": str(budget.preparation), "custody": str(CUSTODY),
                "custody_lines": [], "total": str(budget.total), "limit": "1",
                "checks": {"fee": "1", "window": "1", "bond": "1", "bond_new": "4", "base_fee": "4"},
                "calls": [], "objections": [], "notices": [], "reported": None,
            }  # fmt: skip
        if method == "dekube_quote":
            gas = {CREATE_TASK: 8_000_000, ASK_CUSTODY: 150_000}
            kinds = [{"kind": kind, "name": "x", "gas": one, "fee": "1"} for kind, one in gas.items()]
            return super().answer(method, params) | {"kinds": kinds, "max_fee_per_gas": str(10**9)}
        return super().answer(method, params)


FEES = 8_150_000 * 10**9 * FEE_MARGIN // 100


def priced(specs: list[JobSpec], budget: int, **options: Any) -> tuple[Price, int]:
    """Return the price within a budget, and how often the gateway was asked."""
    world = World(Market().answer)
    found = world.run(_price_within(world.core, specs, budget, **options))
    return found, sum(method == "dekube_quoteTask" for method, _ in world.all[0].asked)


def cost(price: int) -> int:
    """Return what a task locks at a price, by the rules of the chain."""
    return budget_of(SPEC._replace(max_price_per_tera_unit=min(price, PRICE_MAX)), PARAMETERS).total + CUSTODY


@settings(max_examples=60)
@given(budget=st.integers(3 * FEES, 10**6 * COIN), tasks=st.integers(1, 2))
def test_a_budget_is_used_and_never_exceeded(budget: int, tasks: int) -> None:
    found, asked = priced([SPEC] * tasks, budget)
    price = found.per_tera_unit
    assert found.locked == tasks * cost(price) and found.fees == tasks * FEES
    assert found.locked + found.fees <= budget
    assert price == PRICE_MAX or tasks * cost(price + price // 100 + 1) + found.fees > budget
    assert asked <= 8 * tasks


def test_the_price_of_the_file_bounds_what_the_budget_allows() -> None:
    assert priced([SPEC], 10**6 * COIN, most=77)[0].per_tera_unit == 77
    without, _ = priced([SPEC], COIN, has_custody=False)
    assert without.fees == 8_000_000 * 10**9 * FEE_MARGIN // 100
    assert without.per_tera_unit > priced([SPEC], COIN)[0].per_tera_unit


def test_a_budget_below_the_least_is_refused_with_what_it_would_take() -> None:
    with pytest.raises(JobRefused, match=r"the budget is 0.001 DKB; 2 tasks would lock ") as caught:
        priced([SPEC, SPEC], COIN // 1000)
    assert caught.value.reasons == ("budget_too_small",)


def test_fields_of_a_program_become_a_job_with_typed_errors(tmp_path: Path) -> None:
    write_folder(tmp_path, TINY)
    values = {"kind": "generate", "model": str(tmp_path), "data": "-", "new_tokens": 2}
    data = json.dumps({"input_ids": [1, 2]}).encode()
    made = make_job(request_of(values), seed=bytes(32), max_price_per_tera_unit=9, data=data)
    assert (made.spec.max_price_per_tera_unit, made.spec.seed) == (9, bytes(32))
    drawn = make_job(
        request_of(values | {"temperature": 0.7, "top_p": 0.9, "top_k": 40}), seed=bytes(32),
        max_price_per_tera_unit=9, data=data,
    )  # fmt: skip
    assert isinstance(drawn.spec.part, GeneratePart)
    assert drawn.spec.part.decoding.sampling == (700_000_000, 900_000_000, 40)
    with pytest.raises(RequestInvalid) as caught:
        request_of(values | {"temperature": 0.7, "top_p": 1.1})
    assert (caught.value.code, caught.value.field) == ("request_invalid", "top_p")
    with pytest.raises(RequestInvalid) as caught:
        make_job(request_of(values), seed=bytes(32), max_price_per_tera_unit=9, data=data + b"\n{}")
    assert (caught.value.code, caught.value.line, caught.value.field) == ("rows_invalid", 2, "data")
    with pytest.raises(RequestInvalid) as caught:
        request_of(values | {"new_token": 2})
    assert (caught.value.code, caught.value.field, caught.value.line) == ("request_invalid", "new_token", None)
    with pytest.raises(RequestInvalid) as caught:
        make_job(
            request_of(values | {"model": str(tmp_path / "none")}),
            seed=bytes(32),
            max_price_per_tera_unit=9,
            data=data,
        )
    assert (caught.value.code, caught.value.field) == ("model_invalid", "model")


def test_training_from_scratch_is_asked_for_with_rows_and_no_model() -> None:
    """What ``train`` of both clients hands over."""
    fields = {"steps": 4, "batch": 2, "shape": {"preset": "tiny", "context": 8}}
    wanted = _Wanted("train", None, [{"text": "A text."}, {"text": "Another one."}], None, 9, bytes(32), None)
    request = _requested(wanted, fields)
    assert (request.kind, request.model, getattr(request, "adapter", None)) == ("train", "", None)
    made = _made(wanted, request, None)
    assert isinstance(made.spec.part, DecoderPart)
    assert made.spec.part.dataset.rows == 3 and made.spec.max_price_per_tera_unit == 9
    with pytest.raises(RequestInvalid) as caught:
        _made(wanted._replace(data=[{"prompt": "A text."}]), request, None)
    assert (caught.value.code, caught.value.line, caught.value.field) == ("rows_invalid", 1, "data")


def test_a_state_is_found_by_its_step_and_an_error_names_those_that_there_are() -> None:
    windows = [window(0, "final"), window(1, "final"), window(2, "void"), window(3, "accepted")]
    assert [_left_by(windows, None, step).number for step in (25, 50, None)] == [0, 1, 1]
    assert _left_by(windows, 0, None).number == 0
    for step in (1, 75, 100):
        with pytest.raises(NoResult, match=f"after step {step} is final; there are states after 25, 50"):
            _left_by(windows, None, step)
    many = [window(number, "final") for number in range(100)]
    with pytest.raises(NoResult, match=r"25, 50, .*, 575, \.\.\., 2500$"):
        _left_by(many, None, 7)
    with pytest.raises(NoResult, match="window 3 is not final"):
        _left_by(windows, 3, None)
    with pytest.raises(NoResult, match="no window of this task is final yet"):
        _left_by(windows[2:], None, 25)
