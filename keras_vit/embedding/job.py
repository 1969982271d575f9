"""The job of `keras-vit embed`: a manifest first, then parts; the same command goes on with those that are missing."""

import contextlib
import dataclasses
import datetime
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError, check_choice, check_positive_int, cores, with_parameters
from keras_vit.embedding.job_checks import check_parts, faults_of_parts, said_of_broken, write_broken
from keras_vit.embedding.manifest import MANIFEST, Manifest, read_manifest, sha256_of_files
from keras_vit.embedding.model_facts import ENGINE_FILE
from keras_vit.embedding.opened_models import OUTPUTS, is_exported
from keras_vit.embedding.part_files import FORMS, check_form, fault_of_part
from keras_vit.embedding.photo_lists import LIST, PhotoList, check_there, key_of, list_photos, read_list
from keras_vit.embedding.supervisor import TRIES, Supervisor, ask_once
from keras_vit.exporting.formats import ENGINE_PRECISIONS, ENGINES
from keras_vit.files import PREFIX, atomic_write, expand_path, locked, unlock
from keras_vit.pages.formatting import plural, printable
from keras_vit.runs.named_models import check_run, variant_and_weights
from keras_vit.weights.resolve import find_file

_PART, _FEW_PARTS = 1000, 16  # photos of a part; parts of a list that would have fewer
_BATCH = 32
_FIRST_WORDS, _MINUTE = 10, 60  # seconds to the first line on the speed, and between those that follow
_MOST_WITH_KERAS = 4  # processes by default
_ROOM, _OF_MODEL = 400e6, 3  # bytes that a process takes, and times those of its model's files


@dataclasses.dataclass(frozen=True)
class JobOptions:
    """What a job is asked for; `None` is the default, or what a job was begun with.

    Attributes:
        outputs, engine, precision, weights, threads, batch_size: as `Embedder` takes them.
        part: photos of a part.
        form: `"parquet"` or `"npz"`.
        processes: how many compute; by default one a core, as memory allows.
        shard: `(i, n)`: this job computes each n-th part, from the i-th on.
    """

    outputs: str | None = None
    engine: str | None = None
    precision: str | None = None
    weights: str | None = None
    threads: int | None = None
    batch_size: int | None = None
    part: int | None = None
    form: str | None = None
    processes: int | None = None
    shard: tuple[int, int] = (0, 1)

    def __post_init__(self) -> None:
        choices = {"outputs": OUTPUTS, "engine": ENGINES, "precision": ENGINE_PRECISIONS, "form": FORMS}
        for name, known in choices.items():
            if getattr(self, name) is not None:
                check_choice(name, getattr(self, name), known)
        for name in ("threads", "batch_size", "part", "processes"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))


def embed(
    photos: FilePath, model: str, out: FilePath, options: JobOptions, say: Callable[[str], Any] = print
) -> Manifest:
    """Embeds photos, or goes on with that.

    Args:
        photos: as `list_photos` takes them.
        model: as `Embedder` takes it.
        out: the folder of the job.
        options: `JobOptions`.
        say: called with lines of text.

    Raises:
        ValueError: for photos, a model or options that cannot be or are not those of the job, where a shard or most
            photos are gone, for a part that is not one of the job, and at the end for those that failed or are damaged.
        ImportError: if a package is missing.
        OSError: if the folder cannot be written, and on Windows.
    """
    if os.name == "nt":
        raise OSError("a job needs pipes and signals of Linux or macOS.\nReceived: Windows. Use `Embedder`.")
    folder = expand_path(out)
    if folder.resolve() == expand_path(photos).resolve():
        raise ArgumentError(
            f"`out` must be a folder of its own.\nReceived: {str(out)!r}, where the photos are.", parameters=("out",)
        )
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder, options.shard):
        listed = list_photos(photos)
        manifest, listed = _manifest(listed, model, folder, options, say)
        parts = range(options.shard[0], manifest.parts, options.shard[1])
        missing = _missing(folder, manifest, parts)
        if len(missing) < len(parts):
            asked, absent = (sum(len(manifest.rows(number)) for number in some) for some in (parts, missing))
            say(f"{asked - absent:,} of {plural(asked, 'photo')} were there already")
        if missing:
            check_there(listed, [row for number in missing for row in manifest.rows(number)])
            _compute(folder, model, manifest, listed, missing, options, say)
    is_whole = all((folder / manifest.name(number)).exists() for number in range(manifest.parts))
    check_parts(folder, manifest, range(manifest.parts) if is_whole else parts)
    if is_whole:
        broken = write_broken(folder, manifest)
        rows = f"{plural(manifest.photos, 'row')} in {plural(manifest.parts, 'part')}"
        say(f"done: {rows}, {said_of_broken(folder, broken)}")
    else:
        shard = f"shard {options.shard[0]}/{options.shard[1]}"
        say(f"done: {plural(len(parts), 'part')} of {shard}, which is all of it; other shards are not done")
    return manifest


