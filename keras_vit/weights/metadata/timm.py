"""What the `config.json` of a timm folder says of a model, and the one that is written for timm.

`model_args` may have any argument of timm's classes. An argument that is not known here is refused by name, since one
that is passed over would give other numbers from the same weights.
"""

import collections
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_vit.config.vit import ViTConfig
from keras_vit.images.preprocessing import Preprocessing, is_wordnet_id
from keras_vit.weights.families.timm import POOL_WORDS, POOLS
from keras_vit.weights.metadata.record import (
    GATES,
    Metadata,
    Reading,
    check_channels,
    check_object,
    parse_activation,
    parse_epsilon,
    parse_size,
    scaled_width,
    size_fields,
    unsupported_error,
)
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.registry import config_of_timm

_TIMM_SIZES = {"embed_dim": "hidden_size", "depth": "num_layers", "reg_tokens": "registers"}
_TIMM_SIZES |= {"num_reg_tokens": "registers"}
_CROP_MODES = {None: "crop", "center": "crop", "squash": "squash", "border": "squash"}
_TOWERS = re.compile(r"(qwen3|deepseek)_vit_")  # image towers of language models
_HEADS = {r"qwen3_vit_88m": 12, _TOWERS.pattern: 16}  # of names that no record has
_ENCODER_ONLY = "the tokens of the encoder, as timm's forward_features; the norm of timm's classifier is not computed"
_BORDERS = "photos that are not square are squashed, where crop_mode border of config.json adds borders"
_NOT_THE_AUTHORS = 'activation "gelu" as timm computes it; the authors\' numbers need activation="gelu_tanh"'


@dataclasses.dataclass(frozen=True)
class _Architecture:
    """What is known of a name of timm's.

    Attributes:
        name: as `"eva02_base_patch14_224"`.
        of_class: timm's class that builds it, or `None` for a name that is not known here.
        layouts: of its files.
        recorded: the config of a record with this name.
        config: that, or of a name without a record one with sizes of 1.
    """

    name: str
    of_class: str | None = None
    layouts: tuple[str, ...] = ()
    recorded: ViTConfig | None = None
    config: ViTConfig | None = None


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
    config = _of_one_object(config)
    given = {} if config.get("model_args") is None else config["model_args"]
    arguments = reading.part("model_args", lambda: check_object(given), empty={})
    architecture = str(config.get("architecture"))
    layouts, known = timm_layouts(architecture, arguments, place), _find(architecture)
    _check_known(known, arguments, place)
    word, photos = _act_layer(known, arguments), config.get("pretrained_cfg")
    of_photos = photos.get("num_classes") if isinstance(photos, dict) else None  # which timm puts below the other
    named = {
        "activation": None if word in GATES else parse_activation(word, place),
        "pooling": _pooling(_global_pool(known, arguments, config), known.of_class, place),
        "position_embedding": "none" if arguments.get("pos_embed") == "none" else None,
        "layer_norm_epsilon": parse_epsilon(arguments.get("norm_eps"), place),
    }
    fields = _name_fields(architecture) | _eva_fields(architecture, arguments, place)
    fields |= {name: value for name, value in named.items() if value}
    if "global_pool" in arguments and arguments["global_pool"] is None:
        raise unsupported_error("pooling", None, place, ", ".join(map(repr, POOLS)))
    _compare_pooling(config, known, arguments, reading)
    if "siglip" in architecture and fields.get("activation", "gelu") == "gelu":
        reading.remarks.append(_NOT_THE_AUTHORS)
    reading.remarks += [_BORDERS] if isinstance(photos, dict) and photos.get("crop_mode") == "border" else []
    if _TOWERS.match(architecture) and not architecture.split(".")[0].endswith("_enc"):
        reading.remarks.append(_ENCODER_ONLY)
    if isinstance(arguments.get("class_token"), bool) and fields.get("pooling") in ("gap", "map"):
        fields["class_token"] = arguments["class_token"]  # else the pooling decides
    return Metadata(
        fields=reading.fields(fields),
        family=f"architecture {config.get('architecture')!r:.80}",
        layouts=layouts,
        num_heads=reading.count("num_heads", arguments.get("num_heads", _usual_heads(known))),
        sizes=_expected_by_name(known, arguments)
        | size_fields(arguments, place, **_TIMM_SIZES)
        | _conflicting_fields(known, arguments)
        | ({"gated_mlp": word in GATES} if word in GATES or (word is not None and layouts == _VIT) else {})
        | _class_fields(arguments.get("num_classes"), config.get("num_classes", of_photos), place),
        image_size=None  # of towers whose square table has a size of its own, `pos_embed_grid_size`
        if architecture.startswith("qwen3_vit_")
        else reading.part("img_size", lambda: parse_size(arguments.get("img_size"))),
        preprocessing=reading.preprocessing(lambda: _timm_preprocessing(config.get("pretrained_cfg", {}))),
        class_names=read_label_names(config, reading),
        remarks=tuple(reading.remarks),
        fixed_size=name if _has_one_size(known, arguments) else "",
    )


