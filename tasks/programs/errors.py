"""Errors of programs; their codes are stable."""

from __future__ import annotations

from state.primitives.errors import ProtocolError

__all__ = ["ElementUndefined", "ProgramInvalid"]


class ProgramInvalid(ProtocolError):
    """A program, operator or tensor that breaks the rules of programs."""

    code = "program_invalid"


class ElementUndefined(ProtocolError):
    """A reference function met an input outside its domain: such a value can stand in no honest trace."""

    code = "element_undefined"
