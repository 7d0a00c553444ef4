"""The light client's I/O: untrusted gateways, and the file with the trusted state.

``consensus.light`` checks every answer of an endpoint. An endpoint that sends a false proof is banned permanently,
with the reason, and the next one is used. An endpoint that is silent, behind or has pruned the data is skipped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from consensus.light import (
    EPOCH_RECORD_LIMIT_BYTES,
    HEADERS_MAX,
    CommitteeUnknown,
    EpochOutOfOrder,
    EpochRecord,
    Fork,
    ForkFound,
    HeaderUnproven,
    LightClient,
    LightOptions,
    ProofInvalid,
    Proven,
    TrustedState,
    checkpoint_root,
    decode_epoch_record,
    decode_merkle_proof,
    encode_epoch_record,
    verify_account,
    verify_receipt,
    verify_transaction,
)
from consensus.votes import Certificate
from consensus.wire import CERTIFICATE_LIMIT_BYTES, decode_certificate, encode_certificate
from node.home.files import read_bounded, write_whole
from rpc.client import Client, ClientOptions, GatewayUnreachable
from rpc.protocol.errors import RpcError
from state.primitives.blocks import HEADER_LIMIT_BYTES, Header, decode_header, header_hash
from state.primitives.committee import SEATS_MAX, Committee
from state.primitives.errors import ConfigError, DecodeError, DekubeError, ProtocolError
from state.primitives.hashing import HASH_BYTES
from state.primitives.receipts import RECEIPT_LIMIT_BYTES, Receipt
from state.primitives.transactions import TRANSACTION_LIMIT_BYTES
from state.trie import PROOF_LIMIT_BYTES
from state.view.accounts import ACCOUNT_BYTES, Account

__all__ = [
    "AccountAt",
    "Endpoint",
    "LightFile",
    "LightNode",
    "NoEndpoint",
    "NotShown",
    "ProvenTransaction",
    "Report",
    "Source",
    "check_endpoints",
    "gateway_source",
    "load_light_file",
    "other_chain",
    "report_fork",
    "save_light_file",
    "trust_checkpoint",
    "with_endpoints",
]

FILE_FORMAT: Final = "dekube-light/1"
FILE_LIMIT_BYTES: Final = 64 * 1024 * 1024
ENDPOINTS_MAX: Final = 32
REASON_CHARACTERS_MAX: Final = 300
REQUEST_TIMEOUT_S: Final = 20.0
RECORDS_PAGE: Final = 32
HEADERS_PAGE: Final = 512
MERKLE_PROOF_LIMIT_BYTES: Final = 2048
PAUSES_MAX: Final = 30
PAUSE_S_MAX: Final = 10.0
"""A gateway with a rate limit is asked again this often, with at most this pause."""
_HEIGHT_LIMIT: Final = 2**48

_T = TypeVar("_T")
Json = Any


class NoEndpoint(DekubeError):
    """No endpoint could be reached, or none gave a valid answer. ``reasons`` has the reason for each."""

    code = "no_endpoint"

    def __init__(self, reasons: Mapping[str, str]) -> None:
        told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        super().__init__(f"no endpoint could show it: {told or 'none is configured'}")
        self.reasons = dict(reasons)


class NotShown(DekubeError):
    """No endpoint has a final transaction with that hash. Its absence cannot be proven."""

    code = "not_shown"


class _Silent(DekubeError):
    """An endpoint has no answer; this is not a fault."""

    code = "silent"


class Source(Protocol):
    """Answers JSON-RPC calls; the answers are untrusted."""

    def call(self, method: str, /, *params: Any) -> Json:
        """Return the result. Raises GatewayUnreachable or RpcError."""
        ...


def gateway_source(url: str) -> Source:
    """Return the gateway at ``url``. Raises ConfigError."""
    return Client(url, options=ClientOptions(REQUEST_TIMEOUT_S, rounds=1))


@dataclass(slots=True)
class Endpoint:
    """A gateway, and the reason of its ban if it was banned."""

    url: str
    banned: str = ""
    height: int = 0
    """The newest height it has proven in this run."""
    note: str = field(default="", compare=False)
    """Why it gave no answer the last time."""
    doubted: bool = field(default=False, compare=False)
    """It contradicts the trusted state, and a lie cannot be told from a fork here. It is not used in this run."""


class LightFile(NamedTuple):
    """The state that a light client keeps between runs.

    ``accepts_old_root``: use the root of trust although it is older than the trusting period, until the client is
    within the trusting period.
    """

    trusted: TrustedState
    trusting_period_ms: int
    accepts_old_root: bool
    boundaries: dict[int, bytes]
    last: EpochRecord | None
    endpoints: tuple[Endpoint, ...]
    fork: Fork | None

    def client(self) -> LightClient:
        """Return the client that continues from this state."""
        period = None if self.accepts_old_root else self.trusting_period_ms
        return LightClient(
            self.trusted, LightOptions(period), boundaries=self.boundaries, last=self.last, fork=self.fork
        )


class Report(NamedTuple):
    """A gateway's answer to a submitted fork: the convicted seats, and how many of them are new to it."""

    url: str
    convicted: tuple[str, ...]
    new: int
    refused: str
    """Reason of its refusal, if it refused."""


