"""What stands beside the tensors: the note in our own files, and the JSON files of transformers and timm.

It says what tensors cannot: the number of heads, the activation, how images must be prepared. A JSON that
says nothing usable counts as none; what it says is checked as every other argument is.
"""

import dataclasses
import json
import math
from pathlib import Path

from keras_vit.preprocessing import Preprocessing
from keras_vit.variants import ViTConfig

NOTED_FIELDS = ("activation", "layer_norm_epsilon", "pooling", "position_embedding")
_PIL_FILTERS = {2: "bilinear", 3: "bicubic"}  # `resample` of transformers' image processors
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_tanh": "gelu_tanh"}
_MOST_BYTES = 4_000_000  # of a JSON file; ImageNet-21k's label lists take 1.5 MB


@dataclasses.dataclass(frozen=True)
class Sidecar:
    """What a file, or the JSON beside it, says of the model."""

    fields: dict = dataclasses.field(default_factory=dict)
    num_heads: int | None = None
    preprocessing: Preprocessing | None = None


def note_of(config: dict, num_heads, preprocessing) -> dict:
    """The note that our own files carry: the fields that no tensor tells."""
    return {
        "config": {name: config[name] for name in NOTED_FIELDS if name in config},
        "num_heads": num_heads,
        "preprocessing": None if preprocessing is None else dataclasses.asdict(preprocessing),
    }


def read(file) -> Sidecar:
    """The sidecar of a `TensorFile`: its note if it has one of ours, else the JSON files of its folder."""
    try:
        if "config" in file.note:
            return _from_note(file.note)
        if file.kind != "safetensors":
            return Sidecar()
        config = _json(file.path.parent / "config.json")
        if "pretrained_cfg" in config:
            return _from_timm(config)
        return _from_transformers(config, _json(file.path.parent / "preprocessor_config.json"))
    except (TypeError, ValueError, ArithmeticError):  # text where a number should be, and the like
        return Sidecar()


def _json(path: Path) -> dict:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return {}
        said = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _from_note(note):
    config = note["config"] if isinstance(note["config"], dict) else {}
    preprocessing = note.get("preprocessing")
    return Sidecar(
        fields=_checked_fields({name: config[name] for name in NOTED_FIELDS if name in config}),
        num_heads=_count(note.get("num_heads")),
        preprocessing=_record(**preprocessing) if isinstance(preprocessing, dict) else None,
    )


def _from_transformers(config, processor):
    fields = {}
    if config.get("hidden_act") in _ACTIVATIONS:
        fields["activation"] = _ACTIVATIONS[config["hidden_act"]]
    if "layer_norm_eps" in config:
        fields["layer_norm_epsilon"] = config["layer_norm_eps"]
    preprocessing = None
    if "image_mean" in processor and processor.get("do_normalize", True):
        size = processor.get("crop_size") if processor.get("do_center_crop") else processor.get("size")
        preprocessing = _record(
            image_size=_sides(size),
            mean=processor.get("image_mean"),
            std=processor.get("image_std"),
            interpolation=_PIL_FILTERS.get(processor.get("resample"), "bilinear"),
            antialias=True,
            **_crop(processor),
        )
    return Sidecar(_checked_fields(fields), _count(config.get("num_attention_heads")), preprocessing)


def _crop(processor):
    """`resize` and `crop_fraction` of a processor that resizes first and then cuts out the centre."""
    crop, size = _sides(processor.get("crop_size")), _sides(processor.get("size"))
    if not processor.get("do_center_crop") or not crop or not size or size[0] < crop[0]:
        return {"resize": "squash"}
    return {"resize": "crop", "crop_fraction": crop[0] / size[0]}


def _from_timm(config):
    said = config["pretrained_cfg"] if isinstance(config["pretrained_cfg"], dict) else {}
    arguments = config["model_args"] if isinstance(config.get("model_args"), dict) else {}
    fields = {}
    if arguments.get("act_layer") in _ACTIVATIONS:
        fields["activation"] = _ACTIVATIONS[arguments["act_layer"]]
    size = said.get("input_size")
    preprocessing = None
    if isinstance(size, list) and len(size) == 3:
        preprocessing = _record(
            image_size=tuple(size[1:]),
            mean=said.get("mean"),
            std=said.get("std"),
            interpolation=said.get("interpolation", "bicubic"),
            antialias=True,
            resize="squash" if said.get("crop_mode") == "squash" else "crop",
            crop_fraction=said.get("crop_pct", 1.0),
        )
    return Sidecar(_checked_fields(fields), _count(arguments.get("num_heads")), preprocessing)


