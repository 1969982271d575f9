"""`inspector`: flaws of photos without training, as patches that are far from all patches of good photos.

PatchCore's memory bank and coreset, arXiv:2106.08265, with the features and distances of AnomalyDINO, arXiv:2405.14529.
"""

import dataclasses
import hashlib
import io
import json
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.checks import (
    ArgumentError,
    check_choice,
    check_fraction,
    check_installed,
    check_number,
    check_positive_int,
    check_seed,
    check_share,
    with_hints,
)
from keras_vit.embedding.neighbors import SEARCHES, unit_vectors
from keras_vit.embedding.photo_lists import list_photos, photo_key, photo_location
from keras_vit.files import atomic_write, expand_path, json_object, read_regular
from keras_vit.images.byte_ranges import ByteRange
from keras_vit.images.photo_files import near_names
from keras_vit.images.read import read_photo
from keras_vit.pages.formatting import plural, printable
from keras_vit.version import __version__

RECORD, MEMORY = "inspector.json", "memory.npz"  # files of a saved inspector
SHORT_SIDE, CORESET, FALSE_POSITIVE_RATE = 448, 10_000, 0.01  # defaults
_KIND = "an inspector of photos, 1"
_TOP = 0.01  # share of the patches whose mean is the score of a photo, as in AnomalyDINO
_FOLDS = 5  # parts of the good photos, each compared with the patches of the others
_BLOCK = 8192  # patches of the memory bank that are compared at once: 32 MiB for 1,024 patches of a photo
_ROW_NUMBERS = 1 << 20  # of a block of rows of a map
_NAMED = 5  # photos in a message
_MOST_BYTES = 1 << 32  # of a memory bank
_TYPES = {"model_sha256": str, "memory_sha256": str, "preprocessing": dict, "short_side": int, "good_photos": list}


@dataclasses.dataclass(frozen=True, eq=False)
class Inspection:
    """What an `Inspector` says of a photo.

    Example:
        >>> distances = np.array([[0.1, 0.1], [0.1, 0.7]], "float32")
        >>> found = keras_vit.Inspection(distances, score=0.7, is_flawed=True)
        >>> np.unravel_index(found.anomaly_map.argmax(), distances.shape)
        (np.int64(1), np.int64(1))

    Attributes:
        anomaly_map: float32 `(H, W)`, for each pixel of the photo the cosine distance of its patch to the nearest patch
            of the memory bank, in [0, 2]; bilinear between the centres of patches.
        score: anomaly score, the mean distance of the 1 % of the patches that are farthest, at least one.
        is_flawed: whether the score is above the threshold.
        is_good_photo: whether the pixels are those of one of the good photos, so that the score says nothing.
    """

    anomaly_map: np.ndarray
    score: float
    is_flawed: bool
    is_good_photo: bool = False


@dataclasses.dataclass(frozen=True)
class GoodPhoto:
    """A photo of the memory bank."""

    name: str  # its path, or its place in a list
    score: float  # anomaly score against the patches of the other folds
    fold: int
    sha256: str  # of its pixels


@dataclasses.dataclass(frozen=True)
class Record:
    """What is kept of an inspector next to its memory bank, ready for JSON."""

    model: str | None  # name or path that it was opened by; `None` of a model that was passed
    weights: str | None  # of a model given by name; `None` for the usual ones
    model_sha256: str  # of the weights that the features of patches depend on
    preprocessing: dict[str, Any]  # fields of the record of the model, without its size
    short_side: int
    coreset: float
    false_positive_rate: float
    seed: int
    threshold: float  # above which the score of a photo is that of a flawed one
    median_distance: float  # of the patches of good photos, each against the other folds
    good_photos: tuple[GoodPhoto, ...]  # in the order in which they were given
    unused: dict[str, str]  # names of good photos that were given and not used, each with the reason
    memory_sha256: str = ""  # of the file of the memory bank
    keras_vit: str = __version__  # that wrote it


