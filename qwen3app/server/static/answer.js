// One answer while it is made: asks the server, fills in the assistant's message, measures. Knows no DOM.
//
// The message in the conversation is the truth; whoever shows it is told of changes (onUpdate) and reads it. Waits while
// the server loads its model. Ends as done, stopped (by a person) or failed; what had come stays in every case.

import { ApiError, getHealth, streamChat } from "./api.js";
import { requestBody } from "./conversation.js";

const LOOK_AGAIN = 1000; // ms between two looks at a server that is loading

export class Answer {
  /** onUpdate(answer): something has come. onEnd(answer): nothing more will. */
  constructor(conversation, { onUpdate, onEnd }) {
    this.conversation = conversation;
    this.onUpdate = onUpdate;
    this.onEnd = onEnd;
    this.message = { role: "assistant", content: "", info: { state: "running" } };
    this.waiting = null; // a sentence, while there is no model yet
    this.began = 0; // performance.now() of the request
    this.abort = new AbortController();
  }

  get info() {
    return this.message.info;
  }

  /** Seconds since the question was sent. */
  get elapsed() {
    return (performance.now() - this.began) / 1000;
  }

  get thinking() {
    return Boolean(this.message.reasoning_content) && this.info.thinking === undefined;
  }

  stop() {
    this.abort.abort();
  }

  async run() {
    let body;
    try {
      body = requestBody(this.conversation); // before the answer is part of it
    } catch (error) {
      body = error;
    }
    this.conversation.messages.push(this.message);
    this.began = performance.now();
    try {
      if (body instanceof Error) throw body;
      while (!(await this.ask(body))) await this.waitForModel();
      this.info.state = "done";
    } catch (error) {
      this.fail(error);
    }
    this.waiting = null;
    this.endThought();
    this.info.total = this.elapsed;
    this.onEnd(this);
  }

  /** True: answered. False: the model is not there yet. */
  async ask(body) {
    this.began = performance.now();
    try {
      await streamChat(body, this.abort.signal, (event) => this.take(event));
      return true;
    } catch (error) {
      if (error.code === "model_loading") return false;
      throw error;
    }
  }

  async waitForModel() {
    const { status, progress } = await getHealth(this.abort.signal);
    const share = status === "loading" && progress ? `, ${Math.round(progress * 100)}%` : "";
    this.waiting = status === "ok" ? null : `Waiting for the model to be loaded${share}`;
    this.onUpdate(this);
    if (status === "failed") throw new ApiError("The server could not load its model.", { code: "engine_failed" });
    if (status !== "ok") await sleep(LOOK_AGAIN, this.abort.signal);
  }

  take(event) {
    this.waiting = null;
    const choice = event.choices?.[0];
    if (event.usage) this.info.usage = event.usage;
    if (event.timings) this.info.timings = event.timings;
    if (!choice) return;
    const { content, reasoning_content: named, reasoning, tool_calls: calls } = choice.delta ?? {};
    const thought = named ?? reasoning;
    if (thought || content || calls) this.info.firstToken ??= this.elapsed;
    if (thought) this.message.reasoning_content = (this.message.reasoning_content ?? "") + thought;
    if (content || calls) this.endThought();
    if (content) this.message.content += content;
    for (const call of calls ?? []) this.takeCall(call);
    if (choice.finish_reason) this.info.finish = choice.finish_reason;
    this.onUpdate(this);
  }

  takeCall({ index, id, function: part }) {
    this.message.tool_calls ??= [];
    const calls = this.message.tool_calls;
    calls[index] ??= { id, type: "function", function: { name: "", arguments: "" } };
    calls[index].function.name += part?.name ?? "";
    calls[index].function.arguments += part?.arguments ?? "";
  }

  endThought() {
    if (this.thinking) this.info.thinking = this.elapsed - this.info.firstToken;
  }

  fail(error) {
    if (this.abort.signal.aborted) {
      this.info.state = "stopped";
      return;
    }
    this.info.state = "failed";
    this.info.error = { message: error.message, code: error.code ?? null };
  }
}

function sleep(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    if (signal.aborted) stop();
    signal.addEventListener("abort", stop, { once: true });
  });
}
