"""The vote key of a node: in its own process behind the guard, or with a signer elsewhere; and that signer.

The signer listens on a Unix socket in its home, and where its owner says so on TCP, encrypted and authenticated by
the peers' handshake under a purpose of its own: the node proves its address, which must be on the signer's list,
and the signer the address that the node's options name.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import structlog
import trio

from consensus.guard import Guard, GuardMissing, GuardOutdated
from consensus.guard_log import GUARD_FILE, VoteDirectory
from consensus.signer import KEYS_MAX, Answer, Opening, Request, SignerCore, SignerUnavailable
from consensus.signer_service import RemoteVoter, SignerKey, SignerServer, ask_signer
from node.config import (
    KeyOptions,
    LogOptions,
    NodeOptions,
    dump_options,
    load_table,
    parse_host_port,
    parse_signer,
    parse_vote_key,
)
from node.control import short_path
from node.home import (
    Home,
    begin_guard,
    load_key,
    node_secret,
    read_passphrase,
    save_key,
    write_private,
    write_whole,
)
from node.logs import configure_logs
from p2p.crowds import block_of, site_of
from p2p.errors import FrameInvalid, HandshakeFailed
from p2p.handshake import Handshake, Session
from p2p.identity import Identity, Purpose
from p2p.link import shake_hands
from p2p.record import RECORD_PLAINTEXT_BYTES_MAX, RecordReader, seal
from p2p.sockets import tune
from state.primitives.address import format_address, parse_address
from state.primitives.errors import ConfigError, DecodeError, DekubeError
from state.primitives.genesis import Genesis, genesis_hash, genesis_to_json
from state.primitives.keys import SecretKey
from state.primitives.keystore import SCRYPT_N
from state.primitives.votes import VoteKey

__all__ = [
    "HalfOpen",
    "LocalVoter",
    "SealedStream",
    "SignerHomeOptions",
    "add_signer_key",
    "ask_home",
    "check_signer_options",
    "create_signer_home",
    "load_signer_options",
    "make_voter",
    "open_guard",
    "run_signer",
    "serve_signer",
    "signer_socket",
    "vote_keys_of",
    "votes_elsewhere",
]

_log = structlog.get_logger("signer")

SOCKET_FILE: Final = "run/signer.sock"
HANDSHAKE_S: Final = 5.0
HALF_OPEN_MAX: Final = 256
"""Connections in the middle of a handshake; one more ends another."""
HALF_OPEN_OF_KNOWN_MAX: Final = HALF_OPEN_MAX // 2
"""Of these, those from where a node on the list came before, which no stranger can end."""
KNOWN_MAX: Final = 64
"""Addresses that are remembered for that."""
CONNECTIONS_MAX: Final = 16
RECEIVE_BYTES: Final = 16 * 1024


# The node's side: whoever votes for it.


class LocalVoter(NamedTuple):
    """The vote key in the node's own process, and the directory with its guard."""

    key: VoteKey
    directory: VoteDirectory


def votes_elsewhere(options: NodeOptions) -> bool:
    """Tell whether a signer holds the vote key, so that the node loads none."""
    return "validator" in options.roles and bool(options.signer.endpoint)


def make_voter(
    home: Home, options: NodeOptions, *, chain_hash: bytes, vote: SecretKey | None,
    make_identity: Callable[[], Identity], may_have_voted: Callable[[], bool], tip: tuple[int, int],
    accepts_empty_guard: bool = False, on_change: Callable[[bool, str], None] | None = None,
    is_next: bool = False,
) -> LocalVoter | RemoteVoter | None:  # fmt: skip
    """Return who votes for this node: None for a node that only follows.

    ``is_next``: with the key of the signer that takes over (``signer.vote_key_next``).
    ``may_have_voted`` tells whether the chain knows a seat of the vote key in this epoch or an earlier one,
    ``tip`` is epoch and view of the newest final block. Raises ConfigError, GuardMissing, GuardCorrupt and
    GuardOutdated.
    """
    if votes_elsewhere(options):
        if home.path(options.keys.vote).exists():
            raise ConfigError(
                f"{home.path(options.keys.vote)}: a signer is configured, so the vote key must not be here too; "
                "move it there (docs/operations.md, Signer)"
            )
        vote_key = parse_vote_key(options.signer.vote_key_next if is_next else options.signer.vote_key)

        def check(opening: Opening) -> None:
            _check_signer(home, chain_hash, opening, may_have_voted() and not accepts_empty_guard)

        def tell(is_reached: bool, reason: str) -> None:
            if is_reached:
                _log.info("the signer answers", endpoint=options.signer.endpoint, vote_key=vote_key)
            else:
                _log.warning("no signer: following without a vote", reason=reason, vote_key=vote_key)
            if on_change is not None:
                on_change(is_reached, reason)

        return RemoteVoter(
            _connector(home, options.signer.endpoint, make_identity),
            genesis_hash=chain_hash,
            vote_key=vote_key,
            check_opening=check,
            on_change=tell,
        )
    if vote is None:
        return None
    directory = open_guard(
        home,
        chain_hash,
        vote.vote_key,
        may_have_voted=may_have_voted(),
        tip=tip,
        accepts_empty=accepts_empty_guard,
    )
    return LocalVoter(VoteKey(vote), directory)


