"""What heads with queries put out, as classes, segments, boxes and points; which patches of photos correspond."""

from collections.abc import Collection
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.checks import ArgumentError
from keras_vit.dense.maps import Size, resize

_WIDER, _PIXELS = 1.25, 200.0  # of a person's box, and the unit of its scale, in ViTPose's code
_SIGMA, _LEAST, _MOST = 0.8, 1e-3, 50.0


def semantic(class_logits: Any, mask_logits: Any, size: Size) -> Any:
    """Scores of each pixel and class: the sum over queries of class probability times mask, as EoMT and Mask2Former.

    Args:
        class_logits: `(B, Q, K + 1)`; the last class is "none".
        mask_logits: `(B, h, w, Q)`.
        size: `(H, W)` of the result, to which mask logits are resized first (bilinear).

    Returns:
        `(B, H, W, K)`.
    """
    masks = ops.sigmoid(resize(ops.convert_to_tensor(mask_logits), size))
    return ops.einsum("bhwq,bqk->bhwk", masks, ops.softmax(ops.convert_to_tensor(class_logits), axis=-1)[..., :-1])


def panoptic(
    class_logits: Any,
    mask_logits: Any,
    score_threshold: float = 0.8,
    mask_threshold: float = 0.5,
    overlap_threshold: float = 0.8,
    stuff: Collection[int] = (),
) -> dict[str, np.ndarray]:
    """One segment for each pixel of a photo, as EoMT's own code finds them.

    Args:
        class_logits: `(Q, K + 1)`; the last class is "none".
        mask_logits: `(H, W, Q)`, at the size of the result.
        score_threshold: above which the probability of a query's best class must be.
        mask_threshold: from which on a pixel belongs to a mask.
        overlap_threshold: least share of a mask that no better query takes.
        stuff: classes with one segment in a photo, as sky.

    Returns:
        `classes`, int32 `(H, W)`, K where there is nothing, and `segments`, int32 `(H, W)`, -1 there.
    """
    probabilities, masks = _softmax(_array(class_logits)), _sigmoid(_array(mask_logits))
    none = probabilities.shape[-1] - 1
    best, scores = probabilities.argmax(-1), probabilities.max(-1)
    kept = np.flatnonzero((best != none) & (scores > score_threshold))
    classes, segments = np.full(masks.shape[:2], none, "int32"), np.full(masks.shape[:2], -1, "int32")
    owner = (scores[kept] * masks[..., kept]).argmax(-1) if len(kept) else classes
    of_class: dict[int, int] = {}
    count = 0
    for place, query in enumerate(kept):
        area, own = owner == place, masks[..., query] >= mask_threshold
        both = area & own
        if not both.any() or area.sum() / own.sum() < overlap_threshold:
            continue
        label = int(best[query])
        segment = of_class.get(label, count)
        count += segment == count
        if label in stuff:
            of_class[label] = segment
        classes[both], segments[both] = label, segment
    return {"classes": classes, "segments": segments}


def instances(class_logits: Any, mask_logits: Any, top: int = 100) -> dict[str, np.ndarray]:
    """The best pairs of query and class of a photo, as EoMT's own code ranks them.

    Args:
        class_logits: `(Q, K + 1)`; the last class is "none".
        mask_logits: `(H, W, Q)`.
        top: how many pairs.

    Returns:
        In the order of the class's probability: `queries` and `classes`, int32 `(top,)`; `scores`, float32 `(top,)`,
        that probability times the mean of the mask inside itself; `masks`, bool `(top, H, W)`.
    """
    probabilities, logits = _softmax(_array(class_logits))[:, :-1], _array(mask_logits)
    order = np.argsort(-probabilities, axis=None, kind="stable")[:top]
    queries, classes = np.unravel_index(order, probabilities.shape)
    masks = np.moveaxis(logits[..., queries] > 0, -1, 0)
    soft = np.moveaxis(_sigmoid(logits[..., queries]), -1, 0)
    quality = (soft * masks).sum((1, 2)) / (masks.sum((1, 2)) + 1e-6)
    scores = (probabilities[queries, classes] * quality).astype("float32")
    return {"queries": queries.astype("int32"), "classes": classes.astype("int32"), "scores": scores, "masks": masks}