def _record(**fields):
    try:
        return Preprocessing(**fields)
    except (TypeError, ValueError):
        return None


def _checked_fields(fields):
    try:
        ViTConfig(patch_size=1, hidden_size=4, num_layers=1, num_heads=1, mlp_dim=1, **fields)
    except (TypeError, ValueError):
        return {}
    return fields


def _count(number):
    return number if type(number) is int and number > 0 else None


def _sides(size):
    if isinstance(size, int):
        return size, size
    if not isinstance(size, dict):
        return None
    sides = size.get("height", size.get("shortest_edge")), size.get("width", size.get("shortest_edge"))
    return None if None in sides else sides


def folder_of(dialect: str, facts: dict, preprocessing) -> dict[str, dict]:
    """The JSON files, by name, that let timm or transformers open a folder with `model.safetensors`.

    Args:
        dialect: `"timm"` or `"huggingface"`.
        facts: the architecture: `patch_size`, `hidden_size`, `num_layers`, `num_heads`, `mlp_dim`,
            `image_size` (H, W), `channels`, `classes`, `pooling`, `class_token`, `distilled`, `activation`,
            `layer_norm_epsilon`, `resnet_stages`.
        preprocessing: the `Preprocessing` record.
    """
    if dialect == "timm":
        return {"config.json": _timm_config(facts, preprocessing)}
    return {
        "config.json": _transformers_config(facts),
        "preprocessor_config.json": _transformers_processor(preprocessing, facts["image_size"]),
    }


def _transformers_config(facts):
    kind = "DeiT" if facts["distilled"] else "ViT"
    task = "Model" if not facts["classes"] else "ForImageClassification" + ("WithTeacher" if facts["distilled"] else "")
    height, width = facts["image_size"]
    return {
        "model_type": kind.lower(),
        "architectures": [f"{kind}{task}"],
        "hidden_size": facts["hidden_size"],
        "num_hidden_layers": facts["num_layers"],
        "num_attention_heads": facts["num_heads"],
        "intermediate_size": facts["mlp_dim"],
        "hidden_act": "gelu" if facts["activation"] == "gelu" else "gelu_pytorch_tanh",
        "layer_norm_eps": facts["layer_norm_epsilon"],
        "image_size": height if height == width else [height, width],
        "patch_size": facts["patch_size"],
        "num_channels": facts["channels"],
        "qkv_bias": True,
        "id2label": {str(k): f"LABEL_{k}" for k in range(facts["classes"])},
        "label2id": {f"LABEL_{k}": k for k in range(facts["classes"])},
    }


def _transformers_processor(record, image_size):
    height, width = image_size
    said = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": record.resize != "none",
        "size": {"height": height, "width": width},
        "resample": {name: number for number, name in _PIL_FILTERS.items()}[record.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(record.mean),
        "image_std": list(record.std),
    }
    if record.resize == "crop":
        said["image_processor_type"] = "BitImageProcessor"
        said["size"] = {"shortest_edge": math.floor(min(height, width) / record.crop_fraction)}
        said |= {"do_center_crop": True, "crop_size": {"height": height, "width": width}}
    return said


def _timm_config(facts, record):
    names = {None: "vit_base_patch16_224", (): "vit_tiny_r_s16_p8_224", (2, 2, 2, 2): "vit_small_r26_s32_224"}
    names |= {(3, 4, 9): "vit_base_r50_s16_224", (3, 4, 6, 3): "vit_large_r50_s32_224"}
    name = "deit_base_distilled_patch16_224" if facts["distilled"] else names.get(facts["resnet_stages"])
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
        pool = {"token": "token", "gap": "avg", "map": "map", "none": ""}[facts["pooling"]]
        arguments |= {"global_pool": pool, "class_token": facts["class_token"], "fc_norm": False}
    return {
        "architecture": name,
        "num_classes": facts["classes"],
        "num_features": facts["hidden_size"],
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [facts["channels"], *facts["image_size"]],
            "fixed_input_size": True,
            "interpolation": record.interpolation,
            "crop_pct": record.crop_fraction,
            "crop_mode": "squash" if record.resize == "squash" else "center",
            "mean": list(record.mean),
            "std": list(record.std),
            "num_classes": facts["classes"],
            "pool_size": None,
            "first_conv": "patch_embed.backbone.stem.conv" if facts["resnet_stages"] else "patch_embed.proj",
            "classifier": ["head", "head_dist"] if facts["distilled"] else "head",
        },
    }
