"""Masks of classes: found by equal stems, by a table or by a known layout, checked before training, read with a photo.

Labels are paths below one folder, an array of objects `(n, 1)`, and the names of a `Source` are those of the classes.
"""

import concurrent.futures
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.annotations import Tensor
from keras_vit.data.image_folder import source_from_files
from keras_vit.data.source import Source
from keras_vit.data.splits import SPLIT_ALIASES, FileSplit
from keras_vit.data.targets import Targets
from keras_vit.files import expand_path
from keras_vit.images.photo_files import photos_below
from keras_vit.images.photo_tables import row_word
from keras_vit.images.validation import BadImage
from keras_vit.pages.formatting import printable

_NAMED = 3  # files that an error names


@dataclasses.dataclass(frozen=True)
class Pair:
    """A photo and its mask; `split` is `None` where a seed divides the data."""

    photo: str
    mask: str
    split: str | None = None


@dataclasses.dataclass(frozen=True)
class Layout:
    """A known data set.

    Args:
        pairs: from its folder to the pairs.
        rule: from levels to classes, as `dense.map_labels` takes it.
        class_names: in their order; `None` where the masks' numbers are the names.
    """

    pairs: Callable[[Path], list[Pair]]
    rule: str | None = None
    class_names: tuple[str, ...] | None = None


def pairs_by_stem(photos: Path, masks: Path) -> list[Pair]:
    """Each photo with the mask at the same place and of the same stem; a first folder may be a split.

    Raises:
        ValueError: for a photo without a mask, a mask without a photo, and two files of one stem.
    """
    found = [_by_stem(folder, name) for folder, name in ((photos, "photos"), (masks, "masks"))]
    of_photos, of_masks = found
    alone = [of_photos[stem] for stem in of_photos if stem not in of_masks]
    without = [of_masks[stem] for stem in of_masks if stem not in of_photos]
    if alone or without:
        parts = [
            f"{len(files):,} {what}, as {', '.join(map(printable, files[:_NAMED]))}"
            for files, what in ((alone, "photo(s) without a mask"), (without, "mask(s) without a photo"))
            if files
        ]
        raise ValueError(
            "each photo must have a mask of its stem in the same folder below, and each mask a photo.\n"
            f"Received: {'; '.join(parts)}. Move them away, or list the pairs in a .csv file with path and mask."
        )
    return [Pair(of_photos[stem], of_masks[stem], _split_of(stem)) for stem in sorted(of_photos)]


def _by_stem(folder: Path, what: str) -> dict[str, str]:
    """Files by their path below the folder without its suffix."""
    found: dict[str, str] = {}
    for path in sorted(photos_below(folder)):
        stem = os.path.splitext(path.relative_to(folder).as_posix())[0]
        if stem in found:
            raise ValueError(
                f"{what} of one folder must have different stems.\n"
                f"Received: {printable(found[stem])} and {printable(path)}. Move one of them away."
            )
        found[stem] = str(path)
    return found


def _split_of(stem: str) -> str | None:
    first, slash, _ = stem.partition("/")
    return SPLIT_ALIASES.get(first.lower()) if slash else None


def _ade20k(path: Path) -> list[Pair]:
    _check_folders("ade20k", path, ("images", "annotations"))
    return pairs_by_stem(path / "images", path / "annotations")


