r"""`ThoughtBudget`: counts one sample's thought and says when and with which tokens it has to be closed.

Owns: the count, and the words that close a thought. Refuses to know: the engine, requests, deltas; runtime.py ends the
sample and continues it behind the closing words.
The rule: a thought of `budget` tokens is closed the way Qwen documents it, by a sentence, `</think>` and an empty line
(a thought without any token by `</think>` alone, as the chat template writes an empty thought). A character that the
budget would cut in two is finished first, within eight more tokens.
Invariants: the decision depends on the sample's tokens alone, never on when they arrive.
Threads: the event loop's.
"""

from __future__ import annotations

from qwen3app.text.output import OutputStream
from qwen3app.text.tokenizer import THINK_CLOSE, Tokenizer

CLOSING_TEXT = (
    "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now.\n"
    f"{THINK_CLOSE}\n\n"
)
_EMPTY_CLOSING_TEXT = f"\n\n{THINK_CLOSE}\n\n"
# Three finish any character, but a token may also begin the next one: families of emoji are a chain of such tokens.
_CHARACTER_TOKENS = 8


class ThoughtBudget:
    """One per sample; see the file's head."""

    __slots__ = ("_budget", "_output", "_tokenizer", "ids")

    def __init__(self, tokenizer: Tokenizer, budget: int, thinking: bool) -> None:
        """thinking: the prompt ends inside a thought."""
        self.ids: list[int] = []  # what the sample has said
        self._budget = budget
        self._tokenizer = tokenizer
        self._output = OutputStream(tokenizer, thinking=thinking, split_reasoning=True)

    def push(self, token: int) -> bool:
        """True: the thought has used its budget and is to be closed behind this token."""
        self.ids.append(token)
        output = self._output
        output.push((token,))
        over = output.reasoning_tokens - self._budget
        return over >= 0 and output.in_thought and (over >= _CHARACTER_TOKENS or not output.in_character)

    @property
    def settled(self) -> bool:
        """The answer has begun: there is nothing to close any more."""
        return self._output.answering

    def closing(self) -> list[int]:
        """The tokens that close the thought."""
        return self._tokenizer.encode_raw(CLOSING_TEXT if self._output.reasoning_tokens else _EMPTY_CLOSING_TEXT)
