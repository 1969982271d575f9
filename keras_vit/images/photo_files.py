"""The walk over a folder of photos: files with the suffix of an image, outside of hidden and system folders.

A file whose name has no suffix is one if its first bytes are those of a photo. So is a link to nothing, which a disk
that is not mounted leaves: whoever reads the photos names it then.

Jupyter, file managers, cloud storage and archives keep edited copies and thumbnails in such folders. A model that is
trained on them sees a photo twice, or one that its owner has thrown away.
"""

import collections
import dataclasses
import itertools
import os
import posixpath
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from keras_vit.checks import did_you_mean
from keras_vit.files import FileKindError, open_regular
from keras_vit.pages.formatting import plural, printable

READ_AT_FIRST = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp")  # also by earlier versions
READABLE = (*READ_AT_FIRST, ".pjpeg", ".pjp", ".mpo", ".apng")
HEIC = (".heic", ".heif", ".hif")  # where their plugin is installed
# Images of other kinds are named and left out, since their owner expects them to count.
# Raw photos and others, known by their suffix alone: raw ones begin as a TIFF or a video does.
_UNSUPPORTED = (
    ".3fr .arw .cr2 .cr3 .crw .dng .erf .kdc .mrw .nef .nrw .orf .pef .raf .rw2 .sr2 .srf .srw .x3f "
    ".dds .exr .ico .ief .j2k .jp2 .jpf .jpx .jxl .jxr .pbm .pcx .pfm .pgm .pnm .ppm .psb .psd .ras .svg .tga "
    ".xbm .xpm .xwd"
)
UNSUPPORTED_SUFFIXES = frozenset(_UNSUPPORTED.split())
SUFFIXES = UNSUPPORTED_SUFFIXES | {*READABLE, *HEIC, ".gif", ".tif", ".tiff", ".avif"}
# Large files of many photos, which are data of their own.
_SHARD_KINDS = {"tar": "tar", "tfrecord": "tfrecord", "tfrecords": "tfrecord", "tfrec": "tfrecord"}
_SHARD_KINDS |= {"parquet": "parquet", "array_record": "array_record", "arrayrecord": "array_record"}
_SHARD = re.compile(rf"\.({'|'.join(_SHARD_KINDS)})(-\d+-of-\d+)?$", re.IGNORECASE)
# One that is being downloaded or was renamed, as `x.tar.part` and `x.tar~`.
_LIKE_A_SHARD = re.compile(rf"\.({'|'.join(_SHARD_KINDS)})(?![a-z0-9])", re.IGNORECASE)
_PACKED = re.compile(r"\.(tar\.(gz|bz2|xz|zst)|tgz|tfrecords?\.gz)$", re.IGNORECASE)
# A photo that was downloaded, copied or edited: `x.jpg?width=300`, `x.jpg_large`, `x.jpg.1` and `x.png~`.
_LIKE_A_PHOTO = re.compile(r"\.(jpe?g|png|webp|bmp|gif|tiff?|heic|heif|avif)[^a-z]", re.IGNORECASE)
_BEGINNINGS = rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|RIFF.{4}WEBP|BM.{4}\0{4}"  # of JPEG, PNG, WebP and BMP
_BEGINNINGS += rb"|GIF8[79]a|II\*\0|MM\0\*|.{4}ftyp(avif|hei[cfmsx]|mif1|msf1)"  # of GIF, TIFF, AVIF and HEIC
LONGEST_BEGINNING = 12
# Files that usually lie among photos and shards: labels, checksums, notes and what systems and programs keep.
_SIDE_FILES = (
    ".asc .bib .cff .cfg .cls .crc .css .csv .db .doc .docx .done .env .h5 .html .htm .idx .index .ini .ipynb .js "
    ".json .jsonl .keras .lnk .lock .log .lst .mat .md .md5 .names .npy .npz .ok .onnx .pbtxt .pdf .pkl .proto .pt "
    ".pth .py .pyc .rst .rtf .safetensors .sh .sha1 .sha256 .sha512 .sig .sqlite .toml .tsv .txt .url .xls .xlsx .xml "
    ".xmp .yaml .yml .jsonld .photos"  # the last are copies in a cache of this library
)
_SIDE_SUFFIXES = frozenset(_SIDE_FILES.split())
_NOTES = {"checksums", "license", "makefile", "manifest", "readme"}  # without a suffix, as others in capitals
# Labels of ImageNet, which torchvision wants next to the folders of its splits, and what it makes of them.
_OF_IMAGENET = re.compile(r"ILSVRC\d+_devkit\w*\.tar\.gz|meta\.bin", re.IGNORECASE)
_BACKUP = re.compile(r"(\.(bak|old|orig|gz|bz2|xz|zst)|~)+$", re.IGNORECASE)  # what a copy adds to the name of a file
# Of Synology and QNAP, of Windows, of Linux and of macOS, in lower case.
_SYSTEM = {"@eadir", "@tmp", "@recycle", "@recently-snapshot", "@__thumb", "#recycle", "#snapshot"}
_SYSTEM |= {"$recycle.bin", "system volume information", "lost+found", "network trash folder", "temporary items"}
JOB_LIST = "photos.jsonl"  # in the folder of `keras-vit embed`, whose .parquet files are vectors
LOOSE, SHARDS = "photos outside of the class folders", "shards"  # of files that are passed over
_NAMED, _NAMED_HIDDEN = 10, 3  # folders or links that a message names
_LOOP = "a link to a folder that it is in"
_STORES = (".git", ".dvc")  # what is in these has names outside, as files or links
_SYSTEM_PATTERN = re.compile(r"[.]|__|found\.\d{3}$")  # hidden; of archives, as `__MACOSX`; of chkdsk


