"""What a person does with a wallet here, from the first connection to a settled task: the same for every client.

The contracts' functions come from ``dekube_getContracts``; one that the scenario does not know fails it, so that
nothing new stays untried. A play that ``moves`` asks another node for everything that follows a send.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import trio
from eth_account import Account as EthAccount
from eth_account.messages import encode_defunct, encode_typed_data

from state.primitives.codec import encode
from state.primitives.hashing import keccak
from tasks.claims import Fault, claim_to_value
from tasks.custody.inputs import PlainClaim, plain_claim_to_value
from tasks.engines.dataset_layout import NodePlace
from tasks.ledger.lifecycle import Phase, Reason
from testnet.plan import CHAIN_ID, COIN
from tests.tasks.strays import CLAIM
from tests.wallets.clients import NOT_MADE, REFUSALS, Client
from tests.wallets.world import (
    BOND,
    FUNDS,
    HEIGHT_PATIENCE_S,
    VALIDATORS,
    Account,
    Job,
    World,
    carriage_of,
    work_of,
)

NOWHERE: Final = "0x" + "11" * 32
WITH_RECEIPT: Final = "sends with receipt"
STAKE: Final = 2_000 * COIN
TOP_UP: Final = 3 * COIN
CARRIAGE: Final = 2 * COIN
PATIENCE_S: Final = 60.0
MESSAGE: Final = "I am the owner of this key"
TYPED: Final[dict[str, Any]] = {
    "types": {
        "EIP712Domain": [
            {"name": "name", "type": "string"}, {"name": "version", "type": "string"},
            {"name": "chainId", "type": "uint256"},
        ],
        "Offer": [{"name": "worker", "type": "address"}, {"name": "price", "type": "uint256"}],
    },
    "primaryType": "Offer",
    "domain": {"name": "DEKUBE", "version": "1", "chainId": CHAIN_ID},
    "message": {"worker": "0x" + "22" * 20, "price": 12_345},
}  # fmt: skip
SPONSORED: Final = ("100", "0", str(1_000 * BOND))
"""Terms of a sponsor: share, withheld share, and a bond that the machine never has."""
ALWAYS_FAIL: Final = {"poke": "nothing_due", "demandResult": "wrong_phase"}
"""The block itself does at its end what somebody could poke for, so nothing is left when a wallet comes; and a
task that has not ended has no result."""
ONLY_VERIFIER: Final = {"declineSeat": "not_yours"}
"""The network has one verifier: if it declined its seat, nobody could check the window."""
LEAF: Final = "0x" + encode([[b"no leaf", []]]).hex()
WITHOUT_DISPUTE: Final = {
    "move": (("0", "0", "0x80"), "dispute_unknown"),
    "resumeDispute": (("0",), "dispute_unknown"),
    "openChallenge": (("0", "0", NOWHERE, NOWHERE, "0", NOWHERE), "challenge_unknown"),
    "sealChallenge": ((NOWHERE,), "payment_missing"),
    "showBreak": (("0", LEAF), "wrong_phase"),
    "serveWindow": ((), "wrong_phase"),
}
"""Arguments after task and window, and why they are refused: the work of this network is not disputed."""
WITHOUT_CONTAINER: Final = {
    "checkpointTask": ("60", NOWHERE, "9"), "missCheckpoint": (NOWHERE,), "meterTask": ("60",),
    "finishTask": ("60", "0x" + encode([1, 0, b"", 0, b"", 0]).hex()),
    "reportTampering": ("1",),
    "sealOutput": ("60", NOWHERE), "revealOutput": (NOWHERE, NOWHERE),
}  # fmt: skip
"""Arguments after task of functions for containers, of which this network runs none."""
KIND_FIRST: Final = frozenset({"reportTampering", "missCheckpoint"})
"""Of these the ones that look at the kind of the task first, or that its requester may call."""
_HASH: Final = bytes(32)
CHUNKS: Final = {
    "path": "0x" + encode([0, 1, []]).hex(), "chunk": "0x" + encode([0, b"c", [], _HASH, []]).hex(),
    "plain": "0x" + encode([0, b"c", []]).hex(), "leaf": "0x" + encode([]).hex(),
}  # fmt: skip
"""Arguments of proofs about what lies in custody, in their form."""
PLAIN_CLAIM: Final = PlainClaim(bytes.fromhex(NOWHERE[2:]), Fault.ROOT, NodePlace(0, 0, 0), ())
WITHOUT_CUSTODY: Final = {
    "takeCustody": ((), "custody_unknown"),
    "demandCustody": ((NOWHERE[:42],), "custody_unknown"),
    "answerDemand": ((CHUNKS["chunk"],), "custody_unknown"),
    "receiveCustody": ((), "custody_unknown"),
    "revealGarbage": ((NOWHERE, CHUNKS["path"], CHUNKS["chunk"]), "custody_unknown"),
    "revealMismatch": ((CHUNKS["plain"], CHUNKS["leaf"]), "custody_unknown"),
    "endCustody": ((), "custody_unknown"),
}
"""Arguments after task and window, and why they are refused: this network has no custody."""
WITHOUT_INPUTS: Final = {
    "keepInput": (("1", NOWHERE, NOWHERE), "custody_off"),
    "claimGarbage": ((NOWHERE, CHUNKS["path"], CHUNKS["chunk"]), "not_yours"),
}
"""Arguments after the task, and why they are refused."""
WITHOUT_TRIALS: Final = {
    "askTrial": ((), "trials_off"),
    "commitTrial": (("1", NOWHERE), "wrong_phase"),
    "showTrial": (("0x" + encode([[0, _HASH, _HASH, [], []]]).hex(),), "wrong_phase"),
    "judgeTrial": ((NOWHERE[:42], "0x" + encode([_HASH]).hex()), "wrong_phase"),
}
"""Arguments, and why they are refused: this network has no speed trials."""
WITHOUT_GROUPS: Final = ("addSeats", "cancelGroup")
"""Refused as nobody has created a group here."""
NEVER_DONE: Final = frozenset((
    "createGroup", *WITHOUT_GROUPS,
    "askCustody", "claimInput", "claimDiverged", "claimKeyed", "claimPlain", *WITHOUT_INPUTS, *ALWAYS_FAIL,
    *ONLY_VERIFIER, *WITHOUT_DISPUTE, *WITHOUT_CUSTODY, *WITHOUT_TRIALS, *WITHOUT_CONTAINER,
))  # fmt: skip
STATE_REASONS: Final = {
    "settleCarriage": "not_yours", "withdrawCarriage": "insufficient_funds",
    "registerNode": "payment_missing", "updateNode": "node_unknown",
    "retireNode": "node_unknown", "suspendNode": "node_unknown", "setPayout": "node_unknown",
    "setTerms": "node_unknown", "sponsorNode": "node_unknown", "withdrawSponsor": "node_unknown",
    "sponsorOf": "node_unknown", "heartbeat": "node_unknown",
    "reportTampering": "task_unknown",
    "stake": "stake_too_small", "unstake": "stake_insufficient", "nodeOf": "node_unknown",
    "escrowOf": "escrow_unknown", "budgetOf": "budgetOf: ",
    **{name: reason for name, (_, reason) in WITHOUT_TRIALS.items()},
    **dict.fromkeys(WITHOUT_GROUPS, "group_unknown"),
}  # fmt: skip
"""Why the state refuses a stranger; every other function of the task ledger knows no such task."""
NEVER_BY_STATE: Final = frozenset(
    (
        "createTask",
        "createGroup",
        "fundCarriage",
        "carriageOf",
        "isRegistered",
        "earned",
        "stakeOf",
        "unbondingOf",
        "jailedUntil",
        "minimumStake",
    )
)
"""Refused for their arguments or value alone."""


class Sent(NamedTuple):
    """A transaction under way, and what is to be seen of it."""

    hash: str
    sender: Account
    value: int
    event: str
    status: int
    reason: str


class Play:
    """One client going through everything once."""

    def __init__(self, world: World, client: Client, job: Job, node: int, *, moves: bool) -> None:
        self._world = world
        self._client = client
        self._job = job
        self._node = node
        self._height = ""
        """Where the client first stood: a state that every node still has a moment later."""
        self._moves = moves
        self._sent: list[Sent] = []
        self._nonces: Counter[str] = Counter()
        self._spent: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.written: set[str] = set()
        self.failed_in_receipt: set[str] = set()
        self.read: set[str] = set()
        self.reverted: set[str] = set()

    async def run(self) -> None:
        """Go through all of it. Raises AssertionError at what is not as it should be."""
        for step in (
            self._connect, self._look_around, self._sign, self._listen, self._begin, self._take_up,
            self._start, self._work, self._check_and_give_up, self._refuse, self._end, self._look_back,
        ):  # fmt: skip
            await step()

    # Means

    async def _ask(self, operation: str, **given: Any) -> Any:
        return await self._client.ask(operation, **given)

    def _did(self, what: str, count: int = 1) -> None:
        self.done[what] += count

    def _lacks(self, what: str) -> bool:
        return what in NOT_MADE.get(self._client.name, ())

    async def _move(self) -> None:
        if self._moves:
            self._node = (self._node + 1) % VALIDATORS
            await self._ask("use", node=self._node)

    def _contract_of(self, name: str) -> str:
        return next(
            contract for contract, it in self._world.contracts.items()
            if any(item["type"] == "function" and item["name"] == name for item in it["abi"])
        )  # fmt: skip

    def _nonce(self, sender: Account) -> int | None:
        """Return the nonce to send with where the client would not find it, else None.

        cast asks for executed transactions alone, ethers remembers an answer for a quarter of a second.
        """
        number = self._nonces[sender.address]
        self._nonces[sender.address] += 1
        return number if any(sent.sender == sender for sent in self._sent) else None

    async def _transfer(self, sender: Account, value: int, *, legacy: bool) -> None:
        hash_ = await self._ask(
            "transfer", key=sender.key, to=self._job.requester.address, value=str(value), legacy=legacy,
            nonce=self._nonce(sender),
        )  # fmt: skip
        self._sent.append(Sent(hash_, sender, value, "", 1, ""))
        self._did("legacy sends" if legacy else "EIP-1559 sends")

    async def _write(
        self, sender: Account, name: str, *args: str, value: int = 0, event: str = "", nonce: int | None = None
    ) -> None:
        hash_ = await self._ask(
            "write", key=sender.key, contract=self._contract_of(name), name=name, args=list(args),
            value=str(value), nonce=self._nonce(sender) if nonce is None else nonce,
        )  # fmt: skip
        self._sent.append(Sent(hash_, sender, value, event, 1, ""))
        self.written.add(name)
        self._did("contract writes")

    async def _write_in_vain(self, sender: Account, name: str, *args: str, value: int = 0, reason: str) -> None:
        """Send what the client's own trial would refuse: with a gas limit none is made."""
        hash_ = await self._ask(
            "write", key=sender.key, contract=self._contract_of(name), name=name, args=list(args),
            value=str(value), gas=str(self._world.gas[name]), nonce=self._nonce(sender),
        )  # fmt: skip
        self._sent.append(Sent(hash_, sender, 0, "", 0, reason))
        self.failed_in_receipt.add(name)
        self._did("reverts in receipts")

    async def _settle(self) -> list[Any]:
        """Wait, at another node where the play moves, until all that was sent is final, and look at it."""
        await self._move()
        receipts = []
        for sent in self._sent:
            receipt = await self._ask("wait", hash=sent.hash)
            told = [event["name"] for event in receipt["events"]]
            assert receipt["status"] == str(sent.status), (sent, receipt)
            assert receipt["from"] == sent.sender.address, receipt
            assert receipt["is_in_block"], receipt
            assert not sent.event or sent.event in told, (sent, told)
            if sent.reason:
                native = await self._world.ask(self._node, "dekube_getReceipt", sent.hash)
                assert native["receipt"]["reason"] == sent.reason, (sent, native)
                assert not told, told
            self._spent[sent.sender.address] += sent.value + int(receipt["fee"])
            self._did("receipts")
            receipts.append(receipt)
        self._sent.clear()
        return receipts

    async def _view(self, name: str, *args: str) -> list[Any]:
        found: list[Any] = await self._ask("view", contract=self._contract_of(name), name=name, args=list(args))
        self.read.add(name)
        self._did("contract views")
        return found

    async def _until(self, name: str, args: tuple[str, ...], holds: Callable[[list[Any]], bool]) -> None:
        """Look at a view in each block until it shows what the chain does by itself."""
        while not holds(await self._view(name, *args)):
            await self._world.next_block(self._node)

    async def _phase(self, task: str, phase: Phase) -> None:
        await self._until("taskOf", (task,), lambda found: found[0] == str(int(phase)))

    async def _bond_due(self, task: str) -> int:
        """Return the bond that the worker owes for a task: it depends on the base fee of the match."""
        params = [self._job.worker.address]
        with trio.fail_after(HEIGHT_PATIENCE_S):
            while True:
                found = await self._ask("request", method="dekube_getDuties", params=params)
                for duty in found["work"]:
                    if duty["task"] == task:
                        return int(duty["bond"])
                await trio.sleep(0.2)

    # Steps

    async def _connect(self) -> None:
        found = await self._ask(
            "connect", nodes=self._world.nodes, node=self._node, contracts=self._world.contracts,
            chain_id=str(CHAIN_ID),
        )  # fmt: skip
        assert found["chain_id"] == str(CHAIN_ID)
        assert int(found["height"]) > 0
        self._height = str(found["height"])
        self._did("connect")

    async def _look_around(self) -> None:
        job = self._job
        for who in (job.requester, job.worker, job.staker):
            assert await self._ask("balance", address=who.address) == str(FUNDS)
            self._did("balances")
        assert await self._ask("balance", address=job.staker.address, height=self._height) == str(FUNDS)
        assert await self._ask("nonce", address=job.staker.address) == "0"
        if not self._lacks("batches"):
            addresses = [job.requester.address, job.worker.address, "0x" + "33" * 20] * 10
            assert await self._ask("batch", addresses=addresses) == [str(FUNDS), str(FUNDS), "0"] * 10
            self._did("batches")
        fees = await self._ask("fees")
        assert int(fees["cap"]) >= int(fees["base_fees"][0]) > 0
        assert int(fees["price"]) > 0
        assert (len(fees["base_fees"]), fees["rewards"]) == (3, "2")
        self._did("fees")
        for contract in self._world.contracts.values():
            assert await self._ask("code", address=contract["address"].lower()) == "0xfe"
        assert await self._ask("code", address=job.requester.address) in ("0x", None)

    async def _sign(self) -> None:
        who = self._job.requester
        for sign, verify, what, wanted in (
            ("sign", "verify", {"message": MESSAGE}, encode_defunct(text=MESSAGE)),
            ("sign_typed", "verify_typed", {"typed": TYPED}, encode_typed_data(full_message=TYPED)),
        ):
            signature = await self._ask(sign, key=who.key, **what)
            expected = bytes(EthAccount.sign_message(wanted, who.key).signature)
            assert signature == "0x" + expected.hex(), sign
            assert await self._ask(verify, address=who.address, signature=signature, **what) is True
            assert await self._ask(verify, address=self._job.worker.address, signature=signature, **what) is False
            self._did("signatures")

    async def _listen(self) -> None:
        await self._ask("open_filters", contract="tasks", event="TaskCreated")
        self._filter_node = self._node
        tap = self._world.taps[self._node]
        wanted = tap.subscriptions() + (1 if self._lacks("heads over WebSocket") else 2)
        await self._ask("watch", node=self._node, contract="tasks", event="TaskCreated")
        with trio.fail_after(PATIENCE_S):
            await tap.wait_subscriptions(wanted)

    async def _begin(self) -> None:
        job = self._job
        await self._transfer(job.staker, 5, legacy=False)
        await self._transfer(job.staker, 7, legacy=True)
        await self._write(job.worker, "registerNode", "0x" + job.profile.hex(), value=BOND, event="NodeRegistered")
        specification = "0x" + job.specification.hex()
        assert await self._view("budgetOf", specification) == [str(job.budget)]
        for _ in range(2):
            await self._write(job.requester, "createTask", specification, value=job.budget, event="TaskCreated")
        await self._write(
            job.staker, "stake", *self._world.stake_arguments(job.staker), value=STAKE, event="Staked"
        )
        if not self._lacks(WITH_RECEIPT) and not self._moves:
            await self._send_with_receipt()
        first, second = self._sent[0].hash, self._sent[1].hash
        receipts = await self._settle()
        created = [
            event["args"]["task"] for receipt in receipts for event in receipt["events"]
            if event["name"] == "TaskCreated"
        ]  # fmt: skip
        self._task, self._other = created
        for hash_, kind, value in ((first, "0x2", "5"), (second, "0x0", "7")):
            shown = await self._ask("transaction", hash=hash_)
            assert (shown["from"], shown["to"]) == (job.staker.address, job.requester.address)
            assert (shown["type"], shown["value"]) == (kind, value)
        assert [receipt["gas"] for receipt in receipts[:2]] == ["21000", "21000"]
        block = await self._ask("block", height=receipts[0]["height"])
        assert first in block["transactions"]
        await self._explore(receipts[0], first)
        left = FUNDS - self._spent[job.staker.address]
        assert await self._ask("balance", address=job.staker.address) == str(left)  # to the last unit
        self._did("balances")

    async def _send_with_receipt(self) -> None:
        """Send a transfer whose receipt is the answer: one question instead of many."""
        given = {"key": self._job.requester.key, "to": self._job.staker.address, "value": "0"}
        nonce = self._nonces[self._job.requester.address]
        self._nonces[self._job.requester.address] += 1
        assert await self._ask("transfer_with_receipt", nonce=nonce, **given) == "1"
        self._did(WITH_RECEIPT)

    async def _explore(self, receipt: Any, hash_: str) -> None:
        """Ask what explorers ask; the tap holds each answer against its schema."""
        block = await self._ask("block", height=receipt["height"])
        height, index = hex(int(receipt["height"])), hex(block["transactions"].index(hash_))
        by_number, by_hash = [height], [block["hash"]]
        asked: list[tuple[str, list[Any]]] = [
            ("eth_getBlockByHash", [*by_hash, True]), ("eth_getBlockReceipts", by_number),
            ("eth_getTransactionByBlockNumberAndIndex", [height, index]),
            ("eth_getTransactionByBlockHashAndIndex", [block["hash"], index]),
            ("eth_getBlockTransactionCountByNumber", by_number), ("eth_getBlockTransactionCountByHash", by_hash),
            ("eth_getUncleCountByBlockNumber", by_number), ("eth_getUncleCountByBlockHash", by_hash),
            ("eth_getUncleByBlockNumberAndIndex", [height, "0x0"]),
            ("eth_getUncleByBlockHashAndIndex", [block["hash"], "0x0"]),
            ("eth_getStorageAt", [receipt["from"], "0x0", "latest"]), ("eth_accounts", []), ("eth_syncing", []),
            ("net_listening", []), ("web3_sha3", ["0x"]),
            ("eth_config", []), ("txpool_status", []), ("txpool_inspect", []), ("txpool_content", []),
            ("txpool_contentFrom", [receipt["from"]]),
        ]  # fmt: skip
        for method, params in asked:
            found = await self._ask("request", method=method, params=params)
            if method.startswith("eth_getTransactionBy"):
                assert found["hash"] == hash_, method
            self._did("explorers' questions")

    async def _take_up(self) -> None:
        job = self._job
        await self._phase(self._task, Phase.ASSIGNED)
        await self._phase(self._other, Phase.ASSIGNED)
        for task in (self._task, self._other):
            bond = await self._bond_due(task)
            assert bond >= job.bond
            await self._write(job.worker, "acceptTask", task, value=bond, event="TaskPhase")
        await self._write(job.worker, "updateNode", "0x" + job.profile.hex(), value=BOND, event="NodeUpdated")
        await self._write(job.worker, "setPayout", job.worker.address, job.worker.address, event="NodePayout")
        await self._write(job.worker, "heartbeat", event="NodeSeen")
        await self._write(
            job.worker, "setTerms", job.worker.address, job.staker.address, *SPONSORED, event="NodeTerms"
        )
        await self._settle()  # a sponsor's wallet estimates against the terms that stand
        await self._write(
            job.staker, "sponsorNode", job.worker.address, *SPONSORED, value=BOND, event="NodeSponsored"
        )
        await self._write(
            job.worker, "settleCarriage", *await self._carriage(job.worker), event="CarriageAcknowledged"
        )
        await self._write(job.staker, "fundCarriage", value=CARRIAGE, event="CarriageFunded")
        await self._write(job.requester, "topUpTask", self._task, value=TOP_UP, event="Locked")
        await self._write(job.staker, "unstake", str(STAKE), event="Unstaked")
        await self._settle()

    async def _start(self) -> None:
        job = self._job
        for task in (self._task, self._other):
            await self._write(job.worker, "startTask", task, NOWHERE, event="TaskPhase")
        await self._write(job.staker, "withdrawSponsor", job.worker.address, str(BOND), event="SponsorLeaving")
        await self._write(job.staker, "withdrawCarriage", str(CARRIAGE), event="CarriageWithdrawal")
        for name, reason in ALWAYS_FAIL.items():
            await self._write_in_vain(job.requester, name, self._other, reason=reason)
        await self._settle()

    async def _work(self) -> None:
        job = self._job
        verifier = self._world.verifier.secret.address
        self._said = work_of(bytes.fromhex(self._task[2:]), job.spec, verifier)
        await self._write(job.worker, "submitWindow", "0x" + self._said.proof.hex(), event="WindowPhase")
        await self._write(job.worker, "giveUpTask", self._other, str(int(Reason.JOB_UNFIT)), event="TaskPhase")
        await self._settle()

    async def _check_and_give_up(self) -> None:
        job, said, verifier = self._job, self._said, self._world.verifier
        await self._phase(self._task, Phase.VERIFYING)
        for name, reason in ONLY_VERIFIER.items():
            await self._write_in_vain(job.requester, name, self._task, "0", reason=reason)
        for name, (args, reason) in (WITHOUT_DISPUTE | WITHOUT_CUSTODY).items():
            await self._write_in_vain(job.requester, name, self._task, "0", *args, reason=reason)
        await self._write_in_vain(job.requester, "askCustody", self._task, NOWHERE, "0", reason="wrong_phase")
        for name, given in WITHOUT_CONTAINER.items():
            reason = "kind_mismatch" if name in KIND_FIRST else "not_yours"
            await self._write_in_vain(job.requester, name, self._task, *given, reason=reason)
        for name, (args, reason) in WITHOUT_INPUTS.items():
            await self._write_in_vain(job.requester, name, self._task, *args, reason=reason)
        await self._write(
            verifier, "sealVerdict", self._task, "0", "0x" + said.seal.hex(), event="WindowPhase",
            nonce=self._world.next_verifier_nonce(),
        )  # fmt: skip
        await self._settle()
        await self._write(
            verifier, "revealVerdict", self._task, "0", "0x" + said.findings.hex(), "0x" + said.nonce.hex(),
            event="WindowPhase", nonce=self._world.next_verifier_nonce(),
        )  # fmt: skip
        await self._phase(self._other, Phase.PAUSED)
        await self._write(job.requester, "resumeTask", self._other, event="TaskPhase")
        await self._settle()
        await self._write(
            job.worker, "openWindow", self._task, "0", "0x" + said.openings.hex(), event="WindowPhase"
        )
        await self._write(job.requester, "cancelTask", self._other, event="TaskPhase")
        await self._settle()

    async def _refuse(self) -> None:
        """Try what the arguments, the value, the state and the account forbid."""
        stranger = self._job.requester
        if not self._moves:  # one node refuses a call; that others see a failed receipt, other steps show
            await self._refuse_calls(stranger)
        assert await self._ask(
            "reverts", sender=stranger.address, contract="tasks", name="createTask",
            args=["0x" + self._job.specification.hex()], value=str(self._job.budget - 1),
        )  # fmt: skip
        self.reverted.add("createTask")
        await self._settle()
        funds, nonce = REFUSALS[self._client.name]
        said = await self._ask("refused", key=stranger.key, to=self._job.worker.address, value=str(10 * FUNDS))
        assert funds in (said or ""), said
        said = await self._ask("refused", key=stranger.key, to=self._job.worker.address, value="1", nonce=0)
        assert nonce in (said or ""), said
        self._did("refused sends", 2)

    async def _refuse_calls(self, stranger: Account) -> None:
        """Call every function of every contract in vain."""
        for contract, it in self._world.contracts.items():
            await self._raw_refusals(contract, it, stranger)
            for item in it["abi"]:
                if item["type"] == "function" and item["name"] not in NEVER_BY_STATE:
                    await self._state_refusal(contract, item, stranger)

    async def _raw_refusals(self, contract: str, it: Any, stranger: Account) -> None:
        """Call what no contract has, and each function with data that is not its arguments."""
        to = it["address"].lower()
        said = await self._ask("reverts_raw", sender=stranger.address, to=to, data="0xdeadbeef")
        assert said, contract
        self._did("reverts")
        for item in it["abi"]:
            if item["type"] == "function":
                signature = f"{item['name']}({','.join(p['type'] for p in item['inputs'])})"
                data = "0x" + keccak(signature.encode())[:4].hex() + "01"
                said = await self._ask("reverts_raw", sender=stranger.address, to=to, data=data)
                assert said, signature
                self.reverted.add(item["name"])
                self._did("reverts")

    async def _state_refusal(self, contract: str, item: Any, stranger: Account) -> None:
        name = item["name"]
        if name not in STATE_REASONS:
            assert contract == "tasks", f"the scenario does not know {name}"
        reason = STATE_REASONS.get(name, "task_unknown")
        args, value = await self._arguments_of_stranger(item)
        given = {"sender": stranger.address, "contract": contract, "name": name, "args": args, "value": str(value)}
        said = await self._ask("reverts", **given)
        assert said is not None and said.startswith(reason), (name, said, reason)
        self._did("reverts")
        if item["stateMutability"] != "view":
            await self._write_in_vain(stranger, name, *args, value=value, reason=reason)

    async def _carriage(self, relay: Account) -> list[str]:
        said = await self._world.ask(self._node, "dekube_chainInfo")
        return carriage_of(bytes.fromhex(said["genesis_hash"][2:]), relay, self._world.verifier)

    async def _arguments_of_stranger(self, item: Any) -> tuple[list[str], int]:
        """Return arguments that are what they should be and name nothing there is, and a value."""
        said = work_of(bytes.fromhex(NOWHERE[2:]), self._job.spec, self._world.verifier.secret.address)
        known = {
            "profile": "0x" + self._job.profile.hex(), "proof": "0x" + said.proof.hex(),
            "findings": "0x" + said.findings.hex(), "openings": "0x" + said.openings.hex(), "reason": "14",
            "node": self._job.requester.address, "amount": "1", "specification": "0x01", "encoded": "0x80",
            "elapsed": "60", "sign": "1", "blob": NOWHERE, "end": WITHOUT_CONTAINER["finishTask"][1],
            "size": "1", "roots": "0x" + encode([_HASH]).hex(), "members": "1", **CHUNKS,
            "leaves": "0x" + encode([[b"no leaf", []]]).hex(),
            "claim": "0x" + encode(claim_to_value(CLAIM._replace(task=bytes.fromhex(NOWHERE[2:])))).hex(),
            "shown": "0x" + encode(plain_claim_to_value(PLAIN_CLAIM)).hex(),
        }  # fmt: skip
        if item["name"] in WITHOUT_TRIALS:
            return list(WITHOUT_TRIALS[item["name"]][0]), 0
        if item["name"] == "settleCarriage":
            return await self._carriage(self._job.worker), 0
        if item["name"] == "registerNode":  # without any bond it would be registered
            return [known["profile"]], 1
        if item["name"] == "stake":
            return self._world.stake_arguments(self._job.requester), 1
        plain = {"bytes32": NOWHERE, "address": NOWHERE[:42]}
        return [known.get(p["name"], plain.get(p["type"], "0")) for p in item["inputs"]], 0

    async def _end(self) -> None:
        job = self._job
        await self._phase(self._task, Phase.SETTLED)
        await self._phase(self._other, Phase.CANCELLED)
        await self._write(job.worker, "suspendNode", event="NodeSuspended")
        await self._write(job.worker, "retireNode", event="NodeRetired")
        await self._settle()

    async def _look_back(self) -> None:
        job = self._job
        task = await self._view("taskOf", self._task)
        assert task[2:4] == [job.requester.address, job.worker.address]
        deposited, _held, paid, refunded, burned = map(int, await self._view("escrowOf", self._task))
        assert deposited >= job.budget + job.bond + TOP_UP
        assert paid + refunded + burned <= deposited
        assert (await self._view("nodeOf", job.worker.address))[0] == job.worker.address
        assert await self._view("isRegistered", job.requester.address) == [False]
        # The sponsor's bond is paid back soon on this network, and its share ends with that.
        back = ["0x" + bytes(20).hex(), "0", "0", "0", "0", *SPONSORED[1:], "0"]
        await self._until("sponsorOf", (job.worker.address,), lambda found: found == back)
        carriage = await self._view("carriageOf", job.staker.address)
        assert carriage[:2] == [str(CARRIAGE), str(CARRIAGE)] and int(carriage[2]) > 0
        assert int((await self._view("earned", job.worker.address, "1"))[0]) >= 0
        assert (await self._view("stakeOf", job.staker.address))[0] == "0"
        assert (await self._view("unbondingOf", job.staker.address))[0] == str(STAKE)
        assert await self._view("jailedUntil", job.staker.address) == ["0"]
        assert int((await self._view("minimumStake"))[0]) == 1_000 * COIN
        mine = {self._task, self._other}
        for contract, event, field in (
            ("registry", "NodeRegistered", "node"), ("tasks", "TaskCreated", "task"),
            ("billing", "Locked", "escrow"), ("staking", "Staked", "validator"),
        ):  # fmt: skip
            found = {log[field] for log in await self._ask("logs", contract=contract, event=event, height="0")}
            own = mine if field in ("task", "escrow") else {job.worker.address, job.staker.address} & found
            assert own and own <= found, (event, found)
            self._did("events over HTTP")
        await self._ask("use", node=self._filter_node)  # filters and sockets are of the node they were made at
        polled = await self._ask("poll_filters")
        assert int(polled["heads"]) > 0
        assert mine <= {log["task"] for log in polled["logs"]}
        self._did("events over HTTP")
        await self._ask("use", node=self._node)
        seen = await self._ask("seen")
        assert mine <= {log["task"] for log in seen["logs"]}, seen
        self._did("events over WebSocket")
        if not self._lacks("heads over WebSocket"):
            heads = [int(height) for height in seen["heads"]]
            assert len(heads) > 1 and heads == list(range(heads[0], heads[0] + len(heads))), heads
            self._did("heads over WebSocket")

    def check_whole(self) -> None:
        """Check that no function of any contract was left out; a play that moves repeats no refused calls."""
        items = [item for it in self._world.contracts.values() for item in it["abi"]]
        functions = [item for item in items if item["type"] == "function"]
        views = {item["name"] for item in functions if item["stateMutability"] == "view"}
        writes = {item["name"] for item in functions} - views
        assert self.read == views, views ^ self.read
        assert self.written | NEVER_DONE == writes, writes ^ self.written
        if not self._moves:
            assert self.failed_in_receipt == writes - NEVER_BY_STATE, writes ^ self.failed_in_receipt
            assert self.reverted >= views | writes
