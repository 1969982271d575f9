"""Which files are shards, and to which split one belongs by its name or that of its folder."""

import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from keras_vit.data.shards.rows import ShardError
from keras_vit.data.splits import SPLIT_ALIASES
from keras_vit.files import expand_path
from keras_vit.images.photo_files import PassedOver, entries_in, folders_in, photos_below
from keras_vit.pages.formatting import printable

KINDS = {"tar": "tar", "tfrecord": "tfrecord", "tfrecords": "tfrecord", "tfrec": "tfrecord", "parquet": "parquet"}
KINDS |= {"array_record": "array_record", "arrayrecord": "array_record"}
_SUFFIX = re.compile(rf"\.({'|'.join(KINDS)})(-\d+-of-\d+)?$", re.IGNORECASE)
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}", re.ASCII)
_PACKED = re.compile(r"\.(tar\.(gz|bz2|xz|zst)|tgz|tfrecords?\.gz)$", re.IGNORECASE)


def shard_kind(path: str | Path) -> str | None:
    """`"tar"`, `"tfrecord"`, `"parquet"` or `"array_record"` by the name of a file; `None` for another."""
    found = _SUFFIX.search(os.path.basename(path))
    return KINDS[found[1].lower()] if found else None


def find_shards(what: str | os.PathLike) -> list[Path]:
    """The shards that a folder, a file or a pattern names, sorted; none for other data.

    A pattern is `shards/train-*.tar`, or WebDataset's `shards/train-{000..009}.tar`, all of which must be there.

    A folder is one of shards if they lie in it, in folders of splits in it, or all in its folder `data`, as in a
    download of a data set from the Hub, and no photos lie in folders of it. A
    Parquet file with the name of a tar has metadata, as img2dataset writes them, and does not count.

    Raises:
        ShardError: for a pattern that no shard fits, for a missing one of numbers in braces, for compressed tars, and
            for shards of several kinds.
    """
    path = expand_path(what)
    if os.path.isdir(path):
        found = _shards_in_folder(path)
    elif os.path.exists(path):
        found = [path] if shard_kind(path) or _PACKED.search(path.name) else []
    elif shard_kind(path) and _BRACES.search(str(path)):
        found = sorted(_expand_braces(str(path)))
    elif glob.has_magic(str(path)):
        is_named = bool(shard_kind(path) or _PACKED.search(path.name))
        found = sorted(map(Path, glob.glob(str(path), recursive=True)))
        found = found if is_named or all(map(shard_kind, found)) else []
        if is_named and not found:
            raise ShardError("a pattern must fit at least one shard", path, "which fits none")
    else:
        found = []
    packed = next((file for file in found if _PACKED.search(file.name)), None)
    if packed is not None:
        raise ShardError(
            "shards must not be compressed, as photos are read by their places in them",
            packed,
            "which is",
            "Unpack it.",
        )
    kinds = {shard_kind(file): file.name for file in found}
    if len(kinds) > 1:
        names = " and ".join(list(kinds.values())[:2])
        raise ShardError("the shards of a data set must be of one kind", path, f"with {names}", "Pass one, as *.tar.")
    return found


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
    """All with the name of a shard, also folders, pipes and links to nothing, which `read_index` names."""
    folders, passed = folders_in(path, PassedOver()), PassedOver()
    splits = [folder for folder in folders if folder.name.lower() in SPLIT_ALIASES]
    entries = [entry for folder in (path, *splits) for entry in entries_in(str(folder), passed)]
    names = [Path(entry.path) for entry in entries if not entry.name.startswith(".")]
    found = sorted(file for file in names if shard_kind(file) or _PACKED.search(file.name))
    if (found or path / "data" in folders) and any(any(photos_below(folder)) for folder in folders):
        return []
    if not found and path / "data" in folders:  # as a download of a data set from the Hub has them
        return _shards_in_folder(path / "data")
    if found:
        passed.check()
    photos = {file.with_suffix("") for file in found if shard_kind(file) != "parquet"}
    return [
        file for file in found if shard_kind(file) != "parquet" or file.with_suffix("") not in photos
    ]  # img2dataset's


def common_folder(files: Sequence[Path]) -> Path:
    """The folder in which all of these lie, or that above their folders."""
    return Path(os.path.commonpath([os.path.dirname(os.path.abspath(file)) for file in files]))


def shard_splits(files: Sequence[Path], top: Path | None) -> list[str] | None:
    """The split of each shard by the names of splits in its name, or by its folder; `None` if no shard has one.

    Args:
        files: the shards.
        top: the folder that was named as the data, whose own name does not count; `None` for files or a pattern.

    Raises:
        ShardError: if some have one and others not.
    """
    found = [_split_of(file, top) for file in files]
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


def _split_of(file: Path, top: Path | None) -> str | None:
    words = re.split(r"[-._ ]", _SUFFIX.sub("", file.name).lower())
    named = [SPLIT_ALIASES[word] for word in words if word in SPLIT_ALIASES]
    folder = file.absolute().parent
    if not named and (top is None or folder != top.absolute()):
        named = [SPLIT_ALIASES[word] for word in (folder.name.lower(),) if word in SPLIT_ALIASES]
    return named[0] if named else None
