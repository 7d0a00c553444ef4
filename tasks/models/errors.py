"""Errors of models; their codes are stable."""

from __future__ import annotations

from state.primitives.errors import ProtocolError
from tasks.engines.errors import EngineMissing

__all__ = ["ModelInvalid", "ModelUnsupported", "TokenizersMissing"]


class ModelInvalid(ProtocolError):
    """A model's file that breaks its own format, or weights that are not finite or too large."""

    code = "model_invalid"


class ModelUnsupported(ProtocolError):
    """A model of an architecture, a storage type or a setting that no program here computes."""

    code = "model_unsupported"


class TokenizersMissing(EngineMissing):
    """The extra ``models`` is not installed."""

    code = "tokenizers_missing"
