"""The system contracts as an ABI: functions that write are kinds of transactions, the others are views."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from billing.escrow import BILLING_ADDRESS, earnings_of, escrow_totals
from p2p.secure.identity import account_and_signer
from rpc.methods.method import Json, Method, NodeApi
from rpc.methods.parameters import Parameters, parameters_of
from rpc.methods.render import ADDRESS_OUT, AT, address, at
from rpc.methods.schema import STRING, array, obj
from state.primitives.abi import SELECTOR_BYTES, AbiValue, Function, Parameter, encode_values
from state.primitives.receipts import EventType
from state.transition.jail import load_jail
from state.transition.rules import Rule
from state.transition.runtime import BASE_RULES
from state.transition.staking import STAKING_ADDRESS, load_stake, unbondings_of
from state.view import Reader
from tasks.ledger.carriage import carriage_rules, deposit_of
from tasks.ledger.open_task import LEDGER_ADDRESS
from tasks.ledger.queries import find_node, find_task, quote
from tasks.ledger.registry import REGISTRY_ADDRESS, require_node
from tasks.ledger.reputation import reputation_milli
from tasks.ledger.transitions import rules
from tasks.spec import decode_spec

__all__ = ["CODE", "CONTRACTS", "CONTRACT_METHODS", "VIEWS", "View", "abi_json", "rules_of", "view_of"]

CODE: Final = b"\xfe"
"""Code of a system contract: not empty, the INVALID opcode."""
CONTRACTS: Final[Mapping[bytes, str]] = {
    REGISTRY_ADDRESS: "registry",
    LEDGER_ADDRESS: "tasks",
    BILLING_ADDRESS: "billing",
    STAKING_ADDRESS: "staking",
}


@lru_cache(maxsize=4)
def rules_of(numbers: tuple[tuple[str, int], ...]) -> Mapping[int, Rule[Any]]:
    """Return the rules of the chain whose description has these ``numbers``, by kind."""
    all_rules = (*BASE_RULES, *rules(parameters_of(numbers).tasks), *carriage_rules(account_and_signer))
    return {rule.kind: rule for rule in all_rules}


class View(NamedTuple):
    """A function that reads: ``read`` gets the state, the chain's parameters and the arguments.

    What it raises of typed errors is the reason of a revert.
    """

    contract: bytes
    function: Function
    read: Callable[..., tuple[AbiValue, ...]]

    def answer(self, reader: Reader, parameters: Parameters, arguments: list[AbiValue]) -> bytes:
        """Return the encoded results."""
        return encode_values(self.function.results, self.read(reader, parameters, *arguments))


def _node_of(reader: Reader, _: Parameters, who: bytes) -> tuple[AbiValue, ...]:
    node = require_node(reader, who)
    profile = node.profile
    return (
        profile.operator, int(node.status), int(profile.roles), len(profile.gpus), profile.price_per_tera_unit,
        node.bond, profile.slots, node.busy_slots, node.seen_ms, reputation_milli(node),
    )  # fmt: skip


def _sponsor_of(reader: Reader, _: Parameters, who: bytes) -> tuple[AbiValue, ...]:
    node = require_node(reader, who)
    return (
        node.sponsor, node.sponsored, node.leaving, node.leaves_ms, node.share_bps, node.withhold_bps,
        node.withhold_to, node.withheld,
    )  # fmt: skip


def _is_registered(reader: Reader, _: Parameters, who: bytes) -> tuple[AbiValue, ...]:
    return (int(find_node(reader, who) is not None),)


def _carriage_of(reader: Reader, _: Parameters, who: bytes) -> tuple[AbiValue, ...]:
    return tuple(deposit_of(reader, who))


def _task_of(reader: Reader, _: Parameters, task: bytes) -> tuple[AbiValue, ...]:
    record = find_task(reader, task)
    return (
        int(record.phase), int(record.reason), record.requester, record.worker or bytes(20),
        record.price_per_tera_unit, record.target, record.next_window, record.final_windows, record.deadline_ms,
    )  # fmt: skip


def _budget_of(_reader: Reader, parameters: Parameters, specification: bytes) -> tuple[AbiValue, ...]:
    return (quote(decode_spec(specification), parameters.tasks).total,)


def _escrow_of(reader: Reader, _: Parameters, escrow: bytes) -> tuple[AbiValue, ...]:
    return tuple(escrow_totals(reader, escrow))


def _earned(reader: Reader, _: Parameters, who: bytes, role: int) -> tuple[AbiValue, ...]:
    return (sum(amount for kind, amount in earnings_of(reader, who).items() if kind == role),)


def _stake_of(reader: Reader, _: Parameters, who: bytes) -> tuple[AbiValue, ...]:
    record = load_stake(reader, who)
    return (0, bytes(32), bytes(32)) if record is None else (record.amount, record.vote_key, record.vrf_key)


def _unbonding_of(reader: Reader, _: Parameters, who: bytes) -> tuple[AbiValue, ...]:
    waiting = unbondings_of(reader, who)
    return sum(item.amount for item in waiting), min((item.time_ms for item in waiting), default=0)


def _jailed_until(reader: Reader, _: Parameters, who: bytes) -> tuple[AbiValue, ...]:
    record = load_jail(reader, who)
    return (0 if record is None else record.until_epoch,)


def _stake_min(_reader: Reader, parameters: Parameters) -> tuple[AbiValue, ...]:
    return (parameters.chain.stake_min,)


VIEWS: Final = (
    View(
        REGISTRY_ADDRESS,
        Function(
            "nodeOf(address node)",
            "(address operator, uint8 status, uint8 roles, uint32 gpus, uint256 pricePerTeraUnit, uint256 bond, "
            "uint32 slots, uint32 busySlots, uint64 seenMs, uint32 reputationMilli)",
        ),
        _node_of,
    ),
    View(
        REGISTRY_ADDRESS,
        Function(
            "sponsorOf(address node)",
            "(address sponsor, uint256 bond, uint256 leaving, uint64 releaseMs, uint32 share, uint32 withhold, "
            "uint256 until, uint256 withheld)",
        ),
        _sponsor_of,
    ),
    View(REGISTRY_ADDRESS, Function("isRegistered(address node)", "(bool registered)"), _is_registered),
    View(
        REGISTRY_ADDRESS,
        Function("carriageOf(address payer)", "(uint256 deposit, uint256 withdrawing, uint64 releaseMs)"),
        _carriage_of,
    ),
    View(
        LEDGER_ADDRESS,
        Function(
            "taskOf(bytes32 task)",
            "(uint8 phase, uint8 reason, address requester, address worker, uint256 pricePerTeraUnit, "
            "uint64 windows, uint64 nextWindow, uint64 finalWindows, uint64 deadlineMs)",
        ),
        _task_of,
    ),
    View(LEDGER_ADDRESS, Function("budgetOf(bytes specification)", "(uint256 budget)"), _budget_of),
    View(
        BILLING_ADDRESS,
        Function(
            "escrowOf(bytes32 escrow)",
            "(uint256 deposited, uint256 held, uint256 paid, uint256 refunded, uint256 burned)",
        ),
        _escrow_of,
    ),
    View(BILLING_ADDRESS, Function("earned(address who, uint8 role)", "(uint256 amount)"), _earned),
    View(
        STAKING_ADDRESS,
        Function("stakeOf(address validator)", "(uint256 amount, bytes32 voteKey, bytes32 vrfKey)"),
        _stake_of,
    ),
    View(
        STAKING_ADDRESS,
        Function("unbondingOf(address validator)", "(uint256 amount, uint64 nextReleaseMs)"),
        _unbonding_of,
    ),
    View(STAKING_ADDRESS, Function("jailedUntil(address validator)", "(uint32 epoch)"), _jailed_until),
    View(STAKING_ADDRESS, Function("minimumStake()", "(uint256 amount)"), _stake_min),
)
_BY_SELECTOR: Final = {(view.contract, view.function.selector): view for view in VIEWS}


def view_of(contract: bytes, data: bytes) -> View | None:
    """Return the view that call data names."""
    return _BY_SELECTOR.get((contract, data[:SELECTOR_BYTES]))


def abi_json(contract: bytes, numbers: tuple[tuple[str, int], ...], events: Mapping[Any, EventType]) -> Json:
    """Return the ABI of a system contract as Solidity's tools read it."""
    writes = [
        _function(rule.call.function, "payable" if rule.call.is_payable else "nonpayable")
        for rule in rules_of(numbers).values()
        if rule.call is not None and rule.call.contract == contract
    ]
    reads = [_function(view.function, "view") for view in VIEWS if view.contract == contract]
    told = [
        {
            "type": "event",
            "name": event.name,
            "anonymous": False,
            "inputs": [
                {"name": name, "type": kind, "indexed": is_indexed} for name, kind, is_indexed in event.parameters
            ],
        }
        for event in events.values()
        if event.address == contract
    ]
    return [*writes, *reads, *sorted(told, key=lambda item: str(item["name"]))]


def _function(function: Function, mutability: str) -> Json:
    return {
        "type": "function",
        "name": function.name,
        "stateMutability": mutability,
        "inputs": _parameters(function.parameters),
        "outputs": _parameters(function.results),
    }


def _parameters(parameters: tuple[Parameter, ...]) -> Json:
    return [{"name": parameter.name, "type": parameter.type} for parameter in parameters]


async def contracts(node: NodeApi) -> Json:
    """Answer ``dekube_getContracts``."""
    numbers = node.description.parameters
    return {
        "at": at(node.head),
        "contracts": [
            {"name": name, "address": address(who), "abi": abi_json(who, numbers, node.events)}
            for who, name in CONTRACTS.items()
        ],
    }


_CONTRACT_OUT: Final = obj({"name": STRING, "address": ADDRESS_OUT, "abi": array({"type": "object"})})

CONTRACT_METHODS: Final[tuple[Method, ...]] = (
    Method(
        "dekube_getContracts",
        "System contracts with their ABI: transactions, views and events",
        contracts,
        obj({"at": AT, "contracts": array(_CONTRACT_OUT)}),
        cost=5,
        group="ethereum",
        routes=(),
    ),
)
