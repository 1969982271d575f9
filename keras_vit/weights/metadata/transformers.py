"""What the JSON of a transformers folder says of a model, and the one that is written for transformers."""

import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from keras_vit.config.parts import QKV_BIASES
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.images.resizing import CUTS_CENTRE, sides_to_cover
from keras_vit.pages.formatting import printable
from keras_vit.weights.metadata.record import (
    CLIP_MEAN,
    CLIP_STD,
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

_BEIT_TYPES, _BEIT_POOLING = ("beit", "data2vec-vision"), {True: "gap", False: "token"}  # by `use_mean_pooling`
IMAGE_PROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
PIL_FILTERS = {2: "bilinear", 3: "bicubic"}  # `resample` of transformers' image processors


def read_transformers(config: dict, processor: dict, folder: Path, name: str = IMAGE_PROCESSOR) -> Metadata:
    """The metadata of both files; an absent one is empty.

    Args:
        config: of `config.json`.
        processor: what prepares photos.
        folder: that both are in.
        name: of the file that has `processor`.

    Raises:
        CheckpointError: for an activation that is not computed here, and for `architectures` of another `model_type`.
    """
    _check_class(config, folder / "config.json")
    reading, images = Reading("config.json"), Reading(name)
    whole = names = config
    if isinstance(config.get("vision_config"), dict):  # of two towers, which the projection is not of
        _check_towers(config, folder / "config.json")
        config = config["vision_config"] | {"projection_dim": config.get("projection_dim")}
        names = names if {"id2label", "label2id"} & set(names) else config
    config = _of_backbone(config, folder / "config.json")
    kind = str(config.get("model_type"))
    if kind in _LAYOUTS:
        config = {word: value for word, value in config.items() if kind in _READ_BY.get(word, (kind,))}
    if kind.startswith("aimv2"):
        config = _drop_gate(config, folder / "config.json")
    gated = _parse_gated_mlp(config, folder / "config.json")
    fields = {
        "pooling": _BEIT_POOLING.get(config.get("use_mean_pooling", True)) if kind in _BEIT_TYPES else None,
        "activation": None if gated else parse_activation(config.get("hidden_act"), folder / "config.json"),
        "position_embedding": "sincos2d_mae" if kind.startswith("aimv2") and config.get("is_native") else None,
        "layer_norm_epsilon": _epsilon(config, kind, folder / "config.json"),
        **_rotary_fields(config, kind, folder / "config.json"),
    }
    return Metadata(
        fields=reading.fields({name: value for name, value in fields.items() if value is not None}),
        layout=kind,
        family=f"model_type {config.get('model_type')!r:.80}" if os.path.lexists(folder / "config.json") else "",
        layouts=transformers_layouts(config.get("model_type"), folder / "config.json"),
        num_heads=reading.count("num_attention_heads", config.get("num_attention_heads")),
        sizes=expected_from_model_type(kind, config)
        | _head_fields(whole)
        | size_fields(
            config,
            folder / "config.json",
            hidden_size="hidden_size",
            num_hidden_layers="num_layers",
            num_register_tokens="registers",
            n_cls_tokens="class_tokens",
            num_channels="channels",
        )
        | _bias_fields(config, folder / "config.json")
        | ({} if gated is None else {"gated_mlp": gated}),
        image_size=reading.part("image_size", lambda: parse_size(config.get("max_img_size", config.get("image_size")))),
        preprocessing=images.preprocessing(lambda: _transformers_preprocessing(processor)) if processor else None,
        pre_logits_activation=config.get("pooler_act") or "tanh",
        class_names=read_names(names, reading),
        remarks=(*reading.remarks, *images.remarks, *_describe_unused_steps(processor, name)),
        fixed_size=name if kind in _OF_ONE_SIZE else "",
    )


def _check_class(config: dict, place: Path) -> None:
    """Raises where `architectures` has a class of another `model_type`; classes that are not known here pass."""
    kind = config.get("model_type")
    if kind not in _CLASS_NAMES:
        return
    for name in map(str, _names(config)):
        found = _CLASS.fullmatch(name)
        if found is not None and found[1] != _CLASS_NAMES[str(kind)]:
            raise CheckpointError(
                "`model_type` and `architectures` must be of the same family, since each family computes other numbers."
                f"\nReceived: model_type {kind!r}, and architectures {name!r} in {place}. Correct the wrong one."
            )


def _of_backbone(config: dict, place: Path) -> dict:
    """The config of the encoder inside a model of maps; any other config as it is.

    Raises:
        CheckpointError: for the hybrid of DPT, whose first taps are a ResNet's.
    """
    kind, inside = config.get("model_type"), config.get("backbone_config")
    if kind == "dpt" and config.get("is_hybrid"):
        raise unsupported_error("encoder of DPT", "is_hybrid=true", place, "a plain ViT")
    if kind in ("dpt", "depth_anything") and isinstance(inside, dict):
        return inside
    return config | {"model_type": "vit"} if kind == "dpt" else config


def _epsilon(config: dict, kind: str, place: Path) -> float | None:
    """What is added to the variance, by the one word that transformers reads for the family.

    Raises:
        CheckpointError: for what is no epsilon, and for an InternViT whose queries and keys have another one.
    """
    is_rms = kind in _RMS_TYPES or (kind not in _LAYOUTS and "layer_norm_eps" not in config)
    found = parse_epsilon(config.get("rms_norm_eps" if is_rms else "layer_norm_eps"), place)
    if kind == "internvl_vision" and config.get("use_qk_norm") and found not in (None, 1e-6):
        known = "1e-6, which transformers always adds in the norms of queries and keys"
        raise unsupported_error("epsilon of an InternViT with `use_qk_norm`", found, place, known)
    return found


_RMS_TYPES = ("aimv2", "aimv2_vision_model", "sapiens2")  # InternViT's RMSNorm has `layer_norm_eps`


def _describe_unused_steps(processor: dict, name: str) -> list[str]:
    """A line for each step that a processor does with photos and a record cannot hold."""
    steps = [step for step in ("do_pad", "crop_to_patches") if processor.get(step)]
    return [f"{step} of {name} not understood ({processor[step]}): left out" for step in steps]


def read_names(config: dict, reading: Reading) -> tuple[str, ...] | None:
    """The class names of a transformers folder: `id2label`, or `label2id` where that has none.

    Args:
        config: of config.json.
        reading: of that file, which gets a remark on names that are set aside, and on scores that are no softmax.
    """
    if scores := _SCORES.get(str(config.get("problem_type"))):
        reading.remarks.append(f"set aside problem_type {config['problem_type']} of {reading.place}: {scores}")
    num_remarks, numbers = len(reading.remarks), config.get("label2id")
    names = reading.class_names("id2label", lambda: config.get("id2label"))
    if not numbers or len(reading.remarks) > num_remarks:
        return names
    if names is None:
        return reading.class_names("label2id", lambda: _by_number(numbers))
    expected = {str(number): name for number, name in enumerate(names)}
    pairs = numbers.items() if isinstance(numbers, dict) else [("", None)]
    differs = any(expected.get(str(number)) != name for name, number in pairs)
    if differs and not all(re.fullmatch(r"LABEL_\d+", name) for name, _ in pairs):  # which transformers fills in
        reading.remarks.append(f"set aside class names: label2id of {reading.place}, which contradicts its id2label")
    return names


_SCORES = {  # what the outputs of a head are that was not trained by a softmax
    "multi_label_classification": "each class has a probability of its own, as by classifier_activation='sigmoid'",
    "regression": "its outputs are numbers, as by classifier_activation=None, and no classes",
}


def _by_number(numbers: Any) -> dict:
    """`label2id` the other way round."""
    found = {number: name for name, number in check_object(numbers).items()}
    if len(found) < len(numbers):
        raise ValueError(f"each class must have one name.\nReceived: {len(numbers)} names of {len(found)} classes.")
    return found


def _check_towers(config: dict, place: Path) -> None:
    """Raises where the config of a tower says other things of itself than its `vision_config`."""
    tower = config["vision_config"]
    both = [word for word in tower if word in config and word not in _OF_EACH_TOWER and config[word] != tower[word]]
    kinds = [_LAYOUTS.get(str(part.get("model_type"))) for part in (config, tower)]
    both += ["model_type"] if None not in kinds and kinds[0] != kinds[1] else []
    if config.get("model_type") in _LAYOUTS and both:
        values = "; ".join(f"{word} {printable(config[word])[:40]}, and {printable(tower[word])[:40]}" for word in both)
        raise CheckpointError(
            "a config.json and its `vision_config` must say the same of the image tower.\n"
            f"Received: {values} in {place}. Correct one of them."
        )


_OF_EACH_TOWER = (  # words that a config of two towers has for itself
    *("model_type", "architectures", "transformers_version", "projection_dim", "dtype", "torch_dtype", "_name_or_path"),
    *("initializer_factor", "initializer_range", "id2label", "label2id", "auto_map", "_attn_implementation"),
)


def _drop_gate(config: dict, place: Path) -> dict:
    """A config of AIMv2 without the activation of its gate; raises for another than SiLU."""
    if (word := config.get("hidden_act", "silu")) != "silu":
        raise unsupported_error("activation of a gated MLP", word, place, "'silu'")
    return {name: value for name, value in config.items() if name != "hidden_act"}


_CLIP_PHOTOS = {
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "resample": 3,
    "do_center_crop": True,
    "size": {"shortest_edge": 224},
    "crop_size": 224,
}
_IMAGENET_PHOTOS = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
_PROCESSORS: dict[str, dict[str, Any]] = {  # what transformers takes where a file is silent; of others ViT's
    "CLIP": _CLIP_PHOTOS,
    "Bit": _CLIP_PHOTOS,
    "DeiT": {"resample": 3, "do_center_crop": True, "size": 256, "crop_size": 224},
    "Beit": {"resample": 3},
    "Siglip": {"resample": 3},
    "DINOv3ViT": _IMAGENET_PHOTOS,
    "MobileViT": {"do_flip_channel_order": True},
    "Sapiens2": _IMAGENET_PHOTOS,
}
_OF_SHORT_SIDE = ("CLIP", "Bit")  # a `size` of one number is that of the shorter side, of others both


def _processor_kind(processor: dict) -> str:
    """As `"CLIP"` of a `CLIPImageProcessorFast`."""
    name = processor.get("image_processor_type") or processor.get("feature_extractor_type") or ""
    return re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", str(name))


def _transformers_preprocessing(processor: dict) -> Preprocessing:
    given = {name: value for name, value in processor.items() if value is not None}
    processor = _PROCESSORS.get(_processor_kind(processor), {}) | given
    _refuse_unless(processor.get("do_rescale", True) is True, processor, "do_rescale")
    _refuse_unless(abs(processor.get("rescale_factor", 1 / 255) * 255 - 1) < 1e-3, processor, "rescale_factor")
    _refuse_unless(not processor.get("do_flip_channel_order"), processor, "do_flip_channel_order")  # BGR
    _refuse_unless(processor.get("resample", 2) in PIL_FILTERS, processor, "resample")
    mean, std = (
        processor.get("image_mean", [0.5] * 3),
        processor.get("image_std", [0.5] * 3),
    )  # those of ViTImageProcessor
    if not processor.get("do_normalize", True):
        mean, std = [0.0] * 3, [1.0] * 3
    return Preprocessing(
        mean=mean, std=std, interpolation=PIL_FILTERS[processor.get("resample", 2)], antialias=True, **_sizes(processor)
    )


def _sizes(processor: dict) -> dict[str, Any]:
    """`image_size`, `resize` and `crop_fraction`: a processor squashes, or resizes first and cuts out the centre.

    It keeps the aspect where `size` is that of the shorter side.
    """
    size: Any = parse_size(processor.get("size"))
    if not processor.get("do_center_crop"):
        whole = isinstance(processor.get("size"), dict) and "shortest_edge" in processor["size"]
        _refuse_unless(not whole, processor, "size")  # leaves images of every aspect
        return {"image_size": size, "resize": "squash" if processor.get("do_resize", True) else "none"}
    crop: Any = parse_size(processor.get("crop_size"))
    _refuse_unless(processor.get("do_resize", True), processor, "do_resize")
    _refuse_unless(crop is not None and size is not None and size[0] >= crop[0], processor, "crop_size")
    _refuse_unless(
        crop[0] * size[1] == crop[1] * size[0], processor, "crop_size"
    )  # covers another shape than it cuts out
    given = processor["size"]
    short = "shortest_edge" in given if isinstance(given, dict) else _processor_kind(processor) in _OF_SHORT_SIDE
    resize = "crop" if short else "squash_crop"
    return {"image_size": crop, "resize": resize, "crop_fraction": crop[0] / size[0], "rounding": "transformers"}


def _refuse_unless(rule: bool, processor: dict, name: str) -> None:
    if not rule:
        raise ValueError(f"{name} must be one that a record can hold.\nReceived: {name} {processor.get(name)}")


def _parse_gated_mlp(config: dict, place: Path) -> bool | None:
    """Whether the MLP is gated, `None` where the config does not say.

    Raises:
        CheckpointError: for a gate that is not a SiLU.
    """
    gated, gate = config.get("use_gated_mlp"), config.get("hidden_act")
    if gated is True and gate not in GATES:
        raise unsupported_error("gate of the MLP", gate, place, "SiLU")
    return gated if isinstance(gated, bool) else None


def _bias_fields(config: dict, place: Path) -> dict[str, str]:
    """`qkv_bias`, if all three are given.

    Raises:
        CheckpointError: for biases that no model here has.
    """
    biases = {role: config.get(f"{role}_bias") for role in QKV_BIASES["all"]}
    if not all(isinstance(bias, bool) for bias in biases.values()):
        return {}
    there = tuple(role for role, bias in biases.items() if bias)
    word = next((word for word, roles in QKV_BIASES.items() if roles == there), None)
    if word is None:
        known = "; ".join(" and ".join(roles) or "none" for roles in QKV_BIASES.values())
        raise unsupported_error("choice of biases in attention", " and ".join(there), place, known)
    return {"qkv_bias": word}


def _rotary_fields(config: dict, kind: str, place: Path) -> dict[str, Any]:
    """Fields of the rotary positions of DINOv3, Sapiens2 and MLCD.

    Raises:
        CheckpointError: for frequencies by another rule than powers of one number.
    """
    if kind not in _ROPES:
        return {}
    usual, usual_theta = _ROPES[kind]
    rope = config.get("rope_parameters")
    rope = rope if isinstance(rope, dict) else {}
    if (rule := rope.get("rope_type", usual)) not in (usual, "default"):
        raise unsupported_error("rotary position", f"rope_type={rule!r}", place, usual)
    theta = config.get("rope_theta") or (rope.get("rope_theta") if usual == "axial" else None) or usual_theta
    if (other := rope.get("rope_theta", theta)) != theta:
        received = f"rope_theta={theta}, and {other} in rope_parameters"
        raise unsupported_error(
            "rotary position", received, place, "one theta, as `rope_theta`, which transformers computes by"
        )
    return {"rotary": "axial", "rotary_theta": theta}


_ROPES = {  # `model_type`: the type of its rotary positions, and their theta where the config has none
    **dict.fromkeys(("dinov3_vit", "sapiens2"), ("default", 100.0)),  # which compute by `rope_theta` alone
    **dict.fromkeys(("mlcd_vision_model", "mlcd"), ("axial", 10000.0)),
}
_LAYOUTS: Mapping[str, tuple[str, ...]] = {  # `model_type` of transformers: layouts here
    **dict.fromkeys(("vit", "deit", "vit_msn", "vit_mae", "ijepa"), ("huggingface",)),
    "pixio": ("huggingface_pixio",),
    "dinov2": ("huggingface_dinov2",),
    "dinov2_with_registers": ("huggingface_dinov2_registers",),
    "dinov3_vit": ("huggingface_dinov3",),
    **dict.fromkeys(
        ("clip", "clip_vision_model", "metaclip_2", "metaclip_2_vision_model"),
        ("huggingface_clip", "huggingface_clip_classifier"),
    ),
    **dict.fromkeys(("siglip", "siglip_vision_model"), ("huggingface_siglip",)),
    **dict.fromkeys(("siglip2", "siglip2_vision_model"), ("huggingface_siglip2", "huggingface_siglip")),
    **dict.fromkeys(("aimv2", "aimv2_vision_model"), ("huggingface_aimv2", "aimv2")),
    **dict.fromkeys(("beit", "data2vec-vision"), ("huggingface_beit",)),
    **dict.fromkeys(("internvl_vision", "intern_vit_6b"), ("huggingface_internvit", "internvit")),
    "dinov2_registers": ("dinov2_registers",),  # which a user writes for a file that has no metadata
    **dict.fromkeys(("tipsv2", "tipsv2_vision_model"), ("huggingface_tipsv2", "dinov2_registers")),
    "radio": ("huggingface_radio",),
    **dict.fromkeys(("mlcd_vision_model", "mlcd"), ("huggingface_mlcd",)),
    "sapiens2": ("huggingface_sapiens2",),
}
_CLASS_NAMES: Mapping[str, str] = {  # `model_type`: how the names of transformers' classes of it begin
    **{"vit": "ViT", "deit": "DeiT", "vit_msn": "ViTMSN", "vit_mae": "ViTMAE", "ijepa": "IJepa", "pixio": "Pixio"},
    **{"dinov2": "Dinov2", "dinov2_with_registers": "Dinov2WithRegisters", "dinov3_vit": "DINOv3ViT"},
    **dict.fromkeys(("clip", "clip_vision_model"), "CLIP"),
    **dict.fromkeys(("metaclip_2", "metaclip_2_vision_model"), "MetaClip2"),
    **dict.fromkeys(("siglip", "siglip_vision_model"), "Siglip"),
    **dict.fromkeys(("siglip2", "siglip2_vision_model"), "Siglip2"),
    **dict.fromkeys(("aimv2", "aimv2_vision_model"), "Aimv2"),
    **dict.fromkeys(("tipsv2", "tipsv2_vision_model"), "Tipsv2"),
    **dict.fromkeys(("mlcd", "mlcd_vision_model"), "MLCD"),
    **{"beit": "Beit", "data2vec-vision": "Data2VecVision", "internvl_vision": "InternVLVision"},
    **{"radio": "Radio", "sapiens2": "Sapiens2"},
}
_CLASS = re.compile(rf"({'|'.join(sorted({*_CLASS_NAMES.values()}))})(Vision)?(Model|For|Backbone).*")
# Types whose class refuses images of another size than the table's. Others resize it: DINOv2 is published with a table
# for 518 pixels and photos of 224.
_OF_ONE_SIZE = (
    *("vit", "deit", "vit_msn", "vit_mae", "ijepa", "clip", "clip_vision_model", "metaclip_2"),
    *("metaclip_2_vision_model", "siglip", "siglip_vision_model"),
)
_UNSUPPORTED_TYPES = re.compile(
    r"(donut-|maskformer-)?swin(v2|2sr)?|naflexvit|(dinov3_)?convnext(v2)?|cvt|resnet|regnet|bit|levit|efficientnet|"
    r"mobile(net|vit).*|efficientformer|swiftformer|poolformer|focalnet|pvt(_v2)?|segformer|hiera|dinat|nat|van|"
    r"vit_hybrid|vivit|videomae|timesformer|vjepa2|yolos|vitdet|dpt|sam\d?(_.*)?|perceiver|hgnet_v2|"
    r"(qwen|deepseek|gemma4|glm).*"  # towers of language models, with other rotary positions
)


def transformers_layouts(kind: Any, place: Path) -> tuple[str, ...]:
    """The layouts of transformers' class of that `model_type`; none for one that is not known here.

    Raises:
        CheckpointError: for a model that is not computed here.
    """
    if isinstance(kind, str) and _UNSUPPORTED_TYPES.fullmatch(kind):
        raise unsupported_error("model_type", kind, place, "those of plain Vision Transformers")
    return _LAYOUTS.get(str(kind), ())


_BIASED = ("vit", "deit", "vit_msn", "vit_mae", "ijepa", "pixio", "radio", "dinov2", "dinov2_with_registers")
_FLAGS = {  # words of a config: the part that each switches
    "mlp_bias": "mlp_bias",
    "proj_bias": "proj_bias",
    "use_swiglu_ffn": "gated_mlp",
    "use_absolute_position_embeddings": "position_table",
}
_SCALED = ("pixio", "dinov2", "dinov2_registers", "dinov2_with_registers", "tipsv2", "tipsv2_vision_model", "radio")
_BIAS_SWITCHES = ("dinov3_vit", "sapiens2")
_READ_BY: Mapping[str, Collection[str]] = {  # words that only these types have; transformers passes over them elsewhere
    **dict.fromkeys(("mlp_ratio", "use_swiglu_ffn"), _SCALED),
    "intermediate_size": {*_LAYOUTS} - {*_SCALED},
    **dict.fromkeys(("query_bias", "key_bias", "value_bias", "proj_bias", "use_gated_mlp"), _BIAS_SWITCHES),
    "mlp_bias": (*_BIAS_SWITCHES, "aimv2", "aimv2_vision_model"),
    "qkv_bias": (*_BIASED, "aimv2", "aimv2_vision_model", "tipsv2", "tipsv2_vision_model", "intern_vit_6b"),
    "num_register_tokens": (*_BIAS_SWITCHES, "dinov2_with_registers", "tipsv2", "tipsv2_vision_model"),
    "n_cls_tokens": ("pixio",),
    "max_img_size": ("radio",),
    "pooler_act": ("vit", "deit", "ijepa"),
    "use_absolute_position_embeddings": (*_BEIT_TYPES, "internvl_vision"),
}
_POOLERS = {"siglip_vision_model": "vision_use_head", "siglip2_vision_model": "vision_use_head"}
_POOLERS |= {"aimv2_vision_model": "use_head"}  # `model_type`: whether there is attention pooling, by default there is
_SPECIAL_TOKENS = {"deit": 2, "vit": 1, "vit_msn": 1, "vit_mae": 1, "ijepa": 0}  # before the patches
_NORMS = {"rms_norm": "rms", "layer_norm": "layer", True: "width", False: "none"}
_ALL_OR_NONE = {True: "all", False: "none"}


def expected_from_model_type(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers' class of that `model_type` has by this config, where files of its layout may differ."""
    if kind not in _LAYOUTS:
        return {}
    fields: dict[str, Any] = {_FLAGS[word]: config[word] for word in _FLAGS if isinstance(config.get(word), bool)}
    fields |= _token_fields(kind, config)
    bias = config.get("attention_bias" if kind == "internvl_vision" else "qkv_bias", kind in _BIASED or None)
    if isinstance(bias, bool) and kind not in _BEIT_TYPES:
        fields["qkv_bias"] = _ALL_OR_NONE[bias]
        fields |= {"proj_bias": bias} if kind == "aimv2_vision_model" else {}
    if kind == "aimv2_vision_model":
        fields["position_table"] = not config.get("is_native", False)
    if kind in _BEIT_TYPES:
        fields |= _beit_fields(config)
    if kind == "sapiens2":
        fields |= {"qk_norm": "head" if config.get("use_qk_norm", True) else "none"}
        of_layers = config.get("num_key_value_heads_per_layer")
        fields |= {"kv_heads": tuple(of_layers)} if isinstance(of_layers, list) else {}
    fields |= _internvit_fields(kind, config)
    if kind in _POOLERS and not _classifies(config):
        fields["attention_pooling"] = config.get(_POOLERS[kind], True) is True
    if kind == "clip_vision_model" and isinstance(config.get("projection_dim"), int):
        fields["projection_dim"] = config["projection_dim"]
    if config.get("use_swiglu_ffn", False) is True:
        fields |= scaled_width(config, "hidden_size", rounded=_gated_width)
    else:
        fields |= scaled_width(config, "hidden_size")
    if isinstance(config.get("intermediate_size"), int):
        fields["mlp_dim"] = config["intermediate_size"]
    return fields


def _classifies(config: Mapping[str, Any]) -> bool:
    return any("ForImageClassification" in str(name) for name in _names(config))


def _head_fields(config: Mapping[str, Any]) -> dict[str, int]:
    count = config.get("num_labels")
    return {"classes": count} if _classifies(config) and type(count) is int else {}


def _token_fields(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """`special_tokens`, and RADIO's `layer_scale`."""
    if kind != "radio":
        return {"special_tokens": _SPECIAL_TOKENS[kind]} if kind in _SPECIAL_TOKENS else {}
    counts: list[Any] = [config.get("num_cls_tokens"), config.get("num_registers")]
    fields: dict[str, Any] = {"special_tokens": sum(counts)} if all(type(count) is int for count in counts) else {}
    return fields | ({"layer_scale": "both"} if "layerscale_value" in config else {})


def _internvit_fields(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Norms of an InternViT, by the words of transformers' class or of the authors' `intern_vit_6b`."""
    if kind == "internvl_vision":
        found = {"norm": config.get("norm_type", "layer_norm"), "qk_norm": bool(config.get("use_qk_norm"))}
        found |= {"final_norm": "none" if config.get("use_mean_pooling", True) else "tokens"}
    elif kind == "intern_vit_6b":
        words = {"norm": "norm_type", "qk_norm": "qk_normalization"}
        found = {field: config[word] for field, word in words.items() if word in config}
    else:
        return {}
    return {field: _NORMS.get(value, value) for field, value in found.items()}


def _gated_width(width: float) -> int:
    """M of DINOv2's gated MLP: two thirds, up to a multiple of 8."""
    return (int(int(width) * 2 / 3) + 7) // 8 * 8


def _names(config: Mapping[str, Any]) -> list[Any]:
    names = config.get("architectures")
    return names if isinstance(names, list) else []


def _beit_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {"position_table": config.get("use_absolute_position_embeddings", False) is True}
    fields["layer_scale"] = "both" if config.get("layer_scale_init_value", 0.1) else "none"
    names = [str(name) for name in _names(config) if name != "Data2VecVisionModel"]  # which may have no pooling layer
    if any(name.endswith(("Model", "ForImageClassification")) for name in names):
        fields["final_norm"] = "pooled" if config.get("use_mean_pooling", True) else "tokens"
    return fields | (_relative_bias(config) if isinstance(config.get("use_relative_position_bias"), bool) else {})


def _relative_bias(config: Mapping[str, Any]) -> dict[str, str]:
    """BEiT's tables, in each block or one for all."""
    tables = {"blocks": config["use_relative_position_bias"], "shared": config.get("use_shared_relative_position_bias")}
    return {"relative_bias": " and ".join(word for word, there in tables.items() if there) or "none"}


def transformers_files(facts: dict[str, Any], preprocessing: Preprocessing) -> dict[str, dict]:
    """The JSON files, by name, that transformers reads.

    Args:
        facts: of the architecture.
        preprocessing: how photos are prepared.
    """
    return {
        "config.json": _transformers_config(facts),
        "preprocessor_config.json": transformers_processor(preprocessing, facts["image_size"]),
    }


def transformers_snippet(place: str, classifies: bool) -> str:
    """Python that opens a folder, or `hf:owner/name`, with transformers."""
    kind = "AutoModelForImageClassification" if classifies else "AutoModel"
    name = json.dumps(place.removeprefix("hf:"))
    return f"from transformers import {kind}\n\nmodel = {kind}.from_pretrained({name})"


def _transformers_config(facts: dict[str, Any]) -> dict:
    check_writable("transformers", facts, **USUAL_FIELDS)
    if facts["qkv_bias"] == "query_value":
        check_writable("transformers", facts, qkv_bias="all")
    has_two = facts["distilled"] or facts["fields"]["class_tokens"] == 2  # of which one head reads the first
    kind = "IJepa" if not facts["class_token"] else "DeiT" if has_two else "ViT"
    task = "Model" if not facts["classes"] else "ForImageClassification" + ("WithTeacher" if facts["distilled"] else "")
    height, width = facts["image_size"]
    labels = facts["labels"] or [f"LABEL_{k}" for k in range(facts["classes"])]
    return {
        "model_type": kind.lower(),
        "architectures": [f"{kind}{task}"],
        "hidden_size": facts["hidden_size"],
        "num_hidden_layers": facts["num_layers"],
        "num_attention_heads": facts["num_heads"],
        "intermediate_size": facts["mlp_dim"],
        "hidden_act": "gelu_pytorch_tanh" if facts["activation"] == "gelu_tanh" else facts["activation"],
        "layer_norm_eps": facts["layer_norm_epsilon"],
        "image_size": height if height == width else [height, width],
        "patch_size": facts["patch_size"],
        "num_channels": facts["channels"],
        "qkv_bias": facts["qkv_bias"] != "none",
        "id2label": {str(k): label for k, label in enumerate(labels)},
        "label2id": {label: k for k, label in enumerate(labels)},
    }


def transformers_processor(record: Preprocessing, image_size: tuple[int, int]) -> dict:
    """`preprocessor_config.json` for photos as a record has them."""
    height, width = image_size
    config = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": record.resize != "none",  # also for images of any size: ViT of transformers takes one size
        "size": {"height": height, "width": width},
        "resample": {name: number for number, name in PIL_FILTERS.items()}[nearest_filter(record)],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(record.mean),
        "image_std": list(record.std),
    }
    if record.resize in CUTS_CENTRE:
        covered = sides_to_cover(record, image_size)
        squashes = record.resize == "squash_crop"
        config["image_processor_type"] = "DeiTImageProcessor" if squashes else "BitImageProcessor"
        config["size"] = dict(zip(("height", "width"), covered, strict=True))
        if not squashes:
            config["size"] = {"shortest_edge": max(covered)}  # so that both sides are covered
        config |= {"do_center_crop": True, "crop_size": {"height": height, "width": width}}
    return config
