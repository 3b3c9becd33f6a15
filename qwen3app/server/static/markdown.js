// Markdown's blocks: text -> a tree. Pure, knows no DOM; markdown_view.js makes nodes of it.
//
// A block is {type: "paragraph", text} | {type: "heading", level, text} | {type: "code", language, text, closed} |
// {type: "math", text} | {type: "rule"} | {type: "quote", children} | {type: "list", ordered, start, tight, items} |
// {type: "table", align, head, rows}; an item is {checked: null | true | false, children}.
//
// It follows GitHub's dialect, but: no HTML, no code by indentation, no underlined headings, no references; two spaces
// are enough to belong to an item above. Two promises: a block's form depends on the text from its first line on, and
// lines that follow never take back the end of a block. So a stream can be drawn block by block (MarkdownStream).

const MAX_DEPTH = 12;
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( +)(.*))?$/;
const TASK = /^\[([ xX])\][ \t]+/;
const MATH = { "$$": "$$", "\\[": "\\]" };

/** Lines as the parser wants them: no carriage returns, no tabs before text, no NUL. */
export function toLines(text) {
  return text
    .replaceAll("\r", "")
    .replaceAll("\u0000", "\ufffd")
    .split("\n")
    .map((line) => (line.startsWith("\t") || line.startsWith(" ") ? line.replace(/^[ \t]+/, expandTabs) : line));
}

function expandTabs(space) {
  return space.replaceAll("\t", "    ");
}

/** All blocks of a text. */
export function parseMarkdown(text) {
  return parseLines(toLines(text)).map((entry) => entry.block);
}

/** [{block, line}]: each block and the line it begins at. */
export function parseLines(lines, depth = 0) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const line = at;
    let block;
    [block, at] = readBlock(lines, at, depth);
    found.push({ block, line });
  }
  return found;
}

function readBlock(lines, at, depth) {
  const line = lines[at];
  const deeper = depth < MAX_DEPTH;
  if (FENCE.test(line)) return readCode(lines, at);
  if (RULE.test(line)) return [{ type: "rule" }, at + 1];
  const heading = HEADING.exec(line);
  if (heading) return [{ type: "heading", level: heading[1].length, text: withoutMarks(heading[2] ?? "") }, at + 1];
  if (deeper && QUOTE.test(line)) return readQuote(lines, at, depth);
  if (deeper && itemOf(line)) return readList(lines, at, depth);
  const math = endOfMath(lines, at);
  if (math) return readMath(lines, at, math);
  if (isTable(lines, at)) return readTable(lines, at);
  return readParagraph(lines, at);
}

/** Whether a paragraph ends before this line. */
function interrupts(lines, at) {
  const line = lines[at];
  if (isBlank(line) || FENCE.test(line) || RULE.test(line) || HEADING.test(line) || QUOTE.test(line)) return true;
  const item = itemOf(line);
  if (item && item.text && (!item.ordered || item.number === 1)) return true;
  return endOfMath(lines, at) > 0 || isTable(lines, at);
}

function readParagraph(lines, at) {
  const begin = at;
  do at += 1;
  while (at < lines.length && !interrupts(lines, at));
  const text = lines.slice(begin, at).map((line) => line.trimStart());
  return [{ type: "paragraph", text: text.join("\n").trimEnd() }, at];
}

