"""Folders of photos: `{train,validation,test}/{class}/...`, or class folders that are divided by a seed.

Classes are sorted by the names of their folders, as in the official code for custom data.
"""

import os
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_vit.data.label_checks import quote_names, similar_names
from keras_vit.data.shards.finding import find_shards
from keras_vit.data.source import Source
from keras_vit.data.splits import SPLIT_ALIASES, SPLITS, FileSplit, divide
from keras_vit.data.targets import CLASS_LABELS, Targets
from keras_vit.files import access_error, missing_reason
from keras_vit.images.byte_ranges import PhotoLocation
from keras_vit.images.photo_files import (
    LOOSE,
    SHARDS,
    PassedOver,
    dead_links_in,
    entries_in,
    folders_in,
    has_photos,
    is_shard,
    loose_photos,
    others_below,
    photos_below,
)
from keras_vit.images.validation import BadImage, ValidImage, check_images, count_reasons
from keras_vit.pages.formatting import printable


def open_folder(path: Path, seed: int, on_bad_image: str) -> Source:
    """A `Source` of the photos in a folder; see `open_source`.

    Raises:
        ValueError: for no photo, one class only, or classes that differ between splits.
    """
    divided, passed = _split_folders(path), PassedOver()
    if divided:
        _warn_other_folders(path, divided)
    photos_of = {split: _photos_by_class(folder, passed) for split, folder in (divided or {"": path}).items()}
    shards, passed.shards = passed.shards, []  # `others_below` finds these too
    for line in passed.notes():
        warnings.warn(line, UserWarning, stacklevel=2)
    classes = _common_classes(path, photos_of, shards) if divided else list(photos_of[""])
    found = [
        (split, str(file), label)
        for split, by_class in photos_of.items()
        for label, name in enumerate(classes)
        for file in sorted(by_class[name])
    ]
    if not found:
        passed.check()
    if len(classes) < 2 or not found:
        raise _no_classes_error(path, classes, len(found), divided)
    if not divided:
        _warn_of_alike_folders(path, classes)
    unread = [BadImage(*each) for each in passed.unreadable]
    lost = [link for base in (path, *divided.values()) for link in dead_links_in(base)]
    unread += [BadImage(link, _dead_link_reason(link)) for link in lost]
    splits, photos, labels = zip(*found, strict=True)
    repeated = (str(Path(link)) for link, _ in passed.repeated)
    others = others_below(path, {*photos, *repeated, *(image.path for image in unread)})
    _warn_other_photos(others)
    named = splits if divided else None
    return source_from_files(path, "folder", classes, photos, labels, named, seed, on_bad_image, others, unread=unread)


def _dead_link_reason(link: str) -> str:
    denied = access_error(link)
    return f"a link that cannot be followed: {denied}" if denied else missing_reason(link)


def _no_classes_error(path: Path, classes: Sequence[str], count: int, divided: Mapping[str, Path]) -> ValueError:
    """What is in a folder without photos of two classes, and what to do.

    Args:
        path: of the folder.
        classes: names of the folders in it.
        count: of the photos in these.
        divided: folders of splits.
    """
    flat = {folder.name: n for folder in divided.values() if (n := len(loose_photos(folder)))}
    loose, lost = len(loose_photos(path)), dead_links_in(path)
    shards = {name: files[0].suffix for name in classes if (files := find_shards(path / name))}
    found = f"{len(classes)} class folder(s) {classes[:5]}, and {count} image file(s) in them"
    found += f"; {loose} image file(s) lie outside of these" if loose else ""
    if flat:
        named = " and ".join(map(printable, flat))
        found += f"; {sum(flat.values()):,} image file(s) lie right in {named}, not in class folders there"
    found += f"; {printable(lost[0])} is a link to nothing" if lost else ""
    packed = sorted(entry.name for entry in entries_in(str(path), PassedOver()) if is_shard(entry.name))
    found += f"; {len(packed)} shard(s) lie next to these, as {printable(packed[0])}" if packed else ""
    remedy = "Put the photos of each class into a folder of its own, or list them in a .csv file with path and label."
    if shards:
        first, suffix = next(iter(shards.items()))
        remedy = f"Shards lie in {', '.join(map(repr, list(shards)[:5]))}: pass {str(path / first)!r}"
        remedy += f", or a pattern for all of them, as '{path}/**/*{suffix}'." if len(shards) > 1 else "."
    elif len(classes) == 1 and len(folders_in(path / classes[0], PassedOver())) > 1:
        remedy = f"If the class folders are in {classes[0]!r}, pass {str(path / classes[0])!r}."
    return ValueError(
        "a folder of photos must hold at least two folders, one for each class, with photos in them, "
        f"or such folders in `train`, `validation` and `test`.\nReceived: {str(path)!r} with {found}. {remedy}"
    )


