"""What this package has brought into the cache folder, by the notes that it wrote beside: no other file counts."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

from keras_vit.weights.fetch import environment
from keras_vit.weights.fetch.cache import NO_DOWNLOADS, NOTES_ELSEWHERE, is_current, note_beside, read_note
from keras_vit.weights.fetch.part import Part

_NOTE_ELSEWHERE = re.compile(r"[0-9a-f]{32}\.json")
_BROKEN_OFF = 3600  # seconds without a byte; a younger part may be another process'


def brought_files() -> Iterator[tuple[Path, ...]]:
    """Each file that was verified and is as it was then, with its note; then what broken-off downloads have left.

    Of what huggingface_hub keeps it is our note alone. Links, and files without a note, were put there by others.
    """
    folder = environment.cache_dir()
    for path in sorted(folder.rglob("*")):
        top, note = path.relative_to(folder).parts[0], note_beside(path)
        if top in NO_DOWNLOADS or path.is_symlink() or not path.is_file():
            continue
        if top == NOTES_ELSEWHERE and _NOTE_ELSEWHERE.fullmatch(path.name) and read_note(path):
            yield (path,)
        elif path.suffix == ".part":
            if not Part(path).is_foreign and path.stat().st_mtime < time.time() - _BROKEN_OFF:
                yield (path, note)
        elif (found := read_note(note)) and is_current(found, path):
            yield (path, note)
