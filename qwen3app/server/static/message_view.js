// Shows one message. An assistant's may still be growing: update() draws what is new of it, everything else stays.
// What its buttons do is the business of `actions`, an object of functions (see transcript.js).

import { copyButton, el, icon, iconButton } from "./dom.js";
import { MarkdownStream } from "./markdown_view.js";
import { count, duration, plural, prettyJson } from "./text.js";

/** What a person said. */
export class UserView {
  constructor(message, actions) {
    this.message = message;
    const text = el("div", { class: "bubble", dir: "auto" }, message.content.replaceAll("\u0000", "\ufffd"));
    const edit = iconButton("edit", "Edit the message", () => this.edit(actions));
    this.tools = el("div", { class: "message-tools" }, edit, copyButton(() => message.content));
    this.body = el("div", { class: "message-body" }, text, this.tools);
    this.node = el("article", { class: "message user", "aria-label": "You" }, el("h2", { class: "visually-hidden" }, "You"), this.body);
  }

  update() {}

  edit(actions) {
    const area = el("textarea", { class: "edit", "aria-label": "Edit the message", dir: "auto", rows: "3" });
    area.value = this.message.content;
    const close = () => {
      form.replaceWith(this.body);
      this.tools.querySelector("button").focus();
    };
    const send = () => (area.value.trim() ? actions.edit(this.message, area.value) : area.focus());
    const onKey = (event) => {
      if (event.isComposing) return;
      if (event.key === "Escape") close();
      else if (event.key === "Enter" && !event.shiftKey) send();
      else return;
      event.preventDefault();
      event.stopPropagation();
    };
    area.addEventListener("keydown", onKey);
    const form = el(
      "div",
      { class: "edit-form" },
      area,
      el("p", { class: "hint" }, "What follows this message is replaced by a new answer."),
      el(
        "div",
        { class: "dialog-actions" },
        el("button", { type: "button", class: "text-button", on: { click: close } }, "Cancel"),
        el("button", { type: "button", class: "main-button", on: { click: send } }, "Send"),
      ),
    );
    this.body.replaceWith(form);
    area.focus();
  }
}

/** What the model said. answer: the Answer that is making it, or null. */
export class AssistantView {
  constructor(message, actions, answer = null) {
    this.message = message;
    this.actions = actions;
    this.answer = answer;
    this.drawn = { content: 0, thought: 0, calls: 0 };
    this.thought = null;
    this.markdown = null;
    this.content = el("div", { class: "markdown" });
    this.waiting = el("p", { class: "waiting" }, el("span", { class: "pulse" }), el("span", {}));
    this.foot = el("div", { class: "message-foot" });
    this.body = el("div", { class: "message-body" }, this.content, this.waiting, this.foot);
    this.node = el("article", { class: "message assistant", "aria-label": "Answer" }, el("h2", { class: "visually-hidden" }, "Answer"), this.body);
    this.update();
  }

  /** Draws what has come since the last call. */
  update() {
    const { message, drawn } = this;
    const thought = message.reasoning_content ?? "";
    if (thought.length > drawn.thought) {
      this.thought ??= new ThoughtView(this.body, this.content);
      this.thought.add(thought.slice(drawn.thought));
      drawn.thought = thought.length;
    }
    this.thought?.update(this.answer, message.info);
    const content = message.content ?? "";
    if (content.length > drawn.content) {
      this.markdown ??= new MarkdownStream(this.content);
      this.markdown.push(content.slice(drawn.content));
      drawn.content = content.length;
    }
    this.content.hidden = !content;
    const running = message.info.state === "running";
    this.waiting.hidden = !running || Boolean(content) || (Boolean(thought) && !this.answer?.waiting);
    this.waiting.lastChild.textContent = this.answer?.waiting ?? (thought ? "" : "Reading");
    this.node.classList.toggle("running", running);
    if (!running) this.finish();
  }

  /** Once: calls, errors, figures and buttons. */
  finish() {
    if (this.finished) return;
    this.finished = true;
    this.answer = null;
    const { message, actions } = this;
    this.body.insertBefore(el("div", { class: "calls" }, ...(message.tool_calls ?? []).map((call) => callCard(call))), this.foot);
    const note = noteOf(message);
    if (note) this.body.insertBefore(el("p", { class: "note" }, note), this.foot);
    if (message.info.state === "failed") this.body.insertBefore(errorCard(message, actions), this.foot);
    const figures = figuresOf(message.info);
    if (figures) this.foot.append(el("span", { class: "figures" }, figures));
    const buttons = el("div", { class: "message-tools" });
    if (message.content) buttons.append(copyButton(() => message.content, "Copy the answer"));
    if (message.info.state !== "failed") buttons.append(iconButton("retry", "Answer anew", () => actions.retry(message)));
    if (buttons.firstChild) this.foot.append(buttons);
  }
}

