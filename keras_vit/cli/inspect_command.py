"""`keras-vit inspect`: flaws of photos by good ones, as scores, maps and a page, with measures where masks are given.

The folder that it writes stands for the good photos in a later command.
"""

import base64
import contextlib
import csv
import functools
import heapq
import io
import json
import math
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.checks import ArgumentError, check_installed
from keras_vit.cli.maps import file_names, names_below, place_in, save_picture
from keras_vit.cli.predict import Photo, find_photos, prefetch_photos, read_pixels
from keras_vit.cli.terminal import loading, path, quiet_start, say_error
from keras_vit.embedding import inspection
from keras_vit.embedding.inspection import Inspection, InspectorOptions
from keras_vit.embedding.neighbors import SEARCHES
from keras_vit.files import atomic_write
from keras_vit.images.headers import exif_orientation
from keras_vit.images.photo_files import PassedOver, photos_below
from keras_vit.pages.formatting import Pace, plural, printable, printable_json, spreadsheet_cell
from keras_vit.pages.html import PAGE, check_new_folder, write_page
from keras_vit.silence import silent_descriptor, visible_stderr

OPTIONS = ("coreset", "false_positive_rate", "masks")
TABLE, GOOD, MEASURES = "scores.csv", "good.csv", "measures.json"
LEVELS = 65_536  # of a map in 16 bits
STEP = 2 / (LEVELS - 1)  # of a level; cosine distances are in [0, 2]
_OK = "ok"
_COLUMNS = ("path", "status", "score", "flawed", "mask", "height", "width", "png", "npy")
_OF_GOOD = ("path", "status", "score", "fold")
_VALUES = ("png", "npy", "both", "none")
_MASK_ENDINGS = ("", "_mask")  # what the stem of a mask has more than that of its photo; the second is MVTec AD's
_SHOWN, _LONGEST = 100, 480  # photos of a page, and pixels of each
_NAMED = 5  # files in a message
_OF_A_MEMORY = ("short_side", "coreset", "false_positive_rate", "seed", "weights")  # which a saved inspector has


def add_commands(top: Any, command: Callable[..., ArgumentParser]) -> None:
    """Adds this command to the parser; `command` makes it."""
    summary = "find flaws in photos by 20 to 500 good ones, without training"
    new = command(top, "inspect", inspect, summary, "keras-vit inspect good photos --model dinov2/S14 --out found")
    good = "photos without a flaw: a folder, a table with the column path, or shards; or an earlier --out"
    new.add_argument("good", metavar="GOOD", type=path, help=good)
    photos = "a photo (JPEG, PNG, WebP, BMP, HEIC), a folder of photos, a table with the column path, or shards"
    new.add_argument("images", metavar="PHOTO", nargs="+", type=path, help=photos)
    model = (
        "a name as dinov2/S14, a checkpoint, the folder of a run or a .keras file; by default that of an earlier --out"
    )
    new.add_argument("--model", metavar="MODEL", help=model)
    weights = "weights of a model given by name; by default its first ones in `weights list`"
    new.add_argument("--weights", metavar="NAME", help=weights)
    new.add_argument("--out", required=True, type=path, metavar="FOLDER", help="folder to write, new or empty")
    masks = "folder of masks of the flaws, not 0 where one is, as PNG with equal stems; by default no measures"
    new.add_argument("--masks", type=path, metavar="MASKS", help=masks)
    side = f"pixels that the shorter side is resized to; by default {inspection.SHORT_SIDE}"
    new.add_argument("--short-side", type=int, metavar="S", help=side)
    coreset = f"patches that are kept, as a number or as a share below 1; by default {inspection.CORESET}"
    new.add_argument("--coreset", type=_number, metavar="N", help=coreset)
    rate = f"share of good photos that may count as flawed; by default {inspection.FALSE_POSITIVE_RATE}"
    new.add_argument("--false-positive-rate", type=float, metavar="R", help=rate)
    new.add_argument("--seed", type=int, metavar="N", help="seed of folds and coreset; by default 0")
    which = "search of the nearest patches, with equal answers"
    new.add_argument("--engine", choices=SEARCHES, default=SEARCHES[0], help=which)
    values = "files of the maps: a 16-bit PNG, float32 numbers of NumPy, both, or none"
    new.add_argument("--values", choices=_VALUES, default="png", help=values)
    new.add_argument("--json", action="store_true", help="print JSON, for programs")


