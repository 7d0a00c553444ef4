"""``dekube bench gossip``: a block sent from a home to the homes of its committee, with and without relays.

Topology ``committee``: a leader with 40 Mbit/s up, and fifteen homes at a round trip of 80 ms with 0.1 % loss. Two
relays are between them, and all members are connected. Each figure is the median of its blocks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Final

from testnet.wan.agent import AgentSpec
from testnet.wan.bench.measure import lab_name, lateness_of, node_at, relays_at, say, verdict
from testnet.wan.fleet import NODE_PORT, RELAY_PORT, Agent, agents
from testnet.wan.lab import Lab, load_plan

__all__ = ["run"]

LEADER: Final = "L"
RELAYS: Final = ("R1", "R2")
PAUSE_S: Final = 2.5
"""Pause between blocks: long enough that slow start after idle would show."""
PATIENCE_S: Final = 25.0
TRANSFERS: Final = 5_000
MIDDLE_S: Final = 0.12
"""Time from the start of a block to the kill of a relay: about half of the leader's upload."""
_NS: Final = 1_000_000_000


def run(
    *, blocks: int = 5, size_bytes: int = 1_000_000, faults: int = 1, unicast: int = 1, compact: int = 5
) -> dict[str, float]:
    """Measure and return the figures, in milliseconds from the leader's first byte.

    ``quorum`` is the time when two thirds of the committee, with the leader, have the block; ``last`` is the last
    member. ``unrelayed`` is the same block as one message to each member. ``cold`` is the first block of new
    connections. ``censored`` has one relay that forwards nothing, ``all_censor`` only such relays, ``killed`` one
    that is killed midway. ``cpu`` is the processor time of all members and relays between two blocks; on few cores
    it limits the other figures. ``blocks=0`` leaves out the honest part, ``faults=0`` the faulty one.

    ``compact_`` and ``whole_`` are proposals of 5,000 transfers that are in all pools, sent compact and as whole
    messages through relays. In ``compact_lacking`` each member but the leader lacks 50 of them. ``leader_bytes``
    is the leader's upload for one. ``compact=0`` leaves these out.
    """
    figures: dict[str, float] = {}
    with Lab(load_plan("committee"), lab_name("gossip")) as lab:
        if blocks:
            figures |= _honest(lab, blocks, size_bytes, unicast)
        if faults:
            figures |= _faulty(lab, size_bytes)
        if compact:
            figures |= _compact(lab, compact)
        figures |= lateness_of(lab)
    return verdict({name: round(value, 2) for name, value in figures.items()})


