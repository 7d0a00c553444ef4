"""A small client of the gateway for the command line: blocking, one kept connection, typed errors."""

from __future__ import annotations

import http.client
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import orjson

from rpc.errors import RpcError
from state.primitives.errors import ConfigError, DekubeError

__all__ = ["Call", "Client", "ClientError", "GatewayUnreachable"]

ANSWER_LIMIT_BYTES: Final = 64 * 1024 * 1024
DEFAULT_PORT: Final = 8545


class GatewayUnreachable(DekubeError):
    """Nothing answers at the address, or what answers is not a gateway."""

    code = "gateway_unreachable"


class ClientError(RpcError):
    """The gateway's error: ``reason`` is the stable code, ``fields`` what else its data said."""

    def __init__(self, error: Any) -> None:
        data = error.get("data") if type(error) is dict else None
        fields = dict(data) if type(data) is dict else {}
        reason = fields.pop("reason", "unknown")
        message = error.get("message") if type(error) is dict else None
        super().__init__(reason if type(reason) is str else "unknown", str(message or "an error without a text"))
        self.code = self.reason  # type: ignore[misc]  # that of the error on the other side
        self.fields = fields


class Call(NamedTuple):
    """One request of a batch."""

    method: str
    params: Any = None


@dataclass(frozen=True, slots=True)
class _Address:
    host: str
    port: int
    secure: bool


class Client:
    """Speaks to the gateway at ``url`` (http or https). Not for use from several threads at once."""

    def __init__(self, url: str, timeout_s: float = 70.0) -> None:
        """Raises ConfigError for an URL that cannot be used."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError:
            raise ConfigError(f"not the URL of a gateway: {url}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"not the URL of a gateway: {url}")
        secure = parts.scheme == "https"
        self._address = _Address(parts.hostname, port or (443 if secure else DEFAULT_PORT), secure)
        self._path = parts.path or "/"
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._identifier = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def call(self, method: str, *params: Any, **named: Any) -> Any:
        """Return the result of one call, its parameters by place or by name.

        Raises ClientError for an answer of failure, GatewayUnreachable where there is none.
        """
        self._identifier += 1
        request: dict[str, Any] = {"jsonrpc": "2.0", "id": self._identifier, "method": method}
        if params or named:
            request["params"] = named or list(params)
        return _result(self._exchange(request))

    def batch(self, calls: Sequence[Call]) -> list[Any]:
        """Return the results in the order of ``calls``; a failed one is its ClientError."""
        requests = [
            {"jsonrpc": "2.0", "id": number, "method": call.method}
            | ({} if call.params is None else {"params": call.params})
            for number, call in enumerate(calls)
        ]
        answers = self._exchange(requests)
        if type(answers) is dict:
            _result(answers)
        results: list[Any] = [None] * len(calls)
        try:
            for answer in answers:
                results[answer["id"]] = ClientError(answer["error"]) if "error" in answer else answer["result"]
        except (TypeError, KeyError, IndexError):
            raise GatewayUnreachable("not an answer of a gateway") from None
        return results

    def _exchange(self, request: Any) -> Any:
        body = orjson.dumps(request)
        for attempt in (1, 2):
            fresh = self._connection is None
            try:
                return self._send(body)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                # A kept connection may have been closed meanwhile; only then nothing was done yet.
                if (
                    fresh
                    or attempt == 2
                    or not isinstance(error, http.client.RemoteDisconnected | BrokenPipeError)
                ):
                    raise GatewayUnreachable(f"{self._address.host}:{self._address.port}: {error}") from None
        raise AssertionError("unreachable")

    def _send(self, body: bytes) -> Any:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._address.secure else http.client.HTTPConnection
            self._connection = kind(self._address.host, self._address.port, timeout=self._timeout_s)
        self._connection.request("POST", self._path, body, {"content-type": "application/json"})
        response = self._connection.getresponse()
        data = response.read(ANSWER_LIMIT_BYTES + 1)
        if response.status != 200 or len(data) > ANSWER_LIMIT_BYTES:
            self.close()
            raise GatewayUnreachable(f"{self._address.host}: HTTP status {response.status}")
        try:
            return orjson.loads(data)
        except ValueError:
            raise GatewayUnreachable(f"{self._address.host}: not JSON") from None


def _result(answer: Any) -> Any:
    if type(answer) is not dict or not ("result" in answer or "error" in answer):
        raise GatewayUnreachable("not an answer of a gateway")
    if "error" in answer:
        raise ClientError(answer["error"])
    return answer["result"]
