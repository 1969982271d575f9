"""Models that find things in photos, and their boxes for photos of any size: `detector` and `detect`."""

import dataclasses
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import dense
from keras_vit.annotations import FilePath, Shape
from keras_vit.checks import ArgumentError, check_fraction, with_hints
from keras_vit.config.heads import BOXES, DETECTION, LOGITS, OPEN_BOX_HEAD
from keras_vit.dense_models.builders import open_encoder, read_task_head
from keras_vit.dense_models.heads import filled_head
from keras_vit.dense_models.photos import for_each, photo_pixels
from keras_vit.images.numpy_pipeline import preprocess
from keras_vit.model.copies import with_input_shape
from keras_vit.model.dense_model import DenseModel
from keras_vit.model.vision_transformer import VisionTransformer
from keras_vit.text_builders import build_text
from keras_vit.weights.families import HEAD_LAYOUTS
from keras_vit.weights.heads import HeadCheckpoint
from keras_vit.weights.read import CheckpointError

_TINY, _TINY_SIDE = 192, 512  # width of YOLOS-Ti, and pixels of the shorter side at which it was evaluated
_LONGEST = 1333  # pixels of the longer side, at most


@dataclasses.dataclass(frozen=True, eq=False)
class Detections:
    """What was found in a photo.

    Example:
        >>> box = np.array([[10.0, 20.0, 60.0, 50.0]], "float32")
        >>> score, label = np.array([0.75], "float32"), np.array([1], "int32")
        >>> found = keras_vit.Detections(box, score, label, ("cat", "dog"))
        >>> [found.class_names[number] for number in found.labels]
        ['dog']

    Attributes:
        boxes: float32 `(N, 4)`: x0, y0, x1, y1 in pixels of the photo.
        scores: float32 `(N,)`, probabilities.
        labels: int32 `(N,)`, numbers of classes.
        class_names: names of the K classes, or `None`.
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...] | None


@with_hints
def detector(
    weights: FilePath, *, queries: Any = None, input_shape: Shape | None = None, name: str | None = None
) -> DenseModel:
    """Builds a model that finds things in photos: YOLOS, and by texts OWL-ViT and OWLv2.

    Args:
        weights: a file or folder of transformers, `"hf:owner/repository"` or an https URL.
        queries: of OWL-ViT and OWLv2: embeddings `(Q, E)` of texts, or the words, as `["a cat", "a dog"]`, of which the
            text tower and the tokenizer in the same folder make embeddings. No file keeps them.
        input_shape: `(H, W, C)`, multiples of the patch; they may be `None`. Position tables are resized to it. By
            default that of the tables.
        name: of the model.

    Returns:
        A `DenseModel` whose answer is a dict of float32: `logits` `(B, N, K + 1)` of N detection tokens, the last class
        is none, and `boxes` `(B, N, 4)`: centre x and y, width and height, in 0 to 1. Of OWL-ViT N are patches,
        `logits` `(B, N, Q)` without none, and `class_embeddings` `(B, N, E)` are of length 1; OWLv2 has `objectness`
        `(B, N)` too.

    Raises:
        ValueError: for sizes that cannot be, and for `queries` that are missing, of another width, or not for the head.
        FileNotFoundError: if `weights` is a path and nothing is there.
        CheckpointError: (a `ValueError`) if the file cannot be read, has no such head, or contradicts its config.

    Source: YOLOS, arXiv:2106.00666; OWL-ViT, arXiv:2205.06230; OWLv2, arXiv:2306.09683.
    """
    found = read_task_head(weights, DETECTION)
    found = _with_queries(found, queries)
    is_open = found.layout.kind == OPEN_BOX_HEAD
    opened = open_encoder(None, found.path, input_shape, "", None, False, shares_file=True)
    model = opened.model
    if not is_open:
        _check_config(found, model)
    inputs = [model.output, opened.images] if is_open else model.output
    head, _ = filled_head(found, None, model.config, [tuple(x.shape) for x in (model.output, opened.images)], False)
    method = "bicubic" if found.layout.photos == "squash" else "bilinear"
    record = dataclasses.replace(model.preprocessing, resize="squash", interpolation=method, antialias=True)
    size = None if None in opened.images.shape[1:3] else tuple(opened.images.shape[1:3])
    names = found.facts.get("class_names")
    made = DenseModel(
        opened.images,
        head(inputs),
        name=name or f"{model.name}_{DETECTION}",
        config=model.config,
        preprocessing=dataclasses.replace(record, image_size=size),
        weights_report=(*opened.report, *found.remarks),
        weights_facts=model.provenance,
        task=DETECTION,
        blocks=(model.config.num_layers,),
        short_side=found.facts.get("short_side") or (_TINY_SIDE if model.config.hidden_size == _TINY else None),
        layouts=(found.layout.name, model.weights_layout),
        unread={**found.unread, **opened.unread},
        folder_config=found.folder_config,
    )
    made.class_names = tuple(names) if names and len(names) == made.classes else None
    return made


def _with_queries(found: HeadCheckpoint, queries: Any) -> HeadCheckpoint:
    """The head with the embeddings of texts that boxes are compared with, and their words, where it is of that kind."""
    if (found.layout.kind == OPEN_BOX_HEAD) != (queries is not None):
        raise ArgumentError(
            "`queries` are for heads that compare boxes with texts, as OWL-ViT's, which need them: embeddings (Q, E) "
            "of the texts, or the words.\n"
            f"Received: queries of type {type(queries).__name__}, and a head of the layout {found.layout.name!r}."
        )
    if queries is None:
        return found
    size, names = found.last_axis("class_embedding/kernel"), None
    if isinstance(queries, str) or (len(queries) and all(isinstance(each, str) for each in queries)):
        names = (queries,) if isinstance(queries, str) else tuple(queries)
        queries = _embedded(found, names)
    array = np.asarray(ops.convert_to_numpy(queries), "float32")
    if array.ndim != 2 or not len(array) or array.shape[1] != size or not np.isfinite(array).all():
        raise ArgumentError(
            f"`queries` must be finite embeddings (Q, {size}) of texts, as wide as those of boxes.\n"
            f"Received: an array of shape {array.shape}. `keras_vit.build_text` makes them of the same folder."
        )
    facts = {**found.facts, "class_names": names}
    return dataclasses.replace(found, tensors={**found.tensors, "queries": array}, facts=facts)


def _embedded(found: HeadCheckpoint, words: tuple[str, ...]) -> np.ndarray:
    """Embeddings of words by the text tower of the same file, and the tokenizer in its folder."""
    in_folder = found.path.parent.joinpath("config.json").is_file()
    return build_text(weights=found.path.parent if in_folder else found.path).embed(list(words))


def _check_config(found: HeadCheckpoint, model: VisionTransformer) -> None:
    """Raises where config.json says other things than the tensors show."""
    names = found.folder_config.get("id2label")
    said = dict(found.folder_config) | {"id2label": len(names) if isinstance(names, dict) else None}
    shown = {
        "num_detection_tokens": model.config.class_tokens - 1,
        "use_mid_position_embeddings": model.config.position_injection == "blocks",
        "id2label": found.last_axis("class_3/kernel") - 1,
    }
    wrong = [name for name in shown if said.get(name) is not None and said[name] != shown[name]]
    if wrong:
        raise CheckpointError(
            "a head of boxes must have what its config.json says.\n"
            f"Received: {'; '.join(f'{name} {said[name]}, and {shown[name]} in the file' for name in wrong)}, "
            f"{found.path}. Put the config.json of these weights into their folder."
        )


@with_hints
def detect(model: DenseModel, photos: Any, *, threshold: float = 0.5) -> Any:
    """Finds things in photos of any size.

    A photo passes at the size that YOLOS was evaluated at: the shorter side is 800 pixels, 512 for its smallest model,
    or what its folder says, and the longer side at most 1,333, each rounded down to a multiple of the patch; bilinear
    with antialiasing. Boxes that overlap stay, since the model finds each thing once. To OWL-ViT a photo passes at the
    size of the model, bicubic, and to OWLv2 after grey is added at bottom or right to make it square, bilinear. Their
    scores are of each text by itself, and several boxes may hold one thing.

    Args:
        model: of `detector`.
        photos: a path, or uint8 `(H, W, 3)`; or a list of these.
        threshold: above which the probability of a box's best class must be, in [0, 1).

    Returns:
        `Detections` of one photo; a list of them for a list.

    Raises:
        TypeError: for a model of anything else, and for photos that are no pixels.
        ValueError: for photos of another shape, another threshold, and answers that are not finite.
        ImageError: (a `ValueError`) for a file that cannot be decoded.
        FileNotFoundError: for a photo that is not there.

    Source: `YolosImageProcessor`, `OwlViTImageProcessor` and `Owlv2ImageProcessor` of transformers 5.24.
    """
    check_fraction("threshold", threshold)
    if getattr(model, "task", None) != DETECTION or not isinstance(model, DenseModel):
        raise TypeError(
            f"`keras_vit.detect` needs a model of boxes.\nReceived: {type(model).__name__} {model!r:.80}. Build one by "
            "`keras_vit.detector`."
        )
    way = HEAD_LAYOUTS[model.layouts[0]].photos
    side = model.short_side or HEAD_LAYOUTS[model.layouts[0]].side
    networks: dict[bool, keras.Model] = {}

    def find(photo: Any) -> Detections:
        pixels = photo_pixels(photo, model.input_shape[-1])
        pixels = _squared(pixels) if way == "square" else pixels
        size = _own_size(model, side) if way != "detection" else photo_size(pixels.shape[:2], side, model.config.stride)
        images = preprocess(pixels, dataclasses.replace(model.preprocessing, image_size=size))[None]
        is_own = model.input_shape[1:3] in (size, (None, None))
        if is_own not in networks:
            networks[is_own] = model if is_own else with_input_shape(model, (None, None, model.input_shape[-1]))
        answers = networks[is_own](images.astype("float32"), training=False)
        logits, boxes = (ops.convert_to_numpy(answers[name])[0] for name in (LOGITS, BOXES))
        if not (np.isfinite(logits).all() and np.isfinite(boxes).all()):
            raise ValueError(
                "the model's answers must be finite; NaN comes of damaged weights.\n"
                f"Received: others from {model.name!r}. Load its weights again."
            )
        if way != "detection":  # a likeness of each text by itself, which a class of none and a softmax make one of all
            best = logits.max(-1, keepdims=True)
            others = np.full_like(logits, -np.inf)
            others[np.arange(len(logits)), logits.argmax(-1)] = best[:, 0]
            logits = np.concatenate([others, np.zeros_like(best)], -1)
        found = dense.boxes(logits, boxes, pixels.shape[:2], threshold)
        return Detections(found["boxes"], found["scores"], found["labels"], model.class_names)

    return for_each(find, photos)


_GREY = 128  # half of white


def _squared(pixels: np.ndarray) -> np.ndarray:
    """A photo with grey at bottom or right, so that it is square."""
    side = max(pixels.shape[:2])
    missing = [(0, side - n) for n in pixels.shape[:2]]
    return np.pad(pixels, (*missing, (0, 0)), constant_values=_GREY)


def _own_size(model: DenseModel, side: int) -> tuple[int, int]:
    """`(H, W)` that a model takes, or of one for any size a square of whole patches."""
    height, width = model.input_shape[1:3]
    square = max(side // model.config.stride, 1) * model.config.stride
    return height or square, width or square


def photo_size(size: tuple[int, int], side: int, patch_size: int, longest: int = _LONGEST) -> tuple[int, int]:
    """`(H, W)` at which a photo passes.

    Args:
        size: `(H, W)` of the photo.
        side: pixels of its shorter side.
        patch_size: P, of which both are multiples, rounded down.
        longest: pixels that the longer side may have.
    """
    short, long = sorted(size)
    exact = min(float(side), longest * short / long)  # by which the longer side is computed
    sides = {True: round(exact), False: int(exact * long / short)}
    height, width = (max(sides[n == short] // patch_size, 1) * patch_size for n in size)
    return height, width
