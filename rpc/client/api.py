"""The client's methods, each written once as a flow: queries, transactions, subscriptions."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import orjson

from rpc.client.arguments import (
    check_address,
    check_amount,
    check_data,
    check_fees,
    check_hash,
    check_key,
    check_kind,
    check_timeout,
)
from rpc.client.block_stream import KINDS, notifications
from rpc.client.contracts import ContractFunction, find_function, read_revert
from rpc.client.core import (
    ELSEWHERE,
    RATION,
    Call,
    Core,
    DeadlineExceeded,
    Flow,
    Item,
    Pause,
    Post,
    ReadClock,
    RunBlocking,
    Steps,
    Stream,
    hexed,
    http_url,
    through,
    within,
)
from rpc.client.errors import AnswerMalformed, ArgumentInvalid, ClientError, GatewayUnreachable, TransactionRefused
from rpc.client.flow_methods import FlowMethod, StreamMethod
from rpc.client.results import (
    Account,
    Block,
    ChainInfo,
    Contract,
    Head,
    HistoryEntry,
    Machine,
    Nonce,
    Notification,
    Quote,
    Receipt,
    ResultObject,
    Transaction,
    read_result,
)
from state.primitives.abi import AbiValue
from state.primitives.codec import Value
from state.primitives.errors import ConfigError
from state.primitives.hashing import keccak
from state.primitives.keys import SecretKey
from state.primitives.signing import sign_dynamic
from state.primitives.transactions import decode_transaction, sign_transaction

__all__ = [
    "Api",
    "ask_account",
    "ask_fees",
    "ask_receipt",
    "each",
    "one",
    "send",
    "send_beside",
    "send_signed",
    "submit",
    "wait_for",
]

_S = TypeVar("_S", bound=ResultObject)
_T = TypeVar("_T")

WAIT_MS: Final = 10_000
PAUSE_S: Final = 1.0
"""Seconds between two requests for a receipt, if a gateway answers at once or not at all."""
DOUBT_BYTES: Final = 4096
TRANSIENT: Final = ELSEWHERE | {RATION}
DOUBTFUL: Final = TRANSIENT | {"internal_error"}
"""Reasons of errors after which the transaction may still have been accepted."""
_QUANTITY: Final = re.compile("0x[0-9a-f]{1,64}")
GRACE_S: Final = 5.0
"""Extra seconds after the time for a receipt, for the last answer to arrive."""
FINAL_TIMEOUT_S: Final = 300.0
"""How long ``send`` waits for a transaction to become final."""
TIP_QUOTED_MAX: Final = 10 * 10**9
"""Highest priority fee per gas that is taken from a gateway's quote without the caller's consent."""


# Parts


def one(core: Core, cls: type[_S], field: str, method: str, **named: Any) -> Flow[_S | None]:
    """Return the record in ``field`` of a method's answer; None if it is null."""
    answer = yield from core.call(method, **named)
    if type(answer) is not dict or field not in answer:
        raise AnswerMalformed(f"{method}: an answer without {field}")
    return None if answer[field] is None else read_result(cls, answer[field])


def each(core: Core, cls: type[_S], method: str, **named: Any) -> Stream[_S]:
    """Yield all records of a paged method."""

    def read(item: Any) -> Generator[Any, Any, bool]:
        yield Item(read_result(cls, item))
        return False

    return through(core.pages(method, **named), read)


# Questions


def _call(core: Core, method: str, /, *params: Any, **named: Any) -> Flow[Any]:
    """Return the result of any method as JSON. Parameters are positional or named.

    Raises ClientError for an error answer, GatewayUnreachable if no gateway answers.
    """
    return core.call(method, *params, **named)


def _batch(core: Core, calls: Sequence[Call]) -> Flow[list[Any]]:
    """Return the results in the order of ``calls``; a failed one is its ClientError."""
    if not isinstance(calls, list | tuple) or not all(isinstance(one, Call) for one in calls):
        raise ArgumentInvalid("calls: a list of Call expected")
    return core.batch(calls)


def _items(core: Core, method: str, /, **named: Any) -> Stream[Any]:
    """Yield all items of any paged method as JSON. All pages show the state at one height."""
    return core.pages(method, **named)