def open_guard(
    home: Home, chain_hash: bytes, vote_key: bytes, *, may_have_voted: bool, tip: tuple[int, int],
    accepts_empty: bool,
) -> VoteDirectory:  # fmt: skip
    """Open the guard of a key in this home. A key that may have voted never votes without its record (3.6).

    The record begins with the key (``node.home.begin_guard``); one that is gone, or knows of no vote although the
    key has had a seat, is begun anew only on the operator's word. Raises GuardMissing, GuardOutdated and
    GuardCorrupt.
    """
    folder = home.guard_of(vote_key)
    directory = VoteDirectory(folder)
    try:
        if not directory.has_guard():
            if not accepts_empty:
                raise GuardMissing(
                    f"{folder}: there is no record of this key's votes; voting without it could get the key "
                    "slashed. Import its watermark (dekube node guard import), take a new vote key, or, if this "
                    "key has certainly never voted, start once with --accept-empty-guard"
                )
            directory.create_guard(Guard(chain_hash, vote_key, epoch=tip[0], view=tip[1]))
            _log.warning("the guard begins with an empty record, on the operator's word", vote_key=vote_key)
        guard = directory.load_guard(chain_hash, vote_key)
        if guard.is_fresh and may_have_voted:
            if not accepts_empty:
                raise _outdated(str(folder))
            guard.raise_floor(*tip)
            directory.guard.replace(guard.image())
            _log.warning("the guard goes on from an empty record, on the operator's word", vote_key=vote_key)
    except BaseException:
        directory.close()
        raise
    return directory


def _outdated(where: str) -> GuardOutdated:
    return GuardOutdated(
        f"{where}: the record of this key's votes is empty, but the key has had a seat: votes that it cast may be "
        "missing, and voting now could get it slashed. Import its watermark, or, if it has certainly never voted, "
        "start once with --accept-empty-guard"
    )


def _check_signer(home: Home, chain_hash: bytes, opening: Opening, refuses_fresh: bool) -> None:
    """Refuse a signer that knows less than this home or the chain does. Raises GuardOutdated."""
    if opening.is_fresh and refuses_fresh:
        raise _outdated("the signer")
    try:
        left, _ = Guard.load(
            (home.guard_of(opening.vote_key) / GUARD_FILE).read_bytes(), chain_hash, opening.vote_key
        )
    except (OSError, DekubeError):
        return  # no record here, or another key's
    mark = left.watermark()
    if opening.watermark < (mark.epoch, mark.view):
        raise GuardOutdated(
            f"the signer's record ends at epoch {opening.watermark[0]}, view {opening.watermark[1]}, but this key "
            f"has voted here up to epoch {mark.epoch}, view {mark.view}: move the watermark first "
            "(dekube node guard export, dekube signer import)"
        )


def _connector(
    home: Home, text: str, make_identity: Callable[[], Identity]
) -> Callable[[], Awaitable[trio.abc.Stream]]:
    endpoint = parse_signer(text)

    async def connect() -> trio.abc.Stream:
        if endpoint.path:
            return await trio.open_unix_socket(short_path(home.path(endpoint.path)))
        stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
        tune(stream.socket)
        return await _secured(stream, make_identity(), is_initiator=True, expected=endpoint.address)

    return connect


# The channel between machines.


class SealedStream(trio.abc.Stream):
    """A byte stream inside a finished handshake's session: what passes is encrypted and authenticated."""

    def __init__(self, stream: trio.abc.Stream, session: Session) -> None:
        self._stream = stream
        self._cipher = session.send
        self._reader = RecordReader(session.receive)
        self._rest = session.rest
        self._plain = bytearray()
        self.address = session.address
        """The account that the other end proved."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send; one task at a time."""
        view = memoryview(data)
        for at in range(0, len(view), RECORD_PLAINTEXT_BYTES_MAX):
            await self._stream.send_all(seal(self._cipher, bytes(view[at : at + RECORD_PLAINTEXT_BYTES_MAX])))

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until sending might not block."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return some bytes, none at the end. Raises trio.BrokenResourceError for what is not authentic."""
        while not self._plain:
            data = self._rest or await self._stream.receive_some(RECEIVE_BYTES)
            self._rest = b""
            if not data:
                return b""
            try:
                for plain in self._reader.receive(bytes(data)):
                    self._plain += plain
            except FrameInvalid as error:
                raise trio.BrokenResourceError(str(error)) from None
        size = len(self._plain) if max_bytes is None else max_bytes
        taken = bytes(self._plain[:size])
        del self._plain[:size]
        return taken

    async def aclose(self) -> None:
        """Close the stream below."""
        await self._stream.aclose()


