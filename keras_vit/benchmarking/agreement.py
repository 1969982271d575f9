"""Whether a runner computes the model: its logits, or the loss of its first step, against those of the same weights."""

import numpy as np

# Of the largest difference, as a share of the logits' standard deviation. Seen for Ti/16 at 32 pixels: up to 4.3e-6 in
# float32, and .04 to .06 in bfloat16, which keeps 8 bits of each value; exact GELU in place of tanh is 7e-4.
LOGITS_BOUNDS = {"float32": 5e-5, "bfloat16": 0.25, "int8": 0.5}
LOSS_BOUNDS = {"float32": 1e-4, "bfloat16": 2e-2}  # shares of the loss; seen are 7.5e-8 and 1.3e-3


def logits_difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference over the deviation of `wanted`, both `(B, K)`; infinite for another shape or for NaN."""
    if found.shape != wanted.shape:
        return float("inf")
    difference = float(np.abs(found.astype("float64") - wanted).max() / wanted.std(dtype="float64"))
    return difference if np.isfinite(difference) else float("inf")


def loss_difference(found: float, wanted: float) -> float:
    """The difference over `wanted`; infinite for NaN."""
    difference = abs(found - wanted) / abs(wanted)
    return difference if np.isfinite(difference) else float("inf")


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Mean softmax cross-entropy of logits `(B, K)` for labels `(B,)`, in float64."""
    logits = logits.astype("float64") - logits.max(axis=1, keepdims=True)
    chosen = np.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - chosen))


def reason_to_leave_out(what: str, difference: float, bound: float) -> str | None:
    """Why a runner is not timed; `None` if it computes the model."""
    if difference <= bound:
        return None
    return f"computes something else ({what}: {difference:.2g}, where {bound:.2g} is allowed)"
