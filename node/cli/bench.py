"""``dekube bench``: figures whose names end in their units. The last line of ``--json`` is one object."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from node.cli.arguments import WholeNumber
from node.cli.output import json_option

__all__ = ["bench", "machine"]

DIGITS_MAX: Final = 18
SHOWN_CHARACTERS: Final = 80
_BENCHES: Final = {
    "replay": ("node.bench.replay", "Replay blocks of signed transfers, from decoding to the synced commit."),
    "simulate": ("node.bench.simulate", "Run consensus scenarios in the deterministic simulator."),
    "rpc": ("node.bench.rpc", "Load the JSON-RPC gateway."),
    "light": ("node.bench.light", "Verify epoch records and account proofs as a light client."),
    "market": ("node.bench.market", "Execute the worst blocks over a market of many tasks and machines."),
    "exact": ("node.bench.exact", "Measure exact jobs beside plain float32: time, errors, checks and memory."),
    "executor": ("node.bench.executor", "Start jobs as processes and as containers."),
    "generate": ("node.bench.generate", "Decode with a language model, exactly and in plain float32."),
    "operators": ("node.bench.operators", "Compare the time of every operator of programs with its work units."),
    "programs": ("node.bench.programs", "Search for programs whose time does not follow their work units."),
    "train": ("node.bench.train", "Train with the exact engine and with plain NumPy."),
}


_ADDED: Final = {entry.name: entry for entry in importlib.metadata.entry_points(group="dekube.benches")}
"""Benchmarks of packages above this one."""
_ADDED_TEXTS: Final = {
    "network": "Measure throughput and finality of four validator processes under transfer load.",
    "sync": "Sync a node without a database: with and without a seat, and after a repair.",
    "transport": "Send over the encrypted peer channel on loopback, and votes behind bulk data.",
    "relay": "Send through the relay daemon on loopback, and through two relays when one fails.",
    "gossip": "Send a block from a home to its committee, with and without relays.",
    "paths": "Measure direct and relayed routes, and the route that the node selects.",
}


def _load(name: str) -> Callable[..., Mapping[str, float]]:
    run: Callable[..., Mapping[str, float]]
    run = importlib.import_module(_BENCHES[name][0]).run if name in _BENCHES else _ADDED[name].load()
    return run


def _describe() -> str:
    texts = {name: text for name, (_, text) in _BENCHES.items()} | _ADDED_TEXTS
    return "\b\nBenchmarks:\n" + "\n".join(f"  {name:<10} {text}" for name, text in sorted(texts.items()))


@click.command(epilog=_describe())
@click.argument("name", type=click.Choice(sorted({*_BENCHES, *_ADDED})))
@click.option(
    "--runs",
    default=1,
    show_default=True,
    type=WholeNumber(1),
    help="Number of runs; the median of each figure is shown.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=NUMBER",
    help="Change a setting of the benchmark; repeat for several.",
)
@json_option
def bench(name: str, runs: int, settings: tuple[str, ...], as_json: bool) -> None:
    """Run the benchmark NAME on this machine.

    Results vary: compare medians and ratios, not single figures.

    \b
    Examples:
      dekube bench replay --runs 5
      dekube bench rpc --json
    """
    run = _load(name)
    options = _settings(run, settings)
    figures = [dict(run(**options)) for _ in range(runs)]
    medians = {figure: statistics.median(one[figure] for one in figures) for figure in figures[0]}
    if as_json:
        click.echo(json.dumps({"bench": name, "figures": medians, "machine": machine()}))
        return
    width = max(map(len, medians))
    for figure, value in medians.items():
        click.echo(f"{figure:<{width}}  {value:>14,.2f}")


def _settings(run: Any, settings: tuple[str, ...]) -> dict[str, int]:
    known = inspect.signature(run).parameters
    options: dict[str, int] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in known or not (value.isascii() and value.isdigit() and len(value) <= DIGITS_MAX):
            raise click.BadParameter(
                f"{setting[:SHOWN_CHARACTERS]!r}: not NAME=NUMBER; NAME is one of {', '.join(known)}, "
                f"NUMBER has at most {DIGITS_MAX} digits"
            )
        options[key] = int(value)
    return options


def machine() -> dict[str, Any]:
    """Return the machine's data that a reader needs to compare figures of two machines."""
    model = next(
        (line.partition(":")[2].strip() for line in _read("/proc/cpuinfo") if line.startswith("model name")),
        "unknown",
    )
    memory_kib = next((int(line.split()[1]) for line in _read("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": memory_kib // 1024,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _read(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
