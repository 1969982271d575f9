"""The JSON of a folder with both towers, which OpenCLIP and transformers build them from."""

from collections.abc import Mapping
from typing import Any

from keras_vit.annotations import Pair
from keras_vit.config.text import TextConfig
from keras_vit.config.vit import ViTConfig
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.metadata.processors import transformers_processor
from keras_vit.weights.read import CheckpointError

_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "quick_gelu": "quick_gelu"}
_SIZES = ("patch_size", "hidden_size", "num_layers", "num_heads", "mlp_dim", "activation", "layer_norm_epsilon")
_TEXT_SIZES = ("vocabulary_size", "max_length", *_SIZES[1:])
_OF_TRAINING = (
    *("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate", "patch_dropout_rate"),
    *("rematerialize", "last_block_outputs"),
)
# Fields of the towers of transformers' classes, without sizes: of images, and of texts.
_IMAGES: Mapping[str, Mapping[str, Any]] = {
    "clip": {"patch_bias": False, "class_token": True, "pre_norm": True},
    "siglip": {"class_token": False, "pooling": "map"},
}
_TEXTS: Mapping[str, Mapping[str, Any]] = {
    "clip": {"causal": True, "projection_bias": False},
    "siglip": {"causal": False, "pooling": "last", "projection_bias": True},
}
_ARGMAX_END, _METACLIP_2_END = 2, 2  # `eos_token_id`: of transformers' CLIP the largest id ends a text then


def transformers_kind(image: ViTConfig, text: TextConfig) -> str:
    """`"clip"`, `"metaclip_2"` or `"siglip"`, the `model_type` of transformers for these towers.

    Raises:
        CheckpointError: if none of these classes computes what they compute.
    """
    for kind in _IMAGES:
        same = {name: getattr(image, name) for name in (*_SIZES, *_OF_TRAINING)}
        words = {name: getattr(text, name) for name in (*_TEXT_SIZES, "projection_size", "pad_id")}
        ends = {"pooling": text.pooling, "end_id": text.end_id} if kind == "clip" else {"end_id": text.end_id}
        fits = image == ViTConfig(**same, **_IMAGES[kind]) and text == TextConfig(**words, **{**_TEXTS[kind], **ends})
        if fits and text.projection_size and {image.activation, text.activation} <= _ACTIVATIONS.keys():
            if kind == "siglip" or text.pooling == "argmax":
                return kind
            if text.pooling == "end":
                return "metaclip_2" if text.end_id == _METACLIP_2_END else "clip"
    raise CheckpointError(
        "transformers must have a class of both towers, and it has CLIP, MetaCLIP 2 and SigLIP here.\n"
        f"Received: {image} and {text}. Save them for OpenCLIP, or each tower by itself."
    )


def transformers_towers(
    image: ViTConfig,
    text: TextConfig,
    sizes: tuple[Pair, int],
    record: Preprocessing,
    special: Mapping[str, int | None],
    is_naflex: bool = False,
) -> dict[str, dict]:
    """The JSON files of transformers, by name.

    Args:
        image: of the image tower.
        text: of the text tower.
        sizes: `(H, W)` of the images, and E.
        record: how photos are prepared.
        special: `bos_token_id`, `eos_token_id` and `pad_token_id` of the tokenizer.
        is_naflex: whether towers of SigLIP are for SigLIP 2's class, which takes photos of any aspect.

    Raises:
        CheckpointError: as `transformers_kind`, and for images that are not square.
    """
    kind, ((height, width), size) = transformers_kind(image, text), sizes
    is_siglip = kind == "siglip"
    kind = "siglip2" if is_siglip and is_naflex else kind
    if height != width:
        raise CheckpointError(f"transformers' {kind} takes square images.\nReceived: {height} x {width}.")
    name = {"clip": "CLIP", "metaclip_2": "MetaClip2", "siglip": "Siglip", "siglip2": "Siglip2"}[kind]
    ends = dict(special)
    if not is_siglip:
        ends["eos_token_id"] = _ARGMAX_END if text.pooling == "argmax" else text.end_id
    table = {"image_size": height} if kind != "siglip2" else {"num_patches": (height // image.patch_size) ** 2}
    towers = {
        "vision_config": _tower(image) | {**table, "patch_size": image.patch_size, "num_channels": 3},
        "text_config": _tower(text)
        | {"vocab_size": text.vocabulary_size, "max_position_embeddings": text.max_length}
        | ends,
    }
    for part, config in towers.items():
        config["model_type"] = f"{kind}_{part.partition('_')[0]}_model"
        config["projection_size" if is_siglip else "projection_dim"] = size
    if is_siglip:
        del towers["vision_config"]["projection_size"]
    config = {"model_type": kind, "architectures": [f"{name}Model"], **towers}
    photos = transformers_processor(record, (height, width))
    plain = photos["image_processor_type"] == "ViTImageProcessor"
    if kind == "siglip2":
        photos["image_processor_type"] = "Siglip2ImageProcessor"
        photos |= {"patch_size": image.patch_size, "max_num_patches": table["num_patches"], "do_resize": True}
        del photos["size"]
    elif is_siglip and plain:
        photos["image_processor_type"] = "SiglipImageProcessor"
    elif photos["image_processor_type"] != "DeiTImageProcessor":
        photos |= {"image_processor_type": "CLIPImageProcessor", "do_center_crop": not plain, "do_convert_rgb": True}
    photos["processor_class"] = f"{name}Processor" if is_siglip else "CLIPProcessor"
    return {
        "config.json": config if is_siglip else config | {"projection_dim": size},
        "preprocessor_config.json": photos,
    }


def _tower(config: ViTConfig | TextConfig) -> dict[str, Any]:
    return {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": _ACTIVATIONS[config.activation],
        "layer_norm_eps": config.layer_norm_epsilon,
    }


def is_usual_clip(image: ViTConfig, text: TextConfig) -> bool:
    """Whether both towers compute as OpenCLIP's class does by its defaults, but for the GELU."""
    try:
        is_clip = transformers_kind(image, text) == "clip" and text.pooling == "argmax"
    except CheckpointError:
        return False
    is_known = image.activation == text.activation and image.activation in ("gelu", "quick_gelu")
    return is_clip and is_known and image.layer_norm_epsilon == text.layer_norm_epsilon == 1e-5


def open_clip_config(image: ViTConfig, text: TextConfig, sizes: tuple[Pair, int], record: Preprocessing) -> dict:
    """What OpenCLIP needs to build both towers; arguments as of `transformers_towers`."""
    (height, width), size = sizes
    photos = {"mean": list(record.mean), "std": list(record.std), "interpolation": record.interpolation}
    return {
        "model_cfg": {
            "embed_dim": size,
            "quick_gelu": image.activation == "quick_gelu",
            "vision_cfg": {
                "image_size": height if height == width else [height, width],
                "layers": image.num_layers,
                "width": image.hidden_size,
                "head_width": image.hidden_size // image.num_heads,
                "patch_size": image.patch_size,
                "mlp_ratio": image.mlp_dim / image.hidden_size,
            },
            "text_cfg": {
                "context_length": text.max_length,
                "vocab_size": text.vocabulary_size,
                "width": text.hidden_size,
                "heads": text.num_heads,
                "layers": text.num_layers,
                "mlp_ratio": text.mlp_dim / text.hidden_size,
            },
        },
        "preprocess_cfg": photos,
    }
