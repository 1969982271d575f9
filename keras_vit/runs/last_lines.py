"""What a run says at its end, and again when its command is given once more: what it came to, and what to do next."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_vit.pages.formatting import columns, duration, printable
from keras_vit.runs.own_files import REPORT
from keras_vit.tasks import Task


def result_lines(folder: Path, facts: Mapping[str, Any], task: Task) -> Iterator[str]:
    """A table of results and the next command; `facts` are those of `result.json`, of which old runs lack some."""
    rows = [*task.result_rows(facts)]
    if "seconds" in facts:
        rows.append(("time", duration(facts["seconds"])))
    report = folder / REPORT if (folder / REPORT).is_file() else folder
    yield ""
    yield "Results"
    yield from (f"  {line}" for line in columns([*rows, ("report", printable(report))]))
    yield ""
    yield "Next"
    yield f"  keras-vit predict PHOTO --model {shlex.quote(printable(folder))}"
