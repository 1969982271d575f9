"""Writes the tables of docs/speed.md from what `keras-vit benchmark --results benchmarks/results` has measured.

    python benchmarks/tables.py [RESULTS] [PAGE]

Of each measurement the newest row counts. Without results the page has no table.
"""

import argparse
from pathlib import Path

from keras_vit.benchmarking.results import read
from keras_vit.benchmarking.tables import with_tables

ROOT = Path(__file__).parents[1]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("page", nargs="?", type=Path, default=ROOT / "docs" / "speed.md")
    given = parser.parse_args(arguments)
    rows = read(given.results)
    given.page.write_text(with_tables(given.page.read_text(), rows))
    print(f"{given.page.name}: {len(rows)} rows read")


if __name__ == "__main__":
    main()
