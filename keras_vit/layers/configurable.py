"""A layer made of other layers: its config, the layers inside it, and how it is computed twice.

The layers inside are found by what attributes hold: publicly Keras lists those of a model alone.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Arguments, Shape, Tensor, Variable
from keras_vit.config.parts import Part
from keras_vit.keras_private import set_own_policy
from keras_vit.layers.dropout import next_seed
from keras_vit.renamed import ARGUMENTS, accepts_old_names, current_arguments


class Unfreezable:
    """What stands before a layer or model, so that `trainable = True` reaches what is frozen inside of it.

    TensorFlow's tracking drops an assignment of the very object that is there, as if nothing inside were frozen.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        # A number is another object than the bool that is there, and Keras makes a bool of it.
        super().__setattr__(name, int(bool(value)) if name == "trainable" else value)


class _WithFrozenWeights(keras.layers.Layer):
    """Makes single weights of a layer that learns not trainable where they are made, as a file with LoRA says."""

    frozen_weights: frozenset[str] = frozenset()

    def add_weight(self, *args: Any, **kwargs: Any) -> Variable:
        weight = super().add_weight(*args, **kwargs)
        if weight.name in self.frozen_weights:
            weight.trainable = False
        return weight


class Dense(_WithFrozenWeights, keras.layers.Dense):
    """Keras' dense layer, whose files keep the kernel and LoRA's factors apart. Keras merges them when it saves."""

    lora_alpha: float | None

    def build(self, input_shape: Shape) -> None:
        alpha: float | None = self.lora_alpha
        super().build(input_shape)
        self.lora_alpha = alpha  # Keras passes `enable_lora` the rank alone

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        super().quantize(mode, type_check=False, config=config)  # Keras refuses subclasses, which may compute otherwise

    def save_own_variables(self, store: Any) -> None:
        if not self.lora_enabled:
            super().save_own_variables(store)
            return
        for weight in self.weights:
            store[weight.name] = weight
        store[_LORA_SCALE] = np.float32(self.lora_alpha / self.lora_rank)

    def load_own_variables(self, store: Any) -> None:
        """Loads LoRA as it is where both have it; into a layer without, merged; weights without it next to a new A."""
        names = [*store.keys()]
        if _LORA_SCALE in names:
            self._load_lora({name: np.asarray(store[name]) for name in names})
            return
        first = ops.copy(self.lora_kernel_a) if self.lora_enabled else None
        super().load_own_variables(store)
        if first is not None:
            self.lora_kernel_a.assign(first)  # Keras leaves A = B = 0, from where no gradient leads away

    def _load_lora(self, values: dict[str, np.ndarray]) -> None:
        scale = values.pop(_LORA_SCALE)
        if not self.lora_enabled:
            a, b = values.pop("lora_kernel_a"), values.pop("lora_kernel_b")
            if self.quantization_mode is None:
                values["kernel"] = values["kernel"].astype("float32") + scale * (a @ b)
        elif (rank := values["lora_kernel_a"].shape[-1]) != self.lora_rank:
            raise ValueError(
                "a layer and its file must have LoRA of the same rank.\n"
                f"Received: {self.path} of rank {self.lora_rank}, and rank {rank} in the file. "
                f"Call `add_lora(model, {rank})` before the weights are loaded."
            )
        elif not np.isclose(scale, self.lora_alpha / self.lora_rank):
            raise ValueError(
                "a layer and its file must have the same LoRA.\n"
                f"Received: {self.path} with alpha / rank {self.lora_alpha / self.lora_rank}, the file with {scale}."
            )
        for weight in self.weights:
            weight.assign(values[weight.name])


_LORA_SCALE = "lora_scale"  # alpha / rank, in the file of a layer with LoRA


