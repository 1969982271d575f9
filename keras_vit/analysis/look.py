"""`look`, which shows what a model sees in photos, as pictures and a page of one file."""

import dataclasses
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from keras_vit.analysis import plots
from keras_vit.analysis.attention_weights import AttentionMaps, attention_maps
from keras_vit.analysis.embeddings import patch_filters, pca_to_rgb, position_similarity
from keras_vit.analysis.features import features, spread_blocks
from keras_vit.analysis.relevance import class_relevance
from keras_vit.annotations import FilePath
from keras_vit.checks import check_choice, check_installed, check_positive_int
from keras_vit.config.heads import MAP_HEADS
from keras_vit.files import expand_path
from keras_vit.images.preprocessing import Preprocessing, check_same_order
from keras_vit.images.read import read_image
from keras_vit.model.dense_model import DenseModel
from keras_vit.model.layer_access import encoder_blocks, patch_embedding, position_layers
from keras_vit.model.outputs import names_of_outputs, output_spec
from keras_vit.model.vision_transformer import VisionTransformer, check_vision_transformer
from keras_vit.pages.formatting import printable
from keras_vit.pages.html import PAGE, check_new_folder, picture_uri, write_page
from keras_vit.version import __version__

_MOST_PIXELS = 640  # of a photo's longer side on the page
_NAME = re.compile(r"[^A-Za-z0-9_-]+")


@dataclasses.dataclass(frozen=True, eq=False)
class PhotoFindings:
    """Attention, relevance and tokens of one photo.

    Attributes:
        name: name of the photo.
        pixels: uint8 `(H, W, C)`, the part that the model gets, before scaling.
        maps: `AttentionMaps` of the photo.
        top: `(name of the class, score)` of the best classes. Scores of a linear or softmax head are probabilities,
            and those of a segmenter shares of the pixels.
        relevance: `(n, h, w)`, one map for each class of `top`.
        tokens: `(h, w, D)` after the last block and its LayerNorm.
    """

    name: str
    pixels: np.ndarray
    maps: AttentionMaps
    top: tuple[tuple[str, float], ...]
    relevance: np.ndarray
    tokens: np.ndarray


def look(
    model: VisionTransformer | DenseModel,
    photos: Sequence[FilePath],
    out: FilePath,
    *,
    class_names: Sequence[str] | None = None,
    blocks: Sequence[int] | None = None,
    top: int = 5,
    theme: str = "light",
) -> Path:
    """Draws what a model sees in photos: a page to open in a browser, and PNGs.

    Example:
        >>> names = ["disc", "stripes", "tiles"]
        >>> photo = photos / "disc" / "0.jpg"
        >>> page = keras_vit.look(model, [photo], "seen", class_names=names)
        >>> sorted(path.name for path in page.parent.glob("*.html"))
        ['index.html']

    Args:
        model: a `VisionTransformer` of one image size, or a segmenter or depth estimator around one.
        photos: files that `read_image` can read.
        out: a new or empty folder.
        class_names: names of the model's K outputs; by default its own, or ImageNet's for as many classes, or numbers.
        blocks: numbers, from 1, of the blocks whose attention the page shows for every patch; by default four, evenly
            spread. For other blocks the page shows the attention of the pooled tokens.
        top: largest number of classes for which relevance is shown.
        theme: theme of the PNGs, `"light"` or `"dark"`; the page follows the browser.

    Returns:
        The path of `index.html`.

    Raises:
        ValueError: for a folder that is not empty, and a model without blocks, preprocessing or a fixed size. Also for
            wrong numbers of blocks, and photos that cannot be read.
        TypeError: for a model that is not a `VisionTransformer`.
    """
    check_installed("matplotlib", "it draws the pictures", "train")
    check_installed("jinja2", "it writes the page", "train")
    encoder = model.encoder if isinstance(model, DenseModel) and model.task in MAP_HEADS else model
    check_vision_transformer(encoder)
    check_choice("theme", theme, plots.THEMES)
    names = _check_names(model, class_names)
    full = _check_blocks(encoder, blocks)
    top = check_positive_int("top", top)
    if isinstance(photos, (str, os.PathLike)) or not len(photos):
        raise ValueError(f"`photos` must be a list of files of photos.\nReceived: photos={photos!r}.")
    folder = check_new_folder(expand_path(out))
    pixels = [
        read_image(photo, model.input_shape[-1]) for photo in photos
    ]  # all are read first, so that a bad photo fails early
    findings = [
        _inspect(model, encoder, Path(photo).name, each, names, top) for photo, each in zip(photos, pixels, strict=True)
    ]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".look-", dir=folder.parent) as temporary:
        part = Path(temporary)
        _draw_model(encoder, findings, part, theme)
        for number, photo in enumerate(findings, start=1):
            _draw_photo(photo, part, f"{number:02}_{_NAME.sub('_', Path(photo.name).stem)[:40]}", theme)
        write_page(
            part / PAGE, "look", photos=[_page_data(photo, full) for photo in findings], **_page_texts(model, encoder)
        )
        check_new_folder(folder).mkdir(exist_ok=True)  # checked again, since drawing takes seconds
        for file in part.iterdir():
            file.replace(folder / file.name)
    return folder / PAGE


