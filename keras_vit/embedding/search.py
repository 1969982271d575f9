"""`search_photos`: photos found by what one says, as the nearest vectors of a job to a text's embedding."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError, check_positive_int
from keras_vit.embedding.duplicates import read_photo_list, small_picture
from keras_vit.embedding.job import has_projection, model_files
from keras_vit.embedding.manifest import Manifest, files_sha256, read_manifest
from keras_vit.embedding.neighbors import Neighbors, nearest_neighbors
from keras_vit.files import expand_path
from keras_vit.pages.formatting import printable
from keras_vit.pages.html import write_page
from keras_vit.runs.run_files import BEST
from keras_vit.text.tokenizer import check_texts
from keras_vit.weights.checkpoint import TOWERS, TOWERS_FILE

PAGE = "search.html"


def search_photos(
    vectors: FilePath, texts: str | Sequence[str], model: FilePath, k: int = 10, *, text: Any = None
) -> Neighbors:
    """Finds the photos of a job of `keras-vit embed` that are nearest to what a text says.

    Photos and texts have one space: that of the embeddings after both projections. So vectors of a tower with a
    projection must be its `logits`, and not the features before it.

    Args:
        vectors: the folder of a finished job.
        texts: what the photos show, one text or several.
        model: of the job: a folder or published name with both towers, or the folder of a run that trained them.
        k: photos of a text.
        text: the text tower of `model`, if it is open already.

    Returns:
        The nearest photos of each text, the nearest first, with their cosines. 0.2 to 0.35 are usual for CLIP.

    Raises:
        TypeError: if `k` is no integer.
        ValueError: for an empty text, a `k` below 1, vectors or a text tower of another model, features before a
            projection, or what `build_text` and `nearest_neighbors` refuse.
    """
    check_positive_int("k", k)
    found = check_texts("texts", texts)
    if not found or not all(each.strip() for each in found):
        raise ArgumentError(
            "photos are searched by one text or several, none of them empty.\n"
            f"Received: {'an empty one' if found else 'no text'}.",
            parameters=("texts",),
        )
    folder = expand_path(vectors)
    manifest = read_manifest(folder)
    check_comparable(manifest, folder, str(model))
    from keras_vit.text_builders import build_text, has_weights_of

    if text is None:
        text = build_text(weights=model)
    elif not has_weights_of(text, model):
        raise ArgumentError(
            "`text` must be the text tower of `model`.\n"
            f"Received: {getattr(text, 'name', text)!r}, whose weights are not those of {str(model)!r}."
        )
    queries = np.asarray(text.embed(texts))
    return nearest_neighbors(folder, queries, min(k, manifest.photos))


def check_comparable(manifest: Manifest, folder: Path, model: str) -> None:
    """Raises unless vectors are embeddings of a model, which its texts are compared with, whatever their width."""
    digests = (files_sha256(model_files(name, manifest.weights)) for name in _names_of(model))
    if manifest.model_sha256 not in digests:
        raise ArgumentError(
            "texts are compared with vectors of the same model.\n"
            f"Received: model={model!r}, and vectors of {manifest.model!r}, whose files are others."
        )
    wanted = "logits" if has_projection(model, manifest.weights) else "features"
    if manifest.outputs != wanted:
        raise ArgumentError(
            "vectors for a search must be the embeddings that texts are compared with: after the projection, if the "
            "image tower has one.\n"
            f"Received: {manifest.outputs}, in {printable(folder)}. Embed the photos anew with `--outputs {wanted}`.",
            parameters=("vectors",),
        )


def _names_of(model: str) -> Iterator[str]:
    """A model, and for that of a run its folder of both towers, or the reverse: both have the same weights."""
    yield model
    place = expand_path(model)
    if (place / TOWERS_FILE).is_file():
        yield str(place / TOWERS)
    elif place.name == TOWERS and (place.parent / BEST).is_file():
        yield str(place.parent)


def write_search_page(folder: Path, vectors: Path, texts: Sequence[str], found: Neighbors, top: Path | None) -> None:
    """Writes `folder/search.html`: the photos that `search_photos` found for each text.

    They lie in `top`, by default the folder in which the job found them.
    """
    photos = read_photo_list(vectors, top)
    rows = zip(texts, found.indices.tolist(), found.similarities.tolist(), strict=True)
    searches = [
        {
            "text": text,
            "photos": [
                small_picture(photos, row) | {"similarity": value} for row, value in zip(*hits, strict=True) if row >= 0
            ],
        }
        for text, *hits in rows
    ]
    folder.mkdir(parents=True, exist_ok=True)
    write_page(folder / PAGE, "search", title="Photos by words", subtitle=f"Photos in {photos.top}", searches=searches)
