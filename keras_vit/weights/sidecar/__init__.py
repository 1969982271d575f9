"""What stands beside the tensors: the note in our own files, and the JSON files of transformers and timm.

They tell what tensors cannot: the number of heads, the activation, how images must be prepared. A part that is not
understood counts as not there, and one line reports it. What is understood and cannot be computed here is refused.
"""

import dataclasses
import os
import re
from pathlib import Path
from typing import Any

from keras_vit.annotations import Pair
from keras_vit.config.posembed import check_grid
from keras_vit.config.records import Positions
from keras_vit.files import json_object
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.hub import config_of_timm
from keras_vit.weights.reader import TensorFile
from keras_vit.weights.reader.sharded import ShardedFile
from keras_vit.weights.sidecar.facts import Reading, Sidecar, activation_of, not_computed, sides_of
from keras_vit.weights.sidecar.families import layouts_of_architecture, layouts_of_type
from keras_vit.weights.sidecar.structure import told_by_architecture, told_by_type
from keras_vit.weights.sidecar.timm_arguments import check_known, computed_by_eva, pooled_by, told_twice
from keras_vit.weights.sidecar.transformers_words import biases_of, gated_mlp_of, rotary_of

_MOST_BYTES = 4_000_000  # of a JSON file; ImageNet-21k's label lists take 1.5 MB
NOTED_FIELDS = (
    *("activation", "layer_norm_epsilon", "branch_norm", "pooling", "position_embedding", "map_heads", "map_prefix"),
    *(field.name for field in dataclasses.fields(Positions) if field.name.startswith("rotary")),
)
POOLS = {"token": "token", "avg": "gap", "map": "map", "": "none"}  # timm's `global_pool`: ours
_TIMM_SIZES = {"embed_dim": "hidden_size", "depth": "num_layers", "reg_tokens": "registers"}
_TIMM_SIZES |= {"num_reg_tokens": "registers"}
_CROP_MODES = {None: "crop", "center": "crop", "squash": "squash"}
_BEIT_TYPES, _BEIT_POOLING = ("beit", "data2vec-vision"), {True: "gap", False: "token"}  # by `use_mean_pooling`
# SigLIP was trained with the tanh GELU (arXiv:2303.15343, big_vision). timm computes it for these names alone.
_TANH_SIGLIP = re.compile(
    r"patch32_siglip|giantopt_patch16_siglip|so400m_patch16_siglip|large_patch16_siglip_(gap_)?512"
)
_NOT_THE_AUTHORS = 'activation "gelu" as timm computes it; the authors\' numbers need activation="gelu_tanh"'
PIL_FILTERS = {2: "bilinear", 3: "bicubic"}  # `resample` of transformers' image processors


def read(file: TensorFile | ShardedFile) -> Sidecar:
    """The sidecar of a `TensorFile`: its note if it has one of ours, else the JSON files of its folder.

    Raises:
        CheckpointError: for an activation or pooling that is not computed here.
    """
    if "config" in file.note:
        return read_note(file.note, file.path)
    if file.kind == "npz":
        return Sidecar()
    folder = file.path.parent
    config, remarks = _json(folder / "config.json")
    if {"pretrained_cfg", "model_args", "architecture"} & set(config):
        said = read_timm(config, folder)
    elif os.path.lexists(folder / "open_clip_config.json"):
        config, remarks = _json(folder / "open_clip_config.json")
        said = read_open_clip(config)
    else:
        processor, more = _json(folder / "preprocessor_config.json")
        said, remarks = read_transformers(config, processor, folder), remarks + more
    return dataclasses.replace(said, remarks=(*remarks, *said.remarks))


def _json(path: Path) -> tuple[dict, list[str]]:
    """The object in a JSON file, empty without one, and a line if there is something else."""
    if not os.path.lexists(path):
        return {}, []
    reading = Reading(path.name)
    return reading.part("text", lambda: json_object(path, _MOST_BYTES), empty={}), reading.remarks


def note_of(
    config: dict[str, Any], num_heads: int | None, preprocessing: Preprocessing | None, grid: Pair | None, dialect: str
) -> dict[str, Any]:
    """The note that our own files carry."""
    note = {
        "dialect": dialect,
        "config": {name: config[name] for name in NOTED_FIELDS if name in config},
        "num_heads": num_heads,
        "preprocessing": None if preprocessing is None else dataclasses.asdict(preprocessing),
    }
    return note if grid is None else note | {"position_grid": list(grid)}


def read_note(note: dict, path: Path) -> Sidecar:
    """What a note of ours says.

    Raises:
        CheckpointError: for an activation that is not computed here.
    """
    reading = Reading("the file's note")
    config = reading.part("config", lambda: _object(note["config"]), empty={})
    preprocessing, grid = note.get("preprocessing"), note.get("position_grid")
    fields = {name: config[name] for name in NOTED_FIELDS if name in config}
    if "activation" in fields:
        fields["activation"] = activation_of(fields["activation"], f"the note of {path}")
    return Sidecar(
        fields=reading.fields(fields),
        layout=str(note.get("dialect")),
        num_heads=reading.count("num_heads", note.get("num_heads")),
        grid=None
        if grid is None
        else reading.part("position_grid", lambda: sides_of(check_grid("position_grid", grid))),
        preprocessing=None
        if preprocessing is None
        else reading.preprocessing(lambda: Preprocessing(**_object(preprocessing))),
        remarks=tuple(reading.remarks),
    )


