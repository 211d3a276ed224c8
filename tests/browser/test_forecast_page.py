"""The page of a forecast in a real browser: what it computes is what Python computes."""

import json
from importlib.resources import files

import numpy as np
import pytest

from lagreach.forecasting.words import in_words, to_do
from lagreach.report.forecast_payload import shown_lags
from tests.forecasting.cases import FORECASTS, readout, untold, whole

pytestmark = pytest.mark.browser

SETTINGS = 12
# moves the sliders as a hand would, and reads what the page then shows
MOVE = """
const [positions] = arguments;
for (const [name, position] of Object.entries(positions)) document.getElementById(`s-${name}`).value = position;
ForecastPage.update();
const words = (value) => (typeof value === "number" && !Number.isFinite(value) ? String(value) : value);
const each = ([name, value]) => [name, Array.isArray(value) ? value.map(words) : words(value)];
const plain = (row) => Object.fromEntries(Object.entries(row).map(each));
const { result, setting } = ForecastPage.state;
const bars = document.getElementById("bars").data.filter(({ type }) => type === "bar");
return {
  setting, rows: result.map(plain),
  answer: document.getElementById("answer").textContent,
  toDo: [...document.querySelectorAll("#to-do li")].map((line) => line.textContent),
  bars: bars.flatMap(({ x, y }) => x.map((at, i) => [at, y[i]])),
};
"""
SLIDERS = "return ForecastPage.state.page.sliders.map(({ name, values }) => [name, values])"


def as_float(value):
    return float(str(value).replace("Infinity", "inf").replace("NaN", "nan"))


