"""`pull` against a Hub of our own: what arrives, what is refused before it arrives, what breaks on the way."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import fake_hub
import pytest
from fake_hub import COMMIT, PROGRAM, FakeHub, Run
from patience import PATIENCE, wait_until

from qwen3app.errors import ModelError
from qwen3app.hub.pull import check_place

WEIGHTS = "/Qwen/tiny/model.safetensors?signed=yes"


def blob(tmp_path: Path, hub: FakeHub, file: str = "model.safetensors") -> Path:
    sha256 = hashlib.sha256(hub.models["Qwen/tiny"][file]).hexdigest()
    return tmp_path / "hf" / "hub" / "models--Qwen--tiny" / "blobs" / sha256


def partial(tmp_path: Path, hub: FakeHub) -> Path:
    path = blob(tmp_path, hub)
    return path.with_name(path.name + ".incomplete")


def weight_requests(hub: FakeHub) -> list[str]:
    """The Range headers of the requests for the weights' bytes."""
    return [seen.headers.get("range", "") for seen in hub.seen if seen.method == "GET" and seen.path == WEIGHTS]


def directory_of(done: subprocess.CompletedProcess[str]) -> Path:
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def check_sound(directory: Path, hub: FakeHub) -> None:
    for name, data in hub.models["Qwen/tiny"].items():
        assert (directory / name).read_bytes() == data, name


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a run that failed."""
    assert done.returncode == 1, done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_a_model_arrives_in_the_cache_that_others_share(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    hub.models["Qwen/tiny"] |= {"picture.png": b"x", "pytorch_model.bin": b"x" * 9000, "onnx/model.json": b"{}"}
    unwanted = ("picture.png", "pytorch_model.bin", "onnx/model.json")
    done = run("pull", "Qwen/tiny", HF_TOKEN="hf_secret")
    directory = directory_of(done)
    assert directory == tmp_path / "hf" / "hub" / "models--Qwen--tiny" / "snapshots" / COMMIT
    assert done.stderr.splitlines()[-1].endswith("Try `qwen3-8b chat --model Qwen/tiny`.")
    for name in unwanted:
        del hub.models["Qwen/tiny"][name]
        assert not (directory / name).exists()
    check_sound(directory, hub)
    assert (directory / "model.safetensors").readlink() == Path("../../blobs") / blob(tmp_path, hub).name
    assert not list(tmp_path.rglob("*.incomplete"))
    # The configuration comes first, and the token stays on the Hub.
    files = [seen.path.rpartition("/")[2] for seen in hub.seen if seen.method == "GET"]
    assert files[1] == "config.json"
    site = [seen for seen in hub.seen if "signed" not in seen.path]
    assert {seen.headers.get("authorization") for seen in site} == {"Bearer hf_secret"}
    assert {seen.headers.get("authorization") for seen in hub.seen if "signed" in seen.path} == {None}
    # No telemetry: nothing but the model was asked for, and nothing of the machine is told.
    assert all("/Qwen/tiny/" in seen.path for seen in hub.seen)
    assert "torch" not in hub.seen[0].headers["user-agent"] and "qwen3-8b/" in hub.seen[0].headers["user-agent"]


def test_other_tools_find_it(run: Run, environment: dict[str, str]) -> None:
    directory = directory_of(run("pull", "Qwen/tiny"))
    program = "import huggingface_hub as h; print(h.snapshot_download('Qwen/tiny', local_files_only=True))"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True, timeout=PATIENCE
    )
    assert Path(found.stdout.strip()) == directory


def test_what_is_there_is_not_fetched_again(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    directory = directory_of(run("pull", "Qwen/tiny"))
    hub.seen.clear()
    again = run("pull", "Qwen/tiny")
    assert directory_of(again) == directory and "is complete" in again.stderr
    assert not [path for path in hub.paths() if "/resolve/" in path or "signed" in path]
    # Another revision of the same files: links only.
    assert directory_of(run("pull", "Qwen/tiny@v1")) == directory
    assert (tmp_path / "hf" / "hub" / "models--Qwen--tiny" / "refs" / "v1").read_text() == COMMIT
    offline = run("pull", "Qwen/tiny", HF_HUB_OFFLINE="1")
    assert directory_of(offline) == directory and "offline" in offline.stderr
    assert "No connection can be made" in refusal(run("pull", "Qwen/tiny", HTTP_PROXY="foo://x"))  # which is no wish


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"HTTP_PROXY": "foo://x"}, "No connection can be made (Unknown scheme for proxy URL"),
        ({"SSL_CERT_FILE": "/nowhere/ca.pem"}, "check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE."),
        ({"HF_TOKEN": "hf_caf\u00e9"}, "The token (of HF_TOKEN or `hf auth login`) holds characters that no token has"),
        ({"HF_HUB_DOWNLOAD_TIMEOUT": "abc"}, "A variable of the Hub's is no number (invalid literal for int()"),
    ],
)
def test_an_environment_that_allows_no_connection(run: Run, variables: dict[str, str], sentence: str) -> None:
    refused = run("pull", "Qwen/tiny", **variables)
    assert refused.returncode == 1 and sentence in refused.stderr and refused.stderr.count("\n") == 1


def test_a_folder_of_ones_own(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "own"
    done = run("pull", "Qwen/tiny", "--dir", str(folder))
    assert directory_of(done) == folder and f"--model {folder}`" in done.stderr
    check_sound(folder, hub)
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    verified = json.loads(run("verify", "--json", "--model", str(folder)).stdout)
    assert verified["ok"] and all(file["compared_to"] for file in verified["files"])
    # A file that was changed since is brought again, one that was only touched is compared, not fetched.
    (folder / "tokenizer.json").write_bytes(b"x" * len(hub.models["Qwen/tiny"]["tokenizer.json"]))
    (folder / "model.safetensors").touch()
    hub.seen.clear()
    assert directory_of(run("pull", "Qwen/tiny", "--dir", str(folder))) == folder
    check_sound(folder, hub)
    assert [path for path in hub.paths() if "signed" in path] == ["/Qwen/tiny/tokenizer.json?signed=yes"]


def test_shards(run: Run, hub: FakeHub) -> None:
    files = hub.models["Qwen/tiny"]
    header = {"x": {"dtype": "BF16", "shape": [4096], "data_offsets": [0, 8192]}}
    text = json.dumps(header).encode()
    shards = {f"model-{i}-of-2.safetensors": len(text).to_bytes(8, "little") + text + bytes([i]) * 8192 for i in (1, 2)}
    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    files |= shards | {"model.safetensors.index.json": json.dumps(index).encode()}
    directory = directory_of(run("pull", "Qwen/tiny"))
    for name, data in shards.items():
        assert (directory / name).read_bytes() == data
    assert not (directory / "model.safetensors").exists()  # the index decides alone
    del files["model-2-of-2.safetensors"]
    assert "the index names model-2-of-2.safetensors, which is not there" in refusal(run("pull", "Qwen/tiny"))


@pytest.mark.parametrize("own", [False, True])
def test_shards_of_the_same_bytes(run: Run, hub: FakeHub, tmp_path: Path, own: bool) -> None:
    files = hub.models["Qwen/tiny"]
    files["a.safetensors"] = files["b.safetensors"] = files.pop("model.safetensors")
    index = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors", "c": "./a.safetensors"}}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    check_sound(directory_of(run("pull", "Qwen/tiny", *(["--dir", str(tmp_path / "own")] if own else []))), hub)
    assert sum(hub.paths()[f"/Qwen/tiny/{name}.safetensors?signed=yes"] for name in "ab") == (2 if own else 1)


def test_a_transfer_that_breaks_off_goes_on(run: Run, hub: FakeHub) -> None:
    third = len(hub.models["Qwen/tiny"]["model.safetensors"]) // 3 + 1
    hub.body = lambda path, data, begin: data[begin : begin + third] if path == WEIGHTS else None
    check_sound(directory_of(run("pull", "Qwen/tiny")), hub)
    assert weight_requests(hub) == ["", f"bytes={third}-", f"bytes={2 * third}-"]


def test_a_transfer_that_goes_no_further_is_given_up_and_kept(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    data = hub.models["Qwen/tiny"]["model.safetensors"]
    half = len(data) // 2
    hub.body = lambda path, data, begin: data[begin:half] if path == WEIGHTS else None
    done = run("pull", "Qwen/tiny")
    assert "the download goes on where it is" in refusal(done)
    assert "; trying again in 0 s." in done.stderr
    assert partial(tmp_path, hub).read_bytes() == data[:half]
    assert not blob(tmp_path, hub).exists()
    hub.body = lambda path, data, begin: None
    hub.seen.clear()
    done = run("pull", "Qwen/tiny")
    check_sound(directory_of(done), hub)
    assert weight_requests(hub) == [f"bytes={half}-"]
    assert "1.97 MB of it already here" in done.stderr


def test_what_an_earlier_run_left_is_not_trusted(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    path = partial(tmp_path, hub)
    path.parent.mkdir(parents=True)
    for left in (b"spoilt" * 1000, b"x" * (len(hub.models["Qwen/tiny"]["model.safetensors"]) + 1)):
        path.write_bytes(left)
        check_sound(directory_of(run("pull", "Qwen/tiny")), hub)
        blob(tmp_path, hub).unlink()
    assert weight_requests(hub) == ["bytes=6000-", "", ""]


def test_a_store_without_ranges(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    hub.ranges = False
    path = partial(tmp_path, hub)
    path.parent.mkdir(parents=True)
    path.write_bytes(hub.models["Qwen/tiny"]["model.safetensors"][:1000])
    check_sound(directory_of(run("pull", "Qwen/tiny")), hub)


def test_wrong_bytes_are_thrown_away(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    hub.body = lambda path, data, begin: bytes(len(data) - begin) if path == WEIGHTS else None
    sentence = refusal(run("pull", "Qwen/tiny"))
    assert "model.safetensors has come with the wrong hash" in sentence and blob(tmp_path, hub).name in sentence
    assert weight_requests(hub) == [""]
    assert partial(tmp_path, hub).stat().st_size == 0 and not blob(tmp_path, hub).exists()


def test_a_hub_without_hashes_is_said(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    hub.wrong_etag = "no-hash"
    done = run("pull", "Qwen/tiny", "--dir", str(tmp_path / "own"))
    assert "6 files could not be checked: the server gives no hash." in done.stderr
    check_sound(directory_of(done), hub)
    done = run("pull", "Qwen/tiny")  # in the cache, where files of one hash would share a place
    assert "6 files could not be checked: the server gives no hash." in done.stderr
    check_sound(directory_of(done), hub)


REFUSALS: list[tuple[int, dict[str, str], str, str]] = [
    (
        401,
        {"X-Error-Code": "RepoNotFound"},
        "",
        "has no model Qwen/tiny, or it is private and needs a token (HF_TOKEN)",
    ),
    (401, {"X-Error-Code": "RepoNotFound"}, "t", "has no model Qwen/tiny, or it is private to another account"),
    (404, {}, "", "has no model Qwen/tiny"),
    (401, {"X-Error-Code": "GatedRepo"}, "", "/Qwen/tiny and give a token of yours as HF_TOKEN."),
    (403, {"X-Error-Code": "GatedRepo"}, "t", "is gated and the token's account may not read it: accept its terms at"),
    (401, {"X-Error-Message": "Invalid credentials in Authorization header"}, "t", "does not accept the token"),
    (403, {"X-Error-Message": "Not for you"}, "t", "forbids Qwen/tiny: Not for you; check the rights of the token"),
    (404, {"X-Error-Code": "RevisionNotFound"}, "", "has no revision 'main'"),
    (429, {"Retry-After": "3600"}, "", "too many requests from here (HTTP 429); try again in 3600 s"),
    (429, {}, "", "too many requests from here (HTTP 429); try again later"),
    (500, {}, "", "fails with HTTP 500 for Qwen/tiny; try again later"),
    (418, {"X-Error-Message": "A  teapot"}, "", "fails with HTTP 418 for Qwen/tiny: A teapot"),
    (200, {}, "", "does not answer as a Hub does (no list of files for Qwen/tiny); check HF_ENDPOINT."),
]


@pytest.mark.parametrize(("status", "headers", "token", "sentence"), REFUSALS)
def test_each_refusal_is_one_sentence(
    run: Run, hub: FakeHub, status: int, headers: dict[str, str], token: str, sentence: str
) -> None:
    hub.refuse = lambda method, path, _: (status, headers) if path.startswith("/api") else None
    assert sentence in refusal(run("pull", "Qwen/tiny", **({"HF_TOKEN": token} if token else {})))
    tries = 5 if status in (429, 500) and "Retry-After" not in headers else 1
    assert len(hub.seen) == tries


def test_refusals_in_the_middle(run: Run, hub: FakeHub) -> None:
    counts = {"HEAD": 0, "GET": 0}

    def twice(method: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str]] | None:
        if path.endswith("/config.json") or path == WEIGHTS:
            counts[method] += 1
            if counts[method] <= 2:
                return 503, {"Retry-After": "0"}
        return None

    hub.refuse = twice
    check_sound(directory_of(run("pull", "Qwen/tiny")), hub)
    hub.refuse = lambda method, path, _: (403, {}) if path == WEIGHTS else None
    assert "forbids model.safetensors" in refusal(run("pull", "Qwen/tiny", "--dir", "x"))


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["Qwen3MoeForCausalLM"]}, "Qwen3MoeForCausalLM"),
    ({"quantization_config": {"quant_method": "fp8"}}, 'the checkpoint is quantized ("fp8")'),
    ({"head_dim": 64}, "head_dim is 64, only 128 is supported"),
]


@pytest.mark.parametrize(("change", "sentence"), CONFIGS)
def test_what_cannot_run_is_not_downloaded(run: Run, hub: FakeHub, change: dict[str, Any], sentence: str) -> None:
    config = json.loads(hub.models["Qwen/tiny"]["config.json"]) | change
    hub.models["Qwen/tiny"]["config.json"] = json.dumps(config).encode()
    said = refusal(run("pull", "Qwen/tiny"))
    assert said.startswith("qwen3-8b: Qwen/tiny cannot be run: config.json") and sentence in said
    assert said.endswith("Its weights were not downloaded.")
    fetched = {path.rpartition("/")[2] for path in hub.paths() if "/resolve/" in path or "signed" in path}
    assert fetched == {"config.json", "generation_config.json"}


def test_broken_texts_are_refused_before_the_weights(run: Run, hub: FakeHub) -> None:
    files = dict(hub.models["Qwen/tiny"])
    for name, data, sentence in (
        ("tokenizer.json", b"{}", "tokenizer.json"),
        ("chat_template.jinja", b"{% if %}", "chat_template.jinja"),
        ("generation_config.json", b'{"top_p": 2}', "top_p is 2"),
    ):
        hub.models["Qwen/tiny"] = files | {name: data}
        said = refusal(run("pull", "Qwen/tiny"))
        assert sentence in said and said.endswith("Its weights were not downloaded."), said
    assert not weight_requests(hub)


def test_repositories_without_our_kind_of_weights(run: Run, hub: FakeHub) -> None:
    config = hub.models["Qwen/tiny"]["config.json"]
    hub.models |= {"a/gguf": {"m.gguf": b""}, "a/bin": {"config.json": config, "m.bin": b""}, "a/none": {"x": b""}}
    assert "a/gguf holds only weights for GGUF; needed are" in refusal(run("pull", "a/gguf"))
    assert "a/bin holds only weights for PyTorch" in refusal(run("pull", "a/bin"))
    assert "a/none holds no model" in refusal(run("pull", "a/none"))
    assert len(hub.seen) == 3


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", ".", "a\x1b[2J.json", "a\nb.txt", 5])
def test_names_that_would_do_harm_are_refused(run: Run, hub: FakeHub, tmp_path: Path, name: Any) -> None:
    hub.models["Qwen/tiny"][name] = b"harm"
    assert "does not answer as a Hub does (no list of files for Qwen/tiny)" in refusal(run("pull", "Qwen/tiny"))
    assert not (tmp_path / "hf").exists() and len(hub.seen) == 1


@pytest.mark.parametrize("commit", ["../../outside", "."])
def test_a_commit_that_would_do_harm_is_refused(
    run: Run, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, commit: str
) -> None:
    monkeypatch.setattr(fake_hub, "COMMIT", commit)
    assert "does not answer as a Hub does" in refusal(run("pull", "Qwen/tiny"))


def test_a_list_of_any_depth_and_a_redirect_to_nowhere(run: Run, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(fake_hub._Site, "listing", lambda site, *_: site.reply(200, {}, b"[" * 100_000))
        assert "does not answer as a Hub does" in refusal(run("pull", "Qwen/tiny"))
    hub.refuse = lambda method, path, _: (302, {"Location": "http://["}) if path.endswith("/config.json") else None
    assert "answers for config.json what no Hub does" in refusal(run("pull", "Qwen/tiny"))


def tree(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def make_newer(hub: FakeHub) -> None:
    """Another revision: new configuration, new weights of the same size, and without a template."""
    files = hub.models["Qwen/tiny"]
    files["config.json"] = files["config.json"].replace(b"{", b'{"_revision": 2,', 1)
    weights = bytearray(files["model.safetensors"])
    weights[-2:] = b"\0\0" if weights[-2:] != b"\0\0" else b"\0\1"
    files["model.safetensors"] = bytes(weights)
    del files["chat_template.jinja"]


def test_a_folder_never_holds_files_of_two_revisions(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    directory_of(run("pull", "Qwen/tiny", "--dir", str(folder)))
    make_newer(hub)
    hub.refuse = lambda method, path, _: (403, {}) if path.endswith("/model.safetensors") and method == "GET" else None
    assert "forbids model.safetensors" in refusal(run("pull", "Qwen/tiny", "--dir", str(folder)))
    assert (folder / "config.json").read_bytes() == hub.models["Qwen/tiny"]["config.json"]
    assert not (folder / "model.safetensors").exists() and not (folder / "chat_template.jinja").exists()
    hub.refuse = lambda *_: None
    directory_of(run("pull", "Qwen/tiny", "--dir", str(folder)))
    check_sound(folder, hub)
    assert json.loads(run("verify", "--json", "--model", str(folder)).stdout)["ok"]


def test_a_model_that_is_refused_leaves_the_folder_as_it_was(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    directory_of(run("pull", "Qwen/tiny", "--dir", str(folder)))
    before = tree(folder)
    make_newer(hub)
    files = hub.models["Qwen/tiny"]
    for name, data in (("config.json", b'{"architectures": ["LlamaForCausalLM"]}'), ("tokenizer.json", b"{")):
        good, files[name] = files[name], data
        assert "Its weights were not downloaded." in refusal(run("pull", "Qwen/tiny", "--dir", str(folder)))
        assert tree(folder) == before
        files[name] = good
    files["model.safetensors"] += bytes(9)
    assert "make room" in refusal(run("pull", "Qwen/tiny", "--dir", str(folder), QWEN3_TEST_FREE="1"))
    assert tree(folder) == before


def test_room_that_the_older_weights_leave_counts(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    directory_of(run("pull", "Qwen/tiny", "--dir", str(folder)))
    (folder / "model.safetensors").write_bytes(hub.models["Qwen/tiny"]["model.safetensors"][:-1])
    directory_of(run("pull", "Qwen/tiny", "--dir", str(folder), QWEN3_TEST_FREE="1"))
    check_sound(folder, hub)


def test_files_of_the_users_own_stay(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    del hub.models["Qwen/tiny"]["chat_template.jinja"]
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (folder / "notes.txt").write_text("mine")
    directory_of(run("pull", "Qwen/tiny", "--dir", str(folder)))
    assert (folder / "chat_template.jinja").exists() and (folder / "notes.txt").exists()
    weights = folder / "model.safetensors"
    weights.write_bytes(b"other")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "other.safetensors"}}')
    said = refusal(run("pull", "Qwen/tiny", "--dir", str(folder)))
    assert "own/model.safetensors.index.json is of another model; remove it, or choose another folder." in said
    assert weights.read_bytes() == b"other"


def test_a_full_disk_is_seen_beforehand(run: Run, hub: FakeHub) -> None:
    said = refusal(run("pull", "Qwen/tiny", QWEN3_TEST_FREE="1000000"))
    assert "Qwen/tiny needs 3.94 MB more, and the disk of" in said and "has 1 MB free" in said
    assert not weight_requests(hub)


def test_places_that_cannot_be_written(run: Run, hub: FakeHub) -> None:
    assert "/dev/null/x/token cannot be used: Not a directory; check it, HF_HOME and --dir." in refusal(
        run("pull", "Qwen/tiny", HF_HOME="/dev/null/x")
    )
    assert "/dev/null/x cannot be used: /dev/null is a file; check HF_HOME." in refusal(
        run("pull", "Qwen/tiny", HF_HUB_CACHE="/dev/null/x")
    )
    assert "/dev/null/x cannot be used: /dev/null is a file; check --dir." in refusal(
        run("pull", "Qwen/tiny", "--dir", "/dev/null/x")
    )
    assert not hub.seen  # what cannot end well does not begin
    done = run("pull", "Qwen/tiny", "--dir", "/dev/null")
    assert done.returncode == 2 and "/dev/null (--dir) is a file" in done.stderr
    done = run("pull", "Qwen/tiny", "--dir", "")
    assert done.returncode == 2 and "--dir is empty; give a folder." in done.stderr


def test_a_place_where_one_may_not_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as root may write everywhere
    with pytest.raises(
        ModelError, match=f"{tmp_path}/a/b cannot be used: you may not write into {tmp_path}; check --dir"
    ):
        check_place(tmp_path / "a" / "b", "--dir")


def test_nobody_is_there(run: Run, hub: FakeHub) -> None:
    nobody = run("pull", "Qwen/tiny", HF_ENDPOINT="http://127.0.0.1:1")
    assert nobody.stderr.splitlines()[0] == "Asking http://127.0.0.1:1 for Qwen/tiny."  # said before it is known
    assert refusal(nobody).startswith("qwen3-8b: http://127.0.0.1:1 cannot be reached (")
    assert nobody.stderr.count("; trying again in 0 s.") == 1
    unknown = run("pull", "Qwen/tiny", HF_ENDPOINT="http://no-such-host.invalid")
    assert refusal(unknown).startswith("qwen3-8b: http://no-such-host.invalid cannot be reached (")
    assert unknown.stderr.count("; trying again in 0 s.") == 1
    for wrong in ("ftp://x", "nonsense"):
        assert "check HF_ENDPOINT" in refusal(run("pull", "Qwen/tiny", HF_ENDPOINT=wrong))
    for name in ("tiny", "a/b/c", "../x", "a//b", "https://example.org/Qwen/tiny", "https://huggingface.co/Qwen"):
        done = run("pull", name)
        assert done.returncode == 2 and "is no name on the Hub" in done.stderr
    assert not hub.seen


def test_a_store_that_goes_away_is_waited_for(run: Run, hub: FakeHub) -> None:
    """The Hub has answered, so there is a network: the fault may pass."""
    hub.refuse = lambda method, path, headers: (
        (302, {"Location": "http://127.0.0.1:1/x"}) if method == "GET" and path.endswith("model.safetensors") else None
    )
    done = run("pull", "Qwen/tiny")
    assert (
        "http://127.0.0.1:1 cannot be reached (" in refusal(done) and done.stderr.count("; trying again in 0 s.") == 4
    )


def test_an_address_is_a_name(run: Run, hub: FakeHub) -> None:
    directory = directory_of(run("pull", "https://huggingface.co/Qwen/tiny/tree/main"))
    assert directory_of(run("pull", f"{hub.url}/Qwen/tiny?x=y")) == directory


def test_a_directory_is_no_name(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "models" / "tiny").mkdir(parents=True)
    for text in ("models/tiny/", "./models/tiny", str(here / "models")):
        done = run("pull", text)
        assert done.returncode == 2
        assert done.stderr == (
            f"qwen3-8b: {text} is a directory here, not a name on the Hub; a model in it needs no download "
            f"(--model {text}). Give OWNER/NAME, like Qwen/Qwen3-8B.\n"
        )
    assert not hub.seen
    said = refusal(run("pull", "models/tiny"))  # it may be both
    assert "has no model models/tiny" in said
    assert said.endswith("models/tiny is a directory here: a model in it needs no download, only --model models/tiny.")


def test_where_a_model_is_put_is_no_name(run: Run, hub: FakeHub, tmp_path: Path) -> None:
    def said(text: str) -> str:
        done = run("pull", text)
        assert done.returncode == 2 and not hub.seen, done.stderr
        return done.stderr

    for text, official in (("models/qwen3-0.6b", "Qwen/Qwen3-0.6B"), ("models/Qwen3-4B-Base", "Qwen/Qwen3-4B-Base")):
        assert said(text) == (
            f"qwen3-8b: {text} is a folder's name, not a model's on the Hub; "
            f"`qwen3-8b pull {official} --dir {text}` puts the model there.\n"
        )
    (tmp_path / "here" / "models" / "qwen3-0.6b").mkdir(parents=True)
    assert "models/qwen3-0.6b is a directory here" in said("models/qwen3-0.6b")


def test_a_hub_that_falls_silent_is_asked_again(run: Run, hub: FakeHub) -> None:
    hub.hold = threading.Event()
    done = run("pull", "Qwen/tiny", HF_HUB_DOWNLOAD_TIMEOUT="5")
    assert "sends nothing for 5 s; trying again in 0 s." in done.stderr
    check_sound(directory_of(done), hub)


def test_ctrl_c_keeps_what_has_come_and_a_second_process_is_told(
    run: Run, hub: FakeHub, environment: dict[str, str], tmp_path: Path
) -> None:
    # Small files have come; the weights stop half-way.
    directory_of(run("pull", "Qwen/tiny"))
    blob(tmp_path, hub).unlink()
    hub.hold, half = threading.Event(), len(hub.models["Qwen/tiny"]["model.safetensors"]) // 2
    command = [sys.executable, "-c", PROGRAM, "pull", "Qwen/tiny"]
    patient = environment | {"HF_HUB_DOWNLOAD_TIMEOUT": "600"}  # a silent Hub is no fault here
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=patient)
    assert hub.held.wait(PATIENCE)
    wait_until(lambda: partial(tmp_path, hub).exists() and partial(tmp_path, hub).stat().st_size == half)
    assert "Another process is downloading model.safetensors" in refusal(run("pull", "Qwen/tiny"))
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and stdout == ""
    assert stderr.splitlines()[-1] == "Stopped: 1.97 MB of 3.94 MB are kept; the same command goes on from there."
    hub.hold.set()
    hub.seen.clear()
    check_sound(directory_of(run("pull", "Qwen/tiny")), hub)
    assert weight_requests(hub) == [f"bytes={half}-"]
