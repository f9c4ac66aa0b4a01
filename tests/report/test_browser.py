"""Pages in a browser: with mouse and keys, on a phone, on paper, in dark mode."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from submodel.report.page import page_data, write_page
from tests.support.browser import Browser
from tests.support.records import make_comparison, make_study
from tests.support.run_folders import make_run

pytestmark = pytest.mark.slow

CURVE = "#curves-chart svg path[fill='none']:is([stroke-width='2'], [stroke-width='3'])"

SMALL_NET = {"model": {"name": "mlp", "width": 16}}
PIXELS = """const [canvas] = arguments;
const context = canvas.getContext("2d");
const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data;
return [...pixels].filter((_, i) => i % 4 == 0);"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make pages of a run, a comparison and a study."""
    out = tmp_path_factory.mktemp("pages")
    folders = {
        "run": [make_run(out / "folders" / "run", settings=SMALL_NET).path],
        "comparison": [make_comparison(out / "folders" / "comparison")],
        "study": [make_study(out / "folders" / "study")],
    }
    for name, paths in folders.items():
        write_page(page_data(paths, details=name == "run"), out / f"{name}.html")
    return out


@pytest.mark.parametrize("name", ["run", "comparison", "study"])
def test_a_page_draws_itself_and_asks_for_nothing(name: str, pages: Path, browser: Browser) -> None:
    browser.open(pages / f"{name}.html")
    browser.run("scrollTo(0, document.body.scrollHeight)")
    browser.wait("return document.querySelectorAll('.chart svg path').length > 5")
    assert len(browser.text("#sentence")) > 20
    assert browser.problems() == []
    own_words = ("file:", "data:", "chrome:")  # the last one is the browser's page for new tabs
    assert [url for url in browser.requests() if not url.startswith(own_words)] == []


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        ({}, "submodel train config.toml"),
        ({"engine": {"name": "flower"}}, "submodel serve config.toml"),
        ({"data": {"name": "own"}}, 'submodel.config.read("config.toml")'),
    ],
    ids=["here", "over devices", "from Python"],
)
def test_a_page_says_how_its_run_is_repeated(
    settings: dict[str, Any], command: str, tmp_path: Path, browser: Browser
) -> None:
    run = make_run(tmp_path / "run", settings=settings)
    write_page(page_data([run.path], details=False), tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert command in browser.text("#repeat")


def test_the_axis_and_the_measure_can_be_chosen(pages: Path, browser: Browser) -> None:
    browser.open(pages / "run.html")
    titles = []
    for value in ("round", "bytes", "flops", "seconds"):
        browser.run("arguments[0].click()", browser.find(f"#curves input[value='{value}']"))
        titles.append(browser.text("#curves-chart svg"))
    assert ["traffic" in title for title in titles] == [False, True, False, False]
    assert len(set(titles)) == 4
    before = browser.find(CURVE).get_attribute("d")
    Select(browser.find("#curves select")).select_by_visible_text("test loss")
    assert browser.find(CURVE).get_attribute("d") != before
    assert "test loss" in browser.text("#curves-chart svg")
    assert browser.problems() == []


def test_pointing_at_a_curve_tells_its_values(pages: Path, browser: Browser) -> None:
    browser.open(pages / "comparison.html")
    chart = browser.find("#curves-chart")
    ActionChains(browser.driver, duration=0).move_to_element(chart).perform()
    deadline = time.monotonic() + 5
    while not browser.all(".tip") and time.monotonic() < deadline:
        ActionChains(browser.driver, duration=0).move_by_offset(3, 0).perform()
    words = browser.text(".tip")
    assert "round" in words
    assert all(arm in words for arm in ("rolling", "static", "random"))
    assert words.count("%") == 9  # mean, least and most of each


def test_a_point_of_a_study_tells_its_own_interval(tmp_path: Path, browser: Browser) -> None:
    file = make_study(tmp_path / "study") / "tiny.json"
    content = json.loads(file.read_text("utf-8"))
    content["rows"][0]["gap"] = -0.1  # on a logarithmic scale there is no such point
    file.write_text(json.dumps(content), "utf-8")
    write_page(page_data([file.parent]), tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    browser.find("#study-0 .chart").click()  # becomes visible and is drawn
    browser.wait("return Boolean(document.querySelector('#study-0 .chart').chart.instance)")
    browser.run(
        """document.querySelector("#study-0 .chart").chart.instance.dispatchAction(
            { type: "showTip", seriesIndex: 0, dataIndex: 0 });"""
    )
    browser.wait("return document.querySelector('.tip')")
    words = browser.text(".tip")
    assert "R 20" in words
    assert "0.045" in words
    assert "0.055" in words


def test_ways_are_filtered_hidden_and_sorted(pages: Path, browser: Browser) -> None:
    browser.open(pages / "comparison.html")

    def shown() -> int:
        return len(browser.all(CURVE))

    assert shown() == 3
    browser.find(".legend .chip").click()
    assert shown() == 2
    assert browser.find(".legend .chip").get_attribute("aria-pressed") == "false"
    browser.find("#standing tbody tr.off").click()
    assert shown() == 3
    browser.find("input[type=search]").send_keys("static")
    assert shown() == 1
    browser.run("document.querySelector('input[type=search]').value = ''")
    browser.find("input[type=search]").send_keys(" ")

    def first() -> str:
        return browser.text("#standing tbody tr")

    assert "rolling" in first()  # the best comes first
    heading = browser.find("#standing th:nth-child(2) button")
    heading.send_keys(Keys.ENTER)
    heading.send_keys(Keys.ENTER)
    assert "static" in first()
    assert browser.find("#standing th:nth-child(2)").get_attribute("aria-sort") == "ascending"
    assert browser.text("#standing").count("holds") >= 2
    assert browser.problems() == []


def test_of_many_ways_only_the_best_are_coloured(tmp_path: Path, browser: Browser) -> None:
    paths = [
        make_run(tmp_path / f"{n}", bonus=0.01 * n, settings={"local": {"lr": 0.1 + n}}).path
        for n in range(10)
    ]
    write_page(page_data(paths, details=False), tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    names = browser.text("#curves-chart svg")
    assert len(browser.all(CURVE)) == 6
    assert ("9.1" in names, "0.1" in names) == (True, False)  # the best are named, not the worst
    for chip in browser.all(".legend .chip")[-2:]:
        chip.click()
    assert len(browser.all(CURVE)) == 8  # few enough for all
    assert browser.problems() == []


def test_the_coverage_is_scrubbed_by_round(pages: Path, browser: Browser) -> None:
    browser.open(pages / "run.html")
    slider = browser.find("#round-slider")
    maps = browser.all(".axis .frame canvas")
    assert len(maps) == 2  # its axes
    assert len(set(browser.run(PIXELS, maps[0]))) > 2  # more than one number of holders
    texts = []
    for key in (Keys.HOME, Keys.ARROW_RIGHT, Keys.END):
        slider.send_keys(key)
        texts.append((browser.text(".scrub output"), browser.text(".coverage h3 + div")))
    rounds, cuts = zip(*texts, strict=True)
    assert [words.split(",")[0] for words in rounds] == [f"round {r} of 12" for r in (1, 2, 12)]
    assert len(set(cuts)) == 3
    assert len(browser.all(".layers li canvas")) == 3  # its layers
    ActionChains(browser.driver, duration=0).move_to_element(maps[0]).perform()
    assert "held by" in browser.text(".coverage .readout")
    assert browser.problems() == []


def test_fitted_sub_models_have_a_table_and_their_units(tmp_path: Path, browser: Browser) -> None:
    folder = make_run(tmp_path / "run")
    fit: dict[str, Any] = {"capacity": 0.25, "cut": "<b>importance</b>", "units": {"a": [0, 5]}}
    fit |= {"score": {"accuracy": 0.6}, "score_before": {"accuracy": 0.1}, "rounds": 10}
    fit |= {"model_sha256": f"{0:064x}", "fitted_sha256": ""}
    file = folder.path / "fit/capacity-0.25/fit.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(fit), "utf-8")
    folder.outline_file.write_text('{"axes": {"a": 8}, "layers": []}', "utf-8")
    write_page(page_data([folder.path], details=False), tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    row = browser.text("#fitted tbody tr")
    assert all(words in row for words in ("1/4", "10.0 %", "60.0 %", "<b>importance</b>"))
    assert "2 of 8 units" in browser.text("#fitted .kept")
    pixels = browser.run(PIXELS, browser.find("#fitted .kept canvas"))
    assert [value == pixels[0] for value in pixels] == [unit in (0, 5) for unit in range(8)]
    assert browser.problems() == []


def test_all_controls_are_reached_by_keys(pages: Path, browser: Browser) -> None:
    browser.open(pages / "comparison.html")
    kind = "const e = document.activeElement; return e.id || e.type || e.tagName"
    visited = set()
    for _ in range(70):
        ActionChains(browser.driver, duration=0).send_keys(Keys.TAB).perform()
        visited.add(browser.run(kind))
    assert {"theme", "select-one", "radio", "checkbox", "search", "button"} <= visited
    radio = browser.find("#curves input[value='round']")
    radio.send_keys(Keys.ARROW_RIGHT)
    assert "traffic" in browser.text("#curves-chart svg")


def test_dark_and_light(pages: Path, browser: Browser) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    browser.open(pages / "run.html", scheme="dark")
    dark = browser.run(ground)
    browser.find("#theme").click()
    light = browser.run(ground)
    browser.find("#theme").click()
    assert browser.run(ground) == dark != light
    browser.run("localStorage.clear()")


@pytest.mark.parametrize("name", ["run", "comparison", "study"])
def test_a_phone_needs_no_scrolling_to_the_side(name: str, pages: Path, browser: Browser) -> None:
    browser.open(pages / f"{name}.html", width=390)
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    assert browser.problems() == []


def test_paper_gets_all_charts(pages: Path, browser: Browser) -> None:
    browser.open(pages / "comparison.html", scheme="dark")
    result = browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    content = base64.b64decode(result["data"])
    assert content.startswith(b"%PDF")
    assert len(content) > 40_000
    charts, drawings = ".chart", ".chart svg"
    assert len(browser.all(charts)) == len(browser.all(drawings)) > 3  # also invisible ones


def test_names_from_strangers_stay_words(tmp_path: Path, browser: Browser) -> None:
    attack = "<script>window.harm=1</script>"
    path = tmp_path / "<img src=x onerror=window.harm=2>"
    line = {
        "refused": {attack: "\x1b]0;owned\x07 <b onclick=x>'\"", "2": attack},
        "observed": {attack: 1.0},
    }
    make_run(path, line=line, settings={"data": {"name": "hf:" + attack}})
    make_run(tmp_path / "other", scheme="static")
    write_page(page_data([path, tmp_path / "other"]), tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert browser.run("return window.harm") is None
    assert attack in browser.text("#troubles")
    assert browser.all("main img, main script, main [onclick]") == []
    assert browser.problems() == []


def test_newer_data_is_drawn_in_place(pages: Path, tmp_path: Path, browser: Browser) -> None:
    browser.open(pages / "run.html")
    data = page_data([make_run(tmp_path / "run", finished_rounds=6).path], details=False)
    browser.run("submodelPage.update(arguments[0])", data)
    assert "6 rounds of 12 so far" in browser.text("#sentence")
    assert browser.all("#data canvas")  # unchanged values stay
    assert browser.all("#coverage canvas")
    assert len(browser.all(CURVE)) == 1
    assert browser.problems() == []


def test_twenty_runs_of_a_thousand_rounds_open_at_once(tmp_path: Path, browser: Browser) -> None:
    paths = [
        make_run(
            tmp_path / f"{scheme}-{seed}",
            seed,
            scheme,
            1000,
            bonus=bonus,
            every=5,
            settings=SMALL_NET,
        ).path
        for scheme, bonus in (("rolling", 0.1), ("static", 0.0), ("random", 0.05), ("full", 0.15))
        for seed in range(5)
    ]
    page = tmp_path / "page.html"
    write_page(page_data(paths), page)  # with coverage and partitions
    assert page.stat().st_size < 5_000_000
    browser.open(page)
    assert len(browser.all("#coverage select option")) == 4
    assert browser.all("#data canvas")
    seconds = (
        browser.run(
            "const [t] = performance.getEntriesByType('navigation'); return t.loadEventEnd || 1e9"
        )
        / 1000
    )
    assert len(browser.all(CURVE)) == 4
    assert seconds < 6  # two on an idle machine
