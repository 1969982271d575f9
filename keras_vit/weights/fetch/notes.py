"""Small JSON files beside downloads, read such that no stranger's file can hold us up."""

import json
from pathlib import Path

_MOST_BYTES = 1 << 16  # of a note; ours have some 300


def read_json_object(path: Path, most_bytes: int = _MOST_BYTES) -> dict | None:
    """The JSON object in a file; None if there is none, it is no plain file, too large, or no JSON object."""
    try:
        if not path.is_file() or path.stat().st_size > most_bytes:  # a pipe would never end
            return None
        note = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return note if isinstance(note, dict) else None
