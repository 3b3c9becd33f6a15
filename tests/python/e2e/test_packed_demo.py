"""The model in the box, in the packed file, on a machine that has nothing else: what a newcomer does first."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import openai
import pytest
from tmux_screen import Screen

from .conftest import ROOT, Run, Serve

SUM = "What is 57 + 38?"
LINE = "qwen3-8b: no model is here, so qwen3-demo answers, a toy inside this program. For a real one: "
LINE += "`qwen3-8b pull Qwen/Qwen3-8B --dir models/qwen3-8b`\n"


def test_one_question_without_any_model(run: Run) -> None:
    result = run("chat", "--once", SUM)
    assert (result.returncode, result.stdout, result.stderr) == (0, "57 + 38 = 95.\n", LINE)
    piped = run("chat", "--no-think", input=f"{SUM}\n")
    assert (piped.returncode, piped.stdout, piped.stderr) == (0, "57 + 38 = 95.\n", LINE)
    named = run("chat", "--model", "qwen3-demo", "--once", SUM, "--show-thinking")
    assert named.stdout == "57 + 38 = 95.\n" and "7 + 8 = 15" in named.stderr and "no model" not in named.stderr


def test_its_files_are_sound(run: Run) -> None:
    verified = run("verify", "--model", "qwen3-demo", "--json")
    assert verified.returncode == 0, verified.stdout
    info = json.loads(run("info", "--model", "qwen3-demo", "--json").stdout)
    assert "qwen3-demo" in json.dumps(info)
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in run("--licenses").stdout


def test_the_official_client_lets_it_use_a_tool(serve: Serve) -> None:
    server = serve()
    assert str(server.event("demo")).count("qwen3-8b pull Qwen/Qwen3-8B --dir models/qwen3-8b") == 1
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    get_time = {"name": "get_time", "description": "Get the local time of a city", "parameters": parameters}
    tools: Any = [{"type": "function", "function": get_time}]
    messages: list[Any] = [{"role": "user", "content": "What time is it in Tokyo?"}]
    model = client.models.list().data[0].id
    assert model == "qwen3-demo"
    asked = client.chat.completions.create(model=model, messages=messages, tools=tools).choices[0]
    assert asked.finish_reason == "tool_calls" and asked.message.tool_calls
    call: Any = asked.message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_time", {"city": "Tokyo"})
    messages += [asked.message, {"role": "tool", "tool_call_id": call.id, "content": '{"time": "14:35"}'}]
    parts = client.chat.completions.create(model=model, messages=messages, tools=tools, stream=True)
    answer = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert "14:35" in answer and "Tokyo" in answer
    client.close()


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed (apt install tmux)")
@pytest.mark.skipif(shutil.which("python3", path="/usr/bin:/bin") is None, reason="tools need a python3")
def test_a_conversation_with_thoughts_and_a_tool(packed: Path, tmp_path: Path) -> None:
    program = ["env", "-C", str(tmp_path), str(packed)]  # where there is no models/
    screen = Screen(tmp_path, columns=150, program=program, environment={"PATH": "/usr/bin:/bin"})
    try:
        screen.wait("so qwen3-demo answers", "qwen3-8b pull Qwen/Qwen3-8B", "/help lists the commands")
        screen.enter(SUM)
        screen.wait("Thinking:", "Ones: 7 + 8 = 15. Write 5, carry 1.", "\n57 + 38 = 95.")
        screen.wait("first after")
        screen.enter("/think hide")
        screen.wait("Thoughts are folded to a line")
        screen.enter("My name is Anna.")
        screen.wait("first after", count=2)
        screen.enter("What is my name?")
        screen.wait("Thinking... ", "Your name is Anna.")
        screen.enter("/reset")
        screen.wait("The conversation is empty again.")
        screen.enter("/think off")
        screen.wait("Thinking is off.")
        screen.enter(f"/tools {ROOT}/docs/example_tools.py")
        screen.wait("The model may ask for: calculator, convert_units, get_time, roll_dice.")
        screen.enter("Roll 3 dice with 6 sides.")
        screen.wait("roll_dice(count=3, sides=6)", "Run it?")
        screen.keys("y", "Enter")
        screen.wait("The dice show ")
        text = screen.wait("first after", count=4)
        (rolled,) = re.findall(r'→ \{"sum": (\d+)\}', text)
        assert f"The dice show {rolled}." in text
        screen.enter("/exit")
        screen.wait("EXIT 0")
    finally:
        screen.close()
