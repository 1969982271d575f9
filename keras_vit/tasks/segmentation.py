"""Segmentation: one of K classes for each pixel, learned from masks by a head on a frozen encoder.

The best epoch is that of the highest mean IoU, by one confusion matrix over the validation set. The result of a
run is measured at the masks' own sizes.
"""

import collections
import csv
import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from keras_vit.checks import ArgumentError, Count
from keras_vit.files import expand_path, read_regular
from keras_vit.pages.cards import classes_section
from keras_vit.pages.formatting import columns, markdown_text, plural, printable
from keras_vit.pages.html import Panel, Section, picture_uri
from keras_vit.tasks.class_weights import BALANCED, ordered_weights, read_class_weights, weights_in_words
from keras_vit.tasks.task import CardParts, MapTask, comma_separated, option

if TYPE_CHECKING:
    from keras_vit.data.source import Source
    from keras_vit.data.targets import Targets
    from keras_vit.evaluation.segmentation import Answer, SegmentationEvaluation
    from keras_vit.training.plan import Plan

LAYOUTS = ("ade20k", "voc", "cityscapes")
RULES = ("ade20k", "cityscapes")
AVERAGES = ("all", "valid")
EOMT = "eomt"  # the head whose queries have a loss of their own
_DEFAULTS = {"average": "all", "class_weights": None}  # of what that loss has not
_MOST_BYTES = 1 << 24  # of a file of names
_COLOR = re.compile(r"#[0-9a-fA-F]{6}")
_LEGEND_WIDTH = 640  # pixels


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segmentation(MapTask):
    """A class for each pixel: `keras_vit.finetune(photos, out, task="segmentation", masks=folder)`.

    Args:
        map_head: `"linear"`, BatchNorm and a convolution of one pixel on the last block; `"linear4"`, on four; or
            `"dpt"`, `"upernet"` or `"segmenter"`, as for `keras_vit.segmenter`.
        masks: folder of masks with the stems of the photos; a `.json` file of COCO, of instances or panoptic; or
            `"ade20k"`, `"voc"` or `"cityscapes"`, for data as these are published. By default those of a table with
            the columns `path` and `mask`, or of the folder `masks` or `annotations` next to `images` in the data.
        mask_rule: from levels to classes: `"ade20k"`, where 0 does not count and others move down by one, or
            `"cityscapes"`, of `labelIds`; by default that of the layout, else levels are classes.
        class_names: K names in their order, with commas between them; or a file: `.txt` with one in each line, or
            `.csv` with the columns `name` and perhaps `color`, as `#ff8800`. By default numbers.
        colors: of the classes in pictures, as `"#ff8800"`.
        ignore_class: label of pixels that do not count.
        average: what the loss of a batch is divided by: `"all"`, its pixels, as DINOv3 and mmsegmentation do; or
            `"valid"`, those that count.
        class_weights: how much a pixel of each class counts in the loss, as of classification; `"balanced"` is 1 / (K *
            share of the class). Not of `"eomt"`.

    Raises:
        ValueError: for values that cannot be.
    """

    name: ClassVar[str] = "segmentation"
    head: ClassVar[str] = "segmentation"
    metrics: ClassVar[tuple[str, ...]] = ("mean_iou",)
    curves: ClassVar[Mapping[str, str]] = {"loss": "loss (nats)", "mean_iou": "mean IoU"}
    command: ClassVar[str] = "segment"
    recipe: ClassVar[str | None] = "dinov3-linear-ade20k"
    augmentation: ClassVar[str] = "segmentation"

    masks: str | None = option(
        None,
        "of segmentation: folder of masks with the stems of the photos, a .json file of COCO, or the layout ade20k, "
        "voc or cityscapes; by default the column mask of a table",
        metavar="MASKS",
    )
    mask_rule: str | None = option(
        None, "of segmentation: from levels to classes; by default levels are classes", choices=RULES
    )
    class_names: tuple[str, ...] | str | None = option(
        None,
        "of segmentation: names of the classes, as cat,dog, or a .txt or .csv file; by default numbers",
        metavar="NAMES",
    )
    colors: tuple[str, ...] | None = option(
        None,
        "of segmentation: colours in pictures, as #ff8800,#0044ff; by default those of PASCAL VOC",
        metavar="COLORS",
    )
    ignore_class: Count = option(
        255, "of segmentation: label of pixels that do not count; by default 255", type=int, metavar="LABEL"
    )
    average: str = option(
        "all",
        "of segmentation: divide the loss by the number of all pixels, the default, or of valid ones",
        choices=AVERAGES,
    )
    class_weights: str | Mapping[str, float] | None = option(
        None,
        "of classification and segmentation: how much an image or a pixel of each class counts in the loss; balanced, "
        "or a .csv file with the columns class and weight; by default all the same",
        metavar="WEIGHTS",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.masks is not None and self.masks not in LAYOUTS:
            object.__setattr__(self, "masks", os.path.abspath(expand_path(self.masks)))
        names: Any = self.class_names
        colors: Any = self.colors
        if isinstance(names, (str, os.PathLike)):
            names, of_file = _read_names(os.fspath(names))
            colors = of_file if colors is None else colors
        colors = comma_separated(colors) if isinstance(colors, str) else colors
        _check_names(names, colors)
        object.__setattr__(self, "class_names", None if names is None else tuple(names))
        object.__setattr__(self, "colors", None if colors is None else tuple(colors))
        object.__setattr__(self, "class_weights", read_class_weights(self.class_weights))

    def check(self, options: Any) -> None:
        super().check(options)
        given = {
            name: value for name in ("average", "class_weights") if (value := getattr(self, name)) != _DEFAULTS[name]
        }
        if self.map_head == EOMT and given:
            raise ArgumentError(
                "the loss of `map_head='eomt'` is a mean over the masks of a batch, in which each class of a photo "
                "counts the same.\n"
                f"Received: {', '.join(f'{name}={value!r}' for name, value in given.items())}. Leave it out.",
                parameters=tuple(given),
            )

    # Data

    def targets(self, names: Sequence[str] | None = None) -> "Targets":
        from keras_vit.data.mask_targets import MaskTargets

        return MaskTargets(self.masks, self.mask_rule, names or self.class_names, self.ignore_class)

    def of_data(self, masks: str | None = None, **places: str | None) -> "Segmentation":
        super().of_data(**places)
        return dataclasses.replace(self, masks=masks if masks or self.masks not in LAYOUTS else self.masks)

    def check_source(self, source: "Source") -> None:
        from keras_vit.data.mask_targets import check_pixels

        for split in source.splits:
            check_pixels(source, split)
        if self.colors is not None and len(self.colors) != len(source.class_names):
            raise ArgumentError(
                "`colors` must be one for each class.\n"
                f"Received: {len(self.colors)} for {len(source.class_names)} classes."
            )
        self._weights(source)

    def size_in_words(self, count: int) -> str:
        return f"{count} class{'es' * (count != 1)} of pixels"

    # Training

    def add_head(self, encoder: Any, classes: int) -> Any:
        from keras_vit.dense_models.builders import segmenter

        return segmenter(encoder, self.map_head, classes=classes, freeze=False)

    def compile_arguments(self, plan: "Plan", encoding: str, source: "Source") -> dict[str, Any]:
        from keras_vit.dense import CrossEntropy, MaskClassification, SegmentationIoU

        classes, ignored = len(source.class_names), self.ignore_class
        loss: Any = CrossEntropy(ignored, self.average, self._weights(source))  # type: ignore[arg-type]
        if self.map_head == EOMT:
            loss = MaskClassification(ignored, masked_steps=plan.steps)
        metric = SegmentationIoU(classes, ignored, name=self.metrics[0])
        return plan.compile_arguments("one_hot", [metric]) | {"loss": loss}

    def loss_in_words(self, source: "Source") -> str:
        if self.map_head == EOMT:
            return "2 x cross-entropy of queries, 5 x cross-entropy and 5 x Dice of the masks matched to them"
        return weights_in_words(self._weights(source), source.class_names)

    def _weights(self, source: "Source") -> list[float] | None:
        """The weight of each class."""
        if self.class_weights != BALANCED:
            return ordered_weights(self.class_weights, source.class_names)
        from keras_vit.data.mask_targets import class_shares

        shares = class_shares(source)
        return (1 / (np.count_nonzero(shares) * np.where(shares > 0, shares, 1))).tolist()

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
    ) -> "SegmentationEvaluation":
        from keras_vit.evaluation.segmentation import evaluate_segmentation

        return evaluate_segmentation(model, data, split, self.targets_of(model, names), batch_size, seed, windows)

    def result(self, evaluation: "SegmentationEvaluation", run: Mapping[str, Any]) -> dict[str, Any]:
        found = evaluation.summary()
        return {
            "test_mean_iou": found["mean_iou"],
            "classes": len(evaluation.class_names),
            **run,
            "test_loss": found["loss"],
            **{name: found[name] for name in ("pixel_accuracy", "mean_recall", "mean_dice")},
            "per_class": found["classes"],
        }

    def panel(
        self,
        evaluation: "SegmentationEvaluation",
        folder: Path | None = None,
        source: "Source | None" = None,
        split: str = "test",
    ) -> Panel:
        return evaluation.panel([] if source is None else [self._worst(evaluation, source, split)])

    def _worst(self, evaluation: "SegmentationEvaluation", source: "Source", split: str) -> Section:
        from keras_vit.analysis.overlay import class_colors, side_by_side, with_legend

        colors, names = class_colors(len(evaluation.class_names), self.colors), evaluation.class_names

        def shown(found: "Answer") -> dict[str, Any]:
            photo = source.pixels(split, found.index)
            there = [names[place] for place in np.unique(found.mask) if place < len(names)]
            caption = [(f"IoU {found.iou:.4f}", True), (f"; in the mask: {printable(', '.join(there))}", False)]
            picture = side_by_side(photo, found.mask.astype("int32"), found.answer, colors, self.ignore_class)
            words = f"photo, mask, answer and error; {''.join(text for text, _ in caption)}"
            place = source.split(split).row(found.index)["path"]
            return {"picture": picture_uri(picture), "alt": words, "caption": caption, "place": place, "wide": True}

        note = (
            "Photo, mask, answer over the photo, and error: right pixels are green, wrong ones red, and those that do "
            "not count black. IoU is that of the photo alone."
        )
        there = {place for found in evaluation.worst for place in (*found.mask.flat, *found.answer.flat)}
        legend = [
            (tuple(colors[place].tolist()), printable(name)) for place, name in enumerate(names) if place in there
        ]
        uri = picture_uri(with_legend(np.full((1, _LEGEND_WIDTH, 3), 255, "uint8"), legend))
        photos = [shown(found) for found in evaluation.worst]
        return Section("Worst photos", note, photos=photos, picture=uri, alt="colours of the classes")

    def result_rows(self, facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        measured = f"{facts['test_mean_iou']:.4f} on {facts['test_images']:,} images, epoch {facts['best_epoch']}"
        yield f"{printable(facts['split'])} mean IoU", measured
        yield "pixel accuracy", f"{facts['pixel_accuracy']:.4f}"
        yield "loss", f"{facts['test_loss']:.4f}"
        worst = min((each for each in facts["per_class"] if each["iou"] is not None), key=lambda each: each["iou"])
        yield "weakest class", f"{printable(worst['name'])}, IoU {worst['iou']:.4f}"

    def card(self, data: Mapping[str, Any], result: Mapping[str, Any]) -> CardParts:
        from keras_vit.evaluation.segmentation import HEADER, class_rows

        found = result["per_class"]
        cells = dict(zip(HEADER, map(list, zip(*class_rows(found), strict=True)), strict=True))
        del cells["class"]
        worst = min((each for each in found if each["iou"] is not None), key=lambda each: each["iou"])
        return CardParts(
            hub_task=("image-segmentation", "Semantic segmentation"),
            figures=[
                ("mean_iou", "Mean IoU", result["test_mean_iou"]),
                ("accuracy", "Pixel accuracy", result["pixel_accuracy"]),
                ("loss", "Cross-entropy in nats", result["test_loss"]),
            ],
            subject=f"A model of {result['classes']:,} classes for each pixel of an image",
            use="The answers are logits of each pixel, at the size of the model. `keras-vit segment photo.jpg --model "
            "FOLDER --out masks` writes masks of a photo's own size.",
            note="IoU is counted over all photos together, at the masks' own sizes.",
            sections={"Classes": classes_section(data["class_names"], cells)},
            answers=f"It gives every pixel one of its {result['classes']:,} classes, also one that shows none of them.",
            limits=[f"It is weakest on {markdown_text(worst['name'])}: IoU {worst['iou']:.4f}."],
        )

    def evaluation_lines(self, evaluation: "SegmentationEvaluation", split: str, name: str) -> Iterator[str]:
        from keras_vit.evaluation.segmentation import HEADER, class_rows

        found = evaluation.summary()
        yield f"{split} mean IoU {found['mean_iou']:.4f} on {plural(evaluation.count, 'image')} of {name}"
        rows = [("pixel accuracy", f"{found['pixel_accuracy']:.4f}"), ("loss", f"{found['loss']:.4f}")]
        yield from (f"  {line}" for line in columns(rows))
        yield ""
        yield from columns([HEADER, *class_rows(found["classes"])])


def _read_names(text: str) -> tuple[Sequence[str], Sequence[str] | None]:
    """Names and perhaps colours, of a list with commas or of a file."""
    suffix = Path(text).suffix.lower()
    if suffix not in (".txt", ".csv"):
        return comma_separated(text), None
    try:
        lines = read_regular(expand_path(text), _MOST_BYTES).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(
            f"`class_names` must be names with commas between them, or a file of them in UTF-8.\n"
            f"Received: {text!r}: {getattr(error, 'strerror', None) or error}."
        ) from None
    if suffix == ".txt":
        from keras_vit.data.label_checks import warn_numbered_class_names

        names = "\n".join(map(str.strip, lines)).rstrip().split("\n")
        if "" in names:  # left out, it would move all names after it
            raise ArgumentError(
                "each line of a .txt file of class names must have a name.\n"
                f"Received: {text!r}, whose line {names.index('') + 1} is empty.",
                parameters=("class_names",),
            )
        warn_numbered_class_names(names, text)
        return names, None
    rows = list(csv.DictReader(lines, skipinitialspace=True))
    if not rows or "name" not in rows[0]:
        raise ArgumentError(
            "a .csv file of class names must have the columns name and perhaps color.\n"
            f"Received: {text!r}, whose first line is {lines[:1]}.",
            parameters=("class_names",),
        )
    return [row["name"].strip() for row in rows], [row["color"] for row in rows] if "color" in rows[0] else None


def _check_names(names: Sequence[str] | None, colors: Sequence[str] | None) -> None:
    if names is not None and (len(set(names)) < max(len(names), 2) or not all(names)):
        twice = [f"{name!r} twice" for name, count in collections.Counter(names).items() if count > 1]
        raise ArgumentError(
            f"`class_names` must be two different names or more.\nReceived: {', '.join(twice[:3]) or list(names)[:10]}."
        )
    if wrong := [color for color in colors or () if not _COLOR.fullmatch(str(color))]:
        raise ArgumentError(
            f"a colour must be written as #ff8800.\nReceived: {wrong[0]!r}.", parameters=("colors", "class_names")
        )
