"""Results as tables in Markdown: of each measurement the newest row, one table a task and machine.

A case, as a batch in a precision, may have been timed more than once, each time with other runners. Rows of one run
have one letter, and a ratio is over the fastest peer of its own run.
"""

import string
from collections.abc import Iterable, Sequence

KEY = (
    *("machine", "cores", "accelerator", "task", "model", "image_size", "batch", "precision", "threads", "optimizer"),
    *("activation", "backend", "device", "runner"),
)
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
_TABLE = ("task", "machine", "accelerator", "cores", "threads", "activation", "backend")  # what a table is of
_CASE = ("model", "image_size", "batch", "precision")
_HEAD = (
    *("model", "pixels", "batch", "precision", "run", "runner", "ms", "images/s", "spread", "over the fastest peer"),
    *("over the same runtime", "GiB"),
)


def newest(rows: Iterable[dict]) -> list[dict]:
    """Of each key the last row by date, in the order in which the keys first come."""
    found: dict[tuple, dict] = {}
    for row in rows:
        key = tuple(row[name] for name in KEY)
        if key not in found or row["date"] >= found[key]["date"]:
            found[key] = row
    return list(found.values())


def markdown(rows: Iterable[dict]) -> str:
    """Tables of the newest rows, each under a line that says of what; `""` without rows."""
    tables: dict[tuple, list[dict]] = {}
    for row in newest(rows):
        tables.setdefault(tuple(row[name] for name in _TABLE), []).append(row)
    return "\n\n".join(f"{_title(found[0])}\n\n{_table(found)}" for found in tables.values())


def with_tables(page: str, rows: Iterable[dict]) -> str:
    """A page with the tables of these rows between its two marks.

    Raises:
        ValueError: if the page has not both marks, once each.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"the page must have {BEGIN} and {END}, once each.\nReceived: a page of {len(page)} letters.")
    tables = markdown(rows)
    inside = f"\n\n{tables}\n\n" if tables else "\n"
    return page[: page.index(BEGIN) + len(BEGIN)] + inside + page[page.index(END) :]


def _title(row):
    where = row["accelerator"] or row["machine"]
    has = [name for field, name in (("avx512_bf16", "AVX-512 bf16"), ("amx", "AMX")) if row[field]]
    processor = f"{where}, {' and '.join(has)}" if has and not row["accelerator"] else where
    threads = f"{row['threads']} of {row['cores']} cores"
    tail = f", {row['optimizer']}" if row["task"] == "train" else ""
    return f"**{row['task']}**{tail}: {processor}, {threads}, {row['activation']}, Keras on {row['backend']}."


def _table(rows: Sequence[dict]):
    cases: dict[tuple, list[dict]] = {}
    for row in rows:
        cases.setdefault(tuple(row[name] for name in _CASE), []).append(row)
    lines = [_HEAD, ["---"] * len(_HEAD), *(_cells(row, run) for each in cases.values() for row, run in _runs(each))]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _runs(rows):
    """Rows of a case with the letters of their runs, the newest of which is `a`."""
    dates = sorted({row["date"] for row in rows}, reverse=True)
    letters = dict(zip(dates, string.ascii_lowercase, strict=False))
    found = [(row, letters.get(row["date"], "-")) for row in rows]
    return sorted(found, key=lambda each: each[0]["date"], reverse=True)


def _cells(row, run):
    engine = row["engine"]
    runner = f"{row['runner']} ({engine})" if engine and not row["runner"].endswith(engine) else row["runner"]
    memory = row["device_memory"] or row["peak_memory"]
    return (
        *(row[name] for name in _CASE),
        run,
        runner,
        f"{row['median_s'] * 1e3:.4g}",
        _number(row["images_per_s"], ".4g"),
        f"{row['spread']:.1%}",
        _number(row["ratio_to_fastest_peer"], ".3f"),
        _number(row["ratio_to_same_runtime"], ".3f"),
        "" if memory is None else f"{memory / 2**30:.2f}",
    )


def _number(value, form):
    return "" if value is None else format(value, form)
