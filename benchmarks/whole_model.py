"""Lags of language models at the size people train, with random weights, beside the passes that a diagnosis needs.

A diagnosis needs several ways there and back: one there and a few back for the lags, one each for the noise, and at every lag
that the data may depend on, some with inputs exchanged. They are counted while it runs. What they take by themselves is timed
beside it: the model's forward pass without gradients, and its way back to the input embedding with its weights frozen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.harness import Case, Op, Timing, as_timing, timed_once
from lagreach import diagnose
from lagreach.diagnosis.result import Diagnosis

LAGS = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768]
GPT2 = {"family": "GPT2LMHeadModel", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}
MAMBA = {"family": "MambaForCausalLM", "hidden_size": 768, "num_hidden_layers": 24, "state_size": 16}
LLAMA = {
    "family": "LlamaForCausalLM", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 5504,
}  # fmt: skip
SMALL_MAMBA = {"family": "MambaForCausalLM", "hidden_size": 256, "num_hidden_layers": 4, "state_size": 16}
TINY = {"family": "GPT2LMHeadModel", "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 32}
WARMING = {"sequences": 24, "time": 24, "batch": 8}
SHAPES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "full": [
        (
            "Mamba, 2 million, within layers",
            {
                "model": SMALL_MAMBA,
                "vocabulary": 1000,
                "sequences": 128,
                "time": 256,
                "batch": 128,
                "lags_of": "layers",
            },
        ),
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
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # a billion weights are drawn where they will be
        return cls(config).to(dtype).eval()


def text(shape: Mapping[str, Any]) -> Tensor:
    """Tokens of which half repeat the one nine places before: for the next token that is lag 8."""
    generator = torch.Generator().manual_seed(0)
    size = (shape["sequences"], shape["time"])
    tokens = torch.randint(0, min(shape["vocabulary"], 100), size, generator=generator)
    repeat = torch.rand(size, generator=generator) < 0.5
    for step in range(9, shape["time"]):
        tokens[:, step] = torch.where(repeat[:, step], tokens[:, step - 9], tokens[:, step])
    return tokens


class Workload:
    """A model and its data: what is timed of them, and how many sequences went there and back."""

    def __init__(self, shape: Mapping[str, Any]) -> None:
        self.shape, self.model, self.tokens = shape, build(shape), text(shape)
        self.device = next(self.model.parameters()).device
        self.lags = [lag for lag in LAGS if lag < shape["time"] * 0.8]
        self.counts = {"forward": 0, "backward": 0}

    def diagnose(self) -> Diagnosis:
        """The diagnosis, with its passes counted anew."""
        self.counts = dict.fromkeys(self.counts, 0)
        handle = self.model.register_forward_hook(self._count)
        data, lags_of = {"input_ids": self.tokens, "labels": self.tokens}, self.shape.get("lags_of", "auto")
        try:
            return diagnose(self.model, data, lags=self.lags, lags_of=lags_of, progress=False)
        finally:
            handle.remove()

    def _count(self, _: nn.Module, __: Any, output: Any) -> None:
        def back(gradient: Tensor) -> None:
            self.counts["backward"] += len(gradient)

        self.counts["forward"] += len(output.logits)
        if output.logits.requires_grad:
            output.logits.register_hook(back)

    def there(self) -> None:
        """All sequences through the model once, without gradients."""
        with torch.no_grad():
            for part in self.tokens.to(self.device).split(self.shape["batch"]):
                self.model(part, use_cache=False)
        self._wait()

    def there_and_back(self) -> None:
        """All sequences through the model and back to the input embedding once, its weights frozen."""
        learning = [weight for weight in self.model.parameters() if weight.requires_grad]
        for weight in learning:
            weight.requires_grad_(False)
        for part in self.tokens.to(self.device).split(self.shape["batch"]):
            leaf = self.model.get_input_embeddings()(part).requires_grad_()
            logits = self.model(inputs_embeds=leaf, use_cache=False).logits[:, :-1].flatten(0, 1).float()
            torch.autograd.grad(cross_entropy(logits, part[:, 1:].flatten()), leaf)
        for weight in learning:
            weight.requires_grad_()
        self._wait()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def needed(self, there: float, there_and_back: float) -> float:
        """Seconds of the passes that the last diagnosis made, by themselves."""
        ways = {"forward": there, "backward": max(0.0, there_and_back - there)}
        return sum(count / len(self.tokens) * ways[way] for way, count in self.counts.items())


def run(case: Case) -> dict[str, Timing]:
    """Seconds of a diagnosis, of the same sequences there and back once, and of all the passes that the diagnosis needs.

    Each once, after a diagnosis of few short sequences: it loads the libraries and compiles the kernels.
    """
    Workload({**case.shape, **WARMING}).diagnose()
    work = Workload(case.shape)
    timed = {"lagreach": work.diagnose, "there": work.there, "there and back": work.there_and_back}
    timings = {name: as_timing([timed_once(call)]) for name, call in timed.items()}
    one, both = timings["there"], timings["there and back"]
    cpu, wall = (tuple(map(work.needed, *times)) for times in ((one.cpu, both.cpu), (one.wall, both.wall)))
    return timings | {"passes needed": Timing(cpu, wall)}


def passes_needed(case: Case, timings: Mapping[str, Timing]) -> dict[str, float]:
    """How many times as long as the passes it needs, and as one way there and back."""
    seconds = {name: timing.wall[0] for name, timing in timings.items()}
    return {
        f"lagreach over {name}": seconds["lagreach"] / seconds[name] for name in ("passes needed", "there and back")
    }


OP = Op(
    name="whole_model",
    about="lags of language models",
    unit="diagnosis",
    guards=("tests/whole_model/test_measure.py",),
    cases=cases,
    run=run,
    clock="wall",
    derive=passes_needed,
)
