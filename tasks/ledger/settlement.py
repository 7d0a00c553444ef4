"""What moves in a task's escrow, and when: bonds, pay by window, verifiers' fees, fines, the end (market.md 8).

Every amount is bounded by the pool it comes from. Only final windows are paid, each for at most its share of the
price, so the price pool covers them all however often a window is done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from billing.escrow import NOBODY, Pool, Purpose
from billing.prices import (
    BPS,
    TERA,
    Budget,
    Role,
    share,
    share_up,
    split,
    split_roles,
    work_price,
    work_price_up,
)
from tasks.errors import CheckTooDear, TrialsOff
from tasks.ledger import registry
from tasks.ledger.audits import (
    CHECK_GAS,
    SURE,
    Audit,
    allowance,
    audit_of,
    audit_paid_for,
    bond_floor,
    check_fee,
    contribution,
    gas_paid_for,
    gas_price_of,
    is_backed,
    samples_of,
)
from tasks.ledger.bonds import pay_from_bond, pay_machine
from tasks.ledger.carriage import dues_of, pay_dues, share_pay
from tasks.ledger.check_fund import FUND_ADDRESS, bears, fund_balance, is_below, pay_in, put_down, take_back
from tasks.ledger.custody_records import (
    INPUT_WINDOW,
    CustodyPhase,
    find_custody,
    find_terms,
    save_custody,
    sole_keeper,
)
from tasks.ledger.lifecycle import Phase
from tasks.ledger.open_task import Case
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.records import TaskRecord, WindowRecord
from tasks.ledger.reputation import is_new
from tasks.proofs import WindowProof
from tasks.spec import JobSpec

__all__ = [
    "RELEASES_MAX",
    "Bonds",
    "CheckTerms",
    "audited_charge",
    "bond_at",
    "bond_of",
    "budget_of",
    "charge_blamed",
    "charge_of",
    "check_affordable",
    "check_budget",
    "check_measured",
    "check_terms",
    "close_escrow",
    "delivery_fees",
    "final_ms_of",
    "fine_late_window",
    "fine_opening",
    "fine_worker",
    "forfeit_hold",
    "fund_check",
    "fund_checks",
    "give_back_demand",
    "has_holds",
    "has_room",
    "has_standing",
    "juror_fee",
    "may_fund",
    "may_open",
    "may_pay_verifiers",
    "open_windows_of",
    "pay_cancelled",
    "pay_claim_gas",
    "pay_delivery",
    "pay_earned",
    "pay_final_window",
    "pay_for_lost_result",
    "pay_jurors",
    "pay_kill_fee",
    "pay_preparation",
    "pay_rerun",
    "pay_void_verifiers",
    "preparation_units",
    "refund_unreserved",
    "release_bond",
    "release_bonds",
    "release_checks",
    "release_holds",
    "rerun_price",
    "window_work_ms",
    "windows_covered",
]

WINDOWS_COVERED_MIN: Final = 3
"""A bond covers so many windows at least."""
SPEED_OPEN: Final = 2
"""A machine twice as fast as it registered may fill the time until finality with open windows."""
RELEASES_MAX: Final = 16
"""Workers of an ended task that one step pays what was held, or gives their bonds back; the next block goes on."""
FLOAT_PARTS: Final = 4
"""What one window's audit runs again costs at most this part of the check fund's float."""
COVER_PARTS: Final = 4
"""Part of a liar's bond that is left for the checks of void windows, whoever else has a share of it."""
CANCELLED_S: Final = 60
"""Seconds, a tick at most, that the machine of a container is paid which is cancelled before it starts."""
_Source = tuple[Pool, bytes]
_BUDGET: Final[Sequence[_Source]] = ((Pool.VERIFICATION, NOBODY),)
_FUND: Final[Sequence[_Source]] = ((Pool.CHECK, NOBODY),)


def budget_of(spec: JobSpec, parameters: TaskParameters) -> Budget:
    """Return what the requester of ``spec`` locks: the windows at the highest price, and their checks.

    Each window is rounded up, and each payment down: what rounding leaves returns to the requester.
    """
    if spec.is_metered:  # nobody checks it
        price = spec.windows * work_price_up(spec.window_units(0), spec.max_price_per_tera_unit)
        prepared = work_price_up(preparation_units(spec, parameters), spec.max_price_per_tera_unit)
        return Budget(price, 0, share_up(price, parameters.fee_bps), prepared)
    last = spec.windows - 1  # the others are as long as the first
    whole, rest = (work_price_up(spec.window_units(at), spec.max_price_per_tera_unit) for at in (0, last))
    price = last * whole + rest
    budget = Budget.of(price, verification_bps=parameters.verification_bps, fee_bps=parameters.fee_bps)
    checks = last * check_budget(spec, 0, parameters) + check_budget(spec, last, parameters)
    prepared = work_price_up(preparation_units(spec, parameters), spec.max_price_per_tera_unit)
    return budget._replace(verification=max(budget.verification, checks), preparation=prepared)


