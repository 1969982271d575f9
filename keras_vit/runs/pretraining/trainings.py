"""What `fit` trains without labels: encoders, the training of a method with its schedules, and its batches of views."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from keras_vit.annotations import FilePath, Tensor
from keras_vit.builders import build
from keras_vit.checks import ArgumentError
from keras_vit.config.variants import DEFAULT_IMAGE_SIZE
from keras_vit.data.source import Source
from keras_vit.data.views import Views, find_views, load_views
from keras_vit.layers.positions import sincos2d
from keras_vit.model.copies import with_input_shape
from keras_vit.model.freezing import add_lora, freeze, set_trainable
from keras_vit.model.image_model import ImageModel
from keras_vit.model.layer_access import patch_embedding, position_layers
from keras_vit.model.vision_transformer import VisionTransformer
from keras_vit.runs.load import variant_and_weights
from keras_vit.runs.options import DistilOptions, PretrainOptions, UnlabeledOptions, parse_encoder_trainable
from keras_vit.runs.pretraining.recipes import PretrainingRecipe
from keras_vit.selfsupervised.schedules import cosine_values
from keras_vit.selfsupervised.self_distillation import sinkhorn_knopp
from keras_vit.training.masked_patches import MaskedPatchPrediction
from keras_vit.training.optimizers import AdamW
from keras_vit.training.selfsupervised.feature_distillation import FeatureDistillation
from keras_vit.training.selfsupervised.features import check_encoder
from keras_vit.training.selfsupervised.lejepa import LeJEPA
from keras_vit.training.selfsupervised.masked_autoencoder import MaskedAutoencoder
from keras_vit.training.selfsupervised.self_distillation import SelfDistillation
from keras_vit.training.selfsupervised.steps import UnlabeledModel, ValuesByStep
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.registry import variant_of
from keras_vit.weights.resolve import find_file

_LOCAL = 3 / 7  # of the side of a global crop: 96 of 224
_LEAST_RATE, _HEAD_RATE = 1e-6, 1e-3  # at the end of a run; of heads, at a batch of 1,024
_TEMPERATURES = (0.04, 0.07)  # of the teacher
_FOLLOWED, _LEAST_FOLLOWED = 10, 0.1  # 1 - momentum: times the steps, so that the teacher follows, and at most
_WARMUP = 0.1
_PROJECTED, _WIDE, _BOTTLENECK = 64, 384, 256
_MASK_DEVIATION = 0.02
_HIDDEN, _SQUARE = 0.6, 32  # of SimMIM: share of the squares, and their side in pixels


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long a training without labels is.

    Attributes:
        recipe: what it follows.
        num_images: in the training set.
        batch_size: images of a step.
        steps: in all.
        steps_per_epoch: between two measurements, which is an epoch of `fit`.
        epochs: of `fit`.
        learning_rate: the highest one.
        heads_steps: in which heads learn alone.
    """

    recipe: PretrainingRecipe
    num_images: int
    batch_size: int
    steps: int
    steps_per_epoch: int
    epochs: int
    learning_rate: float
    heads_steps: int


@dataclasses.dataclass(frozen=True, eq=False)
class Training:
    """What `fit` gets.

    Attributes:
        model: that trains.
        encoder: that is measured and kept.
        layout: of the weights that it began with, or `None`.
        views: of an image.
        batches: gives the batches from a step on.
        targets: of class vectors, as `CollapseGuard` takes it; `None` for none.
        units: forward passes of one global crop that a step takes for each image, as far as that is known.
        words: what a user should know of how it is trained, lines.
    """

    model: UnlabeledModel | MaskedPatchPrediction
    encoder: VisionTransformer
    layout: str | None
    views: Views
    batches: Callable[[int], Any]
    targets: Callable[[Tensor], Tensor] | None
    units: float
    words: tuple[str, ...]


