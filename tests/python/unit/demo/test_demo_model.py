"""The demo model's training module: its exported directory equals transformers and our engine, and it learns."""

from __future__ import annotations

import json
import math
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

torch = pytest.importorskip("torch")

from demo.export import write_model  # noqa: E402
from demo.model import DemoModel, DemoShape, Muon, orthogonal  # noqa: E402
from demo.stream import TrainOptions  # noqa: E402
from demo.train import Trainer, loss_svg, write_log  # noqa: E402

from qwen3app.abi import EngineOptions  # noqa: E402
from qwen3app.runtime.loaded_model import LoadedModel  # noqa: E402

SMALL = DemoShape(vocab=1_024, hidden=64, intermediate=96, layers=3, heads=4, kv_heads=2, context=256)
LIMIT = 12_000_000  # bytes of the weights file that the repository takes


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other are slow on a busy machine."""
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)


@pytest.fixture(scope="module")
def exported(tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, DemoModel]:
    """A random model's directory, and the model with its weights rounded as the file's are."""
    model = DemoModel(SMALL, 3)
    with torch.no_grad():
        for name, param in model.named_parameters():  # larger than at the start of training: every part must matter
            param.mul_(1.0 if param.ndim == 1 else 8.0 if name.endswith(("o_proj.weight", "down_proj.weight")) else 2.0)
            param.copy_((param + (0.1 * torch.randn_like(param) if param.ndim == 1 else 0)).bfloat16().float())
    out = tmp_path_factory.mktemp("demo_export")
    write_model(model, Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json")), out)
    return out, model


def test_the_shape_fits_the_limit() -> None:
    n = sum(param.numel() for param in DemoModel(DemoShape(), 0).parameters())
    assert 5_800_000 < n < 6_000_000
    assert 2 * n + 20_000 < LIMIT  # the header of 90 tensors has about 10 KB


def test_transformers_computes_the_same_logits(exported: tuple[Path, DemoModel]) -> None:
    transformers = pytest.importorskip("transformers")
    out, model = exported
    reference = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    tokens = torch.randint(0, SMALL.vocab, (2, 130), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours, theirs = model(tokens), reference(tokens).logits
    assert theirs.std() > 0.1
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.std()))


def test_transformers_reads_the_tokenizer(exported: tuple[Path, DemoModel]) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported[0])
    messages = [{"role": "user", "content": "What is 12 + 30?"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert tokenizer("<|im_end|>").input_ids == [tokenizer.eos_token_id]
    assert tokenizer.decode(tokenizer("Déjà vu, 7!").input_ids) == "Déjà vu, 7!"


def test_our_engine_computes_the_same_logits(exported: tuple[Path, DemoModel]) -> None:
    """As close as bfloat16 activations allow; docs/numerics.md has the real bar, against transformers."""
    out, model = exported
    tokens = [int(t) for t in torch.randint(0, SMALL.vocab, (130,), generator=torch.Generator().manual_seed(2))]
    loaded = LoadedModel.load(out, EngineOptions(device="cpu", threads=1))
    try:
        assert loaded.tokenizer.eos_ids
        assert loaded.defaults.temperature == 0.0
        assert loaded.info.max_context >= SMALL.context
        ours = torch.tensor(list(loaded.engine.score_logits(tokens, len(tokens) - 1))).view(-1, SMALL.vocab)[-1]
    finally:
        loaded.close()
    with torch.no_grad():
        reference = model(torch.tensor([tokens]))[0, -1]
    error = (ours - reference).square().mean().sqrt() / reference.std()
    assert error < 0.03


def test_orthogonal_gives_singular_values_near_one() -> None:
    """The five quintic steps promise 0.7 to 1.2, for tall and wide matrices, whatever their size."""
    torch.manual_seed(0)
    for shape in ((3, 24, 64), (2, 64, 24)):
        values = torch.linalg.svdvals(orthogonal(1e-3 * torch.randn(*shape)))
        assert 0.5 < values.min() <= values.max() < 1.3


def test_muon_moves_against_the_gradient() -> None:
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(8, 16)) for _ in range(2)]
    muon = Muon(params)
    before = sum(float(p.detach().square().sum()) for p in params)
    for _ in range(10):
        for param in params:
            param.grad = 2 * param.detach().clone()
        muon.step(0.1)
    assert sum(float(p.detach().square().sum()) for p in params) < before


def test_loss_weights_choose_the_targets() -> None:
    """A row whose only weight is on one target has that target's negative log-likelihood as its loss."""
    model = DemoModel(SMALL, 0)
    rows = torch.randint(0, SMALL.vocab, (1, 9))
    weights = torch.zeros(1, 9, dtype=torch.uint8)
    weights[0, 5] = 7
    with torch.no_grad():
        expected = -torch.log_softmax(model(rows[:, :-1])[0, 4], -1)[rows[0, 5]]
        assert math.isclose(float(model.loss(rows, weights)), float(expected), rel_tol=1e-5)


def test_a_short_training_learns_and_writes_its_log(tokenizer_dir: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    options = TrainOptions(steps=40, rows=4, length=192, shard_rows=40, workers=1, log_every=8, device="cpu")
    trainer = Trainer(SMALL, options, time.perf_counter())
    head = trainer.run(tokenizer)
    assert (head["steps"], head["tokens"]) == (40, 40 * 4 * 192)
    assert [row["step"] for row in trainer.log] == [0, 8, 16, 24, 32]
    assert trainer.log[0]["loss"] == pytest.approx(math.log(SMALL.vocab), abs=0.3)
    assert trainer.log[-1]["loss"] < trainer.log[0]["loss"] - 0.4
    head["held_out"] = trainer.held_out(tokenizer, 3)
    assert {"add, two digits", "definitions", "small talk"} <= set(head["held_out"])
    assert all(scores["loss"] > 0 for scores in head["held_out"].values())
    write_log(tmp_path, head, trainer.log)
    assert json.loads((tmp_path / "training.json").read_text())["parameters"] == head["parameters"]
    lines = (tmp_path / "loss.csv").read_text().splitlines()
    assert lines[0] == "step,seconds,tokens,loss"
    assert len(lines) == 6


def test_the_curve_is_a_picture() -> None:
    log = [{"step": s, "seconds": s, "tokens": 1_000.0 * (s + 1), "loss": 8.0 / (s + 1)} for s in range(50)]
    root = ElementTree.fromstring(loss_svg(log))
    line = root.find("{http://www.w3.org/2000/svg}polyline")
    assert line is not None
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert len(points) == 50
    assert points == sorted(points)  # to the right and, as the loss falls, down the page
