"""What all models are: a functional `keras.Model` that knows its config, preprocessing and weights' origin.

`VisionTransformer` and `ResNet` differ in their config alone.
"""

import dataclasses
import functools
import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import keras
import numpy as np

from keras_vit.annotations import Arguments, FilePath, Tensor
from keras_vit.checks import ArgumentError, check_choice, check_order, check_process, with_parameters
from keras_vit.config.heads import DEFAULT_HEAD, WITH_HEAD, OutputSpec
from keras_vit.images.preprocessing import Preprocessing, is_uint8, scale_uint8
from keras_vit.keras_private import is_written_to_hdf5
from keras_vit.layers.configurable import Unfreezable, flatten_layers, freeze_inside
from keras_vit.model.input_checks import (
    as_uint8,
    assert_static_size,
    check_called,
    check_eager_call,
    check_even_batches,
    check_first_batch,
    check_floats,
    check_in_graph,
    check_shape,
    require_batches,
)
from keras_vit.model.layer_access import first_layer, head_layers, set_layer_depths, user_operations
from keras_vit.model.outputs import LogitsError, check_reads_outputs, spec_of_layers
from keras_vit.model.replicated_model import (
    ReplicatedModel,
    check_distribution_backend,
    check_scope,
    num_replicas,
    warn_custom_train_step,
)
from keras_vit.model.training_step import (
    accumulated_train_step,
    check_accumulation,
    has_padding_weights,
    is_dataset,
    num_batch_shards,
    pad_dataset,
    padded_test_step,
    predict_padded,
)
from keras_vit.renamed import by_old_name, current_arguments, warn_renamed

METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
_LARGE_MODEL = 1_000_000  # parameters; a smaller model takes little time in any way
_warned: set[str] = set()  # once in a process


