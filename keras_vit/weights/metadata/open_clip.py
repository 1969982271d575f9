"""What the `open_clip_config.json` of an OpenCLIP folder says of its image tower, OpenCLIP's own or one of timm."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_vit.annotations import FilePath
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.metadata.record import (
    CLIP_MEAN,
    CLIP_STD,
    Metadata,
    Reading,
    check_channels,
    check_object,
    parse_epsilon,
    parse_size,
    scaled_width,
    size_fields,
    unsupported_error,
)
from keras_vit.weights.metadata.timm import read_timm
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.registry import config_of_timm

NAME = "open_clip_config.json"
FAMILY = "OpenCLIP's"  # how the name of a tower's family begins
# Of `vision_cfg`: what a silent file has by OpenCLIP's `CLIPVisionCfg`.
_USUAL: dict[str, Any] = {"layers": 12, "width": 768, "head_width": 64, "mlp_ratio": 4.0, "patch_size": 16}
_IMAGE_SIZE = 224
# What changes what the tower computes, and is not computed here.
_REFUSED = (
    *("attentional_pool", "qk_norm", "scaled_cosine_attn", "scale_heads"),
    *("scale_attn_inner", "scale_attn", "scale_fc"),
)
_KNOWN = (
    *(*_USUAL, *_REFUSED, "image_size", "ls_init_value", "no_ln_pre", "final_ln_after_pool", "pool_type"),
    *("act_kwargs", "norm_kwargs", "timm_model_name", "timm_pool", "timm_proj"),
    # What tensors show, or what changes nothing at inference.
    *("pos_embed_type", "block_type", "patch_dropout", "output_tokens", "attn_pooler_queries", "attn_pooler_heads"),
    *("timm_model_pretrained", "timm_proj_bias", "timm_drop", "timm_drop_path"),
)
_POOLS = {"tok": "token", "avg": "gap", "none": "none"}
_GELUS = {"none": "gelu", "tanh": "gelu_tanh"}  # by `approximate` of torch's GELU
_RESIZES = {"shortest": "crop", "squash": "squash"}  # by `resize_mode`
_FILTERS = ("bicubic", "bilinear")


def read_open_clip(config: dict, folder: Path) -> Metadata:
    """The metadata of the image tower.

    Raises:
        CheckpointError: for a tower that is not computed here.
    """
    reading, place = Reading(NAME), folder / NAME
    model = reading.part("model_cfg", lambda: check_object(config.get("model_cfg")), empty={})
    vision = reading.part("vision_cfg", lambda: check_object(model.get("vision_cfg")), empty={})
    if unknown := [word for word in vision if word not in _KNOWN]:
        raise CheckpointError(
            "`vision_cfg` must have words of OpenCLIP's CLIPVisionCfg that are computed here.\n"
            f"Received: {unknown[0]}={vision[unknown[0]]!r:.60} in {place}. If OpenCLIP opens the folder without it, "
            "take it out."
        )
    of_timm = bool(vision.get("timm_model_name"))
    found = _of_timm(vision, folder) if of_timm else _of_open_clip(model, vision, reading, place)
    head = vision.get("timm_proj", "linear") if of_timm else ""
    if head not in (None, "", "none"):
        raise unsupported_error("projection", f"timm_proj={head!r}", place, "the head of the tower, or none")
    embedding = None if head == "none" else model.get("embed_dim")
    photos = reading.preprocessing(lambda: _preprocessing(config.get("preprocess_cfg"), vision))
    return Metadata(
        fields=found.fields,
        family=f"{FAMILY} {vision.get('timm_model_name') or 'tower'!r:.80}",
        layouts=found.layouts,
        num_heads=found.num_heads,
        sizes=found.sizes | ({"classes": embedding} if type(embedding) is int else {}),
        image_size=reading.part("image_size", lambda: parse_size(vision.get("image_size"))),
        preprocessing=photos,
        remarks=(*reading.remarks, *found.remarks),
    )


def _of_timm(vision: dict, folder: Path) -> Metadata:
    """timm's tower, which OpenCLIP makes by its name, with no other argument than the pooling."""
    name = str(vision["timm_model_name"]).partition(".")[0]  # a tag names weights
    arguments = {"global_pool": vision.get("timm_pool", "avg")}
    found, known = read_timm({"architecture": name, "model_args": arguments}, folder, NAME), config_of_timm(name)
    return found if known is None else dataclasses.replace(found, sizes=found.sizes | {"mlp_dim": known.mlp_dim})