class ConfiguredLayer(Unfreezable, _WithFrozenWeights, keras.layers.Layer):
    """Base of layers that keep every argument under its own name, from where `get_config` takes it.

    The config also has what is frozen inside of a layer that learns, and the LoRA inside, if there is any.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        accepts_old_names(cls)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A call, which takes the old names of its arguments too; silently in the graph of a file."""
        if not ARGUMENTS.keys().isdisjoint(kwargs):
            in_file = any(isinstance(value, keras.KerasTensor) for value in (*args, *kwargs.values()))
            kwargs = current_arguments(kwargs, stacklevel=None if in_file else 2)
        return super().__call__(*args, **kwargs)

    def build_from_config(self, config: Arguments) -> None:
        """Builds for the shapes that a file has, by the old names of arguments too."""
        names = {f"{old}_shape": f"{new}_shape" for old, new in ARGUMENTS.items()}
        shapes = {names.get(name, name): shape for name, shape in config.get("shapes_dict", {}).items()}
        super().build_from_config({**config, "shapes_dict": shapes} if shapes else config)

    @classmethod
    def arguments(cls) -> tuple[str, ...]:
        """Names of what the layer takes besides Keras' own arguments."""
        own = [base for base in cls.__mro__ if issubclass(base, ConfiguredLayer) and "__init__" in vars(base)]
        names = (name for base in own for name in inspect.signature(vars(base)["__init__"]).parameters)
        return tuple(dict.fromkeys(name for name in names if name not in ("self", "kwargs")))

    def get_config(self) -> Arguments:
        config = {**super().get_config(), **{name: getattr(self, name) for name in self.arguments()}}
        frozen, lora = frozen_inside(self), lora_inside(self)
        return config | ({"frozen": frozen} if frozen else {}) | ({"lora": lora} if lora else {})

    @classmethod
    def from_config(cls, config: Arguments) -> Self:
        arguments = current_arguments(config, {old: new for old, new in ARGUMENTS.items() if new in cls.arguments()})
        frozen, lora = arguments.pop("frozen", ()), arguments.pop("lora", {})
        layer = super().from_config(arguments)
        freeze_inside(layer, frozen)
        for path, (rank, alpha) in lora.items():
            dense = _part_at(layer, path)
            dense.lora_rank, dense.lora_alpha = rank, alpha  # by which `build` adds the factors
        return layer


class CompositeLayer(ConfiguredLayer):
    """Base of layers with dense layers inside.

    `model.quantize("int8")` changes the dtype policy of the dense layers inside a block, which the block's
    own arguments do not tell. Saved with a map of them, a quantised model can be reloaded. Then every part shares the
    map until it is built, and takes its own policy out of it.

    Attributes:
        parts: what the layer declares of its dense kernels, a tuple of `Part`.
    """

    parts: tuple[Part, ...] = ()

    def get_config(self) -> Arguments:
        config = super().get_config()
        quantized = [layer for layer in flatten_layers(self, include_self=False) if layer.quantization_mode]
        if quantized:
            policies = keras.dtype_policies.DTypePolicyMap(default_policy=self.dtype_policy)
            for layer in quantized:
                policies[layer.path] = layer.dtype_policy
            config["dtype"] = keras.dtype_policies.serialize(policies)
        return config

    def build_sublayers(self, *layers: tuple[keras.layers.Layer, Shape]) -> None:
        """Builds layers inside, each for its shape, and gives every layer of a map of policies its own."""
        for layer, shape in layers:
            layer.build(shape)
        for layer in flatten_layers(self):
            set_own_policy(layer)


