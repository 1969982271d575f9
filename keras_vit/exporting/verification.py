"""Compares a file with the model: both get the same real photos, in batches of several sizes.

In float32 the bounds are absolute, as the README promises. Other precisions round each number to 8 to 11 bits; their
bounds are shares of the standard deviation of the model's numbers. Scores have half the bounds of their logits: a
probability differs by at most half as much, and not at all where a softmax saturates.
"""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from keras_vit.annotations import Pair, Tensor
from keras_vit.config.heads import NAMED_OUTPUTS, UNITS
from keras_vit.config.variants import DEFAULT_IMAGE_SIZE
from keras_vit.exporting.budget import max_repeats, photos_at_once, trim_memory
from keras_vit.exporting.report import Drift, ExportError, Runtime
from keras_vit.exporting.sample_photos import resize_photos
from keras_vit.exporting.spec import ExportSpec
from keras_vit.model.image_model import ImageModel
from keras_vit.model.layer_access import layer_named
from keras_vit.model.outputs import inference_model

Answers: TypeAlias = Mapping[str, np.ndarray]  # by the name of the output

BATCHES = (1, 2, 5, 8)
# Largest and mean difference. In float32 absolute, or shares of the largest number where that is above 1. A deep
# hybrid's own float32 differs by 8e-6 from float64.
_FLOAT32 = (1e-5, 1e-5)
_SHARES = {"bfloat16": (0.25, 0.05), "float16": (0.05, 0.01), "int8": (1.0, 0.1)}
_MASKS = {"float32": 1e-3, "other": 0.1}  # shares of the pixels of a photo that may have another class
_FLOOR = 1e-3  # of a deviation, for nearly constant outputs, as scores of a zero-initialised head
_ROUNDING = 2.0**-21  # of a number in float32, by which two of them may differ
_MAX_PATCHES = 14  # along a side of any length: attention costs the fourth power of their number
REPEATS = 7  # of a timed call, at most


@dataclasses.dataclass(frozen=True)
class Verification:
    """The figures of a comparison; see `ExportReport`."""

    images: int
    drift: tuple[Drift, ...]
    top1_agreement: float | None
    seconds: float
    keras_seconds: float

    @property
    def passed(self) -> bool:
        """Whether every output is within its bounds."""
        return all(drift.within for drift in self.drift)


def verify(model: Any, runtime: Runtime, photos: Sequence[np.ndarray], spec: ExportSpec) -> Verification:
    """Compares a file with the model.

    Args:
        model: a `VisionTransformer` in float32, or one that was quantised before; or a `TextTransformer`.
        runtime: the `Runtime` of the file.
        photos: arrays uint8 `(H, W, C)`, of any sizes; of a text tower ids, int32 `(N, T)`.
        spec: the `ExportSpec` of the file.

    Raises:
        ValueError: if the model's own numbers are not finite.
        ExportError: if the runtime fails on a photo.
    """
    if spec.takes == "ids":
        return _verify_text_tower(model, runtime, np.asarray(photos), spec)
    reference = Reference(model, spec.activation, runtime.prepares)
    run = _Timed(runtime.run)
    drift, agreement = compare(model, reference, dataclasses.replace(runtime, run=run), photos, spec)
    one = resize_photos(photos[:1], image_size(model))
    repeats = max_repeats(model, one.shape[1:3], REPEATS)
    if repeats == 1:  # B/16 at 1,024 pixels takes 15 s and 1.7 GB for a photo, so the comparison is timed
        return Verification(len(photos), drift, agreement, run.seconds, reference.network.seconds)
    answer = runtime.answer or runtime.run
    seconds = median_seconds(lambda: _run(answer, one), lambda: reference.run(one), repeats=repeats)
    return Verification(len(photos), drift, agreement, *seconds)


def _verify_text_tower(model: Any, runtime: Runtime, ids: np.ndarray, spec: ExportSpec) -> Verification:
    import tensorflow as tf

    given = tf.TensorSpec((None, ids.shape[1]), tf.int32)
    network = tf.function(functools.partial(model, training=False)).get_concrete_function(given)

    def reference(rows: np.ndarray) -> Answers:
        return {"embeddings": tf.cast(network(tf.constant(rows)), tf.float32).numpy()}

    expected = _concatenate([reference(ids[start : start + 8]) for start in range(0, len(ids), 8)])
    _check_finite(expected, model)
    drift = _drifts(expected, _concatenate(_run_batches(runtime.run, ids, spec)), spec)
    seconds = median_seconds(lambda: _run(runtime.run, ids[:1]), lambda: reference(ids[:1]))
    return Verification(len(ids), tuple(drift), None, *seconds)


