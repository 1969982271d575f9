"""The loss of heads whose queries each give a class and a mask: DETR's bipartite matching, and Mask2Former's terms.

Sources: arXiv:2005.12872, section 3.1; arXiv:2112.01527, section 3.3; arXiv:2503.19108, section 3.1.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.checks import ArgumentError, check_installed, check_number, check_positive_int, check_steps
from keras_vit.dense.losses import IGNORED, known_labels
from keras_vit.dense.maps import resize

POINTS = 12_544  # of each mask that are compared, in Mask2Former and EoMT
_MOST_COST = 1e10  # in place of what is not finite, as a run that diverges has it
_CANDIDATES, _UNCERTAIN = 3, 0.75  # of the points of a mask: times as many are drawn, and what share is chosen of them


def hungarian_matching(cost: Any, present: Any) -> Any:
    """The query of each class of a photo, such that the sum of costs is least.

    Example:
        >>> cost = np.array([[[5.0, 1], [2, 3], [9, 0]]])
        >>> found = keras_vit.dense.hungarian_matching(cost, [[True, True]])
        >>> keras.ops.convert_to_numpy(found).tolist()
        [[1, 2]]

    Args:
        cost: `(B, Q, K)`, of each query and class. It has no gradient.
        present: bool `(B, K)`, false for classes that take no part.

    Returns:
        int32 `(B, K)`, numbers of queries, each of one class at most; -1 for a class that takes no part, and for those
        that are left over where Q is smaller.

    Raises:
        ImportError: without SciPy, whose `linear_sum_assignment` computes it on the host: XLA compiles a step with it
            on JAX, and cannot on TensorFlow.

    Source: DETR, arXiv:2005.12872, equation 1.
    """
    check_installed("scipy", "it matches queries and masks", "train")
    cost, present = ops.stop_gradient(ops.cast(cost, "float32")), ops.cast(present, "bool")
    backend, shape = keras.backend.backend(), tuple(present.shape)
    if backend == "tensorflow":
        import tensorflow as tf

        found = tf.numpy_function(_assigned, [cost, present], tf.int32, stateful=False)
        found.set_shape(shape)
        return found
    if backend == "jax":
        import jax

        kind = jax.ShapeDtypeStruct(shape, "int32")
        return jax.pure_callback(_assigned, kind, cost, present, vmap_method="sequential")
    return ops.convert_to_tensor(_assigned(*map(ops.convert_to_numpy, (cost, present))))


def _assigned(cost: Any, present: Any) -> np.ndarray:
    from scipy.optimize import linear_sum_assignment

    cost, present = np.asarray(cost), np.asarray(present)
    cost = np.nan_to_num(cost, nan=_MOST_COST, posinf=_MOST_COST, neginf=-_MOST_COST)
    found = np.full(present.shape, -1, "int32")
    for photo, there in enumerate(present):
        queries, classes = linear_sum_assignment(cost[photo][:, there])
        found[photo, np.flatnonzero(there)[classes]] = queries
    return found


def mask_classification_loss(
    class_logits: Any,
    mask_logits: Any,
    labels: Any,
    ignore_class: int = IGNORED,
    class_weight: float = 2.0,
    mask_weight: float = 5.0,
    dice_weight: float = 5.0,
    none_weight: float = 0.1,
    num_points: int = POINTS,
    seed: Any = None,
) -> Any:
    """The loss of queries with a class and a mask each, by which EoMT, MaskFormer and Mask2Former train.

    Each class in a photo is one mask, and has the query of least cost; all others have the class "none". The cost is
    that of the loss, with the class's probability in place of its cross-entropy.

    Example:
        >>> classes, masks = np.zeros((1, 3, 3)), np.zeros((1, 2, 2, 3))
        >>> labels = np.array([[[0, 0], [1, 255]]])
        >>> found = keras_vit.dense.mask_classification_loss(classes, masks, labels)
        >>> round(float(found), 4)
        7.5677

    Args:
        class_logits: `(B, Q, K + 1)`; the last class is "none".
        mask_logits: `(B, h, w, Q)`, of a sigmoid; resized to the labels' size (bilinear).
        labels: integers `(B, H, W)`.
        ignore_class: label of pixels that do not count, neither for a mask nor against it. A photo of such pixels alone
            does not count at all.
        class_weight: of the cross-entropy of classes, a mean over queries.
        mask_weight: of the binary cross-entropy of masks, a mean over pixels and then over the masks of the batch.
        dice_weight: of one less their Dice coefficient, likewise.
        none_weight: of a query of the class "none" in the cross-entropy of classes.
        num_points: pixels that are compared. Where a photo has more, as many are drawn: for the matching the same of
            all masks, for the loss those of each mask, a quarter at random, the others where its logit is nearest to 0
            among three times as many.
        seed: of the draws, as `keras.random.uniform` takes it.

    Returns:
        A scalar; 0 where no pixel counts, and NaN where a label is neither a class nor `ignore_class`.

    Raises:
        ValueError: for a label that is neither a class nor `ignore_class`, where labels are an array, and for shapes
            that do not belong to each other.
        ImportError: without SciPy.

    Source: EoMT, arXiv:2503.19108; Mask2Former, arXiv:2112.01527, section 3.3.
    """
    class_logits, mask_logits = (ops.cast(ops.convert_to_tensor(x), "float32") for x in (class_logits, mask_logits))
    queries, classes = class_logits.shape[1], class_logits.shape[2] - 1
    if mask_logits.shape[-1] != queries:
        raise ArgumentError(
            "`class_logits` and `mask_logits` must be of the same queries.\n"
            f"Received: {queries} and {mask_logits.shape[-1]}. Pass (B, Q, K + 1) and (B, h, w, Q).",
            parameters=("class_logits", "mask_logits"),
        )
    labels = known_labels(labels, classes, ignore_class)
    pixels = _Pixels(labels, classes, ignore_class, num_points, seed)
    shared = pixels.draw(ops.shape(labels)[0])
    values, truth, valid = pixels.at(mask_logits, shared)
    weights = (class_weight, mask_weight, dice_weight)
    cost = _costs(ops.softmax(class_logits, axis=-1)[..., :-1], values, truth, valid, weights)
    of_query = ops.one_hot(hungarian_matching(cost, pixels.present), queries, dtype="float32")  # (B, K, Q), 0 for -1
    of_class = _class_loss(class_logits, of_query, pixels.is_known, none_weight)
    bce, dice = pixels.mask_losses(ops.einsum("bhwq,bkq->bhwk", mask_logits, of_query))
    counts = ops.sum(of_query, axis=-1)  # (B, K), 1 for a class with a query
    of_masks = ops.sum((mask_weight * bce + dice_weight * dice) * counts) / ops.maximum(ops.sum(counts), 1.0)
    return class_weight * of_class + of_masks + ops.where(pixels.is_wrong, np.nan, 0.0)


def _costs(chances: Any, logits: Any, truth: Any, valid: Any, weights: tuple[float, float, float]) -> Any:
    """`(B, Q, K)` of class probabilities `(B, Q, K)`, logits `(B, N, Q)`, truth `(B, N, K)` and valid `(B, N, 1)`."""
    total = ops.sum(truth, axis=1)[:, None]  # (B, 1, K)
    masks = ops.sigmoid(logits) * valid

    def over_pixels(of_queries: Any, of_classes: Any) -> Any:
        return ops.einsum("bnq,bnk->bqk", of_queries, of_classes)

    bce = over_pixels(ops.softplus(-logits), truth) + over_pixels(ops.softplus(logits), valid - truth)
    bce = bce / ops.maximum(ops.sum(valid, axis=1)[:, None], 1.0)
    dice = 1 - (2 * over_pixels(masks, truth) + 1) / (ops.sum(masks, axis=1)[..., None] + total + 1)
    return -weights[0] * chances + weights[1] * bce + weights[2] * dice


def _class_loss(logits: Any, of_query: Any, known: Any, none_weight: float) -> Any:
    """Weighted cross-entropy of the queries of photos that are `known`, as torch averages it."""
    none = logits.shape[2] - 1
    truth = ops.transpose(of_query, (0, 2, 1))
    is_none = 1 - ops.sum(truth, axis=-1, keepdims=True)
    truth = ops.concatenate([truth, is_none], axis=-1)  # (B, Q, K + 1)
    weights = 1 + (none_weight - 1) * truth[..., none]
    weights = weights * ops.cast(known, "float32")[:, None]
    losses = -ops.sum(truth * ops.log_softmax(logits, axis=-1), axis=-1)
    total = ops.sum(weights)
    return ops.sum(losses * weights) / ops.where(total > 0, total, 1.0)


class _Pixels:
    """The pixels of labels `(B, H, W)` at which masks are compared: all, or so many that are drawn.

    Attributes:
        present: bool `(B, K)`, whether a class is in a photo.
        is_known: bool `(B,)`, whether a pixel of the photo counts.
        is_wrong: whether a label is neither a class nor the one that does not count.
    """

    def __init__(self, labels: Any, classes: int, ignore_class: int, num_points: int, seed: Any) -> None:
        self.size, self.classes, self._seed, self._draws = tuple(labels.shape[1:3]), classes, seed, 0
        self.count = self.size[0] * self.size[1]
        self.points = min(check_positive_int("num_points", num_points), self.count)
        labels = ops.reshape(labels, (-1, self.count))
        is_class = (labels >= 0) & (labels < classes)
        self.is_wrong = ops.any(~is_class & (labels != ignore_class))
        self.labels = ops.where(is_class & (labels != ignore_class), labels, classes)  # K for those that do not count
        batch = ops.shape(labels)[0]
        places = ops.reshape(self.labels + (classes + 1) * ops.arange(batch, dtype="int32")[:, None], (-1,))
        counts = ops.segment_sum(ops.ones_like(places), places, num_segments=batch * (classes + 1))
        counts = ops.reshape(counts, (-1, classes + 1))
        self.present, self.is_known = counts[:, :-1] > 0, counts[:, -1] < self.count

    def draw(self, rows: Any, points: int | None = None) -> Any:
        """Numbers of pixels `(rows, points)`, int32; `None` for all."""
        if self.points == self.count:
            return None
        seed = self._seed + self._draws if isinstance(self._seed, int) else self._seed
        self._draws += 1
        drawn = keras.random.uniform((rows, points or self.points), seed=seed) * self.count
        return ops.minimum(ops.cast(drawn, "int32"), self.count - 1)  # a float below 1 may round up

    def at(self, maps: Any, pixels: Any) -> tuple[Any, Any, Any]:
        """Values `(B, P, C)` of maps at pixels `(B, P)`, truth `(B, P, K)` there, and what is valid, `(B, P, 1)`."""
        labels = self.labels if pixels is None else ops.take_along_axis(self.labels, pixels, axis=1)
        truth = ops.one_hot(labels, self.classes + 1, dtype="float32")
        return self.values(maps, pixels), truth[..., :-1], 1 - truth[..., -1:]

    def values(self, maps: Any, pixels: Any) -> Any:
        """Of maps `(B, h, w, C)` the values `(B, P, C)` at pixels `(B, P)`, as `resize` to the labels' size."""
        height, width, channels = maps.shape[1:]
        if pixels is None:
            return ops.reshape(resize(maps, self.size), (-1, self.count, channels))
        found, flat = 0, ops.reshape(maps, (-1, height * width, channels))
        for row, share_of_row in _neighbours(pixels // self.size[1], self.size[0], height):
            for column, share in _neighbours(pixels % self.size[1], self.size[1], width):
                part = ops.take_along_axis(flat, (row * width + column)[..., None], axis=1)
                found = found + part * (share_of_row * share)[..., None]
        return found

    def mask_losses(self, logits: Any) -> tuple[Any, Any]:
        """Binary cross-entropy and one less Dice, `(B, K)`, of a mask of each class `(B, h, w, K)`."""
        if self.points == self.count:
            return _mask_terms(*(ops.transpose(each, (0, 2, 1)) for each in self.at(logits, None)))
        _, height, width, classes = logits.shape
        masks = ops.reshape(ops.transpose(logits, (0, 3, 1, 2)), (-1, height, width, 1))  # (B K, h, w, 1)
        rows, uncertain = ops.shape(masks)[0], int(_UNCERTAIN * self.points)
        pixels = self.draw(rows, _CANDIDATES * self.points)
        doubt = -ops.abs(self.values(ops.stop_gradient(masks), pixels)[..., 0])
        best = ops.take_along_axis(pixels, ops.top_k(doubt, uncertain)[1], axis=1)
        pixels = ops.concatenate([best, self.draw(rows, self.points - uncertain)], axis=1)
        labels = ops.take_along_axis(self.labels, ops.reshape(pixels, (-1, classes * self.points)), axis=1)
        labels = ops.reshape(labels, (-1, classes, self.points))
        truth = ops.cast(labels == ops.arange(classes, dtype="int32")[:, None], "float32")
        values = ops.reshape(self.values(masks, pixels), (-1, classes, self.points))
        return _mask_terms(values, truth, ops.cast(labels < classes, "float32"))


def _mask_terms(logits: Any, truth: Any, valid: Any) -> tuple[Any, Any]:
    """Both, of logits `(B, K, P)`, truth of the same shape, and what is valid."""
    losses = (ops.softplus(logits) - logits * truth) * valid
    bce = ops.sum(losses, axis=-1) / ops.maximum(ops.sum(valid, axis=-1), 1.0)
    masks = ops.sigmoid(logits) * valid
    both = 2 * ops.sum(masks * truth, axis=-1) + 1
    return bce, 1 - both / (ops.sum(masks, axis=-1) + ops.sum(truth, axis=-1) + 1)


def _neighbours(places: Any, length: int, there: int) -> list[tuple[Any, Any]]:
    """The two cells of a line of `there` that each of `length` pixels lies between, each with its share."""
    at = ops.clip((ops.cast(places, "float32") + 0.5) * (there / length) - 0.5, 0.0, there - 1.0)
    first = ops.floor(at)
    share = at - first
    first = ops.cast(first, "int32")
    return [(first, 1 - share), (ops.minimum(first + 1, there - 1), share)]


@keras.saving.register_keras_serializable("keras_vit")
class MaskClassification(keras.losses.Loss):
    """`mask_classification_loss` for `compile` of a `keras_vit.segmenter` with a head of masks; labels are `(B, H, W)`.

    The loss is the sum of those of the last block and of what the head makes of the tokens before each block with
    queries, as EoMT's. It is of the whole batch, so devices that share one need JAX.

    Example:
        >>> loss = keras_vit.dense.MaskClassification(masked_steps=1000)
        >>> loss.get_config()["masked_steps"]
        1000

    Args:
        ignore_class: as for `mask_classification_loss`, and so are the weights and `num_points`.
        class_weight: of classes.
        mask_weight: of the cross-entropy of masks.
        dice_weight: of Dice.
        none_weight: of the class "none".
        num_points: pixels that are compared.
        masked_steps: S, steps of the training, for masked attention: in a block each query sees those patches alone
            that its mask of before has. From S / 6 on this ends, block by block, until 5 S / 6, as in EoMT's configs. 0
            has none.
        name: of the loss.

    Source: EoMT, arXiv:2503.19108, section 3.3.
    """

    def __init__(
        self,
        ignore_class: int = IGNORED,
        class_weight: float = 2.0,
        mask_weight: float = 5.0,
        dice_weight: float = 5.0,
        none_weight: float = 0.1,
        num_points: int = POINTS,
        masked_steps: int = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name, reduction="none")
        weights = {"class": class_weight, "mask": mask_weight, "dice": dice_weight, "none": none_weight}
        for kind, weight in weights.items():
            check_number(f"{kind}_weight", weight)
        self.masked_steps = check_steps("masked_steps", masked_steps)
        self._arguments: dict[str, Any] = {f"{kind}_weight": weight for kind, weight in weights.items()}
        self._arguments |= {"ignore_class": ignore_class, "num_points": check_positive_int("num_points", num_points)}

    @property
    def ignored(self) -> int:
        """Label of pixels that do not count."""
        return int(self._arguments["ignore_class"])

    def call(self, y_true: Any, y_pred: Any, seed: Any = None) -> Any:
        """The sum of the losses of several predictions `(class_logits, mask_logits)`.

        Each has as many masks, so it is their number times the loss of all as one batch.
        """
        classes, masks = (ops.concatenate(each) for each in zip(*y_pred, strict=True))
        labels = ops.concatenate([y_true] * len(y_pred))
        return len(y_pred) * mask_classification_loss(classes, masks, labels, seed=seed, **self._arguments)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "masked_steps": self.masked_steps, **self._arguments}