@dataclasses.dataclass
class PassedOver:
    """What a walk could not or need not enter, by paths."""

    # Folders that cannot be listed, and the reasons.
    unreadable: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    # Links to photos and folders, and which other one of the walk each is; "" for one above the link.
    repeated: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    shards: list[str] = dataclasses.field(default_factory=list)  # files that hold many photos, as tars
    others: list[str] = dataclasses.field(default_factory=list)  # whose suffix is no photo's, as x.jpg.1; no side files
    hidden: list[str] = dataclasses.field(default_factory=list)  # photos, and folders that are hidden or a system's

    def check(self) -> None:
        """Raises a `ValueError` that names the folders that cannot be listed, if there are any."""
        if self.unreadable:
            raise ValueError(
                "every folder of photos must be readable, or its photos would be missing.\n"
                f"Received: {_listed(self.unreadable)}. Grant the right to list it, or move it away."
            )

    def notes(self) -> list[str]:
        """Lines about links that were not followed, and about files and hidden photos that were not read."""
        found = [(link, f"which is {printable(first)}" if first else _LOOP) for link, first in self.repeated]
        are = f"{plural(len(found), 'link')} not followed, so that no photo counts twice"
        lines = [f"{are}: {_listed(found)}"] if found else []
        if self.shards:
            first = printable(min(self.shards))
            lines.append(f"{plural(len(self.shards), 'shard')} not read, as photos lie in folders here: {first}")
        if self.others:
            count, first = plural(len(self.others), "file"), printable(min(self.others))
            lines.append(
                f"{count} not read, as the suffix is not that of a photo: {first}. Rename those that are photos"
            )
        if hidden := [path for path in self.hidden if _is_hidden_photo(path) or _photos_by_name(path)]:
            lines.append(hidden_note(hidden))
        return lines


def hidden_note(paths: Collection[str]) -> str:
    """A line about hidden photos, and folders with photos that are hidden or belong to a system."""
    items = plural(len(paths), "hidden or system item")
    return f"{items} with photos not read: {printable(', '.join(sorted(paths)[:_NAMED_HIDDEN]))}"


