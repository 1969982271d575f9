"""Tars as WebDataset writes them: members of one key are one example, as `000012.jpg` and `000012.cls`.

The headers are walked without reading photos. A member's key is its path up to the first dot of its name, so that
`x.seg.png` is a further field of the example of `x.jpg`. Formats are those of POSIX.1-2001 (pax), ustar and GNU tar.
`tarfile` reads single headers. Its walk ends at a damaged one without a word, keeps all members, and before Python
3.11.10 takes half an hour for a pax header of a million digits.
"""

import os
import posixpath
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, TypeAlias

from keras_vit.data.shards.rows import LABELS, Row, Rows, ShardError, is_number, label_text, read_at
from keras_vit.files import open_regular, parse_json
from keras_vit.images.photo_files import (
    LONGEST_BEGINNING,
    SUFFIXES,
    begins_like_a_photo,
    hidden_part,
    is_photo,
    is_system,
    may_hold_photos,
)

_BLOCK = 512  # bytes, of which a tar consists
_EMPTY = bytes(_BLOCK)
_MOST_ZEROS = 22 * _BLOCK  # two empty blocks, and those that fill a record of twenty
_MOST_BYTES = 1 << 20  # of a label, or of a long name
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz and zstd
_FILES = (b"0", b"\0", b"7")
_LINKS = (b"1", b"2", b"3", b"4", b"6")  # hard and symbolic ones; and devices and pipes, which lead to no member either
_SKIPPED = b"5gVM"  # folders; headers for all members; parts of other volumes
_AT_ONCE = 1 << 20  # bytes after the end of a tar, which must be empty
_LABELS = (".cls", ".json")  # of two, the first counts
_EQUAL = "the labels of a photo in a tar must be equal"
Label: TypeAlias = tuple[str | None, str | None]  # and the name of its class next to it


def read_rows(path: str) -> Rows:
    """The photos of a tar.

    Raises:
        ShardError: for a tar that is cut short or damaged, two members with one name, two photos with one key, a label
            without a photo, a photo with two dots in its name, and a photo or label that is a symbolic link.
    """
    photos: dict[str, tuple[str, int, int]] = {}
    labels: dict[str, dict[str, Label]] = {}
    dotted: dict[str, str] = {}
    hidden: dict[str, None] = {}
    with_dots, unread = set(), []
    with open_regular(path) as file:
        for name, (offset, size) in _find_members(path, file):
            key, kind = member_key(name)
            if part := hidden_part(name):
                hidden[part] = None
            elif kind in _LABELS:
                labels.setdefault(key, {})[kind] = _label(path, name, _read_member(path, file, name, offset, size))
            elif kind in SUFFIXES and is_photo(os.path.basename(name)):
                if key in photos:
                    raise ShardError(
                        "photos of a tar must differ in more than their suffix, since members of one key are one "
                        "example",
                        path,
                        f"members {photos[key][0]!r} and {name!r}",
                    )
                photos[key] = (name, offset, size)
            elif os.path.splitext(kind)[1] in SUFFIXES:
                dotted[name] = key
            elif kind.endswith(".cls"):
                with_dots.add(os.path.splitext(name)[0])
            elif _is_left_out(name, read_at(file, offset, min(size, LONGEST_BEGINNING))):
                unread.append(name)
    _check_dots(path, [name for name in dotted if dotted[name] not in photos or os.path.splitext(name)[0] in with_dots])
    alone = next((key for key, found in labels.items() if ".cls" in found and key not in photos), None)
    if alone is not None:
        raise ShardError("every label of a tar must have its photo", path, f"member {alone + '.cls'!r} alone")
    rows = Rows([], further=[*dotted], hidden=[*hidden], unread=unread)
    for key, (name, offset, size) in photos.items():
        label, beside = _merge_labels(path, key, labels.get(key, {}))
        rows.rows.append(Row(name, label, offset, size))
        rows.note_name(label, beside)
    return rows


def _is_left_out(name: str, beginning: bytes) -> bool:
    """Whether a member that is no photo by its name may be one, or hold some."""
    folder, _, last = posixpath.normpath(name).rpartition("/")
    if last.startswith(".") or _is_in_system(folder):
        return False
    return may_hold_photos(last) or begins_like_a_photo(beginning)


def _is_in_system(folder: str) -> bool:
    return any(is_system(part) for part in folder.split("/") if part not in ("", ".."))