def preparation_units(spec: JobSpec, parameters: TaskParameters) -> int:
    """Return what preparing counts as: the inputs are fetched and hashed, and one segment is done.

    Of a container only its mounts count: no rule of the chain knows how large its image is (R97).
    """
    if spec.is_metered:
        return spec.inputs_bytes() * parameters.fetch_units_per_byte
    return spec.inputs_bytes() * parameters.fetch_units_per_byte + spec.segment_units(0, 0)


def check_budget(spec: JobSpec, window: int, parameters: TaskParameters) -> int:
    """Return what a window may take from the verification pool."""
    if spec.is_metered:
        return 0
    price = work_price_up(spec.window_units(window), spec.max_price_per_tera_unit)
    return _check_share(price, spec.window_segments(window), parameters)


def _check_share(price: int, segments: int, parameters: TaskParameters) -> int:
    return max(share_up(price, parameters.verification_bps), allowance(price, segments, parameters))


def rerun_price(
    spec: JobSpec, window: int, verifiers: int, price_per_tera_unit: int, parameters: TaskParameters
) -> int:
    """Return the price of what one verifier of a window runs again."""
    samples = samples_of(spec.window_segments(window), verifiers, parameters)
    return work_price(samples * spec.segment_units(window, 0), price_per_tera_unit)


def check_affordable(spec: JobSpec, parameters: TaskParameters) -> None:
    """Refuse a job whose checks the check fund could never put down. Raises CheckTooDear."""
    if spec.is_metered:
        return
    verifiers = max(parameters.verifiers, parameters.verifiers_sure)
    cost = verifiers * rerun_price(spec, 0, verifiers, spec.max_price_per_tera_unit, parameters)
    most = parameters.check_fund_float // FLOAT_PARTS
    if cost > most:
        raise CheckTooDear(f"an audit of a window runs again what costs {cost}, the check fund bears {most}")


def check_measured(spec: JobSpec, parameters: TaskParameters) -> None:
    """Refuse a job that requires a rate which nobody measures: a claim would do. Raises TrialsOff (R64)."""
    if spec.is_metered:  # its rate is what a second counts as, and what a claim could take is bounded (R93)
        return
    if spec.requirements.rate_min and not parameters.trial_ms:
        raise TrialsOff("requirements.rate_min needs a chain with speed trials (tasks.trial_ms)")


def _worth(units: int, limit: int, charge: int, parameters: TaskParameters) -> int:
    """Return what audits of a window follow: its price ``charge``, and a part of its price at the job's ``limit``.

    Otherwise who asks nearly nothing is hardly audited, and sells forged results for gas.
    """
    return max(charge, share_up(work_price(units, limit), parameters.bond_floor_bps))


def _window_worth(case: Case, window: int, charge: int) -> int:
    units, limit = case.spec.window_units(window), case.spec.max_price_per_tera_unit
    return _worth(units, limit, charge, case.parameters)


class CheckTerms(NamedTuple):
    """How a window is audited, what a verifier of it is paid, and up to which base fee that pays its gas."""

    audit: Audit
    fee: int
    gas_price: int


def check_terms(case: Case, window: int, charge: int, *, is_claim: bool) -> CheckTerms:
    """Return how a window at the price ``charge`` that the present worker proves now is audited (R29, R31).

    Its worth decides, of which ``charge`` is the least. A worker that was matched with the bond of one that was
    not new, and is new now, is audited more often as far as the window bears that. So is the gas of its
    checks at the base fee of the proof. A window with a claim is always audited, and its task or its claimant
    bears all of it (R34).
    """
    record, parameters = case.record, case.parameters
    bond = case.vault.held(Pool.BOND, record.worker)
    worth = _window_worth(case, window, charge)
    most = _check_share(worth, case.spec.window_segments(window), parameters)

    def fee_of(audit: Audit) -> int:
        rerun = rerun_price(case.spec, window, audit.verifiers, record.price_per_tera_unit, parameters)
        return check_fee(record.base_fee, rerun, parameters)

    if is_claim:
        sure, least = (
            Audit(SURE, max(parameters.verifiers, parameters.verifiers_sure)),
            gas_price_of(record.base_fee),
        )
        dear = max(0, case.scope.block.base_fee - least)
        return CheckTerms(sure, fee_of(sure) + CHECK_GAS * dear, least + dear)
    new_now = is_new(registry.load_node(case.state, record.worker), worth, parameters)
    audit = audit_of(worth, bond, is_new=new_now, parameters=parameters)
    if new_now and not record.is_new:
        usual = audit_of(worth, bond, is_new=False, parameters=parameters)
        audit = audit_paid_for(usual, audit, (fee_of(usual), fee_of(audit)), most)
    fee = fee_of(audit)
    gas_price = gas_paid_for(audit, fee, record.base_fee, case.scope.block.base_fee, most)
    return CheckTerms(audit, fee + CHECK_GAS * (gas_price - gas_price_of(record.base_fee)), gas_price)


