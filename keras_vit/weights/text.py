"""The text tower of a file: its tensors by weight path, and what no tensor says, from its config or its software.

Which place is the text's vector, heads, activation, epsilon and the causal mask stand in no tensor. Each is taken from
the config of the file's folder, else from what its software always computes; `provenance` says from which.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.config.text import TextConfig
from keras_vit.files import expand_path, json_object
from keras_vit.weights.checkpoint import CLIP_HEAD, OPENAI_INTEGERS, file_in, lone_file
from keras_vit.weights.families.layout import Layout
from keras_vit.weights.families.text import OTHER_TOWERS, TEXT_LAYOUTS
from keras_vit.weights.metadata.record import parse_activation
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.read.sharded import check_whole, scan_any
from keras_vit.weights.text_tower import read_logit_scale_and_bias

Fields = dict[str, Any]
NOTE = "text_config"  # in the note of a file that this package writes
_MOST_BYTES = 4_000_000  # of a config
_TIPS_LENGTH = 64
# What a file of both towers has besides its text's, below no prefix or below that of the text: another tower, integers,
# and factors of the cosines.
_OTHERS = re.compile(
    r"(visual|vision_model|vision_encoder|visual_model|visual_projection|img|image_encoder)[./].*"
    r"|(.*\.)?(position_ids|attn_mask|input_resolution|context_length|vocab_size|logit_scale|logit_bias|temperature)|[tb]"
)
_BLOCK = re.compile(r"block_(\d+)/")
# What transformers computes by where a config leaves it out, by `model_type`.
_CLIP: Fields = {
    "num_attention_heads": 8,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "eos_token_id": 49407,
    "pad_token_id": 1,
}
_SIGLIP = {"num_attention_heads": 12, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "pad_token_id": 1}
_HF_DEFAULTS: Mapping[str, Fields] = {
    "clip": _CLIP,
    "metaclip_2": _CLIP,
    "siglip": _SIGLIP,
    "siglip2": _SIGLIP,
    "tipsv2": {"num_attention_heads": 12, "hidden_act": "relu", "layer_norm_eps": 1e-5, "pad_token_id": 0},
}
_TIPS: Fields = {
    "activation": "relu",
    "layer_norm_epsilon": 1e-5,
    "causal": False,
    "positions": "sincos",
    "pooling": "mean",
    "mask_padding": True,
    "scale_tokens": True,
}
_LAST: Fields = {"causal": False, "pooling": "last"}  # SigLIP, whose places all read each other


@dataclasses.dataclass(frozen=True)
class TextCheckpoint:
    """A text tower of a file.

    Attributes:
        path: the file.
        layout: name of its row.
        tensors: by weight path.
        fields: of `TextConfig`; sizes by the tensors, the others by config or software.
        provenance: `{field: (value, source)}` of those that no tensor says.
        logit_scale_and_bias: of the file.
    """

    path: Path
    layout: str
    tensors: Mapping[str, np.ndarray]
    fields: Fields
    provenance: Mapping[str, tuple[Any, str]]
    logit_scale_and_bias: tuple[float | None, float | None]

    def config(self, **given: Any) -> TextConfig:
        """The config, with what the caller decides.

        Raises:
            CheckpointError: if nothing says how many heads there are.
        """
        fields = self.fields | given
        if fields.get("num_heads") is None:
            raise CheckpointError(
                "heads of attention stand in no tensor of this layout, so their number must be given.\n"
                f"Received: {self.path} of width {fields['hidden_size']}, num_heads=None. Pass `num_heads=` to "
                f"`build_text` and `build`; heads of {CLIP_HEAD} are usual."
            )
        return TextConfig(**fields)


def read_text_checkpoint(weights: FilePath) -> TextCheckpoint:
    """Reads the text tower of a file, or of a folder with one.

    Raises:
        FileNotFoundError: if there is no such file.
        CheckpointError: if it cannot be read, or has no text tower that is known here.
    """
    path = text_file(weights)
    check_whole(path)
    file = scan_any(path)
    row, prefix = _recognize(file.entries, path)
    names = [
        name for name in file.entries if name.startswith(prefix) and not _OTHERS.fullmatch(name.removeprefix(prefix))
    ]
    arrays = file.read(names, void_is_bfloat16=row.void_is_bfloat16)
    tensors, heads = row.from_file({name.removeprefix(prefix): array for name, array in arrays.items()}, None)
    if strange := [name for name in tensors if not row.has_name(name)]:
        raise CheckpointError(
            "a text tower must have no weights that are not computed here.\n"
            f"Received: {path} with {len(strange)} others, as {sorted(strange)[0]}."
        )
    sizes = _sizes(tensors, path)
    noted = file.note.get(NOTE)
    software, stated = ("the file's note", dict(noted)) if noted else _stated(row, path, file.entries, tensors)
    _check_contradictions(sizes, stated, path)
    fields = {**stated, **{name: size for name, size in sizes.items() if size is not None}}
    fields.setdefault("max_length", _TIPS_LENGTH)
    fields["num_heads"] = heads or fields.get("num_heads")
    fields = {name: value for name, value in fields.items() if value is not None or name == "num_heads"}
    provenance = {name: (fields[name], software) for name in stated if name not in sizes and name in fields}
    return TextCheckpoint(path, row.name, tensors, fields, provenance, read_logit_scale_and_bias(file))


def text_file(weights: FilePath) -> Path:
    """The file with the text tower: `weights`, or in a folder the usual one, else the only one with a text tower."""
    path = expand_path(weights)
    if not path.is_dir():
        return path
    usual = file_in(path)
    found = usual if usual != path and _rows(scan_any(usual).entries) else None
    found = found or lone_file(path, lambda file: bool(_rows(file.entries)))
    if found is None:
        raise FileNotFoundError(
            "a folder must have one file of weights with a text tower.\n"
            f"Received: {path} with {'none' if usual == path else f'{usual.name}, which has none'}. Pass the file."
        )
    return found


def _rows(names: Mapping[str, Any]) -> list[tuple[Layout, str]]:
    """Each row of which there is a text tower among the names of a file, with the prefix of it."""
    return [(row, prefix) for row in TEXT_LAYOUTS.values() for prefix in row.prefixes_among(set(names))]


def _recognize(names: Mapping[str, Any], path: Path) -> tuple[Layout, str]:
    """The row and the prefix of the text tower among the names of a file."""
    found = _rows(names)
    if not found:
        other = next((what for what, mark in OTHER_TOWERS.items() if any(map(mark.fullmatch, names))), None)
        what = f"one of {other}" if other else f"{len(names)} arrays, as {', '.join(sorted(names)[:3])}"
        raise CheckpointError(
            "the text tower must be of CLIP, SigLIP or their like; towers of BERT, RoBERTa, CoCa and NLLB are not "
            f"computed here.\nReceived: {path} with {what}."
        )
    return max(found, key=lambda pair: (len(pair[0].requires) + len(pair[0].forbids), -len(pair[1])))


def _folder_config(path: Path) -> dict:
    """What the JSON file in the folder of the weights says, under the name of its software; empty without one."""
    for name, software in (("open_clip_config.json", "open_clip"), ("config.json", "transformers")):
        both = name == "open_clip_config.json" and path.name.startswith(("model", "pytorch_model"))
        if (file := path.parent / name).is_file() and not (both and (path.parent / "config.json").is_file()):
            try:
                return {software: json_object(file, _MOST_BYTES)}
            except ValueError as error:
                raise CheckpointError(f"{error}, {file}.") from error
    return {}


def _stated(row: Layout, path: Path, names: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> tuple[str, Fields]:
    """What no tensor says, and who says it."""
    config = _folder_config(path)
    if "open_clip" in config:
        return "open_clip_config.json", of_open_clip(_part(config["open_clip"], "model_cfg"), row)
    if "transformers" in config and row.name in ("huggingface_text", "huggingface_siglip_text", "tips_text"):
        return "config.json", _of_transformers(config["transformers"])
    software = row.software
    usual: Fields = {"activation": row.activation, "layer_norm_epsilon": row.layer_norm_epsilon}
    if row.name == "tips_text":
        return software, dict(_TIPS)
    if row.name in ("big_vision_text", "huggingface_siglip_text"):
        return software, usual | _LAST
    if row.name == "dino_text":
        return software, usual | {"qkv_bias": "none"}
    if {name.rpartition(".")[2] for name in names} >= {*OPENAI_INTEGERS}:
        width = tensors["encoder_norm/gamma"].size
        return "OpenAI's code", usual | {"activation": "quick_gelu", "num_heads": max(width // CLIP_HEAD, 1)}
    if any(re.match(r"(.*\.)?visual\.(attn_pool|rope)\b", name) for name in names):
        software = "the authors' Perception Encoder"
    return software, usual


def _part(config: Mapping[str, Any], name: str) -> dict:
    found = config.get(name, {})
    if not isinstance(found, dict):
        raise CheckpointError(f"`{name}` of a config must be an object.\nReceived: {found!r:.60}.")
    return found


def of_open_clip(model: Mapping[str, Any], row: Layout) -> Fields:
    """Fields of `TextConfig` by the `model_cfg` of an `open_clip_config.json`, and by the row where it is silent.

    Raises:
        CheckpointError: for a tower of another architecture, by its name.
    """
    text = _part(model, "text_cfg")
    if text.get("hf_model_name") or "multimodal_cfg" in model or text.get("embed_cls"):
        what = text.get("hf_model_name") or "CoCa"
        raise CheckpointError(
            "the text tower must be of CLIP, SigLIP or their like; towers of BERT, RoBERTa, CoCa and NLLB are not "
            f"computed here.\nReceived: open_clip_config.json with {what!r}."
        )
    quick, exact = model.get("quick_gelu", False), _part(text, "act_kwargs").get("approximate", "none") != "tanh"
    pool = text.get("pool_type", "argmax")
    poolings = {"argmax": "argmax", "last": "last", "eos": "end"}
    if pool not in poolings:
        raise CheckpointError(
            f"`pool_type` must be one of {', '.join(poolings)}.\nReceived: {pool!r} in open_clip_config.json."
        )
    return {
        "num_heads": text.get("heads", 8),
        "activation": "quick_gelu" if quick else "gelu" if exact else "gelu_tanh",
        "layer_norm_epsilon": _part(text, "norm_kwargs").get("eps", row.layer_norm_epsilon),
        "causal": not text.get("no_causal_mask", False),
        "pooling": poolings[pool],
        "end_id": text.get("eos_id", 2) if pool == "eos" else None,
        "pad_id": text.get("pad_id", 0),
        **{name: text.get(key) for name, key in (("hidden_size", "width"), ("num_layers", "layers"))},
        **{"max_length": text.get("context_length"), "vocabulary_size": text.get("vocab_size")},
    }


def _of_transformers(config: Mapping[str, Any]) -> Fields:
    kind = str(config.get("model_type", "")).removesuffix("_text_model").replace("siglip_text", "siglip")
    if kind not in _HF_DEFAULTS:
        raise CheckpointError(
            f"`model_type` must be one of {', '.join(_HF_DEFAULTS)}, whose text towers are computed here.\n"
            f"Received: {config.get('model_type')!r} in config.json."
        )
    text = _HF_DEFAULTS[kind] | {k: v for k, v in (_part(config, "text_config") or config).items() if v is not None}
    fields: Fields = {
        "num_heads": text["num_attention_heads"],
        "activation": "relu" if text["hidden_act"] == "relu" else parse_activation(text["hidden_act"], "config.json"),
        "layer_norm_epsilon": text["layer_norm_eps"],
        "pad_id": text["pad_token_id"],
        **{name: text.get(key) for name, key in (("hidden_size", "hidden_size"), ("mlp_dim", "intermediate_size"))},
        **{"num_layers": text.get("num_hidden_layers"), "vocabulary_size": text.get("vocab_size")},
        "max_length": text.get("max_position_embeddings"),
    }
    if kind == "tipsv2":
        return _TIPS | fields
    if kind.startswith("siglip"):
        return fields | _LAST
    end = text["eos_token_id"]
    if kind == "clip" and end == 2:  # what old files of OpenAI's models have wrong, and transformers takes the largest
        return fields | {"pooling": "argmax"}
    return fields | {"pooling": "end", "end_id": end}


def _sizes(tensors: Mapping[str, np.ndarray], path: Path) -> Fields:
    """Sizes by the shapes.

    Raises:
        CheckpointError: for a tower of which a tensor is missing, or one too many.
    """
    blocks = {int(match[1]) for name in tensors if (match := _BLOCK.match(name))}
    first, mlp = tensors["token_embedding/embeddings"], tensors.get("block_00/mlp/dense_1/kernel")
    table, projection = tensors.get("position_embedding/table"), tensors.get("projection/kernel")
    if mlp is None or first.ndim != 2 or blocks != set(range(len(blocks))):
        raise CheckpointError(
            "a text tower must have all of its blocks.\n"
            f"Received: {path} with blocks {sorted(blocks)}, a token table of shape {first.shape}. It may be cut short."
        )
    return {
        "vocabulary_size": first.shape[0],
        "hidden_size": first.shape[1],
        "num_layers": len(blocks),
        "mlp_dim": mlp.shape[-1],
        **({} if table is None else {"max_length": table.shape[0]}),
        "projection_size": None if projection is None else projection.shape[-1],
        "projection_bias": "projection/bias" in tensors,
    }


def _check_contradictions(sizes: Fields, stated: Fields, path: Path) -> None:
    wrong = [
        f"{name} {stated[name]}, and {size} in the file"
        for name, size in sizes.items()
        if stated.get(name) is not None and stated[name] != size
    ]
    if wrong:
        raise CheckpointError(
            "what the config says of the text tower must be what the tensors are.\n"
            f"Received: {'; '.join(wrong)}, {path}. The file may be cut short, or of another model."
        )
