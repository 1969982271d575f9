"""The job of `keras-vit embed`: a manifest first, then parts; the same command computes those that are missing."""

import concurrent.futures
import contextlib
import csv
import dataclasses
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError, PositiveInt, cores, one_of, validate, with_parameters
from keras_vit.embedding.embedder import OK, Embedder
from keras_vit.embedding.loaders import ENGINE_FILE, OUTPUTS, check_engine, engine_of, is_exported, prepare
from keras_vit.embedding.manifest import FORMS, MANIFEST, Manifest, files_sha256, read_manifest
from keras_vit.embedding.part_files import PartError, check_form, part_error, read_part, read_statuses
from keras_vit.embedding.photo_lists import (
    LIST,
    PhotoList,
    check_files_exist,
    list_error,
    list_photos,
    list_sha256,
    of_read_kind,
    photo_key,
    read_list,
    shard_states,
)
from keras_vit.embedding.pool import JobSetup, Pool, compute_part
from keras_vit.exporting.formats import ENGINE_PRECISIONS, ENGINES
from keras_vit.files import ABANDONED, PREFIX, atomic_write, expand_path, lock_dir, remove_partial_files, unlock
from keras_vit.images.validation import BadImage, count_reasons
from keras_vit.pages.formatting import Pace, check_table_place, plural, printable, spreadsheet_cell
from keras_vit.runs.load import check_run, variant_and_weights
from keras_vit.weights.checkpoint import Checkpoint, file_in, read_checkpoint
from keras_vit.weights.resolve import find_file

_PART, _FEW_PARTS = 1000, 16  # photos of a part; parts of a list that would have fewer
_BATCH = 32
_MOST_WITH_KERAS = 4  # processes by default
_ROOM, _OF_MODEL = 400e6, 3  # bytes that a process takes, and times those of its model's files
BROKEN = "broken_photos.csv"
_COLUMNS = ("row", "photo", "reason")
_MOST_NAMED = 10  # parts that an error names
_INDEX = ("JOB_COMPLETION_INDEX", "RANK")  # of Kubernetes' indexed jobs, and of launchers
_COUNT = ("NUM_SHARDS", "WORLD_SIZE")
_NO_GAPS = " An array of SLURM must have no gaps, as --array=0-7."


@dataclasses.dataclass(frozen=True)
class JobOptions:
    """Options of a job, some as `Embedder` has them; `None` is the default, or what the job started with."""

    outputs: Annotated[str, one_of(OUTPUTS)] | None = None
    engine: Annotated[str, one_of(ENGINES)] | None = None
    precision: Annotated[str, one_of(ENGINE_PRECISIONS)] | None = None
    weights: str | None = None
    threads: PositiveInt | None = None
    batch_size: PositiveInt | None = None
    part: PositiveInt | None = None  # photos of a part
    form: Annotated[str, one_of(FORMS)] | None = None
    processes: PositiveInt | None = None  # how many compute; by default one a core, as memory allows
    shard: tuple[int, int] = (0, 1)  # (i, n): this job computes each n-th part, from the i-th on

    def __post_init__(self) -> None:
        validate(self)


