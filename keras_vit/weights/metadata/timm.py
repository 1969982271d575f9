"""What the `config.json` of a timm folder says of a model, and the one that is written for timm.

`model_args` may have any argument of timm's classes. An argument that is not known here is refused by name, since one
that is passed over would give other numbers from the same weights.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_vit.config.vit import ViTConfig
from keras_vit.images.preprocessing import Preprocessing, is_wordnet_id
from keras_vit.images.resizing import CUTS_CENTRE
from keras_vit.weights.metadata.record import (
    GATES,
    USUAL_FIELDS,
    Metadata,
    Reading,
    check_object,
    check_writable,
    nearest_filter,
    parse_activation,
    parse_epsilon,
    parse_size,
    scaled_width,
    size_fields,
    unsupported_error,
)
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.registry import config_of_timm

POOLS = {"token": "token", "avg": "gap", "map": "map", "": "none"}  # timm's `global_pool`: `pooling`
_TIMM_SIZES = {"embed_dim": "hidden_size", "depth": "num_layers", "reg_tokens": "registers"}
_TIMM_SIZES |= {"num_reg_tokens": "registers"}
_CROP_MODES = {None: "crop", "center": "crop", "squash": "squash"}
# SigLIP was trained with the tanh GELU (arXiv:2303.15343, big_vision). timm computes it for these names alone.
_TANH_SIGLIP = re.compile(
    r"patch32_siglip|giantopt_patch16_siglip|so400m_patch16_siglip|large_patch16_siglip_(gap_)?512"
)
_TOWERS = re.compile(r"(qwen3|deepseek)_vit_")  # image towers of language models
_HEADS = {r"qwen3_vit_88m": 12, _TOWERS.pattern: 16}  # of names that no record has
_ENCODER_ONLY = "the tokens of the encoder, as timm's forward_features; the norm of timm's classifier is not computed"
_NOT_THE_AUTHORS = 'activation "gelu" as timm computes it; the authors\' numbers need activation="gelu_tanh"'


def read_timm(config: dict, folder: Path, name: str = "config.json") -> Metadata:
    """The metadata of a `config.json` with a `pretrained_cfg`.

    Args:
        config: what it says.
        folder: that it is in.
        name: of another file that says the same.

    Raises:
        CheckpointError: for an activation or a pooling that is not computed here.
    """
    reading, place = Reading(name), folder / name
    given = {} if config.get("model_args") is None else config["model_args"]
    arguments = reading.part("model_args", lambda: check_object(given), empty={})
    architecture = str(config.get("architecture"))
    layouts = timm_layouts(config.get("architecture"), arguments, place)
    check_known(architecture, arguments, place)
    gate = _act_layer(architecture, arguments) in GATES
    named = {
        "activation": None if gate else parse_activation(_act_layer(architecture, arguments), place),
        "pooling": _pooling(_global_pool(architecture, arguments, config), timm_class(architecture), place),
        "position_embedding": "none" if arguments.get("pos_embed") == "none" else None,
        "layer_norm_epsilon": parse_epsilon(arguments.get("norm_eps"), place),
    }
    fields = _name_fields(architecture) | eva_fields(architecture, arguments, place)
    fields |= {name: value for name, value in named.items() if value}
    if "global_pool" in arguments and arguments["global_pool"] is None:
        raise unsupported_error("pooling", None, place, ", ".join(map(repr, POOLS)))
    _compare_pooling(config, architecture, arguments, reading)
    if "siglip" in architecture and fields.get("activation", "gelu") == "gelu":
        reading.remarks.append(_NOT_THE_AUTHORS)
    if _TOWERS.match(architecture) and not architecture.split(".")[0].endswith("_enc"):
        reading.remarks.append(_ENCODER_ONLY)
    if isinstance(arguments.get("class_token"), bool) and fields.get("pooling") in ("gap", "map"):
        fields["class_token"] = arguments["class_token"]  # else the pooling decides
    return Metadata(
        fields=reading.fields(fields),
        family=f"architecture {config.get('architecture')!r:.80}",
        layouts=layouts,
        num_heads=reading.count("num_heads", arguments.get("num_heads", _usual_heads(architecture))),
        sizes=expected_from_timm_name(architecture, arguments)
        | size_fields(arguments, place, **_TIMM_SIZES)
        | conflicting_fields(architecture, arguments)
        | _gate_fields(_act_layer(architecture, arguments), layouts)
        | _class_fields(arguments.get("num_classes"), _file_classes(config), place),
        image_size=reading.part("img_size", lambda: _table_size(architecture, arguments)),
        preprocessing=reading.preprocessing(lambda: _timm_preprocessing(config.get("pretrained_cfg", {}))),
        class_names=read_label_names(config, reading),
        remarks=tuple(reading.remarks),
        fixed_size=name if _has_one_size(architecture, arguments) else "",
    )


def _has_one_size(architecture: str, arguments: Mapping[str, Any]) -> bool:
    """Whether timm's model refuses images of another size than `img_size`, by which it resizes the file's table."""
    by_name = architecture.startswith("vit_intern300m_")  # which set `dynamic_img_size`, as most of `Eva`
    is_fixed = timm_class(architecture) == "VisionTransformer" and not by_name
    return is_fixed and "img_size" in arguments and not arguments.get("dynamic_img_size")


def _compare_pooling(config: dict, architecture: str, arguments: Mapping[str, Any], reading: Reading) -> None:
    """A remark on a `global_pool` outside of `model_args`, which timm does not read."""
    known, word = config_of_timm(architecture), config.get("global_pool")
    if known is None or word is None or "global_pool" in arguments or timm_class(architecture) != "VisionTransformer":
        return
    if POOLS[word] != known.pooling:
        reading.remarks.append(
            f"pooling by global_pool {word!r}: timm opens the folder with {POOL_WORDS.get(known.pooling)!r}"
        )


def _act_layer(architecture: str, arguments: Mapping[str, Any]) -> Any:
    """`act_layer`; `null` is the class's own, whatever the architecture has."""
    is_null = "act_layer" in arguments and arguments["act_layer"] is None
    word = "gelu" if is_null and timm_class(architecture) else arguments.get("act_layer")
    return word.lower() if isinstance(word, str) else word