class CastingLayer(CompositeLayer):
    """Base of layers that leave it to the layers inside to cast variables, and read their own as they are.

    Keras casts every variable that a layer reads to the layer's precision, and keeps the result for the backward pass.
    What computes here casts a weight when it needs it, and casts it again in the backward pass.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)

    def cast_input(self, tensor: Tensor) -> Tensor:
        """A tensor in the precision of this layer; `None` stays `None`."""
        return None if tensor is None else ops.cast(tensor, self.compute_dtype)


def at_least_float32(policy: Any = None) -> Any:
    """The policy, or float32 for one of half precision.

    Logits in half precision cost accuracy (a bfloat16 softmax is off by 0.02), and so do angles.
    """
    policy = keras.dtype_policies.get(policy or keras.config.dtype_policy())
    return "float32" if policy.compute_dtype in ("float16", "bfloat16") else policy


def dense_of(part: Part, dtype: Any, **arguments: Any) -> keras.layers.Dense:
    """The dense layer that a `Part` declares."""
    return Dense(
        part.outputs, use_bias=part.bias, kernel_initializer="glorot_uniform", dtype=dtype, name=part.path, **arguments
    )


def recomputed(
    layer: keras.Layer, compute: Callable[..., Tensor], remat: Callable | None, x: Tensor, **optional: Tensor
) -> Tensor:
    """`compute(x, **optional)`, which uses the variables of `layer`, evaluated anew in the backward pass.

    `remat` makes a function into one that keeps less for its gradient, as `keras.remat` does; with `None` all is
    kept.

    `keras.remat` alone would draw other dropout masks the second time, because a seed is a variable that every
    draw moves on. So each seed is drawn once, outside, and both evaluations find all variables, weights and seeds,
    at the values they had. Weights are arguments, since each has its gradient: as tensors, because a variable
    would hand its gradient on twice where nothing is traced.
    """
    if remat is None:
        return compute(x, **optional)
    weights = layer.weights  # seeds are not among them
    drawn = [(generator.state, next_seed(generator)) for generator in _seed_generators(layer)]

    def evaluate(*given: Tensor) -> Tensor:
        inputs, values = given[: -len(weights)], given[-len(weights) :]
        with keras.StatelessScope(state_mapping=[*drawn, *zip(weights, values, strict=True)]):
            return compute(inputs[0], **dict(zip(optional, inputs[1:], strict=True)))

    return remat(evaluate)(x, *optional.values(), *[ops.copy(weight) for weight in weights])


def _seed_generators(layer: keras.Layer) -> list[keras.random.SeedGenerator]:
    return [part.seed_generator for part in flatten_layers(layer) if getattr(part, "seed_generator", None)]


def flatten_layers(layer: keras.Layer, include_self: bool = True) -> list[keras.Layer]:
    """A layer, its parts, and their parts, each once and in the order in which they were made.

    Args:
        layer: a layer or a model.
        include_self: whether the list begins with `layer`.
    """
    found = {id(layer): layer}
    waiting = list(_parts(layer))[::-1]
    while waiting:
        part = waiting.pop()
        if id(part) not in found:
            found[id(part)] = part
            waiting += list(_parts(part))[::-1]
    return list(found.values())[0 if include_self else 1 :]


def frozen_inside(layer: keras.Layer) -> list[str]:
    """Paths of the outermost frozen layers inside a layer that learns, as `"attention/query"`.

    Where LoRA is inside, also of single frozen weights, as `"attention/query/bias"`.
    """
    if not layer.trainable:
        return []
    paths, parts = [], list(_parts(layer))
    if any(getattr(part, "lora_enabled", False) for part in flatten_layers(layer)):
        of_parts = {id(weight) for part in parts for weight in part.weights}
        own = [weight for weight in layer.weights if id(weight) not in of_parts]
        paths += [weight.name for weight in own if not weight.trainable]
    for part in parts:
        paths += [f"{part.name}/{path}" for path in frozen_inside(part)] if part.trainable else [part.name]
    return list(dict.fromkeys(paths))


def lora_inside(layer: keras.Layer) -> dict[str, tuple[int, float | None]]:
    """`(rank, alpha)` of this package's dense layers with LoRA inside a layer, by their paths."""
    found = {}
    for part in _parts(layer):
        if isinstance(part, Dense) and part.lora_enabled:
            found[part.name] = (part.lora_rank, part.lora_alpha)
        found |= {f"{part.name}/{path}": values for path, values in lora_inside(part).items()}
    return found


def freeze_inside(layer: keras.Layer, paths: Sequence[str] = ()) -> None:
    """Freezes all layers inside a frozen layer, and the layers or weights at `paths` inside one that learns.

    A config of Keras has `trainable` of the outermost layer alone. A layer inside of it would say that it learns, and
    TensorFlow's tracking drops a `trainable = True` that sets nothing new: its weights would never learn again.
    """
    if not layer.trainable:
        for part in flatten_layers(layer, include_self=False):
            part.trainable = False
    for path in paths:
        place, _, name = path.rpartition("/")
        holder = _part_at(layer, place)
        part = next((each for each in _parts(holder) if each.name == name), None)
        if part is not None:
            part.trainable = False
        else:
            holder.frozen_weights = holder.frozen_weights | {name}


def _part_at(layer: keras.Layer, path: str) -> Any:
    """The layer at a path of names inside another one; that one at `""`."""
    for name in filter(None, path.split("/")):
        layer = next(each for each in _parts(layer) if each.name == name)
    return layer


def _parts(layer: keras.Layer) -> Iterator[keras.Layer]:
    # The attributes of a model hold its graph too, and with it layers of models around it.
    held = layer.layers if isinstance(layer, keras.Model) else list(vars(layer).values())
    return _layers_in(held)


def _layers_in(held: Any) -> Iterator[keras.Layer]:
    """The layers in a structure of lists, tuples, sets and dicts."""
    if isinstance(held, keras.Layer):
        yield held
    elif isinstance(held, dict):
        yield from _layers_in(list(held.values()))
    elif isinstance(held, (list, tuple, set)):
        for each in held:
            yield from _layers_in(each)