def _object(said: Any) -> dict:
    if not isinstance(said, dict):
        raise TypeError(f"this must be an object.\nReceived: {said!r:.40}.")
    return said


def read_timm(config: dict, folder: Path) -> Sidecar:
    """The sidecar of a `config.json` with a `pretrained_cfg`.

    Raises:
        CheckpointError: for an activation or a pooling that is not computed here.
    """
    reading, place = Reading("config.json"), folder / "config.json"
    arguments = config.get("model_args")
    arguments = arguments if isinstance(arguments, dict) else {}
    check_known(arguments, place)
    told = {
        "activation": activation_of(arguments.get("act_layer"), place),
        "pooling": _pooling(arguments.get("global_pool", config.get("global_pool")), place),
        "position_embedding": "none" if arguments.get("pos_embed") == "none" else None,
    }
    layouts = layouts_of_architecture(config.get("architecture"), arguments, place)
    architecture = str(config.get("architecture"))
    known = config_of_timm(architecture)
    fields = _computed_by(architecture) | computed_by_eva(architecture, arguments, place)
    fields |= {name: value for name, value in told.items() if value}
    if "siglip" in architecture and fields.get("activation", "gelu") == "gelu":
        reading.remarks.append(_NOT_THE_AUTHORS)
    if isinstance(arguments.get("class_token"), bool) and fields.get("pooling") in ("gap", "map"):
        fields["class_token"] = arguments["class_token"]  # elsewhere the pooling tells
    return Sidecar(
        fields=reading.fields(fields),
        family=f"architecture {config.get('architecture')!r:.80}",
        layouts=layouts,
        num_heads=reading.count("num_heads", arguments.get("num_heads", getattr(known, "num_heads", None))),
        sizes=told_by_architecture(architecture, arguments)
        | _sizes_said(arguments, place, **_TIMM_SIZES)
        | told_twice(arguments, has_plain_mlp=known is not None and not known.gated_mlp)
        | pooled_by(architecture, arguments)
        | _classes_said(arguments.get("num_classes", config.get("num_classes"))),
        image_size=reading.part("img_size", lambda: sides_of(arguments.get("img_size"))),
        preprocessing=reading.preprocessing(lambda: _timm_preprocessing(config.get("pretrained_cfg", {}))),
        remarks=tuple(reading.remarks),
    )


def _sizes_said(said: dict, place: Path, **words: str) -> dict[str, Any]:
    """Numbers of a config that the tensors tell too, and the patch size, by our words.

    Raises:
        CheckpointError: for patches that are no squares.
    """
    words |= {"patch_size": "patch_size"}
    side = said.get("patch_size")
    if isinstance(side, list):
        if len({*map(str, side)}) != 1:
            raise not_computed("patch", f"patch_size={side}", place, "a square")
        said = said | {"patch_size": side[0]}  # [14, 14], as InternVL has it
    return {ours: said[word] for word, ours in words.items() if type(said.get(word)) is int}


def _classes_said(count: Any) -> dict[str, int]:
    return {"classes": count} if type(count) is int and count else {}


def _computed_by(architecture: str) -> dict[str, Any]:
    """What timm computes of a model by its name, where no tensor tells it and it is not timm's default."""
    fields: dict[str, Any] = {}
    if "_clip_" in architecture and not re.match("eva|vit_.*mobileclip", architecture):
        fields = {"layer_norm_epsilon": 1e-5}
    if architecture.startswith("beit3_"):
        fields = {"layer_norm_epsilon": 1e-5}
    if "_clip_quickgelu_" in architecture:
        fields["activation"] = "quick_gelu"
    if architecture.startswith("aimv2"):
        fields["layer_norm_epsilon"] = 1e-5
    if _TANH_SIGLIP.search(architecture):
        fields["activation"] = "gelu_tanh"
    return fields


def _pooling(word: Any, place: Path) -> str | None:
    if word is None:
        return None
    if not isinstance(word, str) or word not in POOLS:
        raise not_computed("pooling", word, place, ", ".join(map(repr, POOLS)))
    return POOLS[word]


def _timm_preprocessing(said: Any) -> Preprocessing | None:
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


