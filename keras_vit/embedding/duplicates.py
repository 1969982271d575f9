"""Near duplicates: all pairs of vectors that are at least so similar, and the groups that these pairs make."""

import base64
import csv
import dataclasses
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.checks import ArgumentError, check_choice, check_installed, check_number
from keras_vit.embedding.embedder import read_photo_bytes
from keras_vit.embedding.manifest import read_manifest
from keras_vit.embedding.neighbors import SEARCHES, Index, Rows, cosines, unit_vectors
from keras_vit.embedding.photo_lists import PhotoList, list_error, photo_key, photo_location, read_list
from keras_vit.files import atomic_write
from keras_vit.images.numpy_pipeline import decode_photo
from keras_vit.images.pillow_formats import PillowError
from keras_vit.pages.formatting import Pace, check_table_place, printable, spreadsheet_cell
from keras_vit.pages.html import check_page, write_page

# Measured by DINOv2 S/14 on 21 pictures: all that were saved again or halved, and 19 that were cropped by a tenth, are
# above it. Different pictures reach 0.92.
THRESHOLD = 0.95
MOST_PAIRS = 1_000_000  # that are kept, the most similar; a thousand equal photos have half a million
_SIDE = 2048  # of a block of products
_FAISS_ROWS = 256  # that faiss looks up at once: it answers with all pairs of these
_SLACK = 1e-5  # by which a product in float32 may be below the cosine
_UNIONS = 1 << 16  # pairs that are joined at once
PAGE = "duplicates.html"
_COLUMNS = ("photo", "other", "similarity", "group")
_MOST_SHOWN = 200  # pairs; a page of them has some 3 MB
_LONGEST = 200  # pixels of a picture

_Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class NearDuplicates:
    """Pairs of rows, the most similar first; of equal ones those of lower rows."""

    first: np.ndarray  # int64 `(n,)`, the lower row of each pair
    second: np.ndarray
    similarities: np.ndarray  # float32 `(n,)`, cosines
    number: int  # of all pairs, of which the most similar 1,000,000 are kept
    groups: np.ndarray  # int64 `(N,)`, the group of each row, from 0 on by the lowest row; -1 for one without a pair


def near_duplicates(
    vectors: np.ndarray,
    threshold: float = THRESHOLD,
    *,
    engine: str = "numpy",
    most: int = MOST_PAIRS,
    say: Callable[[str], Any] = lambda line: None,
) -> NearDuplicates:
    """Finds all pairs of rows of real `(N, D)` whose cosine is at least `threshold`, and keeps the `most` similar.

    Rows without a direction have no pair. The engine `"numpy"` finds all, and `"faiss"` may miss some. `say` is called
    with lines on the progress, if it takes longer than seconds.
    """
    check_search(threshold, engine)
    kept: _Pairs = (np.empty(0, "int64"), np.empty(0, "int64"), np.empty(0, "float32"))
    waiting, held, number, parents = [kept], 0, 0, np.arange(len(vectors))
    for first, second in (_blocks if engine == "numpy" else _by_index)(vectors, threshold - _SLACK, say):
        if not len(first):
            continue
        values = cosines(vectors, vectors, first, second)
        near = values >= np.float32(threshold)
        waiting.append((first[near], second[near], values[near]))
        number, held = number + int(near.sum()), held + int(near.sum())
        _join(parents, first[near], second[near])
        if held > 2 * most:
            waiting, held = [_best(waiting, most)], most
    return NearDuplicates(*_best(waiting, most), number, _groups(parents))


def check_search(threshold: float, engine: str) -> None:
    """Raises for a threshold that is no cosine above 0, an unknown engine, and one that is not installed."""
    check_choice("engine", engine, SEARCHES)
    check_number("threshold", threshold)
    if not 0 < threshold <= 1:
        raise ArgumentError(f"`threshold` is a cosine above 0, and at most 1.\nReceived: threshold={threshold}.")
    if engine == "faiss":
        check_installed("faiss", 'engine="faiss" searches by it', "search")


