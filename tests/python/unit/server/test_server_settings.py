"""Flags: what they become, and one sentence for each wrong value."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from qwen3app.abi.types import EngineOptions
from qwen3app.errors import UsageError
from qwen3app.settings import (
    DEMO_MODEL,
    EngineSettings,
    ServeSettings,
    add_engine_arguments,
    add_serve_arguments,
    parse_address,
    resolve_model_dir,
)


def parse(*flags: str) -> ServeSettings:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_serve_arguments(parser)
    return ServeSettings.from_args(parser.parse_args(flags))


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QWEN3_API_KEY", raising=False)
    settings = parse()
    assert (settings.host, settings.port, settings.guards.api_keys) == ("127.0.0.1", 8000, ())
    assert settings == ServeSettings()
    parser = argparse.ArgumentParser()
    add_engine_arguments(parser)
    assert EngineSettings.from_args(parser.parse_args([])) == EngineSettings()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.0.0.0", ("0.0.0.0", None)),
        ("0.0.0.0:9000", ("0.0.0.0", 9000)),
        (":9000", (None, 9000)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:9000", ("::1", 9000)),
        ("[::1]", ("::1", None)),
        ("::1", ("::1", None)),
    ],
)
def test_addresses(text: str, expected: tuple[str | None, int | None]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text", ["", "host:", "host:x", "host:70000", ":-1", "a b:1", "http://x:1", "[::1", "[::1]x", ":²"]
)
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_address(text)


def test_port_and_addr_together() -> None:
    assert parse("--addr", "0.0.0.0", "--port", "9").port == 9
    assert parse("--addr", ":9", "--port", "9").port == 9
    with pytest.raises(UsageError, match="give one of them"):
        parse("--addr", ":8", "--port", "9")


def test_all_flags() -> None:
    flags = "--model m --device cuda:1 --max-ctx 100 --slots 4 --token-budget 64 --max-queue 0 --threads 3 --kv-gb 0.5"
    more = "--yarn --no-prefix-cache --log-level error --api-key k --open-metrics --no-think --drain-seconds 1"
    last = "--max-body-mb 2 --served-model-name a/b --prefill-spread 9"
    settings = parse(*flags.split(), *more.split(), *last.split())
    options = settings.engine.options()
    assert (options.device, options.max_context, options.max_slots, options.token_budget) == ("cuda:1", 100, 4, 64)
    assert (options.max_queue, options.threads, options.kv_bytes, options.yarn_factor) == (0, 3, 1 << 29, 4.0)
    assert (options.prefix_cache, options.log_level, settings.log_level) == (False, 3, "error")
    assert options.prefill_spread == 9
    assert (settings.guards.api_keys, settings.guards.open_metrics, settings.thinking) == (("k",), True, False)
    assert (settings.drain_seconds, settings.guards.max_body_mb, settings.served_model_name) == (1, 2, "a/b")
    assert parse("--yarn", "2.5", "--device", "cuda").engine.options().yarn_factor == 2.5
    assert parse("--gpu-memory-fraction", "0.5").engine.options().gpu_memory_fraction == 0.5
    assert parse().engine.options() == EngineOptions(prefill_spread=52)  # what is not said is the library's choice


def test_the_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWEN3_API_KEY", "from-env")
    assert parse().guards.api_keys == ("from-env",)
    assert parse("--api-key", "flag").guards.api_keys == ("flag",)
    for wrong in ("a b\n", ""):  # an empty one must not open the server to everybody
        monkeypatch.setenv("QWEN3_API_KEY", wrong)
        with pytest.raises(UsageError, match="QWEN3_API_KEY must be printable"):
            parse()


def test_keys_may_come_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QWEN3_API_KEY", "from-env")
    keys = tmp_path / "keys"
    keys.write_text("# of the team\n\n  one \r\ntwo\n")
    assert parse("--api-key-file", str(keys)).guards.api_keys == ("one", "two")
    several = parse("--api-key", "a", "--api-key-file", str(keys), "--api-key", "b", "--api-key", "one")
    assert several.guards.api_keys == ("a", "b", "one", "two")
    for content, sentence in (
        ("", "holds no key"),
        ("# nothing\n", "holds no key"),
        ("ok\nschl\u00fcssel\n", "Line 2 of the key file"),
        ("x" * (2 << 20), "larger than 1 MiB"),
    ):
        keys.write_text(content)
        with pytest.raises(UsageError, match=sentence):
            parse("--api-key-file", str(keys))
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError, match="cannot be read"):
            parse("--api-key-file", str(path))


def test_guards() -> None:
    flags = "--cors-origin http://Localhost:3000/ --cors-origin * --max-head-kb 8 --request-timeout 2.5"
    more = "--idle-timeout 9 --tls-cert c --tls-key k --metrics-compat none"
    settings = parse(*flags.split(), *more.split())
    guards = settings.guards
    assert guards.cors_origins == ("http://localhost:3000", "*")
    assert (guards.max_head_kb, guards.request_timeout, guards.idle_timeout) == (8, 2.5, 9.0)
    assert (guards.tls_cert, guards.tls_key, settings.metrics_compat) == (Path("c"), Path("k"), False)
    for one, other in (("--tls-cert", "--tls-key"), ("--tls-key", "--tls-cert")):
        with pytest.raises(UsageError, match=f"{other} is missing"):
            parse(one, "file")


@pytest.mark.parametrize(
    "flags",
    [
        "--slots 0",
        "--slots many",
        "--token-budget 15",
        "--kv-gb nan",
        "--kv-gb -1",
        "--kv-gb x",
        "--gpu-memory-fraction 1.1",
        "--gpu-memory-fraction 0",
        "--yarn 1",
        "--yarn 65",
        "--device gpu",
        "--device cuda:x",
        "--port 70000",
        "--log-level loud",
        "--max-ctx -5",
        "--drain-seconds inf",
        "--max-body-mb 0",
        "--max-head-kb 0",
        "--request-timeout -1",
        "--idle-timeout 0",
        "--cors-origin localhost:3000",
        "--cors-origin http://a/path",
        "--metrics-compat sglang",
        "--addr host:x",
    ],
)
def test_wrong_values(flags: str) -> None:
    with pytest.raises(argparse.ArgumentError):
        parse(*flags.split())


def test_wrong_texts() -> None:
    for flags in (("--api-key", "ü"), ("--api-key", ""), ("--api-key", " a"), ("--served-model-name", " ")):
        with pytest.raises(argparse.ArgumentError):
            parse(*flags)


def test_where_the_model_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QWEN3_MODEL", raising=False)
    with pytest.raises(UsageError, match="No model: give --model"):
        resolve_model_dir(None)
    said: list[str] = []
    assert resolve_model_dir(None, on_demo=said.append) == DEMO_MODEL
    assert len(said) == 1 and said[0].endswith("`qwen3-8b pull Qwen/Qwen3-8B --dir models/qwen3-8b`")
    default = tmp_path / "models" / "qwen3-8b"
    default.mkdir(parents=True)
    assert resolve_model_dir(None, on_demo=said.append).resolve() == default
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("QWEN3_MODEL", str(other))
    assert resolve_model_dir(None, on_demo=said.append) == other
    assert len(said) == 1, "where a model is, nothing is said"
    assert resolve_model_dir(str(default)) == default
    (tmp_path / "file").touch()
    for wrong, why in (
        ("", "empty"),
        ("nowhere", "does not exist"),
        ("file", "is a file"),
        ("~no-such-user/x", "cannot be used"),
    ):
        with pytest.raises(UsageError, match=why):
            resolve_model_dir(wrong)
    monkeypatch.setenv("QWEN3_MODEL", "nowhere")
    with pytest.raises(UsageError, match="QWEN3_MODEL"):
        resolve_model_dir(None, on_demo=said.append)


def test_the_demo_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_model_dir("qwen3-demo") == DEMO_MODEL
    (tmp_path / "qwen3-demo").mkdir()
    assert resolve_model_dir("qwen3-demo") == Path("qwen3-demo"), "a directory of that name comes first"
    monkeypatch.setattr("qwen3app.settings.DEMO_MODEL", tmp_path / "gone" / "qwen3-demo")
    with pytest.raises(UsageError, match="No model: give --model"):
        resolve_model_dir(None, on_demo=print)
    (tmp_path / "qwen3-demo").rmdir()
    with pytest.raises(UsageError, match="does not exist"):
        resolve_model_dir("qwen3-demo")