def boxes(logits: Any, boxes: Any, size: Size, threshold: float = 0.5) -> dict[str, np.ndarray]:
    """The boxes of a photo whose best class is likelier than a threshold, in pixels, without suppression.

    Args:
        logits: `(Q, K + 1)` or `(1, Q, K + 1)`; the last class is "none".
        boxes: `(Q, 4)` or `(1, Q, 4)`: centre x and y, width and height, in 0 to 1.
        size: `(H, W)` of the photo.
        threshold: above which a probability must be.

    Returns:
        `scores`, float32 `(N,)`, `labels`, int32 `(N,)`, and `boxes`, float32 `(N, 4)`: x0, y0, x1, y1.

    Raises:
        ValueError: for more than one photo.
    """
    logits, places = _of_one(logits), _of_one(boxes)
    probabilities = _softmax(logits)[:, :-1]
    scores, labels = probabilities.max(-1), probabilities.argmax(-1)
    kept = scores > threshold
    centre, sides = places[kept, :2], places[kept, 2:]
    corners = np.concatenate([centre - sides / 2, centre + sides / 2], -1) * np.array([size[1], size[0]] * 2)
    return {
        "scores": scores[kept].astype("float32"),
        "labels": labels[kept].astype("int32"),
        "boxes": corners.astype("float32"),
    }


def keypoints(heatmaps: Any, boxes: Any, image_size: Size, kernel: int = 11) -> dict[str, np.ndarray]:
    """Points of heatmaps, refined below a pixel as ViTPose does (DARK, unbiased), in the photo.

    Args:
        heatmaps: `(B, h, w, K)`.
        boxes: `(B, 4)`: x, y, width and height of each person in the photo, in pixels.
        image_size: `(H, W)` of the model's input.
        kernel: width of the Gaussian that smooths the heatmaps, odd.

    Returns:
        `points`, float32 `(B, K, 2)`, x and y; `scores`, float32 `(B, K)`; `centre` and `scale`, float32 `(B, 2)`.
        A heatmap without a value above 0 gives the point (-1, -1) of the map, as the authors' code.
    """
    maps, people = _array(heatmaps).astype("float64"), np.asarray(boxes, "float64")
    centre, scale = _centre_and_scale(people, image_size[1] / image_size[0])
    count, h, w, points = maps.shape
    flat = maps.reshape(count, h * w, points)
    place, scores = flat.argmax(1), flat.max(1)
    peaks = np.stack([place % w, place // w], -1).astype("float64")
    peaks[scores <= 0] = -1
    logs = np.log(np.clip(_smoothed(maps, kernel), _LEAST, _MOST))
    found = peaks - _newton_steps(logs, peaks)
    span = scale[:, None] * _PIXELS
    found = found * span / (np.array([w, h]) - 1) + centre[:, None] - span / 2
    kinds = {"points": found, "scores": scores, "centre": centre, "scale": scale}
    return {name: value.astype("float32") for name, value in kinds.items()}


def _centre_and_scale(people: np.ndarray, aspect: float) -> tuple[np.ndarray, np.ndarray]:
    """Centres of boxes, and their sides, widened to the aspect (width over height), in units of 200 pixels."""
    corner, sides = people[:, :2], people[:, 2:]
    width, height = sides[:, 0], sides[:, 1]
    wide = np.stack([np.maximum(width, height * aspect), np.maximum(height, width / aspect)], -1)
    return corner + sides / 2, _WIDER * wide / _PIXELS


def _smoothed(maps: np.ndarray, kernel: int) -> np.ndarray:
    """`(B, h, w, K)` after a Gaussian; borders are reflected with the edge repeated."""
    radius = (kernel - 1) // 2
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / _SIGMA) ** 2)
    weights /= weights.sum()
    for axis in (1, 2):
        around = [(radius, radius) if each == axis else (0, 0) for each in range(4)]
        padded = np.pad(maps, around, mode="symmetric")
        size = maps.shape[axis]
        maps = sum(w * np.take(padded, range(tap, tap + size), axis) for tap, w in enumerate(weights))
    return maps


