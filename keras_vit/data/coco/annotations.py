"""COCO's JSON of instances, or of panoptic pictures, as masks of classes.

The format is that of https://cocodataset.org/#format-data.
"""

import dataclasses
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.data.coco.rasters import draw
from keras_vit.files import json_object, open_regular
from keras_vit.images.decode import max_pixels
from keras_vit.pages.formatting import printable

BACKGROUND = "background"
_MOST_BYTES = 1 << 32  # of a file; that of COCO's 118,287 training photos has 0.45e9
_NAMED = 3
_VOID = 0  # of a panoptic picture


@dataclasses.dataclass(frozen=True)
class _Item:
    """One annotation: `what` are polygons or runs, or the number of a panoptic segment."""

    number: Any
    what: Any
    place: int  # of its class
    is_crowd: bool


@dataclasses.dataclass(frozen=True)
class _Image:
    photo: str  # below the folder of photos
    sides: tuple[int, int]
    items: list[_Item]


@dataclasses.dataclass(frozen=True, eq=False)
class CocoMasks:
    """Masks of a file of annotations.

    Attributes:
        folder: the file itself, of instances, or the folder of the panoptic pictures; maps are named below it.
        class_names: those of the categories in the order of their ids, after `background` for instances.
        are_pictures: whether the annotations are panoptic.
        images: by the names of their maps.
    """

    folder: Path
    class_names: tuple[str, ...]
    are_pictures: bool
    images: Mapping[str, _Image]

    def read(self, path: str, ignore_class: float) -> np.ndarray:
        """int32 `(H, W)`: the classes of an image, by the path of its map.

        Raises:
            ValueError: for polygons, runs or a picture that do not fit, with the annotation and its value.
            OSError: for a picture that cannot be read.
        """
        image = self.images[os.path.relpath(path, self.folder)]
        try:
            if self.are_pictures:
                return _of_picture(path, image.items, ignore_class)
            return _of_instances(image)
        except ValueError as error:
            raise ValueError(f"annotations must fit their image.\nReceived: {printable(path)}: {error}.") from None


def _of_picture(path: str, items: Sequence[_Item], ignore_class: float) -> np.ndarray:
    from PIL import Image

    with Image.open(path) as file:
        if file.mode not in ("RGB", "RGBA"):
            raise ValueError(f"a picture of mode {file.mode}, where ids are R + 256 G + 65536 B")
        levels = np.asarray(file)[..., :3].astype("int32")
    ids, inverse = np.unique(levels @ np.array([1, 256, 65536], "int32"), return_inverse=True)
    places = {_VOID: int(ignore_class)} | {item.what: item.place for item in items}
    if unknown := [number for number in ids.tolist() if number not in places]:
        raise ValueError(f"{len(unknown)} segment(s) that segments_info does not list, as {unknown[0]}")
    return np.array([places[number] for number in ids.tolist()], "int32")[inverse].reshape(levels.shape[:2])


def _of_instances(image: _Image) -> np.ndarray:
    """Smaller instances lie on larger ones, and crowds below all; of equal ones the later lies on top."""
    drawn = []
    for item in image.items:
        try:
            pixels = draw(item.what, *image.sides)
        except ValueError as error:
            raise ValueError(f"annotation {item.number}: {error}") from None
        drawn.append((not item.is_crowd, -int(pixels.sum()), pixels, item.place))
    mask = np.zeros(image.sides, "int32")
    for _, _, pixels, place in sorted(drawn, key=lambda one: one[:2]):
        mask[pixels] = place
    return mask


def read_coco(path: Path) -> CocoMasks:
    """Reads a file of annotations and checks how its parts refer to each other; polygons are drawn when they are read.

    Raises:
        ValueError: for damaged JSON, keys that are missing, ids that are twice or unknown, and panoptic images without
            annotation.

    Warns:
        UserWarning: for images without an instance, which are all background.
    """
    try:
        found = json_object(path, _MOST_BYTES)
    except ValueError as error:
        raise _fault(path, " ".join(str(error).splitlines())) from None
    if missing := [key for key in ("images", "annotations", "categories") if not isinstance(found.get(key), list)]:
        raise _fault(path, f"no list {', '.join(map(repr, missing))}")
    try:
        return _read(path, found)
    except (KeyError, TypeError, AttributeError) as error:
        reason = f"an entry without {error}" if isinstance(error, KeyError) else f"an entry of another kind: {error}"
        raise _fault(path, reason) from None


