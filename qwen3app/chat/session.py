"""One conversation: its messages, its settings, and asking.

Owns the history and the rule of what enters it: a turn is kept when the model said anything at all, even if it was
stopped half-way; a question without a word of answer is taken back, and what it should have replaced stays. Owns the
rounds of a turn with tool calls. Refuses to know the terminal and where the model is: it takes text and yields what the
backend says.
Invariants: `messages` are turns, each a user message, then assistant messages and the tools' results; every call in
them has its result. Runs on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from qwen3app.chat.backend import Backend, Call, Piece, TurnStats
from qwen3app.chat.errors import ChatError
from qwen3app.chat.settings import ChatSettings

MAX_ROUNDS = 16  # answers with tool calls in a row: a model that goes round in circles is stopped
STOPPED_CALL = '{"error": "The user stopped this call."}'

RunCall = Callable[[Call], Awaitable[str]]


class ChatSession:
    def __init__(self, backend: Backend, settings: ChatSettings | None = None, *, think: bool = True) -> None:
        self.backend = backend
        self.settings = settings if settings is not None else ChatSettings()
        self.think = think
        self.messages: list[dict[str, Any]] = []
        self.stats = TurnStats()  # of the last answer
        self.context_tokens: int | None = 0  # what the conversation takes; None: not known before the next answer
        self._asked: str | None = None  # last, whatever became of it
        self._unanswered = False  # it is not in the conversation: no word of an answer came
        self._unanswered_replaces = False  # it should have replaced the last turn
        self.tools: list[dict[str, Any]] | None = None  # what the model may call, as OpenAI has it
        self.run_call: RunCall | None = None  # runs a call and returns its result; needed with tools
        self._stopping = False
        self._replaced: list[dict[str, Any]] = []  # by the next question, if it is answered
        self.file: Path | None = None  # of the last /save or /load of this conversation
        self._in_file: list[dict[str, Any]] = []  # the messages that it holds

    @property
    def n_turns(self) -> int:
        return sum(message["role"] == "user" for message in self.messages)

    @property
    def is_saved(self) -> bool:
        """Whether a file holds every message; an empty conversation has nothing to lose."""
        return self.messages == self._in_file[: len(self.messages)]

    def note_saved(self, file: Path) -> None:
        """The file holds the conversation as it is now."""
        self._in_file = list(self.messages)
        self.file = file.absolute()

    def reset(self) -> None:
        """Forgets the conversation; settings stay."""
        self.replace([])

    def replace(self, messages: list[dict[str, Any]]) -> None:
        """Goes on with another conversation, which is in no file yet."""
        self.messages = messages
        self.file, self._in_file = None, []
        self._replaced = []
        self._unanswered = False
        self.stats = TurnStats()
        self._count()

    def _count(self) -> None:
        """Where the last answer's numbers are not those of the conversation, as after /undo and /load."""
        self.context_tokens = self.backend.count(self._prompt(), self.tools, self.think) if self.messages else 0

    async def recount(self) -> None:
        """Finds out what the conversation takes where that is not known, as after a stop, if anybody knows."""
        if self.context_tokens is None:
            self.context_tokens = await self.backend.ask_count(self._prompt(), self.tools, self.think)

    def _prompt(self) -> list[dict[str, Any]]:
        system = self.settings.system
        return [*([{"role": "system", "content": system}] if system else []), *self.messages]

    def undo(self, *, to_replace: bool = False) -> str | None:
        """Takes back the last turn and returns its question; None: there is none. to_replace: the turn comes back if
        the next question gets no answer."""
        last = next((i for i in reversed(range(len(self.messages))) if self.messages[i]["role"] == "user"), None)
        if last is None:
            return None
        self._unanswered = False
        question: str = self.messages[last]["content"]
        self._replaced = self.messages[last:] if to_replace else []
        del self.messages[last:]
        self.stats = TurnStats()
        self._count()
        return question

    @property
    def last_question(self) -> str | None:
        """The one that /retry and /edit mean: what was asked last and got no answer, else the conversation's last."""
        if self._unanswered:
            return self._asked
        questions = (message["content"] for message in reversed(self.messages) if message["role"] == "user")
        return next(questions, self._asked)

    def take_back(self) -> None:
        """Makes room for the last question to be asked again, in its own words or others: its turn comes back if no
        answer comes."""
        if not self._unanswered or self._unanswered_replaces:
            self.undo(to_replace=True)

    @property
    def last_reply(self) -> dict[str, Any] | None:
        """The assistant message that came last."""
        return next((message for message in reversed(self.messages) if message["role"] == "assistant"), None)

    def stop(self) -> None:
        """Ends the running answer; `ask` then ends by itself. Without one, nothing."""
        self._stopping = True
        self.backend.stop()

    def effective(self, name: str) -> float | int | None:
        """What a sampling setting comes to: the user's value, else the model's default, else None."""
        value = getattr(self.settings, name)
        return value if value is not None else self.backend.default(name)

    async def ask(self, text: str) -> AsyncGenerator[Piece | Call, None]:
        """Asks and yields the answer as it comes. Afterwards `stats` describes it and `messages` holds the turn.

        Close the iterator (aclosing) when leaving it early: that stops the answer and keeps what came. Raises
        AppError or TextError, each one sentence.
        """
        self._stopping = False
        self._asked, self._unanswered = text, False
        turn: list[dict[str, Any]] = [{"role": "user", "content": text}]
        self.stats = TurnStats()
        try:
            for number in range(MAX_ROUNDS):
                calls: list[Call] = []
                async with aclosing(self._round(turn, calls, first=number == 0)) as pieces:
                    async for piece in pieces:
                        yield piece
                if not calls or self._stopping or self.stats.finish == "abort":
                    return
                for call in calls:
                    yield call
                    assert self.run_call is not None
                    result = await self.run_call(call)
                    turn.append({"role": "tool", "tool_call_id": call.id, "content": result})
                    if self._stopping:
                        self.stats.finish = "abort"
                        return
            raise ChatError(
                f"The model called tools {MAX_ROUNDS} times in a row without an answer; it was stopped. "
                "/retry asks once more."
            )
        finally:
            self._keep(turn)

    async def _round(
        self, turn: list[dict[str, Any]], calls: list[Call], *, first: bool
    ) -> AsyncGenerator[Piece, None]:
        """One answer of the model: its words are yielded and its calls put into `calls`, both into the turn."""
        stats = self.stats if first else TurnStats()
        thought: list[str] = []
        answer: list[str] = []
        try:
            said = self.backend.answer([*self._prompt(), *turn], self.tools, self.settings, self.think, stats)
            async with aclosing(said):
                async for piece in said:
                    if isinstance(piece, Call):
                        calls.append(piece)
                        continue
                    (thought if piece.kind == "thought" else answer).append(piece.text)
                    yield piece
        finally:
            if not first:
                self.stats.add(stats)
            is_silent = not calls and not "".join(answer).strip()
            self.stats.is_empty = stats.finish == "stop" and is_silent
            # Without a word of a thought, too: its opening tag is a token.
            self.stats.cut_in_thought = stats.finish == "length" and is_silent and bool(thought or self.think)
            reply: dict[str, Any] = {"role": "assistant", "content": "".join(answer)}
            if thought:
                reply["reasoning_content"] = "".join(thought)  # the template decides how long it is remembered
            if calls:
                reply["tool_calls"] = [call.as_message_part() for call in calls]
            if thought or answer or calls:
                turn.append(reply)

    def _keep(self, turn: list[dict[str, Any]]) -> None:
        replaced, self._replaced = self._replaced, []
        if len(turn) == 1:
            self.messages += replaced
            self._unanswered, self._unanswered_replaces = True, bool(replaced)
            self._count()
            return
        answered = {message.get("tool_call_id") for message in turn}
        for message in list(turn):
            for call in message.get("tool_calls", ()):
                if call["id"] not in answered:
                    turn.append({"role": "tool", "tool_call_id": call["id"], "content": STOPPED_CALL})
        self.messages += turn
        self.context_tokens = self.stats.context_tokens
