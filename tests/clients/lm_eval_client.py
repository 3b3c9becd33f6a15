"""lm-evaluation-harness (local-completions) against a server, on a small task made here. Usage: URL/v1 MODEL TOKENIZER

The task has a part that is scored by log-probabilities and one that generates. Run twice: equal results.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": tempfile.mkdtemp()}

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

N = 12

CHOICE = """
task: made_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: [" yes", " no", " perhaps not"]
doc_to_target: label
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
GENERATE = """
task: made_generate
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{label}}}}"
generation_kwargs: {{until: ["\\n\\n", "Question:"], max_gen_toks: 12, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""
SCORE = """
task: made_score
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{question}}}}"
metric_list: [{{metric: bits_per_byte}}]
"""


def evaluate(url: str, model: str, tokenizer: str, folder: Path) -> dict[str, Any]:
    arguments = {
        "model": model,
        "base_url": f"{url}/completions",
        "tokenizer": tokenizer,
        "num_concurrent": 4,
        "max_retries": 1,
        "batch_size": 4,
        "max_length": 1024,
    }
    names = ["made_choice", "made_generate", "made_score"]
    result = simple_evaluate(
        model="local-completions",
        model_args=arguments,
        tasks=names,
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    assert result is not None
    samples = {name: [(s["doc_id"], s["resps"]) for s in result["samples"][name]] for name in names}
    return {"results": {name: result["results"][name] for name in names}, "samples": samples}


def main(url: str, model: str, tokenizer: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "data.jsonl"
        rows = [{"question": f"Is {i} a number that foxes like?", "label": i % 3} for i in range(N)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        for task, text in (("choice", CHOICE), ("generate", GENERATE), ("score", SCORE)):
            (folder / f"{task}.yaml").write_text(text.format(data=data))
        first, second = (evaluate(url, model, tokenizer, folder) for _ in range(2))
    assert json.dumps(first["samples"], default=str) == json.dumps(second["samples"], default=str)
    assert all(len(samples) == N for samples in first["samples"].values())
    for _, responses in first["samples"]["made_choice"]:
        assert len(responses) == 3 and all(float(response[0][0]) < 0 for response in responses), responses
    assert first["results"]["made_score"]["bits_per_byte,none"] > 0
    print("lm-eval: ok", json.dumps(first["results"], default=str))


if __name__ == "__main__":
    main(*sys.argv[1:4])
