"""The layout of C-RADIO (arXiv:2412.07679, arXiv:2601.17237): transformers' RadioModel, which is the authors' own.

Class tokens and registers stand in one array without positions. Which class tokens are the summary, and how the model
normalises pixels, are arrays of their own. Class tokens after the last one of the summary are registers here.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.families.layout import ANY, PLAIN_PARTS, SCALED, Arrays, Layout, Makers, ModelType
from keras_vit.weights.families.renames import TORCH, Layers
from keras_vit.weights.read import CheckpointError

_MEAN, _STD, _SUMMARY = "input_conditioner.norm_mean", "input_conditioner.norm_std", "summary_idxs"
_TOKENS, _REGISTERS = "model.patch_generator.cls_token.token", "model.patch_generator.cls_token.registers"
_TABLE, _PATCHES = "model.patch_generator.pos_embed", "model.patch_generator.embedder"
_KERNEL = f"{_PATCHES}.weight"
_SCALES: Layers = {f"layer_scale_{half}/gamma": f"layer_scale{half}.lambda1" for half in (1, 2)}


def _read_metadata(arrays: Arrays) -> dict[str, Any]:
    """Fields of `ViTConfig` from the arrays that are no weights."""
    if len(arrays) < 3:
        return {}  # which is refused with the weights
    mean, std, places = (np.ravel(arrays[name]).tolist() for name in (_MEAN, _STD, _SUMMARY))
    if min(std) <= 0 or len(mean) != len(std):
        raise CheckpointError(f"a deviation of pixels must be above zero.\nReceived: {_MEAN} {mean}, {_STD} {std}.")
    every = places == list(range(len(places)))
    return {"pixel_statistics": (tuple(mean), tuple(std)), "class_token_indices": None if every else tuple(places)}


def _write_metadata(fields: Mapping[str, Any]) -> Arrays:
    """Those arrays, of the fields of a model."""
    if fields.get("pixel_statistics") is None:
        raise CheckpointError(
            "in this layout the model normalises pixels by itself.\nReceived: pixel_statistics=None. Build with "
            "`pixel_statistics=(mean, std)`, or save in another layout."
        )
    mean, std = (np.array(each, "float32").reshape(-1, 1, 1) for each in fields["pixel_statistics"])
    places = fields.get("class_token_indices") or range(fields["class_tokens"])
    return {_MEAN: mean, _STD: std, _SUMMARY: np.array(list(places), "int64")}


def _split_arrays(arrays: Arrays, num_patches: int | None) -> Arrays:
    """The class tokens with rows of zeros in the table, the registers, and the kernel as a convolution's."""
    if missing := [name for name in (_MEAN, _STD, _SUMMARY, _TOKENS, _TABLE, _KERNEL) if name not in arrays]:
        raise CheckpointError(
            "a file of C-RADIO says how pixels are normalised and which tokens are its summary.\n"
            f"Received: a file without {' and '.join(missing)}. Take a file as the authors or transformers write it."
        )
    arrays = dict(arrays)
    tokens, table, kernel = arrays.pop(_TOKENS), arrays[_TABLE], arrays[_KERNEL]
    channels = arrays.pop(_MEAN).size
    arrays.pop(_STD)
    count = int(arrays.pop(_SUMMARY).max()) + 1
    side = int((kernel.shape[-1] / channels) ** 0.5)
    if tokens.ndim != 2 or count > len(tokens) or kernel.shape[1:] != (channels * side * side,) or table.ndim != 3:
        raise CheckpointError(
            "the arrays of a C-RADIO must be (tokens, D), (D, channels * side * side) and (1, positions, D), and the "
            f"summary must be of its tokens.\nReceived: {tokens.shape}, {kernel.shape}, {table.shape} for {channels} "
            f"channels and {count} class tokens."
        )
    arrays |= {_TOKENS: tokens[None, :count]} | ({_REGISTERS: tokens[None, count:]} if count < len(tokens) else {})
    arrays[_KERNEL] = kernel.reshape(-1, channels, side, side)
    arrays[_TABLE] = np.concatenate([np.zeros((1, count, table.shape[2]), table.dtype), table], axis=1)
    return arrays


