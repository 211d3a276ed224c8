"""The analysis of the second study: on its own tables, with an oracle, and with nothing to find."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import lagreach
from lagreach.forecasting.track_record import counts
from studies.validation.learning_curves import learning_curves
from studies.validation.matching import Matched, match
from studies.validation2 import record
from studies.validation2.analysis import PRIMARY, analyse_rows, sequences_needed, share_error, weighted_median
from studies.validation2.goals import FIVE, goals, is_linear, judged
from studies.validation2.page import PAGE, RESULTS, render
from studies.validation2.returned import UNLIMITED, WITHIN_STEPS, returned
from studies.validation2.summary import RETURNED_KEYS, STAGE_KEYS, linear_folder, summary
from studies.validation2.tables import load_tables

ROWS = match(*load_tables(RESULTS))
SUMMARY = json.loads((RESULTS / "summary.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def analysis():
    return analyse_rows(ROWS, replicates=20)


def test_the_summary_is_that_of_the_tables(analysis):
    again = summary(analysis)
    for stage in STAGE_KEYS.values():
        for key in ("auroc", "auroc_between_networks", "median_share_error"):
            assert again[key][stage]["value"] == SUMMARY[key][stage]["value"]
    assert {name: again[name] for name in ("trainings", "conditions", "learned")} == {
        "trainings": 768, "conditions": 48, "learned": SUMMARY["learned"],
    }  # fmt: skip
    assert [goal["name"] for goal in again["goals"]] == [goal["name"] for goal in SUMMARY["goals"]]


def test_the_page_is_made_from_the_summary():
    text = PAGE.read_text(encoding="utf-8")
    everything = [*SUMMARY["goals"], *SUMMARY["linear_dependencies"]["claims"]]
    for goal in everything:
        assert goal["found"] in text
    assert text.count("**missed**") == sum(not goal["met"] for goal in everything)


def test_the_page_can_be_made(analysis):
    text = render(analysis, "second.md.j2")
    assert text.startswith("<!-- Made by")
    assert "once more" not in text  # without the part about linear dependencies
    assert "nan" not in text.lower().replace("finance", "")


def test_the_linear_part_has_claims_of_its_own():
    rows = match(*load_tables(linear_folder(RESULTS)))
    linear = analyse_rows(rows, replicates=20)
    assert is_linear(linear)
    assert [claim.name for claim in judged(linear)] == [c["name"] for c in SUMMARY["linear_dependencies"]["claims"]]
    again = summary(linear)["auroc"]["after_noise_free_pilot"]["value"]
    assert again == SUMMARY["linear_dependencies"]["auroc"]["after_noise_free_pilot"]["value"]


def test_what_a_forecast_returns_is_scored_beside_the_combination_of_the_protocol(analysis):
    again, stored = summary(analysis)["returned"], SUMMARY["returned"]
    for name, key in RETURNED_KEYS.items():
        for stage, word in STAGE_KEYS.items():
            assert again[key]["auroc"][word]["value"] == stored[key]["auroc"][word]["value"]
            assert again[key]["median_share_error"][word]["value"] == stored[key]["median_share_error"][word]["value"]
            said = np.fmax(ROWS.values[stage, "readable"], ROWS.values[stage, "reachable"])
            if name == WITHIN_STEPS:
                said = np.fmin(said, ROWS.values[stage, "budgeted"])
            np.testing.assert_array_equal(analysis.rows.values[stage, name], said)
    assert "not what a forecast returns" in PAGE.read_text(encoding="utf-8")


def test_a_forecast_returns_what_the_study_scores_as_returned():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 10, 2, generator=generator)
    y = torch.nn.functional.pad(x[:, :-3, :1], (0, 0, 3, 0))
    model = lagreach.GatedRNN("gru", 2, 6, 1, generator=generator)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    asked = {"lags": [1, 3, 6], "sequences": [50, 500], "directions": 8}
    for name, steps in ((UNLIMITED, {}), (WITHIN_STEPS, {"optimiser": optimiser, "steps": 30})):
        made = lagreach.forecast(model, (x, y), **asked, **steps)
        parts = {("init", part): getattr(made, part).values for part in ("readable", "reachable", "budgeted")}
        np.testing.assert_array_equal(returned(Matched({}, parts, {}), "init")[name], made.if_present.values)


def test_steps_make_high_shares_surer_and_not_the_order_of_lags():
    for stage in ("before", "after_5_percent"):
        without, told = (counts()["learned_of"][kind][stage][-1] for kind in ("unlimited", "budgeted"))
        assert told[0] / told[1] > without[0] / without[1] + 0.2
        assert told[1] < without[1]
        for part in (SUMMARY, SUMMARY["linear_dependencies"]):
            gain = part["returned"]["auroc_with_less_without"][stage]
            assert gain["low"] < 0 < gain["high"]


def with_forecast(values):
    changed = dict(ROWS.values) | {(FIVE, PRIMARY): values}
    return replace(ROWS, values={key: value for key, value in changed.items() if key in KEPT}, offered={
        key: value for key, value in ROWS.offered.items() if key in KEPT
    })  # fmt: skip


KEPT = {
    (stage, name) for stage in ("init", FIVE) for name in (PRIMARY, "readable", "n_forecast", "share_now", "capacity")
}


def test_an_oracle_meets_its_goals_and_chance_does_not():
    oracle = analyse_rows(with_forecast(np.clip(ROWS.recovered("share"), 1e-9, 1)), replicates=20)
    assert oracle.score(PRIMARY, FIVE).auroc.value == pytest.approx(1.0)
    assert oracle.score(PRIMARY, FIVE).networks.value == pytest.approx(1.0)
    assert oracle.errors[PRIMARY, FIVE].value == 0.0
    met = {goal.name: goal.met for goal in goals(oracle)}
    assert met["AUROC after 5 %"]
    assert met["median error of the forecast share after 5 %"]
    assert not met["AUROC before training"]
    values = [analyse_score(with_forecast(np.random.default_rng(seed).uniform(size=len(ROWS)))) for seed in range(20)]
    assert abs(np.mean(values) - 0.5) < 0.02


def analyse_score(rows):
    from studies.validation.analysis import prepare
    from studies.validation.scoring import auroc

    scored, _ = prepare(rows, rows.recovered("share"), 0.5, 2, 0)
    return float(auroc(rows.score(PRIMARY, FIVE), scored.learned, scored.weights))


def test_sequences_needed_of_a_prophet_and_of_one_who_always_says_never():
    recovered = ROWS.recovered("share")
    curves = learning_curves(ROWS, recovered, 0.5)
    true, never = np.full(len(ROWS), np.inf), np.full(len(ROWS), np.inf)
    for part, log_n in zip(curves.rows, curves.log_n, strict=True):
        true[part] = 2 * 10**log_n
    for values, within, distance in ((true, 1.0, np.log10(2)), (never, 0.0, np.inf)):
        rows = replace(ROWS, values={(FIVE, "n_forecast"): values})
        needed = sequences_needed(rows, curves, "n_forecast", FIVE, 10, 0)
        assert needed.within.value == within
        assert needed.distance.value == pytest.approx(distance)


def test_medians_and_errors_count_trainings_alike(analysis):
    values = np.array([5.0, 1.0, 3.0, 3.0])
    weights = np.array([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=float)
    np.testing.assert_array_equal(weighted_median(values, weights), [3.0, 5.0, np.nan])
    error = share_error(analysis.scored, PRIMARY, FIVE)
    assert error.low <= error.value <= error.high


def test_the_record_that_forecasts_quote_is_that_of_the_tables():
    assert json.loads(record.FILE.read_text()) == record.of_results(RESULTS)


def test_the_record_counts_lags_by_the_share_that_lagreach_forecast_names():
    shares = {  # of four lags; the last has no prediction
        "readable": [0.6, 0.05, 0.2, np.nan],
        "reachable": [0.1, 0.08, np.nan, np.nan],
        "budgeted": [0.3, 0.9, 0.2, 0.7],
    }
    columns = {
        "training": np.array(["a", "a", "b", "b"]), "status": np.array(["OK"] * 4),
        "share": np.array([0.9, 0.5, 0.1, 0.9]), "lag": np.arange(4),
    }  # fmt: skip
    values = {(stage, name): np.array(share) for stage in record.STAGES for name, share in shares.items()}
    rows = Matched(columns, values, {})
    made = record.counted([rows, rows])
    assert made["trainings"] == 4
    for stage in record.STAGES.values():
        assert made["learned_of"]["unlimited"][stage] == [[2, 2], [0, 2], [2, 2]]
        assert made["learned_of"]["budgeted"][stage] == [[2, 2], [2, 4], [0, 0]]
