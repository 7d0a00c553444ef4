"""How a node shows a registry who pushes: Basic, or a token of the place that the registry names (RFC 6750).

The password goes to the registry's own host, and for a token to the place that this host names, by https alone.
"""

from __future__ import annotations

import base64
import re
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import orjson

from tasks.executor.containers.errors import ContainerRefused, EngineUnavailable, ImageUnavailable

__all__ = ["PushLogin", "check_scheme"]

CHALLENGE_LENGTH_MAX: Final = 2_048
ANSWER_BYTES_MAX: Final = 64 << 10
TOKEN_LENGTH_MAX: Final = 16 << 10
SCOPES_MAX: Final = 64
"""Repositories whose token is kept; the oldest is forgotten."""
_PART: Final = re.compile(r'([a-z]+)="([^"\\]{0,1024})"')
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


def check_scheme(base: str) -> None:
    """Raise ContainerRefused for a registry to which a password would go in the clear, over a network."""
    parts = urlsplit(base)
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        raise ContainerRefused("executor.kubernetes.registry: a login goes over https alone")


class PushLogin:
    """User and password for one registry, and the headers that it took; shown nowhere."""

    def __init__(self, base: str, user: str, password: str) -> None:
        check_scheme(base)
        self._base, self.pair = base, (user, password)
        self._basic = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        self._taken: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"PushLogin({self._base!r})"

    def headers(self, name: str) -> dict[str, str]:
        """Return what the registry asked for last, for a repository."""
        taken = self._taken.get(name) or self._taken.get("")
        return {"Authorization": taken} if taken else {}

    async def answer(self, client: httpx.AsyncClient, name: str, challenge: str) -> bool:
        """Take up what a registry asks for; tell whether there is something new to show it.

        Raises ImageUnavailable for a challenge that is none or a refused login, EngineUnavailable.
        """
        kind, _, rest = challenge[:CHALLENGE_LENGTH_MAX].partition(" ")
        if kind.lower() == "basic":
            was, self._taken[""] = self._taken.get(""), self._basic
            return was != self._basic
        parts = dict(_PART.findall(rest))
        if kind.lower() != "bearer" or not parts.get("realm"):
            raise ImageUnavailable("it asks for a login of an unknown kind")
        token = f"Bearer {await self._token(client, parts)}"
        was = self._taken.pop(name, None)
        while len(self._taken) >= SCOPES_MAX:
            del self._taken[next(iter(self._taken))]
        self._taken[name] = token
        return was != token

    async def _token(self, client: httpx.AsyncClient, parts: dict[str, str]) -> str:
        realm = parts["realm"]
        where = urlsplit(realm)
        if (
            not (realm.startswith(f"{self._base}/") or (where.scheme == "https" and where.hostname))
            or "@" in realm
        ):
            raise ImageUnavailable("it sends logins elsewhere")
        params: dict[str, str] = {one: parts[one] for one in ("service", "scope") if one in parts}
        headers, found = {"Authorization": self._basic}, bytearray()
        try:
            async with client.stream("GET", realm, params=params, headers=headers) as answer:
                if answer.status_code in (400, 401, 403):
                    raise ImageUnavailable("it refuses the login of executor.kubernetes.logins")
                if answer.status_code != 200:
                    raise EngineUnavailable(f"the place of its tokens answers {answer.status_code}")
                async for data in answer.aiter_raw():
                    found += data
                    if len(found) > ANSWER_BYTES_MAX:
                        raise ImageUnavailable("a token of its login is too long")
        except httpx.HTTPError as error:
            raise EngineUnavailable(f"the place of its tokens: {error or type(error).__name__}") from None
        return _token_of(bytes(found))


def _token_of(data: bytes) -> str:
    try:
        found: Any = orjson.loads(data)
        token = found.get("token") or found.get("access_token")
    except (ValueError, AttributeError):
        token = None
    if (
        not isinstance(token, str)
        or not token.isascii()
        or not token.isprintable()
        or len(token) > TOKEN_LENGTH_MAX
    ):
        raise ImageUnavailable("its login gives no token")
    return token