def hidden_part(path: str) -> str:
    """The path of a photo, as of a tar, up to its first hidden or system folder; all of a hidden photo's; else `""`."""
    *folders, name = posixpath.normpath(path).split("/")
    if not is_photo(_shown(name)):
        return ""
    system = next((number for number, part in enumerate(folders) if part != ".." and is_system(part)), None)
    if system is None:
        return path if name.startswith(".") else ""
    return "/".join(folders[: system + 1])


def _listed(found: list[tuple[str, str]]) -> str:
    found = sorted(set(found))  # a folder may be listed more than once
    more = f"; and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    return "; ".join(f"{printable(path)}, {reason}" for path, reason in found[:_NAMED]) + more


def _shown(path: str) -> str:
    """The name of a hidden file without its points; of `._x.jpg`, which macOS keeps of `x.jpg`, nothing."""
    name = os.path.basename(path)
    return "" if name.startswith("._") else name.lstrip(".")


def _is_hidden_photo(path: str, suffixes: Collection[str] = SUFFIXES) -> bool:
    """Whether a hidden file is a photo by its name; of `._x.jpg`, where macOS keeps notes, by its first bytes."""
    name = os.path.basename(path)
    if not name.startswith("._") or not is_photo(name.lstrip("._"), suffixes):
        return is_photo(_shown(name), suffixes)
    try:
        with open_regular(path) as file:
            return begins_like_a_photo(file.read(LONGEST_BEGINNING))
    except (OSError, FileKindError):
        return False


def _photos_by_name(folder: str) -> bool:
    """Whether files below a folder are photos by their names."""
    is_store = os.path.basename(folder) in _STORES
    return not is_store and any(is_photo(name) for _, _, names in os.walk(folder) for name in names)


def shard_kind(path: str | Path) -> str | None:
    """`"tar"`, `"tfrecord"`, `"parquet"`, or `"array_record"`, which is refused, by the name of a file; else `None`."""
    found = _SHARD.search(os.path.basename(path))
    return _SHARD_KINDS[found[1].lower()] if found else None


def is_packed_shard(path: str | Path) -> bool:
    """Whether it is by its name a compressed shard."""
    return _PACKED.search(os.path.basename(path)) is not None


def is_shard(name: str) -> bool:
    """Whether a file is by its name a shard, also a compressed one, and not hidden."""
    is_named = shard_kind(name) is not None or is_packed_shard(name)
    return is_named and not name.startswith(".") and not _OF_IMAGENET.fullmatch(name)


def is_like_a_shard(name: str) -> bool:
    """Whether a file next to shards that is none by its name may be one: any that is no photo, and no known side file.

    A hidden one has the name of a shard, as rsync calls one that it is bringing. `_metadata` is of Parquet.
    """
    if name.startswith("."):
        return _LIKE_A_SHARD.search(shown := _shown(name)) is not None and not _is_side_file(shown)
    is_note = "." not in name and (name.isupper() or name.startswith("_") or name.lower() in _NOTES)
    return not (is_note or is_shard(name) or is_photo(name) or _has_side_suffix(name))


def is_system(name: str) -> bool:
    """Whether a folder of this name is hidden, or belongs to a system, a storage box or an archive."""
    return name.lower() in _SYSTEM or _SYSTEM_PATTERN.match(name.lower()) is not None


_MOST_NAMES = 10_000  # that are compared, which takes 0.1 s


def near_names(path: Path) -> str:
    """`' Did you mean ...?'` for what lies where a path should be, and is called nearly so; or `''`."""
    if os.path.lexists(path):
        return ""
    names = (entry.name for entry in entries_in(str(path.parent), PassedOver()))
    return did_you_mean(path.name, [*itertools.islice((n for n in names if not n.startswith(".")), _MOST_NAMES)], 0.6)


def folders_in(folder: Path, passed: PassedOver | None = None) -> list[Path]:
    """The folders in a folder, sorted, without hidden ones and those of systems.

    If it cannot be listed, `passed` gets it; without `passed` that is a `ValueError`.
    """
    entries = entries_in(str(folder), found := passed or PassedOver())
    if passed is None:
        found.check()
    return sorted(Path(entry.path) for entry in entries if _is_folder(entry) and not is_system(entry.name))


