// Speaks to the server: requests with the key, streams of events, errors as one sentence. Knows no DOM.
//
// The key is kept in this tab's session storage and is asked for (see onKeyNeeded) only when the server answers 401.

const KEY = "qwen3.key";
let askForKey = async () => null;

/** What went wrong, as a sentence for people. code: the server's, or "unreachable", "cut_off". */
export class ApiError extends Error {
  constructor(message, { status = 0, code = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** ask(sentence) must return the key that a person gives, or null. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

export function hasKey() {
  return storedKey() !== null;
}

export function forgetKey() {
  storeKey(null);
}

let keyOfThisPage = null; // where the browser keeps nothing

function storedKey() {
  try {
    return sessionStorage.getItem(KEY) ?? keyOfThisPage;
  } catch {
    return keyOfThisPage;
  }
}

function storeKey(key) {
  keyOfThisPage = key;
  try {
    if (key === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, key);
  } catch {
    // keyOfThisPage has it
  }
}

/** GET /status, or an ApiError. quiet: a missing key is an error, nobody is asked for it. */
export async function getStatus({ quiet = false } = {}) {
  const response = await request("/status", { quiet, seconds: 10 });
  return response.json();
}

/** GET /health: {status: "ok" | "loading" | "draining" | "failed", ...}. Open to all. */
export async function getHealth(signal) {
  const response = await send("/health", { signal });
  return response.json();
}

/** Posts a chat request and calls `onEvent` with each event's object. Returns when the stream has ended as it should. */
export async function streamChat(body, signal, onEvent) {
  const response = await request("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  let ended = false;
  const events = new EventReader((data) => {
    if (data === "[DONE]") {
      ended = true;
      return;
    }
    const event = eventOf(data);
    if (event.error) throw errorOf(response.status, event);
    onEvent(event);
  });
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      if (signal.aborted) throw error;
      throw new ApiError("The connection to the server broke off in the middle of the answer.", { code: "cut_off" });
    });
    if (done) break;
    events.push(decoder.decode(value, { stream: true }));
  }
  if (!ended) throw new ApiError("The answer broke off: the server ended it without saying why.", { code: "cut_off" });
}

function eventOf(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new ApiError("The server sent something that is no answer.", { code: "cut_off" });
  }
}

/** Server-sent events: push text as it comes, get the data of each event that is complete. */
export class EventReader {
  constructor(onData) {
    this.onData = onData;
    this.rest = "";
    this.data = [];
  }

  push(text) {
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop();
    for (const line of lines) this.line(line.endsWith("\r") ? line.slice(0, -1) : line);
  }

  line(line) {
    if (line === "") {
      if (this.data.length) this.onData(this.data.join("\n"));
      this.data = [];
    } else if (line.startsWith("data:")) {
      this.data.push(line.slice(line[5] === " " ? 6 : 5));
    }
  }
}

/** fetch with the key; asks for one as long as the server wants another. */
async function request(path, { quiet = false, ...options }) {
  for (;;) {
    const key = storedKey();
    const headers = { ...options.headers, ...(key === null ? {} : { authorization: `Bearer ${key}` }) };
    const response = await send(path, { ...options, headers });
    if (response.ok) return response;
    const error = errorOf(response.status, await response.json().catch(() => null));
    if (response.status !== 401 || quiet) throw error;
    if (key !== storedKey()) continue; // another request has asked meanwhile
    const given = await askForKey(key === null ? "This server needs an API key." : "The server does not know this API key.");
    if (!given) throw error;
    storeKey(given);
  }
}

/** fetch. seconds: how long the server may take to answer. */
async function send(path, { seconds, ...options }) {
  const signal = options.signal ?? (seconds && AbortSignal.timeout(seconds * 1000));
  try {
    return await fetch(path, { cache: "no-store", credentials: "omit", redirect: "error", ...options, signal });
  } catch (error) {
    if (options.signal?.aborted && error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Is it running?", { code: "unreachable" });
  }
}

function errorOf(status, body) {
  const { message, code } = body?.error ?? {};
  return new ApiError(message ?? `The server answered with status ${status} and no explanation.`, { status, code: code ?? null });
}