def _promised(window: WindowRecord) -> int:
    """Return what the verifiers of a window were promised, also where the check fund took it back for a while."""
    return max(window.reserve, window.fee * len(window.verifiers))


def check_limit(case: Case, window: WindowRecord) -> int:
    """Return what the checks of a window may cost beside those of the other open windows.

    Who is to blame for a void pays the checks of all that stood on it. So windows on another worker's are checked
    as far as its bond covers that, after the shares of a proven lie. The first open window stands on nothing.
    """
    first = case.record.final_windows
    # The open windows of a worker follow one another.
    if window.number <= first or case.window(first).worker == window.worker:
        return window.reserve + fund_balance(case.state)
    others = {case.window(number).worker for number in range(first, window.number)}
    least = min(case.vault.held(Pool.BOND, worker) for worker in others)
    return least // COVER_PARTS - sum(_promised(one) for one in case.open_windows() if one.number != window.number)


def may_fund(case: Case, window: WindowRecord, needed: int, *, is_raised: bool = False) -> bool:
    """Tell whether the check fund puts down ``needed`` for the checks of a window now.

    What ``is_raised`` above the terms of the proof has no preference over others.
    """
    missing = needed - window.reserve
    is_first = window.number <= case.record.final_windows and not is_raised
    return missing <= 0 or (
        bears(case.state, case.vault, missing, case.parameters, is_first=is_first)
        and needed <= check_limit(case, window)
    )


def fund_checks(case: Case, window: WindowRecord, needed: int) -> WindowRecord:
    """Have the check fund put down what is needed for the checks of a window, or take back what is not."""
    if needed > window.reserve and not put_down(case.state, case.vault, needed - window.reserve):
        raise AssertionError("the check fund has not what it was asked for")
    take_back(case.state, case.vault, max(0, window.reserve - needed), window.number, case.parameters)
    return window._replace(reserve=needed)


def release_checks(case: Case, window: WindowRecord) -> WindowRecord:
    """Give the check fund back what it has put down for a window that only waits for others to be final.

    It puts that down again when the window is final. Until then whoever keeps those others open binds nothing.
    """
    take_back(case.state, case.vault, window.reserve, window.number, case.parameters)
    return window._replace(reserve=0)


