"""What a model puts out, declared once for each kind of head.

Losses, loading, exporting, evaluation and pages ask `model.output_spec`, and not a layer's name or a tensor's shape.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from keras_vit.checks import ArgumentError


@dataclasses.dataclass(frozen=True)
class HeadKind:
    """A kind of head: what a model that ends in it puts out.

    Attributes:
        name: what the head answers, as `"classes"`.
        output: `"logits"`, `"numbers"`, `"embedding"`, `"tokens"`, a `"map"`, or `"queries"` with an answer each.
        axes: the shape rule, as `"B K"`: a batch, K outputs of the head, T tokens, D or E values, H and W of the image.
            A head on all tokens has `T` before its `K`.
        precision: `"float32"`, which is at least that, or `"model"`, that of the model's other layers.
        layers: names of the layers by which such an end is found; none for what every model has.
        exclusive: of logits, whether one class alone is right, as a softmax over them says.
    """

    name: str
    output: str
    axes: str
    precision: str
    layers: tuple[str, ...]
    exclusive: bool = False


HEADS = ("head", "head_distillation")  # of the class token or all that is pooled, of the distillation token
SEGMENTATION, DEPTH = "segmentation", "depth"  # kinds of heads that make maps, and tasks
MAP_HEADS = {SEGMENTATION: "segmentation_head", DEPTH: "depth_head"}  # the layer with the weights, by task
DETECTION = "detection"  # a task whose answers are of queries
KEYPOINTS = "keypoints"  # a task, and the kind of its head: heatmaps of points
DENSE_HEADS = {**MAP_HEADS, DETECTION: "detection_head", KEYPOINTS: "keypoint_head"}
CLASS_LOGITS, MASK_LOGITS, LOGITS, BOXES = "class_logits", "mask_logits", "logits", "boxes"  # of queries
OBJECTNESS, CLASS_EMBEDDINGS, HEATMAPS = "objectness", "class_embeddings", "heatmaps"
OF_QUERIES = "queries"  # the kind of a head whose answers are of queries
NAMED_OUTPUTS = (CLASS_LOGITS, MASK_LOGITS, BOXES, OBJECTNESS, CLASS_EMBEDDINGS, HEATMAPS)  # in a dict or a file
WITH_NAMED_OUTPUTS = (OF_QUERIES, KEYPOINTS)  # kinds of heads that files answer by, as they are
# A new kind of head is a row here, its layer, and its names in the files of a family.
HEAD_KINDS: Mapping[str, HeadKind] = {
    kind.name: kind
    for kind in (
        HeadKind("classes", "logits", "B K", "float32", HEADS, exclusive=True),  # one of K is right
        HeadKind("labels", "logits", "B K", "float32", HEADS),  # any of K may be right
        HeadKind("numbers", "numbers", "B K", "float32", HEADS),  # K quantities
        HeadKind("projected", "embedding", "B E", "float32", ("projection", "unit_length")),
        HeadKind("pooled", "embedding", "B D", "model", ("pooling",)),
        HeadKind(SEGMENTATION, "logits", "B H W K", "float32", (MAP_HEADS[SEGMENTATION],), exclusive=True),
        HeadKind(DEPTH, "numbers", "B H W", "float32", (MAP_HEADS[DEPTH],)),  # metres, or an inverse of them
        HeadKind(KEYPOINTS, "numbers", "B H W K", "float32", (DENSE_HEADS[KEYPOINTS],)),  # a heatmap of each of K
        HeadKind("map", "map", "B H W D", "model", ("neck",)),
        HeadKind("tokens", "tokens", "B T D", "model", ()),
        HeadKind(OF_QUERIES, OF_QUERIES, "B Q K", "float32", ()),  # classes of masks or boxes, next to these
    )
}
WITH_HEAD = tuple(kind.name for kind in HEAD_KINDS.values() if kind.layers == HEADS)
WITHOUT_HEAD = tuple(name for name in HEAD_KINDS if name not in WITH_HEAD)
DEFAULT_HEAD = WITH_HEAD[0]
# Of at least float32 in a model of half precision, with those that join the outputs of two heads.
FLOAT32_LAYERS = tuple({name: 0 for kind in HEAD_KINDS.values() if kind.precision == "float32" for name in kind.layers})
UNITS = "units"  # the layer after a head of numbers that brings them to the unit of the data
MASKS, BOX_HEAD = "masks", "boxes"  # kinds of heads on queries: of segmentation, of detection
OPEN_BOX_HEAD = "open_boxes"  # kind of a head of boxes that are compared with texts
QUERIES = "query_tokens"  # the layer that adds queries to the tokens in front of the last blocks
DEPTHS = "depths"  # the layer after a depth head that makes depths of its maps
FLOAT32_LAYERS += ("average", "activation", UNITS)


@dataclasses.dataclass(frozen=True)
class OutputSpec:
    """What one model puts out.

    Attributes:
        head: the `HeadKind` that it ends in.
        shape: of the output, as `(None, 1000)`.
        activation: name of what follows the head, `"linear"` for nothing; `None` without a head.
    """

    head: HeadKind
    shape: Any
    activation: str | None = None

    @property
    def kind(self) -> str:
        """`"scores"` of logits that an activation follows, else the output of the head, as `"logits"`."""
        return "scores" if self.classifies and self.activation != "linear" else self.head.output

    @property
    def classifies(self) -> bool:
        """Whether each output is of a class: logits, or scores made of them."""
        return self.head.output == "logits"

    @property
    def exclusive(self) -> bool:
        """Whether one class alone is right for an image."""
        return self.head.exclusive

    @property
    def size(self) -> int:
        """K outputs of a head, or the size of an embedding or token; 1 of a depth for each pixel."""
        return 1 if self.head.axes.endswith("W") else self.shape[-1]

    @property
    def one_row(self) -> bool:
        """Whether an image gives one row, and not one for each token or pixel."""
        return len(self.shape) == 2


def tap_blocks(rule: str, count: int, num_layers: int) -> tuple[int, ...]:
    """Numbers of the passed blocks that a head reads.

    Args:
        rule: `"last"`: the last `count`; `"even"`: evenly spread up to the last, as DINOv2's depth heads, Depth
            Anything V2 and DINOv3, where of 24 blocks the first is 5; `"dpt"`: the same, where it is 6, as Intel's;
            `"thirds"`: of four taps those after a third, a half, two thirds and all blocks, as BEiT's UPerNet.
        count: of taps.
        num_layers: of the encoder.

    Raises:
        ValueError: for an encoder of fewer blocks.
    """
    if num_layers < count:
        raise ArgumentError(
            f"a head of {count} taps needs as many blocks.\nReceived: an encoder of {num_layers} blocks. Pass a head "
            "of one tap.",
            parameters=("head",),
        )
    if rule == "last" or count == 1:
        return tuple(range(num_layers - count + 1, num_layers + 1))
    if rule == "thirds" and count == 4:
        return tuple(math.ceil(num_layers * number / 6) for number in (2, 3, 4, 6))
    blocks = tuple(math.ceil(num_layers * number / count) for number in range(1, count + 1))
    return (5, 12, 18, 24) if rule == "even" and blocks == (6, 12, 18, 24) else blocks
