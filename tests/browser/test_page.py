"""The page in a real browser: no errors, no network, sliders that agree with Python, themes, phones, keyboard, labels."""

import json
import re
from importlib.resources import files

import numpy as np
import pytest

from lagreach.advice.what_if import what_if
from lagreach.report.recovered import recovered
from lagreach.report.words import TERMS, technical
from lagreach.types import Status
from tests.report.cases import CASES, HOSTILE, gated

pytestmark = pytest.mark.browser

PAGES = [*CASES, "training", "study"]
SETTINGS = 50

# moves the sliders as a hand would, and reads what the page then shows
MOVE = """
const [positions] = arguments;
let slider;
for (const [name, position] of Object.entries(positions)) {
  slider = document.getElementById(`s-${name}`);
  slider.value = position;
}
slider.dispatchEvent(new Event("input"));
const { result, setting } = Report.state;
const drawn = document.getElementById("needed").data.find((trace) => trace.name === "if present").y;
const words = (value) => (typeof value === "number" && !Number.isFinite(value) ? String(value) : value);
const plain = (values) => values.map(words);
const numbers = ({ n, low, high, robust }) => ({ n: plain(n), low: plain(low), high: plain(high), robust: plain(robust) });
return {
  setting, drawn, planted: numbers(result.planted), in_data: numbers(result.inData),
  lag: result.lag, interval: result.interval, detectable: result.detectable, status: result.status,
  readout: document.getElementById("readout").textContent,
};
"""
NAMES = {"n": "sequences", "low": "low", "high": "high", "robust": "robust"}


def as_floats(values):
    return np.array([float(str(value).replace("Infinity", "inf").replace("NaN", "nan")) for value in values])


