// Draws markdown: the trees of markdown.js and inline.js become DOM nodes.
//
// MarkdownStream draws a text that is still growing. Blocks that have ended are drawn once and left alone; what follows
// them is drawn anew with each push, except that code and lists only grow. After any sequence of pushes the nodes are those of
// the whole text. Its owner says when to push: at most once per frame.

import { copyButton, el } from "./dom.js";
import { highlighter } from "./highlight.js";
import { parseInline } from "./inline.js";
import { parseLines, toLines } from "./markdown.js";

const PIECE = 100; // lines of code that are laid out together
// Invisible characters that turn the direction of text around: in code they are shown, as they can make it lie.
const DIRECTION = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

export class MarkdownStream {
  /** Draws into `container`, which must be empty. */
  constructor(container) {
    this.container = container;
    this.rest = ""; // the text from the first block that may still change
    this.open = []; // what is drawn of the rest, one per block: {node}, and grow(block) where it can: false if it could not
  }

  push(text) {
    this.rest += text;
    const lines = toLines(this.rest);
    const blocks = parseLines(lines);
    this.draw(blocks.map((entry) => entry.block));
    // Lines that are complete decide which blocks have ended: the last line may become anything yet.
    const complete = parseLines(lines.slice(0, -1));
    const ended = complete.length - 1;
    if (ended < 1) return;
    this.open = this.open.slice(ended);
    this.rest = lines.slice(complete[ended].line).join("\n");
  }

  draw(blocks) {
    const first = this.open[0];
    const grows = blocks.length > 0 && (first?.grow?.(blocks[0]) ?? false);
    for (const { node } of this.open.slice(grows ? 1 : 0)) node.remove();
    const fresh = blocks.slice(grows ? 1 : 0).map(drawBlock);
    this.container.append(...fresh.map(({ node }) => node));
    this.open = grows ? [first, ...fresh] : fresh;
  }
}

/** Draws a whole text. */
export function drawMarkdown(container, text) {
  container.append(...parseLines(toLines(text)).map(({ block }) => drawBlock(block).node));
}

function drawBlock(block) {
  if (block.type === "code") return new CodeView(block);
  if (block.type === "list") return new ListView(block);
  return { node: blockNode(block) };
}

function blockNode(block) {
  switch (block.type) {
    case "heading":
      // The page's own headings are h1 and h2.
      return el(`h${Math.min(6, block.level + 2)}`, { dir: "auto" }, ...inlineNodes(block.text));
    case "code":
    case "list":
      return drawBlock(block).node;
    case "math":
      return el("pre", { class: "math", tabindex: "0" }, block.text);
    case "rule":
      return el("hr");
    case "quote":
      return el("blockquote", {}, ...block.children.map(blockNode));
    case "table":
      return tableNode(block);
    default:
      return el("p", { dir: "auto" }, ...inlineNodes(block.text));
  }
}

/** A list that may grow. A line that is not complete can change the last item, and the one before by going on with it. */
class ListView {
  constructor(block) {
    const { ordered, start, tight, items } = block;
    this.block = block;
    const props = ordered && start !== 1 ? { start: String(start) } : {};
    this.node = el(ordered ? "ol" : "ul", props, ...items.map((item) => itemNode(item, tight)));
  }

  grow(block) {
    const { type, ordered, start, tight, items } = this.block;
    if (block.type !== type || block.ordered !== ordered || block.start !== start || block.tight !== tight) return false;
    const kept = Math.max(0, Math.min(items.length, block.items.length) - 2);
    while (this.node.children.length > kept) this.node.lastChild.remove();
    this.node.append(...block.items.slice(kept).map((item) => itemNode(item, tight)));
    this.block = block;
    return true;
  }
}

function itemNode({ checked, children }, tight) {
  const node = el("li", { dir: "auto", class: checked === null ? null : "task" });
  if (checked !== null) {
    node.append(el("input", { type: "checkbox", disabled: true, checked, "aria-label": checked ? "done" : "to do" }));
  }
  for (const child of children) {
    if (tight && child.type === "paragraph") node.append(...inlineNodes(child.text));
    else node.append(blockNode(child));
  }
  return node;
}

function tableNode({ align, head, rows }) {
  const cell = (tag, text, column) =>
    el(tag, { dir: "auto", class: align[column] === "left" ? null : `align-${align[column]}` }, ...inlineNodes(text));
  const row = (tag, cells) => el("tr", {}, ...cells.map((text, column) => cell(tag, text, column)));
  const table = el("table", {}, el("thead", {}, row("th", head)), el("tbody", {}, ...rows.map((cells) => row("td", cells))));
  // Wide tables scroll by themselves, with the keyboard too.
  return el("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" }, table);
}

function inlineNodes(text) {
  return parseInline(text).map(inlineNode);
}

function inlineNode(node) {
  switch (node.type) {
    case "text":
      return document.createTextNode(node.text);
    case "break":
      return el("br");
    case "code":
      return el("code", {}, visible(node.text));
    case "math":
      return el("code", { class: "math" }, node.text);
    case "link": {
      const props = { href: node.href, title: node.href, target: "_blank", rel: "noopener noreferrer nofollow" };
      const words = node.children.map(inlineNode);
      // Pictures are not loaded: nothing leaves this page by itself.
      return el("a", node.image ? { ...props, class: "picture" } : props, ...words);
    }
    default:
      return el(node.type, {}, ...node.children.map(inlineNode));
  }
}

function visible(text) {
  return text.replace(DIRECTION, (char) => `\u27e8U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`);
}

/** A block of code that may grow: complete lines are coloured once, the last one is plain until it is complete. */
class CodeView {
  constructor({ language, text, closed }) {
    this.language = language;
    this.colour = highlighter(language);
    this.done = 0; // lines that are drawn for good
    this.last = document.createTextNode("");
    this.code = el("code", {}, this.last);
    const name = language || "text";
    const head = el("figcaption", {}, el("span", {}, name), copyButton(() => this.text, "Copy code"));
    this.node = el("figure", { class: "code" }, head, el("pre", { tabindex: "0", role: "group", "aria-label": `Code, ${name}` }, this.code));
    this.show(text, closed);
  }

  grow({ type, language, text, closed }) {
    // A fence may turn out to be none when its line goes on: then code that was closed is drawn anew.
    if (type !== "code" || language !== this.language || this.closed) return false;
    this.show(text, closed);
    return true;
  }

  /** text: all of it so far; the lines before its last are those of the call before. closed: it will not grow. */
  show(text, closed) {
    this.text = text;
    this.closed = closed;
    const lines = text.split("\n");
    const ready = closed ? lines.length : lines.length - 1;
    for (; this.done < ready; this.done += 1) {
      this.last.before(...this.lineNodes(lines[this.done]));
      if (this.done % PIECE === PIECE - 1) this.beginPiece();
    }
    this.last.data = lines.length > this.done ? this.newline() + visible(lines.at(-1)) : "";
  }

  /** A browser lays a whole block out anew with each line, so long code is several; between two of them a line ends. */
  beginPiece() {
    this.code.append(el("span", { class: "piece" }, this.last));
  }

  newline() {
    return this.done % PIECE > 0 ? "\n" : "";
  }

  lineNodes(line) {
    const pieces = this.colour ? this.colour(line) : [{ kind: "", text: line }];
    return [this.newline(), ...pieces.map(({ kind, text }) => (kind ? el("span", { class: `code-${kind}` }, visible(text)) : visible(text)))];
  }
}
