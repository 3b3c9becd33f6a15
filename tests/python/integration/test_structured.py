"""Constrained answers of a real server on the tiny random model: whatever it would like to say, the answer is valid."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import jsonschema
import openai
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE, wait_until
from served import RealServer, StartServer, compilers_of, gone

CLOSED = {"additionalProperties": False}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "日本"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    **CLOSED,
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "boolean"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["v", "next"],
            **CLOSED,
        }
    },
    "$ref": "#/$defs/node",
}
COMPACT = {"disable_any_whitespace": True}


def chat(server: RealServer, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 800, "enable_thinking": False} | fields
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE)


def choices(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.status_code == 200, reply.text
    result: list[dict[str, Any]] = reply.json()["choices"]
    return result


def streamed(server: RealServer, **fields: Any) -> tuple[str, str, str | None]:
    """Content, reasoning and finish reason, put together from a stream."""
    content, reasoning, finish = "", "", None
    for line in chat(server, stream=True, **fields).text.splitlines():
        if not line.startswith("data: {"):
            continue
        data = json.loads(line.removeprefix("data: "))
        assert "error" not in data, data
        for choice in data["choices"]:
            content += choice["delta"].get("content") or ""
            reasoning += choice["delta"].get("reasoning_content") or ""
            finish = choice["finish_reason"] or finish
    return content, reasoning, finish


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> dict[str, Any]:
    """JSON schemas of the kinds that clients send; every value they allow is short."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern"]
    if depth:
        kinds += ["object", "array", "anyOf"]
    kind = draw(st.sampled_from(kinds))
    if kind == "string":
        return {"type": "string", "minLength": draw(st.integers(0, 2)), "maxLength": draw(st.integers(2, 6))}
    if kind == "integer":
        low = draw(st.integers(-1000, 1000))
        return {"type": "integer", "minimum": low, "maximum": low + draw(st.integers(0, 1000))}
    if kind == "number":
        return {"type": "number", "minimum": 0, "maximum": draw(st.integers(1, 100))}
    if kind == "enum":
        values = st.one_of(st.text(max_size=4), st.integers(-5, 5), st.none(), st.booleans())
        return {"enum": draw(st.lists(values, min_size=1, max_size=4, unique_by=repr))}
    if kind == "const":
        return {"const": draw(st.sampled_from(["x", 1, None, {"a": ["\n", '"']}, [True, "é"]]))}
    if kind == "pattern":
        return {"type": "string", "pattern": draw(st.sampled_from(["^[a-z]{2,4}$", "^\\d{4}-\\d{2}$", "^(a|bc)$"]))}
    if kind == "object":
        names = draw(st.lists(st.sampled_from(["a", "b c", 'q"', "ключ", "z"]), min_size=1, max_size=3, unique=True))
        required = draw(st.lists(st.sampled_from(names), unique=True))
        properties = {name: draw(schemas(depth - 1)) for name in names}
        return {"type": "object", "properties": properties, "required": required, **CLOSED}
    if kind == "array":
        return {"type": "array", "items": draw(schemas(depth - 1)), "maxItems": 3}
    if kind == "anyOf":
        return {"anyOf": [draw(schemas(depth - 1)) for _ in range(2)]}
    return {"type": kind}


@settings(max_examples=25)
@given(schema=schemas(), seed=st.integers(0, 2**40), temperature=st.sampled_from([0.0, 1.0, 3.0]))
def test_answers_meet_any_schema(
    real_server: RealServer, schema: dict[str, Any], seed: int, temperature: float
) -> None:
    fields = {
        "structured_outputs": {"json": schema, **COMPACT},
        "seed": seed,
        "temperature": temperature,
        "repetition_penalty": 1.3,  # a greedy random model would say one digit or letter for ever
    }
    choice = choices(chat(real_server, **fields))[0]
    content = choice["message"]["content"]
    assert streamed(real_server, **fields) == (content, "", choice["finish_reason"])
    if choice["finish_reason"] == "length":
        return  # a number may have any number of digits
    jsonschema.validate(json.loads(content), schema)


