"""The runtime applies transactions, in the same way for all callers.

The mempool and the leader ask ``check`` and ``select``, a voter ``check_body``, the block writer ``execute``, RPC
``dry_run``. ``check_body`` (chain.md 6.4): without executing, it makes sure that each transaction of
a body can pay. Only a sender's own transactions lower its free balance, so ``execute`` never meets one that
cannot: what a rule refuses is a failed receipt, its fee kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from state.primitives.abi import SELECTOR_BYTES
from state.primitives.amounts import format_amount
from state.primitives.blocks import BLOCK_LIMIT_BYTES, HEADER_LIMIT_BYTES, VERSION
from state.primitives.committee import SEATS_MAX
from state.primitives.errors import ConfigError, DecodeError, InvalidBlock, InvalidTransaction, ProtocolError
from state.primitives.genesis import ChainParameters, Genesis, check_bounds, genesis_hash, read_parameters
from state.primitives.hashing import digest
from state.primitives.merkle import merkle_root
from state.primitives.receipts import EVENTS_MAX, Event, Receipt, decode_receipt, encode_receipt
from state.primitives.transactions import CALL_KIND, NATIVE_FORM, Transaction
from state.transition.calls import NOTE_LIMIT_BYTES, SYSTEM_PREFIX, reason_text, split_call
from state.transition.epochs import (
    NOTICE_EPOCHS,
    EpochInfo,
    UpgradeRequired,
    add_randomness,
    begin_epochs,
    end_epoch,
    epoch_of,
    load_epoch,
    load_tally,
    record_block,
)
from state.transition.errors import (
    CallRefused,
    FeeCapTooLow,
    GasLimitTooHigh,
    InsufficientFunds,
    IntrinsicGasTooLow,
    InvalidPayload,
    NonceTooHigh,
    NonceTooLow,
    SenderUnknown,
    TipAboveFeeCap,
    TransactionTooLarge,
    UnknownKind,
    WrongChain,
)
from state.transition.evidence import (
    BLOCK_EVIDENCE_BYTES_MAX,
    apply_evidence,
    check_block_evidence,
    select_evidence,
)
from state.transition.fees import demand_of, effective_price, next_base_fee
from state.transition.lane import MISFITS_MAX, Room, urgent_first
from state.transition.rules import BlockContext, BlockHook, Checked, Context, Holding, Invariant, Rule
from state.transition.slashing import delete_old_offences
from state.transition.staking import HOLDINGS, StakeRecord, release_unbonded, save_stake
from state.transition.staking import RULES as STAKING_RULES
from state.transition.steady import save_steady_time, steady_time
from state.transition.transfer import TRANSFER
from state.view import EMPTY, Overlay, Reader, Table
from state.view.accounts import (
    ACCOUNT_BYTES,
    BALANCE_MASK,
    NONCE_ONE,
    SUPPLY_LIMIT,
    account_key,
    burn,
    burned,
    credit,
    issued,
    load_account,
    packed_account,
    set_issued,
)
from state.view.records import number_of
from state.view.rereading import Rereading

__all__ = ["BASE_HOOKS", "BASE_RULES", "BlockInput", "Checked", "Execution", "Runtime"]

BASE_RULES: Final[tuple[Rule[Any], ...]] = (TRANSFER, *STAKING_RULES)
"""The kinds that ``state`` itself knows; other packages add theirs."""
BASE_HOOKS: Final[tuple[BlockHook, ...]] = (release_unbonded, delete_old_offences)
LAST_HOOKS: Final[tuple[BlockHook, ...]] = (end_epoch,)
"""After those of other packages: the stakes are frozen as the block leaves them."""

_CHAIN: Final = bytes([Table.CHAIN])
_BASE_FEE_KEY: Final = _CHAIN + b"base-fee"
_NOBODY: Final = bytes(20)
_ITEM_HEAD_BYTES: Final = 5
"""Maximum overhead of a transaction in the encoding of a block."""
_BESIDE_BODY_BYTES: Final = HEADER_LIMIT_BYTES + 2 * BLOCK_EVIDENCE_BYTES_MAX


class BlockInput(NamedTuple):
    """The inputs of execution beside transactions and state.

    A dry run needs no ``vrf_proof``; execution does, and trusts that it was verified.
    """

    height: int
    epoch: int
    view: int
    proposer_seat: int
    time_ms: int
    base_fee: int
    vrf_proof: bytes = b""
    voters_bitmap: bytes = b""
    signal: int = 0
    evidence: tuple[bytes, ...] = ()


class Execution(NamedTuple):
    """The result of executing a block.

    ``receipts`` are the encoded receipts of the transactions in order. ``block_receipt`` is that of the events of
    the hooks, which belong to no transaction; None when there were none. Both are leaves under ``receipt_root``.
    ``events`` are those of each transaction, and last the block's own; ``tips`` went to ``leader``.
    """

    changes: dict[bytes, bytes | None]
    receipts: tuple[bytes, ...]
    block_receipt: bytes | None
    receipt_root: bytes
    gas_used: int
    next_base_fee: int
    events: tuple[tuple[Event, ...], ...]
    leader: bytes
    tips: int

    @property
    def leaves(self) -> tuple[bytes, ...]:
        """The leaves under ``receipt_root``: the receipts, then that of the block's own events."""
        return self.receipts if self.block_receipt is None else (*self.receipts, self.block_receipt)


