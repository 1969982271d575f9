"""Answers for photos of any size, at their own size: `segment` and `estimate_depth`.

Windows slide over a photo, and only those that a block of its pixels lies in are kept, as the head's own maps.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.checks import ArgumentError, check_flag, check_positive, check_positive_int, check_sides, with_hints
from keras_vit.config.heads import DEPTH, MASKS, SEGMENTATION
from keras_vit.dense.maps import Box, Size, at_taps, axis_taps, lower_bound_size, minimal_size, pad_to_multiple, windows
from keras_vit.images.numpy_pipeline import preprocess
from keras_vit.images.preprocessing import fit_channels, scaled
from keras_vit.images.read import read_image
from keras_vit.layers import ResizeToImages
from keras_vit.model.copies import unwrapped, with_input_shape
from keras_vit.model.dense_model import DenseModel
from keras_vit.weights.families import HEAD_LAYOUTS
from keras_vit.weights.families.dense_heads import HeadLayout

FAMILY = "family"
_MS_SIDE = 640  # of DINOv2's heads on four blocks
_LONGEST = 4  # times the shorter side, or
_LONG_SIDE = 2048  # pixels, whichever is more
_MOST_PIXELS = 1 << 20  # of a photo that passes whole
_BACK = {  # how depths are resized to the photo
    "own": ("bilinear", False),
    "lower_bound": ("bilinear", True),  # by corners
    "minimal": ("bicubic", False),
}
_BLOCK = 1 << 19  # numbers of a block of pixels
_KEPT = 1 << 28  # bytes of the maps of a row of windows
_WORTH_A_GRAPH = 6  # windows


@dataclasses.dataclass(frozen=True, eq=False)
class Segmentation:
    """The class of each pixel of a photo.

    Example:
        >>> classes = np.array([[0, 1], [1, 1]], "int32")
        >>> found = keras_vit.Segmentation(classes, None, ("sea", "sky"))
        >>> [found.class_names[number] for number in found.classes[0]]
        ['sea', 'sky']

    Attributes:
        classes: int32 `(H, W)`.
        scores: float32 `(H, W, K)`, or `None`: mean logits of one pass over the photo; of several, with `flip` or
            `ratios`, the mean of their softmax.
        class_names: names of the K classes, or `None`.
    """

    classes: np.ndarray
    scores: np.ndarray | None
    class_names: tuple[str, ...] | None


@dataclasses.dataclass(frozen=True, eq=False)
class DepthMap:
    """The depth of each pixel of a photo.

    Example:
        >>> found = keras_vit.DepthMap(np.full((2, 3), 1.5, "float32"), "metres")
        >>> found.values.max(), found.unit
        (np.float32(1.5), 'metres')

    Attributes:
        values: float32 `(H, W)`.
        unit: `"metres"`, or `"inverse"` for an inverse depth of no known unit.
    """

    values: np.ndarray
    unit: str


@with_hints
def segment(
    model: DenseModel,
    photos: Any,
    *,
    short_side: int | str | None = FAMILY,
    window: int | Size | None = None,
    stride: int | Size | None = None,
    ratios: Sequence[float] = (1.0,),
    flip: bool = False,
    scores: bool = False,
) -> Any:
    """Gives each pixel of photos of any size its class, by windows that slide over them.

    Logits of a window are resized to it, averaged where windows overlap, and resized to the photo (bilinear,
    half-pixel centres). Memory does not grow with the number of windows; `scores` take 4 K bytes a pixel.

    Example:
        >>> small = keras_vit.ViTConfig(8, 64, 4, num_heads=4, mlp_dim=128)
        >>> options = {"pooling": "none", "input_shape": (32, 32, 3)}
        >>> encoder = keras_vit.build(small, include_top=False, **options)
        >>> model = keras_vit.segmenter(encoder, "linear", classes=5)
        >>> found = keras_vit.segment(model, photos / "disc" / "0.jpg")
        >>> found.classes.shape, found.classes.dtype
        ((76, 71), dtype('int32'))

    Args:
        model: of `segmenter`, or of a run of the task `segmentation`.
        photos: a path, or uint8 `(H, W, 3)`; or a list of these.
        short_side: pixels that the shorter side is resized to before windows are cut, aspect kept, bilinear without
            antialiasing; the longer side gets at most four times that, or 2,048. `None` keeps the photo's size. By
            default that of the head's family, 512, or 640 for DINOv2's heads on four blocks; of a head that was
            begun afresh, that of the model.
        window: side of the windows, or `(rows, columns)`; by default `short_side`, or without it the family's.
        stride: from window to window, or `(rows, columns)`; by default two thirds of the window.
        ratios: sizes, as parts of the one above, at which the photo passes; softmaxes are averaged.
        flip: whether its mirror image passes too.
        scores: whether to keep the numbers that classes are chosen by.

    Returns:
        A `Segmentation` for one photo; a list of them for a list.

    Raises:
        TypeError: for a model of anything else, and for photos that are no pixels.
        ValueError: for sizes that cannot be, photos of another shape, and logits that are not finite.
        ImageError: (a `ValueError`) for a file that cannot be decoded.
        FileNotFoundError: for a photo that is not there.

    Source: mmsegmentation 1.2.2, `EncoderDecoder.slide_inference`; DINOv3's evaluation.
    """
    find = PhotoSegmenter(model, short_side, window, stride, ratios, flip)
    check_flag("scores", scores)
    return for_each(lambda photo: find(photo, scores), photos)


@with_hints
def estimate_depth(model: DenseModel, photos: Any, *, flip: bool = False) -> Any:
    """Measures the depth of each pixel of photos of any size.

    The photo passes whole, at the size that the head's family takes it: Depth Anything by `lower_bound_size` to 518
    pixels, transformers' DPT and Depth Anything by `minimal_size`, DINOv2's and DINOv3's heads at its own size. One of
    more than 1,048,576 pixels is made smaller to that many. A head that was begun afresh takes photos at its model's
    shorter side.

    Example:
        >>> small = keras_vit.ViTConfig(8, 64, 4, num_heads=4, mlp_dim=128)
        >>> options = {"pooling": "none", "input_shape": (32, 32, 3)}
        >>> encoder = keras_vit.build(small, include_top=False, **options)
        >>> model = keras_vit.depth_estimator(encoder, "linear", depth_range=(1, 9))
        >>> found = keras_vit.estimate_depth(model, photos / "disc" / "0.jpg")
        >>> found.values.shape, found.unit
        ((76, 71), 'metres')

    Args:
        model: of `depth_estimator`.
        photos: a path, or uint8 `(H, W, 3)`; or a list of these.
        flip: whether to give the mean of the photo's and its mirror image's depths.

    Returns:
        A `DepthMap` for one photo; a list of them for a list.

    Raises:
        TypeError: for a model of anything else, and for photos that are no pixels.
        ValueError: for photos of another shape, and depths that are not finite.
        ImageError: (a `ValueError`) for a file that cannot be decoded.
        FileNotFoundError: for a photo that is not there.

    Source: `infer_image` of Depth-Anything-V2; `DPTImageProcessor` of transformers; DINOv2's depth evaluation.
    """
    return for_each(PhotoDepths(model, flip), photos)


class PhotoSegmenter:
    """`segment` of one photo after another; the arguments are those of `segment`."""

    def __init__(
        self,
        model: Any,
        short_side: int | str | None = FAMILY,
        window: int | Size | None = None,
        stride: int | Size | None = None,
        ratios: Sequence[float] = (1.0,),
        flip: bool = False,
    ) -> None:
        self.maps = _HeadMaps(model, SEGMENTATION)
        own = self.maps.side(_MS_SIDE)
        if isinstance(short_side, str) and short_side != FAMILY:
            raise ArgumentError(
                "`short_side` must be pixels, None for the photo's size, or 'family'.\n"
                f"Received: short_side={short_side!r}."
            )
        self.short_side = own if short_side == FAMILY else short_side
        if self.short_side is not None:
            self.short_side = check_positive_int("short_side", self.short_side)
        self.window = _pair("window", self.short_side or own if window is None else window)
        if window is None and not self.maps.row.pads:
            self.window = self.maps.tiled(self.window)
        self.stride = _pair("stride", [max(side * 2 // 3, 1) for side in self.window] if stride is None else stride)
        if any(step > side for step, side in zip(self.stride, self.window, strict=True)):
            raise ArgumentError(
                "`stride` must be at most the window, so that windows cover the photo.\n"
                f"Received: window={self.window}, stride={self.stride}."
            )
        if not self.maps.row.pads and self.window != self.maps.tiled(self.window):
            raise ArgumentError(
                f"`window` must be multiples of the patch, {self.maps.patch} pixels, since this head does not pad.\n"
                f"Received: window={self.window}."
            )
        self.ratios = tuple(ratios) if isinstance(ratios, (tuple, list)) else (ratios,)
        for ratio in self.ratios:
            check_positive("ratios", ratio)
        if not self.ratios:
            raise ArgumentError("`ratios` must be one or more.\nReceived: none.")
        check_flag("flip", flip)
        self.flips = (False, True) if flip else (False,)
        self.class_names = self.maps.model.class_names

    def __call__(self, photo: Any, scores: bool = False) -> Segmentation:
        """The classes of one photo, a path or uint8 `(H, W, C)`."""
        pixels = self.maps.pixels(photo)
        classes = np.empty(pixels.shape[:2], "int32")
        kept = np.empty((*classes.shape, self.maps.model.classes), "float32") if scores else None
        for place, found in self.blocks(pixels):
            classes[place] = found.argmax(axis=-1)
            if kept is not None:
                kept[place] = found
        return Segmentation(classes, kept, self.class_names)

    def blocks(self, pixels: np.ndarray) -> Iterator[tuple[tuple[slice, slice], np.ndarray]]:
        """The scores `(rows, columns, K)` of uint8 `(H, W, C)` by blocks, each with its place."""
        passes = [self._pass(pixels, ratio, flip) for ratio in self.ratios for flip in self.flips]
        height, width = pixels.shape[:2]
        step = min(one.columns_at_once for one in passes)
        for left in range(0, width, step):
            columns = slice(left, min(left + step, width))
            rows = max(1, _BLOCK // ((columns.stop - left) * self.maps.model.classes))
            for top in range(0, height, rows):
                place = slice(top, min(top + rows, height)), columns
                parts = [one.logits(*place) for one in passes]
                yield place, parts[0] if len(parts) == 1 else np.mean([_softmax(part) for part in parts], axis=0)

    def _pass(self, pixels: np.ndarray, ratio: float, flip: bool) -> "_Pass":
        sides = np.array(pixels.shape[:2])
        scale: float = ratio
        if self.short_side is not None:
            scale *= min(self.short_side / sides.min(), longest_side(int(self.short_side)) / sides.max())
        size: tuple[int, ...] = tuple(max(1, int(side * scale + 0.5)) for side in sides.tolist())
        if self.maps.row.kind != MASKS or any(side < least for side, least in zip(size, self.window, strict=True)):
            size = self.maps.tiled(size)  # else windows alone are multiples of the patch
        rule = "dinov3" if self.maps.row.name.startswith("dinov3") else "mmseg"
        rule = "eomt" if self.maps.row.kind == MASKS else rule
        return _Pass(self.maps, pixels, size, windows(size, self.window, self.stride, rule), flip)  # type: ignore[arg-type]


class PhotoDepths:
    """`estimate_depth` of one photo after another."""

    def __init__(self, model: Any, flip: bool = False) -> None:
        self.maps = _HeadMaps(model, DEPTH)
        check_flag("flip", flip)
        self.flip = flip
        self.unit = self.maps.model.unit

    def __call__(self, photo: Any) -> DepthMap:
        """The depths of one photo, a path or uint8 `(H, W, C)`."""
        pixels = self.maps.pixels(photo)
        images = self._prepared(pixels)
        found = self.maps(images)
        if self.flip:
            found = (found + self.maps(images[:, ::-1])[:, ::-1]) / 2
        method, corners = _BACK[self.maps.row.photos]
        rows, columns = (axis_taps(n, m, method, corners) for n, m in zip(found.shape, pixels.shape[:2], strict=False))
        values = np.empty(pixels.shape[:2], "float32")
        step = max(1, _BLOCK // pixels.shape[1])
        for top in range(0, len(values), step):
            part = slice(top, top + step)
            values[part] = at_taps(found, (rows[0][part], rows[1][part]), columns)[..., 0]
        return DepthMap(values, str(self.unit))

    def _prepared(self, pixels: np.ndarray) -> np.ndarray:
        """A photo at the size at which the head's family takes it: `(h, w, C)`."""
        row, record = self.maps.row, self.maps.model.preprocessing
        sides, side = np.array(pixels.shape[:2]), self.maps.side()
        if row.photos == "own":
            size = sides * (1.0 if self.maps.model.short_side is None else side / sides.min())
        else:
            rule = {"lower_bound": lower_bound_size, "minimal": minimal_size}[row.photos]
            size = rule(sides[None], side, self.maps.patch)[0].astype("float64")
        most = max(size.prod() / _MOST_PIXELS, 1) ** 0.5
        size = self.maps.tiled(tuple(max(1, int(each / most + (most == 1) * 0.5)) for each in size))
        if row.photos == "minimal":
            record = dataclasses.replace(record, image_size=size, interpolation="bicubic", antialias=True)
            return preprocess(pixels, dataclasses.replace(record, resize="squash"))
        method = "bicubic" if row.photos == "lower_bound" else "bilinear"
        rows, columns = (axis_taps(n, m, method) for n, m in zip(pixels.shape, size, strict=False))
        return scaled(at_taps(pixels, rows, columns), record)


