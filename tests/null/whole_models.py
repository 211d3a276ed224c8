"""How often does a whole model's diagnosis name a lag that is not there, and how often does it find one that is?

Fresh and trained models see targets that depend on nothing, or on one lag, or on ten. In a trained model every gradient mixes the
lag it was trained on with its neighbours, which must not be named all the same. From the root of the repository,

    python -m tests.null.whole_models --runs 200 --workers 16

prints both rates for a Transformer of numbers (also with ten weak lags at once), a Transformer and a Mamba of tokens and of text,
with the upper end of the binomial interval of the false ones; `--kinds`, `--stages` and `--planted` choose, `--first`
is the first seed.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import beta
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lagreach._util.threads import one_thread
from lagreach.data.sequences import as_sequences
from lagreach.whole_model.measure import measure_model
from lagreach.whole_model.measurement_plan import plan_model_measurement
from tests.whole_model import cases
from tests.whole_model.cases import TOKENS, hugging_face, made

TIME, LAG, ERROR = 10, 3, 0.05
NETWORKS = 8  # of each kind that are trained; seeds take turns
STEPS = {"fresh": 0, "half way": 50, "trained": 150}
PLANTED = ("nothing", "lag")
NONE_PLANTED = 64  # sequences whose targets depend on nothing
MANY_TIME, MANY_LAGS = 20, range(14)
MANY = tuple(lag for lag in MANY_LAGS if lag not in (3, 6, 9, 12))


def numbers(count: int, planted: float, seed: int) -> tuple[Tensor, Tensor]:
    """Two numbers a step; the target is the first of those three steps before, with noise, or noise alone."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, TIME, 2, generator=generator)
    y = torch.randn(count, TIME, 1, generator=generator)
    y[:, LAG:] += planted * x[:, :-LAG, :1]
    return x, y


def many_numbers(count: int, planted: float, seed: int) -> tuple[Tensor, Tensor]:
    """The same with ten lags, and more steps."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, MANY_TIME, 2, generator=generator)
    y = torch.randn(count, MANY_TIME, 1, generator=generator)
    for lag in MANY:
        y[:, lag:] += planted * x[:, : MANY_TIME - lag, :1]
    return x, y


def tokens(count: int, planted: float, seed: int) -> tuple[Tensor, Tensor]:
    """The target is the token three steps before, or any other; tokens do not depend on each other."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randint(0, TOKENS, (count, TIME), generator=generator) for _ in range(2))
    repeat = torch.rand(count, TIME, generator=generator) < planted
    y[:, LAG:] = torch.where(repeat[:, LAG:], x[:, :-LAG], y[:, LAG:])
    return x, y