def source_from_files(
    path: Path,
    kind: str,
    classes: Sequence[str],
    files: Sequence[PhotoLocation],
    labels: Sequence[int] | np.ndarray,
    splits: Sequence[str] | None,
    seed: int,
    on_bad_image: str,
    ignored: Mapping[str, tuple[int, str]] | None = None,
    targets: Targets = CLASS_LABELS,
    unread: Sequence[BadImage] = (),
    rows: Sequence[str] = (),
) -> Source:
    """A `Source` of labelled files, without those that cannot be decoded.

    Args:
        path: path of the folder or table.
        kind: `"folder"`, `"table"` or `"shards"`.
        classes: class names, in the order of labels.
        files: paths of the images, or slices of shards.
        labels: one int for each file, or a row of numbers.
        splits: one split name for each file; `None` divides the files by `seed`.
        seed: seed of that division.
        on_bad_image: as in `open_source`.
        ignored: numbers of files that do not count as photos, by their kind, with the path of one.
        targets: what the labels are.
        unread: folders that cannot be listed and links to nothing, which count as bad images.
        rows: where a table names each file, as "line 3 of photos.csv".

    Raises:
        ValueError: if no file can be decoded, for a class without an image, and for hidden labels.

    Warns:
        UserWarning: for photos in two splits or under two classes, classes with similar names, and classes that `train`
            lacks.
    """
    targets.check_names(classes)
    found = check_images(list(files), on_bad_image, unread, rows)
    bad = (*unread, *(image for image in found if isinstance(image, BadImage)))
    good = [number for number, image in enumerate(found) if not isinstance(image, BadImage)]
    if found and not good:
        raise ValueError(
            "data must have a photo that can be decoded.\n"
            f"Received: {str(path)!r}, of whose {len(found):,} photos none can: {count_reasons(bad)}, as "
            f"{printable(bad[0].path)}."
        )
    kept = np.asarray(labels)[good]
    images = [image for image in found if not isinstance(image, BadImage)]
    targets.check_kept(path, classes, kept, len(bad))
    if splits is None:
        members = divide(targets.strata(kept), seed, [image.digest for image in images])
    else:
        named = np.array([splits[number] for number in good])
        members = {name: np.flatnonzero(named == name) for name in SPLITS if name in set(splits)}
        targets.check_splits({name: kept[numbers] for name, numbers in members.items()}, classes)
    targets.check_copies(images, kept, classes)
    shared = _count_shared(images, members)
    ordered = sorted((ignored or {}).items(), key=lambda item: (-item[1][0], item[0]))  # not as the disk has them
    facts = {
        "ignored_files": sum(count for _, (count, _) in ordered),
        "ignored_kinds": {kind: count for kind, (count, _) in ordered},
        "ignored_examples": {kind: example for kind, (_, example) in ordered},
        "files_in_two_splits": shared,
        "divided_by_seed": seed if splits is None else None,
    }
    return Source(_name(path), kind, tuple(classes), _file_splits(images, kept, members), bad, facts)


def _name(path: Path) -> str:
    """Name of a folder or file; `.` gets the name of the working directory."""
    return Path(os.path.abspath(path)).name or str(path)


