"""The chat page on real servers, with the demo model's answers and the tiny checkpoint's: the same protocol that the
scripted server of the other tests speaks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from patience import PATIENCE
from person import answers, ask, converse, until, wait_for_end
from served import RealServer, StartServer

from qwen3app.settings import DEMO_NOTE


def test_a_conversation_with_the_model_in_the_box(demo_server: RealServer, open_page: Any) -> None:
    page = open_page(f"{demo_server.url}/")
    page.wait_for_selector('#gauge[data-state="ok"]')
    converse(page, "What is 57 + 38?")
    assert "= 95." in answers(page)[0]
    thought = page.locator(".assistant .thought-text")
    assert "7 + 8 = 15" in str(thought.text_content()) and not thought.is_visible(), "folded"
    assert " tok/s · first token after " in page.locator(".figures").inner_text()
    assert page.locator("#context").inner_text().endswith(" of 2,048 tokens")
    page.click("[aria-label='Answer anew']")
    wait_for_end(page)
    assert answers(page) == ["57 + 38 = 95."]
    converse(page, "Tell me the capital of <b>France</b>")
    assert page.locator(".error-card").count() == 0 and page.locator(".user b").count() == 0


SUGGESTED = {
    "What is 57 + 38?": r"57 \+ 38 = 95\.",
    'How many r\'s are in "strawberry"?': r"(?s)(.*\n)?(3|There are 3 in \"strawberry\"\.|The letter \"r\" .*: 3\.)",
    "What is the capital of Japan?": r"The capital of Japan is Tokyo\.|Tokyo is the capital of Japan\.",
    "Tell me a story about a fox.": r"[A-Z].*\bfox\b.{200,}\.",
}


@pytest.mark.parametrize("thinking", [True, False])
def test_the_model_in_the_box_says_that_it_is_a_toy_and_does_what_it_suggests(
    demo_server: RealServer, open_page: Any, thinking: bool
) -> None:
    page = open_page(f"{demo_server.url}/")
    page.wait_for_selector(".example")
    assert page.inner_text(".greeting-model") == "qwen3-demo" and page.inner_text(".greeting-note") == DEMO_NOTE
    assert page.locator(".example").all_inner_texts() == list(SUGGESTED)
    if not thinking:
        page.click("#think")
    for text, answer in SUGGESTED.items():
        page.click("#new")
        page.click(f".example >> nth={list(SUGGESTED).index(text)}")
        page.wait_for_selector(".user")
        wait_for_end(page)
        (said,) = answers(page)
        assert re.fullmatch(answer, said), said
        assert (page.locator(".thought").count() > 0) == thinking


def test_settings_reach_the_model_in_the_box(demo_server: RealServer, open_page: Any) -> None:
    page = open_page(f"{demo_server.url}/")
    page.wait_for_selector('#gauge[data-state="ok"]')
    page.click("#open-settings")
    page.fill("[name=system]", "USE CAPITAL LETTERS ONLY.")
    page.click("#close-settings")
    converse(page, "What is the capital of France?")
    assert "PARIS" in answers(page)[0]
    page.click("#open-settings")
    page.fill("[name=max_tokens]", "2")
    page.fill("[name=temperature]", "1.5")
    page.fill("[name=seed]", "7")
    page.click("#close-settings")
    said = "[...document.querySelectorAll('.assistant :is(.markdown, .thought-text)')].map((part) => part.textContent)"
    page.click("[aria-label='Answer anew']")
    wait_for_end(page)
    first = page.evaluate(said)
    page.click("[aria-label='Answer anew']")
    wait_for_end(page)
    assert page.evaluate(said) == first and "PARIS" not in "".join(first)


GET_TIME = """[{"name": "get_time", "description": "Get the local time of a city",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]"""


def test_a_call_that_the_model_in_the_box_makes(demo_server: RealServer, open_page: Any) -> None:
    page = open_page(f"{demo_server.url}/")
    page.click("#open-settings")
    page.fill("[name=tools]", GET_TIME)
    page.click("#close-settings")
    converse(page, "What time is it in Tokyo?")
    assert "get_time" in page.locator(".assistant .call").inner_text()
    assert '"Tokyo"' in str(page.locator(".assistant .call").text_content())
    page.fill("#result-0", '{"time": "14:35"}')
    page.click("text=Go on with the result")
    until(
        page,
        "[...document.querySelectorAll('.assistant .markdown')].some((answer) => /14:35/.test(answer.textContent))",
    )
    wait_for_end(page)
    assert "Tokyo" in answers(page)[-1]


def test_stop_frees_the_slot(real_server: RealServer, open_page: Any) -> None:
    page = open_page(f"{real_server.url}/")
    ask(page, "Speak.")
    page.wait_for_selector(".assistant.running :is(.markdown p, .thought), .figures")  # random weights may end at once
    page.keyboard.press("Escape")
    wait_for_end(page)
    until(page, "fetch('/status').then((reply) => reply.json()).then((status) => status.running === 0)")


def test_the_sentence_of_a_refusal(real_server: RealServer, open_page: Any) -> None:
    page = open_page(f"{real_server.url}/")
    converse(page, "word " * 6000)
    assert "4096" in page.locator(".error-card").inner_text().replace(",", "")
    assert "longer than the model can read" in page.locator(".error-card").inner_text()


def test_a_key_and_a_model_that_loads(
    start_server: StartServer, tiny_model_dir: Path, tmp_path: Path, open_page: Any
) -> None:
    hold = tmp_path / "go"
    server = start_server(tiny_model_dir, "--api-key", "s3cret", "--max-ctx", "4096", wait=False, hold=hold)
    page = open_page(f"{server.url}/")
    page.wait_for_selector("#key-dialog[open]")
    assert httpx.get(f"{server.url}/status", timeout=PATIENCE).status_code == 401
    page.fill("#key", "s3cret")
    page.press("#key", "Enter")
    page.wait_for_selector('#gauge[data-state="busy"]')
    ask(page, "Hello")
    page.wait_for_selector("text=Waiting for the model to be loaded")
    hold.touch()
    page.wait_for_selector(".assistant.running :is(.markdown p, .thought), .figures")
    page.wait_for_selector('#gauge[data-state="ok"]')