@settings(max_examples=25)
@given(
    pattern=st.sampled_from(
        [
            "[ab]{3}x",
            "[0-9]{3}-[0-9]{4}",
            "(yes|no)( maybe)?",
            "é+日{2}",
            "[A-Z][à-ÿ]{0,5}!",
            "a.{0,3}b",
            "^x$",
            "",
            "a\nb",
        ]
    ),
    seed=st.integers(0, 2**40),
)
def test_answers_match_a_pattern_to_the_letter(real_server: RealServer, pattern: str, seed: int) -> None:
    for fields in ({"guided_regex": pattern}, {"structured_outputs": {"regex": pattern}}):
        choice = choices(chat(real_server, seed=seed, **fields))[0]
        assert choice["finish_reason"] == "stop"
        assert re.fullmatch(pattern, choice["message"]["content"]), choice


@pytest.mark.parametrize(
    "text", ["e\u0301", "Vie\u0323\u0302t Nam", "\u1112\u1161\u11ab\u1100\u116e\u11a8.txt", "\u212b"]
)
def test_text_that_the_tokenizer_would_normalise_is_enforced_to_the_letter(real_server: RealServer, text: str) -> None:
    """As names of files are spelled on some systems."""
    schema = {"type": "object", "properties": {text: {"const": text}}, "required": [text], **CLOSED}
    fields: list[tuple[dict[str, Any], str]] = [
        ({"structured_outputs": {"choice": [text]}}, text),
        ({"structured_outputs": {"regex": re.escape(text) + "!"}}, text + "!"),
        ({"structured_outputs": {"json": schema} | COMPACT}, json.dumps({text: text}, ensure_ascii=False)),
    ]
    for asked, answer in fields:
        choice = choices(chat(real_server, **asked))[0]
        content = choice["message"]["content"]
        assert (content.replace('": "', '":"'), choice["finish_reason"]) == (answer.replace('": "', '":"'), "stop")


def test_choices_and_grammars(real_server: RealServer) -> None:
    names = ["red", "green", "blue", 'a "quoted"\nline', "日本", ""]
    for seed in range(6):
        for fields in ({"guided_choice": names}, {"structured_outputs": {"choice": names}}):
            assert choices(chat(real_server, seed=seed, **fields))[0]["message"]["content"] in names
        for grammar in ('root ::= "a" | "b" root', 'start: "b"* "a"\n'):
            content = choices(chat(real_server, seed=seed, guided_grammar=grammar, max_tokens=400))[0]["message"][
                "content"
            ]
            assert re.fullmatch("b*a", content)


@pytest.mark.parametrize("schema", [PERSON, TREE])
def test_response_format_with_samples_logprobs_and_stops(real_server: RealServer, schema: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    found = choices(
        chat(real_server, response_format=form, n=4, seed=7, logprobs=True, top_logprobs=2, max_tokens=3000)
    )
    assert [choice["index"] for choice in found] == [0, 1, 2, 3]
    assert len({choice["message"]["content"] for choice in found}) > 1
    for choice in found:
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)
        tokens = choice["logprobs"]["content"]
        assert b"".join(bytes(token["bytes"]) for token in tokens).decode() == choice["message"]["content"]
    stopped = choices(chat(real_server, response_format=form, seed=7, stop=['"'], max_tokens=3000))[0]
    assert stopped["finish_reason"] == "stop" and '"' not in stopped["message"]["content"]


def test_json_mode_cut_by_the_limit_is_a_length(real_server: RealServer) -> None:
    choice = choices(chat(real_server, response_format={"type": "json_object"}, max_tokens=5))[0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("{")


def test_completions_take_constraints_too(real_server: RealServer) -> None:
    body = {"prompt": ["one", "two <think>"], "n": 2, "guided_regex": "[0-9]{4}", "max_tokens": 40, "seed": 1}
    found = choices(httpx.post(f"{real_server.url}/v1/completions", json=body, timeout=PATIENCE))
    assert len(found) == 4
    assert all(re.fullmatch("[0-9]{4}", choice["text"]) for choice in found)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["a", 1]}}}
    body = {"prompt": "one", "response_format": form, "max_tokens": 40}
    found = choices(httpx.post(f"{real_server.url}/v1/completions", json=body, timeout=PATIENCE))
    assert json.loads(found[0]["text"]) in ("a", 1)
    body = {"prompt": "one", "guided_regex": "a", "max_tokens": 0, "echo": True, "logprobs": 1}
    assert choices(httpx.post(f"{real_server.url}/v1/completions", json=body, timeout=PATIENCE))[0]["text"] == "one"


