"""The layouts of YOLOS (arXiv:2106.00666) of transformers: the encoder with its detection tokens, and the head.

In the files detection tokens stand behind the patches, with rows of the position tables behind those of the patches.
Here they stand behind the class token, as further ones: attention does not know the order of tokens. Tables that are
added after blocks are those before the next block.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_vit.config.heads import BOX_HEAD, DETECTION
from keras_vit.weights.families.dense_heads import HeadLayout
from keras_vit.weights.families.layout import ANY, SQUASHED_PHOTOS, Arrays, Makers, ModelType
from keras_vit.weights.families.transformers import HUGGINGFACE
from keras_vit.weights.read import CheckpointError

_CLASS, _DETECTION = "embeddings.cls_token", "embeddings.detection_tokens"
_TABLE, _MIDDLE = "embeddings.position_embeddings", "encoder.mid_position_embeddings"
_OF_BLOCK = "positions.{}.table"  # of the tables before blocks, in the names between a file's and ours


def _moved(table: np.ndarray, count: int) -> np.ndarray:
    """A table `(..., T, D)` whose last rows, of so many detection tokens, follow the first one."""
    first, patches, last = np.split(table, [1, table.shape[-2] - count], axis=-2)
    return np.concatenate([first, last, patches], axis=-2)


def _moved_back(table: np.ndarray, count: int) -> np.ndarray:
    first, last, patches = np.split(table, [1, 1 + count], axis=-2)
    return np.concatenate([first, patches, last], axis=-2)


def _join_tokens(arrays: Arrays, num_patches: int | None) -> Arrays:
    """Detection tokens as further class tokens, and tables before blocks as arrays of their own."""
    others = {name: array for name, array in arrays.items() if name not in (_CLASS, _DETECTION, _TABLE, _MIDDLE)}
    token, detection, table = (arrays.get(name) for name in (_CLASS, _DETECTION, _TABLE))
    if token is None or detection is None or table is None or {a.ndim for a in (token, detection, table)} != {3}:
        return arrays
    count, middle = detection.shape[1], arrays.get(_MIDDLE)
    others |= {_CLASS: np.concatenate([token, detection], axis=1)}
    if middle is None:
        return others | {_TABLE: _moved(table, count)}
    if middle.shape[1:] != table.shape:
        raise CheckpointError(
            "the positions between blocks must be those of the tokens.\n"
            f"Received: {_MIDDLE} of shape {middle.shape}, and {_TABLE} of {table.shape}. Bring the file again."
        )
    tables = (table, *middle)
    return others | {_OF_BLOCK.format(number): _moved(each, count) for number, each in enumerate(tables)}


def _split_tokens(makers: Makers) -> Makers:
    """The reverse."""
    token, tables = makers.get(_CLASS), _tables(makers)
    if token is None:
        return makers
    others = {name: make for name, make in makers.items() if make not in tables}

    def count() -> int:
        return token().shape[1] - 1

    others |= {_CLASS: lambda: token()[:, :1], _DETECTION: lambda: token()[:, 1:]}
    if tables:
        others[_TABLE] = lambda: _moved_back(tables[0](), count())
    if len(tables) > 1:
        others[_MIDDLE] = lambda: np.stack([_moved_back(make(), count()) for make in tables[1:]])
    return others


def _tables(makers: Makers) -> list[Callable[[], np.ndarray]]:
    """Of the stem, or before each block in their order."""
    pattern = re.compile(re.escape(_OF_BLOCK).replace(r"\{\}", r"(\d+)"))
    numbered = {int(match[1]): make for name, make in makers.items() if (match := pattern.fullmatch(name))}
    return [makers[_TABLE]] if _TABLE in makers else [numbered[number] for number in sorted(numbered)]


def _defaults(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {"position_injection": "blocks"} if "position_embedding_00/table" in tensors else {}


HF_YOLOS = dataclasses.replace(
    HUGGINGFACE,
    name="huggingface_yolos",
    model_types=("yolos",),
    requires=(
        *(r"embeddings\.patch_embeddings\.projection\.weight", r"embeddings\.detection_tokens"),
        *(r"embeddings\.cls_token", r"embeddings\.position_embeddings", r"layernorm\.weight"),
        r"encoder\.layer\.0\.intermediate\.dense\.weight",
    ),
    ignores=(r"pooler\..*",),
    names={
        ("", ""): {
            "class_token/token": _CLASS,
            "position_embedding/table": _TABLE,
            "patch_embedding/projection": "embeddings.patch_embeddings.projection",
            "encoder_norm": "layernorm",
        },
        ("position_embedding_{block:02}/", "positions.{block}."): {"table": "table"},
        ("block_{block:02}/", "encoder.layer.{block}."): HUGGINGFACE.names[
            "block_{block:02}/", "encoder.layer.{block}."
        ],
    },
    also={},
    read_names=lambda names: str,
    written_names=lambda names: str,
    read_steps=(_join_tokens,),
    written_steps=(_split_tokens,),
    defaults=_defaults,
    parts={**HUGGINGFACE.parts, "class_token": (True,), "class_tokens": ANY},
    preprocessing=SQUASHED_PHOTOS,
    class_token_reduction="mean",  # of no use, since its head reads the tokens one by one
    unsupported=(),
    folder=None,
)
TYPES = {"yolos": ModelType("Yolos", (HF_YOLOS.name,), ("intermediate_size", "qkv_bias"), {"qkv_bias": True})}
HF_YOLOS_BOXES = HeadLayout(
    "huggingface_yolos_boxes",
    "transformers",
    BOX_HEAD,
    requires=(r"class_labels_classifier\.layers\.0\.weight", r"bbox_predictor\.layers\.0\.weight"),
    names={
        ("", ""): {
            f"{here}_{number + 1}": f"{there}.layers.{number}"
            for here, there in (("class", "class_labels_classifier"), ("box", "bbox_predictor"))
            for number in range(3)
        }
    },
    encoder=("vit.",),
    encoder_layouts=(HF_YOLOS.name,),
    task=DETECTION,
    taps="last",
    pads="",
    photos="detection",
    side=800,
)
