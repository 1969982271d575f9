"""`keras-vit segment` and `keras-vit depth`: files with the class or the depth of each pixel of photos.

Each photo that cannot be read costs the others nothing; the table of files says why.
"""

import contextlib
import csv
import functools
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.checks import ArgumentError, check_installed, check_positive, check_positive_int, parse_sides
from keras_vit.cli.predict import Photo, find_photos, prefetch_photos, read_pixels
from keras_vit.cli.terminal import loading, path, quiet_start, say_error
from keras_vit.files import atomic_write
from keras_vit.pages.formatting import Pace, check_table_place, plural, printable, printable_json, spreadsheet_cell
from keras_vit.pages.html import check_new_folder
from keras_vit.runs.load import NAMES, check_run, load_any, load_run
from keras_vit.runs.run_files import BEST
from keras_vit.silence import silent_descriptor, visible_stderr

OPTIONS = ("short_side", "window", "stride", "ratios", "flip", "depth_range", "max_depth", "encoder")
TABLE, CLASSES = "photos.csv", "classes.csv"
_OF_SEGMENT = ("path", "status", "height", "width", "mask", "overlay", "shares")
_OF_DEPTH = ("path", "status", "height", "width", "unit", "least", "median", "largest", "step", "png", "npy", "picture")
_OK = "ok"
_LONGEST = 2048  # pixels of a picture for people
_LARGEST = 65535  # of 16 bits
_MILLIMETRES, _KITTI = 0.001, 1 / 256  # steps of depths in metres, as `read_mask` reads them
_SHARES, _LEGEND = 5, 24  # classes of a photo in the table, and of its overlay
_VALUES = ("png", "npy", "both")


def add_commands(top: Any, command: Callable[..., ArgumentParser]) -> None:
    """Adds both commands to the parser; `command` makes them."""
    summary = "write the class of each pixel of photos as masks"
    new = command(top, "segment", segment, summary, "keras-vit segment photos --model run --out masks")
    _add_common(new, "segmentation")
    side = "pixels that the shorter side is resized to, or photo for its own size; by default family, as the head's"
    new.add_argument("--short-side", type=_side, default="family", metavar="S", help=side)
    for name, words in (
        ("window", "side of the windows; by default --short-side"),
        ("stride", "from window to window"),
    ):
        more = "; by default two thirds of --window" if name == "stride" else ""
        new.add_argument(f"--{name}", type=parse_sides, metavar="S", help=f"{words}, as 512 or 512x384{more}")
    ratios = "sizes at which a photo passes, as 0.5,1,1.5; by default 1"
    new.add_argument("--ratios", type=_numbers, default="1", metavar="R", help=ratios)
    new.add_argument("--flip", action="store_true", help="let the mirror image pass too")
    new.add_argument("--overlay", action="store_true", help="write photos under the colours of their classes too")
    summary = "write the depth of each pixel of photos"
    new = command(top, "depth", depth, summary, "keras-vit depth photos --model depth_anything --out depths")
    _add_common(new, "depth")
    between = "smallest and largest depth in metres, which DINOv2's and DINOv3's files do not hold"
    new.add_argument("--depth-range", type=float, nargs=2, metavar=("NEAR", "FAR"), help=f"{between}; no default")
    largest = "largest depth in metres of Depth Anything's metric files with the authors' names; no default"
    new.add_argument("--max-depth", type=float, metavar="M", help=largest)
    new.add_argument("--flip", action="store_true", help="take the mean with the mirror image")
    values = "files of the depths: a 16-bit PNG, float32 numbers of NumPy, or both"
    new.add_argument("--values", choices=_VALUES, default="both", help=values)