class ProvenTransaction(NamedTuple):
    """A proven transaction: its position, block and bytes. ``receipt`` is set if it was requested."""

    hash: bytes
    position: int
    block: Proven
    raw: bytes
    receipt: Receipt | None
    source: str


class AccountAt(NamedTuple):
    """An account after the block ``height`` with ``block_hash``, proven by the header ``following`` it."""

    address: bytes
    account: Account
    height: int
    block_hash: bytes
    following: Proven
    source: str


# The file


def save_light_file(path: Path, saved: LightFile) -> None:
    """Write or replace the file atomically. Raises ConfigError."""
    trusted, boundaries, fork = saved.trusted, saved.client().boundaries, saved.fork
    first = _first_of_run(boundaries)
    document = {
        "format": FILE_FORMAT,
        "genesis_hash": trusted.genesis_hash.hex(),
        "epoch_blocks": trusted.epoch_blocks,
        "trusting_period_ms": saved.trusting_period_ms,
        "accepts_old_root": saved.accepts_old_root,
        "epoch": trusted.epoch,
        "height": trusted.height,
        "block_hash": trusted.block_hash.hex(),
        "time_ms": trusted.time_ms,
        "committee": trusted.committee.encode().hex(),
        "last_record": "" if saved.last is None else encode_epoch_record(saved.last).hex(),
        "first_boundary": first,
        "boundaries": [boundaries[epoch].hex() for epoch in range(first, trusted.epoch)],
        "endpoints": [{"url": endpoint.url, "banned": endpoint.banned} for endpoint in saved.endpoints],
        "fork": None
        if fork is None
        else {
            "height": fork.height,
            "committee": fork.committee.encode().hex(),
            "hashes": [block_hash.hex() for block_hash in fork.hashes],
            "certificates": ["" if c is None else encode_certificate(c).hex() for c in fork.certificates],
        },
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def load_light_file(path: Path) -> LightFile:
    """Read the file at ``path``. Raises ConfigError, which names what is wrong."""
    try:
        data = read_bounded(path, FILE_LIMIT_BYTES)
        if len(data) > FILE_LIMIT_BYTES:
            raise ConfigError(f"{path}: file too large")
        text = data.decode()
    except FileNotFoundError:
        raise ConfigError(f"{path}: not found; create it with `dekube light init`") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    try:
        saved = _from_document(json.loads(text))
        saved.client()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, ProtocolError) as error:
        raise ConfigError(f"{path}: not the file of a light client: {str(error)[:200]}") from None
    return saved


def _from_document(document: Mapping[str, Any]) -> LightFile:
    if document["format"] != FILE_FORMAT:
        raise ConfigError(f"expected format {FILE_FORMAT}")
    numbers = {
        name: document[name]
        for name in ("epoch_blocks", "trusting_period_ms", "epoch", "height", "time_ms", "first_boundary")
    }
    for name, number in numbers.items():
        if type(number) is not int or not 0 <= number < _HEIGHT_LIMIT:
            raise ConfigError(f"{name} is not a number in range")
    trusted = TrustedState(
        genesis_hash=_hash(document["genesis_hash"]),
        epoch_blocks=numbers["epoch_blocks"],
        epoch=numbers["epoch"],
        height=numbers["height"],
        block_hash=_hash(document["block_hash"]),
        time_ms=numbers["time_ms"],
        committee=Committee.decode(bytes.fromhex(document["committee"])),
    )
    if trusted.height != trusted.epoch * trusted.epoch_blocks or not trusted.epoch_blocks:
        raise ConfigError("the height is not that of a boundary block")
    first, hashes = numbers["first_boundary"], [_hash(text) for text in document["boundaries"]]
    if first + len(hashes) != trusted.epoch or (hashes and hashes[-1] != trusted.block_hash):
        raise ConfigError("the boundary blocks do not lead to the trusted block")
    last = decode_epoch_record(bytes.fromhex(document["last_record"])) if document["last_record"] else None
    endpoints = tuple(Endpoint(str(item["url"]), str(item["banned"])) for item in document["endpoints"])
    accepts = document["accepts_old_root"]
    if type(accepts) is not bool or len(endpoints) > ENDPOINTS_MAX:
        raise ConfigError("accepts_old_root or endpoints has the wrong type")
    return LightFile(
        trusted,
        numbers["trusting_period_ms"],
        accepts,
        dict(enumerate(hashes, first)),
        last,
        endpoints,
        _read_fork(document["fork"]),
    )


