"""Shifts, turns and shears of one image, by reading every pixel of the result from another place."""

from collections.abc import Sequence

from keras_vit.annotations import Tensor


def turn(angle: Tensor) -> list[list[Tensor]]:
    """The matrix that turns an image counter-clockwise by `angle` radians, as rows for `warp`."""
    import tensorflow as tf

    return [[tf.cos(angle), tf.sin(angle)], [-tf.sin(angle), tf.cos(angle)]]


def warp(
    image: Tensor,
    rows: Sequence[Sequence[Tensor]],
    shift: tuple[Tensor, Tensor],
    interpolation: str,
    fill: float,
    centred: bool = True,
) -> Tensor:
    """Reads the result's pixel (y, x) at `rows @ (y, x) + shift`, relative to the centre or to the top left pixel.

    Args:
        image: `(H, W, C)`, uint8 or float32.
        rows: `[[yy, yx], [xy, xx]]`, numbers or scalar tensors.
        shift: `(y, x)` in pixels.
        interpolation: `"NEAREST"` or `"BILINEAR"`.
        fill: value of pixels that are read from outside the image.
        centred: whether coordinates are relative to the centre, which only the shift then moves.
    """
    import tensorflow as tf

    size = tf.shape(image)[:2]
    middle = (tf.cast(size, tf.float32) - 1) / 2 if centred else tf.zeros(2)
    (yy, yx), (xy, xx) = rows
    y = middle[0] - yy * middle[0] - yx * middle[1] + shift[0]
    x = middle[1] - xy * middle[0] - xx * middle[1] + shift[1]
    transform = tf.stack([tf.cast(value, tf.float32) for value in (xx, xy, x, yx, yy, y, 0.0, 0.0)])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=transform[None],
        output_shape=size,
        fill_value=tf.cast(fill, tf.float32),
        interpolation=interpolation,
        fill_mode="CONSTANT",
    )[0]
