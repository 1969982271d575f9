"""What timm's `config.json` says of the weights beside it."""

from typing import Any

from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.sidecar.facts import Reading, Sidecar, activation_of, not_computed, sides_of

POOLS = {"token": "token", "avg": "gap", "map": "map", "": "none"}  # timm's `global_pool`: ours
_CROP_MODES = {None: "crop", "center": "crop", "squash": "squash"}


def read_timm(config: dict, folder) -> Sidecar:
    """The sidecar of a `config.json` with a `pretrained_cfg`.

    Raises:
        CheckpointError: for an activation or a pooling that is not computed here.
    """
    reading, place = Reading("config.json"), folder / "config.json"
    arguments = config.get("model_args")
    arguments = arguments if isinstance(arguments, dict) else {}
    fields = {
        "activation": activation_of(arguments.get("act_layer"), place),
        "pooling": _pooling(arguments.get("global_pool", config.get("global_pool")), place),
        "position_embedding": "none" if arguments.get("pos_embed") == "none" else None,
    }
    if isinstance(arguments.get("class_token"), bool) and fields["pooling"] in ("gap", "map"):
        fields["class_token"] = arguments["class_token"]  # elsewhere the pooling tells
    return Sidecar(
        fields=reading.fields({name: value for name, value in fields.items() if value is not None}),
        num_heads=reading.count("num_heads", arguments.get("num_heads")),
        image_size=reading.part("img_size", lambda: sides_of(arguments.get("img_size"))),
        preprocessing=reading.preprocessing(lambda: _record(config["pretrained_cfg"])),
        remarks=tuple(reading.remarks),
    )


def _pooling(word, place):
    if word is None:
        return None
    if not isinstance(word, str) or word not in POOLS:
        raise not_computed("pooling", word, place, ", ".join(map(repr, POOLS)))
    return POOLS[word]


def _record(said):
    if not isinstance(said, dict):
        raise TypeError(f"`pretrained_cfg` must be an object.\nReceived: pretrained_cfg {said!r}")
    size = said.get("input_size")
    if size is None:
        return None
    if not isinstance(size, list) or len(size) != 3:
        raise ValueError(f"`input_size` must be [C, H, W].\nReceived: input_size {size!r}")
    mode = said.get("crop_mode")
    if mode not in _CROP_MODES:
        raise ValueError(f"`crop_mode` must be one that a record can hold.\nReceived: crop_mode {mode}")
    statistics: dict[str, Any] = {"mean": said.get("mean"), "std": said.get("std")}
    return Preprocessing(
        image_size=tuple(size[1:]),
        **statistics,
        interpolation=said.get("interpolation", "bicubic"),
        antialias=True,
        resize=_CROP_MODES[mode],
        crop_fraction=said.get("crop_pct", 1.0),
    )
