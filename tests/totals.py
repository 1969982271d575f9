"""Lines that each folder of the package and of the tests may have, `totals.csv`.

    python tests/totals.py

takes every total down to what the folder has. A total that must go up is typed in by hand, in a commit that says why.
"""

import csv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOTALS = Path(__file__).with_suffix(".csv")


def count(folder: Path) -> int:
    """Lines of the Python files below a folder; of `keras_vit` and `tests` only those right in it."""
    paths = folder.rglob("*.py") if folder.parent != ROOT else folder.glob("*.py")
    return sum(len(path.read_text().splitlines()) for path in paths)


def lines_of_folders() -> dict[str, int]:
    """Lines of each folder by its path."""
    tops = [ROOT / "keras_vit", ROOT / "tests"]
    folders = tops + [folder for top in tops for folder in sorted(top.iterdir()) if any(folder.rglob("*.py"))]
    return {str(folder.relative_to(ROOT)): count(folder) for folder in folders}


def read() -> dict[str, int]:
    """The totals, by folder."""
    with TOTALS.open(newline="") as file:
        return {row["folder"]: int(row["lines"]) for row in csv.DictReader(file)}


if __name__ == "__main__":
    totals = read()
    rows = [(folder, min(lines, totals.get(folder, lines))) for folder, lines in lines_of_folders().items()]
    TOTALS.write_text("folder,lines\n" + "".join(f"{folder},{lines}\n" for folder, lines in rows))
