"""Decoders of the command line: what a program of the same machine answers, what a person hands over."""

from __future__ import annotations

from collections.abc import Iterator

from click import BadParameter

from node.cli.arguments import parse_hash
from node.cli.files import parse_json
from node.cli.relay_status import NUMBERS, parse_counts
from node.home.keyring import check_keystore, parse_path
from state.primitives.errors import ConfigError, KeystoreError
from tests.fuzz.targets.base import Target, of_file, of_text
from tests.fuzz.targets.samples import KEYSTORE

UNLABELLED = "".join(f"dekube_relay_{name} 2.0\n" for name in sorted(NUMBERS)).encode()
LABELLED = (
    b'# HELP dekube_relay_refusals_total Requests refused\ndekube_relay_refusals_total{reason="unpaid"} 3.0\n'
)


def targets() -> Iterator[tuple[str, Target]]:
    yield "counts of a relay", Target(
        parse_counts, (UNLABELLED + LABELLED, LABELLED + b'x{a="1",b="\\n"} 1e3 1700000000\n'),
        ("node.cli.relay_status:parse_counts",), (ConfigError,), cost=8, memory=400,
    )  # fmt: skip
    yield "keystore file, its fields", Target(
        of_file("fields.json", check_keystore), (KEYSTORE,), ("node.home.keyring:check_keystore",),
        (KeystoreError,), cost=8,
    )  # fmt: skip
    yield (
        "path of a key",
        Target(of_text(parse_path), (b"m/44'/60'/1'/0/0",), ("node.home.keyring:parse_path",), (ConfigError,)),
    )
    yield "JSON file of a person", Target(
        lambda data: parse_json(data, "file.json", "a document"), (b'\xef\xbb\xbf{"a": [1, null]}\n', KEYSTORE),
        ("node.cli.files:parse_json",), (ConfigError,),
    )  # fmt: skip
    yield "hash in an argument", Target(
        of_text(lambda text: parse_hash(text, "WHAT")), (b"0x" + b"5e" * 32, b"0X" + b"F0" * 32),
        ("node.cli.arguments:parse_hash", "node.cli.arguments:parse_hex"), (BadParameter,),
    )  # fmt: skip