def _blocks(vectors: np.ndarray, least: float, say: Callable[[str], Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of pairs, the lower one first, with a product of at least `least`: blocks on and above the diagonal."""
    sides = -(-len(vectors) // _SIDE)
    done, pace = 0, Pace(sides * (sides + 1) // 2, "blocks compared")
    for start in range(0, len(vectors), _SIDE):
        units, valid = unit_vectors(vectors[start : start + _SIDE])
        for other in range(start, len(vectors), _SIDE):
            others, known = (units, valid) if other == start else unit_vectors(vectors[other : other + _SIDE])
            near = units @ others.T >= least
            near &= valid[:, None] & known
            first, second = np.nonzero(np.triu(near, 1) if other == start else near)
            yield first + start, second + other
            done += 1
            for line in pace.lines(done):
                say(line)


def _by_index(vectors: np.ndarray, least: float, say: Callable[[str], Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """As `_blocks`, of the pairs that faiss finds for their lower row."""
    index = Index(vectors)
    pace = Pace(len(vectors), "vectors compared")
    for start in range(0, len(vectors), _FAISS_ROWS):
        first, second = index.above(vectors[start : start + _FAISS_ROWS], max(least, 1e-6))
        above = second > first + start
        yield first[above] + start, second[above]
        for line in pace.lines(min(start + _FAISS_ROWS, len(vectors))):
            say(line)


def _best(found: list[_Pairs], most: int) -> _Pairs:
    """The most similar pairs of several lists, in order."""
    first, second, values = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((second, first, -values))[:most]
    return first[order], second[order], values[order]


def _join(parents: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
    """Puts the rows of pairs into one tree each (union-find); a parent is a lower row, or the row itself."""
    for start in range(0, len(first), _UNIONS):
        pair = [_roots(parents, rows[start : start + _UNIONS]) for rows in (first, second)]
        while (apart := pair[0] != pair[1]).any():
            low, high = np.minimum(*pair)[apart], np.maximum(*pair)[apart]
            np.minimum.at(parents, high, low)
            pair = [_roots(parents, rows) for rows in (low, high)]


def _roots(parents: np.ndarray, rows: np.ndarray) -> np.ndarray:
    found = parents[rows]
    while not np.array_equal(above := parents[found], found):
        found = above
    parents[rows] = found
    return found


def _groups(parents: np.ndarray) -> np.ndarray:
    roots = _roots(parents, np.arange(len(parents)))
    sizes = np.bincount(roots, minlength=len(parents))
    numbers = np.full(len(parents), -1)
    numbers[sizes > 1] = np.arange(np.count_nonzero(sizes > 1))
    return numbers[roots]


def check_files(table: Path, page: Path | None) -> None:
    """Raises unless the table and the page may be written: only those of this package are replaced."""
    check_table_place(table, _COLUMNS)
    if page is not None:
        for module in ("jinja2", "PIL"):
            check_installed(module, "a page of duplicates shows pictures", "train")
        check_page(page / PAGE)


def write_table(path: Path, rows: Rows, found: NearDuplicates) -> None:
    """Writes the pairs as a CSV file, the most similar first; photos without names by the numbers of their rows."""
    names = range(len(rows.vectors)) if rows.photos is None else rows.photos.tolist()
    groups = found.groups[found.first].tolist()
    pairs = zip(found.first.tolist(), found.second.tolist(), found.similarities.tolist(), groups, strict=True)
    with atomic_write(path) as part, open(part, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        for one, other, value, group in pairs:
            writer.writerow((spreadsheet_cell(names[one]), spreadsheet_cell(names[other]), f"{value:.6f}", group))


def read_photo_list(vectors: Path, top: Path | None) -> PhotoList:
    """The list of the photos of a job's folder, with that from which their paths count, by default where it found them.

    Raises:
        ValueError: if the folder is unknown or missing, or the list is another one.
    """
    manifest = read_manifest(vectors)
    place = top or manifest.top
    if place is None:
        raise ArgumentError(
            "`photos_in` must be given, since the version that wrote the vectors did not note the photos' folder.\n"
            "Received: none."
        )
    if top is not None and not os.path.isdir(top):
        raise ArgumentError(f"`photos_in` must be a folder.\nReceived: {printable(top)}, where none is.")
    listed = read_list(vectors, Path(place))
    if listed.fingerprint() != manifest.photos_sha256:
        raise list_error(vectors, "which has changed", "vectors")
    return listed


def write_pairs_page(
    folder: Path, photos: PhotoList, found: NearDuplicates, threshold: float, counts: dict[str, int]
) -> int:
    """Writes `folder/duplicates.html` of the 200 most similar pairs, and gives the number of photos it cannot show.

    `counts` stand by their names at the head of the page.
    """
    rows = zip(found.first[:_MOST_SHOWN].tolist(), found.second[:_MOST_SHOWN].tolist(), strict=True)
    pairs = [*zip(found.similarities[:_MOST_SHOWN].tolist(), rows, strict=True)]
    pictures = {row: small_picture(photos, row) for row in sorted({row for _, pair in pairs for row in pair})}
    folder.mkdir(parents=True, exist_ok=True)
    write_page(
        folder / PAGE,
        "duplicates",
        title="Near duplicates",
        subtitle=f"Photos in {photos.top}",
        figures=[(name, f"{value:,}") for name, value in counts.items()],
        threshold=threshold,
        number=found.number,
        pairs=[{"similarity": value, "photos": [pictures[row] for row in pair]} for value, pair in pairs],
    )
    return sum(picture["uri"] is None for picture in pictures.values())


def small_picture(photos: PhotoList, row: int) -> dict[str, str | None]:
    """A photo's name, and it in small as a `data:` address, or the reason why there is none."""
    from PIL import Image

    name = photo_key(photos.entries[row])
    try:
        image = Image.fromarray(decode_photo(read_photo_bytes(photo_location(photos.top, photos.entries[row]))))
    except PillowError as fault:
        return {"name": name, "uri": None, "reason": str(fault)}
    image.thumbnail((_LONGEST, _LONGEST))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    uri = "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
    return {"name": name, "uri": uri, "reason": None}
