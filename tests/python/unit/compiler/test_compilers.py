"""Processes that compile: whatever happens to one costs the one request that asked it, and none outlives its server."""

from __future__ import annotations

import logging
import os
import pickle
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import odd_compiler
import psutil
import pytest
from patience import PATIENCE, wait_until
from served import ROOT, gone
from serving import load_text

from qwen3app.abi.matchers import TokenBytes
from qwen3app.compiler import COMMAND
from qwen3app.compiler.messages import Reply, read_spec, write_spec
from qwen3app.compiler.process import Asking, Compilers
from qwen3app.errors import EngineError, GenerationError, RequestError, Status
from qwen3app.text.grammars import ConstraintSpec, tool_call_spec

QUICK = 'start: "a"'


@pytest.fixture(scope="session")
def vocabulary(tiny_model_dir: Path) -> tuple[TokenBytes, dict[str, int]]:
    tokenizer = load_text(tiny_model_dir).tokenizer
    pieces = [tokenizer.token_bytes(token) for token in range(tokenizer.n_ids)]
    tokens = TokenBytes.of(pieces, tokenizer.added_tokens, tokenizer.eos_ids)
    return tokens, dict(tokenizer.control_tokens)


Make = Callable[..., Compilers]


@pytest.fixture
def make(vocabulary: tuple[TokenBytes, dict[str, int]]) -> Iterator[Make]:
    """make(seconds=..., ...): compilers that are closed behind the test, odd ones unless it says otherwise."""
    made: list[Compilers] = []

    def start(**options: object) -> Compilers:
        options = {"seconds": PATIENCE, "command": odd_compiler.COMMAND, **options}
        made.append(Compilers(lambda: vocabulary, **options))  # type: ignore[arg-type]
        return made[-1]

    yield start
    for compilers in made:
        compilers.close()


def ask(compilers: Compilers, kind: str, value: object) -> Reply:
    return compilers.ask(write_spec(ConstraintSpec(kind, value, "p")), "p", Asking())  # type: ignore[arg-type]


def refusal(compilers: Compilers, value: str) -> str:
    with pytest.raises(RequestError) as caught:
        ask(compilers, "regex", value)
    assert caught.value.param == "p" and caught.value.code == "constraint_too_complex"
    return str(caught.value)


def pids(compilers: Compilers) -> list[int]:
    return sorted(process._process.pid for process in compilers._all)


def is_well(compilers: Compilers) -> bool:
    return ask(compilers, "grammar", QUICK) == Reply(grammar=QUICK)


def test_one_process_answers_all_and_starts_with_the_first(make: Make) -> None:
    compilers = make(command=())
    assert pids(compilers) == []
    assert is_well(compilers)
    (pid,) = pids(compilers)
    fault = ask(compilers, "json", {"items": {"type": "objekt"}})
    assert fault.grammar is None and fault.param == "p.items" and "objekt" in fault.fault
    assert is_well(compilers) and pids(compilers) == [pid]
    compilers.close()
    assert not psutil.pid_exists(pid)


SPECS = [
    ConstraintSpec(
        "json", {"const": {"a": [1, -0.0, 2**53 - 1, 0.1, 1e300, None, True, "é😀\0"]}}, "p", white_space=False
    ),
    ConstraintSpec("json", {"properties": {"z": {}, "a": {}, "ключ": {}}}, "p", white_space_pattern=" ?"),
    ConstraintSpec("json", '{"type": "object"}', "p"),
    ConstraintSpec("json", {"enum": [10**30, -(2**63), 2**64]}, "p"),
    ConstraintSpec("choice", ["a", "b"], "p"),
    ConstraintSpec("regex", "[ab]+", "p"),
    tool_call_spec(
        [("f", {"type": "object"}), ("g", None)],
        parallel=False,
        free_text=True,
        instead=ConstraintSpec("choice", ["yes"], "q"),
        params=["x", "y"],
    ),
]


