"""Which files are shards, and to which split one belongs by its name or that of its folder."""

import glob
import os
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from keras_vit.data.shards.rows import ShardError
from keras_vit.data.splits import SPLIT_ALIASES
from keras_vit.files import expand_path
from keras_vit.images.photo_files import (
    PassedOver,
    entries_in,
    folders_in,
    is_like_a_shard,
    is_packed_shard,
    is_photo,
    is_shard,
    is_within,
    loose_photos,
    photos_below,
    shard_kind,
)
from keras_vit.pages.formatting import plural, printable

_PART = re.compile(r"(.*[-_])(\d+)([-_]of[-_])(\d+)(.*)", re.ASCII)
_PADDED = re.compile(r"(.*?)(\d{3,18})(\.[^/]*)", re.ASCII)  # as train-00000.tar
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}", re.ASCII)


def find_shards(what: str | os.PathLike, by_split: bool = True) -> list[Path]:
    """The shards that a folder, a file or a pattern names, sorted; none for other data.

    A pattern is `shards/train-*.tar`, or WebDataset's `shards/train-{000..009}.tar`, all of which must be there.

    A folder is one of shards if they lie in it, in folders of splits in it, or all in its folder `data`, as in a
    download of a data set from the Hub, and no photos lie in folders of it. A Parquet file with the name of a tar has
    metadata, as img2dataset writes them, and does not count. A file with several names counts once.

    Args:
        what: a path or a pattern.
        by_split: whether a file counts once in each split where it has a name, and not once in all.

    Raises:
        ShardError: for a pattern that no shard fits, for a missing one of numbers in braces, for compressed tars and
            ArrayRecord files, for shards of several kinds, and for a folder of shards with more of them in other
            folders.

    Warns:
        UserWarning: for photos next to shards, for other files next to them that may hold photos, as `x.tar.part` and
            `x.zip`, and for a file with several names.
    """
    path = expand_path(what)
    if os.path.isdir(path):
        found = _shards_in_folder(path)
    elif os.path.exists(path):
        found = [path] if is_shard(path.name) else []
    elif shard_kind(path) and _BRACES.search(str(path)):
        found = sorted(_expand_braces(str(path)))
    elif glob.has_magic(str(path)):
        is_named = shard_kind(path) is not None or is_packed_shard(path)
        found = sorted(map(Path, glob.glob(str(path), recursive=True)))
        found = found if is_named or all(map(shard_kind, found)) else []
        if is_named and not found:
            raise ShardError("a pattern must fit at least one shard", path, "which fits none")
    else:
        found = []
    if (packed := next(filter(is_packed_shard, found), None)) is not None:
        raise ShardError(
            "shards must not be compressed, as photos are read by their places in them",
            packed,
            "which is",
            "Unpack it.",
        )
    kinds = {shard_kind(file): file.name for file in found}
    if "array_record" in kinds:
        raise ShardError(
            "shards must be .tar, .tfrecord or .parquet files; version 0.6.0 is the last that reads ArrayRecord",
            path,
            f"with {kinds['array_record']}",
            "In an environment with that version, from a checkout of its commit 248787cb, "
            "`keras-vit pack OLD_FOLDER NEW_FOLDER` writes them as tars.",
        )
    if len(kinds) > 1:
        names = " and ".join(list(kinds.values())[:2])
        raise ShardError("the shards of a data set must be of one kind", path, f"with {names}", "Pass one, as *.tar.")
    top = path if os.path.isdir(path) else None
    return _each_once(found, shard_splits(found, top) if found and by_split else None)


def _each_once(files: list[Path], splits: list[str] | None) -> list[Path]:
    """The same without files of a split that are others of it by another name; they are named."""
    known: dict[tuple, Path] = {}
    again = []
    of_files = zip(files, splits or [""] * len(files), strict=True)
    for file, split in sorted(of_files, key=lambda pair: os.path.islink(pair[0])):  # links last
        first = known.setdefault((split, _identity(file)), file)
        again += [] if first is file else [(file, first)]
    if again:
        file, first = again[0]
        words = f"{plural(len(again), 'shard')} not read again, as no photo counts twice: {printable(file)}, which is"
        warnings.warn(f"{words} {printable(first)}.", stacklevel=3)
    return sorted(known.values())