def _chain(core: Core) -> Flow[ChainInfo]:
    """Return the chain's identity. Raises OtherChain if it is not the chain to sign for."""
    info = read_result(ChainInfo, (yield from core.call("dekube_chainInfo")))
    core.check_chain(info.chain_id)
    return info


def _head(core: Core) -> Flow[Head]:
    """Return the newest finalised block."""
    return read_result(Head, (yield from core.call("dekube_head")))


def _block(core: Core, block: int | bytes | None = None) -> Flow[Block | None]:
    """Return a block by height or hash, by default the newest; None if it does not exist."""
    if isinstance(block, bytes):
        check_hash("block", block)
    named = hexed(block) if isinstance(block, bytes) else block
    return one(core, Block, "block", "dekube_getBlock", block=named)


def ask_account(core: Core, address: bytes, *, height: int | None = None) -> Flow[Account]:
    """Return balance and nonces of an account after the block ``height``, by default the newest."""
    check_address("address", address)
    answer = yield from core.call("dekube_getAccount", address=hexed(address), height=height)
    return read_result(Account, answer)


def _balance(core: Core, address: bytes, *, height: int | None = None) -> Flow[int]:
    """Return the free balance of an account in 10^-18 DKB."""
    return (yield from ask_account(core, address, height=height)).balance


def _transaction(core: Core, hash_: bytes) -> Flow[Transaction | None]:
    """Return a finalised or pending transaction."""
    check_hash("hash_", hash_)
    found = yield from one(core, Transaction, "transaction", "dekube_getTransaction", hash=hexed(hash_))
    if found is not None and found.hash != hash_:
        raise AnswerMalformed("another transaction than was asked for")
    return found


def ask_receipt(core: Core, hash_: bytes) -> Flow[Receipt | None]:
    """Return the receipt of a final transaction."""
    check_hash("hash_", hash_)
    found = yield from one(core, Receipt, "receipt", "dekube_getReceipt", hash=hexed(hash_))
    return None if found is None else _of_hash(found, hash_)


def _history(core: Core, address: bytes) -> Stream[HistoryEntry]:
    """Yield the account's history, newest first: transactions, and changes made by blocks."""
    check_address("address", address)
    return each(core, HistoryEntry, "dekube_getAccountHistory", address=hexed(address))


def ask_fees(core: Core) -> Flow[Quote]:
    """Return the current fees."""
    return read_result(Quote, (yield from core.call("dekube_quote")))


def _machine(core: Core, address: bytes) -> Flow[Machine | None]:
    """Return a registered machine."""
    check_address("address", address)
    return one(core, Machine, "node", "dekube_getNode", address=hexed(address))


def _machines(core: Core) -> Stream[Machine]:
    """Yield all registered machines."""
    return each(core, Machine, "dekube_getNodes")


# Transactions


def submit(core: Core, raw: bytes) -> Flow[bytes]:
    """Submit a signed transaction of any form; return its hash. Submitting it again is harmless.

    Raises ClientError if it was certainly not accepted, with the reason. Raises GatewayUnreachable if it may have
    been accepted: after a lost answer the refusal of another gateway proves nothing.
    """
    check_data("raw", raw)
    hash_ = keccak(raw)
    doubts: list[str] = []
    try:
        yield from _noting(core.call("dekube_sendTransaction", raw=hexed(raw)), doubts)
    except ClientError as error:
        if error.reason == "already_known":
            return hash_
        # An answer that was lost: the transaction may be final by now.
        if error.reason == "nonce_too_low" and (yield from ask_receipt(core, hash_)) is not None:
            return hash_
        if doubts or error.reason in DOUBTFUL:
            raise GatewayUnreachable(f"{error}; it may have been taken all the same") from None
        raise
    return hash_


def _noting(flow: Flow[_T], doubts: list[str]) -> Flow[_T]:
    """Perform a flow; record whether a submission may have been accepted without an answer."""
    steps = Steps(flow)
    for effect in steps:
        try:
            answer = yield effect
        except GatewayUnreachable as failed:
            doubts.append(str(failed))
            steps.resume(None, failed)
        else:
            if isinstance(answer, bytes):
                doubts += [reason for reason in DOUBTFUL if f'"{reason}"'.encode() in answer[:DOUBT_BYTES]]
            steps.resume(answer, None)
    result: _T = steps.result
    return result


