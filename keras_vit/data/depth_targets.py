"""Depth maps of photos: metres in `.npy` files, or levels of 16-bit pictures with a scale, checked before training.

A depth of 0, NaN or infinity, or one beyond the range, does not count; it is 0 in what is read. Depths pass as float32,
so that those of a `.npy` file stay as they are.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from keras_vit.data.mask_targets import MapFile, MapSplit, MapTargets, photo_size, some
from keras_vit.images.headers import exif_orientation
from keras_vit.images.photo_files import SUFFIXES
from keras_vit.pages.formatting import printable

ARRAY = ".npy"
_LEVELS = ("I;16", "I;16B", "I")  # modes of Pillow with 16 bits and more
_MANY_BEYOND = 0.5  # of the depths that are known
_NAMES = ("depth",)


def read_depths(path: str, scale: float | None) -> np.ndarray:
    """float32 `(H, W)` in metres, of a `.npy` file or of a 16-bit picture whose level has `scale` metres.

    It has 0, NaN and infinity where a depth is not known.

    Raises:
        ValueError: with the path, for another file, depths below 0, and levels without a scale.
        OSError: for a file that cannot be read.
    """
    from PIL import Image

    if path.lower().endswith(ARRAY):
        try:
            with open(path, "rb") as opened:
                values = np.lib.format.read_array(opened, allow_pickle=False)
        except (ValueError, MemoryError) as error:
            raise ValueError(f"a depth map must be an array of NumPy.\nReceived: {printable(path)}: {error}.") from None
        if values.ndim != 2 or values.dtype.kind != "f" or not values.size:
            raise ValueError(
                "depths of a .npy file must be metres, float numbers (H, W).\n"
                f"Received: {printable(path)}, {values.dtype} of shape {values.shape}."
            )
        depths = values.astype("float32")
    else:
        with Image.open(path) as file:
            mode, unit = file.mode, file.info.get("unit")
            levels = np.asarray(file) if mode in _LEVELS else None
        if levels is None or unit == "inverse":
            what = "an inverse depth without a unit" if levels is not None else f"a {file.format} of mode {mode}"
            raise ValueError(
                "a depth map must hold metres, as levels of 16 bits or in a .npy file.\n"
                f"Received: {printable(path)}, {what}."
            )
        if scale is None:
            raise ValueError(
                "levels of a picture need their scale: the metres of one level.\n"
                f"Received: {printable(path)} with levels up to {levels.max():,}. Pass `depth_scale` "
                "(`--depth-scale`): 0.001 for millimetres, 0.00390625 for KITTI's 1/256 m."
            )
        depths = (levels * np.float64(scale)).astype("float32")
    if (least := depths.min(where=np.isfinite(depths), initial=0)) < 0:
        raise ValueError(f"depths must be at least 0.\nReceived: {printable(path)} with {least:.6g} m.")
    return depths


def counts_in(depths: np.ndarray, depth_range: Sequence[float]) -> np.ndarray:
    """bool `(H, W)`: which depths count, those between both ends."""
    return (depths > depth_range[0]) & (depths < depth_range[1])  # NaN is neither


@dataclasses.dataclass(frozen=True, eq=False)
class DepthSplit(MapSplit):
    """Photos with a depth map each."""

    noun: ClassVar[str] = "depth map"
    map_type: ClassVar[str] = "float32"

    ignore_class: float = 0.0
    scale: float | None = None  # metres of a level of pictures
    depth_range: tuple[float, float] = (0.0, float("inf"))  # in metres; others do not count

    def read(self, path: str) -> np.ndarray:
        depths = read_depths(path, self.scale)
        return np.where(counts_in(depths, self.depth_range), depths, np.float32(0))


@dataclasses.dataclass(frozen=True)
class _DepthFile(MapFile):
    """What a check needs to know of a depth map: pixels that are known, those that count, and depths in metres."""

    known: int
    counted: int
    least: float
    largest: float

    def counts(self, classes: int, ignored: float) -> np.ndarray:
        return np.array([self.counted])


class DepthTargets(MapTargets):
    """A depth map for each photo.

    Args:
        depths: the folder of the maps; `None` for a table with the column `depth`, and for a folder with `images` and
            `depths` in it.
        scale: metres of a level of 16-bit pictures.
        depth_range: smallest and largest depth, in metres.
    """

    noun: ClassVar[str] = "depth map"
    option: ClassVar[str] = "depths"
    column: ClassVar[str] = "depth"
    beside: ClassVar[tuple[str, ...]] = ("depths", "depth")
    suffixes: ClassVar[Collection[str]] = {*SUFFIXES, ARRAY}
    file: ClassVar[str] = "16-bit picture or a .npy file"

    def __init__(
        self, depths: str | None = None, scale: float | None = None, depth_range: tuple[float, float] | None = None
    ) -> None:
        super().__init__(depths, 0.0)
        self.scale, self.depth_range = scale, depth_range

    def check_maps(self, maps: Sequence[_DepthFile]) -> tuple[Sequence[str], Callable[..., MapSplit]]:
        return _NAMES, functools.partial(DepthSplit, scale=self.scale, depth_range=self._check_depths(maps))

    def read_map(self, path: str, photo: str, turn: int) -> _DepthFile:
        depths = read_depths(path, self.scale)
        known = np.isfinite(depths) & (depths > 0)
        counted = known if self.depth_range is None else counts_in(depths, self.depth_range)
        least, largest = (float(depths[known].min()), float(depths[known].max())) if known.any() else (0.0, 0.0)
        turns = (turn, 1 if path.lower().endswith(ARRAY) else exif_orientation(Path(path).read_bytes()))
        sizes = depths.shape, photo_size(photo, turn)
        return _DepthFile(path, photo, *sizes, turns, int(known.sum()), int(counted.sum()), least, largest)

    def _check_depths(self, maps: Sequence[_DepthFile]) -> tuple[float, float]:
        """The range; refuses what leaves nothing to learn, and warns of what looks like another unit."""
        known = [one for one in maps if one.known]
        if not known:
            raise ValueError(
                "depth maps must have depths.\n"
                f"Received: {len(maps):,} maps of 0 and NaN alone, as {printable(maps[0].path)}."
            )
        low, high = (min(known, key=lambda one: one.least), max(known, key=lambda one: one.largest))
        found = (
            f"depths from {low.least:.6g} m in {printable(low.path)} to {high.largest:.6g} m in {printable(high.path)}"
        )
        if self.depth_range is None:
            raise ValueError(
                "depths need the range that counts, the smallest and the largest in metres, which no file holds.\n"
                f"Received: {found}. Pass `depth_range` (`--depth-range NEAR FAR`), as 0.001 10 for NYUv2."
            )
        if self.scale is not None and all(one.path.lower().endswith(ARRAY) for one in maps):
            raise ValueError(
                "`depth_scale` is for levels of pictures, and .npy files hold metres.\n"
                f"Received: depth_scale={self.scale:g} for .npy files alone, as {printable(maps[0].path)}. Leave it "
                "out."
            )
        between = "{:g} to {:g} m".format(*self.depth_range)
        if low.least == high.largest:
            raise ValueError(f"depth maps must hold different depths.\nReceived: {found} alone.")
        count, counted = sum(one.known for one in maps), sum(one.counted for one in maps)
        if not counted:
            raise ValueError(
                f"depths must lie in the range, {between}.\n"
                f"Received: {found}, none inside. Pass metres, or another `depth_scale` or `depth_range`."
            )
        if count - counted > _MANY_BEYOND * count:
            warnings.warn(
                f"{1 - counted / count:.0%} of the depths lie beyond the range, {between}, and do not count: {found}. "
                "Check their unit.",
                stacklevel=2,
            )
        if empty := [one.path for one in maps if not one.counted]:
            warnings.warn(
                f"{len(empty):,} of {len(maps):,} depth maps have no pixel that counts, so nothing is learned from "
                f"them: {some(map(printable, empty), len(empty))}.",
                stacklevel=2,
            )
        return self.depth_range

    def check_source(self, source: Any) -> None:
        super().check_source(source)
        other = next((one for one in source.splits.values() if one.depth_range != self.depth_range), None)
        if other is not None and self.depth_range is not None:
            raise ValueError(
                "the data must have been opened with the range of the task.\n"
                f"Received: depths of {other.depth_range} m for depth_range={self.depth_range}. Pass their path."
            )