def _file_splits(
    images: Sequence[ValidImage], labels: np.ndarray, members: dict[str, np.ndarray]
) -> dict[str, FileSplit]:
    orientations = np.array([image.orientation for image in images], "int32")

    def split_of(numbers: np.ndarray) -> FileSplit:
        chosen = [images[number] for number in numbers]
        paths, needs_pillow = tuple(image.path for image in chosen), any(image.needs_pillow for image in chosen)
        return FileSplit(paths, labels[numbers], orientations[numbers], needs_pillow)

    return {name: split_of(numbers) for name, numbers in members.items()}


def _count_shared(images: Sequence[ValidImage], members: dict[str, np.ndarray]) -> int:
    """Number of files with equal bytes in more than one split; warns, since a test would repeat training images."""
    counts = Counter(digest for numbers in members.values() for digest in {images[number].digest for number in numbers})
    shared = [digest for digest, count in counts.items() if count > 1]
    if shared:
        example = printable(next(image.path for image in images if image.digest == shared[0]))
        warnings.warn(
            f"{len(shared)} file(s) stand in more than one split, byte for byte, so that what is measured on one has "
            f"been trained on, as {example}.",
            UserWarning,
            stacklevel=2,
        )
    return len(shared)


def _split_folders(path: Path) -> dict[str, Path]:
    """Folder of each split; empty if this folder holds class folders."""
    named: dict[str, list[Path]] = {}
    for folder in folders_in(path):
        if split := SPLIT_ALIASES.get(folder.name.lower()):
            named.setdefault(split, []).append(folder)
    if "train" not in named:
        _check_train(named, path)
    if "train" not in named or _is_a_class(named, path):
        return {}
    twice = next((folders for folders in named.values() if len(folders) > 1), None)
    if twice:
        raise ValueError(
            f"each split must be one folder.\nReceived: {twice[0].name!r} and {twice[1].name!r} in {str(path)!r}."
        )
    return {name: named[name][0] for name in SPLITS if name in named}


def _check_train(named: dict[str, list[Path]], path: Path) -> None:
    """Refuses folders of splits without `train`, whose names would be taken for those of classes.

    Args:
        named: folders with the names of splits, by split.
        path: the folder above them.
    """
    splits = [folder for folders in named.values() for folder in folders]
    others = [folder for folder in folders_in(path) if folder not in splits and any(photos_below(folder))]
    are_flat = len(named) > 1 and not others and all(map(has_photos, splits))
    if splits and len(others) < 2 and (are_flat or all(_has_photos_in_folders(folder) for folder in splits)):
        names = printable(" and ".join(folder.name for folder in splits))
        if are_flat:
            raise ValueError(
                "folders of splits must have class folders in them, and `train` among them; they are no classes.\n"
                f"Received: {str(path)!r} with photos right in {names}. Put the photos of each class into a folder of "
                "its own."
            )
        raise ValueError(
            "folders of splits must have `train` among them; without it they would count as classes.\n"
            f"Received: {str(path)!r} with {names}, each with folders of photos. To measure a model, pass one of "
            f"these, as {str(splits[0])!r}."
        )


def _has_photos_in_folders(folder: Path) -> bool:
    return not has_photos(folder) and any(any(photos_below(inner)) for inner in folders_in(folder, PassedOver()))


def _warn_other_photos(others: Mapping[str, tuple[int, str]]) -> None:
    """Warns of photos and shards that lie in no class folder: their owner expects them to count."""
    if found := [(*others[kind], kind) for kind in (LOOSE, SHARDS) if kind in others]:
        named = "; ".join(f"{kind} ({count:,}, as {printable(example)})" for count, example, kind in found)
        words = f"left out: {named}. Photos count in class folders alone, as files of their own."
        warnings.warn(words, UserWarning, stacklevel=3)


