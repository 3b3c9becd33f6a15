// libqwen3 for Node, through koffi: `new Engine(modelDir)` opens a model, `engine.generate(prompt, sampling)` iterates over
// a request's events.
//
// Why koffi: it is kept well, has no dependency and ships its compiled part for Node on every platform, so a host needs
// no compiler; its asynchronous calls run on libuv's threads, so that waiting in qwen3_poll holds no turn of the loop.
// Threads: qwen3_poll alone is called on another thread. The library's sentence about an error belongs to the thread of
// the call; the calls that want it (open, submit) are therefore made synchronously, on the loop's own thread. Opening
// takes seconds: open before serving. Ownership: koffi copies a request and its prompt to C for the time of qwen3_submit.

import { promisify } from 'node:util';
import koffi from 'koffi';

const lib = load(process.env.QWEN3_LIBRARY ?? new URL('libqwen3.so', import.meta.url).pathname);

function load(path) {
  try {
    return koffi.load(path);
  } catch (error) {
    const advice = 'put libqwen3.so beside qwen3.mjs, or its path into QWEN3_LIBRARY';
    throw new Error(`${path} cannot be loaded (${error.message}); ${advice}`);
  }
}

koffi.opaque('qwen3_engine');
// The header's names, order and types; the sizes are those of ABI version 1.
const REQUEST = koffi.struct('qwen3_request', {
  struct_size: 'size_t', prompt: 'const int32_t *', n_prompt: 'size_t', max_tokens: 'int64_t', min_tokens: 'int64_t',
  n: 'int32_t', priority: 'int32_t', logit_bias: 'const void *', n_logit_bias: 'size_t', repetition_penalty: 'float',
  presence_penalty: 'float', frequency_penalty: 'float', temperature: 'float', min_p: 'float', top_p: 'float',
  top_k: 'int32_t', ignore_eos: 'int32_t', seed: 'uint64_t', stop_ids: 'const int32_t *', n_stop_ids: 'size_t',
  logprobs: 'int32_t', top_logprobs: 'int32_t', prompt_logprobs: 'int32_t', constrained: 'int32_t',
  cache_salt: 'const char *', tag: 'uint64_t',
});
const EVENT = koffi.struct('qwen3_event', {
  request: 'uint64_t', tag: 'uint64_t', kind: 'int32_t', sample: 'int32_t', token: 'int32_t', logprob: 'float',
  n_logprobs: 'uint32_t', first_logprob: 'uint32_t', finish_reason: 'int32_t', reserved: 'int32_t', index: 'int64_t',
  time_ns: 'int64_t', n_prompt: 'int64_t', n_cached: 'int64_t', n_generated: 'int64_t', queued_ns: 'int64_t',
  started_ns: 'int64_t', first_token_ns: 'int64_t',
});
if (koffi.sizeof(REQUEST) !== 152 || koffi.sizeof(EVENT) !== 112) throw new Error('a struct of qwen3.mjs is wrong');

const call = {
  abi_version: lib.func('uint32_t qwen3_abi_version()'),
  last_error: lib.func('const char *qwen3_last_error()'),
  status_name: lib.func('const char *qwen3_status_name(int32_t status)'),
  open: lib.func('int32_t qwen3_engine_open(const char *model_dir, void *options, _Out_ qwen3_engine **engine)'),
  close: lib.func('void qwen3_engine_close(qwen3_engine *engine)'),
  request_init: lib.func('int32_t qwen3_request_init(_Out_ qwen3_request *request, size_t struct_size)'),
  submit: lib.func('int32_t qwen3_submit(qwen3_engine *engine, const qwen3_request *request, _Out_ uint64_t *id)'),
  cancel: lib.func('int32_t qwen3_cancel(qwen3_engine *engine, uint64_t id, int32_t sample)'),
  poll: lib.func(`int32_t qwen3_poll(qwen3_engine *engine, void *events, size_t event_size, size_t capacity,
                                     void *logprobs, size_t logprobs_capacity, int32_t timeout_ms, _Out_ size_t *n)`),
};
const ABI_VERSION = 1;
const OK = 0;
const TIMEOUT = 8;
const EVENT_TOKEN = 1;
const EVENT_FINISHED = 3;
const REASONS = ['none', 'stop', 'length', 'cancelled', 'error', 'matcher'];
const EVENTS_A_POLL = 64;

