"""What a text for strangers must not contain: a pure filter for logs, facts and errors of a support bundle.

Two rules stand side by side. Each secret that the machine is known to keep is removed, in the spellings in which
it may occur. And what has the shape of a secret is removed, whoever it belongs to.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote, quote_plus

import orjson

__all__ = ["REMOVED", "Mask", "secrets_of_document", "sounds_secret"]

REMOVED: Final = "(removed)"
SECRET_CHARS_MIN: Final = 4
"""A shorter secret would be found in every text; the shapes below still remove what names it."""
SECRETS_MAX: Final = 50_000
LEAF_CHARS_MIN: Final = 12
DEPTH_MAX: Final = 16
_NAME: Final = r"[\w.-]*(?:pass|secret|token|key|auth|credential|cookie|mnemonic|seed|private|login)[\w.-]*"
_SOUNDS: Final = re.compile(_NAME, re.IGNORECASE)
_PUBLIC: Final = frozenset({"address", "version", "id", "cipher", "kdf", "prf", "registry", "name"})
_SHAPES: Final = (
    re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL),
    re.compile(r"(?<=://)[^/@\s\"']*@"),
    re.compile(r"\b(?:Bearer|Basic)\s+[\w.~+/=-]+", re.IGNORECASE),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"),
    re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abp]-|AKIA|ASIA|dckr_pat_|whsec_)[\w-]{8,}"),
    re.compile(r"\b(?:[a-z]{3,8} ){11,23}[a-z]{3,8}\b"),
)
"""Blocks of PEM, users in addresses, headers, JSON web tokens, tokens of services, and phrases of a wallet."""
_NAMED: Final = re.compile(
    rf"""(?P<head>["']?{_NAME}["']?\s*(?:=>|[:=])\s*)(?P<value>"(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;&}}\]"']+)""",
    re.IGNORECASE,
)
_HEX: Final = re.compile(r"(?<![0-9A-Za-z])(?:0x)?[0-9a-fA-F]{32,}(?![0-9A-Za-z])")
_LONG: Final = re.compile(r"(?<![\w+/=.-])[\w+/-]{32,}={0,2}(?![\w+/=-])")
ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}")
"""An account's address is public, and no secret has its length."""


def sounds_secret(name: str) -> bool:
    """Tell whether a name sounds of something secret."""
    return _SOUNDS.search(name) is not None


def secrets_of_document(text: str) -> set[str]:
    """Return what may be secret in a file of keys, passphrases, tokens or logins."""
    found = {text.strip(), *(line.strip() for line in text.splitlines())}
    try:
        found |= _leaves(orjson.loads(text), "", 0)
    except ValueError:  # orjson bounds the depth itself, whatever the interpreter's limit is
        for line in text.splitlines():
            found |= {part.strip().strip("\"'") for part in re.split(r"[:=\s]+", line)[1:]}
    for one in list(found):
        try:
            decoded = base64.b64decode(one, validate=True).decode()
        except (ValueError, UnicodeError):
            continue
        found |= {decoded, decoded.partition(":")[2]}
    return {one for one in found if len(one) >= SECRET_CHARS_MIN}


def _leaves(value: Any, name: str, depth: int) -> set[str]:
    if depth > DEPTH_MAX:
        return set()
    if isinstance(value, dict):
        return {leaf for key, one in value.items() for leaf in _leaves(one, str(key), depth + 1)}
    if isinstance(value, list):
        return {leaf for one in value for leaf in _leaves(one, name, depth + 1)}
    is_meant = isinstance(value, str) and (sounds_secret(name) or len(value) >= LEAF_CHARS_MIN)
    return {str(value)} if is_meant and name.lower() not in _PUBLIC else set()


def _spellings(secret: str) -> Iterable[str]:
    data = secret.encode("utf-8", "surrogateescape")
    yield secret
    yield json.dumps(secret)[1:-1]
    yield quote(secret, safe="")
    yield quote_plus(secret)
    yield data.hex()
    for encoded in (base64.b64encode(data), base64.urlsafe_b64encode(data)):
        yield encoded.decode().rstrip("=")
    if re.fullmatch(r"(?:0x)?(?:[0-9a-fA-F]{2}){8,}", secret):
        bare = secret.removeprefix("0x")
        yield bare.lower()
        yield bare.upper()
        yield base64.b64encode(bytes.fromhex(bare)).decode().rstrip("=")


class Mask:
    """Removes ``secrets`` and what looks like one. ``salt`` names long numbers anew, the same one each time."""

    def __init__(self, secrets: Iterable[str], salt: bytes) -> None:
        spelled = {
            text for secret in list(secrets)[:SECRETS_MAX] if len(secret) >= SECRET_CHARS_MIN
            for text in _spellings(secret) if len(text) >= SECRET_CHARS_MIN and not ADDRESS.fullmatch(text)
        }  # fmt: skip
        self._secrets = sorted(spelled, key=len, reverse=True)
        self._salt = salt

    def text(self, text: str) -> str:
        """Return a text without secrets."""
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, REMOVED)
        for shape in _SHAPES:
            text = shape.sub(REMOVED, text)
        text = _NAMED.sub(lambda found: found["head"] + self._value(found["value"]), text)
        text = _HEX.sub(lambda found: self._name(found[0]), text)
        return _LONG.sub(lambda found: self._name(found[0]) if _is_mixed(found[0]) else found[0], text)

    def _value(self, value: str) -> str:
        if value.strip("\"'") in ("", "true", "false", "null", "None", REMOVED) or value.startswith(REMOVED[:8]):
            return value
        mark = value[0] if value[0] in "\"'" else ""
        return f"{mark}{REMOVED}{mark}"

    def _name(self, number: str) -> str:
        """Return another name of a hash or key: lines of one bundle can still be compared."""
        if ADDRESS.fullmatch(number):
            return number
        lowered = number.lower().removeprefix("0x").encode()
        return "#" + hashlib.blake2b(lowered, key=self._salt, digest_size=5).hexdigest()

    def document(self, value: Any, depth: int = 0) -> Any:
        """Return a JSON document without secrets: each text is masked, names that sound secret have no value."""
        if depth > DEPTH_MAX:
            return REMOVED
        if isinstance(value, dict):
            return {
                self.text(str(key)): REMOVED if sounds_secret(str(key)) and isinstance(one, str) and one
                else self.document(one, depth + 1)
                for key, one in value.items()
            }  # fmt: skip
        if isinstance(value, list | tuple):
            return [self.document(one, depth + 1) for one in value]
        return self.text(value) if isinstance(value, str) else value


def _is_mixed(text: str) -> bool:
    """Whether a long word has letters of both sizes and digits, as keys in base 64 do, and paths rarely."""
    return (
        any(one.isdigit() for one in text) and any(one.isupper() for one in text)
        and any(one.islower() for one in text) and text.count("/") <= len(text) // 12
    )  # fmt: skip