def _inspect(
    model: VisionTransformer | DenseModel,
    encoder: VisionTransformer,
    name: str,
    pixels: np.ndarray,
    names: Sequence[str],
    top: int,
) -> PhotoFindings:
    record = encoder.preprocessing
    prepared = np.asarray(record(pixels[None]), "float32")
    shown = _visible_part(record, pixels)
    maps = attention_maps(encoder, prepared)
    tokens = features(encoder, prepared, blocks=(len(maps.blocks),))[len(maps.blocks)][0]
    best, scores = _best_classes(model, prepared, top)
    relevance = (
        class_relevance(model, np.repeat(prepared, len(best), axis=0), best) if len(best) else maps.rollout()[:0]
    )
    answers = tuple((names[index], float(score)) for index, score in zip(best, scores, strict=True))
    return PhotoFindings(name, shown, maps, answers, relevance, tokens)


def _visible_part(record: Preprocessing, pixels: np.ndarray) -> np.ndarray:
    """The part of a photo that the model sees, uint8 `(H, W, C)`, with more of its pixels than the model gets.

    A photo that is squashed for the model keeps its own sides here.
    """
    sides, model = np.array(pixels.shape[:2]), np.array(record.image_size or pixels.shape[:2])
    if record.resize.startswith("squash"):
        larger = sides * max(min(1.0, _MOST_PIXELS / sides.max()), model.max() / sides.max())
    else:
        larger = model * max(1.0, min(*(sides / model * record.crop_fraction), _MOST_PIXELS / model.max()))
    size = tuple(np.maximum(np.rint(larger), 1).astype(int).tolist())
    prepared = np.asarray(dataclasses.replace(record, image_size=size)(pixels[None]))[0]
    levels = prepared * np.multiply(record.std, 255) + np.multiply(record.mean, 255)
    return np.clip(np.rint(levels), 0, 255).astype("uint8")


