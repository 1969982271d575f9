"""Checks of image files before training, which find those that the pipeline could not decode.

Every file is read once, for its header, EXIF orientation, pixels and a digest of its bytes. The decoder is that of the
pipeline. It decodes a JPEG at an eighth of its size, which still reads every byte.
"""

import concurrent.futures
import dataclasses
import hashlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from keras_vit.checks import ArgumentError
from keras_vit.files import MISSING, FileKindError, missing_reason
from keras_vit.images.byte_ranges import ByteRange, PhotoLocation, photo_bytes
from keras_vit.images.decode import PIXELS_VARIABLE, max_pixels
from keras_vit.images.headers import (
    HEADER,
    JPEG_START,
    MAX_SCANS,
    MAX_STEPS,
    PNG_HEADER_END,
    PNG_START,
    exif_orientation,
    jpeg_segments,
    respects_limits,
    without_texts,
)
from keras_vit.images.photo_files import UNSUPPORTED_SUFFIXES
from keras_vit.images.pillow_formats import (
    READABLE_KINDS,
    PillowError,
    container_format,
    decode_by_pillow,
    missing_package,
    pillow_format,
    size_error,
)
from keras_vit.pages.formatting import printable
from keras_vit.silence import silent_descriptor, visible_stderr

# Results by (place, size of the file in bytes, its time of change, limit of pixels): no unchanged file is read twice.
_KNOWN: "dict[tuple, ValidImage | BadImage]" = {}
_FORMATS = {b"GIF8": "GIF", b"II*\0": "TIFF", b"MM\0*": "TIFF", b"%PDF": "PDF"}
_JPEG_END = b"\xff\xd9"
_NEEDS, _OTHER = ", which needs ", f", not {READABLE_KINDS}"  # parts of reasons, by which they are counted
_NAMED = 20  # bad files that an error names
_PATIENCE = 1.0  # seconds before a progress bar is shown


@dataclasses.dataclass(frozen=True)
class BadImage:
    """A file that cannot be used, and the reason.

    Example:
        >>> keras_vit.BadImage("photos/disc/1.jpg", "truncated JPEG").reason
        'truncated JPEG'
        >>> keras_vit.open_source(photos).bad_images
        ()

    Args:
        path: path of the file.
        reason: a few words, as "truncated JPEG".
    """

    path: str
    reason: str


@dataclasses.dataclass(frozen=True)
class ValidImage:
    """A file that the pipeline will decode."""

    path: PhotoLocation
    orientation: int  # of EXIF, 1 to 8
    digest: bytes  # equal for files of equal bytes
    needs_pillow: bool = False  # as a WebP


def check_images(
    paths: Sequence[PhotoLocation],
    on_bad_image: str = "skip",
    others: Sequence[BadImage] = (),
    rows: Sequence[str] = (),
) -> list[ValidImage | BadImage]:
    """A `ValidImage` or `BadImage` for each file, in the order of `paths`.

    Args:
        paths: image files, or slices of shards.
        on_bad_image: `"skip"` warns of bad files once; `"raise"` refuses them.
        others: what is known to be bad, as folders that cannot be listed; these are refused or warned of too.
        rows: where a table names each file, as "line 3 of photos.csv".

    Raises:
        ValueError: for bad files with `on_bad_image="raise"`; the message names the first 20.

    Warns:
        UserWarning: for bad files, with the number and an example of each kind, and what to do.
    """
    pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
    with silent_descriptor(2, sys.stderr) as stderr, pool:  # libjpeg writes a line to it for each damaged file
        found = list(with_progress(pool.map(check_image, paths), len(paths), stderr))
    bad = [*others, *(image for image in found if isinstance(image, BadImage))]
    place_of = {str(path): f" ({row})" for path, row in zip(reversed(paths), reversed(rows), strict=False)}
    if bad and on_bad_image == "raise":
        raise ArgumentError(
            f"every image must be a {READABLE_KINDS} that can be decoded.\n"
            f'Received: {_summary(bad, place_of)}\n{_remedy(bad)} Or pass on_bad_image="skip" to leave them out.'
        )
    if bad:
        kinds = [
            f"  {count:,} {kind}, as {printable(example)}{place_of.get(example, '')}"
            for kind, (count, example) in _by_kind(bad).items()
        ]
        lines = [f"left out {_count_in_words(bad)}:", *kinds, _remedy(bad)]
        warnings.warn("\n".join(lines), stacklevel=2)
    return found


