"""A model in an engine: it takes the inputs of the model, and returns its outputs as NumPy arrays."""

import dataclasses
import inspect
import reprlib
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import keras
import numpy as np

from keras_vit.annotations import Tensor
from keras_vit.checks import check_positive_int, check_process
from keras_vit.config.heads import MAP_HEADS
from keras_vit.exporting.report import Drift, Runtime, drift_rows, drift_table, markdown_table
from keras_vit.exporting.spec import OUTPUTS
from keras_vit.images.preprocessing import is_uint8, preprocess_input
from keras_vit.model.image_model import ImageModel
from keras_vit.model.input_checks import as_uint8, check_first_batch, check_shape, check_values, range_warning
from keras_vit.pages.formatting import columns, format_titled
from keras_vit.renamed import accepts_old_names

_ENDLESS = -1  # tf.data.INFINITE_CARDINALITY


@dataclasses.dataclass(frozen=True)
class EngineReport:
    """What `accelerate` measured: speed, and the difference from the model's outputs.

    Example:
        >>> report = keras_vit.accelerate(model, "onnxruntime", cache=None).report
        >>> report.engine, report.top1_agreement, sorted(report.seconds)
        ('onnxruntime', 1.0, ['model', 'onnxruntime'])

    Attributes:
        engine: the engine that computes.
        precision: of the engine.
        threads: of the engine; `None` for its own choice.
        runtime: the software, with its version.
        images: number of real photos that were compared.
        drift: a `Drift` from the model in float32 for each output.
        top1_agreement: share of the photos whose best class is the model's, in [0, 1]; `None` without a head.
        batch_size: images of a call that was timed.
        seconds: for one image, by the name of each engine that was tried, and of the model's graph in float32,
            `"model"`.
        left_out: the reason, by the name of an engine that `"auto"` could not take.
        kept_on: day of the cached call that measured this; `None` if this call did.
    """

    engine: str
    precision: str
    threads: int | None
    runtime: str
    images: int
    drift: tuple[Drift, ...]
    top1_agreement: float | None
    batch_size: int
    seconds: dict[str, float]
    left_out: dict[str, str]
    kept_on: str | None = None

    @property
    def max_difference(self) -> float:
        """The largest difference over all outputs."""
        return float(max(drift.max_difference for drift in self.drift))

    def __str__(self) -> str:
        """The report in 80 columns."""
        facts = [("software", self.runtime)]
        facts += [] if self.threads is None else [("threads", str(self.threads))]
        facts += [(name, f"{time * 1e3:.3g} ms an image") for name, time in self.seconds.items()]
        facts += [(name, f"left out: {reason}") for name, reason in self.left_out.items()]
        facts += [("measured on", self.kept_on)] if self.kept_on else []
        facts += [("photos compared", str(self.images))]
        facts += [] if self.top1_agreement is None else [("same best class", f"{self.top1_agreement:.1%}")]
        title = f"{self.engine} in {self.precision}, in batches of {self.batch_size}"
        return "\n".join([*format_titled(title, facts), "", *columns(drift_rows(self.drift))])

    def line(self) -> str:
        """The engine, and the time of an image in each engine."""
        others = (f"{name} {time * 1e3:.3g} ms" for name, time in self.seconds.items() if name != self.engine)
        mine = f"{self.engine} ({self.runtime}) in {self.precision}, {self.seconds[self.engine] * 1e3:.3g} ms an image"
        return f"{mine}; {', '.join(others)}{f'; as measured on {self.kept_on}' if self.kept_on else ''}"

    def summary(self) -> dict:
        """All fields, ready for JSON."""
        return dataclasses.asdict(self)

    def table(self) -> str:
        """The report as tables in Markdown."""
        rows = [(name, f"{time * 1e3:.3g} ms an image") for name, time in self.seconds.items()]
        rows += [(name, f"left out: {reason}") for name, reason in self.left_out.items()]
        head = ("engine", f"{self.engine}, {self.precision}, in batches of {self.batch_size}")
        return f"{markdown_table(head, rows)}\n\n{drift_table(self.drift)}"