def inspect(arguments: Namespace) -> Iterator[str]:
    """Writes the inspector first, then a row and a map for each photo, the page and the measures."""
    began = time.monotonic()
    options = _check(arguments)
    photos, notes = find_photos(arguments.images)
    good: list[Photo] = []
    if options is not None:
        good, more = find_photos([arguments.good])
        notes = [*more, *notes]
    if arguments.json:
        for note in notes:  # the output is for programs
            say_error(printable(note))
    else:
        yield from map(printable, notes)
        yield loading(arguments.model or arguments.good)
    with quiet_start():
        pass
    masks = {} if arguments.masks is None else _pair_masks(arguments, photos)
    inspector, engine = None, arguments.engine
    with (  # libjpeg writes a line to the descriptor for a damaged file, in a thread, so it is silent throughout
        silent_descriptor(2, sys.stderr) as heard,
        visible_stderr(heard) as words,
        contextlib.redirect_stderr(words),
    ):
        if options is None:
            inspector = inspection.Inspector.load(arguments.good, arguments.model, engine=engine)
        else:
            steps = _make(arguments, good, options)
            while inspector is None:
                step = next(steps)
                if isinstance(step, str):
                    yield from () if arguments.json else (step,)
                else:
                    inspector = step
        arguments.out.mkdir(parents=True, exist_ok=True)
        inspector.save(arguments.out)
        _write_good(arguments.out / GOOD, inspector)
        report = _Report(arguments, inspector, masks)
        pace = Pace(len(photos), "photos")
        for done in report.write(photos):
            yield from () if arguments.json else pace.lines(done)
    report.write_page(inspector)
    facts = report.facts(inspector)
    with atomic_write(arguments.out / MEASURES) as part:
        Path(part).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    if arguments.json:
        place = {"folder": str(arguments.out), "table": str(arguments.out / TABLE)}
        yield printable_json(place | facts | {"seconds": round(time.monotonic() - began, 1)})
    else:
        yield from report.lines(facts, arguments.out)
    if report.unread == len(photos):
        raise ValueError(f"no photo could be inspected; the column status of {printable(report.table)} says why")
    for warning in report.warnings({} if options is None else inspector.record.unused):
        say_error(f"keras-vit: warning: {warning}")


def _check(arguments: Namespace) -> InspectorOptions | None:
    """Refuses what cannot be, before Keras is imported; the options of an inspector that is to be made, or `None`."""
    check_installed("PIL", "pictures", "data")
    check_new_folder(arguments.out)
    given = {name: getattr(arguments, name) for name in _OF_A_MEMORY if getattr(arguments, name) is not None}
    if os.path.lexists(arguments.good / inspection.RECORD):
        inspection.read_record(arguments.good)
        if given:
            name = next(iter(given))
            raise ArgumentError(
                f"an inspector that is there has its options.\nReceived: `{name}` for {printable(arguments.good)}. "
                "Leave it out, or pass the good photos."
            )
        return None
    if arguments.model is None:
        raise ArgumentError(
            "`model` must be given with good photos, as dinov2/S14.\nReceived: none, and "
            f"{printable(arguments.good)} is not the folder of an earlier inspect."
        )
    given.pop("weights", None)
    return InspectorOptions(**given, engine=arguments.engine)


def _make(arguments: Namespace, good: Sequence[Photo], options: InspectorOptions) -> Iterator[Any]:
    """Lines on how far it is, and at last the inspector of the good photos."""
    from keras_vit.dense_models.patch_features import PatchFeatures
    from keras_vit.runs.load import load_any

    opened, _ = load_any(arguments.model, arguments.weights, needs_head=False)
    features = PatchFeatures(opened, options.short_side, as_graph=True)
    place = path(arguments.model)
    name = os.path.abspath(place) if place.exists() else arguments.model
    read = functools.partial(read_pixels, channels=features.channels)
    yield f"patches of {plural(len(good), 'good photo')} ..."
    found = inspection.make_inspector(features, prefetch_photos(good, read, 1), options, name, arguments.weights)
    kept = plural(len(found.memory_bank), "patch").replace("patchs", "patches")
    yield f"memory bank of {kept}, threshold {found.threshold:.4f}"
    yield found


