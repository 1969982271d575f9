"""How much memory training takes, estimated before the first step, and whether the machine has it.

What training keeps for the way back is counted per block from the sizes of the model. The counts are those of
TensorFlow's training graph, fitted to measured peaks and on the high side of them.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import psutil

from keras_vit import kernels
from keras_vit.annotations import FilePath, Variable
from keras_vit.checks import ArgumentError, check_choice, check_positive_int
from keras_vit.config.heads import MAP_HEADS
from keras_vit.config.text import TextConfig
from keras_vit.dense.matching import POINTS
from keras_vit.keras_private import graph_nodes
from keras_vit.kernels.chunked_attention import is_worthwhile
from keras_vit.layers import AxialBlock, ResNetRoot, ResNetUnit, StdConv2D, TransformerBlock
from keras_vit.layers.configurable import CompositeLayer, flatten_layers
from keras_vit.layers.dense_heads.maps import ResizeToImages
from keras_vit.layers.tokens import kept_patches
from keras_vit.model.dense_model import DenseModel
from keras_vit.model.layer_access import blocks_with_queries, dense_parts, encoder_blocks
from keras_vit.model.two_towers.text_tower import TextTransformer
from keras_vit.model.vision_transformer import VisionTransformer, check_vision_transformer
from keras_vit.training.contrastive import ContrastiveModel

_OF_WHOLE_BATCHES = (DenseModel, ContrastiveModel)  # whose step is not divided
SLOTS = {"sgd": 1, "adamw": 2}  # numbers an optimizer keeps for every weight
# Bytes that a first training step takes for itself, more if blocks learn, to compile with XLA, and for a loop over
# micro-batches.
_RUNTIME = (70_000_000, 100_000_000, 400_000_000, 100_000_000)
_COPIES_OF_A_DIVIDED_BATCH = 4  # of its images: as they came, filled up, and cut into micro-batches

# Numbers kept for one example and block: times T * D, T * M and A * T * T.
_KEPT = (6.75, 1.65, 0.15)  # by TensorFlow with `keras_vit.kernels.tensorflow_training`
_KEPT_BY_XLA = (9, 3, 1)
_KEPT_OF_TEXT = (9, 3, 1)  # with quick GELU, which keeps most: of others 1.3 to 1.5 times what is taken
_KEPT_BY_NAME = (7, 1, 0)  # of a block that is not being computed, where `kernels.remat`
_KEPT_BY_DROPOUT = (5.5, 3.2, 0)  # more, where there is dropout
_KEPT_BY_ATTENTION_DROPOUT = (0, 0, 3.5)
_KEPT_BY_LORA_IN_MLP = (1.5, 4.5, 0)  # more, since plain gradients keep all of GELU
_KEPT_BY_LORA_IN_ATTENTION = (3.5, 0, 0.05)
_KEPT_BY_GATE = (0, 2.6, 0)  # both factors and their product, by plain gradients
_KEPT_BY_POST_NORM = (1.25, 0, 0)  # more, since their input is not what the block keeps anyway
_KEPT_BY_KEYS_AND_VALUES = 5  # times T * D, in a last block that computes the class token alone
# What is kept of a head for each pixel: of each number that its operations put out; of each class or depth at the
# image's size, and of so many numbers more that a loss makes of labels; of queries, of each at each of a loss' points.
_KEPT_OF_HEAD = 1.0
_KEPT_OF_PIXELS, _MORE_OF_PIXELS = 4, 3
_KEPT_OF_POINTS = 10
_RUNTIME_OF_HEAD = 150_000_000
_KEPT_BY_CONVOLUTION = 5  # for each number that a convolution of the ResNet puts out, GroupNorm's among them


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a training step needs, by what they are for.

    Attributes:
        weights: of the model; they are there before training.
        gradients: of what learns; twice that with accumulation.
        optimizer: the optimizer's slots.
        average: of Polyak averaging.
        activations: what the way back needs of one micro-batch, and the images of the batch.
        runtime: what the first step takes for itself.
    """

    weights: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    runtime: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(dataclasses.asdict(self).values())

    @property
    def needed(self) -> int:
        """What is not there yet when a model has been built: all but the weights."""
        return self.total - self.weights

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {_gigabytes(value)}" for name, value in dataclasses.asdict(self).items() if value)
        return f"{_gigabytes(self.total)} of memory: {parts}"


