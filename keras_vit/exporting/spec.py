"""What a format writes: one model and the options of its file."""

import dataclasses

import numpy as np

from keras_vit.model.image_model import ImageModel
from keras_vit.version import __version__


@dataclasses.dataclass(frozen=True)
class ExportSpec:
    """One model to be written in one format.

    Attributes:
        model: in the precision for a SavedModel, in float32 for other formats.
        precision: `"float32"`, `"bfloat16"`, `"float16"` or `"int8"`.
        labels: K names in the order of the classes; `None` without a head.
        top_k: number of best classes in an answer, at most K.
        activation: from logits to scores, `"softmax"` or `"sigmoid"`; `"none"` if the model ends in scores.
        name: of the served model: letters, digits, `_`, `.` and `-`.
        max_bytes: of one image file.
        max_pixels: of one image.
        max_batch: images of one call.
        opset: of ONNX.
        jit_compile: whether the network of a SavedModel is compiled by XLA.
        calibration_photos: `(N, H, W, C)` of the model's size, as the file takes them, to calibrate int8 on.
        calibrated_on: which photos these are, if they are used.
        takes: `"pixels"`, uint8 that the file scales; or `"images"`, floats that are prepared already.
        scales: whether the graph scales pixels; otherwise the first kernel takes them unscaled.
        batch_size: images of each call, where the file's shapes are static; `None` for any number.
        portable: whether int8 must give the same on processors that add its products in 16 bits. If not, the result
            stays on this processor, which adds them in 32 bits.
    """

    model: ImageModel
    precision: str
    labels: tuple[str, ...] | None
    top_k: int
    activation: str
    name: str
    max_bytes: int
    max_pixels: int
    max_batch: int
    opset: int
    jit_compile: bool
    calibration_photos: np.ndarray
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

    def metadata(self) -> dict:
        """The metadata of a file, ready for JSON."""
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
