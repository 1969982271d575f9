"""Writing checkpoints and the JSON beside them: under the final name only when whole and on the disk."""

import json
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from keras_vit.annotations import FilePath
from keras_vit.files import atomic_write
from keras_vit.weights.reader.directory import NOTE_KEY


def write_npz(path: FilePath, arrays: Iterable[tuple[str, np.ndarray]], note: dict) -> None:
    """Writes an `.npz` as `np.savez` would, without holding all arrays at once.

    The file is written beside its destination, flushed to disk and then renamed, so a fault
    leaves what was there before.

    Args:
        path: destination; must end in `.npz`.
        arrays: pairs of name and array, each name once.
        note: small dict for `scan` to give back; kept in the zip's comment.

    Raises:
        ValueError: for another ending, or a name that comes twice.
        FileNotFoundError: if the folder does not exist.
    """
    with (
        atomic_write(_checked(path, ".npz")) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name, array in _once(path, arrays):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
        archive.comment = json.dumps({NOTE_KEY: note}).encode()


def write_safetensors(path: FilePath, arrays: Iterable[tuple[str, np.ndarray]], note: dict) -> None:
    """Writes a safetensors file; its header comes first, so all arrays are held at once.

    Otherwise as `write_npz`: a fault leaves what was there before.

    Args:
        path: destination; must end in `.safetensors`.
        arrays: pairs of name and array, each name once.
        note: small dict for `scan` to give back; kept in `__metadata__`.

    Raises:
        ValueError: for another ending, or a name that comes twice.
        FileNotFoundError: if the folder does not exist.
    """
    with atomic_write(_checked(path, ".safetensors")) as temporary:
        # The serializer writes memory as it lies, and refuses transposed views, which are common here.
        held = {name: np.asarray(array, order="C") for name, array in _once(path, arrays)}
        try:
            # transformers refuses files whose format is not "pt".
            save_file(held, temporary, {"format": "pt", NOTE_KEY: json.dumps(note)})
        except SafetensorError as error:
            raise OSError(f"the file could not be written: {error}.\nReceived: {path}") from error


def write_json(path: FilePath, content: dict) -> None:
    """Writes a small JSON file with the promises of `write_npz`; `path` must end in `.json`."""
    write_text(_checked(path, ".json"), json.dumps(content, indent=2) + "\n")


def write_text(path: FilePath, text: str) -> None:
    """Writes a small text with the promises of `write_npz`."""
    with atomic_write(Path(path)) as temporary:
        Path(temporary).write_text(text, "utf-8")


def _once(path: FilePath, arrays: Iterable[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
    """Pairs of name and array as they come; refuses a name that comes again, which readers would drop."""
    seen = set()
    for name, array in arrays:
        if name in seen:
            raise ValueError(f"each array must have a name of its own.\nReceived: {name!r} twice, for {path}")
        seen.add(name)
        yield name, array


def _checked(path: FilePath, ending: str) -> Path:
    path = Path(path)
    if path.suffix != ending:
        raise ValueError(f"`path` must end in {ending}.\nReceived: {path}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of `path` must exist.\nReceived: {path}")
    return path