def _join_arrays(makers: Makers) -> Makers:
    """The reverse; rows of the table for class tokens are added to the tokens."""
    if not {_TOKENS, _TABLE, _KERNEL} <= makers.keys():
        return makers  # which is then known by parts that it lacks
    if f"{_PATCHES}.bias" in makers:
        raise CheckpointError(
            "in this layout the patches' projection has no bias.\nReceived: patch_bias=True. Save as timm or .keras."
        )
    tokens, table, kernel = (makers[name] for name in (_TOKENS, _TABLE, _KERNEL))
    registers, count = makers.get(_REGISTERS), tokens().shape[1]
    others = {name: make for name, make in makers.items() if name != _REGISTERS}

    def joined() -> np.ndarray:
        placed = (tokens() + table()[:, :count])[0]
        return placed if registers is None else np.concatenate([placed, registers()[0]])

    flat = {_KERNEL: lambda: kernel().reshape(len(kernel()), -1), _TABLE: lambda: table()[:, count:]}
    return others | flat | {_TOKENS: joined}


def _read_names(names: Collection[str]) -> Callable[[str], str]:
    """LayerScale has other names in the authors' files."""
    return lambda name: name.replace(".grandma", ".gamma")


HF_RADIO = Layout(
    "huggingface_radio",
    "transformers",
    ".safetensors",
    TORCH,
    requires=(
        *(r"model\.patch_generator\.embedder\.weight", r"model\.patch_generator\.pos_embed"),
        r"model\.patch_generator\.cls_token\.token",
    ),
    ignores=(r"model\.reg_token",),
    metadata_arrays=(r"input_conditioner\.norm_(mean|std)", "summary_idxs"),
    read_metadata=_read_metadata,
    write_metadata=_write_metadata,
    prefixes=("radio_model.", ""),
    prefix="radio_model.",
    names={
        ("", ""): {
            "class_token/token": _TOKENS,
            "register_tokens/tokens": _REGISTERS,
            "position_embedding/table": _TABLE,
            "patch_embedding/projection": _PATCHES,
        },
        ("block_{block:02}/", "model.blocks.{block}."): {
            "norm_1": "norm1",
            ("attention/query", "attention/key", "attention/value"): "attn.qkv",
            "attention/out": "attn.proj",
            **_SCALES,
            "norm_2": "norm2",
            "mlp/dense_1": "mlp.fc1",
            "mlp/dense_2": "mlp.fc2",
            **{f"mlp/{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
        },
    },
    also={("block_{block:02}/", "model.blocks.{block}."): {f"layer_scale_{i}/gamma": f"ls{i}.gamma" for i in (1, 2)}},
    read_names=_read_names,
    read_steps=(_split_arrays,),
    written_steps=(_join_arrays,),
    parts={
        **PLAIN_PARTS,
        "patch_bias": (False,),
        "qkv_bias": ("all", "none"),
        "gated_mlp": (True, False),
        "layer_scale": ("both", "none"),
        "final_norm": ("none",),
        "registers": ANY,
        "class_tokens": ANY,
        "prefix_rows": ("none",),
    },
    activation="gelu",
    layer_norm_epsilon=1e-6,
    resize_method="bilinear_crop",
    class_token_reduction="concatenated",
    preprocessing=Preprocessing(
        image_size=None, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), interpolation="bicubic", antialias=True
    ),
)


def _read(config: dict[str, Any], place: Path) -> dict[str, Any]:
    counts: list[Any] = [config.get("num_cls_tokens"), config.get("num_registers")]
    fields: dict[str, Any] = {"special_tokens": sum(counts)} if all(type(count) is int for count in counts) else {}
    return fields | ({"layer_scale": "both"} if "layerscale_value" in config else {})


_WORDS = (*SCALED, "qkv_bias", "max_img_size")
TYPES = {"radio": ModelType("Radio", (HF_RADIO.name,), _WORDS, {"qkv_bias": True}, _read, num_heads=16, width=1280)}
