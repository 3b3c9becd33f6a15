// Where a person writes: the field, its keys, send and stop, and the switch for thinking. Knows no server.

export class Composer {
  /** onSend(text), onStop(), onThink(on). */
  constructor({ onSend, onStop, onThink }) {
    this.onSend = onSend;
    this.field = document.getElementById("question");
    this.sendButton = document.getElementById("send");
    this.stopButton = document.getElementById("stop");
    this.think = document.getElementById("think");
    this.running = false;
    document.getElementById("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.stopButton.addEventListener("click", onStop);
    this.think.addEventListener("click", () => onThink(this.think.getAttribute("aria-pressed") !== "true"));
    this.field.addEventListener("input", () => this.fit());
    this.field.addEventListener("keydown", (event) => this.onKey(event));
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.defaultPrevented || event.isComposing || !this.running) return;
      if (document.querySelector("dialog[open], [popover]:popover-open")) return; // Escape closes that
      event.preventDefault();
      onStop();
    });
    this.fit();
  }

  onKey(event) {
    // While an input method composes, Enter chooses a word. Safari says so by the old code alone.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    this.send();
  }

  send() {
    const text = this.field.value;
    if (this.running || !text.trim()) return;
    this.write("");
    this.onSend(text);
  }

  /** Puts a text into the field. */
  write(text) {
    this.field.value = text;
    this.fit();
  }

  get text() {
    return this.field.value;
  }

  focus() {
    this.field.focus();
  }

  /** What had the focus is gone: the next keys belong here. Not where that brings up a keyboard over the answer. */
  catchFocus() {
    const lost = !document.activeElement || document.activeElement === document.body;
    if (lost && !matchMedia("(pointer: coarse)").matches) this.focus();
  }

  setRunning(running) {
    const hadFocus = [this.sendButton, this.stopButton].includes(document.activeElement);
    this.running = running;
    this.sendButton.hidden = running;
    this.stopButton.hidden = !running;
    if (hadFocus) (running ? this.stopButton : this.field).focus();
    this.fit();
  }

  setThinking(on) {
    this.think.setAttribute("aria-pressed", String(on));
  }

  fit() {
    this.field.style.height = "auto";
    this.field.style.height = `${this.field.scrollHeight}px`;
    this.sendButton.disabled = !this.field.value.trim();
  }
}