class Runtime:
    """The rules of one chain, joined."""

    def __init__(
        self, genesis: Genesis, *, rules: Iterable[Rule[Any]] = (), hooks: Iterable[BlockHook] = (),
        invariants: Iterable[Invariant] = (), holdings: Iterable[Holding] = (), check_invariants: bool = False,
        versions: Iterable[int] = (VERSION,), endowments: Mapping[bytes, int] | None = None,
    ) -> None:  # fmt: skip
        """Join ``rules`` and ``hooks`` to those of ``state``; raise ConfigError for a genesis that cannot be used.

        With ``check_invariants`` each block is checked for ``invariants`` and for money made or lost, where
        ``holdings`` names the tables of other packages that hold money; a breach is an AssertionError.
        ``versions`` are those of the protocol that these rules know. ``endowments`` are issued at height 0 to
        accounts of the rules, beside what the genesis allocates.
        """
        self.genesis: Final = genesis
        self._endowments: Final = dict(endowments or {})
        self.genesis_hash: Final = genesis_hash(genesis)
        self.chain: Final = read_parameters(ChainParameters, "chain", genesis)
        _check_parameters(self.chain)
        self.rules: Final[dict[int, Rule[Any]]] = {}
        for rule in (*BASE_RULES, *rules):
            if self.rules.setdefault(rule.kind, rule) is not rule:
                raise AssertionError(f"two rules for kind {rule.kind:#x}")
            if rule.gas <= 0:
                raise AssertionError(f"kind {rule.kind:#x} weighs nothing")
        self._calls: Final[dict[tuple[bytes, bytes], Rule[Any]]] = {}
        for rule in self.rules.values():
            if rule.call is not None:
                name = rule.call.contract, rule.call.function.selector
                if not name[0].startswith(SYSTEM_PREFIX) or self._calls.setdefault(name, rule) is not rule:
                    raise AssertionError(f"kind {rule.kind:#x} cannot be called by its function")
        if CALL_KIND in self.rules:
            raise AssertionError("the kind of a call is that of no rule")
        self.versions: Final = frozenset(versions)
        self.signal: Final = max(self.versions)
        """What a leader's blocks signal: the highest version that is known here."""
        self.hooks: Final = (*BASE_HOOKS, *hooks, *LAST_HOOKS)
        self.invariants: Final = tuple(invariants)
        self.holdings: Final = {holding.table: holding.amount_of for holding in (*HOLDINGS, *holdings)}
        self.check_invariants: Final = check_invariants

    # The genesis

    def genesis_changes(self) -> dict[bytes, bytes | None]:
        """Return the state at height 0 as changes over nothing. Raises ConfigError."""
        state = Overlay(EMPTY)
        total = sum(balance for _, balance in self.genesis.allocations)
        total += sum(validator.stake for validator in self.genesis.validators) + sum(self._endowments.values())
        if total >= SUPPLY_LIMIT:
            raise ConfigError(
                f"genesis: {format_amount(total)} in all; below {format_amount(SUPPLY_LIMIT)} expected"
            )
        set_issued(state, total)
        for address, balance in self.genesis.allocations:
            credit(state, address, balance)
        for address, balance in self._endowments.items():
            credit(state, address, balance)
        for validator in self.genesis.validators:
            save_stake(
                state, validator.address, StakeRecord(validator.stake, validator.vote_key, validator.vrf_key, 0)
            )
        begin_epochs(state, self.genesis, self.chain)
        _save_base_fee(state, self.chain.base_fee_initial)
        return state.changes

    # Reads

    def base_fee(self, state: Reader) -> int:
        """Return the base fee of the block that follows ``state``."""
        record = state.get(_BASE_FEE_KEY)
        return self.chain.base_fee_initial if record is None else number_of(record, 16, what="the base fee")

    def epoch_at(self, state: Reader, height: int) -> EpochInfo:
        """Return the epoch of the block at ``height``, the child of ``state``.

        Raises InvalidBlock for another height, UpgradeRequired for an unknown protocol version.
        """
        epoch = load_epoch(state, epoch_of(height, self.chain), self.chain)
        if epoch is None:
            raise InvalidBlock(f"no block of height {height} follows this state")
        self.require_version(epoch.version)
        return epoch

    def require_version(self, version: int) -> None:
        """Raise UpgradeRequired for a version of the protocol that is not known here."""
        if version not in self.versions:
            raise UpgradeRequired(version=version, known=self.versions)

    def context(self, state: Reader, block: BlockInput) -> BlockContext:
        """Return the block context for the rules. Raises InvalidBlock."""
        epoch = self.epoch_at(state, block.height)
        tally = load_tally(state, epoch.epoch)
        randomness = tally.randomness if tally else epoch.randomness
        return self._context(
            state, epoch, block, add_randomness(randomness, block.vrf_proof) if block.vrf_proof else randomness
        )

    def _context(self, parent: Reader, epoch: EpochInfo, block: BlockInput, randomness: bytes) -> BlockContext:
        if block.epoch != epoch.epoch or not 0 <= block.proposer_seat < epoch.committee.size:
            raise InvalidBlock(f"no seat {block.proposer_seat} of epoch {block.epoch} leads height {block.height}")
        leader = epoch.committee.seats[block.proposer_seat].address
        return BlockContext(
            block.height, block.time_ms, block.base_fee, leader, digest(b"beacon", randomness), self.chain,
            self.genesis.chain_id, self.genesis_hash, epoch.epoch, steady_time(parent, block.time_ms, self.chain),
        )  # fmt: skip

    # Admission

    def check(self, transaction: Transaction) -> Checked:
        """Check what needs no state: chain, kind, payload, limits, and that the sender is known.

        Raises a subclass of InvalidTransaction; the transaction is not changed.
        """
        rule = self._rule_of(transaction)
        gas_limit, fee_cap = transaction.gas_limit, transaction.max_fee_per_gas
        if transaction.chain_id != self.genesis.chain_id:
            raise WrongChain(expected=self.genesis.chain_id, got=transaction.chain_id)
        if len(transaction.raw) > self.chain.body_bytes_max:
            raise TransactionTooLarge(size_bytes=len(transaction.raw), limit_bytes=self.chain.body_bytes_max)
        if gas_limit < rule.gas:
            raise IntrinsicGasTooLow(gas_limit=gas_limit, needed=rule.gas)
        if gas_limit > self.chain.block_gas_limit:
            raise GasLimitTooHigh(gas_limit=gas_limit, limit=self.chain.block_gas_limit)
        if transaction.max_priority_fee_per_gas > fee_cap:
            raise TipAboveFeeCap(tip=transaction.max_priority_fee_per_gas, fee_cap=fee_cap)
        if fee_cap < self.chain.base_fee_min:
            raise FeeCapTooLow(fee_cap=fee_cap, base_fee=self.chain.base_fee_min)
        payload = self._payload_of(rule, transaction)
        sender = transaction.sender
        if not sender or sender == _NOBODY:
            raise SenderUnknown
        return Checked(transaction, rule, payload, rule.moves(payload) + gas_limit * fee_cap)

    def weight_of(self, transaction: Transaction) -> int:
        """Return the weight of a transaction, whose payload is not looked at. Raises UnknownKind, CallRefused."""
        return self._rule_of(transaction).gas

    def _rule_of(self, transaction: Transaction) -> Rule[Any]:
        kind = transaction.kind
        if kind == CALL_KIND and transaction.form != NATIVE_FORM:
            return self.rule_of_call(*split_call(transaction.payload))
        rule = self.rules.get(kind)
        if rule is None:
            raise UnknownKind(kind)
        return rule

    def rule_of_call(self, to: bytes, value: int, data: bytes) -> Rule[Any]:
        """Return the rule of a contract call. Raises CallRefused."""
        if not to.startswith(SYSTEM_PREFIX):
            if len(data) > NOTE_LIMIT_BYTES:
                raise CallRefused(f"an account takes at most {NOTE_LIMIT_BYTES} bytes of data")
            return TRANSFER
        rule = self._calls.get((to, data[:SELECTOR_BYTES]))
        if rule is None or rule.call is None:
            raise CallRefused("unknown function")
        if value and not rule.call.is_payable:
            raise CallRefused(f"{rule.call.function.name} takes no value")
        return rule

    def _payload_of(self, rule: Rule[Any], transaction: Transaction) -> Any:
        """Return the typed payload of a transaction, of what the call stands for where it is one."""
        form = rule.call
        if transaction.kind != CALL_KIND or form is None:
            items = transaction.payload if transaction.kind != CALL_KIND else transaction.payload[:2]
            try:
                return rule.decode(items)
            except DecodeError as error:
                raise InvalidPayload(f"invalid payload of kind {rule.kind:#x}: {error}") from None
        _, value, data = transaction.payload
        try:
            payload = rule.decode(form.payload_of(value, data))
        except DecodeError as error:
            raise CallRefused(f"{form.function.name}: {reason_text(error)}") from None
        moves = rule.moves(payload)
        if moves != value:
            raise CallRefused(f"{form.function.name} takes a value of {moves}, not {value}")
        return payload

    def check_body(self, state: Reader, base_fee: int, transactions: Sequence[Checked]) -> None:
        """Check a body against the state after the parent, without executing it (chain.md 6.4).

        A block is full by the weights of its kinds, which are what is paid for: counting gas limits instead, one
        transfer with the largest limit would fill a block for the fee of a transfer.

        Raises InvalidBlock for a limit of the block, a subclass of InvalidTransaction for one transaction.
        """
        room, spent = self._room(state), dict[bytes, tuple[int, int]]()
        for checked in transactions:
            room.add(checked)
            _claim(state, base_fee, checked, spent)
        if excess := room.excess():
            raise InvalidBlock(excess)

    def _room(self, state: Reader) -> Room:
        return Room(state, self.chain, self.rules.values())

    def check_evidence(self, state: Reader, epoch: int, evidence: Sequence[bytes]) -> None:
        """Check the evidence of a block of ``epoch`` against the state after its parent.

        Raises BlockEvidenceInvalid.
        """
        check_block_evidence(state, evidence, epoch_now=epoch, chain=self.chain, genesis_hash=self.genesis_hash)

    def select_evidence(self, state: Reader, epoch: int, evidence: Iterable[bytes]) -> tuple[bytes, ...]:
        """Return those of ``evidence`` that together pass ``check_evidence``, in its order."""
        return select_evidence(state, evidence, epoch_now=epoch, chain=self.chain, genesis_hash=self.genesis_hash)

    def select(self, state: Reader, base_fee: int, transactions: Iterable[Checked]) -> list[Checked]:
        """Return those of ``transactions``, in their order, that together pass ``check_body``.

        Those that have places in the lane come first. One that does not fit is left out, and with it what follows
        from its sender. The others end with a full block, or after ``MISFITS_MAX`` that did not fit.
        """
        room, spent = self._room(state), dict[bytes, tuple[int, int]]()
        chosen: list[Checked] = []
        urgent, others = urgent_first(state, transactions)
        misfits = 0
        for at, checked in enumerate(urgent + others):
            if at >= len(urgent) and (misfits == MISFITS_MAX or room.is_full):
                break
            if not room.fits(checked):
                misfits += 1
                continue
            try:
                _claim(state, base_fee, checked, spent)
            except InvalidTransaction:
                continue
            room.add(checked)
            chosen.append(checked)
        return chosen

    # Execution

    def execute(self, parent: Reader, block: BlockInput, transactions: Sequence[Checked]) -> Execution:
        """Apply a block over the state after its parent, which is not changed.

        Raises InvalidBlock for a body that would not have passed ``check_body`` (a wrong nonce, a fee that cannot
        be paid), for evidence that proves nothing, for a place, seat, view or VRF output that there is not.
        """
        state = Overlay(parent)
        epoch = self.epoch_at(parent, block.height)
        randomness = record_block(
            state, epoch, self.chain, height=block.height, view=block.view, seat=block.proposer_seat,
            voters_bitmap=block.voters_bitmap, signal=block.signal, vrf_proof=block.vrf_proof,
        )  # fmt: skip
        context = self._context(parent, epoch, block, randomness)
        events: list[Event] = []
        apply_evidence(state, block.evidence, context, events.append)
        receipts, gas_used, tips, emitted = self._apply_all(state, context, transactions)
        burn(state, gas_used * context.base_fee)
        credit(state, context.leader, tips)
        state.base = Rereading(parent)  # draws look at the same machines; transactions read little twice
        for hook in self.hooks:
            try:
                hook(state, context, events.append)
            except ProtocolError as error:  # nobody outside is to blame for what a hook does
                raise AssertionError(f"a hook raised {error.code}: {error}") from error
        if len(events) > EVENTS_MAX:
            raise AssertionError(f"{len(events)} events of hooks in one block")
        size = sum([len(checked.transaction.raw) for checked in transactions])
        demand = demand_of(gas_used, size, len(transactions), self.chain)
        fee = next_base_fee(block.base_fee, demand, self.chain)
        _save_base_fee(state, fee)
        save_steady_time(state, block.time_ms, context.steady_ms)
        block_receipt = encode_receipt(Receipt(1, 0, 0, None, tuple(events))) if events else None
        leaves = receipts if block_receipt is None else [*receipts, block_receipt]
        if self.check_invariants:
            self._check_supply(parent, state)
            for invariant in self.invariants:
                invariant(state)
        return Execution(
            state.changes, tuple(receipts), block_receipt, merkle_root(leaves), gas_used, fee,
            (*emitted, tuple(events)), context.leader, tips,
        )  # fmt: skip

    def dry_run(self, parent: Reader, block: BlockInput, checked: Checked) -> Receipt:
        """Return the receipt that ``checked`` would have as the only transaction of ``block``.

        Raises a subclass of InvalidTransaction when it could not be included at all. Nothing is changed.
        """
        _claim(parent, block.base_fee, checked, {})
        receipts, *_ = self._apply_all(Overlay(parent), self.context(parent, block), [checked])
        return decode_receipt(receipts[0])

    def _apply_all(
        self, state: Overlay, block: BlockContext, transactions: Sequence[Checked]
    ) -> tuple[list[bytes], int, int, list[tuple[Event, ...]]]:
        """Apply in order; return the encoded receipts, the gas used, the sum of the tips, and all events."""
        base_fee = block.base_fee
        changes, read = state.changes, state.base.get
        receipts: list[bytes] = []
        plain: dict[tuple[int, int], bytes] = {}  # most receipts are equal: encode each once
        events: list[Event] = []
        emitted: list[tuple[Event, ...]] = []
        gas_used = tips = 0
        for transaction, rule, payload, _ in transactions:
            sender, gas = transaction.sender, rule.gas
            price = effective_price(base_fee, transaction.max_fee_per_gas, transaction.max_priority_fee_per_gas)
            fee = gas * price
            # The sender pays first, written to the changes directly: no mark is set, nothing can be undone.
            key = _ACCOUNT + sender
            record = changes[key] if key in changes else read(key)
            packed = 0 if record is None else packed_account(key, record)
            if packed >> 128 != transaction.nonce or packed & BALANCE_MASK < fee or price < base_fee:
                _refuse_block(transaction, packed, fee)
            changes[key] = (packed + NONCE_ONE - fee).to_bytes(ACCOUNT_BYTES, "big")
            gas_used += gas
            tips += fee - gas * base_fee
            context = Context(block, sender, transaction.nonce, transaction.hash, events.append)
            reason = None
            if rule.checks_first:
                try:
                    rule.apply(state, payload, context)
                except ProtocolError as error:
                    reason = error.code
            else:
                state.mark()
                try:
                    rule.apply(state, payload, context)
                except ProtocolError as error:
                    state.revert()
                    events.clear()
                    reason = error.code
                else:
                    state.keep()
            emitted.append(tuple(events))
            if events:
                receipts.append(encode_receipt(Receipt(int(reason is None), gas, price, reason, emitted[-1])))
                events.clear()
            elif reason is None:
                receipt = plain.get((gas, price))
                if receipt is None:
                    receipt = plain[gas, price] = encode_receipt(Receipt(1, gas, price, None, ()))
                receipts.append(receipt)
            else:
                receipts.append(encode_receipt(Receipt(0, gas, price, reason, ())))
        return receipts, gas_used, tips, emitted

    # Invariants

    def _check_supply(self, parent: Reader, state: Overlay) -> None:
        """Raise AssertionError unless the block's changes to all holdings come to minus what it burned."""
        moved = burned(state) - burned(parent)
        for key, value in state.changes.items():
            amount_of = self.holdings.get(key[0])
            if amount_of is not None:
                before = parent.get(key)
                moved += 0 if value is None else amount_of(value)
                moved -= 0 if before is None else amount_of(before)
        if moved:
            raise AssertionError(f"a block made {moved} out of nothing")

    def check_whole_supply(self, state: Reader) -> None:
        """Raise AssertionError unless holdings and burned sum equal the issued supply; reads all of it."""
        total = burned(state)
        for table, amount_of in self.holdings.items():
            start, stop = bytes([table]), bytes([table + 1])
            while page := state.scan(start, stop, 4096):
                total += sum(amount_of(value) for _, value in page)
                start = page[-1][0] + b"\0"
        if total != issued(state):
            raise AssertionError(f"{total} held and burned, {issued(state)} issued")


