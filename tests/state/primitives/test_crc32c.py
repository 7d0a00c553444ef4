from __future__ import annotations

from state.primitives.crc32c import masked_crc32c


def test_the_checksum_is_the_published_one() -> None:
    """The check value of CRC-32C, and 32 zeros as in RFC 3720, B.4."""
    for data, crc in ((b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA)):
        assert masked_crc32c(data) == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
