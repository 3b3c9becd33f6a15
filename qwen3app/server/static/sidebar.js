// The list of conversations, and the drawer that it becomes on narrow screens.
//
// An entry that stays is never drawn anew: the list changes by itself while answers come, and a button that is replaced
// between a press and its release is not clicked.

import { el, iconButton } from "./dom.js";

const NARROW = matchMedia("(max-width: 860px)");

export class Sidebar {
  /** onOpen(id), onRename(id, title), onDelete(id). */
  constructor({ onOpen, onRename, onDelete }) {
    Object.assign(this, { onOpen, onRename, onDelete });
    this.node = document.getElementById("sidebar");
    this.list = document.getElementById("conversations");
    this.main = document.getElementById("main");
    this.backdrop = document.getElementById("backdrop");
    this.opener = document.getElementById("open-menu");
    this.opener.addEventListener("click", () => this.toggle(true));
    document.getElementById("close-menu").addEventListener("click", () => this.toggle(false));
    this.backdrop.addEventListener("click", () => this.toggle(false));
    this.node.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.defaultPrevented || !this.isOpen) return;
      event.preventDefault();
      this.toggle(false);
    });
    NARROW.addEventListener("change", () => this.toggle(false, { focus: false }));
    this.toggle(false, { focus: false });
  }

  /** Opens or closes the drawer. On wide screens the list is always there. */
  toggle(open, { focus = true } = {}) {
    const wasOpen = this.isOpen;
    this.isOpen = open && NARROW.matches;
    this.node.classList.toggle("open", this.isOpen);
    this.node.inert = NARROW.matches && !this.isOpen;
    this.main.inert = this.isOpen;
    this.backdrop.hidden = !this.isOpen;
    this.opener.setAttribute("aria-expanded", String(this.isOpen));
    if (focus && this.isOpen) document.getElementById("close-menu").focus();
    else if (focus && wasOpen) this.opener.focus();
  }

  /** heads: [{id, title}]; running: ids of those that are being answered. */
  show(heads, current, running) {
    if (this.list.querySelector("input")) return; // a title is being written
    const focused = this.list.contains(document.activeElement) ? document.activeElement : null;
    const before = new Map([...this.list.children].map((node) => [node.dataset.id, node]));
    const ids = new Set(heads.map(({ id }) => id));
    for (const [id, node] of before) if (!ids.has(id)) node.remove();
    heads.forEach(({ id, title }, index) => {
      const [node, there] = [before.get(id) ?? this.item(id), this.list.children[index] ?? null];
      if (node !== there) this.list.insertBefore(node, there);
      fill(node, title, id === current, running.has(id));
    });
    if (focused !== document.activeElement) focused?.focus(); // it was moved
  }

  item(id) {
    const open = el(
      "button",
      { type: "button", class: "conversation", on: { click: () => this.onOpen(id) } },
      el("span", { class: "conversation-title", dir: "auto" }),
      el("span", { class: "pulse", role: "img", "aria-label": "being answered", hidden: true }),
    );
    const node = el("li", { data: { id } }, open);
    node.append(
      iconButton("edit", "", () => this.rename(node), { class: "small" }),
      iconButton("delete", "", () => this.onDelete(id), { class: "small" }),
    );
    return node;
  }

  rename(node) {
    const parts = [...node.children];
    const title = node.querySelector(".conversation-title").textContent;
    const input = el("input", { class: "rename", "aria-label": "Title of the conversation", maxlength: "80", dir: "auto" });
    input.value = title;
    let ended = false;
    const end = (keep) => {
      if (ended) return;
      ended = true;
      node.replaceChildren(...parts);
      this.onRename(node.dataset.id, keep ? input.value : title);
    };
    input.addEventListener("blur", () => end(true));
    input.addEventListener("keydown", (event) => {
      if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
      event.preventDefault();
      end(event.key === "Enter");
      parts[0].focus();
    });
    node.replaceChildren(input);
    input.select();
    input.focus();
  }
}

/** Writes into an entry what has changed of it. */
function fill(node, title, current, running) {
  const [open, ...buttons] = node.children;
  const [text, pulse] = open.children;
  if (text.textContent !== title) text.textContent = title;
  pulse.hidden = !running;
  node.classList.toggle("current", current);
  if (current) open.setAttribute("aria-current", "page");
  else open.removeAttribute("aria-current");
  for (const [index, word] of ["Rename", "Delete"].entries()) {
    for (const name of ["aria-label", "title"]) buttons[index].setAttribute(name, `${word} ${title}`);
  }
}
