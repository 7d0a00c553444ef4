"""``dekube light`` against a real gateway of a node whose chain has passed several epochs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from consensus.light import Fork
from consensus.wire import decode_certificate
from node.cli import group
from node.cli.light import CHECKPOINT
from node.light.client import NoEndpoint, Source, load_light_file, save_light_file
from state.primitives.errors import ConfigError, DekubeError
from state.primitives.genesis import genesis_to_json
from state.primitives.transactions import decode_transaction
from state.transition.evidence import decode_evidence
from tests.consensus.lightchain import SENDER
from tests.node.light.test_client import CHAIN, OTHER, Gateway, Twisted, changed, saved
from tests.rpc.harness import ALICE, BOB, COIN, DAVE, Node, gateway, hexed, served, transfer

EPOCH_BLOCKS = 4


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, ["light", *(str(argument) for argument in arguments)], standalone_mode=False)


class Shell:
    """Runs commands in a thread, so that the node's backend goes on."""

    def __init__(self, home: Path) -> None:
        self.home = home

    async def result(self, *arguments: object) -> Result:
        return await trio.to_thread.run_sync(partial(run, *arguments, "--home", self.home))

    async def json(self, *arguments: object) -> Any:
        done = await self.result(*arguments, "--json")
        if done.exception is not None:
            raise done.exception
        return json.loads(done.stdout)


@pytest.mark.slow
async def test_everything_is_proven_from_the_genesis_and_from_a_checkpoint(tmp_path: Path) -> None:
    node = Node(tmp_path / "db", epoch_blocks=EPOCH_BLOCKS)
    (tmp_path / "genesis.json").write_text(genesis_to_json(node.genesis))
    sent = transfer(ALICE, 0, BOB.address, 5 * COIN)
    node.pool.add(node.runtime.check(_recovered(sent)))
    node.mint(3 * EPOCH_BLOCKS + 2)
    hash_ = hexed(decode_transaction(sent).hash)
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        shell = Shell(tmp_path / "light")
        with pytest.raises(DekubeError):  # that chain is years old
            await shell.json("init", "--genesis", tmp_path / "genesis.json", "--rpc", it.url)
        begun = await shell.json("init", "--genesis", tmp_path / "genesis.json", "--rpc", it.url, "--accept-old")
        assert (begun["epoch"], begun["genesis_hash"]) == (0, hexed(node.runtime.genesis_hash))
        with pytest.raises(ConfigError):  # nothing is forgotten by mistake
            await shell.json("init", "--genesis", tmp_path / "genesis.json", "--rpc", it.url, "--accept-old")
        followed = await shell.json("sync")
        assert (followed["epoch"], followed["height"], followed["head_height"]) == (3, 12, 14)
        assert followed["endpoints"] == [{"url": it.url, "proven_height": 14, "banned": None, "note": None}]

        account = await shell.json("account", hexed(BOB.address))
        assert account["balance"] == str(10_005 * COIN) and account["height"] == 13
        assert (await shell.json("account", hexed(BOB.address), "--height", 0))["balance"] == str(10_000 * COIN)
        assert (await shell.json("account", hexed(ALICE.address)))["nonce"] == 1
        assert (await shell.json("account", hexed(DAVE.address)))["balance"] == "0"
        placed = await shell.json("tx", hash_)
        assert (placed["height"], placed["position"], placed["raw"]) == (1, 0, hexed(sent))
        assert placed["from"].lower() == hexed(ALICE.address)
        receipt = await shell.json("receipt", hash_)
        assert receipt["succeeded"] is True and int(receipt["fee"]) > 0
        header = await shell.json("header", 8)
        known = node.store.height(8)
        assert known is not None and header["hash"] == hexed(known.block_hash)
        with pytest.raises(DekubeError) as told:
            await shell.json("tx", "0x" + "ab" * 32)
        assert told.value.code == "not_shown"
        for words in (("account", hexed(BOB.address)), ("receipt", hash_), ("header", 8), ("status",), ("sync",)):
            done = await shell.result(*words)
            assert done.exception is None and done.stdout

        other = Shell(tmp_path / "other")
        begun = await other.json("init", "--checkpoint", f"8:{header['hash']}", "--rpc", it.url, "--accept-old")
        assert (begun["epoch"], begun["genesis_hash"]) == (2, hexed(node.runtime.genesis_hash))
        assert (await other.json("sync"))["epoch"] == 3
        assert (await other.json("receipt", hash_, "--rpc", it.url, "--rpc", "http://127.0.0.1:1"))["height"] == 1
        assert len(load_light_file(tmp_path / "other" / "light.json").endpoints) == 2
        with pytest.raises(DekubeError):
            await Shell(tmp_path / "x").json("init", "--checkpoint", f"7:{header['hash']}", "--rpc", it.url)


