"""Arrays as the losses take them: tensors of at least float32, with the shapes that fit, and rows of length 1."""

from typing import Any

from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import ArgumentError


def floats(array: Any) -> Tensor:
    """A tensor of float32, or of float64 if it is one."""
    tensor = ops.convert_to_tensor(array)
    return tensor if "float64" in str(tensor.dtype) else ops.cast(tensor, "float32")


def targets_of(array: Any, like: Tensor = None) -> Tensor:
    """The same without a gradient, as all that comes from a teacher; of the type of a second tensor if one is given."""
    tensor = floats(array)
    return ops.stop_gradient(tensor if like is None else ops.cast(tensor, like.dtype))


def check_shape(name: str, array: Tensor, shape: Shape) -> None:
    """Raises unless the array has this shape; `None` is any size, of it and of what a graph does not know."""
    found = tuple(array.shape)
    fits = len(found) == len(shape)
    if not fits or any(None not in (a, b) and a != b for a, b in zip(found, shape, strict=True)):
        raise ArgumentError(
            f"`{name}` must have the shape {tuple(shape)}, where None is any size.\nReceived: shape {found}."
        )


def unit_rows(vectors: Tensor, epsilon: float = 1e-12) -> Tensor:
    """Vectors `(..., D)` divided by their lengths, which are at least `epsilon`; a zero has a zero gradient."""
    squares = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
    lengths = ops.sqrt(ops.where(squares > 0, squares, 1.0))
    return ops.where(squares > 0, vectors / ops.maximum(lengths, epsilon), 0.0)


def smooth_l1(differences: Tensor) -> Tensor:
    """Half the square below 1, and above it the absolute value less a half."""
    sizes = ops.abs(differences)
    return ops.where(sizes < 1, 0.5 * ops.square(differences), sizes - 0.5)
