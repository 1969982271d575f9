"""All figures of the package, by matplotlib: of the inside of a model, and of a training run.

Each function takes arrays, returns a `matplotlib.figure.Figure`, and writes a PNG if it gets a `path`. Figures of a
model have a `theme`, `"light"` or `"dark"`. The colors suit color-blind readers.
"""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_vit.analysis.overlay import colorize, overlay
from keras_vit.annotations import FilePath
from keras_vit.checks import check_choice
from keras_vit.files import atomic_write, expand_path
from keras_vit.pages.html import check_picture
from keras_vit.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_NUMBERS = 30  # largest number of classes for which cells of a matrix show numbers
_MOST_NAMES = 120  # largest number of classes for which names are legible
_MOST_CELLS = 1000  # largest number of rows and columns that a matrix is drawn with
_MOST_PANES = 9
_LONGEST_NAME = 24  # characters
_COLORS = {"train": "#4c72b0", "validation": "#dd8452"}
_SCALE = "cividis"  # from blue to yellow, also for colour-blind readers
THEMES: dict[str, tuple[str, str]] = {"light": ("#1b1d21", "#ffffff"), "dark": ("#e9eaec", "#15171b")}  # ink, paper
_NARROWEST = 4.5  # inches; narrowest figure with a colour bar, so that its label fits
_TEXT_PARTS = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
_TILE = 1.5  # inches, the longer side of a small picture


def _with_theme(draw: Callable[..., "Figure"]) -> Callable[..., "Figure"]:
    """Adds the arguments `path` and `theme` to a function that draws a figure."""

    @functools.wraps(draw)
    def drawn(*arguments: Any, path: FilePath | None = None, theme: str = "light", **named: Any) -> "Figure":
        import matplotlib

        check_choice("theme", theme, THEMES)
        ink, paper = THEMES[theme]
        colours = dict.fromkeys(_TEXT_PARTS, ink) | dict.fromkeys(("figure.facecolor", "axes.facecolor"), paper)
        with matplotlib.rc_context(colours | {"font.size": 12, "axes.titlesize": 12}):
            figure = draw(*arguments, **named)
            if path is not None:
                _save(figure, path)
        return figure

    return drawn


