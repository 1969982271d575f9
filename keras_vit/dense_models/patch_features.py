"""From the pixels of a photo to the features of its patches, which searches without training compare."""

import dataclasses
import hashlib
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.analysis.features import PatchTokens, features
from keras_vit.analysis.submodels import vision_transformer_in
from keras_vit.dense_models.photos import longest_side, photo_pixels
from keras_vit.images.numpy_pipeline import preprocess
from keras_vit.model.copies import with_input_shape


class PatchFeatures:
    """The tokens of the patches after the last block, with the final norm, `(h, w, D)` of one photo after another.

    Args:
        model: a `VisionTransformer` with patches, or a model that has one among its layers.
        short_side: pixels that the shorter side of each photo is resized to, aspect kept; the longer side gets at most
            four times that, or 2,048. Sides are then the nearest multiples of the patch, at least one.
        as_graph: whether the backend compiles it, which takes seconds and then a third of the time of a photo.
    """

    def __init__(self, model: keras.Model, short_side: int, as_graph: bool = False) -> None:
        inner = vision_transformer_in(model)
        self.encoder = inner
        self.patch, self.short_side, self.block = inner.config.stride, short_side, inner.config.num_layers
        self.channels = inner.input_shape[-1]
        is_free = None in inner.input_shape[1:3]
        self._model = inner if is_free else with_input_shape(inner, (None, None, self.channels))
        self._graph = PatchTokens(self._model) if as_graph else None

    def pixels(self, photo: Any) -> np.ndarray:
        """The pixels of a photo, a path or uint8 `(H, W, C)`, with the model's channels."""
        return photo_pixels(photo, self.channels)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """`(H, W)` at which a photo of this size passes."""
        scale = min(self.short_side / min(height, width), longest_side(self.short_side) / max(height, width))
        rows, columns = (max(round(side * scale / self.patch), 1) for side in (height, width))
        return rows * self.patch, columns * self.patch

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """`(h, w)` patches of a photo of this size."""
        return self.encoder.config.grid(*self.size(height, width))

    def weights_sha256(self) -> str:
        """SHA-256 of the weights that the features depend on, as float32."""
        found = hashlib.sha256()
        for weight in (self._graph or PatchTokens(self._model)).weights_of_patches:
            found.update(f"{tuple(weight.shape)}\n".encode())
            found.update(np.ascontiguousarray(ops.convert_to_numpy(ops.cast(weight, "float32"))).data)
        return found.hexdigest()

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        size = self.size(*pixels.shape[:2])
        record = dataclasses.replace(self.encoder.preprocessing, image_size=size, resize="squash")
        images = np.ascontiguousarray(preprocess(pixels, record), "float32")[None]
        if self._graph is None:
            return features(self._model, images, blocks=(self.block,))[self.block][0]
        rows, columns = self.encoder.config.grid(*size)
        tokens = ops.convert_to_numpy(self._graph.predict_on_batch(images))[0]
        return tokens[-rows * columns :].reshape(rows, columns, -1)
