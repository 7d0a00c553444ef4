"""The errors every layer shares: blame decides the class, ``code`` is stable."""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "ConfigError",
    "DecodeError",
    "DekubeError",
    "InvalidBlock",
    "InvalidTransaction",
    "KeystoreError",
    "NotCanonical",
    "NotSupported",
    "ProtocolError",
    "RecordDamaged",
    "SignatureInvalid",
    "StoreError",
]


class DekubeError(Exception):
    """Base of every error that may reach a user; ``code`` is what RPC answers and metric labels carry."""

    code: ClassVar[str] = "error"


class ProtocolError(DekubeError):
    """A peer, a wallet or a block broke a rule; the receiver is unharmed."""

    code = "protocol_error"


class DecodeError(ProtocolError):
    """Bytes that are not the canonical encoding of a value of the expected type."""

    code = "decode_error"


class NotCanonical(DecodeError):
    """Bytes that are not canonical CBOR; the error text describes the bytes, not the expected type."""


class NotSupported(DecodeError):
    """A form of Ethereum's that this chain does not have: another type, an access list, a contract's creation."""

    code = "not_supported"


class SignatureInvalid(ProtocolError):
    """A signature that does not verify, or from which no key can be recovered."""

    code = "signature_invalid"


class InvalidTransaction(ProtocolError):
    """A transaction that may not enter the mempool or a block; subclasses name the rule."""

    code = "invalid_transaction"


class InvalidBlock(ProtocolError):
    """A proposed block that breaks a rule of validity (consensus.md 9)."""

    code = "invalid_block"


class StoreError(DekubeError):
    """The database is damaged, missing, locked by another process or of another chain."""

    code = "store_error"


class RecordDamaged(StoreError):
    """A record of the state that no rule has written: the disk changed it beneath the database's checksums."""

    code = "store_damaged"


class ConfigError(DekubeError):
    """A configuration file, genesis or option that cannot be used."""

    code = "config_error"


class KeystoreError(DekubeError):
    """A keystore file that is malformed, or a passphrase that does not open it."""

    code = "keystore_error"
