"""What is inside is what pyproject.toml says, and its licence texts are found."""

from __future__ import annotations

import io
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from qwen3app.commands import licenses

ROOT = Path(__file__).resolve().parents[4]


def test_the_list_is_that_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.split(r"[=<>; \[]", requirement)[0] for requirement in project["dependencies"]]
    assert sorted(names) == sorted(licenses.RUNTIME_DISTRIBUTIONS)


def test_what_they_need_is_followed_but_not_their_extras() -> None:
    names = {distribution.metadata["Name"].lower() for distribution in licenses.distributions(("jinja2", "nowhere"))}
    assert names == {"jinja2", "markupsafe"}


def test_names_and_texts() -> None:
    distribution = metadata.distribution("jinja2")
    assert "BSD" in licenses.license_name(distribution)
    assert any("Redistribution" in text for _, text in licenses.license_texts(distribution))


def test_a_packed_executable_brings_its_own_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "licenses").mkdir()
    (tmp_path / "licenses" / "Python 3.txt").write_text("PSF LICENSE AGREEMENT")
    (tmp_path / "LICENSE").write_text("OUR LICENSE")
    monkeypatch.setattr(sys, "_MEIPASS", str(tmp_path), raising=False)
    out = io.StringIO()
    assert licenses.run_licenses(out) == 0
    assert "PSF LICENSE AGREEMENT" in out.getvalue() and "OUR LICENSE" in out.getvalue()
    assert "docs.python.org" not in out.getvalue()


def test_who_wrote_what() -> None:
    """The project's own licence names its authors; the template that Qwen wrote keeps theirs."""
    out = io.StringIO()
    licenses.run_licenses(out)
    own, _, others = out.getvalue().partition("Qwen3's chat template")
    assert "Copyright 2026 the qwen3-8b authors" in own and "Alibaba" not in own
    assert "Copyright 2024 Alibaba Cloud" in others.partition("nlohmann-json")[0]
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in others.partition("qwen3-demo (the model")[2]
    template = (ROOT / "qwen3app" / "text" / "qwen3_chat_template.jinja").read_bytes()
    assert template == (ROOT / "tests" / "data" / "qwen3" / "chat_template.jinja").read_bytes()
    assert "Copyright 2024 Alibaba Cloud" in (ROOT / "tests" / "data" / "qwen3" / "LICENSE").read_text()


def test_no_licence_file_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(licenses, "_roots", lambda: [tmp_path])
    monkeypatch.setattr(licenses, "RUNTIME_DISTRIBUTIONS", ())
    monkeypatch.setattr(licenses, "_PROJECT", "not-installed-anywhere")
    out = io.StringIO()
    licenses.run_licenses(out)
    assert "this program" in out.getvalue()


class Bare(metadata.Distribution):
    """A distribution without licence fields whose files are gone."""

    def read_text(self, filename: str) -> str | None:
        if filename == "RECORD":
            return "x.dist-info/LICENSE,,\nx/LICENSE,,\n"
        return "Name: x\nVersion: 1\nLicense: a\n very long text\n" if filename == "METADATA" else None

    def locate_file(self, path: object) -> Path:  # type: ignore[override]
        return Path("/nowhere") / str(path)


def test_a_distribution_that_says_nothing() -> None:
    assert licenses.license_name(Bare()) == "see its files"
    assert list(licenses.license_texts(Bare())) == []