@_with_theme
def draw_filters(components: np.ndarray, shares: np.ndarray | None = None, columns: int = 7) -> "Figure":
    """Draws principal components of the patch filters as colours, each scaled to its own range.

    Args:
        components: `(n, P, P, C)` from `patch_filters`; unless C is 3, the mean of the channels is drawn.
        shares: shares of the variance; the title has their sum.
        columns: number of tiles in a row.

    Source: arXiv:2010.11929, figure 7 left.
    """
    low, high = (side(components, axis=(1, 2, 3), keepdims=True) for side in (np.min, np.max))
    tiles = (components - low) / np.where(high > low, high - low, 1)
    tiles = tiles if tiles.shape[-1] == 3 else tiles.mean(axis=-1)
    rows = -(-len(tiles) // columns)
    figure = _figure(columns, rows + 0.5)
    for axis, tile in zip(_tile_axes(figure, rows, columns, len(tiles)), tiles, strict=False):
        axis.imshow(tile, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    part = "" if shares is None else f", {np.sum(shares):.0%} of their variance"
    figure.suptitle(f"principal components of the patch filters{part}")
    return figure


@_with_theme
def draw_position_similarity(similarity: np.ndarray) -> "Figure":
    """Draws the similarity of position embeddings: one map for each patch, at the place of the patch.

    Args:
        similarity: `(h, w, h, w)` from `position_similarity`.

    Source: arXiv:2010.11929, figure 7 middle and figure 10.
    """
    h, w = similarity.shape[:2]
    side, lowest = 7.0 / max(h, w), -1 if similarity.min() < 0 else 0
    gap = 1 + max(h, w) // 12  # cells between maps
    cells = np.full((h, h + gap, w, w + gap), np.nan)
    cells[:, :h, :, :w] = similarity.transpose(0, 2, 1, 3)
    cells = cells.reshape(h * (h + gap), w * (w + gap))[:-gap, :-gap]
    figure = _figure(max(w * side + 1.6, _NARROWEST), max(h * side + 0.9, 3.2))
    axis = figure.subplots()
    image = axis.imshow(cells, cmap=_SCALE, vmin=lowest, vmax=1, interpolation="nearest")
    for ticks, count in ((axis.set_xticks, w), (axis.set_yticks, h)):
        named = [place for place in range(count) if _has_room(place, count)]
        ticks([place * (count + gap) + (count - 1) / 2 for place in named], [str(place + 1) for place in named])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set(xlabel="column of the patch", ylabel="row of the patch")
    figure.colorbar(image, ax=axis, label="cosine similarity", fraction=0.04, pad=0.02)
    return figure


@_with_theme
def draw_attention_distance(distances: np.ndarray, furthest: float | None = None) -> "Figure":
    """Draws the mean attention distance of every head, by block.

    Args:
        distances: `(L, A)` in pixels, from `mean_attention_distance`.
        furthest: upper end of the scale in pixels, to compare models; by default slightly above the largest.

    Source: arXiv:2010.11929, figure 7 right and figure 11.
    """
    figure = _figure(6.4, 4.6)
    axis = figure.subplots()
    is_dark = axis.get_facecolor()[0] < 0.5
    shades = _map_colors(
        np.linspace(0.3, 1, distances.shape[1]) if is_dark else np.linspace(0, 0.9, distances.shape[1])
    )
    for head, (colour, heights) in enumerate(zip(shades, np.sort(distances, axis=1).T, strict=True)):
        axis.scatter(np.arange(1, len(distances) + 1), heights, s=34, color=colour, alpha=0.9, zorder=3, label=head)
    mean: dict[str, Any] = {
        "color": "#56b4e9",
        "lw": 1.6,
        "label": "mean of the heads",
    }  # from the palette of Okabe and Ito
    axis.plot(np.arange(1, len(distances) + 1), distances.mean(axis=1), **mean)
    axis.legend(handles=axis.lines, frameon=False, loc="lower right")
    axis.set_xlim(0.5, len(distances) + 0.5)
    axis.set(xlabel="block", ylabel="mean attention distance (pixels)")
    axis.set_ylim(0, furthest or max(1.08 * float(distances.max()), 1))
    axis.locator_params(axis="x", integer=True)
    _style_axis(axis)
    return figure


@_with_theme
def draw_overlays(
    photos: Sequence[np.ndarray], maps: Sequence[np.ndarray], titles: Sequence[str] | None = None, pairs: int = 3
) -> "Figure":
    """Draws each photo next to the same photo with a map; parts with small values are dark.

    Args:
        photos: `(H, W, 3)` or `(H, W)`, integers of [0, 255].
        maps: `(h, w)` for each photo, not negative, as from a rollout.
        titles: one title for each photo.
        pairs: number of pairs in a row.

    Source: arXiv:2010.11929, figures 6 and 14; the overlay follows issue 27 of the official code.
    """
    if not photos:
        raise ValueError("`photos` must have a photo for each map.\nReceived: none.")
    photos, titles = [colorize(photo) for photo in photos], titles and _drawable_names(titles, "number")
    rows, pairs = -(-len(photos) // pairs), min(pairs, len(photos))
    height = max(photo.shape[0] / photo.shape[1] for photo in photos)
    tile = max(_TILE, 3 / pairs)
    figure = _figure(2 * pairs * tile, rows * tile * height + 0.3 * rows * (titles is not None))
    axes = _tile_axes(figure, rows, 2 * pairs, 2 * len(photos))
    for number, (photo, weights) in enumerate(zip(photos, maps, strict=True)):
        axes[2 * number].imshow(photo)
        axes[2 * number + 1].imshow(overlay(photo, weights))
        if titles is not None:
            axes[2 * number].set_title(titles[number], loc="left", fontsize=10)
    return figure


@_with_theme
def draw_maps(
    maps: Sequence[np.ndarray], titles: Sequence[str], label: str, photo: np.ndarray | None = None, columns: int = 6
) -> "Figure":
    """Draws maps of one image on one scale, as the attention of a block's heads, or norms of tokens.

    Args:
        maps: `(h, w)` each.
        titles: one title for each map.
        label: label of the scale, with its unit.
        photo: `(H, W, 3)` or `(H, W)`, integers in [0, 255], drawn first.
        columns: number of pictures in a row.
    """
    count = len(maps) + (photo is not None)
    columns, rows = min(columns, count), -(-count // min(columns, count))
    height = maps[0].shape[0] / maps[0].shape[1]
    figure = _figure(max(columns * _TILE, _NARROWEST), rows * (_TILE * height + 0.32) + 0.8)
    axes = _tile_axes(figure, rows, columns, count)
    if photo is not None:
        axes[0].imshow(colorize(photo))
    low, high = min(0, *map(np.min, maps)), max(map(np.max, maps))
    if not np.isfinite([low, high]).all():
        raise ValueError("`maps` must be finite.\nReceived: NaN or infinite values.")
    high = high if high > low else low + 1
    for axis, values, title in zip(axes[photo is not None : count], maps, _drawable_names(titles, "map"), strict=True):
        image = axis.imshow(values, cmap=_SCALE, vmin=low, vmax=high, interpolation="nearest")
        axis.set_title(title, fontsize=10)
    figure.colorbar(image, ax=axes, label=label, location="bottom", shrink=0.5, aspect=30, pad=0.02)
    return figure


@_with_theme
def draw_colours(photos: Sequence[np.ndarray], colours: np.ndarray) -> "Figure":
    """Draws photos above the colours of their patches.

    Args:
        photos: `(H, W, 3)` or `(H, W)`, integers of [0, 255].
        colours: `(B, h, w, 3)` from `pca_to_rgb`.
    """
    height = max(photo.shape[0] / photo.shape[1] for photo in photos)
    tile = max(1.6 * _TILE, 4 / len(photos))
    figure = _figure(len(photos) * tile, 2 * tile * height)
    axes = _tile_axes(figure, 2, len(photos), 2 * len(photos))
    for number, (photo, patches) in enumerate(zip(photos, colours, strict=True)):
        axes[number].imshow(colorize(photo))
        axes[len(photos) + number].imshow(patches, interpolation="nearest")
    return figure


@_with_theme
def draw_similarity_of_blocks(similarity: np.ndarray, names: tuple[str, str] = ("block", "block")) -> "Figure":
    """Draws the similarity of the blocks of one or two models.

    Args:
        similarity: `(L, M)` from `linear_cka`, in [0, 1].
        names: names of the rows and of the columns.
    """
    figure = _figure(5.6, 4.6)
    axis = figure.subplots()
    extent = (0.5, similarity.shape[1] + 0.5, 0.5, similarity.shape[0] + 0.5)
    image = axis.imshow(similarity, cmap=_SCALE, vmin=0, vmax=1, origin="lower", extent=extent, interpolation="nearest")
    axis.set(xlabel=names[1], ylabel=names[0])
    for ticks, count in ((axis.set_xticks, similarity.shape[1]), (axis.set_yticks, similarity.shape[0])):
        ticks([place + 1 for place in range(count) if _has_room(place, count)])
    figure.colorbar(image, ax=axis, label="linear CKA", fraction=0.046, pad=0.03)
    return figure


_CURVES = {"loss": "loss (nats)", "accuracy": "accuracy"}  # of a classifier


def draw_curves(rows: Sequence[Mapping[str, Any]], path: FilePath, curves: Mapping[str, str] = _CURVES) -> None:
    """Draws two figures of training and validation, the learning rate and the gradient norm by epoch.

    Args:
        rows: at least one row, from `RunDirectory.rows`.
        path: path of the PNG.
        curves: the two figures, columns of the rows, with the words of their axes.
    """
    figure = _figure(10, 6.4)
    axes = figure.subplots(2, 2)
    epochs = [row["epoch"] for row in rows]
    for axis, (name, words) in zip(axes[0], curves.items(), strict=True):
        _draw_line(axis, epochs, [row[name] for row in rows], "train")
        _draw_line(axis, epochs, [row[f"val_{name}"] for row in rows], "validation")
        axis.set_ylabel(words)
        axis.legend(frameon=False)
    for axis, name in zip(axes[1], ("learning_rate", "gradient_norm"), strict=True):
        _draw_line(axis, epochs, [row[name] for row in rows], "train")
        axis.set_ylabel({"learning_rate": "learning rate", "gradient_norm": "gradient norm"}[name])
    for axis in axes.flat:
        axis.set_xlabel("epoch")
        _style_axis(axis)
        axis.locator_params(axis="x", integer=True)
        if len(rows) == 1:
            axis.set_xlim(0, 2)
    _save(figure, path)


def draw_columns(rows: Sequence[Mapping[str, Any]], path: FilePath, columns: Mapping[str, str]) -> None:
    """Draws columns of a run's figures by epoch, each in a figure of its own.

    Args:
        rows: at least one row, from `RunDirectory.rows`.
        path: path of the PNG.
        columns: names, with the words of their axes.
    """
    height = -(-len(columns) // 3)
    figure = _figure(11, 2.8 * height)
    axes = figure.subplots(height, 3, squeeze=False)
    for axis, (name, words) in zip(axes.flat, columns.items(), strict=False):
        _draw_line(axis, [row["epoch"] for row in rows], [row[name] for row in rows], "train")
        axis.set(xlabel="epoch", ylabel=words)
        _style_axis(axis)
        axis.locator_params(axis="x", integer=True)
    for axis in axes.flat[len(columns) :]:
        axis.set_axis_off()
    _save(figure, path)


def draw_confusion(
    labels: np.ndarray, predictions: np.ndarray, class_names: Sequence[str], path: FilePath | None = None
) -> "Figure":
    """Draws the confusion matrix; each row has the shares of its true class.

    Above 1,000 classes a row and a column are those of several classes that follow each other, as the labels say.

    Args:
        labels: int `(n,)` in [0, K), the true classes.
        predictions: int `(n,)` in [0, K).
        class_names: K names. If the font lacks a letter of a name, its number is drawn, from 0, as `class 3`.
        path: path of the PNG; by default none is written.
    """
    from matplotlib.colors import PowerNorm

    classes = len(class_names)
    side = float(np.clip(2.2 + 0.32 * classes, 4.0, 16.0))
    figure = _figure(side + 1.0, side)
    axis = figure.subplots()
    group = -(-classes // _MOST_CELLS)  # classes of one row
    rows = -(-classes // group)
    confusion = np.bincount(labels // group * rows + predictions // group, minlength=rows**2).reshape(rows, rows)
    parts = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    # Colours follow the square root of the share, so that one mistake in a hundred is visible.
    look: dict[str, Any] = {"cmap": "Blues", "norm": PowerNorm(0.5, vmin=0, vmax=1), "interpolation": "nearest"}
    end = rows * group - 0.5
    image = axis.imshow(parts, extent=(-0.5, end, end, -0.5), **look)
    figure.colorbar(image, ax=axis, label="part of the true class", fraction=0.046, pad=0.03)
    if classes <= _MOST_NUMBERS:
        _write_numbers(axis, confusion, parts)
    if classes <= _MOST_NAMES:
        size = float(np.clip(side * 72 * 0.55 / classes, 3.5, 9))
        names = _drawable_names(class_names)
        upright = classes <= 12 and max(map(len, names)) <= 3
        axis.set_xticks(range(classes), names, rotation=0 if upright else 90, fontsize=size)
        axis.set_yticks(range(classes), names, fontsize=size)
    unit = "" if group == 1 else f" (number of the class, {group} to a cell)"
    axis.set(xlabel=f"predicted{unit}", ylabel=f"true{unit}")
    if path is not None:
        _save(figure, path)
    return figure


def draw_predicted(
    labels: np.ndarray, predictions: np.ndarray, names: Sequence[str], path: FilePath | None = None
) -> "Figure":
    """Draws predicted over true numbers; a point is an image, and on the line the answer is right.

    Args:
        labels: `(n, K)`, the true numbers; the first nine of K are drawn.
        predictions: `(n, K)`.
        names: K names.
        path: path of the PNG; by default none is written.
    """
    drawn = list(zip(_drawable_names(names, "number"), labels.T, predictions.T, strict=True))[:_MOST_PANES]
    columns = min(len(drawn), 3)
    rows = -(-len(drawn) // columns)
    figure = _figure(max(4.4 * columns, _NARROWEST), 4.2 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[len(drawn) :]:
        axis.set_visible(False)
    for axis, (name, true, found) in zip(axes, drawn, strict=False):
        ends = [min(true.min(), found.min()), max(true.max(), found.max())]
        axis.plot(ends, ends, color="0.6", linewidth=1)
        axis.plot(true, found, ".", color=_COLORS["train"], alpha=0.6)
        axis.set(title=name, xlabel="true", ylabel="predicted")
        axis.locator_params("x", nbins=4)  # numbers as 12,000,000 would touch each other
    if path is not None:
        _save(figure, path)
    return figure


def _tile_axes(figure: "Figure", rows: int, columns: int, count: int) -> np.ndarray:
    """Axes without ticks or frames, in reading order; those beyond `count` are hidden."""
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    for axis in axes[count:]:
        axis.set_visible(False)
    return axes


def _map_colors(values: np.ndarray) -> np.ndarray:
    from matplotlib import colormaps

    return colormaps[_SCALE](values)


def _has_room(place: int, count: int) -> bool:
    """Whether number `place` of an axis is written: all of up to 16, otherwise the first and every fifth."""
    return count <= 16 or place == 0 or (place + 1) % 5 == 0


def _style_axis(axis: Any) -> None:
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def _figure(width: float, height: float) -> "Figure":
    """A figure made without pyplot, which may need a display and keeps every figure in memory."""
    from matplotlib.figure import Figure

    return Figure((width, height), dpi=110, layout="constrained")


def _save(figure: "Figure", path: FilePath) -> None:
    check_picture(path := expand_path(path))
    with atomic_write(path) as part:
        figure.savefig(part, format="png", metadata={"Software": f"keras_vit {__version__}"})


def _draw_line(axis: Any, epochs: Sequence[int], values: Sequence[float | None], label: str) -> None:
    heights = [np.nan if value is None else value for value in values]
    if np.isfinite(heights).any():
        marker = "o" if len(epochs) < 8 else None
        axis.plot(epochs, heights, color=_COLORS[label], label=label, marker=marker, markersize=4)


def _write_numbers(axis: Any, confusion: np.ndarray, parts: np.ndarray) -> None:
    size = 9 if len(confusion) <= 15 else 6
    for row, column in np.argwhere(confusion):
        colour = "white" if parts[row, column] > 0.3 else "black"
        text = str(confusion[row, column])
        axis.text(column, row, text, ha="center", va="center", color=colour, fontsize=size)


def _drawable_names(class_names: Sequence[str], other: str = "class") -> list[str]:
    """Short names; a name with a letter that no font has becomes its number, as `class 3`."""
    class_names = [" ".join(str(name).split()) for name in class_names]
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.font_manager import FontProperties

    renderer, font = FigureCanvasAgg(_figure(1, 1)).get_renderer(), FontProperties()

    def has_letters(name: str) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # matplotlib warns of a letter that it draws as a box
            try:
                renderer.get_text_width_height_descent(name, font, ismath=False)
            except (
                UserWarning,
                TypeError,
                ValueError,
            ):  # the other errors come from bytes of a file name that are not letters
                return False
        return True

    return [_shorten(name) if has_letters(name) else f"{other} {number}" for number, name in enumerate(class_names)]


def _shorten(name: str) -> str:
    """A class name for matplotlib: shortened in its middle, with `$` escaped, which would start a formula."""
    half = _LONGEST_NAME // 2
    name = name if len(name) <= _LONGEST_NAME else name[: half - 1] + "…" + name[-half:]
    return name.replace("$", r"\$")
