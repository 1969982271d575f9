"""What all models are: a functional `keras.Model` that knows its config, preprocessing and weights' origin.

`VisionTransformer` and `ResNet` differ in their config alone.
"""

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import keras

from keras_vit.annotations import Arguments, FilePath, Tensor
from keras_vit.checks import check_choice, check_process
from keras_vit.config.heads import DEFAULT_HEAD, WITH_HEAD, OutputSpec
from keras_vit.images.preprocessing import Preprocessing, is_uint8, scale_uint8
from keras_vit.keras_private import is_written_to_hdf5
from keras_vit.layers.sublayers import Unfreezable, freeze_inside
from keras_vit.model import batch_padding
from keras_vit.model.accumulation import check_accumulation
from keras_vit.model.accumulation import train_step as accumulated_train_step
from keras_vit.model.byte_batches import scaling_first
from keras_vit.model.forked_models import guard_forks
from keras_vit.model.input_checks import (
    check_called,
    check_floats,
    check_shape,
    in_bytes,
    look_at_call,
    looked_at,
    needing_images,
    of_known_size,
    seen_around,
    sharing_batches,
)
from keras_vit.model.layer_lookup import head_layers, mark_depths, own_operations, stem
from keras_vit.model.outputs import LogitsError, check_reads_outputs, spec_of_layers
from keras_vit.model.replicated_model import ReplicatedModel
from keras_vit.model.slow_calls import warn_of_integers
from keras_vit.model.strategies import check_engine, check_scope, num_replicas, warn_of_foreign_step
from keras_vit.renamed import by_old_name, current_arguments, warn_renamed


