"""Maps of pixels: found by equal stems, by a table or by a known layout, checked before training, read with a photo.

Labels are paths below one folder, an array of objects `(n, 1)`. A map is a mask of classes, which are the names of the
`Source`; `depth_targets.py` has maps of depths.
"""

import concurrent.futures
import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from keras_vit.annotations import Tensor
from keras_vit.data.coco.annotations import CocoMasks, check_map, listed_photos, read_coco
from keras_vit.data.image_folder import source_from_files
from keras_vit.data.source import Source
from keras_vit.data.splits import SPLIT_ALIASES, FileSplit
from keras_vit.data.targets import Targets
from keras_vit.files import FileKindError, expand_path, open_regular
from keras_vit.images.headers import exif_orientation
from keras_vit.images.photo_files import SUFFIXES, PassedOver, folders_in, may_hold_photos, photos_below
from keras_vit.images.photo_tables import row_word
from keras_vit.images.validation import BadImage
from keras_vit.pages.formatting import printable

_NAMED = 3  # files that an error names


@dataclasses.dataclass(frozen=True)
class Pair:
    """A photo and its map; `split` is `None` where a seed divides the data."""

    photo: str
    mask: str
    split: str | None = None


@dataclasses.dataclass(frozen=True)
class Layout:
    """A known data set."""

    pairs: Callable[[Path], list[Pair]]  # from its folder
    rule: str | None = None  # from levels to classes, as `dense.map_labels` takes it
    class_names: tuple[str, ...] | None = None  # in their order; `None` where the masks' numbers are the names


def pairs_by_stem(photos: Path, masks: Path, noun: str = "mask", suffixes: Collection[str] = SUFFIXES) -> list[Pair]:
    """Each photo with the map at the same place and of the same stem; a first folder may be a split.

    Raises:
        ValueError: for a photo without a map, a map without a photo, two files of one stem, and a folder that cannot
            be listed.
    """
    of_photos, of_masks = _by_stem(photos, "photos", SUFFIXES), _by_stem(masks, f"{noun}s", suffixes)
    alone = [of_photos[stem] for stem in of_photos if stem not in of_masks]
    without = [of_masks[stem] for stem in of_masks if stem not in of_photos]
    if alone or without:
        parts = [
            f"{len(files):,} {what}, as {', '.join(map(printable, files[:_NAMED]))}"
            for files, what in ((alone, f"photo(s) without a {noun}"), (without, f"{noun}(s) without a photo"))
            if files
        ]
        raise ValueError(
            f"each photo must have a {noun} of its stem in the same folder below, and each {noun} a photo.\n"
            f"Received: {'; '.join(parts)}. Move them away, or list the pairs in a .csv file with path and "
            f"{noun.split()[0]}."
        )
    return [Pair(of_photos[stem], of_masks[stem], split_of(stem)) for stem in sorted(of_photos)]


def _by_stem(folder: Path, what: str, suffixes: Collection[str]) -> dict[str, str]:
    """Files by their path below the folder without its suffix."""
    found: dict[str, str] = {}
    for path in files_below(folder, suffixes):
        stem = os.path.splitext(path.relative_to(folder).as_posix())[0]
        if stem in found:
            raise ValueError(
                f"{what} of one folder must have different stems.\n"
                f"Received: {printable(found[stem])} and {printable(path)}. Move one of them away."
            )
        found[stem] = str(path)
    return found


def files_below(folder: Path, suffixes: Collection[str] = SUFFIXES) -> list[Path]:
    """The photos or maps below a folder, which must all be readable; what is passed over is named in a warning."""
    passed = PassedOver()
    found = sorted(photos_below(folder, suffixes, passed))
    passed.check()
    passed.others = [path for path in passed.others if may_hold_photos(os.path.basename(path))]  # as `1.png.1`
    for line in passed.notes():
        warnings.warn(line, stacklevel=2)
    return found


def split_of(stem: str) -> str | None:
    first, slash, _ = stem.partition("/")
    return SPLIT_ALIASES.get(first.lower()) if slash else None


