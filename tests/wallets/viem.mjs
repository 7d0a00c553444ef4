// viem, unchanged. Arguments: HTTP URL, WebSocket URL, a key, a recipient.
import assert from 'node:assert/strict';
import {
  ContractFunctionRevertedError, createPublicClient, createWalletClient, defineChain, http, webSocket,
} from 'viem';
import { privateKeyToAccount } from 'viem/accounts';

const [url, socketUrl, key, recipient] = process.argv.slice(2);
const STAKING = '0x0000000000000000000000000000000000000704';
const chain = defineChain({
  id: 7, name: 'DEKUBE', nativeCurrency: { name: 'DKB', symbol: 'DKB', decimals: 18 }, rpcUrls: { default: { http: [url] } },
});
const account = privateKeyToAccount(key);
const reader = createPublicClient({ chain, transport: http(url), pollingInterval: 200 });
const writer = createWalletClient({ account, chain, transport: http(url) });
assert.equal(await reader.getChainId(), 7);

for (const [type, name] of [['eip1559', 'eip1559'], ['legacy', 'legacy']]) {
  const hash = await writer.sendTransaction({ to: recipient, value: 7n, type });
  const receipt = await reader.waitForTransactionReceipt({ hash });
  assert.deepEqual([receipt.status, receipt.type, receipt.gasUsed], ['success', name, 21000n]);
}
assert.equal((await writer.sendTransactionSync({ to: recipient, value: 1n })).status, 'success');

const { contracts } = await reader.request({ method: 'dekube_getContracts', params: [] });
const { abi } = contracts.find((item) => item.name === 'staking');
assert.equal((await reader.readContract({ address: STAKING, abi, functionName: 'stakeOf', args: [account.address] }))[0], 0n);
await assert.rejects(
  reader.simulateContract({ address: STAKING, abi, functionName: 'unstake', args: [5n], account }),
  (error) => error.walk((cause) => cause instanceof ContractFunctionRevertedError)?.reason === 'stake_insufficient',
);
assert.ok((await reader.getBlock({ includeTransactions: true })).number > 0n);
assert.ok((await reader.estimateFeesPerGas()).maxFeePerGas > 0n);
assert.equal((await reader.getFeeHistory({ blockCount: 2, rewardPercentiles: [20] })).reward.length, 2);

const signature = await account.signMessage({ message: 'hello' });
assert.ok(await reader.verifyMessage({ address: account.address, message: 'hello', signature }));

const live = createPublicClient({ chain, transport: webSocket(socketUrl) });
const filter = await reader.createBlockFilter();
const heads = [];
await new Promise((resolve) => {
  const stop = live.watchBlocks({ onBlock: ({ number }) => heads.push(number) === 3 && (stop(), resolve()) });
});
assert.deepEqual(heads, [heads[0], heads[0] + 1n, heads[0] + 2n]);
assert.ok((await reader.getFilterChanges({ filter })).length >= 3);
process.exit(0); // its socket has no other end