def wait_for(core: Core, raw: bytes, *, timeout_s: float = FINAL_TIMEOUT_S) -> Flow[Receipt]:
    """Submit a signed transaction and return its receipt when it is final.

    If the gateway that accepted it becomes unreachable, it is submitted to another one; this is harmless. Raises
    ClientError if the mempool refuses it, GatewayUnreachable if no gateway answers, TransactionRefused if its
    rule refuses it or it is not final in time.
    """
    check_timeout("timeout_s", timeout_s)
    yield from submit(core, raw)
    return (yield from _await_receipt(core, raw, timeout_s))


def _await_receipt(core: Core, raw: bytes, timeout_s: float) -> Flow[Receipt]:
    """Return the receipt of a transaction that was submitted, or may have been.

    It may still become final whatever a gateway answers. So only TransactionRefused is raised, with its hash.
    """
    hash_ = keccak(raw)
    try:
        # A gateway may take as long as it was given to say that it is not final.
        receipt = yield from within(_ask_receipt(core, raw, hash_, timeout_s), timeout_s + GRACE_S)
    except DeadlineExceeded:
        receipt = None
    if receipt is None:
        text = f"transaction {hexed(hash_)} is not final yet; it may still become so"
        raise TransactionRefused(text, hash_=hash_)
    if not receipt.succeeded:
        text = f"transaction {hexed(hash_)} failed: {receipt.reason}"
        raise TransactionRefused(text, reason=receipt.reason or "unknown", hash_=hash_)
    return receipt


def _ask_receipt(core: Core, raw: bytes, hash_: bytes, timeout_s: float) -> Flow[Receipt | None]:
    """Poll for a receipt; return None on timeout."""
    now = yield ReadClock()
    deadline, url = now + timeout_s, core.url
    wait_max_ms = min(WAIT_MS, int(core.options.timeout_s * 500))
    while True:
        began = now
        left_ms = max(0, min(wait_max_ms, int((deadline - began) * 1000)))
        asked = core.url
        try:
            answer = yield from core.call("dekube_waitForReceipt", hash=hexed(hash_), timeout_ms=left_ms)
            match answer:
                case {"receipt": dict() as found}:
                    return _of_hash(read_result(Receipt, found), hash_)
                case {"receipt": None, "pending": bool(pending)}:
                    if core.url != url or not pending:
                        url = core.url
                        yield from _hand_in_again(core, raw, hash_)
                case _:
                    raise AnswerMalformed("dekube_waitForReceipt: not an answer")
        except GatewayUnreachable:
            core.leave_gateway(asked)
        except ClientError as error:
            if error.reason not in TRANSIENT:
                text = f"transaction {hexed(hash_)} was handed in and may become final, but: {error}"
                raise TransactionRefused(text, hash_=hash_) from None
        now = yield ReadClock()
        if now >= deadline:
            return None
        if now - began < left_ms / 2000:  # it did not wait, and is not to be asked without a pause
            yield Pause(min(PAUSE_S, deadline - now))
            now = yield ReadClock()


def _hand_in_again(core: Core, raw: bytes, hash_: bytes) -> Flow[None]:
    """Submit a transaction that a gateway does not know or has lost.

    A refusal proves nothing about the gateway that accepted it. Raises TransactionRefused if a finalised
    transaction has the same nonce.
    """
    try:
        yield from submit(core, raw)
    except ClientError as error:
        if error.reason == "nonce_too_low":
            text = f"another transaction than {hexed(hash_)} has its nonce: {error}"
            raise TransactionRefused(text, reason=error.reason, hash_=hash_) from None


def _of_hash(receipt: Receipt, hash_: bytes) -> Receipt:
    if receipt.transaction_hash != hash_:
        raise AnswerMalformed("the receipt of another transaction")
    return receipt


