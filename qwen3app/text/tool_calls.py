"""Tool calls in a model's text: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

Owns: where a call begins and ends, and whether it is one. Refuses to know: thoughts, layout, which tools exist.
The rules:
- Tags are recognised by their text, so a checkpoint whose tokenizer has no such tokens works as well.
- Behind `<tool_call>` and white space stands `{`; else the tag is a word of the text.
- The object is followed with its strings, so tags inside a string are text of the string. It ends with its last brace;
  then `</tool_call>` ends the call. The next `<tool_call>` or the end of the text does too: the tag was forgotten.
- A call has a name and arguments that are an object (or a string that holds one; null, "" or nothing are {}). Other
  fields ("id", "type") are passed over beside both; without arguments they may mean them, and the call is malformed.
  The arguments keep the model's spelling, so that they render to the same ids when they come back in the history.
  Raw control characters inside strings are escaped, escapes of half a character become U+FFFD; any other fault makes
  the call malformed.
- A malformed or unfinished call is text, up to and including the first `</tool_call>` behind its opening tag. What
  stands in between is not searched for calls: broken quoting must not turn quoted text into a call. A call without any
  closing tag when the text ends is told apart, as nobody knows what it would have become.
Invariants: text and calls' `raw` together are the input, to the letter; they do not depend on how it is cut.
Linear: a broken call is read again from its first closing tag on, but of two readings that begin at different tags,
one is outside a string at the next tag and fails there. So no text is read more than three times.
Threads: one stream, one thread at a time.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

CALL_OPEN = "<tool_call>"
CALL_CLOSE = "</tool_call>"
# Objects nested deeper make the call malformed; messages.py refuses them as well.
_MAX_DEPTH = 200

_TEXT = 0  # outside
_HEAD = 1  # behind an opening tag: white space, then {
_OBJECT = 2  # inside the object, outside its strings
_STRING = 3
_TAIL = 4  # behind the object
_BROKEN = 5  # a malformed call: text up to a closing tag

_SPACE = re.compile(r"[ \t\n\r]*+")
# JSON without braces: whole strings, and any of the characters that numbers, literals and punctuation are made of.
_PLAIN_JSON = re.compile(r'(?:[ \t\n\r\[\]:,0-9+\-.Eaeflnrstu]++|"(?:[^"\\]++|\\.)*+")*+', re.S)
_STRING_BODY = re.compile(r'(?:[^"\\]++|\\.)*+', re.S)
_WHOLE_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.S)
_TO_REPAIR = re.compile(r"[\x00-\x1f]|\\u[dD][89a-fA-F]")
_PART = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a whole character
    r"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    r"|\\?(?P<control>[\x00-\x1f])"
    r"|\\.",
    re.S,
)


class ToolCall(NamedTuple):
    """One call. arguments: the JSON text of an object. raw: as the model wrote it, with its tags."""

    name: str
    arguments: str
    raw: str

    @property
    def body(self) -> str:
        """What stands between the tags."""
        return self.raw.removeprefix(CALL_OPEN).removesuffix(CALL_CLOSE).strip()


Item = str | ToolCall


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class _CallAndMore(msgspec.Struct):
    name: str
    arguments: msgspec.Raw


_decode_call = msgspec.json.Decoder(_Call).decode
_decode_call_and_more = msgspec.json.Decoder(_CallAndMore).decode
_decode_string = msgspec.json.Decoder(str).decode
_check_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def parse_call(raw: str) -> ToolCall | None:
    """A call from its text with tags (the closing one may be missing, or cut off), or None where it is malformed."""
    text = raw[len(CALL_OPEN) : raw.rfind("}") + 1]
    call = _parsed(text, raw)
    if call is None and _TO_REPAIR.search(text):
        call = _parsed(_WHOLE_STRING.sub(lambda match: _PART.sub(_repaired, match[0]), text), raw)
    return call


def _parsed(text: str, raw: str) -> ToolCall | None:
    try:
        try:
            call: _Call | _CallAndMore = _decode_call(text)
        except msgspec.ValidationError:  # it is JSON
            call = _decode_call_and_more(text)
        arguments = bytes(call.arguments).decode()
        if arguments in ("null", '""'):
            arguments = "{}"
        elif arguments.startswith('"'):
            arguments = _decode_string(arguments)
            _check_object(arguments)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
    return ToolCall(call.name, arguments, raw) if call.name and arguments.lstrip()[:1] == "{" else None


def _repaired(match: re.Match[str]) -> str:
    """A part of a JSON string, spelled as JSON wants it. A backslash before a raw control character means itself."""
    if match["half"]:
        return "\\ufffd"
    if match["control"]:
        escaped = msgspec.json.encode(match["control"]).decode()[1:-1]
        return "\\\\" + escaped if match[0][0] == "\\" else escaped
    return match[0]


def _begun(text: str, begin: int, tag: str) -> int:
    """How many characters at the end of text[begin:] are a true beginning of the tag."""
    found = text.rfind("<", max(begin, len(text) - len(tag) + 1))
    return len(text) - found if found >= 0 and tag.startswith(text[found:]) else 0


class CallScanner:
    """See the file's head."""

    __slots__ = ("_depth", "_escape", "_held", "_parts", "_state", "_tag")

    def __init__(self) -> None:
        self._state = _TEXT
        self._held = ""  # _TEXT and _BROKEN: what may become a tag
        self._parts: list[str] = []  # the open call's text of earlier pushes
        self._depth = 0  # open braces
        self._escape = False  # in a string, behind a backslash
        self._tag = ""  # _TAIL: the beginning of a tag, also in _parts

    def push(self, text: str) -> list[Item]:
        """What this text makes certain, in order."""
        if self._state == _TEXT and not self._held and "<" not in text:
            return [text] if text else []
        items: list[Item] = []
        if self._held:
            text, self._held = self._held + text, ""
        position = start = 0  # start: of the open call, or of its part in this text
        while position < len(text):
            state = self._state
            if state in (_TEXT, _BROKEN):
                tag = CALL_OPEN if state == _TEXT else CALL_CLOSE
                start = text.find(tag, position)
                if start < 0:
                    end = len(text) - _begun(text, position, tag)
                    if end > position:
                        items.append(text[position:end])
                    self._held = text[end:]
                    return items
                if state == _BROKEN:
                    start += len(tag)
                    self._state = _TEXT
                if start > position:
                    items.append(text[position:start])
                position = start
                if state == _TEXT:
                    position += len(tag)
                    self._state, self._depth = _HEAD, 0
            elif state == _HEAD:
                match = _SPACE.match(text, position)
                assert match is not None  # it matches nothing too
                position = match.end()
                if position < len(text):
                    if text[position] == "{":
                        self._state = _OBJECT
                    else:  # a mention of the tag
                        items.append(self._take(text[start:position]))
                        self._state = _TEXT
            elif state == _TAIL:
                text, position, start = self._after_object(text, position, start, items)
            else:
                position = self._inside(text, position)
                if position < 0:
                    text, position, start = self._break(text, start)
        if self._state not in (_TEXT, _BROKEN):
            self._parts.append(text[start:])
        return items

    def finish(self) -> tuple[list[Item], str]:
        """What was held back, at the end of the text: (items, the text of an unfinished call behind them)."""
        items: list[Item] = []
        while self._parts:
            raw, state = self._take(""), self._state
            self._state, self._tag, self._escape = _TEXT, "", False
            call = parse_call(raw) if state == _TAIL else None
            if call is not None:
                return [*items, call], ""
            end = raw.find(CALL_CLOSE) + len(CALL_CLOSE)
            if end < len(CALL_CLOSE):
                return items, raw
            items.append(raw[:end])
            items += self.push(raw[end:])
        held, self._held, self._state = self._held, "", _TEXT
        return ([*items, held] if held else items), ""

    def _take(self, text: str) -> str:
        """The open call's text; it ends with `text`. With parts from earlier pushes, `text` begins with the push."""
        if not self._parts:
            return text
        self._parts.append(text)
        whole = "".join(self._parts)
        self._parts.clear()
        return whole

    def _break(self, text: str, start: int) -> tuple[str, int, int]:
        """The open call is malformed: (text, position, start) to read it again as text."""
        self._state, self._tag, self._escape = _BROKEN, "", False
        if not self._parts:
            return text, start, start
        return self._take(text), 0, 0

    def _inside(self, text: str, position: int) -> int:
        """Follows the object; the new position, or -1 where it is no JSON."""
        length = len(text)
        while position < length:
            if self._state == _STRING:
                if self._escape:
                    self._escape = False
                    position += 1
                match = _STRING_BODY.match(text, position)
                assert match is not None
                position = match.end()
                if position < length:
                    if text[position] == '"':
                        self._state = _OBJECT
                    else:
                        self._escape = True  # a backslash, the last character
                    position += 1
                continue
            match = _PLAIN_JSON.match(text, position)
            assert match is not None
            position = match.end()
            if position == length:
                break
            character = text[position]
            position += 1
            if character == "{":
                self._depth += 1
                if self._depth > _MAX_DEPTH:
                    return -1
            elif character == "}":
                self._depth -= 1
                if not self._depth:
                    self._state = _TAIL
                    break
            elif character == '"':
                self._state = _STRING
            else:
                return -1
        return position

    def _after_object(self, text: str, position: int, start: int, items: list[Item]) -> tuple[str, int, int]:
        """Behind the object: (text, position, start) to go on with."""
        if not self._tag:
            match = _SPACE.match(text, position)
            assert match is not None
            position = match.end()
        piece = self._tag + text[position : position + len(CALL_CLOSE) - len(self._tag)]
        closed, next_begins = piece == CALL_CLOSE, piece.startswith(CALL_OPEN)
        if not (closed or next_begins) and (CALL_CLOSE.startswith(piece) or CALL_OPEN.startswith(piece)):
            self._tag = piece
            return text, len(text), start
        if self._parts:
            whole = self._take(text)
            text, position = whole, position + len(whole) - len(text)
        end = position - len(self._tag)
        self._tag = ""
        if closed:
            end += len(CALL_CLOSE)
        call = parse_call(text[start:end]) if closed or next_begins else None
        if call is None:
            return self._break(text, start)
        items.append(call)
        self._state = _TEXT
        return text, end, end
