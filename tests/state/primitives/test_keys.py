from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.address import format_address, parse_address
from state.primitives.errors import DecodeError, SignatureInvalid
from state.primitives.hashing import keccak
from state.primitives.keys import SecretKey, recover_address, recover_addresses, verify_vote

ORDER = 0xFFFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFE_BAAEDCE6_AF48A03B_BFD25E8C_D0364141
SECRETS = st.integers(1, ORDER - 1).map(lambda n: SecretKey(n.to_bytes(32, "big")))
DIGESTS = st.binary(min_size=32, max_size=32)

# The examples of EIP-55 and the first account of the mnemonic "test test ... junk".
CHECKSUMMED = (
    "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
    "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
    "0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB",
    "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
)


@pytest.mark.parametrize("text", CHECKSUMMED)
def test_published_checksums(text: str) -> None:
    assert format_address(parse_address(text)) == text
    assert format_address(parse_address(text.lower())) == text


@pytest.mark.parametrize("text", CHECKSUMMED)
def test_a_mistyped_case_is_refused(text: str) -> None:
    at = next(i for i in range(2, 42) if text[i].isalpha())
    with pytest.raises(DecodeError, match="checksum"):
        parse_address(text[:at] + text[at].swapcase() + text[at + 1 :])


@pytest.mark.parametrize(
    "text", ["", "0x", "5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "0x" + "0" * 39, "0x" + "g" * 40]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        parse_address(text)


def test_a_known_key_has_its_known_address() -> None:
    key = SecretKey(bytes.fromhex("ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"))
    assert format_address(key.address) == "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
    assert "ac0974" not in repr(key)


@pytest.mark.parametrize("secret", [b"", bytes(32), ORDER.to_bytes(32, "big"), b"\xff" * 32, b"1" * 31])
def test_no_key_of_order_zero_or_over(secret: bytes) -> None:
    with pytest.raises(DecodeError):
        SecretKey(secret)


@settings(max_examples=50)
@given(SECRETS, DIGESTS, st.integers(0, 64 * 8 - 1))
def test_recovery_finds_the_signer_and_no_flipped_bit_finds_it_again(
    key: SecretKey, digest: bytes, bit: int
) -> None:
    signature = key.sign(digest)
    assert recover_address(digest, signature) == key.address
    flipped = bytearray(signature)
    flipped[bit // 8] ^= 1 << bit % 8
    assert recover_addresses(digest + bytes(flipped)) != key.address


@settings(max_examples=30)
@given(SECRETS, DIGESTS)
def test_the_other_s_of_the_same_signature_is_refused(key: SecretKey, digest: bytes) -> None:
    signature = key.sign(digest)
    high = (ORDER - int.from_bytes(signature[32:64], "big")).to_bytes(32, "big")
    with pytest.raises(SignatureInvalid):
        recover_address(digest, signature[:32] + high + bytes([signature[64] ^ 1]))


@pytest.mark.parametrize(("digest", "signature"), [(31, 65), (33, 64), (32, 64), (32, 66), (0, 97), (0, 0)])
def test_what_is_no_digest_and_signature_never_reaches_the_library(digest: int, signature: int) -> None:
    with pytest.raises(SignatureInvalid):
        recover_address(bytes(digest), bytes(signature))


def test_threads_that_recover_at_once_do_not_mix_their_answers() -> None:
    keys = [SecretKey(bytes([n]) * 32) for n in range(1, 8)]
    entries = [(keys[n % 7], bytes([n]) * 32) for n in range(40)]
    signed = [(key.address, digest, key.sign(digest)) for key, digest in entries]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda item: recover_address(item[1], item[2]), signed * 5))
    assert found == [address for address, _, _ in signed] * 5


def test_a_batch_marks_only_its_bad_entries() -> None:
    key, digest = SecretKey(b"k" * 32), b"d" * 32
    good = digest + key.sign(digest)
    bad = digest + bytes(65)
    assert recover_addresses(good + bad + good) == key.address + bytes(20) + key.address
    assert recover_addresses(b"") == b""
    with pytest.raises(SignatureInvalid):
        recover_addresses(good[:-1])


def test_the_published_bip340_vector_verifies() -> None:
    # BIP340 test-vectors.csv, index 1.
    public = bytes.fromhex("dff1d77f2a671c5f36183726db2341be58feae1da2deced843240f7b502ba659")
    message = bytes.fromhex("243f6a8885a308d313198a2e03707344a4093822299f31d0082efa98ec4e6c89")
    signature = bytes.fromhex(
        "6896bd60eeae296db48a229ff71dfe071bde413e6d43f917dc8dcf8c78de3341"
        "8906d11ac976abccb20b091292bff4ea897efcb639ea871cfa95f6de339e4b0a"
    )
    assert verify_vote(public, message, signature)
    assert not verify_vote(public, message, signature[:-1] + b"\x0b")


@settings(max_examples=30)
@given(SECRETS, DIGESTS, DIGESTS)
def test_votes_are_deterministic_and_bound_to_key_and_digest(key: SecretKey, digest: bytes, other: bytes) -> None:
    signature = key.sign_vote(digest)
    assert signature == key.sign_vote(digest)
    assert verify_vote(key.vote_key, digest, signature)
    assert digest == other or not verify_vote(key.vote_key, other, signature)
    assert not verify_vote(b"\xff" * 32, digest, signature)


@given(st.binary(min_size=20, max_size=20))
def test_the_checksum_is_that_of_eip_55(address: bytes) -> None:
    digits = address.hex()
    marks = keccak(digits.encode()).hex()
    shown = "".join(d.upper() if int(c, 16) >= 8 else d for d, c in zip(digits, marks, strict=False))
    assert format_address(address) == "0x" + shown
    assert parse_address("0x" + shown) == address