def check_image(place: PhotoLocation) -> ValidImage | BadImage:
    """A `ValidImage` or `BadImage` for one photo, which is read only if it is new or its file has changed."""
    place = place if isinstance(place, ByteRange) else os.fspath(place)
    path = str(place)
    try:
        if not isinstance(place, ByteRange):
            path.encode()  # TensorFlow takes names in UTF-8 only
        key = (place, *_state(place))
        if key not in _KNOWN:
            _KNOWN[key] = _read(place)
        return _KNOWN[key]
    except UnicodeEncodeError:
        return BadImage(ascii(path), "a file name that is not UTF-8")
    except (OSError, FileKindError) as error:
        return BadImage(path, reading_error(path, error))


def reading_error(path: str, error: Exception) -> str:
    """The reason why the bytes of a photo cannot be read, in a few words."""
    if isinstance(error, FileNotFoundError):
        return missing_reason(path)
    if isinstance(error, FileKindError):
        return error.reason
    return f"cannot be read: {getattr(error, 'strerror', None) or error}"


def mark_validated(images: Iterable[ValidImage]) -> None:
    """`check_image` returns these until their files change: an earlier process has read them."""
    states: dict[str, tuple[int, int, int]] = {}
    for image in images:
        file = image.path.file if isinstance(image.path, ByteRange) else image.path
        state = states.get(file) or states.setdefault(file, _state(image.path))
        _KNOWN.setdefault((image.path, *state), image)


def forget_checks() -> None:
    """Every photo is read again when it is checked next."""
    _KNOWN.clear()


def _state(place: PhotoLocation) -> tuple[int, int, int]:
    """Size in bytes and time of change of the file, and the limit of pixels."""
    status = os.stat(place.file if isinstance(place, ByteRange) else place)
    return status.st_size, status.st_mtime_ns, max_pixels()


def decode_error(data: bytes, decode: Callable[[bytes], Any]) -> str | None:
    """The reason why the bytes of a file cannot be decoded, in a few words; `None` for a good file.

    `decode` is called with them if the header is good; an `InvalidArgumentError` means damage.
    """
    import tensorflow as tf

    try:
        if not pillow_format(data) and (reason := header_error(data) or limits_error(data, _pixel_count(data))):
            return reason
        decode(data)
    except PillowError as fault:
        return str(fault)
    except tf.errors.InvalidArgumentError:
        return damage_error(data)
    return None


def header_error(data: bytes) -> str | None:
    """The reason why bytes are not those of a JPEG or PNG with a header and an end; `None` if they may be."""
    if not data:
        return "empty file"
    if not data.startswith((JPEG_START, PNG_START)):
        return _other_format(data)
    return None if _is_complete(data) else damage_error(data)  # libjpeg would print about a truncated one


def limits_error(data: bytes, pixels: int) -> str | None:
    """The reason for a JPEG or PNG of too many pixels, scans, segments or chunks; else `None`."""
    if (reason := size_error(pixels)) or respects_limits(data):
        return reason
    is_jpeg = data.startswith(JPEG_START)
    return f"more than {f'{MAX_SCANS} scans or {MAX_STEPS:,} segments' if is_jpeg else f'{MAX_STEPS:,} chunks'}"


def _is_complete(data: bytes) -> bool:
    """Whether a PNG starts with its header chunk, or a JPEG has an end marker after its last header."""
    if data.startswith(PNG_START):
        return data.startswith(HEADER, len(PNG_START)) and len(data) >= PNG_HEADER_END
    start = max((stop for _, _, stop in jpeg_segments(data)), default=0)
    return data.find(_JPEG_END, start) >= 0


def damage_error(data: bytes) -> str:
    """The reason for a JPEG or PNG that cannot be decoded."""
    kind, ending = ("JPEG", _JPEG_END) if data.startswith(JPEG_START) else ("PNG", b"IEND")
    return f"{'damaged' if ending in data[-64:] else 'truncated'} {kind}"


def _read(place: PhotoLocation) -> ValidImage | BadImage:
    path, data = str(place), photo_bytes(place)
    reason = package_error(data) or decode_error(data, _try_decode)
    if reason is not None:
        return BadImage(path, reason_by_suffix(path, reason))
    digest = hashlib.blake2b(data, digest_size=16).digest()
    return ValidImage(place, exif_orientation(data), digest, pillow_format(data) is not None)


def package_error(data: bytes) -> str | None:
    """The reason why a photo cannot be decoded here, if that is a package; else `None`."""
    kind = pillow_format(data)
    return kind + _NEEDS + package if kind and (package := missing_package(kind)) else None