class _Timed:
    """A function of photos, and the time for each photo in its last call."""

    def __init__(self, call: Callable[[Any], Answers]) -> None:
        self.call, self.seconds = call, 0.0

    def __call__(self, given: Any) -> Any:
        start = time.perf_counter()
        found = self.call(given)
        self.seconds = (time.perf_counter() - start) / len(given)
        return found


def compare(
    model: ImageModel, reference: "Reference", runtime: Runtime, photos: Sequence[np.ndarray], spec: ExportSpec
) -> tuple[tuple[Drift, ...], float | None]:
    """A `Drift` for each output of a runtime, and the share of photos whose best class is the model's.

    Args:
        model: as `verify` takes it.
        reference: the `Reference` of the model.
        runtime: the `Runtime` to compare.
        photos: arrays uint8 `(H, W, C)`, of any sizes.
        spec: the `ExportSpec` of the runtime's file.

    Raises:
        ValueError: if the model's own numbers are not finite.
        ExportError: if the runtime fails on a photo.
    """
    groups = [resize_photos(group, size) for group, size in _size_groups(model, photos)]
    fitting = [photos_at_once(model, pixels.shape[1:3]) for pixels in groups]
    trim_memory(model, groups[0].shape[1:3])  # of the conversion
    spec = dataclasses.replace(spec, max_batch=min(spec.max_batch, *fitting))
    # The runtime runs first: for B/16 at 1,024 pixels it frees 1.7 GB, while TensorFlow keeps 0.8 GB.
    parts = [answers for pixels in groups for answers in _run_batches(runtime.run, pixels, spec)]
    found = _concatenate([*map(_pixels_as_rows, parts)] if spec.of_pixels else parts)
    trim_memory(model, groups[0].shape[1:3])  # of the runtime
    parts = [dict(reference.answers(pixels, most)) for pixels, most in zip(groups, fitting, strict=True)]
    expected = _concatenate([*map(_pixels_as_rows, parts)] if spec.of_pixels else parts)
    _check_finite(expected, model)
    drift = _drifts(expected, found, spec)
    if runtime.photos is not None and model.preprocessing.resize != "none":
        drift += _drifts_of_files(reference, runtime.photos, photos, spec)
    return tuple(drift), _agreement(expected, found) if model.output_spec.classifies else None


def image_size(model: ImageModel) -> tuple[int, int]:
    """`(H, W)` of the images to compare on: the model's, or a size that its patches tile."""
    height, width = model.input_shape[1:3]
    step = model.config.stride
    usual = min(max(round(DEFAULT_IMAGE_SIZE / step), 1), _MAX_PATCHES) * step
    return height or usual, width or usual + step  # not square, so that swapped sides are noticed


def _check_finite(answers: Answers, model: Any) -> None:
    if not all(np.isfinite(array).all() for array in answers.values()):
        raise ValueError(
            "a model that is exported must give finite numbers, so that others can be compared.\n"
            f"Received: {model.name!r}, whose own answers have NaN or infinity. Look at its weights."
        )


def _size_groups(model: ImageModel, photos: Sequence[np.ndarray]) -> list[tuple[Sequence[np.ndarray], Pair]]:
    """Groups of photos with a size each: a model for any size is compared at two."""
    size, step = image_size(model), model.config.stride
    if None not in model.input_shape[1:3]:
        return [(photos, size)]
    other = tuple(known or side + 2 * step for known, side in zip(model.input_shape[1:3], size, strict=True))
    return [(group, size) for group, size in ((photos[::2], size), (photos[1::2], other)) if len(group)]