def _identity(file: Path) -> object:
    """What is equal for all names of a file: its real path, or of hard links what the disk says of it."""
    real = os.path.realpath(file)
    try:
        status = os.stat(real)
    except OSError:  # `read_index` says why
        return real
    numbers = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    return numbers if status.st_nlink > 1 else real


def _expand_braces(text: str) -> Iterator[Path]:
    """The files of a pattern with numbers in braces; raises at the first that is missing."""
    found = _BRACES.search(text)
    if found is not None:
        for number in range(int(found[1]), int(found[2]) + 1):
            yield from _expand_braces(f"{text[: found.start()]}{number:0{len(found[1])}}{text[found.end() :]}")
    elif os.path.isfile(text):
        yield Path(text)
    else:
        raise ShardError("every shard that numbers in braces name must be there", Path(text), "which is missing")


def _shards_in_folder(path: Path) -> list[Path]:
    """All with the name of a shard, also folders, pipes and links to nothing, which `read_index` names.

    Raises:
        ShardError: for shards in folders that are no splits, which may be those of another data set.
    """
    folders, passed = folders_in(path, PassedOver()), PassedOver()
    for folder in folders:
        if any(photos_below(folder, passed=passed)):
            return []
    splits = [folder for folder in folders if folder.name.lower() in SPLIT_ALIASES]
    entries = [entry for folder in (path, *splits) for entry in entries_in(str(folder), passed)]
    below = [Path(file) for file in passed.shards]
    found = {Path(entry.path) for entry in entries if is_shard(entry.name)}
    found |= {file for file in below if any(is_within(str(file), str(folder)) for folder in splits)}
    is_download = not found and path / "data" in folders  # of a data set from the Hub
    shards = _shards_in_folder(path / "data") if is_download else _without_metadata(found)
    if not shards:
        return []
    passed.check()
    known = set(map(os.path.realpath, shards))
    others = [file for file in _without_metadata({*shards, *below}) if os.path.realpath(file) not in known]
    named = f"{plural(len(others), 'shard')} in other folders, as {others[0]}" if others else ""
    pattern = f"a pattern for all of them, as '{path}/**/*{shards[0].suffix}'"
    if others and is_download:
        warnings.warn(f"left out {printable(named)}. Pass their folder, or {pattern}.", stacklevel=3)
    elif others:
        rule = "all shards of a folder must lie in it or in its folders of splits"
        found_words = f"with {shards[0].name}, and {named}"
        raise ShardError(rule, path, found_words, f"Pass {pattern}, or move the others away.")
    if not is_download and (missing := _missing_parts(shards)):
        words = f"{plural(len(missing), 'shard')} missing, as the names of the others say"
        names = printable(", ".join(missing[:5]))
        warnings.warn(f"{words}: {names}. Bring them, or go on without their photos.", stacklevel=3)
    loose = [file for file in loose_photos(path) if is_photo(os.path.basename(file)) or os.path.exists(file)]
    unread = {entry.path for entry in entries if not os.path.isdir(entry.path)} | {*passed.others}
    unread = {file for file in unread - {*loose} if is_like_a_shard(os.path.basename(file))}
    unread = {file for file in unread if os.path.realpath(file) not in known}
    if is_download:  # whose folder `data` has had its own lines
        unread = {file for file in unread if not is_within(file, str(path / "data"))}
    if unread:
        words = f"{plural(len(unread), 'file')} not read, as the name is not that of a shard: {printable(min(unread))}."
        warnings.warn(f"{words} Finish a download, rename a shard, or move it away.", stacklevel=3)
    if loose:
        words = f"{plural(len(loose), 'photo')} next to shards left out: {printable(loose[0])}."
        warnings.warn(f"{words} Move them away, or pass a pattern for the shards.", stacklevel=3)
    return shards


