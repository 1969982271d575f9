"""Depths from bins, their alignment and their metrics. Metrics are means over images of each image's value."""

from collections.abc import Sequence
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_vit.checks import ArgumentError, check_choice

_NYU = ((45 / 480, 471 / 480), (41 / 640, 601 / 640))  # rows and columns, of Eigen et al.
_GARG = ((0.40810811, 0.99189189), (0.03594771, 0.96405229))
Crop = Literal["nyu_eigen", "garg"]
_IN_EPOCHS = ("abs_rel", "rmse", "delta1")


def depth_from_bins(
    logits: Any,
    min_depth: float,
    max_depth: float,
    bins: Literal["linear", "log"] = "linear",
    normalise: Literal["linear", "softmax", "sigmoid"] = "linear",
) -> Any:
    """The expected depth over bins, as DINOv2's and DINOv3's heads compute it.

    Args:
        logits: `(B, h, w, n)` of n bins.
        min_depth: of the first bin.
        max_depth: of the last bin.
        bins: whether their depths, or the logarithms of these, are evenly spaced.
        normalise: shares by `"linear"`, ReLU plus 0.1 over the sum; `"softmax"`; or `"sigmoid"` over the sum.

    Returns:
        float32 `(B, h, w)`, in the unit of the range.

    Raises:
        ValueError: for unknown rules and an empty range.
    """
    check_choice("bins", bins, ("linear", "log"))
    check_choice("normalise", normalise, ("linear", "softmax", "sigmoid"))
    if not 0 < min_depth < max_depth:
        raise ArgumentError(
            f"depths must be above 0, the first below the last.\nReceived: from {min_depth} to {max_depth}.",
            parameters=("min_depth", "max_depth"),
        )
    logits = ops.cast(ops.convert_to_tensor(logits), "float32")
    spaced = np.linspace if bins == "linear" else np.geomspace
    centres = ops.convert_to_tensor(spaced(min_depth, max_depth, logits.shape[-1]), "float32")
    if normalise == "softmax":
        return ops.sum(ops.softmax(logits, axis=-1) * centres, axis=-1)
    shares = ops.relu(logits) + 0.1 if normalise == "linear" else ops.sigmoid(logits)
    return ops.sum(shares * centres, axis=-1) / ops.sum(shares, axis=-1)


def depth_crop(size: tuple[int, int], crop: Crop) -> tuple[int, int, int, int]:
    """The part of an image that counts in the literature's figures.

    Args:
        size: `(H, W)`.
        crop: `"nyu_eigen"` for NYUv2, given at 480 x 640, or `"garg"` for KITTI.

    Returns:
        `(y0, x0, y1, x1)`; ends do not count.

    Raises:
        ValueError: for an unknown crop.
    """
    check_choice("crop", crop, ("nyu_eigen", "garg"))
    rows, columns = _NYU if crop == "nyu_eigen" else _GARG
    (y0, y1), (x0, x1) = (
        [int(round(share * side, 9)) for share in of] for of, side in zip((rows, columns), size, strict=True)
    )
    return y0, x0, y1, x1


