"""The hosts of native/examples in Rust, Go and Node: built as their Makefiles say, beside the library, and held to the
ids that the Python binding gets. A host whose toolchain is missing is skipped, and the reason says what to install.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from abi_support import HEADER, ROOT

from qwen3app.abi.engine import Engine
from qwen3app.abi.header import declarations
from qwen3app.abi.types import EngineRequest, EventKind

EXAMPLES = ROOT / "native" / "examples"
PATIENCE = 300  # seconds, for what takes a moment on an idle machine

Ids = Callable[..., list[int]]


@pytest.fixture(scope="module")
def ids(library: Path, tiny_model: Path) -> Iterator[Ids]:
    """What the Python binding gets for a prompt, in a process that has the same library."""
    patch = pytest.MonkeyPatch()
    patch.setenv("QWEN3_LIBRARY", str(library))
    engine = Engine.open(tiny_model)

    def generate(prompt: list[int], max_tokens: int, seed: int | None = None) -> list[int]:
        temperature = 0.0 if seed is None else 1.0
        engine.submit(EngineRequest(prompt=prompt, max_tokens=max_tokens, temperature=temperature, seed=seed or 0))
        tokens: list[int] = []
        while True:
            for event in engine.poll(1000).events:
                if event.kind == EventKind.FINISHED:
                    return tokens
                tokens.append(event.token)

    yield generate
    engine.close()
    patch.undo()


@pytest.fixture(scope="module")
def patient_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights with a context that a request without end takes minutes to fill, on the fastest machine too."""
    out = tmp_path_factory.mktemp("hosts") / "patient"
    shutil.copytree(tiny_model, out)
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    (out / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 200_000}), encoding="utf-8")
    return out


def need(command: str, package: str, least: tuple[int, int] = (0, 0)) -> None:
    """Skips where the toolchain is missing, does not run, or is older than the example's README promises."""
    program, *arguments = command.split()
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed (Debian: apt install {package})")
    said = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False).stdout
    version = re.search(r"(\d+)\.(\d+)", said)
    if version is None or (int(version.group(1)), int(version.group(2))) < least:
        pytest.skip(f"`{command}` says {said.strip()!r}, and {least[0]}.{least[1]} is needed")