def _missing_parts(files: Collection[Path]) -> list[str]:
    """Names of the shards that should lie next to these, as `train-00001-of-00003.tar`, or in a gap of numbers."""
    groups: dict[tuple[str, ...], dict[int, int]] = {}  # width of each number
    gaps: dict[tuple[str, str, int], set[int]] = {}
    taken: dict[tuple[str, str, int], set[int]] = {}  # numbers in a folder, which may run on over splits
    for file in map(str, files):
        if found := _PART.fullmatch(file):
            groups.setdefault(found.group(1, 3, 4, 5), {})[int(found[2])] = len(found[2])
        elif found := _PADDED.fullmatch(os.path.basename(file)):
            folder, kind = os.path.dirname(file), (found[3], len(found[2]))
            gaps.setdefault((os.path.join(folder, found[1]), *kind), set()).add(int(found[2]))
            taken.setdefault((folder, *kind), set()).add(int(found[2]))
    wanted = []
    for (start, of, count, end), widths in groups.items():
        first = int(int(count) in widths)  # some count from 1
        numbers = set(range(first, min(int(count), 10**5) + first)) - widths.keys()
        wanted += [f"{start}{number:0{min(widths.values())}}{of}{count}{end}" for number in numbers]
    for (start, end, width), known in gaps.items():
        numbers = set(range(min(known), min(max(known), 10**5))) - taken[os.path.dirname(start), end, width]
        if min(known) < 10 ** (width - 1) and len(numbers) < len(known):  # padded with zeros, and most are there
            wanted += [f"{start}{number:0{width}}{end}" for number in numbers]
    return sorted(name for name in wanted if not os.path.lexists(name))


def _without_metadata(files: Collection[Path]) -> list[Path]:
    """The same, sorted, without Parquet files that img2dataset writes next to tars of the same name."""
    photos = {file.with_suffix("") for file in files if shard_kind(file) != "parquet"}
    return sorted(file for file in files if shard_kind(file) != "parquet" or file.with_suffix("") not in photos)


def common_folder(files: Sequence[Path]) -> Path:
    """The folder in which all of these lie, or that above their folders."""
    return Path(os.path.commonpath([os.path.dirname(os.path.abspath(file)) for file in files]))


def shard_splits(files: Sequence[Path], top: Path | None) -> list[str] | None:
    """The split of each shard by the names of splits in its name, or by its folder; `None` if no shard has one.

    The name of `top` does not count, the folder that was named as the data. Raises if some have one and others not.
    """
    base = (top or common_folder(files)).absolute()
    found = [_split_of(file, base, top is None) for file in files]
    if not any(found):
        return None
    without = next((file for file, split in zip(files, found, strict=True) if split is None), None)
    if without is not None:
        raise ShardError(
            "either each shard or none must have a split in its name, as train-00000.tar",
            without,
            f"next to {printable(next(file.name for file, split in zip(files, found, strict=True) if split))}",
        )
    return [str(split) for split in found]


def _split_of(file: Path, base: Path, may_be_base: bool) -> str | None:
    """The split in a shard's name, or in that of the nearest folder below `base` that has one, or of `base` itself."""
    words = re.split(r"[-._ ]", file.name.lower())
    if len(splits := {SPLIT_ALIASES[word] for word in words if word in SPLIT_ALIASES}) > 1:
        found = f"with {' and '.join(sorted(splits))}"
        raise ShardError("the name of a shard must have one split, as train-00000.tar", file, found)
    above = [folder for folder in file.absolute().parents if is_within(str(folder), str(base))]
    words += [folder.name.lower() for folder in above if may_be_base or folder != base]
    return next((SPLIT_ALIASES[word] for word in words if word in SPLIT_ALIASES), None)