def _sign(
    core: Core, key: SecretKey, kind: int, payload: list[Value], *, nonce: int | None = None,
    max_fee_per_gas: int | None = None, max_priority_fee_per_gas: int | None = None,
) -> Flow[bytes]:  # fmt: skip
    """Return a signed native transaction. Defaults: current fees and the next nonce.

    To replace a pending transaction, give its nonce and fees a tenth higher. Raises ConfigError for an unknown
    kind.
    """
    check_key("key", key)
    check_fees(max_fee_per_gas, max_priority_fee_per_gas)
    chain, quote, place = yield from _terms(core, key.address)
    gas = next((item.gas for item in quote.kinds if item.kind == kind), None)
    if gas is None:
        raise ConfigError(f"this chain does not know kind {kind:#x}")
    return sign_transaction(
        key,
        chain_id=chain.chain_id,
        nonce=core.next_nonce(key.address, place.pending_nonce) if nonce is None else nonce,
        kind=kind,
        payload=payload,
        gas_limit=gas,
        **_fees(quote, max_fee_per_gas, max_priority_fee_per_gas),
    )


def _fees(quote: Quote, fee: int | None, tip: int | None) -> dict[str, int]:
    """Return fee cap and tip per gas: the given ones, otherwise the current ones. Raises ConfigError.

    A fee cap costs at most the chain's base fee, however high it is. A tip is paid in full, so the tip of a
    gateway's quote is bounded.
    """
    fee = quote.max_fee_per_gas if fee is None else fee
    tip = min(quote.max_priority_fee_per_gas, TIP_QUOTED_MAX, fee) if tip is None else tip
    if tip > fee:
        raise ConfigError(f"a tip of {tip} is more than the fee that it is part of, {fee}")
    return {"max_fee_per_gas": fee, "max_priority_fee_per_gas": tip}


def _terms(core: Core, address: bytes) -> Flow[tuple[ChainInfo, Quote, Nonce]]:
    answers = yield from core.batch(
        [
            Call("dekube_chainInfo"),
            Call("dekube_quote"),
            Call("dekube_getNonce", {"address": hexed(address)}),
        ]
    )
    for answer in answers:
        if isinstance(answer, ClientError):
            raise answer
    chain, quote, nonce = answers
    info = read_result(ChainInfo, chain)
    core.check_chain(info.chain_id)
    return info, read_result(Quote, quote), read_result(Nonce, nonce)


def send(core: Core, key: SecretKey, kind: int, payload: list[Value]) -> Flow[Receipt]:
    """Sign and submit a native transaction; return its receipt when it is final.

    Raises ClientError if it was certainly not accepted; otherwise only TransactionRefused.
    """
    return (yield from send_signed(core, key, kind, payload))[0]


def send_signed(core: Core, key: SecretKey, kind: int, payload: list[Value]) -> Flow[tuple[Receipt, bytes]]:
    """Like ``send``; also return the signed bytes."""
    check_key("key", key)
    return _deliver(core, key.address, lambda: _sign(core, key, kind, payload))


def _deliver(core: Core, address: bytes, sign: Callable[[], Flow[bytes]]) -> Flow[tuple[Receipt, bytes]]:
    """Sign and submit while no other flow signs for the account; return the receipt and the signed bytes.

    So simultaneous transactions get consecutive nonces in the order of submission. A transaction that may have
    been accepted is waited for: a caller that is told of a failure would send again and pay twice. Raises
    ClientError if it was certainly refused, otherwise as ``wait``.
    """
    nonce: int | None = None
    yield from core.lock_account(address)
    try:
        try:
            raw = yield from sign()
            nonce = decode_transaction(raw).nonce
            core.note_nonce(address, nonce)
            with suppress(GatewayUnreachable):  # it may have been taken
                yield from submit(core, raw)
        finally:
            core.unlock_account(address)
        return (yield from _await_receipt(core, raw, FINAL_TIMEOUT_S)), raw
    finally:
        if nonce is not None:
            core.drop_nonce(address, nonce)