class Reference:
    """The Keras model as a function from pixels to its outputs in float32.

    Tracing B/16 takes a second, and saves a tenth of a second for each photo.
    """

    def __init__(self, model: ImageModel, activation: str, prepares: bool = False, traced: bool = True) -> None:
        import tensorflow as tf

        self.preprocessing = model.preprocessing
        self._last: tuple[np.ndarray, dict[str, np.ndarray]] | None = None
        self.prepares = prepares
        self.activation = activation
        network = inference_model(model)
        call: Any = functools.partial(network, training=False)
        if traced:
            images = tf.TensorSpec(model.inputs[0].shape, tf.float32)
            call = tf.function(call).get_concrete_function(images)  # never warns of too many traces
        self.network = _Timed(call)

    def run(self, pixels: np.ndarray) -> dict[str, np.ndarray]:
        """`features`, and `logits` and `scores` if there are any, of uint8 `(B, H, W, C)` at the model's size."""
        if self.prepares:
            return self.run_prepared(np.asarray(self.preprocessing(pixels)))
        from keras_vit.images.preprocessing import preprocess_input

        return self.run_prepared(preprocess_input(pixels, self.preprocessing))

    def answers(self, pixels: np.ndarray, most: int) -> dict[str, np.ndarray]:
        """The outputs of `run`, in batches of at most `most`; those of the last pixels are kept.

        All runtimes are compared on the same photos, and a large model takes seconds for each.
        """
        if self._last is None or not np.array_equal(self._last[0], pixels):
            parts = [self.run(pixels[start : start + most]) for start in range(0, len(pixels), most)]
            self._last = pixels, dict(_concatenate(parts))
        return self._last[1]

    def run_prepared(self, images: Tensor) -> dict[str, np.ndarray]:
        """The outputs of `run`, for floats that are prepared already."""
        import tensorflow as tf

        found = {name: tf.cast(tensor, tf.float32) for name, tensor in self.network(tf.constant(images)).items()}
        if "logits" in found and self.activation != "none":
            found["scores"] = getattr(tf.nn, self.activation)(found["logits"])
        return {name: tensor.numpy() for name, tensor in found.items()}


def _run_batches(run: Callable[[np.ndarray], Answers], pixels: np.ndarray, spec: ExportSpec) -> list[Answers]:
    parts, start, turn = [], 0, 0
    while start < len(pixels):
        size = min(BATCHES[turn % len(BATCHES)], spec.max_batch)
        parts.append(_run(run, pixels[start : start + size]))
        start, turn = start + size, turn + 1
    return parts


def _run(call: Callable[[Any], Answers], given: Any) -> Answers:
    """The outputs of a runtime; raises an `ExportError` if it fails."""
    try:
        return call(given)
    except (ImportError, MemoryError):  # no fault of the file
        raise
    except Exception as error:  # runtimes raise classes of their own
        what = "texts" if np.ndim(given[0]) == 1 else "photos"  # ids of a text are a row
        raise ExportError(
            f"a runtime must answer for real {what}, so the file that it fails on was deleted.\n"
            f"Received: {len(given)} {what}: {type(error).__name__}: {error}"
        ) from error


def _concatenate(parts: Iterable[Answers]) -> Answers:
    """Outputs of all batches, without those that a batch lacks or whose shapes differ."""
    joined = {}
    for name in set.intersection(*(set(part) for part in parts)):
        arrays = [np.asarray(part[name]) for part in parts]
        if all(array.ndim and array.shape[1:] == arrays[0].shape[1:] for array in arrays):
            joined[name] = np.concatenate(arrays)
    return joined


def _pixels_as_rows(maps: Answers) -> Answers:
    """Logits `(B, h, w, K)` as `(N, K)` and depths `(B, h, w)` as `(N,)`, since maps of two sizes are compared."""
    return {name: array.reshape(-1, *array.shape[3:]) for name, array in maps.items()}


def _drifts_of_files(
    reference: Reference, of_files: Callable[[list[bytes]], Answers], photos: Sequence[np.ndarray], spec: ExportSpec
) -> list[Drift]:
    """A `Drift` of each output for photos as files, compared with photos prepared one by one outside the graph."""
    pairs = [pair for photo in photos if (pair := _within_limits(photo, spec)) is not None]
    if not pairs:
        return []
    answers = [reference.run_prepared(np.asarray(reference.preprocessing(photo[None]))) for photo, _ in pairs]
    wanted = _concatenate(answers)
    files = [file for _, file in pairs]
    starts = range(0, len(files), spec.max_batch)
    found = _concatenate([_run(of_files, files[start : start + spec.max_batch]) for start in starts])
    if any(status not in ("ok", b"ok") for status in np.asarray(found["status"]).tolist()):
        found = {}
    if spec.of_pixels and "logits" in wanted:
        return [_drift_of_masks(wanted["logits"], list(found.get("masks", ())), [photo for photo, _ in pairs], spec)]
    drifts = _drifts(wanted, {**found, "logits": wanted.get("logits")}, spec)
    return [dataclasses.replace(d, output=f"{d.output} of files") for d in drifts if d.output != "logits"]


