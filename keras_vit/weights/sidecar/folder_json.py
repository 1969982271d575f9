"""The JSON beside `model.safetensors` that lets timm or transformers open a folder of ours.

Also what their image processors do otherwise than a `Preprocessing` record. Figures are grey levels of 255 between
theirs and ours, measured at 224 x 224 on parts of scikit-learn's two photos: landscape, portrait and square, of
120 x 180 to 854 x 1280 pixels. Both processors resize by Pillow's filters.
"""

from typing import Any

from keras_vit.images.preprocessing import Preprocessing
from keras_vit.images.resizing import sides_to_cover
from keras_vit.weights.reader import CheckpointError
from keras_vit.weights.sidecar import PIL_FILTERS

DIFFERENCES_FILE = "PREPROCESSING.md"


def folder_of(dialect: str, facts: dict, preprocessing: Preprocessing) -> dict[str, dict]:
    """The JSON files, by name, that let timm or transformers open a folder with `model.safetensors`.

    Args:
        dialect: `"timm"` or `"huggingface"`.
        facts: the architecture: `patch_size`, `hidden_size`, `num_layers`, `num_heads`, `mlp_dim`,
            `image_size` (H, W), `channels`, `classes`, `pooling`, `class_token`, `distilled`, `positions`,
            `activation`, `layer_norm_epsilon`, `resnet_stages`, `root_channels`; `labels`, a name a class, or `None`.
        preprocessing: the `Preprocessing` record.

    Raises:
        CheckpointError: for a hybrid that timm has no architecture for.
    """
    if dialect == "timm":
        return {"config.json": _timm_config(facts, preprocessing)}
    return {
        "config.json": _transformers_config(facts),
        "preprocessor_config.json": _transformers_processor(preprocessing, facts["image_size"]),
    }


def nearest_filter(record: Preprocessing) -> str:
    """The filter that comes nearest among those that Pillow and torchvision have, which are the processors' two ways.

    In the mean: for bilinear without antialias bicubic 3.2, bilinear 3.4 and nearest 3.7; but bilinear is exact where a
    photo grows, and bicubic is off by 25 there. For bicubic without antialias likewise. For areas bilinear 3.8, bicubic
    3.9. Hamming's window, with 2.7 for the first, is unknown to torchvision.
    """
    return "bilinear" if record.interpolation == "area" else record.interpolation


def differences(dialect: str, record: Preprocessing, image_size: Any) -> tuple[str, ...]:
    """A line for each thing that a folder's processor does otherwise than the record; none where both agree within 2.

    Args:
        dialect: `"timm"` or `"huggingface"`.
        record: a `Preprocessing`.
        image_size: `(H, W)` of the model.
    """
    if record.resize == "none" or record.image_size is None:
        resizes = dialect == "timm" or record.resize != "none"
        return (f"It resizes to {image_size}, this model takes images as they are.",) if resizes else ()
    crop = record.resize == "crop"
    lines = []
    if record.interpolation == "area":
        lines.append(
            "It weights pixels by a triangle, this model averages areas: 4 grey levels in the mean, up to 124."
        )
    elif not record.antialias:
        lines.append(
            "It averages all pixels where a photo shrinks, this model does not (`antialias=False`): 3 to 5 grey levels "
            "in the mean, up to 136, on photos larger than the model takes. On others they agree."
        )
    if crop and record.rounding != {"timm": "timm", "huggingface": "transformers"}[dialect]:
        lines.append(
            f"It rounds lengths by its own rules, this model by those of {record.rounding}: photos of some sizes are "
            "shifted by a pixel, which is 6 to 11 grey levels in the mean, up to 179. On others they agree."
        )
    if crop and dialect == "huggingface" and image_size[0] != image_size[1]:
        lines.append(
            "It knows one size for the shorter side of a photo, whatever its aspect. Where a rectangle needs less, it "
            "cuts out a smaller part: 11 to 31 grey levels in the mean, up to 249. On square photos they agree."
        )
    return tuple(lines)


def differences_text(software: str, lines: tuple[str, ...]) -> str:
    """The file for those who open the folder."""
    return (
        f"# Preprocessing\n\nThe image processor of {software} cannot do all that these weights were given by "
        "`keras_vit`. Where photos must be prepared exactly so, prepare them with `model.preprocessing`.\n\n"
        + "".join(f"- {line}\n" for line in lines)
    )


def _transformers_config(facts: dict) -> dict:
    kind = "DeiT" if facts["distilled"] else "ViT"
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
        "hidden_act": "gelu" if facts["activation"] == "gelu" else "gelu_pytorch_tanh",
        "layer_norm_eps": facts["layer_norm_epsilon"],
        "image_size": height if height == width else [height, width],
        "patch_size": facts["patch_size"],
        "num_channels": facts["channels"],
        "qkv_bias": True,
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


def _timm_config(facts: dict, record: Preprocessing) -> dict:
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
        pool = {"token": "token", "gap": "avg", "map": "map", "none": ""}[facts["pooling"]]
        arguments |= {"global_pool": pool, "class_token": facts["class_token"], "fc_norm": False}
        arguments |= {} if facts["positions"] else {"pos_embed": "none"}
    return {
        "architecture": name,
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


def _timm_architecture(facts: dict) -> str:
    names: dict[tuple[int, ...] | None, str] = {
        None: "vit_base_patch16_224",
        (): "vit_tiny_r_s16_p8_224",
        (2, 2, 2, 2): "vit_small_r26_s32_224",
    }
    names |= {(3, 4, 9): "vit_base_r50_s16_224", (3, 4, 6, 3): "vit_large_r50_s32_224"}
    stages = facts["resnet_stages"]
    if stages not in names or facts["root_channels"] not in (None, 64) or (stages is not None and facts["distilled"]):
        raise CheckpointError(
            "timm opens a folder by the name of an architecture, and has none with this ResNet.\n"
            f"Received: stages {stages}, root of {facts['root_channels']} channels, distilled={facts['distilled']}. "
            "Write a .safetensors file instead of a folder."
        )
    return "deit_base_distilled_patch16_224" if facts["distilled"] else names[stages]
