"""HTML pages of one file each, which need no server, no network and no other file.

The layouts are in `templates/` and share one style sheet. Every value is escaped, and pictures are part of the page.
"""

import base64
import dataclasses
import io
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError
from keras_vit.files import atomic_write, read_head
from keras_vit.pages.formatting import printable

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

PAGE = "index.html"  # of a folder with one page
BEGINNING = "<!doctype html>\n<!-- written by keras_vit -->\n"  # of every page, by which one is known again
PICTURE = rb"\x89PNG.{,900}keras_vit"  # beginning of a PNG that says which software drew it


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of a report. Texts are escaped.

    Args:
        title: heading.
        note: a line in small letters below it.
        header: names of the columns of a table.
        rows: of the table; more than 200 are folded.
        photos: each a mapping of `picture` (an address), `alt`, `caption` (pieces of text, each with whether it is
            bold), `place`; one with the key `wide` has a row to itself.
        picture: an address, as `figure_uri` gives it.
        alt: words in place of the picture.
        texts: paragraphs at the end.
    """

    title: str
    note: str = ""
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    photos: Sequence[Mapping[str, Any]] = ()
    picture: str = ""
    alt: str = ""
    texts: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Panel:
    """What a report shows of what was measured.

    Args:
        answer: the result, in a sentence or two.
        figures: single numbers, as `(name, text)`.
        meanings: a line on each of them.
        sections: in reading order.
    """

    answer: str
    figures: Sequence[tuple[str, str]]
    meanings: Sequence[str]
    sections: Sequence[Section]


def write_page(path: FilePath, template: str, **facts: Any) -> None:
    """Fills in a layout, and writes the page whole or not at all.

    Args:
        path: path of the file.
        template: name of the layout, `"report"` or `"look"`.
        facts: values that the layout's first comment names. Each text is shown in one line.

    Raises:
        FileExistsError: if something else than a page of this package is at `path`.
        jinja2.UndefinedError: if a fact of the layout is missing.
    """
    import jinja2

    check_page(path)

    environment = jinja2.Environment(
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
        loader=jinja2.PackageLoader("keras_vit.pages"),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["printable"] = printable
    page = environment.get_template(f"{template}.html.jinja").render(facts)
    with atomic_write(path) as part:
        Path(part).write_text(BEGINNING + page, encoding="utf-8")


def check_page(path: FilePath) -> None:
    """Raises a `FileExistsError` if `write_page` has not written what is at `path`, or a file is at its folder."""
    above = next((place for place in Path(path).parents if os.path.lexists(place)), None)
    if above is not None and not above.is_dir():
        raise FileExistsError(
            "a page goes into a folder, new or old, so that nothing is lost.\n"
            f"Received: {printable(above)}, which is a file. Choose another name."
        )
    if os.path.lexists(path) and not (read_head(path) or b"").startswith(BEGINNING.encode()):
        raise FileExistsError(
            "a page replaces only one that keras_vit has written.\n"
            f"Received: {printable(path)}, which is something else. Move it away, or choose another folder."
        )


def check_new_folder(folder: Path) -> Path:
    """The folder; raises unless it is new or empty."""
    if (folder.exists() and not folder.is_dir()) or (folder.is_dir() and any(folder.iterdir())):
        raise ArgumentError(
            "`out` must be a new or empty folder, so that nothing is lost.\n"
            f"Received: {printable(folder)}, which is neither. Choose another name."
        )
    return folder


def check_picture(path: FilePath) -> None:
    """Raises a `FileExistsError` if something is at `path` that is no PNG of this package."""
    if os.path.lexists(path) and not re.match(PICTURE, read_head(path) or b"", re.DOTALL):
        raise FileExistsError(
            "a picture replaces only one that keras_vit has drawn.\n"
            f"Received: {printable(path)}, which is something else. Move it away, or pass another path."
        )


def picture_uri(pixels: "np.ndarray", longest: int | None = None) -> str:
    """An image as a PNG inside a `data:` address.

    Args:
        pixels: uint8 `(H, W)` or `(H, W, C)`; of several channels the first three are shown.
        longest: largest allowed longer side in pixels; by default the image keeps its size.
    """
    from PIL import Image

    if pixels.ndim == 3:
        pixels = pixels[..., 0] if pixels.shape[-1] == 1 else pixels[..., :3]
    image, buffer = Image.fromarray(pixels), io.BytesIO()
    if longest is not None:
        image.thumbnail((longest, longest))
    image.save(buffer, "PNG", optimize=True)
    return png_uri(buffer.getvalue())


def figure_uri(figure: "Figure") -> str:
    """A matplotlib figure as a PNG inside a `data:` address."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return png_uri(buffer.getvalue())


def png_uri(png: bytes) -> str:
    """The bytes of a PNG file as a `data:` address."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
