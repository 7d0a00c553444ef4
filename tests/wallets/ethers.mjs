// ethers, unchanged.
import {
  Contract, Interface, JsonRpcProvider, verifyMessage, verifyTypedData, Wallet, WebSocketProvider,
} from 'ethers';
import { serve, typed } from './driver.mjs';

const POLL_MS = 200;
const PATIENCE_MS = 90_000;
let nodes, contracts, provider, socket;
let seen = { heads: [], logs: [] }, filters = {};

function use(node) {
  provider?.destroy();
  provider = new JsonRpcProvider(nodes[node].http);
  provider.pollingInterval = POLL_MS;
}

const contract_of = (name, runner) => new Contract(contracts[name].address, contracts[name].abi, runner ?? provider);
const big = (value) => (value === undefined || value === null ? undefined : BigInt(value));
const named = (result, inputs) => Object.fromEntries(inputs.map(({ name }, at) => [name, result[at]]));
const event_of = (name, event) => contracts[name].abi.find((item) => item.type === 'event' && item.name === event);

function events(logs) {
  return logs.map((log) => {
    const { abi } = Object.values(contracts).find(({ address }) => address.toLowerCase() === log.address.toLowerCase());
    const { name, args, fragment } = new Interface(abi).parseLog(log);
    return { name, args: named(args, fragment.inputs) };
  });
}

async function reason_of(question) {
  try {
    await question;
  } catch (error) {
    if (error.code !== 'CALL_EXCEPTION') throw error;
    return error.reason;
  }
  return null;
}

serve({
  async connect(given) {
    ({ nodes, contracts } = given);
    use(given.node);
    return { chain_id: (await provider.getNetwork()).chainId, height: await provider.getBlockNumber() };
  },
  use: async ({ node }) => use(node),
  balance: ({ address, height }) => provider.getBalance(address, height === undefined ? 'latest' : Number(height)),
  nonce: ({ address }) => provider.getTransactionCount(address, 'pending'),
  code: ({ address }) => provider.getCode(address),
  batch: ({ addresses }) => Promise.all(addresses.map((address) => provider.getBalance(address))), // its default is to batch
  async fees() {
    const { gasPrice, maxFeePerGas } = await provider.getFeeData();
    const history = await provider.send('eth_feeHistory', ['0x2', 'latest', [20]]);
    return { price: gasPrice, cap: maxFeePerGas, base_fees: history.baseFeePerGas.map(BigInt), rewards: history.reward.length };
  },
  async block({ height }) {
    const block = await provider.getBlock(Number(height), true);
    return { number: block.number, hash: block.hash, transactions: block.prefetchedTransactions.map(({ hash }) => hash) };
  },
  request: ({ method, params }) => provider.send(method, params),
  async transfer({ key, to, value, legacy, nonce }) {
    const request = { to, value, type: legacy ? 0 : 2, nonce: nonce ?? undefined };
    return (await new Wallet(key, provider).sendTransaction(request)).hash;
  },
  async write({ key, contract, name, args, value, nonce, gas }) {
    const it = contract_of(contract, new Wallet(key, provider));
    const options = { value: value ?? 0, nonce: nonce ?? undefined, gasLimit: big(gas) };
    return (await it[name](...typed(contracts[contract].abi, name, args), options)).hash;
  },
  async wait({ hash }) {
    const it = await provider.waitForTransaction(hash, 1, PATIENCE_MS);
    const block = await provider.getBlock(it.blockNumber);
    return {
      status: it.status, type: it.type, gas: it.gasUsed, fee: it.fee, from: it.from, to: it.to, height: it.blockNumber,
      events: events(it.logs), is_in_block: block.transactions.includes(hash),
    };
  },
  async transaction({ hash }) {
    const it = await provider.getTransaction(hash);
    return { from: it.from, to: it.to, value: it.value, nonce: it.nonce, type: `0x${it.type}`, r: it.signature.r, s: it.signature.s };
  },
  view: async ({ contract, name, args }) => {
    const found = await contract_of(contract)[name].staticCallResult(...typed(contracts[contract].abi, name, args));
    return [...found];
  },
  reverts: ({ sender, contract, name, args, value }) =>
    reason_of(contract_of(contract)[name].staticCall(
      ...typed(contracts[contract].abi, name, args), value ? { from: sender, value } : { from: sender },
    )),
  reverts_raw: ({ sender, to, data }) => reason_of(provider.call({ from: sender, to, data })),
  async refused({ key, to, value, nonce }) {
    try {
      await new Wallet(key, provider).sendTransaction({ to, value, nonce: nonce ?? undefined });
    } catch (error) {
      return error.code;
    }
    return null;
  },
  async logs({ contract, event, height }) {
    const found = await contract_of(contract).queryFilter(event, Number(height));
    return found.map(({ args }) => named(args, event_of(contract, event).inputs));
  },
  async open_filters({ contract, event }) {
    const { topicHash } = contract_of(contract).getEvent(event).fragment;
    filters = {
      heads: await provider.send('eth_newBlockFilter', []),
      logs: await provider.send('eth_newFilter', [{ address: contracts[contract].address, topics: [topicHash] }]),
    };
  },
  async poll_filters() {
    const [heads, logs] = [await provider.send('eth_getFilterChanges', [filters.heads]),
      await provider.send('eth_getFilterChanges', [filters.logs])];
    await provider.send('eth_uninstallFilter', [filters.heads]);
    return { heads: heads.length, logs: events(logs).map(({ args }) => args) };
  },
  async watch({ node, contract, event }) {
    await socket?.destroy();
    const mine = seen = { heads: [], logs: [] };
    socket = new WebSocketProvider(nodes[node].ws);
    await socket.on('block', (height) => mine.heads.push(height));
    await contract_of(contract, socket).on(event, (...values) =>
      mine.logs.push(named(values, event_of(contract, event).inputs)));
    return socket.getBlockNumber();
  },
  seen: async () => seen,
  sign: ({ key, message }) => new Wallet(key).signMessage(message),
  sign_typed: ({ key, typed: { domain, message, types: { EIP712Domain, ...types } } }) =>
    new Wallet(key).signTypedData(domain, types, message),
  verify: async ({ address, message, signature }) =>
    verifyMessage(message, signature).toLowerCase() === address.toLowerCase(),
  verify_typed: async ({ address, signature, typed: { domain, message, types: { EIP712Domain, ...types } } }) =>
    verifyTypedData(domain, types, message, signature).toLowerCase() === address.toLowerCase(),
});