function check(status) {
  if (status !== OK) throw new Error(call.last_error());
}

export class Engine {
  #handle;
  #streams = new Map(); // by tag, of requests that have not finished: { events, wake }
  #nextTag = 1;
  #poller;
  #closing; // a promise, once close has been called

  constructor(modelDir) {
    const version = call.abi_version();
    if (version !== ABI_VERSION) throw new Error(`made for ABI version ${ABI_VERSION}, but the library has ${version}`);
    const out = [null];
    check(call.open(modelDir, null, out));
    this.#handle = out[0];
    this.#poller = this.#poll();
  }

  // Ends all requests. The poller is waited for: it must not call again once the engine is closed.
  close() {
    this.#closing ??= Promise.resolve().then(() => this.#poller).then(() => call.close(this.#handle));
    return this.#closing;
  }

  // Yields { token } for each token and at last { finish, tokens }. Throws the library's sentence where it refuses.
  // Leaving the loop (break, return, a throw) cancels the request, and so does `signal`, after which the end still comes.
  async *generate(prompt, { maxTokens = 16, temperature = 1, seed = 0, ignoreEos = false, signal } = {}) {
    if (this.#closing) throw new Error('the engine is closed');
    const odd = prompt.find((token) => token !== (token | 0));
    if (odd !== undefined) throw new Error(`${odd} is not a token id`); // an Int32Array would make another number of it
    const request = {};
    check(call.request_init(request, koffi.sizeof(REQUEST)));
    const tag = this.#nextTag++;
    Object.assign(request, { prompt: Int32Array.from(prompt), n_prompt: prompt.length, max_tokens: maxTokens, tag });
    Object.assign(request, { temperature, seed, ignore_eos: ignoreEos ? 1 : 0 });
    const id = [0n];
    check(call.submit(this.#handle, request, id));
    const stream = { events: [], wake: null };
    this.#streams.set(tag, stream); // in time: this thread takes events in a later turn of the loop
    let finished = false;
    const cancel = () => this.#closing || finished || call.cancel(this.#handle, id[0], -1); // "has ended" is no failure
    signal?.addEventListener('abort', cancel);
    if (signal?.aborted) cancel();
    try {
      while (!finished) {
        if (stream.events.length === 0) await new Promise((wake) => (stream.wake = wake));
        for (const event of stream.events.splice(0)) {
          finished = event.finish !== undefined;
          yield event;
        }
      }
    } finally {
      signal?.removeEventListener('abort', cancel);
      cancel();
    }
  }

  #push(tag, event) {
    const stream = this.#streams.get(tag);
    if (event.finish !== undefined) this.#streams.delete(tag);
    stream.events.push(event);
    stream.wake?.();
  }

  // The one caller of qwen3_poll. Waits 100 ms at most, to see #closing. C writes to memory that is not the garbage
  // collector's. When the engine fails, or is closed, all streams end.
  async #poll() {
    const poll = promisify(call.poll.async);
    const events = koffi.alloc(EVENT, EVENTS_A_POLL);
    const n = [0];
    for (let status = OK; !this.#closing && (status === OK || status === TIMEOUT); ) {
      status = await poll(this.#handle, events, koffi.sizeof(EVENT), EVENTS_A_POLL, null, 0, 100, n);
      if (status !== OK) n[0] = 0;
      for (const event of koffi.decode(events, EVENT, Number(n[0]))) {
        if (event.kind === EVENT_TOKEN) this.#push(Number(event.tag), { token: event.token });
        if (event.kind === EVENT_FINISHED) {
          const finish = REASONS[event.finish_reason] ?? 'unknown';
          this.#push(Number(event.tag), { finish, tokens: Number(event.n_generated) });
        } // kinds of later versions are skipped
      }
    }
    koffi.free(events);
    for (const tag of [...this.#streams.keys()]) this.#push(tag, { finish: 'error', tokens: 0 });
  }
}
