"""Measures of a depth model on a split, at the depth maps' own sizes: of each photo, then the mean over photos."""

import dataclasses
import heapq
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.data import load_dataset
from keras_vit.data.mask_targets import check_pixels
from keras_vit.data.pipeline import report_missing_files
from keras_vit.data.targets import Targets
from keras_vit.dense.depth import Crop, depth_crop, depth_metrics
from keras_vit.dense.maps import at_taps, axis_taps
from keras_vit.dense_models.photos import PhotoDepths
from keras_vit.evaluation.batched_predict import check_finite, check_outputs, open_to_measure, predict_batches
from keras_vit.model.copies import unwrapped
from keras_vit.pages.formatting import plural
from keras_vit.pages.html import Panel, Section

WORST = 24  # photos whose answers are kept
_KEPT = 200  # pixels, the longer side of a kept answer
MEASURES = {  # in words
    "abs_rel": "relative error",
    "rmse": "root mean squared error (m)",
    "delta1": "within a factor of 1.25",
    "delta2": "within 1.25 squared",
    "delta3": "within 1.25 cubed",
    "mae": "mean error (m)",
    "rmse_log": "root mean squared error of logarithms",
    "log10": "mean error of decimal logarithms",
    "sq_rel": "squared error over depth (m)",
    "silog": "scale-invariant error (%)",
}
_MEANINGS = (
    "Each measure is that of one photo's pixels that count, then the mean over photos, at the depth maps' own sizes. "
    "Answers are clamped to the range first.",
    "Relative error: how far an answer is off, as a part of the true depth, in the mean (AbsRel).",
    "Within a factor of 1.25: the share of pixels whose answer is at most 1.25 times too far or too near (delta 1).",
    "Scale-invariant error: 100 times the deviation of the logarithms of answer over truth (SILog).",
    "Loss: that of the training, of one photo at its own size, then the mean.",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Answer:
    """One photo of a split, with what a report shows.

    Attributes:
        index: in the split.
        abs_rel: its mean relative error.
        target: float32 `(h, w)` in metres, made smaller; 0 where it does not count.
        answer: float32 `(h, w)` in metres.
    """

    index: int
    abs_rel: float
    target: np.ndarray
    answer: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class DepthEvaluation:
    """What was measured of depths.

    Attributes:
        measures: of `dense.depth_metrics`, by name.
        loss: of the training, the mean over photos.
        class_names: `("depth",)`.
        count: of photos with a depth that counts.
        worst: photos with the largest relative errors, the largest first.
        seconds: duration.
    """

    measures: Mapping[str, float]
    loss: float
    class_names: tuple[str, ...]
    count: int
    worst: tuple[Answer, ...]
    seconds: float = 0.0

    def summary(self) -> dict[str, Any]:
        """The single numbers, ready for JSON."""
        return {**self.measures, "loss": self.loss, "count": self.count, "seconds": self.seconds}

    def panel(self, sections: Sequence[Section] = ()) -> Panel:
        """What a page shows."""
        found = self.measures
        answer = (
            f"Over {plural(self.count, 'photo')} a depth is off by {found['abs_rel']:.1%} in the mean. "
            f"{found['delta1']:.1%} of the pixels are within a factor of 1.25."
        )
        figures = [(words, f"{found[name]:.4f}") for name, words in [*MEASURES.items()][:3]]
        figures += [("loss", f"{self.loss:.4f}"), ("photos", f"{self.count:,}")]
        rows = [(words, f"{found[name]:.4f}") for name, words in MEASURES.items()]
        return Panel(
            answer, figures, _MEANINGS, [Section("Measures", header=("measure", "value"), rows=rows), *sections]
        )


def evaluate_depth(
    model: Any,
    data: Any,
    split: str | None,
    targets: Targets,
    loss: Callable[[Any, Any], Any],
    batch_size: int,
    seed: int | None,
    crop: Crop | None = None,
    windows: bool = False,
) -> DepthEvaluation:
    """Measures a model on the photos of a split, each resized whole to the model's size, or as `estimate_depth` has it.

    Answers are resized to the size of each depth map, bilinear with half-pixel centres, and maps are never resized.

    Args:
        model: of depths `(B, H, W)` in metres.
        data: a `Source`, or what `open_source` takes.
        split: or several, as for `Source.split`; `None` as `open_to_measure` takes it.
        targets: `DepthTargets`.
        loss: from depth maps and answers `(1, H, W)` to a number.
        batch_size: images at once.
        seed: divides data without splits.
        crop: part of each photo that counts, as of `dense.depth_crop`.
        windows: whether each photo passes as `keras_vit.estimate_depth` takes it.

    Raises:
        ValueError: for a split without a depth that counts, and answers that are not finite.
    """
    model = unwrapped(model)
    source, split = open_to_measure(data, split, seed, targets)
    examples = source.split(split)
    check_outputs(model, source)
    check_pixels(source, split)
    answers: Iterator[np.ndarray]
    if windows:
        find = PhotoDepths(model)
        answers = (find(examples.pixels(index)).values for index in range(examples.size))
    else:
        rule = model.preprocessing
        dataset = load_dataset(source, split, batch_size=batch_size, preprocessing=rule, seed=seed or 0, shard=(0, 1))
        answers = _whole(model, dataset)
    began, between = time.perf_counter(), examples.depth_range
    rows, losses = [], []
    worst: list[Any] = []
    with report_missing_files(examples):
        for index, answer in enumerate(answers):
            target = examples.target(index)
            if answer.shape != target.shape:
                taps = [axis_taps(n, m) for n, m in zip(answer.shape, target.shape, strict=True)]
                answer = at_taps(answer[..., None], *taps)[..., 0]
            if crop is not None:
                inside = np.zeros(target.shape, bool)
                y0, x0, y1, x1 = depth_crop(target.shape, crop)
                inside[y0:y1, x0:x1] = True
                target = np.where(inside, target, np.float32(0))
            if not target.any():
                continue
            rows.append(depth_metrics([answer], [target], *between))
            losses.append(float(loss(target[None], answer[None])))
            step, error = max(1, -(-max(target.shape) // _KEPT)), rows[-1]["abs_rel"]
            push = heapq.heappush if len(worst) < WORST else heapq.heappushpop
            push(worst, (error, -index, Answer(index, error, target[::step, ::step], answer[::step, ::step].copy())))
    if not rows:
        raise ValueError(f"a split must have depths that count.\nReceived: {split}, without one inside crop={crop!r}.")
    measures = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    kept = tuple(answer for _, _, answer in sorted(worst, key=lambda item: item[:2], reverse=True))
    seconds = time.perf_counter() - began
    return DepthEvaluation(measures, float(np.mean(losses)), source.class_names, len(rows), kept, seconds)


def _whole(model: Any, dataset: Any) -> Iterator[np.ndarray]:
    """The answers for photos that pass whole, at the model's size."""
    index = 0
    for outputs, _ in predict_batches(model, dataset, rows=True):
        check_finite(outputs, index)
        index += len(outputs)
        yield from outputs