def _read_fork(document: Any) -> Fork | None:
    if document is None:
        return None
    height, hashes, texts = document["height"], document["hashes"], document["certificates"]
    if type(height) is not int or len(hashes) != 2 or len(texts) != 2:
        raise ConfigError("fork has the wrong form")
    one, other = (decode_certificate(bytes.fromhex(text)) if text else None for text in texts)
    committee = Committee.decode(bytes.fromhex(document["committee"]))
    return Fork(height, committee, (_hash(hashes[0]), _hash(hashes[1])), (one, other))


def _first_of_run(boundaries: Mapping[int, bytes]) -> int:
    """Return the first epoch of the gap-free run of known epochs up to the newest."""
    first = max(boundaries, default=-1) + 1
    while first - 1 in boundaries:
        first -= 1
    return first


def _hash(text: Any) -> bytes:
    data = bytes.fromhex(text)
    if len(data) != HASH_BYTES:
        raise ConfigError("not a hash")
    return data


def _printable(text: str) -> str:
    """Return an endpoint's text as it may be shown on a terminal and written to the file."""
    return "".join(c if c.isprintable() else "?" for c in text[:REASON_CHARACTERS_MAX])


# Answers of endpoints, read strictly


def _object(answer: Json) -> Mapping[str, Json]:
    if type(answer) is not dict:
        raise DecodeError("an object was expected")
    return answer


def _field(answer: Json, name: str) -> Json:
    found = _object(answer)
    if name not in found:
        raise DecodeError(f"an answer without {name}")
    return found[name]


def _number(answer: Json, name: str, limit: int = _HEIGHT_LIMIT) -> int:
    value = _field(answer, name)
    if type(value) is not int or not 0 <= value < limit:
        raise DecodeError(f"{name} is not a number in range")
    return value


def _bytes(value: Json, limit_bytes: int) -> bytes:
    if type(value) is not str or value[:2] != "0x" or len(value) > 2 + 2 * limit_bytes:
        raise DecodeError(f"0x and at most {limit_bytes} bytes of hex were expected")
    try:
        return bytes.fromhex(value[2:])
    except ValueError:
        raise DecodeError("not hex") from None


def _list(value: Json, limit: int) -> list[Json]:
    if type(value) is not list or len(value) > limit:
        raise DecodeError(f"a list of at most {limit} was expected")
    return value


def _headers(answer: Json) -> list[Header]:
    items = _list(_field(answer, "headers"), HEADERS_PAGE + 1)
    return [decode_header(_bytes(item, HEADER_LIMIT_BYTES)) for item in items]


def _path(answer: Json) -> tuple[list[Header], Certificate | None]:
    certificate = _field(answer, "certificate")
    headers = _headers(answer)
    if not headers:
        raise DecodeError("no headers")
    if certificate is None:
        return headers, None
    return headers, decode_certificate(_bytes(certificate, CERTIFICATE_LIMIT_BYTES))


def _epoch_record(value: Json) -> EpochRecord:
    return decode_epoch_record(_bytes(value, EPOCH_RECORD_LIMIT_BYTES))


