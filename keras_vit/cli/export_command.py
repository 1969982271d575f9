"""`keras-vit export`: a model as a file for a server or a phone, and how far it is from the model."""

import dataclasses
import functools
import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_vit.annotations import Pair
from keras_vit.checks import ArgumentError, as_sides, parse_sides
from keras_vit.cli.models import (
    add_zero_shot_options,
    check_model,
    check_templates_have_classes,
    check_top,
    check_top_of_run,
    check_zero_shot_options,
    class_words,
    load_model_and_run,
    load_text_tower,
    load_zero_shot,
    output_names,
    read_lines,
    run_facts,
)
from keras_vit.cli.terminal import loading, path, quiet_start
from keras_vit.config.heads import HEAD_KINDS
from keras_vit.exporting.formats import ACTIVATIONS, FORMATS, PRECISIONS
from keras_vit.exporting.report import check_report
from keras_vit.exporting.request import check_arguments
from keras_vit.exporting.spec import MAX_BATCH, MAX_BYTES, MAX_PIXELS, OPSET
from keras_vit.images.photo_files import near_names
from keras_vit.pages.formatting import printable
from keras_vit.tasks.task import TOP

SAME_NAME = (  # of options
    *("format", "precision", "labels", "images", "activation", "opset"),
    *("max_bytes", "max_pixels", "max_batch", "batch_size", "jit_compile"),
)


def add_commands(top: Any, command: Callable[..., ArgumentParser]) -> None:
    """Adds this command to the parser; `command` makes it."""
    summary = "write a model for TensorFlow Serving, ONNX Runtime, LiteRT or OpenVINO"
    new = command(top, "export", export, summary, "keras-vit export run model.onnx")
    new.add_argument(
        "model", metavar="MODEL", help="the folder of a run, a .keras file, a checkpoint, or a name as B/16"
    )
    new.add_argument(
        "path",
        metavar="PATH",
        type=path,
        help="the new file; for a SavedModel a folder, below which the version 1 is written",
    )
    new.add_argument(
        "--format", choices=FORMATS, help="what to write; by default what the ending of PATH says, else a SavedModel"
    )
    new.add_argument(
        "--precision", default="float32", choices=PRECISIONS, help="precision of the weights or of the computation"
    )
    new.add_argument(
        "--weights",
        metavar="NAME",
        help="weights of a model given by name, as B/16; by default those with ImageNet's 1,000 classes",
    )
    new.add_argument(
        "--labels",
        metavar="FILE",
        type=path,
        help="text file with the name of a class on each line; by default the names of the run, or ImageNet's",
    )
    new.add_argument(
        "--images",
        metavar="FOLDER",
        type=path,
        help="photos to compare the file on, and to calibrate int8; by default two photos, for int8 those of the run",
    )
    new.add_argument(
        "--image-size",
        type=_image_size,
        metavar="SIZE",
        help="224, 224x320 (height, width) or any; by default the model's. With any, a SavedModel takes no photo files",
    )
    new.add_argument("--text", action="store_true", help="write the text tower: ids to embeddings, and its tokenizer")
    add_zero_shot_options(new)
    scores = "what turns logits into scores; by default that of the run's task, else softmax"
    new.add_argument(
        "--top", dest="top_k", type=int, metavar="K", help=f"how many classes an answer names; by default {TOP}"
    )
    new.add_argument("--activation", choices=ACTIVATIONS, help=scores)
    new.add_argument("--name", metavar="NAME", help="name of the served model; by default that of PATH")
    new.add_argument("--opset", type=int, default=OPSET, metavar="N", help="version of the ONNX operators")
    new.add_argument(
        "--max-bytes", type=int, default=MAX_BYTES, metavar="BYTES", help="largest photo file that a SavedModel takes"
    )
    new.add_argument(
        "--max-pixels", type=int, default=MAX_PIXELS, metavar="PIXELS", help="largest photo that a SavedModel takes"
    )
    request = "most images in one request to a SavedModel; a larger one gets INVALID_ARGUMENT"
    new.add_argument("--max-batch", type=int, default=MAX_BATCH, metavar="N", help=request)
    new.add_argument(
        "--jit-compile", action="store_true", help="compile the SavedModel by XLA; docs/exporting.md says when it helps"
    )
    calls = "images in each call of a LiteRT file, a number or any; by default 1, which phones need"
    new.add_argument("--batch-size", type=_batch_size, metavar="B", help=calls)
    new.add_argument("--overwrite", action="store_true", help="replace the file of an earlier export at PATH")
    new.add_argument("--no-verify", dest="verify", action="store_false", help="do not compare the file with the model")
    new.add_argument(
        "--report", metavar="FILE", type=path, help="also write the report to this .json or .md file; by default none"
    )
    new.add_argument("--json", action="store_true", help="print JSON, for programs")


