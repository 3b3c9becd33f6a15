"""Answers on the chat page: how they come, stop, fail, and are asked for again."""

from __future__ import annotations

import re
import threading
from typing import Any

from fake_server import CUT, FakeServer, Refusal, calls, delta, says, usage
from person import SECONDS, answers, ask, converse, until, wait_for_end

WEATHER = '[{"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]'


def roles(fake: FakeServer, request: int = -1) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in fake.requests[request]["messages"]]


def test_an_answer_and_its_figures(fake: FakeServer, open_page: Any) -> None:
    gate = threading.Event()
    fake.replies = [[delta(role="assistant"), delta(content="One **two"), gate, delta(content="** three."), *says("")]]
    fake.replies[0][-1] = usage(n_prompt=1234, n_tokens=42, cached=1000)
    page = open_page(fake.url)
    ask(page, "Count.")
    page.wait_for_selector(".assistant.running p >> text=One **two")  # on the screen before it is complete
    assert page.is_visible("#stop") and not page.is_visible("#send")
    gate.set()
    wait_for_end(page)
    assert page.locator(".markdown").inner_html() == '<p dir="auto">One <strong>two</strong> three.</p>'
    figures = page.locator(".figures").inner_text()
    parts = r"42 tokens · 87\.3 tok/s · first token after [\d.]+ (s|min \d+ s) · prompt 1,234 tokens, 1,000 cached"
    assert re.fullmatch(parts, figures), figures
    page.wait_for_selector("#context >> text='1,276 of 40,960 tokens'")  # once the server's status has come too
    assert page.locator(".bubble").inner_text() == "Count."
    assert page.evaluate("document.activeElement.id") == "question"
    [request] = fake.requests
    assert request == {
        "messages": [{"role": "user", "content": "Count."}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_keys(fake: FakeServer, open_page: Any) -> None:
    page = open_page(fake.url)
    page.press("#question", "Enter")  # nothing to send
    page.type("#question", "one")
    page.press("#question", "Shift+Enter")
    page.type("#question", "two")
    # An input method is choosing a word with Enter: nothing is sent.
    page.evaluate(
        """() => document.getElementById("question").dispatchEvent(
             new KeyboardEvent("keydown", {key: "Enter", isComposing: true, bubbles: true, cancelable: true}))"""
    )
    assert page.input_value("#question") == "one\ntwo" and fake.requests == []
    page.press("#question", "Enter")
    wait_for_end(page)
    assert roles(fake) == [("user", "one\ntwo")]
    assert page.locator(".bubble").inner_text() == "one\ntwo" and page.input_value("#question") == ""


def test_stop_frees_the_server_and_keeps_what_came(fake: FakeServer, open_page: Any) -> None:
    page = open_page(fake.url)
    for stop in (lambda: page.keyboard.press("Escape"), lambda: page.click("#stop")):
        fake.left.clear()
        fake.replies = [[delta(content="Half an"), threading.Event()]]
        ask(page, "Speak.")
        page.wait_for_selector(".assistant.running >> text=Half an")
        stop()
        assert fake.left.wait(SECONDS), "the server was not told"
        wait_for_end(page)
    assert answers(page) == ["Half an", "Half an"]
    assert page.locator(".note").all_inner_texts() == ["Stopped.", "Stopped."]
    converse(page, "Go on.")
    assert roles(fake)[:2] == [("user", "Speak."), ("assistant", "Half an")] and len(roles(fake)) == 5


def test_a_thought_is_folded(fake: FakeServer, open_page: Any) -> None:
    thinking, answering = threading.Event(), threading.Event()
    fake.replies = [
        [delta(reasoning_content="I wonder <b>"), thinking, delta(reasoning_content=" why"), answering, *says("Yes.")]
    ]
    page = open_page(fake.url)
    ask(page, "Really?")
    page.wait_for_selector(".thought.running >> text=Thinking")
    assert not page.is_visible(".thought-text")
    page.click(".thought summary")
    assert page.locator(".thought-text").inner_text() == "I wonder <b>"
    page.wait_for_selector("text=/Thinking [1-9][0-9]* s/")  # it counts
    thinking.set()
    page.wait_for_selector("text=I wonder <b> why")
    answering.set()
    wait_for_end(page)
    page.wait_for_selector(".thought:not(.running) >> text=/Thought for [0-9.]+ s|Thought for .* min/")
    assert answers(page) == ["Yes."]
    page.click("#think")
    converse(page, "Again?")
    assert fake.requests[-1]["enable_thinking"] is False
    assert fake.requests[-1]["messages"][1]["reasoning_content"] == "I wonder <b> why"
    page.click("#think")
    converse(page, "And now?")
    assert fake.requests[-1]["enable_thinking"] is True and "enable_thinking" not in fake.requests[0]


def test_settings_reach_the_server(fake: FakeServer, open_page: Any) -> None:
    page = open_page(fake.url)
    page.wait_for_selector('#gauge[data-state="ok"]')
    page.click("#open-settings")
    assert page.get_attribute("[name=temperature]", "placeholder") == "0.6"
    assert page.get_attribute("[name=min_p]", "placeholder") == "off"
    given: dict[str, Any] = {"temperature": 0.2, "top_p": 0.9, "top_k": 5, "min_p": 0.05, "max_tokens": 77, "seed": 3}
    for name, value in given.items():
        page.fill(f"[name={name}]", str(value))
    page.fill("[name=system]", "Be brief.")
    page.fill("[name=budget]", "512")
    page.fill("[name=tools]", "[{")
    assert "not valid JSON" in page.locator("#tools-error").inner_text()
    page.fill("[name=tools]", '[{"name": 5}]')
    assert "Tool 1 is no function" in page.locator("#tools-error").inner_text()
    page.fill("[name=tools]", WEATHER)
    assert page.locator("#tools-error").inner_text() == ""
    page.fill("[name=top_p]", "7")  # out of range: marked, and not taken over
    page.keyboard.press("Escape")
    until(page, "document.activeElement.id === 'open-settings'")
    converse(page, "Hi")
    request = fake.requests[-1]
    assert {name: request[name] for name in given} == given
    assert roles(fake) == [("system", "Be brief."), ("user", "Hi")] and request["thinking_budget"] == 512
    assert request["tools"][0]["function"]["name"] == "get_weather" and request["tools"][0]["type"] == "function"
    page.click("#new")  # new conversations begin with what was chosen last
    page.click("#open-settings")
    assert page.input_value("[name=system]") == "Be brief." and page.input_value("[name=seed]") == "3"
    page.click("#reset-settings")
    assert page.input_value("[name=system]") == ""
    page.click("#close-settings")
    converse(page, "Hi")
    assert set(fake.requests[-1]) == {"messages", "stream", "stream_options"}


def test_tools_that_are_no_json_are_said(fake: FakeServer, open_page: Any) -> None:
    page = open_page(fake.url)
    page.click("#open-settings")
    page.fill("[name=tools]", "{")
    page.click("#close-settings")
    converse(page, "Hi")
    assert "The tools are not valid JSON" in page.locator(".error-card").inner_text() and fake.requests == []


def test_a_tool_call_and_its_result(fake: FakeServer, open_page: Any) -> None:
    fake.replies = [
        calls(("get_weather", '{"city": "Paris"}'), ("get_time", "{broken"), text="One moment."),
        says("It is sunny."),
    ]
    page = open_page(fake.url)
    converse(page, "Weather?")
    cards = page.locator(".call").all_inner_texts()
    assert "get_weather" in cards[0] and '{\n  "city": "Paris"\n}' in cards[0] and "{broken" in cards[1]
    page.fill("#result-0", '{"sky": "clear"}')
    page.click("text=Go on with the result")  # the second result is missing
    assert len(fake.requests) == 1
    page.fill("#result-1", "noon")
    page.click("text=Go on with the result")
    page.wait_for_selector("text=It is sunny.")
    wait_for_end(page)
    messages = fake.requests[-1]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert messages[1]["tool_calls"][0] == {
        "id": "call-0",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    }
    assert [(message["tool_call_id"], message["content"]) for message in messages[2:]] == [
        ("call-0", '{"sky": "clear"}'),
        ("call-1", "noon"),
    ]
    assert page.locator(".result-form").count() == 0
    page.click("text=Result of get_weather")
    assert page.locator(".result pre").first.inner_text() == '{\n  "sky": "clear"\n}'


def test_retry_and_undo(fake: FakeServer, open_page: Any) -> None:
    fake.replies = [says("First."), says("Second.")]
    page = open_page(fake.url)
    converse(page, "Say something.")
    page.click("[aria-label='Answer anew']")
    page.wait_for_selector("text=Second.")
    wait_for_end(page)
    assert answers(page) == ["Second."] and roles(fake) == [("user", "Say something.")]
    page.click(".toast >> text=Undo")
    page.wait_for_selector("text=First.")
    assert answers(page) == ["First."]


def test_keys_go_to_the_question_after_a_click(fake: FakeServer, open_page: Any) -> None:
    fake.replies = [says("First."), says("Second."), says("Third.")]
    page = open_page(fake.url)
    page.click(".example >> nth=0")
    wait_for_end(page)
    page.keyboard.type("half")
    assert page.input_value("#question") == "half"
    page.click("[aria-label='Answer anew']")
    page.wait_for_selector("text=Second.")
    wait_for_end(page)
    page.keyboard.type(" a question")
    assert page.input_value("#question") == "half a question"
    page.click(".toast >> text=Undo")
    page.wait_for_selector("text=First.")
    page.keyboard.type(", now whole")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Third.")
    wait_for_end(page)
    assert roles(fake)[-1] == ("user", "half a question, now whole")


def test_what_takes_a_change_back_ends_with_the_conversation_it_belongs_to(fake: FakeServer, open_page: Any) -> None:
    fake.replies = [says(word) for word in ("First.", "Second.", "Third.", "Fourth.", "Fifth.")]
    page = open_page(fake.url)
    converse(page, "Say something.")
    for answer in ("Second.", "Third."):
        page.click("[aria-label='Answer anew']")
        page.wait_for_selector(f"text={answer}")
        wait_for_end(page)
        assert page.locator(".toast").all_inner_texts() == ["The answer is replaced.\nUndo"]  # one, and true
    converse(page, "Go on.")
    assert page.locator(".toast").count() == 0, "one has gone on from it"
    page.click(".assistant >> nth=1 >> [aria-label='Answer anew']")
    page.wait_for_selector("text=Fifth.")
    wait_for_end(page)
    page.click("#new")
    page.wait_for_selector(".greeting")
    assert page.locator(".toast").count() == 0, "another conversation is shown"


def test_edit_goes_on_from_there(fake: FakeServer, open_page: Any) -> None:
    fake.replies = [says("One."), says("Two."), says("Three.")]
    page = open_page(fake.url)
    converse(page, "first")
    converse(page, "second")
    page.hover(".user >> nth=0")
    page.click(".user >> nth=0 >> [aria-label='Edit the message']")
    assert page.input_value(".edit") == "first"
    page.press(".edit", "Escape")
    assert page.locator(".edit").count() == 0 and len(answers(page)) == 2
    page.hover(".user >> nth=0")
    page.click(".user >> nth=0 >> [aria-label='Edit the message']")
    page.fill(".edit", "changed")
    page.press(".edit", "Enter")
    page.wait_for_selector("text=Three.")
    wait_for_end(page)
    assert page.locator(".bubble").all_inner_texts() == ["changed"] and answers(page) == ["Three."]
    assert roles(fake) == [("user", "changed")]


def test_retry_while_an_answer_comes(fake: FakeServer, open_page: Any) -> None:
    fake.replies = [says("Old."), [delta(content="Slow"), threading.Event()], says("New.")]
    page = open_page(fake.url)
    converse(page, "one")
    ask(page, "two")
    page.wait_for_selector("text=Slow")
    page.hover(".user >> nth=0")
    page.click(".assistant >> nth=0 >> [aria-label='Answer anew']")
    assert fake.left.wait(SECONDS)
    page.wait_for_selector("text=New.")
    wait_for_end(page)
    assert answers(page) == ["New."] and roles(fake) == [("user", "one")]


# --------------------------------------------------------------------------------------------------------------- errors


def test_errors_are_one_sentence_and_a_button(fake: FakeServer, open_page: Any) -> None:
    refusal = Refusal(429, "queue_full", "1,024 requests are waiting already; try again later.")
    event = {"error": {"message": "The device failed.", "code": "engine_failed"}}
    shown = threading.Event()  # a browser drops what it has not read when a connection breaks
    fake.replies = [
        refusal,
        [delta(content="Half"), event],
        [delta(content="Torn"), shown, CUT],
        [delta(content="No end")],
        says("At last."),
    ]
    fake.replies[3].append({"error": None, "choices": []})  # ends without [DONE]
    page = open_page(fake.url)
    ask(page, "Hi")
    for sentence, kept in (
        ("1,024 requests are waiting already; try again later.", ""),
        ("The device failed.", "Half"),
        ("broke off in the middle", "Torn"),
        ("broke off: the server ended it", "No end"),
    ):
        if kept == "Torn":
            page.wait_for_selector(".assistant >> text=Torn")
            shown.set()
        page.wait_for_selector(f".error-card >> text={sentence}")
        wait_for_end(page)
        assert page.locator(".error-card").count() == 1 and answers(page) == [kept]
        page.click(".error-card button")
    page.wait_for_selector("text=At last.")
    wait_for_end(page)
    assert answers(page) == ["At last."] and roles(fake) == [("user", "Hi")]


def test_a_context_that_is_full_is_explained(fake: FakeServer, open_page: Any) -> None:
    fake.replies = [Refusal(400, "context_length_exceeded", "The prompt has 50,000 tokens.")]
    page = open_page(fake.url)
    converse(page, "A long story")
    assert "longer than the model can read" in page.locator(".error-card").inner_text()
    page.click(".error-card >> text=New conversation")
    assert page.locator(".message").count() == 0 and page.is_visible(".greeting")


def test_a_server_that_is_gone(fake: FakeServer, open_page: Any) -> None:
    page = open_page(fake.url)
    page.context.set_offline(True)
    converse(page, "Anybody?")
    assert "The server cannot be reached" in page.locator(".error-card").inner_text()
    page.wait_for_selector('#gauge[data-state="off"] >> text=Offline')
    page.context.set_offline(False)
    page.click(".error-card button")
    page.wait_for_selector("text=Hello.")
    page.wait_for_selector('#gauge[data-state="ok"]')


def test_trying_again_means_the_question_that_failed(fake: FakeServer, open_page: Any) -> None:
    """Also where the server went away in the middle of its answer, stays away, and the page is loaded anew."""
    shown = threading.Event()
    fake.replies = [says("One."), [delta(content="Half"), shown, CUT], says("Two.")]
    page = open_page(fake.url)
    converse(page, "first")
    ask(page, "second")
    page.wait_for_selector(".assistant >> text=Half")
    page.context.set_offline(True)  # nobody is there; the answer that comes still does
    shown.set()
    page.wait_for_selector(".error-card >> text=broke off in the middle")
    wait_for_end(page)
    for sentence in ("cannot be reached", "cannot be reached"):
        page.click(".error-card button")
        page.wait_for_selector(f".error-card >> text={sentence}")
        wait_for_end(page)
    assert len(fake.requests) == 2
    page.context.set_offline(False)
    page.reload()
    page.click(".error-card button")
    page.wait_for_selector("text=Two.")
    wait_for_end(page)
    assert answers(page) == ["One.", "Two."] and page.locator(".error-card").count() == 0
    assert roles(fake) == [("user", "first"), ("assistant", "One."), ("user", "second")]


def test_a_question_behind_one_that_failed(fake: FakeServer, open_page: Any) -> None:
    """Each answer's button asks what stands before that answer."""
    refusal = Refusal(429, "queue_full", "1,024 requests are waiting already; try again later.")
    fake.replies = [refusal, refusal, says("Third time."), says("First.")]
    page = open_page(fake.url)
    converse(page, "first")
    converse(page, "second")
    page.click(".error-card button >> nth=1")
    page.wait_for_selector("text=Third time.")
    wait_for_end(page)
    assert roles(fake) == [("user", "first"), ("user", "second")]
    page.click(".error-card button")  # of the first answer
    page.wait_for_selector("text=First.")
    wait_for_end(page)
    assert roles(fake) == [("user", "first")] and answers(page) == ["First."]
    page.click(".toast >> text=Undo")
    page.wait_for_selector("text=Third time.")


def test_a_model_that_is_loading_is_waited_for(fake: FakeServer, open_page: Any) -> None:
    fake.loading = 0.42
    page = open_page(fake.url)
    page.wait_for_selector('#gauge[data-state="busy"] >> text=Loading 42%')
    ask(page, "Hello?")
    page.wait_for_selector("text=Waiting for the model to be loaded, 42%")
    fake.loading = None
    page.wait_for_selector("text=Hello.")
    wait_for_end(page)
    assert len(fake.requests) == 1
    fake.loading = 0.5
    ask(page, "Once more?")
    page.wait_for_selector("text=Waiting for the model to be loaded, 50%")
    page.click("#stop")  # waiting can be stopped too
    wait_for_end(page)
    assert page.locator(".note").inner_text() == "Stopped."


def test_the_key_is_asked_for_and_kept_in_the_tab(fake: FakeServer, open_page: Any) -> None:
    fake.key = "s3cret"
    page = open_page(fake.url)
    page.wait_for_selector("#key-dialog[open] >> text=This server needs an API key.")
    border = "getComputedStyle(document.getElementById('key')).borderTopColor"
    accent, danger = "rgb(81, 81, 205)", "rgb(180, 35, 24)"
    assert page.evaluate(border) == accent, "nothing is wrong yet"
    page.click("#key-form [type=submit]")
    assert page.evaluate(border) == danger
    page.fill("#key", "wrong")
    page.press("#key", "Enter")
    page.wait_for_selector("#key-dialog[open] >> text=does not know this API key")
    assert page.evaluate(border) == accent
    page.fill("#key", "s3cret")
    page.press("#key", "Enter")
    page.wait_for_selector('#gauge[data-state="ok"]')
    converse(page, "Hi")
    assert answers(page) == ["Hello."]
    page.reload()
    page.wait_for_selector('#gauge[data-state="ok"]')
    assert not page.is_visible("#key-dialog")
    kept = page.evaluate("JSON.stringify([{...localStorage}, location.href, document.cookie])")
    assert "s3cret" not in kept
    page.click("#open-settings")
    page.click("#forget-key")
    page.click("#close-settings")
    ask(page, "Still there?")
    page.click("#key-cancel")
    wait_for_end(page)
    assert "API key" in page.locator(".error-card").inner_text()