def shipped(name: str, library: Path, folder: Path, product: str) -> Path:
    """Builds an example to find its library in its own folder, and moves both somewhere else. `folder` may have a space
    in its name."""
    prefix = folder / "prefix"
    prefix.mkdir()
    shutil.copy(library, prefix / "libqwen3.so")
    shutil.copy(HEADER, prefix)
    source = folder / name
    shutil.copytree(EXAMPLES / name, source, ignore=shutil.ignore_patterns("stream", "serve", "node_modules"))
    command = ["make", "-C", str(source), "QWEN3=../prefix", "RPATH=$$ORIGIN"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    product_folder = folder / "product"
    product_folder.mkdir()
    shutil.move(source / product, product_folder)
    shutil.move(prefix / "libqwen3.so", product_folder)
    shutil.rmtree(prefix)
    return product_folder / product


@pytest.fixture(scope="module")
def rust_stream(library: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    need("rustc --version", "rustc", (1, 63))
    return [str(shipped("rust", library, tmp_path_factory.mktemp("in rust"), "stream"))]


@pytest.fixture(scope="module")
def node_stream(library: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    need("node --version", "nodejs", (18, 3))
    packages = EXAMPLES / "node" / "node_modules"
    if not (packages / "koffi").is_dir():
        pytest.skip("koffi is not installed (npm install --prefix native/examples/node)")
    folder = tmp_path_factory.mktemp("node") / "product"
    shutil.copytree(EXAMPLES / "node", folder, ignore=shutil.ignore_patterns("node_modules"))
    (folder / "node_modules").symlink_to(packages)
    shutil.copy(library, folder / "libqwen3.so")
    return ["node", str(folder / "stream.mjs")]


@pytest.fixture(scope="module", params=["rust_stream", "node_stream"])
def stream(request: pytest.FixtureRequest) -> list[str]:
    """The command of a host that streams prompts of its command line."""
    command: list[str] = request.getfixturevalue(request.param)
    return command


def run(stream: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin"}  # no QWEN3_LIBRARY: the library is the one beside the program
    program = [shutil.which(stream[0]) or stream[0], *stream[1:]]
    return subprocess.run(
        [*program, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment
    )


def parse(result: subprocess.CompletedProcess[str]) -> tuple[dict[int, list[int]], dict[int, tuple[str, int]]]:
    """Tokens by prompt, and (reason, count) by prompt."""
    assert result.returncode == 0, result.stderr
    tokens: dict[int, list[int]] = defaultdict(list)
    ends: dict[int, tuple[str, int]] = {}
    for line in result.stdout.splitlines():
        kind, which, *rest = line.split()
        assert int(which) not in ends, "something came after the end"
        if kind == "token":
            tokens[int(which)].append(int(rest[0]))
        else:
            ends[int(which)] = (rest[0], int(rest[1]))
    return tokens, ends


@pytest.mark.parametrize("seed", [None, 7])
def test_two_requests_at_once_get_the_ids_of_the_python_binding(
    stream: list[str], tiny_model: Path, ids: Ids, seed: int | None
) -> None:
    options = ["--max-tokens", "12"] + ([] if seed is None else ["--seed", str(seed)])
    tokens, ends = parse(run(stream, *options, str(tiny_model), "9 10 11", "20 21 22 23"))
    assert tokens == {0: ids([9, 10, 11], 12, seed), 1: ids([20, 21, 22, 23], 12, seed)}
    assert {which: count for which, (_, count) in ends.items()} == {0: len(tokens[0]), 1: len(tokens[1])}
    assert {reason for reason, _ in ends.values()} <= {"length", "stop"}


def test_a_cancelled_request_ends_as_cancelled_and_the_other_goes_on(
    stream: list[str], patient_model: Path, ids: Ids
) -> None:
    tokens, ends = parse(run(stream, "--take", "4", "--max-tokens", "20", str(patient_model), "9 10 11", "5 6"))
    assert tokens[0] == ids([9, 10, 11], 20)
    assert ends[0][0] in ("length", "stop")
    assert ends[1][0] == "cancelled"
    assert len(tokens[1]) >= 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "usage: "),
        (["/no/such/model", "1"], "the model directory /no/such/model does not exist"),
        (["{model}", "1 x"], '"1 x" is not a list of token ids'),
        (["{model}", "9 10", "99999999"], "token 0 is 99999999; the model's ids are 0 to "),
        (["--max-tokens", "999999999", "{model}", "9 10"], "999999999 more are wanted, but the context holds"),
    ],
)
def test_mistakes_get_one_sentence(stream: list[str], tiny_model: Path, arguments: list[str], sentence: str) -> None:
    result = run(stream, *(argument.replace("{model}", str(tiny_model)) for argument in arguments))
    assert result.returncode == 1
    assert sentence in result.stderr
    assert result.stderr.startswith("stream: ")
    assert len(result.stderr.splitlines()) == 1


def test_node_without_the_library_says_where_it_looked(node_stream: list[str], tmp_path: Path) -> None:
    folder = Path(node_stream[1]).parent
    shutil.copytree(folder, tmp_path / "alone", symlinks=True, ignore=shutil.ignore_patterns("libqwen3.so"))
    result = run(["node", str(tmp_path / "alone" / "stream.mjs")], "/a/model", "1 2")
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(f"stream: {tmp_path}/alone/libqwen3.so cannot be loaded (")
    assert result.stderr.endswith("put libqwen3.so beside qwen3.mjs, or its path into QWEN3_LIBRARY\n")


def test_a_reader_that_leaves_ends_the_program_without_a_trace(stream: list[str], patient_model: Path) -> None:
    with subprocess.Popen(
        [*stream, "--take", "1000000000", str(patient_model), "9 10 11"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith(b"token 0 ")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE) == 0


# ------------------------------------------------------------------------------------------------------------- layout

RUST_TYPES = {
    "i32": "int32_t",
    "u32": "uint32_t",
    "i64": "int64_t",
    "u64": "uint64_t",
    "usize": "size_t",
    "f32": "float",
}
RUST_TYPES |= {"*const i32": "int32_t *", "*const c_char": "char *", "*const c_void": "void *"}


def fields_in_rust(struct: str) -> list[tuple[str, str]]:
    text = (EXAMPLES / "rust" / "qwen3.rs").read_text(encoding="utf-8")
    body = re.search(rf"pub struct {struct} \{{(.*?)\}}", text, flags=re.DOTALL)
    assert body is not None
    return [(name, RUST_TYPES[kind]) for name, kind in re.findall(r"pub (\w+): ([^,]+),", body.group(1))]


def fields_in_node(struct: str) -> list[tuple[str, str]]:
    text = (EXAMPLES / "node" / "qwen3.mjs").read_text(encoding="utf-8")
    body = re.search(rf"koffi.struct\('qwen3_{struct.lower()}', \{{(.*?)\}}", text, flags=re.DOTALL)
    assert body is not None
    return [(name, kind.removeprefix("const ")) for name, kind in re.findall(r"(\w+): '([^']+)'", body.group(1))]


@pytest.mark.parametrize("struct", ["Request", "Event"])
@pytest.mark.parametrize("read", [fields_in_rust, fields_in_node])
def test_structs_written_by_hand_are_the_header_s(read: Callable[[str], list[tuple[str, str]]], struct: str) -> None:
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(declarations(HEADER.read_text(encoding="utf-8")))
    declared = [(name, field.type.cname) for name, field in ffi.typeof(f"qwen3_{struct.lower()}").fields]
    # A pointer to a struct that the host does not use may be one to void.
    expected = [(name, "void *" if kind.startswith("qwen3_") else kind) for name, kind in declared]
    assert read(struct) == expected


# ----------------------------------------------------------------------------------------------------------------- Go


@pytest.fixture(scope="module")
def go_serve(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("go version", "golang-go", (1, 19))
    need("gcc --version", "gcc")
    return shipped("go", library, tmp_path_factory.mktemp("in go"), "serve")


@pytest.fixture
def server(go_serve: Path, patient_model: Path) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    command = [str(go_serve), "-addr", "127.0.0.1:0", str(patient_model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:"), line
        with httpx.Client(base_url=line.removeprefix("listening on ").strip(), timeout=PATIENCE) as client:
            yield process, client
        process.kill()


def request(prompt: list[int], seed: int | None = None, **more: object) -> dict[str, object]:
    return {"prompt": prompt, "temperature": 0 if seed is None else 1, "seed": seed or 0} | more


def tokens_of(lines: list[str]) -> list[int]:
    """The tokens of a whole answer."""
    events = [json.loads(line) for line in lines]
    assert events[-1]["finish"] in ("length", "stop")
    assert events[-1]["tokens"] == len(events) - 1
    return [event["token"] for event in events[:-1]]


ENDLESS = request([5, 6], max_tokens=-1, ignore_eos=True)


def test_go_serves_the_ids_of_the_python_binding_while_another_request_runs(
    server: tuple[subprocess.Popen[str], httpx.Client], ids: Ids
) -> None:
    process, client = server
    with client.stream("POST", "/generate", json=ENDLESS) as endless:
        lines = endless.iter_lines()
        assert json.loads(next(lines))["token"] >= 0
        for seed in (None, 7):
            answers: dict[int, list[int]] = {}

            def ask(first: int, seed: int | None = seed, answers: dict[int, list[int]] = answers) -> None:
                body = request([first, 10, 11], seed, max_tokens=12)
                answers[first] = tokens_of(client.post("/generate", json=body).text.splitlines())

            threads = [threading.Thread(target=ask, args=(first,)) for first in (9, 20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert answers == {first: ids([first, 10, 11], 12, seed) for first in (9, 20)}
        assert "finish" not in json.loads(next(lines))
    assert process.poll() is None


def await_stats(client: httpx.Client, wanted: dict[str, int]) -> None:
    """The engine's figures may be a step old, and a client that left is noticed in a moment."""
    deadline = time.monotonic() + PATIENCE
    while (stats := client.get("/stats").json()) != wanted:
        assert time.monotonic() < deadline, stats
        time.sleep(0.05)


def test_go_cancels_what_its_client_leaves(server: tuple[subprocess.Popen[str], httpx.Client]) -> None:
    _, client = server
    with client.stream("POST", "/generate", json=ENDLESS) as endless:
        lines = endless.iter_lines()  # kept: a reader that is thrown away closes the connection
        assert json.loads(next(lines))["token"] >= 0
        await_stats(client, {"running": 1, "cancelled": 0})
    await_stats(client, {"running": 0, "cancelled": 1})


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (request([99999999]), "token 0 is 99999999; the model's ids are 0 to "),
        (request([]), "the prompt is empty"),
        (request([9], max_tokens=999999999), "999999999 more are wanted, but the context holds"),
        ({"promp": [9]}, 'unknown field "promp"'),
        ({"prompt": [3000000000]}, "cannot unmarshal number 3000000000"),
    ],
)
def test_go_passes_the_sentence_of_a_refusal_on(
    server: tuple[subprocess.Popen[str], httpx.Client], body: dict[str, object], sentence: str
) -> None:
    reply = server[1].post("/generate", json=body)
    assert reply.status_code == 400
    assert sentence in reply.json()["error"]


def test_go_ends_with_0_on_sigterm_and_tells_those_it_cuts_off(
    server: tuple[subprocess.Popen[str], httpx.Client],
) -> None:
    process, client = server
    with client.stream("POST", "/generate", json=ENDLESS) as endless:
        lines = endless.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        *_, last = lines
    assert json.loads(last)["finish"] == "cancelled"
    assert process.wait(PATIENCE) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""


def test_go_says_in_a_sentence_what_keeps_it_from_starting(go_serve: Path) -> None:
    unformatted = subprocess.run(["gofmt", "-l", EXAMPLES / "go"], capture_output=True, text=True, check=True).stdout
    assert unformatted == ""
    result = subprocess.run([go_serve, "/no/model"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (result.returncode, result.stderr) == (1, "serve: the model directory /no/model does not exist\n")
    assert subprocess.run([go_serve], capture_output=True, timeout=PATIENCE, check=False).returncode == 2


@pytest.mark.parametrize("language", ["c", "rust", "go"])
def test_without_the_library_its_makefile_says_what_to_do(language: str, tmp_path: Path) -> None:
    command = ["make", "-C", str(ROOT / "native" / "examples" / language), f"QWEN3={tmp_path}", "-B"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert f"{tmp_path}/libqwen3.so is missing: run 'make dist' at the root of the repository first" in result.stderr