def trust_checkpoint(sources: Iterable[tuple[str, Source]], *, height: int, block_hash: bytes) -> TrustedState:
    """Return the state that trusts a checkpoint. Its epoch record comes from the first source that has it.

    Raises NoEndpoint.
    """
    reasons: dict[str, str] = {}
    for name, source in sources:
        try:
            headers = _headers(source.call("dekube_getHeaders", height, 1))
            if not headers or header_hash(headers[0]) != block_hash:
                raise ProofInvalid(f"its block of height {height} has another hash than the checkpoint")
            record = _field(source.call("dekube_getEpochRecord", headers[0].epoch), "record")
            if record is None:
                raise _Silent(f"no record of epoch {headers[0].epoch}: is {height} the last block of an epoch?")
            return checkpoint_root(_epoch_record(record), height=height, block_hash=block_hash)
        except (RpcError, GatewayUnreachable, ProtocolError, _Silent) as error:
            reasons[name] = _printable(str(error))
    raise NoEndpoint(reasons)


def other_chain(answer: Json, genesis: bytes) -> str:
    """Return the difference if the answer of dekube_chainInfo is of another chain than ``genesis``, else an empty
    string.

    Raises DecodeError.
    """
    found = _bytes(_field(answer, "genesis_hash"), HASH_BYTES)
    if found == genesis:
        return ""
    return (
        f"it is of another chain: its genesis has the hash 0x{found.hex()}, the genesis that is trusted here "
        f"0x{genesis.hex()}; is that the right genesis file?"
    )


def check_endpoints(sources: Iterable[tuple[str, Source]], genesis: bytes) -> dict[str, str]:
    """Check new endpoints; return the reason for each that gives no answer.

    Raises ConfigError for an endpoint of another chain, NoEndpoint if none answers.
    """
    silent: dict[str, str] = {}
    answered = 0
    for url, source in sources:
        try:
            other = other_chain(source.call("dekube_chainInfo"), genesis)
        except (RpcError, GatewayUnreachable, DecodeError) as error:
            silent[url] = _printable(str(error))
            continue
        if other:
            raise ConfigError(f"{url}: {other} Nothing was changed")
        answered += 1
    if silent and not answered:
        raise NoEndpoint(silent)
    return silent


def report_fork(
    fork: Fork, sources: Iterable[tuple[str, Source]], *, reporter: bytes | None = None
) -> list[Report]:
    """Submit the certificates of a fork to gateways; their nodes convict the signers.

    Each side of a fork lacks half of the proof, so nodes of both sides must get it. ``reporter`` is paid for it;
    None: each gateway's node. Raises ConfigError if the certificates are no longer kept.
    """
    certificates = ["0x" + encode_certificate(found).hex() for found in fork.certificates if found is not None]
    if not certificates:
        raise ConfigError("the certificates of the fork are no longer kept: there is nothing to submit")
    one, other = certificates[0], certificates[1] if len(certificates) > 1 else None
    paid = None if reporter is None else "0x" + reporter.hex()
    reports = []
    for url, source in sources:
        try:
            answer = source.call("dekube_submitFork", one, other, paid)
            convicted = [_object(item) for item in _list(_field(answer, "convicted"), SEATS_MAX)]
            names = tuple(_printable(str(_field(item, "operator"))) for item in convicted)
            reports.append(Report(url, names, sum(_field(item, "is_new") is True for item in convicted), ""))
        except (RpcError, GatewayUnreachable, DecodeError) as error:
            reports.append(Report(url, (), 0, _printable(str(error))))
    return reports