_ACCOUNT: Final = account_key(b"")


def _claim(state: Reader, base_fee: int, checked: Checked, spent: dict[bytes, tuple[int, int]]) -> None:
    """Reserve what ``checked`` may cost, or raise and leave ``spent`` as it was.

    ``spent`` holds for each sender the next nonce and what is left of its free balance.
    """
    transaction = checked.transaction
    if transaction.max_fee_per_gas < base_fee:
        raise FeeCapTooLow(fee_cap=transaction.max_fee_per_gas, base_fee=base_fee)
    sender = transaction.sender
    nonce, left = spent.get(sender) or load_account(state, sender)
    if transaction.nonce != nonce:
        wrong = NonceTooLow if transaction.nonce < nonce else NonceTooHigh
        raise wrong(expected=nonce, got=transaction.nonce)
    if checked.cost_max > left:
        raise InsufficientFunds(balance=left, needed=checked.cost_max)
    spent[sender] = nonce + 1, left - checked.cost_max


def _refuse_block(transaction: Transaction, packed: int, fee: int) -> NoReturn:
    nonce, balance = packed >> 128, packed & BALANCE_MASK
    raise InvalidBlock(
        f"transaction 0x{transaction.hash.hex()} cannot pay or repeats: nonce {transaction.nonce} for {nonce}, "
        f"balance {balance} for {fee}"
    )