def _warn_of_alike_folders(path: Path, classes: Sequence[str]) -> None:
    """Warns of classes with the same folders in them, as `training_set` and `test_set` have: they may be splits."""
    if len(classes) < 2 or any(has_photos(path / name) for name in classes):
        return
    first, *others = ({folder.name for folder in folders_in(path / name, PassedOver())} for name in classes)
    if len(first) > 1 and all(names == first for names in others) and not all(map(str.isdecimal, first)):
        warnings.warn(
            f"{printable(', '.join(classes[:3]))} count as classes, and have the same folders in them: "
            f"{printable(', '.join(sorted(first)[:3]))}. If those are the classes, call the folders above them train, "
            "validation and test, or pass one of them.",
            UserWarning,
            stacklevel=2,
        )


def _is_a_class(named: dict[str, list[Path]], path: Path) -> bool:
    """Whether a folder `train` holds photos of trains: its siblings are classes, and most are not named as splits.

    Args:
        named: folders with the names of splits, by split.
        path: the folder above them.
    """
    splits = [folder for folders in named.values() for folder in folders]
    classes = [folder for folder in folders_in(path) if folder not in splits and has_photos(folder)]
    if not classes or len(classes) < len(splits):
        return False
    train = named["train"][0]
    if any(map(any, map(photos_below, folders_in(train, PassedOver())))):  # of classes, or of years or places
        return len(splits) == 1 and (has_photos(train) or len(classes) > 1)
    return has_photos(train)


def _warn_other_folders(path: Path, divided: dict[str, Path]) -> None:
    others = [folder.name for folder in folders_in(path) if folder not in divided.values()]
    if others:
        warnings.warn(
            f"{printable(path)} has folders of splits and others, which are left out: "
            f"{printable(', '.join(others[:5]))}.",
            UserWarning,
            stacklevel=2,
        )


def _common_classes(path: Path, by_split: Mapping[str, Collection[str]], shards: Collection[str]) -> list[str]:
    """Names of the class folders, which must be the same in every split."""
    for name, classes in by_split.items():
        only_one = set(classes) ^ set(by_split["train"])
        if only_one:
            sides = {"train": set(by_split["train"]) - set(classes), name: set(classes) - set(by_split["train"])}
            named = [f"only `{side}` has {', '.join(sorted(own)[:10])}" for side, own in sides.items() if own]
            same = similar_names(only_one)
            hint = f" {quote_names(sorted(same[0]))} differ in case, spaces or Unicode form alone." if same else ""
            if shards:
                hint += f" Shards are no class folders, as {printable(min(shards))}: read these alone."
            raise ValueError(
                "every split must have the same class folders; one without photos may be an empty folder.\n"
                f"Received: {str(path)!r}, where `train` and `{name}` differ: {printable('; '.join(named))}.{hint}"
            )
    return list(by_split["train"])


def _photos_by_class(folder: Path, passed: PassedOver) -> dict[str, list[Path]]:
    """The photos below each class folder, by its name; without links to folders that are others of the walk."""
    found: dict[str, list[Path]] = {place.name: [] for place in folders_in(folder)}
    for file in photos_below(folder, passed=passed):
        name = file.parts[len(folder.parts)]
        if name in found:
            found[name].append(file)
    repeated = {Path(link): Path(first) for link, first in passed.repeated}
    _warn_of_linked_classes(folder, repeated)
    return {name: photos for name, photos in found.items() if folder / name not in repeated}


def _warn_of_linked_classes(folder: Path, repeated: Mapping[Path, Path]) -> None:
    """Warns of links from one class folder into another one: at most one of the labels is right."""
    depth = len(folder.parts)
    found = [(link, first) for link, first in repeated.items() if folder in link.parents and folder in first.parents]
    found = [(link, first) for link, first in found if len(link.parts) > depth + 1 < len(first.parts)]
    again = sorted(pair for pair in found if pair[0].parts[depth] != pair[1].parts[depth])
    if again:
        link, first = again[0]
        warnings.warn(
            f"{len(again)} link(s) of a class lead to photos of another one, so that a label is wrong, as "
            f"{printable(link)} to {printable(first)}, which counts under {printable(first.parts[depth])!r}.",
            UserWarning,
            stacklevel=3,
        )
