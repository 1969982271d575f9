"""Pictures of a run: its curves and its confusion matrix, drawn by matplotlib."""

import warnings

import numpy as np

from keras_vit.files import replacing

_MOST_NUMBERS = 30  # classes up to which the cells of a matrix have room for a number
_MOST_NAMES = 120  # classes up to which a name is legible
_LONGEST_NAME = 24  # characters
_COLOURS = {"train": "#4c72b0", "validation": "#dd8452"}


def draw_curves(rows, path):
    """Loss, accuracy, learning rate and gradient norm by epoch.

    Args:
        rows: of `RunDirectory.rows`, one or more.
        path: of the PNG.
    """
    figure = _figure(10, 6.4)
    axes = figure.subplots(2, 2)
    epochs = [row["epoch"] for row in rows]
    for axis, name in zip(axes[0], ("loss", "accuracy"), strict=True):
        _draw_line(axis, epochs, [row[name] for row in rows], "train")
        _draw_line(axis, epochs, [row[f"val_{name}"] for row in rows], "validation")
        axis.set_ylabel("loss (nats)" if name == "loss" else name)
        axis.legend(frameon=False)
    for axis, name in zip(axes[1], ("learning_rate", "gradient_norm"), strict=True):
        _draw_line(axis, epochs, [row[name] for row in rows], "train")
        axis.set_ylabel({"learning_rate": "learning rate", "gradient_norm": "gradient norm"}[name])
    for axis in axes.flat:
        axis.set_xlabel("epoch")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        axis.locator_params(axis="x", integer=True)
        if len(rows) == 1:
            axis.set_xlim(0, 2)
    _save(figure, path)


def draw_confusion(confusion, class_names, path):
    """The confusion matrix, each row as parts of its class.

    Args:
        confusion: int `(K, K)`, rows are true classes.
        class_names: K names. One with letters that the font lacks is drawn as its number, `class 3`, from 0.
        path: of the PNG.
    """
    from matplotlib.colors import PowerNorm

    classes = len(class_names)
    side = float(np.clip(2.2 + 0.32 * classes, 4.0, 16.0))
    figure = _figure(side + 1.0, side)
    axis = figure.subplots()
    parts = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    # By the square root of the part, so that one mistake in a hundred can be seen.
    image = axis.imshow(parts, cmap="Blues", norm=PowerNorm(0.5, vmin=0, vmax=1), interpolation="nearest")
    figure.colorbar(image, ax=axis, label="part of the true class", fraction=0.046, pad=0.03)
    if classes <= _MOST_NUMBERS:
        _write_numbers(axis, confusion, parts)
    if classes <= _MOST_NAMES:
        size = float(np.clip(side * 72 * 0.55 / classes, 3.5, 9))
        names = _drawable(class_names)
        upright = classes <= 12 and max(map(len, names)) <= 3
        axis.set_xticks(range(classes), names, rotation=0 if upright else 90, fontsize=size)
        axis.set_yticks(range(classes), names, fontsize=size)
    axis.set_xlabel("predicted")
    axis.set_ylabel("true")
    _save(figure, path)


def _figure(width, height):
    """A figure without the global state of pyplot, which would need a display and keeps every figure."""
    from matplotlib.figure import Figure

    return Figure((width, height), dpi=110, layout="constrained")


def _save(figure, path):
    with replacing(path) as part:
        figure.savefig(part, format="png")


def _draw_line(axis, epochs, values, label):
    values = [np.nan if value is None else value for value in values]
    if np.isfinite(values).any():
        marker = "o" if len(epochs) < 8 else None
        axis.plot(epochs, values, color=_COLOURS[label], label=label, marker=marker, markersize=4)


def _write_numbers(axis, confusion, parts):
    size = 9 if len(confusion) <= 15 else 6
    for row, column in np.argwhere(confusion):
        colour = "white" if parts[row, column] > 0.3 else "black"
        text = str(confusion[row, column])
        axis.text(column, row, text, ha="center", va="center", color=colour, fontsize=size)


def _drawable(class_names):
    """The names, short; where the font, and those it falls back to, lack a letter, the number of the class."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.font_manager import FontProperties

    renderer, font = FigureCanvasAgg(_figure(1, 1)).get_renderer(), FontProperties()

    def has_letters(name):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # what matplotlib says of a letter that it draws as a box
            try:
                renderer.get_text_width_height_descent(name, font, ismath=False)
            except (UserWarning, TypeError, ValueError):  # the others for bytes of a file's name that are no letters
                return False
        return True

    return [_short(name) if has_letters(name) else f"class {number}" for number, name in enumerate(class_names)]


def _short(name):
    """A class name as matplotlib draws it: short, and `$` no sign of a formula."""
    name = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
    return name.replace("$", r"\$")