def _has_one_size(known: _Architecture, arguments: Mapping[str, Any]) -> bool:
    """Whether timm's model refuses images of another size than `img_size`, by which it resizes the file's table."""
    by_name = known.name.startswith("vit_intern300m_")  # which set `dynamic_img_size`, as most of `Eva`
    is_fixed = known.of_class == "VisionTransformer" and not by_name
    return is_fixed and "img_size" in arguments and not arguments.get("dynamic_img_size")


def _of_one_object(config: dict) -> dict:
    """A config of timm's first form, which is one object with `labels`, in today's; others as they are."""
    if {"pretrained_cfg", "model_args"} & set(config):
        return config
    known = ("architecture", "global_pool", "num_classes", "label_names", "label_descriptions")
    outer = {name: config[name] for name in known if name in config}
    outer |= {"label_names": config["labels"]} if "labels" in config else {}
    return outer | {"pretrained_cfg": {name: config[name] for name in config if name not in outer and name != "labels"}}


def _compare_pooling(config: dict, known: _Architecture, arguments: Mapping[str, Any], reading: Reading) -> None:
    """A remark on a `global_pool` outside of `model_args`, which timm does not read."""
    usual, word = known.recorded, config.get("global_pool")
    if usual is None or word is None or "global_pool" in arguments or known.of_class != "VisionTransformer":
        return
    if POOLS[word] != usual.pooling:
        opened = POOL_WORDS.get(usual.pooling)
        reading.remarks.append(f"pooling by global_pool {word!r}: timm opens the folder with {opened!r}")


def _act_layer(known: _Architecture, arguments: Mapping[str, Any]) -> Any:
    """`act_layer`; `null` is the class's own, whatever the architecture has."""
    is_null = "act_layer" in arguments and arguments["act_layer"] is None
    word = "gelu" if is_null and known.of_class else arguments.get("act_layer")
    return word.lower() if isinstance(word, str) else word


def _usual_heads(known: _Architecture) -> int | None:
    by_pattern = next((heads for pattern, heads in _HEADS.items() if re.match(pattern, known.name)), None)
    return by_pattern or getattr(known.recorded, "num_heads", None)


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
    found = [fields for pattern, fields in _NAME_FIELDS.items() if re.match(pattern, architecture)]
    return dict(collections.ChainMap(*found[::-1]))


