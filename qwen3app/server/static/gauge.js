// The server at a glance: asks for its status every two seconds while the page is seen, and shows it in the bar.

import { getHealth, getStatus } from "./api.js";
import { el } from "./dom.js";
import { count } from "./text.js";

const EVERY = 2000; // ms
const AT_MOST = 15_000; // ms, where it does not answer

export class Gauge {
  /** onStatus(status): the server's figures have come. */
  constructor(onStatus) {
    this.onStatus = onStatus;
    this.button = document.getElementById("gauge");
    this.text = document.getElementById("gauge-text");
    this.word = document.getElementById("gauge-word");
    this.details = document.getElementById("gauge-details");
    this.wait = EVERY;
    this.timer = 0;
    this.last = null; // the status before this one, and when it came
    document.addEventListener("visibilitychange", () => this.look());
  }

  /** Looks now, and from now on. The first look may ask for a key. */
  async start() {
    await this.look({ quiet: false });
  }

  async look({ quiet = true } = {}) {
    clearTimeout(this.timer);
    if (document.hidden) return;
    try {
      this.show(await getStatus({ quiet }));
      this.wait = EVERY;
    } catch (error) {
      await this.explain(error);
    }
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.look(), this.wait);
  }

  async explain(error) {
    this.last = null;
    this.wait = error.code === "model_loading" ? EVERY / 4 : Math.min(this.wait * 1.5, AT_MOST);
    if (error.code === "model_loading") {
      const { progress } = await getHealth().catch(() => ({}));
      const share = progress ? ` ${Math.round(progress * 100)}%` : "";
      this.state("busy", `Loading${share}`, "The server is loading its model.");
    } else if (error.status === 401) this.state("off", "Locked", "The server needs an API key.");
    else if (error.status === 0) this.state("off", "Offline", "The server does not answer.");
    else this.state("off", "Trouble", error.message);
  }

  state(kind, text, sentence) {
    this.button.dataset.state = kind;
    if (this.text.textContent !== text) this.text.textContent = text;
    this.word.hidden = kind !== "ok" && kind !== "full";
    this.button.title = sentence; // screen readers say it behind the text
    if (kind !== "ok" && kind !== "full") this.details.replaceChildren(el("p", {}, sentence));
  }

  show(status) {
    const now = performance.now();
    const { running, slots, waiting, kv_usage: kv } = status;
    const rate = this.last ? ((status.generated_tokens - this.last.tokens) * 1000) / (now - this.last.at) : 0;
    this.last = { tokens: status.generated_tokens, at: now };
    const queue = waiting ? `, ${count(waiting)} waiting` : "";
    const sentence = `${count(running)} of ${count(slots)} slots in use${queue}, KV cache ${percent(kv)} in use.`;
    this.state(waiting || kv > 0.95 ? "full" : "ok", `${count(running)}/${count(slots)}${waiting ? ` +${count(waiting)}` : ""}`, sentence);
    this.details.replaceChildren(
      el("p", { class: "gauge-model" }, status.model),
      row("Slots in use", `${count(running)} of ${count(slots)}`, running / slots),
      row("Waiting", count(waiting)),
      row("KV cache in use", `${percent(kv)} of ${count(status.kv_tokens)} tokens`, kv),
      row("Speed, all answers", `${Math.max(0, rate).toFixed(rate < 100 ? 1 : 0)} tok/s`),
      row("Longest context", `${count(status.max_context)} tokens`),
      row("Device", status.device),
      row("Version", status.version),
    );
    this.onStatus(status);
  }
}

function row(name, value, share = null) {
  const meter = el("span", { class: "meter" }, el("span", {}));
  meter.firstChild.style.inlineSize = `${Math.min(100, Math.max(0, (share ?? 0) * 100))}%`;
  return el("div", { class: "gauge-row" }, el("span", {}, name), el("span", {}, value), share === null ? null : meter);
}

function percent(share) {
  return `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)}%`;
}