def of_all_or_none(splits: Sequence[str | None], files: Sequence[object]) -> list[str] | None:
    """The splits of files; `None` where none has one, and an error where some have none."""
    named = [split for split in splits if split is not None]
    if named and len(named) < len(splits):
        raise ValueError(
            "photos must all lie in folders of splits, train, validation and test, or none of them.\n"
            f"Received: {printable(files[splits.index(None)])}, which lies in none."
        )
    return named or None


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
        for photo in (file for file in files_below(path / "leftImg8bit" / split) if file.name.endswith(end)):
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
class MapSplit(FileSplit):
    """Photos with a map each."""

    noun: ClassVar[str]  # what a map is called
    map_type: ClassVar[str]  # of its numbers, on their way into the graph

    folder: str = ""  # above the maps
    ignore_class: float = WHITE  # value of pixels that do not count
    # int64 `(n, K)`, pixels of each class in each mask, or `(n, 1)` of those that count.
    counts: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 0), "int64"))

    def read(self, path: str) -> np.ndarray:
        """The map in a file, `(H, W)`."""
        raise NotImplementedError

    def target(self, index: int) -> np.ndarray:
        """`(H, W)`: the classes, int32, or depths, float32, of a photo's pixels, at its size."""
        return self.read(self._path(index))

    def _path(self, index: int) -> str:
        return os.path.join(self.folder, self.labels[index, 0])

    def check(self, index: int) -> BadImage | None:
        if (image := super().check(index)) is not None:
            return image
        path = self._path(index)
        try:
            size = self.target(index).shape
        except (OSError, ValueError) as error:
            return BadImage(path, f"a {self.noun} that can no longer be read: {str(error).splitlines()[-1]}")
        photo = photo_size(str(self.paths[index]), int(self.orientations[index]))
        words = f"a {self.noun} of {_sides(size)} for a photo of {_sides(photo)}"
        return None if size == photo else BadImage(path, words)

    @property
    def at_once(self) -> int:
        return 1 if self.needs_pillow else 4  # maps are whole in memory

    def reader(self) -> Callable[[Tensor], dict[str, Tensor]]:
        import tensorflow as tf

        read_photos, type_ = super().reader(), np.dtype(self.map_type).newbyteorder("<")

        def maps(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = [self.target(number).astype(type_) for number in numbers]
            return np.array([one.tobytes() for one in found], object), np.array([one.shape for one in found])

        def read(index: Tensor) -> dict[str, Tensor]:
            levels, sizes = tf.numpy_function(maps, [index], (tf.string, tf.int64), stateful=False)
            sides = tf.ensure_shape(sizes, (None, 2))
            return read_photos(index) | {"label": tf.ensure_shape(levels, (None,)), "map_size": sides}

        return read

    def row(self, index: int) -> dict:
        return {"label": [self.labels[index, 0]], "path": str(self.paths[index])}

    def concatenate(self, other: FileSplit) -> FileSplit:
        counts = np.concatenate([self.counts, other.counts])  # type: ignore[attr-defined]
        return dataclasses.replace(super().concatenate(other), counts=counts)  # type: ignore[call-arg]

    def take(self, numbers: np.ndarray) -> FileSplit:
        return dataclasses.replace(super().take(numbers), counts=self.counts[numbers])  # type: ignore[call-arg]


@dataclasses.dataclass(frozen=True, eq=False)
class MaskSplit(MapSplit):
    """Photos with a mask each."""

    noun: ClassVar[str] = "mask"
    map_type: ClassVar[str] = "uint16"

    rule: str | None = None  # of `dense.map_labels`; `None` for levels as they are
    coco: CocoMasks | None = None  # which has the masks in place of files

    def read(self, path: str) -> np.ndarray:
        from keras_vit.dense import read_mask

        if self.coco is not None:
            return self.coco.read(path, self.ignore_class)
        return read_mask(path, self.rule)  # type: ignore[arg-type]


class MapTargets(Targets):
    """A map of the pixels of each photo.

    Args:
        maps: their folder; `None` for a table with a column of them, and for a folder that has them next to `images`.
        ignore_class: value of pixels that do not count.
    """

    noun: ClassVar[str] = "mask"  # what a map is called
    option: ClassVar[str] = "masks"  # that names their folder
    column: ClassVar[str] = "mask"  # of a table
    beside: ClassVar[tuple[str, ...]] = ("masks", "annotations")  # names of their folder next to `images`
    suffixes: ClassVar[Collection[str]] = SUFFIXES
    file: ClassVar[str] = "picture"  # what a map is in

    def __init__(self, maps: str | None, ignore_class: float) -> None:
        self.maps, self.ignore_class = maps, ignore_class

    # Finding

    def open(self, path: Path, seed: int, on_bad_image: str) -> Source | None:
        """The source of a folder of photos; `None` for anything else, as a table."""
        if not os.path.isdir(path):
            return None
        photos, folder = self._folders(path)
        pairs = pairs_by_stem(photos, folder, self.noun, self.suffixes)
        _warn_of_other_folders(path, (photos, folder))
        return self._of_pairs(path, folder, pairs, seed, on_bad_image)

    def _folders(self, path: Path) -> tuple[Path, Path]:
        """Those of the photos and of the maps."""
        if self.maps is not None:
            folder = expand_path(self.maps)
            if not os.path.isdir(folder):
                known = f", a .json file of COCO, or a layout of {', '.join(LAYOUTS)}" if self.option == "masks" else ""
                raise ValueError(
                    f"`{self.option}` must be a folder{known}.\nReceived: {printable(self.maps)}, where no folder is."
                )
            return path, folder
        pairs = [(path / photos, path / maps) for photos in ("images", "photos") for maps in self.beside]
        found = [pair for pair in pairs if all(map(os.path.isdir, pair))]
        if not found:
            raise ValueError(
                f"each photo must have a {self.noun}, in a second folder with the same stems.\n"
                f"Received: {str(path)!r} and no `{self.option}`, without the folders `images` and `{self.beside[0]}` "
                f"in it. Pass `{self.option}` (`--{self.option} FOLDER`)."
            )
        return found[0]

    def _of_pairs(self, path: Path, folder: Path, pairs: Sequence[Pair], seed: int, on_bad_image: str) -> Source:
        if not pairs:
            raise ValueError(f"there must be photos.\nReceived: {str(path)!r} without any.")
        labels = _as_labels([os.path.relpath(pair.mask, folder) for pair in pairs])
        files = [pair.photo for pair in pairs]
        splits = of_all_or_none([pair.split for pair in pairs], files)
        found = source_from_files(path, self.option, (), files, labels, splits, seed, on_bad_image, targets=self)
        return self.complete(found, folder)

    def columns(self, path: Path, header: Sequence[str]) -> Sequence[str]:
        if self.column not in header:
            raise ValueError(
                f"a table of photos and {self.noun}s must have the columns path and {self.column}.\n"
                f"Received: {str(path)!r} with the columns {list(header)}."
            )
        if self.maps is not None:
            raise ValueError(
                f"a table says where its {self.noun}s are, in the column `{self.column}`.\n"
                f"Received: {self.option}={self.maps!r} for {str(path)!r}. Leave `{self.option}` out."
            )
        return (self.column,)

    def of_table(self, path: Path, rows: Sequence[Mapping[str, Any]]) -> tuple[Sequence[str], np.ndarray]:
        if not rows:
            raise ValueError(f"a table must have rows.\nReceived: {str(path)!r}, whose first line is its only one.")
        for row in rows:
            if not os.path.isfile(path.parent / row[self.column]):
                raise ValueError(
                    f"every photo must have its {self.noun}.\n"
                    f"Received: {row_word(path)} {row['line']} of {str(path)!r}: {row[self.column]!r}, where no file "
                    "is."
                )
        return (), _as_labels([row[self.column] for row in rows])

    # Checking

    def complete(self, source: Source, folder: Path) -> Source:
        if any(isinstance(split, MapSplit) or not isinstance(split, FileSplit) for split in source.splits.values()):
            return source
        read = {name: self.read_all(split, folder) for name, split in source.splits.items()}
        maps = [one for of_split in read.values() for one in of_split]
        self.check_files(maps)
        names, make_split = self.check_maps(maps)
        splits = {}
        for name, split in source.splits.items():
            counts = np.array([one.counts(len(names), self.ignore_class) for one in read[name]], "int64")
            files = split.paths, split.labels, split.orientations, split.needs_pillow
            splits[name] = make_split(*files, str(folder), self.ignore_class, counts.reshape(-1, len(names)))
        return dataclasses.replace(source, class_names=tuple(names), splits=splits, kind=self.option)

    def check_file(self, path: str) -> None:
        """Raises an error of what is no regular file."""
        with open_regular(path):  # a pipe would be waited for
            pass

    def read_map(self, path: str, photo: str, turn: int) -> Any:
        """The `MapFile` of a path, with the path and the EXIF orientation of its photo."""
        raise NotImplementedError

    def check_maps(self, maps: Sequence[Any]) -> tuple[Sequence[str], Callable[..., "MapSplit"]]:
        """Names of the classes of all maps, and what makes a split of the fields of a `MapSplit`.

        Raises:
            ValueError: for maps of which nothing can be learned.
        """
        raise NotImplementedError

    def check_source(self, source: Any) -> None:
        if any(not isinstance(split, MapSplit) or split.noun != self.noun for split in source.splits.values()):
            raise ValueError(
                f"each photo must have a {self.noun}, from a second folder with the same stems or a table.\n"
                f"Received: {printable(source.name)} ({source.kind}). Pass a folder of photos and `{self.option}`, or "
                f"a .csv file whose first line is 'path,{self.column}'."
            )

    def read_all(self, split: FileSplit, folder: Path) -> list[Any]:
        """What is known of each map of a split."""

        from PIL import Image

        def one(index: int) -> Any:
            path = os.path.join(folder, split.labels[index, 0])
            try:
                self.check_file(path)
                return self.read_map(path, str(split.paths[index]), int(split.orientations[index]))
            except FileKindError as error:
                reason = error.reason
            except (OSError, MemoryError, Image.DecompressionBombError) as error:
                reason = getattr(error, "strerror", None) or str(error)
            raise ValueError(f"a {self.noun} must be a {self.file}.\nReceived: {printable(path)}: {reason}.")

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(one, range(split.size)))

    def check_files(self, masks: "Sequence[MapFile]") -> None:
        """Refuses maps of other sizes than their photos', and warns of those that may not be upright."""
        if wrong := [mask for mask in masks if mask.size != mask.photo_size]:
            turned = any(mask.size == mask.photo_size[::-1] for mask in wrong)
            words = f" Photos with an EXIF orientation are turned upright, and so must their {self.noun}s be."
            found = (f"{printable(mask.path)} of {_sides(mask.size)} for {_sides(mask.photo_size)}" for mask in wrong)
            raise ValueError(
                f"a {self.noun} must have the size of its photo.\nReceived: {some(found, len(wrong))} pixels."
                + words * turned
            )
        if sideways := [mask.path for mask in masks if mask.turns[1] != 1]:
            warnings.warn(
                f"{len(sideways):,} {self.noun}(s) have an EXIF orientation, which is not applied to {self.noun}s: "
                f"{some(map(printable, sideways), len(sideways))}. Save them upright, without it.",
                stacklevel=2,
            )
        elif photos := [mask.photo for mask in masks if mask.turns[0] != 1]:
            warnings.warn(
                f"{len(photos):,} photo(s) are turned upright by their EXIF orientation, and their {self.noun}s are "
                f"taken to be upright already: {some(map(printable, photos), len(photos))}.",
                stacklevel=2,
            )