async def _secured(
    stream: trio.abc.Stream, identity: Identity, *, is_initiator: bool, expected: bytes | None = None
) -> SealedStream:
    """Shake hands over ``stream``. Raises HandshakeFailed; the stream is closed then, and when cancelled."""
    handshake = Handshake(
        identity, Purpose.SIGNER, is_initiator=is_initiator, now_ms=time.time_ns() // 1_000_000, expected=expected
    )
    try:
        return SealedStream(stream, await shake_hands(stream, handshake))
    except BaseException as error:
        await trio.aclose_forcefully(stream)
        if isinstance(error, trio.BrokenResourceError | trio.ClosedResourceError):
            raise HandshakeFailed("lost during the handshake") from None
        raise


# The signer's process.


@dataclass(frozen=True, slots=True)
class SignerHomeOptions:
    """Options of ``dekube signer run``, as they stand in config.toml."""

    listen: str = ""
    """host:port for nodes on other machines; empty: the Unix socket in the home alone."""
    clients: tuple[str, ...] = ()
    """Addresses (0x...) of the nodes that may use ``listen``."""
    votes: tuple[str, ...] = ()
    """Files of further vote keys beside ``keys.vote``; each has its own guard (``dekube signer add-key``)."""
    keys: KeyOptions = field(default_factory=KeyOptions)
    log: LogOptions = field(default_factory=LogOptions)

    @property
    def vote_files(self) -> tuple[str, ...]:
        """The files of all vote keys, that of the first key first."""
        return (self.keys.vote, *self.votes)


def load_signer_options(path: Path) -> SignerHomeOptions:
    """Return the options of a signer's home. Raises ConfigError."""
    options = load_table(path, SignerHomeOptions)
    try:
        return check_signer_options(options)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def check_signer_options(options: SignerHomeOptions) -> SignerHomeOptions:
    """Return the options if they make sense. Raises ConfigError."""
    files = options.vote_files
    if len(set(files)) != len(files) or len(files) > KEYS_MAX:
        raise ConfigError(f"votes: each key once, and at most {KEYS_MAX} in all")
    if options.listen:
        parse_host_port(options.listen)
        if not options.clients:
            raise ConfigError("clients: nobody may use listen; name the node's address")
    try:
        for client in options.clients:
            parse_address(client)
    except DecodeError as error:
        raise ConfigError(f"clients: {error}") from None
    return options


def signer_socket(home: Home) -> Path:
    """Return the Unix socket of the signer in ``home``."""
    return home.root / SOCKET_FILE


async def ask_home(home: Home, request: Request) -> Answer:
    """Ask the signer that runs in ``home``. Raises SignerUnavailable, or what a refusal stands for."""
    try:
        stream = await trio.open_unix_socket(short_path(signer_socket(home)))
    except OSError as error:
        raise SignerUnavailable(f"no signer runs in {home.root} ({error})") from None
    return await ask_signer(stream, request)


def create_signer_home(
    root: Path, *, genesis: Genesis, account: SecretKey, vote: SecretKey, is_new_key: bool, passphrase: str,
    options: SignerHomeOptions, keep_passphrase: bool = True, scrypt_n: int = SCRYPT_N,
) -> Home:  # fmt: skip
    """Write a signer's home. Only a new key gets an empty guard: any other may have voted.

    Raises ConfigError when something lives there already.
    """
    home = Home(root)
    if home.config.exists():
        raise ConfigError(f"{root}: a node lives here already; nothing was changed")
    for directory in (root, root / "keys", root / "data", root / "run"):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if keep_passphrase and options.keys.passphrase_file:
        write_private(home.path(options.keys.passphrase_file), passphrase + "\n")
    save_key(home.path(options.keys.account), account, passphrase, scrypt_n=scrypt_n)
    save_key(home.path(options.keys.vote), vote, passphrase, scrypt_n=scrypt_n)
    if is_new_key:
        begin_guard(home, genesis_hash(genesis), vote.vote_key)
    write_whole(home.genesis, genesis_to_json(genesis))
    write_whole(home.config, dump_options(options))
    return home