def compare(shown, forecast, rtol=1e-6):
    """Hold everything the page shows at its setting against Python."""
    number, strength = shown["setting"]["sequences"], shown["setting"]["strength"]
    now = forecast.at(int(number), strength)
    lags = shown_lags(forecast)
    words, in_data = now.limits_at(number), now.limits_in_data_at(number)
    for row, i in zip(shown["rows"], lags, strict=True):
        for name, array in (("share", now.if_present), ("inData", now.in_data)):
            expected = [array.values[i, 0], array.low.values[i, 0], array.high.values[i, 0]]
            np.testing.assert_allclose([as_float(v) for v in row[name]], expected, rtol=rtol, atol=1e-6)
        assert (row["word"], row["wordInData"]) == (words[i], in_data[i])
        for name, expected in (("seen", now.seen), ("needed", now.needed)):
            np.testing.assert_allclose(as_float(row[name]), expected.values[i], rtol=rtol)
    if len(lags) == len(forecast.lags):
        assert in_words(now, number) in shown["answer"]
        assert shown["toDo"] == to_do(now, number)
    drawn = dict(shown["bars"])
    for place, i in enumerate(lags):
        np.testing.assert_allclose(drawn.get(place, np.nan), now.if_present.values[i, 0], rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("name", FORECASTS)
def test_random_settings_give_what_python_computes(open_page, name):
    driver, forecast = open_page(f"forecast-{name}"), FORECASTS[name]()
    offered = dict(driver.execute_script(SLIDERS))
    generator = np.random.default_rng(0)
    seen = set()
    for _ in range(4 if name == "many_lags" else SETTINGS):
        positions = {slider: int(generator.integers(len(values))) for slider, values in offered.items()}
        shown = driver.execute_script(MOVE, positions)
        assert shown["setting"] == {slider: values[positions[slider]] for slider, values in offered.items()}
        compare(shown, forecast)
        seen |= {row["word"] for row in shown["rows"]}
    assert len(seen) > 1


@pytest.mark.parametrize("name", FORECASTS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_with_its_figure_without_errors_and_without_network(open_page, name, scheme):
    driver = open_page(f"forecast-{name}", scheme=scheme)
    assert driver.get_log("browser") == []
    assert driver.execute_script(
        "return document.querySelector('main').firstElementChild.querySelector('.bar') !== null"
    )
    assert driver.execute_script("return document.getElementById('bars').getBoundingClientRect().bottom") < 900
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert any(url.startswith("file:") for url in asked)
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("name", FORECASTS)
def test_nothing_sticks_out_on_a_phone(open_page, name):
    driver = open_page(f"forecast-{name}", width=390)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 390


def test_the_keyboard_is_enough(open_page):
    from selenium.webdriver import ActionChains, Keys
    from selenium.webdriver.support.ui import WebDriverWait

    driver = open_page("forecast-whole")
    seen, before = [], driver.find_element("id", "o-sequences").text
    for _ in range(20):
        ActionChains(driver).send_keys(Keys.TAB).perform()
        focus = driver.switch_to.active_element
        seen.append(focus.get_attribute("id") or focus.tag_name)
        if seen[-1] == "s-sequences":
            ActionChains(driver).send_keys(*[Keys.ARROW_LEFT] * 20).perform()
            WebDriverWait(driver, 10).until(lambda page: page.find_element("id", "o-sequences").text != before)
    order = ["theme", "s-sequences", "exact-sequences", "s-strength", "reset"]
    assert [one for one in seen if one in order][: len(order)] == order
    assert "summary" in seen


def test_a_number_can_be_typed_and_reset(open_page):
    from selenium.webdriver.support.ui import WebDriverWait

    driver = open_page("forecast-whole")
    driver.find_element("id", "exact-sequences").send_keys("1234")
    answer = driver.find_element("id", "answer")
    WebDriverWait(driver, 10).until(lambda _: answer.text.startswith("From 1,234 sequences"))
    driver.find_element("id", "reset").click()
    assert answer.text.startswith(f"From {whole().available} sequences")


def test_a_legend_entry_switches_its_bars_and_a_point_tells_its_numbers(open_page):
    from selenium.webdriver import ActionChains

    driver = open_page("forecast-whole")
    bars = "return document.querySelectorAll('#bars .main-svg .bar').length"
    before = driver.execute_script(bars)
    entry = driver.find_element("css selector", "#bars .legend button")
    entry.click()
    assert driver.execute_script(bars) < before
    entry = driver.find_element("css selector", "#bars .legend button")
    assert entry.get_attribute("aria-pressed") == "false"
    entry.click()
    assert driver.execute_script(bars) == before
    middle = "const f = document.querySelector('#bars .bar').getBoundingClientRect(); return [f.x + f.width / 2, f.y]"
    x, y = driver.execute_script(middle)
    ActionChains(driver).move_by_offset(int(x), int(y) + 2).perform()
    assert driver.find_element("css selector", "#bars .tip").text.startswith("lag ")
    ActionChains(driver).move_by_offset(-int(x), -int(y) - 2).perform()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_serious_accessibility_violation(open_page, scheme, width):
    driver = open_page("forecast-whole", width=width, scheme=scheme)
    driver.execute_script((files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8"))
    report = driver.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    assert len(report["passes"]) > 15
    serious = [v for v in report["violations"] if v["impact"] in ("serious", "critical")]
    assert [(v["id"], v["nodes"][0]["html"]) for v in serious] == []


def test_without_a_dependence_the_bars_speak_of_what_would_be_learned(open_page):
    driver = open_page("forecast-readout")
    assert not (readout().adjusted_p <= readout().error).any()
    assert "no lag was found" in driver.find_element("id", "in-data").text


def test_what_was_not_tested_is_not_called_absent(open_page):
    driver = open_page("forecast-untold")
    cells = [driver.find_element("id", f"data-{i}").get_attribute("textContent") for i in range(len(untold().lags))]
    assert set(cells) == {"not tested"}


def test_dark_mode_follows_the_button(open_page):
    driver = open_page("forecast-whole", scheme="light")
    ink = "return document.getElementById('bars').layout.font.color"
    before = driver.execute_script(ink)
    driver.find_element("id", "theme").click()
    assert driver.execute_script(ink) != before
    assert driver.find_element("id", "theme").text == "Light mode"
