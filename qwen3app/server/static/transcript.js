// The conversation on the screen: one view per message, drawn at most once per frame, and the end kept in sight until a
// person scrolls up. Knows no server and no storage.
//
// actions: {edit(message, text), retry(message), begin(), results(messages), example(text)}.

import { openCalls } from "./conversation.js";
import { el } from "./dom.js";
import { AssistantView, ResultView, UserView, resultForm } from "./message_view.js";

const NEAR_END = 60; // pixels
const REST = 3; // a drawing that took t is followed by at least REST * t for everything else
const EXAMPLES = [
  "Explain how a hash table works, with a short example in Python.",
  "What is 17 * 24? Show your steps.",
  "Write a haiku about the sea in autumn.",
];

export class Transcript {
  constructor(actions) {
    this.actions = actions;
    this.scroller = document.getElementById("transcript");
    this.list = document.getElementById("messages");
    this.toEnd = document.getElementById("to-end");
    this.views = [];
    this.welcome = null; // of the model, once the server has told it: {model, note, suggestions}
    this.pending = false;
    this.drawnAt = 0;
    this.cost = 0;
    this.follows = true;
    this.lastTop = 0;
    this.scroller.addEventListener("scroll", () => this.look(), { passive: true });
    this.toEnd.addEventListener("click", () => this.scrollToEnd());
    new ResizeObserver(() => this.keepEnd()).observe(this.scroller);
  }

  /** Shows this conversation from the beginning. answer: the one that is being made for it, or null. */
  show(conversation, answer) {
    this.conversation = conversation;
    this.views = conversation.messages.map((message) => this.viewOf(message, answer));
    this.list.replaceChildren(...this.views.map((view) => view.node));
    if (!this.views.length) this.list.append(this.greeting());
    this.showForm();
    this.scrollToEnd();
  }

  viewOf(message, answer) {
    if (message.role === "user") return new UserView(message, this.actions);
    if (message.role === "tool") return new ResultView(message, this.nameOf(message.tool_call_id));
    return new AssistantView(message, this.actions, answer?.message === message ? answer : null);
  }

  nameOf(id) {
    const calls = this.conversation.messages.flatMap((message) => message.tool_calls ?? []);
    return calls.find((call) => call.id === id)?.function.name ?? "a tool";
  }

  /** Draws the last message again, soon. */
  update() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame((now) => {
      this.pending = false;
      if (now - this.drawnAt < REST * this.cost) return this.update();
      this.draw();
    });
  }

  draw() {
    const began = performance.now();
    this.views.at(-1)?.update();
    this.keepEnd();
    this.drawnAt = performance.now();
    this.cost = this.drawnAt - began;
  }

  /** The last answer has ended. */
  end() {
    this.draw();
    this.showForm();
    this.keepEnd();
  }

  showForm() {
    this.list.querySelector(".result-form")?.remove();
    const last = this.conversation.messages.findLast((message) => message.role === "assistant");
    const calls = last?.info?.state === "running" ? [] : openCalls(this.conversation);
    if (calls.length) this.list.append(resultForm(calls, this.actions.results));
  }

  /** Tells what the model is called and what suits it. Drawn anew only where it has changed: a button may have the focus. */
  greet({ model, note, suggestions }) {
    const welcome = { model, note: note ?? "", suggestions: suggestions ?? EXAMPLES };
    if (JSON.stringify(welcome) === JSON.stringify(this.welcome)) return;
    this.welcome = welcome;
    this.list.querySelector(".greeting")?.replaceWith(this.greeting());
  }

  // Without suggestions until the model is known: those of another one would lead astray.
  greeting() {
    const { model = "", note = "", suggestions = [] } = this.welcome ?? {};
    const example = (text) => el("button", { type: "button", class: "example", on: { click: () => this.actions.example(text) } }, text);
    return el(
      "div",
      { class: "greeting" },
      el("img", { src: "/static/icon.svg", alt: "", width: "52", height: "52" }),
      el("p", { class: "greeting-title" }, "What can I help with?"),
      model ? el("p", { class: "greeting-model", dir: "auto" }, model) : null,
      note ? el("p", { class: "greeting-note" }, note) : null,
      el("div", { class: "examples" }, ...suggestions.map(example)),
    );
  }

  // ---------------------------------------------------------------------------------------------------------- scrolling

  // The browser tells of several moves with one event, a frame later, so every look at the place compares it with where
  // the last look or the page itself left it: a move up that came in between is a person's.
  look() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const near = scrollHeight - scrollTop - clientHeight < NEAR_END;
    if (near) this.follows = true;
    else if (scrollTop < this.lastTop) this.follows = false; // growth alone never moves it up
    this.lastTop = scrollTop;
    this.toEnd.hidden = this.follows || near;
  }

  keepEnd() {
    this.look();
    if (this.follows) this.scrollToEnd();
  }

  scrollToEnd() {
    this.follows = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.lastTop = this.scroller.scrollTop;
    this.toEnd.hidden = true;
  }
}
