"""The layouts of text towers: OpenAI's and OpenCLIP's names, transformers', big_vision's, dino.txt's and TIPS'.

Rows are as those of image towers, below `../`, and of their own table: a file of both towers has a row of each. Of an
image tower's arrays none has a name here.
"""

import dataclasses
import re

import numpy as np

from keras_vit.weights.families.google import LINEN_BLOCK
from keras_vit.weights.families.layout import Arrays, Layout
from keras_vit.weights.families.renames import FLAX, TORCH, Layers, OutputsFirst, UnitAxes

_BLOCKS = ("block_{block:02}/", "transformer.resblocks.{block}.")
_RESBLOCK: Layers = {
    "norm_1": "ln_1",
    ("attention/query", "attention/key", "attention/value"): "attn.in_proj",
    "attention/out": "attn.out_proj",
    "layer_scale_1/gamma": "ls_1.gamma",
    "norm_2": "ln_2",
    "mlp/dense_1": "mlp.c_fc",
    "mlp/dense_2": "mlp.c_proj",
    "layer_scale_2/gamma": "ls_2.gamma",
}
# Below no prefix, or one of the words of other software; never `visual.`, which has no table of tokens.
OPEN_CLIP_TEXT = Layout(
    "open_clip_text",
    "OpenCLIP",
    ".safetensors",
    TORCH,
    requires=(r"token_embedding\.weight", "positional_embedding", r"transformer\.resblocks\.0\.ln_1\.weight"),
    forbids=(r"text_projection\.weight", "cls_emb"),
    names={
        ("", ""): {
            "token_embedding/embeddings": "token_embedding.weight",
            "position_embedding/table": "positional_embedding",
            "encoder_norm": "ln_final",
            "projection/kernel": "text_projection",  # (D, E), as it multiplies
        },
        _BLOCKS: _RESBLOCK,
    },
    ignores=("attn_mask", "input_resolution", "context_length", "vocab_size"),
    read_names=lambda names: lambda name: name.replace(".in_proj_", ".in_proj."),
    written_names=lambda names: lambda name: name.replace(".in_proj.", ".in_proj_"),
    activation="gelu",
    layer_norm_epsilon=1e-5,
)
OPEN_CLIP_LINEAR_TEXT = dataclasses.replace(
    OPEN_CLIP_TEXT,
    name="open_clip_linear_text",
    requires=(*OPEN_CLIP_TEXT.requires, r"text_projection\.weight"),
    forbids=("cls_emb",),
    names={
        ("", ""): {
            **{path: name for path, name in OPEN_CLIP_TEXT.names["", ""].items() if path != "projection/kernel"},
            "projection": "text_projection",
        },
        _BLOCKS: _RESBLOCK,
    },
)
TIPS_TEXT = dataclasses.replace(
    OPEN_CLIP_TEXT,
    name="tips_text",
    software="TIPS",
    requires=(r"token_embedding\.weight", r"transformer\.resblocks\.0\.ln_1\.weight"),
    forbids=("positional_embedding", "text_projection", "cls_emb"),
    names={
        ("", ""): {"token_embedding/embeddings": "token_embedding.weight", "encoder_norm": "ln_final"},
        _BLOCKS: _RESBLOCK,
    },
    activation="relu",
)
HF_TEXT = Layout(
    "huggingface_text",
    "transformers",
    ".safetensors",
    dataclasses.replace(TORCH, reshapes={**TORCH.reshapes, "weight": OutputsFirst()}),
    requires=(r"text_model\.embeddings\.token_embedding\.weight",),
    names={
        ("", ""): {
            "token_embedding/embeddings": "text_model.embeddings.token_embedding.weight",
            "position_embedding/table": "text_model.embeddings.position_embedding.weight",
            "encoder_norm": "text_model.final_layer_norm",
            "projection/kernel": "text_projection.weight",
        },
        ("block_{block:02}/", "text_model.encoder.layers.{block}."): {
            "norm_1": "layer_norm1",
            **{f"attention/{part}": f"self_attn.{part[0]}_proj" for part in ("query", "key", "value")},
            "attention/out": "self_attn.out_proj",
            "norm_2": "layer_norm2",
            "mlp/dense_1": "mlp.fc1",
            "mlp/dense_2": "mlp.fc2",
        },
    },
    ignores=(r"text_model\.embeddings\.position_ids",),
    activation="quick_gelu",
    layer_norm_epsilon=1e-5,
)
HF_SIGLIP_TEXT = dataclasses.replace(
    HF_TEXT,
    name="huggingface_siglip_text",
    requires=(*HF_TEXT.requires, r"text_model\.head\.weight"),
    names={
        **HF_TEXT.names,
        ("", ""): {
            **{path: name for path, name in HF_TEXT.names["", ""].items() if path != "projection/kernel"},
            "projection": "text_model.head",
        },
    },
    activation="gelu_tanh",
    layer_norm_epsilon=1e-6,
)
DINO_TEXT = Layout(
    "dino_text",
    "dino.txt",
    ".safetensors",
    TORCH,
    requires=(r"text_model\.backbone\.token_embedding\.weight", r"text_model\.backbone\.blocks\.0\.attention\..*"),
    names={
        ("", ""): {
            "token_embedding/embeddings": "text_model.backbone.token_embedding.weight",
            "position_embedding/table": "text_model.backbone.positional_embedding",
            "encoder_norm": "text_model.backbone.ln_final",
            "projection": "text_model.head.linear_projection",
        },
        ("block_{block:02}/", "text_model.backbone.blocks.{block}."): {
            "norm_1": "attention_norm",
            ("attention/query", "attention/key", "attention/value"): "attention.qkv",
            "attention/out": "attention.proj",
            "norm_2": "ffn_norm",
            "mlp/dense_1": "feed_forward.fc1",
            "mlp/dense_2": "feed_forward.fc2",
        },
    },
    activation="gelu",
    layer_norm_epsilon=1e-5,
)
_SCANNED, _OLD_TABLE, _TABLE = "Encoder_0/encoderblock/", "Encoder_0/pos_embedding", "pos_embedding"


