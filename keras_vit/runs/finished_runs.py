"""A command that is given again after its run has finished, as job queues do: what the run came to.

Keras is not needed, so the answer comes at once.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_vit.annotations import FilePath
from keras_vit.files import json_object
from keras_vit.pages.escaping import printable
from keras_vit.runs.options import FinetuneOptions
from keras_vit.runs.own_files import CONFIG, MOST_BYTES, REPORT, RESULT, is_finished, read_config

# Options that decide when and where, but no number of the result.
ELSEWHERE = ("data", "out", "strategy", "layout", "resume", "checkpoint_minutes", "checkpoint_every")
_FOUND = "auto"  # of an option that the machine decides; the run has written down how


def finished_lines(out: FilePath, data: Any, options: FinetuneOptions) -> list[str] | None:
    """Lines on a finished run that was asked for just so; `None` where there is no such run.

    Args:
        out: the folder.
        data: as `finetune` takes it.
        options: that are asked for.
    """
    folder = Path(out)
    if options.resume == "never" or not is_finished(folder):
        return None
    try:
        result = json_object(folder / RESULT, MOST_BYTES)
        if not _is_same(read_config(folder / CONFIG)["arguments"], data, options):
            return None
        measured = f"{result['test_accuracy']:.4f} on {result['test_images']:,} images"
        line = f"{printable(result['split'])} accuracy {measured}, epoch {result['best_epoch']}"
    except (ValueError, TypeError, KeyError):  # not as a run writes it
        return None
    report = folder / REPORT if (folder / REPORT).exists() else folder
    return [line, f"this run has finished, and nothing was changed; {printable(report)}"]


def _is_same(before: Mapping[str, Any], data: Any, options: FinetuneOptions) -> bool:
    """Whether a run with these arguments was asked for the same."""
    if before.get("data") not in (str(data), os.path.abspath(str(data))):
        return False
    now = json.loads(json.dumps(options.facts(), default=str))
    return all(
        value in (_FOUND, before.get(name)) and name in before for name, value in now.items() if name not in ELSEWHERE
    )