def make_plan(options: UnlabeledOptions, recipe: PretrainingRecipe, images: int, devices: int) -> Plan:
    """The plan for so many training images.

    Raises:
        ValueError: for fewer images than a batch, and a batch that devices cannot share.
    """
    usual = max(min(recipe.batch_size, images // 4), 2) // devices * devices
    batch_size = options.batch_size or max(usual, devices)
    if not 2 <= batch_size <= images or batch_size % devices:
        several = f" and a multiple of the {devices} devices" if devices > 1 else ""
        raise ArgumentError(
            f"`batch_size` must be from 2 to the number of training images{several}, so that no image is in a batch "
            f"twice.\nReceived: batch_size={batch_size}, {images:,} training images."
        )
    steps = options.steps or max((options.epochs or recipe.epochs) * images // batch_size, 1)
    every = min(options.guard_every or min(max(math.ceil(steps / 20), 10), 50), steps)
    heads = int((recipe.heads_share or 0) * steps)
    rate = options.learning_rate or recipe.rate(batch_size)
    return Plan(recipe, images, batch_size, steps, every, math.ceil(steps / every), rate, min(heads, 2000))


def build_encoder(name: str, model: Any, weights: FilePath | None, size: int, channels: int) -> VisionTransformer:
    """An encoder for images of any size: of a name, a config, weights, or a copy of one that is built."""
    if isinstance(model, ImageModel):
        if weights is not None:
            raise ArgumentError(
                f"a `{name}` that is built has weights, so `weights` must be left out.\nReceived: {weights!r}."
            )
        check_encoder(name, model)
        copy = with_input_shape(model, (None, None, model.input_shape[-1]))
        copy.weights_layout, copy.mask_token = model.weights_layout, model.mask_token
        return copy
    model = variant_of(model) if isinstance(model, str) else model
    if weights is not None:
        encoder = build(model, include_top=False, weights=weights, input_shape=(None, None, 3))
    else:
        built = build(model, include_top=False, input_shape=(size, size, channels))
        encoder = with_input_shape(built, (None, None, channels))  # with a table of positions for this size
    check_encoder(name, encoder)
    return encoder


def find_teacher(given: Any) -> VisionTransformer:
    """The teacher: a name, a file, a folder, or an encoder that is built."""
    if isinstance(given, ImageModel):
        check_encoder("teacher", given)
        return given
    found = variant_and_weights(os.fspath(given))
    if found is None:
        raise ArgumentError(
            "`teacher` must be a name as 'dinov2/S14', a file or folder of weights, or an encoder.\n"
            f"Received: {given!r}."
        )
    return build(found[0], include_top=False, weights=found[1], input_shape=(None, None, 3))


def image_size(options: UnlabeledOptions, *strides: int) -> int:
    """The side of global crops: what is asked for, or what all patches tile and is nearest to 224.

    Raises:
        ValueError: for a side that patches do not tile.
    """
    unit = math.lcm(*strides)
    nearest = max(round((options.image_size or DEFAULT_IMAGE_SIZE) / unit), 1) * unit
    return nearest if options.image_size is None else check_tiled("image_size", options.image_size, unit)


def check_tiled(name: str, size: int, unit: int) -> int:
    """`size`; raises unless patches tile it."""
    if size % unit:
        raise ArgumentError(
            f"`{name}` must be a multiple of {unit}, so that patches tile a crop.\n"
            f"Received: {name}={size}. Nearest: {max(round(size / unit), 1) * unit}."
        )
    return size


def find_crops(options: UnlabeledOptions, method: str, size: int, stride: int) -> Views:
    """The views of an image."""
    record = find_views(options.augmentation or {"distil": "distillation"}.get(method, method))
    given: dict[str, Any] = {"global_size": size}
    if method in ("mae", "simmim", "distil"):
        given |= {"global_crops": 1, "local_crops": 0}
    elif isinstance(options, PretrainOptions):
        usual = max(round(size * _LOCAL / stride), 1) * stride
        local = usual if options.local_size is None else check_tiled("local_size", options.local_size, stride)
        count = (6 if method == "lejepa" else 8) if options.local_crops is None else options.local_crops
        given |= {"global_crops": 2, "local_size": local, "local_crops": count}
        if min(local, size) <= 4 and any(record.blur):
            given["blur"] = (0.0, 0.0, 0.0)
    return dataclasses.replace(record, **given)


def _batches(source: Source, encoder: Any, views: Views, plan: Plan, seed: int, name: Any, **more: Any) -> Any:
    """A function from the first step to batches, each changed by `name`."""

    def batches(start_step: int) -> Any:
        how = {"batch_size": plan.batch_size, "preprocessing": encoder.preprocessing, "views": views, "seed": seed}
        return load_views(source, "train", start_step=start_step, **how, **more).map(name)

    return batches


def make_pretraining(options: PretrainOptions, plan: Plan, source: Source, encoder: Any, views: Views) -> Training:
    """The training of a method, compiled."""
    make = {"dinov2": _self_distillation, "lejepa": _lejepa, "mae": _masked, "simmim": _simmim}[plan.recipe.method]
    return make(options, plan, source, encoder, views)


def _rates(plan: Plan, first: int = 0) -> ValuesByStep:
    """The learning rate of each step: 0, a warm-up and a cosine."""
    steps = plan.steps - first
    warmup = min(max(int(_WARMUP * steps), 1), steps)
    end = min(_LEAST_RATE, plan.learning_rate)
    return ValuesByStep(np.concatenate([np.zeros(first), cosine_values(plan.learning_rate, end, steps, warmup)]))


def _choose_weights(encoder: VisionTransformer, trainable: str, has_weights: bool) -> None:
    kind, number = parse_encoder_trainable(trainable)
    if kind == "lora" and number:
        add_lora(encoder, number)
    elif kind == "last_blocks":
        freeze(encoder, "last_blocks", number)
    elif has_weights:
        for layer in (patch_embedding(encoder), *position_layers(encoder)):
            set_trainable(layer, False)


def _self_distillation(
    options: PretrainOptions, plan: Plan, source: Source, encoder: VisionTransformer, views: Views
) -> Training:
    recipe, stride, has_weights = plan.recipe, encoder.config.stride, plan.recipe.weights
    words = []
    masked = recipe.mask_share or 0.0
    if masked and has_weights and not np.any(encoder.mask_token if encoder.mask_token is not None else 0):
        drawn = np.random.default_rng(options.seed).normal(0, _MASK_DEVIATION, encoder.config.hidden_size)
        encoder.mask_token = drawn.astype("float32")
        words.append("its mask token was never trained, so a new one is drawn, and masks begin with none")
    _choose_weights(encoder, options.trainable or recipe.trainable, has_weights)
    gram, anchor = (
        getattr(recipe, name) if getattr(options, name) is None else getattr(options, name)
        for name in ("gram_weight", "anchor_weight")
    )
    small = encoder.config.hidden_size < _WIDE
    model = SelfDistillation(
        encoder,
        options.prototypes or recipe.prototypes or 0,
        hidden_size=4 * encoder.config.hidden_size if small else 2048,
        bottleneck_size=min(_BOTTLENECK, encoder.config.hidden_size),
        patch_weight=1.0 if masked else 0.0,
        gram_weight=gram,
        anchor_weight=anchor,
    )
    first, steps = plan.heads_steps, plan.steps
    follows = 1 - min(_FOLLOWED / steps, _LEAST_FOLLOWED)
    momentum = cosine_values(min(recipe.momentum or follows, follows), 1.0, steps)
    heads = None
    if has_weights:  # heads first, with a teacher that then begins as the student is
        highest = _HEAD_RATE * math.sqrt(plan.batch_size / 1024)
        heads = ValuesByStep(cosine_values(highest, min(_LEAST_RATE, highest), steps, max(first // 2, 1), 0.0))
        momentum = np.full(steps, follows)
        momentum[max(first - 1, 0) : first] = 0.0
        words.append(f"heads alone learn for {first:,} of {steps:,} steps; then the teacher begins as the student is")
    decay = recipe.weight_decay
    decays = decay if has_weights else ValuesByStep(cosine_values(decay, 10 * decay, steps))
    warm = np.linspace(*_TEMPERATURES, max(steps // 3, 1))
    model.compile(
        _rates(plan, first),
        decays,
        ValuesByStep(momentum),
        ValuesByStep([*warm, _TEMPERATURES[1]]),
        clip_norm=recipe.clip_norm,
        layer_decay=recipe.layer_decay,
        patch_rate=0.2,
        head_rate=heads,
    )

    def mask_share(step: int) -> float:
        grown = min(3 * step / steps, 1.0) if has_weights else 1.0
        return masked * grown

    def with_local(batch: dict[str, Any]) -> dict[str, Any]:
        if "local_crops" not in batch:
            batch["local_crops"] = batch["global_crops"][:, :0]
        return batch

    def targets(vectors: Tensor) -> Tensor:
        temperature = _TEMPERATURES[1]
        return sinkhorn_knopp(ops.cast(model.teacher_heads["class"](vectors), "float32"), temperature)

    share = views.local_crops * (views.local_size / views.global_size) ** 2
    return Training(
        model,
        model.teacher,
        encoder.weights_layout,
        views,
        _batches(source, encoder, views, plan, options.seed, with_local, patch_size=stride, mask_share=mask_share),
        targets,
        2 + 3 * (2 + share) + 2 * bool(gram or anchor),
        tuple(words),
    )


def _lejepa(options: PretrainOptions, plan: Plan, source: Source, encoder: VisionTransformer, views: Views) -> Training:
    _choose_weights(encoder, options.trainable or plan.recipe.trainable, plan.recipe.weights)
    width = encoder.config.hidden_size
    model = LeJEPA(encoder, min(_PROJECTED, width), hidden_size=2048 if width >= _WIDE else 4 * width)
    model.compile(_rates(plan), plan.recipe.weight_decay)

    def named(batch: dict[str, Any]) -> dict[str, Any]:
        names = {"global_crops": "views", "local_crops": "local_views"}
        return {names[name]: crops for name, crops in batch.items()}

    share = views.local_crops * (views.local_size / views.global_size) ** 2
    batches = _batches(source, encoder, views, plan, options.seed, named)
    return Training(model, encoder, encoder.weights_layout, views, batches, None, 3 * (2 + share), ())


def _one_view(batch: dict[str, Any]) -> dict[str, Any]:
    return {"images": batch["global_crops"][:, 0]}


def _masked(options: PretrainOptions, plan: Plan, source: Source, encoder: VisionTransformer, views: Views) -> Training:
    width, heads = encoder.config.hidden_size, encoder.config.num_heads
    words: tuple[str, ...] = ()
    if options.weights is None:  # fixed positions, which do not learn
        for layer in position_layers(encoder):
            rows, columns = (np.arange(side, dtype="float32") for side in layer.grid)
            fixed = ops.convert_to_numpy(sincos2d(rows, columns, width, kind="sincos2d_mae"))
            table = np.zeros(layer.table.shape, "float32")
            table[:, -fixed.shape[-2] :] = fixed
            layer.table.assign(table)
    sizes = (512, 8, 16) if width >= _WIDE else (4 * heads * math.ceil(width / (4 * heads)), 2, heads)
    _choose_weights(encoder, options.trainable or plan.recipe.trainable, False)
    model = MaskedAutoencoder(encoder, *sizes)
    if options.weights is not None:
        words = ("its decoder is new, since the weights have none that fits",)
        with contextlib.suppress(CheckpointError, ValueError):
            name = options.model if isinstance(options.model, str) else None
            model.load(find_file(options.weights, name).path)
            words = ("its decoder goes on too",)
    model.compile(AdamW(_rates(plan), beta_2=0.95, weight_decay=plan.recipe.weight_decay))
    batches = _batches(source, encoder, views, plan, options.seed, _one_view)
    return Training(model, encoder, encoder.weights_layout, views, batches, None, 3 * (0.25 + 0.3), words)


def _simmim(options: PretrainOptions, plan: Plan, source: Source, encoder: VisionTransformer, views: Views) -> Training:
    """Squares of about 32 pixels are hidden, 60 % of them, and one dense layer predicts their pixels."""
    size = views.global_size
    encoder = with_input_shape(encoder, (size, size, encoder.input_shape[-1]))  # on whose grid the squares lie
    _choose_weights(encoder, options.trainable or plan.recipe.trainable, False)
    side = encoder.config.grid(size, size)[0]
    wanted = max(round(_SQUARE / encoder.config.stride), 1)
    square = max((number for number in range(1, wanted + 1) if side % number == 0 and side > number), default=1)
    drawn = (side // square) ** 2
    model = MaskedPatchPrediction(
        *(encoder, "pixels"),
        rate=math.ceil(_HIDDEN * drawn) / drawn,
        mask_share=1.0,
        random_share=0.0,
        seed=options.seed,
        loss="mae",
        square=square,
    )
    encoder.mask_token = lambda: ops.convert_to_numpy(model.corruption.mask_token)
    rates, decay = _rates(plan), plan.recipe.weight_decay
    model.compile(AdamW(rates, weight_decay=decay, global_clipnorm=plan.recipe.clip_norm))
    batches = _batches(source, encoder, views, plan, options.seed, lambda batch: _one_view(batch)["images"])
    return Training(model, encoder, encoder.weights_layout, views, batches, None, 3, ())


def make_distillation(
    options: DistilOptions, plan: Plan, source: Source, encoder: VisionTransformer, teacher: Any, views: Views
) -> Training:
    """The training of a student by a teacher, compiled."""
    model = FeatureDistillation(
        encoder,
        teacher,
        patch_loss=options.loss,  # type: ignore[arg-type]
        class_weight=float(options.targets != "patches"),
        patch_weight=float(options.targets != "class"),
    )
    optimizer = AdamW(_rates(plan), weight_decay=plan.recipe.weight_decay, global_clipnorm=plan.recipe.clip_norm)
    model.compile(optimizer)
    batches = _batches(source, encoder, views, plan, options.seed, _one_view)
    ratio = teacher.count_params() / encoder.count_params()
    return Training(model, encoder, encoder.weights_layout, views, batches, None, 3 + ratio, ())


def trained_parts(model: UnlabeledModel | MaskedPatchPrediction) -> dict[str, np.ndarray]:
    """The arrays of heads, projectors or a decoder, by their names, for `heads.npz`."""
    layers: list[Any] = []
    for name in ("teacher_heads", "projectors"):
        layers += getattr(model, name, {}).values()
    layers += [getattr(model, name) for name in ("projector", "decoder") if hasattr(model, name)]
    if isinstance(model, MaskedPatchPrediction):
        layers += [layer for layer in model.layers if layer not in model.model.layers]
    return {weight.path: ops.convert_to_numpy(weight) for layer in layers for weight in layer.weights}