def dead_links_in(folder: Path) -> list[str]:
    """Paths of the links in a folder that lead to nothing, as to a disk that is not mounted."""
    entries = entries_in(str(folder), PassedOver())
    return sorted(entry.path for entry in entries if not is_system(entry.name) and _is_dead_link(entry))


def pipes_in(folder: Path) -> list[tuple[str, str]]:
    """Paths of pipes and devices in a folder, each with what it is."""
    found = []
    for entry in entries_in(str(folder), PassedOver()):
        plain = entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
        if plain or is_system(entry.name) or not os.path.exists(entry.path) or os.path.isdir(entry.path):
            continue
        try:
            with open_regular(entry.path):
                pass  # a link to a file
        except FileKindError as error:
            found.append((entry.path, error.reason))
        except OSError:  # whoever reads it says why
            pass
    return sorted(found)


def is_photo(name: str, suffixes: Collection[str] = SUFFIXES) -> bool:
    """Whether a file of this name counts as a photo; hidden ones, as `._photo.jpg` of macOS, do not."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in suffixes


_ARCHIVE = re.compile(r"\.(zip|tar|tgz|7z|rar|t?ar\.(gz|bz2|xz|zst))$", re.IGNORECASE)


def may_hold_photos(name: str) -> bool:
    """Whether a file is by its name an archive, or a photo but for its suffix, as `x.jpg.1`."""
    return bool(_ARCHIVE.search(name) or (_LIKE_A_PHOTO.search(name) and not _is_side_file(name)))


def begins_like_a_photo(data: bytes) -> bool:
    """Whether the first bytes of a file, `LONGEST_BEGINNING` or more, are those of a photo."""
    return re.match(_BEGINNINGS, data, re.DOTALL) is not None


def _is_side_file(name: str) -> bool:
    return name.startswith(".") or not os.path.splitext(name)[1] or _has_side_suffix(name)


def _has_side_suffix(name: str) -> bool:
    """Whether a file is a side file by its suffix, also as a backup or compressed, as `labels.csv~`."""
    suffix = os.path.splitext(_BACKUP.sub("", name))[1].lower()
    return suffix in _SIDE_SUFFIXES or _OF_IMAGENET.fullmatch(name) is not None


def _is_photo_file(entry: os.DirEntry, suffixes: Collection[str] = SUFFIXES) -> bool:
    """Whether what is no folder counts as a photo: by its name, or by its first bytes if that has no suffix."""
    if _is_dead_link(entry) and not entry.name.startswith("."):
        return not is_shard(entry.name)
    return _counts(entry.path, suffixes)


def _counts(path: str, suffixes: Collection[str]) -> bool:
    name = os.path.basename(path)
    if name.startswith(".") or is_photo(name, suffixes):
        return not name.startswith(".")
    if os.path.splitext(name)[1]:
        return False
    try:
        with open_regular(path) as file:
            return begins_like_a_photo(file.read(LONGEST_BEGINNING))
    except FileKindError:
        return False
    except OSError:  # whoever reads it says why
        return True


def photos_below(
    folder: Path, suffixes: Collection[str] = SUFFIXES, passed: PassedOver | None = None
) -> Iterator[Path]:
    """The photos in a folder and in the folders below it, in no order. Links are followed, each file and folder once.

    `passed` gets what is not entered; without it that is left out.
    """
    passed = PassedOver() if passed is None else passed
    known: dict[str, str] = {}
    links = []
    for place, files in _walk(str(folder), passed, known):
        is_job = any(entry.name == JOB_LIST for entry in files)
        for entry in files:
            if not is_photo(entry.name, suffixes) and is_shard(entry.name) and not is_job:
                passed.shards.append(entry.path)
            elif _is_photo_file(entry, suffixes):
                if entry.is_symlink():
                    links.append(entry)
                else:
                    yield Path(place, entry.name)
            elif _is_hidden_photo(entry.path, suffixes):
                passed.hidden.append(entry.path)
            elif not is_job and not is_shard(entry.name) and not _is_side_file(entry.name):
                passed.others.append(entry.path)
    for link in sorted(entry.path for entry in links):
        real = os.path.realpath(link)
        place, name = os.path.split(real)
        first = known.get(real, "")
        if not first and place in known and _counts(real, suffixes):
            first = os.path.join(known[place], name)
        if first and os.path.exists(real):  # links to nothing are named by whoever reads them
            passed.repeated.append((link, first))
        else:
            known[real] = link
            yield Path(link)


def _walk(
    top: str, passed: PassedOver, known: dict[str, str] | None = None, others: bool = False
) -> Iterator[tuple[str, list[os.DirEntry]]]:
    """Each folder, and what in it is none. Folders come before links, so that a photo has its own path, not a link's.

    Folders are known by their real paths, since numbers of files differ or repeat on some file systems.

    Args:
        top, passed: as for `photos_below`.
        known: gets the path of each folder by its real path.
        others: whether hidden and system folders are entered, and links are not.
    """
    known = {} if known is None else known
    links = collections.deque([top])
    while links:
        link = links.popleft()
        real, found = os.path.realpath(link), []
        if link != top and is_within(os.path.realpath(os.path.dirname(link)), real):
            passed.repeated.append((link, ""))
            continue
        folders = [(link, real)]
        while folders:
            place, real = folders.pop()
            if real in known:
                passed.repeated.append((place, known[real]))
                continue
            known[real] = place
            files = []
            for entry in entries_in(place, passed):
                if not _is_folder(entry):
                    files.append(entry)
                elif is_system(entry.name) and not others:
                    passed.hidden.append(entry.path)
                elif _is_link(entry):
                    found.append(entry.path)
                else:
                    folders.append((entry.path, os.path.join(real, entry.name)))
            yield place, files
        links.extend([] if others else sorted(found))


def is_within(path: str, folder: str) -> bool:
    """Whether a path is that of a folder, or of something below it; both are absolute."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def entries_in(folder: str, passed: PassedOver) -> list[os.DirEntry]:
    """What is in a folder; one that cannot be listed goes into `passed`."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        passed.unreadable.append((folder, f"a folder that cannot be listed: {error.strerror or error}"))
        return []


def _is_folder(entry: os.DirEntry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # of a link to what cannot be looked at, or that leads to itself
        return False


def _is_dead_link(entry: os.DirEntry) -> bool:
    return entry.is_symlink() and not os.path.exists(entry.path)


def _is_link(entry: os.DirEntry) -> bool:
    return entry.is_symlink() or getattr(entry, "is_junction", bool)()  # the latter on Windows, from Python 3.12 on


def loose_photos(folder: Path) -> list[str]:
    """Paths of the photos in a folder itself, sorted."""
    entries = entries_in(str(folder), PassedOver())
    return sorted(entry.path for entry in entries if not _is_folder(entry) and _is_photo_file(entry))


def has_photos(folder: Path) -> bool:
    """Whether photos lie in a folder itself."""
    return any(not _is_folder(entry) and _is_photo_file(entry) for entry in entries_in(str(folder), PassedOver()))


def others_below(folder: Path, counted: Collection[str]) -> dict[str, tuple[int, str]]:
    """How many files below a folder are not `counted`, by their kind in words, and the path of one of each kind."""
    found: dict[str, tuple[int, str]] = {}
    for place, files in _walk(str(folder), PassedOver(), others=True):
        system = next((part for part in Path(place).relative_to(folder).parts if is_system(part)), None)
        is_job = any(entry.name == JOB_LIST for entry in files)
        for entry in files:
            path = str(Path(place, entry.name))
            if path in counted:
                continue
            kind = "other files"
            if is_shard(entry.name):
                kind = kind if system or is_job else SHARDS
            elif _is_photo_file(entry):
                kind = f"photos in {system}" if system else LOOSE
            count, example = found.get(kind, (0, path))
            found[kind] = (count + 1, min(example, path))
    return found
