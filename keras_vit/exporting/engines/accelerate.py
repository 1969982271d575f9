"""`accelerate`, from a model to a compared and timed engine."""

import contextlib
import functools
import gc
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.cache import DEFAULT_CACHE
from keras_vit.checks import check_choice, check_positive_int, check_threads, with_parameters
from keras_vit.config.heads import MAP_HEADS
from keras_vit.exporting.budget import max_repeats
from keras_vit.exporting.engines.cache import EngineCache, Request, open_cache
from keras_vit.exporting.engines.engine import Engine, EngineReport
from keras_vit.exporting.engines.runtimes import (
    ALL,
    check_available,
    engine_writer,
    is_calibrated,
    open_engine,
    with_preprocessing,
)
from keras_vit.exporting.export import check_exportable, select_photos
from keras_vit.exporting.formats import ENGINE_PRECISIONS, ENGINES
from keras_vit.exporting.formats.onnx import Onnx
from keras_vit.exporting.report import Drift, ExportError, Runtime
from keras_vit.exporting.request import check_backend
from keras_vit.exporting.sample_photos import Photos, resize_photos
from keras_vit.exporting.spec import ExportSpec
from keras_vit.exporting.verification import REPEATS, Reference, compare, image_size, median_seconds
from keras_vit.images.preprocessing import preprocess_input
from keras_vit.model.copies import unwrapped
from keras_vit.model.image_model import ImageModel
from keras_vit.model.layer_access import is_quantized
from keras_vit.model.precision import in_precision

# Peak memory of B/16 at 1,024 pixels: TensorFlow 2.2 GiB, OpenVINO 3.1; with XLA 3.9, with ONNX Runtime 6.2.
_NOT_FOR_LARGE = ("xla", "onnxruntime")
_TOO_LARGE = "it takes gigabytes more for a model that needs seconds for an image; pass it as `engine` to measure it"


def accelerate(
    model: ImageModel,
    engine: str = "auto",
    precision: str = "float32",
    threads: int | None = None,
    *,
    batch_size: int = 1,
    images: Photos = None,
    cache: FilePath | None = DEFAULT_CACHE,
    print_fn: Callable[[str], Any] | None = None,
) -> Engine:
    """Opens a model in the software that computes it fastest here, and compares the outputs with the model's.

    The converted network and the report are cached. The next call uses them if weights, config, preprocessing,
    arguments, photos, versions and processor are the same. It compares one photo again, with the same bound. `kept_on`
    of the report is then the day of the earlier call.

    Example:
        >>> engine = keras_vit.accelerate(model, "onnxruntime", cache=None)
        >>> engine(images).shape
        (2, 3)

    Args:
        model: a `VisionTransformer` or `ResNet`; it is not changed.
        engine: `"tensorflow"`, a traced graph; `"xla"`, compiled for each batch size, which takes seconds;
            `"openvino"`; `"onnxruntime"`; or `"auto"` for the fastest of those that are installed, have the precision
            and are within its bounds, measured in turn.
        precision: `"float32"`; `"bfloat16"`, which ONNX Runtime lacks; or `"int8"` for dense layers. The bounds are
            those of `export`.
        threads: of OpenVINO or ONNX Runtime; by default their own choice.
        batch_size: images of a timed call.
        images: photos to compare on, as `export` takes them; by default parts of two photos of scikit-learn. int8 of
            OpenVINO is calibrated on others of them, so it needs at least 32.
        cache: folder of the cache, by default `engines` in the folder of downloaded weights, `KERAS_VIT_CACHE`. Its
            limit is 4 GB, or `KERAS_VIT_ENGINES_GB`. `None` neither reads nor writes. A model with layers of your own
            classes is not cached, since their code may change.
        print_fn: takes a line before each step that may last, as `print`; by default nothing is said.

    Returns:
        An `Engine`, called as the model is; its `report` has the measurements. In float32 TensorFlow and XLA compute
        with the model's own weights, so they follow its training; others have copies.

    Raises:
        TypeError: if `model` is neither of them, or for another value of the wrong type.
        ValueError: for an invalid engine, precision or number of threads, or a model without one row for each image.
        ImportError: if the engine's package is missing.
        RuntimeError: if Keras does not run on TensorFlow.
        ExportError: if the engine does not take the model or exceeds the bounds; with `"auto"` if all do.

    Warns:
        UserWarning: if nothing can be cached, as on a full disk or in a folder where others may write, or if the cache
            is damaged. The engine is then made anew.
    """
    check_choice("engine", engine, ENGINES)
    check_choice("precision", precision, ENGINE_PRECISIONS)
    threads = None if threads is None else check_threads(threads)
    batch_size = check_positive_int("batch_size", batch_size)
    check_backend()
    model = unwrapped(model)
    check_exportable(model)
    kept = open_cache(Request(model, engine, precision, threads, batch_size, images), cache)
    found = _Comparison(model, precision, threads, images, batch_size, kept, print_fn or _silent)
    if (cached := found.open_cached()) is not None:
        return cached
    if engine == "auto":
        found.add_all()
    else:
        found.add(engine)
    return found.fastest()


