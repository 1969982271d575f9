"""DINOv2's training: a student learns from crops what its own moving average, the teacher, says of whole images.

DINO's loss of class tokens, iBOT's of masked patches, KoLeo, and DINOv3's Gram anchoring. Sources: DINO,
arXiv:2104.14294; iBOT, arXiv:2111.07832; DINOv2, arXiv:2304.07193, section 4; DINOv3, arXiv:2508.10104, section 4.
"""

import warnings
from typing import Any, ClassVar, Literal

import keras
from keras import ops

from keras_vit.annotations import Rate, Tensor, Variable
from keras_vit.checks import ArgumentError, check_choice, check_nonnegative, check_positive, check_share
from keras_vit.layers.kinds.dino_head import DINOHead
from keras_vit.model.layer_access import encoder_blocks, patch_embedding
from keras_vit.model.replicated_model import num_replicas
from keras_vit.model.training_step import replica_share
from keras_vit.model.vision_transformer import VisionTransformer
from keras_vit.selfsupervised.arrays import floats, targets_of, unit_rows
from keras_vit.selfsupervised.feature_losses import feature_losses, gram_losses
from keras_vit.selfsupervised.self_distillation import balanced, class_loss_parts, koleo_losses
from keras_vit.training.contrastive import of_all_devices
from keras_vit.training.optimizers import AdamWOfParts, value_at
from keras_vit.training.selfsupervised.features import (
    MaskToken,
    check_encoder,
    features,
    frozen_copy,
    prepared,
    tiled,
)
from keras_vit.training.selfsupervised.steps import (
    UnlabeledModel,
    assign_on_all_devices,
    by_view,
    flat_views,
    schedule,
    sum_of_all_devices,
)

CENTERINGS = ("sinkhorn", "softmax")
_STUDENT_TEMPERATURE = 0.1
_CENTER_MOMENTUM = 0.9
_LEAST_LENGTH = 1e-8  # of a class token in KoLeo
_NOT_DECAYING = ("bias", "beta", "gamma")  # biases, norms and LayerScale


