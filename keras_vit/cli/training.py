"""`keras-vit finetune|predict|recipes`; Keras is imported when one of the first two runs."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import datetime
import functools
import itertools
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.checks import ArgumentError, check_positive_int, cores
from keras_vit.cli import engines
from keras_vit.cli.models import check_model, load_model_and_run, output_names
from keras_vit.cli.terminal import loading, path, quiet_start, terminal_width
from keras_vit.config.recipes import RECIPES, find_recipe
from keras_vit.images.numpy_pipeline import preprocess
from keras_vit.images.read import ImageError, read_image
from keras_vit.images.resizing import least_size
from keras_vit.pages.formatting import printable, printable_json
from keras_vit.runs.finished_runs import finished_lines
from keras_vit.runs.options import FLAGS, TASK_OPTIONS, FinetuneOptions, changed
from keras_vit.silence import silent_descriptor, visible_stderr
from keras_vit.training.hosts.processes import launched_by

_USUAL_DATA = "digits"
_TOP = 5  # classes that an answer names
_WORTH_A_GRAPH = 6  # images
_THREADS = 4  # at most, since each holds a photo: up to 192 MB


def add_commands(top: Any, command: Callable[..., ArgumentParser]) -> None:
    """Adds these commands to the parser; `command` makes one."""
    summary, example = (
        "train on a folder of photos, measure, and write a report",
        "--data photos --model B/16 --out run",
    )
    _add_finetune(command(top, "finetune", finetune, summary, f"keras-vit finetune {example}"))
    summary = "what is on images, by a trained or a published model"
    _add_predict(command(top, "predict", predict, summary, "keras-vit predict photo.jpg --model run"))
    summary = "the published hyper-parameters, or one set of them with its sources"
    new = command(top, "recipes", recipes, summary, "keras-vit recipes augreg-finetune")
    new.add_argument("name", metavar="NAME", nargs="?", help="of one of them; by default all, one a line")


def finetune(arguments: Namespace) -> Iterator[str]:
    given = dict(vars(arguments))
    for name in ("command", "check_usage", "debug"):
        given.pop(name, None)
    out, data = given.pop("out"), given.pop("data") or _USUAL_DATA
    given["weights"] = None if str(given["weights"]).lower() == "none" else given["weights"]
    given = {name: value for name, value in given.items() if value is not None or name not in TASK_OPTIONS}
    options = changed(None, given)  # wrong ones are refused before Keras is imported
    if out is not None and (lines := finished_lines(out, data, options)):
        yield from lines
        return
    if out is None and options.layout != "none" and (sign := launched_by()):
        raise ArgumentError(
            f"`out` must say where several processes write together.\nReceived: {sign}.", parameters=("out",)
        )
    yield loading("TensorFlow")
    with quiet_start():
        from keras_vit.runs.finetune import finetune
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # each epoch is seen as it ends, in a file too
    with contextlib.nullcontext(out) if out is not None else _new_run(data, options.start or options.weights) as folder:
        finetune(data, folder, options)


def predict(arguments: Namespace) -> Iterator[str]:
    """Answers for every image that can be read before it fails, so that one bad file costs the others nothing."""
    if arguments.top is not None:
        check_positive_int("top", arguments.top)
    engines.check_options(arguments)
    if arguments.no_cache and arguments.engine is None:
        raise ValueError("`--no-cache` goes with `--engine`.\nReceived: --no-cache and no --engine.")
    check_model(arguments)
    if not arguments.json:
        yield loading(arguments.model)
    with quiet_start():
        import keras

    model, run = load_model_and_run(arguments)
    if arguments.top is not None and not run.task.ranks:
        raise ValueError(
            "`--top` is for a model that gives each photo one class.\n"
            f"Received: --top {arguments.top} for a model of {run.task.name}, whose answers are all named."
        )
    names = output_names(model, run.class_names)
    model, lines, _ = engines.load_engine(model, run, arguments)
    if not arguments.json:
        yield from map(printable, lines)
    bad, found = [], []
    # libjpeg writes a line to the descriptor for a damaged file, in a thread, so it is silent throughout.
    with silent_descriptor(2, sys.stderr) as heard, visible_stderr(heard) as words, contextlib.redirect_stderr(words):
        for image, pixels in prefetch_photos(arguments.images, model, arguments.exact):
            if isinstance(pixels, str):
                bad.append(f"{printable(image)}: {pixels}")
                continue
            outputs = keras.ops.convert_to_numpy(_answer(model, pixels, len(arguments.images)))[0]
            answer = run.task.answer(model, outputs, names, arguments.top or _TOP)
            found.append({"image": str(image), "predictions": answer})
            if not arguments.json:
                yield printable(image)
                yield from run.task.answer_lines(answer)
    if arguments.json:
        yield printable_json(found)
    if bad:
        raise ValueError(f"images that could not be read: {'; '.join(bad)}")


def prefetch_photos(paths: Sequence[Path], model: Any, is_exact: bool) -> Iterator[tuple[Path, np.ndarray | str]]:
    """Each path with its image `(1, H, W, C)`, prepared for a model, or with the reason why there is none.

    Args:
        paths: of photos, which come in this order.
        model: an `ImageModel`, or an engine of one.
        is_exact: whether large JPEGs are decoded to every pixel.
    """
    least = None if is_exact else least_size(model.preprocessing)
    threads = min(len(cores()), _THREADS)
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    waiting: collections.deque[tuple[Path, concurrent.futures.Future]] = collections.deque()
    try:
        for path in paths:
            waiting.append((path, pool.submit(_prepared, path, model, least)))
            if len(waiting) > threads:
                first, image = waiting.popleft()
                yield first, image.result()
        for first, image in waiting:
            yield first, image.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _prepared(path: Path, model: Any, least: tuple[int, int] | None) -> np.ndarray | str:
    try:
        pixels = read_image(path, model.input_shape[-1], least)
    except FileNotFoundError:
        return "no such file"
    except ImageError as error:
        return error.reason
    except ImportError as error:  # as without the plugin for HEIC
        return str(error)
    except OSError as error:
        return str(error.strerror or error)
    # By NumPy, which reads the pixels that count: of 12 Mpx in bicubic 0.07 s, where `record(pixels)` takes 0.28. The
    # numbers are the same but for rounding: of bicubic's grey levels one in 150,000 is another one.
    return preprocess(pixels, model.preprocessing)[None]


def recipes(arguments: Namespace) -> Iterator[str]:
    if arguments.name:
        yield str(find_recipe(arguments.name))
        return
    lines, width = repr(RECIPES).splitlines(), terminal_width()
    if width is None or max(map(len, lines)) < width:
        yield from lines
        return
    for name, facts in (line.split(maxsplit=1) for line in lines):
        yield from (name, f"  {facts}")


def _answer(model: Any, image: Any, count: int) -> Any:
    """Scores of one of `count` images. A graph takes 1 s to trace for B/16, and spares 0.2 of 0.5 s in each call."""
    return model.predict_on_batch(image) if count >= _WORTH_A_GRAPH else model(image, training=False)


@contextlib.contextmanager
def _new_run(data: Any, model: Any) -> Iterator[Path]:
    """A new folder below `runs/`, which no other process has; it goes if nothing is written there."""
    plain = "-".join(re.sub(r"\W+", "_", Path(str(name)).name or "data") for name in (data, model))
    stem = f"{plain}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    parent = Path("runs")
    is_new = not parent.exists()
    for name in itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2))):
        with contextlib.suppress(FileExistsError):
            (parent / name).mkdir(parents=True)  # another process may have taken its empty `runs` away
            break
    try:
        yield parent / name
    finally:
        with contextlib.suppress(OSError):  # not empty
            (parent / name).rmdir()
            if is_new:
                parent.rmdir()


def _check_usage(parser: ArgumentParser, arguments: Namespace) -> None:
    """Ends with the usage where no option is given: a training of a set that nobody named would surprise."""
    if all(value == parser.get_default(name) for name, value in vars(arguments).items() if name != "debug"):
        parser.error(f"it needs to know what to train on: --data FOLDER, or --data {_USUAL_DATA} to try it")


def _add_finetune(new: ArgumentParser) -> None:
    source = f"a folder of class folders, a .csv, shards as 'shards/*.tar', or a name; by default {_USUAL_DATA}"
    new.add_argument("--data", metavar="DATA", help=source)
    new.set_defaults(check_usage=functools.partial(_check_usage, new))
    new.add_argument("--out", metavar="FOLDER", type=path, help="new folder of the run; by default one below runs/")
    for option in dataclasses.fields(FinetuneOptions):
        facts = {"default": option.default, "help": option.metadata["help"], **option.metadata["parser"]}
        new.add_argument(FLAGS[option.name], dest=option.name, **facts)
    for option in TASK_OPTIONS.values():  # whose defaults are the task's
        facts = {"default": None, "help": option.metadata["help"], **option.metadata["parser"]}
        new.add_argument(FLAGS[option.name], dest=option.name, **facts)


def _add_predict(new: ArgumentParser) -> None:
    new.add_argument("images", metavar="IMAGE", nargs="+", type=path, help="a JPEG, PNG, WebP, BMP or HEIC file")
    new.add_argument(
        "--model", required=True, metavar="MODEL", help="folder of a run, a .keras file, a checkpoint, or as B/16"
    )
    new.add_argument("--weights", metavar="NAME", help="for a variant; by default ImageNet's 1,000 classes")
    engines.add_options(new)
    new.add_argument("--no-cache", action="store_true", help="make the engine anew, and keep none")
    new.add_argument("--exact", action="store_true", help="decode large JPEGs to all of their pixels")
    new.add_argument("--top", type=int, metavar="K", help=f"classes to name; by default {_TOP}")
    new.add_argument("--json", action="store_true", help="print JSON, for programs")
