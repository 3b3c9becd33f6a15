// A complete host of libqwen3 in Node: several requests at once, printed as their tokens come.
//
//   node stream.mjs [--max-tokens N] [--seed N] [--take N] MODEL_DIR PROMPT...
//
// Each PROMPT is a list of token ids, like "9707 11 1879". Standard output has a line per event: "token PROMPT_NUMBER
// ID" or "end PROMPT_NUMBER REASON TOKENS". With --seed tokens are drawn at temperature 1, else the choice is greedy;
// with --take the last prompt would run until the context is full, and is cancelled after N tokens.

import { parseArgs } from 'node:util';

const USAGE = 'usage: node stream.mjs [--max-tokens N] [--seed N] [--take N] MODEL_DIR PROMPT...';

function readArguments() {
  const option = { type: 'string' };
  const options = { 'max-tokens': option, seed: option, take: option };
  const { values, positionals } = parseArgs({ options, allowPositionals: true });
  for (const value of Object.values(values)) if (!/^\d+$/.test(value)) throw new Error(USAGE);
  const [modelDir, ...texts] = positionals;
  if (texts.length === 0) throw new Error(USAGE);
  const prompts = texts.map((text) => {
    if (!/^\s*\d+(\s+\d+)*\s*$/.test(text)) throw new Error(`"${text}" is not a list of token ids`);
    return text.trim().split(/\s+/).map(Number);
  });
  return { values, modelDir, prompts };
}

async function print(engine, which, prompt, sampling, take) {
  const stop = new AbortController();
  let tokens = 0;
  for await (const event of engine.generate(prompt, { ...sampling, signal: stop.signal })) {
    if (event.finish !== undefined) console.log(`end ${which} ${event.finish} ${event.tokens}`);
    else console.log(`token ${which} ${event.token}`);
    if (event.token !== undefined && ++tokens === take) stop.abort();
  }
}

let engine;
try {
  const { values, modelDir, prompts } = readArguments();
  const { Engine } = await import('./qwen3.mjs'); // here, where a library that is not there gets its sentence
  engine = new Engine(modelDir);
  process.stdout.on('error', () => engine.close()); // nobody reads: all streams end
  const usual = { maxTokens: Number(values['max-tokens'] ?? 24), seed: BigInt(values.seed ?? 0) };
  usual.temperature = values.seed === undefined ? 0 : 1;
  await Promise.all(
    prompts.map((prompt, which) => {
      const last = values.take !== undefined && which === prompts.length - 1;
      const sampling = last ? { ...usual, maxTokens: -1, ignoreEos: true } : usual;
      return print(engine, which, prompt, sampling, last ? Number(values.take) : 0);
    }),
  );
} catch (error) {
  console.error(`stream: ${error.message.split('\n')[0]}`);
  process.exitCode = 1;
} finally {
  await engine?.close();
}
