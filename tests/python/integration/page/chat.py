"""What a person does on the page, for the tests."""

from __future__ import annotations

from typing import Any


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
