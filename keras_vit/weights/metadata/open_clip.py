"""What the `open_clip_config.json` of an OpenCLIP folder says of its image tower, OpenCLIP's own or one of timm."""

import dataclasses
from pathlib import Path
from typing import Any

from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.metadata.record import (
    Metadata,
    Reading,
    check_object,
    parse_size,
    size_fields,
    unsupported_error,
)
from keras_vit.weights.metadata.timm import read_timm

NAME = "open_clip_config.json"
# Of `vision_cfg`: what changes what the tower computes, and is not computed here.
_REFUSED = (
    *("attentional_pool", "qk_norm", "scaled_cosine_attn", "scale_heads"),
    *("scale_attn_inner", "scale_attn", "scale_fc"),
)
_POOLS = {"tok": "token", "avg": "gap", "none": "none"}
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
    found = _of_timm(vision, folder) if vision.get("timm_model_name") else _of_open_clip(model, vision, reading, place)
    head = vision.get("timm_proj") or "own"
    if head not in ("own", "none"):
        raise unsupported_error("projection", f"timm_proj={head!r}", place, "the head of the tower, or none")
    embedding = model.get("embed_dim") if head == "own" else None
    photos = reading.preprocessing(lambda: _preprocessing(config.get("preprocess_cfg"), vision))
    return Metadata(
        fields=found.fields,
        family=f"OpenCLIP's {vision.get('timm_model_name') or 'tower'!r:.80}",
        layouts=found.layouts,
        num_heads=found.num_heads,
        sizes=found.sizes | ({"classes": embedding} if type(embedding) is int else {}),
        image_size=reading.part("image_size", lambda: parse_size(vision.get("image_size"))),
        preprocessing=photos,
        remarks=(*reading.remarks, *found.remarks),
    )


def _of_timm(vision: dict, folder: Path) -> Metadata:
    pool = vision.get("timm_pool", "avg")
    found = read_timm({"architecture": vision["timm_model_name"], "model_args": {"global_pool": pool}}, folder)
    return dataclasses.replace(found, sizes={name: v for name, v in found.sizes.items() if name != "hidden_size"})


def _of_open_clip(model: dict, vision: dict, reading: Reading, place: Path) -> Metadata:
    """The tower of OpenCLIP's own class; what `vision_cfg` leaves out are its defaults."""
    for word in _REFUSED:
        if vision.get(word):
            raise unsupported_error("part", f"{word}={vision[word]!r}", place, "those of CLIP and CLIPA")
    if isinstance(vision.get("layers"), list):
        raise unsupported_error("tower", f"layers={vision['layers']}", place, "a Vision Transformer")
    pool, after = vision.get("pool_type", "tok"), bool(vision.get("final_ln_after_pool"))
    if pool not in _POOLS or after != bool(vision.get("no_ln_pre")) or (after and pool != "avg"):
        words = f"pool_type={pool!r}, final_ln_after_pool={after}, no_ln_pre={bool(vision.get('no_ln_pre'))}"
        raise unsupported_error("pooling", words, place, "CLIP's, or CLIPA's with all three")
    tanh = "_tanh" if (vision.get("act_kwargs") or {}).get("approximate") == "tanh" else ""
    fields = {"activation": "quick_gelu" if model.get("quick_gelu") else f"gelu{tanh}", "pooling": _POOLS[pool]}
    fields |= {"layer_norm_epsilon": (vision.get("norm_kwargs") or {}).get("eps", 1e-5)} if vision else {}
    sizes = size_fields(vision, place, width="hidden_size", layers="num_layers") if vision else {}
    heads = reading.part("heads", lambda: vision.get("width", 768) // vision.get("head_width", 64) or None)
    return Metadata(
        fields=reading.fields(fields),
        layouts=("open_clip_gap" if after else "open_clip",) if vision else (),
        num_heads=reading.count("heads", heads),
        sizes=sizes | {"layer_scale": "both" if vision.get("ls_init_value") is not None else "none"},
    )


def _preprocessing(config: Any, vision: dict) -> Preprocessing | None:
    """The record of `preprocess_cfg`; OpenCLIP's defaults are CLIP's, which its layout has too."""
    if not config:
        return None
    mode, filter_ = config.get("resize_mode", "shortest"), config.get("interpolation", "bicubic")
    if mode not in _RESIZES or filter_ not in _FILTERS:
        raise ValueError(
            "`resize_mode` and `interpolation` must be ones that a record can hold.\n"
            f"Received: resize_mode {mode}, interpolation {filter_}"
        )
    size: Any = parse_size(config.get("size", vision.get("image_size")))
    statistics: dict[str, Any] = {name: config[name] for name in ("mean", "std") if name in config}
    return Preprocessing(size, _RESIZES[mode], **statistics, interpolation=filter_, antialias=True)
