// ethers, unchanged: what a page or a script of Ethereum does. Arguments: HTTP URL, WebSocket URL, a key, a recipient.
import assert from 'node:assert/strict';
import { Contract, JsonRpcProvider, Wallet, WebSocketProvider } from 'ethers';

const [url, socketUrl, key, recipient] = process.argv.slice(2);
const STAKING = '0x0000000000000000000000000000000000000704';

const provider = new JsonRpcProvider(url);
provider.pollingInterval = 200;
const wallet = new Wallet(key, provider);
const before = await provider.getBalance(wallet.address);
assert.equal((await provider.getNetwork()).chainId, 7n);

let spent = 0n;
for (const type of [2, 0]) {
  const sent = await wallet.sendTransaction({ to: recipient, value: 5n, type });
  const receipt = await sent.wait();
  assert.deepEqual([receipt.status, receipt.gasUsed, receipt.type], [1, 21000n, type]);
  const known = await provider.getTransaction(sent.hash);
  assert.deepEqual([known.value, known.from, known.signature.serialized], [5n, wallet.address, sent.signature.serialized]);
  spent += receipt.fee + 5n;
}
assert.equal(await provider.getBalance(wallet.address), before - spent);
assert.ok((await provider.getBlock('latest', true)).number > 0);
assert.ok((await provider.getFeeData()).maxFeePerGas > 0n);

const { contracts } = await provider.send('dekube_getContracts', []);
const staking = new Contract(STAKING, contracts.find((item) => item.name === 'staking').abi, wallet);
assert.equal(await provider.getCode(STAKING), '0xfe');
assert.equal((await staking.stakeOf(wallet.address)).amount, 0n);
assert.deepEqual(await staking.queryFilter('Staked', 0), []);
await assert.rejects(staking.unstake(5n), { code: 'CALL_EXCEPTION', reason: 'stake_insufficient' });
await assert.rejects(wallet.sendTransaction({ to: recipient, value: 10n ** 30n }), { code: 'INSUFFICIENT_FUNDS' });
await assert.rejects(wallet.sendTransaction({ to: recipient, value: 1n, nonce: 0 }), { code: 'NONCE_EXPIRED' });

const socket = new WebSocketProvider(socketUrl);
const heads = [];
await new Promise((resolve) => socket.on('block', (height) => heads.push(height) === 3 && resolve()));
assert.deepEqual(heads, [heads[0], heads[0] + 1, heads[0] + 2]);
await socket.destroy();
provider.destroy();