class SelfDistillation(UnlabeledModel):
    """Trains an encoder without labels as DINOv2 does, or goes on from published weights, with `fit`.

    The teacher sees two global crops of an image. The student sees them with masked patches, and local crops. After
    each step the teacher is moved towards the student. What is kept is `teacher`: save that one. Its mask token is in
    its file where the layout has a place for it.

    Example:
        >>> config = keras_vit.ViTConfig(4, 24, num_layers=1, num_heads=3, mlp_dim=48)
        >>> encoder = keras_vit.build(config, include_top=False, input_shape=(8, 8, 3))
        >>> training = keras_vit.SelfDistillation(encoder, 16, 32, bottleneck_size=8)
        >>> training.compile(1e-4, 0.04, teacher_momentum=0.99, teacher_temperature=0.04)
        >>> sorted(training.heads), training.teacher.output_shape
        (['class'], (None, 24))

    Args:
        encoder: a `VisionTransformer` without a head, the student; its output is the class token.
        prototypes: K of the head of class tokens, at least 2.
        hidden_size: of that head, as of `keras_vit.layers.DINOHead`.
        bottleneck_size: of that head.
        patch_prototypes: K of a head of patches; by default both share one.
        patch_hidden_size: of that head; by default as of the other.
        patch_bottleneck_size: of that head; by default as of the other.
        centering: how the teacher's logits become targets: `"sinkhorn"`, or `"softmax"` of their difference to a moving
            centre.
        koleo_weight: of KoLeo, on the class tokens of each global crop.
        patch_weight: of the loss of masked patches.
        gram_weight: of Gram anchoring, on the patches of global crops.
        gram_teacher: a frozen encoder for it, of the same patch; by default `encoder` as it is now.
        anchor_weight: of 1 less the cosine to the features of `gram_teacher`, of class tokens and of patches.

    Attributes:
        heads: the student's, by `"class"` and, unless it is shared, `"patch"`.
        teacher: a copy of `encoder` with weights of its own.
        teacher_heads: as `heads`.
        centers: those that the last step used, by `"class"` and `"patch"`; empty with `"sinkhorn"`. The means of its
            batch enter in the next one.

    Call arguments:
        x: a dict of `"global_crops"` `(B, 2, H, W, C)`, `"local_crops"` `(B, L, h, w, C)`, floats prepared by
            `encoder.preprocessing` or uint8, and `"mask"`, booleans `(B, 2, N)`, as `block_masks` gives them. L may be
            0, and a mask all False.

    Returns:
        A dict of what the losses read. `fit` shows `loss`, `class_global_loss`, `class_local_loss`, `koleo_loss`,
        `patch_loss` and `gram_loss`, as they are added, and `anchor_loss` where it has a weight.

    Raises:
        TypeError: for what is no `VisionTransformer`.
        ValueError: for an encoder with a head or weights in half precision, numbers out of range, a batch that lacks
            one of the three or has one image alone, which KoLeo has no neighbour for, crops that patches do not tile,
            and a loss, metrics or accumulation in `compile`.

    Warns:
        UserWarning: if the weights of `encoder` come without a mask token, so that a new one is made, of zeros.

    Source: arXiv:2304.07193, section 4 and appendix B; order and divisors as its code has them.
    """

    inputs_by_name: ClassVar = {
        "global_crops": "(B, 2, H, W, C)",
        "local_crops": "(B, L, h, w, C)",
        "mask": "(B, 2, N)",
    }
    loss_names = ("class_global_loss", "class_local_loss", "koleo_loss", "patch_loss", "gram_loss")
    needs_batch = ": targets, centres and neighbours are of all its images"

    def __init__(
        self,
        encoder: VisionTransformer,
        prototypes: int = 65536,
        hidden_size: int = 2048,
        bottleneck_size: int = 256,
        patch_prototypes: int | None = None,
        patch_hidden_size: int | None = None,
        patch_bottleneck_size: int | None = None,
        centering: Literal["sinkhorn", "softmax"] = "sinkhorn",
        koleo_weight: float = 0.1,
        patch_weight: float = 1.0,
        gram_weight: float = 0.0,
        gram_teacher: VisionTransformer | None = None,
        anchor_weight: float = 0.0,
        name: str = "self_distillation",
    ) -> None:
        _check_student(encoder)
        check_choice("centering", centering, CENTERINGS)
        if patch_prototypes is None and (patch_hidden_size, patch_bottleneck_size) != (None, None):
            raise ArgumentError(
                "without `patch_prototypes` patches share the head of class tokens, and its sizes.\n"
                f"Received: patch_hidden_size={patch_hidden_size}, patch_bottleneck_size={patch_bottleneck_size}."
            )
        super().__init__(name)
        self.centering = centering
        self.koleo_weight = check_nonnegative("koleo_weight", koleo_weight)
        self.patch_weight = check_nonnegative("patch_weight", patch_weight)
        self.gram_weight = check_nonnegative("gram_weight", gram_weight)
        self.anchor_weight = check_nonnegative("anchor_weight", anchor_weight)
        if anchor_weight:
            self.loss_means["anchor_loss"] = keras.metrics.Mean(name="anchor_loss")
        if self.patch_weight and encoder.weights_layout and encoder.mask_token is None:
            warnings.warn(
                f"the weights of {encoder.name!r} came without a mask token, so a new one of zeros is trained, and the "
                "first masked steps teach little. Begin with masks of False, or pass `patch_weight=0`.",
                stacklevel=2,
            )
        self.encoder, policy = encoder, patch_embedding(encoder).dtype_policy
        self.mask_token = MaskToken(encoder.mask_token, dtype=policy, name="masked_patches")
        networks = features(encoder, self.mask_token), features(encoder)
        self._student = lambda: networks  # whose weights are the encoder's
        self.mask_token.mask_token.layer_depth = (0, len(encoder_blocks(encoder)) + 1)
        sizes = {"class": (prototypes, hidden_size, bottleneck_size)}
        if patch_prototypes is not None:
            others = (patch_hidden_size or hidden_size, patch_bottleneck_size or bottleneck_size)
            sizes["patch"] = (patch_prototypes, *others)
        width = networks[0].outputs[0].shape[-1]
        self.heads = {part: _head(part, *size, width, policy) for part, size in sizes.items()}
        self.teacher_heads = {part: _head(part, *size, width, policy) for part, size in sizes.items()}
        self.teacher = frozen_copy(encoder)
        for head in self.teacher_heads.values():
            head.trainable = False
        self.teacher_mask_token = self.add_weight(
            name="teacher_mask_token", shape=(1, 1, encoder.config.hidden_size), initializer="zeros", trainable=False
        )
        encoder.mask_token = lambda: ops.convert_to_numpy(self.mask_token.mask_token)
        self.teacher.mask_token = lambda: ops.convert_to_numpy(self.teacher_mask_token)
        of_teacher = features(self.teacher)
        self._teacher = lambda: of_teacher
        is_held = self.gram_weight or self.anchor_weight
        self.gram_teacher = _gram_teacher(encoder, gram_teacher) if is_held else None
        of_gram: Any = None if self.gram_teacher is None else features(self.gram_teacher)
        self._gram = lambda: of_gram
        kinds = {"class": prototypes, "patch": patch_prototypes or prototypes} if centering == "softmax" else {}
        self.centers, self.batch_means = (
            {kind: self._statistic(f"{kind}_{what}", size) for kind, size in kinds.items()}
            for what in ("center", "batch_mean")
        )
        self.copy_to_teacher()

    def _statistic(self, name: str, size: int) -> Variable:
        return self.add_weight(
            name=name, shape=(size,), initializer="zeros", trainable=False, aggregation="only_first_replica"
        )

    def copy_to_teacher(self) -> None:
        """Gives the teacher and its heads the student's weights."""
        for kept, new in self._pairs():
            kept.assign(ops.copy(ops.convert_to_tensor(new)))  # JAX would share the memory, and a step takes it away

    def _pairs(self) -> list[tuple[Variable, Variable]]:
        """Each weight of the teacher with the student's."""
        pairs = [*zip(self.teacher.weights, self.encoder.weights, strict=True)]
        for part, head in self.heads.items():
            pairs += zip(self.teacher_heads[part].weights, head.weights, strict=True)
        return [*pairs, (self.teacher_mask_token, self.mask_token.mask_token)]

    def compile(
        self,
        learning_rate: Rate,
        weight_decay: Rate,
        teacher_momentum: Rate,
        teacher_temperature: Rate,
        last_layer_rate: Rate | None = None,
        clip_norm: float | None = 3.0,
        layer_decay: float = 1.0,
        patch_rate: float = 1.0,
        head_rate: Rate | None = None,
        **kwargs: Any,
    ) -> None:
        """Keras' `compile`, with AdamW. Each rate is a number, an array of one for each step, or a schedule.

        Args:
            learning_rate: of the weights behind the blocks.
            weight_decay: of all weights but biases, norms and LayerScale; it is multiplied by the rate.
            teacher_momentum: share of the old teacher in the new one, in [0, 1]; 0.992 rising to 1.
            teacher_temperature: that its logits are divided by, above 0; 0.04 rising to 0.07.
            last_layer_rate: of the prototypes, 0 in the first epoch; by default that of heads.
            clip_norm: largest norm of the gradients of encoder, class head and patch head, each by itself.
            layer_decay: as of `keras_vit.AdamW`.
            patch_rate: factor on the rate of the patch embedding; 0.2 in DINOv2.
            head_rate: of the heads; by default the learning rate.
            **kwargs: of Keras' `compile`, without a loss or metrics.
        """
        rates = schedule("learning_rate", learning_rate), schedule("weight_decay", weight_decay)
        self.teacher_momentum = schedule("teacher_momentum", teacher_momentum, most=1.0)
        self.teacher_temperature = schedule("teacher_temperature", teacher_temperature, above=True)
        last = None if last_layer_rate is None else schedule("last_layer_rate", last_layer_rate)
        heads = None if head_rate is None else schedule("head_rate", head_rate)
        clip = None if clip_norm is None else check_positive("clip_norm", clip_norm)
        part_of = {id(weight): part for part, head in self.heads.items() for weight in head.weights}
        prototypes = {id(weight) for head in self.heads.values() for weight in head.last.weights}
        patches = {id(weight) for weight in patch_embedding(self.encoder).weights}
        patch_rate = check_nonnegative("patch_rate", patch_rate)

        def place(variable: Variable) -> tuple[str, float, int]:
            key = id(variable)
            kind = (key in part_of) + (key in prototypes)
            return part_of.get(key, "encoder"), patch_rate if key in patches else 1.0, kind

        optimizer = AdamWOfParts(*rates, _decays, place, clip, last, check_share("layer_decay", layer_decay), heads)
        self.compile_with(optimizer, kwargs)

    def call(self, x: dict[str, Tensor], training: bool | None = None) -> dict[str, Tensor]:
        self._check_crops(x)
        crops = prepared(self.encoder, flat_views(x["global_crops"]))  # (2 B, H, W, C)
        mask = ops.cast(ops.reshape(x["mask"], (-1, x["mask"].shape[-1])), "bool")  # (2 B, N)
        masked, plain = self._student()
        vectors, patches = masked([crops, mask], training=training)
        wanted, wanted_patches = self._teacher()(crops, training=False)
        places = self._masked_places(x, mask)
        rows = [ops.take(ops.reshape(each, (-1, each.shape[-1])), places, axis=0) for each in (patches, wanted_patches)]
        part = "patch" if "patch" in self.heads else "class"
        found = {
            "tokens": by_view(vectors, 2),  # (2, B, D)
            "class": by_view(self.heads["class"](vectors), 2),  # (2, B, K)
            "teacher": by_view(targets_of(self.teacher_heads["class"](wanted)), 2),
            "patch": self.heads[part](rows[0]),  # (M, K)
            "teacher_patch": targets_of(self.teacher_heads[part](rows[1])),
            "places": places,  # (M,)
        }
        if count := x["local_crops"].shape[1]:
            of_local, _ = plain(prepared(self.encoder, flat_views(x["local_crops"])), training=training)
            found["local"] = by_view(self.heads["class"](of_local), count)  # (L, B, K)
        if self.gram_teacher is not None:
            held = self._gram()(prepared(self.gram_teacher, crops), training=False)
            found["vectors"], found["patches"] = vectors, patches  # (2 B, D), (2 B, N, D)
            found["anchor"], found["gram"] = map(targets_of, held)
        return found

    def _check_crops(self, x: dict[str, Tensor]) -> None:
        self.check_batch(x)
        crops, mask = x["global_crops"], x["mask"]
        if crops.shape[1] != 2:
            raise ArgumentError(f"`global_crops` must be (B, 2, H, W, C).\nReceived: shape {tuple(crops.shape)}.")
        tiled("global_crops", crops.shape, self.encoder)
        if x["local_crops"].shape[1]:
            tiled("local_crops", x["local_crops"].shape, self.encoder)
        rows, columns = self.encoder.config.grid(*crops.shape[2:4])
        if tuple(mask.shape[1:]) != (2, rows * columns):
            raise ArgumentError(
                f"`mask` must be (B, 2, {rows * columns}), of the {rows} x {columns} patches of both global crops.\n"
                f"Received: shape {tuple(mask.shape)}."
            )
        if self.koleo_weight and crops.shape[0] == 1 and num_replicas(self) == 1:
            raise ArgumentError(
                "a batch must have two images or more, as KoLeo takes the distance of each to its neighbour.\n"
                "Received: 1 image. Pass larger batches, or `koleo_weight=0`."
            )

    def _masked_places(self, x: dict[str, Tensor], mask: Tensor) -> Tensor:
        """Places `(M,)` of masked patches in `(2 B N)`, and of further patches where M must be known before."""
        flat = ops.reshape(mask, (-1,))
        places = ops.arange(ops.shape(flat)[0], dtype="int32")
        order = ops.argsort(ops.where(flat, places, places + ops.shape(flat)[0]))
        if keras.backend.backend() == "jax" or (keras.backend.backend() == "tensorflow" and self.jit_compile):
            return order
        return order[: ops.maximum(ops.sum(ops.cast(flat, "int32")), 1)]

    def losses_of(
        self, x: dict[str, Tensor], found: dict[str, Tensor], there: Tensor | None, training: bool | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        batch = ops.shape(found["class"])[1]
        counts = ops.ones((batch,), "float32") if there is None else ops.cast(there, "float32")
        self._check_neighbours(counts)
        teacher = found["teacher"]
        targets = self._targets("class", ops.reshape(teacher, (-1, teacher.shape[-1])), ops.tile(counts, 2), training)
        targets = ops.reshape(targets, ops.shape(teacher))  # (2, B, K)
        local = found.get("local", found["class"][:0])
        across, nearby = class_loss_parts(found["class"], local, targets, _STUDENT_TEMPERATURE)
        shown = {
            "class_global_loss": across,
            "class_local_loss": nearby,
            "koleo_loss": self._koleo(found["tokens"], counts),
            "patch_loss": self.patch_weight * self._patch_losses(x["mask"], found, counts, training),
            "gram_loss": self.gram_weight * self._gram_losses(found, batch),
        }
        if self.anchor_weight:
            away = feature_losses(found["vectors"], found["anchor"])  # (2 B,)
            away = away + ops.mean(feature_losses(found["patches"], found["gram"]), axis=1)
            shown["anchor_loss"] = self.anchor_weight * ops.mean(ops.reshape(away, (-1, 2)), axis=1)
        return sum(shown.values()), shown

    def _check_neighbours(self, counts: Tensor) -> None:
        """Raises while a graph of TensorFlow runs on a batch of one image."""
        if self.koleo_weight and keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            message = "a batch must have two images or more, as KoLeo takes the distance of each to its neighbour"
            tf.debugging.assert_greater(sum_of_all_devices(self, ops.sum(counts)), 1.5, message=message)

    def _targets(self, kind: str, logits: Tensor, counts: Tensor, training: bool | None) -> Tensor:
        """The teacher's probabilities `(M, K)`, in which rows of count 0 take no part."""
        temperature = value_at(self.teacher_temperature, self.step)
        if self.centering == "sinkhorn":
            return balanced(logits / temperature, counts, of_all_devices=lambda rows: of_all_devices(self, rows))
        center, mean = (ops.convert_to_tensor(each[kind]) for each in (self.centers, self.batch_means))
        center = _CENTER_MOMENTUM * center + (1 - _CENTER_MOMENTUM) * mean
        if training:
            total = sum_of_all_devices(self, ops.sum(logits * ops.expand_dims(counts, -1), axis=0))
            rows = sum_of_all_devices(self, ops.sum(counts))
            self.centers[kind].assign(center)
            self.batch_means[kind].assign(ops.where(rows > 0, total / ops.maximum(rows, 1), center))
        return ops.softmax((logits - center) / temperature, axis=-1)

    def _koleo(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """`(B,)`: KoLeo of both global crops, each by itself."""
        if not self.koleo_weight:
            return ops.zeros_like(counts)
        units = unit_rows(floats(tokens), _LEAST_LENGTH)
        first = 0 if num_replicas(self) == 1 else replica_share(counts)[1]
        there = of_all_devices(self, counts) > 0
        # Times 1, since TensorFlow gives a sparse gradient of the neighbours, which no strategy can add up.
        others = [of_all_devices(self, units[view]) * 1.0 for view in (0, 1)]
        views = (koleo_losses(units[view], others[view], first, there, _LEAST_LENGTH) for view in (0, 1))
        return self.koleo_weight * sum(views)

    def _patch_losses(self, mask: Tensor, found: dict[str, Tensor], counts: Tensor, training: bool | None) -> Tensor:
        """`(B,)`: the mean over both crops of the mean over their masked patches."""
        patches = mask.shape[-1]
        mask = ops.cast(ops.reshape(mask, (-1, patches)), "float32")  # (2 B, N)
        shares = mask / ops.maximum(ops.sum(mask, axis=1, keepdims=True), 1)
        places = found["places"]
        images = places // (2 * patches)
        masked = ops.take(ops.reshape(mask, (-1,)), places) * ops.take(counts, images)  # (M,)
        targets = self._targets("patch", found["teacher_patch"], masked, training)
        logs = ops.log_softmax(floats(found["patch"]) / _STUDENT_TEMPERATURE, axis=-1)
        terms = -ops.sum(targets * logs, axis=-1) * ops.take(ops.reshape(shares, (-1,)), places) * masked
        return ops.segment_sum(terms, images, ops.shape(counts)[0]) / 2

    def _gram_losses(self, found: dict[str, Tensor], batch: Any) -> Tensor:
        if not self.gram_weight:
            return ops.zeros((batch,), "float32")
        return ops.mean(ops.reshape(gram_losses(found["patches"], found["gram"]), (-1, 2)), axis=1)

    def after_step(self) -> None:
        momentum = value_at(self.teacher_momentum, self.step)
        trained = {id(variable) for variable in self.trainable_variables}
        pairs = [(kept, new) for kept, new in self._pairs() if id(new) in trained]
        assign_on_all_devices(self, pairs, _average, momentum)
        super().after_step()


def _average(kept: Tensor, new: Tensor, momentum: Tensor) -> Tensor:
    return momentum * kept + (1 - momentum) * new


def _decays(variable: Variable) -> bool:
    return variable.path.split("/")[-1] not in _NOT_DECAYING


def _head(part: str, prototypes: int, hidden_size: int, bottleneck_size: int, width: int, policy: Any) -> DINOHead:
    head = DINOHead(prototypes, hidden_size, bottleneck_size, dtype=policy, name=f"{part}_head")
    head.build((None, width))
    return head


def _check_student(encoder: Any) -> None:
    check_encoder("encoder", encoder)
    dtypes = {keras.backend.standardize_dtype(weight.dtype) for weight in encoder.weights}
    if dtypes - {"float32", "float64"}:
        raise ArgumentError(
            "`encoder` must have weights of float32, since a teacher of half precision does not move by small steps.\n"
            f"Received: weights of {', '.join(sorted(dtypes))}. Build it under the policy 'mixed_bfloat16'."
        )


def _gram_teacher(encoder: VisionTransformer, teacher: VisionTransformer | None) -> VisionTransformer:
    if teacher is None:
        return frozen_copy(encoder)
    check_encoder("gram_teacher", teacher)
    if teacher is encoder or teacher.config.stride != encoder.config.stride:
        raise ArgumentError(
            "`gram_teacher` must be another model with the same patch.\n"
            f"Received: {teacher.name!r} with a patch of {teacher.config.stride}, and {encoder.name!r} with "
            f"{encoder.config.stride}."
        )
    teacher.trainable = False
    return teacher