def _drift_of_masks(
    logits: np.ndarray, files: Sequence[bytes], photos: Sequence[np.ndarray], spec: ExportSpec
) -> Drift:
    """The shares of pixels of photos that have another class in a mask as PNG; 1 for one of another size."""
    import tensorflow as tf

    shares = [] if len(files) == len(photos) else [1.0]
    for scores, file, photo in zip(logits, files, photos, strict=False):
        sides = zip(photo.shape[:2], scores.shape[:2], strict=True)
        rows, columns = ((2 * np.arange(n) + 1) * m // (2 * n) for n, m in sides)  # the nearest of the mask's m
        wanted = scores.argmax(-1)[rows[:, None], columns]
        found = tf.io.decode_png(file, dtype=tf.uint16 if scores.shape[-1] > 256 else tf.uint8).numpy()[..., 0]
        shares.append(float(np.mean(wanted != found)) if wanted.shape == found.shape else 1.0)
    bound = _MASKS["float32" if spec.precision == "float32" else "other"]
    return Drift("masks of files", max(shares), float(np.mean(shares)), 0.0, bound, bound)


def _within_limits(photo: np.ndarray, spec: ExportSpec) -> tuple[np.ndarray, bytes] | None:
    """A photo and its PNG, halved until it is within the limits; `None` if no size is."""
    import tensorflow as tf

    while min(photo.shape[:2]) > 1:
        file = tf.io.encode_png(photo).numpy()
        if len(file) <= spec.max_bytes and photo.shape[0] * photo.shape[1] <= spec.max_pixels:
            return photo, file
        photo = photo[::2, ::2]
    return None


_OUTPUTS = ("logits", "numbers", "depths", "features", "scores", "embeddings", *NAMED_OUTPUTS)


def _drifts(wanted: Answers, found: Mapping[str, np.ndarray | None], spec: ExportSpec) -> list[Drift]:
    """A `Drift` of each output of the model; of numbers in standard deviations of the training data."""
    bounds = {name: _bounds(numbers, spec.precision) for name, numbers in wanted.items()}
    if "scores" in wanted and "logits" in bounds:
        bounds["scores"] = [min(bound, 1.0) / 2 for bound in bounds["logits"]]
    if (units := layer_named(spec.model, UNITS)) and "numbers" in wanted:
        scale, offset = np.array(units.scale), np.array(units.offset)
        rounding = _ROUNDING * float(np.abs(wanted["numbers"] / scale).max())  # of what is far from 0
        wanted, found = ({**each, "numbers": _standardized(each, scale, offset)} for each in (wanted, found))
        allowed = _SHARES.get(spec.precision) or _bounds(wanted["numbers"], spec.precision)
        bounds["numbers"] = [bound + rounding for bound in allowed]
    names = [name for name in _OUTPUTS if name in wanted]
    return [_drift(name, wanted[name], found.get(name), bounds[name]) for name in names]


def _standardized(answers: Mapping[str, Any], scale: np.ndarray, offset: np.ndarray) -> Any:
    numbers = answers.get("numbers")
    return None if numbers is None or numbers.shape[-1] != len(scale) else (numbers - offset) / scale


def _bounds(wanted: np.ndarray, precision: str) -> list[float]:
    """Bounds of the largest and the mean difference from these numbers."""
    if precision == "float32":
        return [bound * max(1.0, float(np.abs(wanted).max())) for bound in _FLOAT32]
    return [share * max(_FLOOR, float(wanted.std())) for share in _SHARES[precision]]


def _drift(output: str, wanted: np.ndarray, found: np.ndarray | None, bounds: Sequence[float]) -> Drift:
    deviation = float(wanted.std())
    if found is None or wanted.shape != found.shape:
        return Drift(output, np.inf, np.inf, deviation, 0.0, 0.0)
    difference = np.abs(wanted.astype("float64") - found)
    mean = difference.mean(axis=0).max() if output == "numbers" else difference.mean()  # that of the worst column
    return Drift(output, float(difference.max()), float(mean), deviation, *bounds)


def _agreement(wanted: Answers, found: Answers) -> float:
    """Share of the photos, or of the pixels of a model of these, whose best class is the same."""
    output = "scores" if "scores" in wanted else "logits"
    expected, scores = wanted[output], found.get(output)
    if scores is None or expected.shape != scores.shape:
        return 0.0
    return float((expected.argmax(axis=-1) == scores.argmax(axis=-1)).mean())


def median_seconds(*calls: Callable[[], Any], repeats: int = REPEATS) -> tuple[float, ...]:
    """The median time of each call. They are called in turn, so that other load slows all of them."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return tuple(map(statistics.median, times))
