"""The report's page in a real browser, opened from disk: it sorts, switches, explains its points, and fits a phone."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxdp.report.analysis.write import study, write
from tests.report_cases import DIP, SPLIT, finding, row, write_run, write_sweep

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM or not DRIVER, reason="no chromium and chromedriver on this machine"),
]
EVIL = "<img src=x onerror=document.title='broken'>"
WAIT_S = 20


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with the study's dip, a failed row, and a hostile reason and config value."""
    folder = tmp_path_factory.mktemp("sweep")
    rows = [row("ps", 4, None, status="error", reason=EVIL)]
    for devices, rate in DIP.items():
        found = [finding("block_split", EVIL)] if devices in SPLIT else []
        for seed, strategy, speed, told in ((0, "ddp", 1200 * devices**0.9, []), (1, "fsdp", rate, found)):
            name = f"{strategy}-{devices}"
            write_run(folder / name, strategy, devices, speed, seed=seed, stragglers=EVIL)
            rows.append(row(strategy, devices, speed, run_dir=name, findings=told))
    return write(study([write_sweep(folder, rows)]), folder / "report")[0]


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (
        *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"),
        *("disable-component-update", "disable-sync", "window-size=1280,900"),
        f"user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chrome, page: Path) -> Iterator:
    """The page freshly opened, wide and light; afterwards it must have said and fetched nothing."""
    emulate(chrome, 1280, 900, "light")
    chrome.get("about:blank")
    for kind in ("browser", "performance"):  # what was before
        chrome.get_log(kind)
    chrome.get(page.as_uri())
    yield chrome
    assert [line["message"] for line in chrome.get_log("browser")] == []
    assert chrome.title != "broken"


def emulate(chrome, width: int, height: int, scheme: str) -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def css(browser, selector: str):
    return browser.find_elements("css selector", selector)


def press(browser, key: str) -> None:
    """A key on what has the focus."""
    from selenium.webdriver import ActionChains

    ActionChains(browser).send_keys(key).perform()


def until(browser, script: str) -> None:
    """Waits until a script's value is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, WAIT_S).until(lambda driver: driver.execute_script(f"return {script}"))


def column(browser, table: int, name: str) -> list[str | None]:
    """What the visible rows of a table are sorted by in a column."""
    return browser.execute_script(
        """const table = document.querySelectorAll("main table")[arguments[0]];
        const at = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === arguments[1]);
        return [...table.tBodies[0].rows].filter((row) => row.offsetParent)
          .map((row) => row.cells[at].dataset.value ?? null);""",
        table,
        name,
    )


def test_it_opens_from_disk_and_loads_nothing_else(browser, page: Path) -> None:
    import json

    events = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    asked = {e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"}
    assert {url for url in asked if not url.startswith("data:")} == {page.as_uri()}
    assert not [e for e in events if e["method"] == "Network.loadingFailed"]
    assert len(css(browser, ".chart svg.plot")) == len(css(browser, ".chart")) > 5


def test_a_table_sorts_both_ways_by_keyboard_and_says_so(browser) -> None:
    button = css(browser, "#section-0 th button")[3]
    name = button.text
    button.send_keys("\n")
    rising = [float(value or "inf") for value in column(browser, 0, name)]
    assert rising == sorted(rising) and len(set(rising)) > 6
    assert css(browser, "#section-0 th")[3].get_attribute("aria-sort") == "ascending"
    button.send_keys(" ")
    falling = [float(value or "inf") for value in column(browser, 0, name)]
    assert falling == sorted(rising, reverse=True)
    assert css(browser, "#section-0 th")[3].get_attribute("aria-sort") == "descending"


def test_numbers_sort_as_numbers_and_the_unknown_stays_last(browser) -> None:
    sort = "return [[undefined, '9', '10', '-1'].sort((a, b) => compareValues(a, b, arguments[0]))][0]"
    assert browser.execute_script(sort, 1) == ["-1", "9", "10", None]
    by_hand = (
        "return [compareValues(undefined, '1', -1), compareValues('1', undefined, -1), compareValues('b', 'a', 1)]"
    )
    assert browser.execute_script(by_hand) == [1, -1, 1]


def test_a_switch_takes_a_strategy_out_of_tables_and_charts(browser) -> None:
    before = len(css(browser, ".chart")[0].find_elements("css selector", ".series"))
    assert set(column(browser, 0, "strategy")) == {"ddp", "fsdp"}
    css(browser, ".switch input")[0].click()
    assert set(column(browser, 0, "strategy")) == {"fsdp"}
    series = css(browser, ".chart")[0].find_elements("css selector", ".series")
    assert len(series) == before - 1 and "ddp" not in css(browser, ".chart .legend")[0].text
    css(browser, ".switch input")[0].click()
    assert set(column(browser, 0, "strategy")) == {"ddp", "fsdp"}


def test_a_point_is_explained_when_hovered_and_kept_when_clicked(browser) -> None:
    from selenium.webdriver import ActionChains

    point = css(browser, ".chart")[0].find_elements("css selector", ".point:has(.flag) .halo")[0]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", point)
    ActionChains(browser).move_to_element(point).perform()
    card = css(browser, "#card")[0]
    assert card.is_displayed() and "fsdp" in card.text and "run folder" in card.text
    assert f"explained by block_split: {EVIL}" in card.text  # as text: the page runs none of it
    ActionChains(browser).click().move_to_element(css(browser, "h1")[0]).perform()
    assert card.is_displayed()
    press(browser, "\ue00c")  # escape
    assert not card.is_displayed()


def test_the_keyboard_goes_from_point_to_point(browser) -> None:
    first = css(browser, ".chart")[0].find_elements("css selector", ".point[tabindex='0']")
    assert len(first) == 1
    browser.execute_script("arguments[0].focus()", first[0])
    card = css(browser, "#card")[0]
    assert card.is_displayed() and "ddp" in card.text and "devices\n1" in card.text
    press(browser, "\ue014")  # right
    assert "devices\n2" in card.text
    press(browser, "\ue015")  # down
    assert "fsdp" in card.text and "devices\n2" in card.text


def test_settings_are_read_and_two_compared_from_a_point(browser) -> None:
    first = css(browser, ".chart")[0].find_elements("css selector", ".point[tabindex='0']")[0]
    browser.execute_script("arguments[0].focus()", first)
    press(browser, "\ue007")  # enter
    css(browser, "#card .actions button")[0].click()
    chosen = "document.getElementById('document-a').value"
    assert browser.execute_script(f"return {chosen}").endswith("ddp-1")
    rows = {row.text.split()[0] for row in css(browser, "#document-table tbody tr")}
    assert {"config.model.width", "versions.jax", "machine.host"} <= rows
    browser.execute_script(
        """const select = document.getElementById("document-b");
        select.value = [...select.options].find((option) => option.value.endsWith("fsdp-2")).value;
        select.dispatchEvent(new Event("input"));"""
    )
    differing = [row.text.split() for row in css(browser, "#document-table tbody tr")]
    assert differing == [
        ["config.train.seed", "0", "1"],
        ["config.strategy.name", "ddp", "fsdp"],
        ["devices.count", "1", "2"],
    ]
    assert css(browser, "#document-summary")[0].text.startswith("3 of ")


def test_a_run_cannot_inject_markup(browser) -> None:
    assert css(browser, "img[src='x']") == []
    assert EVIL in browser.execute_script("return document.body.textContent")


def test_a_phone_scrolls_tables_within_themselves(browser) -> None:
    emulate(browser, 390, 844, "light")
    until(browser, "innerWidth === 390 && drawnFor === document.documentElement.clientWidth")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    wide = "[...document.querySelectorAll('.scroll')].some((box) => box.scrollWidth > box.clientWidth)"
    assert browser.execute_script(f"return {wide}")
    outside = """[...document.querySelectorAll(".plot text")].filter((text) => {
      const box = text.getBoundingClientRect();
      return box.left < -1 || box.right > 391;
    }).map((text) => text.textContent)"""
    assert browser.execute_script(f"return {outside}") == []


@pytest.mark.parametrize("width", [390, 1280])
def test_no_labels_of_a_chart_overlap(browser, width: int) -> None:
    emulate(browser, width, 844, "light")
    until(browser, f"innerWidth === {width} && drawnFor === document.documentElement.clientWidth")
    overlaps = browser.execute_script(
        """const found = [];
        const apart = (p, q) => p.right <= q.left + 1 || p.bottom <= q.top + 3;
        for (const plot of document.querySelectorAll(".plot")) {
          const texts = [...plot.querySelectorAll("text")];
          const boxes = texts.map((text) => text.getBoundingClientRect());
          for (let a = 0; a < texts.length; a += 1) for (let b = 0; b < a; b += 1) {
            if (apart(boxes[a], boxes[b]) || apart(boxes[b], boxes[a])) continue;
            found.push([plot.getAttribute("aria-label"), texts[a].textContent, texts[b].textContent]);
          }
        }
        return found;"""
    )
    assert overlaps == []


def test_dark_follows_the_system_and_the_toggle(browser) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = browser.execute_script(ground)
    emulate(browser, 1280, 900, "dark")
    dark = browser.execute_script(ground)
    assert light != dark
    css(browser, "#theme")[0].click()
    assert browser.execute_script(ground) == light
    css(browser, "#theme")[0].click()
    assert browser.execute_script(ground) == dark
