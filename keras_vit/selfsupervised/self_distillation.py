"""What DINO, iBOT and DINOv2 compute of logits and class tokens: the teacher's targets, and the losses of the student.

All in float32 or more. Sources: DINO, arXiv:2104.14294; iBOT, arXiv:2111.07832; DINOv2, arXiv:2304.07193.
"""

from collections.abc import Callable, Sequence

from keras import ops

from keras_vit.annotations import Tensor
from keras_vit.checks import ArgumentError, check_positive, check_positive_int
from keras_vit.selfsupervised.arrays import check_shape, floats, targets_of, unit_rows

_FAR = -1e30  # a logarithm of nothing, whose sums stay finite


def softmax_centered(logits: Tensor, center: Tensor, temperature: float) -> Tensor:
    """The teacher's targets: the softmax of its logits after the centre is subtracted.

    Args:
        logits: `(..., K)` of K prototypes.
        center: `(K,)`, of the batches before, as `updated_center` gives it.
        temperature: that the difference is divided by, above 0; 0.04 to 0.07 in DINOv2.

    Returns:
        Probabilities of the shape of `logits`, without a gradient.

    Raises:
        ValueError: for a temperature that is not positive, and a centre of another size.

    Source: DINO, arXiv:2104.14294, section 3.1.
    """
    check_positive("temperature", temperature)
    logits = targets_of(logits)
    center = targets_of(center, logits)
    check_shape("center", center, logits.shape[-1:])
    return ops.softmax((logits - center) / temperature, axis=-1)


def updated_center(center: Tensor, logits: Tensor, momentum: float = 0.9) -> Tensor:
    """The centre after a batch, for the targets of the next one.

    Args:
        center: `(K,)`; zeros before the first batch.
        logits: `(..., K)` of the teacher, of all devices.
        momentum: share of the old centre.

    Returns:
        `(K,)`.

    Raises:
        ValueError: for a centre of another size.

    Source: DINO, arXiv:2104.14294, eq. 4.
    """
    logits = targets_of(logits)
    center = targets_of(center, logits)
    check_shape("center", center, logits.shape[-1:])
    return momentum * center + (1 - momentum) * ops.mean(logits, axis=tuple(range(len(logits.shape) - 1)))


def sinkhorn_knopp(logits: Tensor, temperature: float, iterations: int = 3, weights: Tensor = None) -> Tensor:
    """The teacher's targets, in which all prototypes are used alike and each row sums to 1.

    It is computed in logarithms: exp(logits / temperature) is not finite in float32 above 88.

    Args:
        logits: `(M, K)`: all rows of a step, of all devices.
        temperature: above 0.
        iterations: of dividing columns, then rows, by their sums.
        weights: `(M,)`, 0 for rows that only fill up a shape and count nowhere, else 1; by default 1 for all.

    Returns:
        Probabilities `(M, K)`, zeros in rows of weight 0, without a gradient.

    Raises:
        ValueError: for a temperature that is not positive, fewer than one iteration, or weights of another length.

    Source: SwAV, arXiv:2006.09882, section 3.1 and DINOv2, arXiv:2304.07193, section 4.
    """
    check_positive("temperature", temperature)
    check_positive_int("iterations", iterations)
    logs = targets_of(logits) / temperature
    counts = ops.ones(ops.shape(logs)[:1], logs.dtype) if weights is None else targets_of(weights, logs)
    check_shape("weights", counts, logs.shape[:1])
    return balanced(logs, counts, iterations)


def balanced(
    logs: Tensor,
    counts: Tensor,
    iterations: int = 3,
    of_all_devices: Callable[[Tensor], Tensor] = lambda rows: rows,
) -> Tensor:
    """The rows of `sinkhorn_knopp` that are here, by logits that are divided by the temperature.

    Args:
        logs: `(M, K)`.
        counts: `(M,)` of 0 and 1.
        iterations: as there.
        of_all_devices: gives the rows of all devices, for those `(1, K)` of this one.
    """
    counts = ops.expand_dims(counts, -1)
    for _ in range(iterations):
        sums = ops.logsumexp(ops.where(counts > 0, logs, _FAR), axis=0, keepdims=True)
        logs = logs - ops.logsumexp(of_all_devices(sums), axis=0, keepdims=True)
        logs = logs - ops.logsumexp(logs, axis=1, keepdims=True)
    return ops.exp(logs) * counts


