"""Tests the study's findings and puts what came out into docs/findings and the README:

    python benchmarks/findings.py              # up to ten minutes; leave the machine alone meanwhile
    python benchmarks/findings.py --from DIR   # takes over the folder of a `jaxdp reproduce` instead

Figures go to docs/findings/figures, the document to benchmarks/results/findings.json, and the table of verdicts between
the README's markers.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from jaxdp.strict_json import from_json, write_json

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "findings" / "figures"
RESULTS = ROOT / "benchmarks" / "results" / "findings.json"
BLOCK = re.compile(r"(<!-- findings -->\n).*?(<!-- /findings -->)", re.S)
OF_THIS_RUN = ("run_dir", "page")  # what means nothing elsewhere


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="a folder that reproduce has written")
    folder = parser.parse_args().folder
    if folder is not None:
        take_over(folder)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        command = [sys.executable, "-m", "cli", "reproduce", "--run-dir", str(folder), "--json"]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        take_over(folder)


def take_over(folder: Path) -> None:
    document = from_json((folder / "results.json").read_bytes())
    write_json(RESULTS, {key: value for key, value in document.items() if key not in OF_THIS_RUN})
    FIGURES.mkdir(parents=True, exist_ok=True)
    for path in sorted((folder / "figures").glob("*.[sp][vn]g")):
        shutil.copyfile(path, FIGURES / path.name)
    readme = ROOT / "README.md"
    shown = table(document)
    readme.write_text(BLOCK.sub(lambda found: found[1] + shown + found[2], readme.read_text(), count=1))


def table(document: dict[str, Any]) -> str:
    """The findings as Markdown, each with a link to its page."""
    lines = ["| | the study says | here it | because |", "|---|---|---|---|"]
    for finding in document["findings"]:
        link = f"[{finding['finding']}](docs/findings/{finding['finding']}.md)"
        cells = (link, finding["claim"], f"**{finding['verdict']}**", finding["reason"])
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
