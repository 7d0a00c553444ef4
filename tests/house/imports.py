"""The import graph: circles, imports against the order of the layers, and which modules reach I/O."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import grimp

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("state", "billing", "tasks", "consensus", "p2p", "relay", "rpc", "node", "testnet")
# Every module of these is pure but for those that exceptions.py lists, each with its reason.
PURE_PACKAGES: Final = (
    "state", "billing", "tasks", "consensus", "p2p", "relay", "rpc.protocol", "rpc.methods", "rpc.ethereum",
    "rpc.client.core", "rpc.client.block_stream", "rpc.client.results", "rpc.client.contracts",
    "rpc.client.arguments", "rpc.client.api", "rpc.client.network", "rpc.client.websocket",
    "rpc.gateway.memory_quota", "node.api.errors", "node.api.reading", "node.api.requests", "node.api.lines",
    "node.api.states", "node.api.prompting", "node.api.records", "node.chain.mempool", "node.consensus.compact",
    "node.consensus.compact_exchange", "node.daemon.reachability", "node.daemon.upgrades",
    "node.market.attempts", "node.market.uploads", "testnet.plan",
    "testnet.wan.topology",
)  # fmt: skip
NOT_PURE: Final = frozenset(
    ("trio", "asyncio", "uvloop", "socket", "select", "selectors", "ssl", "threading", "multiprocessing",
     "subprocess", "concurrent", "os", "fcntl", "shutil", "tempfile", "mmap", "pathlib", "plyvel", "time",
     "datetime", "random", "secrets", "signal", "uvicorn", "structlog", "logging")
)  # fmt: skip


@cache
def graph() -> grimp.ImportGraph:
    """Return the graph of all imports, those that only type checkers see included."""
    return grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)


def own_imports(module: str) -> list[str]:
    """Return the modules of this repository that ``module`` imports."""
    return [name for name in sorted(graph().find_modules_directly_imported_by(module)) if _is_own(name)]


def _is_own(module: str) -> bool:
    return module.partition(".")[0] in PACKAGES


def modules() -> list[str]:
    return [name for name in sorted(graph().modules) if _is_own(name)]


def circles() -> list[list[str]]:
    """Return the groups of modules that import each other (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for start in modules():
        if start in number:
            continue
        number[start] = lowest[start] = len(number)
        stack.append(start)
        path: list[tuple[str, Iterator[str]]] = [(start, iter(own_imports(start)))]
        while path:
            module, rest = path[-1]
            target = next(rest, None)
            if target is None:
                path.pop()
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[module])
                if lowest[module] == number[module]:
                    at = stack.index(module)
                    if len(stack) - at > 1:
                        found.append(sorted(stack[at:]))
                    del stack[at:]
            elif target not in number:
                number[target] = lowest[target] = len(number)
                stack.append(target)
                path.append((target, iter(own_imports(target))))
            elif target in stack:
                lowest[module] = min(lowest[module], number[target])
    return found


def layers() -> dict[str, list[set[str]]]:
    """Return the order of the folders of each package, lowest first, from the contracts in pyproject.toml."""
    document: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    order: dict[str, list[set[str]]] = {}
    for contract in document["tool"]["importlinter"]["contracts"]:
        for container in contract.get("containers", ()):
            rows = reversed(contract["layers"])
            order[container] = [{f"{container}.{name.strip()}" for name in row.split("|")} for row in rows]
    return order


def upward_imports() -> list[str]:
    """Return imports between folders of one package against their order, and folders that have no place in it."""
    found = []
    for package, rows in layers().items():
        height = {folder: number for number, row in enumerate(rows) for folder in row}
        for module in modules():
            folder = _folder(module, package)
            if folder is None:
                continue
            if folder not in height:
                found.append(f"{module} is in no layer of {package}")
                continue
            for target in own_imports(module):
                other = _folder(target, package)
                if other not in (None, folder) and height.get(str(other), -1) >= height[folder]:
                    found.append(f"{module} imports {target}")
    return found


def _folder(module: str, package: str) -> str | None:
    if not module.startswith(package + "."):
        return None
    return package + "." + module.removeprefix(package + ".").partition(".")[0]


def impure() -> dict[str, str]:
    """Return the modules of ``PURE_PACKAGES`` that reach I/O, clocks or chance, with the shortest way there."""
    outside = {name for name in graph().modules if name.partition(".")[0] in NOT_PURE}
    first: dict[str, str] = {}  # module to what it imports on its way to one of them
    front = sorted(outside)
    while front:
        after = []
        for target in front:
            for module in sorted(graph().find_modules_that_directly_import(target)):
                if module not in first and _is_own(module):
                    first[module] = target
                    after.append(module)
        front = after
    ways = {}
    for module in modules():
        if module in first and any(module == name or module.startswith(name + ".") for name in PURE_PACKAGES):
            way, at = [module], module
            while at in first:
                at = first[at]
                way.append(at)
            ways[module] = " -> ".join(way)
    return ways
