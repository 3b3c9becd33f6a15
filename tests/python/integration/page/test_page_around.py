"""Around the conversation on the chat page: gauge, scrolling, notices, themes, a phone, names for screen readers."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from fake_server import FakeServer, calls, delta, says
from person import ask, converse, until, wait_for_end


def test_the_gauge(fake: FakeServer, open_page: Any) -> None:
    page = open_page(fake.url)
    page.wait_for_selector('#gauge[data-state="ok"] >> text=3/256')
    page.click("#gauge")
    details = page.locator("#gauge-details").inner_text()
    assert (
        "Qwen3-8B" in details
        and "KV cache in use" in details
        and "4.2% of 812,000 tokens" in details
        and "NVIDIA H200" in details
    )
    fake.status |= {"running": 256, "waiting": 12, "kv_usage": 0.97}
    page.wait_for_selector('#gauge[data-state="full"] >> text=256/256 +12')
    sentence = page.get_attribute("#gauge", "title")
    assert sentence == "256 of 256 slots in use, 12 waiting, KV cache 97% in use."


def test_the_greeting_suits_the_model(fake: FakeServer, open_page: Any) -> None:
    page = open_page(fake.url)
    page.wait_for_selector(".example >> text=haiku")
    assert page.locator(".example").count() == 3 and page.locator(".greeting-note").count() == 0, "the page's own"
    assert page.inner_text(".greeting-model") == "Qwen3-8B"
    fake.status |= {"model": "toy", "suggestions": ["What is <b>1</b> + 1?", "Hello"], "note": "It is a toy."}
    page.wait_for_selector(".greeting-note >> text=It is a toy.")
    assert page.inner_text(".greeting-model") == "toy"
    assert page.locator(".example").all_inner_texts() == ["What is <b>1</b> + 1?", "Hello"]
    page.focus(".example >> nth=1")
    fake.status |= {"running": 4}
    page.wait_for_selector("#gauge >> text=4/256")
    assert page.evaluate("document.activeElement.textContent") == "Hello", "what has not changed is not drawn anew"
    page.click(".example >> nth=0")
    wait_for_end(page)
    assert fake.requests[-1]["messages"] == [{"role": "user", "content": "What is <b>1</b> + 1?"}]
    assert page.locator(".greeting").count() == 0
    page.click("#new")
    assert page.locator(".example").all_inner_texts() == ["What is <b>1</b> + 1?", "Hello"]


def test_a_notice_passes_unless_it_is_read(fake: FakeServer, open_page: Any) -> None:
    page = open_page(fake.url)
    page.click("#export")
    page.wait_for_selector(".toast >> text=nothing to export")
    page.hover(".toast")
    until(page, "held.size === 0")
    page.hover("#question")
    until(page, "held.size === 1")
    page.evaluate("held.forEach((run) => run())")
    assert page.locator(".toast").count() == 0


@pytest.mark.parametrize("in_the_same_frame", [False, True])
def test_the_end_stays_in_sight_until_one_scrolls_up(fake: FakeServer, open_page: Any, in_the_same_frame: bool) -> None:
    first, second = threading.Event(), threading.Event()
    lines = "".join(f"line {i}\n\n" for i in range(60))
    fake.replies = [[delta(content=lines), first, delta(content=lines), second, *says("The end.")]]
    page = open_page(fake.url)
    below = "((t) => t.scrollHeight - t.scrollTop - t.clientHeight)(document.getElementById('transcript'))"
    up = "document.getElementById('transcript').scrollBy({top: -800, behavior: 'instant'})"
    if in_the_same_frame:  # the browser then tells of the page's move and the person's with one event
        page.evaluate(f"""() => new MutationObserver((_, observer) => {{
            if (document.querySelectorAll('.markdown p').length < 59 || {below} >= 5) return;
            observer.disconnect();
            {up};
        }}).observe(document.getElementById('messages'), {{childList: true, subtree: true}})""")
    ask(page, "Much.")
    if not in_the_same_frame:
        until(page, f"document.querySelectorAll('.markdown p').length >= 59 && {below} < 5")
        assert not page.is_visible("#to-end")
        page.evaluate(up)
    page.wait_for_selector("#to-end")
    top = page.evaluate("document.getElementById('transcript').scrollTop")
    first.set()
    until(page, "document.querySelectorAll('.markdown p').length >= 119")
    assert page.evaluate("document.getElementById('transcript').scrollTop") == top
    page.click("#to-end")
    until(page, f"{below} < 5")
    second.set()
    page.wait_for_selector("text=The end.")
    until(page, f"{below} < 5")


def test_theme(fake: FakeServer, open_page: Any) -> None:
    page = open_page(fake.url, color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(22, 23, 26)"
    page.click("#open-settings")
    page.click("#theme >> text=Light")
    assert page.evaluate(background) == "rgb(253, 253, 252)"
    page.reload()
    page.wait_for_selector("html[data-theme=light]")
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.click("#open-settings")
    page.click("#theme >> text=System")
    assert page.evaluate(background) == "rgb(253, 253, 252)"
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(background) == "rgb(22, 23, 26)"


WIDE = (
    "x" * 400
    + "\n\n`"
    + "y" * 300
    + "`\n\n```\n"
    + "z" * 400
    + "\n```\n\n"
    + "|"
    + "head|" * 12
    + "\n|"
    + "-|" * 12
    + "\n|"
    + "cell|" * 12
)


def test_a_phone(fake: FakeServer, open_page: Any, browser: Any) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True)
    page = open_page(fake.url, context=context)
    fake.replies = [says("Hello."), calls(("f", json.dumps({"long": "w" * 500})), text=WIDE, thought="v" * 500)]
    page.evaluate("document.activeElement.blur()")
    page.tap(".example >> nth=0")
    wait_for_end(page)
    assert page.evaluate("document.activeElement === document.body"), "no keyboard comes up over the answer"
    converse(page, "u" * 300)
    page.click(".thought summary")
    wide = page.evaluate(
        "[document.documentElement, ...document.querySelectorAll('#transcript, .message')].map((e) => e.scrollWidth)"
    )
    assert max(wide) <= 360
    assert page.evaluate("document.getElementById('sidebar').inert")
    page.click("#open-menu")
    assert page.evaluate("document.getElementById('main').inert") and not page.evaluate(
        "document.getElementById('sidebar').inert"
    )
    page.keyboard.press("Escape")
    until(page, "document.getElementById('sidebar').inert && document.activeElement.id === 'open-menu'")
    page.click("#open-menu")
    page.click("#new")
    page.wait_for_selector(".greeting")
    assert page.evaluate("document.getElementById('sidebar').inert")
    context.close()


def test_names_for_those_who_do_not_see_it(fake: FakeServer, open_page: Any) -> None:
    gate = threading.Event()
    fake.replies = [calls(("f", "{}"), thought="Hm."), [delta(reasoning_content="Hm"), gate, *says("Done.")]]
    page = open_page(fake.url)
    converse(page, "Hi")
    until(page, "document.getElementById('announcer').textContent.includes('calls a tool')")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, textarea, select, summary, a")].filter((e) =>
             !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length)).map((e) => e.outerHTML)"""
    )
    assert nameless == []
    page.evaluate(
        """() => {
             window.said = [];
             const announcer = document.getElementById("announcer");
             new MutationObserver(() => said.push(announcer.textContent)).observe(announcer, {childList: true});
           }"""
    )
    ask(page, "Again")
    page.wait_for_selector(".thought.running")
    gate.set()
    wait_for_end(page)
    until(page, "document.getElementById('announcer').textContent === 'The answer is complete: 42 tokens.'")
    assert page.evaluate("said") == [
        "The question is sent.",
        "The model is thinking.",
        "The answer is complete: 42 tokens.",
    ]
    headings = page.locator("h1, h2").all_inner_texts()
    assert "Answer" in headings and "You" in headings
