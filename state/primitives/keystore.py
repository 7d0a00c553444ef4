"""Ethereum keystore v3 (Web3 Secret Storage): keys at rest, interoperable with geth and cast.

Writing uses scrypt; reading takes scrypt and PBKDF2. Randomness is the caller's (salt, iv, id), so the module is
pure. The scrypt cost of a file is bounded before memory is spent: a hostile file cannot exhaust the machine.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import uuid
from typing import Any, Final

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from state.primitives.errors import DecodeError, KeystoreError
from state.primitives.hashing import keccak
from state.primitives.keys import SecretKey

__all__ = ["KEYSTORE_LIMIT_BYTES", "SCRYPT_N", "decrypt_keystore", "encrypt_keystore", "keystore_address"]

KEYSTORE_LIMIT_BYTES: Final = 16 * 1024
SCRYPT_N: Final = 1 << 18
"""Work factor that geth calls standard; tests and local test networks may use less."""
SCRYPT_MEMORY_MAX: Final = 512 * 1024 * 1024
SCRYPT_P_MAX: Final = 16
PBKDF2_ITERATIONS_MAX: Final = 10_000_000


def encrypt_keystore(
    key: SecretKey, passphrase: str, *, salt: bytes, iv: bytes, identifier: bytes, scrypt_n: int = SCRYPT_N
) -> str:
    """Return the text of a keystore v3 file for ``key``.

    ``salt`` (32 bytes), ``iv`` (16) and ``identifier`` (16) must be fresh randomness.
    """
    parameters = {"dklen": 32, "n": scrypt_n, "r": 8, "p": 1, "salt": salt.hex()}
    derived = _derive("scrypt", parameters, passphrase)
    ciphertext = _aes_ctr(derived[:16], iv, key.secret)
    document = {
        "address": key.address.hex(),
        "crypto": {
            "cipher": "aes-128-ctr",
            "cipherparams": {"iv": iv.hex()},
            "ciphertext": ciphertext.hex(),
            "kdf": "scrypt",
            "kdfparams": parameters,
            "mac": keccak(derived[16:32] + ciphertext).hex(),
        },
        "id": str(uuid.UUID(bytes=identifier, version=4)),
        "version": 3,
    }
    return json.dumps(document) + "\n"


def decrypt_keystore(text: str, passphrase: str) -> SecretKey:
    """Return the key of a keystore v3 file.

    Raises KeystoreError when the file is malformed or too costly, or the passphrase is wrong.
    """
    document = _parse(text)
    try:
        crypto = {str(name).lower(): value for name, value in document.items()}["crypto"]
        ciphertext = bytes.fromhex(crypto["ciphertext"])
        iv = bytes.fromhex(crypto["cipherparams"]["iv"])
        mac = bytes.fromhex(crypto["mac"])
        if crypto["cipher"] != "aes-128-ctr" or len(iv) != 16 or len(ciphertext) != 32:
            raise KeystoreError("keystore: only aes-128-ctr over 32 bytes is supported")
        derived = _derive(crypto["kdf"], crypto["kdfparams"], passphrase)
    except KeystoreError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, MemoryError) as error:
        raise KeystoreError(f"keystore: malformed ({type(error).__name__})") from None
    if not hmac.compare_digest(keccak(derived[16:32] + ciphertext), mac):
        raise KeystoreError("keystore: the passphrase does not open this file")
    try:
        key = SecretKey(_aes_ctr(derived[:16], iv, ciphertext))
    except DecodeError as error:
        raise KeystoreError(f"keystore: {error}") from None
    named = document.get("address")
    if isinstance(named, str) and named.removeprefix("0x").lower() != key.address.hex():
        raise KeystoreError("keystore: the address it names is not the key's")
    return key


def keystore_address(text: str) -> bytes | None:
    """Return the address that the file names without opening it, or None. Raises KeystoreError."""
    named = _parse(text).get("address")
    try:
        address = bytes.fromhex(str(named).removeprefix("0x"))
    except ValueError:
        return None
    return address if len(address) == 20 else None


def _parse(text: str) -> dict[str, Any]:
    if len(text) > KEYSTORE_LIMIT_BYTES:
        raise KeystoreError("keystore: file too large")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise KeystoreError("keystore: not a JSON document") from None
    if not isinstance(document, dict) or document.get("version") != 3:
        raise KeystoreError("keystore: version 3 expected")
    return document


def _derive(kdf: str, parameters: dict[str, Any], passphrase: str) -> bytes:
    secret, salt = passphrase.encode(), bytes.fromhex(parameters["salt"])
    if parameters["dklen"] != 32 or len(salt) > 1024:
        raise KeystoreError("keystore: unsupported key derivation parameters")
    if kdf == "scrypt":
        n, r, p = (_natural(parameters[name]) for name in ("n", "r", "p"))
        if 128 * r * (n + p) > SCRYPT_MEMORY_MAX or p > SCRYPT_P_MAX or n & (n - 1):
            raise KeystoreError("keystore: the key derivation asks for more than this program grants")
        return hashlib.scrypt(
            secret, salt=salt, n=n, r=r, p=p, maxmem=SCRYPT_MEMORY_MAX + 128 * r * (p + 32), dklen=32
        )
    if kdf == "pbkdf2" and parameters["prf"] == "hmac-sha256":
        iterations = _natural(parameters["c"])
        if iterations > PBKDF2_ITERATIONS_MAX:
            raise KeystoreError("keystore: the key derivation asks for more than this program grants")
        return hashlib.pbkdf2_hmac("sha256", secret, salt, iterations, 32)
    raise KeystoreError(f"keystore: unknown key derivation {kdf!r}"[:100])


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 < value < 2**40:
        raise KeystoreError("keystore: unsupported key derivation parameters")
    return value


def _aes_ctr(key: bytes, iv: bytes, data: bytes) -> bytes:
    context = Cipher(algorithms.AES(key), modes.CTR(iv)).encryptor()
    return context.update(data) + context.finalize()
