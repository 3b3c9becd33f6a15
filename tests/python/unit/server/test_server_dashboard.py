"""docs/grafana_dashboard.json asks only for what /metrics has."""

from __future__ import annotations

import json
import re

from fake_engine import FakeEngine
from served import ROOT
from serving import TextParts, make_model, serving

DASHBOARD = json.loads((ROOT / "docs" / "grafana_dashboard.json").read_text(encoding="utf-8"))
# words of PromQL that look like names of metrics
_WORDS = {"sum", "avg", "rate", "by", "le", "histogram_quantile", "handler", "status", "finished_reason", "model_name"}


def expressions() -> list[str]:
    queries = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    return [*queries, *(item["query"] for item in DASHBOARD["templating"]["list"] if item["type"] == "query")]


def names_in(expression: str) -> set[str]:
    bare = re.sub(r'"[^"]*"|\$\w+', "", expression)
    return set(re.findall(r"[a-z][a-z0-9_:]{2,}", bare)) - _WORDS - {"label_values"}


async def test_every_metric_of_the_dashboard_is_exported(text_parts: TextParts) -> None:
    engine = FakeEngine(lambda request, sample: text_parts.tokenizer.encode_raw("one two three"), step=0.002)
    async with serving(make_model(text_parts, engine), metrics_compat=False) as server:
        await server.chat({"stream": True})
        text = (await server.client.get("/metrics")).text
    samples = [line for line in text.splitlines() if line and not line.startswith("#")]
    exported = {re.split(r"[{ ]", line)[0] for line in samples}
    assert len(expressions()) > 30
    for expression in expressions():
        names = names_in(expression)
        assert names, expression
        assert names <= exported, f"{expression} asks for {names - exported}"
        for label in re.findall(r"by \(([\w, ]+)\)", expression):
            for name in names:
                lines = [line for line in samples if line.startswith(name)]
                assert all(f"{each}=" in lines[0] for each in label.split(", ")), f"{name} has no {label}"


def test_the_dashboards_panels_fill_the_grid() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        grid = panel["gridPos"]
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert grid["x"] + grid["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
