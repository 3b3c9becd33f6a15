"""What reaches the terminal."""

from __future__ import annotations

import io
import re

from rich.console import Console

from qwen3app.chat.backend import Call, Piece, TurnStats
from qwen3app.chat.render import Renderer, cut_sentence, stats_line


def test_thought_and_answer_are_set_apart(renderer: Renderer, screen: io.StringIO) -> None:
    renderer.begin()
    for piece in (Piece("thought", "hm"), Piece("thought", "m"), Piece("answer", "A"), Piece("answer", "B")):
        renderer.piece(piece)
    renderer.end(TurnStats(tokens=4, prompt_tokens=9, seconds=1.0, first_seconds=0.25, finish="stop"))
    assert screen.getvalue() == (
        "Thinking:\nhmm\n\nAB\n[4 tokens · 1.00 s · 4.0 tok/s · first after 0.25 s · cached 0 of 9]\n"
    )


def test_hidden_thoughts_leave_one_word(renderer: Renderer, screen: io.StringIO) -> None:
    renderer.show_thinking = False
    renderer.begin()
    for piece in (Piece("thought", "secret"), Piece("thought", "s"), Piece("answer", "A\n")):
        renderer.piece(piece)
    renderer.end(TurnStats())
    assert re.match(r"Thinking\.\.\. \d+\.\d+ s\n\nA\n\[", screen.getvalue())
    assert "secret" not in screen.getvalue()


def test_thoughts_are_dimmed_on_a_terminal() -> None:
    screen = io.StringIO()
    renderer = Renderer(Console(file=screen, force_terminal=True, color_system="standard", width=80))
    renderer.begin()
    renderer.piece(Piece("thought", "hm"))
    renderer.piece(Piece("answer", "A"))
    text = screen.getvalue()
    assert "\x1b[2;3mhm\x1b[0m" in text
    assert text.endswith("A")


def test_nothing_of_the_model_steers_the_terminal(renderer: Renderer, screen: io.StringIO) -> None:
    evil = "\x1b]0;x\x07\x9b2J"
    renderer.begin()
    renderer.piece(Piece("thought", evil))
    renderer.piece(Piece("answer", evil))
    renderer.error(evil + "\nsecond")
    renderer.notice(evil)
    renderer.plain(evil)
    assert "\x1b" not in screen.getvalue() and "\x07" not in screen.getvalue() and "\x9b" not in screen.getvalue()


def test_text_is_neither_wrapped_nor_marked_up(renderer: Renderer, screen: io.StringIO) -> None:
    text = "[bold]x[/bold] :smile: " + "日本語👩‍👩‍👧‍👦" * 40 + "\tend"
    renderer.begin()
    renderer.piece(Piece("answer", text))
    assert screen.getvalue() == text


def test_line_of_numbers() -> None:
    assert stats_line(TurnStats()) == "[0 tokens · 0.00 s · cached 0 of 0]"
    line = stats_line(
        TurnStats(tokens=1, prompt_tokens=7, cached_tokens=3, seconds=12.34, first_seconds=12, finish="abort")
    )
    assert line == "[1 token · 12.3 s · first after 12.0 s · cached 3 of 7 · stopped]"


def test_what_no_server_has_told_is_left_out() -> None:
    stats = TurnStats(has_usage=False, seconds=0.3, first_seconds=0.02, finish="abort")
    assert stats_line(stats) == "[0.30 s · first after 0.02 s · stopped]"
    assert stats_line(TurnStats(tokens=2, prompt_tokens=18, cached_tokens=None)) == "[2 tokens · 0.00 s · prompt 18]"
    stats.finish = "length"
    cut = "The answer is cut at max_tokens: raise max_tokens for longer ones (--x N)."
    assert cut_sentence(stats, "--x N", no_thought="--y", has_earlier=True) == cut
    stats.add(TurnStats(tokens=9, prompt_tokens=8, seconds=0.2, finish="stop"))  # the rounds together: not told, too
    assert stats_line(stats) == "[0.50 s · first after 0.02 s]" and stats.context_tokens is None


def test_a_cut_answer_says_why() -> None:
    def said(stats: TurnStats, *, no_thought: str | None = "--y", has_earlier: bool = False) -> str | None:
        return cut_sentence(stats, "--x N", no_thought=no_thought, has_earlier=has_earlier)

    assert said(TurnStats(finish="stop")) is None
    assert said(TurnStats(finish="length", tokens=1)) == (
        "The answer is cut after 1 token: raise max_tokens for longer ones (--x N)."
    )
    thought = TurnStats(finish="length", tokens=5, cut_in_thought=True)
    sentence = "The thought used up max_tokens (5) and there is no answer: raise it (--x N)"
    assert said(thought) == f"{sentence}, or ask without thinking (--y)."
    assert said(thought, no_thought=None) == f"{sentence}."  # they are off, and the model thinks all the same
    thought.add(TurnStats(finish="length", tokens=7))
    assert str(said(thought)).startswith("The thought used up max_tokens (7) and")  # each round may have so many
    thought.has_usage = False
    assert str(said(thought)).startswith("The thought used up max_tokens and")
    thought.context_full, thought.more_context = True, "--yarn"
    assert said(thought) == (
        "The thought used up the context and there is no answer: --yarn makes room, --y asks without thinking."
    )
    for more, has_earlier, ways in (
        ("--yarn", True, "/reset begins a new conversation, --yarn makes room."),
        ("a larger --kv-gb", False, "a larger --kv-gb makes room."),
        (None, True, "/reset begins a new conversation."),
        (None, False, "ask for something shorter."),
    ):
        full = TurnStats(finish="length", context_full=True, more_context=more)
        sentence = f"The context is full and the answer is cut: {ways}"
        assert said(full, has_earlier=has_earlier) == sentence


