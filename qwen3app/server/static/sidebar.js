// The list of conversations, and the drawer that it becomes on narrow screens.

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
    const focused = this.list.contains(document.activeElement) ? document.activeElement.closest("li")?.dataset.id : null;
    if (this.list.querySelector("input")) return; // a title is being written
    this.list.replaceChildren(...heads.map((head) => this.item(head, head.id === current, running.has(head.id))));
    if (focused) this.list.querySelector(`li[data-id="${focused}"] .conversation`)?.focus();
  }

  item({ id, title }, current, running) {
    const open = el(
      "button",
      { type: "button", class: "conversation", "aria-current": current ? "page" : null, on: { click: () => this.onOpen(id) } },
      el("span", { class: "conversation-title", dir: "auto" }, title),
      running ? el("span", { class: "pulse", role: "img", "aria-label": "being answered" }) : null,
    );
    const node = el("li", { class: current ? "current" : null, data: { id } }, open);
    node.append(
      iconButton("edit", `Rename ${title}`, () => this.rename(node, id, title), { class: "small" }),
      iconButton("delete", `Delete ${title}`, () => this.onDelete(id), { class: "small" }),
    );
    return node;
  }

  rename(node, id, title) {
    const input = el("input", { class: "rename", "aria-label": "Title of the conversation", maxlength: "80", dir: "auto" });
    input.value = title;
    let ended = false;
    const end = (keep) => {
      if (ended) return;
      ended = true;
      input.remove();
      this.onRename(id, keep ? input.value : title);
      this.list.querySelector(`li[data-id="${id}"] .conversation`)?.focus();
    };
    input.addEventListener("blur", () => end(true));
    input.addEventListener("keydown", (event) => {
      if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
      event.preventDefault();
      end(event.key === "Enter");
    });
    node.replaceChildren(input);
    input.select();
    input.focus();
  }
}
