"""Conversations on the chat page: kept, named, deleted, exported; and the page around them."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer, calls, delta, says
from person import SECONDS, answers, ask, converse, titles, until, wait_for_end


def test_conversations_outlive_a_reload(fake: FakeServer, open_page: Any) -> None:
    fake.replies = [says("One."), says("Two.")]
    page = open_page(fake.url)
    converse(page, "first question")
    page.click("#new")
    converse(page, "second question")
    until(page, "document.querySelectorAll('.conversation').length === 2")
    assert titles(page) == ["second question", "first question"]
    page.reload()
    page.wait_for_selector("text=Two.")
    page.click(".conversation >> text=first question")
    page.wait_for_selector("text=One.")
    assert answers(page) == ["One."] and page.locator("#title").inner_text() == "first question"
    converse(page, "more")
    assert [message["content"] for message in fake.requests[-1]["messages"]] == ["first question", "One.", "more"]


def test_an_answer_goes_on_while_another_conversation_is_read(fake: FakeServer, open_page: Any) -> None:
    gate = threading.Event()
    fake.replies = [[delta(content="Slow "), gate, *says("but sure.")], says("Quick.")]
    page = open_page(fake.url)
    ask(page, "slow one")
    page.wait_for_selector(".assistant >> text=Slow")
    page.click("#new")
    converse(page, "quick one")
    assert answers(page) == ["Quick."] and page.locator(".conversation .pulse").count() == 1
    page.click(".conversation >> text=slow one")
    page.wait_for_selector(".assistant.running >> text=Slow")
    assert page.is_visible("#stop")
    gate.set()
    page.wait_for_selector("text=Slow but sure.")
    wait_for_end(page)


def test_a_tab_that_is_closed_in_mid_answer_loses_nothing(fake: FakeServer, open_page: Any) -> None:
    fake.replies = [[delta(content="Half a"), threading.Event()]]
    page = open_page(fake.url)
    ask(page, "Speak.")
    page.wait_for_selector(".assistant >> text=Half a")
    page.wait_for_selector(".conversation >> text=Speak.")
    page.reload()
    page.wait_for_selector(".note >> text=Stopped.")
    assert fake.left.wait(SECONDS) and page.locator(".bubble").inner_text() == "Speak."
    page.click("[aria-label='Answer anew']")
    page.wait_for_selector("text=Hello.")


def test_rename(fake: FakeServer, open_page: Any) -> None:
    page = open_page(fake.url)
    converse(page, "a question")
    rename = "[aria-label='Rename a question']"
    for key, name in (("Escape", "a question"), ("Enter", "A better name")):
        page.hover(".conversations li")
        page.click(rename)
        page.fill(".rename", "  A better\u202e name ")
        page.press(".rename", key)
        page.wait_for_selector(f".conversation >> text={name}")
        assert titles(page) == [name] and page.locator("#title").inner_text() == name
    converse(page, "another question")
    assert titles(page) == ["A better name"]


def test_delete_and_undo(fake: FakeServer, open_page: Any) -> None:
    page = open_page(fake.url)
    fake.replies = [says("Kept."), [delta(content="Endless"), threading.Event()]]
    converse(page, "keep me")
    page.hover(".conversations li")
    page.click("[aria-label='Delete keep me']")
    page.wait_for_selector(".greeting")
    assert titles(page) == []
    page.click(".toast >> text=Undo")
    page.wait_for_selector(".assistant >> text=Kept.")
    assert titles(page) == ["keep me"]
    ask(page, "go on")
    page.wait_for_selector("text=Endless")
    page.hover(".conversations li")
    page.click("[aria-label='Delete keep me']")
    assert fake.left.wait(SECONDS), "what is deleted is not computed any further"
    page.wait_for_selector(".greeting")
    page.reload()
    page.wait_for_selector("html[data-ready]", state="attached")
    assert titles(page) == []


def test_export_and_import(fake: FakeServer, open_page: Any, tmp_path: Path) -> None:
    fake.replies = [calls(("look", '{"at": "me"}'), thought="Hm."), says("Seen.")]
    page = open_page(fake.url)
    page.click("#open-settings")
    page.fill("[name=system]", "Be kind.")
    page.click("#close-settings")
    converse(page, "Look at <me>!")
    page.fill("#result-0", "ok")
    page.click("text=Go on with the result")
    page.wait_for_selector("text=Seen.")
    wait_for_end(page)
    with page.expect_download() as download:
        page.click("#export")
    path = tmp_path / "conversation.json"
    download.value.save_as(path)
    assert download.value.suggested_filename == "Look-at-me-.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert [message["role"] for message in kept["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert kept["messages"][2]["reasoning_content"] == "Hm."
    assert kept["messages"][2]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": "me"}'}
    page.set_input_files("#import-file", path)
    until(page, "document.querySelectorAll('.conversation').length === 2")
    assert titles(page) == ["Look at <me>!"] * 2 and answers(page)[-1] == "Seen."
    converse(page, "Still?")
    assert [message["role"] for message in fake.requests[-1]["messages"]][:2] == ["system", "user"]
    assert fake.requests[-1]["messages"][2] == {**kept["messages"][2], "content": ""}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not valid JSON"),
        ("{}", "no messages"),
        ("[]", "no messages"),
        ('[{"role": "wizard", "content": "x"}]', "Message 1 has no role"),
        (
            '[{"role": "user", "content": "x"}, {"role": "user", "content": [{"type": "image_url"}]}]',
            "Message 2 has content",
        ),
        ('[{"role": "user", "tool_calls": [{}]}]', "Message 1 has tool calls"),
        ('[{"role": "assistant", "tool_calls": [{}]}]', "without a function's name"),
        ("[null]", "Message 1 has no role"),
    ],
)
def test_files_that_are_no_conversations(
    fake: FakeServer, open_page: Any, tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text, encoding="utf-8")
    page = open_page(fake.url)
    page.set_input_files("#import-file", path)
    page.wait_for_selector(f".toast >> text={sentence}")
    assert titles(page) == []


def test_openai_messages_can_be_imported(fake: FakeServer, open_page: Any, tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]
    call = {"function": {"name": "f", "arguments": {"x": 1}}}
    messages = [{"role": "developer", "content": "Short."}, {"role": "user", "content": parts}]
    messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    path = tmp_path / "openai.json"
    path.write_text(json.dumps(messages), encoding="utf-8")
    page = open_page(fake.url)
    page.set_input_files("#import-file", path)
    page.wait_for_selector(".call >> text=f")
    page.fill("#result-0", "2")
    page.click("text=Go on with the result")
    page.wait_for_selector("text=Hello.")
    sent = fake.requests[-1]["messages"]
    assert sent[0] == {"role": "system", "content": "Short."} and sent[1]["content"] == "Hi\nyou"
    assert sent[2]["tool_calls"][0]["function"]["arguments"] == '{"x":1}'
    assert sent[3]["tool_call_id"] == sent[2]["tool_calls"][0]["id"] != ""


def test_two_tabs(fake: FakeServer, open_page: Any) -> None:
    first = open_page(fake.url)
    converse(first, "hello from one")
    second = open_page(fake.url, context=first.context)
    second.click(".conversation >> text=hello from one")
    converse(second, "and from two")
    first.wait_for_selector(".bubble >> text=and from two")
    assert len(answers(first)) == 2


def test_a_browser_that_keeps_nothing(fake: FakeServer, open_page: Any, browser: Any) -> None:
    context = browser.new_context()
    context.add_init_script(
        """for (const name of ["localStorage", "sessionStorage", "indexedDB"])
             Object.defineProperty(window, name, {get() { throw new DOMException("no", "SecurityError"); }});"""
    )
    page = open_page(fake.url, context=context)
    page.wait_for_selector(".toast >> text=keeps nothing")
    converse(page, "one")
    page.click("#new")
    converse(page, "two")
    page.click(".conversation >> text=one")
    page.wait_for_selector(".bubble >> text=one")
    context.close()


def test_a_disk_that_is_full(fake: FakeServer, open_page: Any) -> None:
    page = open_page(fake.url)
    converse(page, "one")
    page.wait_for_selector(".conversation >> text=one")
    page.evaluate(
        """() => { IDBObjectStore.prototype.put = () => { throw new DOMException("full", "QuotaExceededError"); } }"""
    )
    converse(page, "more of one")
    page.wait_for_selector(".toast >> text=space for this page is full")
    page.click("#new")
    converse(page, "two")
    page.wait_for_selector(".conversation >> text=two")
    page.click(".conversation >> text=one")  # what the disk did not take is in memory
    page.wait_for_selector(".bubble >> text=more of one")


# ------------------------------------------------------------------------------------------------ the page around them


def test_the_gauge(fake: FakeServer, open_page: Any) -> None:
    page = open_page(fake.url)
    page.wait_for_selector('#gauge[data-state="ok"] >> text=3/256')
    page.click("#gauge")
    details = page.locator("#gauge-details").inner_text()
    assert "Qwen3-8B" in details and "4.2% of 812,000 tokens" in details and "NVIDIA H200" in details
    fake.status |= {"running": 256, "waiting": 12, "kv_usage": 0.97}
    page.wait_for_selector('#gauge[data-state="full"] >> text=256/256 +12')
    sentence = page.get_attribute("#gauge", "title")
    assert sentence == "256 of 256 slots in use, 12 waiting, KV cache 97% full."


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
    fake.replies = [calls(("f", json.dumps({"long": "w" * 500})), text=WIDE, thought="v" * 500)]
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