def _voc(path: Path) -> list[Pair]:
    """By the lists of `ImageSets/Segmentation`, with the masks of `SegmentationClassAug` where there are any."""
    _check_folders("voc", path, ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"))
    aug = path / "SegmentationClassAug"
    masks = aug if aug.is_dir() else path / "SegmentationClass"
    lists = path / "ImageSets" / "Segmentation"
    names = {"train": "trainaug" if masks == aug and (lists / "trainaug.txt").is_file() else "train"}
    names |= {"validation": "val", "test": "test"}
    pairs = []
    for split, name in names.items():
        if (lists / f"{name}.txt").is_file():
            stems = (lists / f"{name}.txt").read_text().split()
            found = [
                Pair(str(path / "JPEGImages" / f"{stem}.jpg"), str(masks / f"{stem}.png"), split) for stem in stems
            ]
            if split != "test" or all(os.path.isfile(pair.mask) for pair in found):  # whose masks are not published
                pairs += found
    _check_files(pairs)
    return pairs


def _cityscapes(path: Path) -> list[Pair]:
    """By `labelIds`. The test set of the server, whose masks are blank, is left out."""
    _check_folders("cityscapes", path, ("leftImg8bit", "gtFine"))
    end, pairs = "_leftImg8bit.png", []
    for split in ("train", "val"):
        for photo in sorted((path / "leftImg8bit" / split).glob(f"*/*{end}")):
            mask = path / "gtFine" / split / photo.parent.name / f"{photo.name.removesuffix(end)}_gtFine_labelIds.png"
            pairs.append(Pair(str(photo), str(mask), SPLIT_ALIASES[split]))
    _check_files(pairs)
    return pairs


def _check_folders(name: str, path: Path, folders: Sequence[str]) -> None:
    if missing := [folder for folder in folders if not (path / folder).is_dir()]:
        raise ValueError(
            f"the layout {name} has the folders {', '.join(folders)}.\n"
            f"Received: {str(path)!r} without {', '.join(missing)}. Pass the folder above these."
        )


def _check_files(pairs: Sequence[Pair]) -> None:
    def missing() -> Iterator[str]:
        yield from (file for pair in pairs for file in (pair.photo, pair.mask) if not os.path.isfile(file))

    if lost := list(missing()):
        raise ValueError(
            "each photo must have its mask.\n"
            f"Received: {len(lost):,} files that are not there, as {', '.join(map(printable, lost[:_NAMED]))}."
        )


_VOC_CLASSES = (
    "background,aeroplane,bicycle,bird,boat,bottle,bus,car,cat,chair,cow,diningtable,dog,horse,motorbike,person,"
    "pottedplant,sheep,sofa,train,tvmonitor"
)
_CITYSCAPES_CLASSES = (
    "road,sidewalk,building,wall,fence,pole,traffic light,traffic sign,vegetation,terrain,sky,person,rider,car,truck,"
    "bus,train,motorcycle,bicycle"
)
_ADE20K_CLASSES = 150
LAYOUTS = {
    "ade20k": Layout(_ade20k, "ade20k", tuple(str(number) for number in range(1, _ADE20K_CLASSES + 1))),
    "voc": Layout(_voc, None, tuple(_VOC_CLASSES.split(","))),
    "cityscapes": Layout(_cityscapes, "cityscapes", tuple(_CITYSCAPES_CLASSES.split(","))),
}


WHITE = 255  # of a binary mask that was saved as black and white
_LARGEST = 2**16 - 1
_TURNED = range(5, 9)  # EXIF orientations that swap the sides


@dataclasses.dataclass(frozen=True, eq=False)
class MaskSplit(FileSplit):
    """Photos with a mask each.

    Args:
        folder: above the masks.
        rule: of `dense.map_labels`, or `None` for levels as they are.
        ignore_class: label of pixels that do not count.
        counts: int64 `(n, K)`, pixels of each class in each mask.
    """

    folder: str = ""
    rule: str | None = None
    ignore_class: int = WHITE
    counts: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 0), "int64"))

    def mask(self, index: int) -> np.ndarray:
        """int32 `(H, W)`: the classes of a photo's pixels, at its size."""
        from keras_vit.dense import read_mask

        return read_mask(self._mask_path(index), self.rule)  # type: ignore[arg-type]

    def _mask_path(self, index: int) -> str:
        return os.path.join(self.folder, self.labels[index, 0])

    def check(self, index: int) -> BadImage | None:
        if (image := super().check(index)) is not None:
            return image
        path = self._mask_path(index)
        try:
            size = self.mask(index).shape
        except (OSError, ValueError) as error:
            return BadImage(path, f"a mask that can no longer be read: {str(error).splitlines()[-1]}")
        photo = photo_size(str(self.paths[index]), int(self.orientations[index]))
        return None if size == photo else BadImage(path, f"a mask of {_sides(size)} for a photo of {_sides(photo)}")

    @property
    def at_once(self) -> int:
        return 1 if self.needs_pillow else 4  # masks are whole in memory

    def reader(self) -> Callable[[Tensor], dict[str, Tensor]]:
        import tensorflow as tf

        read_photos = super().reader()

        def masks(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = [self.mask(number).astype("<u2") for number in numbers]
            return np.array([mask.tobytes() for mask in found], object), np.array([mask.shape for mask in found])

        def read(index: Tensor) -> dict[str, Tensor]:
            levels, sizes = tf.numpy_function(masks, [index], (tf.string, tf.int64), stateful=False)
            sides = tf.ensure_shape(sizes, (None, 2))
            return read_photos(index) | {"label": tf.ensure_shape(levels, (None,)), "mask_size": sides}

        return read

    def row(self, index: int) -> dict:
        return {"label": [self.labels[index, 0]], "path": str(self.paths[index])}

    def concatenate(self, other: FileSplit) -> FileSplit:
        counts = np.concatenate([self.counts, other.counts])  # type: ignore[attr-defined]
        return dataclasses.replace(super().concatenate(other), counts=counts)  # type: ignore[call-arg]

    def take(self, numbers: np.ndarray) -> FileSplit:
        return dataclasses.replace(super().take(numbers), counts=self.counts[numbers])  # type: ignore[call-arg]


class MaskTargets(Targets):
    """A mask for each photo.

    Args:
        masks: the folder of the masks, or the name of a layout; `None` for a table with the column `mask`, and for a
            folder with `images` and `masks` in it.
        rule: from levels to classes, as `dense.map_labels` takes it; by default that of the layout.
        class_names: of the K classes in their order; by default those of the layout, else the numbers from 0 to the
            highest in the masks.
        ignore_class: label of pixels that do not count.
    """

    def __init__(
        self,
        masks: str | None = None,
        rule: str | None = None,
        class_names: Sequence[str] | None = None,
        ignore_class: int = WHITE,
    ) -> None:
        self.masks, self.ignore_class = masks, ignore_class
        self.layout = LAYOUTS.get(masks or "")
        self.rule = rule if rule is not None or self.layout is None else self.layout.rule
        self.class_names = None if class_names is None else tuple(class_names)

    # Finding

    def open(self, path: Path, seed: int, on_bad_image: str) -> Source | None:
        """The source of a folder of photos; `None` for anything else, as a table."""
        if not os.path.isdir(path):
            return None
        if self.layout is not None:
            folder, pairs = path, self.layout.pairs(path)
        else:
            photos, folder = self._folders(path)
            pairs = pairs_by_stem(photos, folder)
        return self._of_pairs(path, folder, pairs, seed, on_bad_image)

    def _folders(self, path: Path) -> tuple[Path, Path]:
        """Those of the photos and of the masks."""
        if self.masks is not None:
            folder = expand_path(self.masks)
            if not os.path.isdir(folder):
                raise ValueError(
                    f"`masks` must be a folder, or a layout of {', '.join(LAYOUTS)}.\n"
                    f"Received: {printable(self.masks)}, where no folder is."
                )
            return path, folder
        pairs = [(path / photos, path / masks) for photos in ("images", "photos") for masks in ("masks", "annotations")]
        found = [pair for pair in pairs if all(map(os.path.isdir, pair))]
        if not found:
            raise ValueError(
                "each photo must have a mask, in a second folder with the same stems.\n"
                f"Received: {str(path)!r} and no `masks`, without the folders `images` and `masks` in it. Pass `masks` "
                "(`--masks FOLDER`)."
            )
        return found[0]

    def _of_pairs(self, path: Path, folder: Path, pairs: Sequence[Pair], seed: int, on_bad_image: str) -> Source:
        if not pairs:
            raise ValueError(f"there must be photos.\nReceived: {str(path)!r} without any.")
        labels = _as_labels([os.path.relpath(pair.mask, folder) for pair in pairs])
        splits: list[str] | None = [pair.split for pair in pairs if pair.split is not None]
        if splits and len(splits) < len(pairs):
            outside = next(pair.photo for pair in pairs if pair.split is None)
            raise ValueError(
                "photos must all lie in folders of splits, train, validation and test, or none of them.\n"
                f"Received: {printable(outside)}, which lies in none."
            )
        files = [pair.photo for pair in pairs]
        found = source_from_files(path, "masks", (), files, labels, splits or None, seed, on_bad_image, targets=self)
        return self.complete(found, folder)

    def columns(self, path: Path, header: Sequence[str]) -> Sequence[str]:
        if "mask" not in header:
            raise ValueError(
                "a table of photos and masks must have the columns path and mask.\n"
                f"Received: {str(path)!r} with the columns {list(header)}."
            )
        if self.masks is not None:
            raise ValueError(
                "a table says where its masks are, in the column `mask`.\n"
                f"Received: masks={self.masks!r} for {str(path)!r}. Leave `masks` out."
            )
        return ("mask",)

    def of_table(self, path: Path, rows: Sequence[Mapping[str, Any]]) -> tuple[Sequence[str], np.ndarray]:
        if not rows:
            raise ValueError(f"a table must have rows.\nReceived: {str(path)!r}, whose first line is its only one.")
        for row in rows:
            if not os.path.isfile(path.parent / row["mask"]):
                raise ValueError(
                    "every photo must have its mask.\n"
                    f"Received: {row_word(path)} {row['line']} of {str(path)!r}: {row['mask']!r}, where no file is."
                )
        return (), _as_labels([row["mask"] for row in rows])

    # Checking

    def complete(self, source: Source, folder: Path) -> Source:
        splits = dict(source.splits)
        if any(isinstance(split, MaskSplit) or not isinstance(split, FileSplit) for split in splits.values()):
            return source
        read = {name: self._read(split, folder) for name, split in splits.items()}
        masks = [mask for of_split in read.values() for mask in of_split]
        self._check_sizes(masks)
        self._check_whole_set(masks)
        names = self._names(masks)
        self._check_values(masks, len(names))
        for name, split in splits.items():
            counts = np.array([mask.counts(len(names), self.ignore_class) for mask in read[name]], "int64")
            splits[name] = MaskSplit(
                split.paths,
                split.labels,
                split.orientations,
                split.needs_pillow,
                str(folder),
                self.rule,
                self.ignore_class,
                counts.reshape(len(read[name]), len(names)),
            )
        found = dataclasses.replace(source, class_names=names, splits=splits, kind="masks")
        _warn_of_classes(found)
        return found

    def check_source(self, source: Any) -> None:
        if any(not isinstance(split, MaskSplit) for split in source.splits.values()):
            raise ValueError(
                "each photo must have a mask, from a second folder with the same stems or a table.\n"
                f"Received: {printable(source.name)} ({source.kind}). Pass a folder of photos and `masks`, or a .csv "
                "file whose first line is 'path,mask'."
            )
        if self.class_names is not None and self.class_names != source.class_names:
            raise ValueError(
                "the data must have the classes that are named, in the same order.\n"
                f"Received: {list(source.class_names[:10])} for {list(self.class_names[:10])}."
            )

    def _read(self, split: FileSplit, folder: Path) -> "list[_Mask]":
        from keras_vit.dense import map_labels, read_mask

        def read(index: int) -> _Mask:
            photo, path = str(split.paths[index]), os.path.join(folder, split.labels[index, 0])
            try:
                raw = read_mask(path)
            except OSError as error:
                raise ValueError(
                    f"a mask must be a picture.\nReceived: {printable(path)}: {error.strerror or error}."
                ) from None
            levels = np.unique(raw)
            if levels[0] < 0 or levels[-1] > _LARGEST:
                raise ValueError(f"a mask must hold levels of 8 or 16 bits.\nReceived: {printable(path)}.")
            classes = raw if self.rule is None else map_labels(raw, self.rule)  # type: ignore[arg-type]
            values, counts = np.unique(classes, return_counts=True)
            size = photo_size(photo, int(split.orientations[index]))
            return _Mask(path, photo, raw.shape, size, levels, dict(zip(values.tolist(), counts.tolist(), strict=True)))

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(read, range(split.size)))

    def _check_sizes(self, masks: "Sequence[_Mask]") -> None:
        if wrong := [mask for mask in masks if mask.size != mask.photo_size]:
            turned = any(mask.size == mask.photo_size[::-1] for mask in wrong)
            hint = " Photos with an EXIF orientation are turned upright, and so must their masks be." if turned else ""
            found = (f"{printable(mask.path)} of {_sides(mask.size)} for {_sides(mask.photo_size)}" for mask in wrong)
            raise ValueError(
                f"a mask must have the size of its photo.\nReceived: {_some(found, len(wrong))} pixels.{hint}"
            )

    def _check_whole_set(self, masks: "Sequence[_Mask]") -> None:
        """Refuses what makes the task empty: nothing counts, or there is one class alone."""
        levels = sorted({level for mask in masks for level in mask.levels.tolist()})
        if levels == [0, WHITE] and self.ignore_class == WHITE and self.rule is None:
            found = next(mask.path for mask in masks if WHITE in mask.levels)
            raise ValueError(
                "a mask of two classes must hold 0 and 1; as black and white its white pixels would not count.\n"
                f"Received: {len(masks):,} masks of 0 and 255 alone, as {printable(found)}. Write 1 for 255."
            )
        classes = {value for mask in masks for value in mask.pixels} - {self.ignore_class}
        empty = [mask for mask in masks if not set(mask.pixels) - {self.ignore_class}]
        where = f"{len(masks):,} masks with the levels {_listed(levels)}, as {printable(masks[0].path)}"
        if len(classes) < 2:
            what = f"the class {classes.pop()} alone" if classes else "no pixel that counts"
            rule = f" The rule {self.rule!r} gives this: leave it out for masks that hold classes." if self.rule else ""
            raise ValueError(f"masks must show two classes or more.\nReceived: {where}: {what}.{rule}")
        if empty:
            named = (printable(mask.path) for mask in empty)
            warnings.warn(
                f"{len(empty):,} of {len(masks):,} masks have no pixel that counts, so nothing is learned from them: "
                f"{_some(named, len(empty))}, all {self.ignore_class}.",
                UserWarning,
                stacklevel=2,
            )

    def _names(self, masks: "Sequence[_Mask]") -> tuple[str, ...]:
        names = self.class_names or (self.layout.class_names if self.layout is not None else None)
        if names is None:
            highest = max(value for mask in masks for value in mask.pixels if value != self.ignore_class)
            names = tuple(map(str, range(highest + 1)))
        if self.ignore_class < len(names):
            raise ValueError(
                "the label of pixels that do not count must not be that of a class.\n"
                f"Received: ignore_class={self.ignore_class} for {len(names)} classes, {names[self.ignore_class]!r} "
                "among them. Pass another `ignore_class` (`--ignore-class`)."
            )
        return tuple(names)

    def _check_values(self, masks: "Sequence[_Mask]", classes: int) -> None:
        known = {*range(classes), self.ignore_class}
        wrong = [(mask, sorted(set(mask.pixels) - known)) for mask in masks if set(mask.pixels) - known]
        if wrong:
            found = (f"{printable(mask.path)} with {_listed(values)}" for mask, values in wrong)
            raise ValueError(
                f"a mask must hold the classes 0 to {classes - 1}, and {self.ignore_class} for pixels that do not "
                f"count.\nReceived: {_some(found, len(wrong))}. Name all classes, or pass a rule (`--mask-rule`)."
            )


