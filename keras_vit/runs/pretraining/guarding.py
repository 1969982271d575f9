"""The images of a training without labels, and the guard that measures held-out ones of them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_vit.checks import ArgumentError
from keras_vit.data import load_dataset
from keras_vit.data.opening import open_source
from keras_vit.data.source import Data, Source
from keras_vit.data.views import NoLabels, Views, load_views
from keras_vit.pages.formatting import plural, printable
from keras_vit.runs.options import UnlabeledOptions
from keras_vit.runs.plan import RunPlan
from keras_vit.runs.pretraining.trainings import Training
from keras_vit.runs.run_directory import RunDirectory
from keras_vit.runs.run_files import BEST
from keras_vit.training.selfsupervised.guard import CollapseGuard

_IMAGES, _MOST = 256, 1024  # of the guard: of 224 pixels, and of small ones
_SIDE = 224
_OF_A_CLASS = 5  # images of the guard, at least, that kNN finds anything among
_STREAM = 11  # of random numbers


def open_images(data: Data, options: UnlabeledOptions) -> tuple[Source, bool]:
    """The images, and whether their labels may be used to measure: those that cannot be read do no harm."""
    how: dict[str, Any] = {"seed": options.seed, "on_bad_image": options.on_bad_image}
    if options.guard in ("auto", "knn"):
        try:
            source = open_source(data, **how)
            return source, np.ndim(source.split("train").labels) == 1 and source.kind != "photos"
        except (ValueError, AttributeError) as error:
            if options.guard == "knn":
                raise ArgumentError(f"`guard='knn'` needs labels that can be read.\nReceived: {error}") from error
    return open_source(data, targets=NoLabels(), **how), False


class RunGuard(CollapseGuard):
    """A guard that keeps the best encoder in the folder of a run."""

    def __init__(self, run: RunDirectory, encoder: Any, images: np.ndarray, **named: Any) -> None:
        super().__init__(encoder, images, run.path / BEST, **named)
        self.run = run

    def save(self, epoch: int) -> bool:
        return self.run.save_model(self.encoder, BEST, epoch)


@dataclasses.dataclass(frozen=True, eq=False)
class Guarded:
    """What a guard measures.

    Attributes:
        source: whose only split is `"test"`.
        held_out: how many of its images are not trained on.
        classes: of the labels; 0 if twins are measured.
    """

    source: Source
    held_out: int
    classes: int

    @property
    def name(self) -> str:
        """`"knn"` or `"twins"`."""
        return "knn" if self.classes else "twins"

    def words(self, every: int) -> str:
        """What is measured, in a sentence."""
        count = self.source.sizes["test"]
        what = f"kNN of {self.classes} classes" if self.classes else "twins"
        shown = ", ".join(map(printable, self.source.class_names[:3])) if self.classes else ""
        others = f" and {count - self.held_out:,} of the training images" if count > self.held_out else ""
        return (
            f"{what}{f' ({shown}, ...)' if shown else ''} on {self.held_out:,} held-out images{others}, at the start "
            f"and every {plural(every, 'step')}; the best encoder is kept, the start among them"
        )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PretrainPlan(RunPlan):
    """All that is decided of a training without labels.

    Attributes:
        training: compiled, with the `model` that `fit` trains.
        guarded: images that are measured, or `None`.
    """

    training: Training
    guarded: Guarded | None


def choose_guarded(source: Source, has_labels: bool, options: UnlabeledOptions, size: int) -> Guarded | None:
    """The images that are measured; `None` if none are to be.

    Raises:
        ValueError: for data without held-out images, and for labels that kNN cannot use though it is asked for.
    """
    if options.guard == "none":
        return None
    held = [source.split(name) for name in ("validation", "test") if source.sizes.get(name)]
    if not held:
        raise ArgumentError(
            "`guard` measures images that are not trained on, a validation or a test set.\n"
            f"Received: {source.name}, with {source.sizes}. Add one, leave splits out so that a seed divides the data, "
            "or pass guard='none'."
        )
    count = options.guard_images or int(np.clip(_IMAGES * (_SIDE / size) ** 2, _IMAGES, _MOST))
    examples = held[0] if len(held) == 1 else held[0].concatenate(held[1])
    draw = np.random.default_rng([options.seed, _STREAM])
    examples = examples.take(np.sort(draw.permutation(examples.size)[:count]))
    held_out, train = examples.size, source.split("train")
    if missing := min(count - held_out, train.size):
        examples = examples.concatenate(train.take(np.sort(draw.permutation(train.size)[:missing])))
    classes = len(np.unique(examples.labels)) if has_labels else 0
    usable = 2 <= classes <= examples.size // _OF_A_CLASS
    if options.guard == "knn" and not usable:
        raise ArgumentError(
            f"`guard='knn'` needs two classes and {_OF_A_CLASS} images of each.\n"
            f"Received: {plural(examples.size, 'image')} of {classes} classes. Pass guard='twins', or more images as "
            "`guard_images`."
        )
    chosen = dataclasses.replace(source, splits={"test": examples})
    return Guarded(chosen, held_out, classes if usable and options.guard != "twins" else 0)


def make_guard(
    run: RunDirectory,
    guarded: Guarded,
    training: Training,
    options: UnlabeledOptions,
    print_fn: Callable[[str], Any],
) -> RunGuard:
    """Reads the images and gives the callback."""
    encoder, source, count = training.encoder, guarded.source, guarded.source.sizes["test"]
    size = training.views.global_size
    rule = dataclasses.replace(encoder.preprocessing, image_size=(size, size))
    batches = load_dataset(source, "test", batch_size=min(count, 64), preprocessing=rule, shard=(0, 1))
    read = [[np.asarray(part) for part in batch[:2]] for batch in batches]
    images, labels = (np.concatenate(parts) for parts in zip(*read, strict=True))
    how: dict[str, Any] = {"labels": labels}
    if not guarded.classes:
        views = Views(global_size=size, local_crops=0, geometric=training.views.geometric)  # DINOv2's, of any method
        pairs = load_views(
            source, "test", batch_size=count, preprocessing=encoder.preprocessing, views=views, shard=(0, 1)
        )
        how = {"twins": np.asarray(next(iter(pairs))["global_crops"])}
    return RunGuard(run, encoder, images, targets=training.targets, stop=options.stop, print_fn=print_fn, **how)
