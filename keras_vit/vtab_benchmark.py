"""`keras_vit.vtab`: the 19 tasks of VTAB-1k by one call, each on 1,000 images, and the means of their groups.

Source: arXiv:1910.04867; arXiv:2010.11929, section 4.1 (set-up) and table 9.
"""

import dataclasses
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.cache import DEFAULT_CACHE
from keras_vit.config.datasets import VTAB_PREFIX, VTAB_TASKS, check_protocol, vtab_name, vtab_names
from keras_vit.config.variants import ResNetConfig
from keras_vit.config.vit import ViTConfig
from keras_vit.data import Source, open_source
from keras_vit.data.augmentation import Augmentation
from keras_vit.data.source import Data
from keras_vit.data.tensorflow_datasets import missing_step
from keras_vit.evaluation import probe
from keras_vit.files import expand_path
from keras_vit.model.freezing import merge_lora
from keras_vit.model.image_model import ImageModel, check_image_model
from keras_vit.model.layer_access import lora_layers
from keras_vit.renamed import accepts_old_arguments
from keras_vit.runs.finetune import finetune
from keras_vit.runs.options import FinetuneChanges
from keras_vit.weights.save import save_checkpoint

GROUPS = ("natural", "specialised", "structured")
_RECIPE = "paper-finetune-vtab"
_IMAGES = (800, 200)  # to train on, and for validation
_IMAGE_SIZE = 384  # arXiv:2010.11929, table 4