async def test_a_fork_is_brought_to_a_node_which_convicts_and_tells_the_others(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    (tmp_path / "genesis.json").write_text(genesis_to_json(node.genesis))
    node.mint(2)
    one, other = (decode_certificate(node.certificate(name * 32, 7)) for name in (b"a", b"b"))
    file = tmp_path / "light" / "light.json"
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        shell = Shell(file.parent)
        await shell.json("init", "--genesis", tmp_path / "genesis.json", "--rpc", it.url, "--accept-old")
        with pytest.raises(ConfigError):
            await shell.json("fork")
        forged = other._replace(signatures=bytes(len(other.signatures)))
        for second, refusal in ((other, ""), (forged, "signed")):
            kept = load_light_file(file)
            found = Fork(7, node.voting, (b"a" * 32, b"b" * 32), (one, second))
            save_light_file(file, kept._replace(fork=found))
            shown = await shell.json("fork")
            assert (shown["convicted"], shown["reports"]) == (2, [])
            if refusal:
                with pytest.raises(NoEndpoint) as refused:
                    await shell.json("fork", "--submit", it.url)
                assert refusal in refused.value.reasons[it.url]
                continue
            words = (
                "fork",
                "--submit",
                it.url,
                "--submit",
                "http://127.0.0.1:1",
                "--reporter",
                hexed(BOB.address),
            )
            shown = await shell.json(*words)
            report, dead = shown["reports"]
            assert (report["convicted"], report["new"], report["refused"]) == (2, 2, None)
            assert set(report["operators"]) == set(shown["suspects"])
            assert dead["convicted"] == 0 and dead["refused"]
            done = await shell.result(*words)
            assert done.exception is None and "Submitted" in done.stdout
        assert len(node.gossiped) == 2
        assert {decode_evidence(raw).reporter for raw in node.gossiped} == {BOB.address}
        save_light_file(
            file, load_light_file(file)._replace(fork=Fork(7, node.voting, (b"a" * 32,) * 2, (None, None)))
        )
        with pytest.raises(ConfigError):
            await shell.json("fork", "--submit", it.url)
    node.store.close()


def _recovered(raw: bytes) -> Any:
    transaction = decode_transaction(raw)
    transaction.recover_sender()
    return transaction


class OfChain:
    """A gateway of the chain of a genesis; it answers nothing else."""

    def __init__(self, genesis: bytes) -> None:
        self.genesis = genesis

    def call(self, _method: str, *_params: Any) -> Any:
        return {"genesis_hash": hexed(self.genesis)}


DEAD = "http://127.0.0.1:1"


def test_endpoints_are_added_removed_and_forgiven(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    (tmp_path / "genesis.json").write_text(genesis_to_json(node.genesis))
    node.store.close()
    file, home = tmp_path / "light" / "light.json", ("--home", tmp_path / "light", "--json")

    def urls(done: Result) -> list[str]:
        assert done.exception is None, done.exception
        return [row["url"] for row in json.loads(done.stdout)]

    ours = OfChain(node.runtime.genesis_hash)
    with listening(ours) as a, listening(ours) as b, listening(OfChain(b"x" * 32)) as foreign:
        init = ("init", "--genesis", tmp_path / "genesis.json", "--accept-old", *home)
        assert isinstance(run(*init, "--rpc", DEAD).exception, NoEndpoint)
        wrong = run(*init, "--rpc", a, "--rpc", foreign).exception
        assert isinstance(wrong, ConfigError) and "is that the right genesis file?" in str(wrong)
        assert foreign in str(wrong) and "78" * 32 in str(wrong) and not file.exists()
        begun = run(*init, "--rpc", a, "--rpc", DEAD)
        assert begun.exception is None and f"Note: {DEAD} does not answer now" in begun.stderr
        assert urls(run("endpoints", "--add", b, *home)) == [a, DEAD, b]
        assert urls(run("endpoints", "--remove", a, "--remove", DEAD, *home)) == [b]
        for refused, said in (
            (("--remove", a), f"{a} is not an endpoint; the endpoints are: {b}"),
            (("--unban", "c"), "c is not an endpoint"),
            (("--unban", b), "is not banned"),
            (("--add", b), "is already an endpoint"),
            (("--add", "ftp://x"), "not the URL of a gateway"),
            (("--add", "http://["), "not the URL of a gateway"),
            (("--add", "foo bar"), "not the URL of a gateway"),
            (("--add", DEAD), "refused"),
            (("--add", foreign), "is that the right genesis file?"),
            (("--remove", b), "no endpoint would be left: there is no other endpoint. Nothing was changed"),
        ):
            found = run("endpoints", *refused, *home).exception
            assert isinstance(found, ConfigError | NoEndpoint) and said in str(found), (refused, found)
        assert urls(run("endpoints", *home)) == [b]
        assert urls(run("endpoints", "--add", a, *home)) == [b, a]
        kept = load_light_file(file)
        kept.endpoints[1].banned = "lied"
        save_light_file(file, kept)
        last = run("endpoints", "--remove", b, *home).exception
        assert isinstance(last, ConfigError) and "all others are banned" in str(last)
        assert urls(run("endpoints", "--remove", b, "--unban", a, *home)) == [a]


def test_a_wrong_genesis_is_named_and_costs_no_gateway_its_name(tmp_path: Path) -> None:
    """With --verify: also where a light client is there, whose genesis is not that of the file."""
    node = Node(tmp_path / "db")
    right, wrong = tmp_path / "right.json", tmp_path / "wrong.json"
    right.write_text(genesis_to_json(node.genesis))
    wrong.write_text(genesis_to_json(replace(node.genesis, name="another")))
    node.store.close()
    file = tmp_path / "home" / "light" / "light.json"
    who = hexed(SENDER.address)
    command = ["wallet", "balance", who, "--verify", "--home", str(tmp_path / "home")]

    def verify(*options: object) -> Any:
        done = CliRunner().invoke(group, [*command, *map(str, options)], standalone_mode=False)
        return done.exception

    with listening(OfChain(node.runtime.genesis_hash)) as honest:
        found = verify("--genesis", wrong, "--rpc", honest)
        assert isinstance(found, ConfigError) and "is that the right genesis file?" in str(found)
        assert not file.exists(), "a wrong beginning is not kept"
        file.parent.mkdir(parents=True)
        save_light_file(file, saved(honest, accepts_old_root=True))  # of a third chain
        for named in (wrong, right):
            found = verify("--genesis", named, "--rpc", honest)
            assert isinstance(found, ConfigError) and str(found).startswith(f"{named}: the genesis hash is 0x")
            assert f"but {file} trusts the chain" in str(found)
        found = verify("--genesis", tmp_path / "none.json", "--rpc", honest)
        assert isinstance(found, ConfigError) and "No such file" in str(found)
        found = verify("--rpc", honest)
        assert isinstance(found, NoEndpoint) and "it is of another chain: its genesis has the hash" in str(found)
        assert [endpoint.banned for endpoint in load_light_file(file).endpoints] == [""]


@pytest.mark.parametrize(
    "arguments",
    [
        ("init", "--rpc", "a"),
        ("init", "--genesis", "x"),
        ("init", "--checkpoint", "5", "--rpc", "a"),
        ("init", "--checkpoint", "0:" + "ab" * 32, "--rpc", "a"),
        ("init", "--checkpoint", "9" * 30 + ":" + "ab" * 32, "--rpc", "a"),
        ("account", "0x12"),
        ("tx", "12"),
        ("header", "0"),
        ("status",),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = run(*arguments, "--home", tmp_path)
    assert done.exception is not None and "\n" not in str(done.exception)


def test_a_checkpoint_has_one_spelling_and_a_hash() -> None:
    assert CHECKPOINT.convert("8:0x" + "AB" * 32, None, None) == (8, b"\xab" * 32)


@contextmanager
def listening(source: Source) -> Iterator[str]:
    """Serve ``source`` by HTTP; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answer = source.call(request["method"], *request.get("params", ()))
            body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": answer}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_liar_is_named_and_another_answers(tmp_path: Path) -> None:
    save_light_file(tmp_path / "light.json", saved(accepts_old_root=True))
    liar = Twisted(changed("value", "dekube_getAccountProof"))
    with listening(liar) as false, listening(Gateway(CHAIN)) as true:
        asked = ("--rpc", false, "--rpc", true, "--home", tmp_path)
        done = run("account", hexed(SENDER.address), *asked)
        assert done.exception is None and true in done.stdout
        assert f"banned {false}: proof_invalid" in done.stderr
        assert "s old: ask more of them" in done.stderr
        rows = json.loads(run("status", "--home", tmp_path, "--json").stdout)["endpoints"]
        assert [row["url"] for row in rows if row["banned"]] == [false]
        assert "banned" in run("endpoints", "--home", tmp_path).stdout
        cleared = run("endpoints", "--unban", false, "--home", tmp_path, "--json")
        assert [row["banned"] for row in json.loads(cleared.stdout)] == [None, None]


def test_a_fork_ends_trust_and_is_shown_with_its_proof(tmp_path: Path) -> None:
    save_light_file(tmp_path / "light.json", saved(accepts_old_root=True))
    with listening(Gateway(CHAIN)) as one, listening(Gateway(OTHER)) as other:
        asked = ("--rpc", one, "--rpc", other, "--home", tmp_path)
        for _ in range(2):  # the second time it is known from the file
            done = run("sync", *asked)
            assert isinstance(done.exception, DekubeError) and done.exception.code == "fork_found"
    shown = json.loads(run("status", "--home", tmp_path, "--json").stdout)["fork"]
    assert shown["height"] == 20 and shown["convicted"] == len(shown["suspects"]) == 4
    assert all(shown["certificates"])
    assert "fork, suspects" in run("status", "--home", tmp_path).stdout