def control(server: RealServer, text: str) -> int:
    reply = httpx.post(f"{server.url}/tokenize", json={"prompt": text}, timeout=PATIENCE).json()
    assert reply["count"] == 1
    token: int = reply["tokens"][0]
    return token


@pytest.fixture(scope="module")
def thinking_server(
    start_server: StartServer, tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> RealServer:
    """The tiny checkpoint with a template that opens every thought, as Thinking-2507's does."""
    directory = tmp_path_factory.mktemp("thinker") / "model"
    shutil.copytree(tiny_model_dir, directory)
    own = directory / "chat_template.jinja"
    config = json.loads((directory / "tokenizer_config.json").read_text())
    source = own.read_text() if own.exists() else config["chat_template"]
    own.write_text(source + "{%- if add_generation_prompt %}{{- '<think>\\n' }}{%- endif %}")
    return start_server(directory, "--max-ctx", "4096")


@pytest.mark.parametrize("opened_by", ["model", "prompt"])
@pytest.mark.parametrize("closed_by", ["model", "budget"])
def test_b40_b41_a_thought_is_free_and_the_answer_behind_it_valid(
    real_server: RealServer, thinking_server: RealServer, opened_by: str, closed_by: str
) -> None:
    server = real_server if opened_by == "model" else thinking_server
    bias = {}
    if opened_by == "model":  # most likely the first token, and one of many behind it
        bias[str(control(server, "<think>"))] = 8
    fields: dict[str, Any] = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": PERSON}},
        "enable_thinking": True,
        "max_tokens": 3000,
    }
    if closed_by == "budget":
        fields["thinking_budget"] = 12
    else:
        bias[str(control(server, "</think>"))] = 7
    fields["logit_bias"] = bias
    thoughts = 0
    for seed in range(4):
        reply = chat(server, seed=seed, **fields)
        choice = choices(reply)[0]
        message = choice["message"]
        jsonschema.validate(json.loads(message["content"]), PERSON)
        thoughts += message["reasoning_content"] is not None
        if closed_by == "budget" and message["reasoning_content"]:
            assert reply.json()["usage"]["completion_tokens_details"]["reasoning_tokens"] >= 12
        expected = (message["content"], message["reasoning_content"] or "", "stop")
        assert streamed(server, seed=seed, **fields) == expected
    assert thoughts


def test_b26_a_thought_that_is_cut_is_reasoning_also_under_a_constraint(real_server: RealServer) -> None:
    bias = {str(control(real_server, "<think>")): 100}
    choice = choices(
        chat(real_server, guided_regex="a+", enable_thinking=True, logit_bias=bias, max_tokens=20, ignore_eos=True)
    )[0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] in (None, "")


def test_b42_b49_without_thinking_the_first_token_is_the_answers(real_server: RealServer) -> None:
    opened = httpx.post(f"{real_server.url}/tokenize", json={"prompt": '{"'}, timeout=PATIENCE).json()["tokens"][0]
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": PERSON}}
    choice = choices(chat(real_server, response_format=form, logit_bias={str(opened): 20}, max_tokens=3000))[0]
    assert choice["message"]["content"].startswith("{")
    jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)


@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 50}, {"min_tokens": 50, "ignore_eos": True}])
def test_an_answer_that_can_only_end_ends(real_server: RealServer, fields: dict[str, Any]) -> None:
    for pattern in ("[ab]{3}", "", "a"):
        choice = choices(chat(real_server, guided_regex=pattern, max_tokens=60, **fields))[0]
        assert choice["finish_reason"] == "stop"
        assert re.fullmatch(pattern, choice["message"]["content"])