def dino_loss(student: Tensor, teacher: Tensor, temperature: float = 0.1, skip_same_view: bool = False) -> Tensor:
    """Cross-entropy of each of the student's views with each of the teacher's.

    Args:
        student: logits `(S, B, K)` of S views of B images.
        teacher: probabilities `(T, B, K)`; no gradient flows into them.
        temperature: of the student's softmax, above 0.
        skip_same_view: whether pairs of the same number are left out.

    Returns:
        A scalar, the mean over pairs and images.

    Raises:
        ValueError: for shapes that do not fit, a temperature that is not positive, and where no pair is left.

    Source: DINO, arXiv:2104.14294, eq. 3.
    """
    student, teacher, pairs = _pairs(student, teacher, temperature)
    views, others = student.shape[0], teacher.shape[0]
    count = views * others
    pairs = ops.mean(pairs, axis=-1)
    if skip_same_view:
        pairs, count = pairs * (1 - ops.eye(views, others, dtype=pairs.dtype)), count - min(views, others)
    if not count:
        raise ArgumentError(
            "`skip_same_view` leaves pairs of different views, so there must be two.\n"
            f"Received: {views} and {others} views."
        )
    return ops.sum(pairs) / count


def class_loss(global_logits: Tensor, local_logits: Tensor, teacher: Tensor, temperature: float = 0.1) -> Tensor:
    """DINOv2's loss of class tokens: each pair of crops is a mean over images and weighs 1 / (2 + 2 L).

    A global crop is paired with the teacher's other one, a local crop with both. Uniform logits give ln K.

    Args:
        global_logits: `(2, B, K)` of the student.
        local_logits: `(L, B, K)` of the student; L may be 0.
        teacher: probabilities `(2, B, K)`.
        temperature: of the student's softmax, above 0.

    Returns:
        A scalar.

    Raises:
        ValueError: for shapes that do not fit, or a temperature that is not positive.

    Source: DINOv2, arXiv:2304.07193, section 4.
    """
    return ops.mean(sum(class_loss_parts(global_logits, local_logits, teacher, temperature)))


def class_loss_parts(
    global_logits: Tensor, local_logits: Tensor, teacher: Tensor, temperature: float = 0.1
) -> tuple[Tensor, Tensor]:
    """The two terms of `class_loss` for each image, `(B,)` of global and of local crops."""
    global_logits, local_logits = floats(global_logits), floats(local_logits)
    check_shape("global_logits", global_logits, (2, None, None))
    check_shape("teacher", teacher, (2, *global_logits.shape[1:]))
    count = 2 + 2 * local_logits.shape[0]
    across = _pairs(global_logits, teacher, temperature)[2]
    parts = (across[0, 1] + across[1, 0]) / count
    if not local_logits.shape[0]:
        return parts, ops.zeros_like(parts)
    return parts, ops.sum(_pairs(local_logits, teacher, temperature)[2], axis=(0, 1)) / count


