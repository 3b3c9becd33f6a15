"""What a person does on the page, for the tests."""

from __future__ import annotations

import time
from typing import Any

SECONDS = 100  # for anything that must come


def ask(page: Any, text: str) -> None:
    page.fill("#question", text)
    page.press("#question", "Enter")


def wait_for_end(page: Any) -> None:
    """Until no answer is being made."""
    page.wait_for_selector("#send:not([hidden])")


def converse(page: Any, text: str) -> None:
    ask(page, text)
    wait_for_end(page)


def answers(page: Any) -> list[str]:
    """What the answers on the page say."""
    texts: list[str] = page.locator(".assistant .markdown").all_inner_texts()
    return texts


def titles(page: Any) -> list[str]:
    found: list[str] = page.locator(".conversation-title").all_inner_texts()
    return found


def n_listed(page: Any, count: int) -> None:
    """Until the list has so many conversations. It is read from the disk, so that it comes later than all else."""
    until(page, f"document.querySelectorAll('.conversation').length === {count}")


def settle(page: Any) -> None:
    """Until what the page has written is on the disk: what is asked for after it waits for it."""
    page.evaluate(
        """() => new Promise((resolve, reject) => {
             const opening = indexedDB.open("qwen3-chat");
             opening.onerror = reject;
             opening.onsuccess = () => {
               const asked = opening.result.transaction(["heads", "bodies"]).objectStore("bodies").count();
               asked.onerror = reject;
               asked.onsuccess = () => resolve(opening.result.close());
             };
           })"""
    )


def until(page: Any, expression: str) -> None:
    """Until a JavaScript expression is true. Playwright's own wait is eval, which the page's policy forbids."""
    deadline = time.monotonic() + SECONDS
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"it did not come: {expression}"
        page.wait_for_timeout(20)
