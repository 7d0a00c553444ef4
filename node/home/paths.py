"""Where a node keeps its files: names alone, so that a command that asks a running node loads no more."""

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
    """Where the parts of a node keep their files."""

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
        """What this home adds to the draft of a genesis, until that genesis is there (JSON)."""
        return self.root / "founder.json"

    @property
    def chain(self) -> Path:
        """The database of the chain (LevelDB)."""
        return self.root / "data" / "chain"

    def guard_of(self, vote_key: bytes) -> Path:
        """The durable record of one vote key's votes: a key that came by rotation has its own folder."""
        own = self.own_guard_of(vote_key)
        return own if own.exists() else self.guard

    def own_guard_of(self, vote_key: bytes) -> Path:
        """Where the record of a key begins beside that of the key which still votes."""
        return self.root / "data" / f"guard-{vote_key[:8].hex()}"

    def passphrase_file(self, keys: KeyOptions) -> Path | None:
        """Where the passphrase is kept; None where a person has to be asked for it."""
        file = self.path(keys.passphrase_file) if keys.passphrase_file else None
        # A link to a file that is gone is a mistake to name, not a home without a passphrase file.
        return file if file is not None and os.path.lexists(file) else None

    @property
    def evidence(self) -> Path:
        """Proofs of faults that no block has carried yet."""
        return self.root / "data" / "evidence"

    @property
    def waiting(self) -> Path:
        """Transactions that were handed in at this node and that no block has carried yet."""
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
        """What requesters without a node have left in the blobs, and were charged for it."""
        return self.root / "data" / "uploads"

    @property
    def peers(self) -> Path:
        """What the address book keeps over a restart."""
        return self.root / "data" / "peers"

    @property
    def score(self) -> Path:
        """How fast this machine was, and when and with what that was measured (JSON)."""
        return self.root / "data" / "score"

    @property
    def jobs(self) -> Path:
        """Journal and scratch space of the executor."""
        return self.root / "data" / "jobs"

    @property
    def socket(self) -> Path:
        """The Unix socket on which the node answers its gateway and the command line."""
        return self.root / "run" / "node.sock"

    @property
    def control(self) -> Path:
        """The Unix socket on which the node takes its owner's requests."""
        return self.root / "run" / "control.sock"

    @property
    def admin_token(self) -> Path:
        """The token of the owner's methods, while the node serves them on a port."""
        return self.root / "run" / "admin.token"

    @property
    def ready(self) -> Path:
        """Written when the node is up: its addresses and ports (JSON)."""
        return self.root / "run" / "ready.json"

    def path(self, relative: str) -> Path:
        """Return a path that the options name relative to the home."""
        return self.root / relative
