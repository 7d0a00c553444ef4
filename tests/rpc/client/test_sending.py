"""What is sent once is paid once: nothing that may be on its way fails in a way that invites to send it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpc.client import (
    AnswerMalformed,
    ClientError,
    ClientOptions,
    GatewayUnreachable,
    OtherChain,
    TaskEnded,
    TransactionRefused,
)
from rpc.client.api import (
    FINAL_TIMEOUT_S,
    GRACE_S,
    _chain,
    _sign,
    _sign_call,
    _transaction,
    ask_receipt,
    send,
    send_beside,
    send_signed,
    submit,
)
from rpc.client.core import Core, Flow, gather, hexed
from rpc.client.tasks import _bill, _create_task, _follow
from rpc.protocol.errors import RpcError
from state.primitives.hashing import keccak
from state.primitives.transactions import decode_transaction
from tasks.ledger.transitions import task_id_of
from tests.rpc.client.answers import HASH, at
from tests.rpc.client.test_core import KEY, RAW, Pool, chain_of, receipt
from tests.rpc.client.world import World

TASK = b"t" * 32


class Troubled(Pool):
    """A mempool whose gateway fails ``when`` it likes: it takes what it is handed all the same, if it says so."""

    def __init__(self, failures: list[Callable[[], Exception]], *, takes: bool = True) -> None:
        super().__init__()
        self._failures = failures
        self._takes = takes

    def answer(self, method: str, params: Any) -> Any:
        if method in ("dekube_sendTransaction", "dekube_waitForReceipt") and self._failures:
            if self._takes and method == "dekube_sendTransaction" and params["raw"] not in self.raws:
                self.raws.append(params["raw"])
            raise self._failures.pop(0)()
        if method == "dekube_waitForReceipt" and params["hash"] not in {
            "0x" + keccak(bytes.fromhex(raw[2:])).hex() for raw in self.raws
        }:
            return {"receipt": None, "pending": False}
        return super().answer(method, params)


def lost() -> Exception:
    return GatewayUnreachable("timed out")


def malformed() -> Exception:
    return AnswerMalformed("not JSON")


def away() -> Exception:
    return RpcError("node_unavailable", "the node does not answer")


def busy() -> Exception:
    return RpcError("limit_exceeded", "limit exceeded", retry_after_s=0)


TROUBLES = st.sampled_from([lost, malformed, away])


@given(st.lists(TROUBLES, min_size=1, max_size=8), st.booleans(), st.integers(1, 2))
def test_whatever_is_lost_on_the_way_it_is_sent_once(
    failures: list[Callable[[], Exception]], takes: bool, gateways: int
) -> None:
    """One that surely was not taken is handed in again: the same bytes."""
    pools = [Troubled(list(failures), takes=takes) for _ in range(gateways)]
    world = World(*(pool.answer for pool in pools))
    found = world.run(send(world.core, KEY, 1, []))
    raws = {raw for pool in pools for raw in pool.raws}
    assert {found.transaction_hash} == {keccak(bytes.fromhex(raw[2:])) for raw in raws}


def test_who_stays_away_for_good_is_told_of_by_the_hash() -> None:
    pool = Troubled([lost] * 10_000)
    world = World(pool.answer)
    with pytest.raises(TransactionRefused) as caught:
        world.run(send(world.core, KEY, 1, []))
    assert (caught.value.reason, caught.value.hash) == ("", keccak(bytes.fromhex(pool.raws[0][2:])))
    assert world.now_s <= FINAL_TIMEOUT_S + GRACE_S
    assert len(world.all[0].asked) < 2 * FINAL_TIMEOUT_S, "with pauses"


def test_what_a_mempool_refuses_at_once_is_refused() -> None:
    world = World(Troubled([lambda: RpcError("insufficient_funds", "no")], takes=False).answer)
    with pytest.raises(ClientError) as caught:
        world.run(send(world.core, KEY, 1, []))
    assert caught.value.reason == "insufficient_funds"
    assert world.now_s == 0


def test_a_refusal_after_an_answer_that_was_lost_says_nothing() -> None:
    taken, other = Troubled([lost]), Pool()

    def full(method: str, params: Any) -> Any:
        if method == "dekube_sendTransaction":
            raise RpcError("mempool_full", "full")
        if method == "dekube_waitForReceipt" and world.now_s < 5:
            return {"receipt": None, "pending": False}
        return other.answer(method, params)

    world = World(taken.answer, full)
    found = world.run(send(world.core, KEY, 1, []))
    assert found.transaction_hash == keccak(bytes.fromhex(taken.raws[0][2:]))


@pytest.mark.parametrize(
    "failure", [lost, malformed, away, busy, lambda: RpcError("internal_error", "internal error")]
)
@pytest.mark.parametrize("after", [(), ("mempool_full",), ("nonce_too_low",)])
def test_a_hand_in_says_whether_it_may_have_been_taken(
    failure: Callable[[], Exception], after: tuple[str, ...]
) -> None:
    sure = World(lambda *_: (_ for _ in ()).throw(RpcError("mempool_full", "full")))
    with pytest.raises(ClientError):
        sure.run(submit(sure.core, RAW))

    def answer(method: str, _params: Any) -> Any:
        if method == "dekube_getReceipt":
            return {"receipt": None}
        raise failures.pop(0)() if failures else refusals.pop(0) if len(refusals) > 1 else refusals[0]

    failures = [failure] * (1 if after else 100)
    refusals = [RpcError(reason, "no") for reason in after]
    world = World(answer, answer)
    with pytest.raises(GatewayUnreachable):
        world.run(submit(world.core, RAW))


def test_a_nonce_that_another_transaction_has_is_an_end() -> None:
    failures = [lost, lambda: RpcError("node_unavailable", "")]
    pool = Troubled(failures, takes=False)

    def answer(method: str, params: Any) -> Any:
        if method == "dekube_sendTransaction" and not failures:
            raise RpcError("nonce_too_low", "nonce too low")
        if method == "dekube_getReceipt":
            return {"receipt": None}
        return pool.answer(method, params)

    world = World(answer)
    with pytest.raises(TransactionRefused) as caught:
        world.run(send(world.core, KEY, 1, []))
    assert caught.value.reason == "nonce_too_low"
    assert caught.value.hash


def test_a_gateway_that_cannot_tell_ends_the_wait_with_the_hash() -> None:
    pool = Pool()

    def answer(method: str, params: Any) -> Any:
        if method == "dekube_waitForReceipt":
            raise RpcError("method_not_found", "no")
        return pool.answer(method, params)

    world = World(answer)
    with pytest.raises(TransactionRefused, match="may become final") as caught:
        world.run(send(world.core, KEY, 1, []))
    assert caught.value.hash == keccak(bytes.fromhex(pool.raws[0][2:]))


def test_the_receipt_of_another_transaction_is_none() -> None:
    pool = Pool()

    def answer(method: str, params: Any) -> Any:
        match method:
            case "dekube_waitForReceipt" | "dekube_getReceipt":
                return {"receipt": receipt() | {"transaction_hash": "0x" + "cd" * 32}, "pending": False}
            case "dekube_getTransaction":
                return {"transaction": {"hash": "0x" + "cd" * 32, "kind": 1, "kind_name": None, "from": HASH[:42],
                                        "nonce": 1, "block": None}}  # fmt: skip
            case _:
                return pool.answer(method, params)

    world = World(answer)
    with pytest.raises(TransactionRefused, match="not final yet"):
        world.run(send(world.core, KEY, 1, []))
    for ask in (ask_receipt, _transaction):
        with pytest.raises(AnswerMalformed):
            world.run(ask(world.core, b"h" * 32))


def test_a_client_of_little_patience_waits_for_its_receipt_all_the_same() -> None:
    pool = Pool()

    def answer(method: str, params: Any) -> Any:
        if method == "dekube_waitForReceipt" and world.now_s < 3:
            assert params["timeout_ms"] < 2_000, "else the client would take it for gone"
            world.now_s += params["timeout_ms"] / 1000
            return {"receipt": None, "pending": True}
        return pool.answer(method, params)

    world = World(answer, options=ClientOptions(timeout_s=2))
    assert world.run(send(world.core, KEY, 1, [])).succeeded


def test_the_id_of_a_task_is_that_of_what_was_signed() -> None:
    pool = Pool()

    def answer(method: str, params: Any) -> Any:
        match method:
            case "dekube_quoteTask":
                parts: dict[str, Any] = {
                    "price": "1",
                    "verification": "1",
                    "fee": "1",
                    "preparation": "1",
                    "custody": "0",
                    "custody_lines": [],
                    "total": "4",
                }
                return {
                    "at": at(5),
                    **parts,
                    "limit": "1",
                    "checks": {"fee": "1", "window": "1", "bond": "1", "bond_new": "4", "base_fee": "4"},
                    "calls": [],
                    "objections": [],
                    "notices": [],
                    "reported": None,
                }
            case "dekube_quote":
                kinds = [{"kind": kind, "name": "x", "gas": 1, "fee": "1"} for kind in range(256)]
                return chain_of(5)(method, params) | {"kinds": kinds}
            case "dekube_getTransaction":
                raise GatewayUnreachable("it went after the receipt")
            case _:
                return pool.answer(method, params)

    world = World(answer)
    made = world.run(_create_task(world.core, KEY, b"\x80", anyway=True))
    assert pool.nonces == [3]
    assert made.id == task_id_of(KEY.address, 3)


def test_what_a_gateway_named_first_is_the_chain() -> None:
    world = World(chain_of(5), chain_of(9))
    world.run(_chain(world.core))
    world.all[0].answer = lambda *_: (_ for _ in ()).throw(GatewayUnreachable("gone"))
    for flow in (lambda core: _sign(core, KEY, 1, []), _chain):
        with pytest.raises(OtherChain):
            world.run(flow(world.core))


@pytest.mark.parametrize(
    "lie",
    [{"dekube_getNonce": {"nonce": 1, "pending_nonce": -1}}, {"eth_estimateGas": "0x_1"}, {"eth_estimateGas": 7}],
)
def test_no_lie_about_a_number_is_signed(lie: dict[str, Any]) -> None:
    world = World(lambda method, params: lie[method] if method in lie else chain_of(5)(method, params))
    with pytest.raises(GatewayUnreachable):
        world.run(_sign_call(world.core, KEY, b"t" * 20))


def test_who_signs_knows_what_was_signed() -> None:
    pool = Pool()
    world = World(pool.answer)
    found, raw = world.run(send_signed(world.core, KEY, 1, []))
    assert found.transaction_hash == keccak(raw)
    assert decode_transaction(raw).nonce == 3


def test_a_pair_has_consecutive_nonces_is_noted_first_and_submitted_from_behind() -> None:
    pool, noted = Pool(), list[tuple[bytes, bytes | None]]()
    world = World(pool.answer)

    def note(first: bytes, second: bytes | None) -> None:
        assert pool.raws == []
        noted.append((first, second))

    flow = send_beside(world.core, KEY, 1, [], beside=lambda raw: (1, [keccak(raw)]), note=note)
    _, first, second = world.run(flow)
    assert second is not None and noted == [(first, second)]
    assert [decode_transaction(raw).nonce for raw in (first, second)] == [3, 4]
    assert pool.raws == [hexed(second), hexed(first)]
    assert world.core.next_nonce(KEY.address, 3) == 3


def test_the_first_of_a_pair_is_sent_although_the_second_is_refused() -> None:
    class Picky(Pool):
        def answer(self, method: str, params: Any) -> Any:
            if (
                method == "dekube_sendTransaction"
                and decode_transaction(bytes.fromhex(params["raw"][2:])).nonce == 4
            ):
                raise RpcError("insufficient_funds", "not so much")
            return super().answer(method, params)

    pool = Picky()
    world = World(pool.answer)
    _, first, second = world.run(send_beside(world.core, KEY, 1, [], beside=lambda _raw: (1, [])))
    assert second is None and pool.raws == [hexed(first)]


# Lists and streams that would not end


@pytest.mark.parametrize("cursors", [["a", "a"], ["a", "b", "a"], None])
def test_pages_that_lead_nowhere_end(cursors: list[str] | None) -> None:
    def answer(method: str, _params: Any) -> Any:
        number = len(world.all[0].asked)
        assert number < 5_000
        items: list[Any] = [] if cursors is None else [line]
        following = str(number) if cursors is None else cursors[min(number, len(cursors)) - 1]
        return {"at": at(1), "items": items, "next": following, "totals": totals}

    totals = {"task": HASH, "deposited": "0", "locked": "0", "paid": "0", "refunded": "0", "burned": "0"}
    line = {"height": 1, "movement": "a", "purpose": "b", "window": None, "party": HASH[:42], "amount": "1"}
    flows: list[Callable[[Core], Flow[Any]]] = [
        lambda core: _bill(core, TASK),
        lambda core: _consumed(core),
    ]
    for flow in flows:
        world = World(answer)
        with pytest.raises(AnswerMalformed):
            world.run(flow(world.core))


def _consumed(core: Core) -> Flow[int]:
    return len((yield from gather(core.pages("dekube_getTasks"))))


def test_who_follows_a_task_has_its_time_and_no_more() -> None:
    world = World(chain_of(5))
    world.all[0].is_silent = True
    with pytest.raises(TaskEnded):
        world.take(_follow(world.core, TASK, timeout_s=1))
    assert world.now_s == pytest.approx(1)
