from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.home.config import (
    BOUNDS,
    dump_options,
    flat_options,
    load_options,
    parse_host_port,
    parse_listen,
    parse_peer,
)
from node.home.options import NetworkOptions, NodeOptions, RegistryOptions, RpcOptions
from node.process.ports import format_host_port
from state.primitives.errors import ConfigError

PEER = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266@tcp:example.org:26656"


KIND = 'kind = "node"\n'


def load(tmp_path: Path, text: str) -> NodeOptions:
    file = tmp_path / "config.toml"
    file.write_text(KIND + text)
    return load_options(file)


def test_a_file_with_its_kind_alone_is_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, "") == NodeOptions()


def test_what_is_dumped_is_loaded(tmp_path: Path) -> None:
    options = replace(
        NodeOptions(),
        roles=("validator", "compute"),
        p2p=NetworkOptions(listen="", bootstrap=(PEER,), relays=(PEER.replace("tcp:", ""),)),
        registry=RegistryOptions(price_per_tera_unit=10**21),
        rpc=RpcOptions(hosts=('a "quoted" \\ name\n',)),
    )
    file = tmp_path / "config.toml"
    file.write_text(dump_options(options))
    assert load_options(file) == options


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("role = []", "did you mean roles"),
        (f"[signer]\nvote_key_next = '{'ab' * 32}'", "set without endpoint"),
        (
            f"[signer]\nendpoint = 'unix:s'\nvote_key = '0x{'ab' * 32}'\nvote_key_next = '{'AB' * 32}'",
            "vote_key_next equals vote_key",
        ),
        (f"[signer]\nendpoint = 'unix:s'\nvote_key = '{'ab' * 32}'\nvote_key_next = 'x'", "a vote key"),
        ("[developer]\nprotocol_version = 256", "developer.protocol_version: 256 is out of range; 0 to 255"),
        ("[p2p]\nlistne = 'x:1'", "did you mean p2p.listen"),
        ("roles = ['miner']", "'miner' is none of"),
        ("p2p = 1", "p2p: a table expected"),
        ("[p2p]\nlisten = 1", "p2p.listen: str expected"),
        ("[p2p]\nlisten = 'x'", "host:port expected"),
        ("[p2p]\nlisten = 'x:99999'", "host:port expected"),
        ("[p2p]\nlisten = ''", "needs relays or bootstrap"),
        ("[p2p]\nbootstrap = ['1.2.3.4:5']", "0xADDRESS"),
        ("[p2p]\nbootstrap = ['0xf39fd6e51aad88F6F4ce6aB8827279cffFb92266@tcp:h:1']", "checksum"),
        ("[p2p]\ninbound_max = -1", "negative"),
        (
            f"[mempool]\ntransactions_max = {10**26}",
            f"mempool.transactions_max: {10**26} is out of range; 1 to 10000000",
        ),
        (f"[mempool]\ntransactions_max = '{10**26}'", "mempool.transactions_max: 10{26} is out of range"),
        ("[mempool]\nbytes_max = 0", "mempool.bytes_max: 0 is out of range; 1 to "),
        ("[rpc]\nlisten = ':9100'", "rpc.listen and metrics.listen: both use port 9100"),
        ("[admin]\nlisten = '127.0.0.1:8545'", "rpc.listen and admin.listen: both use port 8545"),
        ("[p2p]\ninbound_max = true", "int expected"),
        ("[log]\nlevel = 'loud'", "none of"),
        ("[executor]\nbackend = 'magic'", "not known"),
        ("= 1", "config.toml"),
        ('[rpc]\ntrusted_proxies = ["10.0.0.1/8"]\n', "rpc.trusted_proxies: .*host bits"),
        ("a" * (1 << 20) + "\n", "too large"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(tmp_path, text)


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dekube init"):
        load_options(tmp_path / "none.toml")


def test_every_number_has_its_bounds_and_the_defaults_are_within() -> None:
    numbers = {name: value for name, value in flat_options(NodeOptions()).items() if type(value) is int}
    assert numbers.keys() == BOUNDS.keys()
    assert all(least <= numbers[name] <= most for name, (least, most) in BOUNDS.items())


def test_parts_may_have_one_port_on_different_addresses(tmp_path: Path) -> None:
    text = "[rpc]\nlisten = '127.0.0.1:9000'\n[metrics]\nlisten = '127.0.0.2:9000'"
    assert load(tmp_path, text).metrics.listen == "127.0.0.2:9000"
    assert load(tmp_path, "[rpc]\nlisten = '127.0.0.1:0'\n[metrics]\nlisten = '127.0.0.1:0'")


def test_addresses_to_listen_at_are_one_or_a_list(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        KIND + '[rpc]\nlisten = ["127.0.0.1:1", "[::1]:1"]\n[p2p]\nlisten = [":2"]\n'
        '[admin]\nlisten = "127.0.0.1:3,[::1]:3"\n'
    )
    options = load_options(path)
    assert parse_listen(options.rpc.listen) == (("127.0.0.1", 1), ("::1", 1))
    assert (options.p2p.listen, parse_listen(options.metrics.listen)) == (":2", (("127.0.0.1", 9100),))
    path.write_text(dump_options(options))
    assert load_options(path) == options
    for wrong, says in (
        ('[rpc]\nlisten = ["127.0.0.1:1", 2]', "rpc.listen"),
        ('[rpc]\nlisten = [":1", "h"]', "rpc.listen: 'h'"),
        ('[admin]\nlisten = ["127.0.0.1:1", ":2"]', "not on the loopback"),
        ('[metrics]\nlisten = [":1", "127.0.0.1:2"]\n[rpc]\nlisten = "127.0.0.1:2"', "both use port 2"),
        ('[metrics]\nlisten = [":1", ":1"]', "twice"),
    ):
        path.write_text(KIND + wrong)
        with pytest.raises(ConfigError, match=says):
            load_options(path)


def test_a_file_that_is_no_text_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(KIND.encode() + b"\xff")
    with pytest.raises(ConfigError, match=r"config.toml: not UTF-8 text \(line 2\)"):
        load_options(file)
    file.write_bytes(b"\xef\xbb\xbf" + KIND.encode() + b"roles = []\n")
    assert load_options(file).roles == ()


@settings(max_examples=200)
@given(st.text(max_size=80))
def test_any_text_is_options_or_the_typed_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.toml"
    file.write_text(KIND + text, encoding="utf-8", errors="surrogatepass")
    try:
        load_options(file)
    except ConfigError:
        pass


def test_a_peer_reads_back_as_it_was_written() -> None:
    assert str(parse_peer(PEER)) == PEER


@pytest.mark.parametrize("place", [("relay.example", 26_680), ("192.0.2.1", 0), ("2001:db8::1", 65_535), ("", 1)])
def test_an_address_is_read_as_it_was_written(place: tuple[str, int]) -> None:
    assert parse_host_port(format_host_port(*place)) == place