def export(arguments: Namespace) -> Iterator[str]:
    options = {name: getattr(arguments, name) for name in _OPTIONS}
    request = (arguments.path, arguments.format, arguments.precision, arguments.overwrite, options)
    check_arguments(*request)
    _check_options(arguments)
    labels: Sequence[str] | None = None if arguments.labels is None else read_lines(arguments.labels, "labels")
    _check_outputs(arguments, labels)
    if not arguments.text:
        check_model(arguments)
    if not arguments.json:
        yield loading(arguments.model)
    with quiet_start():
        import keras_vit.api as keras_vit
        from keras_vit.exporting.request import check_request
        from keras_vit.runs.finished_runs import calibration_photos
        from keras_vit.runs.run_card import read_run_card

    format = check_request(*request).format
    options["print_fn"] = None if arguments.json else functools.partial(print, flush=True)
    given = {name: getattr(arguments, name) for name in ("format", "precision", "overwrite", "verify")}
    if arguments.text:
        report = keras_vit.export(load_text_tower(arguments), arguments.path, options=options, **given)
    else:
        model, run = _model_and_run(arguments, options)
        check_top(arguments.top_k, model)
        calibrates = arguments.images is None and arguments.precision in format.calibrates
        given["images"], which = calibration_photos(run) if calibrates else (arguments.images, None)
        given |= run.task.export_arguments(_labels(model, run, labels))
        if not format.extension:
            options["card"] = read_run_card(path(arguments.model))
        report = keras_vit.export(model, arguments.path, options=options, **given)
        report = dataclasses.replace(report, calibrated_on=which) if calibrates else report
    if arguments.report is not None:
        report.write(arguments.report)
    if arguments.json:
        yield json.dumps(report.summary(), indent=2)
    else:
        yield from report.lines()


_OPTIONS = (  # of the formats
    *("image_size", "activation", "name", "opset", "batch_size"),
    *("top_k", "max_bytes", "max_pixels", "max_batch", "jit_compile"),
)
_OF_IMAGES = {"classes": "--classes", "labels": "--labels", "images": "--images", "image_size": "--image-size"}
_OF_IMAGES |= {"activation": "--activation", "top_k": "--top"}


def _check_options(arguments: Namespace) -> None:
    """Refuses what is wrong for every model, and `--top` for a run without classes."""
    if arguments.report is not None:
        _check_report(arguments.report)
    if arguments.images is not None and not arguments.images.exists():
        raise ArgumentError(
            f"`images` must be a folder of photos.\nReceived: {printable(arguments.images)}; nothing is there."
            + near_names(arguments.images),
            parameters=("images",),
        )
    check_zero_shot_options(arguments)
    check_templates_have_classes(arguments)
    found = [option for name, option in _OF_IMAGES.items() if getattr(arguments, name) is not None]
    if arguments.text and found:
        raise ValueError(f"`{found[0]}` is for models of images.\nReceived: --text and {found[0]}.")
    if arguments.classes is None:
        check_top_of_run(arguments.top_k, arguments.model)


def _check_outputs(arguments: Namespace, labels: Sequence[str] | None) -> None:
    """Refuses names of another number than a run's outputs, and an activation where these are no logits."""
    run = run_facts(arguments.model)
    if labels is not None and arguments.classes is not None:
        pair = [[name.replace("_", " ").casefold() for name in each] for each in (class_words(arguments), labels)]
        if pair[0] != pair[1]:
            raise ArgumentError(
                "--labels must be the names of --classes in their order.\n"
                f"Received: --classes {class_words(arguments)!r:.150} and --labels of {labels!r:.150}. Leave --labels "
                "out.",
                parameters=("labels", "classes"),
            )
    if labels is not None and run.class_names is not None and len(labels) != len(run.class_names):
        raise ArgumentError(
            f"`labels` must be {len(run.class_names):,} names, one line of Unicode each, in the order of the classes.\n"
            f"Received: {len(labels):,}."
        )
    if arguments.activation is not None and (run.task.head is None or HEAD_KINDS[run.task.head].output != "logits"):
        raise ArgumentError(
            "`activation` turns logits into scores, and this run has none.\n"
            f"Received: activation={arguments.activation!r} for a model of {run.task.name}. Leave it out."
        )


def _labels(model: Any, run: Any, given: Sequence[str] | None) -> Sequence[str] | None:
    return given if given is not None or run.class_names is None else output_names(model, run.class_names)


def _model_and_run(arguments: Namespace, options: dict[str, Any]) -> tuple[Any, Any]:
    """The model, or its zero-shot classifier of `--classes`, whose scores are those of its own loss."""
    if arguments.classes is None:
        return load_model_and_run(arguments, needs_head=False)
    model, run = load_zero_shot(arguments, class_words(arguments))
    options["activation"] = options["activation"] or ("sigmoid" if model.logit_bias else "softmax")
    return model, run


def _check_report(file: Path) -> None:
    """Refuses a place where no report can be written, before the work that it reports."""
    if not file.parent.is_dir():
        raise FileNotFoundError(f"the report must go to a folder that is there.\nReceived: {file}.")
    if file.is_dir():
        raise IsADirectoryError(f"the report must be a file.\nReceived: {file}, a folder.")
    check_report(file)


def _batch_size(text: str) -> str | int:
    return text if text == "any" else int(text)


def _image_size(text: str) -> str | Pair:
    return text if text == "any" else as_sides(parse_sides(text, ", or any"))
