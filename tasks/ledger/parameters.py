"""Chain parameters of the compute market (prefix ``tasks.`` in the genesis); market.md 9 lists them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from state.primitives.errors import ConfigError
from state.primitives.genesis import check_bounds

__all__ = ["TaskParameters"]

_WHOLE_BPS: Final = 10_000
_MS_MAX: Final = 1 << 40
"""35 years: what is added to the clock stays far within its range."""
PAIRS_PER_CALL_MAX: Final = 1 << 18
"""Pairs of a bid and a machine in a call. Each costs a look at who could check it, and a bond."""
WINDOW_SLACK_MIN: Final = 3
"""No program takes more than so many times the time of its work units (R161)."""
_BOUNDS: Final = {
    # Draws weigh nodes by their bonds: without a least one there might be nothing to draw by.
    "node_bond_min": (1, 1 << 100),
    "presence_ms": (1, _MS_MAX),
    "registration_valid_ms": (1, _MS_MAX),
    "cool_down_ms": (0, _MS_MAX),
    "decline_ms": (0, _MS_MAX),
    "decline_fine": (0, 1 << 100),
    "decline_memory_ms": (0, _MS_MAX),
    "complaints_wait_ms": (0, _MS_MAX),
    "retire_ms": (1, _MS_MAX),
    "reputation_half_life_ms": (64, _MS_MAX),
    "accept_ms": (1, _MS_MAX),
    "prepare_ms": (1, _MS_MAX),
    "window_grace_ms": (0, _MS_MAX),
    "replace_ms": (1, _MS_MAX),
    "replace_ms_max": (1, _MS_MAX),
    "pause_ms": (1, _MS_MAX),
    "seal_ms_min": (1, _MS_MAX),
    "reveal_ms": (1, _MS_MAX),
    "final_ms": (1, _MS_MAX),
    "final_ms_min": (1, _MS_MAX),
    "final_value": (1, 1 << 100),
    "window_extra_ms": (0, _MS_MAX),
    "opening_extra_ms": (1, _MS_MAX),
    "opening_fine_bps": (0, _WHOLE_BPS),
    "serve_ms": (1, _MS_MAX),
    "bond_release_ms": (1, _MS_MAX),
    "dispute_move_ms": (1, _MS_MAX),
    "dispute_side_ms": (1, _MS_MAX),
    "dispute_resume_ms": (1, _MS_MAX),
    "dispute_resume_bps": (0, _WHOLE_BPS),
    "dispute_silence_bps": (0, _WHOLE_BPS),
    "dispute_equal_fees": (0, 1 << 20),
    "new_windows": (0, 1 << 32),
    "reputation_charge_min": (0, 1 << 100),
    "verification_bps": (0, _WHOLE_BPS),
    "check_fee_min": (0, 1 << 80),
    "fee_bps": (0, _WHOLE_BPS),
    "hold_bps": (0, _WHOLE_BPS),
    "kill_fee_bps": (0, _WHOLE_BPS),
    "fetch_units_per_byte": (0, 1 << 32),
    "late_fine_bps": (0, _WHOLE_BPS),
    "bond_windows_bps": (0, 100 * _WHOLE_BPS),
    "bond_floor_bps": (0, _WHOLE_BPS),
    "verifier_fine_bps": (0, 100 * _WHOLE_BPS),
    "open_windows_max": (1, 64),
    "attempts_max": (1, 64),
    "offers_ranked": (0, 64),
    "excluded_max": (1, 128),
    "samples": (1, 16),
    "verifiers": (1, 8),
    "verifiers_sure": (1, 8),
    "audit_bps": (0, _WHOLE_BPS),
    "segments_per_sample": (1, 256),
    "check_fund_float": (1, 1 << 100),
    "jury": (1, 15),
    "draws_max": (1, 16),
    "declines_per_day": (0, 1 << 16),
    "decline_seat_ms": (0, _MS_MAX),
    "late_fines_per_day_max": (0, 1 << 100),
    "cool_down_doublings_max": (0, 16),
    "decline_doublings_max": (0, 16),
    "slots_max": (1, 1024),
    "window_slack": (WINDOW_SLACK_MIN, 100),
    "seal_slack": (1, 100),
    "seal_bytes_per_s": (1, 1 << 40),
    "match_retry_ms": (1, 3_600_000),
    "match_retry_ms_max": (1, 3_600_000),
    "draw_blocks": (1, 64),
    "draw_retry_ms": (1, 3_600_000),
    "candidates_max": (1, 4096),
    "call_ms": (0, _MS_MAX),
    "order_blocks": (0, 2),
    "bids_per_call": (1, 256),
    "asks_per_call": (1, 4096),
    "custody_copies": (0, 4),
    "custody_ms": (1, _MS_MAX),
    "custody_sign_ms": (1, _MS_MAX),
    "custody_answer_ms": (1, _MS_MAX),
    "custody_price_per_gib_hour": (0, 1 << 80),
    "custody_delivery_price_per_gib": (0, 1 << 80),
    "custody_fee_min": (0, 1 << 80),
    "custody_bond_bps": (0, 100 * _WHOLE_BPS),
    "custody_last_bps": (0, _WHOLE_BPS),
    "custody_stake_bps": (0, _WHOLE_BPS),
    "custody_misses_per_day": (0, 1 << 16),
    "custody_demands_max": (0, 1 << 16),
    "trial_ms": (0, 3_600_000),
    "trial_slack_ms": (0, _MS_MAX),
    "trial_step_ms": (1, _MS_MAX),
    "trial_pause_ms": (1, _MS_MAX),
    "trial_first_ms": (0, _MS_MAX),
    "trial_valid_ms": (6, _MS_MAX),
    "trial_blocks": (1, 1 << 40),
    "trial_samples": (1, 8),
    "trial_fee": (0, 1 << 80),
    "trial_fine": (0, 1 << 100),
    "group_members_max": (0, 64),
    "group_standby_bps": (0, _WHOLE_BPS),
    "deadlines_per_block": (2, 1024),
    "wakes_per_block": (1, 256),
}
"""What keeps records within their limits and blocks within their time."""

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS


@dataclass(frozen=True, slots=True)
class TaskParameters:
    """Amounts in 10^-18 DKB, times in milliseconds of steady time, shares in basis points (1/10,000).

    Raises ConfigError for numbers that the market cannot work with.
    """

    # Registry
    node_bond_min: int = 10 * 10**18
    """Locked by each registered node; fines of verifiers are taken from it."""
    presence_ms: int = 10 * MINUTE_MS
    """A node that does not act for so long is offered nothing and drawn for nothing until it acts again."""
    registration_valid_ms: int = 24 * HOUR_MS
    """A node that does not renew its record, and the rate in it, for so long is offered no task."""
    cool_down_ms: int = 10 * MINUTE_MS
    """Pause after a failure; doubles with each further one."""
    cool_down_doublings_max: int = 8
    decline_ms: int = 10_000
    """Who leaves a task before it has started it is matched with none for so long and as long as it kept the task;
    that doubles with each further time."""
    decline_fine: int = 10**16
    """Who leaves a task before it has started it and does not say that the job is unfit burns so much of its node
    bond instead, if it has so much; that doubles like the pause."""
    decline_doublings_max: int = 6
    decline_memory_ms: int = HOUR_MS
    """So long after such a pause the next one is as short as the first again."""
    complaints_wait_ms: int = 10 * MINUTE_MS
    """So long a task stays out of the book once machines of three operators could not have its inputs.
    That doubles with each further one. Its requester may end it before."""
    retire_ms: int = 7 * DAY_MS
    """A retiring node's bond returns after this and the end of its duties."""
    reputation_half_life_ms: int = 30 * DAY_MS
    """After so long an outcome counts half as much towards a reputation."""
    slots_max: int = 16
    """Tasks that one node may offer to run at a time."""

    # Escrow
    verification_bps: int = 800
    """What is locked for the checks of each window, as a share of its price, at least."""
    check_fee_min: int = 5 * 10**14
    """Least pay of a check besides its gas and what it runs again: a core for the minutes that it may cost."""
    check_fund_float: int = 100 * 10**18
    """What the check fund has at the genesis. Below it windows pay more, above twice of it what they pay burns."""
    fee_bps: int = 200
    hold_bps: int = 2_000
    """Part of a final window's pay that waits for the task's end."""
    kill_fee_bps: int = 100
    """Of the unspent price, to the worker of a task that its requester cancels under way."""
    fetch_units_per_byte: int = 4_096
    """Work units of a byte of a data set in the price of preparation: a MiB costs a slow core's second."""
    bond_windows_bps: int = 40_000
    """A worker's bond, as a share of the price of the windows it may have open."""
    bond_floor_bps: int = 2_500
    """Of what that would be at the job's highest price, at least: a machine that asks for nothing has something to
    lose."""
    open_windows_max: int = 64
    """Windows of a task proved but not final, at most; the bond that their worker has locked covers them."""
    late_fine_bps: int = 2_500
    """Of the worth of the window that is due, for a lost or abandoned task."""
    verifier_fine_bps: int = 10_000
    """Of the fee of one verifier, for a verdict that does not come."""

    # Matching
    accept_ms: int = MINUTE_MS
    prepare_ms: int = 15 * MINUTE_MS
    window_grace_ms: int = 10 * MINUTE_MS
    window_slack: int = 10
    """A window may take so many times its work units at its worker's rate, and the grace. The slowest jobs take
    4.5 times as long a unit as what the rate is measured with, and the machine may have other work."""
    replace_ms: int = 15 * MINUTE_MS
    replace_ms_max: int = 24 * HOUR_MS
    """A search for a replacement in all, with those that were offered the task and did not start it."""
    pause_ms: int = 24 * HOUR_MS
    attempts_max: int = 16
    """Workers that have started a task, at most; then its requester decides whether to go on."""
    offers_ranked: int = 2
    """So many offers in a row go to the lowest ask; where none brought a window, others are drawn by bond."""
    excluded_max: int = 64
    """Workers that a task remembers not to be offered to again; the oldest drop out."""
    match_retry_ms: int = 5_000
    """Least pause between two looks for a worker; it grows to half the time that the search has taken."""
    match_retry_ms_max: int = MINUTE_MS
    call_ms: int = 3_000
    """A call takes place once in so much of the chain's time; 0: in each block."""
    order_blocks: int = 2
    """Blocks from an order to the first call that it takes part in: what comes later, or is withdrawn, counts for
    the next call. 0: orders count at once."""
    bids_per_call: int = 128
    """Tasks in a call; others wait for the next one."""
    asks_per_call: int = 512
    """Machines in a call, from a place in the index that the beacon picks."""
    candidates_max: int = 64
    """Nodes looked at for one draw, from a place in the index that the beacon picks."""

    # Verification
    audit_bps: int = 0
    """Least probability of an audit; 10,000 audits every window."""
    samples: int = 4
    """Segments of an audited window that its verifiers run again, all of them together."""
    segments_per_sample: int = 32
    """A window has so many segments for each that is run again, or its verifiers run fewer again."""
    verifiers: int = 1
    """Verifiers of an audited window."""
    verifiers_sure: int = 2
    """Verifiers where the price of the window alone makes an audit certain."""
    new_windows: int = 10
    """A worker is new to a window until what it proved since its last fault was worth so many times its price."""
    reputation_charge_min: int = 10**17
    """Least price of a window that counts towards a reputation: a worker that pays itself burns a share of it."""
    jury: int = 3
    """Fresh verifiers that decide whether a blob could be fetched; odd."""
    draws_max: int = 3
    """Draws of verifiers for one window before it counts as unverifiable."""
    declines_per_day: int = 8
    """Seats that a verifier may decline in a day without a fine."""
    decline_seat_ms: int = 2 * MINUTE_MS
    """From a draw: so long a seat may be declined."""
    late_fines_per_day_max: int = 5 * 10**17
    """Most that verdicts which do not come may cost a machine in a day."""
    draw_blocks: int = 24
    """From a proof, or a doubt, to the block whose beacon draws who checks it: the leaders from the one to the
    other would all have to be in league to know the draw beforehand."""
    draw_retry_ms: int = MINUTE_MS
    seal_ms_min: int = 10 * MINUTE_MS
    seal_slack: int = 3
    seal_bytes_per_s: int = 256 * 1024
    """Line of the slowest verifier: fetching the states that it needs adds to its time at this rate."""
    reveal_ms: int = 2 * MINUTE_MS
    opening_extra_ms: int = 4 * HOUR_MS
    """A worker that did not open in time gets so long once more, for a fine."""
    opening_fine_bps: int = 500
    """That fine, as a share of the window's price."""
    window_extra_ms: int = HOUR_MS
    """A worker whose window is not proved in time gets so long, once after each start, for that fine; 0: none."""
    serve_ms: int = 24 * HOUR_MS
    """After a jury that could not fetch what a verifier had missed, its worker has so long to serve it."""
    final_ms: int = 30 * MINUTE_MS
    """From the verdicts to the final window, where ``final_value`` or more is at stake."""
    final_ms_min: int = 2 * MINUTE_MS
    """The same where nothing is; never longer than ``final_ms``."""
    final_value: int = 10**18
    """Price of the worker's open windows from which on finality takes ``final_ms``."""
    bond_release_ms: int = 24 * HOUR_MS

    # Disputes
    dispute_move_ms: int = 2 * MINUTE_MS
    """Time for a move of a dispute."""
    dispute_side_ms: int = 30 * MINUTE_MS
    """Time for all moves of a side of a dispute."""
    dispute_resume_ms: int = 24 * HOUR_MS
    """After a missed clock a side may resume so long, once."""
    dispute_resume_bps: int = 500
    """What that costs it, as a share of the window's price: paid to the other side."""
    dispute_silence_bps: int = 1_000
    """Of the worker's bond for the task, burned where it does not resume or contradicts itself."""
    dispute_equal_fees: int = 50
    """Least fees of a check that a verifier loses which agreed with a segment that was proven wrong."""

    # Custody
    custody_copies: int = 2
    """Machines that keep the output of a window of a task with custody; 0: the chain has no custody."""
    custody_ms: int = 7 * DAY_MS
    """From the receipts to the end of custody, where the requester does not end it before."""
    custody_sign_ms: int = 10 * MINUTE_MS
    """Least time of a custodian, or a receiver, to fetch a blob and to sign for it."""
    custody_answer_ms: int = HOUR_MS
    """Time to post a chunk that was demanded."""
    custody_price_per_gib_hour: int = 10**13
    """What a custodian earns for 2^30 bytes in an hour."""
    custody_delivery_price_per_gib: int = 10**15
    """What a receiver earns for 2^30 bytes that it takes over and serves."""
    custody_fee_min: int = 5 * 10**14
    """Least pay of a custodian for a window, and of who answers a demand: the gas of what that sends."""
    custody_bond_bps: int = 10_000
    """A custodian's bond for a window, as a share of the window's price."""
    custody_last_bps: int = 10_000
    """The same for the last output of a task, as a share of the price of all its windows, if that is more."""
    custody_stake_bps: int = 2_500
    """Of that bond, what the requester loses with a delivery for which none of the receivers has signed."""
    custody_misses_per_day: int = 8
    """Hand-overs without a receipt in a day, after which a machine is drawn for none, or keeps its own outputs."""
    custody_demands_max: int = 16
    """Demands of one task."""

    # Speed trials
    trial_ms: int = 0
    """Time that a machine computes in a speed trial; 0: the chain has none, and what machines say counts."""
    trial_slack_ms: int = 3_000
    """Of the time from its begin to its commitment, what blocks and lines may take and does not count."""
    trial_step_ms: int = MINUTE_MS
    """Time to commit after the end of a trial, to show links, and to judge them."""
    trial_pause_ms: int = HOUR_MS
    """From the begin of a trial to the next one."""
    trial_first_ms: int = 15 * MINUTE_MS
    """From the first rate of a machine that no round has measured to a round. Until then an eighth of it counts;
    with 0 all of it does, and no such round begins."""
    trial_valid_ms: int = 24 * HOUR_MS
    """A machine whose rate was measured longer ago is offered no task."""
    trial_blocks: int = 28_800
    """In one of so many blocks a round of trials begins: each eight hours, in the mean."""
    trial_samples: int = 4
    """Links of a trial that are checked."""
    trial_fee: int = 5 * 10**14
    """Pay of a verifier whose answer decides a trial; the machine pays it twice, for a second one."""
    trial_fine: int = 5 * 10**16
    """Burned of the bond of a machine that does not show what it committed to, or whose links are wrong, and of a
    verifier whose answer is another one than that which decides."""

    # Groups
    group_members_max: int = 64
    """Members of a group; 0: the chain has no groups."""
    group_standby_bps: int = 2_500
    """Of the price of a window, what a spare is paid for standing by while each member does one."""

    # Blocks
    deadlines_per_block: int = 256
    wakes_per_block: int = 16
    """Machines that look at parked tasks in a block, after they changed."""

    def __post_init__(self) -> None:
        check_bounds("tasks", self, _BOUNDS)
        pairs = self.bids_per_call * (self.asks_per_call + self.bids_per_call)
        if pairs > PAIRS_PER_CALL_MAX:
            raise ConfigError(
                f"genesis: tasks.bids_per_call and tasks.asks_per_call make {pairs} pairs of a bid and a machine "
                f"(each bid may bring one more machine), but a call has {PAIRS_PER_CALL_MAX} at most"
            )
        if self.jury % 2 == 0:
            raise ConfigError(f"genesis: tasks.jury is {self.jury}, but must be odd, or it could tie")
