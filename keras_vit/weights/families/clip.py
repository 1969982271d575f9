"""The layouts of CLIP's and SigLIP's image towers and of Perception Encoder.

CLIP (arXiv:2103.00020), OpenCLIP (arXiv:2212.07143), SigLIP (arXiv:2303.15343): files of both towers are read for the
image's. The projection after CLIP's pooling is the head here, with a bias of zeros. Perception Encoder
(arXiv:2504.13181) has OpenCLIP's names. Core pools by attention after a last LayerNorm, Lang and Spatial have neither.
No tensor says its rotary positions. The authors' coordinates are those of the grid, timm's are scaled to the table's.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.config.position_tables import square_grid
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.families.eva import TIMM_EVA
from keras_vit.weights.families.layout import PLAIN_PARTS, Arrays, Layout, Makers, ModelType, Names, find_shape
from keras_vit.weights.families.renames import TORCH, Layers, NoUnitAxes, UnitAxes
from keras_vit.weights.metadata.record import CLIP_MEAN, CLIP_STD, classifies, rope_fields
from keras_vit.weights.read import CheckpointError

_PATCH_KERNEL, _CHANNELS = "embeddings.patch_embedding.weight", 3
_PARTS = {**PLAIN_PARTS, "patch_bias": (False,), "pre_norm": (True,)}
_RESHAPES = {"token": NoUnitAxes(2), "table": NoUnitAxes(1), "class_angles": UnitAxes(1, 1)}
_STYLE = dataclasses.replace(TORCH, reshapes={**TORCH.reshapes, **_RESHAPES})
CLIP_PHOTOS = Preprocessing(
    image_size=None,
    mean=CLIP_MEAN,
    std=CLIP_STD,
    interpolation="bicubic",
    antialias=True,
    resize="crop",
)


def _add_head_bias(arrays: Arrays, num_patches: int | None) -> Arrays:
    kernel = arrays.get("visual_projection.weight", arrays.get("proj"))
    if kernel is None or kernel.ndim != 2:
        return arrays
    name, axis = ("proj_bias", 1) if "proj" in arrays else ("visual_projection.bias", 0)
    return arrays | {name: np.zeros(kernel.shape[axis], kernel.dtype)}


def _drop_head_bias(makers: Makers) -> Makers:
    for name in ("visual_projection.bias", "proj_bias"):
        if name in makers and np.any(bias := makers[name]()):
            raise CheckpointError(
                "the projection of an image tower has no bias in this layout, so the head's must be zeros.\n"
                f"Received: {name} of shape {bias.shape}. Save in a layout of timm, or build without a head."
            )
    return {name: make for name, make in makers.items() if name not in ("visual_projection.bias", "proj_bias")}


def _strip_vision_model(names: Collection[str]) -> Callable[[str], str]:
    return lambda name: name.removeprefix("vision_model.").replace(".in_proj_", ".in_proj.")


def _written_names(names: Collection[str]) -> Callable[[str], str]:
    def spelled(name: str) -> str:
        name = name.replace(".in_proj.", ".in_proj_")
        return name if name.startswith(("visual_projection.", "classifier.")) else f"vision_model.{name}"

    return spelled


def _patches_have(axes: int) -> Callable[[Iterable[str]], bool]:
    """Whether the kernel of patches has so many axes: 4 of a convolution, 2 of a matrix, as NaFlex has it."""
    return lambda arrays: len(find_shape(arrays, _PATCH_KERNEL) or range(axes)) == axes


_EMBEDDINGS: Layers = {
    "position_embedding/table": "embeddings.position_embedding.weight",
    "patch_embedding/projection": "embeddings.patch_embedding",
    "encoder_norm": "post_layernorm",
}
_BLOCK: Layers = {
    "norm_1": "layer_norm1",
    **{f"attention/{part}": f"self_attn.{part[0]}_proj" for part in ("query", "key", "value")},
    "attention/out": "self_attn.out_proj",
    "norm_2": "layer_norm2",
    "mlp/dense_1": "mlp.fc1",
    "mlp/dense_2": "mlp.fc2",
}
_PREFIX = r"(vision_model\.)?"
_PATCHES = rf"{_PREFIX}embeddings\.patch_embedding\.weight"
_OTHERS = (r"text_model\..*", r"text_projection\..*", r"logit_(scale|bias)", rf"{_PREFIX}embeddings\.position_ids")

HF_CLIP = Layout(
    "huggingface_clip",
    "transformers",
    ".safetensors",
    _STYLE,
    requires=(_PATCHES, rf"{_PREFIX}pre_layrnorm\.weight"),
    ignores=_OTHERS,
    names={
        ("", ""): {
            "class_token/token": "embeddings.class_embedding",
            "pre_norm": "pre_layrnorm",
            "head": "visual_projection",
            **_EMBEDDINGS,
        },
        ("block_{block:02}/", "encoder.layers.{block}."): _BLOCK,
    },
    read_names=_strip_vision_model,
    written_names=_written_names,
    read_steps=(_add_head_bias,),
    written_steps=(_drop_head_bias,),
    parts=_PARTS,
    activation="quick_gelu",
    layer_norm_epsilon=1e-5,
    resize_method="bicubic",
    norms_tokens=False,  # CLIPVisionModel norms the class token alone
    preprocessing=CLIP_PHOTOS,
)
HF_CLIP_CLASSIFIER = dataclasses.replace(  # its head reads the mean of the patches, before the last LayerNorm
    HF_CLIP,
    name="huggingface_clip_classifier",
    requires=(*HF_CLIP.requires, r"classifier\.weight"),
    names={**HF_CLIP.names, ("", ""): {**HF_CLIP.names["", ""], "head": "classifier"}},
    read_steps=(),
    written_steps=(),
    classifier={"pooling": "gap", "final_norm": "none"},
)
HF_MLCD = dataclasses.replace(
    HF_CLIP,
    name="huggingface_mlcd",
    requires=(*HF_CLIP.requires, rf"{_PREFIX}class_pos_emb"),
    model_types=("mlcd_vision_model", "mlcd"),
    names={
        **HF_CLIP.names,
        ("", ""): {
            "class_token/token": "embeddings.class_embedding",
            "rotary_positions/class_angles": "class_pos_emb",
            "patch_embedding/projection": "embeddings.patch_embedding",
            "pre_norm": "pre_layrnorm",
            "encoder_norm": "post_layernorm",
        },
    },
    read_steps=(),
    written_steps=(),
    defaults=lambda tensors: {
        **{"rotary": "axial", "rotary_theta": 10000.0, "rotary_layout": "half", "rotary_axes": "yx"},
        **{"rotary_coordinates": "grid", "rotary_class_angles": True},
    },
    parts={**_PARTS, "position_table": (False,)},
    activation="gelu",
    position_embedding="none",
)
HF_SIGLIP = Layout(
    "huggingface_siglip",
    "transformers",
    ".safetensors",
    _STYLE,
    requires=(_PATCHES, rf"{_PREFIX}post_layernorm\.weight"),
    forbids=(rf"{_PREFIX}embeddings\.class_embedding", rf"{_PREFIX}pre_layrnorm\.weight"),
    fits=_patches_have(4),
    ignores=_OTHERS,
    names={
        ("", ""): {**_EMBEDDINGS, "head": "classifier"},
        ("block_{block:02}/", "encoder.layers.{block}."): _BLOCK,
        ("pooling/", "head."): {
            "probe": "probe",
            ("attention/query", "attention/key", "attention/value"): "attention.in_proj",
            "attention/out": "attention.out_proj",
            "norm": "layernorm",
            "mlp/dense_1": "mlp.fc1",
            "mlp/dense_2": "mlp.fc2",
        },
    },
    read_names=_strip_vision_model,
    written_names=_written_names,
    parts={**PLAIN_PARTS, "class_token": (False,), "attention_pooling": (True, False)},
    activation="gelu_tanh",
    layer_norm_epsilon=1e-6,
    resize_method="bicubic",
    classifier={"pooling": "gap"},
)


def _as_convolution(arrays: Arrays, num_patches: int | None) -> Arrays:
    """The matrix of patches, which are (row, column, channel) in a row, with the shape of a convolution's kernel."""
    for name, kernel in arrays.items():
        if name.endswith(_PATCH_KERNEL) and kernel.ndim == 2:
            side = math.isqrt(kernel.shape[1] // _CHANNELS)
            if side * side * _CHANNELS == kernel.shape[1]:
                return arrays | {name: kernel.reshape(-1, side, side, _CHANNELS).transpose(0, 3, 1, 2)}
    return arrays


def _as_matrix(makers: Makers) -> Makers:
    if _PATCH_KERNEL not in makers:
        return makers
    kernel = makers[_PATCH_KERNEL]  # (D, C, P, P)
    return makers | {_PATCH_KERNEL: lambda: kernel().transpose(0, 2, 3, 1).reshape(len(kernel()), -1)}


HF_SIGLIP2 = dataclasses.replace(  # NaFlex; SigLIP 2 of one size has the layout of SigLIP
    HF_SIGLIP,
    name="huggingface_siglip2",
    model_types=("siglip2_vision_model", "siglip2"),
    fits=_patches_have(2),
    requires=(_PATCHES, rf"{_PREFIX}encoder\.layers\.0\.layer_norm1\.weight"),
    forbids=(rf"{_PREFIX}embeddings\.class_embedding",),
    read_steps=(_as_convolution,),
    written_steps=(_as_matrix,),
    resize_method="bilinear_antialias",
    preprocessing=Preprocessing(image_size=None, antialias=True),
)
OPEN_CLIP = Layout(
    "open_clip",
    "OpenCLIP",
    ".safetensors",
    _STYLE,
    # Perception Encoder has the same names, with attention pooling or without a last norm, and rotary positions.
    requires=(
        *(r"conv1\.weight", r"transformer\.resblocks\.0\.ln_1\.weight", "class_embedding"),
        *(r"ln_pre\.weight", r"ln_post\.weight"),
    ),
    forbids=(r"attn_pool\..*",),
    prefixes=("visual.", ""),
    prefix="visual.",
    names={
        ("", ""): {
            "class_token/token": "class_embedding",
            "position_embedding/table": "positional_embedding",
            "patch_embedding/projection": "conv1",
            "pre_norm": "ln_pre",
            "encoder_norm": "ln_post",
            "head/kernel": "proj",
            "head/bias": "proj_bias",
        },
        ("block_{block:02}/", "transformer.resblocks.{block}."): {
            "norm_1": "ln_1",
            ("attention/query", "attention/key", "attention/value"): "attn.in_proj",
            "attention/out": "attn.out_proj",
            "norm_2": "ln_2",
            "mlp/dense_1": "mlp.c_fc",
            "mlp/dense_2": "mlp.c_proj",
            "layer_scale_1/gamma": "ls_1.gamma",
            "layer_scale_2/gamma": "ls_2.gamma",
        },
    },
    read_names=lambda names: lambda name: name.replace(".in_proj_", ".in_proj."),
    written_names=lambda names: lambda name: name.replace(".in_proj.", ".in_proj_"),
    read_steps=(_add_head_bias,),
    written_steps=(_drop_head_bias,),
    parts={**_PARTS, "layer_scale": ("both", "none")},
    activation="gelu",
    layer_norm_epsilon=1e-5,
    resize_method="bicubic_antialias",
    preprocessing=CLIP_PHOTOS,
)
_GAP_NORM: Layers = {"encoder_norm": "pooled_norm"}
OPEN_CLIP_GAP = dataclasses.replace(  # of CLIPA (arXiv:2305.07017): the mean of the patches, then the norm
    OPEN_CLIP,
    name="open_clip_gap",
    requires=(*OPEN_CLIP.requires[:3], OPEN_CLIP.requires[4]),
    forbids=(r"ln_pre\..*", *OPEN_CLIP.forbids),
    names={
        prefixes: {_GAP_NORM.get(path, path): name for path, name in layers.items() if path != "pre_norm"}
        for prefixes, layers in OPEN_CLIP.names.items()
    },
    parts={**OPEN_CLIP.parts, "pre_norm": (False,), "final_norm": ("pooled",)},
)


def _read_projection(config: dict[str, Any], place: Path) -> dict[str, Any]:
    size = config.get("projection_dim")
    return {"projection_dim": size} if isinstance(size, int) else {}


def _read_pooling(config: dict[str, Any], place: Path) -> dict[str, Any]:
    return {} if classifies(config) else {"attention_pooling": config.get("vision_use_head", True) is True}


_CLIP_TYPE = ModelType("CLIP", (HF_CLIP.name, HF_CLIP_CLASSIFIER.name), has_one_size=True)
_METACLIP_2 = dataclasses.replace(_CLIP_TYPE, class_name="MetaClip2")
_SIGLIP_TYPE = ModelType("Siglip", (HF_SIGLIP.name,), has_one_size=True)
_SIGLIP2_TYPE = ModelType("Siglip2", (HF_SIGLIP2.name, HF_SIGLIP.name))
_MLCD = ModelType(
    "MLCD",
    (HF_MLCD.name,),
    read=functools.partial(rope_fields, kind="axial", theta=10000.0, by_parameters=True),
    num_heads=16,
    width=1664,
)
TYPES = {
    "clip": _CLIP_TYPE,
    "clip_vision_model": dataclasses.replace(_CLIP_TYPE, read=_read_projection),
    **dict.fromkeys(("metaclip_2", "metaclip_2_vision_model"), _METACLIP_2),
    "siglip": _SIGLIP_TYPE,
    "siglip_vision_model": dataclasses.replace(_SIGLIP_TYPE, read=_read_pooling),
    "siglip2": _SIGLIP2_TYPE,
    "siglip2_vision_model": dataclasses.replace(_SIGLIP2_TYPE, read=_read_pooling),
    **dict.fromkeys(("mlcd", "mlcd_vision_model"), _MLCD),
}
_PE_PHOTOS = Preprocessing(image_size=None, interpolation="bilinear", antialias=True, resize="squash")
_PE_PARTS = {**_PARTS, "layer_scale": ("both", "none"), "class_token": (True, False)}


def _pe_rotary(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The rotary positions and the pooling of the authors' code, which no tensor says."""
    has_class = "class_token/token" in tensors
    return {
        "rotary": "axial",
        "rotary_theta": 10000.0,
        "rotary_layout": "interleaved",
        "rotary_axes": "xy",
        "rotary_coordinates": "grid",
        "rotary_offset": 1.0 if has_class else 0.0,
        **({"map_heads": 8, "pool_prefix_tokens": has_class} if "pooling/probe" in tensors else {"pooling": "gap"}),
    }


def _timm_pe_rotary(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The same of timm, which scales coordinates to the grid that the table is of."""
    prefix, table = int("class_token/token" in tensors), tensors.get("position_embedding/table", np.empty((1, 0, 0)))
    grid = square_grid(table.shape[-2] - prefix)
    return _pe_rotary(tensors) | {"rotary_reference": None if grid is None else grid[0]}


def _drop_end(row: Layout) -> Names:
    """The names of a row without those of the last LayerNorm and the pooling."""
    names = {prefixes: layers for prefixes, layers in row.names.items() if prefixes[0] != "pooling/"}
    return names | {("", ""): {path: name for path, name in names["", ""].items() if path != "encoder_norm"}}


PE_CORE = dataclasses.replace(
    OPEN_CLIP,
    name="pe_core",
    software="the authors' Perception Encoder",
    requires=(
        *(r"conv1\.weight", r"transformer\.resblocks\.0\.ln_1\.weight", r"ln_pre\.weight", r"ln_post\.weight"),
        *(r"attn_pool\.probe", r"attn_pool\.attn\.in_proj_weight"),
    ),
    forbids=(),
    prefix="",
    names={
        **OPEN_CLIP.names,
        ("pooling/", "attn_pool."): {
            "probe": "probe",
            ("attention/query", "attention/key", "attention/value"): "attn.in_proj",
            "attention/out": "attn.out_proj",
            "norm": "layernorm",
            "mlp/dense_1": "mlp.c_fc",
            "mlp/dense_2": "mlp.c_proj",
        },
    },
    defaults=_pe_rotary,
    parts=_PE_PARTS,
    resize_method="bilinear",
    preprocessing=_PE_PHOTOS,
)
PE = dataclasses.replace(
    PE_CORE,
    name="pe",
    requires=PE_CORE.requires[:3],
    forbids=(r"ln_post\.weight", r"attn_pool\..*"),
    parts={**_PE_PARTS, "final_norm": ("none",)},
    names=_drop_end(PE_CORE),
)
TIMM_PE_CORE = dataclasses.replace(
    TIMM_EVA,
    name="timm_pe_core",
    requires=(r"patch_embed\.proj\.weight", r"norm_pre\.weight", r"norm\.weight", r"attn_pool\.latent"),
    forbids=(r"blocks\.0\.attn\.(q_bias|q_proj\.weight)",),
    defaults=_timm_pe_rotary,
    parts=_PE_PARTS,
    layer_norm_epsilon=1e-5,
    preprocessing=_PE_PHOTOS,
)
TIMM_PE = dataclasses.replace(
    TIMM_PE_CORE,
    name="timm_pe",
    requires=TIMM_PE_CORE.requires[:2],
    forbids=(*TIMM_PE_CORE.forbids, r"norm\.weight", r"attn_pool\..*"),
    parts=PE.parts,
    names=_drop_end(TIMM_PE_CORE),
)