def _of_open_clip(model: dict, given: dict, reading: Reading, place: Path) -> Metadata:
    """The tower of OpenCLIP's own class."""
    if not given:
        return Metadata()
    vision = _USUAL | given
    for word in _REFUSED:
        if vision.get(word):
            raise unsupported_error("part", f"{word}={vision[word]!r}", place, "those of CLIP and CLIPA")
    if isinstance(vision["layers"], list):
        raise unsupported_error("tower", f"layers={vision['layers']}", place, "a Vision Transformer")
    pool, after = vision.get("pool_type", "tok"), bool(vision.get("final_ln_after_pool"))
    if pool not in _POOLS or after != bool(vision.get("no_ln_pre")) or (after and pool != "avg"):
        words = f"pool_type={pool!r}, final_ln_after_pool={after}, no_ln_pre={bool(vision.get('no_ln_pre'))}"
        raise unsupported_error("pooling", words, place, "CLIP's, or CLIPA's with all three")
    heads = reading.part("heads", lambda: vision["width"] // vision["head_width"] or None)
    sizes = size_fields(vision, place, width="hidden_size", layers="num_layers")
    return Metadata(
        fields=reading.fields(open_clip_functions(model, vision, place) | {"pooling": _POOLS[pool]}),
        layouts=("open_clip_gap" if after else "open_clip",),
        num_heads=reading.count("heads", heads),
        sizes=sizes
        | scaled_width(vision, "width", rounded=int)
        | {"layer_scale": "both" if vision.get("ls_init_value") is not None else "none"},
    )


def open_clip_functions(model: Mapping[str, Any], tower: Mapping[str, Any], place: FilePath) -> dict[str, Any]:
    """The activation and the epsilon, by what OpenCLIP passes on to QuickGELU, or torch's GELU, and LayerNorm.

    Args:
        model: `model_cfg`.
        tower: its `vision_cfg` or `text_cfg`.
        place: of the file, for the message.

    Raises:
        CheckpointError: for a function that is not computed here.
    """
    quick, of_gelu, of_norm = model.get("quick_gelu"), tower.get("act_kwargs") or {}, tower.get("norm_kwargs") or {}
    is_known = isinstance(of_gelu, dict) and {*of_gelu} <= ({*()} if quick else {"approximate"})
    if not is_known or of_gelu.get("approximate", "none") not in _GELUS:
        words = f"act_kwargs={of_gelu!r}, quick_gelu={bool(quick)}"
        raise unsupported_error("activation", words, place, "exact or tanh GELU, or QuickGELU, which takes no words")
    if not isinstance(of_norm, dict) or {*of_norm} - {"eps"}:
        raise unsupported_error("norm", f"norm_kwargs={of_norm!r}", place, "LayerNorm with another epsilon")
    activation = "quick_gelu" if quick else _GELUS[of_gelu.get("approximate", "none")]
    return {"activation": activation, "layer_norm_epsilon": parse_epsilon(of_norm.get("eps", 1e-5), place)}


def _preprocessing(config: Any, vision: dict) -> Preprocessing | None:
    """The record of `preprocess_cfg`; where that is silent, OpenCLIP takes CLIP's, and always the tower's size."""
    if not config and not vision:
        return None
    given = {word: value for word, value in check_object(config or {}).items() if value is not None}
    mode, filter_ = given.get("resize_mode", "shortest"), given.get("interpolation", "bicubic")
    if mode not in _RESIZES or filter_ not in _FILTERS:
        raise ValueError(
            "`resize_mode` and `interpolation` must be ones that a record can hold.\n"
            f"Received: resize_mode {mode}, interpolation {filter_}"
        )
    size: Any = parse_size(vision.get("image_size", _IMAGE_SIZE))
    mean, std = given.get("mean", CLIP_MEAN), given.get("std", CLIP_STD)
    check_channels(3, mean=mean, std=std)
    return Preprocessing(size, _RESIZES[mode], mean, std, interpolation=filter_, antialias=True)
