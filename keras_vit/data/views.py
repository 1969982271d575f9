"""Random views of photos for training without labels: global and local crops, each with colours of its own.

As in `keras_vit.data.pipeline`, image number c of the stream and all its views are a function of (seed, c).
"""

import dataclasses
import functools
import itertools
import math
import os
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from keras_vit.annotations import Tensor
from keras_vit.checks import (
    ArgumentError,
    Count,
    PositiveInt,
    check_int,
    check_positive_int,
    check_process,
    one_of,
    validate,
)
from keras_vit.data.augmentation.random_draws import coin, fold_seed, integer, uniform
from keras_vit.data.augmentation.records import at_most, check_area, check_numbers, find_record
from keras_vit.data.image_folder import source_from_files
from keras_vit.data.mask_targets import files_below, of_all_or_none, split_of
from keras_vit.data.opening import open_source, prepared_folder
from keras_vit.data.pipeline import (
    HostShard,
    check_record,
    find_shard,
    finished,
    fold,
    host_batch_size,
    read_examples,
    workers,
)
from keras_vit.data.prepare import decode_example
from keras_vit.data.shards.finding import find_shards
from keras_vit.data.source import Data, Source
from keras_vit.data.targets import Targets
from keras_vit.images.preprocessing import Preprocessing, fit_channels, scaled
from keras_vit.pages.formatting import printable

_IMAGE = 1  # stream of random numbers, as in the pipeline
_TRIES = 10  # of a window that lies in the image
_ASPECTS = (3 / 4, 4 / 3)
_BLUR = 4  # pixels on each side of the one that is blurred
_SIGMAS = (0.1, 2.0)
_LUMA = (0.299, 0.587, 0.114)
_WINDOW, _PLACE, _FLIPS, _JITTERED, _JITTER, _GREY, _BLURRED, _SOLARIZED = range(8)  # draws of a view
_ONE_KIND = ("photo",)  # names of the classes of data without labels
GEOMETRIC = ("flip", "dihedral", "none")


def _check_shares(name: str, values: Any) -> tuple[float, ...]:
    shares = check_numbers(name, values, 3)
    if not all(0 <= share <= 1 for share in shares):
        raise ValueError(
            f"`{name}` must be three probabilities, of the first global crop, the other ones and local crops.\n"
            f"Received: {name}={shares}."
        )
    return shares


def _check_jitter(name: str, values: Any) -> tuple[float, ...]:
    strengths = check_numbers(name, values, 4)
    if not all(0 <= strength <= 1 for strength in strengths[:3]) or not 0 <= strengths[3] <= 0.5:
        raise ValueError(
            f"`{name}` must be the strengths of brightness, contrast and saturation, in [0, 1], and of hue, in "
            f"[0, 0.5].\nReceived: {name}={strengths}."
        )
    return strengths


@dataclasses.dataclass(frozen=True, kw_only=True)
class Views:
    """What views of a photo training without labels sees.

    Each view is a window of random area and aspect, resized (bicubic) and then perhaps mirrored, changed in brightness,
    contrast, saturation and hue in a random order, made grey, blurred and solarized.

    Example:
        >>> keras_vit.VIEWS["dinov2"].blur
        (0.0, 0.9, 0.5)
        >>> keras_vit.Views(global_size=64, local_size=32, local_crops=4).local_area
        (0.05, 0.32)

    Args:
        global_size: side of global crops in pixels.
        local_size: side of local crops.
        global_crops: how many global crops there are, 1 or more.
        local_crops: how many local crops, 0 or more.
        global_area: smallest and largest part of the photo that a global crop shows, in (0, 1].
        local_area: the same of a local crop.
        geometric: `"flip"` mirrors half of the views left to right; `"dihedral"` gives each of the eight flips and
            turns alike, for images without an up; `"none"` leaves them, for text and signs.
        jitter: strengths of brightness, contrast and saturation, whose factors lie in [1 - x, 1 + x], and of hue,
            a part of the colour circle; of grey photos the last two change nothing.
        jitter_share: share of the views that are changed so.
        grey_share: share of the views that are made grey.
        blur: share of views that are blurred: of the first global crop, the other ones, and local crops. Gaussian, 9
            pixels wide, of deviation 0.1 to 2 pixels.
        solarize: share of views whose levels from 128 on are inverted, of the same three.

    Raises:
        TypeError, ValueError: for a value of the wrong type or out of range.

    Source: DINOv2, arXiv:2304.07193, as its released weights were trained: its code blurs where its table says that it
    does not. `VIEWS["dinov2-as-written"]` is the table.
    """

    global_size: PositiveInt = 224
    local_size: PositiveInt = 96
    global_crops: PositiveInt = 2
    local_crops: Count = 8
    global_area: Annotated[tuple[float, float], check_area] = (0.32, 1.0)
    local_area: Annotated[tuple[float, float], check_area] = (0.05, 0.32)
    geometric: Annotated[str, one_of(GEOMETRIC)] = "flip"
    jitter: Annotated[tuple[float, ...], _check_jitter] = (0.4, 0.4, 0.2, 0.1)
    jitter_share: Annotated[float, at_most(1)] = 0.8
    grey_share: Annotated[float, at_most(1)] = 0.2
    blur: Annotated[tuple[float, ...], _check_shares] = (0.0, 0.9, 0.5)
    solarize: Annotated[tuple[float, ...], _check_shares] = (0.0, 0.2, 0.0)

    def __post_init__(self) -> None:
        validate(self)
        for name in ("global_size", "local_size"):
            if any(self.blur) and getattr(self, name) <= _BLUR:
                raise ValueError(
                    f"`{name}` must be above {_BLUR} pixels, which a blur mirrors at the border.\n"
                    f"Received: {name}={getattr(self, name)}."
                )


