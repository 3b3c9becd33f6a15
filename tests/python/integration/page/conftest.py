"""A browser on the chat page, over a scripted server (fake_server.py) or a real one.

Needs Playwright and a Chromium: Debian's `chromium`, or the one that QWEN3_CHROMIUM names. Without them these tests are
skipped, and say so. They wait for what must come, with a limit that a busy machine keeps.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer
from person import SECONDS

from qwen3app.server.page import assets


def find_chromium() -> str | None:
    return os.environ.get("QWEN3_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


# Not for the whole session: while Playwright is there, its event loop runs in this thread, and no other may.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (pip install playwright)")
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("there is no Chromium: apt install chromium, or name one in QWEN3_CHROMIUM")
    sync_api.expect.set_options(timeout=SECONDS * 1000)
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=240_000)
        yield started
        started.close()


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    server_state = FakeServer()
    server = server_state.start()
    yield server_state
    server.shutdown()
    server.server_close()


Open = Callable[..., Any]
# A notice passes after a while, which a busy machine may need until a test looks at it: here it stays until the test
# runs what is in `held`.
_SHOWN = re.search(rb"const SHOWN = (\d+);", assets()["/static/notices.js"].body)
assert _SHOWN is not None
NOTICES_STAY = """(() => {
  const [set, clear] = [window.setTimeout, window.clearTimeout];
  const held = (window.held = new Map());
  let last = 0;
  const hold = (run) => held.set(--last, run) && last;
  window.setTimeout = (run, wait, ...rest) => (wait === SHOWN ? hold(run) : set(run, wait, ...rest));
  window.clearTimeout = (id) => held.delete(id) || clear(id);
})()""".replace("SHOWN", _SHOWN[1].decode())


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """open_page(url, **context options): the page, ready for input. Errors of its scripts and breaches of its policy
    fail the test."""
    contexts, troubles = [], []

    def on_console(message: Any) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            troubles.append(message.text)

    def start(url: str, context: Any = None, **options: Any) -> Any:
        if context is None:
            context = browser.new_context(viewport={"width": 1200, "height": 800}, accept_downloads=True, **options)
            contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(SECONDS * 1000)
        page.on("console", on_console)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.add_init_script(NOTICES_STAY)
        page.goto(url)
        page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield start
    for context in contexts:
        context.close()
    assert troubles == []