class _HeadMaps:
    """From prepared images of any size to what the head of a model puts out for them, before it is resized."""

    def __init__(self, model: Any, task: str) -> None:
        found = unwrapped(model) if isinstance(model, keras.Model) else model
        if getattr(found, "task", None) != task or not isinstance(found, DenseModel):
            function, builder = {SEGMENTATION: ("segment", "segmenter"), DEPTH: ("estimate_depth", "depth_estimator")}[
                task
            ]
            what = f"a model of {found.task}" if isinstance(found, DenseModel) else f"a {type(found).__name__}"
            raise TypeError(
                f"`keras_vit.{function}` needs a model of {'classes' if task == SEGMENTATION else 'depths'} for each "
                f"pixel.\nReceived: {what}. Build one by `keras_vit.{builder}`."
            )
        if found.raw:
            raise ValueError(
                "an answer for each pixel is not that of each query.\n"
                f"Received: {found.name!r}, built with raw=True. Build it without."
            )
        self.model = found
        default = {SEGMENTATION: "dinov2_segmentation", DEPTH: "dinov2_depth"}[task]
        self.row: HeadLayout = HEAD_LAYOUTS[found.layouts[0] or default]
        self.patch: int = found.config.stride
        self._networks: dict[bool, keras.Model] = {}

    def side(self, of_four: int | None = None) -> int:
        """Pixels of the shorter side at which photos are taken."""
        has_four = of_four is not None and self.row.name == "dinov2_segmentation" and len(self.model.blocks) > 1
        return self.model.short_side or (of_four if has_four and of_four else self.row.side)

    def tiled(self, size: Iterable[int]) -> Size:
        """The nearest size that patches tile, of a head that does not pad; else the size itself."""
        height, width = size
        if self.row.pads:
            return height, width
        return max(round(height / self.patch), 1) * self.patch, max(round(width / self.patch), 1) * self.patch

    def covered(self, side: int) -> int:
        """Pixels of an axis that the head's maps stand for, which are cropped to `side` where pixels were added."""
        return side + -side % self.patch if self.row.pads == "end" else side

    def pixels(self, photo: Any) -> np.ndarray:
        """The pixels of a photo with the model's channels."""
        return photo_pixels(photo, self.model.input_shape[-1])

    def __call__(self, images: np.ndarray, as_graph: bool = False) -> np.ndarray:
        """Float32 `(h, w, K)` of prepared `(H, W, C)`; K is 1 of depths."""
        batch = np.ascontiguousarray(images, "float32")[None]
        if self.row.pads:
            batch = pad_to_multiple(batch, self.patch, self.row.pads).images  # type: ignore[arg-type]
        network = self._network(batch.shape[1:])
        found = network.predict_on_batch(batch) if as_graph else network(batch, training=False)
        maps = ops.convert_to_numpy(ops.cast(found, "float32"))[0]
        if not np.isfinite(maps).all():
            raise ValueError(
                "the model's answers must be finite; NaN comes of damaged weights, or of numbers beyond float16.\n"
                f"Received: others from {self.model.name!r}. Load its weights again, or build it in float32."
            )
        return maps if maps.ndim == 3 else maps[..., None]

    def _network(self, shape: tuple[int, ...]) -> keras.Model:
        """The model up to the head's own maps; a copy of it for images of any size, where its own is another."""
        own = self.model.input_shape[1:]
        is_own = own == shape or None in own[:2]
        if is_own not in self._networks:
            model = self.model if is_own else with_input_shape(self.model, (None, None, own[2]))
            resizes = [layer for layer in model.layers if isinstance(layer, ResizeToImages)]
            self._networks[is_own] = keras.Model(model.input, resizes[-1].input[0] if resizes else model.output)
        return self._networks[is_own]