def reason_by_suffix(path: str, reason: str) -> str:
    """The reason why a file cannot be decoded, with its kind where only the suffix shows it."""
    suffix = os.path.splitext(path)[1].lower()
    is_named = suffix in UNSUPPORTED_SUFFIXES and (_OTHER in reason or reason.startswith("not an image"))
    return suffix[1:].upper() + _OTHER if is_named else reason


def _try_decode(data: bytes) -> None:
    import tensorflow as tf

    if kind := pillow_format(data):
        decode_by_pillow(data, kind)
    elif data.startswith(JPEG_START):
        tf.io.decode_jpeg(data, 3, ratio=8, dct_method="INTEGER_ACCURATE")
    else:
        tf.io.decode_png(without_texts(data), 3)


def _pixel_count(data: bytes) -> int:
    import tensorflow as tf

    if data.startswith(JPEG_START):
        height, width = tf.io.extract_jpeg_shape(data).numpy()[:2].tolist()
    else:
        height, width = (int.from_bytes(data[i : i + 4], "big") for i in (20, 16))
    return height * width


def _other_format(data: bytes) -> str:
    kind = container_format(data) or next((name for start, name in _FORMATS.items() if data.startswith(start)), None)
    if kind:
        return kind + _OTHER
    is_text = all(byte >= 32 or byte in b"\t\r\n" for byte in data[:512])
    return "not an image: text" if is_text else "not an image"


def count_reasons(bad: Sequence[BadImage]) -> str:
    """How many bad files there are of each kind, as `"30 GIF, 2 truncated JPEG"`."""
    return ", ".join(f"{count:,} {kind}" for kind, (count, _) in _by_kind(bad).items())


def _by_kind(bad: Sequence[BadImage]) -> dict[str, tuple[int, str]]:
    """For each kind of reason, by number and then by its text, how many files have it, and one of them."""
    found: dict[str, list[str]] = {}
    for image in bad:
        kind = "too large" if "more than" in image.reason else image.reason.partition(_OTHER)[0]
        found.setdefault(kind, []).append(image.path)
    most_first = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return {kind: (len(paths), paths[0]) for kind, paths in most_first}


def _remedy(bad: Sequence[BadImage]) -> str:
    """One line of what to do about bad files."""
    reasons = {image.reason for image in bad}
    needed = {reason.rpartition(_NEEDS)[2] for reason in reasons if _NEEDS in reason}
    converted = {reason for reason in reasons if _OTHER in reason}
    steps = [f"Install {' and '.join(sorted(needed))} to read the photos that need it."] if needed else []
    steps += ["Save those of other formats as JPEG or PNG."] if converted else []
    large = {reason for reason in reasons if PIXELS_VARIABLE in reason}
    steps += [f"Set {PIXELS_VARIABLE} to a higher number, or save large photos smaller."] if large else []
    locked = {reason for reason in reasons if "cannot be " in reason}
    steps += ["Grant the right to read those that cannot be read or listed."] if locked else []
    missing = {reason for reason in reasons if reason.startswith(MISSING)}
    steps += ["Correct the paths of those that are missing; in a table they begin at its folder."] if missing else []
    if any(_NEEDS not in reason for reason in reasons - converted - locked - large - missing):
        steps.append("Copy damaged files again, and remove what is no photo.")
    return " ".join(steps)


def _count_in_words(bad: Sequence[BadImage]) -> str:
    kind = "path" if any(image.reason.startswith("a folder") for image in bad) else "bad image"
    return f"{len(bad):,} {kind}{'s' * (len(bad) > 1)}"


def _summary(bad: Sequence[BadImage], place_of: Mapping[str, str]) -> str:
    lines = [f"  {printable(image.path)}{place_of.get(image.path, '')}: {image.reason}" for image in bad[:_NAMED]]
    more = [f"  and {len(bad) - _NAMED} more"] if len(bad) > _NAMED else []
    return "\n".join([f"{_count_in_words(bad)}:", *lines, *more])


def with_progress(
    results: Iterable[Any], total: int, stderr: int | None = None, label: str = "Checking images"
) -> Iterator[Any]:
    """Yields the same results; after a second, a terminal shows a progress bar with the time left.

    `stderr` is a copy of the descriptor of the standard error, if descriptor 2 itself is silent.
    """
    if not (sys.stderr and sys.stderr.isatty()):
        yield from results
        return
    from rich.console import Console
    from rich.progress import Progress

    began, task = time.monotonic(), None
    with visible_stderr(stderr) as stream, Progress(console=Console(file=stream), transient=True) as progress:
        for done, result in enumerate(results, 1):
            if task is None and time.monotonic() - began > _PATIENCE:
                task = progress.add_task(label, total=total)
            if task is not None:
                progress.update(task, completed=done)
            yield result