def _usual_heads(architecture: str) -> int | None:
    by_pattern = next((heads for pattern, heads in _HEADS.items() if re.match(pattern, architecture)), None)
    return by_pattern or getattr(config_of_timm(architecture), "num_heads", None)


def _table_size(architecture: str, arguments: Mapping[str, Any]) -> tuple[int, int] | None:
    """`img_size`, but for towers whose square table has a size of its own, `pos_embed_grid_size`."""
    return None if architecture.startswith("qwen3_vit_") else parse_size(arguments.get("img_size"))


def _gate_fields(word: Any, layouts: tuple[str, ...]) -> dict[str, bool]:
    """`gated_mlp` by `act_layer`, which timm's class `VisionTransformer` also gates by, where an MLP has a gate."""
    return {"gated_mlp": word in GATES} if word in GATES or (word is not None and layouts == _VIT) else {}


def read_label_names(config: dict, reading: Reading) -> tuple[str, ...] | None:
    """The class names of a timm folder, with a remark on those that are set aside.

    Args:
        config: of config.json.
        reading: of that file, which gets the remark.
    """
    inner = config.get("pretrained_cfg")
    first, second = config.get("label_names"), inner.get("label_names") if isinstance(inner, dict) else None
    if None not in (first, second) and first != second:  # timm too puts the first one over the second
        reading.remarks.append(f"set aside class names: label_names of pretrained_cfg, unlike those of {reading.place}")
    stored = inner if first is None and isinstance(inner, dict) and second is not None else config
    return reading.class_names("label_names", lambda: _label_names(stored))


def _label_names(stored: dict) -> Any:
    """`label_names`; ids of WordNet with what `label_descriptions` says of each, as `"n02391049 zebra"`."""
    names, texts = stored.get("label_names"), stored.get("label_descriptions")
    if names is None and texts:
        raise ValueError("`label_descriptions` need `label_names`.\nReceived: label_descriptions without label_names.")
    if not isinstance(names, (dict, list)) or not isinstance(texts, dict):
        return names

    def named(name: Any) -> Any:
        text = texts.get(name)
        return f"{name} {text}" if isinstance(text, str) and is_wordnet_id(name) else name

    return {key: named(n) for key, n in names.items()} if isinstance(names, dict) else [named(n) for n in names]


def _file_classes(config: dict) -> Any:
    """`num_classes` of the file's head: that of the top level, which timm puts over that of `pretrained_cfg`."""
    inner = config.get("pretrained_cfg")
    return config.get("num_classes", inner.get("num_classes") if isinstance(inner, dict) else None)


def _class_fields(of_model: Any, of_file: Any, place: Path) -> dict[str, int]:
    """The classes by both `num_classes`; where they differ, timm leaves the file's head out and draws another."""
    counts = [count for count in (of_model, of_file) if type(count) is int]
    if len({*counts}) > 1:
        raise CheckpointError(
            "`num_classes` and that of `model_args` must be the same, or timm draws a new head.\n"
            f"Received: num_classes {of_file}, and {of_model} in model_args of {place}. Correct one of them."
        )
    return {"classes": counts[0]} if counts else {}


def _name_fields(architecture: str) -> dict[str, Any]:
    """What timm computes of a model by its name, unless it is timm's default or a tensor shows it."""
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