def _add_common(new: ArgumentParser, task: str) -> None:
    photos = "a photo (JPEG, PNG, WebP, BMP, HEIC), a folder of photos, a table with the column path, or shards"
    new.add_argument("images", metavar="PHOTO", nargs="+", type=path, help=photos)
    model = f"the folder of a run, a .keras file, or the file, folder or hf: name of a head of {task}"
    new.add_argument("--model", required=True, metavar="MODEL", help=model)
    encoder = "encoder of a head that is published alone, as dinov2/S14 or a folder; by default the folder beside it"
    new.add_argument("--encoder", metavar="MODEL", help=encoder)
    new.add_argument("--out", required=True, type=path, metavar="FOLDER", help="folder to write, new or empty")
    new.add_argument("--overwrite", action="store_true", help="replace the files of an earlier command in --out")
    new.add_argument("--json", action="store_true", help="print JSON, for programs")


def segment(arguments: Namespace) -> Iterator[str]:
    """Writes masks, and overlays where they are wanted."""
    return _write_all(arguments, "segmentation", _OF_SEGMENT, _segments)


def depth(arguments: Namespace) -> Iterator[str]:
    """Writes depths as levels, numbers and pictures."""
    return _write_all(arguments, "depth", _OF_DEPTH, _depths)


_Writer = Callable[[np.ndarray, str], Mapping[str, Any]]  # of a photo's pixels and the name of its files


