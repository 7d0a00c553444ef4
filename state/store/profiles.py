"""Storage profiles: how much history a node keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from state.primitives.errors import ConfigError
from state.store.options import StoreOptions

__all__ = ["LIGHT_BLOCKS_MIN", "LIGHT_EPOCHS", "PROFILES", "profile_options"]

PROFILES: Final = ("archive", "full", "light")
LIGHT_EPOCHS: Final = 2
"""Former members of a committee serve its blocks for two more epochs (consensus.md 12)."""
LIGHT_BLOCKS_MIN: Final = 1_024
LIGHT_NOTARIZED_BYTES: Final = 64 * 1024 * 1024


def profile_options(profile: str, *, epochs: int, epoch_blocks: int) -> StoreOptions:
    """Return what a profile keeps; ``epochs`` is of account for ``full`` alone. Raises ConfigError.

    Headers, the records of epochs and the state stay in every profile. ``archive`` keeps all else too, ``full``
    the blocks of ``epochs`` epochs with their receipts, certificates and index entries, ``light`` those of two.
    """
    match profile:
        case "archive":
            return StoreOptions()
        case "full" | "light":
            kept = epochs if profile == "full" else LIGHT_EPOCHS
            options = StoreOptions(block_heights=max(kept * epoch_blocks, LIGHT_BLOCKS_MIN))
            return options if profile == "full" else replace(options, notarized_bytes_max=LIGHT_NOTARIZED_BYTES)
        case _:
            raise ConfigError(f"store.profile: {profile!r} is none of {', '.join(PROFILES)}")