@accepts_old_names
class Engine:
    """A model that other software than Keras computes, made by `accelerate`.

    It has the weights that the model had then, and no layers: it cannot be trained, saved or inspected. Several threads
    may call it; calls run one after the other.

    Example:
        >>> engine = keras_vit.accelerate(model, "onnxruntime", cache=None)
        >>> engine.output_shape, engine.output_activation
        ((None, 3), 'linear')
        >>> expected = keras.ops.convert_to_numpy(model(images))
        >>> float(abs(engine(images) - expected).max()) < 1e-5
        True

    Attributes:
        name: of the model.
        config: of the model.
        preprocessing: of the model; call it to prepare images.
        class_names: of the model, names of the K outputs.
        input_shape: of the model, `(None, H, W, C)`; H and W are `None` where each call may choose them.
        output_shape: of the model, `(None, K)` or `(None, D)`.
        output_spec: of the model, what it puts out.
        output_activation: as `"linear"` for logits and `"softmax"`; `None` without a head.
        report: an `EngineReport`.
    """

    def __init__(self, model: ImageModel, runtime: Runtime, report: EngineReport) -> None:
        """Keeps an opened `runtime` for prepared images, and facts of `model`."""
        self.name = model.name
        self.config = model.config
        self.preprocessing = model.preprocessing
        self.class_names = model.class_names
        self.input_shape, self.output_spec = model.input_shape, model.output_spec
        self.output_shape, self.output_activation = self.output_spec.shape, self.output_spec.activation
        self.accepts_uint8 = model.accepts_uint8
        self.report = report
        self.has_checked_images = False  # as models have it
        self.checked_methods: set[str | None] = {None}  # methods whose first batch was checked for its scale
        self._run, self._one_at_a_time = runtime.run, threading.Lock()

    @property
    def engine(self) -> str:
        """Name of the engine that computes."""
        return self.report.engine

    @property
    def precision(self) -> str:
        """Precision in which it computes."""
        return self.report.precision

    @property
    def threads(self) -> int | None:
        """Number of threads; `None` for the engine's own choice."""
        return self.report.threads

    def __call__(self, images: Tensor, training: bool = False) -> np.ndarray:
        """The model's outputs for one batch.

        Args:
            images: floats `(B, H, W, C)`, prepared by `preprocessing`; or uint8 pixels of the model's size, which are
                scaled here, unless own layers of the user may scale them too.
            training: as for a model; an engine does not train.

        Returns:
            float32 `(B, K)`: logits, or scores where an activation follows the head; `(B, D)` without a head; of a
            model of pixels `(B, H, W, K)` or `(B, H, W)`.

        Raises:
            TypeError: for other integers.
            ValueError: for another shape, no images, or values that are not finite.

        Warns:
            UserWarning: of pixels in the first batch that were not scaled as the weights expect.
        """
        if training:
            raise ValueError("an engine answers and does not train.\nReceived: training=True. Call the model itself.")
        return self._answer(images, "call")

    def _answer(self, images: Tensor, method: str | None) -> np.ndarray:
        answers = self._answers(images, method)
        return next(answers[name] for name in OUTPUTS if name in answers)

    def features(self, images: Tensor) -> np.ndarray:
        """The input of the head for one batch.

        Args:
            images: as for a call.

        Returns:
            float32 `(B, D)`.

        Raises:
            ValueError: as a call, and for a model of pixels.
        """
        if self.output_spec.head.name in MAP_HEADS:
            raise ValueError(
                "features are the input of a head on a whole image.\n"
                f"Received: an engine of {self.output_spec.head.name}. `keras_vit.features` takes the model."
            )
        return self._answers(images, "features")["features"]

    def outputs(self, images: Tensor) -> dict[str, np.ndarray]:
        """All outputs for one batch: `features`, and with a head `logits` and `scores`, if there are any.

        A model of pixels has `logits` or `depths` alone.

        Args:
            images: as for a call.

        Returns:
            float32 `(B, D)` and `(B, K)` by these names.
        """
        return self._answers(images, "outputs")

    def predict_on_batch(self, x: Tensor) -> np.ndarray:
        """The same as a call, under Keras' name."""
        return self(x)

    def predict(self, x: Any, batch_size: int = 32, verbose: str | int = 0) -> np.ndarray:
        """The model's outputs for many images.

        Args:
            x: floats or uint8 pixels `(n, H, W, C)`, as for a call; or a `tf.data.Dataset`, a
                `keras.utils.PyDataset` or a generator of batches, or of tuples that begin with one.
            batch_size: images of an array at once, unused for other kinds of `x`. It changes outputs by rounding alone,
                except in int8 of ONNX Runtime, which quantises all images of a call by one scale.
            verbose: as Keras' `predict` takes it; no progress is shown.

        Returns:
            float32 `(n, K)` or `(n, D)`, as of a call, in the order of `x`.

        Raises:
            ValueError: if `x` is empty or endless, and as for a call.

        Warns:
            UserWarning: of pixels that were not scaled.
        """
        batch_size = check_positive_int("batch_size", batch_size)
        answers, size = [], 0
        for images in _batches(check_first_batch(self, as_uint8(self, x)), batch_size):
            count, size = len(images), max(size, len(images))
            if self.engine == "xla" and 0 < count < size:  # XLA compiles for each batch size
                images = np.pad(images, ((0, size - count),) + ((0, 0),) * (images.ndim - 1))
            answers.append(self._answer(images, None)[:count])
        if not answers:
            raise ValueError("`x` must hold at least one image.\nReceived: no batches.")
        return np.concatenate(answers)

    def _answers(self, images: Tensor, method: str | None) -> dict[str, np.ndarray]:
        check_process()
        images = _check_images(images, self, method)
        with self._one_at_a_time:
            return self._run(images)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an engine is of one process, so it cannot be copied or pickled.\n"
            f"Received: {self!r}. Send the saved model, and call `keras_vit.accelerate` there."
        )

    def __repr__(self) -> str:
        return f"<Engine {self.engine}, {self.precision}, of {self.name!r} {self.input_shape} to {self.output_shape}>"


