// Small texts for people. Pure.

/** Text on one line for titles and labels: no control characters, none that turn the direction of text around. */
export function oneLine(text, most = 80) {
  const clean = text.slice(0, most * 8).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\s]+/gu, " ").trim();
  const characters = [...clean];
  return characters.length > most ? `${characters.slice(0, most - 1).join("").trimEnd()}\u2026` : clean;
}

/** 1234567 -> "1,234,567" */
export function count(number) {
  return number.toLocaleString("en-US");
}

export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

/** Seconds as people read them: 0.42 s, 3.1 s, 12 s, 2 min 5 s */
export function duration(seconds) {
  if (seconds < 1) return `${seconds.toFixed(2)} s`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
}

/** JSON spread over lines, or the text as it is where it is none. */
export function prettyJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