def _save_base_fee(state: Overlay, base_fee: int) -> None:
    state.put(_BASE_FEE_KEY, base_fee.to_bytes(16, "big"))


_BOUNDS: Final = {
    "block_gas_limit": (1, 2**63 - 1),
    "block_gas_target": (1, 2**63 - 1),
    "base_fee_min": (1, 2**96 - 1),
    "base_fee_initial": (1, 2**96 - 1),
    "base_fee_change_denominator": (2, 2**32 - 1),
    "transactions_max": (1, BLOCK_LIMIT_BYTES // _ITEM_HEAD_BYTES),
    "body_bytes_max": (1, BLOCK_LIMIT_BYTES),
    "block_interval_ms_min": (0, 2**48 - 1),
    "steady_interval_ms_max": (1, 2**48 - 1),
    "time_ahead_ms_max": (0, 2**48 - 1),
    "time_behind_ms_max": (0, 2**48 - 1),
    "validators_max": (1, SEATS_MAX),
    "validators_min": (1, SEATS_MAX),
    "unstake_percent_max": (1, 100),
    "epoch_blocks": (1, 2**32 - 1),
    "evidence_epochs": (2, 2**32 - 1),
    "downtime_blocks_min": (0, 2**32 - 1),
    "unbonding_ms": (1, 2**48 - 1),
    "stake_min": (1, SUPPLY_LIMIT - 1),
    "history_heights": (1, 2**32 - 1),
}
"""Bounds of the parameters, on which the rules rely."""


def _check_parameters(chain: ChainParameters) -> None:
    check_bounds("chain", chain, _BOUNDS)
    for lower, upper in (
        ("block_gas_target", "block_gas_limit"), ("base_fee_min", "base_fee_initial"),
        ("block_interval_ms_min", "steady_interval_ms_max"),
    ):  # fmt: skip
        if getattr(chain, lower) > getattr(chain, upper):
            raise ConfigError(
                f"genesis: chain.{lower} is {getattr(chain, lower)}, but may be {getattr(chain, upper)} at most, "
                f"which is chain.{upper}"
            )
    block_bytes = chain.body_bytes_max + chain.transactions_max * _ITEM_HEAD_BYTES + _BESIDE_BODY_BYTES
    if block_bytes > BLOCK_LIMIT_BYTES:
        raise ConfigError(
            f"genesis: chain.body_bytes_max and chain.transactions_max make blocks of up to {block_bytes} bytes, "
            f"but {BLOCK_LIMIT_BYTES} are the most"
        )
    provable_ms = (chain.evidence_epochs + NOTICE_EPOCHS) * chain.epoch_blocks * chain.block_interval_ms_min
    if chain.unbonding_ms < provable_ms:
        raise ConfigError(
            f"genesis: chain.unbonding_ms is {chain.unbonding_ms}, but faults can be proven for {provable_ms} ms: "
            f"({NOTICE_EPOCHS} + chain.evidence_epochs) x chain.epoch_blocks x chain.block_interval_ms_min"
        )