def send_beside(
    core: Core, key: SecretKey, kind: int, payload: list[Value], *,
    beside: Callable[[bytes], tuple[int, list[Value]]] | None = None,
    note: Callable[[bytes, bytes | None], None] | None = None,
) -> Flow[tuple[Receipt, bytes, bytes | None]]:  # fmt: skip
    """Send a transaction, and one beside it with the next nonce, so that no block has the first one alone.

    ``beside`` returns kind and payload for the signed first one. It is submitted before the first one, for which
    it waits in the pools of all nodes. ``note`` gets the signed bytes of both before anything is submitted: who
    keeps them can submit them again after an interruption, which is harmless.

    Returns the receipt of the first one, its bytes, and those of the second one; None if it was not taken. Raises
    as ``send``.
    """
    check_key("key", key)
    nonces: list[int] = []
    yield from core.lock_account(key.address)
    try:
        try:
            raw, second = (yield from _sign(core, key, kind, payload)), None
            nonces.append(decode_transaction(raw).nonce)
            if beside is not None:
                nonces.append(nonces[0] + 1)
                second = yield from _sign(core, key, *beside(raw), nonce=nonces[1])
            for nonce in nonces:
                core.note_nonce(key.address, nonce)
            if note is not None:
                yield RunBlocking(partial(note, raw, second))
            if second is not None:
                try:
                    yield from submit(core, second)
                except (ClientError, GatewayUnreachable):
                    second = None
            with suppress(GatewayUnreachable):  # it may have been taken
                yield from submit(core, raw)
        finally:
            core.unlock_account(key.address)
        return (yield from _await_receipt(core, raw, FINAL_TIMEOUT_S)), raw, second
    finally:
        for nonce in nonces:
            core.drop_nonce(key.address, nonce)


def _transfer(core: Core, key: SecretKey, to: bytes, amount: int) -> Flow[Receipt]:
    """Transfer ``amount`` of 10^-18 DKB; return the receipt of the final transaction. Raises as ``wait``."""
    from state.transition.transfer import TRANSFER_KIND  # its rule weighs more than this client

    check_address("to", to)
    check_amount("amount", amount)
    return send(core, key, TRANSFER_KIND, [to, amount])


# Ethereum's form, and the system contracts


def _sign_call(
    core: Core, key: SecretKey, to: bytes, *, value: int = 0, data: bytes = b"", nonce: int | None = None,
    max_fee_per_gas: int | None = None, max_priority_fee_per_gas: int | None = None,
) -> Flow[bytes]:  # fmt: skip
    """Return a signed EIP-1559 transaction with estimated gas, as an Ethereum wallet makes it.

    Nonce and fees are as in ``sign``. Raises ClientError with the reason if the call would fail.
    """
    check_key("key", key)
    check_address("to", to)
    check_amount("value", value)
    check_data("data", data)
    check_fees(max_fee_per_gas, max_priority_fee_per_gas)
    chain, quote, place = yield from _terms(core, key.address)
    request = {"from": hexed(key.address), "to": hexed(to), "value": hex(value), "data": hexed(data)}
    gas = yield from _ethereum(core, "eth_estimateGas", request)
    return sign_dynamic(
        key,
        chain_id=chain.chain_id,
        nonce=core.next_nonce(key.address, place.pending_nonce) if nonce is None else nonce,
        to=to,
        value=value,
        data=data,
        gas_limit=_quantity(gas),
        **_fees(quote, max_fee_per_gas, max_priority_fee_per_gas),
    )


def _ethereum(core: Core, method: str, *params: Any) -> Flow[Any]:
    try:
        return (yield from core.call(method, *params))
    except ClientError as error:
        if (reason := read_revert(error.data)) is not None:
            error.reason = error.code = reason  # type: ignore[misc]  # Ethereum's methods spell it in the data
        raise


def _quantity(value: Any) -> int:
    if type(value) is not str or not _QUANTITY.fullmatch(value):
        raise AnswerMalformed("not a quantity")
    return int(value, 16)


def _contracts(core: Core) -> Flow[tuple[Contract, ...]]:
    """Return the system contracts with their ABI."""
    answer = yield from core.call("dekube_getContracts")
    match answer:
        case {"contracts": list() as found}:
            return tuple(read_result(Contract, item) for item in found)
        case _:
            raise AnswerMalformed("dekube_getContracts: not an answer")


def _function(core: Core, contract: str, function: str) -> Flow[ContractFunction]:
    """Return a function of a system contract, both by name. Raises ConfigError for an unknown name."""
    return find_function((yield from _contracts(core)), contract, function)


