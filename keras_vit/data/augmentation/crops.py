"""Random crops of an image, and the resize to the size of the model."""

from collections.abc import Sequence

from keras_vit.annotations import Pair, Tensor
from keras_vit.data.augmentation.augmentation_records import Augmentation
from keras_vit.data.augmentation.seeds import integer, named_seed

ASPECTS = (0.75, 1.33)  # width over height: TensorFlow's defaults, as in the official code
ENLARGED = (
    448 / 384
)  # times `image_size`: the size before "resize_crop" and "resmall_crop" cut (big_vision `transfer.py`)
_WINDOW, _ROW, _COLUMN = range(3)  # numbers of the random draws


def crop_window(
    height: Tensor, width: Tensor, record: Augmentation, seed: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The window of an image that `augment_image` uses with the same record and seed, so that only it is decoded.

    Args:
        height: H of the whole image in pixels, int or scalar tensor.
        width: W.
        record: `Augmentation`.
        seed: `(2,)` integer tensor.

    Returns:
        `(y, x, h, w)`, int32 scalars, in the order of `tf.io.decode_and_crop_jpeg`. The random window for
        `"inception"`; the whole image for other crops, which cut after the resize.

    Source: official code, `input_pipeline.py`: area 0.05 to 1, aspect 0.75 to 1.33, anywhere.
    """
    import tensorflow as tf

    height, width = tf.cast(height, tf.int32), tf.cast(width, tf.int32)
    if record.crop != "inception":
        return tf.constant(0), tf.constant(0), height, width
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.stack([height, width, 1]),
        tf.zeros((1, 0, 4)),
        named_seed(seed, _WINDOW),
        min_object_covered=0.0,
        aspect_ratio_range=ASPECTS,
        area_range=record.crop_area,
        use_image_if_no_bounding_boxes=True,
    )
    return begin[0], begin[1], size[0], size[1]


def crop_and_resize(pixels: Tensor, record: Augmentation, image_size: Pair, seed: Tensor, cropped: bool) -> Tensor:
    """float32 image of `image_size`; resized bilinearly without antialias, as in the official code."""
    import tensorflow as tf

    height, width = tf.unstack(tf.shape(pixels)[:2])
    if record.crop == "inception" and not cropped:
        y, x, h, w = crop_window(height, width, record, seed)
        pixels = pixels[y : y + h, x : x + w]
    if record.crop in ("inception", "none"):
        return _resize(pixels, image_size)
    large: Sequence[Tensor] = [round(side * ENLARGED) for side in image_size]
    if record.crop == "resmall_crop":
        large = _covering(height, width, large)
    pixels = _resize(pixels, large)
    corner = [integer(seed, place, large[axis] - image_size[axis] + 1) for axis, place in enumerate((_ROW, _COLUMN))]
    return tf.slice(pixels, [*corner, 0], [*image_size, pixels.shape[-1]])


def _resize(pixels: Tensor, size: Sequence[Tensor]) -> Tensor:
    import tensorflow as tf

    return tf.image.resize(pixels, tf.stack(size), "bilinear", antialias=False)


def _covering(height: Tensor, width: Tensor, size: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The smallest size that covers `size` and keeps the aspect, rounded as `"crop"` rounds in evaluation."""
    import tensorflow as tf

    return tf.maximum(size[0], size[1] * height // width), tf.maximum(size[1], size[0] * width // height)