def read_open_clip(config: dict) -> Sidecar:
    """The sidecar of an `open_clip_config.json`."""
    reading = Reading("open_clip_config.json")
    model = reading.part("model_cfg", lambda: _object(config.get("model_cfg")), empty={})
    vision = reading.part("vision_cfg", lambda: _object(model.get("vision_cfg")), empty={})
    heads = reading.part("heads", lambda: vision.get("width", 0) // vision.get("head_width", 64) or None)
    return Sidecar(
        fields={"activation": "quick_gelu" if model.get("quick_gelu") else "gelu"},
        num_heads=reading.count("heads", heads),
        image_size=reading.part("image_size", lambda: sides_of(vision.get("image_size"))),
        remarks=tuple(reading.remarks),
    )


def read_transformers(config: dict, processor: dict, folder: Path) -> Sidecar:
    """The sidecar of both files; an absent one is empty.

    Raises:
        CheckpointError: for an activation that is not computed here.
    """
    reading, images = Reading("config.json"), Reading("preprocessor_config.json")
    if isinstance(config.get("vision_config"), dict):  # of two towers, which the projection is not of
        config = config["vision_config"] | {"projection_dim": config.get("projection_dim")}
    kind = str(config.get("model_type"))
    if kind.startswith("aimv2"):
        config = _without_gate(config, folder / "config.json")
    gated = gated_mlp_of(config, folder / "config.json")
    fields = {
        "pooling": _BEIT_POOLING.get(config.get("use_mean_pooling", True)) if kind in _BEIT_TYPES else None,
        "activation": None if gated else activation_of(config.get("hidden_act"), folder / "config.json"),
        "layer_norm_epsilon": config.get("layer_norm_eps", config.get("rms_norm_eps")),
        **rotary_of(config, kind, folder / "config.json"),
    }
    return Sidecar(
        fields=reading.fields({name: value for name, value in fields.items() if value is not None}),
        layout=kind,
        family=f"model_type {config.get('model_type')!r:.80}" if os.path.lexists(folder / "config.json") else "",
        layouts=layouts_of_type(config.get("model_type"), folder / "config.json"),
        num_heads=reading.count("num_attention_heads", config.get("num_attention_heads")),
        sizes=told_by_type(kind, config)
        | _sizes_said(
            config,
            folder / "config.json",
            hidden_size="hidden_size",
            num_hidden_layers="num_layers",
            num_register_tokens="registers",
            n_cls_tokens="class_tokens",
        )
        | biases_of(config, folder / "config.json")
        | ({} if gated is None else {"gated_mlp": gated}),
        image_size=reading.part("image_size", lambda: sides_of(config.get("max_img_size", config.get("image_size")))),
        preprocessing=images.preprocessing(lambda: _transformers_preprocessing(processor)) if processor else None,
        pre_logits_activation=config.get("pooler_act") or "tanh",
        remarks=(*reading.remarks, *images.remarks),
    )


def _without_gate(config: dict, place: Path) -> dict:
    """A config of AIMv2 without the activation of its gate, which is the only one that is computed here."""
    if (word := config.get("hidden_act", "silu")) != "silu":
        raise not_computed("activation of a gated MLP", word, place, "'silu'")
    if config.get("is_native"):
        raise not_computed("position embedding", "is_native", place, "a learned table")
    return {name: value for name, value in config.items() if name != "hidden_act"}


def _transformers_preprocessing(said: dict) -> Preprocessing:
    _refuse_unless(said.get("do_rescale", True) is True, said, "do_rescale")
    _refuse_unless(abs(said.get("rescale_factor", 1 / 255) * 255 - 1) < 1e-3, said, "rescale_factor")
    _refuse_unless(said.get("resample", 2) in PIL_FILTERS, said, "resample")
    mean, std = said.get("image_mean", [0.5] * 3), said.get("image_std", [0.5] * 3)  # those of ViTImageProcessor
    if not said.get("do_normalize", True):
        mean, std = [0.0] * 3, [1.0] * 3
    return Preprocessing(
        mean=mean, std=std, interpolation=PIL_FILTERS[said.get("resample", 2)], antialias=True, **_sizes(said)
    )


def _sizes(said: dict) -> dict[str, Any]:
    """`image_size`, `resize` and `crop_fraction`: a processor squashes, or resizes first and cuts out the centre."""
    size: Any = sides_of(said.get("size"))
    if not said.get("do_center_crop"):
        whole = isinstance(said.get("size"), dict) and "shortest_edge" in said["size"]
        _refuse_unless(not whole, said, "size")  # leaves images of every aspect
        return {"image_size": size, "resize": "squash" if said.get("do_resize", True) else "none"}
    crop: Any = sides_of(said.get("crop_size"))
    _refuse_unless(said.get("do_resize", True), said, "do_resize")
    _refuse_unless(crop is not None and size is not None and size[0] >= crop[0], said, "crop_size")
    _refuse_unless(crop[0] * size[1] == crop[1] * size[0], said, "crop_size")  # covers another shape than it cuts out
    return {"image_size": crop, "resize": "crop", "crop_fraction": crop[0] / size[0], "rounding": "transformers"}


def _refuse_unless(rule: bool, said: dict, name: str) -> None:
    if not rule:
        raise ValueError(f"{name} must be one that a record can hold.\nReceived: {name} {said.get(name)}")