function readCode(lines, at) {
  const [, fence, info] = FENCE.exec(lines[at]);
  const indent = indentOf(lines[at]);
  const inside = [];
  let closed = false;
  for (at += 1; at < lines.length && !closed; at += 1) {
    const end = /^ {0,3}(`{3,}|~{3,})[ \t]*$/.exec(lines[at]);
    closed = end !== null && end[1][0] === fence[0] && end[1].length >= fence.length;
    if (!closed) inside.push(outdent(lines[at], indent));
  }
  const language = info.trim().split(/\s/)[0].slice(0, 40);
  return [{ type: "code", language, text: inside.join("\n"), closed }, at];
}

function readQuote(lines, at, depth) {
  const inside = [];
  let lazy = false; // a line without > may go on a paragraph
  for (; at < lines.length; at += 1) {
    if (QUOTE.test(lines[at])) {
      inside.push(lines[at].replace(QUOTE, ""));
      lazy = !FENCE.test(inside.at(-1)) && !interrupts([inside.at(-1)], 0);
    } else if (lazy && !interrupts(lines, at)) {
      inside.push(lines[at]);
    } else break;
  }
  return [{ type: "quote", children: blocksOf(inside, depth) }, at];
}

// ----------------------------------------------------------------------------------------------------------------- lists

function itemOf(line) {
  if (RULE.test(line)) return null;
  const found = ITEM.exec(line);
  if (!found) return null;
  const [, indent, mark, space = " ", text = ""] = found;
  const ordered = mark.length > 1;
  const padding = space.length > 4 || !text ? 1 : space.length;
  return {
    indent: indent.length,
    ordered,
    kind: ordered ? mark.at(-1) : mark,
    number: ordered ? Number.parseInt(mark, 10) : 0,
    text: text ? " ".repeat(space.length - padding) + text : "",
    content: indent.length + mark.length + padding,
  };
}

function readList(lines, at, depth) {
  const first = itemOf(lines[at]);
  const items = [];
  let loose = false;
  let blankBefore = false;
  while (at < lines.length) {
    let next = at;
    while (next < lines.length && isBlank(lines[next])) next += 1;
    const item = next < lines.length ? itemOf(lines[next]) : null;
    if (!item || item.kind !== first.kind || item.ordered !== first.ordered) break;
    if (items.length && (item.indent >= first.content || (next === at && item.indent > 3 + first.indent))) break;
    if (items.length && (next > at || blankBefore)) loose = true;
    const read = readItem(lines, next, item);
    at = read.end;
    blankBefore = false;
    const children = blocksOf(read.lines, depth);
    if (read.inner && children.length > 1) loose = true;
    items.push({ checked: read.checked, children });
  }
  return [{ type: "list", ordered: first.ordered, start: first.number, tight: !loose, items }, at];
}

/** The lines of one item, without its mark and indentation. inner: it has blank lines inside, not in code. */
function readItem(lines, at, item) {
  const task = TASK.exec(item.text);
  const inside = [task ? item.text.slice(task[0].length) : item.text];
  const wanted = Math.min(item.content, item.indent + 2);
  let [blanks, inner, fence] = [0, false, fenceAfter(null, inside[0])];
  for (at += 1; at < lines.length; at += 1) {
    const line = lines[at];
    if (isBlank(line)) {
      blanks += 1;
      continue;
    }
    const mine = indentOf(line) >= wanted;
    const lazy = !blanks && !fence && !isBlank(inside.at(-1)) && !interrupts(lines, at) && !itemOf(line);
    if (!mine && !lazy) break;
    inner ||= blanks > 0 && !fence;
    for (; blanks; blanks -= 1) inside.push("");
    inside.push(outdent(line, item.content));
    fence = fenceAfter(fence, inside.at(-1));
  }
  const checked = task ? task[1] !== " " : null;
  return { lines: inside, end: at - blanks, inner, checked };
}

/** The fence that is open behind this line, given the one that was open before it. */
function fenceAfter(open, line) {
  const found = FENCE.exec(line);
  if (!found) return open;
  if (!open) return found[1];
  return found[1][0] === open[0] && found[1].length >= open.length && !found[2].trim() ? null : open;
}

// ------------------------------------------------------------------------------------------------------ tables, formulas

function isTable(lines, at) {
  if (at + 1 >= lines.length || !lines[at].includes("|") || !lines[at + 1].includes("-")) return false;
  const marks = cellsOf(lines[at + 1]);
  return marks.every((cell) => /^:?-+:?$/.test(cell)) && marks.length === cellsOf(lines[at]).length;
}

function readTable(lines, at) {
  const head = cellsOf(lines[at]);
  const align = cellsOf(lines[at + 1]).map((cell) => {
    if (cell.endsWith(":")) return cell.startsWith(":") ? "center" : "right";
    return "left";
  });
  const rows = [];
  for (at += 2; at < lines.length && lines[at].includes("|") && !isBlank(lines[at]); at += 1) {
    rows.push(cellsOf(lines[at]).slice(0, head.length));
  }
  return [{ type: "table", align, head, rows }, at];
}

function cellsOf(line) {
  const text = line.trim();
  const cells = [];
  let cell = "";
  for (let at = text.startsWith("|") ? 1 : 0; at < text.length; at += 1) {
    if (text[at] === "\\" && text[at + 1] === "|") {
      cell += "|";
      at += 1;
    } else if (text[at] === "|") {
      cells.push(cell.trim());
      cell = "";
    } else cell += text[at];
  }
  if (cell.trim() || !text.endsWith("|")) cells.push(cell.trim());
  return cells;
}

/** Line behind a formula that begins here and ends before anything else begins; 0 where there is none. */
function endOfMath(lines, at) {
  const first = lines[at].trim();
  const close = MATH[first.slice(0, 2)];
  if (!close) return 0;
  if (first.length > 3 && first.endsWith(close)) return at + 1;
  if (first.length > 2 && first.indexOf(close, 2) >= 0) return 0;
  for (let next = at + 1; next < lines.length && next < at + 40; next += 1) {
    const line = lines[next].trim();
    if (!line || FENCE.test(lines[next]) || HEADING.test(lines[next])) return 0;
    if (line.endsWith(close)) return next + 1;
  }
  return 0;
}

function readMath(lines, at, end) {
  const text = lines.slice(at, end).join("\n").trim();
  return [{ type: "math", text: text.slice(2, -2).trim() }, end];
}

// ---------------------------------------------------------------------------------------------------------------- pieces

function blocksOf(lines, depth) {
  return parseLines(lines, depth + 1).map((entry) => entry.block);
}

function isBlank(line) {
  return line.trim() === "";
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}

/** A heading's text without the # that may close it. */
function withoutMarks(text) {
  const trimmed = text.trim();
  let end = trimmed.length;
  while (trimmed[end - 1] === "#") end -= 1;
  return end === 0 || /\s/.test(trimmed[end - 1]) ? trimmed.slice(0, end).trimEnd() : trimmed;
}

/** Without up to `most` spaces before its text. */
function outdent(line, most) {
  return line.slice(Math.min(most, indentOf(line)));
}
