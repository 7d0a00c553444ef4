"""Errors of the served wire format: clients raise their own classes by status, and read type, param and code."""

from __future__ import annotations

from typing import Any, Final

from state.primitives.errors import DekubeError

__all__ = ["INVALID", "ApiError", "budget_spent", "encodable", "not_found", "unsupported", "wrong"]

INVALID: Final = "invalid_request_error"
MESSAGE_CHARACTERS_MAX: Final = 2_000


def encodable(text: str) -> str:
    """Return a text that can be encoded: JSON may name half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode()


class ApiError(DekubeError):
    """A refused request, as the format's clients read it.

    ``retry`` tells a client whether to repeat the request by itself; None leaves that to its own rules.
    """

    code = "api_error"

    def __init__(
        self, message: str, *, status: int = 400, kind: str = INVALID, reason: str | None = None,
        param: str | None = None, retry: bool | None = None, retry_after_s: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(encodable(message[:MESSAGE_CHARACTERS_MAX]))
        self.status, self.kind, self.reason = status, kind, reason
        self.param = None if param is None else encodable(param)
        self.retry, self.retry_after_s = retry, retry_after_s

    def to_json(self) -> dict[str, Any]:
        """Return the body of the answer."""
        fields = {"message": str(self), "type": self.kind, "param": self.param, "code": self.reason}
        return {"error": fields}

    def headers(self) -> dict[str, str]:
        """Return what the answer's head says to a client."""
        found = {}
        if self.retry is not None:
            found["x-should-retry"] = "true" if self.retry else "false"
        if self.retry_after_s is not None:
            found["retry-after"] = str(self.retry_after_s)
        return found


def wrong(message: str, param: str | None = None, reason: str | None = None) -> ApiError:
    """Return the error of a value that the format does not allow."""
    return ApiError(message, param=param, reason=reason)


def unsupported(what: str, param: str | None = None) -> ApiError:
    """Return the error of something that the format allows and no kind of job does."""
    return ApiError(what, param=param, reason="unsupported_parameter")


def not_found(what: str, number: str, param: str | None = None) -> ApiError:
    """Return the error of an object that does not exist."""
    return ApiError(f"No such {what}: {number[:80]}", status=404, param=param, reason="not_found")


def budget_spent(message: str, retry_after_s: int) -> ApiError:
    """Return the error of a job that does not fit into the budget of a day. It is not repeated by a client."""
    return ApiError(
        message, status=429, kind="insufficient_quota", reason="insufficient_quota", retry=False,
        retry_after_s=retry_after_s,
    )  # fmt: skip
