"""Losses of features: of a student against a teacher's, patch by patch or by how patches resemble each other."""

from typing import Literal

from keras import ops

from keras_vit.annotations import Tensor
from keras_vit.checks import ArgumentError, check_choice, check_positive
from keras_vit.selfsupervised.arrays import check_shape, floats, smooth_l1, targets_of, unit_rows

FEATURE_LOSSES = ("cosine", "mse", "smooth_l1", "normalized_mse", "cosine_smooth_l1")
NEGATIVES = ("keep", "drop", "drop_teacher")
_LEAST_LENGTH = 1e-8  # of a vector in a cosine, as torch has it
Kind = Literal["cosine", "mse", "smooth_l1", "normalized_mse", "cosine_smooth_l1"]
Negatives = Literal["keep", "drop", "drop_teacher"]


def feature_loss(student: Tensor, teacher: Tensor, kind: Kind = "cosine", cosine_share: float = 0.9) -> Tensor:
    """The difference of two sets of vectors.

    Args:
        student: `(..., D)`, projected to the teacher's width.
        teacher: of the same shape; no gradient flows into it.
        kind: `"cosine"`, 1 less the mean cosine; `"mse"` and `"smooth_l1"` (of 1), means over all numbers;
            `"normalized_mse"`, the mean squared distance of vectors of length 1, which is twice `"cosine"`; or
            `"cosine_smooth_l1"`, a share of the first and the rest of the third.
        cosine_share: of the last kind, in [0, 1].

    Returns:
        A scalar.

    Raises:
        ValueError: for shapes that differ, and values out of range.

    Source: the mix is that of AM-RADIO, arXiv:2312.06709, section 3.
    """
    return ops.mean(feature_losses(student, teacher, kind, cosine_share))


def feature_losses(student: Tensor, teacher: Tensor, kind: Kind = "cosine", cosine_share: float = 0.9) -> Tensor:
    """The differences `(...)` of vectors `(..., D)`, whose mean is `feature_loss`."""
    check_choice("kind", kind, FEATURE_LOSSES)
    if not 0 <= cosine_share <= 1:
        raise ArgumentError(f"`cosine_share` must be in [0, 1].\nReceived: cosine_share={cosine_share}.")
    student = floats(student)
    teacher = targets_of(teacher, student)
    check_shape("student", student, teacher.shape)
    if kind == "mse":
        return ops.mean(ops.square(student - teacher), axis=-1)
    if kind == "normalized_mse":
        return ops.sum(ops.square(unit_rows(student) - unit_rows(teacher)), axis=-1)
    if kind == "smooth_l1":
        return ops.mean(smooth_l1(student - teacher), axis=-1)
    cosines = 1 - ops.sum(unit_rows(student, _LEAST_LENGTH) * unit_rows(teacher, _LEAST_LENGTH), axis=-1)
    if kind == "cosine":
        return cosines
    return cosine_share * cosines + (1 - cosine_share) * ops.mean(smooth_l1(student - teacher), axis=-1)


def relation_loss(student: Tensor, teacher: Tensor, temperature: float = 0.07) -> Tensor:
    """KL divergence between how each patch resembles all patches of its image, by the teacher and by the student.

    Args:
        student: patch tokens `(B, N, D)`.
        teacher: `(B, N, E)` of the same grid; the width may be another.
        temperature: of both softmaxes over cosines, above 0.

    Returns:
        A scalar, the mean over patches and images.

    Raises:
        ValueError: for shapes that do not fit, or a temperature that is not positive.

    Source: SEED, arXiv:2101.04731, eq. 4, within an image.
    """
    return ops.mean(relation_losses(student, teacher, temperature))


def relation_losses(student: Tensor, teacher: Tensor, temperature: float = 0.07) -> Tensor:
    """The divergences `(B, N)` of patches, whose mean is `relation_loss`."""
    check_positive("temperature", temperature)
    student = unit_rows(floats(student))
    teacher = unit_rows(targets_of(teacher, student))
    check_shape("student", student, (*teacher.shape[:2], None))
    return _divergences(_similarities(teacher, teacher), _similarities(student, student), temperature)