def test_an_end_is_no_text_of_a_constrained_answer(real_server: RealServer) -> None:
    """Where EOS is to be passed over and shown, too: what the model ends with would not be what was asked for."""
    ends = {str(control(real_server, "<|im_end|>")): 5}
    shown = {"ignore_eos": True, "skip_special_tokens": False, "logit_bias": ends, "n": 8, "max_tokens": 60}
    found = choices(chat(real_server, guided_regex="[ab]{2,40}", seed=1, **shown))
    assert all(re.fullmatch("[ab]{2,40}", choice["message"]["content"]) for choice in found)
    assert {choice["finish_reason"] for choice in found} == {"stop"}
    assert any(len(choice["message"]["content"]) < 40 for choice in found)  # some ended before they had to
    content, _, finish = streamed(real_server, guided_regex="[ab]{2,40}", seed=1, **{**shown, "n": 1})
    assert (content, finish) == (found[0]["message"]["content"], "stop")


def test_b83_preempted_samples_stay_valid(start_server: Any, tiny_model_dir: Any) -> None:
    """A pool for a few samples only: most are preempted and computed again."""
    server = start_server(tiny_model_dir, "--max-ctx", "512", "--kv-gb", "0.003", "--slots", "16")
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": PERSON}}
    found = choices(chat(server, response_format=form, n=32, seed=1, max_tokens=450))
    assert len(found) == 32
    for choice in found:
        if choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)
    assert sum(choice["finish_reason"] == "stop" for choice in found) > 16
    metrics = httpx.get(f"{server.url}/metrics", timeout=PATIENCE).text
    preempted = re.search(r"^vllm:num_preemptions_total\S* (\S+)", metrics, re.M)
    assert preempted is not None and float(preempted.group(1)) > 0
    server.stop()


NASTY: list[tuple[str, dict[str, Any]]] = [
    ("foo", {"type": "object", "properties": {"foo": "bar"}}),
    ("", {"type": "objekt"}),
    ("items", {"type": "array", "items": {"$ref": "#/$defs/nowhere"}}),
    ("", {"$ref": "#"}),
    ("", json.loads('{"type":"array","items":' * 200 + "{}" + "}" * 200)),
    ("", {"enum": [f"{i:010}" for i in range(100_000)]}),
    ("items", {"type": "array", "items": {"type": "array", "uniqueItems": True}}),
    ("", {"type": "integer", "minimum": 3, "maximum": 1}),
    ("", {"type": "object", "uniqueItems": True, "x-guidance": {"lenient": True}, "not": {}}),
]


@pytest.mark.parametrize("count", [1, 1.0])
def test_an_integer_with_a_point_is_an_integer_in_every_field(real_server: RealServer, count: float) -> None:
    schema = {"type": "array", "minItems": count, "maxItems": count, "items": {"const": 7}}
    arguments = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "f", "parameters": arguments}}
    for fields in (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
        {"response_format": {"type": "json_object", "schema": schema}},
        {"structured_outputs": {"json": schema}},
        {"guided_json": schema},
        {"guided_json": json.dumps(schema)},
        {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False},
    ):
        (choice,) = choices(chat(real_server, **fields))
        assert choice["finish_reason"] in ("stop", "tool_calls"), fields
        calls = choice["message"].get("tool_calls")
        said = json.loads(calls[0]["function"]["arguments"])["a"] if calls else json.loads(choice["message"]["content"])
        assert said == [7], fields