def _pair_masks(arguments: Namespace, photos: Sequence[Photo]) -> dict[int, Path]:
    """The mask of each photo that has one, by its place; all masks are read, so that nothing falls in the midst."""
    folder = arguments.masks
    if not folder.is_dir():
        raise ArgumentError(f"`masks` must be a folder.\nReceived: {printable(folder)}, where none is.")
    passed = PassedOver()
    files = sorted(photos_below(folder, passed=passed))
    passed.check()
    stems: dict[str, list[int]] = {}
    for number, name in enumerate(names_below(photos, arguments.images)):
        stems.setdefault(os.path.splitext(name)[0], []).append(number)
    found: dict[int, Path] = {}
    wrong = []
    for file in files:
        stem = file.relative_to(folder).with_suffix("").as_posix()
        places = next((stems[s] for e in _MASK_ENDINGS if (s := stem.removesuffix(e)) in stems and s + e == stem), [])
        if len(places) != 1 or places[0] in found:
            reason = "no photo has its stem" if not places else "several photos or masks have its stem"
            wrong.append(f"{printable(file)}: {reason}")
            continue
        reason = _mask_fault(file, photos[places[0]])
        wrong += [f"{printable(file)}: {reason}"] if reason else []
        found[places[0]] = file
    if wrong or not files:
        more = f"; and {len(wrong) - _NAMED:,} more" if len(wrong) > _NAMED else ""
        what = "; ".join(wrong[:_NAMED]) + more if wrong else f"{printable(folder)} without a mask"
        raise ArgumentError(
            "`masks` must be files with the stem and the size of one photo each, not 0 where a flaw is.\n"
            f"Received: {what}."
        )
    return found


def _mask_fault(file: Path, photo: Photo) -> str:
    """The reason why a mask cannot be that of a photo, or `""`."""
    from PIL import Image

    try:
        shape = _read_mask(file).shape
    except (OSError, ValueError) as error:
        return " ".join(str(error).split()).rstrip(".")
    if not isinstance(photo.place, str):
        return ""
    try:
        with open(photo.place, "rb") as opened, Image.open(opened) as image:
            size = image.size[::-1]
            opened.seek(0)
            size = size[::-1] if exif_orientation(opened.read()) >= 5 else size
    except (OSError, ValueError):  # the status of the photo says why
        return ""
    return "" if shape == size else f"{shape[0]} x {shape[1]} pixels for a photo of {size[0]} x {size[1]}"


def _read_mask(file: Path) -> np.ndarray:
    """bool `(H, W)`, where a flaw is."""
    from keras_vit.dense.masks import read_mask

    return read_mask(file) != 0


