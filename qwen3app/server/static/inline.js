// Markdown inside a line: text -> nodes. Pure, knows no DOM.
//
// A node is {type: "text" | "code" | "math", text}, {type: "break"}, {type: "strong" | "em" | "del", children} or
// {type: "link", href, image, children}. HTML is text like any other. Links go to http, https and mailto only; all else
// stays text. Time is linear in the text and nesting is limited, whatever the text is.
//
// It follows CommonMark, but: a newline is a line break; $...$ and \(...\) are formulas, shown as they are; emphasis may
// touch Chinese, Japanese and Korean punctuation; there are no references, and no entities but the usual six.

const MAX_OPEN = 16; // openers that wait for their end; bounds nesting and search
const MAX_RUN = 6; // longer rows of * are decoration
const MAX_HREF = 2000;
const MAX_MATH = 400;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };
const PLAIN = /[^\\`*_~[\]!<$&\nh]+/y; // h: where a bare address may begin
const ENTITY = /&(amp|lt|gt|quot|apos|nbsp);/y;
const ESCAPED = /[!-/:-@[-`{-~]/;
const BARE_URL = /https?:\/\/[^\s<>"`\u3000-\u303f\uff00-\uffef]{1,2000}/y;
const ANGLE_URL = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const WIDE = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\u3000-\u303f\uff00-\uffef]/u;

/** The nodes of one paragraph, heading or cell. */
export function parseInline(text) {
  return new Inline(text).parse();
}

/** The full address if a link may go there, else null. */
export function safeHref(href) {
  if (!URL.canParse(href)) return null;
  const url = new URL(href); // what the browser makes of it decides, however it is spelled
  return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
}

class Inline {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.nodes = []; // what has been read and is in no link or emphasis yet
    this.openers = []; // runs of * _ ~ that may open emphasis: {index into nodes, char, length, opens, closes}
    this.brackets = []; // each [ that may begin a link: {index into nodes, image}
    this.ticks = null; // length of a run of backticks -> {places, next}
  }

  parse() {
    const { text } = this;
    while (this.at < text.length) {
      const char = text[this.at];
      const read =
        (char === "\n" && this.newline()) ||
        (char === "`" && this.code()) ||
        (char === "\\" && this.backslash()) ||
        ("*_~".includes(char) && this.delimiters(char)) ||
        (char === "[" && this.openBracket(false)) ||
        (char === "!" && text[this.at + 1] === "[" && this.openBracket(true)) ||
        (char === "]" && this.closeBracket()) ||
        (char === "<" && this.angleLink()) ||
        (char === "h" && this.bareLink()) ||
        (char === "$" && this.math("$", 1)) ||
        (char === "&" && this.entity());
      if (!read) this.plain();
    }
    return this.nodes.filter((node) => node.text !== "");
  }

  add(node) {
    this.nodes.push(node);
    return true;
  }

  addText(text, length = text.length) {
    this.at += length;
    return this.add({ type: "text", text });
  }

  plain() {
    PLAIN.lastIndex = this.at;
    const found = PLAIN.exec(this.text);
    this.addText(found ? found[0] : this.text[this.at]);
  }

  newline() {
    const last = this.nodes.at(-1);
    if (last?.type === "text") last.text = last.text.trimEnd();
    while (this.text[this.at] === "\n" || this.text[this.at] === " ") this.at += 1;
    return this.add({ type: "break" });
  }

  /** A span of code reaches to the next run of as many backticks. */
  code() {
    if (!this.ticks) {
      this.ticks = new Map();
      for (const { 0: run, index } of this.text.matchAll(/`+/g)) {
        if (!this.ticks.has(run.length)) this.ticks.set(run.length, { places: [], next: 0 });
        this.ticks.get(run.length).places.push(index);
      }
    }
    let length = 1;
    while (this.text[this.at + length] === "`") length += 1;
    const runs = this.ticks.get(length) ?? { places: [], next: 0 };
    while (runs.places[runs.next] <= this.at) runs.next += 1;
    const end = runs.places[runs.next];
    if (end === undefined) return this.addText("`".repeat(length));
    let inside = this.text.slice(this.at + length, end).replaceAll("\n", " ");
    if (inside.startsWith(" ") && inside.endsWith(" ") && inside.trim()) inside = inside.slice(1, -1);
    this.at = end + length;
    return this.add({ type: "code", text: inside });
  }

  backslash() {
    const next = this.text[this.at + 1] ?? "";
    if (next === "(" && this.math("\\(", 2, "\\)")) return true;
    if (next === "\n") {
      this.at += 1;
      return this.newline();
    }
    return ESCAPED.test(next) ? this.addText(next, 2) : this.addText("\\");
  }

  /** A formula on one line. With dollars as pandoc has it, so that prices are none. */
  math(open, length, close = open) {
    const begin = this.at + length;
    const limit = this.text.slice(begin, begin + MAX_MATH).split("\n", 1)[0];
    const size = limit.indexOf(close);
    if (size < 1) return false;
    const inside = limit.slice(0, size);
    if (open === "$" && (inside.trim() !== inside || /\d/.test(this.text[begin + size + 1] ?? ""))) return false;
    this.at = begin + size + close.length;
    return this.add({ type: "math", text: inside });
  }

  entity() {
    ENTITY.lastIndex = this.at;
    const found = ENTITY.exec(this.text);
    return found !== null && this.addText(ENTITIES[found[1]], found[0].length);
  }

  // ---------------------------------------------------------------------------------------------------------- emphasis

  delimiters(char) {
    let length = 1;
    while (this.text[this.at + length] === char) length += 1;
    if (length > MAX_RUN) return this.addText(char.repeat(length));
    const { opens, closes } = this.flanks(char, length);
    if (closes) length = this.close({ char, length, opens, closes });
    const fits = char !== "~" || length === 2;
    if (length && opens && fits) remember(this.openers, { index: this.nodes.length, char, length, opens, closes });
    if (length) this.add({ type: "text", text: char.repeat(length) });
    return true;
  }

  /** Whether this run may open or close emphasis, by what stands before and behind it. Moves behind it. */
  flanks(char, length) {
    const before = this.at > 0 ? lastCharacter(this.text, this.at) : " ";
    this.at += length;
    const after = this.at < this.text.length ? String.fromCodePoint(this.text.codePointAt(this.at)) : " ";
    const [spaceBefore, spaceAfter] = [/\s/.test(before), /\s/.test(after)];
    const wide = WIDE.test(before) || WIDE.test(after);
    const [markBefore, markAfter] = [PUNCTUATION.test(before), PUNCTUATION.test(after)];
    const left = !spaceAfter && (wide || !markAfter || spaceBefore || markBefore);
    const right = !spaceBefore && (wide || !markBefore || spaceAfter || markAfter);
    if (char !== "_") return { opens: left, closes: right };
    return { opens: left && (!right || markBefore), closes: right && (!left || markAfter) };
  }

  /** Closes what this run closes; returns how much of it is left. */
  close(closer) {
    let { length } = closer;
    while (length) {
      const place = this.findOpener(closer, length);
      if (place < 0) return length;
      const opener = this.openers[place];
      const used = closer.char === "~" ? 2 : Math.min(2, length, opener.length);
      const kind = closer.char === "~" ? "del" : used === 2 ? "strong" : "em";
      this.openers.length = place + 1; // what opened in between and did not close is text
      this.wrap(opener.index, kind);
      length -= used;
      opener.length -= used;
      const marks = this.nodes[opener.index];
      marks.text = marks.text.slice(used);
      if (!opener.length) {
        this.nodes.splice(opener.index, 1);
        this.openers.pop();
      }
    }
    return 0;
  }

  findOpener(closer, length) {
    for (let place = this.openers.length - 1; place >= 0; place -= 1) {
      const opener = this.openers[place];
      if (opener.char !== closer.char) continue;
      if (closer.char === "~") {
        if (length === 2) return place;
        continue;
      }
      const odd = (opener.closes || closer.opens) && (opener.length + length) % 3 === 0;
      if (!odd || (opener.length % 3 === 0 && length % 3 === 0)) return place;
    }
    return -1;
  }

  /** Puts all nodes behind `index` into one of this type. A [ among them begins no link any more. */
  wrap(index, type, fields = {}) {
    const children = this.nodes.splice(index + 1).filter((node) => node.text !== "");
    while (this.brackets.length && this.brackets.at(-1).index > index) this.brackets.pop();
    this.nodes.push({ type, children, ...fields });
  }

  // ------------------------------------------------------------------------------------------------------------- links

  openBracket(image) {
    remember(this.brackets, { index: this.nodes.length, image });
    return this.addText(image ? "![" : "[");
  }

  closeBracket() {
    const bracket = this.brackets.pop();
    const target = bracket && this.target();
    const href = target && safeHref(target.href);
    if (!href) return this.addText("]");
    while (this.openers.length && this.openers.at(-1).index > bracket.index) this.openers.pop();
    this.wrap(bracket.index, "link", { href, image: bracket.image });
    this.nodes[bracket.index].text = "";
    if (!bracket.image) this.brackets = []; // no link inside a link
    this.at = target.end;
    return true;
  }

  /** (address "title") behind a ], or null. The title is left out. */
  target() {
    const { text } = this;
    let at = this.at + 1;
    if (text[at] !== "(") return null;
    at += 1;
    const limit = Math.min(text.length, at + MAX_HREF);
    const angle = text[at] === "<";
    const begin = angle ? at + 1 : at;
    let nested = 0;
    for (at = begin; at < limit; at += 1) {
      const char = text[at];
      if (angle ? char === ">" || char === "\n" : char <= " " || (char === ")" && nested === 0)) break;
      if (char === "[" || char === "<") return null; // no address has them, and a row of these would take long
      if (char === "(") nested += 1;
      else if (char === ")") nested -= 1;
    }
    const href = text.slice(begin, at);
    const rest = /^>?(?:\s+(?:"[^"]{0,500}"|'[^']{0,500}'))?\s*\)/.exec(text.slice(at, at + 600));
    if (!rest || rest[0].startsWith(">") !== angle) return null;
    return { href, end: at + rest[0].length };
  }

  angleLink() {
    ANGLE_URL.lastIndex = this.at;
    const found = ANGLE_URL.exec(this.text);
    return found !== null && this.addLink(found[1], found[0].length);
  }

  bareLink() {
    if (/[\p{L}\p{N}]/u.test(this.text[this.at - 1] ?? "")) return false;
    BARE_URL.lastIndex = this.at;
    const found = BARE_URL.exec(this.text);
    if (!found) return false;
    const ends = found[0].includes("(") ? ".,;:!?'\"*_~]" : ".,;:!?'\"*_~])"; // what rather belongs to the sentence
    let { length } = found[0];
    while (ends.includes(found[0][length - 1])) length -= 1;
    return this.addLink(found[0].slice(0, length), length);
  }

  addLink(address, length) {
    const href = safeHref(address);
    if (!href) return false;
    this.at += length;
    return this.add({ type: "link", href, image: false, children: [{ type: "text", text: address }] });
  }
}

function lastCharacter(text, at) {
  const pair = text.slice(Math.max(0, at - 2), at);
  return [...pair].at(-1);
}

function remember(stack, entry) {
  if (stack.length === MAX_OPEN) stack.shift();
  stack.push(entry);
}