@contextlib.contextmanager
def _alone(folder: Path, shard: tuple[int, int]) -> Iterator[None]:
    """A lock for one job of a shard. Where a file system has none, a second job computes the same files again."""
    path = folder / f"{PREFIX}shard-{shard[0]}-of-{shard[1]}.lock"
    path.mkdir(exist_ok=True)
    try:
        lock = locked(path)
    except BlockingIOError:
        raise ArgumentError(
            "one job computes a shard.\n"
            f"Received: {printable(folder)}, where another one computes shard {shard[0]}/{shard[1]} now. Wait for it, "
            "or end it first.",
            parameters=("out",),
        ) from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.rmdir()
        unlock(lock)


def _manifest(
    listed: PhotoList, model: str, folder: Path, options: JobOptions, say: Callable[[str], Any]
) -> tuple[Manifest, PhotoList]:
    """The manifest, which is written now if there is none; and the photos in the order of its rows."""
    lock = locked(folder, wait=True)  # several shards may begin at once
    try:
        if not os.path.lexists(folder / MANIFEST):
            check_form(options.form or FORMS[0])
            _prepare(listed, model, folder, options, say)
        manifest = read_manifest(folder)
    finally:
        unlock(lock)
    check_form(manifest.form)
    asked = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    manifest.check({name: value for name, value in asked.items() if name not in ("processes", "shard")})
    digest = sha256_of_files(files_of_model(model, manifest.weights))
    if digest != manifest.model_sha256:
        raise ArgumentError(
            "a job goes on with the model that it was begun with, so that all rows are alike.\n"
            f"Received: model={model!r}, which is another than {manifest.model!r} was. Choose another folder.",
            parameters=("out", "model"),
        )
    if manifest.file is not None and sha256_of_files(_engine_files(folder)) != manifest.file_sha256:
        raise ArgumentError(
            "the file that the workers open must be as the job wrote it.\n"
            f"Received: {printable(folder / manifest.file)}, which has changed. Choose another folder.",
            parameters=("out",),
        )
    return manifest, _same_list(listed, folder, manifest, say)


def _same_list(listed: PhotoList, folder: Path, manifest: Manifest, say: Callable[[str], Any]) -> PhotoList:
    """The list that the job was begun with; raises if photos have come since."""
    if listed.digest() == manifest.photos_sha256:
        return listed
    kept = read_list(folder, listed.top)
    if kept.digest() != manifest.photos_sha256:
        raise ArgumentError(
            f"the list of photos must be as the job wrote it.\nReceived: {printable(folder / LIST)}, which differs.",
            parameters=("out",),
        )
    known = {key_of(entry) for entry in kept.entries}
    now = {key_of(entry) for entry in listed.entries}
    if new := sorted(now - known):
        raise ArgumentError(
            "a job goes on with the list of photos that it was begun with.\n"
            f"Received: {plural(len(new), 'photo')} not in {printable(folder / LIST)}, as {new[0]!r}. Embed "
            f"{'it' if len(new) == 1 else 'them'} into another folder.",
            parameters=("out", "photos"),
        )
    gone = [row for row, entry in enumerate(kept.entries) if key_of(entry) not in now]
    if not gone:
        raise ArgumentError(
            "a job goes on with the photos that it was begun with.\n"
            f"Received: shards in which they lie at other places than {printable(folder / LIST)} says.",
            parameters=("out", "photos"),
        )
    first = printable(key_of(kept.entries[gone[0]]))
    have, rows = ("has", "its row says so") if len(gone) == 1 else ("have", "their rows say so")
    say(f"{plural(len(gone), 'photo')} {have} gone since the job began, as {first} of row {gone[0]:,}; {rows}")
    return kept


