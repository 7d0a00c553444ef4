"""The key that clients of ``dekube api`` present: made at the first start, in a file for its owner alone."""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path
from typing import Final

from state.primitives.errors import ConfigError

__all__ = ["open_key_file"]

PREFIX: Final = "sk-dekube-"
BYTES: Final = 32
_KEY: Final = re.compile(r"[!-~]{16,256}")


def open_key_file(path: Path) -> str:
    """Return the key in a file, which is made if it does not exist. Raises ConfigError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
                file.write(f"{PREFIX}{secrets.token_urlsafe(BYTES)}\n")
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            pass
        with path.open() as opened:
            if stat.S_IMODE(os.fstat(opened.fileno()).st_mode) & 0o077:
                raise ConfigError(f"{path}: others may read this key; chmod 600 it, or delete it for a new one")
            key = opened.read(1_024).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not _KEY.fullmatch(key):
        raise ConfigError(f"{path}: not a key of 16 to 256 visible characters; delete it for a new one")
    return key
