"""What people do wrong at the command line: one line that says what to do, the right status, never a traceback."""

from __future__ import annotations

import io
import shlex
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from node.cli import OperatingSystemError, main
from node.cli.run import _written
from node.home.config import dump_options, flat_options, load_options
from node.home.create import create_home
from node.home.keyring import random_key
from node.home.keys import load_key
from node.home.options import NodeOptions
from rpc.client import ClientError, GatewayUnreachable
from rpc.client.control import ControlUnavailable, ask_node
from state.primitives.address import format_address
from state.primitives.errors import ConfigError, DekubeError, KeystoreError
from state.primitives.genesis import Genesis, genesis_to_json
from state.store.errors import StoreIncompatible, StoreOfAnotherChain
from testnet.plan import Placement, make_plan, member_names

PEER = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"


def plan_genesis() -> Genesis:
    placements = {name: Placement("127.0.0.1", "127.0.0.1", 1, 2, 3) for name in member_names(1, 1)}
    return make_plan(validators=1, workers=1, seed=1, time_ms=1, placements=placements).genesis


@pytest.fixture
def genesis(tmp_path: Path) -> Path:
    file = tmp_path / "genesis.json"
    file.write_text(genesis_to_json(plan_genesis()))
    return file


@pytest.fixture(autouse=True)
def cheap_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for command in ("init", "relay", "signer"):
        monkeypatch.setattr(f"node.cli.{command}.create_home", partial(create_home, scrypt_n=16))


