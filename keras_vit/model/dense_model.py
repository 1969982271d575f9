"""The class of models that make maps: an encoder, taps of its blocks, a head, and a resize to the image."""

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Arguments, Tensor
from keras_vit.checks import ArgumentError, check_choice
from keras_vit.config.flops import block
from keras_vit.config.heads import (
    CLASS_LOGITS,
    DENSE_HEADS,
    DEPTH,
    HEAD_KINDS,
    LOGITS,
    OF_QUERIES,
    QUERIES,
    OutputSpec,
)
from keras_vit.config.vit import ViTConfig
from keras_vit.dense import MaskClassification, semantic
from keras_vit.layers.dense_heads.query_training import QueryBlocks, masked_shares
from keras_vit.model.image_model import ImageModel
from keras_vit.model.layer_access import (
    blocks_with_queries,
    encoder_blocks,
    encoder_norm,
    layer_named,
    token_layers,
)
from keras_vit.model.replicated_model import num_replicas
from keras_vit.model.vision_transformer import VisionTransformer


@keras.saving.register_keras_serializable("keras_vit")
class DenseModel(ImageModel):
    """A model that answers for each pixel, by classes or depths, for each query, by masks or boxes, or by heatmaps.

    Made by `segmenter`, `depth_estimator`, `detector` and `keypoint_estimator`. It is compiled, fitted, saved and
    loaded as every Keras model, with `keras_vit` imported. Compiled with `keras_vit.dense.MaskClassification`, a head
    of masks learns from the classes and masks of its queries; metrics see the scores of pixels.

    Example:
        >>> small = keras_vit.ViTConfig(8, 64, num_layers=4, num_heads=4, mlp_dim=128)
        >>> encoder = keras_vit.build(small, include_top=False, pooling="none")
        >>> model = keras_vit.segmenter(encoder, "linear4", classes=5)
        >>> model.task, model.blocks, model.encoder.output_shape
        ('segmentation', (1, 2, 3, 4), (None, 785, 64))

    Attributes:
        task: `"segmentation"`, `"depth"`, `"detection"` or `"keypoints"`.
        config: the `ViTConfig` of the encoder.
        preprocessing: the `Preprocessing` record; call it to resize and normalise photos.
        class_names: names of the K classes or points, or `None`.
        unit: of depths, `"metres"` or `"inverse"`; `None` of classes.
        depth_range: smallest and largest depth of bins and clamp, or `None`.
        blocks: numbers of the passed blocks that the head reads.
        normed: whether it reads them after the encoder's last LayerNorm; `"last"`, that of the last block alone.
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
        `(B, H, W)` or `(B, h, w)`; with `raw=True` a dict of `class_logits` `(B, Q, K + 1)` and `mask_logits`
        `(B, h, w, Q)`; of a detector one of `logits` and `boxes`, as `detector` says; heatmaps `(B, h, w, K)`.
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
        normed: bool | str = True,
        short_side: int | None = None,
        layouts: Sequence[str] = ("", ""),
        unread: Mapping[str, Any] | None = None,
        folder_config: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        check_choice("task", task, tuple(DENSE_HEADS))
        self.task, self.unit = task, unit
        self.blocks, self.layouts = tuple(blocks), tuple(layouts)
        self.depth_range = None if depth_range is None else tuple(map(float, depth_range))
        self.normed, self.short_side, self.folder_config = normed, short_side, dict(folder_config or {})
        self.unread = {name: _as_array(value) for name, value in (unread or {}).items()}
        self._mask_loss: MaskClassification | None = None
        self._query_blocks: QueryBlocks | None = None
        self._shares: list[Any] | None = None  # of queries with masked attention, within a step that reads masks

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Keras' `compile`, also with `keras_vit.dense.MaskClassification` as the loss of a head of masks.

        On TensorFlow XLA cannot compile a step with that loss, whose matching is computed on the host, so its
        `jit_compile="auto"` is `False`.

        Args:
            *args: as in `keras.Model.compile`.
            **kwargs: as in `keras.Model.compile`.

        Raises:
            ValueError: for that loss where there are no masks of queries, and for what cannot be computed with it:
                several devices of a strategy of TensorFlow, micro-batches, and there `jit_compile=True`.
        """
        more = {name: kwargs.pop(name) for name in ("accumulation_steps",) if name in kwargs}
        given = dict(inspect.signature(keras.Model.compile).bind(self, *args, **kwargs).arguments) | more
        del given["self"]
        loss = given.get("loss")
        if not isinstance(loss, MaskClassification):
            self._mask_loss = None
            return super().compile(**given)
        self._check_mask_loss(given)
        if keras.backend.backend() == "tensorflow":
            given["jit_compile"] = False
        super().compile(**given | {"loss": None})
        self._mask_loss, self._query_blocks = loss, self.query_blocks()
        return None

    def query_blocks(self) -> QueryBlocks:
        """The blocks with queries of a head of masks, as its training reads them."""
        queries, rotation = layer_named(self, QUERIES), layer_named(self, f"rotary_positions_of_{QUERIES}")
        known = {"tokens": queries.output} | ({} if rotation is None else {"rotation": rotation.output})
        blocks = encoder_blocks(self)[-blocks_with_queries(self) :]
        return QueryBlocks(self.inputs[0], known, blocks, encoder_norm(self), self.head)

    def _check_mask_loss(self, given: Mapping[str, Any]) -> None:
        """Raises for what the loss of masks cannot be computed with."""
        if not blocks_with_queries(self) or self.raw:
            raise ArgumentError(
                "the loss `MaskClassification` is of segmenters with queries that give scores of pixels.\n"
                f"Received: {self.name!r}, {'with raw=True' if self.raw else 'without queries'}. Pass what "
                '`keras_vit.segmenter(encoder, "eomt", classes=K)` gives.',
                parameters=("loss",),
            )
        wrong = [f"{num_replicas(self)} devices of a strategy"] if num_replicas(self) > 1 else []
        wrong += [f"accumulation_steps={steps}" for steps in [given.get("accumulation_steps", 1)] if steps != 1]
        if given.get("jit_compile") is True and keras.backend.backend() == "tensorflow":
            wrong.append("jit_compile=True on TensorFlow")
        if wrong:
            raise ArgumentError(
                "the loss `MaskClassification` is of a whole batch, and matches queries and masks on the host.\n"
                f"Received: {', '.join(wrong)}. Leave it out. On JAX `keras.distribution` shares a batch.",
                parameters=("loss",),
            )

    def get_compile_config(self) -> Arguments | None:
        config = super().get_compile_config()
        loss = self._mask_loss
        return config if loss is None else {**(config or {}), "loss": keras.saving.serialize_keras_object(loss)}

    def compile_from_config(self, config: Arguments) -> None:
        if (config.get("loss") or {}).get("class_name") == MaskClassification.__name__:
            config = {**config, "jit_compile": "auto"}  # the file has what that was on its backend
        super().compile_from_config(config)

    def train_step(self, *args: Any) -> Any:
        with self._reading_masks(*args, training=True):
            return super().train_step(*args)

    def test_step(self, *args: Any) -> Any:
        with self._reading_masks():
            return super().test_step(*args)

    @contextlib.contextmanager
    def _reading_masks(self, *args: Any, training: bool = False) -> Iterator[None]:
        """A context in which a call gives classes and masks around each block with queries, where the loss reads them.

        Args:
            *args: of a step; on JAX the first is the state.
            training: whether attention may be masked.
        """
        loss = self._mask_loss
        if loss is not None:
            masked = training and loss.masked_steps
            count = blocks_with_queries(self)
            self._shares = masked_shares(self._step(*args), loss.masked_steps, count) if masked else []
        try:
            yield
        finally:
            self._shares = None

    def _step(self, *args: Any) -> Any:
        """Steps that the optimizer has made, as a step of `fit` is given them."""
        steps = getattr(self.optimizer, "inner_optimizer", self.optimizer).iterations
        if keras.backend.backend() != "jax":
            return steps
        return next(value for own, value in zip(self.optimizer.variables, args[0][2], strict=True) if own is steps)

    def run_layers(self, inputs: Tensor, training: bool | None, mask: Tensor = None) -> Any:
        if self._shares is None or self._query_blocks is None:
            return super().run_layers(inputs, training, mask)
        return self._query_blocks.predict(inputs, training, self._shares)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Keras' `compute_loss`, or that of `MaskClassification` over all blocks with queries."""
        loss = self._mask_loss
        if loss is None or self._query_blocks is None or self._shares is None:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        y = ops.convert_to_tensor(y)
        if sample_weight is not None:  # images of weight 0 fill up a batch
            known = ops.reshape(ops.cast(sample_weight, "float32") > 0, (-1, 1, 1))
            y = ops.where(known, y, ops.cast(loss.ignored, y.dtype))
        seed: Any = self._query_blocks.seed_generator if training else 0  # the same points in each validation
        return sum(self.losses, loss.call(y, y_pred, seed))

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Keras' `compute_metrics`, of the scores of pixels."""
        return super().compute_metrics(x, y, self.answers(y_pred, y), sample_weight)

    def answers(self, predictions: Any, labels: Any) -> Any:
        """What metrics see of the predictions of a step: of classes and masks the scores of the labels' pixels."""
        if self._shares is None:
            return predictions
        class_logits, mask_logits = predictions[-1]
        return semantic(class_logits, mask_logits, tuple(ops.shape(labels)[1:3]))

    @property
    def output_spec(self) -> OutputSpec:
        """What the model puts out: logits or depths of each pixel, or the classes of queries."""
        if self.raw:
            name = CLASS_LOGITS if CLASS_LOGITS in self.output else LOGITS
            return OutputSpec(HEAD_KINDS[OF_QUERIES], (*self.output[name].shape[:-1], self.head.outputs))
        return OutputSpec(HEAD_KINDS[self.task], self.output_shape, "linear")

    @property
    def classes(self) -> int:
        """K of a segmenter, detector or keypoint estimator; 0 of depths."""
        return self.output_spec.size if self.task != DEPTH else 0

    @property
    def raw(self) -> bool:
        """Whether it gives answers of queries: classes with masks or boxes."""
        return isinstance(self.output, dict)

    @property
    def head(self) -> keras.layers.Layer:
        """The layer with the weights of the head."""
        return layer_named(self, DENSE_HEADS[self.task])

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

    def head_flops(self, h: int, w: int) -> int:
        """FLOPs for `h` x `w` patches of what is not the encoder's alone: the head, and queries in the last blocks."""
        count, tokens = blocks_with_queries(self), self.config.num_prefix_tokens + h * w
        if not count:
            return self.head.flops(h, w)
        more = tokens + self.head.num_queries
        return self.head.flops(h, w) + count * (
            block(self.config, more, more).total - block(self.config, tokens, tokens).total
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