def _write_all(
    arguments: Namespace, task: str, columns: Sequence[str], writer: Callable[[Namespace, Any, Any], _Writer]
) -> Iterator[str]:
    """Writes files for all photos, and their table last, so that it is there once everything is."""
    _check(arguments, columns)
    photos, notes = find_photos(arguments.images)
    if not arguments.json:
        yield loading(arguments.model)
    with quiet_start():
        pass
    model, run = _load(arguments, task)
    arguments.out.mkdir(parents=True, exist_ok=True)
    write = writer(arguments, model, run)
    if arguments.json:
        for note in notes:  # the output is for programs
            say_error(printable(note))
    else:
        yield from map(printable, notes)
    channels = 1 if model.input_shape[-1] == 1 else 3
    read = functools.partial(read_pixels, channels=channels)
    names = iter(file_names(photos, arguments.images))
    began, pace, unread = time.monotonic(), Pace(len(photos), "photos"), 0
    table = arguments.out / TABLE
    with (  # libjpeg writes a line to the descriptor for a damaged file, in a thread, so it is silent throughout
        silent_descriptor(2, sys.stderr) as heard,
        visible_stderr(heard) as words,
        contextlib.redirect_stderr(words),
        atomic_write(table) as part,
        open(part, "w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        rows = csv.DictWriter(file, columns, restval="")
        rows.writeheader()
        for done, (photo, pixels) in enumerate(prefetch_photos(photos, read, 1), 1):
            name = next(names)
            facts = {"status": pixels} if isinstance(pixels, str) else {"status": _OK, **write(pixels, name)}
            unread += facts["status"] != _OK
            cells = {"path": photo, **facts}
            texts = ("path", "status", "mask", "overlay", "shares", "png", "npy", "picture")
            rows.writerow({key: spreadsheet_cell(cell) if key in texts else cell for key, cell in cells.items()})
            if not arguments.json:
                yield from pace.lines(done)
    count = len(photos)
    if arguments.json:
        facts = {"folder": str(arguments.out), "table": str(table), "photos": count, "unread": unread}
        yield printable_json(facts | {"seconds": round(time.monotonic() - began, 1)})
    else:
        yield f"wrote {printable(arguments.out)}: {plural(count - unread, 'photo')}"
    if unread == count:
        raise ValueError(f"no photo could be read; the column status of {printable(table)} says why")
    if unread:
        say_error(
            f"keras-vit: warning: {plural(unread, 'photo')} could not be read: the column status of "
            f"{printable(table)} says why"
        )


def _check(arguments: Namespace, columns: Sequence[str]) -> None:
    """Refuses what cannot be, before Keras is imported."""
    check_installed("PIL", "pictures", "data")
    if isinstance(getattr(arguments, "short_side", None), int):
        check_positive_int("short_side", arguments.short_side)
    for ratio in getattr(arguments, "ratios", ()):
        check_positive("ratios", ratio)
    given, place = arguments.model, path(arguments.model)
    if given in NAMES:
        raise ArgumentError(
            "a model of pixels needs a head, and the published weights of a name have none.\n"
            f"Received: --model {given}. Pass the file of a head, and the name as --encoder {given}.",
            parameters=("model",),
        )
    if not given.startswith(("hf:", "https://")) and (not os.path.lexists(place) or _is_run(place)):
        check_run(place, ", or the file or folder of a head.")
    if _is_run(place) and arguments.encoder is not None:
        raise ArgumentError(
            f"`encoder` is for a head that is published alone.\nReceived: --encoder {arguments.encoder} for a whole "
            "model. Leave it out."
        )
    if arguments.out.is_dir() and arguments.overwrite:
        check_table_place(arguments.out / TABLE, columns[:2])
        return
    try:
        check_new_folder(arguments.out)
    except ArgumentError as error:
        more = " Or add --overwrite to replace those files." if (arguments.out / TABLE).is_file() else ""
        raise ArgumentError(f"{error}{more}", parameters=("out",)) from None


def _is_run(place: Path) -> bool:
    return place.suffix == ".keras" or (place / BEST).exists()


def _load(arguments: Namespace, task: str) -> tuple[Any, Any]:
    """The model and what its run says of it, `None` without a run."""
    place = path(arguments.model)
    if _is_run(place):
        model, run = load_run(place)
        if model.class_names is None:
            model.class_names = run.class_names
        return model, run.task
    from keras_vit.dense_models.builders import depth_estimator, segmenter

    encoder = None if arguments.encoder is None else load_any(arguments.encoder, needs_head=False)[0]
    weights = place if os.path.lexists(place) else arguments.model
    common: dict[str, Any] = {"weights": weights, "input_shape": (None, None, 3)}
    if task == "segmentation":
        return segmenter(encoder, **common), None
    return depth_estimator(encoder, depth_range=arguments.depth_range, max_depth=arguments.max_depth, **common), None


def file_names(photos: Sequence[Photo], given: Sequence[Path]) -> Iterator[str]:
    """A name without a suffix for the files of each photo: its path below the folder that was given, and unique.

    Args:
        photos: of `find_photos`.
        given: the places that were named.
    """
    taken: set[str] = set()
    for name in names_below(photos, given):
        stem = os.path.splitext(name)[0]
        number, found = 2, stem
        while found.casefold() in taken:
            found, number = (name, number) if found == stem != name else (f"{stem}-{number}", number + 1)
        taken.add(found.casefold())
        yield found


def names_below(photos: Sequence[Photo], given: Sequence[Path]) -> Iterator[str]:
    """The path of each photo below the folder that was given, with its suffix, or its name; arguments as above."""
    folders = [str(place).rstrip(os.sep) + os.sep for place in given if os.path.isdir(place)]
    for photo in photos:
        above = next((folder for folder in folders if photo.name.startswith(folder)), None)
        whole = photo.name.removeprefix(above) if above is not None else photo.name
        if above is None and isinstance(photo.place, str):
            whole = os.path.basename(whole)
        yield "/".join(part for part in whole.split("/") if part not in ("", ".", ".."))


def _segments(arguments: Namespace, model: Any, task: Any) -> _Writer:
    from PIL import Image

    from keras_vit.analysis.overlay import class_colors, paint, with_legend
    from keras_vit.dense_models.photos import PhotoSegmenter

    ways = (arguments.short_side, arguments.window, arguments.stride, arguments.ratios, arguments.flip)
    find = PhotoSegmenter(model, *ways)
    count = model.classes
    class_names = find.class_names or tuple(map(str, range(count)))
    colors = class_colors(count, getattr(task, "colors", None))
    with atomic_write(arguments.out / CLASSES) as part, open(part, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("class", "name", "color"))
        for number, (name, color) in enumerate(zip(class_names, colors.tolist(), strict=True)):
            rows.writerow((number, spreadsheet_cell(name), "#{:02x}{:02x}{:02x}".format(*color)))

    def write(pixels: np.ndarray, name: str) -> dict[str, Any]:
        classes = find(pixels).classes
        if count <= 255:  # 255 is what does not count
            image = Image.fromarray(classes.astype("uint8"))
            image.putpalette(colors.tobytes())
        else:
            image = Image.fromarray(classes.astype("uint16"))
        counts = np.bincount(classes.ravel(), minlength=count)
        order = [place for place in (-counts).argsort(kind="stable") if counts[place]]
        shares = [(place, f"{printable(class_names[place])} {counts[place] / classes.size:.2%}") for place in order]
        facts = {"height": classes.shape[0], "width": classes.shape[1]}
        facts |= {"mask": save_picture(image, arguments.out, f"masks/{name}.png")}
        facts |= {"shares": "; ".join(words for _, words in shares[:_SHARES])}
        if arguments.overlay:
            photo, shown = made_smaller(pixels), made_smaller(classes)
            legend = [(tuple(colors[place].tolist()), words) for place, words in shares[:_LEGEND]]
            picture = with_legend(paint(shown, colors, photo), legend)
            facts |= {"overlay": save_picture(Image.fromarray(picture), arguments.out, f"overlays/{name}.png")}
        return facts

    return write


def _depths(arguments: Namespace, model: Any, task: Any) -> _Writer:
    from PIL import Image, PngImagePlugin

    from keras_vit.analysis.overlay import paint_depths
    from keras_vit.dense_models.photos import PhotoDepths

    find = PhotoDepths(model, arguments.flip)

    def write(pixels: np.ndarray, name: str) -> dict[str, Any]:
        values = find(pixels).values
        least, median, largest = (float(each) for each in np.percentile(values, (0, 50, 100)))
        facts = {"height": values.shape[0], "width": values.shape[1], "unit": find.unit}
        facts |= {key: f"{each:.6g}" for key, each in (("least", least), ("median", median), ("largest", largest))}
        if arguments.values != "npy":
            step = step_of(find.unit, model.depth_range, largest)
            levels = np.clip(np.rint(values / step), 0, _LARGEST).astype("uint16")
            note = PngImagePlugin.PngInfo()
            note.add_text("unit", str(find.unit))
            note.add_text("step", repr(step))
            image = Image.fromarray(levels)
            facts |= {"step": repr(step), "png": save_picture(image, arguments.out, f"depths/{name}.png", pnginfo=note)}
        if arguments.values != "png":
            place = place_in(arguments.out, f"depths/{name}.npy")
            with atomic_write(place) as part, open(part, "wb") as file:
                np.save(file, values)
            facts |= {"npy": f"depths/{name}.npy"}
        picture = paint_depths(made_smaller(values), str(find.unit))
        return facts | {"picture": save_picture(Image.fromarray(picture), arguments.out, f"pictures/{name}.png")}

    return write


def step_of(unit: str | None, depth_range: Sequence[float] | None, largest: float) -> float:
    """What a level of a 16-bit PNG stands for: a millimetre, 1/256 m where that is too little, or a part of the photo.

    Args:
        unit: of the depths.
        depth_range: of the model.
        largest: depth of the photo.
    """
    if unit != "metres":
        return max(largest, 1e-30) / _LARGEST
    most = largest if depth_range is None else depth_range[1]
    return _MILLIMETRES if most <= _LARGEST * _MILLIMETRES else _KITTI


def made_smaller(pixels: np.ndarray) -> np.ndarray:
    """Every so manyth pixel, for a picture of at most 2,048 pixels; photos in three channels."""
    step = -(-max(pixels.shape[:2]) // _LONGEST)
    small = pixels[::step, ::step]
    return np.repeat(small, 3, axis=2) if small.ndim == 3 and small.shape[2] == 1 else small


def place_in(out: Path, name: str) -> Path:
    place = out / name
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def save_picture(image: Any, out: Path, name: str, **options: Any) -> str:
    with atomic_write(place_in(out, name)) as part:
        image.save(part, "PNG", **options)
    return name


def _side(text: str) -> int | str | None:
    return {"photo": None, "family": "family"}[text] if text in ("photo", "family") else int(text)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))
