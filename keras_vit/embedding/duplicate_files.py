"""Near duplicates as a table, and as a page with the pictures of the most similar pairs."""

import base64
import csv
import io
import os
import tempfile
from pathlib import Path

from keras_vit.checks import ArgumentError, check_installed
from keras_vit.embedding.embedder import bytes_of
from keras_vit.embedding.manifest import read_manifest
from keras_vit.embedding.near_duplicates import NearDuplicates
from keras_vit.embedding.photo_lists import LIST, PhotoList, key_of, place_of, read_list
from keras_vit.embedding.vector_rows import Rows
from keras_vit.files import atomic_write, read_head
from keras_vit.images.numpy_pipeline import decode_photo
from keras_vit.images.pillow_formats import PillowError
from keras_vit.pages.formatting import printable, spreadsheet_cell
from keras_vit.pages.html import check_page, write_page

PAGE = "duplicates.html"
_COLUMNS = ("photo", "other", "similarity", "group")
_MOST_SHOWN = 200  # pairs; a page of them has some 3 MB
_LONGEST = 200  # pixels of a picture


def check_files(table: Path, page: Path | None) -> None:
    """Raises unless the table and the page may be written: only those of this package are replaced."""
    if table.is_dir() or not table.absolute().parent.is_dir():
        raise ArgumentError(
            f"`out` must be a file, in a folder that is there.\nReceived: {printable(table)}. Choose another name.",
            parameters=("out",),
        )
    if os.path.lexists(table) and not (read_head(table) or b"").startswith(",".join(_COLUMNS).encode()):
        raise ArgumentError(
            "a table of duplicates replaces only one that keras_vit has written.\n"
            f"Received: {printable(table)}, which is something else. Move it away, or choose another name.",
            parameters=("out",),
        )
    try:  # before the search, in a file of no name
        with tempfile.TemporaryFile(dir=table.absolute().parent):
            pass
    except OSError as error:
        raise ArgumentError(
            "`out` must be a file in a folder that can be written.\n"
            f"Received: {printable(table)}: {error.strerror}. Choose another folder.",
            parameters=("out",),
        ) from None
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


def listed_photos(vectors: Path, top: Path | None) -> PhotoList:
    """The list of a job's photos, with the folder in which they are looked for.

    Args:
        vectors: the job's folder.
        top: from which their paths count; by default where the job found them.

    Raises:
        ValueError: if neither says where, `top` is not there, or the list is another one.
    """
    manifest = read_manifest(vectors)
    place = top or manifest.top
    if place is None:
        raise ArgumentError(
            "`photos_in` must be given, since the version that wrote the vectors did not note the photos' folder.\n"
            "Received: none.",
            parameters=("photos_in",),
        )
    if top is not None and not top.is_dir():
        raise ArgumentError(
            f"`photos_in` must be a folder.\nReceived: {printable(top)}, where none is.", parameters=("photos_in",)
        )
    listed = read_list(vectors, Path(place))
    if listed.digest() != manifest.photos_sha256:
        raise ValueError(
            "the list of photos must be as the job wrote it.\n"
            f"Received: {printable(vectors / LIST)}, which has changed."
        )
    return listed


def write_page_of_pairs(
    folder: Path, photos: PhotoList, found: NearDuplicates, threshold: float, counts: dict[str, int]
) -> int:
    """Writes `folder/duplicates.html`, and gives the number of photos that it would show and could not read.

    Args:
        folder: is made if need be.
        photos: of the rows.
        found: their pairs, of which the 200 most similar are shown.
        threshold: the least cosine of a pair.
        counts: by their names, for the head of the page.
    """
    rows = zip(found.first[:_MOST_SHOWN].tolist(), found.second[:_MOST_SHOWN].tolist(), strict=True)
    pairs = [*zip(found.similarities[:_MOST_SHOWN].tolist(), rows, strict=True)]
    pictures = {row: _picture(photos, row) for row in sorted({row for _, pair in pairs for row in pair})}
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


def _picture(photos: PhotoList, row: int) -> dict[str, str | None]:
    """A photo's name, and it in small as a `data:` address, or the reason why there is none."""
    from PIL import Image

    name = key_of(photos.entries[row])
    try:
        image = Image.fromarray(decode_photo(bytes_of(place_of(photos.top, photos.entries[row]))))
    except PillowError as fault:
        return {"name": name, "uri": None, "reason": str(fault)}
    image.thumbnail((_LONGEST, _LONGEST))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    uri = "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
    return {"name": name, "uri": uri, "reason": None}
