"""The JSON beside `model.safetensors` by which timm or transformers open a folder of ours, and the code that does it.

`facts` are the architecture: `patch_size`, `hidden_size`, `num_layers`, `num_heads`, `mlp_dim`, `image_size` (H, W),
`channels`, `classes`, `pooling`, `class_token`, `distilled`, `positions`, `activation`, `layer_norm_epsilon`,
`registers`, `pre_norm`, `patch_bias`, `qkv_bias`, `proj_bias`, `mlp_bias`, `norm`, `gated_mlp`, `layer_scale`,
`final_norm`, `attention_norm`, `mlp_norm`, `branch_norm`, `resnet_stages`, `root_channels`; `labels`, a name for each
class, or `None`.
"""

import json
from typing import Any

from keras_vit.images.preprocessing import Preprocessing
from keras_vit.images.resizing import sides_to_cover
from keras_vit.weights.reader import CheckpointError
from keras_vit.weights.sidecar import PIL_FILTERS


def timm_files(facts: dict[str, Any], preprocessing: Preprocessing) -> dict[str, dict]:
    """The JSON files, by name, that timm reads.

    Args:
        facts: of the architecture.
        preprocessing: how photos are prepared.

    Raises:
        CheckpointError: for a hybrid that timm has no architecture for.
    """
    return {"config.json": _timm_config(facts, preprocessing)}


def timm_opening(place: str, has_head: bool) -> str:
    """Python that opens a folder, or `hf:owner/name`, with timm."""
    name = place.replace("hf:", "hf-hub:") if place.startswith("hf:") else f"local-dir:{place}"
    return f"import timm\n\nmodel = timm.create_model({json.dumps(name)}, pretrained=True)"


def transformers_files(facts: dict[str, Any], preprocessing: Preprocessing) -> dict[str, dict]:
    """The JSON files, by name, that transformers reads.

    Args:
        facts: of the architecture.
        preprocessing: how photos are prepared.
    """
    return {
        "config.json": _transformers_config(facts),
        "preprocessor_config.json": _transformers_processor(preprocessing, facts["image_size"]),
    }


def transformers_opening(place: str, has_head: bool) -> str:
    """Python that opens a folder, or `hf:owner/name`, with transformers."""
    kind = "AutoModelForImageClassification" if has_head else "AutoModel"
    name = json.dumps(place.removeprefix("hf:"))
    return f"from transformers import {kind}\n\nmodel = {kind}.from_pretrained({name})"


def nearest_filter(record: Preprocessing) -> str:
    """The filter that comes nearest to the record's among those that both Pillow and torchvision have.

    Figures are mean grey levels of 255, on the photos of `photo_differences`. Bilinear without antialias: bicubic
    differs by 3.2, bilinear by 3.4, nearest by 3.7. Bilinear is taken, since it is exact where a photo grows, and
    bicubic differs by 25 there. Areas: bilinear differs by 3.8, bicubic by 3.9.
    """
    return "bilinear" if record.interpolation == "area" else record.interpolation


_USUAL: dict[str, Any] = {"norm": "layer", "proj_bias": True, "mlp_bias": True}  # of what neither config has a word for


def _check_said(software: str, facts: dict[str, Any], **usual: Any) -> None:
    """Raises for a model of another kind than the config that opens a folder can say."""
    wrong = [f"{name}={facts[name]!r}" for name, value in usual.items() if facts[name] != value]
    if wrong:
        raise CheckpointError(
            f"{software} opens a folder by its config, which has no word for a gated MLP, RMSNorm or missing biases.\n"
            f"Received: {', '.join(wrong)}. Write a .safetensors file instead of a folder."
        )


def _transformers_config(facts: dict[str, Any]) -> dict:
    _check_said("transformers", facts, **_USUAL)
    if facts["qkv_bias"] == "query_value":
        _check_said("transformers", facts, qkv_bias="all")
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


def _transformers_processor(record: Preprocessing, image_size: tuple[int, int]) -> dict:
    height, width = image_size
    said = {
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
    if record.resize == "crop":
        said["image_processor_type"] = "BitImageProcessor"
        said["size"] = {"shortest_edge": max(sides_to_cover(record, image_size))}  # so that both sides are covered
        said |= {"do_center_crop": True, "crop_size": {"height": height, "width": width}}
    return said


# Words of timm for LayerNorms that most models lack: our fields.
POOL_WORDS = {"token": "token", "gap": "avg", "map": "map", "none": ""}  # `global_pool` by our `pooling`
_BEHIND = "vit_base_patch16_rpn_224"  # of norms behind attention and MLP, for which no argument is
_BEIT3, _CLIP = "beit3_base_patch16_224", "vit_base_patch16_clip_224"  # with an epsilon of 1e-5
_TIMM_NORMS = {"pre_norm": "pre_norm", "scale_attn_norm": "attention_norm", "scale_mlp_norm": "mlp_norm"}


def _timm_config(facts: dict, record: Preprocessing) -> dict:
    _check_said("timm", facts, gated_mlp=False, **_USUAL)
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
        arguments |= {"pre_norm": facts["pre_norm"]} if name == _CLIP else {}
        arguments |= {"qkv_bias": facts["qkv_bias"] != "none"} if name == _BEHIND or facts["qkv_bias"] == "none" else {}
        arguments |= {"init_values": 1e-5} if facts["layer_scale"] == "both" else {}
        arguments |= {"reg_tokens": facts["registers"], "no_embed_class": True} if facts["registers"] else {}
        arguments |= {"pool_include_prefix": True} if facts["fields"].get("map_prefix") else {}
        arguments |= {} if facts["positions"] else {"pos_embed": "none"}
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
            "crop_pct": record.crop_fraction if record.resize == "crop" else 1.0,
            "crop_mode": "squash" if record.resize == "squash" else "center",
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
    is_larger = facts["layer_norm_epsilon"] == 1e-5  # which no argument tells
    if is_larger:
        names[None] = _BEIT3 if facts["attention_norm"] and facts["mlp_norm"] else _CLIP
    if facts["branch_norm"] == "behind":
        names = {None: _BEHIND}
    stages = facts["resnet_stages"]
    kinds = [stages is not None, facts["branch_norm"] == "behind", facts["distilled"], is_larger]
    if stages not in names or facts["root_channels"] not in (None, 64) or sum(kinds) > 1:
        raise CheckpointError(
            "timm opens a folder by the name of an architecture, and has none with this ResNet, or with two of a "
            "ResNet, norms behind the branches, a distillation token and an epsilon of 1e-5.\n"
            f"Received: stages {stages}, root of {facts['root_channels']} channels, distilled={facts['distilled']}, "
            f"branch_norm={facts['branch_norm']!r}, layer_norm_epsilon={facts['layer_norm_epsilon']}. Write a "
            ".safetensors file instead of a folder."
        )
    return "deit_base_distilled_patch16_224" if facts["distilled"] else names[stages]
