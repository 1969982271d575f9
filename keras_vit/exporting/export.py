"""`export`, from a model to a verified file.

The file is written into a staging folder, opened in its own runtime, and compared with the model on real photos. Then
it is moved to its path.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError, with_parameters
from keras_vit.config.heads import DEPTH, MAP_HEADS, WITH_NAMED_OUTPUTS
from keras_vit.config.variants import check_image_size
from keras_vit.exporting.budget import max_repeats
from keras_vit.exporting.folding import count_folds
from keras_vit.exporting.formats import Format
from keras_vit.exporting.report import ExportError, ExportReport, Runtime
from keras_vit.exporting.request import Request, check_request
from keras_vit.exporting.sample_photos import Photos, describe_photos, load_photos, resize_photos
from keras_vit.exporting.spec import TOP_K, ExportSpec
from keras_vit.exporting.staging import publish_absent, publish_files, publish_version
from keras_vit.exporting.text_towers import EXTRA, TOKENIZER, check_text_tower, sample_ids, text_in_precision
from keras_vit.exporting.verification import image_size as size_to_compare
from keras_vit.exporting.verification import verify as compare
from keras_vit.files import disk_size, staging
from keras_vit.images.preprocessing import check_same_order
from keras_vit.model.copies import unwrapped, with_input_shape
from keras_vit.model.image_model import ImageModel, check_takes_images
from keras_vit.model.layer_access import first_layer, is_quantized, user_operations
from keras_vit.model.outputs import names_of_outputs
from keras_vit.model.precision import in_precision
from keras_vit.model.two_towers.text_tower import TextTransformer
from keras_vit.model.two_towers.zero_shot import is_of_sigmoid_loss
from keras_vit.pages.cards import write_card
from keras_vit.renamed import accepts_options
from keras_vit.text.opening import is_tokenizer_file, write_tokenizer_file

_COMPARED, _CALIBRATION = 16, 64  # photos
_MIN_CALIBRATION = 8  # also for a slow model
_MANY = 20_000_000  # parameters; B/16 of 86 million takes half a minute
_WARMUP = 4  # to warm up a server, without calibration
MAX_PHOTOS = _COMPARED + _CALIBRATION  # that are read
MIN_PHOTOS = 32  # for calibration and comparison: with one photo, the next differed by 1.7 deviations


@accepts_options
def export(
    model: ImageModel | TextTransformer,
    path: FilePath,
    format: str | None = None,
    labels: Sequence[str] | np.ndarray | None = None,
    precision: str = "float32",
    verify: bool = True,
    *,
    images: Photos = None,
    overwrite: bool = False,
    options: Mapping[str, Any] | None = None,
) -> ExportReport:
    """Writes a model for a server or a phone, with preprocessing and labels inside, and compares it with the model.

    Example:
        >>> names = ["disc", "stripes", "tiles"]
        >>> report = keras_vit.export(model, "shapes.onnx", labels=names)
        >>> report.images, report.top1_agreement
        (16, 1.0)

    Args:
        model: a `VisionTransformer` or `ResNet`, or a model of your own that calls one without a head as a layer, as
            `Dense(4)(encoder(images))`; it is not changed. A last dense layer of yours is the head. Or a `DenseModel`:
            its file gives `logits` `(B, H, W, K)` or `depths` `(B, H, W)`, and a SavedModel takes photos as files and
            gives `masks`, PNG files of the best class of each pixel at the photo's size, or `depths`. Or a
            `TextTransformer`: its file takes ids, int32 `(B, T)`, and gives `embeddings`, float32 `(B, E)`, with NaN
            for a text with ids that are none. The tokenizer is written next to it, as `PATH.tokenizer.json`, and of a
            SavedModel into `assets.extra`. Options of images, scores and labels are not for it.
        path: of the file; for `"saved_model"` of the served model's folder, in which each export becomes the next
            version, `path/1`, `path/2`, ...
        format: `"saved_model"` (TensorFlow Serving), `"onnx"`, `"litert"` or `"openvino"`. By default it follows
            the extension of `path`: `.onnx`, `.tflite`, `.xml`, and a SavedModel for any other.
        labels: K names in the order of the outputs; by default `model.class_names`, those of ImageNet for 1,000 or
            21,843 classes, else `"class 0"`, ...
        precision: `"float32"`, `"bfloat16"`, `"float16"` or `"int8"`, if the format has it.
        verify: whether to open the file and compare it with the model, computed in float32, on real photos.
        images: photos to compare on: a folder, paths, or uint8 arrays `(H, W, C)`. Up to 16 are compared, fewer for a
            model that takes seconds for one. By default they are parts of two photos of scikit-learn. int8 of LiteRT
            and OpenVINO is calibrated on up to 64 others of them, so it needs at least 32.
        overwrite: whether an earlier export at `path` is replaced, with the file of its data, as `model.bin` or
            `model.onnx.data`. A SavedModel's versions are never replaced.
        options: dict of options. Every format has these:

            - `image_size`: `(H, W)` of the input, by default the model's; `"any"` for sides that each call may choose,
              multiples of the patch side. All signatures of a SavedModel then take `pixels`, since a photo has no
              target size. The same holds for a model whose images have neither 1 nor 3 channels.
            - `activation`: from logits to scores, `"softmax"` or `"sigmoid"`, if the model ends in logits. By default
              sigmoid if several labels may be right or for a classifier of `zero_shot` of SigLIP's towers, else
              softmax.
            - `name`: of the served model; by default that of `path`.
            - `print_fn`: takes a line before each step that may last, as `print`; by default nothing is printed.

            A SavedModel also has these:

            - `top_k`: number of best classes in an answer, by default 5.
            - `max_bytes`: of one image file, 1,024 to 2**31 - 1.
            - `max_pixels`: of one image.
            - `max_batch`: largest number of images in one call, by default 128.
            - `jit_compile`: whether XLA compiles the network, once for each number of images in a call, which takes
              seconds. On a CPU one image is then computed faster, in int8 far faster. TensorFlow Serving must be
              started with `--xla_cpu_compilation_enabled`.
            - `card`: card of the model's run. Its results, training and limits go into the card of the folder.

            ONNX has `opset`, 13 to 18, by default 18. LiteRT has `batch_size`, images of each call: by default 1, so
            that all shapes are static, as most delegates require; `"any"` for any number, without a delegate. It is
            `"any"` where `image_size` is.

    Returns:
        An `ExportReport`: differences, agreement, size and speed.

    Raises:
        TypeError: if `model` is none of them, or for another value of the wrong type.
        ValueError: for a format, precision, option, size, label or photo that cannot be.
        FileNotFoundError: if there are no `images` where a path says.
        FileExistsError: if something is at `path`; with `overwrite`, if no export of this package has written it.
        ImportError: if the format's package is missing.
        RuntimeError: if Keras does not run on TensorFlow.
        ExportError: if the file is not valid or not the model; it is deleted.
    """
    request = check_request(path, format, precision, overwrite, options)
    chosen, facts = request.options, {"precision": precision, "name": request.name}
    if isinstance(model, TextTransformer):
        of_images = [("image_size", chosen.image_size), ("activation", chosen.activation)]
        check_text_tower(model, dict([("labels", labels), ("images", images), *of_images]))
        original, spec, compared = _text_spec(model, request.format, facts | chosen.of_spec(any_size=False))
    else:
        original = _prepare_model(model, request)
        facts |= chosen.of_spec(any_size=None in original.input_shape[1:3])
        spec, compared = _image_spec(original, request.format, facts, labels, images, chosen.activation)
    return _Export(request, spec, original, compared if verify else None).report(overwrite)


def _image_spec(
    original: ImageModel,
    format: Format,
    facts: dict[str, Any],
    labels: Sequence[str] | np.ndarray | None,
    images: Photos,
    activation: str | None,
) -> tuple[ExportSpec, list[np.ndarray]]:
    """The spec of a model of images, and the photos to compare on."""
    of_pixels = original.output_spec.head.name in MAP_HEADS
    if activation is not None and (of_pixels or original.output_spec.kind == "numbers"):
        what = "is written with its logits of each pixel, or depths" if of_pixels else "answers in numbers"
        raise ArgumentError(
            f"`activation` turns logits into scores, and this model {what}.\n"
            f"Received: activation={activation!r}, {original.name!r}. Leave it out."
        )
    exclusive = original.output_spec.exclusive and not is_of_sigmoid_loss(original)
    activation = activation or ("softmax" if exclusive else "sigmoid")
    names = _check_labels(original, labels, activation)
    calibrated = facts["precision"] in format.calibrates
    compared, calibration = select_photos(images, original, calibrated, format.name)
    facts["top_k"] = min(facts.get("top_k", TOP_K), len(names or ()))
    spec = ExportSpec(
        model=original if format.extension else in_precision(original, facts["precision"]),  # converters do it
        labels=names,
        activation=activation if names and original.output_spec.kind == "logits" and not of_pixels else "none",
        calibration_photos=calibration,
        calibrated_on=describe_photos(images) if calibrated else None,
        **facts,
    )
    return spec, compared


def _text_spec(
    model: TextTransformer, format: Format, facts: dict[str, Any]
) -> tuple[TextTransformer, ExportSpec, list[np.ndarray]]:
    """The tower in float32, its spec, and ids to compare on."""
    precision = facts["precision"]
    if precision == "int8" and not format.extension:
        raise ArgumentError(
            "a SavedModel of a text tower is in float32, bfloat16 or float16.\n"
            'Received: precision="int8". Other formats have it.'
        )
    original = text_in_precision(model, "float32")
    ids, what = sample_ids(original, MAX_PHOTOS)
    step = MAX_PHOTOS // _COMPARED
    spec = ExportSpec(
        model=original if format.extension else text_in_precision(original, precision),
        labels=None,
        activation="none",
        calibration_photos=np.delete(ids, np.s_[::step], axis=0),
        calibrated_on=what if precision in format.calibrates else None,
        takes="ids",
        **facts | {"top_k": 0},
    )
    return original, spec, list(ids[::step])


@dataclasses.dataclass(frozen=True, eq=False)
class _Export:
    """A request, its spec, and the model and photos or ids to compare with; none without verification."""

    request: Request
    spec: ExportSpec
    original: ImageModel | TextTransformer
    photos: Sequence[np.ndarray] | None

    def say(self, line: str) -> None:
        """Hands a line to `print_fn`."""
        if self.request.options.print_fn is not None:
            self.request.options.print_fn(line)

    def report(self, overwrite: bool) -> ExportReport:
        """Writes and verifies the file."""
        parameters = self.original.count_params()
        time = f"; {parameters:,} parameters may take a minute or more" * (parameters > _MANY)
        self.say(f"writing {self.request.format.name} in {self.spec.precision}{time}")
        return self._export_file(overwrite) if self.request.format.extension else self._export_version()

    def _export_file(self, overwrite: bool) -> ExportReport:
        path = self.request.path
        with staging(path.parent) as place:
            file = place / path.name
            self.request.format.write(self.spec, file)
            tokenizer = self._write_tokenizer(file.with_name(f"{file.name}.{TOKENIZER}"))
            found = self._verify(file, disk_size(place), tokenizer)
            publish_files(place, path, self._is_own_file if overwrite else None)
        return found

    def _is_own_file(self, file: Path) -> bool:
        return is_tokenizer_file(file) or self.request.format.is_own_file(file)

    def _write_tokenizer(self, file: Path) -> Path | None:
        """Writes the tokenizer of a text tower, if it has one."""
        tokenizer = self.original.tokenizer if isinstance(self.original, TextTransformer) else None
        if tokenizer is None:
            return None
        file.parent.mkdir(exist_ok=True)
        write_tokenizer_file(tokenizer, file)
        return file

    def _export_version(self) -> ExportReport:
        from keras_vit.exporting.serving_files import served_card, write_serving_files

        folder = self.request.path
        with staging(folder) as place:
            version, extra = place / "version", place / "extra"
            extra.mkdir()
            self.request.format.write(self.spec, version)
            write_serving_files(self.spec, extra, version, self.photos)
            tokenizer = self._write_tokenizer(version / EXTRA / TOKENIZER)
            found = self._verify(version, disk_size(version), tokenizer)
            version = publish_version(version, folder)
            publish_absent(extra, folder)
        kept = None if tokenizer is None else str(version / EXTRA / TOKENIZER)
        found = dataclasses.replace(found, path=version, tokenizer=kept)
        write_card(folder, served_card(self.spec, found, getattr(self.request.options, "card", None)))
        return found

    def _verify(self, place: Path, size: int, tokenizer: Path | None) -> ExportReport:
        """The report of the file at `place`; raises if it does not compute what the model computes."""
        (format, path, *_), spec, is_text = self.request, self.spec, self.spec.takes == "ids"
        folded = str(count_folds(spec)) if spec.precision in format.folds and not is_text else None
        facts: dict[str, Any] = {"opening": format.load_snippet(str(path)), "folded": folded}
        facts["calibrated_on"] = spec.calibrated_on
        facts["compared_on"] = "texts" if is_text else "photos"
        facts["tokenizer"] = tokenizer and str(path.with_name(tokenizer.name))
        report = ExportReport(path, format.name, spec.precision, size, **facts)
        if self.photos is None:
            return report
        self.say("opening it in its own runtime")
        runtime = _open(format, place)
        self.say(f"comparing it with the model on {len(self.photos)} {report.compared_on} in {runtime.name}")
        found = compare(self.original, runtime, self.photos, spec)
        facts = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
        report = dataclasses.replace(report, runtime=runtime.name, **facts)
        if not found.passed:
            raise with_parameters(_drift_error(report), "precision", "format")
        return report


def _drift_error(report: ExportReport) -> ExportError:
    """The error for a file that is not the model, with the first output that is out of its bounds."""
    drift = next(drift for drift in report.drift if not drift.within)
    unit = " standard deviations of the training data" if drift.output.startswith("numbers") else ""
    other = "format" if report.precision == "float32" else "precision"
    return ExportError(
        "a file must compute what the model computes, within the bound, so this one was deleted.\n"
        f"Received: {report.format} in {report.precision}: its {drift.output} differ by up to "
        f"{drift.max_difference:.2g}{unit}, in the mean by {drift.mean_difference:.2g}; {drift.bound:.2g} and "
        f"{drift.mean_bound:.2g} are allowed. Pass another `{other}`."
    )


def _open(format: Format, place: Path) -> Runtime:
    try:
        return format.open_runtime(place)
    except (ExportError, ImportError, MemoryError):
        raise
    except Exception as error:  # runtimes raise classes of their own
        raise ExportError(
            "a runtime must take the file, so this one was deleted.\n"
            f"Received: {place.name}: {type(error).__name__}: {error}"
        ) from error


def check_exportable(model: Any) -> None:
    """Raises unless `model` is a `VisionTransformer` or `ResNet` with one row of outputs for each image."""
    check_takes_images(model)
    known = isinstance(model, ImageModel) and None not in (model.config, model.preprocessing)
    if not known or len(model.inputs) != 1:
        raise TypeError(
            "`model` must be a VisionTransformer or ResNet with one input that knows its config and preprocessing, as "
            f"the builders give it and a .keras file keeps it.\nReceived: {model!r}. A model of your own is not served "
            "otherwise than around one encoder that it calls as a layer, `Dense(4)(encoder(images))`, with one input "
            "and one output."
        )
    if own := user_operations(keras.Model(model.inputs, first_layer(model).input)):
        raise TypeError(
            "layers of your own in front of an encoder are not served: what pixels they take is not known.\n"
            f"Received: {model.name!r} with {', '.join(map(repr, own))}. Export the model from the encoder on; what is "
            "in front can be part of `preprocessing`."
        )
    if not model.output_spec.one_row and model.output_spec.head.name not in (*MAP_HEADS, *WITH_NAMED_OUTPUTS):
        raise ValueError(
            "an exported model gives one row for each image, (B, K) or (B, D), or one for each pixel, query or point.\n"
            f'Received: {model.name!r} with {model.output_spec.shape}. Build it with another `pooling` than "none".'
        )


def _check_activation(model: ImageModel, activation: str, classes: int) -> None:
    if classes == 1 and activation == "softmax" and model.output_spec.kind == "logits":
        raise ArgumentError(
            'the score of a single class is 1 after a softmax, whatever the image.\nReceived: activation="softmax", '
            f'{model.name!r} with one class. Pass activation="sigmoid".'
        )


def select_photos(
    images: Photos, model: ImageModel, calibrated: bool, format: str
) -> tuple[list[np.ndarray], np.ndarray]:
    """Photos to compare on, and others, of the model's size, to calibrate on."""
    photos = load_photos(images, MAX_PHOTOS, model.input_shape[-1])
    step = max(len(photos) // _COMPARED, 1)
    size = size_to_compare(model)
    compared, calibration = photos[::step][:_COMPARED], photos[:_WARMUP]
    if calibrated:
        if len(photos) < MIN_PHOTOS:
            raise ArgumentError(
                f"int8 of {format} is calibrated on photos and compared on others, so it takes at "
                f"least {MIN_PHOTOS}.\nReceived: {len(photos)} in `images`."
            )
        calibration = [photo for number, photo in enumerate(photos) if number % step or number >= step * _COMPARED]
        if not any(np.ptp(photo) for photo in calibration):
            raise ArgumentError(
                f"int8 of {format} is calibrated on photos with contents.\nReceived: `images` of one colour each."
            )
    most = max(max_repeats(model, size, _CALIBRATION, _CALIBRATION // _COMPARED), _MIN_CALIBRATION)
    return compared[: max_repeats(model, size, _COMPARED)], resize_photos(calibration[:most], size)


def _prepare_model(model: ImageModel, request: Request) -> ImageModel:
    """The model at the image size, in float32 or as Keras quantised it; raises if the format cannot hold it."""
    model = unwrapped(model)
    check_exportable(model)
    format, options = request.format, request.options
    model = _resize(model, options.image_size)
    if is_quantized(model) and format.extension:
        raise ArgumentError(
            "a model that Keras quantised can only become a SavedModel; other formats are quantised by their own means."
            f'\nReceived: format="{format.name}", {model.name!r}. Pass the model that it was made from, and '
            'precision="int8".'
        )
    sides, max_pixels = model.input_shape[1:3], getattr(options, "max_pixels", math.inf)
    if None not in sides and max_pixels < sides[0] * sides[1]:
        raise ArgumentError(
            "`max_pixels` must leave room for an image of the model's own size.\n"
            f"Received: max_pixels={max_pixels}, {model.name!r} for {sides[0]} x {sides[1]} pixels."
        )
    return in_precision(model, "int8" if is_quantized(model) else "float32")


def _resize(model: ImageModel, image_size: tuple[int | None, int | None] | str | None) -> ImageModel:
    if image_size is None:
        return model
    if image_size == "any":
        image_size = (None, None)
    if is_quantized(model):
        raise ArgumentError(
            "a quantised model keeps its size.\n"
            f"Received: image_size={image_size}, {model.name!r}. Pass the model that it was made from."
        )
    sides = check_image_size(image_size, model.config)
    return with_input_shape(in_precision(model, "float32"), (*sides, model.input_shape[-1]))


def _check_labels(
    model: ImageModel, labels: Sequence[str] | np.ndarray | None, activation: str
) -> tuple[str, ...] | None:
    """K names, or `None` for a model without a head; raises for an activation that does not fit K."""
    if model.output_spec.activation is None or model.output_spec.head.name == DEPTH:
        if labels is not None:
            raise ArgumentError(
                "`labels` name the outputs of a head.\nReceived: labels for a model without a head, or of depths."
            )
        return None
    classes = model.output_spec.size
    _check_activation(model, activation, classes)
    if labels is None:
        return names_of_outputs(model)
    if not isinstance(labels, (list, tuple, np.ndarray)):
        raise with_parameters(
            TypeError(
                "`labels` must be a list, whose order is that of the classes.\n"
                f"Received: {labels!r} of type {type(labels).__name__}."
            ),
            "labels",
        )
    labels = tuple(labels)
    wrong = [label for label in labels if not isinstance(label, str) or not _is_line(label)]
    if wrong or len(labels) != classes:
        raise ArgumentError(
            f"`labels` must be {classes:,} names, one line of Unicode each, in the order of the classes.\n"
            f"Received: {len(labels):,}{f', among them {wrong[0]!r}' if wrong else ''}."
        )
    check_same_order(model.class_names, labels, "labels")
    return labels


def _is_line(text: str) -> bool:
    return bool(text.strip()) and text.splitlines() == [text] and not re.search("[\ud800-\udfff]", text)
