"""A training whose images grow: batches of several sizes, and a model that takes them.

There is one model, that of the final size. Its position table keeps its grid, and is resized inside the graph for the
patches of smaller images, as FlexiViT (arXiv:2212.08013) and timm's `dynamic_img_size` do. So no weight and no state
of the optimizer changes its shape, and all of a checkpoint fits at every step.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from keras_vit.config.recipes.growth import Stage
from keras_vit.model.image_model import ImageModel


def load_growing(
    load: Callable[[tuple[int, int], int], Any], stages: Sequence[Stage], steps_per_epoch: int, start_step: int
) -> Any:
    """Batches of training, each of the size of its stage.

    Args:
        load: gives the batches of one image size `(H, W)` from a step on, as `load_dataset` does for training.
        stages: of the training.
        steps_per_epoch: in each epoch.
        start_step: number of the first batch.

    Returns:
        A `tf.data.Dataset` with the attributes of `load_dataset`. Its batches know height and width as they come, and
        so do those of a run that goes on in the last stage: both compute by the same graph.
    """
    begins = [(stage.epoch - 1) * steps_per_epoch for stage in stages]
    parts = [load(stage.image_size, max(begin, start_step)) for stage, begin in zip(stages, begins, strict=True)]
    counts = [max(end - max(begin, start_step), 0) for begin, end in itertools.pairwise(begins)]
    pieces = [*(part.take(count) for part, count in zip(parts, counts, strict=False)), parts[-1]]
    whole = functools.reduce(lambda before, after: before.concatenate(after), pieces)
    for name in ("class_names", "num_examples", "preprocessing"):
        setattr(whole, name, getattr(parts[-1], name))
    whole.start_step = start_step
    return whole


@contextlib.contextmanager
def taking_any_size(model: ImageModel) -> Iterator[None]:
    """Inside, a model of one image size takes images of others, which its patches must tile."""
    before = model.input_spec
    model.input_spec = keras.InputSpec(shape=(None, None, None, model.input_shape[-1]))
    try:
        yield
    finally:
        model.input_spec = before
