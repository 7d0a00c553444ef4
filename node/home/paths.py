"""File names in a node's home. Imports nothing else, so commands that query a running node load quickly."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from node.home.options import KeyOptions

__all__ = ["CONFIG_FILE", "GENESIS_FILE", "Home"]

CONFIG_FILE: Final = "config.toml"
GENESIS_FILE: Final = "genesis.json"


@dataclass(frozen=True, slots=True)
class Home:
    """Paths of a node's files."""

    root: Path

    @property
    def config(self) -> Path:
        """The options (TOML)."""
        return self.root / CONFIG_FILE

    @property
    def genesis(self) -> Path:
        """The genesis (JSON)."""
        return self.root / GENESIS_FILE

    @property
    def founder(self) -> Path:
        """This founder's contribution to the draft of a genesis, until the genesis exists (JSON)."""
        return self.root / "founder.json"

    @property
    def chain(self) -> Path:
        """The database of the chain (LevelDB)."""
        return self.root / "data" / "chain"

    def guard_of(self, vote_key: bytes) -> Path:
        """The durable vote record of one vote key; a key from a rotation has its own folder."""
        own = self.own_guard_of(vote_key)
        return own if own.exists() else self.guard

    def own_guard_of(self, vote_key: bytes) -> Path:
        """Where a key's record begins while the previous key still votes."""
        return self.root / "data" / f"guard-{vote_key[:8].hex()}"

    def passphrase_file(self, keys: KeyOptions) -> Path | None:
        """The passphrase file; None if the passphrase is prompted for."""
        file = self.path(keys.passphrase_file) if keys.passphrase_file else None
        # A link to a file that is gone is a mistake to name, not a home without a passphrase file.
        return file if file is not None and os.path.lexists(file) else None

    @property
    def evidence(self) -> Path:
        """Evidence that no block includes yet."""
        return self.root / "data" / "evidence"

    @property
    def waiting(self) -> Path:
        """Transactions submitted at this node that no block includes yet."""
        return self.root / "data" / "mempool"

    @property
    def guard(self) -> Path:
        """The durable record of the vote guard."""
        return self.root / "data" / "guard"

    @property
    def blobs(self) -> Path:
        """Content-addressed bulk data."""
        return self.root / "data" / "blobs"

    @property
    def uploads(self) -> Path:
        """Uploads of requesters without a node, and their charges."""
        return self.root / "data" / "uploads"

    @property
    def peers(self) -> Path:
        """The address book across restarts."""
        return self.root / "data" / "peers"

    @property
    def rate(self) -> Path:
        """Measured rate of this machine, with time and method of the measurement (JSON)."""
        return self.root / "data" / "rate"

    @property
    def jobs(self) -> Path:
        """Journal and scratch space of the executor."""
        return self.root / "data" / "jobs"

    @property
    def socket(self) -> Path:
        """The Unix socket that the node serves to its gateway and the command line."""
        return self.root / "run" / "node.sock"

    @property
    def control(self) -> Path:
        """The Unix socket for the owner's requests."""
        return self.root / "run" / "control.sock"

    @property
    def admin_token(self) -> Path:
        """The token for the owner's methods, while the node serves them on a port."""
        return self.root / "run" / "admin.token"

    @property
    def ready(self) -> Path:
        """Written when the node is up: its addresses and ports (JSON)."""
        return self.root / "run" / "ready.json"

    def path(self, relative: str) -> Path:
        """Return a path that the options name relative to the home."""
        return self.root / relative
