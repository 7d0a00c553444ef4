"""Fields of a request about its training loop: accumulation, validation, what is kept, and an early end."""

from __future__ import annotations

from typing import Final, NamedTuple

from tasks.programs.operators.scalars import NANO
from tasks.requests.fields import JobFields

__all__ = ["KEPT", "LOOP_TEXTS", "LOOP_WHOLE", "RECOMPUTE", "LoopFields", "loop_fields"]

KEPT: Final = ("last", "best")
"""Which state is the result."""
LOOP_WHOLE: Final = ("accumulate", "evaluate_every", "patience", "save_every", "window_steps")
LOOP_TEXTS: Final = ("keep", "validation")
RECOMPUTE: Final = "gradient_checkpointing"
"""As trainers call it: the way back computes each layer again (market.md R152)."""


class LoopFields(NamedTuple):
    """What a request says of its loop. ``share_nano`` of the rows are for validation, or those of ``path``."""

    accumulate: int
    share_nano: int
    path: str
    evaluate_every: int
    keep: str
    patience: int
    save_every: int
    window_steps: int


def loop_fields(fields: JobFields) -> LoopFields:
    """Return what is asked for; 0 where nothing is. Raises RequestInvalid."""
    if fields.both("save_every", "window_steps"):
        raise fields.wrong("save_every", "save_every and window_steps: give one; windows end at kept states")
    share, path = _validation(fields)
    if not share and not path:
        for name in ("evaluate_every", "patience", "keep"):
            if fields.has(name) and (name != "keep" or fields.choice("keep", KEPT, "last") == "best"):
                raise fields.wrong(name, f"{name} needs rows for validation: add validation: 0.1, or a file")
    return LoopFields(
        accumulate=fields.whole("accumulate", 1),
        share_nano=share,
        path=path,
        evaluate_every=fields.whole("evaluate_every", 0),
        # After evaluations in vain the last state is not the one that is wanted.
        keep=fields.choice("keep", KEPT, "best" if fields.has("patience") else "last"),
        patience=fields.whole("patience", 0),
        save_every=fields.whole("save_every", 0),
        window_steps=fields.whole("window_steps", 0),
    )


def _validation(fields: JobFields) -> tuple[int, str]:
    """Return the share of rows for validation in units of 10^-9, or the path of a file with them."""
    if not fields.has("validation"):
        return 0, ""
    if isinstance(fields.value("validation"), str):
        return 0, fields.path("validation")
    share = fields.nano("validation", 0)
    if not 0 < share < NANO:
        raise fields.wrong("validation", "validation: a share of the rows above 0 and below 1, or a file expected")
    return share, ""
