"""What a note or a JSON file can say of a model, and the checks that are the same for all of them."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from keras_vit.annotations import FilePath
from keras_vit.config.vit import ViTConfig
from keras_vit.images.preprocessing import Preprocessing, only_count
from keras_vit.pages.formatting import printable
from keras_vit.weights.read import CheckpointError

_LONGEST = 200  # characters of a stranger's words in a remark
_MOST = 2**31  # no side of an image and no number of heads; products of more digits than Python prints are errors
_ACTIVATIONS = {  # names in transformers, timm and here: here
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of OpenAI's code
GATES = ("silu", "swish")  # names of the one function that gates an MLP here


@dataclasses.dataclass(frozen=True)
class Metadata:
    """What a file, or the JSON in its folder, says of the model; `remarks` has a line for each part not understood."""

    fields: dict = dataclasses.field(default_factory=dict)
    layout: str = ""  # the `model_type` of transformers, or the layout in a note
    family: str = ""  # as config.json names it; `""` without such a file
    layouts: tuple[str, ...] = ()  # those of the family's files; none for an unknown one
    num_heads: int | None = None
    usual_heads: Mapping[int, int] = dataclasses.field(default_factory=dict)  # by the width, where it is not said
    sizes: dict[str, Any] = dataclasses.field(
        default_factory=dict
    )  # what it says of the architecture, as `ViTConfig` names it
    grid: tuple[int, int] | None = None
    image_size: tuple[int, int] | None = None  # that the position table belongs to
    preprocessing: Preprocessing | None = None
    pre_logits_activation: str = "tanh"
    class_names: tuple[str, ...] | None = None  # of the K outputs; `None` also for names that only count
    remarks: tuple[str, ...] = ()
    is_note: bool = False  # of this package, whose files may have any part
    overruled: dict = dataclasses.field(default_factory=dict)  # what the folder's JSON says, where a note is followed
    fixed_size: str = ""  # the file that says how large photos are, where its software takes no others than the table's


class Reading:
    """Reads one note or JSON file. Parts that are not understood become remarks, and count as not there."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.remarks: list[str] = []

    def part(self, what: str, read: Callable[[], Any], instead: str = "taken as not there", empty: Any = None) -> Any:
        """What `read()` gives, or `empty` and a remark if it raises for a value that it cannot take."""
        try:
            return read()
        except CheckpointError:  # understood, and nothing that is computed here
            raise
        except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
            reason = printable(str(error).rpartition("Received: ")[2].rstrip(".").replace("\n", " "))[:_LONGEST]
            self.remarks.append(f"{what} of {self.place} not understood ({reason}): {instead}")
            return empty

    def preprocessing(self, read: Callable[[], Preprocessing | None]) -> Preprocessing | None:
        """The record that `read()` makes."""
        return self.part("preprocessing", read, "images scaled to [-1, 1]")

    def fields(self, fields: dict) -> dict:
        """Fields of `ViTConfig`, checked as those of a caller are."""
        return self.part("config", lambda: _checked(fields), empty={})

    def class_names(self, what: str, read: Callable[[], Any]) -> tuple[str, ...] | None:
        """The names that `read()` gives: a list, or a dict by number; `None` for none, and for names that only count.

        Args:
            what: the key that has them.
            read: gives a list, a dict from `"0"`, ... to names, or `None`.
        """
        names = self.part(what, lambda: parse_names(read()))
        return None if names is None or only_count(names) else names

    def count(self, what: str, number: Any) -> int | None:
        """A number above zero, or `None`."""
        return self.part(what, lambda: _count(number))


def parse_activation(word: Any, place: FilePath) -> str | None:
    """The field `activation` of another software's name, or `None` for `None`.

    Raises:
        CheckpointError: for one that is not computed here.
    """
    if word is None:
        return None
    if not isinstance(word, str) or word not in _ACTIVATIONS:
        raise unsupported_error("activation", word, place, "exact, tanh or quick GELU")
    return _ACTIVATIONS[word]


def parse_epsilon(value: Any, place: FilePath) -> float | None:
    """The field `layer_norm_epsilon`, or `None` for `None`.

    Raises:
        CheckpointError: for what is no small number above zero.
    """
    if value is not None and (type(value) not in (int, float) or not 0 < value < 1):
        raise unsupported_error("epsilon of a norm", value, place, "a number above 0 and below 1")
    return value


def unsupported_error(what: str, word: Any, place: FilePath, known: str) -> CheckpointError:
    """The error for a setting that is not supported."""
    return CheckpointError(
        f"the {what} must be one that is computed here ({known}), since with another the same weights give other "
        f"numbers.\nReceived: {word!r:.100} in {place}. If that is wrong of these weights, correct it there."
    )


def parse_size(size: Any) -> tuple[int, int] | None:
    """`(H, W)` of an int, `[h, w]` or `{"height": h, "width": w}`; `None` for `None`."""
    if size is None:
        return None
    if isinstance(size, dict):
        size = [size.get("height", size.get("shortest_edge")), size.get("width", size.get("shortest_edge"))]
    sides = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
    if len(sides) != 2:
        raise ValueError(f"a size must have two sides.\nReceived: size {size!r}.")
    return _count(sides[0]), _count(sides[1])


def check_channels(channels: Any, **statistics: Any) -> None:
    """Raises a `ValueError` unless lists of means or deviations have one number, those of RGB, or one a channel."""
    for name, values in statistics.items():
        if isinstance(values, (list, tuple)) and len(values) not in (1, 3, channels):
            raise ValueError(f"{name} must have a number for each channel.\nReceived: {name} {list(values)!r}")


