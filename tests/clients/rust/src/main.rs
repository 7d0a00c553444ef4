//! Takes alloy, unchanged, through what it offers: reads a `Setting` as JSON, writes a `Report` as JSON.

use alloy::{
    consensus::Transaction as _,
    eips::{BlockId, BlockNumberOrTag},
    network::{TransactionBuilder, TransactionResponse},
    primitives::{Address, B256, Bytes, TxKind, U256},
    providers::{DynProvider, Provider, ProviderBuilder, ext::NetApi, ext::TxPoolApi},
    rpc::types::{Filter, TransactionRequest},
    signers::local::PrivateKeySigner,
    sol,
    sol_types::SolInterface,
};
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::{collections::HashMap, fmt::Display, io::Read, str::FromStr, time::Duration};

sol!(#[sol(rpc)] Registry, "contracts/registry.json");
sol!(#[sol(rpc)] Tasks, "contracts/tasks.json");
sol!(#[sol(rpc)] Billing, "contracts/billing.json");
sol!(#[sol(rpc)] Staking, "contracts/staking.json");

const PATIENCE: Duration = Duration::from_secs(60);

struct Setting {
    chain_id: u64,
    blocks: u64,
    machines: Vec<Address>,
    task: B256,
    contracts: HashMap<String, Address>,
}

#[derive(Default)]
struct Report {
    checks: u64,
    failures: Vec<String>,
    blocks: u64,
    transactions: u64,
    native: u64,
    logs: u64,
    undecodable: u64,
}

impl Report {
    fn get<T, E: Display>(&mut self, what: &str, found: Result<T, E>) -> Option<T> {
        self.checks += 1;
        match found {
            Ok(value) => Some(value),
            Err(error) => {
                self.failures.push(format!("{what}: {error}"));
                None
            }
        }
    }

    fn that(&mut self, what: &str, is_so: bool) {
        self.checks += 1;
        if !is_so {
            self.failures.push(format!("{what}: not so"));
        }
    }

    fn decoded<T, E: Display>(&mut self, what: &str, height: u64, found: Result<T, E>) -> Option<T> {
        let found = self.get(&format!("{what} of block {height}"), found);
        self.undecodable += u64::from(found.is_none());
        found
    }

    fn refused<T, E: Display>(&mut self, what: &str, found: Result<T, E>, words: &str) {
        self.checks += 1;
        match found {
            Ok(_) => self.failures.push(format!("{what}: not refused")),
            Err(error) if !error.to_string().contains(words) => self.failures.push(format!("{what}: {error}")),
            Err(_) => {}
        }
    }
}

async fn reads(it: &mut Report, node: &DynProvider, set: &Setting, who: Address) {
    let staking = set.contracts["staking"];
    let id = it.get("chain id", node.get_chain_id().await);
    it.that("the chain", id == Some(set.chain_id));
    it.get("net_version", node.get_net_version().await);
    it.get("net_peerCount", node.net_peer_count().await);
    it.get("net_listening", node.net_listening().await);
    it.get("client version", node.get_client_version().await);
    it.get("syncing", node.syncing().await);
    it.get("accounts", node.get_accounts().await);
    let newest = it.get("block number", node.get_block_number().await).unwrap_or_default();
    for tag in [
        BlockNumberOrTag::Latest, BlockNumberOrTag::Pending, BlockNumberOrTag::Safe,
        BlockNumberOrTag::Finalized, BlockNumberOrTag::Earliest, BlockNumberOrTag::Number(0),
        BlockNumberOrTag::Number(newest),
    ] {
        let hashes = it.get("block", node.get_block_by_number(tag).await).flatten();
        let whole = it.get("block, whole", node.get_block_by_number(tag).full().await).flatten();
        it.that("both", hashes.is_some() && whole.is_some());
        it.get("header", node.get_header_by_number(tag).await);
        it.get("receipts", node.get_block_receipts(tag.into()).await);
        it.get("transactions", node.get_block_transaction_count_by_number(tag).await);
    }
    if let Some(block) = it.get("block", node.get_block_by_number(newest.into()).await).flatten() {
        let hash = block.header.hash;
        it.get("header", node.get_header_by_hash(hash).await);
        it.get("block by hash", node.get_block_by_hash(hash).full().await);
        it.get("receipts by hash", node.get_block_receipts(BlockId::hash(hash)).await);
        it.get("receipts by canonical hash", node.get_block_receipts(BlockId::hash_canonical(hash)).await);
        let balance = it.get("balance at a hash", node.get_balance(who).hash(hash).await);
        it.that("a balance", balance.is_some_and(|value| value > U256::ZERO));
    }
    it.get("balance", node.get_balance(who).number(newest).await);
    it.get("nonce", node.get_transaction_count(who).pending().await);
    let code = it.get("code", node.get_code_at(staking).await);
    it.that("a contract has code", code.is_some_and(|value| !value.is_empty()));
    it.get("storage", node.get_storage_at(staking, U256::ZERO).await);
    it.get("gas price", node.get_gas_price().await);
    it.get("tip", node.get_max_priority_fee_per_gas().await);
    it.get("fees", node.estimate_eip1559_fees().await);
    for count in [0, 1, 5] {
        for percentiles in [&[][..], &[10.0, 50.0]] {
            it.get("fee history", node.get_fee_history(count, BlockNumberOrTag::Latest, percentiles).await);
        }
    }
    it.get("txpool_status", node.txpool_status().await);
    it.get("txpool_content", node.txpool_content().await);
    it.get("txpool_contentFrom", node.txpool_content_from(who).await);
    it.get("txpool_inspect", node.txpool_inspect().await);
    let unknown = it.get("unknown", node.get_transaction_by_hash(B256::repeat_byte(1)).await);
    it.that("no transaction", unknown.is_some_and(|found| found.is_none()));
    it.refused("proof", node.get_proof(who, vec![]).await, "does not exist");
}

async fn calls(it: &mut Report, node: &DynProvider, set: &Setting) {
    let registry = Registry::new(set.contracts["registry"], node.clone());
    let tasks = Tasks::new(set.contracts["tasks"], node.clone());
    let billing = Billing::new(set.contracts["billing"], node.clone());
    let staking = Staking::new(set.contracts["staking"], node.clone());
    let least = it.get("minimumStake", staking.minimumStake().call().await);
    it.that("a least stake", least.is_some_and(|value| value > U256::ZERO));
    it.get("gas of a view", staking.minimumStake().estimate_gas().await);
    for machine in &set.machines {
        let is = it.get("isRegistered", registry.isRegistered(*machine).call().await);
        it.that("a machine", is == Some(true));
        it.get("nodeOf", registry.nodeOf(*machine).call().await);
    }
    if set.task != B256::ZERO {
        let task = it.get("taskOf", tasks.taskOf(set.task).call().await);
        it.that("a task", task.is_some_and(|found| found.windows > 0));
        it.get("escrowOf", billing.escrowOf(set.task).call().await);
    }
    let unknown = B256::repeat_byte(1);
    it.refused("an unknown task", tasks.taskOf(unknown).call().await, "task_unknown");
    it.refused("its gas", tasks.taskOf(unknown).estimate_gas().await, "task_unknown");
    let sent = registry.fundCarriage().value(U256::from(1_000_000)).send().await;
    if let Some(sent) = it.get("fundCarriage", sent)
        && let Some(receipt) = it.get("its receipt", sent.with_timeout(Some(PATIENCE)).get_receipt().await)
    {
        it.that("fundCarriage succeeded", receipt.status());
        it.that("its event", receipt.decoded_log::<Registry::CarriageFunded>().is_some());
        it.that("a log's time", receipt.logs().iter().all(|log| log.block_timestamp.is_some()));
        let height = receipt.block_number.unwrap_or_default();
        let events = registry.CarriageFunded_filter().from_block(height).to_block(height).query().await;
        it.that("the event by filter", events.is_ok_and(|found| !found.is_empty()));
    }
    let wrong = registry.withdrawCarriage(U256::from(1)).value(U256::from(1)).send().await;
    it.refused("value for what takes none", wrong, "takes no value");
}

async fn sends(it: &mut Report, node: &DynProvider, who: Address) {
    let to = Address::repeat_byte(0xfa);
    let price = it.get("gas price", node.get_gas_price().await).unwrap_or_default();
    for is_legacy in [false, true] {
        let mut request = TransactionRequest::default().with_to(to).with_value(U256::from(5)).with_gas_limit(21_000);
        if is_legacy {
            request = request.with_gas_price(price);
        }
        let Some(sent) = it.get("send", node.send_transaction(request).await) else { return };
        let hash = *sent.tx_hash();
        let Some(receipt) = it.get("receipt", sent.with_timeout(Some(PATIENCE)).get_receipt().await) else { return };
        it.that("the receipt", receipt.status() && receipt.from == who && receipt.gas_used == 21_000);
        let found = it.get("transaction", node.get_transaction_by_hash(hash).await).flatten();
        it.that("what was sent", found.is_some_and(|found| found.from() == who && found.kind() == TxKind::Call(to)));
    }
}

async fn news(it: &mut Report, node: &DynProvider) {
    let Some(heads) = it.get("subscribe", node.subscribe_blocks().await) else { return };
    let mut before = None;
    let mut heads = heads.into_stream();
    for _ in 0..3 {
        match tokio::time::timeout(PATIENCE, heads.next()).await {
            Ok(Some(head)) => {
                it.that("each head", before.is_none_or(|height| head.number == height + 1));
                before = Some(head.number);
            }
            _ => return it.that("heads", false),
        }
    }
    it.get("subscribe to the pool", node.subscribe_pending_transactions().await);
    it.get("subscribe to logs", node.subscribe_logs(&Filter::new()).await);
}

async fn walk(it: &mut Report, node: &DynProvider, set: &Setting) {
    let mut parent = B256::ZERO;
    for height in 0..set.blocks {
        while it.get("block number", node.get_block_number().await).unwrap_or(height) < height {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        it.blocks += 1;
        let Some(block) = it.decoded("block", height, node.get_block_by_number(height.into()).full().await).flatten()
        else {
            continue;
        };
        it.that("the parent's hash", block.header.parent_hash == parent);
        parent = block.header.hash;
        let receipts = it.decoded("receipts", height, node.get_block_receipts(height.into()).await).flatten();
        let receipts = receipts.unwrap_or_default();
        it.that("a receipt for each", receipts.len() == block.transactions.len());
        for (tx, receipt) in block.transactions.txns().zip(&receipts) {
            it.transactions += 1;
            it.that("one hash", tx.tx_hash() == receipt.transaction_hash && tx.from() == receipt.from);
            let by_hash = node.get_transaction_by_hash(tx.tx_hash()).await;
            let found = it.decoded("transaction", height, by_hash).flatten();
            it.that("the same by its hash", found.as_ref() == Some(tx));
            it.decoded("receipt", height, node.get_transaction_receipt(tx.tx_hash()).await);
            let raw = node.raw_request::<_, Value>("eth_getTransactionByHash".into(), (tx.tx_hash(),)).await;
            if it.decoded("as JSON", height, raw).is_some_and(|shown| shown["r"] == "0x0") {
                it.native += 1;
                let to = tx.to().unwrap_or_default();
                if to == set.contracts["registry"] {
                    it.decoded("call", height, Registry::RegistryCalls::abi_decode(tx.input()));
                } else if to == set.contracts["tasks"] {
                    it.decoded("call", height, Tasks::TasksCalls::abi_decode(tx.input()));
                }
            }
        }
        if height > 0 {
            let logs = node.get_logs(&Filter::new().at_block_hash(block.header.hash)).await;
            it.logs += it.decoded("logs", height, logs).map_or(0, |found| found.len() as u64);
        }
    }
}

#[tokio::main]
async fn main() {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).expect("a setting");
    let given: Value = serde_json::from_str(&text).expect("JSON");
    let address = |value: &Value| Address::from_str(value.as_str().expect("text")).expect("an address");
    let set = Setting {
        chain_id: given["chain_id"].as_u64().expect("a number"),
        blocks: given["blocks"].as_u64().expect("a number"),
        machines: given["machines"].as_array().expect("a list").iter().map(address).collect(),
        task: B256::from_str(given["task"].as_str().expect("text")).expect("a hash"),
        contracts: given["contracts"].as_object().expect("names").iter().map(|(k, v)| (k.clone(), address(v))).collect(),
    };
    let key = PrivateKeySigner::from_str(given["key"].as_str().expect("text")).expect("a key");
    let who = key.address();
    let mut report = Report::default();
    for (name, url) in [("http", &given["http"]), ("ws", &given["ws"])] {
        let url = url.as_str().expect("text");
        let made = ProviderBuilder::new().wallet(key.clone()).connect(url).await;
        let Some(node) = report.get(name, made) else { continue };
        let node = node.erased();
        reads(&mut report, &node, &set, who).await;
        sends(&mut report, &node, who).await;
        calls(&mut report, &node, &set).await;
        let asked = TransactionRequest::default().with_from(who).with_to(set.contracts["staking"]);
        report.refused("an unknown function", node.call(asked.with_input(Bytes::from(vec![1, 2, 3, 4]))).await, "unknown function");
        if name == "ws" {
            news(&mut report, &node).await;
        } else {
            walk(&mut report, &node, &set).await;
        }
    }
    let Report { checks, failures, blocks, transactions, native, logs, undecodable } = report;
    println!(
        "{}",
        json!({
            "checks": checks, "failures": failures, "blocks": blocks, "transactions": transactions,
            "native": native, "logs": logs, "undecodable": undecodable,
        })
    );
}