def _global_pool(architecture: str, arguments: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    """`global_pool`; with `fc_norm`, which alone would be taken for mean pooling, by default the architecture's."""
    word = arguments.get("global_pool", config.get("global_pool"))
    known = config_of_timm(architecture) if timm_class(architecture) == "VisionTransformer" else None
    return POOL_WORDS.get(known.pooling) if word is None and known and arguments.get("fc_norm") else word


def _pooling(word: Any, of_class: str | None, place: Path) -> str | None:
    if word is None or (word in ("merge", "align") and of_class in (*_TOWER_CLASSES, None)):  # which follow the tokens
        return None
    if not isinstance(word, str) or word not in POOLS:
        raise unsupported_error("pooling", word, place, ", ".join(map(repr, POOLS)))
    return POOLS[word]


def _timm_preprocessing(config: Any) -> Preprocessing | None:
    if not isinstance(config, dict):
        raise TypeError(f"`pretrained_cfg` must be an object.\nReceived: pretrained_cfg {config!r}")
    size = config.get("input_size")
    if size is None:
        return None
    if not isinstance(size, list) or len(size) != 3:
        raise ValueError(f"`input_size` must be [C, H, W].\nReceived: input_size {size!r}")
    mode = config.get("crop_mode")
    if mode not in _CROP_MODES:
        raise ValueError(f"`crop_mode` must be one that a record can hold.\nReceived: crop_mode {mode}")
    statistics: dict[str, Any] = {"mean": config.get("mean"), "std": config.get("std")}
    fraction: Any = config.get("crop_pct", 1.0)
    return Preprocessing(
        image_size=tuple(size[1:]),
        **statistics,
        interpolation=config.get("interpolation", "bicubic"),
        antialias=True,
        resize="squash_crop" if mode == "squash" and fraction < 1 else _CROP_MODES[mode],
        crop_fraction=fraction,
    )


# By timm's classes: the arguments that are computed here, that tensors show, or that change nothing at inference.
_EVERY = (
    *("img_size", "patch_size", "in_chans", "num_classes", "global_pool", "embed_dim", "depth", "num_heads"),
    *("mlp_ratio", "drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate", "device", "dtype"),
)
_PLAIN = ("qkv_bias", "init_values", "pos_drop_rate")
_TOWER = ("out_features", "rope_temperature", "norm_eps", "final_norm")  # `final_norm` of the classifier
_CLASS_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "VisionTransformer": (
        *(*_EVERY, *_PLAIN, "qk_norm", "scale_attn_norm", "scale_mlp_norm", "proj_bias", "class_token", "pos_embed"),
        *("no_embed_class", "reg_tokens", "pre_norm", "final_norm", "fc_norm", "pool_include_prefix", "act_layer"),
        *("dynamic_img_size", "dynamic_img_pad", "patch_drop_rate", "weight_init", "fix_init"),
    ),
    "Eva": (
        *(*_EVERY, *_PLAIN, "qk_norm", "num_kv_heads", "qkv_fused", "swiglu_mlp", "swiglu_align_to", "scale_mlp"),
        *("scale_attn_inner", "attn_type", "attn_only_layer_scale", "class_token", "num_reg_tokens", "no_embed_class"),
        *("use_abs_pos_emb", "use_rot_pos_emb", "rope_type", "rope_grid_offset", "rope_grid_indexing"),
        *("rope_temperature", "rope_rotate_half", "rope_shift_coords", "rope_jitter_coords", "rope_rescale_coords"),
        *("use_post_norm", "use_pre_transformer_norm", "use_post_transformer_norm", "use_fc_norm", "head_init_scale"),
        *("attn_pool_num_heads", "attn_pool_mlp_ratio", "dynamic_img_size", "dynamic_img_pad", "patch_drop_rate"),
        "ref_feat_shape",
    ),
    "Beit": (
        *(*_EVERY, *_PLAIN, "swiglu_mlp", "scale_mlp", "use_abs_pos_emb", "use_rel_pos_bias"),
        *("use_shared_rel_pos_bias", "head_init_scale", "use_fc_norm"),
    ),
    "Qwen3Vit": (*_EVERY, *_TOWER, "merge_size", "pos_embed_grid_size"),
    "DeepseekVit": (*_EVERY, *_TOWER, "downsample_ratio", "dynamic_img_pad"),
}
_TOWER_CLASSES = ("Qwen3Vit", "DeepseekVit")
_CLASSES: Mapping[str, str] = {  # how architectures begin, the first of which counts: timm's class
    r"eva02_|eva_giant_|vit_pe_|vit_.*_(dinov3|lingbot|eupe|sapiens2|rope)": "Eva",
    r"beit(v2)?_": "Beit",
    r"qwen3_vit_": "Qwen3Vit",
    r"deepseek_vit_": "DeepseekVit",
    r"": "VisionTransformer",
}
# Arguments that the tensors show too: the field.
_FLAGS: Mapping[str, str] = {
    "pre_norm": "pre_norm",
    "use_pre_transformer_norm": "pre_norm",
    "swiglu_mlp": "gated_mlp",
    "scale_mlp": "mlp_norm",
    "scale_mlp_norm": "mlp_norm",
    "scale_attn_inner": "attention_norm",
    "scale_attn_norm": "attention_norm",
    "proj_bias": "proj_bias",
    "class_token": "class_token",
    "use_abs_pos_emb": "position_table",
}
# What the architectures of timm's class `Eva` set, by how their names begin. The last pattern that matches counts.
_EVA_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    r"eva02_": {"use_rot_pos_emb": True, "ref_feat_shape": 16},
    r"eva02_enormous_": {"use_rot_pos_emb": False, "use_post_norm": True},
    r"vit_pe_": {"use_rot_pos_emb": True, "rope_grid_indexing": "xy", "rope_grid_offset": 1.0},
    r"vit_pe_core_": {"attn_pool_num_heads": 8},
    r"vit_pe_(lang|spatial)_": {"use_fc_norm": False, "use_post_transformer_norm": False},
    r"vit_pe_.*_gigantic_": {"rope_grid_offset": 0.0},
    r"vit_.*_dinov3": {"global_pool": "avg"},
    r"vit_.*_(dinov3|lingbot|sapiens2)": {
        **{"use_rot_pos_emb": True, "rope_type": "dinov3", "rope_temperature": 100.0, "rope_rotate_half": True},
        "use_fc_norm": False,
    },
    r"vit_7b_patch16_dinov3": {"swiglu_align_to": 64},
    r"vit_(huge|small)_plus_patch16_dinov3|vit_giant_patch16_lingbot": {"swiglu_align_to": 8},
    r"vit_.*_rope_(mixed_)?(ape_)?\d": {
        **{"use_rot_pos_emb": True, "rope_grid_indexing": "xy", "rope_temperature": 100.0}
    },
    r"vit_base_patch16_rope_224": {"use_fc_norm": False},
    r"vit_.*_rope_mixed_": {"rope_type": "mixed", "rope_temperature": 10.0},
    r"vit_.*_rope_reg\d+_gap_": {"use_rot_pos_emb": True, "ref_feat_shape": 16},
    _TOWERS.pattern: {"use_rot_pos_emb": True, "rope_rotate_half": True},
    r"test_vit3$": {"global_pool": "map", "pool_include_prefix": True},
}
_OTHER_FIELDS: Mapping[str, Mapping[str, Any]] = {  # likewise
    r"vit_pe_": {"layer_norm_epsilon": 1e-5, "pool_prefix_tokens": True},
    r"vit_.*_dinov3": {"layer_norm_epsilon": 1e-5, "pooling": "gap"},
    r"vit_.*_lingbot": {"layer_norm_epsilon": 1e-5},
    r"vit_.*_rpn_": {"norm_position": "post"},
}
_ROTARY_WORDS = {  # arguments that each set one field of rotary positions
    "rope_temperature": "rotary_theta",
    "rope_rotate_half": "rotary_layout",
    "rope_grid_indexing": "rotary_axes",
    "rope_grid_offset": "rotary_offset",
    "ref_feat_shape": "rotary_reference",
}
_KINDS = ("cat", "mixed", "dinov3")  # of `rope_type`