def _pairs(student: Tensor, teacher: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Both as floats, and `(S, T, B)`: the cross-entropy of each pair of views of each image."""
    check_positive("temperature", temperature)
    student = floats(student)
    teacher = targets_of(teacher, student)
    check_shape("student", student, (None, *teacher.shape[1:]))
    return student, teacher, -ops.einsum("sbk,tbk->stb", ops.log_softmax(student / temperature, axis=-1), teacher)


def ibot_loss(student: Tensor, teacher: Tensor, mask: Tensor, temperature: float = 0.1) -> Tensor:
    """Cross-entropy of masked patches: the mean over those of a crop, summed over crops, divided by all crops.

    Crops without a mask count in the divisor too.

    Args:
        student: logits `(M, K)` of the masked patches, in the order of `mask` read row by row. More rows than masked
            patches may fill up a shape; they do not count.
        teacher: probabilities `(M, K)` of the same patches.
        mask: booleans `(R, N)` of R crops with N patches.
        temperature: of the student's softmax, above 0.

    Returns:
        A scalar, 0 where nothing is masked.

    Raises:
        ValueError: for shapes that do not fit, or a temperature that is not positive.

    Source: iBOT, arXiv:2111.07832, eq. 2, as DINOv2's code has it.
    """
    check_positive("temperature", temperature)
    student = floats(student)
    teacher = targets_of(teacher, student)
    check_shape("teacher", teacher, student.shape)
    mask = ops.cast(ops.convert_to_tensor(mask), student.dtype)
    check_shape("mask", mask, (None, None))
    count = ops.sum(mask, axis=1, keepdims=True)
    weights = ops.reshape(mask / ops.maximum(count, 1) / mask.shape[0], (-1,))
    places = ops.arange(weights.shape[0], dtype="int32")
    order = ops.argsort(ops.where(ops.reshape(mask, (-1,)) > 0, places, places + weights.shape[0]))
    chosen = ops.take(weights, order[: student.shape[0]])
    entropies = -ops.sum(teacher * ops.log_softmax(student / temperature, axis=-1), axis=-1)
    return ops.sum(entropies[: chosen.shape[0]] * chosen)


def koleo_loss(features: Tensor, epsilon: float = 1e-8) -> Tensor:
    """Minus the mean logarithm of each vector's distance to its nearest other, which spreads them evenly.

    Args:
        features: `(B, D)`, class tokens of one view before the head, of all devices; they are divided by their lengths.
        epsilon: least length, and what is added to each channel of a difference and to a distance.

    Returns:
        A scalar. Of equal vectors its gradient is some 1e6: clip gradients.

    Raises:
        ValueError: for fewer than two vectors.

    Source: arXiv:1806.03198, eq. 3; DINOv2, arXiv:2304.07193, section 4.
    """
    features = floats(features)
    check_shape("features", features, (None, None))
    count = features.shape[0]
    if count is not None and count < 2:
        raise ArgumentError(
            f"a vector needs another one as its neighbour.\nReceived: {count} vector(s). Pass a batch of 2 or more.",
            parameters=("features",),
        )
    return ops.mean(koleo_losses(unit_rows(features, epsilon), epsilon=epsilon))


def koleo_losses(
    units: Tensor, others: Tensor = None, first: Tensor = 0, there: Tensor = None, epsilon: float = 1e-8
) -> Tensor:
    """The terms `(B,)` of vectors, whose mean is `koleo_loss`.

    Args:
        units: `(B, D)` of length 1, of this device.
        others: `(R, D)` of all devices; by default `units`.
        first: place among them of this device's first one.
        there: booleans `(R,)`, False for those that are nobody's neighbour.
        epsilon: as there.
    """
    others = units if others is None else others
    cosines = ops.matmul(units, ops.transpose(others))
    own = ops.expand_dims(first + ops.arange(ops.shape(units)[0], dtype="int32"), -1)
    cosines = ops.where(own == ops.arange(ops.shape(others)[0], dtype="int32"), -1.0, cosines)
    if there is not None:
        cosines = ops.where(there, cosines, -2.0)
    differences = units - ops.take(others, ops.argmax(cosines, axis=1), axis=0) + epsilon
    distances = ops.sqrt(ops.sum(ops.square(differences), axis=1))
    return -ops.log(distances + epsilon)


def moving_average(teacher: Sequence[Tensor], student: Sequence[Tensor], momentum: float) -> list[Tensor]:
    """The teacher's weights after a step: `momentum * teacher + (1 - momentum) * student` of each.

    Args:
        teacher: arrays.
        student: arrays of the same shapes.
        momentum: in [0, 1].

    Returns:
        A list of tensors in at least float32: with 0.9999 a teacher in bfloat16 does not move at all.

    Raises:
        ValueError: for other shapes, or a momentum out of range.

    Source: DINO, arXiv:2104.14294, section 3.1.
    """
    if not 0 <= momentum <= 1:
        raise ArgumentError(f"`momentum` must be in [0, 1].\nReceived: momentum={momentum}.")
    if len(teacher) != len(student):
        raise ArgumentError(
            f"`student` must have an array for each of `teacher`.\nReceived: {len(student)} and {len(teacher)}."
        )
    averages = []
    for kept, new in zip(map(floats, teacher), student, strict=True):
        new = ops.cast(ops.convert_to_tensor(new), kept.dtype)
        check_shape("student", new, kept.shape)
        averages.append(momentum * kept + (1 - momentum) * new)
    return averages