@dataclasses.dataclass(frozen=True)
class _Mask:
    """What a check needs to know of a mask: levels as in the file, and pixels by class after the rule."""

    path: str
    photo: str
    size: tuple[int, ...]
    photo_size: tuple[int, int]
    levels: np.ndarray
    pixels: Mapping[int, int]

    def counts(self, classes: int, ignored: int) -> np.ndarray:
        """Pixels of each class."""
        found = np.zeros(classes, "int64")
        for value, count in self.pixels.items():
            if value != ignored:
                found[value] = count
        return found


def photo_size(path: str, orientation: int) -> tuple[int, int]:
    """`(H, W)` of a photo in a file once it is upright."""
    from PIL import Image

    with Image.open(path) as image:
        width, height = image.size
    return (width, height) if orientation in _TURNED else (height, width)


def class_shares(source: Source) -> np.ndarray:
    """float64 `(K,)`: the share of each class in the training pixels that count."""
    counts = source.split("train").counts.sum(axis=0)
    return counts / counts.sum()


def check_pixels(source: Source, split: str) -> None:
    """Raises `ValueError` for a split whose masks have no pixel that counts, so that nothing can be measured."""
    if not source.split(split).counts.any():
        raise ValueError(
            "a split must have pixels that count.\n"
            f"Received: {printable(source.name)}, where each pixel of the masks of {split} is ignored. "
            "Put others into it."
        )