def _batches(x: Any, batch_size: int) -> Iterator[np.ndarray]:
    """Arrays of `x`; of a tuple the first item."""
    for batch in _parts(x, batch_size):
        yield _as_array(batch[0] if isinstance(batch, (tuple, list)) else batch)


def _parts(x: Any, batch_size: int) -> Iterable[Any]:
    """The batches of `x`, or parts of an array."""
    if isinstance(x, keras.utils.PyDataset):
        return map(x.__getitem__, range(x.num_batches))
    if hasattr(x, "element_spec"):
        if int(x.cardinality()) == _ENDLESS:
            raise ValueError("`x` must end.\nReceived: a dataset that repeats for ever. Call its `take` first.")
        return x
    if inspect.isgenerator(x):
        return x
    images = _as_array(x)
    return (images[start : start + batch_size] for start in range(0, len(images), batch_size))


def _as_array(images: Any) -> np.ndarray:
    """Images, or a list of images, as an array."""
    try:
        array = keras.ops.convert_to_numpy(images)
    except (TypeError, ValueError):  # arrays of different shapes, texts, objects
        array = np.empty(())
    if array.ndim == 0:
        given = f"{reprlib.repr(images)} of type {type(images).__name__}"
        raise TypeError(f"`x` must be images of one size, or batches of them.\nReceived: {given}.")
    return array


def _check_images(images: Any, engine: Engine, method: str | None) -> np.ndarray:
    """Images as float32 `(B, H, W, C)`; raises for images that the model would refuse."""
    images = _as_array(images)
    check_values(engine, images)
    check_shape(engine, images.shape)
    if is_uint8(images):
        return np.ascontiguousarray(preprocess_input(images, engine.preprocessing))
    with np.errstate(over="ignore"):
        images = np.ascontiguousarray(images, "float32")
    low, high = float(images.min()), float(images.max())  # NaN if one value is
    if not np.isfinite([low, high]).all():
        raise ValueError("images must be finite numbers in float32.\nReceived: NaN or infinity among them.")
    if method not in engine.checked_methods and (warning := range_warning(engine, low, high)):
        warnings.warn(warning, stacklevel=4)
    engine.checked_methods.add(method)
    return images