def _prepare(listed: PhotoList, model: str, folder: Path, options: JobOptions, say: Callable[[str], Any]) -> None:
    check_there(listed, range(len(listed.entries)))
    say(f"opening {printable(model)} for {plural(len(listed.entries), 'photo')} ...")
    digest = sha256_of_files(files_of_model(model, options.weights))
    threads, outputs = options.threads or 1, options.outputs or OUTPUTS[0]
    asked = {"outputs": outputs, "engine": options.engine or "auto", "precision": options.precision}
    with tempfile.TemporaryDirectory(prefix="keras_vit-") as place:
        named = {"model": model, "weights": options.weights, "threads": threads, "folder": place}
        facts = ask_once({"prepare": asked | named}, threads, say)["prepared"]
        for file in sorted(Path(place).iterdir()):
            with atomic_write(folder / file.name) as part:
                Path(part).write_bytes(file.read_bytes())
    batch_size = options.batch_size or _BATCH
    count = len(listed.entries)
    few = -(-count // _FEW_PARTS // batch_size) * batch_size
    manifest = Manifest(
        photos=count,
        photos_sha256=listed.digest(),
        part=options.part or min(_PART, max(few, 1)),
        form=options.form or FORMS[0],
        outputs=outputs,
        model=model,
        model_sha256=digest,
        weights=options.weights,
        threads=threads,
        batch_size=batch_size,
        file_sha256=facts["file"] and sha256_of_files(_engine_files(folder)),
        top=os.path.abspath(listed.top),
        **facts,
    )
    listed.write(folder)
    manifest.write(folder)


def files_of_model(model: str, weights: str | None = None) -> list[Path]:
    """The files that decide what a model computes: its own, and what stands beside it."""
    place = expand_path(model)
    if is_exported(model):
        beside = [place.with_suffix(".bin"), place.with_name(f"{place.name}.data")]
        if not place.is_file():
            raise with_parameters(FileNotFoundError(f"`model` must be there.\nReceived: {model!r}."), "model")
        return [place, *(file for file in beside if file.is_file())]
    found = variant_and_weights(model, weights)
    if found is None:
        return [check_run(place, "; or a .onnx or .xml file, a checkpoint, or a name as dinov2/S14.")]
    file = find_file(found[1], found[0]).path
    return sorted(entry for entry in place.iterdir() if entry.is_file()) if place.is_dir() else [file]


def _engine_files(folder: Path) -> list[Path]:
    return [file for file in (folder / ENGINE_FILE, folder / f"{ENGINE_FILE}.data") if file.is_file()]


def _missing(folder: Path, manifest: Manifest, parts: Sequence[int]) -> list[int]:
    """The parts that are not there; raises for those that are no good."""
    there = [number for number in parts if os.path.lexists(folder / manifest.name(number))]
    if faults := [*filter(None, (fault_of_part(folder, manifest, number) for number in there))]:
        raise faults_of_parts(folder, faults, len(parts))
    known = set(there)
    return [number for number in parts if number not in known]


def _compute(
    folder: Path,
    model: str,
    manifest: Manifest,
    listed: PhotoList,
    missing: list[int],
    options: JobOptions,
    say: Callable[[str], Any],
) -> None:
    """Computes the missing parts; raises at the end if one could not be."""
    processes = min(options.processes or _processes(folder, model, manifest), len(missing))
    rows = sum(len(manifest.rows(number)) for number in missing)
    of_shard = f" of shard {options.shard[0]}/{options.shard[1]}" if options.shard[1] > 1 else ""
    say(
        f"embedding {plural(rows, 'photo')} in {plural(len(missing), 'part')}{of_shard} by {processes} "
        f"process{'es' * (processes > 1)}, {manifest.software}"
    )
    first = {"folder": str(folder.absolute()), "top": str(listed.top.absolute()), "model": str(model)}

    def task(number: int) -> dict[str, Any]:
        entries = listed.entries[manifest.rows(number).start : manifest.rows(number).stop]
        return {"part": number, "photos": entries}

    progress, software = _Progress(rows, say), manifest.software
    with Supervisor(first, task, missing, processes, manifest.threads) as supervisor:
        for answer in supervisor.answers(patience=1.0):
            software = answer.get("ready", software)
            progress.heard(answer)
            if "again" in answer:
                part, how = manifest.name(answer["again"]), answer["how"]
                say(f"{part} is tried again ({answer['try']} of {TRIES} tries): {how}")
        if software != manifest.software:
            say(
                f"the job was begun with {manifest.software}, and {software} computed here: rows may differ by rounding"
            )
        if supervisor.failed:
            number, how = next(iter(supervisor.failed.items()))
            raise ValueError(
                f"{len(supervisor.failed):,} of {len(missing):,} parts could not be computed in {TRIES} tries each; "
                f"the others are there.\nReceived: {manifest.said(number)}: {how}. Run the same command again to go on."
            )


def _processes(folder: Path, model: str, manifest: Manifest) -> int:
    """One a core for each of the threads, as far as memory allows; few for TensorFlow, as they share an accelerator."""
    import psutil

    files = _engine_files(folder) if manifest.file else files_of_model(model, manifest.weights)
    room = _ROOM + _OF_MODEL * sum(file.stat().st_size for file in files)
    fitting = int(psutil.virtual_memory().available / room)
    most = len(cores()) if manifest.file or is_exported(model) else _MOST_WITH_KERAS
    return max(min(len(cores()) // manifest.threads, fitting, most), 1)


class _Progress:
    """Says how a job is getting on: early, and then once a minute.

    Args:
        rows: that are to be computed.
        say: called with a line.
    """

    def __init__(self, rows: int, say: Callable[[str], Any]) -> None:
        self._rows, self._say = rows, say
        self._done = 0
        self._within: dict[int, int] = {}  # rows of parts that are being computed
        self._began = time.monotonic()
        self._next = self._began + _FIRST_WORDS

    def heard(self, answer: dict[str, Any]) -> None:
        """Counts what a process has said, and says a line if it is time."""
        if "so_far" in answer:
            self._within[answer["part"]] = answer["so_far"]
        elif "part" in answer:
            self._within.pop(answer["part"], None)
            self._done += answer.get("rows", 0)
        now = time.monotonic()
        if now >= self._next and (done := self._done + sum(self._within.values())):
            self._next = now + _MINUTE
            speed = done / (now - self._began)
            left = datetime.timedelta(seconds=round((self._rows - done) / speed))
            until = datetime.datetime.now() + left
            self._say(
                f"{done:,} of {self._rows:,} photos, {speed:,.1f} a second, {left} left, until {until:%d %b %H:%M}"
            )
