"""The whole analysis on made-up studies with known answers, and the page that follows from it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lagreach.errors import InputError
from studies.validation import figures, words
from studies.validation.ablations import Ablation, better_variants
from studies.validation.analysis import Analysis, analyse, analyse_rows, prepare
from studies.validation.bootstrap import NOT_MEASURABLE, Estimate
from studies.validation.learning_curves import learning_curves, predicted_log_n
from studies.validation.matching import match
from studies.validation.page import page_text, summarise
from studies.validation.predictor_scores import score_all
from studies.validation.readme import BEGIN, END, readme_text
from studies.validation.tables import save_tables
from studies.validation.verdicts import best_simple, tail_sentences, uses, warnings
from tests.studies.validation.synthetic import BUDGETS, heavy_tails, outcome_row, prediction_row, study, tables

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    """12 conditions: n_probe is half a decade off at random, n_data ten times too large, paper_window useless."""
    generator = np.random.default_rng(0)
    variants = (("n_probe|params=all", 0.0), ("n_probe|strength=0.02", 2.0), ("n_probe|folds=32", 0.5))
    main = study(generator, conditions=12, noise=0.5, bias=10.0, variants=variants)
    return analyse_rows(match(*tables(*main)), match(*tables(heavy_tails(generator), [])), 0, 100, 60)


def test_a_perfect_predictor_is_perfect_whatever_its_scale(analysis):
    score = analysis.score("n_data", "init")
    values = [analysis.value for analysis in (score.auroc, score.auroc_lags, score.auroc_networks)]
    np.testing.assert_allclose(values, 1.0, rtol=1e-12)
    assert score.spearman.value == pytest.approx(1.0)
    assert score.brier.value < 0.03
    assert score.brier_claimed.value > 0.1  # it asks for ten times too many, and is taken at its word


def test_a_useless_predictor_is_useless_once_all_have_the_same_data(analysis):
    score = analysis.score("paper_window", "init")
    assert score.auroc_networks.covers(0.5)
    assert score.auroc_lags.covers(0.5)
    assert analysis.difference("n_data", "paper_window", "init").above(0.1)
    calibration = analysis.calibration("paper_window", "init")
    assert calibration.slope.covers(0.0)
    assert not calibration.slope.covers(1.0)


def test_calibration_of_a_biased_predictor(analysis):
    line = analysis.calibration("n_data", "end", "no capacity limit")
    # scores are interpolated between four numbers of sequences, which bends the line a little
    assert line.slope.value == pytest.approx(1.0, abs=0.03)
    assert line.intercept.value == pytest.approx(-1.0, abs=0.08)
    assert line.offset.value == pytest.approx(-1.0, abs=0.03)
    assert line.curves == line.seen + line.below + line.above
    assert analysis.calibration("n_probe", "init").offset.covers(0.0)


def test_a_later_stage_with_the_same_numbers_gains_nothing(analysis):
    gain = analysis.difference("n_probe", "n_probe", "end")
    assert (gain.value, gain.low, gain.high) == (0.0, 0.0, 0.0)


def test_ablations_are_judged_by_the_rule(analysis):
    verdicts = {(a.factor, a.stage): a.verdict for a in analysis.ablations}
    assert verdicts["params", "init"] == "better"
    assert verdicts["strength", "init"] == "worse"
    assert {a.factor for a in better_variants(analysis.ablations)} == {"params"}


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        (Estimate(0.019, 0.01, 0.03), "no difference"),
        (Estimate(0.02, 0.001, 0.03), "better"),
        (Estimate(0.05, -0.01, 0.1), "no difference"),
        (Estimate(-0.05, -0.08, -0.01), "worse"),
        (NOT_MEASURABLE, "not measurable"),
    ],
)
def test_the_rule_for_defaults(gain, verdict):
    assert Ablation("n_probe", "params", "all", "the study's", "init", 10, gain).verdict == verdict


def test_a_variant_that_is_worse_at_another_stage_is_not_taken():
    gains = {"init": Estimate(0.1, 0.05, 0.2), "end": Estimate(-0.1, -0.2, -0.05)}
    assert (
        better_variants(
            tuple(Ablation("n_probe", "unit", "step", "the study's", s, 10, gain) for s, gain in gains.items())
        )
        == []
    )


def test_which_limit_binds():
    scores = {4: (0.1, 0.9, 0.9, 0.9), 16: (0.0, 0.1, 0.2, 0.3), 64: (0.9, 0.9, 0.9, 0.9)}
    rows = [
        outcome_row("c", task, "gru", n, 0, lag, score)
        for task in ("dense",)
        for lag, curve in scores.items()
        for n, score in zip(BUDGETS, curve, strict=True)
    ]
    matched = match(*tables(rows, [prediction_row(row, "init", "n_probe", 10.0) for row in rows]))
    curves = learning_curves(matched, matched.recovered(), 0.5)
    limits = dict(zip(matched["lag"][curves.first].tolist(), curves.limit.tolist(), strict=True))
    assert limits == {4: "samples", 16: "optimisation", 64: "capacity"}


def test_missing_predictions_are_counted_and_never_means_not_learned():
    rows, predictions = study(np.random.default_rng(2), conditions=8, seeds=2, stages=("init",))
    for k, row in enumerate(p for p in predictions if p["predictor"] == "n_data"):
        row["value"] = {0: np.nan, 1: np.inf}.get(k % 4, row["value"])
    predictions = [p for p in predictions if p["predictor"] != "tau_max" or p["condition"] != "c0"]
    rows[0]["status"], rows[0]["score"] = "DIVERGED", np.nan
    rows[2]["score"] = np.nan
    matched = match(*tables(rows, predictions))
    scored, _ = prepare(matched, matched.recovered(), 0.5, 20, 0)
    by_name = {score.predictor: score for score in score_all(scored)}
    assert by_name["n_data"].refused == len(rows) // 4
    assert by_name["n_data"].never == len(rows) // 4
    assert by_name["tau_max"].absent == len(rows) // 8
    assert scored.recovered[0] == 0.0
    assert by_name["n_probe"].rows == len(rows) - 1
    x = matched.score("n_data", "init")
    assert (x == -np.inf).sum() == len(rows) // 4


def test_a_prediction_for_a_curve_is_the_median_of_its_trainings():
    rows = [outcome_row("c", "recall", "gru", n, 0, 4, 0.5) for n in BUDGETS]
    values = (10.0, 1000.0, np.inf, np.nan)
    matched = match(*tables(rows, [prediction_row(r, "end", "n_probe", v) for r, v in zip(rows, values, strict=True)]))
    curves = learning_curves(matched, matched.recovered(), 0.5)
    assert predicted_log_n(matched, curves, "n_probe", "end").tolist() == [3.0]


def test_tables_that_do_not_fit_are_refused():
    row = outcome_row("c", "recall", "gru", 100, 0, 4, 0.5)
    said = prediction_row(row, "init", "n_probe", 10.0)
    with pytest.raises(InputError, match="outcomes are there twice"):
        match(*tables([row, row], [said]))
    with pytest.raises(InputError, match="predictions are there twice"):
        match(*tables([row], [said, said]))
    with pytest.raises(InputError, match="nothing to analyse"):
        analyse_rows(match(*tables([row | {"task": "tails"}], [said])))  # of the first design
    assert len(match(*tables([row], [said, said | {"lag": 1}]))) == 1  # a lag without an outcome is passed over


@pytest.mark.thorough
def test_a_tiny_study_says_what_it_cannot_say(tmp_path):
    rows, predictions = study(np.random.default_rng(3), conditions=1, seeds=1, lags=(4,), stages=("init",))
    save_tables(tmp_path, *tables(rows, predictions))
    summary = summarise(tmp_path)
    text = (tmp_path / "index.md").read_text()
    assert summary.calibration("n_probe", "init").slope is NOT_MEASURABLE
    assert "not measurable" in text
    assert "## Heavy tails" not in text
    assert not (tmp_path / "figures" / "tails.png").exists()
    assert json.loads((tmp_path / "analysis.json").read_text())["scores"][0]["brier"]["value"] is None


def test_numbers_and_words_are_the_same_every_time(analysis):
    text = page_text(analysis)
    assert text == page_text(analysis)
    data = analysis.to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == json.loads(json.dumps(data))
    assert "n_probe" in str(analysis)
    assert not re.search(r"\bnan\b|\binf\b|None", text)
    assert (
        sorted(re.findall(r"\(figures/(\w+)\.png\)", text))
        == sorted(figures.drawn(analysis))
        == sorted(figures.FIGURES)
    )
    assert "`params=all` for `n_probe`" in text


def test_every_use_is_in_the_list_that_its_numbers_ask_for(analysis):
    judged = {use.sentence.split(":")[0] + use.sentence.split("`")[1]: use.judgement for use in uses(analysis)}
    face_value = "Taking its number of sequences at face value, where capacity is not the limit"
    assert judged[face_value + "n_data"] == "poor"
    assert judged["Telling which of several networks will learn a given lag from the same Nn_data"] == "good"


def test_warnings_follow_the_protocol(analysis):
    assert best_simple(analysis, "init") == "data_per_lag"
    assert not any("is better than" in sentence for sentence in warnings(analysis))


def with_tails(analysis, clipped, alpha, exponent):
    effect = next(e for e in analysis.tails if (e.clipped, e.alpha) == (clipped, alpha))
    return replace(analysis, tails=(replace(effect, exponent=exponent),))


@pytest.mark.parametrize(
    ("exponent", "said", "warned"),
    [
        (Estimate(2.6, 2.2, 3.0), "2.60 [2.20, 3.00], 2.67 being predicted: as predicted.", False),
        (Estimate(2.2, 1.9, 2.5), "2.20 [1.90, 2.50], 2.67 being predicted: not as predicted.", True),
        (Estimate(2.4, 1.8, 3.0), "2.40 [1.80, 3.00], 2.67 being predicted: which cannot be told from 2.00.", True),
        (NOT_MEASURABLE, "the exponent could not be measured.", True),
    ],
)
def test_every_verdict_about_tails_has_its_words(analysis, exponent, said, warned):
    changed = with_tails(analysis, False, 1.6, exponent)
    (sentence,) = tail_sentences(changed)
    assert sentence.startswith("Plain training (exponent kappa): at alpha = 1.6 the exponent")
    assert sentence.endswith(said)
    assert sentence in page_text(changed)
    assert any("exponents of heavy tails were not all shown" in one for one in warnings(changed)) == warned
    verdict = changed.tails[0].verdict
    assert readme_text(changed).endswith(f"the exponent of N was, of 1 cases, {verdict} in 1.")


def test_without_the_part_about_tails_its_claims_are_theory(analysis):
    changed = replace(analysis, tails=())
    assert warnings(changed)[-1] == "The exponents of heavy tails were not measured: what is said about them is theory."
    assert "heavy-tailed" not in readme_text(changed)


def test_the_part_about_tails_is_found_beside_the_main_one(tmp_path):
    rows, predictions = study(np.random.default_rng(3), conditions=1, seeds=1, lags=(4,), stages=("init",))
    first_design = outcome_row("old", "tails", "diag_gate", 100, 0, 4, 0.5, clip=False, noise_alpha=1.3)
    save_tables(tmp_path / "main", *tables([*rows, first_design], predictions))
    assert analyse(tmp_path / "main").tails == ()
    heavy = heavy_tails(np.random.default_rng(0), seeds=2, lags=(1, 2))
    for name in ("main-tails", "elsewhere"):
        save_tables(tmp_path / name, *tables(heavy, []))
    analysed = analyse(tmp_path / "main")
    assert analysed.counts.tail_trainings == len({row["training"] for row in heavy})
    assert analysed.tails == analyse(tmp_path / "main", tails=tmp_path / "elsewhere").tails
    assert [(e.clipped, e.alpha) for e in analysed.tails] == [(c, a) for c in (False, True) for a in (2.0, 1.6, 1.3)]
    with pytest.raises(InputError, match="no tables"):
        analyse(tmp_path / "main", tails=tmp_path / "nowhere")


@pytest.mark.parametrize(("offset", "words_of_it"), [(1.5, "not be read as enough"), (-1.5, "far fewer"), (0.9, None)])
def test_a_number_ten_times_off_is_warned_of_in_the_right_direction(analysis, offset, words_of_it):
    line = replace(
        analysis.calibration("n_probe", "init", "samples"), offset=Estimate(offset, offset - 0.1, offset + 0.1)
    )
    said = warnings(replace(analysis, calibrations=(line,)))
    far = [sentence for sentence in said if "factor of ten" in sentence]
    assert [words_of_it in sentence for sentence in far] == ([True] if words_of_it else [])


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.91, 0.99, "very well"),
        (0.81, 0.99, "well"),
        (0.71, 0.9, "fairly well"),
        (0.55, 0.9, "better than chance, but not reliably"),
        (0.45, 0.9, "no better than chance, as far as can be told"),
        (0.2, 0.4, "worse than chance"),
    ],
)
def test_words_follow_the_whole_interval(low, high, expected):
    assert words.how_well(Estimate((low + high) / 2, low, high)) == expected


def test_words_for_differences_and_calibration():
    assert words.compared(Estimate(0.1, 0.05, 0.2)) == "is better than"
    assert words.compared(Estimate(0.0, 0.0, 0.0)) == "cannot be told from"
    assert words.judgement(Estimate(0.0, 0.0, 0.0), 0.0) == "open"
    small, wide = Estimate(0.3, 0.2, 0.4), Estimate(0.9, 0.8, 1.0)
    assert words.calibration_judgement(Estimate(0.1, -0.1, 0.3), small) == "good"
    assert words.calibration_judgement(Estimate(0.1, -0.1, 0.3), wide) == "poor"
    assert words.calibration_judgement(Estimate(-1.0, -1.2, -0.8), small) == "poor"
    assert words.calibration_judgement(Estimate(0.4, 0.2, 0.6), small) == "open"
    assert words.calibration_judgement(NOT_MEASURABLE, small) == "open"
    assert words.number(-0.001) == "0.00"
    assert words.factor(Estimate(-1.0, -1.3, -0.7)) == "0.1 [0.05, 0.2]"


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "results" / "validation").exists(), reason="no results of the study are committed yet")
def test_the_page_is_what_the_command_makes():
    analysed = analyse(ROOT / "results" / "validation")
    assert (ROOT / "docs" / "validation" / "index.md").read_text() == page_text(analysed)
    assert f"{BEGIN}\n{readme_text(analysed)}\n{END}" in (ROOT / "docs" / "window.md").read_text()
