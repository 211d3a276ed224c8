"""Ctrl-C in the middle of a diagnosis: what was measured before is kept."""

import numpy as np
import torch
from torch import nn

import lagreach
from lagreach.diagnosis import layer as layer_module
from lagreach.diagnosis import measure as measure_module
from lagreach.types import Status


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.GRU(2, 6, batch_first=True), nn.GRU(6, 6, batch_first=True)
        self.read = nn.Linear(6, 1)

    def forward(self, x):
        return self.read(self.second(self.first(x)[0])[0])


def test_an_interrupt_at_the_start_of_the_noise_leaves_the_lags_without_their_numbers(
    model, data, diagnosis, tmp_path, monkeypatch
):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(measure_module, "second_pass", stop)
    partial = lagreach.diagnose(model, data, lags=[0, 1, 3, 8], require=[5])
    partial.save(tmp_path / "part.nc")
    for one in (partial, lagreach.load(tmp_path / "part.nc")):
        window = one.layers[0].window
        assert one.partial
        assert window.dependences == diagnosis.layers[0].window.dependences == (3,)
        assert np.isnan(window.required.sequences).all()
        assert np.isnan(window.probe.sequences).all()
        assert {*window.required.status, *window.probe.status} == {Status.INTERRUPTED}
        assert any("interrupted before the noise" in warning for warning in window.warnings)
        assert "unknown" in str(one)
        one.report(tmp_path / "part.html")
    np.testing.assert_array_equal(partial.layers[0].fidelity.log10_exact, diagnosis.layers[0].fidelity.log10_exact)


def test_an_interrupt_of_the_last_sums_loses_nothing(model, data, diagnosis, monkeypatch):
    for module, name in ((measure_module, "assemble"), (layer_module, "fit_tail")):
        with monkeypatch.context() as patched:
            original, times = getattr(module, name), []

            def once(*args, original=original, times=times, **options):
                times.append(1)
                if len(times) == 1:
                    raise KeyboardInterrupt
                return original(*args, **options)

            patched.setattr(module, name, once)
            interrupted = lagreach.diagnose(model, data, lags=[0, 1, 3, 8], require=[5])
        assert interrupted.partial
        assert len(times) == 2
        np.testing.assert_array_equal(interrupted.required.values, diagnosis.required.values)


def test_an_interrupt_keeps_the_window_before_gains_and_the_layers_before(data, monkeypatch):
    torch.manual_seed(0)
    model, done = TwoLayers(), []
    original = layer_module.gains_and_rates

    def stop_at_the_second(plan):
        done.append(plan)
        if len(done) == 2:
            raise KeyboardInterrupt
        return original(plan)

    monkeypatch.setattr(layer_module, "gains_and_rates", stop_at_the_second)
    partial = lagreach.diagnose(model, data, lags=[0, 3], lags_of="layers")
    assert partial.partial
    assert [one.fidelity.status is Status.INTERRUPTED for one in partial.layers] == [False, True]
    assert np.isfinite(partial.layers[1].window.probe.sequences).all()

    def stop(plan, *_):
        if plan.view.name == "second":
            raise KeyboardInterrupt
        return first_pass(plan, *_)

    monkeypatch.setattr(layer_module, "gains_and_rates", original)
    first_pass = measure_module.first_pass
    monkeypatch.setattr(measure_module, "first_pass", stop)
    partial = lagreach.diagnose(model, data, lags=[0, 3], lags_of="layers")
    assert partial.partial
    assert [one.name for one in partial.layers] == ["first"]
    assert "interrupted: second not measured" in partial.warnings


def test_an_interrupt_of_the_first_pass_leaves_the_blocks_before_and_counts_them(
    model, data, diagnosis, tmp_path, monkeypatch
):
    """What was planned was counted, and only a field of the result said that it is partial."""
    original, asked = measure_module.first_pass, []

    def stop_at_the_second(plan, chosen, blocks, tick, sums):
        asked.append(plan.block_plan.only(range(blocks.stop)).sequences)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return original(plan, chosen, blocks, tick, sums)

    monkeypatch.setattr(measure_module, "first_pass", stop_at_the_second)
    lagreach.diagnose(model, data, lags=[0, 3]).save(tmp_path / "part.nc")
    partial = lagreach.load(tmp_path / "part.nc")
    assert partial.partial
    assert partial.settings["partial"] is True
    assert "partial" not in diagnosis.settings
    assert partial.settings["used"] == asked[0] < diagnosis.settings["used"]
    assert "which is partial" in str(partial).replace("\n", " ")