def check_known(architecture: str, arguments: Mapping[str, Any], place: Path) -> None:
    """Raises for an argument of `model_args` that timm's class does not have, or that is not computed here.

    Args:
        architecture: as `"eva02_base_patch14_224"`; of an unknown one each argument of some class is taken.
        arguments: `model_args`.
        place: of the file, for the message.

    Raises:
        CheckpointError: that names the argument.
    """
    name = timm_class(architecture)
    known = _CLASS_ARGUMENTS[name] if name else {word for words in _CLASS_ARGUMENTS.values() for word in words}
    for word, value in arguments.items():
        if word not in known:
            raise CheckpointError(
                f"`model_args` must be arguments of timm's {name or 'classes'} that are computed here.\n"
                f"Received: {word}={value!r:.60} of architecture {architecture!r:.60} in {place}. If timm opens the "
                "folder without it, take it out."
            )
    for word, words in (("attn_type", ("eva", "rope")), ("pos_embed", ("", "none", "learn", None))):
        if arguments.get(word, words[0]) not in words:
            raise unsupported_error(word, arguments[word], place, ", ".join(map(repr, words)))


def timm_class(architecture: str) -> str | None:
    """The class of timm's that builds an architecture, or `None` for a name that is not known here."""
    if config_of_timm(architecture) is None and not any(re.fullmatch(name, architecture) for name in _UNRECORDED):
        return None
    return next(name for pattern, name in _CLASSES.items() if re.match(pattern, architecture))