def _view(core: Core, function: ContractFunction, arguments: Sequence[AbiValue]) -> Flow[Mapping[str, AbiValue]]:
    """Return the results of a view by name.

    Raises ClientError with the reason of a revert, ConfigError for arguments of the wrong type.
    """
    _check_function(function)
    request = {"to": hexed(function.address), "data": hexed(function.encode(arguments))}
    answer = yield from _ethereum(core, "eth_call", request, "latest")
    return function.decode(answer)


def _check_function(function: object) -> None:
    if not isinstance(function, ContractFunction):
        raise ArgumentInvalid(f"function: what `function` returns is expected, not {type(function).__name__}")


def _write(
    core: Core, key: SecretKey, function: ContractFunction, arguments: Sequence[AbiValue], *, value: int = 0
) -> Flow[Receipt]:
    """Call a contract function by an EIP-1559 transaction; return the receipt when it is final.

    Raises ClientError with the reason if the call would fail, and as ``wait``.
    """
    check_key("key", key)
    check_amount("value", value)
    _check_function(function)
    data = function.encode(arguments)
    sign = partial(_sign_call, core, key, function.address, value=value, data=data)
    return (yield from _deliver(core, key.address, sign))[0]


# Coins for tests


def _faucet(core: Core, url: str, address: bytes) -> Flow[bytes]:
    """Request coins for ``address`` from the faucet at ``url``; return the transaction's hash.

    Raises ClientError with the reason of a refusal, GatewayUnreachable.
    """
    check_address("address", address)
    body = orjson.dumps({"address": hexed(address)})
    data = yield Post(http_url(url), body, core.options.timeout_s, any_status=True)
    return read_grant(data)


def read_grant(data: bytes) -> bytes:
    """Return the transaction hash in a faucet's answer. Raises ClientError for a refusal, AnswerMalformed."""
    try:
        answer = orjson.loads(data)
    except ValueError:
        raise AnswerMalformed("not an answer of a faucet") from None
    match answer:
        case {"hash": str(text)} if re.fullmatch("0x[0-9a-f]{64}", text):
            return bytes.fromhex(text[2:])
        case {"error": {"reason": str(), "message": str(message)} as fields}:
            raise ClientError({"message": message, "data": {k: v for k, v in fields.items() if k != "message"}})
        case _:
            raise AnswerMalformed("not an answer of a faucet")


# Subscriptions


def _subscribe(
    core: Core, kind: str = "heads", *, from_height: int | None = None, address: bytes | None = None,
    topic: bytes | None = None, task: bytes | None = None, timeout_s: float | None = None,
) -> Stream[Notification]:  # fmt: skip
    """Yield a notification for each block: ``heads``, ``events`` or ``tasks``, from ``from_height`` on.

    Blocks come in order and once, until ``timeout_s`` if given. After a broken WebSocket the subscription resumes,
    at another gateway if necessary.
    """
    check_kind("kind", kind, KINDS)
    if address is not None:
        check_address("address", address)
    for name, value in (("topic", topic), ("task", task)):
        if value is not None:
            check_hash(name, value)
    if timeout_s is not None:
        check_timeout("timeout_s", timeout_s)
    return notifications(
        core, kind, from_height=from_height, address=address, topic=topic, task=task, timeout_s=timeout_s
    )


class Api:
    """Methods of both clients: queries, transactions, contracts and subscriptions."""

    call = FlowMethod(_call)
    batch = FlowMethod(_batch)
    items = StreamMethod(_items)
    chain = FlowMethod(_chain)
    head = FlowMethod(_head)
    block = FlowMethod(_block)
    account = FlowMethod(ask_account)
    balance = FlowMethod(_balance)
    transaction = FlowMethod(_transaction)
    receipt = FlowMethod(ask_receipt)
    history = StreamMethod(_history)
    quote = FlowMethod(ask_fees)
    machine = FlowMethod(_machine)
    machines = StreamMethod(_machines)
    submit = FlowMethod(submit)
    wait = FlowMethod(wait_for)
    sign = FlowMethod(_sign)
    send = FlowMethod(send)
    transfer = FlowMethod(_transfer)
    sign_call = FlowMethod(_sign_call)
    contracts = FlowMethod(_contracts)
    function = FlowMethod(_function)
    view = FlowMethod(_view)
    write = FlowMethod(_write)
    faucet = FlowMethod(_faucet)
    subscribe = StreamMethod(_subscribe)
