"""`keras-vit predict`: what is on photos, on the terminal or as a table; Keras is imported once options are checked."""

import collections
import concurrent.futures
import contextlib
import csv
import functools
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vit.checks import ArgumentError, check_positive_int, cores
from keras_vit.cli import engines
from keras_vit.cli.models import (
    add_zero_shot_options,
    check_model,
    check_templates_have_classes,
    check_zero_shot_options,
    class_words,
    load_model_and_run,
    load_zero_shot,
    output_names,
    run_facts,
)
from keras_vit.cli.terminal import check_photos_exist, loading, path, quiet_start, say_error
from keras_vit.embedding.photo_lists import list_photos, photo_key, photo_location
from keras_vit.files import atomic_write, missing_reason
from keras_vit.images.byte_ranges import PhotoLocation
from keras_vit.images.numpy_pipeline import preprocess
from keras_vit.images.photo_files import shard_kind
from keras_vit.images.photo_tables import is_table
from keras_vit.images.read import ImageError, read_image, read_photo
from keras_vit.images.resizing import least_size
from keras_vit.pages.formatting import Pace, check_table_place, plural, printable, printable_json, spreadsheet_cell
from keras_vit.silence import silent_descriptor, visible_stderr
from keras_vit.tasks import Task
from keras_vit.tasks.task import TOP

_WORTH_A_GRAPH = 6  # images
_THREADS = 4  # at most, since each holds a photo: up to 192 MB
_COLUMNS = ("path", "status")  # of a table, before those of the task
_OK = "ok"
_MOST_NAMED = 20  # photos in an error


class Photo(NamedTuple):
    """A photo by the name under which it is answered, and the place of its bytes."""

    name: str
    place: PhotoLocation


def add_commands(top: Any, command: Callable[..., ArgumentParser]) -> None:
    """Adds this command to the parser; `command` makes it."""
    summary = "say what is on photos, by a trained or a published model"
    new = command(top, "predict", predict, summary, "keras-vit predict photos --model run --out predictions.csv")
    images = "a photo (JPEG, PNG, WebP, BMP, HEIC), a folder of photos, a table with the column path, or shards"
    new.add_argument("images", metavar="IMAGE", nargs="+", type=path, help=images)
    new.add_argument(
        "--model",
        required=True,
        metavar="MODEL",
        help="the folder of a run, a .keras file, a checkpoint, or a name as B/16",
    )
    new.add_argument(
        "--weights",
        metavar="NAME",
        help="weights of a model given by name, as B/16; by default those with ImageNet's 1,000 classes",
    )
    add_zero_shot_options(new)
    new.add_argument("--out", type=path, metavar="FILE", help="write a .csv table; by default answers are printed")
    new.add_argument("--overwrite", action="store_true", help="replace the table of an earlier predict at --out")
    new.add_argument(
        "--batch-size", type=int, default=32, metavar="B", help="photos at once, for speed and memory only"
    )
    engines.add_options(new)
    new.add_argument("--no-cache", action="store_true", help="do not read or keep a converted engine")
    new.add_argument("--exact", action="store_true", help="decode large JPEGs to all of their pixels")
    top = f"how many classes to name, or all; by default {TOP}, of several labels those above their thresholds"
    new.add_argument("--top", type=number_or_all, metavar="K", help=top)
    new.add_argument("--json", action="store_true", help="print JSON, for programs")


def predict(arguments: Namespace) -> Iterator[str]:
    """Answers for every photo that can be read before it fails, so that one bad file costs the others nothing."""
    _check_options(arguments)
    check_model(arguments)
    photos, notes = find_photos(arguments.images)
    if not arguments.json:
        yield loading(arguments.model)
    with quiet_start():
        pass
    if arguments.classes is None:
        model, run = load_model_and_run(arguments)
    else:
        model, run = load_zero_shot(arguments, class_words(arguments), scored=True)
    _check_task(arguments, run.task)
    names, top = output_names(model, run.class_names), arguments.top
    size = min(arguments.batch_size, len(photos)) if len(photos) >= _WORTH_A_GRAPH else 1
    model, lines, _ = engines.load_engine(model, run, arguments, size)
    if arguments.json:
        for note in notes:  # the output is for programs
            say_error(printable(note))
    else:
        yield from map(printable, (*notes, *lines))
    least = None if arguments.exact else least_size(model.preprocessing)
    prepare = functools.partial(_prepared, model=model, least=least)
    answers = (
        (name, found if isinstance(found, str) else run.task.answer(model, found, names, top))
        for name, found in _outputs(model, prefetch_photos(photos, prepare), size)
    )
    # libjpeg writes a line to the descriptor for a damaged file, in a thread, so it is silent throughout.
    with silent_descriptor(2, sys.stderr) as heard, visible_stderr(heard) as words, contextlib.redirect_stderr(words):
        if arguments.out is None:
            yield from _print_answers(answers, run.task, arguments.json)
        else:
            yield from _write_table(answers, run.task, names, len(photos), arguments)


