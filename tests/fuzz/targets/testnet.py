"""Decoders of the test networks: their folder, the topology of an emulated one."""

from __future__ import annotations

import json
from collections.abc import Iterator

from state.primitives.errors import ConfigError
from testnet.cluster import TestnetError, _load_plan
from testnet.wan.lab import shipped
from testnet.wan.topology import document_of, parse_topology, plan
from tests.fuzz.targets.base import Target, of_file, of_text


def read_topology(text: str) -> None:
    """Whatever is read can be planned, and written so that the same is read again."""
    topology = parse_topology(text)
    plan(topology)
    assert parse_topology(json.dumps(document_of(topology))) == topology


PLANS = {"validators": 4, "workers": 2, "seed": 1, "base_port": 1, "time_ms": 5, "parameters": {}}


def targets() -> Iterator[tuple[str, Target]]:
    yield "topology", Target(
        of_text(read_topology), tuple(sorted((text.encode() for text in shipped().values()), key=len)[:2]),
        ("testnet.wan.topology:parse_topology", "testnet.wan.topology:parse_settings"),
        (ConfigError,), cost=8, memory=400,
    )  # fmt: skip
    yield "network folder", Target(
        of_file("testnet.json", _load_plan), (json.dumps(PLANS).encode(),), ("testnet.cluster:_load_plan",),
        (TestnetError, ConfigError), cost=4, memory=400,
    )  # fmt: skip