class LightNode:
    """A light client with its endpoints. Blocking; one thread at a time.

    ``now_ms`` is the clock. ``progress`` is called with the number of followed epochs and of all epochs. The
    latter is an endpoint's unproven claim, for a progress bar only.
    """

    def __init__(
        self,
        saved: LightFile,
        *,
        now_ms: Callable[[], int],
        open_source: Callable[[str], Source] = gateway_source,
        progress: Callable[[int, int], None] = lambda done, of: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._saved = saved
        self.client: Final = saved.client()
        self.endpoints: Final = saved.endpoints
        self._now_ms = now_ms
        self._progress = progress
        self._sleep = sleep
        self._sources = {endpoint.url: open_source(endpoint.url) for endpoint in saved.endpoints}
        self._newest: Proven | None = None

    def save(self, path: Path) -> None:
        """Write the trusted state to the file. Raises ConfigError."""
        client = self.client
        accepts = self._saved.accepts_old_root and client.age_ms(self._now_ms()) > self._saved.trusting_period_ms
        saved = self._saved._replace(
            trusted=client.trusted,
            accepts_old_root=accepts,
            boundaries=dict(client.boundaries),
            last=client.last,
            endpoints=self.endpoints,
            fork=client.fork,
        )
        save_light_file(path, saved)

    @property
    def newest(self) -> Proven | None:
        """The newest header proven in this run."""
        return self._newest

    # Questions

    def sync(self) -> None:
        """Follow the chain as far as any endpoint proves it, compare the other endpoints, and prove their heads.

        Raises TrustExpired, ForkFound, VersionUnknown, NoEndpoint.
        """
        self.client.check_trust(self._now_ms())
        self._each(self._check_chain)
        self._each(self._follow)
        self._each(self._compare)
        if not self._each(self._prove_head):
            raise NoEndpoint(self._reasons())

    def account(self, address: bytes, height: int | None = None) -> AccountAt:
        """Return the account at the newest height that an endpoint proves, or after block ``height``.

        Raises NoEndpoint.
        """
        answers = self._each(
            lambda endpoint: self._account(endpoint, address, height), until_first=height is not None
        )
        if not answers:
            raise NoEndpoint(self._reasons())
        return max(answers, key=lambda answer: answer.height)

    def header(self, height: int) -> tuple[Proven, str]:
        """Return the header of ``height`` and the endpoint that showed it. Raises NoEndpoint."""

        def ask(endpoint: Endpoint) -> tuple[Proven, str]:
            headers, certificate = _path(self._call(endpoint, "dekube_getHeader", height))
            if headers[0].height != height:
                raise HeaderUnproven("the header of another height")
            return self._prove(endpoint, headers, certificate)[0], endpoint.url

        return self._first(ask)

    def transaction(self, hash_: bytes) -> ProvenTransaction:
        """Return the position of a transaction. Raises NotShown, NoEndpoint."""
        return self._place("dekube_getTransactionProof", "transaction", hash_)

    def receipt(self, hash_: bytes) -> ProvenTransaction:
        """Return a transaction with its receipt. Raises NotShown, NoEndpoint."""
        return self._place("dekube_getReceiptProof", "receipt", hash_)

    # One endpoint at a time

    def _check_chain(self, endpoint: Endpoint) -> None:
        """Skip an endpoint of another chain without a ban: it may be honest, and the configured genesis wrong.

        Nor does an endpoint that lies about its chain prove anything.
        """
        answer = self._call(endpoint, "dekube_chainInfo")
        if other := other_chain(answer, self.client.trusted.genesis_hash):
            endpoint.doubted = True
            raise _Silent(other)

    def _account(self, endpoint: Endpoint, address: bytes, height: int | None) -> AccountAt:
        params: list[Any] = ["0x" + address.hex()]
        answer = self._call(endpoint, "dekube_getAccountProof", *params, *([] if height is None else [height]))
        headers, certificate = _path(answer)
        value = _field(answer, "value")
        record = None if value is None else _bytes(value, ACCOUNT_BYTES)
        proof = _bytes(_field(answer, "proof"), PROOF_LIMIT_BYTES)
        if height is not None and headers[0].height != height + 1:
            raise HeaderUnproven("the header of another height")
        following = self._prove(endpoint, headers, certificate)[0]
        account = verify_account(following.header, address, record, proof)
        below = following.header
        return AccountAt(address, account, below.height - 1, below.parent_hash, following, endpoint.url)

    def _place(self, method: str, name: str, hash_: bytes) -> ProvenTransaction:
        absent: list[str] = []

        def ask(endpoint: Endpoint) -> ProvenTransaction:
            found = _field(self._call(endpoint, method, "0x" + hash_.hex()), name)
            if found is None:
                absent.append(endpoint.url)
                raise _Silent("has no such final transaction")
            headers, certificate = _path(found)
            raw = _bytes(_field(found, "raw"), TRANSACTION_LIMIT_BYTES)
            proof = decode_merkle_proof(_bytes(_field(found, "proof"), MERKLE_PROOF_LIMIT_BYTES))
            proven = self._prove(endpoint, headers, certificate)
            if verify_transaction(proven[0].header, raw, proof) != hash_:
                raise ProofInvalid("a transaction with another hash")
            receipt = None
            if name == "receipt":
                if len(proven) < 2:
                    raise HeaderUnproven("the header with the root over the receipts is missing")
                leaf = _bytes(_field(found, "receipt"), RECEIPT_LIMIT_BYTES)
                path = decode_merkle_proof(_bytes(_field(found, "receipt_proof"), MERKLE_PROOF_LIMIT_BYTES))
                if path.position != proof.position:
                    raise ProofInvalid("the receipt of another transaction")
                receipt = verify_receipt(proven[0].header, proven[1].header, leaf, path)
            return ProvenTransaction(hash_, proof.position, proven[0], raw, receipt, endpoint.url)

        try:
            return self._first(ask)
        except NoEndpoint:
            if absent:
                raise NotShown(
                    f"no final transaction 0x{hash_.hex()} at {', '.join(absent)}; "
                    "that there is none cannot be proven"
                ) from None
            raise

    def _follow(self, endpoint: Endpoint) -> None:
        while True:
            epoch = self.client.trusted.epoch
            answer = self._call(endpoint, "dekube_getEpochRecords", epoch, RECORDS_PAGE)
            newest = _number(_field(answer, "at"), "height") // self.client.trusted.epoch_blocks
            records = _list(_field(answer, "records"), RECORDS_PAGE)
            for item in records:
                self._halt(self.client.follow(_epoch_record(item), self._now_ms()))
                done = self.client.trusted.epoch
                self._progress(done, max(done, newest))
            if not records:
                return

    def _compare(self, endpoint: Endpoint) -> None:
        """Compare an endpoint's newest boundary block with the own one: its hash covers all blocks before it."""
        client = self.client
        if not client.boundaries:
            return
        ours = client.trusted.epoch - 1
        answer = self._call(endpoint, "dekube_getEpochRecord", ours)
        if _field(answer, "record") is None:
            behind = _number(_field(answer, "at"), "height") // client.trusted.epoch_blocks - 1
            if behind not in client.boundaries:
                raise _Silent("has not the epochs that were followed")
            ours = behind
            answer = self._call(endpoint, "dekube_getEpochRecord", ours)
        item = _field(answer, "record")
        if item is None:
            raise _Silent(f"has no record of epoch {ours}")
        record = _epoch_record(item)
        if record.header.epoch != ours:
            raise EpochOutOfOrder(expected=ours, got=record.header.epoch)
        if header_hash(record.header) != client.boundaries[ours]:
            self._recall_ours(ours, endpoint)
        self._halt(client.compare(record))

    def _recall_ours(self, epoch: int, doubted: Endpoint) -> None:
        """Load the own records of an epoch and the one before. They tell a lie from a fork."""
        for endpoint in self.endpoints:
            if endpoint is doubted or endpoint.doubted or endpoint.banned:
                continue
            try:
                for wanted in (epoch - 1, epoch):
                    self._recall(endpoint, wanted)
                return
            except (RpcError, GatewayUnreachable, ProtocolError, _Silent) as error:
                endpoint.note = _printable(str(error))

    def _recall(self, endpoint: Endpoint, epoch: int) -> None:
        """Fetch the record of an epoch that was already followed, for its committee."""
        if epoch not in self.client.boundaries:
            return
        item = _field(self._call(endpoint, "dekube_getEpochRecord", epoch), "record")
        if item is None:
            raise _Silent(f"has no record of epoch {epoch}")
        self._halt(self.client.compare(_epoch_record(item)))

    def _prove_head(self, endpoint: Endpoint) -> Proven:
        height = _number(_field(self._call(endpoint, "dekube_head"), "at"), "height")
        if not height:
            raise _Silent("has no block yet")
        headers, certificate = _path(self._call(endpoint, "dekube_getHeader", height))
        return self._prove(endpoint, headers, certificate)[-1]

    def _prove(
        self, endpoint: Endpoint, headers: list[Header], certificate: Certificate | None
    ) -> tuple[Proven, ...]:
        """Return an endpoint's headers once they are proven; request what is missing."""
        client, now_ms = self.client, self._now_ms()
        if certificate is None and headers[-1].epoch >= client.trusted.epoch:
            headers, certificate = self._to_certificate(endpoint, headers)
        epoch = headers[-1].epoch
        if epoch > client.trusted.epoch:  # a boundary passed since
            self._follow(endpoint)
        if epoch < client.trusted.epoch and header_hash(headers[-1]) != client.boundaries.get(epoch):
            period = client.options.trusting_period_ms
            if period is not None and now_ms - headers[-1].time_ms > period:
                certificate = None
            elif certificate is not None and client.committee(epoch) is None:
                with suppress(_Silent):
                    self._recall(endpoint, epoch - 1)
            if certificate is None or client.committee(epoch) is None:
                headers, certificate = self._to_boundary(endpoint, headers), None
        proven = client.verify_headers(headers, certificate, now_ms)
        if isinstance(proven, Fork):
            raise ForkFound(proven)
        endpoint.height = max(endpoint.height, proven[-1].header.height)
        if self._newest is None or proven[-1].header.height > self._newest.header.height:
            self._newest = proven[-1]
        return proven

    def _to_certificate(self, endpoint: Endpoint, headers: list[Header]) -> tuple[list[Header], Certificate]:
        """Extend headers of the current epoch upwards until one has a certificate."""
        path, limit = list(headers), 2 * self.client.trusted.epoch_blocks + HEADERS_PAGE
        while len(path) <= limit:
            more, certificate = _path(self._call(endpoint, "dekube_getHeader", path[-1].height + 1, HEADERS_PAGE))
            path += more
            if certificate is not None:
                return path, certificate
            if len(more) != HEADERS_PAGE:  # only a whole page can end without one: the newest block always has its
                raise HeaderUnproven("headers that end without a certificate")
        raise HeaderUnproven(f"{limit} headers without a certificate")

    def _to_boundary(self, endpoint: Endpoint, headers: list[Header]) -> list[Header]:
        """Extend headers up to the next known boundary block, which needs no certificate."""
        path, known = list(headers), self.client.boundaries
        epoch = max(headers[-1].epoch, min(known, default=0))
        top = (epoch + 1) * self.client.trusted.epoch_blocks
        if epoch not in known or top - path[0].height >= HEADERS_MAX:
            raise _Silent(f"height {path[0].height} is too far below what is trusted")
        while path[-1].height < top:
            missing = min(top - path[-1].height, HEADERS_PAGE)
            more = _headers(self._call(endpoint, "dekube_getHeaders", path[-1].height + 1, missing))
            if len(more) != missing:
                raise _Silent(f"has not all headers up to height {top}")
            path += more
        return path

    # All endpoints

    def _call(self, endpoint: Endpoint, method: str, *params: Any) -> Json:
        for _ in range(PAUSES_MAX):
            try:
                return self._sources[endpoint.url].call(method, *params)
            except RpcError as error:
                if error.reason != "limit_exceeded":
                    raise
                wait_s: Any = error.fields.get("retry_after_s")
                if type(wait_s) not in (int, float) or not wait_s > 0:
                    wait_s = 1.0
                self._sleep(min(wait_s, PAUSE_S_MAX))
        raise _Silent("rations what may be asked")

    def _halt(self, fork: Fork | None) -> None:
        if fork is not None:
            raise ForkFound(fork)

    def _each(self, ask: Callable[[Endpoint], _T], *, until_first: bool = False) -> list[_T]:
        """Query every endpoint that is not banned; return the valid answers."""
        answers: list[_T] = []
        for endpoint in self.endpoints:
            if endpoint.banned or endpoint.doubted:
                continue
            try:
                answers.append(ask(endpoint))
                endpoint.note = ""
            except ProtocolError as error:
                endpoint.banned = _printable(f"{error.code}: {error}")
            except CommitteeUnknown as error:
                endpoint.doubted = True
                endpoint.note = f"contradicts what is trusted, a lie or a fork: {error}"
            except (RpcError, GatewayUnreachable, _Silent) as error:
                endpoint.note = _printable(str(error))
            if answers and until_first:
                break
        return answers

    def _first(self, ask: Callable[[Endpoint], _T]) -> _T:
        answers = self._each(ask, until_first=True)
        if not answers:
            raise NoEndpoint(self._reasons())
        return answers[0]

    def _reasons(self) -> dict[str, str]:
        return {
            endpoint.url: f"banned: {endpoint.banned}" if endpoint.banned else endpoint.note
            for endpoint in self.endpoints
        }


def with_endpoints(saved: LightFile, urls: Sequence[str]) -> LightFile:
    """Return ``saved`` with exactly these endpoints; known ones keep their bans.

    Raises ConfigError for too many.
    """
    known = {endpoint.url: endpoint for endpoint in saved.endpoints}
    chosen = tuple(known.get(url) or Endpoint(url) for url in dict.fromkeys(urls))
    if len(chosen) > ENDPOINTS_MAX:
        raise ConfigError(f"{len(chosen)} endpoints; at most {ENDPOINTS_MAX} are allowed")
    return saved._replace(endpoints=chosen)