/** A thought: one line that opens. Its text is plain. */
class ThoughtView {
  constructor(body, before) {
    this.label = el("span", {}, "Thinking");
    this.text = document.createTextNode("");
    const summary = el("summary", {}, icon("thought"), this.label, icon("chevron"));
    this.node = el("details", { class: "thought" }, summary, el("div", { class: "thought-text", dir: "auto" }, this.text));
    body.insertBefore(this.node, before);
  }

  add(text) {
    this.text.appendData((this.text.length ? text : text.trimStart()).replaceAll("\u0000", "\ufffd"));
  }

  update(answer, info) {
    const running = answer?.thinking ?? false;
    this.node.classList.toggle("running", running);
    const seconds = running ? answer.elapsed - (info.firstToken ?? answer.elapsed) : info.thinking;
    const label = running ? "Thinking" : "Thought";
    let text = label;
    if (seconds >= 1) text = running ? `${label} ${Math.floor(seconds)} s` : `${label} for ${duration(seconds)}`;
    if (this.label.textContent !== text) this.label.textContent = text;
  }
}

function callCard(call) {
  const { name, arguments: given } = call.function;
  return el(
    "div",
    { class: "call" },
    el("div", { class: "call-head" }, icon("tool"), el("span", {}, "Tool call"), el("code", {}, name), copyButton(() => prettyJson(given), "Copy the arguments")),
    el("pre", { tabindex: "0", role: "group", "aria-label": `Arguments of ${name}` }, el("code", {}, prettyJson(given))),
  );
}

/** A tool's result in the history. */
export class ResultView {
  constructor(message, name) {
    this.node = el(
      "article",
      { class: "message tool", "aria-label": `Result of ${name}` },
      el("details", { class: "result" }, el("summary", {}, icon("tool"), el("span", {}, "Result of ", el("code", {}, name)), icon("chevron")), el("pre", { tabindex: "0" }, prettyJson(message.content))),
    );
  }

  update() {}
}

/** Fields for the results of calls, and a button that goes on with them. */
export function resultForm(calls, onResults) {
  const areas = calls.map((call, index) => {
    const id = `result-${index}`;
    const area = el("textarea", { id, rows: "3", class: "code-field", spellcheck: "false", required: true, placeholder: "What the tool returned, JSON or text" });
    return { area, field: el("label", { class: "field", for: id }, el("span", {}, "Result of ", el("code", {}, call.function.name)), area) };
  });
  const submit = (event) => {
    event.preventDefault();
    onResults(areas.map(({ area }, index) => ({ role: "tool", tool_call_id: calls[index].id, content: area.value })));
  };
  const form = el("form", { class: "result-form", on: { submit } }, ...areas.map(({ field }) => field));
  form.append(el("div", { class: "dialog-actions" }, el("button", { type: "submit", class: "main-button" }, "Go on with the result")));
  return form;
}

function errorCard(message, actions) {
  const { message: sentence, code } = message.info.error;
  const buttons = [el("button", { type: "button", class: "main-button", on: { click: () => actions.retry(message) } }, "Try again")];
  let hint = null;
  if (code === "context_length_exceeded") {
    hint = "The conversation has become longer than the model can read. Shorten an earlier message by editing it, ask for a shorter answer, or begin anew.";
    buttons.unshift(el("button", { type: "button", class: "text-button", on: { click: actions.begin } }, "New conversation"));
  }
  return el(
    "div",
    { class: "error-card" },
    icon("alert"),
    el("div", {}, el("p", { dir: "auto" }, sentence), hint && el("p", { class: "hint" }, hint), el("div", { class: "dialog-actions" }, ...buttons)),
  );
}

function noteOf({ info, content, tool_calls: calls }) {
  if (info.state === "stopped") return "Stopped.";
  if (info.finish === "length") return "The answer reached its limit of tokens.";
  if (info.state === "done" && info.finish && !content && !calls?.length) return "The model ended its answer without a word.";
  return null;
}

/** "42 tokens · 35.2 tok/s · first token after 0.31 s" */
export function figuresOf({ usage, timings, firstToken }) {
  const parts = [];
  if (usage) parts.push(plural(usage.completion_tokens, "token"));
  if (timings?.predicted_per_second) parts.push(`${timings.predicted_per_second.toFixed(1)} tok/s`);
  if (firstToken !== undefined) parts.push(`first token after ${duration(firstToken)}`);
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  if (usage) parts.push(`prompt ${plural(usage.prompt_tokens, "token")}${cached ? `, ${count(cached)} cached` : ""}`);
  return parts.join(" \u00b7 ");
}
