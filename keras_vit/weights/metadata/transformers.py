"""What the JSON of a transformers folder says of a model; a family's own words are read in its file, in `families`."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_vit.config.parts import QKV_BIASES
from keras_vit.config.text import merge_config_dicts
from keras_vit.pages.formatting import printable
from keras_vit.weights.families import MODEL_TYPES
from keras_vit.weights.families.layout import OWN_WORDS, ModelType
from keras_vit.weights.metadata.processors import IMAGE_PROCESSOR, describe_unused_steps, read_processor
from keras_vit.weights.metadata.record import (
    GATES,
    Metadata,
    Reading,
    check_object,
    class_names,
    classifies,
    parse_activation,
    parse_epsilon,
    parse_size,
    scaled_width,
    size_fields,
    swiglu_width,
    unsupported_error,
)
from keras_vit.weights.read import CheckpointError

_UNKNOWN = ModelType(words=OWN_WORDS)
_FLAGS = {  # words of a config: the part that each switches
    "mlp_bias": "mlp_bias",
    "proj_bias": "proj_bias",
    "use_swiglu_ffn": "gated_mlp",
    "use_absolute_position_embeddings": "position_table",
}
_CLASS = re.compile(
    rf"({'|'.join(sorted({kind.class_name for kind in MODEL_TYPES.values()} - {''}))})(Vision)?(Model|For|Backbone).*"
)
_UNSUPPORTED_TYPES = re.compile(
    r"(donut-|maskformer-)?swin(v2|2sr)?|naflexvit|(dinov3_)?convnext(v2)?|cvt|resnet|regnet|bit|levit|efficientnet|"
    r"mobile(net|vit).*|efficientformer|swiftformer|poolformer|focalnet|pvt(_v2)?|segformer|hiera|dinat|nat|van|"
    r"vit_hybrid|vivit|videomae|timesformer|vjepa2|vitdet|dpt|sam(\d.*|_hq.*)|perceiver|hgnet_v2|"
    r"(qwen|deepseek|gemma4|glm).*"  # towers of language models, with other rotary positions
)


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
    place, config = folder / "config.json", merge_config_dicts(config)
    _check_class(config, place)
    reading, images = Reading("config.json"), Reading(name)
    whole = names = config
    if isinstance(config.get("vision_config"), dict):  # of two towers, which the projection is not of
        _check_towers(config, place)
        kind_of_whole = str(config.get("model_type"))
        config = config["vision_config"] | {"projection_dim": config.get("projection_dim")}
        config |= {"model_type": config.get("model_type") or kind_of_whole} if kind_of_whole == "sam" else {}
        names = names if {"id2label", "label2id"} & set(names) else config
    config = _of_backbone(config, place)
    word = config.get("model_type")
    if isinstance(word, str) and _UNSUPPORTED_TYPES.fullmatch(word):
        raise unsupported_error("model_type", word, place, "those of plain Vision Transformers")
    kind = MODEL_TYPES.get(str(word), _UNKNOWN)
    given = {name: value for name, value in config.items() if name in kind.words or name not in OWN_WORDS}
    config = dict(kind.usual) | given
    own = kind.read(config, place)
    gated = _parse_gated_mlp(config, place)
    activation = None if gated or "hidden_act" in kind.usual else parse_activation(config.get("hidden_act"), place)
    is_silent = not kind.layouts and "layer_norm_eps" not in config
    epsilon = parse_epsilon(config.get("rms_norm_eps" if is_silent else kind.epsilon), place)
    fields = {"activation": activation, "layer_norm_epsilon": epsilon}
    fields |= {name: own.pop(name) for name in list(own) if name in _UNSTORED or name.startswith("rotary")}
    return Metadata(
        fields=reading.fields({name: value for name, value in fields.items() if value is not None}),
        layout=str(word),
        family=f"model_type {word!r:.80}" if os.path.lexists(place) else "",
        layouts=kind.layouts,
        num_heads=reading.count("num_attention_heads", config.get("num_attention_heads")),
        usual_heads=_usual_heads(kind, config),
        sizes=(_part_fields(config) if kind.layouts else {})
        | own
        | ({"classes": whole["num_labels"]} if classifies(whole) and type(whole.get("num_labels")) is int else {})
        | size_fields(
            config,
            place,
            hidden_size="hidden_size",
            num_hidden_layers="num_layers",
            num_register_tokens="registers",
            n_cls_tokens="class_tokens",
            num_channels="channels",
        )
        | _bias_fields(config, place)
        | ({} if gated is None else {"gated_mlp": gated}),
        image_size=reading.part("image_size", lambda: parse_size(config.get("max_img_size", config.get("image_size")))),
        preprocessing=images.preprocessing(
            lambda: read_processor(processor, config.get("num_channels", 3), _own_processor(whole, kind))
        )
        if processor
        else None,
        pre_logits_activation=config.get("pooler_act") or "tanh",
        class_names=read_names(names, reading),
        remarks=(*reading.remarks, *images.remarks, *describe_unused_steps(processor, name)),
        fixed_size=name if kind.has_one_size else "",
    )


def _own_processor(whole: dict, kind: ModelType) -> str | None:
    """The kind of image processor that a family alone has; `None` of models with heads, which read it themselves."""
    return kind.class_name if str(whole.get("model_type")) in {*MODEL_TYPES, "None"} else None


_UNSTORED = ("pooling", "position_embedding")  # fields of a family's own that no tensor shows, with the rotary ones


def _usual_heads(kind: ModelType, config: Mapping[str, Any]) -> dict[int, int]:
    """The number of heads that transformers takes where the config is silent, by the width that it says or has."""
    if not kind.class_name or "num_attention_heads" in config:
        return {}
    width = config.get("hidden_size", kind.width)
    return {width: kind.num_heads} if type(width) is int else {}


def _check_class(config: dict, place: Path) -> None:
    """Raises where `architectures` has a class of another `model_type`; classes that are not known here pass."""
    word = config.get("model_type")
    if not isinstance(word, str | None):
        raise CheckpointError(f"`model_type` must be a text.\nReceived: {word!r:.80} in {place}. Correct it.")
    wanted = MODEL_TYPES.get(str(word), _UNKNOWN).class_name
    for name in class_names(config) if wanted else ():
        found = _CLASS.fullmatch(name)
        if found is not None and found[1] != wanted:
            raise CheckpointError(
                "`model_type` and `architectures` must be of the same family, since each family computes other numbers."
                f"\nReceived: model_type {word!r}, and architectures {name!r} in {place}. Correct the wrong one."
            )


def _of_backbone(config: dict, place: Path) -> dict:
    """The config of the encoder inside a model of maps; any other config as it is.

    Raises:
        CheckpointError: for the hybrid of DPT, whose first taps are a ResNet's.
    """
    kind, inside = config.get("model_type"), config.get("backbone_config")
    if kind == "dpt" and config.get("is_hybrid"):
        raise unsupported_error("encoder of DPT", "is_hybrid=true", place, "a plain ViT")
    if kind in ("dpt", "depth_anything", "upernet", "vitpose") and isinstance(inside, dict):
        if kind == "vitpose" and inside.get("num_experts", 1) != 1:
            experts = f"num_experts={inside['num_experts']!r}"
            raise unsupported_error("MLP of ViTPose", experts, place, "one, num_experts=1; those of ViTPose+ are more")
        return inside
    return config | {"model_type": "vit"} if kind == "dpt" else config


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
        names, counted = reading.class_names("label2id", lambda: _by_number(numbers)), config.get("id2label")
        if names is not None and counted and len(counted) != len(names):
            line = f"set aside {len(counted)} class names: id2label of {reading.place}, whose label2id has {len(names)}"
            reading.remarks.append(line)
        return names
    expected = {str(number): name for number, name in enumerate(names)}
    pairs = numbers.items() if isinstance(numbers, dict) else [("", None)]
    differs = any(expected.get(str(number)) != name for name, number in pairs)
    if differs and not all(re.fullmatch(r"LABEL_\d+", name) for name, _ in pairs):  # which transformers fills in
        reading.remarks.append(f"label2id of {reading.place} contradicts its id2label, which is used")
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
    kinds = [MODEL_TYPES.get(str(part.get("model_type")), _UNKNOWN).layouts for part in (config, tower)]
    both += ["model_type"] if all(kinds) and kinds[0] != kinds[1] else []
    if kinds[0] and both:
        values = "; ".join(f"{word} {printable(config[word])[:40]}, and {printable(tower[word])[:40]}" for word in both)
        raise CheckpointError(
            "a config.json and its `vision_config` must say the same of the image tower.\n"
            f"Received: {values} in {place}. Correct one of them."
        )


_OF_EACH_TOWER = (  # words that a config of two towers has for itself
    *("model_type", "architectures", "transformers_version", "projection_dim", "dtype", "torch_dtype", "_name_or_path"),
    *("initializer_factor", "initializer_range", "id2label", "label2id", "auto_map", "_attn_implementation"),
)


def _parse_gated_mlp(config: dict, place: Path) -> bool | None:
    """Whether the MLP is gated, `None` where the config does not say.

    Raises:
        CheckpointError: for a gate that is not a SiLU.
    """
    gated, gate = config.get("use_gated_mlp"), config.get("hidden_act")
    if gated is True and gate not in GATES:
        raise unsupported_error("gate of the MLP", gate, place, "SiLU")
    return gated if isinstance(gated, bool) else None


def _part_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers' classes have by this config, where files of their layouts may differ."""
    fields: dict[str, Any] = {_FLAGS[word]: config[word] for word in _FLAGS if isinstance(config.get(word), bool)}
    if isinstance(bias := config.get("qkv_bias"), bool):
        fields["qkv_bias"] = "all" if bias else "none"
    gated = config.get("use_swiglu_ffn", False) is True
    fields |= scaled_width(config, "hidden_size", rounded=swiglu_width if gated else round)
    return fields | (
        {"mlp_dim": config["intermediate_size"]} if isinstance(config.get("intermediate_size"), int) else {}
    )


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