@pytest.fixture
def dekube(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["dekube", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.err

    return run


@pytest.mark.parametrize("command", ["init", "relay init", "signer init"])
@pytest.mark.parametrize("where", ["a file", "below a file", "where nobody may write"])
def test_a_home_that_cannot_be_made_is_one_line(
    command: str, where: str, genesis: Path, tmp_path: Path, dekube: Callable[..., tuple[int, str]]
) -> None:
    home = {"a file": genesis, "below a file": genesis / "x", "where nobody may write": Path("/proc/x")}[where]
    unattended = [] if command == "relay init" else ["--unattended"]
    status, said = dekube(*command.split(), "--home", home, "--genesis", genesis, *unattended)
    said = said.removeprefix("Making keys; this takes some seconds ...\n")
    assert status == 1
    assert said.startswith(f"dekube: {home}")
    assert said.endswith("[io_error]\n")
    assert said.count("\n") == 1


def test_a_home_whose_making_was_cut_off_says_how_to_begin_anew(
    genesis: Path, tmp_path: Path, dekube: Callable[..., tuple[int, str]]
) -> None:
    home = tmp_path / "home"
    (home / "keys").mkdir(parents=True)
    (home / "keys" / "passphrase").write_text("half")  # the disk was full, say
    command = ("init", "--home", home, "--genesis", genesis, "--unattended")
    status, said = dekube(*command)
    assert status == 1
    assert f"Move {home / 'keys'} away to start again [config_error]" in said
    assert (home / "keys" / "passphrase").read_text() == "half"
    (home / "keys").rename(tmp_path / "away")
    assert dekube(*command) == (0, "Making keys; this takes some seconds ...\n")


@pytest.mark.parametrize("command", ["init", "relay init", "signer init"])
def test_a_home_is_made_in_no_folder_that_has_something_of_others(
    command: str, genesis: Path, tmp_path: Path, dekube: Callable[..., tuple[int, str]]
) -> None:
    home = tmp_path / "docs"
    home.mkdir()
    for name in "abcd":
        (home / name).write_text("mine")
    unattended = [] if command == "relay init" else ["--unattended"]
    status, said = dekube(*command.split(), "--home", home, "--genesis", genesis, *unattended)
    assert status == 1
    assert f"{home}: the folder is not empty (a, b, c and 1 more)" in said
    assert sorted(path.name for path in home.iterdir()) == list("abcd")


def test_a_home_is_private_also_in_a_folder_that_was_there_and_beside_a_wallet(
    genesis: Path, tmp_path: Path, dekube: Callable[..., tuple[int, str]]
) -> None:
    home = tmp_path / "a home"
    (home / "wallet").mkdir(parents=True)
    home.chmod(0o755)
    status, _ = dekube("init", "--home", home, "--genesis", genesis, "--unattended")
    assert status == 0
    assert [stat.S_IMODE((home / part).stat().st_mode) for part in ("", "keys", "data", "run")] == [0o700] * 4


@pytest.mark.parametrize("command", ["init --genesis g", "node config", "db inspect", "status", "validators"])
@pytest.mark.parametrize("home", ["", " ", "~nobody-of-this-name/x"])
def test_a_home_without_a_name_is_not_the_current_folder(
    command: str,
    home: str,
    tmp_path: Path,
    dekube: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, said = dekube(*command.split(), "--home", home)
    assert (status, "--home" in said) == (2, True)
    assert not list(tmp_path.iterdir())


def test_two_nodes_on_one_machine_have_ports_of_their_own(
    genesis: Path, tmp_path: Path, dekube: Callable[..., tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ("--genesis", genesis, "--unattended", "--base-port", port - 1)
        status, said = dekube("init", "--home", tmp_path / "a b", *arguments)
    assert status == 0
    assert f"another program has the port of rpc.listen (127.0.0.1:{port}) now" in said
    options = load_options(tmp_path / "a b" / "config.toml")
    listens = (options.p2p.listen, options.rpc.listen, options.metrics.listen)
    assert listens == (f":{port - 1}", f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}")
    assert dekube("init", "--home", tmp_path / "c", "--genesis", genesis, "--base-port", 65_534)[0] == 2


def test_the_next_command_survives_a_space_in_the_path(
    genesis: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "my node"
    for command in ("init", "relay init", "signer init"):
        place = home / command.replace(" ", "")
        unattended = [] if command == "relay init" else ["--unattended"]
        monkeypatch.setattr(
            sys, "argv", ["dekube", *command.split(), "--home", str(place), "--genesis", str(genesis), *unattended]
        )
        with pytest.raises(SystemExit):
            main()
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Then: "))
        assert shlex.split(line)[-2:] == ["--home", str(place)]


def test_what_the_system_refused_is_told_with_its_place_or_without() -> None:
    assert str(OperatingSystemError(PermissionError(13, "Permission denied", "/x"))) == "/x: Permission denied"
    assert str(OperatingSystemError(OSError(28, "No space left on device"))) == "No space left on device"
    assert str(OperatingSystemError(TimeoutError())) == "TimeoutError"


def test_several_failures_at_once_are_a_line_each(
    monkeypatch: pytest.MonkeyPatch, dekube: Callable[..., tuple[int, str]]
) -> None:
    def fail(**_: object) -> None:
        full = OSError(28, "No space left on device", "/x")
        raise ExceptionGroup("", [ExceptionGroup("", [ConfigError("one")]), full])

    monkeypatch.setattr("node.cli.group.main", fail)
    assert dekube("status") == (
        1, "dekube: one [config_error]\ndekube: /x: No space left on device [io_error]\n",
    )  # fmt: skip


def test_missing_coins_are_told_in_coins(
    monkeypatch: pytest.MonkeyPatch, dekube: Callable[..., tuple[int, str]]
) -> None:
    message = "insufficient funds for gas * price + value: balance 0, tx cost 1500000000000000000, overshot 1"

    def fail(**_: object) -> None:
        raise ClientError({"message": message, "data": {"reason": "insufficient_funds"}})

    monkeypatch.setattr("node.cli.group.main", fail)
    status, said = dekube("tx", "stake", "1")
    assert status == 1
    assert "balance 0 DKB, cost 1.5 DKB, overshot 0.000000000000000001 DKB" in said.replace("tx cost", "cost")


@pytest.mark.parametrize(
    ("error", "helps"),
    [
        (StoreIncompatible("format 3"), "format 3; install the release that wrote it"),
        (StoreOfAnotherChain("chain 12"), "chain 12; genesis.json is of another network"),
        (GatewayUnreachable("h:1: HTTP status 404"), "h:1: HTTP status 404; the server there is not a gateway"),
    ],
)
def test_what_lower_layers_refuse_is_told_with_what_helps(
    monkeypatch: pytest.MonkeyPatch, dekube: Callable[..., tuple[int, str]], error: DekubeError, helps: str
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr("node.cli.group.main", fail)
    status, said = dekube("status")
    assert (status, helps in said) == (1, True)
    assert said.endswith(f" [{error.code}]\n")


def test_a_faucet_that_is_not_there_is_told_as_one(dekube: Callable[..., tuple[int, str]]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        status, said = dekube("wallet", "faucet", PEER, "--from", f"http://127.0.0.1:{free.getsockname()[1]}")
    assert (status, "no faucet answers at that address" in said, "gateway listens" in said) == (1, True, False)


@pytest.mark.parametrize("option", ["--bootstrap", "--relay"])
@pytest.mark.parametrize("where", ["tcp:127.0.0.1:99999", "127.0.0.1", "tcp:127.0.0.1", "tcp::", "x"])
def test_a_peer_that_cannot_be_dialled_is_refused_before_the_home_is_made(
    option: str, where: str, genesis: Path, tmp_path: Path, dekube: Callable[..., tuple[int, str]]
) -> None:
    home = tmp_path / "home"
    status, said = dekube("init", "--home", home, "--genesis", genesis, "--unattended", option, f"{PEER}@{where}")
    assert (status, home.exists()) == (1, False)
    assert where in said
    assert "0xADDRESS@host:port expected" in said


def test_a_passphrase_that_does_not_fit_names_the_file(tmp_path: Path) -> None:
    home = create_home(
        tmp_path / "home", genesis=plan_genesis(), options=NodeOptions(), account=random_key(), vote=None,
        passphrase="right", scrypt_n=2,
    )  # fmt: skip
    file = home.path("keys/account.json")
    with pytest.raises(KeystoreError, match=f"^{file}: the passphrase does not open this file$"):
        load_key(file, "wrong")
    with pytest.raises(KeystoreError, match=r"^[^\[]*: No such file or directory$"):
        load_key(tmp_path / "nothing", "wrong")


def test_a_genesis_that_cannot_be_read_names_the_file(
    tmp_path: Path, dekube: Callable[..., tuple[int, str]]
) -> None:
    (tmp_path / "bad").write_text("{")
    status, said = dekube("init", "--home", tmp_path / "h", "--unattended", "--genesis", tmp_path / "bad")
    assert (status, said.startswith(f"dekube: {tmp_path / 'bad'}: not valid JSON (line 1")) == (1, True)
    status, said = dekube("init", "--home", tmp_path / "h", "--unattended", "--genesis", tmp_path / "no")
    assert said == f"dekube: {tmp_path / 'no'}: No such file or directory [config_error]\n"


def test_no_passphrase_is_asked_for_a_key_that_is_not_there(
    genesis: Path, tmp_path: Path, dekube: Callable[..., tuple[int, str]]
) -> None:
    status, said = dekube(
        "signer", "init", "--home", tmp_path / "s", "--genesis", genesis, "--unattended", "--keystore", "nothing"
    )
    assert (status, said) == (1, "dekube: nothing: No such file or directory [keystore_error]\n")


def test_a_signer_whose_port_is_taken_says_so_and_may_be_started_again(
    genesis: Path, tmp_path: Path, dekube: Callable[..., tuple[int, str]]
) -> None:
    home = tmp_path / "s"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        dekube(
            "signer", "init", "--home", home, "--genesis", genesis, "--unattended", "--listen", listen, "--client",
            PEER,
        )  # fmt: skip
        status, said = dekube("signer", "run", "--home", home)
    assert status == 1
    assert f"dekube: listen: cannot listen on {listen}: Address already in use; another program has that" in said
    assert said.endswith("[config_error]\n")
    assert not (home / "run/signer.sock").exists()


@pytest.mark.parametrize("option", ["listen", "metrics"])
def test_a_relay_whose_port_is_taken_says_so_and_may_be_started_again(
    option: str, genesis: Path, tmp_path: Path, dekube: Callable[..., tuple[int, str]]
) -> None:
    home = tmp_path / "r"
    dekube("relay", "init", "--home", home, "--genesis", genesis)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = {"listen": "127.0.0.1:0", "metrics": "127.0.0.1:0"}
        ports[option] = f"127.0.0.1:{taken.getsockname()[1]}"
        (home / "config.toml").write_text(
            "".join(f'{name} = "{value}"\n' for name, value in {"kind": "relay", **ports}.items())
        )
        status, said = dekube("relay", "run", "--home", home)
    assert status == 1
    assert f"dekube: {option}: cannot listen on {ports[option]}: Address already in use; another program" in said
    assert not (home / "run/ready.json").exists()


def test_a_faucet_whose_port_is_taken_asks_for_no_passphrase(
    tmp_path: Path, dekube: Callable[..., tuple[int, str]]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        status, said = dekube("faucet", "run", "--home", tmp_path, "--rpc", "http://h:1", "--listen", listen)
    assert status == 1
    assert f"dekube: --listen: cannot listen on {listen}: Address already in use; another program" in said


def test_a_node_whose_port_is_taken_does_not_start_and_says_which(
    genesis: Path, tmp_path: Path, dekube: Callable[..., tuple[int, str]]
) -> None:
    home = tmp_path / "home"
    dekube("init", "--home", home, "--genesis", genesis, "--unattended")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        for part in ("p2p", "rpc", "metrics", "admin"):
            listens = {"p2p": "127.0.0.1:0", "rpc": "", "metrics": "", "admin": "", part: listen}
            tables = [f'[{name}]\nlisten = "{where}"' for name, where in listens.items()]
            (home / "config.toml").write_text(
                "\n".join(('kind = "node"', 'roles = ["verify"]', '[sync]\nmode = "blocks"', *tables))
            )
            status, said = dekube("node", "run", "--home", home)
            assert status == 1
            [line] = [line for line in said.splitlines() if line.startswith("dekube: ")]
            assert f"{part}.listen: cannot listen on {listen}: Address already in use; " in line
            assert line.endswith("[config_error]")
            assert not (home / "run/node.sock").exists()


def test_a_node_that_does_not_run_is_told_with_what_starts_it(tmp_path: Path) -> None:
    with pytest.raises(ControlUnavailable, match=r"\(No such file or directory\); `dekube node run` starts it$"):
        ask_node(tmp_path / "control.sock", "status")


def test_every_option_is_shown_with_its_value(tmp_path: Path, genesis: Path) -> None:
    shown = flat_options(NodeOptions())
    assert shown["p2p.listen"] == ":26656"
    assert shown["roles"] == ("verify",)
    assert _written(shown["roles"]) == '["verify"]'
    file = tmp_path / "config.toml"
    file.write_text(dump_options(NodeOptions()))
    assert flat_options(load_options(file)) == shown
    assert file.read_text().startswith("# ")


def test_a_config_is_checked_before_a_restart(
    genesis: Path, tmp_path: Path, dekube: Callable[..., tuple[int, str]]
) -> None:
    home = tmp_path / "home"
    dekube("init", "--home", home, "--genesis", genesis, "--unattended")
    assert dekube("node", "config", "--home", home) == (0, "")
    account = home / "keys" / "account.json"
    text = account.read_text()
    account.unlink()
    status, said = dekube("node", "config", "--home", home)
    assert (status, f"{account}: no such file; keys.account in {home}" in said) == (1, True)
    account.write_text("{}")
    status, said = dekube("node", "config", "--home", home)
    assert (status, said.startswith(f"dekube: {account}: ")) == (1, True)
    account.write_text(text)
    (home / "config.toml").write_text('kind = "node"\nroles = ["validator"]\n')
    status, said = dekube("node", "config", "--home", home)
    assert (status, "vote.json: no such file; keys.vote in" in said) == (1, True)
    (home / "config.toml").write_text('kind = "node"\n')
    (home / "genesis.json").rename(tmp_path / "away.json")
    status, said = dekube("node", "config", "--home", home)
    assert (status, f"{home / 'genesis.json'}: No such file" in said) == (1, True)
    (tmp_path / "away.json").rename(home / "genesis.json")
    assert dekube("node", "config", "--home", home) == (0, "")
    with (home / "config.toml").open("a") as file:
        file.write("[rpc]\nlistn = ''\n")
    status, said = dekube("node", "config", "--home", home)
    assert status == 1
    assert "did you mean rpc.listen" in said


def test_a_relay_s_number_beyond_all_sizes_is_named(
    genesis: Path, tmp_path: Path, dekube: Callable[..., tuple[int, str]]
) -> None:
    home = tmp_path / "home"
    dekube("relay", "init", "--home", home, "--genesis", genesis)
    (home / "config.toml").write_text(f'kind = "relay"\n[limits]\ncircuits_max = {10**30}\n')
    status, said = dekube("relay", "run", "--home", home)
    assert (status, f"limits.circuits_max: {10**30} is out of range" in said) == (78, True)


def test_addresses_are_shown_with_their_checksum() -> None:
    from node.cli.workers import _shown

    assert _shown(PEER.lower()) == PEER == format_address(bytes.fromhex(PEER[2:]))


@pytest.mark.parametrize("command", ["init", "signer init", "relay init", "genesis found"])
def test_a_home_that_is_there_is_refused_before_a_passphrase_is_asked_for(
    command: str, genesis: Path, tmp_path: Path, dekube: Callable[..., tuple[int, str]]
) -> None:
    home, draft = tmp_path / "home", tmp_path / "draft.json"
    home.mkdir()
    (home / "config.toml").touch()
    terms: tuple[object, ...] = ("--genesis", genesis)
    if command == "genesis found":
        dekube("genesis", "draft", "--name", "x", "--chain-id", 7, "--start", "now", "--out", draft)
        terms = ("--draft", draft, "--stake", 1000)
    status, said = dekube(*command.split(), "--home", home, *terms)
    assert (status, said) == (
        1,
        f"dekube: {home}: this is already the home of a node; nothing was changed [config_error]\n",
    )


@pytest.mark.parametrize("what", ["relay", "signer"])
def test_a_home_that_is_not_there_is_told_with_what_makes_it(
    tmp_path: Path, dekube: Callable[..., tuple[int, str]], what: str
) -> None:
    status, said = dekube(what, "run", "--home", tmp_path)
    assert status == 1  # the system said so: the home may be there at the next start
    assert f"no such file; `dekube {what} init` makes one [config_error]" in said


def test_where_nobody_can_be_asked_for_a_passphrase_it_is_said(
    genesis: Path, tmp_path: Path, dekube: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for stdin in (None, io.TextIOWrapper(io.BytesIO())):  # closed, or empty as that of a service
        monkeypatch.setattr(sys, "stdin", stdin)
        status, said = dekube("init", "--home", tmp_path / "home", "--genesis", genesis)
        assert status == 1
        assert said.startswith("dekube: no terminal to prompt for the passphrase, and standard input is empty: ")
        assert "--passphrase-file" in said and said.count("\n") == 1
        assert not (tmp_path / "home").exists()


def test_a_gateway_that_is_not_there_is_told_with_what_to_do(
    dekube: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        status, said = dekube("validators", "--home", tmp_path, "--rpc", f"127.0.0.1:{free.getsockname()[1]}")
    assert status == 1
    assert "no gateway listens there: start the node (dekube node run), or give another with --rpc" in said


@pytest.mark.parametrize("place", ["docs", "home/data/chain"])
def test_a_folder_that_is_no_database_is_left_as_it_is(
    place: str, genesis: Path, tmp_path: Path, dekube: Callable[..., tuple[int, str]]
) -> None:
    home, folder = tmp_path / "home", tmp_path / place
    dekube("init", "--home", home, "--genesis", genesis, "--unattended")
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    lines: list[tuple[object, ...]] = [("db", "report-fork", 5, "--database", folder, "--home", home)]
    if place != "docs":
        lines += [("db", *verb.split(), "--home", home) for verb in ("inspect", "verify", "prune", "rollback 1")]
    for line in lines:
        status, said = dekube(*line)
        assert status in (1, 2) and "no database" in said, (line, said)
        assert [file.name for file in folder.iterdir()] == ["mine.txt"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("closed", "status", "said"),
    [
        (">&-", 1, "dekube: standard output: Bad file descriptor [io_error]\n"),
        (">/dev/full", 1, "dekube: standard output: No space left on device [io_error]\n"),
        ("<&- >&- 2>&-", 1, ""),
        ("<&- 2>&-", 0, ""),
    ],
)
def test_what_cannot_be_printed_is_no_success(closed: str, status: int, said: str, genesis: Path) -> None:
    line = shlex.join([sys.executable, "-c", "from node.cli import main; main()", "genesis", "show", str(genesis)])
    done = subprocess.run(f"{line} {closed}", shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, said)
    assert ("chain_id" in done.stdout) == (status == 0)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["draft --name x --chain-id 7", "seal draft.json founder.json"])
def test_a_file_whose_report_cannot_be_printed_can_be_written_again(verb: str, tmp_path: Path) -> None:
    """The next try would find it and refuse; nobody was told its hash."""
    line = f"{sys.executable} -c 'from node.cli import main; main()' genesis"
    made = (
        f"{line} draft --name x --chain-id 7 --out draft.json && {line} found --draft draft.json --stake 100000 "
        "--home founder --unattended && cp founder/founder.json ."
    )
    subprocess.run(made, shell=True, check=True, cwd=tmp_path, capture_output=True)
    for output, status in ((">/dev/full", 1), ("| true", 0), (" >/dev/null", 0)):
        (tmp_path / "new.json").unlink() if output == " >/dev/null" else None
        done = subprocess.run(
            f"{line} {verb} --out new.json {output}", shell=True, check=False, cwd=tmp_path, capture_output=True
        )
        assert done.returncode == status, done.stderr
        assert (tmp_path / "new.json").exists() == (status == 0)


@pytest.mark.parametrize(
    "line",
    [
        "genesis draft --name x --chain-id 7 --out -",
        "genesis seal draft.json founder.json --out -",
        "node guard export -",
        "signer export -",
        "wallet export --out -",
        "blob get 0x" + "ab" * 32 + " --out -",
        "task quote --save -",
        "task result 0x" + "ab" * 32 + " --out -",
        "contracts -",
    ],
)
def test_no_file_gets_the_name_of_standard_output(
    line: str, dekube: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, said = dekube(*line.split())
    assert status == 2 and "'-' is not supported: name a file" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("line", ["wallet send X -1", "tx stake -5", "db rollback -1", "relay withdraw -.5"])
def test_a_negative_amount_is_told_as_one(line: str, dekube: Callable[..., tuple[int, str]]) -> None:
    status, said = dekube(*line.split())
    assert status == 2 and "a negative number; amounts and counts begin at 0" in said


def test_what_was_typed_breaks_no_error_into_lines(
    dekube: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in (["testnet", "list"], ["testnet", "wan", "network", "pair"]):
        status, said = dekube(*line, "--dir", "a\ndekube: all is well")
        assert status == 2 and "control characters" in said
        assert not any(one.startswith("dekube:") for one in said.splitlines())


def test_a_broken_link_is_told_and_not_taken_for_a_file_that_is_not_there(
    genesis: Path, tmp_path: Path, dekube: Callable[..., tuple[int, str]]
) -> None:
    home = tmp_path / "home"
    assert dekube("init", "--home", home, "--genesis", genesis, "--unattended")[0] == 0
    for name, line in (
        ("keys/passphrase", ("wallet", "sign", "hello")),
        ("genesis.json", ("wallet", "send", "0x" + "11" * 20, "1", "--rpc", "http://127.0.0.1:1")),
    ):
        saved = (home / name).read_bytes()
        (home / name).unlink()
        (home / name).symlink_to(tmp_path / "gone")
        status, said = dekube(*line, "--home", home)
        assert status == 1 and str(home / name) in said and "No such file" in said, said
        (home / name).unlink()
        (home / name).write_bytes(saved)
        (home / name).chmod(0o600)