@dataclasses.dataclass(frozen=True)
class Vtab:
    """The result of `vtab`: the accuracy of each task, and why other tasks were not run.

    Example:
        >>> result = keras_vit.Vtab("linear", {"dtd": 0.5, "svhn": 0.7})
        >>> result  # the mean is of all 19 tasks
        Vtab('linear', mean=None, tasks=2 of 19)

    Attributes:
        protocol: `"linear"` or `"finetune"`.
        accuracies: on the test images, by the name of the task without `vtab/`.
        lacking: why a task was not run, by its name.
        seconds: that it took.
    """

    protocol: str
    accuracies: Mapping[str, float]
    lacking: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    def __repr__(self) -> str:
        return f"Vtab({self.protocol!r}, mean={self.mean}, tasks={len(self.accuracies)} of {len(VTAB_TASKS)})"

    @property
    def group_means(self) -> dict[str, float | None]:
        """The mean over all tasks of each group; `None` where one of them is missing."""
        return {group: self._mean(tasks_of(group)) for group in GROUPS}

    @property
    def mean(self) -> float | None:
        """The mean over all 19 tasks, as in table 9; `None` where one of them is missing."""
        return self._mean([name for group in GROUPS for name in tasks_of(group)])

    def rows(self) -> list[tuple[str, str]]:
        """Each task, group and the whole with its mean, or how many of its tasks there are."""
        found = [(name, f"{accuracy:.4f}") for name, accuracy in self.accuracies.items()]
        sets = {group: tasks_of(group) for group in GROUPS}
        sets["all tasks"] = [name for names in sets.values() for name in names]
        for title, names in sets.items():
            mean, count = self._mean(names), sum(name in self.accuracies for name in names)
            found.append((title, f"{count} of {len(names)} tasks" if mean is None else f"{mean:.4f}"))
        return found

    def summary(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return dataclasses.asdict(self) | {"group_means": self.group_means, "mean": self.mean}

    def _mean(self, names: Sequence[str]) -> float | None:
        there = [self.accuracies[name] for name in names if name in self.accuracies]
        return float(np.mean(there)) if len(there) == len(names) else None


def tasks_of(group: str) -> list[str]:
    """The names of a group's tasks without `vtab/`, in the order of table 9."""
    return [name.removeprefix(VTAB_PREFIX) for name, record in VTAB_TASKS.items() if record.group == group]


@accepts_old_arguments
def vtab(
    model: ImageModel,
    tasks: Sequence[str] | None = None,
    *,
    protocol: str = "linear",
    data: Mapping[str, Data] | None = None,
    out: FilePath | None = None,
    batch_size: int = 32,
    cache: FilePath | None = DEFAULT_CACHE,
    changes: FinetuneChanges | None = None,
    print_fn: Callable[[str], Any] = print,
) -> Vtab:
    """Measures a model on the VTAB-1k tasks whose data are prepared, and says what the others need.

    Example:
        >>> result = keras_vit.vtab(model, ["dtd"], print_fn=lambda line: None)
        >>> result.lacking["dtd"]
        'dtd/3.0.1 is not in ...; run `tfds build dtd`, up to 0.63 GB to download'

    Args:
        model: a `VisionTransformer` or `ResNet`; it is not changed.
        tasks: names, as `"dtd"` or `"vtab/dtd"`; by default all 19.
        protocol: `"linear"`, a linear probe that is fitted on 800 images, chosen on 200 and fitted on all 1,000;
            `"finetune"`, the paper's, 2,500 steps of 512 images on all 1,000, by the recipe `paper-finetune-vtab`.
        data: what to open in place of a task's tensorflow-datasets set, by its name: 800 images to train on and 200
            for validation.
        out: a folder that gets the run of each task; of `"finetune"`, which needs it.
        batch_size: images at once for `"linear"`; the numbers do not depend on it.
        cache: folder of the features, of `"linear"`; see `keras_vit.probe`.
        changes: fields of `FinetuneOptions` to change, of `"finetune"`, as `{"steps": 500}`.
        print_fn: called with each line of what happens.

    Returns:
        A `Vtab`.

    Raises:
        ValueError: for an unknown task or protocol, no `out` for `"finetune"`, or arguments of the other protocol.
        TypeError: for a model that is neither of them.

    Warns:
        UserWarning: of `data` with other classes or numbers of images than the task's.
    """
    check_image_model(model)
    names, given = vtab_names(tasks), {vtab_name(name): what for name, what in (data or {}).items()}
    check_protocol(protocol, out, changes)
    began, accuracies, lacking = time.monotonic(), {}, {}
    for name in names:
        lack = None if name in given else missing_step(VTAB_PREFIX + name)
        if lack is not None:
            lacking[name] = lack
            print_fn(f"{name}: {lack}")
            continue
        source = open_source(given.get(name, VTAB_PREFIX + name))
        _warn_of_other_data(name, source)
        if protocol == "linear":
            accuracies[name] = probe(model, source, "linear", batch_size=batch_size, cache=cache).accuracy
        else:
            accuracies[name] = _finetuned(model, name, source, expand_path(str(out)) / name, print_fn, changes or {})
        print_fn(f"{name}: {accuracies[name]:.4f}")
    return Vtab(protocol, accuracies, lacking, time.monotonic() - began)


def _warn_of_other_data(name: str, source: Source) -> None:
    """Warns of data that cannot be the task's, which then has no number of VTAB."""
    sizes = tuple(source.sizes.get(split, 0) for split in ("train", "validation"))
    classes, expected = len(source.class_names), VTAB_TASKS[VTAB_PREFIX + name].classes
    if (classes, *sizes) != (expected, *_IMAGES):
        warnings.warn(
            f"{name} of VTAB has {expected} classes, {_IMAGES[0]} images to train on and {_IMAGES[1]} for validation, "
            f"and these data {classes}, {sizes[0]} and {sizes[1]}, so the number is not one of VTAB.",
            stacklevel=3,
        )


def _finetuned(
    model: Any, name: str, source: Source, out: FilePath, print_fn: Callable[[str], Any], changes: FinetuneChanges
) -> float:
    """The accuracy of a new model with these weights, trained on the 1,000 images."""
    record = VTAB_TASKS[VTAB_PREFIX + name]
    splits = {"train": source.split("train+validation"), "test": source.split("test")}
    source = Source(source.name, source.kind, source.class_names, splits, source.bad_images, source.facts)
    crop = "resize_crop" if record.crop else "none"
    unit = model.config.side_unit
    size = _IMAGE_SIZE // unit * unit  # 378 for patches of 14, of which 384 holds no more
    model = merge_lora(model) if lora_layers(model) else model
    with tempfile.TemporaryDirectory() as folder:
        layout = _layout(model.config)
        suffix = ".safetensors" if layout == "huggingface" else ".npz"
        weights = save_checkpoint(model, Path(folder) / f"weights{suffix}", layout)
        options: dict[str, Any] = {"model": model.config, "weights": weights, "recipe": _RECIPE, "image_size": size}
        options["augmentation"] = Augmentation(crop=crop, flip=record.flip)
        return finetune(source, out, print_fn=print_fn, **options | dict(changes)).test_accuracy


def _layout(config: ViTConfig | ResNetConfig) -> str:
    """A layout that has a place for every weight."""
    if isinstance(config, ResNetConfig):
        return "bit"
    if config.distilled:
        return "huggingface"
    return "big_vision" if config.pooling == "map" else "official"