def align_depth(
    prediction: Any,
    target: Any,
    valid: Any = None,
    space: Literal["depth", "inverse"] = "depth",
    max_depth: float | None = None,
) -> dict[str, Any]:
    """The scale and shift by which a relative prediction of one image fits its depths best (least squares).

    Args:
        prediction: `(H, W)`, relative depths, or relative inverse depths.
        target: depths `(H, W)`.
        valid: `(H, W)`, which pixels count; by default those above 0.
        space: what is fitted: depths, or for MiDaS and Depth Anything their inverse.
        max_depth: the largest depth of the result; with `"inverse"` it must be given.

    Returns:
        `scale`, `shift`, and `result`, float32 `(H, W)`, in the unit of the target.

    Raises:
        ValueError: for an unknown space, shapes that differ, fewer than two valid pixels, and a missing `max_depth`.
    """
    check_choice("space", space, ("depth", "inverse"))
    prediction, target = (np.asarray(each, "float64") for each in (prediction, target))
    valid = target > 0 if valid is None else np.asarray(valid, bool)
    if not prediction.shape == target.shape == valid.shape or valid.sum() < 2:
        raise ArgumentError(
            "prediction, target and valid must have one shape (H, W), with two valid pixels at least.\n"
            f"Received: {prediction.shape}, {target.shape} and {valid.shape}, with {int(valid.sum())} valid.",
            parameters=("prediction", "target", "valid"),
        )
    if space == "inverse" and max_depth is None:
        raise ArgumentError(
            "inverse depths of 0 need a largest depth.\nReceived: max_depth=None with space='inverse'. Pass the "
            "largest of the data, as 10 for NYUv2."
        )
    wanted = target[valid] if space == "depth" else 1 / target[valid]
    rows = np.stack([prediction[valid], np.ones(int(valid.sum()))], 1)
    (scale, shift), *_ = np.linalg.lstsq(rows, wanted, rcond=None)
    result = scale * prediction + shift
    if max_depth is not None:
        result = np.minimum(result, max_depth) if space == "depth" else 1 / np.maximum(result, 1 / max_depth)
    return {"scale": float(scale), "shift": float(shift), "result": result.astype("float32")}