def estimate_memory(
    model: VisionTransformer | DenseModel | ContrastiveModel,
    batch_size: int,
    *,
    accumulation_steps: int | None = None,
    optimizer: str | None = None,
    ema: bool | None = None,
) -> MemoryEstimate:
    """Estimates the memory that training takes; rather too much than too little.

    What is left out is as the model was compiled; of one that was not, whole batches, SGD, and no averages.

    Example:
        >>> estimate = keras_vit.estimate_memory(model, batch_size=8, optimizer="adamw")
        >>> estimate.weights, estimate.optimizer  # bytes
        (4159500, 8319000)

    Args:
        model: a `VisionTransformer` of known image size, a segmenter, depth estimator or another `DenseModel`, or a
            `ContrastiveModel` with an image and a text tower. Frozen layers, LoRA, mixed precision, `rematerialize`,
            `patch_dropout_rate` and the `jit_compile` that it is or would be compiled with are taken into account.
        batch_size: images of one step on one device.
        accumulation_steps: micro-batches that a step is computed in; must divide `batch_size`.
        optimizer: `"sgd"` (with momentum) or `"adamw"`, Adam too.
        ema: whether Polyak averaging keeps a second set of weights.

    Returns:
        A `MemoryEstimate`; as a string it is one readable line.

    Raises:
        TypeError: for a value of the wrong type, or a model of another kind.
        ValueError: for a value out of range, or a model of unknown image size.
    """
    accumulation_steps, slots, ema = _as_compiled(model, accumulation_steps, optimizer, ema)
    _check_arguments(model, batch_size, accumulation_steps)
    learning = sum(_bytes(weight) for weight in model.trainable_weights)
    return MemoryEstimate(
        weights=sum(_bytes(weight) for weight in model.weights),
        gradients=learning * (2 if accumulation_steps > 1 else 1),
        optimizer=learning * slots,
        average=learning if ema else 0,
        activations=round(sum(_activations(tower, batch_size, accumulation_steps) for tower in towers(model))),
        runtime=round(_runtime(model, accumulation_steps)),
    )