@pytest.mark.parametrize("spec", SPECS)
def test_a_constraint_arrives_as_it_was_sent(spec: ConstraintSpec) -> None:
    assert repr(read_spec(write_spec(spec))) == repr(spec)  # 1 and 1.0 are equal, but not the same


@pytest.mark.parametrize("word", ["hangs", "hangs-with-the-lock"])
def test_what_never_ends_is_ended(make: Make, tmp_path: Path, word: str) -> None:
    compilers = make()
    assert is_well(compilers)
    (pid,) = pids(compilers)
    n_threads = threading.active_count()
    compilers._seconds = 0.2
    assert refusal(compilers, f"{word} {tmp_path}/begun") == "p takes longer than 0.2 s to compile; make it simpler."
    assert not psutil.pid_exists(pid) and pids(compilers) == [] and threading.active_count() <= n_threads
    compilers._seconds = PATIENCE
    assert is_well(compilers) and pids(compilers) != [pid]


def test_a_stopped_process_takes_too_long_too(make: Make) -> None:
    compilers = make()
    assert is_well(compilers)
    (pid,) = pids(compilers)
    os.kill(pid, signal.SIGSTOP)
    compilers._seconds = 0.2
    with pytest.raises(RequestError, match="takes longer than"):  # also what does not fit the pipe
        ask(compilers, "choice", ["x" * 200_000])
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("crashes", "SIGSEGV"),
        ("ends", "SIGKILL"),
        ("exits", "exit code 3"),
    ],
)
def test_a_crash_costs_its_own_request_alone(make: Make, tmp_path: Path, value: str, reason: str) -> None:
    compilers = make()
    replies: list[Reply] = []
    other = threading.Thread(target=lambda: replies.append(ask(compilers, "regex", f"waits {tmp_path}/begun")))
    other.start()
    wait_until((tmp_path / "begun").exists)
    (its,) = pids(compilers)
    sentence = f"p could not be compiled: it ended the compiler ({reason}); make it simpler."
    assert refusal(compilers, value) == sentence
    assert pids(compilers) == [its]
    (tmp_path / "begun").unlink()
    other.join(PATIENCE)
    assert [bool(reply.grammar) for reply in replies] == [True]
    assert is_well(compilers) and pids(compilers) == [its]


@pytest.mark.parametrize("rubbish", [b"??", b"\x81\xa1x" + b"\x91" * 3000 + b"\xc0"])
def test_rubbish_is_no_reply(make: Make, rubbish: bytes) -> None:
    compilers = make()
    assert "could not be compiled" in refusal(compilers, f"raves {rubbish.hex()}")
    assert is_well(compilers) and len(pids(compilers)) == 1


