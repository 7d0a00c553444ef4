"""Checks gateways' answers that commands read as documents; an answer of another form is an error with a code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from rpc.client.errors import AnswerMalformed
from state.primitives.errors import DekubeError

__all__ = ["checked_responses", "mark_gateway_used"]

_USES_GATEWAY: Final = "node.cli.asks_a_gateway"
WHY_CHARACTERS_MAX: Final = 200
_MISSHAPEN: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""Exceptions of reading a document without the fields or types that its method promises."""


def mark_gateway_used() -> None:
    """Mark that the current command uses a gateway."""
    if (context := click.get_current_context(silent=True)) is not None:
        context.meta[_USES_GATEWAY] = True


@contextmanager
def checked_responses() -> Iterator[None]:
    """Raise AnswerMalformed if a gateway's answer does not have the expected form.

    The same exception in a command that uses no gateway is a bug, and is not converted.
    """
    try:
        yield
    except (DekubeError, OSError):
        raise
    except _MISSHAPEN as error:
        context = click.get_current_context(silent=True)
        if context is None or not context.meta.get(_USES_GATEWAY, False):
            raise
        why = f"{type(error).__name__}: {error}"[:WHY_CHARACTERS_MAX]
        raise AnswerMalformed(f"the gateway's answer does not have the format of its method ({why})") from error
