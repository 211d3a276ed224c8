"""What `lagreach.testing.check_statistic` checks."""

from __future__ import annotations

import pickle
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from lagreach._util.generators import seeded
from lagreach._util.threads import one_thread
from lagreach.diagnosis.assemble import assemble
from lagreach.diagnosis.curves import with_curves
from lagreach.diagnosis.diagnose import diagnose
from lagreach.diagnosis.files import load_diagnosis
from lagreach.diagnosis.layer import gains_and_rates
from lagreach.diagnosis.measure import plan_measurement
from lagreach.diagnosis.passes import FirstPass, SecondPass, between_passes, first_pass, merged, second_pass
from lagreach.diagnosis.settings import MeasureSettings
from lagreach.gradients.measurement_plan import MeasurementPlan
from lagreach.models.gated_rnn import GatedRNN
from lagreach.statistics import LagCurve, LagStatistic, all_statistics, check_statistics
from lagreach.statistics._statistic import DEPENDENCES, STATES

LAGS, BLOCKS, SEQUENCES, TIME = [0, 1, 2, 5], 8, 32, 10


@one_thread()
def check(statistic: LagStatistic, seed: int) -> str:
    """Measure a statistic in several ways that must agree."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the statistic .* was left out")  # which is all that a diagnosis says
        return _checked(statistic, seed)


def _checked(statistic: LagStatistic, seed: int) -> str:
    check_statistics([statistic])
    generator = seeded(seed)
    model = GatedRNN("diag_gate", 2, 4, 1, gate_init=0.3, generator=generator, dtype=torch.float64)
    x = torch.randn(SEQUENCES, TIME, 2, generator=generator, dtype=torch.float64)
    y = 0.3 * torch.randn(SEQUENCES, TIME, 1, generator=generator, dtype=torch.float64)
    y[:, 2:] += x[:, :-2, :1]
    settings = MeasureSettings(blocks=BLOCKS, probes=2, flips=199, seed=seed)
    passed = ["curve"]
    if statistic.reads & {STATES, DEPENDENCES}:
        plan = plan_measurement(model, (x, y), "mse", LAGS, settings=settings)
        whole = _measured(plan, statistic, settings, [range(BLOCKS)])
        shards = [[5, 2], [7, 0, 1], [3, 6, 4]]
        _compare("merged from shards", _measured(plan, statistic, settings, shards), whole)
        one_pair = replace(plan, memory=1)
        _compare("measured one pair at a time", _measured(one_pair, statistic, settings, [range(BLOCKS)]), whole)
        passed += ["shards merged", "small pieces", "pickles"]
    ours = statistic.name in all_statistics()
    diagnosis = diagnose(
        model,
        (x, y),
        lags=LAGS,
        settings=replace(settings, seed=0),
        statistics=() if ours else (statistic,),
        progress=False,
    )
    curve = diagnosis.layers[0].window.curves.get(statistic.name)
    assert curve is not None, f"{statistic.name} drew no curve for a network of gated units"
    assert curve.name == statistic.name, f"the curve is called {curve.name!r}, its statistic {statistic.name!r}"
    assert curve.lags.tolist() == LAGS, f"the curve of {statistic.name} has lags {curve.lags.tolist()}, not {LAGS}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "diagnosis.nc"
        diagnosis.save(path)
        _compare(
            "read back from a file", load_diagnosis(path).layers[0].window.curves[statistic.name], curve, exactly=True
        )
    return f"{statistic.name}: ok ({', '.join([*passed, 'file'])})"


def _measured(
    plan: MeasurementPlan, statistic: LagStatistic, settings: MeasureSettings, shards: Sequence[Sequence[int]]
) -> LagCurve | None:
    """Measure in shards, every accumulator pickled on its way as if it came from another process."""
    chosen = all_statistics() | {statistic.name: statistic}
    parts = [pickle.loads(pickle.dumps(first_pass(plan, chosen, blocks).collected)) for blocks in shards]
    means = first_pass(plan, {}).means
    between = between_passes(plan, means, settings)
    later = [pickle.loads(pickle.dumps(second_pass(plan, between, chosen, settings, b).collected)) for b in shards]
    noise = second_pass(plan, between, {}, settings).noise
    first = FirstPass(means, merged(parts))
    second = SecondPass(noise, merged(later))
    window, collected = assemble(plan, first, between, second, settings, chosen), first.collected | second.collected
    return with_curves(window, *gains_and_rates(plan), chosen, collected).curves.get(statistic.name)


def _compare(how: str, one: LagCurve | None, other: LagCurve | None, *, exactly: bool = False) -> None:
    if one is None or other is None:
        assert one is other, f"there is a curve, but none when {how}"
        return
    for name, values in one.numbers.items():
        expected = other.numbers[name]
        np.testing.assert_allclose(
            values, expected, rtol=0 if exactly else 1e-8, atol=0 if exactly else 1e-12, err_msg=f"{name}, {how}"
        )
