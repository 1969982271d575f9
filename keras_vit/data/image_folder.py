"""Folders of photos: `{train,validation,test}/{class}/...`, or class folders that are divided by a seed.

Classes are sorted by the names of their folders, as in the official code for custom data.
"""

import os
import re
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from keras_vit.data.label_checks import quote_names, similar_names
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
    pipes_in,
)
from keras_vit.images.validation import BadImage, ValidImage, check_images, count_reasons
from keras_vit.pages.formatting import printable

# Names of folders that are most likely splits, and not read as such, since others call a test set `eval` too.
_LIKE_SPLITS = SPLIT_ALIASES | {"trn": "train", "eval": "validation", "evaluation": "validation", "tst": "test"}
_LIKE_SPLITS |= {"validate": "validation"}


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
        warnings.warn(line, stacklevel=2)
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
        raise _no_classes_error(path, classes, len(found), divided, shards)
    if not divided:
        _warn_of_names_of_splits(classes)
        _warn_of_alike_folders(path, classes)
    unread = [BadImage(*each) for each in passed.unreadable]
    for base in (path, *divided.values()):
        unread += [BadImage(link, _dead_link_reason(link)) for link in dead_links_in(base)]
        unread += [BadImage(*each) for each in pipes_in(base)]
    splits, photos, labels = zip(*found, strict=True)
    repeated = (str(Path(link)) for link, _ in passed.repeated)
    others = others_below(path, {*photos, *repeated, *(image.path for image in unread)})
    _warn_other_photos(others)
    named = splits if divided else None
    return source_from_files(path, "folder", classes, photos, labels, named, seed, on_bad_image, others, unread=unread)


def _dead_link_reason(link: str) -> str:
    denied = access_error(link)
    return f"a link that cannot be followed: {denied}" if denied else missing_reason(link)


def _no_classes_error(
    path: Path, classes: Sequence[str], count: int, divided: Mapping[str, Path], shards: Collection[str]
) -> ValueError:
    """What is in a folder without photos of two classes, and what to do; `count` is that of photos in class folders."""
    flat = {folder.name: n for folder in divided.values() if (n := len(loose_photos(folder)))}
    loose, lost = len(loose_photos(path)), dead_links_in(path)
    places = sorted({os.path.relpath(os.path.dirname(file), path) for file in shards} - {"."})
    found = f"{len(classes)} class folder(s) {classes[:5]}, and {count:,} image file(s) in them"
    found = found if classes else "no class folder"
    found += f"; {loose:,} image file(s) lie right in it" if loose else ""
    if flat:
        named = " and ".join(map(printable, flat))
        found += f"; {sum(flat.values()):,} image file(s) lie right in {named}, not in class folders there"
    found += f"; {printable(lost[0])} is a link to nothing" if lost else ""
    packed = sorted(entry.name for entry in entries_in(str(path), PassedOver()) if is_shard(entry.name))
    found += f"; {len(packed)} shard(s) lie next to these, as {printable(packed[0])}" if packed else ""
    remedy = "Put the photos of each class into a folder of its own, or list them in a .csv file with path and label."
    if places:
        remedy = f"Shards lie in {', '.join(map(repr, places[:5]))}: pass {str(path / places[0])!r}"
        suffix = os.path.splitext(min(shards))[1]
        remedy += f", or a pattern for all of them, as '{path}/**/*{suffix}'." if len(places) > 1 else "."
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
        path: of the folder or table.
        kind: as `Source` has it.
        classes: class names, in the order of labels.
        files: paths of the images, or slices of shards.
        labels: one int for each file, or a row of numbers.
        splits: one split name for each file; `None` divides the files by `seed`.
        seed, on_bad_image: as for `open_source`.
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
            stacklevel=2,
        )
    return len(shared)


def _split_folders(path: Path) -> dict[str, Path]:
    """Folder of each split; empty if this folder holds class folders."""
    named: dict[str, list[Path]] = {}
    for folder in folders_in(path):
        if split := SPLIT_ALIASES.get(folder.name.lower()):
            named.setdefault(split, []).append(folder)
    like = [folder for folder in folders_in(path) if folder.name.lower() not in SPLIT_ALIASES and _meaning(folder.name)]
    if "train" not in named or like:
        _check_train(named, like, path)
    if "train" not in named or _is_a_class(named, path):
        return {}
    twice = next((folders for folders in named.values() if len(folders) > 1), None)
    if twice:
        raise ValueError(
            f"each split must be one folder.\nReceived: {twice[0].name!r} and {twice[1].name!r} in {str(path)!r}."
        )
    return {name: named[name][0] for name in SPLITS if name in named}


