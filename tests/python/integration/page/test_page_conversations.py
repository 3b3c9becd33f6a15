"""Conversations on the chat page: kept, named, deleted, exported."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer, calls, delta, says
from person import SECONDS, answers, ask, converse, n_listed, settle, titles, until, wait_for_end


def test_conversations_outlive_a_reload(fake: FakeServer, open_page: Any) -> None:
    fake.replies = [says("One."), says("Two.")]
    page = open_page(fake.url)
    converse(page, "first question")
    page.click("#new")
    converse(page, "second question")
    n_listed(page, 2)
    assert titles(page) == ["second question", "first question"]
    settle(page)
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
    assert answers(page) == ["Quick."]
    page.wait_for_selector(".conversation:has(.pulse:not([hidden])) >> text=slow one")
    page.wait_for_selector(".conversation:not(:has(.pulse:not([hidden]))) >> text=quick one")
    page.click(".conversation >> text=slow one")
    page.wait_for_selector(".assistant.running >> text=Slow")
    assert page.is_visible("#stop")
    page.evaluate("document.querySelector('li:last-child > .conversation').focus()")
    gate.set()
    page.wait_for_selector("text=Slow but sure.")
    wait_for_end(page)
    until(page, "document.querySelector('.conversation').textContent === 'slow one'")
    assert page.evaluate("document.activeElement.textContent") == "slow one"  # it has moved, with the focus


def test_a_tab_that_is_closed_in_mid_answer_loses_nothing(fake: FakeServer, open_page: Any) -> None:
    fake.replies = [[delta(content="Half a"), threading.Event()]]
    page = open_page(fake.url)
    ask(page, "Speak.")
    page.wait_for_selector(".assistant >> text=Half a")
    page.wait_for_selector(".conversation >> text=Speak.")
    page.reload()
    page.wait_for_selector(".note >> text=Stopped.")
    assert fake.left.wait(SECONDS) and page.locator(".bubble").inner_text() == "Speak."
    assert answers(page) == ["Half a"]
    page.click("[aria-label='Answer anew']")
    page.wait_for_selector("text=Hello.")


def test_the_list_may_change_under_a_press(fake: FakeServer, open_page: Any) -> None:
    """It does so by itself, when an answer begins or ends and in another tab."""
    gate = threading.Event()
    fake.replies = [says("One."), [delta(content="Slow"), gate, *says(" but sure.")]]
    page = open_page(fake.url)
    converse(page, "first")
    page.click("#new")
    ask(page, "second")
    page.wait_for_selector(".conversation:has(.pulse:not([hidden])) >> text=second")
    n_listed(page, 2)
    page.hover(".conversation >> text=first")
    page.mouse.down()
    gate.set()
    page.wait_for_selector(".assistant >> text=Slow but sure.")
    page.wait_for_selector(".conversation:not(:has(.pulse:not([hidden]))) >> text=second")
    page.mouse.up()
    page.wait_for_selector(".bubble >> text=first")


HOLD_LOADS = """() => {
  const { get } = IDBObjectStore.prototype;
  window.loads = [];  // what lets a conversation that is being loaded come
  IDBObjectStore.prototype.get = function (...key) {
    const [asked, answer] = [get.apply(this, key), {}];
    asked.onsuccess = () => loads.push(() => ((answer.result = asked.result), answer.onsuccess()));
    return answer;
  };
}"""


def test_a_conversation_that_loads_slowly_replaces_nothing_newer(fake: FakeServer, open_page: Any) -> None:
    fake.replies = [says("One."), says("Two.")]
    page = open_page(fake.url)
    converse(page, "first")
    page.click("#new")
    converse(page, "second")
    n_listed(page, 2)
    page.evaluate(HOLD_LOADS)
    page.click(".conversation >> text=first")
    until(page, "loads.length === 1")
    page.click("#new")
    page.evaluate("loads.pop()()")
    page.wait_for_selector(".greeting")
    page.click(".conversation >> text=first")
    page.click(".conversation >> text=second")
    until(page, "loads.length === 2")
    page.evaluate("loads.pop()()")
    page.wait_for_selector(".bubble >> text=second")
    page.evaluate("loads.pop()()")
    assert page.locator(".bubble").all_inner_texts() == ["second"]
    # Another tab has changed it, and before that has come here, a question is asked.
    page.evaluate("new BroadcastChannel('qwen3-chat').postMessage(location.hash.slice(1))")
    until(page, "loads.length === 1")
    converse(page, "more")
    page.evaluate("loads.pop()()")
    assert page.locator(".bubble").all_inner_texts() == ["second", "more"] and answers(page) == ["Two.", "Hello."]


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
        assert page.evaluate("document.activeElement.className") == "conversation"
    converse(page, "another question")
    assert titles(page) == ["A better name"]


def test_delete_and_undo(fake: FakeServer, open_page: Any) -> None:
    page = open_page(fake.url)
    fake.replies = [says("Kept."), [delta(content="Endless"), threading.Event()]]
    converse(page, "keep me")
    page.hover(".conversations li")
    page.click("[aria-label='Delete keep me']")
    page.wait_for_selector(".greeting")
    n_listed(page, 0)
    page.click(".toast >> text=Undo")
    page.wait_for_selector(".assistant >> text=Kept.")
    n_listed(page, 1)
    assert titles(page) == ["keep me"]
    page.hover(".conversations li")
    page.click("[aria-label='Delete keep me']")
    page.wait_for_selector(".greeting")
    page.fill("#question", "half a question")
    page.click(".toast >> text=Undo")
    n_listed(page, 1)
    assert page.is_visible(".greeting"), "who has begun another question stays with it"
    page.fill("#question", "")
    page.click(".conversation")
    page.wait_for_selector(".assistant >> text=Kept.")
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
    n_listed(page, 2)
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
    second.wait_for_selector(".bubble >> text=hello from one")
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