def add_signer_key(home: Home, vote: SecretKey, *, is_new_key: bool, passphrase: str) -> None:
    """Put a further vote key into a signer's home; the next start serves it. Only a new key gets an empty guard.

    Raises ConfigError for one that is there already.
    """
    options = load_signer_options(home.config)
    file = f"keys/vote-{vote.vote_key[:8].hex()}.json"
    if home.path(file).exists() or vote.vote_key in (key.vote_key for key in vote_keys_of(home, passphrase)):
        raise ConfigError(f"{home.root}: this vote key is here already; nothing was changed")
    options = check_signer_options(replace(options, votes=(*options.votes, file)))
    folder = home.root / "data" / f"guard-{vote.vote_key[:8].hex()}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if is_new_key:
        begin_guard(home, genesis_hash(home.load_genesis()), vote.vote_key, is_next=True)
    save_key(home.path(file), vote, passphrase)
    write_whole(home.config, dump_options(options))


def vote_keys_of(home: Home, passphrase: str) -> list[SecretKey]:
    """Return the vote keys of a signer's home, the first of them first. Raises ConfigError, KeystoreError."""
    return [load_key(home.path(file), passphrase) for file in load_signer_options(home.config).vote_files]


async def serve_signer(
    home: Home, options: SignerHomeOptions, server: SignerServer, make_identity: Callable[[], Identity],
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:  # fmt: skip
    """Listen until cancelled; tells ``task_status`` the host:port of the TCP listener, "" without one.

    Raises StoreError when the guard's disk fails.
    """
    path = signer_socket(home)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)  # the guard's lock tells that no other signer lives here
    local = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await local.bind(short_path(path))
    path.chmod(0o600)
    local.listen(CONNECTIONS_MAX)
    listeners: list[trio.SocketListener] = []
    if options.listen:
        host, port = parse_host_port(options.listen)
        listeners = await trio.open_tcp_listeners(port, host=host)
    door = _Door(server, make_identity, frozenset(parse_address(client) for client in options.clients))
    connections = trio.CapacityLimiter(CONNECTIONS_MAX)

    async def serve_local(stream: trio.SocketStream) -> None:
        async with connections:
            await server.serve(stream, is_local=True)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, serve_local, [trio.SocketListener(local)])
            bound = ""
            if listeners:
                name = listeners[0].socket.getsockname()
                bound = f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
                nursery.start_soon(trio.serve_listeners, door.enter, listeners)
            task_status.started(bound)
    finally:
        path.unlink(missing_ok=True)


class _Place(NamedTuple):
    """Of a connection that has not yet proved who it is."""

    site: str
    block: str
    lose: Callable[[], None]


class HalfOpen:
    """The places of connections in the middle of a handshake.

    Where all are taken, one of the block of addresses that has most of them makes room, drawn by lot: whoever
    floods the door fights with itself first, and a node of the same block still gets through now and then: it
    never would if always the oldest had to go. From where a node on the list came before nobody makes room for
    strangers.
    """

    def __init__(self, draw: Random | None = None) -> None:
        self._draw = draw or Random()
        self._places: dict[int, _Place] = {}
        self._known: OrderedDict[str, None] = OrderedDict()
        self._number = 0

    def __len__(self) -> int:
        return len(self._places)

    def prove(self, host: str) -> None:
        """Take notice that a node on the list is at an address."""
        self._known[site_of(host)] = None
        self._known.move_to_end(site_of(host))
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def enter(self, host: str, lose: Callable[[], None]) -> int:
        """Return the number of a newcomer's place; ``lose`` is called when it has to make room."""
        while len(self._places) >= HALF_OPEN_MAX:
            self._make_room()
        self._number += 1
        self._places[self._number] = _Place(site_of(host), block_of(host), lose)
        return self._number

    def leave(self, number: int) -> None:
        """Give a place back; one that was lost already is not held any more."""
        self._places.pop(number, None)

    def _make_room(self) -> None:
        known = [number for number, place in self._places.items() if place.site in self._known]
        if len(known) > HALF_OPEN_OF_KNOWN_MAX:
            candidates = known
        else:
            blocks = Counter(place.block for place in self._places.values() if place.site not in self._known)
            [(largest, _)] = blocks.most_common(1)
            candidates = [
                number
                for number, place in self._places.items()
                if place.block == largest and place.site not in self._known
            ]
        self._places.pop(self._draw.choice(candidates)).lose()