@pytest.mark.parametrize(("place", "schema"), NASTY)
def test_b44_schemas_that_cannot_be_used(real_server: RealServer, place: str, schema: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    reply = chat(real_server, response_format=form)
    assert reply.status_code == 400, reply.text[:300]
    error = reply.json()["error"]
    assert error["param"].startswith("response_format.json_schema.schema")
    assert error["param"].endswith(place) and error["message"].startswith(error["param"])
    assert choices(chat(real_server, guided_choice=["ok"]))[0]["message"]["content"] == "ok"


@pytest.mark.parametrize(
    "pattern",
    ["(", "[z-a]", "a{2,1}", "(?<=x)y", r"\p{Foo}", "(?!a)b", r"(a)\1", "a^b", "(" * 20_000 + "a" + ")" * 20_000],
)
def test_b45_patterns_that_cannot_be_used(real_server: RealServer, pattern: str) -> None:
    for fields in ({"guided_regex": pattern}, {"structured_outputs": {"regex": pattern}}):
        reply = chat(real_server, **fields)
        assert reply.status_code == 400, reply.text
        assert reply.json()["error"]["param"] in ("guided_regex", "structured_outputs.regex")


def test_b47_an_escaped_exclamation_mark_is_enforced(real_server: RealServer) -> None:
    schema = {"type": "string", "pattern": r"^hello there indeed\!$"}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    choice = choices(chat(real_server, response_format=form))[0]
    assert json.loads(choice["message"]["content"]) == "hello there indeed!"


@pytest.mark.parametrize("pattern", ["(a+)+$", "(x{1,1000}){1,1000}", "(.*a.{18}|.*b.{17}|.*c.{16})*", ".*" * 200])
def test_b48_patterns_that_explode_elsewhere(real_server: RealServer, pattern: str) -> None:
    """Either refused in time, or enforced."""
    reply = chat(real_server, guided_regex=pattern, max_tokens=30)
    assert reply.status_code in (200, 400)
    if reply.status_code == 400:
        assert reply.json()["error"]["code"] in ("invalid_constraint", "constraint_too_complex")


class Step(pydantic.BaseModel):
    """As users of the official client write it."""

    explanation: Annotated[str, pydantic.Field(max_length=20)]
    sure: bool


class Answer(pydantic.BaseModel):
    steps: Annotated[list[Step], pydantic.Field(max_length=2)]
    colour: Literal["red", "blue"]
    note: int | None


@pytest.mark.parametrize("stream", [False, True])
def test_the_official_client_parses_answers(real_server: RealServer, stream: bool) -> None:
    client = openai.OpenAI(base_url=f"{real_server.url}/v1", api_key="none", max_retries=0)
    options: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "response_format": Answer,
        "seed": 3,
        "max_tokens": 3000,
        "extra_body": {"enable_thinking": False},
    }
    if stream:
        with client.chat.completions.stream(**options) as events:
            for _ in events:
                pass
            completion = events.get_final_completion()
    else:
        completion = client.chat.completions.parse(**options)
    message = completion.choices[0].message
    assert isinstance(message.parsed, Answer)
    assert message.parsed == Answer.model_validate_json(message.content or "")


def test_a_compilation_that_stands_still_is_ended_alone(start_server: StartServer, tiny_model_dir: Path) -> None:
    """Its process takes no more than its time, and the request after it gets another one."""
    server = start_server(tiny_model_dir)
    free = {"max_tokens": 8}
    assert chat(server, **free).status_code == 200
    assert compilers_of(server.process.pid) == [], "free answers need none"
    assert choices(chat(server, guided_choice=["yes"]))[0]["message"]["content"] == "yes"
    (compiler,) = compilers_of(server.process.pid)
    compiler.send_signal(signal.SIGSTOP)
    assert choices(chat(server, guided_choice=["yes"]))[0]["message"]["content"] == "yes", "it is known"
    reply = chat(server, guided_choice=["no"])
    assert reply.status_code == 400 and gone(compiler)
    error = reply.json()["error"]
    assert error["message"] == "guided_choice takes longer than 5 s to compile; make it simpler."
    assert (error["param"], error["code"]) == ("guided_choice", "constraint_too_complex")
    assert "a process that compiles constraints was ended" in server.log
    assert choices(chat(server, guided_choice=["no"]))[0]["message"]["content"] == "no"
    assert len(compilers_of(server.process.pid)) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_servers_compiler_ends_with_it(
    start_server: StartServer, tiny_model_dir: Path, number: signal.Signals
) -> None:
    server = start_server(tiny_model_dir)
    choices(chat(server, guided_choice=["yes"]))
    (compiler,) = compilers_of(server.process.pid)
    server.stop(number)
    wait_until(lambda: gone(compiler), "the process lives on")
    assert "Traceback" not in server.log
