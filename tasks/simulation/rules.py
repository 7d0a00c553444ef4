"""Rules of the market that can be switched off here, each by parameters: what it prevents is then a figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["ALL_RULES", "WITHOUT", "Absent"]


class Absent(NamedTuple):
    """A rule that is absent: ``parameters`` are the market's then. Chains never have these values."""

    name: str
    text: str
    parameters: Mapping[str, int] = {}
    ignores_operators: bool = False
    """Whether machines of one operator may check each other."""


ALL_RULES: Final = Absent("", "all present rules hold")
WITHOUT: Final[Mapping[str, Absent]] = {
    rule.name: rule
    for rule in (
        Absent("hold", "nothing of a window's pay is held until the end", {"hold_bps": 0}),
        Absent("bond", "a worker locks no more than the fees", {"bond_windows_bps": 0, "bond_floor_bps": 0}),
        Absent("late-fine", "no fine for leaving a task", {"late_fine_bps": 0}),
        Absent("verifier-fine", "no fine for a silent verifier", {"verifier_fine_bps": 0}),
        Absent("newcomers", "new workers have as many verifiers as others", {"verifiers_new": 1}),
        Absent("jury", "one juror decides", {"jury": 1}),
        Absent("draw-delay", "verifiers are drawn in the block after the proof", {"draw_blocks": 1}),
        Absent("decline-pause", "no pause for declining", {"decline_ms": 0, "decline_doublings_max": 0}),
        Absent("cool-down", "no pause after a fault", {"cool_down_ms": 0, "cool_down_doublings_max": 0}),
        Absent("drawn-offers", "offers always go to the lowest ask", {"offers_ranked": 64}),
        Absent("firm-orders", "orders count at once and may leave", {"order_blocks": 0}),
        Absent("calls", "each block has a call", {"call_ms": 0}),
        Absent("least-fee", "a verifier's fee is a share of the price alone", {"check_fee_min": 0}),
        Absent("samples", "one segment of a window is re-run", {"samples": 1}),
        Absent("operators", "machines of one operator may check each other", ignores_operators=True),
    )
}
