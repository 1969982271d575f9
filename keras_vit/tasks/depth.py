"""Depth: the metres of each pixel, learned from depth maps by a head on a frozen encoder.

The best epoch is that of the lowest mean relative error of the validation photos. The result of a run is measured at
the depth maps' own sizes.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from keras_vit.checks import ArgumentError, Positive, check_choice
from keras_vit.files import expand_path
from keras_vit.pages.formatting import columns, plural, printable
from keras_vit.pages.html import Panel, Section, picture_uri
from keras_vit.tasks.task import MAP_HEADS, CardParts, MapTask, option

if TYPE_CHECKING:
    from keras_vit.data.source import Source
    from keras_vit.data.targets import Targets
    from keras_vit.evaluation.depth import DepthEvaluation
    from keras_vit.training.plan import Plan

HEADS = MAP_HEADS[:3]
LOSSES = ("sig", "silog")
CROPS = ("nyu_eigen", "garg")
_GRADIENT_WEIGHT = 0.5  # DINOv2's, with heads of DPT


@dataclasses.dataclass(frozen=True, kw_only=True)
class Depth(MapTask):
    """Metres for each pixel: `keras_vit.finetune(photos, out, task="depth", depths=folder, depth_range=(0.1, 10))`.

    Args:
        map_head: `"linear"`, 256 bins of depths on the last block; `"linear4"`, on four; or `"dpt"`, Depth Anything's
            metric head of Dense Prediction Transformers, up to the far end of the range.
        depths: folder of depth maps with the stems of the photos, 16-bit pictures or `.npy` files of metres. By default
            those of a table with the columns `path` and `depth`, or of the folder `depths` next to `images` in the
            data.
        depth_scale: metres of one level of a picture: 0.001 for millimetres, 1/256 for KITTI.
        depth_range: smallest and largest depth in metres; others do not count, and neither do 0 and NaN.
        loss: `"sig"`, as DINOv2 and DINOv3 train, with a share of 0.5 of the gradient loss for `"dpt"`; or `"silog"`,
            as Depth Anything V2.
        depth_crop: part of each photo that a measurement counts, as papers have it: `"nyu_eigen"` or `"garg"`.

    Raises:
        ValueError: for values that cannot be.
    """

    name: ClassVar[str] = "depth"
    head: ClassVar[str] = "depth"
    metrics: ClassVar[tuple[str, ...]] = ("abs_rel", "rmse", "delta1")
    larger_is_better: ClassVar[bool] = False
    curves: ClassVar[Mapping[str, str]] = {"loss": "loss", "abs_rel": "relative error"}
    command: ClassVar[str] = "depth"
    recipe: ClassVar[str | None] = "dinov3-linear-nyu"
    augmentation: ClassVar[str] = "depth"

    depths: str | None = option(
        None,
        "of depth: folder of depth maps with the stems of the photos, 16-bit pictures or .npy files of metres; by "
        "default the column depth of a table",
        metavar="DEPTHS",
    )
    depth_scale: Positive | None = option(
        None,
        "of depth: metres of one level of a picture, 0.001 for millimetres, 0.00390625 for KITTI; no default",
        type=float,
        metavar="METRES",
    )
    depth_range: tuple[float, float] | None = option(
        None,
        "of depth: smallest and largest depth that count, in metres; no default",
        type=float,
        nargs=2,
        metavar=("NEAR", "FAR"),
    )
    loss: str = option("sig", "", choices=LOSSES)  # the help of regression's option has all
    depth_crop: str | None = option(
        None, "of depth: part of each photo that is measured, as papers have it; by default all of it", choices=CROPS
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("map_head", self.map_head, HEADS)
        if self.depths is not None:
            object.__setattr__(self, "depths", os.path.abspath(expand_path(self.depths)))
        if (between := self.depth_range) is not None:
            if not 0 < between[0] < between[1] < float("inf"):
                raise ArgumentError(
                    "`depth_range` must be the smallest and the largest depth in metres, above 0.\n"
                    f"Received: {between[0]:g} and {between[1]:g}."
                )
            object.__setattr__(self, "depth_range", tuple(map(float, between)))

    # Data

    def targets(self, names: Sequence[str] | None = None) -> "Targets":
        from keras_vit.data.depth_targets import DepthTargets

        return DepthTargets(self.depths, self.depth_scale, self.depth_range)

    def of_data(self, depths: str | None = None, **places: str | None) -> "Depth":
        super().of_data(**places)
        return dataclasses.replace(self, depths=depths)

    def check_source(self, source: "Source") -> None:
        from keras_vit.data.mask_targets import check_pixels

        for split in source.splits:
            check_pixels(source, split)

    def size_in_words(self, count: int) -> str:
        return "a depth of each pixel"

    # Training

    def add_head(self, encoder: Any, classes: int) -> Any:
        from keras_vit.dense_models.builders import depth_estimator

        head = (
            {"head": "dpt_metric", "max_depth": self._range[1]} if self.map_head == "dpt" else {"head": self.map_head}
        )
        between = {} if self.map_head == "dpt" else {"depth_range": self._range}
        return depth_estimator(encoder, freeze=False, **head, **between)  # type: ignore[arg-type]

    @property
    def _range(self) -> tuple[float, float]:
        if self.depth_range is None:  # which data with depths refuse
            raise ArgumentError("depths need their range in metres.\nReceived: depth_range=None. Pass `depth_range`.")
        return self.depth_range

    def compile_arguments(self, plan: "Plan", encoding: str, source: "Source") -> dict[str, Any]:
        from keras_vit.dense import DepthMetric
        from keras_vit.training.optimizers import num_replicas

        if num_replicas() > 1:
            raise ArgumentError(
                "the loss of depths is of the whole batch, which several devices of TensorFlow do not have.\n"
                f"Received: {num_replicas()} devices. Pass strategy='one', or train on JAX with layout='replicated'."
            )
        metrics = [DepthMetric(name, *self._range) for name in self.metrics]  # type: ignore[arg-type]
        return plan.compile_arguments("one_hot", metrics) | {"loss": self._loss()}

    def _loss(self) -> Any:
        from keras_vit.dense import SigLoss, SiLogLoss

        if self.loss == "silog":
            return SiLogLoss()
        return SigLoss(gradient_weight=_GRADIENT_WEIGHT if self.map_head == "dpt" else 0.0)

    # A trained model

    def evaluate(
        self,
        model: Any,
        data: Any,
        split: str | None = None,
        *,
        names: Sequence[str] | None = None,
        batch_size: int = 32,
        seed: int | None = None,
        windows: bool = False,
        **options: Any,
    ) -> "DepthEvaluation":
        from keras_vit.evaluation.depth import evaluate_depth

        targets, crop = self.targets_of(model, names), self.depth_crop
        return evaluate_depth(model, data, split, targets, self._loss(), batch_size, seed, crop, windows)  # type: ignore[arg-type]

    def result(self, evaluation: "DepthEvaluation", run: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(evaluation.measures)
        return {
            "test_abs_rel": found.pop("abs_rel"),
            "classes": len(evaluation.class_names),
            **run,
            "test_loss": evaluation.loss,
            **found,
        }

    def panel(
        self,
        evaluation: "DepthEvaluation",
        folder: Path | None = None,
        source: "Source | None" = None,
        split: str = "test",
    ) -> Panel:
        return evaluation.panel([] if source is None else [_worst(evaluation, source, split)])

    def result_rows(self, facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        measured = f"{facts['test_abs_rel']:.4f} on {facts['test_images']:,} images, epoch {facts['best_epoch']}"
        yield f"{printable(facts['split'])} relative error", measured
        yield "root mean squared error", f"{facts['rmse']:.4g} m"
        yield "within a factor of 1.25", f"{facts['delta1']:.2%}"

    def card(self, data: Mapping[str, Any], result: Mapping[str, Any]) -> CardParts:
        near, far = self._range
        return CardParts(
            hub_task=("depth-estimation", "Depth estimation"),
            figures=[
                ("abs_rel", "Mean relative error (AbsRel)", result["test_abs_rel"]),
                ("rmse", "Root mean squared error in metres", result["rmse"]),
                ("delta1", "Share within a factor of 1.25", result["delta1"]),
            ],
            subject=f"A model of the depth of each pixel, from {near:g} to {far:g} m",
            use="The answers are metres, at the size of the model. `keras-vit depth photo.jpg --model FOLDER --out "
            "depths` writes depth maps of a photo's own size.",
            note="Each measure is the mean over photos, at the depth maps' own sizes.",
            sections={},
            answers="It gives every pixel a depth in its range, also one of the sky or of a mirror.",
            limits=["Metres hold for cameras of the same angle of view as those of the training photos."],
        )

    def export_arguments(self, names: Sequence[str] | None) -> dict[str, Any]:
        return {}  # metres have no labels

    checkpoint_arguments = export_arguments

    def evaluation_lines(self, evaluation: "DepthEvaluation", split: str, name: str) -> Iterator[str]:
        from keras_vit.evaluation.depth import MEASURES

        found = evaluation.measures
        yield f"{split} relative error {found['abs_rel']:.4f} on {plural(evaluation.count, 'image')} of {name}"
        rows = [(words, f"{found[key]:.4f}") for key, words in MEASURES.items() if key != "abs_rel"]
        yield from (f"  {line}" for line in columns([*rows, ("loss", f"{evaluation.loss:.4f}")]))


def _worst(evaluation: "DepthEvaluation", source: "Source", split: str) -> Section:
    from keras_vit.analysis.overlay import depths_side_by_side

    photos = []
    for found in evaluation.worst:
        true = found.target[found.target > 0]
        between = f"; {true.min():.3g} to {true.max():.3g} m" if true.size else ""
        caption = [(f"relative error {found.abs_rel:.4f}", True), (between, False)]
        picture = depths_side_by_side(source.pixels(split, found.index), found.target, found.answer)
        words = f"photo, depth, answer and error; {''.join(text for text, _ in caption)}"
        place = source.split(split).row(found.index)["path"]
        photos.append({"picture": picture_uri(picture), "alt": words, "caption": caption, "place": place, "wide": True})
    note = (
        "Photo, depth map, answer in the same colours, bright where it is near, and error: green at 0, yellow at 10 % "
        "of the depth, red from 20 % on. What does not count is grey."
    )
    return Section("Worst photos", note, photos=photos)