class _Pass:
    """Mean logits of one size of a photo, or of its mirror image, of which any block can be asked for.

    Args:
        maps: of the model.
        pixels: uint8 `(H, W, C)`.
        size: `(h, w)` that windows are cut from.
        boxes: of the windows.
        flip: whether it is the mirror image that passes.
    """

    def __init__(self, maps: _HeadMaps, pixels: np.ndarray, size: Size, boxes: Sequence[Box], flip: bool) -> None:
        self.maps, self.boxes, self.flip = maps, boxes, flip
        self.pixels = pixels[:, ::-1] if flip else pixels
        self.as_graph = len(boxes) >= _WORTH_A_GRAPH
        self.to_windows = [axis_taps(n, m) for n, m in zip(pixels.shape, size, strict=False)]
        self.to_photo = [axis_taps(n, m) for n, m in zip(size, pixels.shape, strict=False)]
        self.found: dict[Box, np.ndarray] = {}  # maps of windows
        many = max(2, _KEPT // self._window(boxes[0]).nbytes)
        starts = sorted({box[1] for box in boxes})
        width = size[1] if many >= len(starts) else starts[many] - starts[0]
        self.columns_at_once = max(1, width * pixels.shape[1] // size[1])

    def logits(self, rows: slice, columns: slice) -> np.ndarray:
        """Float32 `(rows, columns, K)` of a block of the photo; blocks are asked for from top to bottom."""
        width = self.pixels.shape[1]
        if self.flip:
            columns = slice(width - columns.stop, width - columns.start)
        (y, down), (x, along) = (
            (places[part], shares[part]) for (places, shares), part in zip(self.to_photo, (rows, columns), strict=True)
        )
        corner = y.min(), x.min()
        mean = self._mean(*corner, y.max() + 1, x.max() + 1)
        found = at_taps(mean, (y - corner[0], down), (x - corner[1], along))
        return found[:, ::-1] if self.flip else found

    def _mean(self, top: int, left: int, bottom: int, right: int) -> np.ndarray:
        """Of the windows over a part of the photo, at the size that windows are cut from."""
        self.found = {box: maps for box, maps in self.found.items() if box[2] > top and box[3] > left}
        total = np.zeros((bottom - top, right - left, self.maps.model.classes), "float32")
        count = np.zeros((bottom - top, right - left, 1), "float32")
        for y0, x0, y1, x1 in self.boxes:
            rows, columns = slice(max(y0, top), min(y1, bottom)), slice(max(x0, left), min(x1, right))
            if rows.start >= rows.stop or columns.start >= columns.stop:
                continue
            maps = self._window((y0, x0, y1, x1))
            taps = []
            for part, start, stop, n in ((rows, y0, y1, maps.shape[0]), (columns, x0, x1, maps.shape[1])):
                places, shares = axis_taps(n, self.maps.covered(stop - start))
                inside = slice(part.start - start, part.stop - start)
                taps.append((places[inside], shares[inside]))
            place = slice(rows.start - top, rows.stop - top), slice(columns.start - left, columns.stop - left)
            total[place] += at_taps(maps, *taps)
            count[place] += 1
        return total / count

    def _window(self, box: Box) -> np.ndarray:
        """The head's maps of a window."""
        if box not in self.found:
            rows, columns = (
                (places[start:stop], shares[start:stop])
                for (places, shares), start, stop in zip(self.to_windows, box[:2], box[2:], strict=True)
            )
            window = at_taps(self.pixels, rows, columns)
            self.found[box] = self.maps(scaled(window, self.maps.model.preprocessing), self.as_graph)
        return self.found[box]


def longest_side(short_side: int) -> int:
    """Pixels that the longer side of a photo may have where the shorter one is resized to `short_side`."""
    return max(_LONG_SIDE, _LONGEST * short_side)


def photo_pixels(photo: Any, channels: int) -> np.ndarray:
    """The pixels of a photo, a path or uint8 `(H, W, C)`, with this number of channels."""
    if isinstance(photo, (str, os.PathLike)):
        return read_image(photo, 1 if channels == 1 else 3)
    array = np.asarray(photo)
    if array.dtype != np.uint8:
        raise TypeError(
            "a photo must be a path, or its pixels as uint8 (H, W, C).\n"
            f"Received: {type(photo).__name__} of {array.dtype}. Pass pixels from 0 to 255 that are not prepared."
        )
    if array.ndim != 3 or not array.size:
        raise ValueError(
            "a photo must have the axes (H, W, C), and a pixel.\n"
            f"Received: shape {array.shape}. Pass several as a list, `list(photos)`."
        )
    return fit_channels(array, channels, np)


def for_each(find: Any, photos: Any) -> Any:
    """The answer for one photo, or a list of them for a list."""
    return [find(photo) for photo in photos] if isinstance(photos, (list, tuple)) else find(photos)


def _pair(name: str, value: Any) -> Size:
    found = check_sides(name, tuple(value) if isinstance(value, list) else value)
    return (found, found) if isinstance(found, int) else (found[0], found[1])


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)