def _best_classes(
    model: VisionTransformer | DenseModel, prepared: np.ndarray, top: int
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and scores of the best classes; logits become probabilities by softmax, a single one by the sigmoid."""
    spec = output_spec(model)
    if not spec.classifies:
        return np.zeros(0, int), np.zeros(0)
    outputs = ops.convert_to_numpy(model(prepared, training=False))[0].astype("float64")
    if not spec.one_row:
        shares = np.bincount(outputs.argmax(axis=-1).ravel(), minlength=spec.size) / outputs[..., 0].size
        best = np.argsort(-shares, kind="stable")[: min(top, np.count_nonzero(shares))]
        return best, shares[best]
    best = np.argsort(-outputs, kind="stable")[:top]
    if spec.kind == "logits" and len(outputs) == 1:
        outputs = 1 / (1 + np.exp(-outputs))
    elif spec.kind == "logits":
        outputs = np.exp(outputs - outputs.max())
        outputs /= outputs.sum()
    return best, outputs[best]


def _draw_model(model: VisionTransformer, findings: Sequence[PhotoFindings], folder: Path, theme: str) -> None:
    """Draws the pictures of the model: filters, positions, and the attention distance as a mean over all photos."""
    distances = np.mean([photo.maps.mean_distance() for photo in findings], axis=0)
    plots.draw_attention_distance(distances, path=folder / "attention_distance.png", theme=theme)
    if position_layers(model):
        plots.draw_position_similarity(
            position_similarity(model, findings[0].maps.grid), path=folder / "positions.png", theme=theme
        )
    if model.config.resnet_stages is None:
        kernel = patch_embedding(model).projection.kernel.shape
        count = min(28, int(np.prod(kernel[:-1])), kernel[-1])
        plots.draw_filters(*patch_filters(model, count), path=folder / "filters.png", theme=theme)


def _draw_photo(photo: PhotoFindings, folder: Path, name: str, theme: str) -> None:
    rollout = photo.maps.rollout()[0]
    relevance = zip(photo.top, photo.relevance, strict=True)
    kinds = [("rollout", rollout), *((f"for {label}", each) for (label, _), each in relevance)]
    plots.draw_overlays(
        [photo.pixels] * len(kinds),
        [each for _, each in kinds],
        [title for title, _ in kinds],
        path=folder / f"{name}_relevance.png",
        theme=theme,
    )
    heads = photo.maps.over_patches(photo.maps.read_rows()[-1, 0])
    titles = [f"head {number}" for number in range(1, len(heads) + 1)]
    plots.draw_maps(
        heads, titles, "attention in the last block", photo.pixels, path=folder / f"{name}_heads.png", theme=theme
    )
    if len(registers := _registers(photo.maps)):
        titles = [f"register {number}" for number in range(1, len(registers) + 1)]
        label = "attention of the registers in the last block, mean of the heads"
        plots.draw_maps(registers, titles, label, photo.pixels, path=folder / f"{name}_registers.png", theme=theme)
    plots.draw_colours([photo.pixels], pca_to_rgb(photo.tokens)[None], path=folder / f"{name}_colours.png", theme=theme)


def _registers(maps: AttentionMaps) -> np.ndarray:
    """Attention of each register token to the patches in the last block, `(R, h, w)`, as a mean over the heads."""
    places = [place for place, name in enumerate(maps.prefix_tokens) if name == "register"]
    return maps.over_patches(maps.blocks[-1, 0].mean(axis=0)[places])


def _page_texts(model: VisionTransformer | DenseModel, encoder: VisionTransformer) -> dict[str, str]:
    config, (_, height, width, _) = encoder.config, encoder.input_shape
    size = f"{height} x {width} pixels, patches of {config.stride}"
    described = f"{config.num_layers} blocks of {config.num_heads} heads, {size}; keras_vit {__version__}"
    registers = f"; {config.registers} register tokens, which no answer reads" * bool(config.registers)
    score = "share of pixels" if isinstance(model, DenseModel) else "score"
    return {"title": f"What {model.name} sees", "subtitle": described + registers, "score": score}


def _page_data(photo: PhotoFindings, full: Sequence[int]) -> dict[str, Any]:
    """The data for the script of the page, ready for JSON; `full` are the blocks with the attention of every patch."""
    maps, count = photo.maps, photo.maps.num_prefix_tokens
    rows, registers = maps.read_rows()[:, 0], _registers(maps)  # (L, A, T), (R, h, w)
    unit = photo.tokens.reshape(-1, photo.tokens.shape[-1]).astype("float64")
    unit /= np.maximum(np.linalg.norm(unit, axis=-1, keepdims=True), 1e-12)
    similarity = np.clip((unit @ unit.T + 1) / 2, 0, 1)  # (N, N), from [-1, 1] to [0, 1]
    return {
        "name": printable(photo.name),
        "grid": list(maps.grid),
        "heads": rows.shape[1],
        "blocks": rows.shape[0],
        "whole": list(full),
        "photo": picture_uri(photo.pixels),
        "read": _sprite(rows[..., count:]),
        "matrices": {str(number): _sprite(maps.blocks[number - 1, 0, :, count:, count:]) for number in full},
        "similarity": picture_uri(np.rint(255 * similarity).astype("uint8")),
        "colours": picture_uri(np.rint(255 * pca_to_rgb(photo.tokens)).astype("uint8")),
        "registers": _sprite(registers.reshape(len(registers), -1)) if len(registers) else None,
        "rollout": _sprite(maps.rollout()[0].reshape(1, -1)),
        "relevance": _sprite(photo.relevance.reshape(len(photo.relevance), -1)) if len(photo.top) else None,
        "top": [{"name": printable(name), "score": score} for name, score in photo.top],
    }


def _sprite(rows: np.ndarray) -> dict[str, Any]:
    """`(..., N)` as a grey picture with one line for each row, and the largest value of each row, its scale."""
    rows = np.asarray(rows, "float64").reshape(-1, rows.shape[-1])
    peaks = rows.max(axis=1)
    levels = np.rint(255 * rows / np.where(peaks > 0, peaks, 1)[:, None]).astype("uint8")
    return {"picture": picture_uri(levels), "peaks": [float(f"{peak:.4g}") for peak in peaks]}


def _check_names(model: VisionTransformer | DenseModel, class_names: Sequence[str] | None) -> tuple[str, ...]:
    classes = output_spec(model).size
    if class_names is None:
        return names_of_outputs(model)
    if len(class_names) != classes:
        raise ValueError(
            f"`class_names` must have a name for each of the model's {classes} outputs.\nReceived: {len(class_names)}."
        )
    check_same_order(model.class_names, class_names, "class_names")
    return tuple(map(str, class_names))


def _check_blocks(model: VisionTransformer, blocks: Sequence[int] | None) -> tuple[int, ...]:
    count = len(encoder_blocks(model))
    fixed = model.preprocessing is not None and None not in model.input_shape[1:3]
    if not count or not fixed:
        raise ValueError(
            "`model` must have blocks, a preprocessing record and one image size.\n"
            f"Received: {model.name!r} for {model.input_shape}. Give it a size by `keras_vit.with_input_shape`."
        )
    if blocks is None:
        return spread_blocks(count)
    blocks = [blocks] if isinstance(blocks, int) else list(blocks)
    wrong = [each for each in blocks if isinstance(each, bool) or each not in range(1, count + 1)]
    if wrong or not blocks:
        raise ValueError(f"`blocks` must be numbers from 1 to {count}.\nReceived: blocks={tuple(blocks)!r}.")
    return tuple(sorted(set(blocks)))