def largest_micro_batch(
    model: Any, batch_size: int, available: int, *, optimizer: str | None = None, ema: bool | None = None
) -> int:
    """The largest divisor of `batch_size` that fits as a micro-batch into `available` bytes, or 0 if not even 1 does.

    Of models whose step is of a whole batch, those with dense heads and contrastive ones, it is the largest batch.

    Args:
        model: a `VisionTransformer` that is built, so its weights are not counted again.
        batch_size: images of one step on one device.
        available: bytes.
        optimizer: as `estimate_memory` takes it.
        ema: as `estimate_memory` takes it.
    """
    for steps in (k for k in range(1, batch_size + 1) if batch_size % k == 0):
        batch, parts = (batch_size // steps, 1) if isinstance(model, _OF_WHOLE_BATCHES) else (batch_size, steps)
        estimate = estimate_memory(model, batch, accumulation_steps=parts, optimizer=optimizer, ema=ema)
        if estimate.needed <= available:
            return batch_size // steps
    return 0


def check_memory(
    model: VisionTransformer | ContrastiveModel,
    batch_size: int,
    *,
    accumulation_steps: int | None = None,
    optimizer: str | None = None,
    ema: bool | None = None,
    available: int | None = None,
) -> MemoryEstimate:
    """Raises an error if a training step does not fit into memory, and says which would.

    Example:
        >>> keras_vit.check_memory(model, batch_size=8, available=10_000_000)
        Traceback (most recent call last):
            ...
        keras_vit.checks.ArgumentError: training needs 0.18 GB in addition to the weights, and 0.01 GB are free...

    Args:
        model: as `estimate_memory` takes it, and what follows.
        batch_size: images of one step on one device.
        accumulation_steps: micro-batches of a step.
        optimizer: `"sgd"` or `"adamw"`.
        ema: whether weights are averaged.
        available: bytes; by default those that `available_memory` finds. If it finds none, nothing is refused.

    Returns:
        The `MemoryEstimate`.

    Raises:
        ValueError: if the batch needs more than there is.
    """
    accumulation_steps = _steps_as_compiled(model) if accumulation_steps is None else accumulation_steps
    estimate = estimate_memory(model, batch_size, accumulation_steps=accumulation_steps, optimizer=optimizer, ema=ema)
    available = available_memory() if available is None else available
    if available is None or estimate.needed <= available:
        return estimate
    micro_batch = largest_micro_batch(model, batch_size, available, optimizer=optimizer, ema=ema)
    raise ArgumentError(
        f"training needs {_gigabytes(estimate.needed)} in addition to the weights, and {_gigabytes(available)} are "
        "free.\n"
        f"Received: batch_size={batch_size}, accumulation_steps={accumulation_steps}, {model.name!r}; {estimate}.\n"
        + _advice(model, batch_size, micro_batch),
        parameters=("batch_size", "accumulation_steps"),
    )


def _advice(model: Any, batch_size: int, micro_batch: int) -> str:
    if micro_batch and isinstance(model, _OF_WHOLE_BATCHES):
        return f"Pass batch_size={micro_batch}."
    if micro_batch:
        return f"Pass accumulation_steps={batch_size // micro_batch}: the same step in micro-batches of {micro_batch}."
    others = [] if model.config.rematerialize else ["building the model with rematerialize=True"]
    others += ["smaller images", "a smaller model", '`freeze(model, "head")`']
    return f"Not even one image fits; what helps: {', '.join(others)}."


def _as_compiled(
    model: Any, accumulation_steps: int | None, optimizer: str | None, ema: bool | None
) -> tuple[int, int, bool]:
    """Micro-batches, numbers that the optimizer keeps for every weight, and whether one more is an average."""
    steps = _steps_as_compiled(model) if accumulation_steps is None else accumulation_steps
    compiled = model.optimizer if model.compiled else None
    compiled = getattr(compiled, "inner_optimizer", compiled)  # in which float16 is scaled
    if optimizer is not None or compiled is None:
        check_choice("optimizer", "sgd" if optimizer is None else optimizer, SLOTS)
        slots = SLOTS[optimizer or "sgd"]
    else:
        slots = bool(compiled.momentum) if isinstance(compiled, keras.optimizers.SGD) else max(SLOTS.values())
    return steps, slots, bool(getattr(compiled, "use_ema", False)) if ema is None else ema


def towers(model: Any) -> tuple[Any, ...]:
    """The towers of a `ContrastiveModel`, of which the first is that of images; of another model it alone."""
    return (model.image, model.text) if isinstance(model, ContrastiveModel) else (model,)


def _steps_as_compiled(model: Any) -> int:
    """Micro-batches of a step; raises for a model of another kind than are estimated here."""
    image, *others = towers(model)
    if not isinstance(image, DenseModel):
        check_vision_transformer(image)
    return 1 if others else image.accumulation_steps


def _check_arguments(model: Any, batch_size: int, accumulation_steps: int) -> None:
    check_positive_int("batch_size", batch_size)
    check_positive_int("accumulation_steps", accumulation_steps)
    if batch_size % accumulation_steps:
        raise ArgumentError(
            "`accumulation_steps` must divide `batch_size`, so that every micro-batch is full.\n"
            f"Received: batch_size={batch_size}, accumulation_steps={accumulation_steps}."
        )
    if None in model.input_shape[1:]:
        raise ValueError(
            "the memory of training depends on the image size, so the model must have one.\n"
            f"Received: {model.input_shape}. Pass `with_input_shape(model, (H, W, C))`."
        )


def _runtime(model: Any, micro_batches: int) -> int:
    step, blocks, compiler, loop = _RUNTIME
    parts = towers(model)
    learns = any(learning_blocks(tower) for tower in parts)
    step += _RUNTIME_OF_HEAD if isinstance(model, DenseModel) else 0
    reasons = ((blocks, learns), (compiler, parts[0].jit_compile), (loop, micro_batches > 1))
    return step + sum(taken for taken, reason in reasons if reason)


def _activations(model: Any, batch: int, micro_batches: int) -> float:
    """Bytes that the way back needs of one micro-batch, with the copies of the weights in half precision."""
    size = _item_size(encoder_blocks(model)[0].compute_dtype)
    before = _before_the_blocks(model)
    learning = learning_blocks(model)
    kept = [_kept(model, block) for block in encoder_blocks(model)]
    numbers = max(kept)  # while one block is computed, all that is in it
    if getattr(model.config, "rematerialize", False) and learning:
        numbers += 2 * max(kept) + len(learning) * _tokens(model) * model.config.hidden_size
    elif learning and kernels.select("remat", training=True).name != "plain":
        tokens, config = _tokens(model), model.config
        gates = getattr(config, "gated_mlp", False)
        sizes = (tokens * config.hidden_size, tokens * config.mlp_dim * (1 + gates), 0)
        numbers += len(learning) * sum(factor * size for factor, size in zip(_KEPT_BY_NAME, sizes, strict=True))
    elif learning:
        numbers = sum(kept[-len(learning) :])
    image = 4 * (_tokens(model) if isinstance(model, TextTransformer) else math.prod(model.input_shape[1:]))
    copies = sum(math.prod(weight.shape) for weight in model.weights) * size if size < 4 else 0
    divided = _COPIES_OF_A_DIVIDED_BATCH * batch * image if micro_batches > 1 else 0
    micro_batch = size * (numbers + before) + 2 * image  # as it came and cut into patches
    micro_batch += _of_head(model) if isinstance(model, DenseModel) else 0
    return batch // micro_batches * micro_batch + copies + divided


def _kept(model: Any, block: Any) -> float:
    """Numbers that one block keeps of one example."""
    tokens = _tokens(model)
    if isinstance(block, AxialBlock):
        height, width = model.config.grid(*model.input_shape[1:3])
        return _kept_by(model, block.row, tokens, width) + _kept_by(model, block.column, tokens, height)
    return _kept_by(model, block, tokens, tokens)


def _kept_by(model: Any, block: Any, tokens: int, keys: int) -> float:
    """Numbers that a block keeps of one example, where each token attends to so many keys."""
    config = model.config
    if isinstance(config, TextConfig):
        return _kept_of_text(block, tokens)
    if config.num_pooled_tokens is not None and block is encoder_blocks(model)[-1]:
        return _KEPT_BY_KEYS_AND_VALUES * tokens * block.hidden_size
    factors = [_KEPT_BY_XLA if model.jit_compile else _KEPT]
    factors += [_KEPT_BY_DROPOUT] if block.dropout_rate else []
    factors += [_KEPT_BY_GATE] if config.gated_mlp else []
    factors += [_KEPT_BY_POST_NORM] if config.norm_position == "post" else []
    adapted = {found.part.group for found in dense_parts(model) if found.dense.lora_enabled}
    factors += [_KEPT_BY_LORA_IN_MLP] if "mlp" in adapted else []
    factors += [_KEPT_BY_LORA_IN_ATTENTION] if "attention" in adapted else []
    factors += [_KEPT_BY_ATTENTION_DROPOUT] if block.attention_dropout_rate else []
    weights = block.num_heads * tokens * keys
    if block.relative_patches is None and is_worthwhile(keys, keys):
        weights = 0
    sizes = (tokens * block.hidden_size, tokens * block.mlp_dim, weights)
    return sum(factor * size for row in factors for factor, size in zip(row, sizes, strict=True))


def _kept_of_text(block: Any, tokens: int) -> float:
    """Numbers that a block of a text tower keeps of one text."""
    sizes = (tokens * block.hidden_size, tokens * block.mlp_dim, block.num_heads * tokens**2)
    return sum(factor * size for factor, size in zip(_KEPT_OF_TEXT, sizes, strict=True))


def _before_the_blocks(model: Any) -> float:
    """Numbers kept of one example up to the first block: tokens, and the ResNet's feature maps if it learns."""
    numbers = 3 * _tokens(model) * model.config.hidden_size
    for layer in model.layers:
        if isinstance(layer, (ResNetRoot, ResNetUnit)) and layer.trainable_weights:
            height, width = layer.output.shape[1:3]
            strided = 2 if isinstance(layer, ResNetRoot) else 1  # its convolution comes before its pooling
            channels = sum(part.filters for part in flatten_layers(layer) if isinstance(part, StdConv2D))
            numbers += _KEPT_BY_CONVOLUTION * height * width * strided**2 * channels
    return numbers


def _tokens(model: Any) -> int:
    """T, as training has it."""
    if isinstance(model.config, TextConfig):
        return model.config.max_length
    prefix, grid = model.config.num_prefix_tokens, model.config.grid(*model.input_shape[1:3])
    return prefix + kept_patches(math.prod(grid), model.config.patch_dropout_rate)


def _of_head(model: DenseModel) -> float:
    """Bytes that the way back needs of what follows an encoder's taps, for one example."""
    after = model.layers[model.layers.index(model.head) :]
    calls = [node for node in graph_nodes(model) if node.operation in after]
    made = sum(
        _made_by(node.operation, node.arguments.args[0])
        for node in calls
        if not isinstance(node.operation, ResizeToImages)
    )
    kept = _KEPT_OF_HEAD * _item_size(model.head.compute_dtype) * made
    if model.raw or model.task not in MAP_HEADS:
        return kept
    pixels = math.prod(model.input_shape[1:3])
    if queries := blocks_with_queries(model):  # a head in front of each of these blocks, and behind the last
        return (1 + queries) * (kept + 4 * _KEPT_OF_POINTS * model.head.num_queries * min(POINTS, pixels))
    return kept + 4 * _KEPT_OF_PIXELS * (model.output_spec.size + _MORE_OF_PIXELS) * pixels


def _made_by(layer: keras.Layer, inputs: Any) -> float:
    """How many numbers the operations of a layer put out for one example, those of its parts among them."""
    fresh = keras.tree.map_structure(lambda x: keras.Input(batch_shape=(1, *x.shape[1:]), dtype=x.dtype), inputs)
    made = 0.0
    for node in graph_nodes(keras.Model(keras.tree.flatten(fresh), layer.call(fresh))):
        part = node.operation
        if isinstance(part, TransformerBlock):
            made += _kept_of_text(part, node.output_tensors[0].shape[1])  # nearly what each of its operations puts out
        elif isinstance(part, CompositeLayer):
            made += _made_by(part, node.arguments.args[0])
        elif not isinstance(part, keras.layers.InputLayer):
            made += sum(math.prod(output.shape) for output in node.output_tensors)
    return made


def learning_blocks(model: Any) -> list[keras.layers.Layer]:
    """The blocks that gradients pass: all after the first layer that learns."""
    learns = [bool(layer.trainable_weights) for layer in model.layers]
    after = model.layers[learns.index(True) :] if any(learns) else []
    return [layer for layer in encoder_blocks(model) if layer in after]


def _bytes(variable: Variable) -> int:
    return math.prod(variable.shape) * _item_size(variable.dtype)


def _item_size(dtype: str) -> int:
    return ml_dtypes.finfo(dtype).bits // 8 if keras.backend.is_float_dtype(dtype) else np.dtype(dtype).itemsize


def _gigabytes(number: float) -> str:
    return f"{number / 1e9:.2f} GB"


_CONTAINER_V2 = ("memory.max", "memory.current", "inactive_file")
_CONTAINER_V1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file")


def available_memory() -> int | None:
    """Measures how many bytes of memory are free.

    With an accelerator (JAX, TensorFlow or torch sees it), what is free of the first one's memory. Else the
    smaller of what the system calls available and what the container's limit leaves; pages of files that can be
    dropped count as free.

    Example:
        >>> keras_vit.available_memory() > 0
        True

    Returns:
        Bytes, or `None` where it cannot be measured, as on Linux without `/proc`.
    """
    found = _accelerator_memory()
    if found is not None:
        return found
    known = [value for value in (_system_memory(), container_memory()) if value is not None]
    return min(known, default=None)


def _accelerator_memory() -> int | None:
    probe = {"jax": _jax_memory, "tensorflow": _tensorflow_memory, "torch": _torch_memory}.get(keras.backend.backend())
    return None if probe is None else probe()


def _jax_memory() -> int | None:
    import jax

    stats = jax.local_devices()[0].memory_stats()  # None on a CPU
    return stats["bytes_limit"] - stats["bytes_in_use"] if stats else None


def _tensorflow_memory() -> int | None:
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        return None
    with tf.compat.v1.Session() as session:  # the only source of what TensorFlow may take
        devices = session.list_devices()
    limit = next(device.memory_limit_bytes for device in devices if device.device_type == "GPU")
    return limit - tf.config.experimental.get_memory_info("GPU:0")["current"]


def _torch_memory() -> int | None:
    import torch

    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else None


def _system_memory() -> int | None:
    try:
        return psutil.virtual_memory().available
    except OSError:
        return None


def container_memory(root: FilePath = "/sys/fs/cgroup") -> int | None:
    """Bytes that the limit of the container (cgroup, version 2 or 1) leaves, or `None` without a limit.

    `psutil` measures the machine alone.
    """
    for limit_file, usage_file, droppable in (_CONTAINER_V2, _CONTAINER_V1):
        limit, usage = _number(Path(root) / limit_file), _number(Path(root) / usage_file)
        if limit is None or usage is None:
            continue
        folder = Path(root) / ("memory" if droppable.startswith("total") else "")
        return max(limit - usage + (_field(folder / "memory.stat", droppable) or 0), 0)
    return None


def _number(path: Path) -> int | None:
    """The number in a file, or `None` for another word, as "max", or no file."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _field(path: Path, name: str) -> int | None:
    """The number after `name` in a file of lines "name number"."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), None)