def _split_blocks(arrays: Arrays, num_patches: int | None) -> Arrays:
    """Arrays of all blocks as one for each block, and the two position tables of older files as their sum."""
    apart = {name: array for name, array in arrays.items() if not name.startswith(_SCANNED)}
    for name in arrays.keys() - apart.keys():
        for index, part in enumerate(np.atleast_1d(arrays[name])):
            apart[f"Encoder_0/encoderblock_{index}/{name.removeprefix(_SCANNED)}"] = part
    if {_OLD_TABLE, _TABLE} <= apart.keys():
        apart[_TABLE] = apart[_TABLE] + apart.pop(_OLD_TABLE)
    return apart


BIG_VISION_TEXT = Layout(
    "big_vision_text",
    "big_vision",
    ".npz",
    dataclasses.replace(FLAX, reshapes={**FLAX.reshapes, "table": UnitAxes(1, 2)}),
    requires=("Embed_0/embedding", f"{_TABLE}|{_OLD_TABLE}"),
    names={
        ("", ""): {
            "token_embedding/embeddings": "Embed_0/embedding",
            "position_embedding/table": _TABLE,
            "encoder_norm": "Encoder_0/encoder_norm",
            "projection": "head",
        },
        ("block_{block:02}/", "Encoder_0/encoderblock_{block}/"): LINEN_BLOCK,
    },
    prefixes=("params/txt/", "opt/target/txt/", "txt/", "params/", ""),
    prefix="params/txt/",
    read_steps=(_split_blocks,),
    activation="gelu_tanh",
    layer_norm_epsilon=1e-6,
    void_is_bfloat16=True,
)
TEXT_LAYOUTS = {
    row.name: row
    for row in (
        *(OPEN_CLIP_TEXT, OPEN_CLIP_LINEAR_TEXT, TIPS_TEXT),
        *(HF_TEXT, HF_SIGLIP_TEXT, DINO_TEXT, BIG_VISION_TEXT),
    )
}
# Text towers of other architectures, by a name that they have; and by a part of the word for them in a config, since
# tensors of some have the same names.
OTHER_TOWERS = {
    "CoCa": re.compile(r"(.*\.)?(cls_emb|text_decoder\..*)"),
    "RoBERTa": re.compile(r"(.*\.)?roberta\..*"),
    "BERT": re.compile(
        r"(text\.transformer|bert|text_model)\.encoder\.layer\..*|(.*\.)?embeddings\.word_embeddings\..*"
    ),
    "NLLB, mT5 or another encoder of transformers": re.compile(r"text\.transformer\.(?!resblocks).*"),
}
OTHER_WORDS = {"roberta": "RoBERTa", "bert": "BERT", "nllb": "NLLB", "mt5": "mT5"}