def text(count: int, planted: float, seed: int) -> tuple[Tensor, Tensor]:
    """The next token repeats the one four places before, or does not: tokens then depend on each other, as in a language."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(0, TOKENS, (count, TIME + 1), generator=generator)
    repeat = torch.rand(count, TIME + 1, generator=generator) < planted
    for step in range(LAG + 1, TIME + 1):
        words[:, step] = torch.where(repeat[:, step], words[:, step - LAG - 1], words[:, step])
    return words[:, :-1], words[:, 1:]


def _transformer(seed: int) -> nn.Module:
    return made(cases.CausalTransformer, seed, inputs=2, width=16).float()


def _token_transformer(seed: int) -> nn.Module:
    return made(cases.CausalTransformer, seed, tokens=TOKENS, outputs=TOKENS, width=16).float()


def _mamba(seed: int) -> nn.Module:
    return hugging_face("MambaForCausalLM", seed, num_hidden_layers=2).float()


@dataclass(frozen=True)
class Kind:
    """A model, and data whose targets depend on some lags among those that are looked at, as strongly as it says."""

    build: Callable[[int], nn.Module]
    draw: Callable[[int, float, int], tuple[Tensor, Tensor]]
    loss: str
    strength: float
    sequences: int = 128
    true: tuple[int, ...] = (LAG,)
    lags: range = range(6)


KINDS = {
    "Transformer": Kind(_transformer, numbers, "mse", 1.0),
    "ten lags of .15": Kind(_transformer, many_numbers, "mse", 0.15, 256, MANY, MANY_LAGS),
    "ten lags of .2": Kind(_transformer, many_numbers, "mse", 0.2, 256, MANY, MANY_LAGS),
    "token Transformer": Kind(_token_transformer, tokens, "cross_entropy", 0.8),
    "Mamba": Kind(_mamba, tokens, "cross_entropy", 0.8),
    # exchanged tokens that depend on each other weigh less
    "text Transformer": Kind(_token_transformer, text, "cross_entropy", 0.8, sequences=192),
    "text Mamba": Kind(_mamba, text, "cross_entropy", 0.8, sequences=192),
}


@functools.cache
def trained(kind: str, stage: str, number: int) -> nn.Module:
    """One of the networks of a kind, trained on data that are not used again."""
    chosen = KINDS[kind]
    model = chosen.build(number)
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for step in range(STEPS[stage]):
        x, y = chosen.draw(64, chosen.strength, 10**6 + 1000 * number + step)
        output = model(x)
        output = output if isinstance(output, Tensor) else output.logits
        error = (
            (output - y).square().mean() if chosen.loss == "mse" else cross_entropy(output.flatten(0, 1), y.flatten())
        )
        optimiser.zero_grad()
        error.backward()
        optimiser.step()
    return model


@one_thread()
def named(kind: str, stage: str, planted: str, seed: int) -> set[int]:
    """Lags that the data are said to depend on."""
    chosen = KINDS[kind]
    model = trained(kind, stage, seed % NETWORKS) if STEPS[stage] else chosen.build(seed)
    count, strength = (chosen.sequences, chosen.strength) if planted == "lag" else (NONE_PLANTED, 0.0)
    data = as_sequences(chosen.draw(count, strength, seed))
    plan = plan_model_measurement(model, data, chosen.loss, chosen.lags, blocks=16, probes=1, seed=seed)
    measured = measure_model(plan, flips=399, error=ERROR)
    return {lag for lag, p in zip(plan.bands.lags, measured.test.adjusted, strict=True) if p <= ERROR}


def rates(results: Iterable[set[int]], kind: str, planted: str) -> tuple[int, int]:
    """Runs that name some lag that is not there, and how often the lags that are there are named."""
    true = set(KINDS[kind].true) if planted == "lag" else set()
    listed = list(results)
    return sum(bool(lags - true) for lags in listed), sum(len(lags & true) for lags in listed)


def upper_end(count: int, runs: int) -> float:
    """Upper end of the 95 % interval of a rate (Clopper and Pearson)."""
    return float(beta.ppf(0.975, count + 1, runs - count)) if count < runs else 1.0


def _named(item: tuple[str, str, str, int]) -> set[int]:
    warnings.simplefilter("ignore")
    return named(*item)


def main() -> None:
    """Count named lags, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    for name, values in (("kinds", KINDS), ("stages", STEPS), ("planted", PLANTED)):
        parser.add_argument(f"--{name}", default=",".join(values))
    asked = parser.parse_args()
    conditions = itertools.product(asked.kinds.split(","), asked.stages.split(","), asked.planted.split(","))
    with ProcessPoolExecutor(asked.workers) as pool:
        for kind, stage, planted in conditions:
            items = [(kind, stage, planted, seed) for seed in range(asked.first, asked.first + asked.runs)]
            # the same networks for the same worker, so that each is trained few times
            order = np.argsort([seed % NETWORKS for *_, seed in items], kind="stable")
            chunk = max(1, asked.runs // (2 * asked.workers))
            results = list(pool.map(_named, [items[i] for i in order], chunksize=chunk))
            false, right = rates(results, kind, planted)
            true = KINDS[kind].true if planted == "lag" else ()
            words = f"found {right} of {len(true) * asked.runs} lags, " if true else ""
            worst = max(sum(lag in lags for lags in results) for lag in KINDS[kind].lags if lag not in true)
            print(
                f"{kind:20s} {stage:8s} {planted:8s} {words}a false lag named {false} times of {asked.runs} "
                f"(upper end {100 * upper_end(false, asked.runs):.1f} %), the worst one {worst} times "
                f"(upper end {100 * upper_end(worst, asked.runs):.1f} %)",
                flush=True,
            )


if __name__ == "__main__":
    main()