def eva_fields(architecture: str, arguments: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Fields of what timm's class `Eva` computes by the name of an architecture and `model_args`.

    Args:
        architecture: as `"eva02_base_patch14_224"`; of another class only rotary positions are read.
        arguments: `model_args`.
        place: of the file, for the message.

    Raises:
        CheckpointError: for a kind of rotary positions that is not computed here.
    """
    settings = _eva_arguments(architecture)
    if sizes := re.match(r"vit_pe_.*patch(\d+)_(\d+)", architecture):
        settings["ref_feat_shape"] = int(sizes[2]) // int(sizes[1])
    settings |= arguments
    heads = settings.get("attn_pool_num_heads")
    is_map = "attn_pool_num_heads" in settings and settings.get("global_pool", "map") == "map"
    fields = {"map_heads": heads} if is_map else {}
    for pattern, known in _OTHER_FIELDS.items():
        fields |= known if re.match(pattern, architecture) else {}
    if settings.get("pool_include_prefix"):
        if settings.get("global_pool") not in ("map", "token"):
            raise unsupported_error(
                "pooling", "pool_include_prefix=True", place, "the mean of the patches, or attention"
            )
        fields |= {"pool_prefix_tokens": True} if settings["global_pool"] == "map" else {}
    if "use_post_norm" in settings:
        fields["norm_position"] = "post" if settings["use_post_norm"] else "pre"
    if "use_rot_pos_emb" in settings:
        fields |= _rotary(settings, place) if settings["use_rot_pos_emb"] else {"rotary": "none"}
    elif named := [
        word for word in _ROTARY_WORDS if word in settings
    ]:  # of an unknown architecture, which turns or not
        rotary = _rotary(settings, place)
        fields |= {_ROTARY_WORDS[word]: rotary[_ROTARY_WORDS[word]] for word in named if _ROTARY_WORDS[word] in rotary}
    return fields


def _eva_arguments(architecture: str) -> dict[str, Any]:
    """The arguments that an architecture of timm's class `Eva` sets."""
    settings: dict[str, Any] = {}
    for pattern, known in _EVA_ARGUMENTS.items():
        settings |= known if re.match(pattern, architecture) else {}
    return settings


def _rotary(settings: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """The fields of rotary positions by the arguments of timm's class."""
    kind, axes = settings.get("rope_type", "cat"), settings.get("rope_grid_indexing", "ij")
    reference = parse_size(settings.get("ref_feat_shape"))
    numbers = {word: settings.get(word, 0.0) for word in ("rope_temperature", "rope_grid_offset")}
    for word, value, known in (("rope_type", kind, _KINDS), ("rope_grid_indexing", axes, ("ij", "xy"))):
        if value not in known:
            raise unsupported_error("rotary position", f"{word}={value!r}", place, ", ".join(known))
    for word, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise unsupported_error("rotary position", f"{word}={value!r}", place, "by a number")
    if reference is not None and reference[0] != reference[1]:
        raise unsupported_error("rotary position", f"ref_feat_shape={reference}", place, "scaled to a square grid")
    fields = {
        "rotary": "mixed" if kind == "mixed" else "axial",
        "rotary_theta": settings.get("rope_temperature", 10000.0),
        "rotary_layout": "half" if settings.get("rope_rotate_half") else "interleaved",
        "rotary_axes": "yx" if axes == "ij" else "xy",
    }
    offset = settings.get("rope_grid_offset", 0.0)
    if kind == "dinov3" and offset:
        raise unsupported_error(
            "rotary position", f"rope_type='dinov3', rope_grid_offset={offset}", place, "without one"
        )
    if kind == "mixed" and settings.get("rope_rotate_half"):
        raise unsupported_error("rotary position", "rope_type='mixed', rope_rotate_half=True", place, "in pairs")
    has_grid = kind == "cat"  # for other kinds timm passes over what is settings of it
    return fields | {
        "rotary_coordinates": "unit" if kind == "dinov3" else "grid",
        "rotary_offset": offset if has_grid else 0.0,
        "rotary_reference": reference[0] if has_grid and reference is not None else None,
    }


def conflicting_fields(architecture: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Fields by the arguments that the tensors show too, so that a contradiction is seen.

    Args:
        architecture: timm's.
        arguments: `model_args`; `null` is `None` in Python, as timm passes it on.
    """
    of_class, known = timm_class(architecture), _known_config(architecture)
    fields: dict[str, Any] = {
        field: bool(arguments[word])
        for word, field in _FLAGS.items()
        if isinstance(arguments.get(word), bool) or (word in arguments and arguments[word] is None and of_class)
    }
    if isinstance(count := arguments.get("in_chans"), int):
        fields["channels"] = count
    if "qk_norm" in arguments:
        fields["qk_norm"] = "head" if arguments["qk_norm"] else "none"
    if "no_embed_class" in arguments:
        fields["prefix_rows"] = "none" if arguments["no_embed_class"] else "all"
    if "pos_embed" in arguments and of_class:
        fields["position_table"] = arguments["pos_embed"] == "learn"
    counts = arguments.get("num_kv_heads", ()) or arguments.get("num_heads")
    if "num_kv_heads" in arguments and type(counts) is int and type(arguments.get("depth")) is int:
        counts = [counts] * arguments["depth"]
    if isinstance(counts, list):
        fields["kv_heads"] = tuple(counts)
    fields |= _bias_fields(of_class, architecture, arguments, known) | _scale_fields(of_class, arguments, known)
    fields |= _mlp_fields(of_class, architecture, arguments, known)
    fields |= _final_norm(of_class, architecture, arguments, known)
    if {"use_rel_pos_bias", "use_shared_rel_pos_bias"} & {*arguments}:
        tables = {"blocks": arguments.get("use_rel_pos_bias", known is not None)}
        tables |= {"shared": arguments.get("use_shared_rel_pos_bias", False)}
        fields["relative_bias"] = " and ".join(word for word, there in tables.items() if there) or "none"
    return fields


def _bias_fields(
    of_class: str | None, architecture: str, arguments: Mapping[str, Any], known: ViTConfig | None
) -> dict[str, str]:
    """`qkv_bias`: timm's class `Eva` has none of keys, unless `attn_type` is `"rope"`; `Beit` never has one."""
    if not {"qkv_bias", "attn_type"} & {*arguments}:
        return {}
    biased = arguments.get("qkv_bias", known is None or known.qkv_bias != "none")
    kind = {"eva": "query_value", "rope": "all"}.get(str(arguments.get("attn_type")))
    if kind is None and known is not None and known.qkv_bias != "none":
        kind = known.qkv_bias
    kind = kind or {"Eva": "query_value", "Beit": "query_value", "VisionTransformer": "all"}.get(of_class or "")
    return {"qkv_bias": "none"} if not biased else {"qkv_bias": kind} if kind else {}


def _scale_fields(of_class: str | None, arguments: Mapping[str, Any], known: ViTConfig | None) -> dict[str, str]:
    """`layer_scale`: that of the MLP is left out by an argument, and both by `init_values`."""
    if not {"init_values", "attn_only_layer_scale"} & {*arguments}:
        return {}
    if "init_values" not in arguments and (known is None or known.layer_scale == "none"):
        return {}
    usual = known is not None and known.layer_scale == "attention"
    kind = "attention" if arguments.get("attn_only_layer_scale", usual) else "both"
    value = arguments.get("init_values", 1.0)
    exists = value is not None if of_class == "Eva" else bool(value)  # `Eva` keeps a scale that begins at 0
    return {"layer_scale": kind if exists else "none"}


def _mlp_fields(
    of_class: str | None, architecture: str, arguments: Mapping[str, Any], known: ViTConfig | None
) -> dict[str, float]:
    """`mlp_dim` by `mlp_ratio`; `mlp_rows` where those are cut of which a gate takes half."""
    if of_class is None:
        return {}
    if known is not None and known.hidden_size > 4:  # of a record
        arguments = {"embed_dim": known.hidden_size, **arguments}
    rounded = lambda width: int(width + 1e-6)  # noqa: E731  # as timm cuts it; a ratio that we wrote may be a bit less
    pooled = {"mlp_ratio": arguments.get("attn_pool_mlp_ratio"), "embed_dim": arguments.get("embed_dim")}
    fields = scaled_width(pooled, "embed_dim", "map_rows", rounded)
    if of_class == "VisionTransformer" and not architecture.startswith("aimv2"):
        return fields | scaled_width(arguments, "embed_dim", "mlp_rows", rounded)
    side = arguments.get("swiglu_align_to", _eva_arguments(architecture).get("swiglu_align_to")) or 1
    gated = arguments.get("swiglu_mlp", known is not None and known.gated_mlp)
    aligned = lambda width: rounded(width) + (-rounded(width) % side if gated else 0)  # noqa: E731
    return fields | scaled_width(arguments, "embed_dim", "mlp_dim", aligned)


def _final_norm(
    of_class: str | None, architecture: str, arguments: Mapping[str, Any], known: ViTConfig | None
) -> dict[str, str]:
    """`final_norm`, by the rules of timm's classes: with mean pooling the norm follows it, unless an argument says so.

    What an architecture sets is `None` unless its norm is where mean pooling alone would not have it.
    """
    given = [arguments.get("fc_norm"), arguments.get("use_fc_norm")]
    if of_class is None or known is None:
        return {"final_norm": "pooled"} if True in given else {}
    if of_class in _TOWER_CLASSES:
        return {}
    usual = _eva_arguments(architecture)
    pool = arguments.get("global_pool", usual.get("global_pool", {"gap": "avg"}.get(known.pooling, "token")))
    if of_class == "VisionTransformer":
        after = arguments.get("fc_norm", False if (known.pooling, known.final_norm) == ("gap", "tokens") else None)
        after = pool == "avg" if after is None else after
        exists = arguments.get("final_norm", known.final_norm != "none")
        return {"final_norm": "none" if not exists else "pooled" if after else "tokens"}
    after = arguments.get("use_fc_norm", usual.get("use_fc_norm"))
    after = pool == "avg" if after is None else after
    before = arguments.get("use_post_transformer_norm", usual.get("use_post_transformer_norm"))
    before = not after if before is None else before
    words = {"tokens": before, "pooled": after}
    return {"final_norm": " and ".join(word for word, there in words.items() if there) or "none"}


_VIT = ("timm", "timm_beit3", "timm_aimv2")  # of timm's class `VisionTransformer`, which tensors distinguish
_EVA = ("timm_eva", "timm_dinov3", "timm_rope", "timm_rope_registers", "timm_sapiens2", "timm_pe_core", "timm_pe")
_ARCHITECTURES: Mapping[str, tuple[str, ...]] = {  # how timm's names begin, the first of which counts: layouts here
    r"eva02_|eva_giant_": ("timm_eva",),
    r"eva_large_": ("timm_eva", "timm"),
    r"beit(v2)?_": ("timm_beit",),
    r"vit_pe_core_": ("timm_pe_core",),
    r"vit_pe_": ("timm_pe",),
    r"vit_.*_(dinov3|lingbot|eupe)": ("timm_dinov3",),
    r"vit_.*_sapiens2": ("timm_sapiens2",),
    r"vit_.*_rope_reg\d": ("timm_rope_registers",),
    r"vit_.*_rope_": ("timm_rope",),
    r"qwen3_vit_": ("timm_qwen3",),
    r"deepseek_vit_": ("timm_deepseek",),
    r"": _VIT,
}
# Names of timm's that no record has: what their models have otherwise than a plain one; `None` of several kinds.
_UNRECORDED: Mapping[str, Mapping[str, Any] | None] = {
    r"vit_(large|giant|gigantic)_patch14_224|vit_base_r26_s32_224": {},
    r"vit_base_patch\d+_plus_\d+|vit_small_patch16_36x1_224": {"layer_scale": "both"},
    r"vit_(base|huge|giant)_patch1[46]_gap_\d+": {"pooling": "gap"},
    r"vit_betwixt_patch16_gap_\d+": {"pooling": "gap", "qkv_bias": "none", "layer_scale": "both"},
    r"vit_base_patch16_reg4_gap_256": {"pooling": "gap", "registers": 4, "final_norm": "pooled"},
    r"vit_so150m_patch16_reg4_map_256": {"pooling": "map", "registers": 4},
    r"vit_base_patch16_rpn_224": {
        **{"norm_position": "post", "qkv_bias": "none", "pooling": "gap", "final_norm": "pooled"}
    },
    r"vit_giant_patch16_lingbot": None,
    r"vit_\w+_patch16_lingbot": {
        **{"layer_scale": "both", "registers": 4, "position_embedding": "none", "rotary": "axial"},
        **{"qkv_bias": "query_value"},
    },
    r"test_vit\d?": None,
    r"qwen3_vit_\w+": {"pooling": "gap", "final_norm": "none", "rotary": "axial"},
    r"deepseek_vit_\w+": {
        **{"norm": "rms", "gated_mlp": True, "mlp_bias": False, "position_embedding": "none", "rotary": "axial"},
        "pooling": "gap",
    },
    r"beit3_giant_patch14_\d+": {
        **{"attention_norm": True, "mlp_norm": True, "pooling": "gap", "class_token": True, "final_norm": "pooled"}
    },
}
# Names of models whose position table has no rows for the tokens before the patches.
_PATCH_ROWS = re.compile(
    r"deit3_|flexivit_|vit_.*_reg\d+_(dinov2|tipsv2)|vit_(?!so150m).*_reg\d+_gap_|vit_.*(_radio_|_ape_)"
)
_UNSUPPORTED: Mapping[str, str] = {  # likewise, of models that are not computed here: what these have
    r"(vit|test_vit)_s?relpos": "relative positions of another kind",
    r"vit_.*_\d+x[2-9]\d*_|vit_.*_(parallel|xp)_|vit_d?pwee_": "attention and MLP side by side",
    r"vit_d(wee|little)_": "differential attention",
    r"(qwen3|deepseek)_vit_.*_(merge|align)": "heads on merged patches",
    r"gemma4_vit": "towers of language models, with positions and merged patches of their own",
    r"vit_.*_(mci|resnet\d+d?)_|vitamin": "another stem",
    r"samvit|sam2_|hiera|swin|vit_.*_cswin|twins|davit|maxx?vit|focalnet|nest_|mvit": "stages with windows",
    r"naflexvit": "batches of patches with grids of their own",
    r"(se|sk|eca|gc|tf|wide|legacy|cs)?_?(convnext|resne[x]?t|efficientnet|regnet|mobile|densenet|vgg|nfnet|inception)|"
    r"nf_|dpn|dla\d|hrnet|repvgg|mixnet|ghostnet|xception|darknet|vovnet|mnasnet|rexnet|hgnet|convformer|"
    r"caformer": "convolutions",
    r"mixer|gmlp|gmixer|resmlp|poolformer|convmixer|mambaout|sequencer": "no attention",
    r"cait|xcit|tnt_|crossvit|coat|convit|pit_|levit|visformer|volo|pvt|edgenext|efficientformer|fastvit|tiny_vit|"
    r"nextvit|repvit|swiftformer|shvit|gcvit|botnet|halonet|lambda|bat_|csatv2": "attention of another kind",
}


def timm_layouts(architecture: Any, arguments: Mapping[str, Any], place: Path) -> tuple[str, ...]:
    """The layouts in which timm has a model of that name; none for a name that is not known here.

    Args:
        architecture: of `config.json`.
        arguments: `model_args`, which make any other of its class `Eva`.
        place: of the file, for the message.

    Raises:
        CheckpointError: for a model that is not computed here.
    """
    architecture = str(architecture)
    if part := next((part for pattern, part in _UNSUPPORTED.items() if re.match(pattern, architecture)), None):
        raise unsupported_error("architecture", architecture, place, f"plain Vision Transformers, and not {part}")
    if config_of_timm(architecture) is None and not any(re.fullmatch(name, architecture) for name in _UNRECORDED):
        return ()
    found = next(rows for pattern, rows in _ARCHITECTURES.items() if re.match(pattern, architecture))
    return (*_EVA, "timm") if "attn_type" in arguments and set(found) & set(_EVA) else found


_EXPECTED_FIELDS = (
    *("patch_bias", "patch_norm", "pre_norm", "norm", "qkv_bias", "proj_bias", "mlp_bias", "gated_mlp"),
    *("attention_norm", "mlp_norm", "layer_scale", "final_norm", "registers", "rotary", "qk_norm", "relative_bias"),
)
_CHANGED_BY: Mapping[str, tuple[str, ...]] = {  # arguments of timm's classes: further fields that they may change
    "use_rot_pos_emb": ("rotary",),
    "rope_type": ("rotary",),
    "reg_tokens": ("registers",),
    "num_reg_tokens": ("registers",),
}


def expected_from_timm_name(architecture: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What timm's model of that name has, but for what `model_args` may change; `{}` for a name that is not known."""
    config = _known_config(architecture)
    if config is None:
        return {}
    changed = {field for name in arguments for field in _CHANGED_BY.get(name, ())}
    expected = _expected_fields(config) | {"prefix_rows": "none" if _PATCH_ROWS.match(architecture) else "all"}
    if config_of_timm(architecture) is not None:  # what no argument says is by the name
        words = {"embed_dim": "hidden_size", "depth": "num_layers", "patch_size": "patch_size"}
        expected |= {f: getattr(config, f) for w, f in words.items() if type(arguments.get(w)) not in (int, list)}
    found = {field: value for field, value in expected.items() if field not in changed}
    pool = arguments.get("global_pool")
    return found if pool is None else found | {"attention_pooling": pool == "map"}


def _known_config(architecture: str) -> ViTConfig | None:
    """The config of an architecture by its name, of one without a record with sizes of 1; `None` for an unknown one."""
    fields = next((known for name, known in _UNRECORDED.items() if re.fullmatch(name, architecture)), None)
    if fields is None:
        return config_of_timm(architecture)
    return ViTConfig(1, 4, num_layers=1, num_heads=1, mlp_dim=1, **fields)


def _expected_fields(config: ViTConfig) -> dict[str, Any]:
    fields = {field: getattr(config, field) for field in _EXPECTED_FIELDS} | {"class_token": config.has_class_token}
    if not config.gated_mlp and config.rotary == "none":  # UNI2 and Virchow pass `mlp_layer=SwiGLUPacked` in Python
        del fields["gated_mlp"]
    if config.pooling != "gap":
        fields["attention_pooling"] = config.pooling in ("map", "attentive")
    if config.position_embedding in ("learned", "none"):
        fields["position_table"] = config.position_embedding == "learned"
    return fields


def timm_files(facts: dict[str, Any], preprocessing: Preprocessing) -> dict[str, dict]:
    """The JSON files, by name, that timm reads.

    Args:
        facts: of the architecture.
        preprocessing: how photos are prepared.

    Raises:
        CheckpointError: for a hybrid that timm has no architecture for.
    """
    return {"config.json": _timm_config(facts, preprocessing)}


def tower_files(architecture: str, facts: dict[str, Any], preprocessing: Preprocessing) -> dict[str, dict]:
    """As `timm_files`, of a tower of a language model by its architecture, without what merges its patches."""
    width, (height, side) = facts["hidden_size"], (pixels // facts["patch_size"] for pixels in facts["image_size"])
    if facts["positions"] and (height != side or facts["activation"] != "gelu_tanh"):  # the other has a gate
        raise CheckpointError(
            "timm opens a folder of this layout as a class with a square table of positions and the tanh GELU.\n"
            f"Received: a grid of ({height}, {side}), activation={facts['activation']!r}. Write a .safetensors file."
        )
    arguments = {
        "img_size": list(facts["image_size"]),
        "patch_size": facts["patch_size"],
        "embed_dim": width,
        "depth": facts["num_layers"],
        "num_heads": facts["num_heads"],
        "mlp_ratio": (facts["mlp_dim"] + 0.5) / width,  # so that timm, which rounds down, finds the width
        "norm_eps": facts["layer_norm_epsilon"],
        "rope_temperature": facts["fields"]["rotary_theta"],
        "global_pool": POOL_WORDS[facts["pooling"]],
        "out_features": 0,
        **({"pos_embed_grid_size": side} if facts["positions"] else {}),
    }
    return {"config.json": timm_config(facts, preprocessing, architecture, arguments)}


def timm_snippet(place: str, classifies: bool) -> str:
    """Python that opens a folder, or `hf:owner/name`, with timm."""
    name = place.replace("hf:", "hf-hub:") if place.startswith("hf:") else f"local-dir:{place}"
    return f"import timm\n\nmodel = timm.create_model({json.dumps(name)}, pretrained=True)"


POOL_WORDS = {pooling: word for word, pooling in POOLS.items()}
_POST_NORM = "vit_base_patch16_rpn_224"  # of norms after attention and MLP, for which there is no argument
_BEIT3, _CLIP = "beit3_base_patch16_224", "vit_base_patch16_clip_224"  # with an epsilon of 1e-5
_TIMM_NORMS = {  # arguments on LayerNorms that most models lack: the fields
    "pre_norm": "pre_norm",
    "scale_attn_norm": "attention_norm",
    "scale_mlp_norm": "mlp_norm",
}


def _timm_config(facts: dict, record: Preprocessing) -> dict:
    check_writable("timm", facts, gated_mlp=False, **USUAL_FIELDS)
    name = _timm_architecture(facts)
    arguments = {
        "img_size": list(facts["image_size"]),
        "patch_size": facts["patch_size"],
        "embed_dim": facts["hidden_size"],
        "depth": facts["num_layers"],
        "num_heads": facts["num_heads"],
        "mlp_ratio": facts["mlp_dim"] / facts["hidden_size"],
        "act_layer": facts["activation"],
    }
    if not facts["distilled"]:
        arguments |= {"global_pool": POOL_WORDS[facts["pooling"]], "class_token": facts["class_token"]}
        arguments |= {"fc_norm": facts["final_norm"] == "pooled", "final_norm": facts["final_norm"] != "none"}
        arguments |= {word: True for word, field in _TIMM_NORMS.items() if facts[field]}
        registers = facts["registers"]
        optional = {  # argument: (whether it is written, its value)
            "pre_norm": (name == _CLIP, facts["pre_norm"]),
            "qkv_bias": (name == _POST_NORM or facts["qkv_bias"] == "none", facts["qkv_bias"] != "none"),
            "init_values": (facts["layer_scale"] == "both", 1e-5),
            "reg_tokens": (registers, registers),
            "no_embed_class": (registers, True),
            "pool_include_prefix": (facts["fields"].get("pool_prefix_tokens"), True),
            "pos_embed": (not facts["positions"], "none"),
        }
        arguments |= {argument: value for argument, (is_written, value) in optional.items() if is_written}
    return timm_config(facts, record, name, arguments)


def timm_config(facts: dict, record: Preprocessing, architecture: str, arguments: dict[str, Any]) -> dict:
    """What timm's `config.json` says of an architecture by its name and `model_args`."""
    return {
        "architecture": architecture,
        "num_classes": facts["classes"],
        "num_features": facts["hidden_size"],
        "model_args": arguments,
        **({"label_names": facts["labels"]} if facts["labels"] else {}),
        "pretrained_cfg": {
            "input_size": [facts["channels"], *facts["image_size"]],
            "fixed_input_size": True,
            "interpolation": nearest_filter(record),
            "crop_pct": record.crop_fraction if record.resize in CUTS_CENTRE else 1.0,
            "crop_mode": "squash" if record.resize.startswith("squash") else "center",
            "mean": list(record.mean),
            "std": list(record.std),
            "num_classes": facts["classes"],
            "pool_size": None,
            "first_conv": "patch_embed.backbone.stem.conv" if facts["resnet_stages"] else "patch_embed.proj",
            "classifier": ["head", "head_dist"] if facts["distilled"] else "head",
        },
    }


def _timm_architecture(facts: dict[str, Any]) -> str:
    names: dict[tuple[int, ...] | None, str] = {
        None: "vit_base_patch16_224",
        (): "vit_tiny_r_s16_p8_224",
        (2, 2, 2, 2): "vit_small_r26_s32_224",
    }
    names |= {(3, 4, 9): "vit_base_r50_s16_224", (3, 4, 6, 3): "vit_large_r50_s32_224"}
    is_larger = facts["layer_norm_epsilon"] == 1e-5  # for which there is no argument
    if is_larger:
        names[None] = _BEIT3 if facts["attention_norm"] and facts["mlp_norm"] else _CLIP
    if facts["norm_position"] == "post":
        names = {None: _POST_NORM}
    stages = facts["resnet_stages"]
    kinds = [stages is not None, facts["norm_position"] == "post", facts["distilled"], is_larger]
    if stages not in names or facts["root_channels"] not in (None, 64) or sum(kinds) > 1:
        raise CheckpointError(
            "timm opens a folder by the name of an architecture, and has none with this ResNet, or with two of a "
            "ResNet, norms after the branches, a distillation token and an epsilon of 1e-5.\n"
            f"Received: stages {stages}, root of {facts['root_channels']} channels, distilled={facts['distilled']}, "
            f"norm_position={facts['norm_position']!r}, layer_norm_epsilon={facts['layer_norm_epsilon']}. Write a "
            ".safetensors file instead of a folder."
        )
    return "deit_base_distilled_patch16_224" if facts["distilled"] else names[stages]
