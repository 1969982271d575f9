"""The class of models that make maps: an encoder, taps of its blocks, a head, and a resize to the image."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from keras_vit.annotations import Arguments
from keras_vit.checks import check_choice
from keras_vit.config.heads import HEAD_KINDS, MAP_HEADS, OutputSpec
from keras_vit.config.vit import ViTConfig
from keras_vit.model.image_model import ImageModel
from keras_vit.model.layer_access import layer_named, token_layers
from keras_vit.model.vision_transformer import VisionTransformer


@keras.saving.register_keras_serializable("keras_vit")
class DenseModel(ImageModel):
    """A model that answers for each pixel: classes or depths.

    Made by `segmenter` and `depth_estimator`. It is compiled, fitted, saved and loaded as every Keras model, with
    `keras_vit` imported.

    Example:
        >>> small = keras_vit.ViTConfig(8, 64, num_layers=4, num_heads=4, mlp_dim=128)
        >>> encoder = keras_vit.build(small, include_top=False, pooling="none")
        >>> model = keras_vit.segmenter(encoder, "linear4", classes=5)
        >>> model.task, model.blocks, model.encoder.output_shape
        ('segmentation', (1, 2, 3, 4), (None, 785, 64))

    Attributes:
        task: `"segmentation"` or `"depth"`.
        config: the `ViTConfig` of the encoder.
        preprocessing: the `Preprocessing` record; call it to resize and normalise photos.
        class_names: names of the K classes, or `None`.
        unit: of depths, `"metres"` or `"inverse"`; `None` of classes.
        depth_range: smallest and largest depth of bins and clamp, or `None`.
        blocks: numbers of the passed blocks that the head reads.
        normed: whether it reads them after the encoder's last LayerNorm.
        short_side: pixels of the shorter side at which `segment` and `estimate_depth` take photos by default, of a head
            that was begun afresh on images of this size; `None` for those of the head's family.
        load_report: one line for each adaptation that loading made, of encoder and head.
        provenance: of loaded weights what no tensor says: `{name: (value, source)}`.
        layouts: names of the layouts that head and encoder were read in, `""` where nothing was read.
        folder_config: the `config.json` of the folder that was read, or empty.
        unread: arrays of the files that no forward pass reads, by name, which `save_checkpoint` writes back.

    Call arguments:
        inputs: `(B, H, W, C)` floats, prepared by `preprocessing`. Where the model pads, H and W may be any; else they
            are multiples of the patch.

    Returns:
        float32: logits `(B, H, W, K)`, or `(B, h, w, K)` of the head's own grid with `output_size="head"`; depths
        `(B, H, W)` or `(B, h, w)`.
    """

    config_class: ClassVar[type] = ViTConfig
    config: ViTConfig

    def __init__(
        self,
        *args: Any,
        task: str,
        blocks: Sequence[int],
        unit: str | None = None,
        depth_range: Sequence[float] | None = None,
        normed: bool = True,
        short_side: int | None = None,
        layouts: Sequence[str] = ("", ""),
        unread: Mapping[str, Any] | None = None,
        folder_config: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        check_choice("task", task, tuple(MAP_HEADS))
        self.task, self.unit = task, unit
        self.blocks, self.layouts = tuple(blocks), tuple(layouts)
        self.depth_range = None if depth_range is None else tuple(map(float, depth_range))
        self.normed, self.short_side, self.folder_config = normed, short_side, dict(folder_config or {})
        self.unread = {name: _as_array(value) for name, value in (unread or {}).items()}

    @property
    def output_spec(self) -> OutputSpec:
        """What the model puts out: logits or depths of each pixel."""
        return OutputSpec(HEAD_KINDS[self.task], self.output_shape, "linear")

    @property
    def classes(self) -> int:
        """K of a segmenter; 0 of depths."""
        return self.output_spec.size if self.output_spec.classifies else 0

    @property
    def head(self) -> keras.layers.Layer:
        """The layer with the weights of the head."""
        return layer_named(self, MAP_HEADS[self.task])

    @property
    def encoder(self) -> VisionTransformer:
        """The encoder: a model of all tokens `(B, T, D)` that shares layers and weights with this one."""
        return VisionTransformer(
            self.inputs[0],
            token_layers(self)[-1].output,
            name=f"{self.name}_encoder",
            config=self.config,
            preprocessing=self.preprocessing,
            weights_report=self.load_report,
            weights_facts=self.provenance,
        )

    def own_arguments(self) -> Arguments:
        return {
            "task": self.task,
            "blocks": list(self.blocks),
            "unit": self.unit,
            "depth_range": None if self.depth_range is None else list(self.depth_range),
            "normed": self.normed,
            "short_side": self.short_side,
            "layouts": list(self.layouts),
            "folder_config": dict(self.folder_config),
            "unread": {name: [str(array.dtype), array.tolist()] for name, array in self.unread.items()},
        }


def _as_array(value: Any) -> np.ndarray:
    """An array, also of its dtype and its numbers as a config has them."""
    return value if isinstance(value, np.ndarray) else np.asarray(value[1], value[0])