def test_the_reason_stands_before_the_numbers(renderer: Renderer, screen: io.StringIO) -> None:
    renderer.begin()
    renderer.piece(Piece("answer", "A"))
    renderer.end(TurnStats(finish="length", tokens=5))
    assert screen.getvalue().splitlines()[1].startswith("The answer is cut after 5 tokens")
    assert "/set max_tokens N" in screen.getvalue()
    for think, way in ((True, ", or ask without thinking (/think off)."), (False, "(/set max_tokens N).")):
        renderer.end(TurnStats(finish="length", tokens=5, cut_in_thought=True), think=think)
        assert way in " ".join(screen.getvalue().split("used up")[-1].split())


def test_markdown_is_formatted_and_ends_with_its_answer() -> None:
    screen = io.StringIO()
    renderer = Renderer(
        Console(file=screen, force_terminal=True, color_system="standard", width=80, legacy_windows=False)
    )
    renderer.begin()
    for text in ("a *", "*b*", "* *c"):
        renderer.piece(Piece("answer", text))
    renderer.verbose = False
    renderer.end(TurnStats(finish="abort"))
    assert screen.getvalue() == "a \x1b[1mb\x1b[0m *c\n\x1b[2m[stopped]\n\x1b[0m"


def test_a_call_and_what_came_of_it(renderer: Renderer, screen: io.StringIO) -> None:
    renderer.begin()
    renderer.piece(Piece("answer", "Let me see"))
    renderer.call(Call("c", "add\x1b", '{"a": 1, "b": "x\\ny\x1b日"}'.replace("\x1b", "")))
    renderer.tool_result('{"x":\n1}', "one\ntwo\n")
    renderer.call(Call("c", "f", "[1"))
    renderer.tool_result("y" * 1000)
    renderer.piece(Piece("thought", "hm"))
    renderer.piece(Piece("answer", "Done"))
    assert screen.getvalue() == (
        'Let me see\nadd\u241b(a=1, b="x\\ny日")\n│ one\n│ two\n→ {"x":\n→ 1}\nf([1)\n'
        f"→ {'y' * 600}... (1000 characters)\nThinking:\nhm\n\nDone"
    )


def test_sequences_of_ours_are_for_terminals_alone(renderer: Renderer, screen: io.StringIO) -> None:
    renderer.control("\x1b]52;c;x\x07")
    assert screen.getvalue() == ""
    terminal = io.StringIO()
    Renderer(Console(file=terminal, force_terminal=True, _environ={"TERM": "xterm"})).control("\x1b]52;c;x\x07")
    assert terminal.getvalue() == "\x1b]52;c;x\x07"


def test_a_call_hides_nothing(renderer: Renderer, screen: io.StringIO) -> None:
    renderer.call(Call("c", "run", '{"command": "ls \u2067\u200b\U000e0001 日\u0301"}'))
    assert screen.getvalue() == 'run(command="ls \\u2067\\u200b\\U000e0001 日\u0301")\n'


def test_a_call_of_any_depth_is_shown(renderer: Renderer, screen: io.StringIO) -> None:
    for depth in range(900, 1000):
        renderer.call(Call("c", "f", '{"a": ' + "[" * depth + "]" * depth + "}"))
    assert screen.getvalue().count("\n") == 100


def test_lines_of_our_own_break_between_words_on_a_terminal() -> None:
    sentence = "qwen3-8b 1.0.0: toy on the CPU, 40,960 tokens of context. /help lists the commands."
    call = Call("c", "weather_of_tomorrow", '{"city": "Villingen-Schwenningen"}')
    for columns in (20, 40, 70, 80):
        screen = io.StringIO()
        renderer = Renderer(Console(file=screen, force_terminal=True, color_system=None, width=columns))
        for write in (renderer.notice, renderer.error, renderer.plain, renderer.tool_result):
            write(sentence)
        renderer.call(call)
        lines, shown = screen.getvalue().split("\n"), 'weather_of_tomorrow(city="Villingen-Schwenningen")'
        words = f"{sentence} {sentence} {sentence} → {sentence} {shown}"
        assert " ".join(lines).split() == words.split()
        assert all(len(line) < columns or " " not in line for line in lines)


def test_lines_of_our_own_stay_whole_elsewhere(renderer: Renderer, screen: io.StringIO) -> None:
    sentence = "many words " * 30
    renderer.notice(sentence)
    assert screen.getvalue() == sentence + "\n"