class ImageModel(Unfreezable, ReplicatedModel, keras.Model):
    """A functional model that knows its `config`, its `preprocessing` and where its weights came from.

    It is saved and loaded as every Keras model, with `keras_vit` imported.

    Attributes:
        config: a record of `config_class`.
        preprocessing: the `Preprocessing` record; call it to prepare images.
        load_report: one line for each adaptation that loading made.
        provenance: of loaded weights what no tensor says, as the activation and the rule that resizes positions:
            `{name: (value, source)}`. The source is a published record, a config, or the software of the file.
        class_names: names of the K outputs, as a run sets them; `None` where they are not known.
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
        self.provenance = {name: (value, who) for name, (value, who) in current_arguments(weights_facts or {}).items()}
        self.class_names: tuple[str, ...] | None = None if class_names is None else tuple(class_names)
        self.logit_scale, self.logit_bias = similarity or (None, None)
        check_choice("head_kind", head_kind, WITH_HEAD)
        self.head_kind = head_kind
        for layer in self.layers:
            freeze_inside(layer)  # of a user's own too
        mark_depths(self)
        self.has_seen_images = self.has_told_of_images = False  # of which wrong scales are warned
        self.has_computed = False
        self.accumulation_steps = 1
        self.data_start_step: int | None = None

    @property
    def image_shape(self) -> tuple:
        """`(H, W, C)` of the images that the model's first layer gets; H and W may be `None`."""
        return tuple(stem(self).input.shape[1:])

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
    def takes_bytes(self) -> bool:
        """Whether uint8 images, which are pixels of the model's size, are scaled by `preprocessing` inside of it.

        Not where layers of the user's own compute something, which may scale as well.
        """
        record = self.preprocessing
        channels = self.input_shape[-1] if self.takes_images and len(self.inputs) == 1 else None
        return record is not None and channels == len(record.mean) and not own_operations(self)

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
        """Keras' `fit`, which looks at the first images, and fills up batches that devices cannot share."""
        check_process()
        check_engine()
        check_scope(self)
        self.data_start_step = getattr(x, "start_step", None)  # which `Checkpoints` looks at
        x = in_bytes(self, x)
        given = inspect.signature(keras.Model.fit).bind_partial(None, None, *args, **kwargs).arguments
        size, validation = given.get("batch_size"), given.get("validation_data")
        whole = x if not kwargs.get("validation_split") else None
        held_out = validation[0] if isinstance(validation, (tuple, list)) else None
        if batch_padding.is_dataset(validation) and "validation_data" in kwargs:
            kwargs["validation_data"] = batch_padding.shared(in_bytes(self, validation))
        if hasattr(held_out, "shape"):
            looked_at(self, held_out)
        with sharing_batches((whole, size), (held_out, given.get("validation_batch_size") or size)):
            # A data set of `load_dataset` has full batches for training already.
            x = x if hasattr(x, "preprocessing") else batch_padding.shared(x)
            return super().fit(looked_at(self, x), *args, **kwargs)

    def evaluate(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Keras' `evaluate`, which looks at shape and scale of the first images, and fills up batches as `fit` does."""
        check_process()
        with sharing_batches((x, _batch_size(keras.Model.evaluate, args, kwargs))):
            x = batch_padding.shared(in_bytes(self, x))
            return super().evaluate(looked_at(self, x), *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Keras' `predict`, which looks at shape and scale of the first images, and fills up batches as `fit` does."""
        check_process()
        if x is None:
            raise TypeError("`x` must be images, or a data set of them.\nReceived: x=None.")
        x = in_bytes(self, x)
        with needing_images(), sharing_batches((x, _batch_size(keras.Model.predict, args, kwargs))):
            if batch_padding.is_dataset(x) and batch_padding.spread_over() > 1:
                predict = super().predict
                return batch_padding.predicted(lambda batches: predict(batches, *args, **kwargs), looked_at(self, x))
            return super().predict(looked_at(self, x), *args, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        """Keras' `predict_on_batch`, which looks at the images as `predict` does, at their values for once."""
        check_process()
        if len(self.inputs) == 1 and hasattr(x, "shape"):
            check_shape(self, tuple(x.shape))
            look_at_call(self, x)
        return super().predict_on_batch(x)

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        """Keras' `quantize`, after which the first call on a CPU tells what is faster: `accelerate`, or `export`."""
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
            self.train_function = scaling_first(self, self.train_function)
        return self.train_function

    def make_test_function(self, force: bool = False) -> Any:
        check_process()
        if self.test_function is None or force:
            super().make_test_function(force)
            self.test_function = scaling_first(self, self.test_function)
        return self.test_function

    def make_predict_function(self, force: bool = False) -> Any:
        check_process()
        if self.predict_function is None or force:
            super().make_predict_function(force)
            self.predict_function = scaling_first(self, self.predict_function)
        return self.predict_function

    def train_step(self, *args: Any) -> Any:
        if self.accumulation_steps > 1 or batch_padding.is_marked(args[-1]):
            return accumulated_train_step(self, *args)
        return super().train_step(*args)

    def test_step(self, *args: Any) -> Any:
        return batch_padding.test_step(self, *args) if batch_padding.is_marked(args[-1]) else super().test_step(*args)

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
        if is_uint8(pixels) and self.takes_bytes:
            inputs = scale_uint8(pixels, self.preprocessing)
        else:
            check_floats(pixels)
            look_at_call(self, pixels)
            inputs = seen_around(self, inputs) if self.takes_images else inputs
        warn_of_foreign_step(training)
        if not self.has_computed:
            warn_of_integers(self)
            self.has_computed = True
        if len(self.inputs) == 1 and not training:  # in which images of a run may grow
            inputs = of_known_size(self, inputs)
        return super().call(inputs, training=training, mask=mask)

    def __getattr__(self, name: str) -> Any:
        if name == "similarity":
            warn_renamed("similarity", "logit_scale` and `logit_bias")
            return None if self.logit_scale is None else (self.logit_scale, self.logit_bias)
        return by_old_name(self, name)

    def get_config(self) -> Arguments:
        if is_written_to_hdf5():  # by `keras.saving.save_model`, which asks no method of a model before
            raise _is_no_hdf5("a name that ends in .h5 or .hdf5, of which Keras has emptied the file before it asked")
        return {
            **super().get_config(),
            "config": None if self.config is None else self.config.as_dict(),
            "preprocessing": None if self.preprocessing is None else dataclasses.asdict(self.preprocessing),
            "weights_report": list(self.load_report),
            **({"weights_facts": {n: list(fact) for n, fact in facts.items()}} if (facts := self.provenance) else {}),
            **({} if self.class_names is None else {"class_names": list(self.class_names)}),
            **({} if self.logit_scale is None else {"similarity": [self.logit_scale, self.logit_bias]}),
            **({} if self.head_kind == DEFAULT_HEAD else {"head_kind": self.head_kind}),
        }


def _is_no_hdf5(received: str) -> ValueError:
    return ValueError(
        "a model of keras_vit is saved as .keras, since Keras could not load it from its older format, HDF5.\n"
        f'Received: {received}. Pass a name that ends in ".keras", or save the weights alone by '
        '`model.save_weights("name.weights.h5")`.'
    )


def _batch_size(method: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """The `batch_size` that `method` is called with."""
    return inspect.signature(method).bind_partial(None, None, *args, **kwargs).arguments.get("batch_size")


def check_image_model(model: Any) -> None:
    """Raises unless `model` is one of ours that takes images: a `VisionTransformer` or a `ResNet`."""
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


guard_forks(ImageModel)