class MaskTargets(MapTargets):
    """A mask for each photo.

    Args:
        masks: the folder of the masks, a `.json` file of COCO, or the name of a layout; `None` for a table with the
            column `mask`, and for a folder with `images` and `masks` in it.
        rule: from levels to classes, as `dense.map_labels` takes it; by default that of the layout.
        class_names: of the K classes in their order; by default those of the layout or of the `.json` file, else the
            numbers from 0 to the highest in the masks.
        ignore_class: label of pixels that do not count.
    """

    def __init__(
        self,
        masks: str | None = None,
        rule: str | None = None,
        class_names: Sequence[str] | None = None,
        ignore_class: int = WHITE,
    ) -> None:
        super().__init__(masks, ignore_class)
        self.layout = LAYOUTS.get(masks or "")
        self.rule = rule if rule is not None or self.layout is None else self.layout.rule
        self.class_names = None if class_names is None else tuple(class_names)
        self.coco: CocoMasks | None = None  # once it is opened

    def open(self, path: Path, seed: int, on_bad_image: str) -> Source | None:
        if self.maps is not None and self.maps.lower().endswith(".json") and os.path.isdir(path):
            return self._open_coco(path, seed, on_bad_image)
        if self.layout is None or not os.path.isdir(path):
            return super().open(path, seed, on_bad_image)
        return self._of_pairs(path, path, self.layout.pairs(path), seed, on_bad_image)

    def _open_coco(self, path: Path, seed: int, on_bad_image: str) -> Source:
        if self.rule is not None:
            raise ValueError(
                f"a rule is for masks in files.\nReceived: {self.rule!r} for {printable(self.maps)}. Leave it out."
            )
        self.coco = coco = read_coco(expand_path(str(self.maps)))
        if self.class_names not in (None, coco.class_names):
            raise ValueError(
                "the annotations must have the classes that are named, in the same order.\n"
                f"Received: {_listed(coco.class_names)} for {_listed(self.class_names or ())}."
            )
        photos, names = listed_photos(coco, path), [image.photo for image in coco.images.values()]
        pairs = [
            Pair(photo, str(coco.folder / of_map), split_of(name))
            for photo, name, of_map in zip(photos, names, coco.images, strict=True)
        ]
        known = {os.path.abspath(photo) for photo in photos}
        if others := [
            file for file in files_below(path) if os.path.abspath(file) not in known and not _below(file, coco)
        ]:
            warnings.warn(
                f"{len(others):,} photo(s) that {printable(self.maps)} does not list are not read: "
                f"{some(map(printable, others), len(others))}.",
                stacklevel=2,
            )
        return self._of_pairs(path, coco.folder, pairs, seed, on_bad_image)

    # Checking

    def complete(self, source: Source, folder: Path) -> Source:
        found = super().complete(source, folder)
        if found is not source:
            _warn_of_classes(found)
        return found

    def check_maps(self, maps: "Sequence[_Mask]") -> tuple[Sequence[str], Callable[..., MapSplit]]:
        self._check_whole_set(maps)
        _warn_of_palettes(maps)
        names = self._names(maps)
        self._check_values(maps, len(names))
        return names, functools.partial(MaskSplit, rule=self.rule, coco=self.coco)

    def check_source(self, source: Any) -> None:
        super().check_source(source)
        if self.class_names is not None and self.class_names != source.class_names:
            raise ValueError(
                "the data must have the classes that are named, in the same order.\n"
                f"Received: {list(source.class_names[:10])} for {list(self.class_names[:10])}."
            )

    def check_file(self, path: str) -> None:
        super().check_file(path) if self.coco is None else check_map(self.coco, path)

    def read_map(self, path: str, photo: str, turn: int) -> "_Mask":
        from keras_vit.dense import map_labels, read_mask

        raw = read_mask(path) if self.coco is None else self.coco.read(path, self.ignore_class)
        levels = np.unique(raw)
        if levels[0] < 0 or levels[-1] > _LARGEST:
            raise ValueError(f"a mask must hold levels of 8 or 16 bits.\nReceived: {printable(path)}.")
        classes = raw if self.rule is None else map_labels(raw, self.rule)  # type: ignore[arg-type]
        values, counts = np.unique(classes, return_counts=True)
        pixels = dict(zip(values.tolist(), counts.tolist(), strict=True))
        own_turn, colors = 1, {}
        if self.coco is None:
            own_turn, colors = exif_orientation(Path(path).read_bytes()), _colors(path, levels.tolist())
        return _Mask(path, photo, raw.shape, photo_size(photo, turn), (turn, own_turn), levels, pixels, colors)

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
                f"{some(named, len(empty))}, all {self.ignore_class}.",
                stacklevel=2,
            )

    def _names(self, masks: "Sequence[_Mask]") -> tuple[str, ...]:
        known = self.layout or self.coco
        names = self.class_names or (known.class_names if known is not None else None)
        if names is None:
            highest = max(value for mask in masks for value in mask.pixels if value != self.ignore_class)
            names = tuple(map(str, range(highest + 1)))
        if self.ignore_class < len(names):
            raise ValueError(
                "the label of pixels that do not count must not be that of a class.\n"
                f"Received: ignore_class={self.ignore_class} for {len(names)} classes, "
                f"{names[int(self.ignore_class)]!r} among them. Pass another `ignore_class` (`--ignore-class`)."
            )
        return tuple(names)

    def _check_values(self, masks: "Sequence[_Mask]", classes: int) -> None:
        known = {*range(classes), self.ignore_class}
        wrong = [(mask, sorted(set(mask.pixels) - known)) for mask in masks if set(mask.pixels) - known]
        if wrong:
            found = (f"{printable(mask.path)} with {_listed(values)}" for mask, values in wrong)
            raise ValueError(
                f"a mask must hold the classes 0 to {classes - 1}, and {self.ignore_class} for pixels that do not "
                f"count.\nReceived: {some(found, len(wrong))}. Name all classes, or pass a rule (`--mask-rule`)."
            )


