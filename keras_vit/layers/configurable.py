"""A layer made of other layers: how it is saved with the precision of each, and computed twice."""

import inspect
from collections.abc import Callable
from typing import Any, Self

import keras
from keras import ops

from keras_vit.annotations import Arguments, Shape, Tensor
from keras_vit.config.parts import Part
from keras_vit.keras_private import set_own_policy
from keras_vit.kernels import jax_gpu as fused
from keras_vit.layers.dropout import next_seed
from keras_vit.layers.sublayers import Unfreezable, flatten_layers, freeze_inside, frozen_inside
from keras_vit.renamed import ARGUMENTS, accepts_old_names, current_arguments


class ConfiguredLayer(Unfreezable, keras.layers.Layer):
    """Base of layers that keep every argument under its own name, from where `get_config` takes it.

    The config also has what is frozen inside of a layer that learns, if anything is.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        accepts_old_names(cls)

    @classmethod
    def arguments(cls) -> tuple[str, ...]:
        """Names of what the layer takes beside Keras' own arguments."""
        ours = [base for base in cls.__mro__ if issubclass(base, ConfiguredLayer) and "__init__" in vars(base)]
        names = (name for base in ours for name in inspect.signature(vars(base)["__init__"]).parameters)
        return tuple(dict.fromkeys(name for name in names if name not in ("self", "kwargs")))

    def get_config(self) -> Arguments:
        config = {**super().get_config(), **{name: getattr(self, name) for name in self.arguments()}}
        frozen = frozen_inside(self)
        return {**config, "frozen": frozen} if frozen else config

    @classmethod
    def from_config(cls, config: Arguments) -> Self:
        arguments = current_arguments(config, {old: new for old, new in ARGUMENTS.items() if new in cls.arguments()})
        frozen = arguments.pop("frozen", ())
        layer = super().from_config(arguments)
        freeze_inside(layer, frozen)
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

    def build_inside(self, *layers: tuple[keras.layers.Layer, Shape]) -> None:
        """Builds layers inside, each for its shape, and gives every layer of a map of policies its own."""
        for layer, shape in layers:
            layer.build(shape)
        for layer in flatten_layers(self):
            set_own_policy(layer)


class CastingLayer(CompositeLayer):
    """Base of layers that leave it to the layers inside to cast variables, and read theirs as they are.

    Keras casts every variable that a layer reads to the layer's precision, and keeps the result for the backward pass.
    Our gradients cast a kernel when they need it, and cast it again in the backward pass.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)

    def in_our_dtype(self, tensor: Tensor) -> Tensor:
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
    return keras.layers.Dense(
        part.outputs, use_bias=part.bias, kernel_initializer="glorot_uniform", dtype=dtype, name=part.path, **arguments
    )


def rematerialized(
    layer: keras.Layer, compute: Callable[..., Tensor], kept: tuple[str, ...] = ()
) -> Callable[..., Tensor]:
    """`compute` of some tensors, which uses the variables of `layer`, as a function that gradients evaluate anew.

    On JAX the tensors that `fused.named` gave one of the names `kept` are not computed again.

    `keras.remat` alone would draw other dropout masks the second time, because a seed is a variable that every
    draw moves on. So each seed is drawn once, outside, and both evaluations find all variables, weights and seeds,
    at the values they had. Weights are arguments, since gradients must reach them: as tensors, because a variable
    would hand its gradient on twice where nothing is traced.
    """
    weights = layer.weights  # seeds are not among them
    drawn = [(generator.state, next_seed(generator)) for generator in _seed_generators(layer)]

    def evaluate(*given: Tensor) -> Tensor:
        inputs, values = given[: -len(weights)], given[-len(weights) :]
        with keras.StatelessScope(state_mapping=[*drawn, *zip(weights, values, strict=True)]):
            return compute(*inputs)

    again = fused.checkpointed(evaluate, kept) if kept else keras.remat(evaluate)
    return lambda *inputs: again(*inputs, *[ops.copy(weight) for weight in weights])


def _seed_generators(layer: keras.Layer) -> list[keras.random.SeedGenerator]:
    return [part.seed_generator for part in flatten_layers(layer) if getattr(part, "seed_generator", None)]