def _honest(lab: Lab, blocks: int, size_bytes: int, unicast: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    with _committee(lab) as nodes:
        say("blocks through relays ...")
        figures["block_to_last_cold_ms"] = _block(nodes, 1, "multicast", size_bytes=size_bytes)[1]
        before_s = sum(node.cpu_s for node in nodes.values())
        warm = [_block(nodes, 2 + n, "multicast", size_bytes=size_bytes) for n in range(blocks)]
        figures["block_cpu_s"] = (sum(node.cpu_s for node in nodes.values()) - before_s) / blocks
        figures["block_to_quorum_ms"] = median(quorum for quorum, _ in warm)
        figures["block_to_last_ms"] = median(last for _, last in warm)
        figures["block_to_last_best_ms"] = min(last for _, last in warm)
        figures["block_to_last_worst_ms"] = max(last for _, last in warm)
        say(f"  last member after {', '.join(f'{last:.0f}' for _, last in warm)} ms")
        if unicast:
            say("blocks to each ...")
            count = max(blocks // 2, 1)
            one_by_one = [_block(nodes, 100 + n, "unicast", size_bytes=size_bytes) for n in range(count)]
            figures["block_to_quorum_unrelayed_ms"] = median(quorum for quorum, _ in one_by_one)
            figures["block_to_last_unrelayed_ms"] = median(last for _, last in one_by_one)
            say(f"  last member after {', '.join(f'{last:.0f}' for _, last in one_by_one)} ms")
    return figures


def _compact(lab: Lab, blocks: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    with _committee(lab) as nodes:
        members = [name for name in nodes if name not in RELAYS]
        for name, lacking, way in (
            ("whole", 0, "multicast"),
            ("compact", 0, "compact"),
            ("compact_lacking", 50, "compact"),
        ):
            say(f"proposals of {TRANSFERS} transfers, {name} ...")
            for member in members:
                nodes[member].ask("hold", count=TRANSFERS, lacking=lacking if member != LEADER else 0)
            first = 1_000 * (2 + len(figures))
            _block(nodes, first, way, verb="propose")
            took: list[tuple[float, float]] = []
            sent: list[float] = []
            for number in range(first + 1, first + 1 + blocks):
                before = _sent_bytes(lab)
                took.append(_block(nodes, number, way, verb="propose"))
                sent.append(_sent_bytes(lab) - before)
            figures[f"{name}_to_quorum_ms"] = median(quorum for quorum, _ in took)
            figures[f"{name}_to_last_ms"] = median(last for _, last in took)
            figures[f"{name}_leader_bytes"] = median(sent)
            say(f"  last member after {', '.join(f'{last:.0f}' for _, last in took)} ms")
    return figures


def _sent_bytes(lab: Lab) -> float:
    """Return the bytes that left the leader's line, including those under way, which leave before the next
    block.
    """
    return float(lab.stats()["pipes"].get(f"{LEADER}:up", {}).get("in_bytes", 0))


def _faulty(lab: Lab, size_bytes: int) -> dict[str, float]:
    """Measure each fault on fresh connections after one honest block, without other history."""
    figures: dict[str, float] = {}
    for name, censor, kill in (
        ("censored", RELAYS[:1], ""),
        ("all_censor", RELAYS, ""),
        ("killed", (), RELAYS[0]),
    ):
        say(f"{name}: one block ...")
        with _committee(lab, censor=censor) as nodes:
            if kill:
                _block(nodes, 1, "multicast", size_bytes=size_bytes)
            else:
                _block(nodes, 1, "unicast", size_bytes=size_bytes)
            last = _block(nodes, 2, "multicast", size_bytes=size_bytes, kill=kill)[1]
            figures[f"block_to_last_{name}_ms"] = last
        say(f"  last member after {last:.0f} ms")
    return figures


@contextmanager
def _committee(lab: Lab, censor: tuple[str, ...] = ()) -> Iterator[dict[str, Agent]]:
    """Run the relays and a member in each home, with connections between all members."""
    members = [name for name in lab.plan.public if name not in RELAYS]
    specs = {
        name: AgentSpec(name, relay=f"0.0.0.0:{RELAY_PORT}", faults=("censor",) if name in censor else ())
        for name in RELAYS
    }
    reserve = relays_at(lab, *RELAYS)
    specs |= {name: AgentSpec(name, listen=f"0.0.0.0:{NODE_PORT}", reserve=reserve) for name in members}
    with agents(lab, specs) as nodes:
        waiting = [
            (nodes[name], nodes[name].begin("mesh", peers={m: [node_at(lab, m)] for m in members if m != name}))
            for name in members
        ]
        for node, mesh in waiting:
            node.finish(mesh)
        time.sleep(PAUSE_S)
        yield nodes


def _block(
    nodes: dict[str, Agent], number: int, way: str, *, size_bytes: int = 0, verb: str = "block", kill: str = ""
) -> tuple[float, float]:
    """Send one block; return when a quorum and when the last member had it, in milliseconds.

    A member that does not get it within ``PATIENCE_S`` counts with that time.
    """
    time.sleep(PAUSE_S)
    members = [name for name in nodes if name not in {LEADER, *RELAYS}]
    sized = {"size_bytes": size_bytes} if size_bytes else {}
    sending = nodes[LEADER].begin(verb, peers=members, number=number, way=way, **sized)
    if kill:
        time.sleep(MIDDLE_S)
        nodes[kill].kill()
    began = nodes[LEADER].finish(sending)["at"]
    got: dict[str, int] = {}
    until = time.monotonic() + PATIENCE_S
    while len(got) < len(members):
        if time.monotonic() > until:
            say(f"block {number} ({way}) never reached {', '.join(sorted(set(members) - set(got)))}")
            got |= {name: began + int(PATIENCE_S * _NS) for name in set(members) - set(got)}
            break
        time.sleep(0.25)
        for name in set(members) - set(got):
            found = nodes[name].ask("block_at", peer=LEADER, number=number)["at"]
            if found:
                got[name] = found
    delays = sorted((at - began) / 1e6 for at in got.values())
    others = 2 * (len(members) + 1) // 3  # with the leader itself they are a quorum
    return delays[others - 1], delays[-1]