def unfold(driver):
    """Open the part for those who want to know how, and wait until its figures are drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    driver.execute_script("document.querySelector('details').open = true")
    drawn = (
        "return [...document.querySelectorAll('details .plot:not([hidden])')].every((plot) => plot.firstElementChild)"
    )
    WebDriverWait(driver, 10).until(lambda page: page.execute_script(drawn))


def sliders(driver):
    return driver.execute_script("return Report.page.sliders.map(({name, values}) => [name, values])")


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_from_disk_without_errors_and_without_network(open_page, name, scheme):
    driver = open_page(name, scheme=scheme)
    assert driver.get_log("browser") == []
    unfold(driver)
    assert driver.execute_script("return document.querySelectorAll('.plot .main-svg').length") >= 6
    assert driver.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert any(url.startswith("file:") for url in asked)
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("name", ["gated", "heavy", "unreachable", "refused"])
def test_random_settings_give_what_python_computes(open_page, name):
    driver = open_page(name)
    window = CASES[name]().layers[0].window
    offered = sliders(driver)
    generator = np.random.default_rng(0)
    reached = []
    for _ in range(SETTINGS):
        positions = {slider: int(generator.integers(len(values))) for slider, values in offered}
        shown = driver.execute_script(MOVE, positions)
        setting = {slider: values[positions[slider]] for slider, values in offered}
        assert shown["setting"] == setting
        expected = what_if(window, **setting)
        for part, numbers in (("planted", expected.planted), ("in_data", expected.in_data)):
            for short, long in NAMES.items():
                np.testing.assert_allclose(as_floats(shown[part][short]), getattr(numbers, long), rtol=1e-6)
        drawn = [np.nan if value is None else value for value in shown["drawn"]]
        finite = np.where(np.isfinite(expected.planted.sequences), expected.planted.sequences, np.nan)
        np.testing.assert_allclose(drawn, finite, rtol=1e-6)
        assert shown["lag"] == expected.at.lag
        assert tuple(shown["interval"]) == expected.at.interval
        assert tuple(shown["detectable"]) == expected.at.detectable
        assert shown["status"] == str(expected.at.status)
        nothing = "no examined lag" if expected.at.status is Status.WINDOW_EMPTY else "cannot be said: refused"
        assert (nothing if expected.at.lag is None else f"up to lag {expected.at.lag}") in shown["readout"]
        reached.append(expected.at.lag)
    assert None in reached  # some settings have no window
    assert (set(reached) == {None}) == (name == "refused")


@pytest.mark.parametrize("name", ["gated", "layered", "diagonal"])
def test_it_opens_with_bars_a_sentence_and_what_to_do_in_plain_words(open_page, name):
    driver = open_page(name)
    shown = driver.execute_script(
        "const place = (at) => document.querySelector(at).getBoundingClientRect().top + window.scrollY;"
        "return [place('#bars .bar'), place('.answer'), place('.advice'), place('table.lags'), place('details')]"
    )
    assert shown == sorted(shown)
    assert shown[1] < 900
    bars = driver.execute_script(
        "return document.getElementById('bars').data.filter(({ type }) => type === 'bar')"
        ".flatMap(({ x, y }) => x.map((at, i) => [at, y[i]]))"
    )
    expected = recovered(CASES[name]())
    assert len(bars) == len(expected.lags)
    for at, height in bars:
        np.testing.assert_allclose(height, expected.share[at], rtol=1e-5)
    assert driver.execute_script("return document.querySelector('details').open") is False
    above = driver.find_element("tag name", "body").text  # what is folded away has no text
    assert "For those who want to know how" in above
    assert technical("What the kappa is")
    assert [term for term in TERMS if technical_in(term, above)] == []


def technical_in(term, text):
    return re.search(rf"\b{re.escape(term)}\b", text, re.IGNORECASE) is not None


def test_a_study_leads_with_its_main_figure_and_what_was_learned(open_page):
    driver = open_page("study")
    place = "return arguments[0].map((at) => document.querySelector(at).getBoundingClientRect().top + window.scrollY)"
    shown = driver.execute_script(place, ["img", ".answer", "table", ".picture:not(.first)", "table.lags", "details"])
    assert shown == sorted(shown)
    assert driver.execute_script("return document.querySelector('img').naturalWidth") > 100
    assert "9 claims were not tested here: takes five seeds." in driver.find_element("tag name", "main").text


def test_the_page_names_model_data_and_day(open_page):
    head = open_page("gated").find_element("css selector", "header .about").text
    assert head == " · ".join(gated().about[name] for name in ("model", "data", "date"))
    assert "GatedRNN (diag_gate)" in head
    assert "96 sequences of 24 steps" in head


@pytest.mark.parametrize("name", ["gated", "refused", "unreachable"])
def test_the_table_of_lags_fits_a_desktop(name, open_page):
    """Reasons for what is not known are long, and wrap."""
    driver = open_page(name)
    wide, room = driver.execute_script(
        "const lags = document.querySelector('table.lags'); return [lags.scrollWidth, lags.parentElement.clientWidth]"
    )
    assert 0 < wide <= room


def test_an_exact_number_of_sequences_can_be_typed_and_reset(open_page):
    driver = open_page("gated")
    box = driver.find_element("id", "exact-sequences")
    box.send_keys("1234")
    assert driver.execute_script("return Report.state.setting.sequences") == 1234
    assert "1,234 sequences" in driver.find_element("id", "readout").text
    driver.find_element("id", "reset").click()
    assert driver.execute_script("return Report.state.setting.sequences") == gated().sequences


def test_several_models_agree_with_python_and_the_run_is_drawn_over_training(open_page):
    driver = open_page("training")
    driver.execute_script(MOVE, {"sequences": 90, "strength": 40})
    shown = driver.execute_script(
        "return Report.state.results.map(({lag, interval}, i) => [lag, interval,"
        "document.getElementById(`reach-${i}`).textContent, Report.state.setting])"
    )
    models = [gated("const_gate", 0.4), gated(), gated("const_gate", 0.2), CASES["layered"]()]
    for (lag, interval, words, setting), model in zip(shown, models, strict=True):
        at = model.window(setting["sequences"], setting["strength"])
        assert (lag, tuple(interval)) == (at.lag, at.interval)
        assert words == ("no lag" if at.lag is None else f"lag {at.lag}")
    lines = (
        "return document.getElementById('training').data.filter(({mode}) => mode === 'lines+markers').map(({x}) => x)"
    )
    assert driver.execute_script(lines) == [[0, 5], [0], [5]]


def test_another_layer_can_be_chosen(open_page):
    driver = open_page("training")
    visible = "return [...document.querySelectorAll('[data-view]')].filter((e) => !e.hidden).map((e) => e.dataset.view)"
    assert set(driver.execute_script(visible)) == {"0-0"}
    view = driver.find_element("id", "view")
    last = view.find_elements("tag name", "option")[-1]
    last.click()
    assert set(driver.execute_script(visible)) == {last.get_attribute("value")}
    lags = driver.execute_script("return document.getElementById('picture-0').data[0].x")
    assert lags == CASES["layered"]().layers[-1].fidelity.lags.tolist()


@pytest.mark.parametrize("name", ["gated", "training"])
def test_dark_mode_follows_the_system_and_the_button(open_page, name):
    paper = "return getComputedStyle(document.body).backgroundColor"
    ink = "return document.getElementById('needed').layout.font.color"
    light = open_page(name, scheme="light")
    bright = light.execute_script(paper), light.execute_script(ink)
    dark = open_page(name, scheme="dark")
    assert dark.execute_script(paper) != bright[0]
    assert dark.execute_script(ink) != bright[1]
    button = dark.find_element("id", "theme")
    assert button.text == "Light mode"
    button.click()
    assert (dark.execute_script(paper), dark.execute_script(ink)) == bright
    assert button.text == "Dark mode"


@pytest.mark.parametrize("name", PAGES)
def test_nothing_sticks_out_on_a_phone(open_page, name):
    driver = open_page(name, width=390)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
    unfold(driver)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
    widths = driver.execute_script("return [...document.querySelectorAll('.plot')].map((e) => e.clientWidth)")
    assert max(widths) <= 390


def test_the_keyboard_is_enough(open_page):
    from selenium.webdriver import ActionChains, Keys

    driver = open_page("gated")
    seen, before = [], driver.find_element("id", "readout").text
    for _ in range(40):
        ActionChains(driver).send_keys(Keys.TAB).perform()
        seen.append(driver.switch_to.active_element.get_attribute("id"))
        if seen[-1] == "s-sequences":
            ActionChains(driver).send_keys(*[Keys.ARROW_LEFT] * 40).perform()
            assert driver.find_element("id", "readout").text != before
            shown = driver.find_element("id", "o-sequences").text
            assert driver.switch_to.active_element.get_attribute("aria-valuetext") == shown
    order = ["theme", "s-sequences", "exact-sequences", "s-strength", "s-error", "s-kappa", "s-noise", "reset"]
    assert [one for one in seen if one in order][: len(order)] == order


@pytest.mark.parametrize("name", ["gated", "bare", "training", "study"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_serious_accessibility_violation(open_page, name, scheme, width):
    driver = open_page(name, width=width, scheme=scheme)
    unfold(driver)
    driver.execute_script((files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8"))
    audit = driver.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    assert len(audit["passes"]) > 15
    serious = [v for v in audit["violations"] if v["impact"] in ("serious", "critical")]
    assert [(v["id"], v["nodes"][0]["html"]) for v in serious] == []


def test_names_with_html_are_shown_as_they_are(open_page):
    driver = open_page("bare")
    assert HOSTILE in driver.find_element("tag name", "main").text
    assert driver.find_elements("css selector", "[onclick]") == []
    driver = open_page("training")
    legend = driver.find_element("id", "together").find_elements("css selector", ".legendtext")
    assert any("<i>lstm" in one.get_attribute("textContent") for one in legend)


def test_what_is_missing_is_said(open_page):
    driver = open_page("bare")
    unfold(driver)
    shown = driver.find_element("tag name", "main").text
    for words in (
        "not kept",
        "No unit has a time scale",
        "too few samples",
        "First order has no meaning",
        "no first order to compare",
    ):
        assert words in shown
    driver = open_page("refused")
    assert "refused" in driver.find_element("id", "readout").text
    crosses = "return document.getElementById('needed').data.find(({name}) => name.startsWith('no number')).text"
    assert all("unknown" in text and "refused" in text for text in driver.execute_script(crosses))
    driver = open_page("unreachable")
    assert any("no number suffices" in text for text in driver.execute_script(crosses))


def test_it_prints_in_light_without_controls(open_page):
    driver = open_page("gated", scheme="dark")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not driver.find_element("css selector", ".controls").is_displayed()
    assert driver.find_element("css selector", ".answer").is_displayed()
    pdf = driver.execute_cdp_cmd("Page.printToPDF", {})["data"]
    assert len(pdf) > 50_000


@pytest.mark.parametrize("name", PAGES)
def test_its_head_names_model_data_and_day(open_page, name):
    head = open_page(name).find_element("tag name", "header").text
    assert "weights" in head
    assert "sequences of" in head
    assert re.search(r"20\d\d-\d\d-\d\d", head)


def test_names_and_code_are_shown_as_they_are(open_page):
    """A name that is HTML was escaped twice on an axis, and code stood between backticks."""
    words = open_page("training").find_element("tag name", "body").text
    assert "<i>lstm, epoch 5" in words
    assert "&lt;" not in words
    assert "`" not in words
    assert "lagreach.advise_gates(model, x, lag=16).apply(model)" in words
