"""Errors of programs; their codes are stable."""

from __future__ import annotations

from state.primitives.errors import DekubeError, ProtocolError

__all__ = ["ElementDiverged", "ElementUndefined", "ProgramInvalid", "SourceInvalid", "StoreDiverged"]


class ProgramInvalid(ProtocolError):
    """A program, operator or tensor that breaks the rules of programs."""

    code = "program_invalid"


class ElementUndefined(ProtocolError):
    """A reference function met an input outside its domain: such a value can stand in no honest trace."""

    code = "element_undefined"


class ElementDiverged(ElementUndefined):
    """A store met a number that is not below its limit: the step has diverged, and no stored value is right."""

    code = "element_diverged"


class SourceInvalid(ProtocolError):
    """Content for a source that is missing, of another length, or holds values that cannot be stored."""

    code = "source_invalid"


class StoreDiverged(DekubeError):
    """A stored value is not finite or not below its limit: the computation ends as diverged, on every engine."""

    code = "store_diverged"