def _merge_labels(path: str, key: str, found: dict[str, Label]) -> Label:
    """The label of an example, of which two must be equal, and the name next to a number: that of its class."""
    (label, _), (other, name) = (found.get(kind, (None, None)) for kind in _LABELS)
    if label and other and label != other and is_number(label) == is_number(other):
        members = f"member {key + '.cls'!r} with {label!r}, and {key + '.json'!r} with {other!r}"
        raise ShardError(_EQUAL, path, members, "Leave one out.")
    return label or other, name or (other if other and not is_number(other) else None)


def _check_dots(path: str, lost: list[str]) -> None:
    """Refuses photos with more than a suffix after the first dot of their names: they would belong to no example."""
    if lost:
        raise ShardError(
            "the name of a photo in a tar must have one dot, as a member's key ends at the first",
            path,
            f"{len(lost):,} photo(s) with more, as member {lost[0]!r}",
            "Replace the other dots in its name and in that of its label.",
        )


def member_key(name: str) -> tuple[str, str]:
    """The key of a member and its suffix in lower case; no suffix for those of hidden and system folders.

    `./00.png`, which `tar cf x.tar -C folder .` writes, and `00.png` have one key.
    """
    folder, slash, last = posixpath.normpath(name).rpartition("/")
    stem, dot, suffix = last.partition(".")
    is_left_out = not stem or _is_in_system(folder)
    return folder + slash + stem, "" if is_left_out else (dot + suffix).lower()


def _label(path: str, name: str, data: bytes) -> Label:
    """The label in a member, and the name of its class next to it."""
    try:
        text = data.decode("utf-8-sig")
        if name.lower().endswith(".cls"):
            return label_text(text), None
        found = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise ShardError(
            "a label of a tar must be text in UTF-8, and that of a .json an object",
            path,
            f"member {name!r}: {str(error).partition(';')[0]}",
        ) from None
    if isinstance(found, dict):
        labels = {field: label for field in LABELS if (label := label_text(found.get(field)))}
        is_named = isinstance(found.get("label"), int) and isinstance(found.get("class"), str)  # as `pack` writes both
        of_class = labels.pop("class", None) if is_named else None
        for kind in (True, False):
            if len({label for label in labels.values() if is_number(label) == kind}) > 1:
                raise ShardError(_EQUAL, path, f"member {name!r} with {labels}", "Leave one out.")
        names = [of_class, *(label for label in labels.values() if not is_number(label))]
        return next(iter(labels.values()), None), next(filter(None, names), None)
    return None if isinstance(found, list) else label_text(found), None  # a list may be of captions or of boxes


def _find_members(path: str, file: BinaryIO) -> Iterator[tuple[str, tuple[int, int]]]:
    """`(name, (offset, size))` of every file in a tar; that of a hard link is that of the member it names."""
    places: dict[str, tuple[int, int]] = {}
    for name, offset, size, link in _members(path, file):
        if link == name and name in places:  # a file that was named twice to GNU tar
            continue
        if name in places:
            raise ShardError("the members of a tar must have one name each", path, f"two members {name!r}")
        place = places.get(link) if link else (offset, size)
        if place is not None:
            places[name] = place
            yield name, place
        elif _is_photo_or_label(name):
            raise ShardError(
                "a photo or label in a tar must be a file, or a hard link to a member before it",
                path,
                f"member {name!r}, which is another link, a device or a pipe",
                "Pack it again by `tar --dereference --hard-dereference`.",
            )


def _is_photo_or_label(name: str) -> bool:
    """Whether it is by its suffix a photo or a label."""
    kind = member_key(name)[1]
    return kind in _LABELS or kind[kind.rfind(".") :] in SUFFIXES


