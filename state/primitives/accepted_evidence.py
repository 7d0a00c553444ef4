"""What a node says of evidence that it has accepted."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AcceptedEvidence"]


class AcceptedEvidence(NamedTuple):
    """Who is convicted of which fault. ``is_new`` 0: the node had equivalent evidence."""

    operator: bytes
    fault: int
    epoch: int
    view: int
    is_new: int