def test_the_log_has_the_last_words_of_one_that_ended(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    compilers = make()
    refusal(compilers, "panics at step 7")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "exit code 1" in record.message and "at step 7" in record.message


def test_memory_has_a_limit(make: Make) -> None:
    compilers = make(memory_bytes=256 << 20)
    assert ask(compilers, "regex", f"takes {64 << 20}").grammar
    (pid,) = pids(compilers)
    assert refusal(compilers, f"takes {1 << 30}") == "p takes more than 0.25 GiB of memory to compile; make it simpler."
    assert not psutil.pid_exists(pid)
    assert is_well(compilers)


def test_llguidance_out_of_memory_is_told_as_such(make: Make) -> None:
    compilers = make(command=(), memory_bytes=1 << 20)
    with pytest.raises(RequestError, match=r"more than .* GiB of memory"):  # 40 MB
        ask(compilers, "json", {"type": "integer", "multipleOf": 65521})
    assert is_well(compilers)


def test_what_is_printed_is_no_reply(make: Make) -> None:
    compilers = make()
    for _ in range(2):
        assert ask(compilers, "regex", "noisy").grammar
    assert len(pids(compilers)) == 1


def test_a_bug_is_no_fault_of_the_request(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    compilers = make()
    with pytest.raises(GenerationError, match="a fault of the server"):
        ask(compilers, "regex", "errs")
    assert "KeyError: 'a bug'" in caplog.text
    assert is_well(compilers) and len(pids(compilers)) == 1


def test_one_that_died_while_it_idled_is_no_requests_fault(make: Make) -> None:
    compilers = make()
    assert is_well(compilers)
    (pid,) = pids(compilers)
    process = psutil.Process(pid)
    process.send_signal(signal.SIGSEGV)
    wait_until(lambda: gone(process))
    assert is_well(compilers) and pids(compilers) != [pid] and len(pids(compilers)) == 1


def test_signals_of_a_terminal_or_a_supervisor_do_not_end_it(make: Make) -> None:
    compilers = make()
    assert is_well(compilers)
    (pid,) = pids(compilers)
    assert os.getsid(pid) == pid, "Ctrl-C is for the server's group"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
        assert is_well(compilers)
    assert pids(compilers) == [pid]


def test_a_question_that_is_given_up_costs_its_own_process_alone(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compilers = make()
    statuses: list[Status] = []

    def put(value: str, asking: Asking) -> None:
        with pytest.raises(EngineError) as caught:
            compilers.ask(write_spec(ConstraintSpec("regex", value, "p")), "p", asking)
        statuses.append(caught.value.status)

    asking = Asking()
    thread = threading.Thread(target=put, args=(f"hangs {tmp_path}/begun", asking))
    thread.start()
    wait_until((tmp_path / "begun").exists)
    assert is_well(compilers)
    (its, other) = sorted(compilers._all, key=compilers._idle.__contains__)
    for _ in range(2):
        asking.give_up()
    thread.join(PATIENCE)
    assert statuses == [Status.CANCELLED] and compilers._all == {other} and not its.alive()
    put("ab", asking)  # that it is given up was known before it began
    assert statuses == [Status.CANCELLED] * 2 and is_well(compilers) and compilers._all == {other}
    assert not caplog.records, "it is nobody's fault"


def test_a_question_that_is_given_up_behind_its_answer_ends_no_later_one(make: Make) -> None:
    compilers = make()
    asking = Asking()
    spec = write_spec(ConstraintSpec("grammar", QUICK, "p"))
    assert compilers.ask(spec, "p", asking) == Reply(grammar=QUICK)
    (process,) = compilers._all
    asking.give_up()
    assert process.alive() and is_well(compilers) and compilers._all == {process}


def test_an_answer_that_comes_while_it_is_given_up_keeps_no_killed_process(make: Make) -> None:
    compilers = make()
    asking = Asking()
    answered = compilers._ask

    def answer_then_give_up(*given: object) -> Reply:
        reply = answered(*given)  # type: ignore[arg-type]
        if asking._process is not None:
            asking.give_up()
        return reply

    compilers._ask = answer_then_give_up  # type: ignore[method-assign]
    with pytest.raises(EngineError):
        compilers.ask(write_spec(ConstraintSpec("grammar", QUICK, "p")), "p", asking)
    assert not compilers._all and not compilers._idle and is_well(compilers)


def test_close_ends_what_is_being_compiled(make: Make, tmp_path: Path) -> None:
    compilers = make()
    errors: list[Exception] = []

    def hang(name: str) -> None:
        try:
            ask(compilers, "regex", f"hangs {tmp_path}/{name}")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=hang, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    wait_until(lambda: (tmp_path / "a").exists() and (tmp_path / "b").exists())
    running = pids(compilers)
    assert len(running) == 2
    compilers.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert [type(error) for error in errors] == [EngineError] * 2
    assert not any(map(psutil.pid_exists, running)) and pids(compilers) == []
    with pytest.raises(EngineError) as caught:
        ask(compilers, "grammar", QUICK)
    assert caught.value.status == Status.CLOSED


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["/no/such/program"], "No such file"),
        ([sys.executable, "-c", "import sys; sys.exit('no way')"], "no way"),
        ([sys.executable, "-c", "import os; os.abort()"], "SIGABRT"),
    ],
)
def test_one_that_cannot_start_is_no_requests_fault(
    make: Make, caplog: pytest.LogCaptureFixture, command: list[str], why: str
) -> None:
    compilers = make(command=command)
    with pytest.raises(GenerationError, match="cannot be started"), caplog.at_level(logging.ERROR):
        ask(compilers, "grammar", QUICK)
    assert why in caplog.text and pids(compilers) == []