_PLAIN: dict[str, Any] = {"jitter_share": 0.0, "grey_share": 0.0, "blur": (0.0,) * 3, "solarize": (0.0,) * 3}
_ONE: dict[str, Any] = {"global_crops": 1, "local_crops": 0}
VIEWS = types.MappingProxyType(
    {
        "dinov2": Views(),
        "dinov2-as-written": Views(blur=(1.0, 0.1, 0.5)),
        "lejepa": Views(
            local_size=224, global_area=(0.3, 1.0), local_area=(0.05, 0.3), blur=(0.5,) * 3, solarize=(0.2,) * 3
        ),
        "mae": Views(global_area=(0.2, 1.0), **_ONE, **_PLAIN),
        "simmim": Views(global_area=(0.67, 1.0), **_ONE, **_PLAIN),
        "distillation": Views(
            global_area=(0.3, 1.0), **_ONE, **(_PLAIN | {"jitter_share": 0.8}), jitter=(0.2, 0.2, 0.1, 0.05)
        ),
    }
)


def find_views(name_or_record: Views | str) -> Views:
    """As `find_record` in `VIEWS`."""
    return find_record("views", name_or_record, VIEWS)


class NoLabels(Targets):
    """Photos alone: all below a folder, those of a table with the column `path`, or of shards."""

    def open(self, path: Path, seed: int, on_bad_image: str) -> Source | None:
        if not os.path.isdir(path) or find_shards(path) or prepared_folder(path):
            return None
        files = files_below(path)
        if not files:
            raise ValueError(f"there must be photos.\nReceived: {printable(path)} without any.")
        splits = of_all_or_none([split_of(file.relative_to(path).as_posix()) for file in files], files)
        labels, places = np.zeros(len(files), "int64"), [str(file) for file in files]
        return source_from_files(path, "photos", _ONE_KIND, places, labels, splits, seed, on_bad_image, targets=self)

    def columns(self, path: Path, header: Sequence[str]) -> Sequence[str]:
        return ()

    def of_table(self, path: Path, rows: Sequence[Mapping[str, Any]]) -> tuple[Sequence[str], np.ndarray]:
        return _ONE_KIND, np.zeros(len(rows), "int64")

    def of_shards(self, shards: Sequence[Any]) -> tuple[Sequence[str], Sequence[np.ndarray]]:
        return _ONE_KIND, [np.zeros(len(shard.rows.rows), "int64") for shard in shards]


