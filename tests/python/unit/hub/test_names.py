"""Names, where they lead, and that a path never leads to the network."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from fake_hub import COMMIT, PROGRAM, FakeHub, Run
from patience import PATIENCE
from served import RealServer, wait_for

from qwen3app.hub.names import HubName, find_cached, model_name, official_name, parse_name
from qwen3app.hub.progress import Bars, Lines


def test_what_is_a_name() -> None:
    assert parse_name("Qwen/Qwen3-8B") == HubName("Qwen/Qwen3-8B", "main")
    assert parse_name("a/b.c_d@v1.0") == HubName("a/b.c_d", "v1.0")
    assert parse_name("a/b@refs/pr/1") == HubName("a/b", "refs/pr/1")
    assert str(HubName("a/b")) == "a/b" and str(HubName("a/b", "v1")) == "a/b@v1"
    wrong = (
        "a",
        "a/b/c",
        "./a/b",
        "../a",
        "a/..",
        "/a/b",
        "a/b/",
        "~/a",
        "a b/c",
        "a/b@",
        "a--b/c",
        "-a/b",
        "a/b-",
        "",
    )
    for text in (*wrong, "a/b@../x", "a/" + "b" * 100):
        assert parse_name(text) is None, text


def test_addresses_are_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/hub/")
    for text, name in (
        ("https://huggingface.co/Qwen/Qwen3-8B", HubName("Qwen/Qwen3-8B")),
        ("huggingface.co/Qwen/Qwen3-8B/", HubName("Qwen/Qwen3-8B")),
        ("http://hf.co/Qwen/Qwen3-8B@v1", HubName("Qwen/Qwen3-8B", "v1")),
        ("https://huggingface.co/Qwen/Qwen3-8B/tree/main?x=1#top", HubName("Qwen/Qwen3-8B")),
        ("https://huggingface.co/a/b/blob/refs%2Fpr%2F1/config.json", HubName("a/b", "refs/pr/1")),
        ("https://mirror.example/hub/a/b", HubName("a/b")),
        ("https://huggingface.co/datasets/a/b", None),
        ("https://huggingface.co/a/b/discussions", None),
        ("huggingface.co/Qwen", None),
        ("https://huggingface.co/", None),
        ("https://example.org/a/b", None),
        ("huggingface.company/a", HubName("huggingface.company/a")),
    ):
        assert parse_name(text) == name, text


def test_where_the_cache_has_it(tmp_path: Path) -> None:
    name = HubName("Qwen/x")
    folder = tmp_path / "models--Qwen--x"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    for file in ("config.json", "tokenizer.json", "a.safetensors"):
        (snapshot / file).write_text("{}")
    assert find_cached(name, tmp_path) is None  # no reference says which commit is main
    (folder / "refs" / "main").write_text(COMMIT + "\n")
    assert find_cached(name, tmp_path) is None  # no weights
    index = snapshot / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"t": "a.safetensors", "u": "b.safetensors"}}))
    assert find_cached(name, tmp_path) is None  # one shard of two
    (snapshot / "b.safetensors").symlink_to("../../blobs/none")
    assert find_cached(name, tmp_path) is None  # a link to nothing
    (snapshot / "b.safetensors").unlink()
    (snapshot / "b.safetensors").touch()
    assert find_cached(name, tmp_path) == snapshot
    assert find_cached(HubName("Qwen/x", COMMIT), tmp_path) == snapshot
    assert find_cached(HubName("Qwen/x", "v2"), tmp_path) is None
    index.write_text("broken")
    assert find_cached(name, tmp_path) is None


def test_what_a_directory_is_called(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--Qwen--Qwen3-8B" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    assert model_name(snapshot) == "Qwen/Qwen3-8B"
    assert model_name(tmp_path / "qwen3-8b") == "qwen3-8b"
    assert model_name(tmp_path / os.fsdecode(b"caf\xe9")) == "caf?"  # a name goes into JSON
    (tmp_path / "link").symlink_to(snapshot)
    assert model_name(tmp_path / "link") == "Qwen/Qwen3-8B"


def test_a_name_is_pulled_once_and_then_needs_no_network(run: Run, hub: FakeHub) -> None:
    flags = ("--once", "Hello", "--max-tokens", "3", "--temp", "0", "--threads", "1", "--kv-gb", "0.05")
    first = run("chat", "--model", "Qwen/tiny", *flags)
    assert first.returncode == 0 and "Qwen/tiny is complete in" in first.stderr
    hub.close()
    again = run("chat", "--model", "Qwen/tiny", *flags)
    assert (again.returncode, again.stdout) == (0, first.stdout) and "Hub" not in again.stderr
    assert run("chat", *flags, QWEN3_MODEL="Qwen/tiny").stdout == first.stdout
    info = json.loads(run("info", "--json", "--model", "Qwen/tiny").stdout)
    assert info["model"]["directory"].endswith(f"models--Qwen--tiny/snapshots/{COMMIT}")


@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="needs root and unshare")
def test_a_cached_name_starts_without_any_interface(run: Run, environment: dict[str, str]) -> None:
    assert run("pull", "Qwen/tiny").returncode == 0
    command = ["unshare", "--net", sys.executable, "-m", "qwen3app", "chat", "--model", "Qwen/tiny", "--once", "Hello"]
    done = subprocess.run(
        [*command, "--max-tokens", "3", "--kv-gb", "0.05"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0 and "again" not in done.stderr, done.stderr


def test_info_and_verify_do_not_download(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    for command in ("info", "verify"):
        done = run(command, "--model", "Qwen/tiny")
        assert done.returncode == 2 and done.stderr.endswith("get it with `qwen3-8b pull Qwen/tiny`.\n")
    cache = tmp_path / "hf" / "hub"
    (cache / "models--Qwen--tiny" / "blobs").mkdir(parents=True)
    said = run("info", "--model", "Qwen/tiny").stderr
    assert f"Qwen/tiny is in {cache}, but not in full; `qwen3-8b pull Qwen/tiny` brings what is missing." in said
    assert not hub.seen


def test_bench_takes_a_name(run: Run) -> None:
    flags = ("--prompt", "8", "--batch", "1", "--context", "8", "--repeat", "1", "--kv-gb", "0.05", "--format", "json")
    done = run("bench", "--model", "Qwen/tiny", *flags)
    assert json.loads(done.stdout)["model"]["name"] == "Qwen/tiny", done.stderr


def test_paths_and_offline_never_lead_to_the_network(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "here" / "models").mkdir()
    slip = run("chat", "--model", "models/mine", "--once", "x")
    assert slip.returncode == 2 and slip.stderr == (
        "qwen3-8b: The model directory models/mine (--model) does not exist; check the path, or get a model "
        "with `qwen3-8b pull OWNER/NAME --dir models/mine`.\n"
    )
    for path in ("./Qwen/tiny", "/no/where", "../Qwen/tiny", "nowhere", "a/b/c"):
        done = run("chat", "--model", path, "--once", "x")
        assert done.returncode == 2 and done.stderr.endswith("does not exist; check the path.\n"), done.stderr
    done = run("chat", "--model", "qwen3-8B", "--once", "x")
    assert done.stderr.endswith("check the path, or name a model of the Hub with its owner: Qwen/Qwen3-8B.\n"), (
        done.stderr
    )
    offline = run("chat", "--model", "Qwen/tiny", "--once", "x", HF_HUB_OFFLINE="1")
    assert offline.returncode == 1 and offline.stderr.startswith(
        "qwen3-8b: There is no directory Qwen/tiny. Taken as a name on the Hub: HF_HUB_OFFLINE is set, and Qwen/tiny "
        "is not here in full"
    )
    none = run("info")
    assert none.returncode == 2 and "`qwen3-8b pull Qwen/Qwen3-8B --dir models/qwen3-8b`" in none.stderr
    assert "which `qwen3-8b pull` has fetched" in none.stderr and "downloaded" not in none.stderr
    demo = run("chat", "--once", "What is 57 + 38?")
    assert demo.returncode == 0 and "57 + 38 = 95." in demo.stdout
    assert "so qwen3-demo answers" in demo.stderr and demo.stderr.count("\n") == 1, "thoughts are not shown"
    assert not hub.seen


def test_what_is_an_official_model() -> None:
    for text, official in (
        ("models/qwen3-0.6b", "Qwen/Qwen3-0.6B"),
        ("./a/b/QWEN3-32B/", "Qwen/Qwen3-32B"),
        ("qwen3-1.7b-base", "Qwen/Qwen3-1.7B-Base"),
        ("/x/qwen3-4b-instruct-2507", "Qwen/Qwen3-4B-Instruct-2507"),
        ("Qwen3-4B-Thinking-2507", "Qwen/Qwen3-4B-Thinking-2507"),
        ("models/qwen3-32b-base", None),  # there is none
        ("models/qwen3-30b-a3b", None),  # no dense one
        ("qwen3-8b/mine", None),
        ("qwen3-demo", None),
        ("", None),
    ):
        assert official_name(text) == official, text


@pytest.mark.parametrize("command", ["info", "chat"])
def test_an_official_model_that_is_no_directory_here_is_pulled_by_its_name(
    run: Run, hub: FakeHub, tmp_path: Path, command: str
) -> None:
    flags = ("--once", "x") if command == "chat" else ()

    def said(model: str) -> str:
        done = run(command, "--model", model, *flags)
        assert done.returncode == 2 and not hub.seen, done.stderr
        return done.stderr

    for model, pull in (
        ("models/qwen3-0.6b", "Qwen/Qwen3-0.6B --dir models/qwen3-0.6b"),
        ("models/Qwen3-0.6B", "Qwen/Qwen3-0.6B --dir models/Qwen3-0.6B"),
        ("models/qwen3-4b-base", "Qwen/Qwen3-4B-Base --dir models/qwen3-4b-base"),
        ("./my models/qwen3-8b", "Qwen/Qwen3-8B --dir 'my models/qwen3-8b'"),
        (f"{tmp_path}/Qwen3-14B", f"Qwen/Qwen3-14B --dir {tmp_path}/Qwen3-14B"),
    ):
        assert said(model).endswith(f"does not exist; check the path, or get it with `qwen3-8b pull {pull}`.\n"), model
    (tmp_path / "here" / "models").mkdir()
    assert said("models/qwen3-0.6b").endswith("`qwen3-8b pull Qwen/Qwen3-0.6B --dir models/qwen3-0.6b`.\n")


def test_other_owners_may_have_models_of_the_same_name(run: Run, hub: FakeHub) -> None:
    for model, name in (
        ("other/Qwen3-8B", "other/Qwen3-8B"),
        ("other/qwen3-8b", "other/qwen3-8b"),
        ("Qwen/qwen3-8b", "Qwen/qwen3-8b"),
        ("other/qwen3-8b@main", "other/qwen3-8b"),
        ("https://huggingface.co/other/Qwen3-8B", "other/Qwen3-8B"),
        ("huggingface.co/Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
    ):
        assert run("info", "--model", model).stderr.endswith(f"get it with `qwen3-8b pull {name}`.\n"), model
        assert run("chat", "--model", model, "--once", "x").returncode == 1 and hub.seen
        hub.seen.clear()


def test_a_path_that_looks_like_a_name_says_both(run: Run, hub: FakeHub) -> None:
    flags = ("chat", "--model", "models/qwen3-mine", "--once", "x")
    unknown = run(*flags)
    begin = "There is no directory models/qwen3-mine. Taken as a name on the Hub: "
    said = unknown.stderr.splitlines()[-1]
    assert unknown.returncode == 1 and said.startswith(f"qwen3-8b: {begin}{hub.url} "), unknown.stderr
    assert "models/qwen3-mine" in said.removeprefix(f"qwen3-8b: {begin}")
    hub.close()
    unreached = run(*flags)
    said = unreached.stderr.splitlines()[-1]
    assert unreached.returncode == 1 and said.startswith(f"qwen3-8b: {begin}{hub.url} cannot be reached"), said
    assert unreached.stderr.count("trying again") == 1, "who meant a directory does not wait for long"


def test_a_directory_wins_over_a_name(run: Run, hub: FakeHub, tmp_path: Path, tiny_model_dir: Path) -> None:
    (tmp_path / "here" / "Qwen").mkdir()
    (tmp_path / "here" / "Qwen" / "tiny").symlink_to(tiny_model_dir)
    assert json.loads(run("info", "--json", "--model", "Qwen/tiny").stdout)["model"]["directory"] == "Qwen/tiny"
    assert not hub.seen


def test_a_folder_of_the_owners_name_hides_no_cached_model(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    directory = run("pull", "Qwen/tiny").stdout.strip()
    hub.seen.clear()
    (tmp_path / "here" / "Qwen").mkdir()
    assert json.loads(run("info", "--json", "--model", "Qwen/tiny").stdout)["model"]["directory"] == directory
    assert not hub.seen


def test_a_server_downloads_before_it_starts(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, "serve", "--model", "Qwen/tiny", "--port", "0", "--kv-gb", "0.05"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env=environment)
    server = RealServer(process, "", tmp_path / "log")
    try:
        wait_for(server, '"event":"ready"')
        lines = [json.loads(line) for line in server.log.splitlines()]
        told = [line["message"] for line in lines if line["event"] == "download"]
        assert (
            told[0].startswith("Asking ")
            and told[1].startswith("Downloading Qwen/tiny from ")
            and "Downloaded 100 % of 3.94 MB." in told
        )
        page = next(line["page"] for line in lines if line["event"] == "ready")
        models = httpx.get(f"{page}v1/models", timeout=PATIENCE).json()
        assert models["data"][0]["id"] == "Qwen/tiny"
        assert httpx.get(f"{page}v1/models/Qwen/tiny", timeout=PATIENCE).status_code == 200
    finally:
        assert server.stop() == 0


def test_lines_are_told_each_tenth() -> None:
    told: list[str] = []
    lines = Lines(told.append)
    lines.begin(1000, 250)
    for n in (49, 1, 300, -500, 900):
        lines.advance("f", n)
    lines.end()
    assert told == ["Downloaded 30 % of 1 kB.", "Downloaded 60 % of 1 kB.", "Downloaded 100 % of 1 kB."]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "environ", os.environ | {"TERM": "xterm", "COLUMNS": "120"})
    terminal = _Terminal()
    bars = Bars(terminal)
    bars.say("A sentence with [brackets].")
    bars.begin(4_000_000, 1_000_000)
    bars.open_file("model.safetensors", 3_000_000, 0)
    bars.advance("model.safetensors", 2_000_000)
    bars.say("In between.")
    bars._progress.refresh()
    bars.close_file("model.safetensors")
    bars.end()
    bars.end()
    shown = terminal.getvalue()
    assert "A sentence with [brackets].\n" in shown and "In between." in shown
    assert "model.safetensors" in shown and "3.0/4.0 MB" in shown and "2.0/3.0 MB" in shown
