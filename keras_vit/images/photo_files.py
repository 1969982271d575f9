"""Which files below a folder are photos: those with the suffix of an image, outside of hidden and system folders.

A file whose name has no suffix is one if its first bytes are those of a photo.

Jupyter, file managers, cloud storage and archives keep edited copies and thumbnails in such folders. A model that is
trained on them sees a photo twice, or one that its owner has thrown away.
"""

import collections
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from keras_vit.files import read_head

READABLE = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp")
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
_BEGINNINGS = rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|RIFF.{4}WEBP"  # of JPEG, PNG and WebP
# Of Synology and QNAP, of Windows, of Linux and of macOS, in lower case.
_SYSTEM = {"@eadir", "@tmp", "@recycle", "@recently-snapshot", "@__thumb", "#recycle", "#snapshot"}
_SYSTEM |= {"$recycle.bin", "system volume information", "lost+found", "network trash folder", "temporary items"}
_SYSTEM_PATTERN = re.compile(r"[.]|__|found\.\d{3}$")  # hidden; of archives, as `__MACOSX`; of chkdsk


def is_system(name: str) -> bool:
    """Whether a folder of this name is hidden, or belongs to a system, a storage box or an archive."""
    return name.lower() in _SYSTEM or _SYSTEM_PATTERN.match(name.lower()) is not None


def folders_in(folder: Path) -> list[Path]:
    """The folders in a folder, sorted, without hidden ones and those of systems."""
    return sorted(item for item in folder.iterdir() if item.is_dir() and not is_system(item.name))


def is_photo(name: str, suffixes: Collection[str] = SUFFIXES) -> bool:
    """Whether a file of this name counts as a photo; hidden ones, as `._photo.jpg` of macOS, do not."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in suffixes


def _is_photo_file(path: Path, suffixes: Collection[str] = SUFFIXES) -> bool:
    """Whether a file counts as a photo: by its name, or, if that has no suffix, by its first bytes."""
    if path.suffix or path.name.startswith("."):
        return is_photo(path.name, suffixes)
    return re.match(_BEGINNINGS, read_head(path) or b"", re.DOTALL) is not None


def photos_below(folder: Path, suffixes: Collection[str] = SUFFIXES) -> Iterator[Path]:
    """The photos in a folder and in the folders below it, in no order; links to folders are not followed."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not is_system(name)]
        yield from (path for path in (Path(place, name) for name in names) if _is_photo_file(path, suffixes))


def has_photos(folder: Path) -> bool:
    """Whether photos lie in a folder itself."""
    with os.scandir(folder) as entries:
        return any(not entry.is_dir() and _is_photo_file(Path(entry.path)) for entry in entries)


def others_below(folder: Path, counted: Collection[str]) -> collections.Counter[str]:
    """How many files below a folder do not count, by their kind in words.

    Args:
        folder: path of the folder.
        counted: paths of the files that do.
    """
    found: collections.Counter[str] = collections.Counter()
    for place, _, names in os.walk(folder):
        system = next((part for part in Path(place).relative_to(folder).parts if is_system(part)), None)
        for name in names:
            if str(Path(place, name)) in counted:
                continue
            if _is_photo_file(Path(place, name)):
                found[f"photos in {system}" if system else "photos outside of the class folders"] += 1
            else:
                found["other files"] += 1
    return found
