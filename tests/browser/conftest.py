"""A headless Chromium from the system's packages; without one the tests are skipped, and say so."""

import shutil
from functools import cache
from importlib.util import find_spec

import pytest

from lagreach.report import study_page, write_report
from lagreach.report.curve_figures import bars
from tests.forecasting.cases import FORECASTS
from tests.report.cases import CASES, gated, layered

SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--force-prefers-reduced-motion",
    "--disable-background-networking",  # the browser's own errands must not disturb what the page is tested for
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def missing():
    """Name what a browser test needs and this machine has not."""
    programs = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return programs + [name for name in ("selenium", "axe_core_python") if find_spec(name) is None]


@pytest.fixture(scope="session")
def driver():
    lacking = missing()
    if lacking:
        pytest.skip(f"no browser here: {', '.join(lacking)} not found (make test-browser installs them)")
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for switch in SWITCHES:
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def over_training(file):
    """Several diagnoses of two runs, and one with a name that is HTML."""
    runs = [gated("const_gate", 0.4).labelled(cell="const", epoch=0), gated().labelled(cell="diag", epoch=0)]
    runs += [gated("const_gate", 0.2).labelled(cell="const", epoch=5), layered().labelled(cell="<i>lstm", epoch=5)]
    return write_report(runs, file)


def of_a_study(file):
    """A study with a picture, claims of every verdict, and diagnoses."""
    picture = file.with_suffix(".png")
    bars(gated()).figure.savefig(picture)
    row = {"claim": "diagonal gates reach farther", "printed": 1.0, "obtained": 0.9, "interval": "0.8 to 1", "why": ""}
    verdicts = ("holds", "fails", *["not tested"] * 9)
    claims = [{**row, "verdict": verdict, "why": "takes five seeds"} for verdict in verdicts]
    figures = [("The main figure.", picture), ("Another one.", picture)]
    return study_page("A study", [gated(), layered()], claims, figures, file, answer=["One of two claims holds."])


MADE = {
    "study": of_a_study,
    **{name: (lambda file, make=make: write_report(make(), file)) for name, make in CASES.items()},
    "training": over_training,
    **{f"forecast-{name}": (lambda file, make=make: make().report(file)) for name, make in FORECASTS.items()},
}


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """Return the page of a case by its name; it is written when it is first asked for."""
    folder = tmp_path_factory.mktemp("pages")

    @cache
    def page(name):
        file = folder / f"{name}.html"
        MADE[name](file)
        return file

    return page


@pytest.fixture
def open_page(driver, pages):
    """Open a page at a width and in a colour scheme; what the browser said before is forgotten."""
    from selenium.webdriver.support.ui import WebDriverWait

    def open_at(name, width=1280, scheme="light"):
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
        driver.get_log("browser")
        driver.get_log("performance")
        driver.get(pages(name).as_uri())
        drawn = "return document.documentElement.dataset.drawn === 'yes'"
        WebDriverWait(driver, 30).until(lambda page: page.execute_script(drawn))
        return driver

    return open_at
