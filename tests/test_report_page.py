"""The report's files: nothing from a run becomes markup, unknown is a dash, and every number can be found again."""

import base64
import csv
import hashlib
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cli import main
from jaxdp.config import dotted
from jaxdp.errors import BadInput
from jaxdp.report import style
from jaxdp.report.analysis.write import sections_of, study, to_csv
from jaxdp.report.charts import draw, slug
from jaxdp.report.markdown import markdown
from jaxdp.report.page import html, prose_html, write_page
from jaxdp.report.section import Chart, Point, Section, Series, Table, TableCell, Verdict, groups_of
from tests.report_cases import dip_rows, row, write_run, write_sweep

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&|`*"


class Elements(HTMLParser):
    """The elements of a page, and the text of its embedded data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, str] = {}
        self.open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        self.open = dict(attrs).get("id") or tag

    def handle_data(self, data: str) -> None:
        self.texts[self.open] = self.texts.get(self.open, "") + data


def page_of(*sections: Section, title: str = "T", documents: dict | None = None) -> str:
    return html(title, sections, "", documents or {})


def evil_section() -> Section:
    point = Point(1, 2.0, 1.0, 3.0, {EVIL: EVIL}, EVIL, EVIL)
    table = Table([EVIL], [[EVIL], [TableCell(EVIL, EVIL, EVIL)]], [EVIL, ""], EVIL)
    chart = Chart(EVIL, EVIL, EVIL, [Series(EVIL, [point], EVIL)], note=EVIL, categories=[EVIL, EVIL])
    return Section(EVIL, EVIL, table, [chart], f"<svg>{EVIL}</svg>", Verdict(EVIL, "good"))


def test_no_text_of_a_run_becomes_an_element() -> None:
    table = Table(["x"], [["x"], [TableCell("x", "x", "x")]], ["x", ""], "x")
    chart = Chart("x", "x", "x", [Series("x", [Point(1, 2.0)], "x")])
    plain = Section("x", "x", table, [chart], "<svg/>", Verdict("x", "good"))
    evil = Elements(page_of(evil_section(), title=EVIL, documents={EVIL: {EVIL: EVIL}}))
    good = Elements(page_of(plain, title="x", documents={"x": {"x": "x"}}))
    assert [name for name in evil.names if name != "code"] == good.names
    assert not [name for name, _ in evil.attributes if name.startswith("on")]


@given(st.text())
def test_embedded_data_comes_back_as_it_was(text: str) -> None:
    page = Elements(page_of(Section(text), documents={"run": {"key": text}}))
    assert json.loads(page.texts["data"])["documents"]["run"] == {"key": text}
    assert page.names.count("script") == 2


@given(st.text())
def test_prose_opens_no_element_but_its_own(text: str) -> None:
    assert set(Elements(prose_html(text)).names) <= {"p", "ul", "li", "strong", "code"}


def test_prose_knows_paragraphs_lists_bold_and_code() -> None:
    assert prose_html("a **b** `c`\nd\n\n- e\n- f") == (
        "<p>a <strong>b</strong> <code>c</code> d</p><ul><li>e</li><li>f</li></ul>"
    )


def test_only_the_pages_own_script_may_run_and_nothing_is_loaded() -> None:
    text = page_of(evil_section())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    script = re.search(r"<script>(.*)</script>", text, re.S)
    assert policy and script and "default-src 'none'" in policy[1]
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy[1]
    loading = {"src", "href", "srcset", "action", "data", "xlink:href"}
    targets = [value or "" for name, value in Elements(text).attributes if name in loading]
    assert all(target.startswith(("data:", "#")) for target in targets)


def test_unknown_is_a_dash_without_a_value_and_never_zero() -> None:
    table = Table(["a", "b"], [[None, 0.0], [float("nan"), TableCell("1 k", 1000.0)]])
    cells = re.findall(r"<td([^>]*)>([^<]*)</td>", page_of(Section("x", table=table)))
    assert [text for _, text in cells] == ["—", "0", "—", "1 k"]
    assert ["data-value" in attributes for attributes, _ in cells] == [False, True, False, True]


def test_a_table_of_uneven_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="every row has 2 cells"):
        Table(["a", "b"], [[1.0]])
    with pytest.raises(ValueError, match="one a row"):
        Table(["a"], [[1.0], [2.0]], ["ddp"])


def test_groups_come_in_order_of_appearance() -> None:
    charts = [Chart("c", "x", "y", [Series("b", [], "b"), Series("ideal", [])])]
    sections = [Section("1", charts=charts), Section("2", table=Table(["x"], [[1], [2]], ["a", "b"]))]
    assert groups_of(sections) == ["b", "a"]


def test_write_page_writes_one_file(tmp_path: Path) -> None:
    path = write_page(tmp_path / "new" / "page.html", "Title", [Section("S")])
    assert [path] == list(path.parent.iterdir()) and "<h1>Title</h1>" in path.read_text()


def contrast(a: str, b: str) -> float:
    """As WCAG defines it."""

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(a), light(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_seen_on_their_ground() -> None:
    for colour in style.COLOURS:
        assert contrast(colour.light, "#ffffff") >= 3 and contrast(colour.dark, "#1c1f25") >= 3


def test_colour_marker_and_dash_repeat_together_only_after_many_groups() -> None:
    looks = [(i % len(style.COLOURS), i % len(style.MARKERS), i % len(style.DASHES)) for i in range(200)]
    assert len(set(looks)) == 200
    assert len({look[1:] for look in looks[:30]}) == 30  # without colour too
    assert set(style.MATPLOTLIB_MARKERS) == set(style.MARKERS)


def test_markdown_escapes_tables_and_points_to_its_figures(tmp_path: Path) -> None:
    chart = Chart("C", "x", "y", [Series("a", [Point(1, 1)])])
    table = Table(["a|b"], [["<b>|"]])
    sections = [Section("H", "p", table, [chart], verdict=Verdict("holds"))]
    text = markdown("T", "", sections, {0: tmp_path / "figures" / "c.png"}, tmp_path)
    assert "![C](figures/c.png)" in text and "| a\\|b |" in text and "| &lt;b>\\| |" in text
    assert "## H \\[holds\\]" in text


def test_figures_are_png_and_svg_the_same_each_time(tmp_path: Path) -> None:
    ideal = Series("ideal", [Point(1, 1), Point(2, 2)], reference=True)
    measured = Series("ddp", [Point(1, 1, 0.9, 1.1), Point(2, 2, flag="bend")], "ddp")
    lines = Chart("Speed-up: $n$", "devices", "x", [measured, ideal], x_scale="log")
    dots = Series("ddp", [Point(0, 1, 0.5, 2)], "ddp")
    rows = Chart("Speed-up: $n$", "cell", "ratio", [dots, ideal], categories=["a $b"])
    empty = Chart("Nothing", "x", "y", [Series("ideal", [Point(1, 1)], reference=True)])
    first, second = (draw([lines, rows, empty], ["ddp"], tmp_path / name) for name in ("one", "two"))
    assert sorted(first) == [0, 1] and first[0].name == "speed-up-n.png" and first[1].name != first[0].name
    for place, path in first.items():
        assert path.read_bytes().startswith(b"\x89PNG")
        assert ElementTree.parse(path.with_suffix(".svg")).getroot().tag.endswith("svg")
        assert path.read_bytes() == second[place].read_bytes()


@given(st.text())
def test_a_title_is_a_safe_file_name(title: str) -> None:
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]{0,79}", slug(title))


def test_flat_settings_keep_lists_and_empty_sections() -> None:
    assert dotted({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "a.c": {}, "d": [1]}


# The whole report.


def dip(tmp_path: Path) -> Path:
    rows = [*dip_rows(), row("ps", 4, None, status="oom", reason="out of memory while compiling")]
    return write_sweep(tmp_path / "sweep", rows)


def test_the_csv_has_every_metric_once_and_efficiency(tmp_path: Path) -> None:
    lines = list(csv.DictReader(StringIO(to_csv(study([dip(tmp_path)])))))
    keys = [(line["strategy"], line["devices"], line["scaling"], line["metric"]) for line in lines]
    assert len(set(keys)) == len(keys)
    at_four = next(line for line in lines if line["strategy"] == "fsdp" and line["metric"] == "efficiency"
                   and line["devices"] == "4")  # fmt: skip
    assert float(at_four["median"]) == pytest.approx(0.6) and at_four["n"] == "3"
    assert not any(line["metric"] == "communication_share" for line in lines)  # unknown: no line, and no 0


def test_the_sections_say_cpu_the_bend_and_what_failed(tmp_path: Path) -> None:
    sections = {section.heading: section for section in sections_of(study([dip(tmp_path)]))}
    assert "no evidence of a cluster" in sections["Overview"].prose
    assert "explained by block_split" in sections["Scaling"].prose
    flags = [p.flag for series in sections["Scaling"].charts[0].series for p in series.points if p.flag]
    assert len(flags) == 2 and all("block_split" in flag for flag in flags)
    lost = sections["Not measured"].table
    assert lost and [cell.text for cell in lost.cells[0]][3:5] == ["oom", "out of memory while compiling"]
    text = markdown("T", "", list(sections.values()), {}, tmp_path)
    assert "| — |" in text  # the device's peak, which a CPU does not tell


def test_a_winner_is_named_only_beyond_the_spread(tmp_path: Path) -> None:
    near = [row(name, 2, rate) for name, rate in (("ddp", 1000.0), ("fsdp", 1040.0))]
    far = [row(name, 2, rate) for name, rate in (("ddp", 1000.0), ("fsdp", 1400.0))]
    told = [
        sections_of(study([write_sweep(tmp_path / name, rows)]))[0].prose for name, rows in (("a", near), ("b", far))
    ]
    assert "no clear winner" in told[0] and "beyond the spreads of both" in told[1]


def test_a_single_run_says_n_is_one(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "ddp", 2, 1000.0)
    overview = sections_of(study([tmp_path / "a"]))[0]
    assert "n = 1" in overview.prose and overview.table
    assert overview.table.rows[0][overview.table.columns.index("n")] == 1


def test_the_command_writes_everything_and_one_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main.register(["report"])
    folder = dip(tmp_path)
    done = CliRunner().invoke(main.app, ["report", str(folder), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert all(Path(path).is_file() for path in document["files"])
    names = {Path(path).relative_to(folder / "report").as_posix() for path in document["files"]}
    assert {"report.html", "report.md", "report.csv", "figures/scaling-efficiency-strong-scaling.svg"} <= names
    assert [bend["finding"] for bend in document["bends"]] == ["block_split", "block_split"]
    assert document["cells"][0]["quantities"]["communication_share"] is None
    assert document["comparison"] is None and document["not_measured"][0]["status"] == "oom"
    again = CliRunner().invoke(main.app, ["report", str(folder), "--out", str(tmp_path / "out")])
    assert again.exit_code == 0 and "note: fsdp: bend at 4 devices" in again.stdout
    assert "not measured: sweep/ps-4" not in again.stdout or "oom" in again.stdout


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("run.json", None, "holds neither a run"),
        ("run.json", "{", "not strict JSON"),
        ("run.json", '{"devices": [3]}', "devices has another form"),
        ("run.json", "{}", "no summary.json"),
        ("table.jsonl", '{"key": "a"}\n', "not a row of a sweep"),
        ("table.jsonl", "nonsense\n", "not a JSON object"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(tmp_path: Path, name: str, content: str | None, told: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(BadInput, match=told):
        study([tmp_path])
    assert not (tmp_path / "report").exists()


def test_a_folder_given_twice_or_missing_is_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", "ddp", 1, 10.0)
    with pytest.raises(BadInput, match="given twice"):
        study([folder, tmp_path / "x" / ".." / "a"])
    with pytest.raises(BadInput, match="no such folder"):
        study([tmp_path / "absent"])


def test_the_assets_travel_with_the_package() -> None:
    code = "from jaxdp.report.page import SCRIPTS, asset; print(sum(len(asset(name)) for name in SCRIPTS))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 5000
