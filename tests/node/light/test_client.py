"""The light client against gateways that tell the truth, lie, lag, prune, break off or babble."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from consensus.light import (
    Fork,
    ForkFound,
    HeaderAhead,
    TrustExpired,
    encode_epoch_record,
    encode_merkle_proof,
)
from consensus.wire import encode_certificate
from node.light.client import (
    Endpoint,
    LightFile,
    LightNode,
    NoEndpoint,
    NotShown,
    Source,
    load_light_file,
    save_light_file,
    trust_checkpoint,
    with_endpoints,
)
from rpc.client import GatewayUnreachable
from rpc.protocol.errors import RpcError
from state.primitives.blocks import Header, encode_header
from state.primitives.errors import ConfigError
from state.view.accounts import Account, account_key
from tests.consensus.lightchain import BLOCK_MS, EPOCH_BLOCKS, SENDER, START_MS, LightChain, certify, key

CHAIN = LightChain(epochs=5, more=3)
OTHER = LightChain(epochs=5, more=3, twist=1, fork_at=5)
SHORT = LightChain(epochs=3, more=1)
"""What a gateway shows that is behind."""
NOBODY = key(200).address


def hexed(data: bytes) -> str:
    return "0x" + data.hex()


class Gateway:
    """Answers as the RPC of a node of ``chain`` does; ``kept`` says which certificates it has not pruned."""

    def __init__(self, chain: LightChain, kept: Callable[[int], bool] = lambda height: True) -> None:
        self.chain = chain
        self.kept = kept
        self.calls: list[str] = []

    def call(self, method: str, *params: Any) -> Any:
        self.calls.append(method)
        return {"at": self._at(self.chain.tip)} | getattr(self, method)(*params)

    def _at(self, height: int) -> dict[str, Any]:
        return {"height": height, "hash": hexed(self.chain.hashes[height])}

    def dekube_head(self) -> Any:
        return {}

    def dekube_chainInfo(self) -> Any:
        return {"genesis_hash": hexed(self.chain.root().genesis_hash)}

    def dekube_getEpochRecord(self, epoch: int) -> Any:
        return {"record": next(iter(self.dekube_getEpochRecords(epoch, 1)["records"]), None)}

    def dekube_getEpochRecords(self, first: int, limit: int) -> Any:
        count = self.chain.tip // EPOCH_BLOCKS
        return {
            "records": [
                hexed(encode_epoch_record(self.chain.record(epoch)))
                for epoch in range(first, min(first + limit, count))
            ]
        }

    def dekube_getHeader(self, height: int, limit: int = 64) -> Any:
        headers = []
        for above in range(height, min(height + limit, self.chain.tip + 1)):
            headers.append(hexed(encode_header(self.chain.headers[above])))
            if self.kept(above):
                return {
                    "headers": headers,
                    "certificate": hexed(encode_certificate(self.chain.certificates[above])),
                }
        if not headers:
            raise RpcError("height_unknown", f"height {height} is not final yet")
        return {"headers": headers, "certificate": None}

    def dekube_getHeaders(self, height: int, limit: int = 64) -> Any:
        heights = range(height, min(height + limit, self.chain.tip + 1))
        return {"headers": [hexed(encode_header(self.chain.headers[above])) for above in heights]}

    def dekube_getAccountProof(self, address: str, height: int | None = None) -> Any:
        number = self.chain.tip - 1 if height is None else height
        if number >= self.chain.tip:
            raise RpcError("height_unknown", f"height {number + 1} is not final yet")
        who = bytes.fromhex(address[2:])
        value = hexed(self.chain.account(number)) if who == SENDER.address else None
        proof = hexed(self.chain.prove(number, account_key(who)))
        return {"at": self._at(number), "value": value, "proof": proof} | self.dekube_getHeader(number + 1)

    def dekube_getTransactionProof(self, hash_: str) -> Any:
        return {"transaction": self._placed(hash_)}

    def dekube_getReceiptProof(self, hash_: str) -> Any:
        found = self._placed(hash_)
        if found is not None:
            placed = self.chain.placed(found["height"], found["index"])
            above = self.dekube_getHeader(found["height"] + 1)
            above["headers"].insert(0, hexed(encode_header(self.chain.headers[found["height"]])))
            found |= above | {
                "receipt": hexed(placed.receipt),
                "receipt_proof": hexed(encode_merkle_proof(placed.receipt_proof)),
            }
        return {"receipt": found}

    def _placed(self, hash_: str) -> Any:
        for height, raws in self.chain.transactions.items():
            for index in range(len(raws)):
                if hexed(self.chain.hash_of(height, index)) == hash_:
                    placed = self.chain.placed(height, index)
                    proof = hexed(encode_merkle_proof(placed.proof))
                    found = {"height": height, "index": index, "raw": hexed(placed.raw), "proof": proof}
                    return found | self.dekube_getHeader(height)
        return None


class Twisted(Gateway):
    """Tells the truth through ``twist(method, answer)``."""

    def __init__(self, twist: Callable[[str, Any], Any], chain: LightChain = CHAIN) -> None:
        super().__init__(chain)
        self.twist = twist

    def call(self, method: str, *params: Any) -> Any:
        return self.twist(method, super().call(method, *params))


class Dead:
    def call(self, method: str, *params: Any) -> Any:
        raise GatewayUnreachable("connection refused")


def saved(*names: str, chain: LightChain = CHAIN, **changes: Any) -> LightFile:
    made = LightFile(chain.root(), 1_000_000, False, {}, None, tuple(map(Endpoint, names)), None)
    return made._replace(**changes)


def light(*, now_ms: int | None = None, file: LightFile | None = None, **gateways: Any) -> LightNode:
    now = CHAIN.now_ms() if now_ms is None else now_ms
    return LightNode(file or saved(*gateways), now_ms=lambda: now, open_source=gateways.__getitem__)


def banned(node: LightNode) -> dict[str, str]:
    return {endpoint.url: endpoint.banned for endpoint in node.endpoints if endpoint.banned}


# The truth


def test_one_honest_gateway_is_enough() -> None:
    node = light(a=Gateway(CHAIN))
    node.sync()
    assert node.client.trusted.epoch == 5
    assert node.newest is not None and node.newest.block_hash == CHAIN.hashes[23]
    found = node.account(SENDER.address)
    assert (found.account, found.height, found.block_hash) == (Account(22, 1_022), 22, CHAIN.hashes[22])
    assert node.account(NOBODY).account == Account(0, 0)
    assert node.account(SENDER.address, 9).account == Account(9, 1_009)
    for height in range(1, 24):
        assert node.header(height)[0].block_hash == CHAIN.hashes[height]
    assert banned(node) == {}


@pytest.mark.parametrize(
    "kept",
    [
        lambda height: True,
        lambda height: height % EPOCH_BLOCKS == 0 or height == 23,
        lambda height: height == 23,
    ],
    ids=["all", "boundaries and head", "head"],
)
def test_transactions_and_receipts_of_any_age(kept: Callable[[int], bool]) -> None:
    """Also where the gateway has dropped most certificates."""
    node = light(a=Gateway(CHAIN, kept))
    node.sync()
    for height in (3, 4, 7, 8, 19, 22):
        for index in range(len(CHAIN.transactions[height])):
            hash_ = CHAIN.hash_of(height, index)
            place = node.transaction(hash_)
            assert (place.block.header.height, place.position, place.receipt) == (height, index, None)
            receipt = node.receipt(hash_).receipt
            assert receipt is not None and receipt.gas_used == 21_000 + index
    assert banned(node) == {}


def test_certificates_too_old_to_count_are_replaced_by_headers() -> None:
    gateway = Gateway(CHAIN)
    file = saved("a", accepts_old_root=True)
    node = light(file=file, a=gateway)
    node.sync()
    file = file._replace(
        trusted=node.client.trusted, boundaries=dict(node.client.boundaries), last=node.client.last,
        accepts_old_root=False, trusting_period_ms=5 * BLOCK_MS,
    )  # fmt: skip
    node = light(file=file, a=gateway)
    assert node.header(6)[0].block_hash == CHAIN.hashes[6]
    assert "dekube_getHeaders" in gateway.calls
    assert banned(node) == {}


def test_a_client_goes_on_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "light.json"
    first = light(a=Gateway(SHORT), b=Dead())
    first.sync()
    first.save(path)
    file = load_light_file(path)
    assert file.trusted._replace(committee=CHAIN.committee(3)) == first.client.trusted._replace(
        committee=CHAIN.committee(3)
    )
    assert file.trusted.committee.hash == CHAIN.committee(3).hash
    gateway = Gateway(CHAIN)
    second = light(file=file, a=gateway, b=Dead())
    second.sync()
    second.save(path)
    assert load_light_file(path).boundaries == {epoch: CHAIN.hashes[4 * epoch + 4] for epoch in range(5)}
    again = light(file=load_light_file(path), a=gateway, b=Dead())
    assert again.header(2)[0].block_hash == CHAIN.hashes[2]
    assert not list(path.parent.glob("*.new"))


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    node = LightNode(
        saved("a"),
        now_ms=CHAIN.now_ms,
        open_source=lambda url: Gateway(CHAIN),
        progress=lambda done, of: told.append((done, of)),
    )
    node.sync()
    assert told == [(epoch, 5) for epoch in range(1, 6)]


def test_a_checkpoint_is_fetched_from_whoever_has_it() -> None:
    false = Twisted(lambda method, answer: answer | {"headers": [hexed(encode_header(OTHER.headers[8]))]})
    sources: list[tuple[str, Source]] = [("dead", Dead()), ("false", false), ("good", Gateway(CHAIN))]
    trusted = trust_checkpoint(sources, height=8, block_hash=CHAIN.hashes[8])
    assert (trusted.epoch, trusted.epoch_blocks) == (2, EPOCH_BLOCKS)
    assert trusted.committee.hash == CHAIN.committee(2).hash
    node = light(file=saved("a", trusted=trusted), a=Gateway(CHAIN))
    node.sync()
    assert node.client.trusted.epoch == 5
    assert node.header(11)[0].block_hash == CHAIN.hashes[11]
    assert node.header(3)[0].block_hash == CHAIN.hashes[3]  # headers lead from before the checkpoint up to it
    assert banned(node) == {}
    with pytest.raises(NoEndpoint) as told:
        trust_checkpoint(sources, height=8, block_hash=b"x" * 32)
    assert set(told.value.reasons) == {"dead", "false", "good"}
    with pytest.raises(NoEndpoint):  # within an epoch
        trust_checkpoint(sources, height=7, block_hash=CHAIN.hashes[7])


# Lies


def change_bytes(text: str) -> str:
    """Flip a bit in the middle of hex."""
    middle = len(text) // 2 + len(text) // 2 % 2
    return text[:middle] + f"{int(text[middle], 16) ^ 1:x}" + text[middle + 1 :]


def changed(field: str, method: str) -> Callable[[str, Any], Any]:
    """A twist that changes one field wherever it is in the answers of a method."""

    def visit(value: Any, name: str = "") -> Any:
        if type(value) is dict:
            return {inner: visit(item, inner) for inner, item in value.items()}
        if type(value) is list:
            return [visit(item, name) for item in value]
        if name == field and type(value) is str:
            return change_bytes(value)
        return value

    return lambda called, answer: visit(answer) if called == method else answer


LIES = [
    ("records", "dekube_getEpochRecords"),
    ("record", "dekube_getEpochRecord"),
    ("headers", "dekube_getHeader"),
    ("certificate", "dekube_getHeader"),
    ("headers", "dekube_getAccountProof"),
    ("certificate", "dekube_getAccountProof"),
    ("value", "dekube_getAccountProof"),
    ("proof", "dekube_getAccountProof"),
    ("raw", "dekube_getReceiptProof"),
    ("proof", "dekube_getReceiptProof"),
    ("receipt", "dekube_getReceiptProof"),
    ("receipt_proof", "dekube_getReceiptProof"),
    ("headers", "dekube_getReceiptProof"),
    ("proof", "dekube_getTransactionProof"),
    ("raw", "dekube_getTransactionProof"),
]


@pytest.mark.parametrize(("field", "method"), LIES)
def test_a_liar_is_banned_by_name_and_the_truth_comes_from_another(
    field: str, method: str, tmp_path: Path
) -> None:
    node = light(liar=Twisted(changed(field, method)), honest=Gateway(CHAIN))
    node.sync()
    assert node.account(SENDER.address).account == Account(22, 1_022)
    assert node.transaction(CHAIN.hash_of(22, 1)).source
    assert node.receipt(CHAIN.hash_of(21, 0)).receipt is not None
    assert node.client.trusted.epoch == 5
    assert set(banned(node)) == {"liar"}
    node.save(tmp_path / "light.json")
    kept = load_light_file(tmp_path / "light.json")
    assert [bool(endpoint.banned) for endpoint in kept.endpoints] == [True, False]


def test_a_liar_alone_proves_nothing() -> None:
    node = light(liar=Twisted(changed("value", "dekube_getAccountProof")))
    node.sync()
    with pytest.raises(NoEndpoint) as told:
        node.account(SENDER.address)
    assert told.value.reasons == {"liar": banned(node)["liar"].join(("banned: ", ""))}


NEIGHBOUR = hexed(CHAIN.hash_of(22, 0))
SWAPS: list[tuple[str, Callable[[Any], Any]]] = [
    # An answer to another question
    ("dekube_getTransactionProof", lambda a: Gateway(CHAIN).dekube_getTransactionProof(NEIGHBOUR)),
    ("dekube_getReceiptProof", lambda a: Gateway(CHAIN).dekube_getReceiptProof(NEIGHBOUR)),
    # The receipt of the neighbour
    ("dekube_getReceiptProof", lambda a: {"receipt": a["receipt"] | {
        name: Gateway(CHAIN).dekube_getReceiptProof(NEIGHBOUR)["receipt"][name]
        for name in ("receipt", "receipt_proof")}}),
    # No header with the root over the receipts
    ("dekube_getReceiptProof", lambda a: {"receipt": a["receipt"] | Gateway(CHAIN).dekube_getHeader(22)}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "swap"), SWAPS)
def test_the_truth_about_something_else_is_a_lie(method: str, swap: Callable[[Any], Any]) -> None:
    twisted = Twisted(lambda called, answer: answer | swap(answer) if called == method else answer)
    node = light(liar=twisted, honest=Gateway(CHAIN))
    node.sync()
    hash_ = CHAIN.hash_of(22, 1)
    place = node.transaction(hash_) if method == "dekube_getTransactionProof" else node.receipt(hash_)
    assert (place.source, place.position) == ("honest", 1)
    assert set(banned(node)) == {"liar"}


def test_headers_of_another_height_are_a_lie() -> None:
    shifted = Twisted(
        lambda method, answer: (
            answer | Gateway(CHAIN).dekube_getHeader(22) if method == "dekube_getHeader" else answer
        )
    )
    node = light(liar=shifted, honest=Gateway(CHAIN))
    node.sync()
    found, source = node.header(21)
    assert (found.header.height, source) == (21, "honest")
    assert set(banned(node)) == {"liar"}


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
    | st.binary(max_size=40).map(hexed),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(
        ("at", "height", "records", "record", "headers", "certificate", "value", "proof", "transaction", "receipt",
         "raw", "receipt_proof")), inner, max_size=8),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_a_gateway_babbles_is_a_ban_or_a_silence(data: st.DataObject) -> None:
    def babble(method: str, answer: Any) -> Any:
        if data.draw(st.booleans()):
            return answer
        if data.draw(st.booleans()):
            return data.draw(JUNK)
        return answer | {data.draw(st.sampled_from(sorted(answer))): data.draw(JUNK)}

    node = light(babbler=Twisted(babble), honest=Gateway(CHAIN))
    node.sync()
    assert node.account(SENDER.address).account.nonce == 22
    assert node.receipt(CHAIN.hash_of(22, 0)).receipt is not None
    assert node.header(5)[0].block_hash == CHAIN.hashes[5]
    assert "honest" not in banned(node)


# Silence


def test_a_gateway_of_another_chain_is_passed_over_and_not_banned() -> None:
    foreign = Twisted(lambda method, answer: answer | {"genesis_hash": "0x" + "78" * 32})
    node = light(a=foreign, b=Gateway(CHAIN))
    node.sync()
    assert node.client.trusted.epoch == 5 and not banned(node)
    assert node.endpoints[0].note.startswith("it is of another chain: its genesis has the hash 0x7878")
    assert foreign.calls == ["dekube_chainInfo"], "it is asked nothing else in this run"
    alone = light(a=Twisted(lambda method, answer: answer | {"genesis_hash": "0x" + "78" * 32}))
    with pytest.raises(NoEndpoint, match="is that the right genesis file"):
        alone.sync()
    assert not banned(alone)


def test_a_gateway_that_is_behind_or_dead_is_passed_over() -> None:
    node = light(dead=Dead(), behind=Gateway(SHORT), honest=Gateway(CHAIN))
    node.sync()
    assert node.client.trusted.epoch == 5
    found = node.account(SENDER.address)
    assert (found.source, found.account.nonce) == ("honest", 22)  # the newest of what is proven
    assert node.account(SENDER.address, 20).source == "honest"
    assert banned(node) == {}
    heights = {endpoint.url: endpoint.height for endpoint in node.endpoints}
    assert heights["behind"] == SHORT.tip and heights["dead"] == 0


def test_nobody_answers() -> None:
    node = light(dead=Dead())
    with pytest.raises(NoEndpoint) as told:
        node.sync()
    assert told.value.reasons == {"dead": "connection refused"}


def test_what_nobody_has_is_not_shown() -> None:
    node = light(a=Gateway(CHAIN), b=Gateway(SHORT))
    node.sync()
    for ask in (node.transaction, node.receipt):
        with pytest.raises(NotShown):
            ask(b"x" * 32)
    assert banned(node) == {}


def test_a_boundary_that_passes_between_two_questions_is_followed() -> None:
    class Growing(Gateway):
        def dekube_getAccountProof(self, address: str, height: int | None = None) -> Any:
            self.chain = CHAIN
            return super().dekube_getAccountProof(address, height)

    node = light(a=Growing(SHORT))
    node.sync()
    assert node.client.trusted.epoch == 3
    assert node.account(SENDER.address).height == 22
    assert node.client.trusted.epoch == 5


def test_texts_of_strangers_are_made_printable() -> None:
    class Rude(Gateway):
        def call(self, method: str, *params: Any) -> Any:
            raise RpcError("x", "\x1b[2J" + "a" * 1000)

    node = light(rude=Rude(CHAIN))
    with pytest.raises(NoEndpoint):
        node.sync()
    assert node.endpoints[0].note == "?[2J" + "a" * 296


# Forks, clocks, age


def test_two_chains_of_one_committee_end_all_trust(tmp_path: Path) -> None:
    node = light(a=Gateway(CHAIN), b=Gateway(OTHER))
    with pytest.raises(ForkFound) as told:
        node.sync()
    fork = told.value.fork
    assert fork.height == 20 and len(fork.equivocations) == 4
    node.save(tmp_path / "light.json")
    kept = load_light_file(tmp_path / "light.json")
    assert kept.fork is not None and kept.fork[2:] == fork[2:]
    with pytest.raises(ForkFound):
        light(file=kept, a=Gateway(CHAIN), b=Gateway(OTHER)).sync()


def test_a_fork_is_told_from_a_lie_also_by_a_client_that_started_anew(tmp_path: Path) -> None:
    first = light(a=Gateway(CHAIN), b=Dead())
    first.sync()
    first.save(tmp_path / "light.json")
    file = load_light_file(tmp_path / "light.json")
    with pytest.raises(ForkFound) as told:
        light(file=file, a=Gateway(CHAIN), b=Gateway(OTHER)).sync()
    assert len(told.value.fork.equivocations) == 4

    def resign(header: Header) -> str:
        certificate = certify(header, CHAIN.committee(header.epoch), first_key=90)
        record = OTHER.record(header.epoch)._replace(certificate=certificate)
        return hexed(encode_epoch_record(record))

    liar = Twisted(lambda method, a: a | {"record": resign(OTHER.headers[20])} if "record" in a else a, OTHER)
    node = light(file=file, a=Gateway(CHAIN), b=liar)
    node.sync()
    assert set(banned(node)) == {"b"}


def test_a_contradiction_that_cannot_be_judged_is_told() -> None:
    """Nobody has our own records any more: the other may lie or the chain may have forked."""
    node = light(a=Gateway(CHAIN))
    node.sync()
    file = saved("b", trusted=node.client.trusted, boundaries=dict(node.client.boundaries), last=node.client.last)
    alone = light(file=file, b=Gateway(OTHER))
    with pytest.raises(NoEndpoint) as told:
        alone.sync()
    assert "contradicts" in told.value.reasons["b"]
    assert alone.endpoints[0].doubted and not alone.endpoints[0].banned


def test_a_slow_clock_blames_nobody() -> None:
    node = light(now_ms=START_MS + 3 * BLOCK_MS, a=Gateway(CHAIN))
    with pytest.raises(HeaderAhead):
        node.sync()
    node = light(now_ms=START_MS + 2 * BLOCK_MS, a=Gateway(CHAIN))  # more than two seconds
    assert banned(node) == {}


def test_an_old_root_is_refused_unless_it_is_vouched_for(tmp_path: Path) -> None:
    file = saved("a", trusting_period_ms=10 * BLOCK_MS)
    with pytest.raises(TrustExpired):
        light(file=file, a=Gateway(CHAIN)).sync()
    node = light(file=file._replace(accepts_old_root=True), a=Gateway(CHAIN))
    node.sync()
    node.save(tmp_path / "light.json")
    kept = load_light_file(tmp_path / "light.json")
    assert kept.accepts_old_root is False  # what was vouched for was the beginning
    light(file=kept, a=Gateway(CHAIN)).sync()
    with pytest.raises(TrustExpired):
        light(file=kept, now_ms=CHAIN.now_ms() + 10 * BLOCK_MS, a=Gateway(CHAIN)).sync()


# The file


def documents(tmp_path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    node = light(a=Gateway(CHAIN))
    node.sync()
    path = tmp_path / "light.json"
    node.save(path)
    whole = json.loads(path.read_text())
    yield "whole", whole
    for name in whole:
        yield f"without {name}", {other: value for other, value in whole.items() if other != name}
        yield f"{name} of another type", whole | {name: 1.5 if name != "fork" else 7}
    yield "another height", whole | {"height": 19}
    yield "no epochs", whole | {"epoch_blocks": 0}
    yield "a gap", whole | {"boundaries": whole["boundaries"][1:]}
    yield "another boundary", whole | {"boundaries": ["00" * 32] * 5}
    yield "another record", whole | {"last_record": encode_epoch_record(OTHER.record(4)).hex()}
    yield "a negative time", whole | {"time_ms": -1}
    yield "a short hash", whole | {"block_hash": "ab"}


def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    for name, document in documents(tmp_path):
        path.write_text(json.dumps(document))
        if name == "whole":
            assert load_light_file(path).trusted.epoch == 5
            continue
        with pytest.raises(ConfigError) as told:
            load_light_file(path)
        assert "\n" not in str(told.value), name
    for text in ("", "{", "[]", "null", "[" * 10_000):
        path.write_text(text)
        with pytest.raises(ConfigError):
            load_light_file(path)
    with pytest.raises(ConfigError):
        load_light_file(tmp_path / "absent.json")


def test_endpoints_are_bounded_and_keep_their_bans(tmp_path: Path) -> None:
    file = saved("a", "b")
    file.endpoints[1].banned = "lied"
    again = with_endpoints(file, ["b", "c", "b"])
    assert [(endpoint.url, endpoint.banned) for endpoint in again.endpoints] == [("b", "lied"), ("c", "")]
    with pytest.raises(ConfigError):
        with_endpoints(file, [str(n) for n in range(33)])
    save_light_file(tmp_path / "x.json", file)
    assert load_light_file(tmp_path / "x.json").endpoints[1].banned == "lied"


def test_a_fork_has_no_culprits_without_both_certificates() -> None:
    fork = Fork(4, CHAIN.committee(0), (b"a" * 32, b"b" * 32), (None, CHAIN.certificates[4]))
    assert fork.equivocations == () and fork.suspects == ()


def test_an_endless_or_empty_path_is_cut_off() -> None:
    """Who shows no certificate keeps a client busy for a page, and who repeats itself not for ever."""

    class Endless(Gateway):
        def dekube_getHeader(self, height: int, limit: int = 64) -> Any:
            return {"headers": [hexed(encode_header(self.chain.headers[22]))] * limit, "certificate": None}

    class Broken(Gateway):
        def dekube_getHeader(self, height: int, limit: int = 64) -> Any:
            return super().dekube_getHeader(height, limit) | {"certificate": None}

    endless, broken = Endless(CHAIN), Broken(CHAIN)
    node = light(endless=endless, broken=broken, honest=Gateway(CHAIN))
    node.sync()
    assert node.header(22)[1] == "honest"
    assert set(banned(node)) == {"endless", "broken"}
    assert len(endless.calls) < 10 and len(broken.calls) < 10


def test_headers_missing_below_a_boundary_are_asked_elsewhere() -> None:
    class Short(Gateway):
        def dekube_getHeaders(self, height: int, limit: int = 64) -> Any:
            return {"headers": super().dekube_getHeaders(height, limit)["headers"][:1]}

        def dekube_getHeader(self, height: int, limit: int = 64) -> Any:
            return super().dekube_getHeader(height, 1)

    node = light(short=Short(CHAIN, lambda height: height > 20), honest=Gateway(CHAIN))
    node.sync()
    assert node.header(5)[1] == "honest"
    assert banned(node) == {} and "has not all headers" in node.endpoints[0].note


def test_a_gateway_that_rations_is_asked_again_and_not_for_ever() -> None:
    class Rationed(Gateway):
        waits: tuple[Any, ...] = (1e9, "x", 0.25)

        def call(self, method: str, *params: Any) -> Any:
            if self.waits:
                wait_s, *left = self.waits
                self.waits = tuple(left)
                raise RpcError("limit_exceeded", "slow down", retry_after_s=wait_s)
            return super().call(method, *params)

    slept: list[float] = []
    gateway = Rationed(CHAIN)
    node = LightNode(saved("a"), now_ms=CHAIN.now_ms, open_source=lambda url: gateway, sleep=slept.append)
    node.sync()
    assert slept == [10.0, 1.0, 0.25]
    gateway.waits = (0.1,) * 1_000
    with pytest.raises(NoEndpoint) as told:
        node.header(5)
    assert told.value.reasons == {"a": "rations what may be asked"}
    assert len(slept) < 50
