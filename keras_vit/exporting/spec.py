"""What a format writes: one model and the options of its file."""

import dataclasses
from typing import Any

import numpy as np

from keras_vit.config.heads import MAP_HEADS, NAMED_OUTPUTS, WITH_NAMED_OUTPUTS
from keras_vit.version import __version__

# In this order: some clients read the first alone.
OUTPUTS = ("logits", "scores", "numbers", "depths", "features", "embeddings", *NAMED_OUTPUTS)
TOP_K = 5  # best classes in an answer of a SavedModel
MAX_BYTES = 8 * 2**20  # of one image file
MAX_PIXELS = 12 * 2**20  # of one image; a phone takes 4032 x 3024, a few more would be 100 MB above the base
MAX_BATCH = 128  # images of one call; 128 of 224 x 224 are 77 MB as float32
OPSET = 18  # of ONNX


@dataclasses.dataclass(frozen=True)
class ExportSpec:
    """One model to be written in one format.

    Attributes:
        model: an image model, or a `TextTransformer` where `takes` is `"ids"`; in the precision for a SavedModel, in
            float32 for other formats.
        precision: `"float32"`, `"bfloat16"`, `"float16"` or `"int8"`.
        labels: K names in the order of the classes; `None` without a head.
        activation: from logits to scores, `"softmax"` or `"sigmoid"`; `"none"` if the model ends in scores, or answers
            for each pixel.
        name: of the served model: letters, digits, `_`, `.` and `-`.
        calibration_photos: `(N, H, W, C)` of the model's size, as the file takes them, to calibrate int8 on; of a text
            tower ids `(N, T)`.
        top_k: number of best classes in an answer, at most K.
        max_bytes: of one image file.
        max_pixels: of one image.
        max_batch: images of one call.
        opset: of ONNX.
        jit_compile: whether the network of a SavedModel is compiled by XLA.
        calibrated_on: which photos these are, if they are used.
        takes: `"pixels"`, uint8 that the file scales; `"images"`, floats that are prepared already; or `"ids"`, int32
            of a text tower.
        scales: whether the graph scales pixels; otherwise the first kernel takes them unscaled.
        batch_size: images of each call, where the file's shapes are static; `None` for any number.
        portable: whether int8 must give the same on processors that add its products in 16 bits. If not, the result
            stays on this processor, which adds them in 32 bits.
    """

    model: Any
    precision: str
    labels: tuple[str, ...] | None
    activation: str
    name: str
    calibration_photos: np.ndarray
    top_k: int = TOP_K
    max_bytes: int = MAX_BYTES
    max_pixels: int = MAX_PIXELS
    max_batch: int = MAX_BATCH
    opset: int = OPSET
    jit_compile: bool = False
    calibrated_on: str | None = None
    takes: str = "pixels"
    scales: bool = True
    batch_size: int | None = None
    portable: bool = True

    @property
    def image_size(self) -> tuple[int | None, int | None]:
        """`(H, W)` that the model takes; `None` where it takes any."""
        return tuple(self.model.input_shape[1:3])

    @property
    def channels(self) -> int:
        """C of the images."""
        return self.model.input_shape[-1]

    @property
    def of_pixels(self) -> bool:
        """Whether the model answers for each pixel."""
        return self.takes != "ids" and self.model.output_spec.head.name in MAP_HEADS

    @property
    def of_queries(self) -> bool:
        """Whether the model answers for each of its queries, by classes with masks or boxes, or for each point."""
        return self.takes != "ids" and self.model.output_spec.head.name in WITH_NAMED_OUTPUTS

    def metadata(self) -> dict:
        """The metadata of a file, ready for JSON."""
        if self.takes == "ids":
            return self._text_metadata()
        return {
            "name": self.name,
            "labels": self.labels and list(self.labels),
            "preprocessing": dataclasses.asdict(self.model.preprocessing),
            "image_size": list(self.image_size),
            "channels": self.channels,
            "activation": self.activation,
            "top_k": self.top_k,
            "precision": self.precision,
            **({} if self.batch_size is None else {"batch_size": self.batch_size}),
            "keras_vit": __version__,
        }

    def _text_metadata(self) -> dict:
        """What a client of a text tower needs: how ids are made, and what makes logits of cosines."""
        model, tokenizer = self.model, self.model.tokenizer
        names = ("clean", "start_id", "end_id", "pad_id")
        return {
            "name": self.name,
            "max_length": model.config.max_length,
            "vocabulary_size": model.config.vocabulary_size,
            "tokenizer": tokenizer and {name: getattr(tokenizer, name) for name in names},
            "logit_scale": model.logit_scale,
            "logit_bias": model.logit_bias,
            "precision": self.precision,
            **({} if self.batch_size is None else {"batch_size": self.batch_size}),
            "keras_vit": __version__,
        }
