// Makes DOM nodes. Text becomes text nodes and attributes are set one by one: there is no way here to markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element. In props: class, on (event -> listener), data (name -> value); all others are attributes. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === "data") Object.assign(node.dataset, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** One of index.html's symbols. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/** A button with a symbol and, for those who do not see it, a name. */
export function iconButton(name, label, onClick, props = {}) {
  return el(
    "button",
    { type: "button", "aria-label": label, title: label, on: { click: onClick }, ...props, class: `icon-button ${props.class ?? ""}` },
    icon(name),
  );
}

/** A button that copies what `text` returns. */
export function copyButton(text, label = "Copy") {
  const button = iconButton("copy", label, async () => {
    const done = await copy(text());
    button.replaceChildren(icon(done ? "check" : "alert"));
    button.setAttribute("aria-label", done ? "Copied" : "Copying was refused by the browser");
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.setAttribute("aria-label", label);
    }, 1600);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // No clipboard without HTTPS, but for this machine's own addresses: the old way.
    const area = el("textarea", { class: "visually-hidden", "aria-hidden": "true" });
    area.value = text;
    const focused = document.activeElement;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return done;
  }
}