def _meaning(name: str) -> str | None:
    """The split of which a folder has the name by one of its words, as `test_set` and `train2017`; or `None`."""
    words = re.split(r"[\W\d_]+|sets?$", name.lower())
    return next((_LIKE_SPLITS[word] for word in words if word in _LIKE_SPLITS), None)


def _check_train(named: dict[str, list[Path]], like: Sequence[Path], path: Path) -> None:
    """Refuses folders of splits without `train` or without class folders, which would be taken for classes.

    `named` has folders with the names of splits; `like` those with names that splits have elsewhere, as `test_set`.
    """
    splits = [*(folder for folders in named.values() for folder in folders), *like]
    kinds = named.keys() | {_meaning(folder.name) for folder in like}
    others = [folder for folder in folders_in(path) if folder not in splits and any(photos_below(folder))]
    if not splits or len(others) > 1:
        return
    names = printable(" and ".join(sorted(folder.name for folder in splits)))
    if len(kinds) > 1 and all(map(has_photos, splits)) and not any(map(_folders_with_photos, named.get("train", ()))):
        raise ValueError(
            "folders of splits must have class folders in them, and `train` among them; they are no classes.\n"
            f"Received: {str(path)!r} with photos right in {names}. Put the photos of each class into a folder of "
            "its own. If these are classes, give them other names."
        )
    are_nested = (not has_photos(folder) and bool(_folders_with_photos(folder)) for folder in splits)
    if named and "train" not in named and all(are_nested):
        raise ValueError(
            "folders of splits must have `train` among them; without it they would count as classes.\n"
            f"Received: {str(path)!r} with {names}, each with folders of photos. To measure a model, pass one of "
            f"these, as {str(splits[0])!r}."
        )


def _folders_with_photos(folder: Path) -> list[Path]:
    return [inner for inner in folders_in(folder, PassedOver()) if any(photos_below(inner))]


def _warn_other_photos(others: Mapping[str, tuple[int, str]]) -> None:
    """Warns of photos and shards that lie in no class folder: their owner expects them to count."""
    if found := [(*others[kind], kind) for kind in (LOOSE, SHARDS) if kind in others]:
        named = "; ".join(f"{kind} ({count:,}, as {printable(example)})" for count, example, kind in found)
        words = f"left out: {named}. Photos count in class folders alone, as files of their own."
        warnings.warn(words, stacklevel=3)


def _warn_of_names_of_splits(classes: Sequence[str]) -> None:
    """Warns of classes with the names of two splits among others, as `val`, `test`, `cat` and `dog`."""
    named = [name for name in classes if name.lower() in _LIKE_SPLITS]
    if len({_LIKE_SPLITS[name.lower()] for name in named}) > 1 and len(named) < len(classes):
        warnings.warn(
            f"{printable(', '.join(named))} count as classes, and have the names of splits. If they are splits, move "
            "the other folders away.",
            stacklevel=3,
        )


def _warn_of_alike_folders(path: Path, classes: Sequence[str]) -> None:
    """Warns of classes with the same folders in them, as `training_set` and `test_set` have: they may be splits."""
    if len(classes) < 2 or any(has_photos(path / name) for name in classes):
        return
    first, *others = ({folder.name for folder in folders_in(path / name, PassedOver())} for name in classes)
    shared = first.intersection(*others)
    are_alike = all(names == first for names in others) and not all(map(str.isdecimal, first))
    if len(shared) > 1 and (are_alike or all(map(_meaning, classes))):
        warnings.warn(
            f"{printable(', '.join(classes[:3]))} count as classes, and have the same folders in them: "
            f"{printable(', '.join(sorted(shared)[:3]))}. If those are the classes, call the folders above them train, "
            "validation and test, or pass one of them.",
            stacklevel=2,
        )


def _is_a_class(named: dict[str, list[Path]], path: Path) -> bool:
    """Whether a folder `train` holds photos of trains: its siblings are classes, and most are not named as splits."""
    splits = [folder for folders in named.values() for folder in folders]
    classes = [folder for folder in folders_in(path) if folder not in splits and has_photos(folder)]
    if not classes or len(classes) < len(splits):
        return False
    train = named["train"][0]
    if _folders_with_photos(train):  # of classes, or of years or places
        return len(splits) == 1 and (has_photos(train) or len(classes) > 1)
    return has_photos(train)


def _warn_other_folders(path: Path, divided: dict[str, Path]) -> None:
    others = [folder.name for folder in folders_in(path) if folder not in divided.values()]
    if others:
        hint = " A split is read if it is called train, validation or test." if any(map(_meaning, others)) else ""
        warnings.warn(
            f"{printable(path)} has folders of splits and others, which are left out: "
            f"{printable(', '.join(others[:5]))}.{hint}",
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
            stacklevel=3,
        )