def load_views(
    what: Data,
    split: str = "train",
    *,
    batch_size: int,
    preprocessing: Preprocessing,
    views: Views | str = "dinov2",
    patch_size: int | None = None,
    mask_share: float | Callable[[int], float] = 0.5,
    mask_ratios: Sequence[float] = (0.1, 0.5),
    seed: int = 0,
    shard: tuple[int, int] | None = None,
    start_step: int = 0,
    on_bad_image: str = "skip",
) -> Any:
    """Opens photos as endless batches of random views, for training models without labels.

    Example:
        >>> views = keras_vit.Views(global_size=32, local_size=16, local_crops=3)
        >>> rule = model.preprocessing
        >>> batches = keras_vit.load_views(
        ...     photos, batch_size=8, preprocessing=rule, views=views, patch_size=8
        ... )
        >>> {name: tuple(each.shape) for name, each in next(iter(batches)).items()}
        {'global_crops': (8, 2, 32, 32, 3), 'local_crops': (8, 3, 16, 16, 3), 'mask': (8, 2, 16)}

    Args:
        what: a `Source`, or what `open_source` takes. Labels are not read: of a folder all photos below it count.
        split: as for `load_dataset`. Data without splits are divided 80/10/10 by `seed`, so that 10 % are left to
            measure on; `"train+validation+test"` trains on all photos.
        batch_size: B photos over all devices together.
        preprocessing: `model.preprocessing`, for the channels and how levels are scaled; its size does not count.
        views: a `Views` record, or a name in `keras_vit.VIEWS`.
        patch_size: side of the model's patches in pixels, for masks of rectangles over global crops; without it there
            are none.
        mask_share: share of global crops that are masked, in [0, 1], or a function from the step to it.
        mask_ratios: least and greatest share of their patches, as for `keras_vit.selfsupervised.block_masks`.
        seed: of order, views and masks, in [0, 2**31).
        shard: as for `load_dataset`.
        start_step: number of the first batch. The result equals `dataset.skip(start_step)`.
        on_bad_image: as for `open_source`.

    Returns:
        `tf.data.Dataset` of dicts: `global_crops` float32 `(B, G, H, W, C)`, `local_crops` `(B, L, h, w, C)` where
        there are any, and `mask` bool `(B, G, N)` with `patch_size`; with the attributes `num_examples`,
        `preprocessing`, `views` and `start_step`.

    Raises:
        ValueError: for sizes that the patches do not tile, a share or batch out of range, and as `open_source` raises.
        TypeError: for another type of `preprocessing` or `views`.

    Source: multi-crop, SwAV, arXiv:2006.09882; DINOv2, arXiv:2304.07193.
    """
    import tensorflow as tf

    check_process()
    check_positive_int("batch_size", batch_size)
    start_step = check_int("start_step", start_step, 0)
    check_record(preprocessing)
    record = find_views(views)
    if patch_size is not None:
        _check_tiled(record, check_positive_int("patch_size", patch_size))
    source = open_source(what, seed=seed, on_bad_image=on_bad_image, targets=NoLabels())
    examples = source.split(split)
    place = HostShard(*find_shard(shard), batch_size)
    images = read_examples(examples, seed, place, False, start_step)
    channels = len(preprocessing.mean)

    def make(counter: Tensor, example: dict[str, Tensor]) -> tuple[Tensor, ...]:
        pixels = fit_channels(decode_example(example, channels), channels, tf)
        drawn = fold(seed, _IMAGE, counter)
        return counter, *(scaled(crops, preprocessing) for crops in random_views(pixels, record, drawn))

    def named(counters: Tensor, *crops: Tensor) -> dict[str, Tensor]:
        batch = dict(zip(("global_crops", "local_crops"), crops, strict=False))
        if patch_size is not None:
            batch["mask"] = masks(counters[0])
        return batch

    grid = (record.global_size // (patch_size or 1),) * 2
    share = host_batch_size(batch_size, place.hosts)
    kept = slice(place.host * share, (place.host + 1) * share)

    def drawn_masks(counter: np.ndarray) -> np.ndarray:
        from keras_vit.selfsupervised import block_masks  # which imports Keras

        step = int(counter) // batch_size
        of_step = mask_share(step) if callable(mask_share) else mask_share
        number = int(np.random.SeedSequence([seed, step]).generate_state(1)[0] >> 1)
        found = block_masks(number, batch_size * record.global_crops, grid, of_step, mask_ratios)
        return found.reshape(batch_size, record.global_crops, -1)[kept]

    def masks(counter: Tensor) -> Tensor:
        found = tf.numpy_function(drawn_masks, [counter], tf.bool, stateful=False)
        return tf.ensure_shape(found, (share, record.global_crops, math.prod(grid)))

    if patch_size is not None:
        drawn_masks(np.array(start_step * batch_size))  # refuses values out of range before the first step
    dataset = images.map(make, workers()).batch(share, drop_remainder=True).map(named)
    facts = {"num_examples": examples.size, "preprocessing": preprocessing, "views": record, "start_step": start_step}
    return finished(dataset, **facts)


def _check_tiled(record: Views, patch_size: int) -> None:
    sizes = {"global_size": record.global_size, "local_size": record.local_size if record.local_crops else 0}
    for name, size in sizes.items():
        if size % patch_size:
            raise ArgumentError(
                f"`{name}` must be a multiple of the patch.\n"
                f"Received: {name}={size}, patch_size={patch_size}. "
                f"Nearest: {max(size // patch_size, 1) * patch_size}.",
                parameters=("views", "patch_size"),
            )


def random_views(pixels: Tensor, record: Views, seed: Tensor) -> list[Tensor]:
    """Global crops of an image `(H, W, C)`, float32 `(G, H, W, C)` in [0, 255], and local ones if any, `(L, h, w, C)`.

    The seed is a `(2,)` integer tensor, different for every image and epoch.
    """
    others = record.global_crops - 1
    crops = [_crops(pixels, record, [0, *[1] * others], record.global_size, record.global_area, fold_seed(seed, 0))]
    if record.local_crops:
        kinds = [2] * record.local_crops
        crops.append(_crops(pixels, record, kinds, record.local_size, record.local_area, fold_seed(seed, 1)))
    return crops


def _crops(
    pixels: Tensor, record: Views, kinds: Sequence[int], size: int, area: Sequence[float], seed: Tensor
) -> Tensor:
    """Views of one size, whose kinds are places in `record.blur`; the graph holds the changes once, for all of them."""
    import tensorflow as tf

    shares = tf.constant([(record.blur[kind], record.solarize[kind]) for kind in kinds])
    are_blurred, are_solarized = (
        any(shares_of[kind] for kind in kinds) for shares_of in (record.blur, record.solarize)
    )

    def view(number: Tensor) -> Tensor:
        drawn = fold_seed(seed, number)
        y, x, h, w = crop_of_area(tf.shape(pixels)[:2], area, drawn)
        levels = tf.image.resize(pixels[y : y + h, x : x + w], (size, size), "bicubic", antialias=True)
        levels = tf.clip_by_value(tf.ensure_shape(levels, (size, size, pixels.shape[-1])), 0.0, 255.0)
        if record.geometric != "none":
            levels = _turned(levels, record.geometric, fold_seed(drawn, _FLIPS))
        if record.jitter_share:
            strengths = fold_seed(drawn, _JITTER)
            is_jittered = coin(drawn, _JITTERED, record.jitter_share)
            levels = tf.cond(is_jittered, lambda: jitter(levels, record.jitter, strengths), lambda: levels)
        if record.grey_share:
            levels = tf.where(coin(drawn, _GREY, record.grey_share), grey(levels), levels)
        if are_blurred:
            sigma, now = uniform(fold_seed(drawn, _BLURRED), 1, *_SIGMAS), levels
            levels = tf.cond(coin(drawn, _BLURRED, shares[number, 0]), lambda: blur(now, sigma), lambda: now)
        if are_solarized:
            levels = tf.where(coin(drawn, _SOLARIZED, shares[number, 1]), solarize(levels), levels)
        return levels

    spec = tf.TensorSpec((size, size, pixels.shape[-1]), tf.float32)
    return tf.map_fn(view, tf.range(len(kinds)), fn_output_signature=spec)


def crop_of_area(sides: Tensor, area: Sequence[float], seed: Tensor) -> tuple[Tensor, ...]:
    """`(y, x, h, w)`, int32: a window of a random part of the image, with an aspect between 3/4 and 4/3.

    The area is uniform and the aspect uniform in its logarithm, drawn again up to ten times until the window fits;
    then it is the largest one about the centre with such an aspect.
    """
    import tensorflow as tf

    height, width = tf.unstack(tf.cast(sides, tf.float32))
    drawn = fold_seed(seed, _WINDOW)
    areas = uniform(drawn, 0, area[0], area[1], shape=(_TRIES,)) * height * width
    aspects = tf.exp(uniform(drawn, 1, math.log(_ASPECTS[0]), math.log(_ASPECTS[1]), shape=(_TRIES,)))
    widths, heights = tf.round(tf.sqrt(areas * aspects)), tf.round(tf.sqrt(areas / aspects))
    fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
    first = tf.argmax(fits)  # the first that is true
    whole = tf.stack(
        [tf.minimum(height, tf.round(width / _ASPECTS[0])), tf.minimum(width, tf.round(height * _ASPECTS[1]))]
    )
    size = tf.where(tf.reduce_any(fits), tf.stack([heights[first], widths[first]]), whole)
    h, w = tf.unstack(tf.maximum(tf.cast(size, tf.int32), 1))
    room = [sides[0] - h + 1, sides[1] - w + 1]
    place = [integer(fold_seed(seed, _PLACE), axis, limit) for axis, limit in enumerate(room)]
    middle = [(limit - 1) // 2 for limit in room]
    y, x = (tf.where(tf.reduce_any(fits), *pair) for pair in zip(place, middle, strict=True))
    return y, x, h, w


def _turned(levels: Tensor, geometric: str, seed: Tensor) -> Tensor:
    import tensorflow as tf

    levels = tf.where(coin(seed, 0), levels[:, ::-1], levels)
    if geometric == "flip":
        return levels
    levels = tf.where(coin(seed, 1), levels[::-1], levels)
    return tf.where(coin(seed, 2), tf.transpose(levels, (1, 0, 2)), levels)


def grey(levels: Tensor) -> Tensor:
    """`(H, W, 1)`: luma of ITU-R 601 for three channels, their mean for others."""
    import tensorflow as tf

    if levels.shape[-1] != 3:
        return tf.reduce_mean(levels, -1, keepdims=True)
    return tf.tensordot(levels, tf.constant(_LUMA), 1)[..., None]


def jitter(levels: Tensor, strengths: Sequence[float], seed: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue of float32 `(H, W, C)` changed, in one of their 24 orders."""
    import tensorflow as tf

    brightness, contrast, saturation = (
        uniform(seed, place, 1 - strength, 1 + strength) for place, strength in enumerate(strengths[:3])
    )
    hue = uniform(seed, 3, -strengths[3], strengths[3])

    def blended(levels: Tensor, other: Tensor, factor: Tensor) -> Tensor:
        return tf.clip_by_value(other + (levels - other) * factor, 0.0, 255.0)

    changes: list[Callable[[Tensor], Tensor]] = [
        lambda levels: blended(levels, 0.0, brightness),
        lambda levels: blended(levels, tf.reduce_mean(grey(levels)), contrast),
    ]
    if levels.shape[-1] == 3:
        changes.append(lambda levels: blended(levels, grey(levels), saturation))
        changes.append(lambda levels: tf.clip_by_value(tf.image.adjust_hue(levels / 255, hue) * 255, 0.0, 255.0))
    orders = list(itertools.permutations(range(len(changes))))
    order = tf.gather(tf.constant(orders), integer(seed, 4, len(orders)))
    shape = levels.shape

    def step(place: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
        branches = [functools.partial(change, levels) for change in changes]
        return place + 1, tf.ensure_shape(tf.switch_case(order[place], branches), shape)

    return tf.while_loop(lambda place, levels: place < len(changes), step, (0, levels))[1]


def blur(levels: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur of 9 by 9 pixels, of deviation `sigma`, with the picture mirrored at its border."""
    import tensorflow as tf

    places = tf.range(-_BLUR, _BLUR + 1, dtype=tf.float32)
    weights = tf.exp(-0.5 * (places / sigma) ** 2)
    weights /= tf.reduce_sum(weights)
    channels = levels.shape[-1]
    padded = tf.pad(levels, [[_BLUR, _BLUR], [_BLUR, _BLUR], [0, 0]], "REFLECT")[None]
    for shape in ((-1, 1, 1, 1), (1, -1, 1, 1)):
        kernel = tf.tile(tf.reshape(weights, shape), (1, 1, channels, 1))
        padded = tf.nn.depthwise_conv2d(padded, kernel, (1, 1, 1, 1), "VALID")
    return padded[0]


def solarize(levels: Tensor) -> Tensor:
    """Levels from 128 on inverted."""
    import tensorflow as tf

    return tf.where(levels >= 128, 255 - levels, levels)