class _Cover:
    """How many open windows a bond covers: as many as keep the worker busy until the first is final."""

    def __init__(self, price: int, parameters: TaskParameters) -> None:
        """For windows that cost ``price`` at most."""
        self._least_ms = min(parameters.final_ms_min, parameters.final_ms) + parameters.reveal_ms
        self._more_ms = max(0, parameters.final_ms - parameters.final_ms_min)
        self._value, self._value_ms = parameters.final_value, price * parameters.final_ms
        self._least, self._most = WINDOWS_COVERED_MIN, parameters.open_windows_max

    def windows(self, window_ms: int, speed: int = 1) -> int:
        """Return the number for windows that take ``window_ms``; the worker is ``speed`` times as fast."""
        window_ms = window_ms if window_ms > 1 else 1
        at_stake = self._value_ms // window_ms
        if at_stake > self._value:
            at_stake = self._value
        wait_ms = self._least_ms + self._more_ms * at_stake // self._value
        count = 1 - (-speed * wait_ms // window_ms)
        return min(self._most, max(self._least, count))


class Bonds:
    """The bonds of workers that start a job at ``window``, by their price and rate.

    A call asks for one for each pair of a task and a machine. So what depends on neither is computed once.
    """

    def __init__(self, spec: JobSpec, window: int, parameters: TaskParameters) -> None:
        self._parameters = parameters
        self._whole, self._last = spec.window_units(0), spec.window_units(spec.windows - 1)
        # Nothing about a container is proven, so there is no fault that a bond could be taken for (R97).
        self._left = 0 if spec.is_metered else max(0, spec.windows - window)
        self._limit = spec.max_price_per_tera_unit
        self._cover = _Cover(work_price(self._whole, self._limit), parameters)
        self._slowest_ms, self._rate_min = window_work_ms(spec, 0, 1), spec.requirements.rate_min
        self._of_count: dict[int, tuple[int, int]] = {}
        self._few = min(self._left, WINDOWS_COVERED_MIN, parameters.open_windows_max)
        self._thousand, self._bond_bps = 1000 * self._whole, parameters.bond_windows_bps
        self.least = self._terms(self._few)[1] if self._few else 0
        """No machine's bond is less."""
        self.is_over = not self._left
        """Whether no window is left."""
        self.window_units = self._whole
        """Work units of a window."""
        self.least_worth = max(_worth(self._whole, self._limit, 0, parameters), parameters.reputation_charge_min)
        """What audits of a window follow at least, whatever a machine asks."""

    def at(self, price_per_tera_unit: int, rate: int, floor: int) -> int:
        """Return four times the pay of the windows that the worker may have open.

        At least it is a part of what it would be at the job's highest price, and ``floor``: the least with which
        what audits cost stays a small part of the price.
        """
        if not self._left:
            return 0
        units, least = self.terms_at(rate)
        own = -(-(units * price_per_tera_unit // TERA) * self._bond_bps // BPS)
        return max(own, least, floor)

    def count_at(self, rate: int) -> int:
        """Return how many windows the bond of a machine covers; it never falls as the rate rises."""
        if self._few >= self._left:
            return self._few
        known, window_ms = rate if rate > self._rate_min else self._rate_min, self._slowest_ms
        if known:
            window_ms = min(window_ms, -(-self._thousand // known))
        return min(self._left, self._cover.windows(window_ms))

    def terms_at(self, rate: int) -> tuple[int, int]:
        """Return the work units that the bond of a machine covers, and the bond at a price of nothing."""
        count = self.count_at(rate)
        terms = self._of_count.get(count)
        if terms is None:
            terms = self._of_count[count] = self._terms(count)
        return terms

    def _terms(self, count: int) -> tuple[int, int]:
        """Return the units of ``count`` windows, and the bond at a price of nothing."""
        units = (count - 1) * self._whole + (self._last if count == self._left else self._whole)
        highest = share_up(work_price(units, self._limit), self._parameters.bond_windows_bps)
        return units, share_up(highest, self._parameters.bond_floor_bps)

    def is_new(self, node: registry.NodeRecord, price_per_tera_unit: int) -> bool:
        """Tell whether a machine is new to the job's windows at a price."""
        charge = work_price(self._whole, price_per_tera_unit)
        return is_new(node, _worth(self._whole, self._limit, charge, self._parameters), self._parameters)


def bond_at(
    spec: JobSpec, price_per_tera_unit: int, window: int, parameters: TaskParameters, rate: int = 0,
    floor: int = 0,
) -> int:  # fmt: skip
    """Return the bond of a worker that starts at ``window``; ``floor`` is the least that its match allows."""
    return Bonds(spec, window, parameters).at(price_per_tera_unit, rate, floor)


def bond_of(record: TaskRecord, spec: JobSpec, parameters: TaskParameters) -> int:
    """Return the bond of a task's worker as it was matched."""
    floor = bond_floor(record.base_fee, is_new=bool(record.is_new), parameters=parameters)
    return bond_at(spec, record.price_per_tera_unit, record.next_window, parameters, record.rate, floor)


def final_ms_of(value: int, parameters: TaskParameters) -> int:
    """Return how long after its verdicts a window is final, when ``value`` is at stake."""
    least_ms = min(parameters.final_ms_min, parameters.final_ms)
    at_stake = min(value, parameters.final_value)
    return least_ms + (parameters.final_ms - least_ms) * at_stake // parameters.final_value


def window_work_ms(spec: JobSpec, window: int, rate: int) -> int:
    """Return the time of a window at ``rate`` work units a second, 0: unknown; a slow core's time at most."""
    start, stop = spec.window_range(window)
    work_ms = (stop - start) * spec.step_ms
    known = max(rate, spec.requirements.rate_min)
    return min(work_ms, -(-1000 * spec.window_units(window) // known)) if known else work_ms


def windows_covered(spec: JobSpec, rate: int, parameters: TaskParameters, speed: int = 1) -> int:
    """Return how many open windows a worker's bond covers: as many as keep it busy until the first is final.

    That takes the time of finality, of what is open then, and of the verdicts. A machine ``speed`` times as fast
    as ``rate`` fills that time with so many more.
    """
    price = work_price(spec.window_units(0), spec.max_price_per_tera_unit)
    return _Cover(price, parameters).windows(window_work_ms(spec, 0, rate), speed)


def open_windows_of(spec: JobSpec, rate: int, parameters: TaskParameters) -> int:
    """Return how many windows of a job its worker may have open at most: it keeps the states of all of them."""
    return windows_covered(spec, rate, parameters, SPEED_OPEN)


def may_open(record: TaskRecord, spec: JobSpec, charge: int, bond: int, parameters: TaskParameters) -> bool:
    """Tell whether a worker that has locked ``bond`` may have one more window open, which costs ``charge``.

    The bond covers the price of its open windows. One is always allowed.
    """
    if len(record.open_windows) >= parameters.open_windows_max:
        return False
    value, count = record.open_charge + charge, len(record.own_windows) + 1
    if count > open_windows_of(spec, record.rate, parameters):
        return False
    return count == 1 or share_up(value, parameters.bond_windows_bps) <= bond


def has_standing(bond: int, record: TaskRecord, parameters: TaskParameters) -> bool:
    """Tell whether faults have left a worker the bond that its windows are audited by."""
    return is_backed(bond, bond_floor(record.base_fee, is_new=bool(record.is_new), parameters=parameters))


def has_room(case: Case) -> bool:
    """Tell whether the worker may prove the window that is due, as far as its bond and the bound go."""
    record = case.record
    charge = work_price(case.spec.window_units(record.next_window), record.price_per_tera_unit)
    return may_open(record, case.spec, charge, case.vault.held(Pool.BOND, record.worker), case.parameters)


def charge_of(case: Case, proof: WindowProof) -> int:
    """Return the price of a window: the work units of its steps at the worker's price, however long they took."""
    return work_price(_units_of(case.spec, proof), case.record.price_per_tera_unit)


def _units_of(spec: JobSpec, proof: WindowProof) -> int:
    return (proof.step_to - proof.step_from) * spec.step_units


def audited_charge(spec: JobSpec, proof: WindowProof, charge: int) -> int:
    """Return the price that the audit of a window follows: that of all its steps if it ends the job early (R87).

    Else a false end at the beginning of a window would hardly be audited, and cost less than to leave the task.
    """
    if proof.diverged is not None:
        return charge
    return charge * spec.window_units(proof.window) // _units_of(spec, proof)


def fund_check(case: Case) -> bool:
    """Tell whether the verification pool covers the checks of the next window."""
    due = check_budget(case.spec, case.record.next_window, case.parameters)
    return case.vault.held(Pool.VERIFICATION) >= due


def pay_earned(
    case: Case, pool: Pool, machine: bytes, amount: int, purpose: Purpose, role: Role, *,
    owner: bytes = NOBODY, subject: int | None = None,
) -> None:  # fmt: skip
    """Pay what a machine earned, out of the task's escrow."""
    pay_machine(case.scope, case.vault, pool, machine, amount, purpose, role, owner=owner, subject=subject)


def _draw(case: Case, sources: Sequence[_Source], to: bytes, amount: int, purpose: Purpose, subject: int) -> None:
    for pool, owner in sources:
        part = min(amount, case.vault.held(pool, owner))
        pay_earned(case, pool, to, part, purpose, Role.VERIFY, owner=owner, subject=subject)
        amount -= part


def _available(case: Case, sources: Sequence[_Source]) -> int:
    return sum(case.vault.held(pool, owner) for pool, owner in sources)


def _pay_evenly(
    case: Case, sources: Sequence[_Source], addresses: Sequence[bytes], amount: int, purpose: Purpose, subject: int
) -> None:
    if not addresses:
        return
    parts = split(min(amount, _available(case, sources)), [1] * len(addresses))
    for address, part in zip(addresses, parts, strict=True):
        _draw(case, sources, address, part, purpose, subject)


def _paid_in(case: Case, window: WindowRecord) -> int:
    """Return what a window pays into the check fund when it is final."""
    if window.proof.diverged is not None:
        return 0  # the fund is paid back what it has paid, afterwards
    due = contribution(window.due, is_below=is_below(case.state, case.parameters))
    worth = _window_worth(case, window.number, audited_charge(case.spec, window.proof, window.charge))
    most = _check_share(worth, window.proof.segments, case.parameters)
    return min(due, most, case.vault.held(Pool.VERIFICATION))


def may_pay_verifiers(case: Case, window: WindowRecord) -> bool:
    """Tell whether the check fund can pay the verifiers of a window that gave back what was put down for them."""
    missing = window.fee * len(window.verifiers) - window.reserve
    return missing <= 0 or missing <= fund_balance(case.state) + _paid_in(case, window)


def pay_final_window(case: Case, window: WindowRecord) -> None:
    """Pay a final window: the check fund, its verifiers, its worker (a part of that is held), the protocol's fee.

    Each window pays what its audit costs on average, whether it had one. Who verified it is paid by the fund.
    """
    vault, parameters, pay = case.vault, case.parameters, window.charge
    pay_in(case.state, vault, _paid_in(case, window), window.number, parameters)
    addresses = [seat.address for seat in window.verifiers]
    due = window.fee * len(addresses)
    if due > window.reserve and put_down(case.state, vault, due - window.reserve):
        window = window._replace(reserve=due)
    paid = min(due, window.reserve)
    _pay_evenly(case, _FUND, addresses, paid, Purpose.VERIFIER_FEE, window.number)
    take_back(case.state, vault, window.reserve - paid, window.number, parameters)
    if not case.record.prepared:
        units = preparation_units(case.spec, parameters)
        done = _units_of(case.spec, window.proof)
        _pay_prepared(case, window.worker, window.charge * units // done, window.number)
    is_alone = bool(sole_keeper(case.state, window.task, window.number))
    held = pay if is_alone else share(pay, parameters.hold_bps)
    carried = share_pay(pay - held, dues_of(case.state, window.worker, case.now))
    for relay, part in carried:
        pay_earned(case, Pool.PRICE, relay, part, Purpose.CARRIAGE, Role.RELAY, subject=window.number)
        pay_dues(case.state, window.worker, relay, part)
    left = pay - held - sum(part for _, part in carried)
    for role, address, part in split_roles(left, {Role.COMPUTE: {window.worker: 1}}):
        pay_earned(case, Pool.PRICE, address, part, Purpose.WINDOW_PAY, role, subject=window.number)
    vault.hold(Pool.PRICE, Pool.HOLD, held, Purpose.WINDOW_HOLD, target_owner=window.worker, subject=window.number)
    fee = min(share(window.charge, parameters.fee_bps), vault.held(Pool.FEE))
    vault.burn(Pool.FEE, fee, Purpose.PROTOCOL_FEE, subject=window.number)
    if window.proof.diverged is not None:
        _pay_claim_check(case, window, paid)


def _pay_claim_check(case: Case, window: WindowRecord, paid: int) -> None:
    """Pay the check fund back what it has paid for the check of a claim that is upheld.

    That comes out of what the task will not spend any more. What that does not cover is the claimant's: the fund
    bears nothing that a requester and its friends can repeat.
    """
    task, worker = [(Pool.VERIFICATION, NOBODY), (Pool.PRICE, NOBODY)], window.worker
    for pool, owner in (*task, (Pool.HOLD, worker), (Pool.BOND, worker)):
        part = min(paid, case.vault.held(pool, owner))
        paid -= part
        case.vault.pay(
            pool, FUND_ADDRESS, part, Purpose.CLAIM_CHECK, None, owner=owner, subject=window.number
        )  # fmt: skip


def _blamed_sources(blamed: bytes, *, is_silent: bool = False) -> list[_Source]:
    if not blamed:
        return []
    return [(Pool.BOND, blamed)] if is_silent else [(Pool.HOLD, blamed), (Pool.BOND, blamed)]


def pay_void_verifiers(case: Case, window: WindowRecord, *, blamed: bytes, is_silent: bool = False) -> None:
    """Pay the verifiers whose verdicts on a void window stood.

    Whoever is to blame for the void pays them, out of what it forfeits and out of its bond; the check fund where
    nobody is, or that is used up. What was held of verified windows is not taken for silence. The fund pays no
    verifier of the requester's choice: friends could empty it by void windows (R168).
    """
    addresses = [seat.address for seat in window.verifiers if seat.findings is not None]
    sources = _blamed_sources(blamed, is_silent=is_silent)
    amount = window.fee * len(addresses)
    lacked = max(0, amount - _available(case, sources))
    is_chosen = case.spec.verifiers.is_chosen
    if lacked > window.reserve and not is_chosen and put_down(case.state, case.vault, lacked - window.reserve):
        window = window._replace(reserve=lacked)  # it was given back while the window waited
    by_fund = 0 if is_chosen else min(window.reserve, lacked)
    before = case.vault.held(Pool.CHECK)
    _pay_evenly(
        case, [*sources, *_FUND], addresses, min(amount, _available(case, sources) + by_fund),
        Purpose.VERIFIER_FEE, window.number,
    )  # fmt: skip
    used = before - case.vault.held(Pool.CHECK)
    take_back(case.state, case.vault, window.reserve - used, window.number, case.parameters)


def charge_blamed(case: Case, window: WindowRecord, amount: int, *, blamed: bytes, is_silent: bool) -> None:
    """Put into custody what custodians of a void window earn, as far as what ``blamed`` forfeits suffices.

    It is taken from where ``pay_void_verifiers`` takes its part. The rest is left to the requester.
    """
    vault = case.vault
    for pool, owner in _blamed_sources(blamed, is_silent=is_silent):
        taken = min(amount, vault.held(pool, owner))
        vault.hold(
            pool, Pool.CUSTODY, taken, Purpose.CUSTODY_PAY, owner=owner, target_owner=vault.payer,
            subject=window.number,
        )  # fmt: skip
        amount -= taken


def juror_fee(window: WindowRecord) -> int:
    """Return what a juror earns for the segments that it re-runs: a verifier's fee covers the sampled ones."""
    return _segment_fee(window) * max(1, len(window.rerun or window.missed))


def _segment_fee(window: WindowRecord) -> int:
    return window.fee // max(1, len(window.sampled))


def pay_jurors(case: Case, window: WindowRecord, addresses: Sequence[bytes], blamed: Sequence[bytes]) -> None:
    """Pay jurors for the segments that they re-ran, ``juror_fee`` each whichever way they decided.

    Whoever is ``blamed`` for the argument pays: the window's worker as for the verifiers of a void window, others
    out of the bonds of their machines; the check fund where nobody is, or that is used up.
    """
    due, before = juror_fee(window), case.vault.held(Pool.CHECK)
    sources = _blamed_sources(window.worker) if window.worker in blamed else []
    others = () if sources else blamed
    for juror in addresses:
        missing = due
        for payer, part in zip(others, split(due, [1] * len(others)) if others else (), strict=True):
            missing -= pay_from_bond(case.scope, payer, juror, part, Purpose.JUROR_FEE)
        by_fund = window.reserve - (before - case.vault.held(Pool.CHECK))
        amount = min(missing, _available(case, sources) + by_fund)
        _draw(case, [*sources, *_FUND], juror, amount, Purpose.JUROR_FEE, window.number)
    used = before - case.vault.held(Pool.CHECK)
    case.put_window(case.window(window.number)._replace(reserve=window.reserve - used))


def pay_rerun(case: Case, window: WindowRecord) -> None:
    """Pay the machines that ran segments again because the worker was silent, out of its bond."""
    addresses = [seat.address for seat in window.jurors if seat.findings is not None]
    sources = [*_blamed_sources(window.worker, is_silent=True), *_BUDGET]
    amount = juror_fee(window) * len(addresses)
    _pay_evenly(case, sources, addresses, amount, Purpose.JUROR_FEE, window.number)


def delivery_fees(window: WindowRecord, parameters: TaskParameters) -> int:
    """Return what a requester puts down for the machines that try to fetch a result: a juror's fee for each."""
    return parameters.jury * max(_segment_fee(window), parameters.check_fee_min)


def pay_delivery(case: Case, window: WindowRecord, addresses: Sequence[bytes], blamed: Sequence[bytes]) -> None:
    """Pay the machines that tried to fetch a result: its worker does if it is ``blamed``, else the requester."""
    fee = max(_segment_fee(window), case.parameters.check_fee_min)
    sources = [*_blamed_sources(window.worker if blamed else b""), *_BUDGET]
    _pay_evenly(case, sources, addresses, fee * len(addresses), Purpose.JUROR_FEE, window.number)


def give_back_demand(case: Case) -> None:
    """Give the requester what is left of what it put down for a demand."""
    vault = case.vault
    vault.refund(Pool.VERIFICATION, vault.payer, vault.held(Pool.VERIFICATION), Purpose.UNSPENT)


def pay_for_lost_result(case: Case, window: WindowRecord) -> None:
    """Pay the requester back for a result that its worker does not serve, as for a window that is rejected.

    That is the last window's price, out of the bond of who did it.
    """
    vault = case.vault
    amount = min(window.charge, vault.held(Pool.BOND, window.worker))
    vault.refund(Pool.BOND, vault.payer, amount, Purpose.RESULT_LOST, owner=window.worker, subject=window.number)


def forfeit_hold(case: Case, worker: bytes) -> None:
    """Give what was held of a worker's pay back to the price pool: its work was found wrong."""
    held = case.vault.held(Pool.HOLD, worker)
    case.vault.hold(Pool.HOLD, Pool.PRICE, held, Purpose.HOLD_FORFEIT, owner=worker)


def fine_worker(case: Case, worker: bytes) -> None:
    """Burn the fine for a lost or abandoned task; nobody gains, so nobody has a reason to cause one."""
    _fine(case, worker, case.record.next_window, _due_worth(case), case.parameters.late_fine_bps)


def fine_late_window(case: Case) -> None:
    """Burn the fine for a window that was not proved in time, out of the bond of the task's worker (R62)."""
    record = case.record
    _fine(case, record.worker, record.next_window, _due_worth(case), case.parameters.opening_fine_bps)


def fine_opening(case: Case, window: WindowRecord) -> None:
    """Burn the fine for an opening that did not come in time, out of the bond of the window's worker."""
    _fine(case, window.worker, window.number, window.charge, case.parameters.opening_fine_bps)


def _fine(case: Case, worker: bytes, window: int, price: int, bps: int) -> None:
    amount = min(share(price, bps), case.vault.held(Pool.BOND, worker))
    case.vault.burn(Pool.BOND, amount, Purpose.WORKER_FINE, owner=worker, subject=window)


def _due_worth(case: Case) -> int:
    """Return the worth of the window that is due: who asks nearly nothing pays for what it delays too."""
    record, spec = case.record, case.spec
    units = spec.window_units(min(record.next_window, spec.windows - 1))
    charge = work_price(units, record.price_per_tera_unit)
    return _worth(units, spec.max_price_per_tera_unit, charge, case.parameters)


def pay_kill_fee(case: Case, worker: bytes) -> None:
    """Pay a worker whose task was cancelled under way its share of the price that nobody will earn any more."""
    amount = share(case.vault.held(Pool.PRICE), case.parameters.kill_fee_bps)
    pay_earned(case, Pool.PRICE, worker, amount, Purpose.KILL_FEE, Role.COMPUTE)


def pay_preparation(case: Case) -> None:
    """Pay the worker of a task for its preparation, at its price, unless somebody was paid before (R33)."""
    record = case.record
    if not record.prepared:
        amount = work_price(preparation_units(case.spec, case.parameters), record.price_per_tera_unit)
        _pay_prepared(case, record.worker, amount)


def _pay_prepared(case: Case, worker: bytes, amount: int, window: int | None = None) -> None:
    pay_earned(case, Pool.PRICE, worker, amount, Purpose.PREPARATION, Role.COMPUTE, subject=window)
    case.change(prepared=1)


def pay_cancelled(case: Case) -> None:
    """Pay a worker whose task was cancelled before it ran: its preparation if it prepared, otherwise one segment.

    Nothing shows how far it is; but its requester alone decides whether it is paid.
    """
    record = case.record
    if record.is_metered:
        _pay_cancelled_container(case)
        return
    if record.phase == Phase.PREPARING and not record.next_window:  # else who proved the first one earns it
        pay_preparation(case)
        return
    amount = work_price(case.spec.segment_units(record.next_window, 0), record.price_per_tera_unit)
    pay_earned(case, Pool.PRICE, record.worker, amount, Purpose.KILL_FEE, Role.COMPUTE)


def _pay_cancelled_container(case: Case) -> None:
    """Pay the machine of a container that is cancelled before it ran: a minute, and the mounts if it prepared."""
    record, parameters = case.record, case.parameters
    units = min(case.spec.tick_s, CANCELLED_S) * case.spec.step_units
    amount = min(work_price(units, record.price_per_tera_unit), case.vault.held(Pool.PRICE))
    pay_earned(case, Pool.PRICE, record.worker, amount, Purpose.KILL_FEE, Role.COMPUTE)
    if record.phase == Phase.PREPARING and not record.prepared:
        units = preparation_units(case.spec, parameters)
        _pay_prepared(case, record.worker, work_price(units, record.price_per_tera_unit))


def pay_claim_gas(case: Case, gas: int) -> None:
    """Pay the worker of a task what ``gas`` costs in this block, out of what open windows leave of the price."""
    owed = sum(window.charge for window in case.open_windows())
    amount = min(gas * case.scope.block.base_fee, max(0, case.vault.held(Pool.PRICE) - owed))
    pay_earned(case, Pool.PRICE, case.record.worker, amount, Purpose.CLAIM_GAS, Role.COMPUTE)


def release_bond(case: Case, worker: bytes) -> None:
    """Give a worker its bond back; it may take another task with it."""
    node = registry.load_node(case.state, worker)
    if node is not None:
        registry.wake_at(case.state, node, case.now)
    case.vault.refund(Pool.BOND, worker, case.vault.held(Pool.BOND, worker), Purpose.BOND_RETURN, owner=worker)


def release_bonds(case: Case) -> None:
    """Give the next ``RELEASES_MAX`` workers of an ended task their bonds back."""
    for worker in case.vault.owners(Pool.BOND, limit=RELEASES_MAX):
        release_bond(case, worker)


def _bound_to_result(case: Case) -> bytes:
    """Return the worker that alone keeps the result: what is held of it stays while that is in custody (R58)."""
    return sole_keeper(case.state, case.record.id, case.record.final_windows - 1)


def has_holds(case: Case) -> bool:
    """Tell whether workers of an ended task have yet to be paid what was held of their pay."""
    return case.vault.total(Pool.HOLD) > case.vault.held(Pool.HOLD, _bound_to_result(case))


def release_holds(case: Case) -> None:
    """Pay the next ``RELEASES_MAX`` workers of an ended task what was held of their pay."""
    vault, bound = case.vault, _bound_to_result(case)
    owners = [worker for worker in vault.owners(Pool.HOLD, limit=RELEASES_MAX + 1) if worker != bound]
    for worker in owners[:RELEASES_MAX]:
        held = vault.held(Pool.HOLD, worker)
        pay_earned(case, Pool.HOLD, worker, held, Purpose.HOLD_RELEASE, Role.COMPUTE, owner=worker)


def close_escrow(case: Case, *, pays_holds: bool = True) -> None:
    """Pay out what was held and give the rest back to the requester; only bonds stay, for their time.

    Of more than ``RELEASES_MAX`` workers the first are paid; ``release_holds`` pays the others.
    """
    vault = case.vault
    if pays_holds:
        release_holds(case)
    for pool in (Pool.PRICE, Pool.VERIFICATION, Pool.FEE):
        vault.refund(pool, vault.payer, vault.held(pool), Purpose.UNSPENT)
    kept = find_custody(case.state, case.record.id, INPUT_WINDOW)
    if kept is not None:  # nobody needs the input any more
        save_custody(case.state, kept._replace(phase=CustodyPhase.VOID), case.now)
    refund_unreserved(case)


def refund_unreserved(case: Case) -> None:
    """Give the requester of an ended task back what it locked for the custody of windows that there are not."""
    terms, vault = find_terms(case.state, case.record.id), case.vault
    if terms is not None:
        free = vault.held(Pool.CUSTODY, vault.payer) - terms.reserved
        vault.refund(Pool.CUSTODY, vault.payer, free, Purpose.UNSPENT, owner=vault.payer)
