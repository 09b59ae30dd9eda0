"""The cost model against runs that others published: errors by source, device, strategy, and by what was left out.

    python benchmarks/published_runs.py                              # the shipped coefficients on the shipped rows
    python benchmarks/published_runs.py --folds model                # whole models left out of the calibration
    python benchmarks/published_runs.py --data NEW.csv --calibrate-on OLD.csv --json
    python benchmarks/published_runs.py --fit                        # refits, and writes coefficients, bands and table

Columns as in `data/published-runs.csv`. An error is predicted over measured tokens per second, less one: positive is
too fast.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import published_fit
from published_report import Prediction, bands_toml, report, text
from published_rows import Published, read

from jaxdp.errors import JaxdpError
from jaxdp.predict.calibrated.bands import FILE as BANDS
from jaxdp.predict.calibrated.memory import fits, with_remat
from jaxdp.predict.calibrated.rates import Coefficients, shipped
from jaxdp.predict.calibrated.step import step_seconds

HERE = Path(__file__).parent
SHIPPED = HERE / "data" / "published-runs.csv"
TABLE = HERE / "results" / "published-runs.txt"
FOLDS = 8  # of whole models; so many fits
LEFT_OUT: dict[str, Callable[[Published], str]] = {
    "model": lambda row: f"{row.run.stack} {row.model.lower()}",
    "devices": lambda row: str(row.run.devices),
    "source": lambda row: row.source,
}


def predict(row: Published, known: Coefficients, calibrated_on: int) -> Prediction:
    stack = known.stack(row.run.stack)
    run = with_remat(row.run, stack)
    error = None
    if row.tokens_per_second:
        error = row.seconds / step_seconds(run, known).total - 1
    return Prediction(row=row, run=run, error=error, fits=fits(run, stack), calibrated_on=calibrated_on)


def predictions(rows: Sequence[Published], known: Coefficients, calibration: Sequence[Published]) -> list[Prediction]:
    counts = Counter((row.run.stack, row.run.device) for row in calibration if row.tokens_per_second)
    return [predict(row, known, counts[row.run.stack, row.run.device]) for row in rows]


def cross_validated(rows: Sequence[Published], by: str) -> list[Prediction]:
    """Every row predicted by coefficients fitted without its model, device count or source."""
    key = LEFT_OUT[by]
    sizes = Counter(key(row) for row in rows)
    loads = [0] * (FOLDS if by == "model" else len(sizes))
    fold_of: dict[str, int] = {}
    for name, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        fold_of[name] = loads.index(min(loads))
        loads[fold_of[name]] += size
    found: dict[int, Prediction] = {}
    for fold in range(len(loads)):
        kept = [row for row in rows if fold_of[key(row)] != fold]
        left_out = [row for row in rows if fold_of[key(row)] == fold]
        for prediction in predictions(left_out, published_fit.fit(kept), kept):
            found[prediction.row.line] = prediction
    return [found[row.line] for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHIPPED)
    parser.add_argument("--calibrate-on", type=Path, metavar="FILE")
    parser.add_argument("--folds", choices=list(LEFT_OUT))
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows, unreadable = read(options.data)
    if not rows:
        print(f"{options.data}: no row can be read: {dict(unreadable)}", file=sys.stderr)
        return 2
    if options.fit:
        return refit(rows)
    if options.folds:
        made = cross_validated(rows, options.folds)
    elif options.calibrate_on:
        calibration, _ = read(options.calibrate_on)
        made = predictions(rows, published_fit.fit(calibration), calibration)
    else:
        made = predictions(rows, shipped(), read(SHIPPED)[0])
    document = report(made, unreadable)
    print(json.dumps(document, indent=2, allow_nan=False) if options.json else text(document))
    return 0


def refit(rows: Sequence[Published]) -> int:
    """Writes the shipped coefficients, and the committed error bands and table."""
    published_fit.write(published_fit.fit(rows), rows)
    shipped.cache_clear()
    validated = {by: cross_validated(rows, by) for by in LEFT_OUT}
    BANDS.write_text(bands_toml(validated), encoding="utf-8")
    TABLE.write_text(table(rows, validated), encoding="utf-8")
    print(TABLE.read_text())
    return 0


def table(rows: Sequence[Published], validated: Mapping[str, Sequence[Prediction]]) -> str:
    """The committed table: the shipped coefficients on their own rows, then with parts left out."""
    parts = [f"Calibrated on these rows\n\n{text(report(predictions(rows, shipped(), rows), Counter()))}"]
    parts += [f"Left out: {by} by {by}\n\n{text(report(made, Counter()))}" for by, made in validated.items()]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (JaxdpError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
