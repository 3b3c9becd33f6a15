// Words to the person beside the conversation: notices that pass, what a screen reader says, and the question for a key.

import { el } from "./dom.js";

const SHOWN = 9000; // ms

/** A notice, with a button where `action` is given: {label, run}. Returns what ends it before its time. */
export function notify(sentence, action = null) {
  const close = () => node.remove();
  const run = () => {
    close();
    action.run();
  };
  const button = action && el("button", { type: "button", class: "text-button", on: { click: run } }, action.label);
  const node = el("div", { class: "toast", role: "status" }, el("span", { dir: "auto" }, sentence), button);
  const all = document.getElementById("toasts");
  all.append(node);
  while (all.children.length > 3) all.firstChild.remove();
  let timer = setTimeout(close, SHOWN);
  for (const event of ["pointerenter", "focusin"]) node.addEventListener(event, () => clearTimeout(timer));
  for (const event of ["pointerleave", "focusout"]) node.addEventListener(event, () => (timer = setTimeout(close, SHOWN)));
  return close;
}

/** Said to those who do not see the page, politely. */
export function announce(sentence) {
  document.getElementById("announcer").textContent = sentence;
}

let asking = null;

/** Asks for the API key. Resolves to it, or to null. Who asks while it is being asked gets the same answer. */
export function askForKey(reason) {
  asking ??= openKeyDialog(reason).finally(() => (asking = null));
  return asking;
}

function openKeyDialog(reason) {
  const [dialog, field] = [document.getElementById("key-dialog"), document.getElementById("key")];
  document.getElementById("key-reason").textContent = reason;
  document.getElementById("key-form").reset(); // so that the empty field counts as not yet filled in
  return new Promise((resolve) => {
    let key = null;
    const submit = (event) => {
      event.preventDefault();
      key = field.value.trim() || null;
      dialog.close();
    };
    const cancel = () => dialog.close();
    const [form, button] = [document.getElementById("key-form"), document.getElementById("key-cancel")];
    const end = () => {
      form.removeEventListener("submit", submit);
      button.removeEventListener("click", cancel);
      field.value = "";
      resolve(key);
    };
    form.addEventListener("submit", submit);
    button.addEventListener("click", cancel);
    dialog.addEventListener("close", end, { once: true });
    dialog.showModal();
  });
}