class Inspector:
    """Finds flaws in photos by the patches of good ones; made by `inspector`.

    Example:
        >>> config = keras_vit.ViTConfig(8, 32, num_layers=2, num_heads=2, mlp_dim=64)
        >>> encoder = keras_vit.build(config, include_top=False)
        >>> good = [np.full((40, 40, 3), 90 + k, "uint8") for k in range(3)]
        >>> inspector = keras_vit.inspector(encoder, good, short_side=64)
        >>> inspector.save("found")
        >>> keras_vit.Inspector.load("found", encoder).memory_bank.shape
        (192, 32)

    Attributes:
        memory_bank: float16 `(M, D)`, the directions of patches of good photos.
        threshold: above which a score is that of a flawed photo.
        record: what else is known, as `record.good_photos` with the score of each.
    """

    def __init__(self, features: Any, memory_bank: np.ndarray, record: Record, engine: str = "numpy") -> None:
        self.memory_bank, self.record, self.threshold = memory_bank, record, record.threshold
        self.features = features
        self._search = _Search(memory_bank, engine)
        self._known = {photo.sha256 for photo in record.good_photos}

    def __repr__(self) -> str:
        return (
            f"Inspector({len(self.record.good_photos)} good photos, {len(self.memory_bank)} patches, "
            f"threshold={self.threshold:.4f})"
        )

    def inspect(self, photos: Any) -> Any:
        """Measures how far photos are from the good ones.

        Args:
            photos: a path, or uint8 `(H, W, 3)`; or a list of these.

        Returns:
            An `Inspection` for one photo, a list of them for a list.

        Raises:
            TypeError: for photos that are no pixels.
            ValueError: for photos of another shape, or smaller than a patch.
            ImageError: (a `ValueError`) for a file that cannot be decoded.
            FileNotFoundError: for a photo that is not there.

        Warns:
            UserWarning: of a photo that is one of the good ones.
        """
        from keras_vit.dense_models.photos import for_each

        def find(photo: Any) -> Inspection:
            found = self.inspect_pixels(self.features.pixels(photo))
            if found.is_good_photo:
                what = printable(photo) if isinstance(photo, (str, os.PathLike)) else "a photo"
                warnings.warn(f"{what} is one of the good photos, so its score says nothing.", stacklevel=4)
            return found

        return for_each(find, photos)

    def inspect_pixels(self, pixels: np.ndarray) -> Inspection:
        """As `inspect` of one photo, uint8 `(H, W, C)` with the channels of the model, without a warning."""
        _check_size(pixels, self.features.patch, "photos")
        distances = self._search.distances(_patches(self.features, pixels)[0])
        grid = self.features.grid(*pixels.shape[:2])
        score = anomaly_score(distances)
        is_good_photo = pixels_sha256(pixels) in self._known
        maps = resized(distances.reshape(grid), pixels.shape[:2])
        return Inspection(maps, score, score > self.threshold, is_good_photo)

    def save(self, folder: FilePath) -> None:
        """Writes `inspector.json` and `memory.npz`, of which `Inspector.load` makes it again; the model is not written.

        Args:
            folder: is made if need be.

        Raises:
            FileExistsError: if one of both files is there.
        """
        place = expand_path(folder)
        place.mkdir(parents=True, exist_ok=True)
        if there := [name for name in (MEMORY, RECORD) if os.path.lexists(place / name)]:
            raise FileExistsError(
                f"an inspector is saved where none is, so that nothing is lost.\nReceived: {printable(place)} with "
                f"{' and '.join(there)}. Choose another folder."
            )
        buffer = io.BytesIO()
        np.savez(buffer, memory_bank=self.memory_bank)
        with atomic_write(place / MEMORY) as part:
            Path(part).write_bytes(buffer.getbuffer())
        record = dataclasses.replace(self.record, memory_sha256=hashlib.sha256(buffer.getbuffer()).hexdigest())
        text = json.dumps({"keras_vit_inspector": _KIND} | dataclasses.asdict(record), indent=1)
        with atomic_write(place / RECORD) as part:
            Path(part).write_text(f"{text}\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: FilePath, model: Any = None, *, engine: str = "numpy") -> "Inspector":
        """Opens an inspector that `save`, or `keras-vit inspect`, has written.

        Args:
            folder: that was written.
            model: a Keras model, a name or a path; by default that by which the inspector was made, if it was made by
                a name or path.
            engine: as of `inspector`.

        Raises:
            ValueError: for a folder of anything else, damaged files, and a model with other weights or preprocessing.
        """
        check_choice("engine", engine, SEARCHES)
        place = expand_path(folder)
        record = read_record(place)
        memory_bank = _read_memory(place / MEMORY, record.memory_sha256)
        if model is None and record.model is None:
            raise ArgumentError(
                f"`model` must be passed, since the inspector was made with a model that had no name.\nReceived: none, "
                f"for {printable(place)}."
            )
        opened, _ = _open_model(record.model if model is None else model, record.weights if model is None else None)
        features = _features_of(opened, record.short_side)
        wrong = []
        if features.weights_sha256() != record.model_sha256:
            wrong.append("other weights, or is built for another image size")
        if _preprocessing_of(features) != record.preprocessing:
            wrong.append("another preprocessing")
        if wrong:
            raise ArgumentError(
                "`model` must be that of the memory bank, so that patches can be compared.\n"
                f"Received: one that has {' and '.join(wrong)}, for {printable(place)}."
            )
        return cls(features, memory_bank, record, engine)


@with_hints
def inspector(
    model: Any,
    good_photos: Any,
    *,
    short_side: int = SHORT_SIDE,
    coreset: float = CORESET,
    false_positive_rate: float = FALSE_POSITIVE_RATE,
    seed: int = 0,
    engine: str = "numpy",
) -> Inspector:
    """Makes an `Inspector` of good photos: a memory bank of their patches, and a threshold. Nothing is trained.

    The photos are divided into five folds, or as many as there are photos. Of each fold a coreset of patches is chosen
    (`keras_vit.dense.greedy_coreset`); all of these are the memory bank. For the threshold, each good photo is compared
    with the coresets of the other folds alone.

    Example:
        >>> config = keras_vit.ViTConfig(8, 32, num_layers=2, num_heads=2, mlp_dim=64)
        >>> encoder = keras_vit.build(config, include_top=False)
        >>> good = [np.full((40, 40, 3), 90 + k, "uint8") for k in range(3)]
        >>> inspector = keras_vit.inspector(encoder, good, short_side=64)
        >>> inspector.inspect(255 - good[0]).is_flawed
        True

    Args:
        model: a `VisionTransformer` with patches, a model that has one among its layers, or the name or path of one, as
            `"dinov2/S14"`. Published weights of DINOv2 or DINOv3 have patches that can be compared; random ones not.
        good_photos: without a flaw, 20 to 500 for the usual; at least 2 that differ. A folder, a table or shards, or a
            list of paths and uint8 `(H, W, 3)`.
        short_side: pixels that the shorter side of each photo is resized to, aspect kept.
        coreset: patches of the memory bank: how many, or which share of all if it is below 1. All are kept if there are
            not so many.
        false_positive_rate: share of good photos that may count as flawed, in [0, 1): the threshold is such that about
            this share of the good ones is above it. With fewer than `1 / false_positive_rate` it is the largest score.
        seed: of folds and coreset.
        engine: `"numpy"` or `"faiss"` for the nearest patches. Both compare all of them, so answers differ by rounding
            alone; of 10,000 patches, NumPy takes 0.17 s of a core for a photo of 1,024, and faiss 0.22 s.

    Raises:
        TypeError: for a model without patches, and photos that are no pixels.
        ValueError: for fewer than 2 good photos that differ, photos smaller than a patch, features that are not finite,
            and values out of range.
        ImageError: (a `ValueError`) for a file that cannot be decoded.
        FileNotFoundError: for a photo that is not there.
        ImportError: without faiss, if it is the engine.

    Warns:
        UserWarning: of photos with the same pixels, of which one is used.

    Source: PatchCore, arXiv:2106.08265; AnomalyDINO, arXiv:2405.14529.
    """
    options = InspectorOptions(short_side, coreset, false_positive_rate, seed, engine)
    given = _photos_of(good_photos)
    opened, name = _open_model(model, None)
    features = _features_of(opened, options.short_side)

    def read() -> Iterator[tuple[str, np.ndarray]]:
        for name, photo in given:
            is_slice = isinstance(photo, ByteRange)
            pixels = read_photo(photo, features.channels) if is_slice else features.pixels(photo)
            _check_size(pixels, features.patch, "good_photos", name)
            yield name, pixels

    found = make_inspector(features, read(), options, name)
    if unused := found.record.unused:
        few = "; ".join(f"{printable(name)}: {reason}" for name, reason in list(unused.items())[:_NAMED])
        warnings.warn(f"{plural(len(unused), 'good photo')} left out: {few}.", stacklevel=3)
    return found


@dataclasses.dataclass(frozen=True)
class InspectorOptions:
    """The arguments of `inspector` besides model and photos, checked."""

    short_side: int = SHORT_SIDE
    coreset: float = CORESET
    false_positive_rate: float = FALSE_POSITIVE_RATE
    seed: int = 0
    engine: str = "numpy"

    def __post_init__(self) -> None:
        check_positive_int("short_side", self.short_side)
        if check_number("coreset", self.coreset) < 1:
            check_share("coreset", self.coreset)
        else:
            check_positive_int("coreset", self.coreset)
        check_fraction("false_positive_rate", self.false_positive_rate)
        check_seed("seed", self.seed)
        check_choice("engine", self.engine, SEARCHES)
        if self.engine == "faiss":  # before the photos are read
            check_installed("faiss", 'engine="faiss" searches by it', "search")


def make_inspector(
    features: Any,
    photos: Iterable[tuple[str, np.ndarray | str]],
    options: InspectorOptions,
    model: str | None = None,
    weights: str | None = None,
) -> Inspector:
    """The inspector of good photos, each a name with its pixels, or with the reason why there are none.

    They are read one after another; 500 of 1,024 patches and D = 384 take 0.7 GiB at most. Name and weights of the
    model are written.
    """
    kept: list[np.ndarray] = []  # float16 directions of each photo's patches
    names, folds, unused, first = [], [], dict[str, str](), dict[str, str]()
    rng = np.random.default_rng(options.seed)
    order: list[int] = []
    for name, pixels in photos:
        reason = pixels if isinstance(pixels, str) else too_small(pixels, features.patch)
        digest = "" if isinstance(pixels, str) else pixels_sha256(pixels)
        if digest in first:
            reason = f"the same pixels as {first[digest]}"
        if reason or isinstance(pixels, str):
            unused[name] = reason
            continue
        first[digest] = name
        order = order or rng.permutation(_FOLDS).tolist()  # each five photos in a row are one of each fold
        names.append(name)
        folds.append(order.pop())
        kept.append(_patches(features, pixels)[1])
    if len(kept) < 2:
        few = "; ".join(f"{printable(name)}: {reason}" for name, reason in list(unused.items())[:_NAMED])
        raise ArgumentError(
            "`good_photos` must be two or more that differ, so that each is compared with others.\n"
            f"Received: {plural(len(kept), 'photo')} that can be used{f'; not {few}' if few else ''}."
        )
    coresets = _coresets(kept, np.array(folds), options)
    held_out = _held_out_distances(kept, folds, coresets, options.engine)
    scores = [anomaly_score(distances) for distances in held_out]
    record = Record(
        model=model,
        weights=weights,
        model_sha256=features.weights_sha256(),
        preprocessing=_preprocessing_of(features),
        short_side=options.short_side,
        coreset=options.coreset,
        false_positive_rate=options.false_positive_rate,
        seed=options.seed,
        threshold=threshold_of(scores, options.false_positive_rate),
        median_distance=float(np.median(np.concatenate(held_out))),
        good_photos=tuple(map(GoodPhoto, names, scores, folds, first)),
        unused=unused,
    )
    return Inspector(features, np.concatenate(list(coresets.values())), record, options.engine)


def _coresets(kept: Sequence[np.ndarray], folds: np.ndarray, options: InspectorOptions) -> dict[int, np.ndarray]:
    """The patches that are kept of each fold, float16 `(m, D)`, of each fold the same share."""
    from keras_vit.dense import greedy_coreset

    total = sum(map(len, kept))
    share = options.coreset if options.coreset < 1 else min(options.coreset / total, 1)
    found = {}
    for fold in np.unique(folds).tolist():
        patches = np.concatenate([kept[place] for place in np.flatnonzero(folds == fold).tolist()])
        count = max(int(share * len(patches)), 1)
        found[fold] = patches
        if count < len(patches):
            found[fold] = patches[np.sort(greedy_coreset(patches, count, options.seed))]
    return found


def _held_out_distances(
    kept: Sequence[np.ndarray], folds: Sequence[int], coresets: dict[int, np.ndarray], engine: str
) -> list[np.ndarray]:
    """Of each photo, the distances of its patches to the nearest of the other folds."""
    found = [np.full(len(patches), 2, "float32") for patches in kept]
    for fold, coreset in coresets.items():
        search = _Search(coreset, engine)
        for place, patches in enumerate(kept):
            if folds[place] != fold:
                np.minimum(found[place], search.distances(unit_vectors(patches)[0]), out=found[place])
    return found


def threshold_of(scores: Sequence[float], false_positive_rate: float) -> float:
    """The score that a good photo exceeds with at most this probability, or the largest of too few scores.

    Of n scores it is number ceil((n + 1) (1 - rate)) in rising order, as in split conformal prediction.
    """
    place = math.ceil((len(scores) + 1) * (1 - false_positive_rate) - 1e-9)
    return float(np.sort(scores)[min(place, len(scores)) - 1])


def anomaly_score(distances: np.ndarray) -> float:
    """The mean of the largest hundredth of distances, at least of one."""
    count = max(int(distances.size * _TOP), 1)
    return float(np.partition(distances.ravel(), -count)[-count:].mean(dtype="float64"))


def resized(distances: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """A map `(h, w)` as float32 of a photo's size, bilinear."""
    from keras_vit.dense.maps import at_taps, axis_taps

    rows, columns = (axis_taps(n, m) for n, m in zip(distances.shape, size, strict=True))
    found = np.empty(size, "float32")
    step = max(1, _ROW_NUMBERS // size[1])
    for top in range(0, size[0], step):
        part = slice(top, top + step)
        found[part] = at_taps(distances[..., None], (rows[0][part], rows[1][part]), columns)[..., 0]
    return found


class _Search:
    """The nearest of a memory bank, exactly, by blocks of NumPy or by faiss."""

    def __init__(self, memory_bank: np.ndarray, engine: str) -> None:
        self._units = unit_vectors(memory_bank)[0]
        self._index: Any = None
        if engine == "faiss":
            check_installed("faiss", 'engine="faiss" searches by it', "search")
            import faiss

            self._index = faiss.IndexFlatIP(self._units.shape[1])
            self._index.add(self._units)

    def distances(self, units: np.ndarray) -> np.ndarray:
        """Cosine distances float32 `(N,)` of float32 `(N, D)` of length 1 to the nearest."""
        if self._index is not None:
            cosines = self._index.search(np.ascontiguousarray(units), 1)[0][:, 0]
        else:
            cosines = np.full(len(units), -1, "float32")
            for start in range(0, len(self._units), _BLOCK):
                np.maximum(cosines, (units @ self._units[start : start + _BLOCK].T).max(axis=1), out=cosines)
        return np.clip(1 - cosines, 0, 2)


def _patches(features: Any, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The directions of a photo's patches, `(N, D)` of float32, and of float16 for the memory bank."""
    maps = features(pixels)
    if not np.isfinite(maps).all():
        raise ValueError(
            "the model's features must be finite; NaN comes of damaged weights, or of numbers beyond float16.\n"
            f"Received: others from {features.encoder.name!r}. Load its weights again, or build it in float32."
        )
    units = unit_vectors(maps.reshape(-1, maps.shape[-1]))[0]
    return units, units.astype("float16")


def _open_model(model: Any, weights: str | None) -> tuple[Any, str | None]:
    """The model, and its name if it was given by one; the path of a file is absolute."""
    if not isinstance(model, (str, os.PathLike)):
        return model, None
    from keras_vit.runs.load import load_any

    given, place = os.fspath(model), expand_path(model)
    opened, _ = load_any(given, weights, needs_head=False)
    return opened, os.path.abspath(place) if place.exists() else given


def _features_of(model: Any, short_side: int) -> Any:
    from keras_vit.dense_models.patch_features import PatchFeatures

    return PatchFeatures(model, short_side, as_graph=True)


def _photos_of(given: Any) -> list[tuple[str, Any]]:
    """Names and photos of a list, a folder, a table or shards."""
    if isinstance(given, (list, tuple)):
        paths = [os.fspath(photo) if isinstance(photo, (str, os.PathLike)) else "" for photo in given]
        return [
            (path or f"photo {number}", photo) for number, (path, photo) in enumerate(zip(paths, given, strict=True))
        ]
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(
            "`good_photos` must be a folder, a table or shards, or a list of photos.\n"
            f"Received: {type(given).__name__}. Pass several photos as a list."
        )
    found = list_photos(given)
    places = [(photo_key(entry), photo_location(found.top, entry)) for entry in found.entries]
    return [(place if isinstance(place, str) else key, place) for key, place in places]


def _preprocessing_of(features: Any) -> dict[str, Any]:
    """Fields of the model's record that decide pixels, as JSON gives them back."""
    facts = dataclasses.asdict(features.encoder.preprocessing)
    for name in ("image_size", "resize", "crop_fraction", "rounding"):  # the size is that of the inspector
        del facts[name]
    return json.loads(json.dumps(facts))


def pixels_sha256(pixels: np.ndarray) -> str:
    """SHA-256 of a photo's size and pixels."""
    found = hashlib.sha256(str(pixels.shape).encode())
    found.update(np.ascontiguousarray(pixels).data)
    return found.hexdigest()


def too_small(pixels: np.ndarray, patch: int) -> str:
    """The reason why a photo has no patch, or `""`."""
    height, width = pixels.shape[:2]
    return f"{height} x {width} pixels, smaller than a patch of {patch}" if min(height, width) < patch else ""


def _check_size(pixels: np.ndarray, patch: int, parameter: str, name: str = "a photo") -> None:
    if reason := too_small(pixels, patch):
        raise ArgumentError(
            f"`{parameter}` must be at least as large as a patch.\nReceived: {printable(name)}, {reason}."
        )


def read_record(folder: Path) -> Record:
    """What is known of a saved inspector, without its memory bank.

    Raises:
        ValueError: for a folder of anything else, and a damaged file.
    """
    path = folder / RECORD
    if not os.path.lexists(path):
        what = f"without {RECORD}" if os.path.lexists(folder) else "where nothing is"
        raise ArgumentError(
            "the folder must be that of an inspector, which `keras-vit inspect` or `Inspector.save` wrote.\n"
            f"Received: {printable(folder)}, {what}.{near_names(folder)}",
            parameters=("folder",),
        )
    try:
        facts = json_object(path)
        if facts.pop("keras_vit_inspector", None) != _KIND:
            raise ValueError("the file is of something else")
        wrong = [name for name, kind in _TYPES.items() if not isinstance(facts.get(name), kind)]
        numbers = ("coreset", "false_positive_rate", "threshold", "median_distance")
        wrong += [name for name in numbers if type(facts.get(name)) not in (int, float)]
        if wrong or not all(isinstance(facts.get(name), (str, type(None))) for name in ("model", "weights")):
            raise ValueError(f"{', '.join(wrong) or 'model'} is missing or of another type")
        good = tuple(GoodPhoto(**photo) for photo in facts.pop("good_photos"))
        if not good or not all(isinstance(photo.name, str) and isinstance(photo.sha256, str) for photo in good):
            raise ValueError("the good photos are not as they were written")
        return Record(**facts, good_photos=good)
    except (ValueError, TypeError) as error:
        raise _damaged(path, error) from None


def _read_memory(path: Path, sha256: str) -> np.ndarray:
    try:
        data = read_regular(path, _MOST_BYTES)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ValueError("its digest is another one")
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            found = arrays["memory_bank"]
    except (OSError, ValueError, KeyError) as error:
        raise _damaged(path, error) from None
    if found.ndim != 2 or found.dtype != np.float16 or not np.isfinite(found).all():
        raise _damaged(path, ValueError(f"{found.dtype} of shape {found.shape}"))
    return found


def _damaged(path: Path, error: Exception) -> ArgumentError:
    reason = " ".join(str(error).split()).rstrip(".")
    return ArgumentError(
        f"an inspector must be as it was written.\nReceived: {printable(path)}: {reason}. Copy it again, or make it of "
        "the good photos.",
        parameters=("folder",),
    )