class ImageModel(Unfreezable, ReplicatedModel, keras.Model):
    """A functional model that knows its `config`, its `preprocessing` and where its weights came from.

    It is saved and loaded as every Keras model, with `keras_vit` imported.

    Attributes:
        config: a record of `config_class`.
        preprocessing: the `Preprocessing` record; call it to prepare images.
        load_report: one line for each adaptation that loading made.
        provenance: of loaded weights what no tensor says, as the activation and the rule that resizes positions:
            `{name: (value, source)}`. The source is a published record, a config, or the software of the file.
        weights_layout: name of the layout of the file that `build` has loaded in this process, or `""`.
        weights_source: what `build` has loaded in this process, to which a text tower may belong: a published record or
            the file's path; else `None`.
        lacks_projection: whether `build` has left out, in this process, the projection of the file to the embeddings
            that texts are compared with, or a file of both towers has lost it.
        head_kind: what the head answers, one of `config.heads.WITH_HEAD`: `"classes"` of which one is right, `"labels"`
            of which several may be, or `"numbers"`.
        logit_scale: logarithm of the factor on cosines, of CLIP's and SigLIP's files for `zero_shot`; else `None`.
        logit_bias: what these files add to the logits; else `None`.
    """

    predict_function: Any  # Keras sets it
    config_class: ClassVar[type]
    takes_images: ClassVar[bool] = True  # and not patches with their grids
    config: Any

    def __init__(
        self,
        *args: Any,
        config: Any = None,
        preprocessing: Preprocessing | Arguments | None = None,
        weights_report: Sequence[str] = (),
        weights_facts: Mapping[str, Sequence[str]] | None = None,
        class_names: Sequence[str] | None = None,
        similarity: Sequence[float | None] | None = None,
        head_kind: str = DEFAULT_HEAD,
        mask_token: Sequence[float] | None = None,
        **kwargs: Any,
    ) -> None:
        check_process()
        super().__init__(*args, **kwargs)
        # Both are `None` in a model that the builders did not make, as a clone of `keras.models.clone_model`.
        self.config = self.config_class(**current_arguments(config)) if isinstance(config, dict) else config
        if isinstance(preprocessing, dict):
            preprocessing = Preprocessing(**preprocessing)
        self.preprocessing: Preprocessing = cast(Preprocessing, preprocessing)
        self.load_report: tuple[str, ...] = tuple(weights_report)
        self.weights_source: Any = None
        self.weights_layout = ""
        self.lacks_projection = False
        self.mask_token = mask_token
        self.provenance = {name: (value, who) for name, (value, who) in current_arguments(weights_facts or {}).items()}
        self._class_names = None if class_names is None else tuple(class_names)
        self.logit_scale, self.logit_bias = similarity or (None, None)
        check_choice("head_kind", head_kind, WITH_HEAD)
        self.head_kind = head_kind
        for layer in self.layers:
            freeze_inside(layer)  # of a user's own too
        set_layer_depths(self)
        self.has_checked_images = self.has_warned_of_images = False  # warnings of wrong scales
        self.has_computed = False
        self.accumulation_steps = 1
        self.data_start_step: int | None = None

    @property
    def image_shape(self) -> tuple:
        """`(H, W, C)` of the images that the model's first layer gets; H and W may be `None`."""
        return tuple(first_layer(self).input.shape[1:])

    @property
    def output_spec(self) -> OutputSpec:
        """What the model puts out: logits, scores, numbers, an embedding or tokens, with shape and activation."""
        return spec_of_layers(self, self.head_kind)

    @property
    def classes(self) -> int:
        """K, 0 without a head."""
        heads = head_layers(self)
        return heads[0].units if heads else 0

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the K outputs in their order; `None` where they are not known.

        Raises:
            ValueError: where they are set, for names that are not as many as the outputs, and for an empty one.
            TypeError: for what is no list of texts.
        """
        return self._class_names

    @class_names.setter
    def class_names(self, names: Sequence[str] | None) -> None:
        if names is not None:
            check_order("class_names", names)
            names = tuple(names)
            _check_names(names, self.output_spec.size if self.classes else None)
        self._class_names = names

    @property
    def mask_token(self) -> np.ndarray | None:
        """What stands in place of masked patches in training, `(D,)`; `None` where no file and no training has one.

        No forward pass of the model reads it. A file of DINOv2 has it, and `SelfDistillation` trains it.
        """
        token = self._mask_token() if callable(self._mask_token) else self._mask_token
        return None if token is None else np.asarray(token, "float32").reshape(-1)

    @mask_token.setter
    def mask_token(self, token: Any) -> None:
        self._mask_token = token

    @property
    def accepts_uint8(self) -> bool:
        """Whether uint8 images, which are pixels of the model's size, are scaled by `preprocessing` inside of it.

        Not where layers of the user's own compute something, which may scale as well.
        """
        record = self.preprocessing
        channels = self.input_shape[-1] if self.takes_images and len(self.inputs) == 1 else None
        return record is not None and channels == len(record.mean) and not user_operations(self)

    def compile(self, *args: Any, accumulation_steps: int = 1, **kwargs: Any) -> None:
        """Keras' `compile`, and how many parts a batch is cut into, to be computed one after the other.

        Args:
            *args: as in `keras.Model.compile`.
            accumulation_steps: k. Each batch given to `fit` is one step of the optimizer, with the gradients of k
                micro-batches averaged. That is the gradient of the whole batch, so the loss must be a mean.
            **kwargs: as in `keras.Model.compile`.

        Raises:
            ValueError: for a loss or metric of probabilities where the model answers logits, or of logits where it
                answers probabilities. Also for what accumulation or a strategy of several devices cannot compute.
        """
        given = inspect.signature(keras.Model.compile).bind(self, *args, **kwargs).arguments
        check_reads_outputs(self, given.get("loss"), (given.get("metrics"), given.get("weighted_metrics")))
        super().compile(*args, **kwargs)
        check_accumulation(accumulation_steps, self.optimizer, self.loss)
        self.accumulation_steps = accumulation_steps

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Keras' `fit`, which checks the first images, and pads batches that devices cannot share evenly."""
        check_process()
        check_distribution_backend()
        check_scope(self)
        self.data_start_step = getattr(x, "start_step", None)  # read by `Checkpoints`
        x = as_uint8(self, x)
        given = inspect.signature(keras.Model.fit).bind_partial(None, None, *args, **kwargs).arguments
        size, validation = given.get("batch_size"), given.get("validation_data")
        whole = x if not kwargs.get("validation_split") else None
        held_out = validation[0] if isinstance(validation, (tuple, list)) else None
        if is_dataset(validation) and "validation_data" in kwargs:
            kwargs["validation_data"] = pad_dataset(as_uint8(self, validation))
        if hasattr(held_out, "shape"):
            check_first_batch(self, held_out)
        with check_even_batches((whole, size), (held_out, given.get("validation_batch_size") or size)):
            # A data set of `load_dataset` has full batches for training already.
            x = x if hasattr(x, "preprocessing") else pad_dataset(x)
            return super().fit(check_first_batch(self, x), *args, **kwargs)

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Keras' `evaluate`, which checks shape and scale of the first images, and pads batches as `fit` does."""
        check_process()
        with check_even_batches((x, _batch_size(keras.Model.evaluate, args, kwargs))):
            x = pad_dataset(as_uint8(self, x))
            return super().evaluate(check_first_batch(self, x), *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Keras' `predict`, which checks shape and scale of the first images, and pads batches as `fit` does."""
        check_process()
        if x is None:
            raise TypeError("`x` must be images, or a data set of them.\nReceived: x=None.")
        x = as_uint8(self, x)
        with require_batches(), check_even_batches((x, _batch_size(keras.Model.predict, args, kwargs))):
            if is_dataset(x) and num_batch_shards() > 1:
                predict = super().predict
                return predict_padded(lambda batches: predict(batches, *args, **kwargs), check_first_batch(self, x))
            return super().predict(check_first_batch(self, x), *args, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        """Keras' `predict_on_batch`, which checks the images as `predict` does; their values once."""
        check_process()
        if len(self.inputs) == 1 and hasattr(x, "shape"):
            check_shape(self, tuple(x.shape))
            check_eager_call(self, x)
        return super().predict_on_batch(x)

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        """Keras' `quantize`. The first call on a CPU then warns that `accelerate` or `export` is faster."""
        super().quantize(*args, **kwargs)
        self.has_computed = False

    def save(self, filepath: FilePath, *args: Any, **kwargs: Any) -> None:
        """Keras' `save`, which refuses HDF5.

        Keras writes the name of the class alone there, by which `load_model` finds no class that is registered.

        Args:
            filepath: of the `.keras` file.
            *args: as in `keras.Model.save`.
            **kwargs: as in `keras.Model.save`.

        Raises:
            ValueError: for a name that ends in `.h5` or `.hdf5`.
        """
        if str(filepath).endswith((".h5", ".hdf5")):
            raise _is_no_hdf5(repr(str(filepath)))
        super().save(filepath, *args, **kwargs)

    def make_train_function(self, force: bool = False) -> Any:
        check_process()
        if self.train_function is None or force:
            super().make_train_function(force)
            self.train_function = scale_before_step(self, self.train_function)
        return self.train_function

    def make_test_function(self, force: bool = False) -> Any:
        check_process()
        if self.test_function is None or force:
            super().make_test_function(force)
            self.test_function = scale_before_step(self, self.test_function)
        return self.test_function

    def make_predict_function(self, force: bool = False) -> Any:
        check_process()
        if self.predict_function is None or force:
            super().make_predict_function(force)
            self.predict_function = scale_before_step(self, self.predict_function)
        return self.predict_function

    def train_step(self, *args: Any) -> Any:
        if self.accumulation_steps > 1 or has_padding_weights(args[-1]):
            return accumulated_train_step(self, *args)
        return super().train_step(*args)

    def test_step(self, *args: Any) -> Any:
        return padded_test_step(self, *args) if has_padding_weights(args[-1]) else super().test_step(*args)

    def get_compile_config(self) -> Arguments | None:
        config = super().get_compile_config()
        return config and {**config, "accumulation_steps": self.accumulation_steps}

    def compile_from_config(self, config: Arguments) -> None:
        arguments = keras.saving.deserialize_keras_object(config)
        if num_replicas(self) > 1:
            arguments["jit_compile"] = "auto"  # the file has what `"auto"` was on one device
        try:
            self.compile(**arguments)
        except LogitsError as error:
            warnings.warn(f"the model is loaded, but not compiled as its file says: {error}", stacklevel=2)
            return
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)  # so that its state can be loaded

    @classmethod
    def from_config(cls, config: Arguments, custom_objects: Arguments | None = None) -> "ImageModel":
        check_process()
        return super().from_config(config, custom_objects=custom_objects)

    def __call__(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        check_called(self, inputs)
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs: Tensor, training: bool | None = None, mask: Tensor = None) -> Tensor:
        check_process()
        pixels = inputs if self.takes_images else inputs["patches"]
        if is_uint8(pixels) and self.accepts_uint8:
            inputs = scale_uint8(pixels, self.preprocessing)
        else:
            check_floats(pixels)
            check_eager_call(self, pixels)
            inputs = check_in_graph(self, inputs) if self.takes_images else inputs
        warn_custom_train_step(training)
        if not self.has_computed:
            warn_int8_on_cpu(self)
            self.has_computed = True
        if len(self.inputs) == 1 and not training:  # in which images of a run may grow
            inputs = assert_static_size(self, inputs)
        return self.run_layers(inputs, training, mask)

    def run_layers(self, inputs: Tensor, training: bool | None, mask: Tensor = None) -> Any:
        """What the layers make of inputs that are checked, and scaled where they were pixels."""
        return super().call(inputs, training=training, mask=mask)

    def __getattr__(self, name: str) -> Any:
        if name == "similarity":
            warn_renamed("similarity", "logit_scale` and `logit_bias")
            return None if self.logit_scale is None else (self.logit_scale, self.logit_bias)
        return by_old_name(self, name)

    def own_arguments(self) -> Arguments:
        """Arguments of the constructor that this class alone has, as JSON holds them."""
        return {}

    def get_config(self) -> Arguments:
        if is_written_to_hdf5():  # by `keras.saving.save_model`, which calls no method of a model before
            raise _is_no_hdf5("a name that ends in .h5 or .hdf5, whose file Keras has emptied before")
        return {
            **super().get_config(),
            "config": None if self.config is None else self.config.as_dict(),
            "preprocessing": None if self.preprocessing is None else dataclasses.asdict(self.preprocessing),
            "weights_report": list(self.load_report),
            **({"weights_facts": {n: list(fact) for n, fact in facts.items()}} if (facts := self.provenance) else {}),
            **({} if self.class_names is None else {"class_names": list(self.class_names)}),
            **({} if self.logit_scale is None else {"similarity": [self.logit_scale, self.logit_bias]}),
            **({} if self.head_kind == DEFAULT_HEAD else {"head_kind": self.head_kind}),
            **({} if self.mask_token is None else {"mask_token": self.mask_token.tolist()}),
            **self.own_arguments(),
        }


def _is_no_hdf5(received: str) -> ValueError:
    return ValueError(
        "a model of keras_vit is saved as .keras, since Keras could not load it from its older format, HDF5.\n"
        f'Received: {received}. Pass a name that ends in ".keras", or save the weights alone by '
        '`model.save_weights("name.weights.h5")`.'
    )


def _check_names(names: tuple, outputs: int | None) -> None:
    wrong = [name for name in names if not isinstance(name, str) or not name.strip()]
    if not wrong and outputs in (None, len(names)):
        return
    count = "one for each output" if outputs is None else f"{outputs:,}, one for each output"
    kind = TypeError if wrong and not isinstance(wrong[0], str) else ArgumentError
    raise with_parameters(
        kind(
            f"`class_names` must be {count}, texts that are not empty, in the order of the outputs.\n"
            f"Received: {len(names):,}{f', among them {wrong[0]!r:.80}' if wrong else ''}. Pass as many names, or None."
        ),
        "class_names",
    )


def _batch_size(method: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """The `batch_size` that `method` is called with."""
    return inspect.signature(method).bind_partial(None, None, *args, **kwargs).arguments.get("batch_size")


def check_image_model(model: Any) -> None:
    """Raises unless `model` is a `VisionTransformer` or a `ResNet` that takes images."""
    check_takes_images(model)
    if not isinstance(model, ImageModel):
        raise TypeError(
            f"`model` must be a VisionTransformer or a ResNet.\nReceived: {model!r} of type {type(model).__name__}."
        )


def check_takes_images(model: Any) -> None:
    """Raises for a model of patches with their grids, of `naflex`."""
    if not getattr(model, "takes_images", True):
        raise TypeError(
            "`model` must take images, and this one takes batches of patches.\n"
            f"Received: {model!r} of type {type(model).__name__}. Pass the model that `naflex` was given, which has "
            "the same layers."
        )


def scale_before_step(model: Any, step: Any) -> Any:
    """Keras' step function on JAX, which gets batches of uint8 pixels as floats.

    Pixels are scaled on the device before the compiled step. Inside of it XLA would fuse the scaling with the patches
    and sum in another order. So a run that began with floats goes on to the same last bit, and nothing is compiled
    twice.

    Args:
        model: an `ImageModel`.
        step: the train, test or predict function that Keras has made for it.
    """
    if keras.backend.backend() != "jax":
        return step

    def scaled(batch: Any) -> Any:
        if not (isinstance(batch, tuple) and is_uint8(batch[0]) and model.accepts_uint8):
            return batch
        images, *others = batch
        return _scaler(model.preprocessing, getattr(images, "sharding", None))(images), *others

    return lambda state, iterator: step(state, map(scaled, iterator))


@functools.lru_cache(8)
def _scaler(record: Preprocessing, sharding: Any) -> Callable[[Tensor], Tensor]:
    """`scale_uint8` compiled for images that lie on devices as `sharding` says, where the floats stay."""
    import jax

    return jax.jit(lambda pixels: scale_uint8(pixels, record), out_shardings=sharding)


def refuse_forked_use(kind: type[keras.Model]) -> None:
    """Makes `METHODS` of a `keras.Model` with a model of this kind inside raise in a forked process.

    Keras would wait for ever there. It calls no layer once its steps were traced, so its public methods check the
    process, in forked processes alone. Elsewhere Keras stays as it is.
    """
    if hasattr(os, "register_at_fork"):  # of systems that have forks
        os.register_at_fork(after_in_child=functools.partial(_guard, kind))


def _guard(kind: type[keras.Model]) -> None:
    for name in METHODS:
        method = getattr(keras.Model, name)
        if not hasattr(method, "checks_process"):  # of a fork of a fork
            setattr(keras.Model, name, _checking_process(method, kind))


def _checking_process(method: Callable, kind: type[keras.Model]) -> Callable:
    @functools.wraps(method)
    def checked(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(layer, kind) for layer in flatten_layers(self)):
            check_process()
        return method(self, *args, **kwargs)

    checked.checks_process = True  # type: ignore[attr-defined]
    return checked


def has_accelerator() -> bool:
    """Whether something faster than the processor computes."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("TPU"))
    if backend == "jax":
        import jax

        return jax.default_backend() != "cpu"
    if backend == "torch":
        import torch

        return torch.cuda.is_available()
    return False


def warn_int8_on_cpu(model: keras.Model) -> None:
    """Warns once in a process that a model after Keras' `quantize` is slow on a CPU, and says what is fast.

    Keras multiplies integers without the processor's instructions for them. On a core with AMX, B/16 took 22 to 33
    times as long as in int8 of OpenVINO.

    Warns:
        UserWarning: of such a model of a million parameters or more.
    """
    if "int8" in _warned or model.count_params() < _LARGE_MODEL or has_accelerator():
        return
    if all(layer.quantization_mode != "int8" for layer in flatten_layers(model)):
        return
    _warned.add("int8")
    warnings.warn(
        f"{model.name!r} was quantised by Keras, which takes 8 to 33 times as long on a CPU as int8 of an engine. "
        'Of the model before `quantize`, `keras_vit.accelerate(model, "openvino", "int8")` opens one here, and '
        '`keras_vit.export(..., precision="int8")` writes a file.',
        stacklevel=4,
    )


refuse_forked_use(ImageModel)