def _check_options(arguments: Namespace) -> None:
    """Refuses wrong values and options without that which they go with."""
    if arguments.top is not None:
        check_positive_int("top", arguments.top)
    if arguments.classes is None:
        _check_task(arguments, run_facts(arguments.model).task)
    check_positive_int("batch_size", arguments.batch_size)
    engines.check_options(arguments)
    check_zero_shot_options(arguments)
    check_templates_have_classes(arguments)
    if arguments.no_cache and arguments.engine is None:
        raise ValueError("`--no-cache` goes with `--engine`.\nReceived: --no-cache and no --engine.")
    if arguments.out is None and arguments.overwrite:
        raise ValueError("`--overwrite` goes with `--out`.\nReceived: --overwrite and no --out.")
    if arguments.out is None:
        return
    if arguments.out.suffix.lower() != ".csv":
        raise ArgumentError(f"`out` must be the name of a .csv file.\nReceived: {printable(arguments.out)}.")
    if arguments.out.is_file() and not arguments.overwrite:
        raise ArgumentError(
            "`out` must be a new file, so that no table is lost.\n"
            f"Received: {printable(arguments.out)}, which is there. Choose another name, or add --overwrite."
        )
    check_table_place(arguments.out, _COLUMNS)


def number_or_all(text: str) -> int:
    return sys.maxsize if text == "all" else int(text)


def _check_task(arguments: Namespace, task: Task) -> None:
    """Refuses a model whose answers are maps, and options that are not its task's."""
    if task.command != "predict":
        raise ValueError(
            f"`predict` has one answer for a photo, and a model of {task.name} one for each pixel.\n"
            f"Received: --model {printable(str(arguments.model))}. Take `keras-vit {task.command} PHOTO --model "
            f"{printable(str(arguments.model))} --out FOLDER`, which writes them as pictures."
        )
    if arguments.top is not None and not task.ranks:
        raise ValueError(
            "`--top` is for a model of classes or labels, whose scores it ranks.\n"
            f"Received: --top for a model of {task.name}. Leave it out."
        )


def find_photos(given: Sequence[Path]) -> tuple[list[Photo], list[str]]:
    """The photos that arguments name, a folder by all that are in it or below it; and lines about what was left out.

    Raises:
        FileNotFoundError: if nothing is at any of the places; one photo that is missing gets its own answer.
        ValueError: for a folder, a table or shards without a photo.
    """
    check_photos_exist(given)
    photos: list[Photo] = []
    notes: list[str] = []
    for place in given:
        if not (os.path.isdir(place) or is_table(place) or shard_kind(place)):
            photos.append(Photo(str(place), str(place)))
            continue
        found = list_photos(place)
        notes += found.notes
        for entry in found.entries:
            location = photo_location(found.top, entry)
            photos.append(Photo(location if isinstance(location, str) else photo_key(entry), location))
    return photos, notes


def prefetch_photos(
    photos: Iterable[Photo], read: Callable[[PhotoLocation], np.ndarray | str], threads: int | None = None
) -> Iterator[tuple[str, np.ndarray | str]]:
    """The name of each photo with what is read of it ahead of time, or with the reason why that cannot be.

    Args:
        photos: which come in this order.
        read: from the place of a photo to its image or the reason, in another thread.
        threads: by default one for each core, but four at most.
    """
    threads = threads or min(len(cores()), _THREADS)
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    waiting: collections.deque[tuple[str, concurrent.futures.Future]] = collections.deque()
    try:
        for photo in photos:
            waiting.append((photo.name, pool.submit(read, photo.place)))
            if len(waiting) > threads:
                first, image = waiting.popleft()
                yield first, image.result()
        for first, image in waiting:
            yield first, image.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _prepared(place: PhotoLocation, model: Any, least: tuple[int, int] | None) -> np.ndarray | str:
    """The image `(1, H, W, C)` of a photo, prepared for a model, or the reason why there is none."""
    pixels = read_pixels(place, model.input_shape[-1], least)
    # By NumPy, which reads the pixels that count: of 12 Mpx in bicubic 0.07 s, where `record(pixels)` takes 0.28. The
    # numbers are the same but for rounding: of bicubic's grey levels one in 150,000 is another one.
    return pixels if isinstance(pixels, str) else preprocess(pixels, model.preprocessing)[None]