def write_engine(model: ImageModel, place: Path, precision: str = "float32") -> None:
    """Writes a file with prepared images as input, for ONNX Runtime in other processes.

    Args:
        model: as `accelerate` takes it.
        place: path of the new file; above 2 GB its weights get a second file. It stays if this raises.
        precision: `"float32"` or `"int8"`.

    Raises:
        TypeError, ValueError, ImportError, RuntimeError, ExportError: as `accelerate`.
    """
    check_backend()
    model = unwrapped(model)
    check_exportable(model)
    _Comparison(model, precision, None, None, 1).write(place)


def _silent(line: str) -> None:
    """Says nothing."""


class _Candidate(NamedTuple):
    """An engine that is within the bounds."""

    runtime: Runtime
    drift: tuple[Drift, ...]
    top1_agreement: float | None


class _Comparison:
    """Engines of one model, compared with it; the fastest is chosen.

    Attributes:
        candidates: a `_Candidate` by the name of its engine.
        left_out: the reason, by the name of an engine that cannot compute the model.
        seconds: for one image, by the name of an engine, and of `"model"`.
    """

    def __init__(
        self,
        model: ImageModel,
        precision: str,
        threads: int | None,
        images: Photos,
        batch_size: int,
        cache: EngineCache | None = None,
        say: Callable[[str], Any] = _silent,
    ) -> None:
        self.model, self.precision, self.threads, self.images = model, precision, threads, images
        self.batch_size, self.cache, self.say = batch_size, cache, say
        self.seconds: dict[str, float] = {}
        self.candidates: dict[str, _Candidate] = {}
        self.left_out: dict[str, str] = {}

    @functools.cached_property
    def original(self) -> ImageModel:
        """The model in float32, or as Keras quantised it."""
        return in_precision(self.model, "int8" if is_quantized(self.model) else "float32")

    @functools.cached_property
    def reference(self) -> Reference:
        return Reference(self.original, _activation(self.model))

    def open_cached(self) -> Engine | None:
        """The cached engine, if there is one and it computes a photo as the model does now."""
        found = self.cache and self.cache.get()
        if not self.cache or not found:
            return None
        report, photo = found
        spec = self._task(report.engine, photo[None])
        in_keras = engine_writer(report.engine) is None
        with contextlib.suppress(ExportError):  # raised again when the engine is made anew
            runtime = open_engine(report.engine, spec, self.threads) if in_keras else self.cache.open(report.engine)
            if runtime is None:
                return None
            reference = Reference(self.original, spec.activation, traced=False)
            drift, _ = compare(
                self.original, reference, with_preprocessing(runtime, self.model.preprocessing), [photo], spec
            )
            bounds = {one.output: one.bound for one in report.drift}  # those of one photo are narrower
            if all(one.max_difference <= bounds.get(one.output, 0) for one in drift):
                return Engine(self.model, runtime, report)
        warnings.warn("the engine is made anew, as the kept one does not compute what the model computes", stacklevel=3)
        self.cache.remove(report.engine)
        return None

    def add_all(self) -> None:
        """Adds every engine that can compute the model; raises if none can.

        With a slow model one engine is open at a time, since all together would take gigabytes; the fastest is opened
        again.
        """
        is_large = self._repeats == 1
        if is_large:
            self._time(["model"])
        for engine in ALL:
            if is_large and engine in _NOT_FOR_LARGE:
                self.left_out[engine] = _TOO_LARGE
                continue
            try:
                check_available(engine, self.precision, self.threads, is_quantized(self.model))
            except (ImportError, ValueError) as error:
                self.left_out[engine] = _one_line(error)
                continue
            try:
                self.add(engine)
                if is_large:
                    self._time([engine])
                    del self.candidates[engine]
                    gc.collect()  # graphs are reference cycles, and hold their memory
            except ExportError as error:
                self.left_out[engine] = _one_line(error)
        timed = [engine for engine in ALL if engine in self.seconds]
        if timed:
            self.add(min(timed, key=self.seconds.__getitem__))
        if not self.candidates:
            reasons = "".join(f"\n  {engine}: {reason}" for engine, reason in self.left_out.items())
            raise ExportError(
                f"no engine here computes what the model computes.\nReceived: {self.model.name!r}{reasons}"
            )

    def add(self, engine: str) -> None:
        """Opens an engine and compares it; raises if that fails or it exceeds the bounds."""
        check_available(engine, self.precision, self.threads, is_quantized(self.model))
        self.say(f"opening {engine} in {self.precision}, and comparing it with the model")
        photos, calibration = self._photos(engine)
        spec = self._task(engine, calibration)
        if self.cache is None or engine_writer(engine) is None:
            self._compare(engine, open_engine(engine, spec, self.threads), photos, spec)
            return
        if (cached := self.cache.open(engine)) is not None:
            try:
                self._compare(engine, cached, photos, spec)
                return
            except ExportError:
                self.cache.remove(engine)
        with self.cache.staging(engine) as store:
            self._compare(engine, open_engine(engine, spec, self.threads, store), photos, spec)

    def write(self, place: Path) -> None:
        """Writes the file of `write_engine`, and compares it; it stays in any case."""
        check_available("onnxruntime", self.precision, self.threads, is_quantized(self.model))
        photos, calibration = self._photos("onnxruntime")
        spec = self._task("onnxruntime", calibration)
        Onnx().write(spec, place)
        self._compare("onnxruntime", Onnx().open_runtime(place, self.threads), photos, spec)

    def _compare(self, engine: str, runtime: Runtime, photos: list[np.ndarray], spec: ExportSpec) -> None:
        on_pixels = with_preprocessing(runtime, self.model.preprocessing)
        drift, agreement = compare(self.original, self.reference, on_pixels, photos, spec)
        if beyond := [_excess(one) for one in drift if not one.within]:
            raise with_parameters(
                ExportError(
                    "an engine must compute what the model computes, within the bounds of its precision.\n"
                    f'Received: engine="{engine}", precision="{self.precision}": {"; ".join(beyond)}.'
                ),
                "engine",
                "precision",
            )
        self.candidates[engine] = _Candidate(runtime, drift, agreement)

    def fastest(self) -> Engine:
        """The `Engine` that takes the least time for a batch."""
        photos, _ = self._photos("tensorflow")
        self._time([name for name in (*self.candidates, "model") if name not in self.seconds])
        engine = min(self.candidates, key=self.seconds.__getitem__)
        runtime, drift, agreement = self.candidates[engine]
        report = EngineReport(
            engine=engine,
            precision=self.precision,
            threads=self.threads,
            runtime=runtime.name,
            images=len(photos),
            drift=drift,
            top1_agreement=agreement,
            batch_size=self.batch_size,
            seconds=self.seconds,
            left_out=self.left_out,
        )
        if self.cache is not None:
            self.cache.put(report, photos[0])
            self.cache.warn_unwritable()
        return Engine(self.model, runtime, report)

    def _time(self, names: list[str]) -> None:
        """Times engines, or the model, in turn."""
        self.say(f"timing {', '.join(names)}")
        photos, _ = self._photos("tensorflow")
        pixels = resize_photos((photos * self.batch_size)[: self.batch_size], image_size(self.model))
        images = preprocess_input(pixels, self.model.preprocessing)
        runs = [self.reference.run_prepared if n == "model" else self.candidates[n].runtime.run for n in names]
        if self._repeats > 1 or self.batch_size > 1:
            for run in runs:
                run(images)  # may compile; the comparison did so for one photo
        times = median_seconds(*(functools.partial(run, images) for run in runs), repeats=self._repeats)
        self.seconds |= {name: time / self.batch_size for name, time in zip(names, times, strict=True)}

    @functools.cached_property
    def _repeats(self) -> int:
        """How often each is timed."""
        return max_repeats(self.model, image_size(self.model), REPEATS)

    def _photos(self, engine: str) -> tuple[list[np.ndarray], np.ndarray]:
        """Photos to compare on, and photos to calibrate on."""
        return select_photos(self.images, self.model, is_calibrated(engine, self.precision), engine)

    def _task(self, engine: str, calibration: np.ndarray) -> ExportSpec:
        in_keras = engine_writer(engine) is None
        return ExportSpec(
            model=in_precision(self.original, self.precision) if in_keras else self.original,
            precision=self.precision,
            labels=None,
            activation=_activation(self.model),
            name=re.sub(r"\W+", "_", self.model.name),
            jit_compile=engine == "xla",
            calibration_photos=preprocess_input(calibration, self.model.preprocessing),
            top_k=0,
            takes="images",
        )


def _activation(model: ImageModel) -> str:
    """Name of the activation from logits to the scores that are compared."""
    spec = model.output_spec
    if spec.head.name in MAP_HEADS:
        return "none"
    return ("softmax" if spec.exclusive else "sigmoid") if spec.kind == "logits" else "none"


def _excess(drift: Drift) -> str:
    found, allowed = (drift.max_difference, drift.mean_difference), (drift.bound, drift.mean_bound)
    return "{} differ by {:.2g} ({:.2g} in the mean), and may by {:.2g} ({:.2g})".format(drift.output, *found, *allowed)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
