"""The page as a file: self-contained, escaped, complete; several diagnoses, labels and studies."""

import json
import math
import re
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

import numpy as np
import pytest

import lagreach
from lagreach.diagnosis.files import encode
from lagreach.diagnosis.result import KEPT_NOISE, NoiseSample
from lagreach.errors import InputError
from lagreach.report import study_page, write_report
from lagreach.report.html import SCRIPTS
from lagreach.report.payload import make_payload, to_json
from lagreach.report.words import TERMS, named, sentence
from lagreach.report.writing import explained
from tests.report.cases import CASES, HOSTILE, bare, gated, layered, refused, whole


def written(diagnoses, tmp_path, **options):
    return write_report(diagnoses, tmp_path / "report.html", **options).read_text(encoding="utf-8")


def payload_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


@pytest.mark.parametrize("name", CASES)
def test_one_file_with_everything_in_it(name, tmp_path):
    diagnosis = CASES[name]()
    page = written(diagnosis, tmp_path)
    assert len(page.encode()) < 1e6
    head = page[: page.index("<script")]
    assert re.findall(r'(?:src|href)="(?!data:)', head) == []
    assert "const Draw" in page
    for layer in diagnosis.layers:
        assert f"Lag by lag: {escape(layer.name)}" in page.replace("&#34;", "&quot;")
        assert str(layer.window.concentration.status) in page
    assert diagnosis.fingerprint in page
    assert [layer["name"] for layer in payload_of(page)["models"][0]["layers"]] == [
        one.name for one in diagnosis.layers
    ]


def test_names_and_warnings_are_escaped(tmp_path):
    page = written(bare(), tmp_path, names=[HOSTILE], title=HOSTILE)
    assert HOSTILE not in page
    assert page.count("</script>") == 1 + len(SCRIPTS)  # the data and the scripts: no name has closed one
    assert "<!--" not in page
    assert "<b onclick" not in page
    assert payload_of(page)["models"][0]["name"] == HOSTILE


def test_json_can_stand_in_a_script_and_keeps_what_is_not_finite():
    hostile = {"a": "</script><!-- & \u2028", "b": [math.inf, -math.inf, math.nan, 1.5], "c": "@inf"}
    text = to_json(hostile)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": hostile["a"], "b": ["@inf", "@-inf", "@nan", 1.5], "c": "@@inf"}


def test_what_is_missing_is_named_with_its_status(tmp_path):
    page = written(refused(), tmp_path)
    assert "unknown: refused: kappa may be 11 or more" in page
    assert "clip each sequence" in page
    page = written(bare(), tmp_path)
    assert "Stable law not fitted: too few samples" in page
    assert sentence(str(lagreach.Status.FIRST_ORDER_UNAVAILABLE)) in page


def test_every_lag_has_its_limit_and_what_to_do(tmp_path):
    page = written(gated(), tmp_path)
    window = gated().layers[0].window
    rows = re.findall(
        r'<th scope="row" class="number lag" data-label="lag">(.*?)</th>.*?<span class="light (\w+)">', page
    )
    assert [lag for lag, _ in rows] == [str(lag) for lag in window.lags.tolist()]
    assert all(light in ("good", "fair", "bad", "plain") for _, light in rows)


def test_several_side_by_side_and_over_training(tmp_path):
    runs = [gated().labelled(epoch=0), layered().labelled(epoch=4)]
    page = written(runs, tmp_path)
    assert 'id="windows"' in page
    assert 'id="training"' in page
    assert "epoch 0 reaches" in page
    assert 'id="training"' not in written([gated(), layered()], tmp_path)
    assert 'id="windows"' not in written(gated(), tmp_path)
    with pytest.raises(InputError, match="nothing to report"):
        write_report([], tmp_path / "none.html")
    with pytest.raises(InputError, match="one name for every diagnosis"):
        write_report(runs, tmp_path / "none.html", names=["a"])


def test_pages_of_several_models_open_with_the_shares_of_each(tmp_path):
    page = written([gated(), layered()], tmp_path, names=["slow", "deep"])
    places = [page.index(f'id="{name}"') for name in ("bars", "bars-1")]
    assert page.index("<main>") < places[0] < places[1] < page.index('class="answer"')
    assert page.index("<h2>slow</h2>") < places[0] < page.index("<h2>deep</h2>") < places[1]
    drawn = payload_of(page)["bars"]
    assert [one["id"] for one in drawn] == ["bars", "bars-1"]
    assert drawn[0]["lags"] == ["0", "1", "3", "6", "9", "16"]
    assert drawn[0]["share"] != drawn[1]["share"]
    many = payload_of(written([gated(), *[layered()] * 8], tmp_path))["bars"]
    assert [one["lags"] for one in many] == [drawn[0]["lags"], drawn[1]["lags"]]  # the first and the last


def test_pages_of_whole_models_open_with_shares(tmp_path):
    page = written(whole(), tmp_path)
    assert page.index('id="bars"') < page.index('class="answer"')
    assert payload_of(page)["bars"][0]["share"][0] > 0.3
    assert "will be learned" in page or "would be" in page


@pytest.mark.thorough
def test_many_diagnoses_still_make_a_small_page(tmp_path):
    assert len(written([gated()] * 60, tmp_path).encode()) < 3e6


def test_names_come_from_labels_and_differ():
    plain, labelled = gated(), gated().labelled(cell="lstm", epoch=3)
    assert named([plain, plain, labelled, labelled]) == ["model 1", "model 2", "lstm, epoch 3 (1)", "lstm, epoch 3 (2)"]