def embed(
    photos: FilePath, model: str, out: FilePath, options: JobOptions, say: Callable[[str], Any] = print
) -> Manifest:
    """Embeds photos, as `list_photos` takes them, into the folder `out`, or resumes a job that does so.

    Raises:
        ValueError: for photos, a model or options that cannot be or are not those of the job, where a shard or most
            photos are gone, for a part that is not one of the job, and at the end for those that failed or are damaged,
            or where no photo could be read.
        ImportError: if a package is missing.
        OSError: if the folder cannot be written, and on Windows.
        WorkerError: if the system ends a process that computes. The same call goes on.
    """
    if os.name == "nt":
        raise OSError("a job needs pipes and signals of Linux or macOS.\nReceived: Windows. Use `Embedder`.")
    folder = expand_path(out)
    if folder.resolve() == expand_path(photos).resolve():
        raise ArgumentError(f"`out` must be a folder of its own.\nReceived: {str(out)!r}, where the photos are.")
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise ArgumentError(f"`out` must be a folder.\nReceived: {str(out)!r}, where something else is.")
    if os.path.lexists(expand_path(photos)):  # what is cheap, before a walk of minutes
        if not os.path.lexists(folder / MANIFEST):
            check_form(options.form or FORMS[0])
        check_engine(model, options.engine or "auto")
        model_files(model, options.weights)
    folder.mkdir(parents=True, exist_ok=True)
    with _lock_shard(folder, options.shard):
        listed = list_photos(photos)
        for line in listed.notes:
            say(line)
        manifest, listed = _manifest(listed, model, folder, options, say)
        for line in manifest.describe_changed(listed.states):
            say(line)
        parts = range(options.shard[0], manifest.parts, options.shard[1])
        missing = _missing(folder, manifest, parts)
        if len(missing) < len(parts):
            wanted, absent = (sum(len(manifest.rows(number)) for number in some) for some in (parts, missing))
            say(f"{wanted - absent:,} of {plural(wanted, 'photo')} were there already")
        if missing:
            check_files_exist(listed, [row for number in missing for row in manifest.rows(number)])
            _compute(folder, model, manifest, listed, missing, options, say)
    is_whole = all((folder / manifest.name(number)).exists() for number in range(manifest.parts))
    check_parts(folder, manifest, range(manifest.parts) if is_whole else parts, listed)
    for line in _describe_strays(folder, manifest):
        say(line)
    if is_whole:
        broken = write_broken(folder, manifest)
        remove_partial_files(folder, ABANDONED)  # of killed workers; nothing else may be written here any more
        rows = f"{plural(manifest.photos, 'row')} in {plural(manifest.parts, 'part')}"
        say(f"done: {rows}, {describe_broken(folder, broken)}")
        check_some_read(folder, manifest, broken)
    else:
        shard = f"shard {options.shard[0]}/{options.shard[1]}"
        say(f"done: {plural(len(parts), 'part')} of {shard}, which is all of it; other shards are not done")
    return manifest


@contextlib.contextmanager
def _lock_shard(folder: Path, shard: tuple[int, int]) -> Iterator[None]:
    """A lock for one job of a shard. Where a file system has none, a second job computes the same files again."""
    path = folder / f"{PREFIX}shard-{shard[0]}-of-{shard[1]}.lock"
    path.mkdir(exist_ok=True)
    try:
        lock = lock_dir(path)
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
    lock = lock_dir(folder, wait=True)  # several shards may begin at once
    try:
        if not os.path.lexists(folder / MANIFEST):
            check_form(options.form or FORMS[0])
            _prepare(listed, model, folder, options, say)
        manifest = read_manifest(folder)
    finally:
        unlock(lock)
    check_form(manifest.form)
    requested = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    manifest.check({name: value for name, value in requested.items() if name not in ("processes", "shard")})
    digest = files_sha256(model_files(model, manifest.weights))
    if digest != manifest.model_sha256:
        raise ArgumentError(
            "a job resumes with the model that it started with, so that all rows are alike.\n"
            f"Received: model={model!r}, which is another than {manifest.model!r} was. Choose another folder.",
            parameters=("out", "model"),
        )
    if manifest.file is not None and files_sha256(_engine_files(folder)) != manifest.file_sha256:
        raise ArgumentError(
            "the file that the workers open must be as the job wrote it.\n"
            f"Received: {printable(folder / manifest.file)}, which has changed. Choose another folder.",
            parameters=("out",),
        )
    return manifest, _check_list(listed, folder, manifest, say)