def _below(file: Path, coco: CocoMasks) -> bool:
    """Whether a picture is one of the panoptic masks, which may lie below the photos."""
    return coco.are_pictures and os.path.abspath(coco.folder) in map(str, Path(os.path.abspath(file)).parents)


def _colors(path: str, levels: Sequence[int]) -> dict[int, tuple[int, ...]]:
    from PIL import Image

    with Image.open(path) as file:
        palette = (file.getpalette() if file.mode == "P" else None) or []
    return {level: tuple(palette[3 * level : 3 * level + 3]) for level in levels if 3 * level < len(palette)}


def _warn_of_palettes(masks: "Sequence[_Mask]") -> None:
    """Warns of a level that has one colour in the palette of a file and another in that of another file."""
    first: dict[int, _Mask] = {}
    for mask in masks:
        for level, color in mask.colors.items():
            other = first.setdefault(level, mask)
            if other.colors[level] != color:
                warnings.warn(
                    f"palettes of masks differ: {level} is the colour {other.colors[level]} in {printable(other.path)} "
                    f"and {color} in {printable(mask.path)}. Levels are read as classes, not colours. If the colours "
                    "are the classes, write all masks with one palette.",
                    stacklevel=2,
                )
                return


def _warn_of_other_folders(path: Path, read: tuple[Path, Path]) -> None:
    """Warns of folders with photos next to those of the photos and masks."""
    others = [] if path in read else [folder for folder in folders_in(path, PassedOver()) if folder not in read]
    if others := [folder for folder in others if next(photos_below(folder), None) is not None]:
        warnings.warn(
            f"{printable(read[0])} and {printable(read[1])} are read, and pictures in other folders left out: "
            f"{some(map(printable, others), len(others))}.",
            stacklevel=2,
        )


@dataclasses.dataclass(frozen=True)
class MapFile:
    """A map and its photo, with the sizes and the EXIF orientations of photo and map."""

    path: str
    photo: str
    size: tuple[int, ...]
    photo_size: tuple[int, int]
    turns: tuple[int, int]

    def counts(self, classes: int, ignored: float) -> np.ndarray:
        """Pixels of each class, int64 `(K,)`."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class _Mask(MapFile):
    """What a check needs to know of a mask: levels as in the file, and pixels by class after the rule."""

    levels: np.ndarray
    pixels: Mapping[int, int]
    colors: Mapping[int, tuple[int, ...]]  # of the levels, by the palette; empty without one

    def counts(self, classes: int, ignored: float) -> np.ndarray:
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


def some(found: Iterable[str], count: int) -> str:
    named = [text for _, text in zip(range(_NAMED), found, strict=False)]
    return "; ".join(named) + (f"; and {count - _NAMED:,} more" if count > _NAMED else "")