def depth_metrics(
    prediction: Sequence[Any] | np.ndarray,
    target: Sequence[Any] | np.ndarray,
    min_depth: float,
    max_depth: float,
    crop: Crop | None = None,
    inclusive: bool = False,
    clamp: bool = True,
) -> dict[str, float]:
    """The measures of depth that papers report: of each image, then their mean over images with valid pixels.

    Args:
        prediction: depths `(N, H, W)`, or a list of `(H, W)`.
        target: depths of the same shapes.
        min_depth: below which targets do not count, in their unit.
        max_depth: above which targets do not count.
        crop: the part of each image that counts; see `depth_crop`.
        inclusive: whether targets of exactly the range's ends count, as for Depth Anything V2.
        clamp: whether predictions are clamped to the range first.

    Returns:
        `delta1` to `delta3`: shares of pixels within factors of 1.25, its square and its cube. `abs_rel`, `sq_rel`,
        `rmse`, `rmse_log`, `log10`, `mae`; `silog`, 100 times the deviation of log ratios; `silog_half`, Depth Anything
        V2's, with half of the squared mean.

    Raises:
        ValueError: for shapes that differ, no image, no valid pixel, and predictions that are not above 0.
    """
    if len(prediction) != len(target) or not len(target):
        raise ArgumentError(
            f"each prediction must have its target.\nReceived: {len(prediction)} and {len(target)}.",
            parameters=("prediction", "target"),
        )
    rows = []
    for found, wanted in zip(prediction, target, strict=True):
        found, wanted = np.asarray(found, "float64"), np.asarray(wanted, "float64")
        if found.shape != wanted.shape:
            raise ArgumentError(
                f"a prediction must have its target's size.\nReceived: {found.shape} for {wanted.shape}.",
                parameters=("prediction",),
            )
        above, below = (np.greater_equal, np.less_equal) if inclusive else (np.greater, np.less)
        valid = above(wanted, min_depth) & below(wanted, max_depth)
        if crop is not None:
            y0, x0, y1, x1 = depth_crop(wanted.shape, crop)
            inside = np.zeros_like(valid)
            inside[y0:y1, x0:x1] = True
            valid &= inside
        found = np.clip(found, min_depth, max_depth) if clamp else found
        if valid.any():
            rows.append(_image_metrics(found[valid], wanted[valid]))
    if not rows:
        raise ArgumentError(
            f"a target must have pixels between {min_depth} and {max_depth}.\nReceived: {len(target)} without one. "
            "Check the unit: 16-bit files hold millimetres, or 1/256 m for KITTI.",
            parameters=("target",),
        )
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def _image_metrics(found: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    if not (found > 0).all():  # also for NaN
        raise ArgumentError(
            "predicted depths must be above 0, as their logarithm is measured.\n"
            f"Received: {int((~(found > 0)).sum())} others. Pass `clamp=True`.",
            parameters=("prediction",),
        )
    ratio, error, logs = np.maximum(found / wanted, wanted / found), found - wanted, np.log(found) - np.log(wanted)
    square, mean = np.mean(logs**2), np.mean(logs)
    return {
        **{f"delta{power}": np.mean(ratio < 1.25**power) for power in (1, 2, 3)},
        "abs_rel": np.mean(np.abs(error) / wanted),
        "sq_rel": np.mean(error**2 / wanted),
        "rmse": np.sqrt(np.mean(error**2)),
        "rmse_log": np.sqrt(square),
        "log10": np.mean(np.abs(logs)) / np.log(10),
        "mae": np.mean(np.abs(error)),
        "silog": 100 * np.sqrt(max(square - mean**2, 0)),
        "silog_half": np.sqrt(max(square - mean**2 / 2, 0)),
    }


@keras.saving.register_keras_serializable("keras_vit")
class DepthMetric(keras.metrics.Metric):
    """One of the measures of `depth_metrics` over an epoch: the mean over its images; for `compile`.

    Predictions are clamped to the range, and images without a depth in it do not count.

    Examples:
        >>> metric = keras_vit.dense.DepthMetric("abs_rel", max_depth=10)
        >>> metric.update_state(np.full((1, 2, 2), 4.0), np.full((1, 2, 2), 5.0))
        >>> float(metric.result())
        0.25

    Args:
        measure: `"abs_rel"`, `"rmse"` or `"delta1"`.
        min_depth: targets count above it, in their unit.
        max_depth: targets count below it.

    Labels and predictions are depths `(B, H, W)`.
    """

    def __init__(
        self,
        measure: Literal["abs_rel", "rmse", "delta1"] = "abs_rel",
        min_depth: float = 0.001,
        max_depth: float = 10.0,
        name: str | None = None,
        **options: Any,
    ) -> None:
        check_choice("measure", measure, _IN_EPOCHS)
        super().__init__(name=name or measure, **options)
        self.measure, self.min_depth, self.max_depth = measure, min_depth, max_depth
        self.total = self.add_variable((), "zeros", dtype="float32", name="total")
        self.images = self.add_variable((), "zeros", dtype="float32", name="images")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds the images of a batch; those of weight 0 do not count."""
        target, found = (ops.cast(ops.convert_to_tensor(each), "float32") for each in (y_true, y_pred))
        found = ops.clip(found, self.min_depth, self.max_depth)
        valid = (target > self.min_depth) & (target < self.max_depth)
        target = ops.where(valid, target, 1.0)
        errors = {
            "abs_rel": lambda: ops.abs(found - target) / target,
            "rmse": lambda: (found - target) ** 2,
            "delta1": lambda: ops.cast(ops.maximum(found / target, target / found) < 1.25, "float32"),
        }[self.measure]()
        counts = ops.cast(valid, "float32")
        pixels = ops.sum(counts, (1, 2))
        means = ops.sum(errors * counts, (1, 2)) / ops.maximum(pixels, 1)
        means = ops.sqrt(means) if self.measure == "rmse" else means
        known = pixels > 0
        if sample_weight is not None:
            known &= ops.reshape(ops.cast(sample_weight, "float32") > 0, (-1,))
        self.total.assign_add(ops.sum(ops.where(known, means, 0.0)))
        self.images.assign_add(ops.sum(ops.cast(known, "float32")))

    def result(self) -> Any:
        """The mean over images; 0 before any."""
        return self.total / ops.maximum(self.images, 1)

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        names = ("measure", "min_depth", "max_depth")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}
