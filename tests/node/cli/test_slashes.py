"""``dekube slashes`` against a real gateway of a chain that has punished."""

from __future__ import annotations

import json
from pathlib import Path

import trio
from click.testing import CliRunner, Result

from node.cli import group
from node.cli.slashes import _jail
from state.primitives.address import format_address
from tests.rpc.harness import BOB, COIN, VALIDATORS, Node, gateway, served
from tests.rpc.methods.test_evidence import faults, mint


async def slashes(*arguments: str) -> Result:
    def run() -> Result:
        return CliRunner().invoke(group, ["slashes", *arguments], standalone_mode=False)

    return await trio.to_thread.run_sync(run)


async def test_who_was_slashed_is_listed_for_people_and_for_machines(tmp_path: Path) -> None:
    node = Node(tmp_path / "chain")
    try:
        async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
            node.mint()
            where = ("--rpc", it.url, "--home", str(tmp_path / "nowhere"))
            empty = await slashes(*where, "--json")
            assert json.loads(empty.stdout) == {"epoch": 0, "slashes": [], "jailed": []}
            shown = await slashes(*where)
            assert shown.exception is None and shown.stdout == "Slashed: none.\nJailed: none.\n"

            mint(node, faults(node)[1:])
            await it.call("dekube_head", min_height=2)
            found = json.loads((await slashes(*where, "--json")).stdout)
            (slash,) = found["slashes"]
            assert slash == (await it.call("dekube_getSlashes"))["items"][0]
            culprit = format_address(VALIDATORS[1].address)
            assert slash["operator"] == culprit and int(slash["taken"]) == 5_000 * COIN
            shown = await slashes(*where)
            assert shown.exception is None
            for word in ("E1: two NOTARIZE", "5000 DKB (100 %)", "250 DKB"):
                assert word in " ".join(shown.stdout.replace("│", " ").split()), shown.stdout
            assert culprit[:8] in shown.stdout and format_address(BOB.address)[:8] in shown.stdout
    finally:
        node.store.close()


async def test_without_a_gateway_it_says_so_in_one_line(tmp_path: Path) -> None:
    done = await slashes("--rpc", "http://127.0.0.1:1", "--home", str(tmp_path))
    assert done.exception is not None and getattr(done.exception, "code", "") == "gateway_unreachable"


def test_a_jail_is_told_in_epochs_from_now() -> None:
    one = {"operator": "0x1", "until_epoch": 12, "times": 2, "stake": str(3 * COIN)}
    assert _jail(one, 10) == {
        "operator": "0x1", "until": "epoch 12, 2 from now", "times in a row": 2, "stake": "3 DKB",
    }  # fmt: skip
    assert _jail(one | {"until_epoch": None}, 10)["until"] == "for ever"
