"""web3.py and eth-account, unchanged, spoken to like the drivers of the other languages (driver.mjs)."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

from eth_account import Account
from eth_account.messages import encode_defunct, encode_typed_data
from web3 import AsyncWeb3, Web3
from web3.exceptions import ContractLogicError, Web3RPCError
from web3.providers.persistent import WebSocketProvider

POLL_S = 0.2
PATIENCE_S = 90.0
HEAD_PATIENCE_S = 30.0


def plain(value: Any) -> Any:
    """Return what the library returned in words that all clients share."""
    match value:
        case bool() | None:
            return value
        case int():
            return str(value)
        case bytes():
            return "0x" + value.hex()
        case str():
            return value.lower() if value.startswith("0x") else value
        case list() | tuple():
            return [plain(item) for item in value]
        case _:
            return {name: plain(item) for name, item in value.items()}


class Driver:
    """Untyped where the library is: its types differ from what it returns in batches and filters."""

    def __init__(self) -> None:
        self.w3: Any = None
        self.nodes: list[dict[str, str]] = []
        self.contracts: dict[str, Any] = {}
        self.filters: tuple[Any, Any] = (None, None)
        self.watched: dict[str, list[Any]] = {"heads": [], "logs": []}

    def connect(self, *, nodes: list[Any], node: int, contracts: dict[str, Any], chain_id: str) -> Any:
        self.nodes, self.contracts = nodes, contracts
        self.use(node=node)
        assert self.w3.is_connected()
        assert self.w3.net.version == chain_id
        return {"chain_id": self.w3.eth.chain_id, "height": self.w3.eth.block_number}

    def use(self, *, node: int) -> None:
        self.w3 = Web3(Web3.HTTPProvider(self.nodes[node]["http"]))

    def _contract(self, name: str) -> Any:
        of = self.contracts[name]
        return self.w3.eth.contract(address=Web3.to_checksum_address(of["address"]), abi=of["abi"])

    def _function(self, contract: str, name: str, args: list[Any]) -> Any:
        inputs = next(
            item["inputs"] for item in self.contracts[contract]["abi"] if item.get("name") == name
        )  # no function has the name of an event
        values = [
            int(value) if "int" in item["type"]
            else Web3.to_checksum_address(value) if item["type"] == "address"
            else value
            for item, value in zip(inputs, args, strict=True)
        ]  # fmt: skip
        return self._contract(contract).functions[name](*values)

    def balance(self, *, address: str, height: str | None = None) -> Any:
        return self.w3.eth.get_balance(_sum(address), "latest" if height is None else int(height))

    def nonce(self, *, address: str) -> Any:
        return self.w3.eth.get_transaction_count(_sum(address), "pending")

    def code(self, *, address: str) -> Any:
        return self.w3.eth.get_code(_sum(address))

    def batch(self, *, addresses: list[str]) -> Any:
        with self.w3.batch_requests() as batch:
            for address in addresses:
                batch.add(self.w3.eth.get_balance(_sum(address)))
            return batch.execute()

    def fees(self) -> Any:
        history = self.w3.eth.fee_history(2, "latest", [20])
        base_fee = self.w3.eth.get_block("latest")["baseFeePerGas"]
        return {
            "price": self.w3.eth.gas_price, "cap": 2 * base_fee + self.w3.eth.max_priority_fee,
            "base_fees": history["baseFeePerGas"], "rewards": len(history["reward"]),
        }  # fmt: skip

    def block(self, *, height: str) -> Any:
        block = self.w3.eth.get_block(int(height), full_transactions=True)
        hashes = [bytes(item["hash"]) for item in block["transactions"]]
        return {"number": block["number"], "hash": bytes(block["hash"]), "transactions": hashes}

    def request(self, *, method: str, params: list[Any]) -> Any:
        return self.w3.manager.request_blocking(method, params)

    def _send(self, key: str, request: dict[str, Any]) -> Any:
        account = Account.from_key(key)
        request = {"chainId": self.w3.eth.chain_id} | request
        if "nonce" not in request:
            request["nonce"] = self.w3.eth.get_transaction_count(account.address, "pending")
        return bytes(self.w3.eth.send_raw_transaction(account.sign_transaction(request).raw_transaction))

    def transfer(self, *, key: str, to: str, value: str, legacy: bool, nonce: int | None = None) -> Any:
        account = Account.from_key(key)
        request: dict[str, Any] = {"to": _sum(to), "value": int(value)}
        request["gas"] = self.w3.eth.estimate_gas(request | {"from": account.address})
        if legacy:
            request["gasPrice"] = self.w3.eth.gas_price
        else:
            request["maxPriorityFeePerGas"] = self.w3.eth.max_priority_fee
            request["maxFeePerGas"] = 2 * self.w3.eth.get_block("latest")["baseFeePerGas"]
        return self._send(key, request if nonce is None else request | {"nonce": nonce})

    def write(
        self, *, key: str, contract: str, name: str, args: list[Any], value: str | None = None,
        nonce: int | None = None, gas: str | None = None,
    ) -> Any:  # fmt: skip
        request: dict[str, Any] = {"from": Account.from_key(key).address, "value": int(value or 0)}
        request |= {} if nonce is None else {"nonce": nonce}
        request |= {} if gas is None else {"gas": int(gas)}
        built = self._function(contract, name, args).build_transaction(request)
        return self._send(key, dict(built))

    def wait(self, *, hash: str) -> Any:
        it = self.w3.eth.wait_for_transaction_receipt(hash, timeout=PATIENCE_S, poll_latency=POLL_S)
        block = self.w3.eth.get_block(it["blockNumber"])
        return {
            "status": it["status"], "type": it["type"], "gas": it["gasUsed"],
            "fee": it["gasUsed"] * it["effectiveGasPrice"], "from": it["from"], "to": it["to"],
            "height": it["blockNumber"], "events": [self._event(log) for log in it["logs"]],
            "is_in_block": it["transactionHash"] in block["transactions"],
        }  # fmt: skip

    def _event(self, log: Any) -> Any:
        name = next(n for n, of in self.contracts.items() if of["address"].lower() == log["address"].lower())
        contract = self._contract(name)
        event = contract.get_event_by_topic("0x" + bytes(log["topics"][0]).hex())
        return {"name": event.event_name, "args": dict(event.process_log(log)["args"])}

    def transaction(self, *, hash: str) -> Any:
        it = self.w3.eth.get_transaction(hash)
        shown = {name: it[name] for name in ("from", "to", "value", "nonce")}
        return shown | {"type": hex(it["type"]), "r": bytes(it["r"]), "s": bytes(it["s"])}

    def view(self, *, contract: str, name: str, args: list[Any]) -> Any:
        found = self._function(contract, name, args).call()
        return found if type(found) is list else [found]

    def reverts(self, *, sender: str, contract: str, name: str, args: list[Any], value: str | None = None) -> Any:
        try:
            self._function(contract, name, args).call({"from": _sum(sender), "value": int(value or 0)})
        except ContractLogicError as error:
            return _reason(error)
        return None

    def reverts_raw(self, *, sender: str, to: str, data: str) -> Any:
        try:
            self.w3.eth.call({"from": _sum(sender), "to": _sum(to), "data": data})
        except ContractLogicError as error:
            return _reason(error)
        return None

    def refused(self, *, key: str, to: str, value: str, nonce: int | None = None) -> Any:
        try:
            self.transfer(key=key, to=to, value=value, legacy=False, nonce=nonce)
        except (
            Web3RPCError,
            ContractLogicError,
        ) as error:  # also of an estimate
            return str(error.message)
        return None

    def logs(self, *, contract: str, event: str, height: str) -> Any:
        found = self._contract(contract).events[event]().get_logs(from_block=int(height))
        return [dict(log["args"]) for log in found]

    def open_filters(self, *, contract: str, event: str) -> None:
        told = self._contract(contract).events[event].create_filter(from_block="latest")
        self.filters = self.w3.eth.filter("latest"), told

    def poll_filters(self) -> Any:
        heads, logs = self.filters
        told = [dict(log["args"]) for log in logs.get_new_entries()]
        found = {"heads": len(heads.get_new_entries()), "logs": told}
        assert self.w3.eth.uninstall_filter(heads.filter_id)
        return found

    def watch(self, *, node: int, contract: str, event: str) -> Any:
        seen: dict[str, list[Any]] = {"heads": [], "logs": []}
        self.watched = seen
        address, abi = self.contracts[contract]["address"], self.contracts[contract]["abi"]
        ready = threading.Event()

        async def follow() -> None:
            async with AsyncWeb3(WebSocketProvider(self.nodes[node]["ws"])) as w3:
                told = w3.eth.contract(address=_sum(address), abi=abi).events[event]()
                await w3.eth.subscribe("newHeads")
                await w3.eth.subscribe("logs", {"address": _sum(address), "topics": [told.topic]})
                ready.set()
                async for message in w3.socket.process_subscriptions():
                    content: Any = message["result"]
                    if "number" in content:
                        seen["heads"].append(content["number"])
                    else:
                        seen["logs"].append(dict(told.process_log(content)["args"]))

        threading.Thread(target=lambda: asyncio.run(follow()), daemon=True).start()
        assert ready.wait(HEAD_PATIENCE_S)
        return self.w3.eth.block_number

    def seen(self) -> Any:
        return self.watched

    def sign(self, *, key: str, message: str) -> Any:
        return bytes(Account.sign_message(encode_defunct(text=message), key).signature)

    def sign_typed(self, *, key: str, typed: dict[str, Any]) -> Any:
        return bytes(Account.sign_message(encode_typed_data(full_message=typed), key).signature)

    def verify(self, *, address: str, message: str, signature: str) -> Any:
        found = Account.recover_message(encode_defunct(text=message), signature=signature)
        return bool(found.lower() == address.lower())

    def verify_typed(self, *, address: str, typed: dict[str, Any], signature: str) -> Any:
        found = Account.recover_message(encode_typed_data(full_message=typed), signature=signature)
        return bool(found.lower() == address.lower())


def _sum(address: str) -> Any:
    return Web3.to_checksum_address(address)


def _reason(error: ContractLogicError) -> str:
    return str(error.message).removeprefix("execution reverted: ")


def main() -> None:
    driver = Driver()
    for line in sys.stdin:
        given = json.loads(line)
        try:
            answer = {"ok": plain(getattr(driver, given.pop("op"))(**given))}
        except Exception as error:  # whatever the library says is for the scenario
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
