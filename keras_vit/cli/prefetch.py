"""The photos of a command, read and prepared by threads while the model computes."""

import collections
import concurrent.futures
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.checks import cores
from keras_vit.images.numpy_pipeline import preprocess
from keras_vit.images.read import ImageError, read_image
from keras_vit.images.resizing import least_size

_THREADS = 4  # at most, since each holds a photo: up to 192 MB


def prefetch_photos(paths: Sequence[Path], model: Any, is_exact: bool) -> Iterator[tuple[Path, np.ndarray | str]]:
    """Each path with its image `(1, H, W, C)`, prepared for a model, or with the reason why there is none.

    Args:
        paths: of photos, which come in this order.
        model: an `ImageModel`, or an engine of one.
        is_exact: whether large JPEGs are decoded to every pixel.
    """
    least = None if is_exact else least_size(model.preprocessing)
    threads = min(len(cores()), _THREADS)
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    waiting: collections.deque[tuple[Path, concurrent.futures.Future]] = collections.deque()
    try:
        for path in paths:
            waiting.append((path, pool.submit(_prepared, path, model, least)))
            if len(waiting) > threads:
                first, image = waiting.popleft()
                yield first, image.result()
        for first, image in waiting:
            yield first, image.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _prepared(path: Path, model: Any, least: tuple[int, int] | None) -> np.ndarray | str:
    try:
        pixels = read_image(path, model.input_shape[-1], least)
    except FileNotFoundError:
        return "no such file"
    except ImageError as error:
        return error.reason
    except ImportError as error:  # as without the plugin for HEIC
        return str(error)
    except OSError as error:
        return str(error.strerror or error)
    # By NumPy, which reads the pixels that count: of 12 Mpx in bicubic 0.07 s, where `record(pixels)` takes 0.28. The
    # numbers are the same but for rounding: of bicubic's grey levels one in 150,000 is another one.
    return preprocess(pixels, model.preprocessing)[None]