def test_labels_and_noise_are_kept_in_files_and_old_files_load(tmp_path, monkeypatch):
    labelled = gated().labelled(cell="lstm", epoch=3, lr=0.01)
    labelled.save(tmp_path / "run.nc")
    back = lagreach.load(tmp_path / "run.nc")
    assert back.labels == {"cell": "lstm", "epoch": 3, "lr": 0.01}
    np.testing.assert_array_equal(back.layers[0].noise.values, labelled.layers[0].noise.values)
    assert back.layers[0].noise.n == 96

    def without_new_fields(value):
        if isinstance(value, dict):
            dropped = ("labels", "noise") if value.get("@") in ("Diagnosis", "LayerDiagnosis") else ()
            if "fields" in value:
                value = value | {"fields": {k: v for k, v in value["fields"].items() if k not in dropped}}
            return {k: without_new_fields(v) for k, v in value.items()}
        return [without_new_fields(one) for one in value] if isinstance(value, list) else value

    monkeypatch.setattr("lagreach.diagnosis.files.encode", lambda value: without_new_fields(encode(value)))
    labelled.save(tmp_path / "old.nc")
    old = lagreach.load(tmp_path / "old.nc")
    assert dict(old.labels) == {}
    assert old.layers[0].noise is None
    assert "was not kept" in written(old, tmp_path)


@pytest.mark.parametrize("n", [5, KEPT_NOISE, KEPT_NOISE + 1, 20_000])
def test_kept_noise_is_a_set_of_order_statistics(n):
    samples = np.random.default_rng(0).standard_t(3, n)
    kept = NoiseSample.of(samples)
    assert len(kept.values) == min(n, KEPT_NOISE)
    assert (kept.values[0], kept.values[-1]) == (samples.min(), samples.max())
    ranks = np.round(kept.levels * n - 0.5).astype(int)
    assert (np.diff(ranks) > 0).all()
    np.testing.assert_array_equal(kept.values, np.sort(samples)[ranks])


@dataclass(frozen=True)
class Row:
    claim: str
    printed: float
    obtained: float
    interval: str
    verdict: str
    why: str | None


def test_a_study_has_its_claims_pictures_and_diagnoses(tmp_path):
    rows = [Row("<b>beta</b> of DiagGate", 1.0, 0.97, "0.9 to 1.1", "reproduced", None)]
    rows.append(Row("tau", 1.2, 2.5, "2 to 3", "not reproduced", "another initialisation"))
    (tmp_path / "a.png").write_bytes(b"\x89PNG not really")
    out = study_page("A study", [gated()], rows, [("a <caption>", tmp_path / "a.png")], tmp_path / "study.html")
    page = out.read_text(encoding="utf-8")
    assert "&lt;b&gt;beta&lt;/b&gt; of DiagGate" in page
    assert '<span class="light good">reproduced' in page
    assert '<span class="light bad">not reproduced' in page
    assert "data:image/png;base64,iVBORyBub3QgcmVhbGx5" in page
    assert "a &lt;caption&gt;" in page
    order = [
        page.index(part) for part in ("iVBORyBub3QgcmVhbGx5", 'class="answer"', "Claims</h2>", "For those who want")
    ]
    assert order == sorted(order)  # the main figure, what was learned, claims, the rest
    untested = [{**asdict(rows[0]), "claim": f"c{i}", "verdict": "not tested"} for i in range(3)]
    some = study_page("Some", [], [*rows, *untested], out=tmp_path / "some.html").read_text(encoding="utf-8")
    assert "3 claims were not tested here: c0; c1; c2." in some
    assert some.count("<tr>") == 1 + len(rows)
    many = [{**untested[0], "why": "takes five seeds"} for _ in range(40)]
    page = study_page("Many", [], many, out=tmp_path / "many.html").read_text(encoding="utf-8")
    assert "40 claims were not tested here: takes five seeds." in page
    assert "<tr>" not in page
    empty = study_page("Only words", [], "one\n\ntwo", out=tmp_path / "words.html").read_text(encoding="utf-8")
    assert "<p>one</p><p>two</p>" in empty
    assert "<script" not in empty
    with pytest.raises(InputError, match="no why"):
        study_page(
            "x", [], [{"claim": 1, "printed": 1, "obtained": 1, "interval": 1, "verdict": 1}], out=tmp_path / "x.html"
        )
    with pytest.raises(InputError, match="no such picture"):
        study_page("x", [], [], [("x", tmp_path / "nowhere.png")], tmp_path / "x.html")


def test_the_payload_has_the_setting_of_the_diagnosis_on_its_sliders():
    sliders = {one["name"]: one for one in make_payload([gated()], ["x"])["sliders"]}
    start = {name: one["values"][one["start"]] for name, one in sliders.items()}
    assert start == {"sequences": 2000, "strength": 0.05, "error": None, "kappa": None, "noise": 1.0}


def test_terms_that_are_kept_from_the_first_screen_are_those_in_the_style_guide():
    listed = (Path(__file__).parents[2] / "docs" / "style" / "terms.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in listed if line and not line.startswith("#")] == list(TERMS)


def test_symbols_tell_what_they_mean_and_stay_escaped(tmp_path):
    assert str(explained("<b> kappa</b>")).startswith("&lt;b&gt; <abbr title=")
    assert str(explained("kappas and alphabets")) == "kappas and alphabets"
    page = written(gated(), tmp_path)
    assert re.search(r"<abbr title=.How slowly averages[^>]*>kappa</abbr>", page[page.index("<details>") :])
