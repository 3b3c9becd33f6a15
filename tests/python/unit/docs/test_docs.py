"""The documents name things that exist: symbols of data_path.md and tour.md; commands, flags and links of README.md.
And abi.md names all of the C ABI."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from qwen3app.cli import build_parser

ROOT = Path(__file__).resolve().parents[4]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS += sorted((ROOT / "native" / "examples").glob("*.md"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def stops(document: str) -> list[tuple[str, str]]:
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    return re.findall(r"`([\w./]+\.(?:py|cpp|h|cu))::([\w.:]+)`", text)


def is_defined(text: str, symbol: str, suffix: str) -> bool:
    names = re.split(r"::|\.", symbol)
    if suffix == ".py":
        owner = names[0]
        if not re.search(rf"^(?:async )?(?:def|class) {owner}\b", text, flags=re.MULTILINE):
            return False
        return all(re.search(rf"^\s+(?:async )?def {name}\b", text, flags=re.MULTILINE) for name in names[1:])
    if len(names) > 1:  # Class::method, defined in this file
        return re.search(rf"\b{'::'.join(names)}\(", text) is not None
    return re.search(rf"\b(?:class|struct) {names[0]}\b|\b{names[0]}\([^;]*\)[^;]*\{{", text) is not None


def test_the_kernels_of_the_table_exist() -> None:
    text = (ROOT / "docs" / "data_path.md").read_text(encoding="utf-8")
    table = text[text.index("Which kernel serves what") : text.index("## Up:")]
    for name in set(re.findall(r"`(\w+)`", table)):
        assert (ROOT / "native" / "src" / "backend" / "cuda" / f"{name}.cu").is_file(), f"there is no {name}.cu"


def test_the_data_path_and_the_tour_are_long_enough_to_be_ones() -> None:
    assert len(stops("data_path.md")) >= 25
    assert len(stops("tour.md")) >= 18


@pytest.mark.parametrize(("file", "symbol"), sorted({*stops("data_path.md"), *stops("tour.md")}))
def test_stop_exists(file: str, symbol: str) -> None:
    path = ROOT / file
    assert path.is_file(), f"docs/data_path.md or docs/tour.md names {file}, which does not exist"
    assert is_defined(path.read_text(encoding="utf-8"), symbol, path.suffix), f"{file} defines no {symbol}"


def test_every_stop_of_the_tour_is_explained() -> None:
    """A few sentences for each place, so that it stays a tour and becomes neither a list nor a book."""
    text = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    for part in re.split(r"^`[\w./]+::[\w.:]+`$", text, flags=re.MULTILINE)[1:]:
        said = part.split("\n## ")[0]
        n_sentences = len(re.findall(r"[.?:](?=\s)", said))
        assert 2 <= n_sentences <= 9, said


def test_the_guide_of_the_c_abi_names_every_function_status_and_reason() -> None:
    header = (ROOT / "native" / "include" / "qwen3.h").read_text(encoding="utf-8")
    guide = (ROOT / "docs" / "abi.md").read_text(encoding="utf-8")
    functions = re.findall(r"^QWEN3_API [^;]*?\b(qwen3_\w+)\(", header, flags=re.MULTILINE)
    assert len(functions) == len(re.findall(r"^QWEN3_API", header, flags=re.MULTILINE))
    statuses = re.findall(r"^  (QWEN3_\w+) = \d+", header, flags=re.MULTILINE)
    assert {"QWEN3_OK", "QWEN3_CANCELLED", "QWEN3_FINISH_LENGTH", "QWEN3_EVENT_TOKEN"} <= set(statuses)
    missing = {name for name in functions + statuses if not re.search(rf"\b{name}\b", guide)}
    assert missing == set()
    known = set(functions) | set(re.findall(r"\bqwen3_\w+", header))
    assert set(re.findall(r"`(qwen3_\w+)", guide)) <= known


def test_the_check_of_stops_can_fail() -> None:
    assert not is_defined("class Other:\n    def x(self): ...\n", "Runtime.generate", ".py")
    assert not is_defined("void Engine::other() {}\nint step;", "Engine::step", ".cpp")


def shell_lines() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    return [line.split("#")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


def test_readme_is_short() -> None:
    assert len(README.splitlines()) < 150


def test_readme_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, flags=re.MULTILINE))
    named = set(re.findall(r"`?make ([a-z][a-z0-9-]*)", README))
    assert {"demo", "test", "dist", "help"} <= named
    assert named <= targets, f"README names targets that do not exist: {named - targets}"
    helped = set(re.findall(r"^([a-z][a-z0-9-]*):.*## ", makefile, flags=re.MULTILINE))
    phony = set(re.findall(r"^\.PHONY: (\S+)", makefile, flags=re.MULTILINE))
    internal = {"build-coverage", "build-sanitize", "build-bench"}
    assert phony - internal <= helped, "`make help` lists every target"


def test_readme_commands_parse() -> None:
    commands = [line.split() for line in shell_lines() if line.startswith("qwen3-8b ")]
    assert {words[1] for words in commands} == {"pull", "info", "verify", "chat", "serve", "bench", "profile"}
    parser, _ = build_parser()
    for words in commands:
        without_question = [word for word in words[1:] if not word.startswith('"') and not word.endswith('"')]
        question = ["x"] if "--once" in words else []
        parser.parse_args([word for word in without_question if word not in ("is", "the", "sky")] + question)


def test_commands_of_the_serving_guide_parse() -> None:
    """Those of shells, of the systemd unit and of the image; and its flags exist."""
    guide = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    lines = [line.split("#")[0] for line in re.findall(r"^qwen3-8b .*$|(?<=^ExecStart=).*$", guide, flags=re.MULTILINE)]
    entry = re.search(r"^ENTRYPOINT (\[.*\])$", guide, flags=re.MULTILINE)
    assert entry is not None
    commands = [line.split() for line in lines] + [json.loads(entry.group(1))]
    assert len(commands) >= 5
    parser, parsers = build_parser()
    for words in commands:
        parser.parse_args(words[1:])
    # Flags of other programs stand in blocks of code only.
    prose = re.sub(r"```.*?```", "", guide, flags=re.DOTALL)
    others = {"--gpus", "--read-only", "--tmpfs", "--stop-timeout"}
    options = {option for action in parsers["serve"]._actions for option in action.option_strings}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", prose)) <= options | others


def test_flags_in_tables_exist_with_these_defaults() -> None:
    _, parsers = build_parser()
    options = {option: action for action in parsers["serve"]._actions for option in action.option_strings}
    operating = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`--[^|\n]+) \| [^|\n]+ \| ([^|\n]+) \|$", README + operating, flags=re.MULTILINE)
    assert len(rows) >= 13
    for flags, shown in rows:
        for flag in re.findall(r"`(--[a-z-]+)`", flags):
            assert flag in options, f"serve has no {flag}"
            if shown.strip().isdigit():
                assert options[flag].default == int(shown), f"{flag}'s default is not {shown}"


def test_readme_routes_exist() -> None:
    from qwen3app.server.state import ServerState  # noqa: F401  (the server package imports)

    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "qwen3app" / "server").glob("*.py"))
    for route in re.findall(r"`(/[a-z0-9/_]+)`", README[README.index("Routes:") : README.index("## From C")]):
        assert f'"{route}"' in source, f"the server has no route {route}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_files_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:native|qwen3app|build_tools|tests|docs)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), f"{document.name} names {name}"


def test_changelog_names_the_version_or_unreleased() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert version is not None
    assert "## [Unreleased]" in text or f"## [{version.group(1)}]" in text