_LARGEST_PATCH = 4096  # pixels, so that any padding is less than half of it


def _checked(fields: dict[str, Any]) -> dict[str, Any]:
    width = 4 * (fields.get("map_heads") or 1)  # a multiple of any number of heads
    ViTConfig(patch_size=_LARGEST_PATCH, hidden_size=width, num_layers=1, num_heads=1, mlp_dim=1, **fields)
    return fields


def parse_names(given: Any) -> tuple[str, ...] | None:
    """Class names of a list, or of a dict by number; `None` for none.

    Raises:
        ValueError: for what is no text or an empty one, and for numbers that are not 0, 1, 2, ...
    """
    if isinstance(given, dict):
        by_number = {int(number): name for number, name in given.items()}
        given = [by_number.get(number) for number in range(len(by_number))]
    if given is None or given == []:
        return None
    if not isinstance(given, (list, tuple)) or not all(isinstance(name, str) and name.strip() for name in given):
        raise ValueError(f"class names must be texts, one for each output.\nReceived: {str(given)[:40]!r}.")
    return tuple(given)


def _count(number: Any) -> Any:
    if number is not None and (type(number) is not int or not 0 < number < _MOST):
        raise ValueError(f"a count must be an int above zero.\nReceived: {number!r:.40}.")
    return number


def check_object(value: Any) -> dict[str, Any]:
    """The value, which must be an object of JSON."""
    if not isinstance(value, dict):
        raise TypeError(f"this must be an object.\nReceived: {value!r:.40}.")
    return value


def scaled_width(
    config: Mapping[str, Any], width: str, name: str = "mlp_dim", rounded: Callable[[float], int] = round
) -> dict[str, float]:
    """The field `name` by `mlp_ratio` and the word for the width; infinity for what no array can have."""
    factors: list[Any] = [config.get("mlp_ratio"), config.get(width)]
    if not all(isinstance(factor, (int, float)) for factor in factors):
        return {}
    size = factors[0] * factors[1]
    return {name: rounded(size) if 0 < size < _MOST else math.inf}


def swiglu_width(width: float) -> int:
    """M of DINOv2's gated MLP: two thirds, up to a multiple of 8."""
    return (int(int(width) * 2 / 3) + 7) // 8 * 8


def class_names(config: Mapping[str, Any]) -> list[str]:
    """`architectures`, transformers' classes that a config is of."""
    names = config.get("architectures")
    return list(map(str, names)) if isinstance(names, list) else []


def classifies(config: Mapping[str, Any]) -> bool:
    """Whether a config of transformers is of a classifier."""
    return any("ForImageClassification" in name for name in class_names(config))


def rope_fields(
    config: Mapping[str, Any], place: Path, kind: str = "default", theta: float = 100.0, by_parameters: bool = False
) -> dict[str, Any]:
    """Fields of rotary positions.

    Args:
        config: of transformers.
        place: of the file, for the message.
        kind: `rope_type` that is computed here.
        theta: where the config has none.
        by_parameters: whether the class takes theta from `rope_parameters` too.

    Raises:
        CheckpointError: for frequencies by another rule than powers of one number.
    """
    rope = config.get("rope_parameters")
    rope = rope if isinstance(rope, dict) else {}
    if (rule := rope.get("rope_type", kind)) not in (kind, "default"):
        raise unsupported_error("rotary position", f"rope_type={rule!r}", place, kind)
    theta = config.get("rope_theta") or (rope.get("rope_theta") if by_parameters else None) or theta
    if (other := rope.get("rope_theta", theta)) != theta:
        received = f"rope_theta={theta}, and {other} in rope_parameters"
        raise unsupported_error(
            "rotary position", received, place, "one theta, as `rope_theta`, which transformers computes by"
        )
    return {"rotary": "axial", "rotary_theta": theta}


def size_fields(config: dict, place: Path, **words: str) -> dict[str, Any]:
    """Numbers of a config that the tensors show too, and the patch size, as `ViTConfig` names them.

    Raises:
        CheckpointError: for patches that are no squares.
    """
    words |= {"patch_size": "patch_size"}
    side = config.get("patch_size")
    if isinstance(side, list):
        if len({*map(str, side)}) != 1:
            raise unsupported_error("patch", f"patch_size={side}", place, "a square")
        config = config | {"patch_size": side[0]}  # [14, 14], as InternVL has it
    return {field: config[word] for word, field in words.items() if type(config.get(word)) is int}


def nearest_filter(record: Preprocessing) -> str:
    """The filter that comes nearest to the record's among those that both Pillow and torchvision have.

    Figures are mean grey levels of 255, on the photos of `photo_differences`. Bilinear without antialias: bicubic
    differs by 3.2, bilinear by 3.4, nearest by 3.7. Bilinear is taken, since it is exact where a photo grows, and
    bicubic differs by 25 there. Areas: bilinear differs by 3.8, bicubic by 3.9.
    """
    return "bilinear" if record.interpolation == "area" else record.interpolation


USUAL_FIELDS: dict[str, Any] = {
    "norm": "layer",
    "proj_bias": True,
    "mlp_bias": True,
}  # neither config says these


def check_writable(software: str, facts: dict[str, Any], **usual: Any) -> None:
    """Raises for fields that the config of a folder cannot express."""
    wrong = [f"{name}={facts[name]!r}" for name, value in usual.items() if facts[name] != value]
    if wrong:
        raise CheckpointError(
            f"the config.json of {software} cannot say that there is a gated MLP, RMSNorm or a missing bias.\n"
            f"Received: {', '.join(wrong)}. Write a .safetensors file instead of a folder."
        )
