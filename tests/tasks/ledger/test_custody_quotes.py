"""Lines of a quote for custody: they are what is locked, and say what a GiB-hour comes to."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tasks.ledger.custody import custody_budget
from tasks.ledger.custody_inputs import input_budget
from tasks.ledger.custody_quotes import CUSTODY_TOO_DEAR, custody_cost_notices, custody_lines
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.screening import cost_objections
from tasks.ledger.transitions import rules
from tasks.spec import JobSpec, Schedule
from tests.tasks.keepers import KEPT
from tests.tasks.world import DKB, QUICK, spec

HOUR_MS = 3_600_000


@pytest.mark.parametrize("price", [0, 1, 10**13, 10**5 * DKB])
@pytest.mark.parametrize("fee_min", [0, 10**15])
def test_the_lines_are_what_is_locked(price: int, fee_min: int) -> None:
    parameters = replace(KEPT, custody_price_per_gib_hour=price, custody_fee_min=fee_min, custody_ms=7 * HOUR_MS)
    outputs, one_input = custody_lines(spec(), parameters, keeps_input=True)
    assert outputs.amount == custody_budget(spec(), parameters) and outputs.blobs == spec().windows
    assert one_input.amount == input_budget(spec(), parameters)
    assert custody_lines(spec(), parameters) == (outputs,)
    for line in (outputs, one_input):
        per_hour = line.cost_per_gib_hour
        byte_ms = line.blobs * line.copies * line.size_bytes * line.time_ms
        assert (per_hour - 1) * byte_ms < line.amount * (HOUR_MS << 30) <= per_hour * byte_ms
        assert per_hour > price, "no less than the chain's price"


def test_a_large_blob_costs_the_chains_price_and_a_small_one_more() -> None:
    parameters = replace(KEPT, custody_price_per_gib_hour=10**5 * DKB)
    (line,) = custody_lines(spec(), parameters)
    assert line.cost_per_gib_hour < 1.001 * 10**5 * DKB
    cheap = replace(KEPT, custody_price_per_gib_hour=10**9)
    (line,) = custody_lines(spec(), cheap)
    assert line.cost_per_gib_hour > 1_000 * 10**9


def test_a_chain_without_custody_has_no_lines() -> None:
    assert custody_lines(spec(), QUICK, keeps_input=True) == ()


def test_a_job_whose_custody_makes_it_cost_more_than_its_work_is_told_the_least_size() -> None:
    gas, parameters = {rule.name: rule.gas for rule in rules(QUICK)}, TaskParameters()

    def of(steps: int, windows: int = 1) -> JobSpec:
        segment = -(-steps // (128 * windows))
        total = segment * 128 * windows
        return spec(price=DKB // 100)._replace(schedule=Schedule(total, segment, total // windows))

    def notices(job: JobSpec, base_fee: int = 10) -> list[str]:
        return [item.text for item in custody_cost_notices(job, parameters, gas, base_fee)]

    job = of(10_000, 8)
    assert cost_objections(job, parameters, gas, 10) == []
    [notice] = custody_cost_notices(job, parameters, gas, 10)
    found = re.search(r"one window of (\d+) segments and (\d+) steps", notice.text)
    assert notice.code == CUSTODY_TOO_DEAR and found is not None
    least = int(found[2])
    assert notices(of(least)) == [] and notices(of(least // 2)) != []
    assert custody_cost_notices(job, replace(parameters, custody_copies=0), gas, 10) == []
    assert notices(of(128), 10**9) == [], "costs_exceed_work says it"
