"""Values of rates, decays, momenta and temperatures step by step, as the authors' trainings have them."""

import numpy as np

from keras_vit.checks import ArgumentError, check_steps


def cosine_values(base: float, end: float, steps: int, warmup: int = 0, start: float = 0.0) -> np.ndarray:
    """DINOv2's schedule: a line from `start` to `base`, then half a cosine towards `end`.

    The line has both its ends, so that `base` comes twice, and the cosine stops one step before its end.

    Args:
        base: greatest value.
        end: that the cosine falls, or rises, to.
        steps: S, of the run.
        warmup: W of them, of the line.
        start: first value of the line.

    Returns:
        float64 `(S,)`.

    Raises:
        ValueError: for more steps of the line than of the run.

    Source: the code of DINOv2, arXiv:2304.07193.
    """
    _check_parts(steps, warmup)
    places = np.arange(steps - warmup) / max(steps - warmup, 1)
    return np.concatenate([np.linspace(start, base, warmup), _half_cosine(base, end, places)])


def linear_cosine_values(
    start: float, peak: float, end: float, warmup: int, steps: int, cosine_steps: int | None = None
) -> np.ndarray:
    """DINOv3's schedule: a line from `start`, without its end, then a cosine from `peak` to `end`, with both.

    Args:
        start: first value.
        peak: first value of the cosine.
        end: last value of the cosine, and of all steps after it.
        warmup: W steps of the line.
        steps: S, of the run.
        cosine_steps: C steps of the cosine; by default all that are left.

    Returns:
        float64 `(S,)`.

    Raises:
        ValueError: for parts that are longer than the run.

    Source: the code of DINOv3, arXiv:2508.10104.
    """
    cosine_steps = steps - warmup if cosine_steps is None else cosine_steps
    _check_parts(steps, warmup, cosine_steps)
    line = np.linspace(start, peak, warmup, endpoint=False)
    curve = _half_cosine(peak, end, np.arange(cosine_steps) / max(cosine_steps - 1, 1))
    return np.concatenate([line, curve, np.full(steps - warmup - cosine_steps, float(end))])


def _half_cosine(first: float, last: float, places: np.ndarray) -> np.ndarray:
    return last + (first - last) * (1 + np.cos(np.pi * places)) / 2


def _check_parts(steps: int, *parts: int) -> None:
    for name, value in (("steps", steps), *(("warmup", part) for part in parts)):
        check_steps(name, value)
    if sum(parts) > steps:
        raise ArgumentError(
            f"the parts of a schedule must not be longer than its steps.\nReceived: {parts} of {steps} steps.",
            parameters=("steps",),
        )
