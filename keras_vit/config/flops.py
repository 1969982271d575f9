"""How much a model computes, by formula from its architecture: `keras_vit.flops` and `keras_vit.training_exaflops`.

A multiply-add is 2 FLOPs. Matrix products and convolutions count, taps on the padding among them. Norms, softmax,
GELU, biases and sums do not, nor does resizing the position table: docs/choosing.md has how much that is.
Each function below the public ones is one kind of layer. Shapes are of one image.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, Protocol

from keras_vit.annotations import Pair
from keras_vit.checks import ArgumentError, check_int, check_positive, check_positive_int, did_you_mean
from keras_vit.config.parts import Part, pooling_parts
from keras_vit.config.variants import (
    DEFAULT_CLASSES,
    DEFAULT_IMAGE_SIZE,
    RESNETS,
    VARIANTS,
    ResNetConfig,
    check_image_size,
)
from keras_vit.config.vit import ViTConfig

_MULTIPLY_ADD = 2  # FLOPs
TRAINING_PASSES = 3  # of a step: forward, and backward to the inputs and to the weights


@dataclasses.dataclass(frozen=True)
class Flops:
    """The result of `flops`: the FLOPs of one image, by part of the model. Two records can be added.

    Example:
        >>> cost = keras_vit.flops("B/16")
        >>> cost.total, cost.mlp
        (32696930304, 20459814912)
        >>> print(cost + keras_vit.flops("Ti/16"))
        35.03 GFLOP: embedding 0.29, projections 11.36, products 1.64, mlp 21.74, head 0.00

    Attributes:
        stem: the ResNet of a hybrid, or a ResNet baseline.
        embedding: patches to tokens.
        projections: queries, keys, values and the attention's output.
        products: queries by keys, and attention weights by values: what grows with the square of the tokens.
        mlp: the MLPs of the blocks.
        pooling: attention pooling.
        head: the layer before the classifier, and the classifiers; of a `DenseModel` its head, and the queries among
            the tokens of its blocks. Resizes of maps do not count.
    """

    stem: int = 0
    embedding: int = 0
    projections: int = 0
    products: int = 0
    mlp: int = 0
    pooling: int = 0
    head: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(dataclasses.astuple(self))

    @property
    def multiply_adds(self) -> int:
        """Half of them, what other software calls MACs."""
        return self.total // _MULTIPLY_ADD

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(*map(sum, zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {_giga(value)}" for name, value in dataclasses.asdict(self).items() if value)
        return f"{_giga(self.total)} GFLOP: {parts}"


class HasConfig(Protocol):
    """What is asked of a built model: a `VisionTransformer` or `ResNet` has it."""

    config: ViTConfig | ResNetConfig
    image_shape: tuple
    classes: int


def flops(
    model: HasConfig | ViTConfig | ResNetConfig | str,
    image_size: int | Pair | None = None,
    *,
    classes: int | None = None,
    channels: int | None = None,
) -> Flops:
    """Counts the FLOPs of the forward pass of one image, as the model computes it.

    In the last block `last_block_outputs="pooled"` computes only the tokens that are read. Literature counts every
    token: `config.replace(last_block_outputs="all")`. LoRA and quantisation are counted as the model without them.

    Example:
        >>> print(keras_vit.flops("B/16"))
        32.70 GFLOP: embedding 0.23, projections 10.69, products 1.31, mlp 20.46, head 0.00
        >>> round(keras_vit.flops("B/16", image_size=384).multiply_adds / 1e9, 1)
        51.6

    Args:
        model: a `VisionTransformer`, `ResNet` or `DenseModel`, a config, or the name of a variant as `"B/16"` or
            `"R50x1"`.
        image_size: a side in pixels or `(H, W)`; by default the model's, and about 224 of a config.
        classes: K; 0 for no head. By default the model's, and 1,000 of a config.
        channels: of the images. By default the model's, and 3 of a config.

    Returns:
        A `Flops`: its `total`, its parts, and `multiply_adds`, half the total.

    Raises:
        TypeError: for a value of the wrong type, or a model that does not know its config.
        ValueError: for an image that patches do not tile, or an unknown variant or image size.

    Source: arXiv:2010.11929, section 3.1 and appendix A; of the ResNet, section 4.1.
    """
    return _count_all(model, *_architecture(model, image_size, classes, channels))


def training_exaflops(
    model: HasConfig | ViTConfig | ResNetConfig | str,
    images: float,
    image_size: int | Pair | None = None,
    *,
    classes: int | None = None,
    channels: int | None = None,
) -> float:
    """Counts the compute of a whole training in exaFLOPs (1e18), as table 6 of the paper does.

    That is 3 forward passes an image, with every token in every block. It leaves aside what `last_block_outputs` and
    `patch_dropout_rate` save, what `rematerialize` adds, and the optimizer.

    Example:
        >>> imagenet = 1.28e6
        >>> round(keras_vit.training_exaflops("B/16", images=300 * imagenet), 1)
        40.5

    Args:
        model: as `flops` takes it, and what follows.
        images: that training sees: the size of the set times the epochs.
        image_size: of training, a side in pixels or `(H, W)`.
        classes: K; 0 for no head.
        channels: of the images.

    Returns:
        ExaFLOPs.

    Raises:
        TypeError: as `flops` does.
        ValueError: as `flops` does, and unless `images` is above 0.

    Source: arXiv:2010.11929, table 6.
    """
    check_positive("images", images)
    config, shape, classes = _architecture(model, image_size, classes, channels)
    if isinstance(config, ViTConfig):
        config = config.replace(last_block_outputs="all")
    return TRAINING_PASSES * _count_all(model, config, shape, classes).total * images / 1e18


# What is asked


def _architecture(
    model: Any, image_size: int | Pair | None, classes: int | None, channels: int | None
) -> tuple[ViTConfig | ResNetConfig, tuple, int]:
    """The config, the shape `(H, W, C)` of an image, and K."""
    if isinstance(model, (str, ViTConfig, ResNetConfig)):
        config = _published(model) if isinstance(model, str) else model
        sides = tuple(side * config.stride for side in config.grid(DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE))
        classes = DEFAULT_CLASSES if classes is None else check_int("classes", classes, least=0)
        channels = 3 if channels is None else check_positive_int("channels", channels)
    else:
        config, sides, channels, classes = _built(model, classes=classes, channels=channels)
    sides = check_image_size(sides if image_size is None else image_size, config)
    if None in sides:
        raise ArgumentError(
            "what is computed depends on the image's size, so it must be known.\n"
            f"Received: image_size={image_size}, sides {sides}. Pass `image_size`, a side or (H, W)."
        )
    _check_head(config, classes)
    return config, (*sides, channels), classes


def _published(name: str) -> ViTConfig | ResNetConfig:
    if name not in (known := VARIANTS | RESNETS):
        raise ValueError(
            f"a model's name must be one of {', '.join(known)}.\nReceived: {name!r}.{did_you_mean(name, known)}"
        )
    return known[name]


def _built(model: Any, **given: Any) -> tuple[Any, tuple, int, int]:
    """Config, sides, channels and classes of a model, which leaves nothing of what is given open."""
    if getattr(model, "config", None) is None or not hasattr(model, "image_shape"):
        raise TypeError(
            "`model` must be a VisionTransformer or ResNet that knows its config, a config, or the name of a variant.\n"
            f"Received: {model!r}. Of a model around it, pass the one inside."
        )
    if fixed := [f"{name}={value}" for name, value in given.items() if value is not None]:
        raise ValueError(
            "a model that is built has its classes and channels.\n"
            f"Received: {', '.join(fixed)} for {model.name!r}. Pass `model.config` to count another model."
        )
    *sides, channels = model.image_shape
    return model.config, tuple(sides), channels, model.classes


def _check_head(config: ViTConfig | ResNetConfig, classes: int) -> None:
    if isinstance(config, ViTConfig) and config.distilled and config.pooling == "none" and classes:
        raise ValueError(
            'the two heads of `distilled=True` read one token each, so `pooling="none"` goes without a head.\n'
            f"Received: classes={classes}. Pass classes=0."
        )


# The model, in the order of the data


def _count_all(model: Any, config: ViTConfig | ResNetConfig, shape: tuple, classes: int) -> Flops:
    """FLOPs of a config with a head of classes, or with that of a model of maps or boxes."""
    head = getattr(model, "head_flops", None)
    if head is None:
        return _count(config, shape, classes)
    return _count(config, shape, 0) + Flops(head=head(*config.grid(*shape[:2])))


def _count(config: ViTConfig | ResNetConfig, shape: tuple, classes: int) -> Flops:
    """FLOPs of a config for an image of shape `(H, W, C)`."""
    if isinstance(config, ResNetConfig):
        stem, _ = resnet(shape, config.stages, config.width)
        return Flops(stem=stem, head=product(1, config.features, classes))
    stages, width = config.resnet_stages, config.resnet_width
    stem, shape = (0, shape) if stages is None else resnet(shape, stages, width)  # (h P, w P, C)
    embedding, shape = convolution(shape, config.hidden_size, config.patch_size, config.patch_size)  # (h, w, D)
    grid, patches = shape[:2], math.prod(shape[:2])
    tokens = config.num_prefix_tokens + patches
    found = Flops(stem=stem, embedding=embedding, head=head(config, tokens, classes) + neck(config, patches))
    if config.blocks.kind == "merging":
        found += merging_blocks(config, tokens)
    else:
        every = [tokens] * (config.num_layers - 1) + [config.num_pooled_tokens or tokens]
        for index, queries in enumerate(every):
            found += encoder_block(config, grid, queries, index)
    if config.pooling in ("map", "attentive"):
        found += Flops(pooling=attention_pooling(config, tokens if config.pool_prefix_tokens else patches))
    return found


def encoder_block(config: ViTConfig, grid: Pair, queries: int, index: int = 0) -> Flops:
    """FLOPs of the block of that number for a grid of patches `(h, w)`, by its attention and its positions."""
    (height, width), patches = grid, math.prod(grid)
    if config.attention == "axial":
        return block(config, patches, patches, keys=width) + block(config, patches, patches, keys=height)
    if config.attention == "windowed":
        return windowed_block(config, grid, index)
    distances = product(patches, config.hidden_size, 2 * patches - 1)
    relative = Flops(products=distances if config.position_embedding == "relative" else 0)
    return block(config, config.num_prefix_tokens + patches, queries, index=index) + relative


def windowed_block(config: ViTConfig, grid: Pair, index: int) -> Flops:
    """FLOPs of a block with attention in windows, of which the last ones are padded, or to all patches."""
    side, patches = config.blocks.window_of(index), math.prod(grid)
    keys, sides = (patches, sum(grid)) if side is None else (side**2, 2 * side)
    tokens = patches if side is None else math.prod(-(-n // side) * side for n in grid)
    found = block(config, tokens, tokens, keys=keys, index=index)
    mlp = block(config, patches, patches, index=index).mlp
    return dataclasses.replace(found, mlp=mlp) + Flops(products=product(tokens, config.hidden_size, sides))


def merging_blocks(config: ViTConfig, tokens: int) -> Flops:
    """FLOPs of all blocks where each merges tokens for the next one."""
    found, last = Flops(), config.num_layers - 1
    for index in range(config.num_layers):
        read = config.num_pooled_tokens if index == last else None
        merged = 0 if read else min(config.merged_tokens, (tokens - config.num_prefix_tokens) // 2)
        queries, left = read or tokens, read or tokens - merged
        found += dataclasses.replace(block(config, tokens, queries), mlp=block(config, left, left).mlp)
        if merged:
            patches, odd = tokens - config.num_prefix_tokens, config.num_prefix_tokens % 2
            leaving, staying = (patches + 1 - odd) // 2, (patches + odd) // 2
            alike = product(leaving, config.hidden_size // config.num_heads, staying)
            found += Flops(products=alike + product(staying, merged, config.hidden_size + 1))
        tokens -= merged
    return found


def block(config: ViTConfig, tokens: int, queries: int, keys: int | None = None, index: int = 0) -> Flops:
    """FLOPs of a transformer block whose `queries` read from all `tokens`, or from so many `keys` each.

    The number of heads changes nothing: each has its part of the width.
    """
    found = {"attention": 0, "mlp": 0}
    for part in config.blocks.parts_of(index):
        rows = tokens if part.role in ("key", "value") else queries
        found[part.group] += product(rows, part.inputs, part.outputs)
    weights = product(queries, config.hidden_size, keys or tokens)
    mixed = product(queries, keys or tokens, config.hidden_size)
    return Flops(projections=found["attention"], products=weights + mixed, mlp=found["mlp"])


def attention_pooling(config: ViTConfig, tokens: int) -> int:
    """FLOPs of a probe that reads from so many tokens."""
    found = product(1, config.hidden_size, tokens) + product(1, tokens, config.hidden_size)
    for part in pooling_parts(config.hidden_size, config.map_mlp_dim or config.mlp_dim, config.pooling):
        found += product(tokens if part.role in ("key", "value") else 1, part.inputs, part.outputs)
    return found


def neck(config: ViTConfig, patches: int) -> int:
    """FLOPs of the convolutions that make a map of so many patches, if there are any."""
    size = config.neck_size or 0
    return product(patches, config.hidden_size, size) + product(patches, 9 * size, size)


def head(config: ViTConfig, tokens: int, classes: int) -> int:
    """FLOPs of what follows the pooling: `pre_logits`, the projection and the classifiers."""
    read = tokens if config.pooling == "none" else 1
    heads = 2 if config.distilled else 1
    sizes = [config.pooled_size, *filter(None, (config.representation_size, config.projection_size))]
    before = sum(product(read, *pair) for pair in itertools.pairwise(sizes))
    return before + heads * product(read, sizes[-1], classes)


def resnet(shape: tuple, stages: Sequence[int], width: int) -> tuple[int, tuple]:
    """FLOPs of a ResNet, and the shape of its feature map.

    Args:
        shape: of an image, `(H, W, C)`.
        stages: number of units in each stage.
        width: channels after the root.
    """
    count, shape = convolution(shape, width, kernel=7, strides=2)
    shape = _strided(shape, 2)  # max-pooling
    for stage, units in enumerate(stages):
        for unit in range(units):
            strides = 2 if stage and not unit else 1
            found, shape = bottleneck(shape, width * 2**stage, strides, projected=not unit)
            count += found
    return count, shape


def bottleneck(shape: tuple, filters: int, strides: int, *, projected: bool) -> tuple[int, tuple]:
    """FLOPs of one unit of a ResNet, and the shape after it; `projected` is whether the skip connection is."""
    first, inner = convolution(shape, filters, kernel=1)
    second, inner = convolution(inner, filters, kernel=3, strides=strides)
    third, outer = convolution(inner, 4 * filters, kernel=1)
    skip = convolution(shape, 4 * filters, kernel=1, strides=strides)[0] if projected else 0
    return first + second + third + skip, outer


# What everything is made of


def convolution(shape: tuple, filters: int, kernel: int, strides: int = 1) -> tuple[int, tuple]:
    """FLOPs of a convolution padded as SAME over `(H, W, C)`, and the shape after it."""
    height, width, channels = _strided(shape, strides)
    return product(height * width, kernel**2 * channels, filters), (height, width, filters)


def _strided(shape: tuple, strides: int) -> tuple[int, int, int]:
    height, width, channels = shape
    return -(-height // strides), -(-width // strides), channels


def product(rows: int, inner: int, columns: int) -> int:
    """FLOPs of a matrix `(rows, inner)` times a matrix `(inner, columns)`."""
    return _MULTIPLY_ADD * rows * inner * columns


def _giga(number: float) -> str:
    return f"{number / 1e9:.2f}"


def parameter_count(config: ViTConfig | ResNetConfig, image_size: int | Pair, classes: int, channels: int = 3) -> int:
    """Numbers in a model for images of `image_size` pixels, a side or (H, W); 0 `classes` is no head.

    Source: the shapes of arXiv:2010.11929, section 3.1, as the official code stores them; BiT's of a `ResNetConfig`.
    """
    if isinstance(config, ResNetConfig):
        return _bit_parameters(config) + (config.features + 1) * classes
    width, blocks, norm = config.hidden_size, config.blocks, _norm_parameters(config)
    channels, count = (channels, 0) if config.resnet_stages is None else _resnet_parameters(config, channels)
    count += config.patch_size**2 * channels * width + width * config.patch_bias
    count += width * config.position_offset
    count += config.num_prefix_tokens * width + _position_parameters(config, check_image_size(image_size, config))
    count += norm * width * (config.patch_norm + config.pre_norm + (config.final_norm == "tokens"))
    times = 2 if config.attention == "axial" else 1  # along rows, then along columns, with an MLP after each
    count += sum(times * _block_parameters(config, blocks.parts_of(index), norm) for index in range(config.num_layers))
    if config.pooling in ("map", "attentive"):
        parts = pooling_parts(width, config.map_mlp_dim or config.mlp_dim, config.pooling)
        count += width + sum(map(_part_parameters, parts)) + norm * width * (config.pooling == "map")
    size = config.neck_size or 0
    count += width * size + 9 * size**2 + 4 * size
    features = config.pooled_size
    count += norm * features if config.final_norm == "pooled" else 0
    for size in filter(None, (config.representation_size, config.projection_size)):
        count, features = count + (features + 1) * size, size
    return count + (features + 1) * classes * (2 if config.distilled else 1)


def _norm_parameters(config: ViTConfig) -> int:
    """Of a norm for each channel."""
    return 1 if config.norm == "rms" else 2


def _part_parameters(part: Part) -> int:
    return (part.inputs + part.bias) * part.outputs


def _block_parameters(config: ViTConfig, parts: Sequence[Part], norm: int) -> int:
    """Of the dense kernels of a block, and of the norms and factors around and between them."""
    width, keys = config.hidden_size, next(part.outputs for part in parts if part.role == "key")
    normed = {"none": 0, "head": 2 * width // config.num_heads, "width": width + keys}[config.qk_norm]
    normed += 2 * width + width * config.attention_norm + config.mlp_dim * config.mlp_norm
    return sum(map(_part_parameters, parts)) + norm * normed + width * sum(part.scale is not None for part in parts)


def _position_parameters(config: ViTConfig, sides: tuple) -> int:
    """Of all tables of positions: added to tokens, of relative positions and biases, and of rotations."""
    width, layers, prefix = config.hidden_size, config.num_layers, len(config.positioned_tokens)
    height, breadth = config.grid(*sides)
    added = {
        "learned": (prefix + height * breadth) * width,
        "learned2d": prefix * width + (height + breadth) * (width // 2),
    }
    count = added.get(config.position_embedding, 0) * (layers if config.position_injection == "blocks" else 1)
    if config.position_embedding == "relative":
        count += layers * (2 * height * breadth - 1) * width
    for index in range(layers if config.attention == "windowed" else 0):
        side = config.blocks.window_of(index)
        count += 2 * ((height + breadth if side is None else 2 * side) - 1) * (width // config.num_heads)
    bias = ((2 * height - 1) * (2 * breadth - 1) + 3) * config.num_heads
    count += bias * {"none": 0, "shared": 1, "blocks": layers}[config.relative_bias]
    each = width // config.num_heads
    axial = each // 4 * (config.rotary_periods == "stored") + each // 2 * config.rotary_class_angles
    return count + {"none": 0, "axial": axial, "mixed": layers * width}[config.rotary]


def _resnet_parameters(config: ViTConfig, channels: int) -> tuple[int, int]:
    """Channels of the feature map, and the parameters of the ResNet before the transformer, for so many of images."""
    count, channels = 49 * channels * config.resnet_width + 2 * config.resnet_width, config.resnet_width
    for stage, blocks in enumerate(config.resnet_stages):
        inner = config.resnet_width * 2**stage
        for block in range(blocks):
            count += channels * inner + 9 * inner**2 + 4 * inner**2 + 12 * inner
            if block == 0:
                count += 4 * channels * inner + 8 * inner
            channels = 4 * inner
    return channels, count


def _bit_parameters(config: ResNetConfig) -> int:
    """Parameters of a ResNet baseline without its head; its norms stand before the convolutions."""
    channels, count = config.width, 7 * 7 * 3 * config.width + 2 * config.features
    for stage, units in enumerate(config.stages):
        inner = config.width * 2**stage
        for unit in range(units):
            count += 2 * channels + 4 * inner + channels * inner + 13 * inner**2
            if unit == 0:
                count += 4 * channels * inner
            channels = 4 * inner
    return count
