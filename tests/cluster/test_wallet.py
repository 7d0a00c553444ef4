"""A wallet and the client library beside a network with a faucet: docs/sdk.md runs, coins come, proofs hold."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from node.cli import group
from rpc.client import Client, GatewayUnreachable
from tests.cluster.network import Network, dekube, network, wait_for

pytestmark = pytest.mark.cluster

EXAMPLES = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs/sdk.md").read_text(), re.DOTALL)
NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    root = tmp_path_factory.mktemp("wallet")
    with network(root / "net", "--workers", "1", "--no-task", "--faucet") as made:
        made.start()
        made.wait_up()
        wait_for(lambda: len(made.call("validator-0", "dekube_getNodes")["items"]) == 5, "all machines registered")
        yield made


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 5


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_examples_of_the_document_run(
    net: Network, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = EXAMPLES[number].replace(".testnet/", f"{net.root}/")
    members = {26604: "validator-0", 26607: "validator-1", 26621: "faucet"}
    # All at once: a port that is drawn here may be one that is written there.
    text = re.sub(r"http://127\.0\.0\.1:(266\d\d)", lambda found: net.url(members[int(found[1])]), text)
    exec(compile(text, f"docs/sdk.md, example {number}", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out or number == 3


@pytest.mark.nightly
def test_the_notebook_trains_a_model_and_asks_it(
    net: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    found: dict[str, Any] = {"__name__": "notebook"}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            text = "".join(cell["source"]).replace(".testnet/", f"{net.root}/")
            text = text.replace("http://127.0.0.1:26604", net.url("validator-0"))
            exec(compile(text, f"docs/notebook.ipynb, cell {number}", "exec"), found)
    said = capsys.readouterr().out
    assert said.count("settled") == 2 and said.count("exact: True") == 2
    assert found["losses"][-1] < found["losses"][0] / 2
    assert "'The Zen of Python, by Tim Peters" in said  # an answer: the text has no quotation mark there


def test_a_fresh_wallet_gets_coins_spends_them_and_believes_nobody(net: Network, tmp_path: Path) -> None:
    passphrase = tmp_path / "passphrase"
    passphrase.write_text("p\n")
    passphrase.chmod(0o600)
    gateways = [word for name in ("validator-0", "validator-1") for word in ("--rpc", net.url(name))]

    def ask(*arguments: object) -> Any:
        asked = () if arguments[0] == "new" else gateways  # which asks nobody
        command = ["wallet", *map(str, arguments), "--home", str(tmp_path), *asked, "--json"]
        done = CliRunner().invoke(group, command, standalone_mode=False, catch_exceptions=False)
        return (
            [json.loads(line) for line in done.stdout.splitlines()]
            if "watch" in command
            else json.loads(done.stdout)
        )

    secret = ("--passphrase-file", passphrase)
    made = ask("new", "me", *secret)
    granted = ask("faucet", "me", "--from", net.url("faucet"))
    assert ask("watch", granted["transaction"])[-1]["receipt"]["succeeded"]
    receipt = ask("send", "0x" + "77" * 20, "2.5", *secret)
    assert receipt["succeeded"] and receipt["from"] == made["address"]
    owned = 10 * 10**18 - 25 * 10**17 - int(receipt["fee"])
    assert int(ask("balance")["balance"]) == owned

    # The state after a block is proven by the next one.
    net.wait_height("validator-0", receipt["block"]["height"] + 2)
    genesis = net.root / "validator-2" / "genesis.json"
    proven = wait_for(
        lambda: found if int((found := ask("balance", "--verify", "--genesis", genesis))["nonce"]) else None,
        "the spent account is proven",
    )
    assert int(proven["balance"]) == owned


def test_a_task_is_posted_followed_and_fetched_without_a_node(net: Network, tmp_path: Path) -> None:
    home = net.root / "validator-0"
    key = ("--key", home / "keys" / "account.json", "--passphrase-file", home / "keys" / "passphrase")
    gateways = [word for name in ("validator-0", "validator-1") for word in ("--rpc", net.url(name))]

    def ask(*arguments: object) -> Any:
        environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)}
        command = [*map(str, arguments), "--home", str(tmp_path / "none"), *gateways, "--json"]
        done = CliRunner(env=environment).invoke(group, command, standalone_mode=False, catch_exceptions=False)
        return json.loads(done.stdout)

    recipe = ("--widths", "64,32,10", "--steps", 240, "--windows", 2, "--seed", "without a node")
    priced = ask("task", "quote", *recipe)
    made = ask("task", "create", *recipe, *key, "--watch")
    assert made["phase"] == "settled"
    assert int(made["locked"]) == int(priced["total"])
    result = ask("task", "result", made["task"], "--out", tmp_path / "model.npz")
    assert result["proved"] and result["samples"] and (tmp_path / "model.npz").exists()

    # The state that the worker made, at a gateway whose node took no part in it, by the task that names it.
    window = net.call("validator-3", "dekube_getTaskWindows", made["task"])["items"][1]
    blob = window["proof"]["output_blob"]
    out = tmp_path / "state"
    only = ("--task", made["task"], "--window", 1, "--rpc", net.url("validator-3"))
    command = [*map(str, ("blob", "get", blob, "--out", out, *only)), "--json"]
    done = CliRunner().invoke(group, command, standalone_mode=False, catch_exceptions=False)
    assert json.loads(done.stdout)["bytes"] == out.stat().st_size == result["bytes"]

    (tmp_path / "data").write_bytes(b"d" * 3_000_000)
    put = ask("blob", "put", tmp_path / "data", *key)
    assert ask("blob", "get", put["blob"], "--out", tmp_path / "back")["bytes"] == 3_000_000
    assert (tmp_path / "back").read_bytes() == (tmp_path / "data").read_bytes()


def test_the_faucet_is_a_member(net: Network) -> None:
    def shown(verb: str) -> dict[str, Any]:
        return next(row for row in net.verb(verb) if row["name"] == "faucet")

    assert shown("list")["rpc"] == net.url("faucet")
    assert {row["height"] > 0 for row in net.verb("status") if row["role"] in ("validator", "worker")} == {True}
    wait_for(lambda: shown("status").get("owns"), "the faucet tells what it owns")
    net.verb("kill", "faucet")
    assert shown("list")["state"] == "killed"
    assert net.state("validator-0") == "running"
    ready = net.root / "faucet/run/ready.json"
    net.verb("restart", "faucet")
    assert shown("list")["state"] == "running" and ready.exists()
    net.verb("stop", "faucet")
    assert shown("list")["state"] == "stopped" and not ready.exists()
    net.verb("restart", "faucet")
    assert shown("list")["state"] == "running"


def test_a_node_drains_says_when_it_is_empty_and_goes_back_to_work(net: Network) -> None:
    """The last one: nobody else asks this node's gateway while it is closed."""
    home, member = net.root / "validator-3", "validator-3"
    address = net.status(member)["address"].lower()

    def drain(*options: str) -> dict[str, Any]:
        done = dekube("node", "drain", "--home", home, "--json", *options)
        assert done.returncode == 0, done.stderr
        state: dict[str, Any] = json.loads(done.stdout)
        return state

    def registered() -> str:
        return str(net.call("validator-0", "dekube_getNode", address)["node"]["status"])

    assert registered() == "active"
    assert drain("--wait")["empty"]
    assert registered() == "suspended"
    with Client(net.url("validator-3")) as client, pytest.raises(GatewayUnreachable):
        client.head()
    height = net.status(member)["height"]
    net.wait_height("validator-0", height + 2)
    assert net.status(member)["draining"] and net.status(member)["height"] > height, "it follows and votes"
    assert not drain("--end")["draining"]
    wait_for(lambda: registered() == "active", "it is on the market again")
    net.call(member, "dekube_head")
    drain("--stop", "--wait")
    wait_for(lambda: net.state(member) in ("ended", "stopped"), "its process ends")
