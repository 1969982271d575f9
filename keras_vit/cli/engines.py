"""`--engine` of `keras-vit predict|evaluate`: the software that a model answers in."""

import functools
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from keras_vit.checks import ArgumentError, check_positive_int
from keras_vit.cli.terminal import path
from keras_vit.exporting.formats import ENGINE_PRECISIONS, ENGINES, check_engine
from keras_vit.images.photo_files import near_names
from keras_vit.pages.formatting import printable

if TYPE_CHECKING:
    from keras_vit.runs.load import RunFacts

OPTIONS = ("engine", "precision", "threads")


def add_options(new: ArgumentParser) -> None:
    """Adds these options to the parser of a command."""
    which = "software to compute in; auto takes the fastest one installed; by default Keras itself"
    new.add_argument("--engine", choices=ENGINES, help=which)
    new.add_argument("--precision", choices=ENGINE_PRECISIONS, help="precision of the engine; by default float32")
    new.add_argument("--threads", type=int, metavar="N", help="threads of the engine; by default its own choice")
    photos = "photos to check the engine on, and to calibrate int8; by default two photos, for int8 those of the run"
    new.add_argument("--images", dest="calibration", metavar="FOLDER", type=path, help=photos)


def check_options(arguments: Namespace) -> None:
    """Raises for options of an engine without one."""
    for field, name in {"precision": "precision", "threads": "threads", "calibration": "images"}.items():
        if getattr(arguments, field) is not None and arguments.engine is None:
            raise ValueError(f"`--{name}` goes with `--engine`.\nReceived: --{name} and no --engine.")
    if arguments.threads is not None:
        check_positive_int("threads", arguments.threads)
    if arguments.engine is not None:
        check_engine(arguments.engine, arguments.precision or "float32", arguments.threads)
    if arguments.calibration is not None and not arguments.calibration.exists():
        raise ArgumentError(
            f"`images` must be a folder of photos.\nReceived: {printable(arguments.calibration)}; nothing is there."
            + near_names(arguments.calibration),
            parameters=("images",),
        )


def load_engine(
    model: Any, run: "RunFacts", arguments: Namespace, batch_size: int = 1
) -> tuple[Any, list[str], dict[str, Any]]:
    """The model in the engine that was asked for, or as it is; with lines that say what was found, and facts for JSON.

    Args:
        model: a `VisionTransformer` or `ResNet`.
        run: what is known of its run.
        arguments: of the command.
        batch_size: images of a call.
    """
    if arguments.engine is None:
        return model, [], {}
    from keras_vit.exporting.engines.accelerate import accelerate
    from keras_vit.exporting.engines.runtimes import is_calibrated
    from keras_vit.exporting.sample_photos import describe_photos
    from keras_vit.runs.finished_runs import calibration_photos

    options = {"precision": arguments.precision or "float32", "threads": arguments.threads}
    photos, calibrates = arguments.calibration, is_calibrated(arguments.engine, options["precision"])
    photos, which = calibration_photos(run) if photos is None and calibrates else (photos, describe_photos(photos))
    options |= {"cache": None} if arguments.no_cache else {}
    options["print_fn"] = None if arguments.json else functools.partial(print, flush=True)
    engine = accelerate(model, arguments.engine, **options, batch_size=batch_size, images=photos)
    facts = {"engine": engine.engine, "precision": engine.precision}
    if is_calibrated(engine.engine, engine.precision):
        facts["calibrated_on"] = which
    lines = [f"calibrated and compared on {which}"] if "calibrated_on" in facts else []
    reasons = [f"left out {name}: {reason}" for name, reason in engine.report.left_out.items()]
    return engine, [*lines, f"engine {engine.report.line()}", *reasons], facts