def _newton_steps(logs: np.ndarray, peaks: np.ndarray) -> np.ndarray:
    """`(B, K, 2)`: the step, x and y, from each peak against that of a paraboloid through its neighbours."""
    padded = np.pad(logs, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    number, point = np.indices(peaks.shape[:2])
    column, row = np.moveaxis(peaks, -1, 0).astype(int) + 1

    def at(dy: int, dx: int) -> np.ndarray:
        return padded[number, row + dy, column + dx, point]

    here = at(0, 0)
    first = np.stack([at(0, 1) - at(0, -1), at(1, 0) - at(-1, 0)], -1) / 2
    xx, yy = at(0, 1) - 2 * here + at(0, -1), at(1, 0) - 2 * here + at(-1, 0)
    xy = (at(1, 1) - at(0, 1) - at(1, 0) + 2 * here - at(0, -1) - at(-1, 0) + at(-1, -1)) / 2
    second = np.stack([np.stack([xx, xy], -1), np.stack([xy, yy], -1)], -2)
    second = second + np.finfo("float32").eps * np.eye(2)
    return np.linalg.solve(second, first[..., None])[..., 0]


def _array(values: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(values)


def _of_one(values: Any) -> np.ndarray:
    """Values `(Q, ...)` of one photo."""
    values = _array(values)
    if values.ndim == 3 and len(values) == 1:
        return values[0]
    if values.ndim != 2:
        raise ArgumentError(
            f"one photo at a time.\nReceived: an array of shape {values.shape}.", parameters=("logits", "boxes")
        )
    return values


def _softmax(logits: np.ndarray) -> np.ndarray:
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * logits))


def mutual_matches(first: Any, second: Any) -> dict[str, np.ndarray]:
    """Patches of two photos that are each other's most similar.

    Args:
        first: features `(h, w, D)`.
        second: features `(h', w', D)`.

    Returns:
        `first` and `second`, int64 `(n, 2)`, rows and columns, in the order of the first; `similarity`, float32
        `(n,)`, their cosine.
    """
    one, other = _unit_rows(first), _unit_rows(second)
    cosines = one @ other.T
    there, back = cosines.argmax(1), cosines.argmax(0)
    numbers = np.flatnonzero(back[there] == np.arange(len(one)))
    places = (
        np.stack(np.unravel_index(found, np.shape(maps)[:2]), -1)
        for found, maps in ((numbers, first), (there[numbers], second))
    )
    similarity = cosines[numbers, there[numbers]].astype("float32")
    return dict(zip(("first", "second", "similarity"), (*places, similarity), strict=True))


def propagate_labels(
    features: Any,
    context_features: Any,
    context_labels: Any,
    top: int = 5,
    radius: float | None = 12.0,
    temperature: float = 0.2,
) -> np.ndarray:
    """Labels of a photo's patches from frames whose labels are known, as DINOv3's notebook follows a video.

    Args:
        features: `(h, w, D)`.
        context_features: `(T, h, w, D)` of T frames; without a radius `(..., D)` of any patches.
        context_labels: `(T, h, w, K)`, or `(..., K)`, shares of each class.
        top: how many of the most similar patches count.
        radius: patches; farther ones do not count (Euclidean). `None` for all.
        temperature: of the softmax of their cosines.

    Returns:
        float32 `(h, w, K)`.
    """
    h, w, _ = np.shape(features)
    labels = keras.ops.convert_to_numpy(context_labels).reshape(-1, np.shape(context_labels)[-1])
    cosines = _unit_rows(features) @ _unit_rows(context_features).T
    if radius is not None:
        places = np.indices((h, w)).reshape(2, -1).T
        is_near = ((places[:, None] - places[None]) ** 2).sum(-1) <= radius**2
        cosines = np.where(np.tile(is_near, len(context_features)), cosines, -np.inf)
    best = np.argsort(-cosines, axis=1, kind="stable")[:, :top]
    scores = np.take_along_axis(cosines, best, 1) / temperature
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    return np.einsum("nt,ntk->nk", shares, labels[best]).reshape(h, w, -1).astype("float32")


def _unit_rows(maps: Any) -> np.ndarray:
    """`(n, D)` of length 1, in float64."""
    rows = keras.ops.convert_to_numpy(maps).astype("float64").reshape(-1, np.shape(maps)[-1])
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