def _check_list(listed: PhotoList, folder: Path, manifest: Manifest, say: Callable[[str], Any]) -> PhotoList:
    """The list that the job started with; raises if photos were added since."""
    if listed.fingerprint() == manifest.photos_sha256:
        _check_same_list(listed, folder, manifest)
        if list_sha256(folder) != manifest.photos_sha256:
            listed.write(folder)
            say(f"{printable(folder / LIST)} was missing or differed from the manifest, and is written again")
        return listed
    kept = PhotoList(listed.top, read_list(folder, listed.top).entries, states=listed.states)
    _check_same_list(kept, folder, manifest)
    known = {photo_key(entry) for entry in kept.entries}
    now = {photo_key(entry) for entry in listed.entries if of_read_kind(entry) or photo_key(entry) in known}
    if new := sorted(now - known):
        raise ArgumentError(
            "a job resumes with the list of photos that it started with.\n"
            f"Received: {plural(len(new), 'photo')} not in {printable(folder / LIST)}, as {new[0]!r}. Embed "
            f"{'it' if len(new) == 1 else 'them'} into another folder.",
            parameters=("out", "photos"),
        )
    gone = [row for row, entry in enumerate(kept.entries) if photo_key(entry) not in now]
    if not gone and len(listed.entries) > len(kept.entries):
        count = len(listed.entries) - len(kept.entries)
        say(f"{plural(count, 'file')} of kinds that are not read, as GIF, are not in the list of this job")
        return kept
    if not gone:
        raise ArgumentError(
            "a job resumes with the photos that it started with.\n"
            f"Received: shards with other positions of photos than in {printable(folder / LIST)}.",
            parameters=("out", "photos"),
        )
    first = printable(photo_key(kept.entries[gone[0]]))
    have, rows = ("has", "its row says so") if len(gone) == 1 else ("have", "their rows say so")
    computed = sum(os.path.lexists(folder / manifest.name(row // manifest.part)) for row in gone)
    if computed:
        rows = "computed rows stay as they are" + (", and the others say so" if computed < len(gone) else "")
    say(f"{plural(len(gone), 'photo')} {have} gone since the job began, as {first} of row {gone[0]:,}; {rows}")
    return kept


def _check_same_list(listed: PhotoList, folder: Path, manifest: Manifest) -> None:
    if listed.fingerprint() != manifest.photos_sha256 or len(listed.entries) != manifest.photos:
        raise list_error(folder, "which differs from the manifest", "out")


def _prepare(listed: PhotoList, model: str, folder: Path, options: JobOptions, say: Callable[[str], Any]) -> None:
    check_files_exist(listed, range(len(listed.entries)))
    say(f"opening {printable(model)} for {plural(len(listed.entries), 'photo')} ...")
    digest = files_sha256(model_files(model, options.weights))
    threads, outputs = options.threads or 1, options.outputs or OUTPUTS[0]
    checkpoint = _checkpoint(model, options.weights)
    if outputs != "features" and checkpoint is not None and checkpoint.classes is None:
        raise ArgumentError(
            "`outputs` must be one that the model has, features.\n"
            f"Received: outputs={outputs!r}, model={model!r}, which has no head and no projection."
        )
    engine, precision = options.engine or "auto", options.precision
    opened, weights = Embedder(model).model, options.weights
    with tempfile.TemporaryDirectory(prefix="keras_vit-") as place, Pool(1, threads) as pool:
        if not is_exported(model):
            chosen = pool.submit(engine_of, opened, weights, engine, precision or "float32").result()
            if chosen == "onnxruntime":
                say("converting the model once; this takes a while ...")
        facts = pool.submit(prepare, opened, weights, outputs, engine, precision, threads, place).result()
        for file in sorted(Path(place).iterdir()):
            with atomic_write(folder / file.name) as part:
                Path(part).write_bytes(file.read_bytes())
    is_before = (
        outputs == "features" and checkpoint is not None and (checkpoint.embeds() or checkpoint.lacks_projection())
    )
    if is_before:
        say("these features stand before a projection: a search by words needs --outputs logits")
    batch_size = options.batch_size or _BATCH
    count = len(listed.entries)
    few = -(-count // _FEW_PARTS // batch_size) * batch_size
    manifest = Manifest(
        photos=count,
        photos_sha256=listed.fingerprint(),
        part=options.part or min(_PART, max(few, 1)),
        form=options.form or FORMS[0],
        outputs=outputs,
        model=model,
        model_sha256=digest,
        weights=options.weights,
        threads=threads,
        batch_size=batch_size,
        file_sha256=facts["file"] and files_sha256(_engine_files(folder)),
        top=os.path.abspath(listed.top),
        before_projection=is_before,
        shards=dict(listed.states),
        **facts,
    )
    listed.write(folder)
    manifest.write(folder)


def model_files(model: str, weights: str | None = None) -> list[Path]:
    """The files that decide what a model computes: its own, and those with its name."""
    place = expand_path(model)
    if is_exported(model):
        extra = [place.with_suffix(".bin"), place.with_name(f"{place.name}.data")]
        if not place.is_file():
            raise with_parameters(FileNotFoundError(f"`model` must be there.\nReceived: {model!r}."), "model")
        return [place, *(file for file in extra if file.is_file())]
    found = variant_and_weights(model, weights)
    if found is None:
        return [check_run(place, "; or a .onnx or .xml file, a checkpoint, or a name as dinov2/S14.")]
    file = find_file(found[1], found[0]).path
    return sorted(entry for entry in place.iterdir() if entry.is_file()) if place.is_dir() else [file]


def has_projection(model: str, weights: str | None = None) -> bool:
    """Whether the image tower of a model ends in a projection, before which its features stand."""
    checkpoint = _checkpoint(model, weights)
    return checkpoint is not None and checkpoint.embeds()


def _checkpoint(model: str, weights: str | None) -> Checkpoint | None:
    """The weights of a model, where it is no file of a runtime or of Keras."""
    place = expand_path(model)
    found = None if is_exported(model) else variant_and_weights(model, weights)
    if found is None and (not place.is_dir() or file_in(place) == place):
        return None
    path = file_in(place) if found is None else find_file(found[1], found[0]).path  # of a run that of both towers
    return read_checkpoint(path, allow_nonfinite=True, compares_checksums=False)


def _engine_files(folder: Path) -> list[Path]:
    return [file for file in (folder / ENGINE_FILE, folder / f"{ENGINE_FILE}.data") if file.is_file()]


def _missing(folder: Path, manifest: Manifest, parts: Sequence[int]) -> list[int]:
    """The parts that are missing; raises for damaged ones."""
    there = [number for number in parts if os.path.lexists(folder / manifest.name(number))]
    if faults := [*filter(None, (part_error(folder, manifest, number) for number in there))]:
        raise parts_error(folder, faults, len(parts))
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
    embedder, photos = _embedder(folder, model, manifest), PhotoList(listed.top.absolute(), [], states=listed.states)
    setup = JobSetup(folder.absolute(), manifest, photos, embedder)
    pace, software, faults = Pace(rows, "photos"), manifest.software, {}
    waiting = iter(missing)
    running: dict[Any, Any] = {}
    with Pool(processes, manifest.threads, setup) as pool:
        while True:
            for number in itertools.islice(waiting, 2 * processes - len(running)):
                entries = listed.entries[manifest.rows(number).start : manifest.rows(number).stop]
                running[pool.submit(compute_part, number, entries)] = number
            if not running:
                break
            done, _ = concurrent.futures.wait(running, 1.0, concurrent.futures.FIRST_COMPLETED)
            pool.receive()
            for future in done:
                number, (software, fault) = running.pop(future), future.result()
                if fault is not None:
                    faults[number] = fault
                    pool.rows.pop(manifest.describe(number), None)
            for line in pace.lines(sum(pool.rows.values())):
                say(line)
    if software != manifest.software:
        say(f"the job started with {manifest.software}, and {software} computed here: rows may differ by rounding")
    if faults:
        number, fault = min(faults.items())
        raise ValueError(
            f"{len(faults):,} of {plural(len(missing), 'part')} could not be computed; the others are there.\n"
            f"Received: {manifest.describe(number)}: {fault}. Run the same command again."
        )


def _embedder(folder: Path, model: str, manifest: Manifest) -> Embedder:
    given: dict[str, Any] = {"outputs": manifest.outputs, "batch_size": manifest.batch_size}
    if manifest.file is not None:
        return Embedder(folder / manifest.file, threads=manifest.threads, **given)
    # TensorFlow takes its threads from the environment, which the pool sets.
    threads = None if manifest.engine in ("tensorflow", "xla") else manifest.threads
    given |= {"engine": manifest.engine, "precision": manifest.precision, "weights": manifest.weights}
    return Embedder(model, threads=threads, **given)


def _processes(folder: Path, model: str, manifest: Manifest) -> int:
    """One a core for each of the threads, as far as memory allows; few for TensorFlow, as they share an accelerator."""
    import psutil

    files = _engine_files(folder) if manifest.file else model_files(model, manifest.weights)
    room = _ROOM + _OF_MODEL * sum(file.stat().st_size for file in files)
    fitting = int(psutil.virtual_memory().available / room)
    most = len(cores()) if manifest.file or is_exported(model) else _MOST_WITH_KERAS
    return max(min(len(cores()) // manifest.threads, fitting, most), 1)


def check_job(out: FilePath, say: Callable[[str], Any] = print) -> tuple[Manifest, list[BadImage]]:
    """Reads all parts of a job, and gives its manifest and the photos that are broken.

    Raises:
        ValueError: for another folder, for parts that are missing or damaged, of which the message names ten, and for
            files next to them that would be read as parts.
    """
    folder = expand_path(out)
    manifest = read_manifest(folder)
    check_form(manifest.form)
    listed = read_list(folder, folder)
    _check_same_list(listed, folder, manifest)
    check_parts(folder, manifest, range(manifest.parts), listed)
    if strays := _describe_strays(folder, manifest):
        raise ArgumentError(
            f"the folder must have the parts of its job alone.\nReceived: {strays[0]}.", parameters=("out",)
        )
    for line in manifest.describe_changed(shard_states(Path(manifest.top or ""), manifest.shards or ())):
        say(line)
    return manifest, write_broken(folder, manifest)


def _describe_strays(folder: Path, manifest: Manifest) -> list[str]:
    """A line about copies of parts and parts of other jobs, if there are any."""
    own = {manifest.name(number) for number in range(manifest.parts)}
    found = sorted(path.name for path in folder.glob(f"*part-*.{manifest.form}") if path.name not in own)
    if not found:
        return []
    more = f" and {len(found) - _MOST_NAMED:,} more" if len(found) > _MOST_NAMED else ""
    named = printable(", ".join(found[:_MOST_NAMED]))
    is_are, them = ("is no part", "it") if len(found) == 1 else ("are no parts", "them")
    return [
        f"{named}{more} in {printable(folder)} {is_are} of this job; move {them} away, since who reads "
        f"*.{manifest.form} gets these rows too"
    ]


def check_parts(folder: Path, manifest: Manifest, parts: Sequence[int], listed: PhotoList) -> None:
    """Reads parts; raises a `ValueError` that names those that are missing or damaged."""
    faults, rows = [], 0
    for number in parts:
        try:
            photos = [photo_key(listed.entries[row]) for row in manifest.rows(number)]
            rows += len(read_part(folder, manifest, number, photos).photos)
        except PartError as error:
            faults.append(error)
    if faults:
        wanted = sum(len(manifest.rows(number)) for number in parts)
        raise parts_error(folder, faults, len(parts), f"{rows:,} of {plural(wanted, 'row')} are there; ")


def parts_error(folder: Path, faults: Sequence[PartError], parts: int, rows: str = "") -> ValueError:
    """The error that names parts which are missing or damaged, of so many; `rows` is text before their number."""
    more = f"; and {len(faults) - _MOST_NAMED:,} more" if len(faults) > _MOST_NAMED else ""
    named = "; ".join(fault.description for fault in faults[:_MOST_NAMED])
    is_missing, is_one = all(fault.is_missing for fault in faults), len(faults) == 1
    what = f"{'is' if is_one else 'are'} missing{'' if is_missing else ' or damaged'}"
    after = "The" if is_missing else f"Move {'it' if is_one else 'the damaged ones'} away; the"
    return ValueError(
        "every part must be as the job wrote it.\n"
        f"Received: {printable(folder)}: {rows}{len(faults):,} of {plural(parts, 'part')} {what}: {named}{more}. "
        f"{after} same command computes {'it' if is_one else 'them'}."
    )


def describe_broken(folder: Path, broken: Sequence[BadImage]) -> str:
    """How many photos could not be read, of what kinds, and where the reasons are."""
    if not broken:
        return "no photo is broken"
    kinds = printable(count_reasons(broken))
    return f"{len(broken):,} of them of broken photos ({kinds}), with reasons in {printable(folder / BROKEN)}"


def check_some_read(folder: Path, manifest: Manifest, broken: Sequence[BadImage]) -> None:
    """Raises a `ValueError` if all photos are broken."""
    if len(broken) == manifest.photos:
        raise ValueError(f"no photo could be read; {printable(folder / BROKEN)} says why")


def write_broken(folder: Path, manifest: Manifest) -> list[BadImage]:
    """Writes the list of broken photos of a finished job, if there are any, and gives them."""
    path = folder / BROKEN
    rows = [row for number in range(manifest.parts) for row in _broken(folder, manifest, number)]
    if rows or os.path.lexists(path):
        check_table_place(path, _COLUMNS)
        with atomic_write(path) as part, open(part, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([_COLUMNS, *rows])
    return [BadImage(photo, reason) for _, photo, reason in rows]


def _broken(folder: Path, manifest: Manifest, number: int) -> Iterator[tuple[int, str, str]]:
    photos, status = read_statuses(folder, manifest, number)
    for place in np.flatnonzero(status != OK):
        yield manifest.rows(number)[place], spreadsheet_cell(photos[place]), spreadsheet_cell(status[place])


def cluster_shard(text: str | None, environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """`(i, n)` of a text as `"2/8"`, else of variables: the number of this job from 0 on, and how many there are.

    Raises:
        ValueError: for what are no such numbers.
    """
    known = os.environ if environment is None else environment
    hint = ""
    if text is not None:
        shown, numbers = f"--shard {text}", [*map(_number, text.split("/"))]
    elif "SLURM_ARRAY_TASK_ID" in known:  # of an array as --array=0-7 or --array=1-15:2
        names = [f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "MIN", "STEP", "COUNT")]
        given = {name: known.get(name, "1" if name.endswith("STEP") else "") for name in names}
        shown, hint = ", ".join(f"{name}={value}" for name, value in given.items()), _NO_GAPS
        number, first, step, count = map(_number, given.values())
        numbers = [(number - first) // step, count] if min(number, first) >= 0 and step > 0 else []
    else:
        index, count_name = (next((name for name in names if name in known), None) for names in (_INDEX, _COUNT))
        if index is None:
            return 0, 1
        if count_name is None:
            raise ArgumentError(
                f"the number of a job needs how many there are, {' or '.join(_COUNT)}.\n"
                f"Received: {index}={known[index]} alone. Set NUM_SHARDS, or pass --shard 0/1 for a job of its own.",
                parameters=("shard",),
            )
        shown = f"{index}={known[index]}, {count_name}={known[count_name]}"
        numbers = [_number(known[index]), _number(known[count_name])]
    if len(numbers) != 2 or not 0 <= numbers[0] < numbers[1]:
        raise ArgumentError(
            "the number of a job counts from 0 and is below how many there are, as --shard 0/8 to --shard 7/8.\n"
            f"Received: {shown}.{hint}",
            parameters=("shard",),
        )
    return numbers[0], numbers[1]


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else -1
