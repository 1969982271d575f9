"""Names the photos that were removed or changed while a pass over them ran."""

import concurrent.futures
import contextlib
from collections.abc import Iterator
from typing import Any

from keras_vit.images.photo_checks import BadImage, check_image
from keras_vit.images.read import ImageError
from keras_vit.images.slices import forget_files
from keras_vit.pages.formatting import printable

_NAMED = 5  # photos that the error names


@contextlib.contextmanager
def naming_lost_photos(*splits: Any) -> Iterator[None]:
    """A context in which an error of reading a photo names it, in place of TensorFlow's operation.

    The pipeline does not know the path of a file that it cannot decode. So the files are checked again after an error,
    and those that have not changed are not read.

    Args:
        *splits: the splits that are read in it.

    Raises:
        ValueError: if photos can no longer be read, with the paths of the first five.
    """
    import tensorflow as tf

    try:
        yield
    except (tf.errors.OpError, ImageError, FileNotFoundError) as error:
        paths = [path for split in splits for path in getattr(split, "paths", ())]
        forget_files()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            lost = [image for image in pool.map(check_image, paths) if isinstance(image, BadImage)]
        if not lost:
            raise
        named = "; ".join(f"{printable(image.path)}: {image.reason}" for image in lost[:_NAMED])
        raise ValueError(
            "photos must stay as they were when the data set was opened.\n"
            f"Received: {len(lost):,} that can no longer be read: {named}. Put them back, or open the data set again."
        ) from error