def _global_pool(known: _Architecture, arguments: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    """`global_pool`; with `fc_norm`, which alone would be taken for mean pooling, by default the architecture's."""
    word = arguments.get("global_pool", config.get("global_pool"))
    usual = known.recorded if known.of_class == "VisionTransformer" else None
    return POOL_WORDS.get(usual.pooling) if word is None and usual and arguments.get("fc_norm") else word


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
    check_channels(size[0], **statistics)
    fraction: Any = config.get("crop_pct", 1.0)
    return Preprocessing(
        image_size=tuple(size[1:]),
        **statistics,
        interpolation=config.get("interpolation", "bicubic"),
        antialias=True,
        resize="squash_crop" if _CROP_MODES[mode] == "squash" and fraction < 1 else _CROP_MODES[mode],
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
_NAME_FIELDS: Mapping[str, dict[str, Any]] = {  # likewise
    r"(?!eva|vit_.*mobileclip).*_clip_|beit3_|aimv2|vit_pe_|vit_.*_(dinov3|lingbot)": {"layer_norm_epsilon": 1e-5},
    r".*_clip_quickgelu_": {"activation": "quick_gelu"},
    # SigLIP was trained with the tanh GELU (arXiv:2303.15343, big_vision). timm computes it for these names alone.
    r".*(patch32_siglip|giantopt_patch16_siglip|so400m_patch16_siglip|large_patch16_siglip_(gap_)?512)": {
        "activation": "gelu_tanh"
    },
    r"vit_pe_": {"pool_prefix_tokens": True},
    r"vit_.*_dinov3": {"pooling": "gap"},
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


def _check_known(known: _Architecture, arguments: Mapping[str, Any], place: Path) -> None:
    """Raises for an argument of `model_args` that timm's class does not have, or that is not computed here."""
    name = known.of_class
    taken = _CLASS_ARGUMENTS[name] if name else {word for words in _CLASS_ARGUMENTS.values() for word in words}
    for word, value in arguments.items():
        if word not in taken:
            raise CheckpointError(
                f"`model_args` must be arguments of timm's {name or 'classes'} that are computed here.\n"
                f"Received: {word}={value!r:.60} of architecture {known.name!r:.60} in {place}. If timm opens the "
                "folder without it, take it out."
            )
    for word, words in (("attn_type", ("eva", "rope")), ("pos_embed", ("", "none", "learn", None))):
        if arguments.get(word, words[0]) not in words:
            raise unsupported_error(word, arguments[word], place, ", ".join(map(repr, words)))


def _find(name: str) -> _Architecture:
    recorded, unrecorded = config_of_timm(name), [f for known, f in _UNRECORDED.items() if re.fullmatch(known, name)]
    if recorded is None and not unrecorded:
        return _Architecture(name)
    row = next(row for pattern, row in _ARCHITECTURES.items() if re.match(pattern, name))
    if not unrecorded or unrecorded[0] is None:
        return _Architecture(name, *row, recorded, recorded)
    sizes = ViTConfig(1, 4, num_layers=1, num_heads=1, mlp_dim=1, **unrecorded[0])
    return _Architecture(name, *row, recorded, sizes)


def _eva_fields(architecture: str, arguments: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Fields of what `Eva` computes by a name and `model_args`; of other classes only rotary positions are read."""
    settings = _eva_arguments(architecture)
    if sizes := re.match(r"vit_pe_.*patch(\d+)_(\d+)", architecture):
        settings["ref_feat_shape"] = int(sizes[2]) // int(sizes[1])
    settings |= arguments
    heads = settings.get("attn_pool_num_heads")
    is_map = "attn_pool_num_heads" in settings and settings.get("global_pool", "map") == "map"
    fields = {"map_heads": heads} if is_map else {}
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


def _conflicting_fields(known: _Architecture, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Fields by the arguments that the tensors show too, so that a contradiction is seen.

    `null` of `model_args` is `None` in Python, as timm passes it on.
    """
    of_class = known.of_class
    fields: dict[str, Any] = {
        field: bool(arguments[word])
        for word, field in _FLAGS.items()
        if isinstance(arguments.get(word), bool) or (word in arguments and arguments[word] is None and of_class)
    }
    if isinstance(count := arguments.get("in_chans"), int):
        fields["channels"] = count
    if "proj_bias" in fields:  # which timm gives the MLP too
        fields["mlp_bias"] = fields["proj_bias"]
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
    fields |= _bias_fields(known, arguments) | _scale_fields(known, arguments)
    fields |= _mlp_fields(known, arguments) | _final_norm(known, arguments)
    if {"use_rel_pos_bias", "use_shared_rel_pos_bias"} & {*arguments}:
        tables = {"blocks": arguments.get("use_rel_pos_bias", known.config is not None)}
        tables |= {"shared": arguments.get("use_shared_rel_pos_bias", False)}
        fields["relative_bias"] = " and ".join(word for word, there in tables.items() if there) or "none"
    return fields


def _bias_fields(known: _Architecture, arguments: Mapping[str, Any]) -> dict[str, str]:
    """`qkv_bias`: timm's class `Eva` has none of keys, unless `attn_type` is `"rope"`; `Beit` never has one."""
    if not {"qkv_bias", "attn_type"} & {*arguments}:
        return {}
    usual = known.config.qkv_bias if known.config else None
    biased = arguments.get("qkv_bias", usual != "none")
    kind = {"eva": "query_value", "rope": "all"}.get(str(arguments.get("attn_type")))
    kind = kind or (usual if usual != "none" else None)
    kind = kind or {"Eva": "query_value", "Beit": "query_value", "VisionTransformer": "all"}.get(known.of_class or "")
    return {"qkv_bias": "none"} if not biased else {"qkv_bias": kind} if kind else {}


def _scale_fields(known: _Architecture, arguments: Mapping[str, Any]) -> dict[str, str]:
    """`layer_scale`: that of the MLP is left out by an argument, and both by `init_values`."""
    if not {"init_values", "attn_only_layer_scale"} & {*arguments}:
        return {}
    usual = known.config.layer_scale if known.config else "none"
    if "init_values" not in arguments and usual == "none":
        return {}
    kind = "attention" if arguments.get("attn_only_layer_scale", usual == "attention") else "both"
    value = arguments.get("init_values", 1.0)
    exists = value is not None if known.of_class == "Eva" else bool(value)  # `Eva` keeps a scale that begins at 0
    return {"layer_scale": kind if exists else "none"}


def _mlp_fields(known: _Architecture, arguments: Mapping[str, Any]) -> dict[str, float]:
    """`mlp_dim` by `mlp_ratio`; `mlp_rows` where those are cut of which a gate takes half."""
    if known.of_class is None:
        return {}
    if known.config is not None and known.config.hidden_size > 4:  # of a record
        arguments = {"embed_dim": known.config.hidden_size, **arguments}
    rounded = lambda width: int(width + 1e-6)  # noqa: E731  # as timm cuts it; a ratio that we wrote may be a bit less
    pooled = {"mlp_ratio": arguments.get("attn_pool_mlp_ratio"), "embed_dim": arguments.get("embed_dim")}
    fields = scaled_width(pooled, "embed_dim", "map_rows", rounded)
    if known.of_class == "VisionTransformer" and not known.name.startswith("aimv2"):
        return fields | scaled_width(arguments, "embed_dim", "mlp_rows", rounded)
    side = arguments.get("swiglu_align_to", _eva_arguments(known.name).get("swiglu_align_to")) or 1
    gated = arguments.get("swiglu_mlp", known.config is not None and known.config.gated_mlp)
    aligned = lambda width: rounded(width) + (-rounded(width) % side if gated else 0)  # noqa: E731
    return fields | scaled_width(arguments, "embed_dim", "mlp_dim", aligned)


def _final_norm(known: _Architecture, arguments: Mapping[str, Any]) -> dict[str, str]:
    """`final_norm`, by the rules of timm's classes: with mean pooling the norm follows it, unless an argument says so.

    What an architecture sets is `None` unless its norm is where mean pooling alone would not have it.
    """
    given = [arguments.get("fc_norm"), arguments.get("use_fc_norm")]
    config = known.config
    if known.of_class is None or config is None:
        return {"final_norm": "pooled"} if True in given else {}
    if known.of_class in _TOWER_CLASSES:
        return {}
    usual = _eva_arguments(known.name)
    pool = arguments.get("global_pool", usual.get("global_pool", {"gap": "avg"}.get(config.pooling, "token")))
    if known.of_class == "VisionTransformer":
        after = arguments.get("fc_norm", False if (config.pooling, config.final_norm) == ("gap", "tokens") else None)
        after = pool == "avg" if after is None else after
        exists = arguments.get("final_norm", config.final_norm != "none")
        return {"final_norm": "none" if not exists else "pooled" if after else "tokens"}
    after = arguments.get("use_fc_norm", usual.get("use_fc_norm"))
    after = pool == "avg" if after is None else after
    before = arguments.get("use_post_transformer_norm", usual.get("use_post_transformer_norm"))
    before = not after if before is None else before
    words = {"tokens": before, "pooled": after}
    return {"final_norm": " and ".join(word for word, there in words.items() if there) or "none"}


_VIT = ("timm", "timm_beit3", "timm_aimv2")  # of timm's class `VisionTransformer`, which tensors distinguish
_EVA = ("timm_eva", "timm_dinov3", "timm_rope", "timm_rope_registers", "timm_sapiens2", "timm_pe_core", "timm_pe")
_ARCHITECTURES: Mapping[str, tuple[str, tuple[str, ...]]] = {  # how names begin, the first of which counts
    r"eva02_|eva_giant_": ("Eva", ("timm_eva",)),
    r"eva_large_": ("VisionTransformer", ("timm_eva", "timm")),
    r"beit(v2)?_": ("Beit", ("timm_beit",)),
    r"vit_pe_core_": ("Eva", ("timm_pe_core",)),
    r"vit_pe_": ("Eva", ("timm_pe",)),
    r"vit_.*_(dinov3|lingbot|eupe)": ("Eva", ("timm_dinov3",)),
    r"vit_.*_sapiens2": ("Eva", ("timm_sapiens2",)),
    r"vit_.*_rope_reg\d": ("Eva", ("timm_rope_registers",)),
    r"vit_.*_rope_": ("Eva", ("timm_rope",)),
    r"qwen3_vit_": ("Qwen3Vit", ("timm_qwen3",)),
    r"deepseek_vit_": ("DeepseekVit", ("timm_deepseek",)),
    r"": ("VisionTransformer", _VIT),
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
    r"test_vit": {},
    r"test_vit2": {"pooling": "gap", "registers": 1, "layer_scale": "both", "final_norm": "pooled"},
    r"test_vit3": {"pooling": "map", "registers": 1, "layer_scale": "both"},
    r"test_vit4": {"pooling": "gap", "registers": 1, "layer_scale": "both", "final_norm": "pooled", "norm": "rms"},
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
    found = _find(architecture).layouts
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


def _expected_by_name(known: _Architecture, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What timm's model of that name has, but for what `model_args` may change; `{}` for a name that is not known."""
    config = known.config
    if config is None:
        return {}
    changed = {field for name in arguments for field in _CHANGED_BY.get(name, ())}
    expected = _expected_fields(config) | {"prefix_rows": "none" if _PATCH_ROWS.match(known.name) else "all"}
    if known.recorded is not None:  # what no argument says is by the name
        words = {"embed_dim": "hidden_size", "depth": "num_layers", "patch_size": "patch_size"}
        expected |= {f: getattr(config, f) for w, f in words.items() if type(arguments.get(w)) not in (int, list)}
    found = {field: value for field, value in expected.items() if field not in changed}
    pool = arguments.get("global_pool")
    return found if pool is None else found | {"attention_pooling": pool == "map"}


def _expected_fields(config: ViTConfig) -> dict[str, Any]:
    fields = {field: getattr(config, field) for field in _EXPECTED_FIELDS} | {"class_token": config.has_class_token}
    if not config.gated_mlp and config.rotary == "none":  # UNI2 and Virchow pass `mlp_layer=SwiGLUPacked` in Python
        del fields["gated_mlp"]
    if config.pooling != "gap":
        fields["attention_pooling"] = config.pooling in ("map", "attentive")
    if config.position_embedding in ("learned", "none"):
        fields["position_table"] = config.position_embedding == "learned"
    return fields