class _Door:
    """Lets the nodes on the list in, and bounds what everyone else can cost."""

    def __init__(
        self, server: SignerServer, make_identity: Callable[[], Identity], clients: frozenset[bytes]
    ) -> None:
        self._server = server
        self._make_identity = make_identity
        self._clients = clients
        self._half_open = HalfOpen()
        self._inside: dict[bytes, int] = {}

    async def enter(self, stream: trio.SocketStream) -> None:
        sealed = await self._shake_hands(stream)
        if sealed is None:
            return
        address = sealed.address
        # For each key one that votes, and one that is told that it may not.
        if self._inside.get(address, 0) >= 2 * len(self._server.vote_keys):
            await trio.aclose_forcefully(stream)
            return
        self._inside[address] = self._inside.get(address, 0) + 1
        _log.info("a node is connected", address=address)
        try:
            await self._server.serve(sealed, is_local=False)
        finally:
            self._inside[address] -= 1
            _log.info("a node is gone", address=address)

    async def _shake_hands(self, stream: trio.SocketStream) -> SealedStream | None:
        try:
            host = str(stream.socket.getpeername()[0])
        except OSError:  # gone before it came
            await trio.aclose_forcefully(stream)
            return None
        tune(stream.socket)
        scope = trio.CancelScope(deadline=trio.current_time() + HANDSHAKE_S)
        place = self._half_open.enter(host, scope.cancel)
        try:
            with scope:
                sealed = await _secured(stream, self._make_identity(), is_initiator=False)
                if sealed.address in self._clients:
                    self._half_open.prove(host)
                    return sealed
                _log.warning("a node that is not on the list was refused", address=sealed.address)
                await trio.aclose_forcefully(stream)
        except DekubeError as error:
            _log.debug("a handshake failed", reason=str(error))
        finally:
            self._half_open.leave(place)
        return None


def run_signer(home: Home, ask_passphrase: Callable[[], str], *, accepts_empty_guard: bool = False) -> None:
    """Run the signer in ``home`` until SIGTERM or SIGINT.

    Raises ConfigError, KeystoreError, GuardMissing, GuardCorrupt, and StoreError when the guard's disk fails.
    """
    options = load_signer_options(home.config)
    configure_logs(options.log)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold the key
    chain_hash = genesis_hash(home.load_genesis())
    file = home.path(options.keys.passphrase_file)
    passphrase = read_passphrase(file) if options.keys.passphrase_file and file.exists() else ask_passphrase()
    votes = vote_keys_of(home, passphrase)
    account = load_key(home.path(options.keys.account), passphrase)
    secret = node_secret(home)

    def make_identity() -> Identity:
        now_ms = time.time_ns() // 1_000_000
        return Identity.create(account, genesis_hash=chain_hash, now_ms=now_ms, node_secret=secret)

    def tell_refusal(error: DekubeError, request: Request) -> None:
        _log.warning("refused", code=error.code, reason=str(error), request=type(request).__name__)

    with ExitStack() as stack:
        keys: list[SignerKey] = []
        for vote in votes:
            # What the chain knows of the key is the node's to check, which has a chain.
            directory = open_guard(
                home,
                chain_hash,
                vote.vote_key,
                may_have_voted=False,
                tip=(0, 0),
                accepts_empty=accepts_empty_guard,
            )
            stack.callback(directory.close)
            core = SignerCore(VoteKey(vote), directory.load_guard(chain_hash, vote.vote_key), chain_hash)
            keys.append(SignerKey(core, directory.guard))
        server = SignerServer(*keys, on_refusal=tell_refusal)
        trio.run(_run_until_told, home, options, server, make_identity)
    _log.info("stopped")


async def _run_until_told(
    home: Home, options: SignerHomeOptions, server: SignerServer, make_identity: Callable[[], Identity],
) -> None:  # fmt: skip
    vote_keys = ["0x" + vote_key.hex() for vote_key in server.vote_keys]
    async with trio.open_nursery() as nursery:

        async def listen(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                task_status.started()
                async for _ in signals:
                    _log.info("told to stop")
                    nursery.cancel_scope.cancel()

        await nursery.start(listen)
        bound: str = await nursery.start(serve_signer, home, options, server, make_identity)
        address = make_identity().address
        ready = {
            "pid": os.getpid(),
            "address": format_address(address),
            "vote_key": vote_keys[0],
            "vote_keys": vote_keys,
            "listen": bound or None,
        }
        write_whole(home.ready, json.dumps(ready) + "\n")
        _log.info(
            "the signer is ready", vote_keys=vote_keys, socket=str(signer_socket(home)), listen=bound or None
        )
        try:
            await trio.sleep_forever()
        finally:
            home.ready.unlink(missing_ok=True)