def _members(path: str, file: BinaryIO) -> Iterator[tuple[str, int, int, str]]:
    """`(name, offset, size, link)` of every file in a tar: what a hard link names, `"/"` for a symbolic one, or ""."""
    end, place, name = os.fstat(file.fileno()).st_size, 0, ""
    extended: dict[str, str] = {}  # fields of a pax or GNU header for the next member
    while True:
        head = read_at(file, place, _BLOCK)
        if head == _EMPTY:
            _check_end(path, file, place, name, end)
            return
        found = _read_head(path, head, place, name)
        kind, size = found.type, found.size
        if kind in (b"x", b"L", b"K"):
            data = _read_member(path, file, f"header at byte {place:,}", place + _BLOCK, size)
            of_gnu = {"path" if kind == b"L" else "linkpath": _text(data.partition(b"\0")[0])}
            extended |= _pax(path, data, place) if kind == b"x" else of_gnu
        elif kind in _LINKS:
            name = extended.get("path") or _name(head)
            link = extended.get("linkpath") or found.linkname
            yield name, 0, 0, link if link and kind == b"1" else "/"
        elif kind not in _SKIPPED:
            name, size = extended.get("path") or _name(head), int(extended.get("size", size))
            if kind not in _FILES or any(field.startswith("GNU.sparse") for field in extended):
                raise ShardError("a tar must hold plain files", path, f"member {name!r} of kind {_text(kind)!r}")
            if place + _BLOCK + size > end:
                raise _truncated(path, f"inside of member {name!r}")
            if not name.endswith("/"):
                yield name, place + _BLOCK, size, ""
        if kind not in b"xgLK":
            extended = {}
        place += _BLOCK + -(-size // _BLOCK) * _BLOCK


def _read_head(path: str, head: bytes, place: int, before: str) -> tarfile.TarInfo:
    if len(head) < _BLOCK:
        raise _truncated(path, f"after member {before!r}" if before else "at its begin")
    if place == 0 and head.startswith(_COMPRESSED):
        raise ShardError(
            "a tar must not be compressed, as photos are read by their places in it", path, "which is", "Unpack it."
        )
    try:
        found = tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
        if not 0 <= found.size < 2**62:
            raise tarfile.HeaderError(f"a size of {found.size:,} bytes")
    except tarfile.HeaderError as error:
        rule = "every header of a tar must have its checksum and whole numbers"
        raise ShardError(rule, path, f"the header at byte {place:,}: {error}") from None
    return found


def _check_end(path: str, file: BinaryIO, place: int, before: str, end: int) -> None:
    """Refuses a tar with more after its end mark than zeros that fill its last record: members would be lost there."""
    zeros = end - place
    while data := read_at(file, place, _AT_ONCE):
        if data.strip(b"\0"):
            place += len(data) - len(data.lstrip(b"\0"))
            found = f"byte {place:,}, which is after an empty block" + (f" after member {before!r}" if before else "")
            words = "Join tars by `tar --concatenate`, not by `cat`, and bring a damaged one again."
            raise ShardError("a tar must have nothing after its empty blocks", path, found, words)
        place += len(data)
    if zeros > _MOST_ZEROS:
        found = f"{zeros:,} bytes after an empty block" + (f" after member {before!r}" if before else "")
        words = "Bring it again, as a copy that was cut short has zeros there; or pack it again."
        raise ShardError(f"a tar must have at most {_MOST_ZEROS:,} bytes after its members", path, found, words)


def _truncated(path: str, where: str) -> ShardError:
    return ShardError("a tar must end with two empty blocks", path, f"which is cut short {where}", "Bring it again.")


def _name(head: bytes) -> str:
    name = _text(head[:100].partition(b"\0")[0])
    prefix = _text(head[345:500].partition(b"\0")[0]) if head[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _pax(path: str, data: bytes, place: int) -> dict[str, str]:
    """Records of `length key=value`, as POSIX.1-2001 has them."""
    found, start = {}, 0
    try:
        while start < len(data) and data[start]:
            digits = data[start : start + 20].partition(b" ")[0]
            length = int(digits)
            key, equals, value = data[start + len(digits) + 1 : start + length - 1].partition(b"=")
            if not equals or length <= len(digits) + 1:
                raise ValueError
            found[_text(key)] = _text(value)
            start += length
        if int(found.get("size", 0)) < 0:
            raise ValueError
    except ValueError:
        raise ShardError("a pax header must hold records of a key and a value", path, f"at byte {place:,}") from None
    return found


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _read_member(path: str, file: BinaryIO, name: str, offset: int, size: int) -> bytes:
    """The content of a small member."""
    if size > _MOST_BYTES:
        raise ShardError(f"labels and names in a tar must have at most {_MOST_BYTES:,} bytes", path, f"member {name!r}")
    data = read_at(file, offset, size)
    if len(data) < size:
        raise _truncated(path, f"inside of member {name!r}")
    return data
