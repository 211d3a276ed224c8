"""The page of `lagreach demo` in a real browser: desktop, phone, dark, keyboard, no network, labels."""

from datetime import UTC, datetime
from importlib.resources import files

import pytest

from lagreach.advice.advise import Advice
from lagreach.advice.changes import Change
from lagreach.report.demo_page import Panel, write_page

pytestmark = pytest.mark.browser

PANELS = (
    Panel((2, 40, 60), (0.98, 0.0, 0.04), ("-", "forgotten by then", "<b>not</b> arrived"), (1.0, 0.01, 0.0)),
    Panel((2, 40, 60), (1.0, 1.0, 0.97), ("-", "-", "-"), (0.99, 0.93, 1.0)),
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    change = Change(
        "gates",
        "Open the gates (lstm.bias_ih_l0[32:64]).",
        "lagreach.advise_gates(model, x, lag=60).apply(model)",
        0.97,
    )
    advice = Advice(60, 0.04, "unseen", 1000, (change,), None)
    return write_page(
        tmp_path_factory.mktemp("demo"), PANELS, ("as it is", "as advised"), "What?", "Open the gates", advice
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_opens_without_network_fits_and_is_accessible(driver, page, scheme, width):
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    driver.get_log("browser")
    driver.get_log("performance")
    driver.get(page.as_uri())
    assert driver.get_log("browser") == []
    sent = [
        entry["message"] for entry in driver.get_log("performance") if 'Network.requestWillBeSent"' in entry["message"]
    ]
    assert [message for message in sent if "http" in message.partition('"url":"')[2][:5]] == []
    assert driver.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    pictures = driver.find_elements("tag name", "img")
    assert [picture.is_displayed() for picture in pictures] == [True, True]
    assert pictures[0].location["y"] < 450  # above the fold
    beside = pictures[0].location["y"] == pictures[1].location["y"]
    assert beside == (width > 600)
    paper = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    driver.execute_script("document.querySelector('details').open = true")
    assert "<b>not</b> arrived" in driver.find_element("tag name", "body").text
    driver.execute_script((files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8"))
    broken = driver.execute_async_script("axe.run().then(arguments[arguments.length - 1])")["violations"]
    assert [rule["id"] for rule in broken if rule["impact"] in ("serious", "critical")] == []


def test_everything_can_be_reached_with_the_keyboard(driver, page):
    from selenium.webdriver import ActionChains, Keys
    from selenium.webdriver.support.ui import WebDriverWait

    def press(key):
        ActionChains(driver).send_keys(key).perform()

    driver.get(page.as_uri())
    numbers = driver.find_element("tag name", "table")
    assert not numbers.is_displayed()
    press(Keys.TAB)
    focused = driver.switch_to.active_element
    assert focused.tag_name == "summary"
    assert driver.execute_script("return getComputedStyle(arguments[0]).outlineStyle", focused) != "none"
    press(Keys.ENTER)
    assert numbers.is_displayed()
    press(Keys.END)
    at_the_end = "return window.scrollY + window.innerHeight >= document.documentElement.scrollHeight - 2"
    WebDriverWait(driver, 5).until(lambda page: page.execute_script(at_the_end))
    press(Keys.TAB)
    assert driver.switch_to.active_element.tag_name != "summary"  # nothing holds the focus


def test_it_names_the_model_the_data_and_the_day(driver, page):
    driver.get(page.as_uri())
    words = driver.find_element("tag name", "body").text
    assert "an LSTM of torch on made-up sequences" in words
    assert f"on {datetime.now(UTC):%Y-%m-%d}" in words
    assert page.stat().st_size < 1_000_000
