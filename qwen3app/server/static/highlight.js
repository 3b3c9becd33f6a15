// Colours for code: a line -> pieces [{kind, text}], kind one of "", "comment", "string", "number", "keyword", "name".
// One small scanner for all languages, driven by a table; it is no parser and may err, but it never changes the text.
// Pure, knows no DOM.

const WORDS = {
  c: "auto bool break case catch char class const constexpr continue default delete do double else enum explicit extern false final float for friend goto if inline int long namespace new noexcept nullptr operator override private protected public register return short signed sizeof static struct switch template this throw true try typedef typename union unsigned using virtual void volatile while include define ifdef ifndef endif pragma",
  python: "False None True and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return self try while with yield",
  js: "any as async await boolean break case catch class const continue default delete do else enum export extends false finally for from function if implements import in instanceof interface let new null number of private public readonly return static string super switch this throw true try type typeof undefined var void while yield",
  rust: "as async await bool break const continue crate dyn else enum extern false fn for i32 i64 if impl in let loop match mod move mut pub ref return self static str struct super trait true type u32 u64 u8 unsafe use usize where while",
  go: "break case chan const continue default defer else error fallthrough false for func go goto if import int interface map nil package range return select string struct switch true type var",
  java: "abstract boolean break byte case catch char class const continue default do double else enum extends final finally float for fun if implements import instanceof int interface long new null override package private protected public return short static super switch this throw throws true try val var void volatile when while",
  shell: "case cd do done echo elif else esac exit export fi for function if in local read return set source then until while",
  sql: "add all alter and as asc between by case create delete desc distinct drop else end exists from full group having in index inner insert into is join left like limit not null on or order outer primary key references right select set table then union unique update values view when where",
  data: "true false null yes no on off",
};
const LANGUAGES = {
  c: ["c", "//"], cpp: ["c", "//"], "c++": ["c", "//"], cu: ["c", "//"], cuda: ["c", "//"], h: ["c", "//"], cs: ["java", "//"],
  csharp: ["java", "//"], css: ["data", ""], go: ["go", "//"], java: ["java", "//"], kotlin: ["java", "//"], swift: ["rust", "//"],
  js: ["js", "//"], jsx: ["js", "//"], javascript: ["js", "//"], ts: ["js", "//"], tsx: ["js", "//"], typescript: ["js", "//"],
  json: ["data", ""], jsonc: ["data", "//"], py: ["python", "#"], python: ["python", "#"], python3: ["python", "#"], r: ["python", "#"],
  rb: ["python", "#"], ruby: ["python", "#"], rs: ["rust", "//"], rust: ["rust", "//"], sh: ["shell", "#"], bash: ["shell", "#"],
  zsh: ["shell", "#"], shell: ["shell", "#"], console: ["shell", "#"], dockerfile: ["shell", "#"], makefile: ["shell", "#"],
  sql: ["sql", "--"], lua: ["go", "--"], haskell: ["rust", "--"], toml: ["data", "#"], yaml: ["data", "#"], yml: ["data", "#"], ini: ["data", "#"],
};
const WORD = /[\p{L}_$][\p{L}\p{N}_$]*/uy;
const NUMBER = /(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)[a-zA-Z]{0,3}/y;
const OTHER = /[^\p{L}\p{N}_$"'`/#-]+/uy;
const LONGEST = 2000; // characters of a line that is looked at

/** A function from each line in turn to its pieces, or null where the language is not known. */
export function highlighter(language) {
  const known = LANGUAGES[language.toLowerCase()];
  if (!known) return null;
  const [words, comment] = [new Set(WORDS[known[0]].split(" ")), known[1]];
  const anyCase = known[0] === "sql";
  let inside = null; // the end of the comment or string that the last line left open
  return (line) => {
    if (line.length > LONGEST) return [{ kind: "", text: line }];
    const scanner = new Scanner(line, words, comment, anyCase, known[0]);
    inside = scanner.run(inside);
    return scanner.pieces;
  };
}

class Scanner {
  constructor(line, words, comment, anyCase, family) {
    Object.assign(this, { line, words, comment, anyCase, family, at: 0, pieces: [] });
  }

  take(kind, end) {
    if (end <= this.at) return;
    const last = this.pieces.at(-1);
    const text = this.line.slice(this.at, end);
    if (last && last.kind === kind) last.text += text;
    else this.pieces.push({ kind, text });
    this.at = end;
  }

  /** Reads the line; `inside` is what the line before left open. Returns what this one leaves open. */
  run(inside) {
    if (inside) {
      const end = this.line.indexOf(inside.end);
      this.take(inside.kind, end < 0 ? this.line.length : end + inside.end.length);
      if (end < 0) return inside;
    }
    while (this.at < this.line.length) {
      const open = this.next();
      if (open) return open;
    }
    return null;
  }

  next() {
    const { line, at, comment, family } = this;
    if (comment && line.startsWith(comment, at) && (comment !== "#" || at === 0 || /\s/.test(line[at - 1]))) {
      this.take("comment", line.length);
      return null;
    }
    if (family !== "shell" && family !== "python" && line.startsWith("/*", at)) return this.until("comment", "*/", 2);
    const quotes = line.slice(at, at + 3);
    if (family === "python" && (quotes === '"""' || quotes === "'''")) return this.until("string", quotes, 3);
    if (line[at] === "`" && (family === "js" || family === "go")) return this.until("string", "`", 1);
    if (line[at] === '"' || line[at] === "'") {
      this.take("string", this.endOfString(line[at]));
      return null;
    }
    this.word();
    return null;
  }

  until(kind, end, length) {
    const found = this.line.indexOf(end, this.at + length);
    this.take(kind, found < 0 ? this.line.length : found + end.length);
    return found < 0 ? { kind, end } : null;
  }

  endOfString(quote) {
    for (let end = this.at + 1; end < this.line.length; end += 1) {
      if (this.line[end] === "\\") end += 1;
      else if (this.line[end] === quote) return end + 1;
    }
    return quote === "'" ? this.at + 1 : this.line.length; // an apostrophe, or a lifetime
  }

  word() {
    const word = this.match(WORD);
    if (word) {
      const name = this.anyCase ? word.toLowerCase() : word;
      const called = this.line[this.at + word.length] === "(";
      this.take(this.words.has(name) ? "keyword" : called ? "name" : "", this.at + word.length);
      return;
    }
    const number = this.match(NUMBER);
    if (number) this.take("number", this.at + number.length);
    else this.take("", this.at + Math.max(1, this.match(OTHER).length));
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    return pattern.exec(this.line)?.[0] ?? "";
  }
}