def _read(path: Path, found: Mapping[str, Any]) -> CocoMasks:
    records, annotations = found["images"], found["annotations"]
    categories = _by_id(path, "category", found["categories"])
    images = _by_id(path, "image", records)
    for one in records:
        name, height, width = (one[key] for key in ("file_name", "height", "width"))
        if not isinstance(name, str) or not all(isinstance(side, int) and side > 0 for side in (height, width)):
            raise _fault(path, f"the image {one['id']} with {(name, height, width)}, not a name and two sides")
        if height * width > max_pixels():
            raise _fault(path, f"the image {one['id']} of {height}x{width}, and at most {max_pixels():,} pixels may be")
    are_pictures = any("segments_info" in one for one in annotations)
    names = [str(categories[number]["name"]) for number in sorted(categories)]
    names = names if are_pictures else [BACKGROUND, *names]
    places = {number: place + (not are_pictures) for place, number in enumerate(sorted(categories))}
    items: dict[Any, list[_Item]] = {}
    maps: dict[Any, str] = {}
    for one in annotations:
        number = one.get("id", one["image_id"])
        if one["image_id"] not in images:
            raise _fault(path, f"annotation {number} of the image {one['image_id']}, which is not listed")
        if are_pictures and one["image_id"] in maps:
            raise _fault(path, f"the image {one['image_id']} with two annotations")
        maps[one["image_id"]] = one["file_name"] if are_pictures else ""
        for part in one["segments_info"] if are_pictures else [one]:
            if part["category_id"] not in places:
                raise _fault(path, f"annotation {number} with the category_id {part['category_id']}, which is unknown")
            what = part["id"] if are_pictures else _compact(part["segmentation"])
            item = _Item(number, what, places[part["category_id"]], bool(part.get("iscrowd")))
            items.setdefault(one["image_id"], []).append(item)
    if alone := [str(one["file_name"]) for number, one in images.items() if number not in maps]:
        named = f"{len(alone):,} image(s) without annotation, as {', '.join(map(printable, alone[:_NAMED]))}"
        if are_pictures:
            raise _fault(path, named)
        warnings.warn(f"{printable(path)} has {named}; they are {BACKGROUND} alone.", stacklevel=2)
    by_map = {
        os.path.normpath(maps[number] if are_pictures else one["file_name"]): _Image(
            one["file_name"], (one["height"], one["width"]), items.get(number, [])
        )
        for number, one in images.items()
    }
    if len(by_map) < len(images):
        raise _fault(path, "two images with one file_name")
    beside = path.with_suffix("")
    folder = path if not are_pictures else beside if beside.is_dir() else path.parent
    return CocoMasks(folder, tuple(names), are_pictures, by_map)


def _compact(segmentation: Any) -> Any:
    """Polygons as arrays, which take an eighth of the memory of lists; anything else is left to `draw`."""
    if not isinstance(segmentation, list):
        return segmentation
    try:
        return [np.array(polygon, "float64") for polygon in segmentation]
    except (TypeError, ValueError):
        return segmentation


def _by_id(path: Path, what: str, records: Sequence[Any]) -> dict[Any, Any]:
    by_id = {one["id"]: one for one in records}
    if len(by_id) < len(records) or not by_id:
        raise _fault(path, f"two with one id of {what}" if by_id else f"no {what}")
    return by_id


def _fault(path: Path, reason: str) -> ValueError:
    return ValueError(f"annotations must be COCO's JSON.\nReceived: {printable(path)}: {reason}.")


def listed_photos(coco: CocoMasks, folder: Path) -> list[str]:
    """Paths of the photos in the order of `images`.

    Raises:
        ValueError: for photos that are not there.
    """
    photos = [str(folder / image.photo) for image in coco.images.values()]
    if lost := [photo for photo in photos if not os.path.isfile(photo)]:
        raise ValueError(
            "each image of the annotations must be in the folder of photos.\n"
            f"Received: {len(lost):,} that are not there, as {', '.join(map(printable, lost[:_NAMED]))}."
        )
    return photos


def check_map(coco: CocoMasks, path: str) -> None:
    """Raises an error of a picture that is no regular file."""
    if coco.are_pictures:
        with open_regular(path):  # a pipe would be waited for
            pass