def _write_good(table: Path, inspector: Any) -> None:
    """A row for each good photo that was given: its score against the others, or the reason why it was not used."""
    with atomic_write(table) as part, open(part, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(_OF_GOOD)
        for photo in inspector.record.good_photos:
            rows.writerow((spreadsheet_cell(photo.name), _OK, f"{photo.score:.6f}", photo.fold))
        for name, reason in inspector.record.unused.items():
            rows.writerow((spreadsheet_cell(name), spreadsheet_cell(reason), "", ""))


class _Report:
    """What is written of photos, one after another: rows, maps, the measures' counts, and the page's pictures."""

    def __init__(self, arguments: Namespace, inspector: Any, masks: dict[int, Path]) -> None:
        from keras_vit.analysis.overlay import anomaly_limits
        from keras_vit.dense.anomalies import AnomalyCounts

        self.arguments, self.inspector, self.masks = arguments, inspector, masks
        self.table = arguments.out / TABLE
        self.limits = anomaly_limits(inspector.record.median_distance, inspector.threshold)
        self.counts = AnomalyCounts(LEVELS)
        self.labels: list[bool] = []
        self.scores: list[float] = []  # of the photos that are measured
        self.shown: list[tuple[float, int, dict[str, Any]]] = []  # a heap of the highest scores
        self.faults: list[tuple[str, str]] = []
        self.known: list[str] = []  # photos that are good ones
        self.flawed = self.photos = 0

    @property
    def unread(self) -> int:
        """Photos without a score."""
        return len(self.faults)

    def write(self, photos: Sequence[Photo]) -> Iterator[int]:
        """Writes the table of all photos; the number that is done after each."""
        self.photos = len(photos)
        read = functools.partial(read_pixels, channels=self.inspector.features.channels)
        names = file_names(photos, self.arguments.images)
        with (
            atomic_write(self.table) as part,
            open(part, "w", encoding="utf-8", errors="backslashreplace", newline="") as file,
        ):
            rows = csv.DictWriter(file, _COLUMNS, restval="")
            rows.writeheader()
            found = zip(names, prefetch_photos(photos, read, 1), strict=True)
            for place, (name, (photo, pixels)) in enumerate(found):
                facts = self._inspect(place, name, photo, pixels)
                texts = {key: spreadsheet_cell(value) for key, value in facts.items() if isinstance(value, str)}
                rows.writerow({"path": spreadsheet_cell(photo)} | facts | texts)
                yield place + 1

    def _inspect(self, place: int, name: str, photo: str, pixels: np.ndarray | str) -> dict[str, Any]:
        """The cells of a photo, whose files are written."""
        mask = self.masks.get(place)
        label = {} if mask is None else {"mask": str(mask)}
        fault = pixels if isinstance(pixels, str) else inspection.too_small(pixels, self.inspector.features.patch)
        flaws = None
        if not fault and mask is not None:
            flaws = _read_mask(mask)
            if flaws.shape != pixels.shape[:2]:  # type: ignore[union-attr]
                fault = f"its mask has {flaws.shape[0]} x {flaws.shape[1]} pixels"
        if fault or isinstance(pixels, str):
            self.faults.append((photo, fault))
            return {"status": fault, **label}
        found = self.inspector.inspect_pixels(pixels)
        levels = np.rint(found.anomaly_map / STEP).astype("uint16")
        self.flawed += found.is_flawed
        if found.is_good_photo:
            self.known.append(photo)
        elif self.arguments.masks is not None:
            flaws = np.zeros(levels.shape, bool) if flaws is None else flaws
            self.counts.update(flaws, levels)
            self.labels.append(bool(flaws.any()))
            self.scores.append(found.score)
        self._show(place, photo, pixels, found, flaws)
        facts = {"status": "ok: one of the good photos" if found.is_good_photo else _OK, **label}
        facts |= {"score": f"{found.score:.6f}", "flawed": "yes" if found.is_flawed else "no"}
        facts |= {"height": pixels.shape[0], "width": pixels.shape[1]}
        return facts | self._write_map(name, found.anomaly_map, levels)

    def _write_map(self, name: str, anomaly_map: np.ndarray, levels: np.ndarray) -> dict[str, str]:
        from PIL import Image, PngImagePlugin

        facts = {}
        if self.arguments.values in ("png", "both"):
            note = PngImagePlugin.PngInfo()
            note.add_text("step", repr(STEP))
            image = Image.fromarray(levels)
            facts["png"] = save_picture(image, self.arguments.out, f"maps/{name}.png", pnginfo=note)
        if self.arguments.values in ("npy", "both"):
            with atomic_write(place_in(self.arguments.out, f"maps/{name}.npy")) as part, open(part, "wb") as file:
                np.save(file, anomaly_map)
            facts["npy"] = f"maps/{name}.npy"
        return facts

    def _show(self, place: int, photo: str, pixels: np.ndarray, found: Inspection, flaws: np.ndarray | None) -> None:
        """Keeps the pictures of a photo, if its score is among the highest so far."""
        from PIL import Image

        from keras_vit.analysis.overlay import colorize, paint_anomalies

        if len(self.shown) == _SHOWN and found.score <= self.shown[0][0]:
            return
        image = Image.fromarray(colorize(pixels))
        image.thumbnail((_LONGEST, _LONGEST))
        small = np.asarray(Image.fromarray(found.anomaly_map).resize(image.size, Image.Resampling.BILINEAR))
        overlay = paint_anomalies(small, self.limits, np.asarray(image))
        label = "" if self.arguments.masks is None else "labelled flawed" if flaws is not None else "labelled good"
        label = "labelled good" if flaws is not None and not flaws.any() else label
        facts = {"name": photo, "score": found.score, "is_flawed": found.is_flawed}
        facts |= {"label": "one of the good photos" if found.is_good_photo else label}
        facts |= {"photo": _jpeg_uri(image), "overlay": _jpeg_uri(Image.fromarray(overlay))}
        push = heapq.heappush if len(self.shown) < _SHOWN else heapq.heapreplace
        push(self.shown, (found.score, -place, facts))

    def write_page(self, inspector: Any) -> None:
        """Writes `index.html`."""
        from keras_vit.analysis.overlay import anomaly_scale
        from keras_vit.pages.html import picture_uri

        facts = self.facts(inspector)
        figures = [("photos", f"{facts['photos']:,}"), ("flawed", f"{self.flawed:,}")]
        figures += [("threshold", f"{inspector.threshold:.4f}"), ("good photos", f"{facts['good_photos']:,}")]
        names = {"image_auroc": "image AUROC", "pixel_auroc": "pixel AUROC", "au_pro": "AU-PRO up to 0.3"}
        figures += [(words, f"{facts[name]:.4f}") for name, words in names.items() if facts.get(name) is not None]
        write_page(
            self.arguments.out / PAGE,
            "inspection",
            title="Flaws of photos",
            subtitle=f"{inspector.record.model}, good photos: {self.arguments.good}",
            figures=figures,
            scale=picture_uri(anomaly_scale(self.limits)),
            number=self.photos - self.unread,
            photos=[facts for _, _, facts in sorted(self.shown, key=lambda each: each[:2], reverse=True)],
            unread=self.faults,
        )

    def facts(self, inspector: Any) -> dict[str, Any]:
        """Counts and measures, ready for JSON; a measure that does not exist is `None`."""
        from keras_vit.dense import auroc

        facts: dict[str, Any] = {"photos": self.photos, "unread": self.unread, "flawed": self.flawed}
        facts |= {"threshold": inspector.threshold, "good_photos": len(inspector.record.good_photos)}
        facts |= {"memory_bank": len(inspector.memory_bank)}
        if self.arguments.masks is None:
            return facts
        measures = {"image_auroc": auroc(self.labels, self.scores) if self.labels else math.nan}
        measures |= {"pixel_auroc": self.counts.auroc(), "au_pro": self.counts.au_pro()}
        facts |= {"labelled_flawed": sum(self.labels), "labelled_good": len(self.labels) - sum(self.labels)}
        return facts | {name: None if math.isnan(value) else value for name, value in measures.items()}

    def lines(self, facts: dict[str, Any], out: Path) -> Iterator[str]:
        """What a person reads at the end."""
        inspected = self.photos - self.unread
        yield f"{plural(self.flawed, 'photo')} of {inspected:,} above the threshold {facts['threshold']:.4f}"
        if self.arguments.masks is not None:
            labels = f"{facts['labelled_flawed']:,} flawed and {facts['labelled_good']:,} good by the masks"
            if None in (found := [facts[name] for name in ("image_auroc", "pixel_auroc", "au_pro")]):
                yield f"{labels}: AUROC and PRO need both"
            yield from (
                f"{name}  {value:.4f}"
                for name, value in zip(("image AUROC", "pixel AUROC", "AU-PRO     "), found, strict=True)
                if value is not None
            )
        yield f"wrote {printable(out)}: open {printable(out / PAGE)}"

    def warnings(self, unused: dict[str, str]) -> Iterator[str]:
        """About good photos that were not used, photos whose score says nothing, and those without one."""
        says_why = f"the column status of {printable(self.arguments.out)}/"
        if unused:
            yield f"{plural(len(unused), 'good photo')} not used: {says_why}{GOOD} says why"
        if self.known:
            few = ", ".join(map(printable, self.known[:_NAMED])) + (", ..." if len(self.known) > _NAMED else "")
            yield (
                f"{plural(len(self.known), 'photo')} with the pixels of a good photo, whose scores say nothing"
                f"{' and are not measured' if self.arguments.masks else ''}: {few}"
            )
        if self.unread:
            yield f"{plural(self.unread, 'photo')} without a score: {says_why}{TABLE} says why"


def _jpeg_uri(image: Any) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)