def _warn_of_classes(source: Source) -> None:
    counts = {name: split.counts.sum(axis=0) for name, split in source.splits.items()}
    everywhere = sum(counts.values())
    for words, there in (("no mask", everywhere), ("no training mask", counts.get("train", everywhere))):
        if missing := [name for name, count in zip(source.class_names, there, strict=True) if not count]:
            more = "; mean IoU leaves these out unless they are predicted" if words == "no mask" else ""
            warnings.warn(
                f"{words} of {printable(source.name)} has {len(missing)} of {len(source.class_names)} classes: "
                f"{_listed(missing)}{more}.",
                UserWarning,
                stacklevel=2,
            )
            return


def _as_labels(masks: Sequence[str]) -> np.ndarray:
    labels = np.empty((len(masks), 1), object)
    labels[:, 0] = masks
    return labels


def _sides(size: Iterable[int]) -> str:
    """`height x width`."""
    return "x".join(map(str, size))


def _listed(values: Sequence[Any]) -> str:
    more = f" and {len(values) - 10} more" if len(values) > 10 else ""
    return ", ".join(printable(str(value)) for value in values[:10]) + more


def _some(found: Iterable[str], count: int) -> str:
    named = [text for _, text in zip(range(_NAMED), found, strict=False)]
    return "; ".join(named) + (f"; and {count - _NAMED:,} more" if count > _NAMED else "")
