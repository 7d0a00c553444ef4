// Lets the scenario (scenario.py) speak to a library: one operation a line on standard input, one answer a line back.
import { createInterface } from 'node:readline';

// What a library returned, in words that all clients share: numbers as decimal strings, hex in lower case.
export function plain(value) {
  if (typeof value === 'bigint' || typeof value === 'number') return String(value);
  if (typeof value === 'string') return value.startsWith('0x') ? value.toLowerCase() : value;
  if (Array.isArray(value)) return value.map(plain);
  if (value && typeof value === 'object') return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, plain(v)]));
  return value;
}

// Arguments of a function as the library wants them.
export function typed(abi, name, args) {
  const { inputs } = abi.find((item) => item.type === 'function' && item.name === name);
  return inputs.map(({ type }, at) => (type.includes('int') ? BigInt(args[at]) : args[at]));
}

export async function serve(operations) {
  for await (const line of createInterface({ input: process.stdin })) {
    const { op, ...given } = JSON.parse(line);
    let answer;
    try {
      answer = { ok: plain((await operations[op](given)) ?? null) };
    } catch (error) {
      answer = { error: `${error.stack}` };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
  }
  process.exit(0); // a library's sockets would keep it
}
