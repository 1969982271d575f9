"""LeJEPA (arXiv:2511.08544): views of an image are pulled together, and their embeddings held to a Gaussian."""

import functools
from collections.abc import Callable
from typing import Literal

import numpy as np
from keras import ops

from keras_vit.annotations import Tensor
from keras_vit.checks import ArgumentError, check_choice, check_positive, check_positive_int
from keras_vit.selfsupervised.arrays import check_shape, floats, targets_of, unit_rows

Centers = Literal["global", "all"]


def sigreg(embeddings: Tensor, directions: Tensor, points: int = 17, limit: float = 3.0) -> Tensor:
    """SIGReg: how far the embeddings are from a standard Gaussian, by a test of each direction and view.

    A perfect Gaussian gives 1.06 whatever N and d are; N equal points give 0.41 N.

    Args:
        embeddings: `(..., N, d)`: each of the leading axes is a sample of its own, of N images of all devices.
        directions: `(d, S)`; they are divided by their lengths. New ones in each step, the same for all views.
        points: of the integral over t in [0, `limit`], by the trapezoidal rule; at least 2.
        limit: its end, above 0.

    Returns:
        A scalar, the mean over views and directions of N times the integral, twice that of one side.

    Raises:
        ValueError: for shapes that do not fit, or a rule without points.

    Source: LeJEPA, arXiv:2511.08544, algorithm 1; the integral as its code has it.
    """
    return gaussian_distance(embeddings, directions, points, limit)


def gaussian_distance(
    embeddings: Tensor,
    directions: Tensor,
    points: int = 17,
    limit: float = 3.0,
    mean: Callable[[Tensor], Tensor] | None = None,
    count: Tensor = None,
) -> Tensor:
    """What `sigreg` computes, of the images of all devices.

    Args:
        embeddings: `(..., N, d)` of this device's images.
        directions: `(d, S)`.
        points: as there.
        limit: as there.
        mean: over the images of all devices, of `(..., N, S, points)` to `(..., S, points)`; by default of these.
        count: how many there are.
    """
    check_positive("limit", limit)
    if check_positive_int("points", points) < 2:
        raise ArgumentError(f"`points` must be at least 2.\nReceived: points={points}.")
    embeddings = floats(embeddings)
    directions = targets_of(directions, embeddings)
    check_shape("directions", directions, (embeddings.shape[-1], None))
    directions = ops.transpose(unit_rows(ops.transpose(directions)))
    times = np.linspace(0.0, limit, points)
    step = limit / (points - 1)
    rule = np.full(points, 2 * step)
    rule[[0, -1]] = step
    gaussian = np.exp(-(times**2) / 2)
    angles = ops.expand_dims(ops.matmul(embeddings, directions), -1) * ops.cast(times, embeddings.dtype)
    mean = mean or functools.partial(ops.mean, axis=-3)
    real = mean(ops.cos(angles)) - ops.cast(gaussian, embeddings.dtype)
    imaginary = mean(ops.sin(angles))
    integrals = ops.sum((real**2 + imaginary**2) * ops.cast(rule * gaussian, embeddings.dtype), axis=-1)
    return ops.mean(integrals) * ops.cast(ops.shape(embeddings)[-2] if count is None else count, embeddings.dtype)


def lejepa_loss(
    views: Tensor,
    directions: Tensor,
    num_global: int,
    weight: float = 0.05,
    centers: Centers = "global",
    points: int = 17,
    limit: float = 3.0,
) -> Tensor:
    """LeJEPA: `(1 - weight) * pull + weight * SIGReg`.

    Args:
        views: `(V, N, d)` projected embeddings, the global views first.
        directions: `(d, S)`, as `sigreg` takes them.
        num_global: G, at least 1.
        weight: in [0, 1].
        centers: the views whose mean all are pulled to: `"global"`, or `"all"`, as the authors' short example has it.
        points: as of `sigreg`.
        limit: as of `sigreg`.

    Returns:
        A scalar.

    Raises:
        ValueError: for shapes that do not fit, more global views than views, and values out of range.

    Source: LeJEPA, arXiv:2511.08544, section 5.
    """
    pull, statistic = lejepa_loss_parts(views, directions, num_global, centers, points, limit)
    if not 0 <= weight <= 1:
        raise ArgumentError(f"`weight` must be in [0, 1].\nReceived: weight={weight}.")
    return (1 - weight) * pull + weight * statistic


def lejepa_loss_parts(
    views: Tensor,
    directions: Tensor,
    num_global: int,
    centers: Centers = "global",
    points: int = 17,
    limit: float = 3.0,
) -> tuple[Tensor, Tensor]:
    """Pull and SIGReg: the pull is the mean squared distance of all views, images and channels to their centre."""
    check_choice("centers", centers, ("global", "all"))
    views = floats(views)
    check_shape("views", views, (None, None, None))
    count = views.shape[0] if centers == "all" else check_positive_int("num_global", num_global)
    if num_global > views.shape[0]:
        raise ArgumentError(
            f"`num_global` must be at most the number of views, {views.shape[0]}.\nReceived: num_global={num_global}."
        )
    pull = ops.mean(ops.square(views - ops.mean(views[:count], axis=0, keepdims=True)))
    return pull, sigreg(views, directions, points, limit)