def read_pixels(place: PhotoLocation, channels: int, least: tuple[int, int] | None = None) -> np.ndarray | str:
    """The pixels `(H, W, C)` of a photo, as `read_image` gives them, or the reason why there are none."""
    try:
        return read_image(place, channels, least) if isinstance(place, str) else read_photo(place, channels, least)
    except FileNotFoundError:
        return missing_reason(str(place))
    except ImageError as error:
        return error.reason
    except ImportError as error:  # as without the plugin for HEIC
        return str(error)
    except OSError as error:
        return str(error.strerror or error)


def _outputs(
    model: Any, images: Iterable[tuple[str, np.ndarray | str]], size: int
) -> Iterator[tuple[str, np.ndarray | str]]:
    """Each name with the model's numbers, or with the reason why there are none.

    Args:
        model: that answers.
        images: of `prefetch_photos`.
        size: of a batch. A graph takes 1 s to trace for B/16, and spares 0.2 of 0.5 s in each call, so 1 is without.
    """
    from keras import ops

    for batch in _batches(images, size):
        found = [image for _, image in batch if not isinstance(image, str)]
        rows: Iterator[np.ndarray] = iter(())
        if found and size == 1:
            rows = iter(ops.convert_to_numpy(model(found[0], training=False)))
        elif found:
            padded = found + found[-1:] * (size - len(found))  # each size of a batch is compiled
            rows = iter(ops.convert_to_numpy(model.predict_on_batch(np.concatenate(padded))))
        yield from ((name, image if isinstance(image, str) else next(rows)) for name, image in batch)


def _batches(images: Iterable[tuple[str, Any]], size: int) -> Iterator[list[tuple[str, Any]]]:
    """So many images at once with those between them that could not be read; images of another shape begin anew."""
    batch: list[tuple[str, Any]] = []
    shapes: list[tuple] = []
    for name, image in images:
        if not isinstance(image, str) and (len(shapes) == size or image.shape not in (*shapes[:1], image.shape)):
            yield batch
            batch, shapes = [], []
        batch.append((name, image))
        shapes += [] if isinstance(image, str) else [image.shape]
    yield batch


def _print_answers(answers: Iterable[tuple[str, Any]], task: Any, as_json: bool) -> Iterator[str]:
    bad, found = [], []
    for name, answer in answers:
        if isinstance(answer, str):
            bad.append(f"{printable(name)}: {answer}")
        elif as_json:
            found.append({"image": name, "predictions": answer})
        else:
            yield printable(name)
            yield from task.answer_lines(answer)
    if as_json:
        yield printable_json(found)
    if bad:
        more = f"; and {len(bad) - _MOST_NAMED:,} more" if len(bad) > _MOST_NAMED else ""
        raise ValueError(f"images that could not be read: {'; '.join(bad[:_MOST_NAMED])}{more}")


def _write_table(
    answers: Iterable[tuple[str, Any]], task: Any, names: Sequence[str], count: int, arguments: Namespace
) -> Iterator[str]:
    """Writes a row for each photo, and says now and then how far it is."""
    began, pace = time.monotonic(), Pace(count, "photos")
    header = task.answer_columns(names, arguments.top)
    unread, empty = 0, [""] * len(header)
    with (
        atomic_write(arguments.out) as part,
        open(part, "w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        writer = csv.writer(file)
        writer.writerow([*_COLUMNS, *header])
        for done, (name, answer) in enumerate(answers, 1):
            status, cells = (answer, empty) if isinstance(answer, str) else (_OK, task.answer_cells(answer, names))
            unread += status != _OK
            writer.writerow([spreadsheet_cell(name), spreadsheet_cell(status), *cells])
            if not arguments.json:
                yield from pace.lines(done)
    if arguments.json:
        facts = {"table": str(arguments.out), "photos": count, "unread": unread}
        yield printable_json(facts | {"seconds": round(time.monotonic() - began, 1)})
    else:
        yield f"wrote {printable(arguments.out)}: {plural(count, 'photo')}"
    if unread == count:
        raise ValueError(f"no photo could be read; the column status of {printable(arguments.out)} says why")
    if unread:
        say_error(f"keras-vit: warning: {plural(unread, 'photo')} could not be read: the column status says why")
