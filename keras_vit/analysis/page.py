"""`index.html` of `look`: one file that needs no server, no network and no other file.

Attention comes as grey pictures of 8 bits, whose every row is scaled to its own largest weight; `page.html.jinja` has
the layout and the program that reads them. Names are escaped.
"""

import base64
import importlib.resources
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.analysis.embeddings import pca_to_rgb
from keras_vit.escaping import printable
from keras_vit.files import replacing
from keras_vit.version import __version__


def write_page(path: Path, model: Any, seen: Sequence[Any], whole: Sequence[int]) -> None:
    """Writes the page.

    Args:
        path: of the file.
        model: a `VisionTransformer`.
        seen: a `Seen` for each photo.
        whole: numbers from 1 of the blocks with the rows of every patch.
    """
    import jinja2

    text = importlib.resources.files("keras_vit.analysis").joinpath("page.html.jinja").read_text("utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    facts = [_facts(photo, whole) for photo in seen]
    words = {"title": f"What {printable(model.name)} sees", "version": __version__, "variant": _described(model)}
    page = environment.from_string(text).render(photos=facts, **words)
    with replacing(path) as part:
        Path(part).write_text(page, encoding="utf-8", errors="backslashreplace")


def _described(model):
    config, shape = model.config, model.input_shape
    size = f"{shape[1]} x {shape[2]} pixels, patches of {config.stride}"
    return f"{config.num_layers} blocks of {config.num_heads} heads, {size}"


def _facts(photo, whole):
    """What the program on the page gets, ready for JSON."""
    maps, count = photo.maps, photo.maps.num_prefix_tokens
    rows = maps.read_rows()[:, 0]  # (L, A, T)
    unit = photo.tokens.reshape(-1, photo.tokens.shape[-1]).astype("float64")
    unit /= np.maximum(np.linalg.norm(unit, axis=-1, keepdims=True), 1e-12)
    similarity = np.clip((unit @ unit.T + 1) / 2, 0, 1)  # (N, N), of -1 to 1
    return {
        "name": printable(photo.name),
        "grid": list(maps.grid),
        "size": list(photo.pixels.shape[:2]),
        "heads": rows.shape[1],
        "blocks": rows.shape[0],
        "prefix": count,
        "whole": list(whole),
        "photo": _picture(photo.pixels),
        "read": _sprite(rows[..., count:]),
        "matrices": {str(number): _sprite(maps.blocks[number - 1, 0, :, count:, count:]) for number in whole},
        "similarity": _picture(np.rint(255 * similarity).astype("uint8")),
        "colours": _picture(np.rint(255 * pca_to_rgb(photo.tokens)).astype("uint8")),
        "rollout": _sprite(maps.rollout()[0].reshape(1, -1)),
        "relevance": _sprite(photo.relevance.reshape(len(photo.relevance), -1)) if len(photo.top) else None,
        "top": [{"name": printable(name), "score": score} for name, score in photo.top],
    }


def _sprite(rows):
    """`(..., N)` as a grey picture of one row each, and the largest value of each, by which it is scaled."""
    rows = np.asarray(rows, "float64").reshape(-1, rows.shape[-1])
    peaks = rows.max(axis=1)
    levels = np.rint(255 * rows / np.where(peaks > 0, peaks, 1)[:, None]).astype("uint8")
    return {"picture": _picture(levels), "peaks": [float(f"{peak:.4g}") for peak in peaks]}


def _picture(pixels):
    """A PNG as a `data:` address."""
    from PIL import Image

    pixels = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