def test_it_finds_this_program_wherever_it_is_started(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "qwen3app.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    assert is_well(make(command=()))


INSTALLED = """
import pickle, sys
from pathlib import Path
sys.path.append(sys.argv[1])
from qwen3app.compiler.messages import write_spec
from qwen3app.compiler.process import Asking, Compilers
from qwen3app.text.grammars import ConstraintSpec
vocabulary = pickle.loads(Path(sys.argv[2]).read_bytes())
compilers = Compilers(lambda: vocabulary, seconds=1e6)
print(compilers.ask(write_spec(ConstraintSpec("choice", ["a"], "p")), "p", Asking()).grammar is not None)
compilers.close()
"""


def test_what_is_installed_beside_this_program_hides_nothing_of_pythons(
    tmp_path: Path, vocabulary: tuple[TokenBytes, dict[str, int]]
) -> None:
    """Old packages of names that Python has itself by now lie behind Python's own in the server's path."""
    (tmp_path / "vocabulary").write_bytes(pickle.dumps(vocabulary))
    site = tmp_path / "site"
    site.mkdir()
    (site / "qwen3app").symlink_to(ROOT / "qwen3app")
    (site / "dataclasses.py").write_text("raise SystemExit('the wrong one')")
    command = [sys.executable, "-P", "-c", INSTALLED, str(site), str(tmp_path / "vocabulary")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


PARENT = """
import pickle, sys
from pathlib import Path
sys.path[:0] = sys.argv[1].split(":")
import odd_compiler
from qwen3app.compiler import COMMAND
from qwen3app.compiler.messages import write_spec
from qwen3app.compiler.process import Asking, Compilers
from qwen3app.text.grammars import ConstraintSpec
vocabulary = pickle.loads(Path(sys.argv[2]).read_bytes())
compilers = Compilers(lambda: vocabulary, seconds=1e6, command=odd_compiler.COMMAND)
for value in ("a", *sys.argv[3:]):
    compilers.ask(write_spec(ConstraintSpec("regex", value, "p")), "p", Asking())
    print(*(process._process.pid for process in compilers._all), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("busy", [False, True])
def test_it_ends_with_its_server_however_that_ends(
    tmp_path: Path, vocabulary: tuple[TokenBytes, dict[str, int]], busy: bool
) -> None:
    (tmp_path / "vocabulary").write_bytes(pickle.dumps(vocabulary))
    tests = Path(odd_compiler.__file__).parent
    arguments = [
        f"{tests.parents[1]}:{tests}",
        str(tmp_path / "vocabulary"),
        *([f"hangs {tmp_path}/begun"] if busy else []),
    ]
    command = [sys.executable, "-c", PARENT, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        if busy:
            wait_until((tmp_path / "begun").exists)
        assert not gone(child)
        parent.kill()
        parent.wait(PATIENCE)
        wait_until(lambda: gone(child), "the process lives on")


def test_a_person_who_starts_it_is_told_so() -> None:
    def run(stdin: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "qwen3app", COMMAND]
        return subprocess.run(
            command, cwd=ROOT, stdin=stdin, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    terminal, its_end = pty.openpty()
    done = run(its_end)
    os.close(terminal)
    os.close(its_end)
    assert done.returncode == 2 and "which starts it when it needs it" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    done = run(subprocess.DEVNULL)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
