// viem, unchanged.
import {
  ContractFunctionRevertedError, createPublicClient, createWalletClient, decodeErrorResult, defineChain, http, parseAbi,
  parseEventLogs, webSocket,
} from 'viem';
import { privateKeyToAccount } from 'viem/accounts';
import { serve, typed } from './driver.mjs';

const POLL_MS = 200;
const PATIENCE_MS = 90_000;
let nodes, contracts, chain, reader, batching, url;
let seen = { heads: [], logs: [] }, filters = {};
const stops = [];

function use(node) {
  url = nodes[node].http;
  reader = createPublicClient({ chain, transport: http(url), pollingInterval: POLL_MS });
  batching = createPublicClient({ chain, transport: http(url, { batch: true }) });
}

const writer = (key) => createWalletClient({ account: privateKeyToAccount(key), chain, transport: http(url) });
const allAbis = () => Object.values(contracts).flatMap(({ abi }) => abi);
const big = (value) => (value === undefined || value === null ? undefined : BigInt(value));
const events = (logs) => parseEventLogs({ abi: allAbis(), logs }).map(({ eventName, args }) => ({ name: eventName, args }));

function reason(error) {
  const found = error.walk?.((cause) => cause instanceof ContractFunctionRevertedError);
  if (found) return found.reason;
  const data = error.walk?.((cause) => cause?.data?.startsWith?.('0x08c379a0'))?.data;
  if (data) return decodeErrorResult({ abi: parseAbi(['error Error(string)']), data }).args[0];
  throw error;
}

serve({
  async connect(given) {
    ({ nodes, contracts } = given);
    chain = defineChain({
      id: Number(given.chain_id), name: 'DEKUBE', nativeCurrency: { name: 'DKB', symbol: 'DKB', decimals: 18 },
      rpcUrls: { default: { http: [nodes[given.node].http] } },
    });
    use(given.node);
    return { chain_id: await reader.getChainId(), height: await reader.getBlockNumber() };
  },
  use: async ({ node }) => use(node),
  balance: ({ address, height }) => reader.getBalance({ address, blockNumber: big(height) }),
  nonce: ({ address }) => reader.getTransactionCount({ address, blockTag: 'pending' }),
  code: ({ address }) => reader.getCode({ address }),
  batch: ({ addresses }) => Promise.all(addresses.map((address) => batching.getBalance({ address }))),
  async fees() {
    const [price, { maxFeePerGas }, history] = await Promise.all([
      reader.getGasPrice(), reader.estimateFeesPerGas(), reader.getFeeHistory({ blockCount: 2, rewardPercentiles: [20] }),
    ]);
    return { price, cap: maxFeePerGas, base_fees: history.baseFeePerGas, rewards: history.reward.length };
  },
  async block({ height }) {
    const block = await reader.getBlock({ blockNumber: big(height), includeTransactions: true });
    return { number: block.number, hash: block.hash, transactions: block.transactions.map(({ hash }) => hash) };
  },
  transfer: ({ key, to, value, legacy, nonce }) => writer(key).sendTransaction({
    to, value: BigInt(value), type: legacy ? 'legacy' : 'eip1559', nonce: nonce ?? undefined,
  }),
  request: ({ method, params }) => reader.request({ method, params }),
  async transfer_with_receipt({ key, to, value, nonce }) {
    const receipt = await writer(key).sendTransactionSync({ to, value: BigInt(value), nonce });
    return receipt.status === 'success' ? 1 : 0;
  },
  write: ({ key, contract, name, args, value, nonce, gas }) => writer(key).writeContract({
    address: contracts[contract].address, abi: contracts[contract].abi, functionName: name,
    args: typed(contracts[contract].abi, name, args), value: big(value), nonce: nonce ?? undefined, gas: big(gas),
  }),
  async wait({ hash }) {
    const it = await reader.waitForTransactionReceipt({ hash, timeout: PATIENCE_MS });
    const block = await reader.getBlock({ blockNumber: it.blockNumber });
    return {
      status: it.status === 'success' ? 1 : 0, type: { legacy: 0, eip1559: 2 }[it.type], gas: it.gasUsed,
      fee: it.gasUsed * it.effectiveGasPrice, from: it.from, to: it.to, height: it.blockNumber,
      events: events(it.logs), is_in_block: block.transactions.includes(hash),
    };
  },
  async transaction({ hash }) {
    const it = await reader.getTransaction({ hash });
    return { from: it.from, to: it.to, value: it.value, nonce: it.nonce, type: it.typeHex, r: it.r, s: it.s };
  },
  async view({ contract, name, args }) {
    const { address, abi } = contracts[contract];
    const found = await reader.readContract({ address, abi, functionName: name, args: typed(abi, name, args) });
    return Array.isArray(found) ? found : [found];
  },
  async reverts({ sender, contract, name, args, value }) {
    const { address, abi } = contracts[contract];
    const call = { address, abi, functionName: name, args: typed(abi, name, args) };
    const isView = abi.find((item) => item.name === name).stateMutability === 'view';
    try {
      await (isView ? reader.readContract(call) : reader.simulateContract({ ...call, account: sender, value: big(value) }));
    } catch (error) {
      return reason(error);
    }
    return null;
  },
  async reverts_raw({ sender, to, data }) {
    try {
      await reader.call({ account: sender, to, data });
    } catch (error) {
      return reason(error);
    }
    return null;
  },
  async refused({ key, to, value, nonce }) {
    try {
      await writer(key).sendTransaction({ to, value: BigInt(value), nonce: nonce ?? undefined });
    } catch (error) {
      const known = ['InsufficientFundsError', 'NonceTooLowError'];
      return error.walk((cause) => known.includes(cause.name))?.name ?? `${error}`;
    }
    return null;
  },
  async logs({ contract, event, height }) {
    const { address, abi } = contracts[contract];
    const found = await reader.getContractEvents({ address, abi, eventName: event, fromBlock: BigInt(height) });
    return found.map(({ args }) => args);
  },
  async open_filters({ contract, event }) {
    const { address, abi } = contracts[contract];
    filters = {
      heads: await reader.createBlockFilter(),
      logs: await reader.createContractEventFilter({ address, abi, eventName: event }),
    };
  },
  async poll_filters() {
    const [heads, logs] = [await reader.getFilterChanges({ filter: filters.heads }),
      await reader.getFilterChanges({ filter: filters.logs })];
    await reader.uninstallFilter({ filter: filters.heads });
    return { heads: heads.length, logs: logs.map(({ args }) => args) };
  },
  async watch({ node, contract, event }) {
    const { address, abi } = contracts[contract];
    stops.splice(0).forEach((stop) => stop());
    const mine = seen = { heads: [], logs: [] };
    const live = createPublicClient({ chain, transport: webSocket(nodes[node].ws) });
    stops.push(live.watchBlocks({ onBlock: ({ number }) => mine.heads.push(number) }));
    stops.push(live.watchContractEvent({
      address, abi, eventName: event, onLogs: (logs) => logs.forEach(({ args }) => mine.logs.push(args)),
    }));
    return live.getBlockNumber();
  },
  seen: async () => seen,
  sign: ({ key, message }) => privateKeyToAccount(key).signMessage({ message }),
  sign_typed: ({ key, typed: { types: { EIP712Domain, ...types }, ...rest } }) =>
    privateKeyToAccount(key).signTypedData({ types, ...rest }),
  verify: ({ address, message, signature }) => reader.verifyMessage({ address, message, signature }),
  verify_typed: ({ address, signature, typed: { types: { EIP712Domain, ...types }, ...rest } }) =>
    reader.verifyTypedData({ address, signature, types, ...rest }),
});
