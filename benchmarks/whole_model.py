"""Lags of whole models at the size people train: language models with random weights, beside the passes they need.

"passes" is what the same sequences take to go through the model and back once. A diagnosis needs more than one of them: one
way there and a few back for the lags, one each for the noise, and one for every lag at which inputs are exchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.harness import Case, Op, Timing, measure
from lagreach import diagnose

LAGS = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768]
GPT2 = {"family": "GPT2LMHeadModel", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
MAMBA = {"family": "MambaForCausalLM", "hidden_size": 768, "num_hidden_layers": 24, "state_size": 16}
LLAMA = {
    "family": "LlamaForCausalLM", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 5504,
}  # fmt: skip
TINY = {"family": "GPT2LMHeadModel", "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 32}
SHAPES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "full": [
        ("GPT-2 small", {"model": GPT2, "vocabulary": 50257, "sequences": 512, "time": 1024, "batch": 8}),
        ("Mamba, 130 million", {"model": MAMBA, "vocabulary": 50280, "sequences": 32, "time": 256, "batch": 8}),
        (
            "Transformer, 1.3 billion, bfloat16",
            {"model": LLAMA, "vocabulary": 32000, "sequences": 128, "time": 1024, "batch": 4, "type": "bfloat16"},
        ),
    ],
    "quick": [("GPT-2 small", {"model": GPT2, "vocabulary": 50257, "sequences": 32, "time": 256, "batch": 8})],
    "tiny": [("a tiny GPT-2", {"model": TINY, "vocabulary": 11, "sequences": 24, "time": 12, "batch": 8})],
}


def cases(size: str) -> list[Case]:
    """One case for each model; on a processor the large ones would take hours."""
    return [Case(name, shape, repeats=1) for name, shape in SHAPES[size]]


def build(shape: Mapping[str, Any]) -> nn.Module:
    """A model with random weights, on the GPU if there is one."""
    import transformers

    options = dict(shape["model"])
    cls = getattr(transformers, options.pop("family"))
    torch.manual_seed(0)
    config = cls.config_class(vocab_size=shape["vocabulary"], bos_token_id=0, eos_token_id=0, **options)
    dtype = getattr(torch, shape.get("type", "float32"))
    return cls(config).to("cuda" if torch.cuda.is_available() else "cpu", dtype).eval()


def text(shape: Mapping[str, Any]) -> Tensor:
    """Tokens of which half repeat the one nine places before: for the next token that is lag 8."""
    generator = torch.Generator().manual_seed(0)
    size = (shape["sequences"], shape["time"])
    tokens = torch.randint(0, min(shape["vocabulary"], 100), size, generator=generator)
    repeat = torch.rand(size, generator=generator) < 0.5
    for step in range(9, shape["time"]):
        tokens[:, step] = torch.where(repeat[:, step], tokens[:, step - 9], tokens[:, step])
    return tokens


def run(case: Case) -> dict[str, Timing]:
    """Seconds of a diagnosis, and of going through the same sequences and back once."""
    shape = case.shape
    model, tokens = build(shape), text(shape)
    device = next(model.parameters()).device
    lags = [lag for lag in LAGS if lag < shape["time"] * 0.8]

    def passes() -> None:
        for part in tokens.to(device).split(shape["batch"]):
            model.zero_grad(set_to_none=True)
            logits = model(part, use_cache=False).logits[:, :-1].flatten(0, 1).float()
            cross_entropy(logits, part[:, 1:].flatten()).backward()
        model.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize()

    def whole() -> None:
        diagnose(model, {"input_ids": tokens, "labels": tokens}, lags=lags, progress=False)

    return measure({"lagreach": whole, "passes": passes}, case.repeats)


def passes_needed(_: Case, timings: Mapping[str, Timing]) -> dict[str, float]:
    """How many times as long as one way there and back."""
    return {"lagreach over passes": timings["lagreach"].wall[0] / timings["passes"].wall[0]}


OP = Op(
    name="whole_model",
    about="lags of whole language models",
    unit="diagnosis",
    guards=("tests/whole_model/test_measure.py",),
    cases=cases,
    run=run,
    clock="wall",
    derive=passes_needed,
)