def queue_relation_loss(student: Tensor, teacher: Tensor, queue: Tensor, temperature: float = 0.07) -> Tensor:
    """KL divergence between how each image resembles earlier ones, by the teacher and by the student.

    Args:
        student: vectors `(B, D)`, projected to the teacher's width.
        teacher: `(B, D)`.
        queue: `(Q, D)`, earlier vectors of the teacher.
        temperature: of both softmaxes over cosines, above 0.

    Returns:
        A scalar, the mean over images.

    Raises:
        ValueError: for shapes that do not fit, or a temperature that is not positive.

    Source: SEED, arXiv:2101.04731, eq. 4.
    """
    check_positive("temperature", temperature)
    student = floats(student)
    teacher, queue = targets_of(teacher, student), targets_of(queue, student)
    check_shape("student", student, teacher.shape)
    check_shape("queue", queue, (None, teacher.shape[-1]))
    queue = unit_rows(queue)
    wanted, found = (_similarities(unit_rows(each), queue) for each in (teacher, student))
    return ops.mean(_divergences(wanted, found, temperature))


def _similarities(rows: Tensor, others: Tensor) -> Tensor:
    return ops.matmul(rows, ops.swapaxes(others, -1, -2))


def _divergences(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """Of each row, KL(softmax(teacher / temperature) || softmax(student / temperature))."""
    wanted, found = (ops.log_softmax(each / temperature, axis=-1) for each in (teacher, student))
    return ops.sum(ops.exp(wanted) * (wanted - found), axis=-1)


def gram_loss(
    student: Tensor,
    teacher: Tensor,
    normalize: bool = True,
    negatives: Negatives = "keep",
    per_image: bool = True,
) -> Tensor:
    """Gram anchoring: the mean squared difference of the similarities of all pairs of patches.

    Args:
        student: patch tokens `(B, N, D)`.
        teacher: `(B, N, E)` of the same grid.
        normalize: whether tokens are divided by their lengths, so that similarities are cosines.
        negatives: `"keep"`; `"drop"` takes negative similarities of both as 0; `"drop_teacher"` those of the teacher
            alone, which is what the authors' code does where it means to drop both.
        per_image: whether pairs are of one image; else of the whole batch.

    Returns:
        A scalar.

    Raises:
        ValueError: for shapes that do not fit, or an unknown choice.

    Source: DINOv3, arXiv:2508.10104, eq. 2.
    """
    return ops.mean(gram_losses(student, teacher, normalize, negatives, per_image))


def gram_losses(
    student: Tensor,
    teacher: Tensor,
    normalize: bool = True,
    negatives: Negatives = "keep",
    per_image: bool = True,
) -> Tensor:
    """The means over pairs of patches, `(B,)` per image, else `(1,)`; their mean is `gram_loss`."""
    check_choice("negatives", negatives, NEGATIVES)
    student = floats(student)
    teacher = targets_of(teacher, student)
    check_shape("student", student, (*teacher.shape[:2], None))
    if normalize:
        student, teacher = unit_rows(student), unit_rows(teacher)
    if not per_image:
        student, teacher = (ops.reshape(each, (1, -1, each.shape[-1])) for each in (student, teacher))
    found, wanted = _similarities(student, student), _similarities(teacher, teacher)
    if negatives != "keep":
        wanted = ops.maximum(wanted, 0)
    if negatives == "drop":
        found = ops.maximum(found, 0)
    return ops.mean(ops.square(found - wanted), axis=(1, 2))


def ijepa_loss(predictions: Tensor, targets: Tensor) -> Tensor:
    """I-JEPA: smooth L1 (of 1) to targets that are normalised over their channels, without gain.

    Args:
        predictions: `(..., D)`.
        targets: of the same shape, of the teacher; no gradient flows into them.

    Returns:
        A scalar, the mean over all numbers.

    Raises:
        ValueError: for shapes that differ.

    Source: I-JEPA, arXiv:2301.08243, section 3; the loss as its code has it.
    """
    predictions = floats(predictions)
    targets = targets_of(targets, predictions)
    check_shape("predictions", predictions, targets.shape)
    mean, variance = ops.moments(targets, axes=-1, keepdims=True)
    return ops.mean(smooth_l1(predictions - (targets - mean) / ops.sqrt(variance + 1e-5)))
