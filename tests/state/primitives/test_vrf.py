"""The VRF: RFC 9381's published vectors (appendix B.3), uniqueness, and what must not verify."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.errors import DecodeError
from state.primitives.keys import SecretKey
from state.primitives.vrf import VrfKey, vrf_key_of, vrf_output, vrf_verify

VECTORS = (  # secret, public, alpha, proof, output: examples 16, 17 and 18
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "8657106690b5526245a92b003bb079ccd1a92130477671f6fc01ad16f26f723f26f8a57ccaed74ee1b190bed1f479d97"
        "27d2d0f9b005a6e456a35d4fb0daab1268a1b0db10836d9826a528ca76567805",
        "90cf1df3b703cce59e2a35b925d411164068269d7b2d29f3301c03dd757876ff66b71dda49d2de59d03450451af02679"
        "8e8f81cd2e333de5cdf4f3e140fdd8ae",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "f3141cd382dc42909d19ec5110469e4feae18300e94f304590abdced48aed5933bf0864a62558b3ed7f2fea45c92a465"
        "301b3bbf5e3e54ddf2d935be3b67926da3ef39226bbc355bdc9850112c8f4b02",
        "eb4440665d3891d668e7e0fcaf587f1b4bd7fbfe99d0eb2211ccec90496310eb5e33821bc613efb94db5e5b54c70a848"
        "a0bef4553a41befc57663b56373a5031",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "9bc0f79119cc5604bf02d23b4caede71393cedfbb191434dd016d30177ccbf8096bb474e53895c362d8628ee9f9ea3c0"
        "e52c7a5c691b6c18c9979866568add7a2d41b00b05081ed0f58ee5e31b3a970e",
        "645427e5d00c62a23fb703732fa5d892940935942101e456ecca7bb217c61c452118fec1219202a0edcf038bb6373241"
        "578be7217ba85a2687f7a0310b2df19f",
    ),
)


@pytest.mark.parametrize(("secret", "public", "alpha", "proof", "output"), VECTORS)
def test_the_published_vectors(secret: str, public: str, alpha: str, proof: str, output: str) -> None:
    key = VrfKey(bytes.fromhex(secret))
    assert key.public.hex() == public
    assert key.prove(bytes.fromhex(alpha)).hex() == proof
    assert vrf_output(bytes.fromhex(proof)).hex() == output
    assert (vrf_verify(key.public, bytes.fromhex(alpha), bytes.fromhex(proof)) or b"").hex() == output


@settings(max_examples=40)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=80), st.data())
def test_only_the_very_proof_verifies(seed: bytes, alpha: bytes, data: st.DataObject) -> None:
    key = VrfKey(seed)
    proof = key.prove(alpha)
    assert vrf_verify(key.public, alpha, proof) == vrf_output(proof)
    assert vrf_verify(key.public, alpha + b"x", proof) is None
    assert vrf_verify(VrfKey(bytes([seed[0] ^ 1]) + seed[1:]).public, alpha, proof) is None
    at = data.draw(st.integers(0, 8 * len(proof) - 1))
    damaged = bytearray(proof)
    damaged[at // 8] ^= 1 << at % 8
    assert vrf_verify(key.public, alpha, bytes(damaged)) is None


SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
]


@pytest.mark.parametrize("public", SMALL_ORDER)
def test_a_key_of_small_order_never_verifies(public: str) -> None:
    proof = VrfKey(bytes(32)).prove(b"alpha")
    assert vrf_verify(bytes.fromhex(public), b"alpha", proof) is None
    assert vrf_verify(VrfKey(bytes(32)).public, b"alpha", bytes.fromhex(public) + proof[32:]) is None


@given(st.binary(max_size=100), st.binary(max_size=40), st.binary(max_size=100))
def test_garbage_is_no_proof(public: bytes, alpha: bytes, proof: bytes) -> None:
    assert vrf_verify(public, alpha, proof) is None


def test_what_is_no_point_has_no_output() -> None:
    with pytest.raises(DecodeError):
        vrf_output(b"\xff" * 80)
    with pytest.raises(DecodeError):
        vrf_output(b"")
    with pytest.raises(DecodeError):
        VrfKey(b"short")


def test_the_key_of_a_vote_key_is_its_own() -> None:
    secret = SecretKey(b"\x01" * 32)
    assert vrf_key_of(secret).public == vrf_key_of(SecretKey(b"\x01" * 32)).public
    assert vrf_key_of(secret).public != VrfKey(b"\x01" * 32).public
