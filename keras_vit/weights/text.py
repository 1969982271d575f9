"""The text tower of a file: its tensors by weight path, and what no tensor says, from its config or its software.

Which place is the text's vector, heads, activation, epsilon and the causal mask stand in no tensor. Each is taken from
the config of the file's folder, else from what its software always computes; `provenance` says from which.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.config.text import TextConfig, merge_config_dicts
from keras_vit.files import expand_path, json_object
from keras_vit.weights.checkpoint import CLIP_HEAD, OPENAI_INTEGERS, file_in, lone_file
from keras_vit.weights.families import pick_prefix
from keras_vit.weights.families.layout import Layout
from keras_vit.weights.families.text import OPEN_CLIP_TEXT, OTHER_TOWERS, OTHER_WORDS, TEXT_LAYOUTS, TIPS_TEXT
from keras_vit.weights.metadata.open_clip import NAME, open_clip_functions
from keras_vit.weights.metadata.record import parse_activation, parse_epsilon, unsupported_error
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.read.sharded import check_whole, scan_any
from keras_vit.weights.text_tower import read_logit_scale_and_bias

Fields = dict[str, Any]
NOTE = "text_config"  # in the note of a file that this package writes
_MOST_BYTES = 4_000_000  # of a config
_CLIP_PROJECTION = 512  # of transformers' CLIP
_CLIP_WIDTH, _OTHER_WIDTH = 512, 768  # of the classes of OpenCLIP and transformers, where a config is silent
_TIPS_LENGTH, _TIPS_TEMPERATURE = 64, 0.005065968260169029  # of transformers' `Tipsv2Config`
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
    **dict.fromkeys(("owlvit", "owlv2"), _CLIP | {"pad_token_id": 0}),
    "siglip": _SIGLIP,
    "siglip2": _SIGLIP,
    "tipsv2": {"num_attention_heads": 12, "hidden_act": "relu", "layer_norm_eps": 1e-5, "pad_token_id": 0},
}
TIPS: Fields = {
    "activation": "relu",
    "layer_norm_epsilon": 1e-5,
    "causal": False,
    "positions": "sincos",
    "pooling": "mean",
    "mask_padding": True,
    "scale_tokens": True,
}
_PE = "the authors' Perception Encoder"
# Words of OpenCLIP's `CLIPTextCfg` that are followed here, by this file or by the tokenizer, or that tensors show. The
# last norm may follow the pooling, since each place has its own. Any other word that is set is refused.
_OPEN_CLIP_WORDS = (
    *("context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio", "pad_id", "eos_id", "no_causal_mask"),
    *("pool_type", "proj_bias", "proj_type", "act_kwargs", "norm_kwargs", "final_ln_after_pool", "output_tokens"),
    *("hf_tokenizer_name", "tokenizer_mode", "tokenizer_kwargs", "hf_model_pretrained", "hf_proj_type"),
    *("hf_pooler_type", "ls_init_value"),
)
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

    @property
    def clip_spelling(self) -> str:
        """Whose words for CLIP's start and end its tokenizer reads: PE's and OpenCLIP's code differs from OpenAI's."""
        sources = {source for _, source in self.provenance.values()}
        return "open_clip" if sources & {OPEN_CLIP_TEXT.software, _PE} else "openai"

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
        try:
            return TextConfig(**fields)
        except ValueError as error:
            raise CheckpointError(f"{error} File: {self.path}.") from error


def read_text_checkpoint(weights: FilePath) -> TextCheckpoint:
    """Reads the text tower of a file, or of a folder with one.

    Raises:
        FileNotFoundError: if there is no such file.
        CheckpointError: if it cannot be read, or has no text tower that is known here.
    """
    path = _text_file(weights)
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
    scale_and_bias = read_logit_scale_and_bias(file)
    if scale_and_bias[0] is None and row is TIPS_TEXT and software == "config.json":
        # The divisor of TIPSv2's cosines where a file has none, as the published ones: transformers takes the config's.
        divisor = _folder_config(path)["transformers"].get("temperature_init_value", _TIPS_TEMPERATURE)
        if type(divisor) not in (int, float) or not divisor > 0:
            raise CheckpointError(f"`temperature_init_value` must be a number above 0.\nReceived: {divisor!r}, {path}.")
        scale_and_bias = (-math.log(divisor), 0.0)
    return TextCheckpoint(path, row.name, tensors, fields, provenance, scale_and_bias)


def _text_file(weights: FilePath) -> Path:
    """The file with the text tower: `weights`, or in a folder the usual one, else the only one with a text tower."""
    path = expand_path(weights)
    if not path.is_dir():
        return path
    usual = file_in(path)
    found = usual if usual != path and _rows(scan_any(usual).entries) else None
    found = found or lone_file(path, lambda file: bool(_rows(file.entries)))
    if found is None:
        check_family(usual)
        raise FileNotFoundError(
            "a folder must have one file of weights with a text tower.\n"
            f"Received: {path} with {'none' if usual == path else f'{usual.name}, which has none'}. Pass the file."
        )
    return found


def check_family(weights: FilePath) -> None:
    """Raises if weights have a text tower that is not computed here; not for a folder whose file has no usual name."""
    path = file_in(weights)
    if path.is_dir():
        return
    names = scan_any(path).entries
    if not _rows(names) and (other := _other_tower(path, names)):
        raise _family_error(f"{path} with one of {other}")


def _other_tower(path: Path, names: Mapping[str, Any]) -> str | None:
    """The family of a text tower that is not computed here, by the config, else by the tensors of its file."""
    for software, config in _folder_config(path).items():
        is_open_clip = software == "open_clip"
        path_of = ("model_cfg", "text_cfg") if is_open_clip else ("text_config",) if config.get("text_config") else ()
        text = functools.reduce(_part, path_of, config)
        word = str(text.get("hf_model_name" if is_open_clip else "model_type") or "")
        known = (family for part, family in OTHER_WORDS.items() if part in word.lower())
        if family := next(known, "encoders of transformers" if is_open_clip and word else None):
            return f"{family} ({word!r:.60} in its config)"
    return next((family for family, mark in OTHER_TOWERS.items() if any(map(mark.fullmatch, names))), None)


def _family_error(received: str) -> CheckpointError:
    return CheckpointError(
        "the text tower must be a whole one of CLIP, SigLIP or their like; towers of BERT, RoBERTa, CoCa and NLLB are "
        f"not computed here.\nReceived: {received}."
    )


def _rows(names: Mapping[str, Any]) -> list[tuple[Layout, list[str]]]:
    """Each row of which there is a text tower among the names of a file, with the prefixes of all that there are."""
    found = [(row, row.prefixes_among(set(names))) for row in TEXT_LAYOUTS.values()]
    return [(row, prefixes) for row, prefixes in found if prefixes]


def _recognize(names: Mapping[str, Any], path: Path) -> tuple[Layout, str]:
    """The row and the prefix of the text tower among the names of a file."""
    found = _rows(names)
    if not found:
        other = _other_tower(path, names)
        what = f"one of {other}" if other else f"{len(names)} arrays, as {', '.join(sorted(names)[:3])}"
        raise _family_error(f"{path} with {what}")
    row, prefixes = max(found, key=lambda pair: len(pair[0].requires) + len(pair[0].forbids))
    return row, pick_prefix(prefixes) if row.allows_any_prefix else prefixes[0]  # of copies that of the image tower


def _folder_config(path: Path) -> dict:
    """What the JSON file in the folder of the weights says, under the name of its software; empty without one."""
    for name, software in (("open_clip_config.json", "open_clip"), ("config.json", "transformers")):
        both = name == "open_clip_config.json" and path.name.startswith(("model", "pytorch_model"))
        if (file := path.parent / name).is_file() and not (both and (path.parent / "config.json").is_file()):
            try:
                config = json_object(file, _MOST_BYTES)
                return {software: config if software == "open_clip" else merge_config_dicts(config)}
            except ValueError as error:
                raise CheckpointError(f"{error}, {file}.") from error
    return {}


def _stated(row: Layout, path: Path, names: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> tuple[str, Fields]:
    """What no tensor says, and who says it; of heads a default where the default width is that of the tensors."""
    config, width = _folder_config(path), tensors["token_embedding/embeddings"].shape[-1]
    if "open_clip" in config:
        kind = _part(_part(config["open_clip"], "model_cfg"), "text_cfg").get("proj_type", "linear")
        if kind == "none" and "projection/kernel" in tensors:
            raise CheckpointError(
                "a file must have no projection of texts where its config has none.\n"
                f"Received: {path}, and proj_type {kind!r} in open_clip_config.json. Correct the config."
            )
        model = _part(config["open_clip"], "model_cfg")
        words, default = _part(model, "text_cfg"), _CLIP_WIDTH if "text_cfg" in model else None
        knows = "heads" in words or words.get("width", default) == width
        return "open_clip_config.json", of_open_clip(model) | ({} if knows else {"num_heads": None})
    if "transformers" in config and row.name in ("huggingface_text", "huggingface_siglip_text", "tips_text"):
        _check_kind(config["transformers"], row, path)
        words = _part(config["transformers"], "text_config") or config["transformers"]
        default = words.get("hidden_size") or (_CLIP_WIDTH if row.name == "huggingface_text" else _OTHER_WIDTH)
        knows = words.get("num_attention_heads") is not None or default == width
        return "config.json", of_transformers(config["transformers"]) | ({} if knows else {"num_heads": None})
    software = row.software
    usual: Fields = {"activation": row.activation, "layer_norm_epsilon": row.layer_norm_epsilon}
    if row.name == "tips_text":
        return software, dict(TIPS)
    if row.name in ("big_vision_text", "huggingface_siglip_text"):
        return software, usual | _LAST | ({"projection_bias": True} if "projection/kernel" in tensors else {})
    if row.name == "dino_text":
        return software, usual | {"qkv_bias": "none"}
    if {name.rpartition(".")[2] for name in names} >= {*OPENAI_INTEGERS}:
        return "OpenAI's code", usual | {"activation": "quick_gelu", "num_heads": max(width // CLIP_HEAD, 1)}
    if any(re.match(r"(.*\.)?visual\.(attn_pool|rope)\b", name) for name in names):
        software = _PE
    return software, usual


def _part(config: Mapping[str, Any], name: str) -> dict:
    found = config.get(name, {})
    if not isinstance(found, dict):
        raise CheckpointError(f"`{name}` of a config must be an object.\nReceived: {found!r:.60}.")
    return found


def of_open_clip(model: Mapping[str, Any]) -> Fields:
    """Fields of `TextConfig` by the `model_cfg` of an `open_clip_config.json`, and by OpenCLIP's where it is silent.

    Raises:
        CheckpointError: for a tower of another architecture, by its name.
    """
    text = _part(model, "text_cfg")
    if name := text.get("hf_model_name"):
        raise _family_error(f"open_clip_config.json with {name!r}")
    set_words = {"embed_cls": text.get("embed_cls"), "multimodal_cfg": "multimodal_cfg" in model}
    of_coca = [word for word, is_set in set_words.items() if is_set]
    if of_coca:
        raise _family_error(f"open_clip_config.json with {' and '.join(of_coca)}, as 'CoCa' has them")
    for word, value in text.items():
        if word not in _OPEN_CLIP_WORDS and value not in (None, False, "", "default"):
            raise unsupported_error("text tower", f"{word}={value!r}", NAME, "without this word of `text_cfg`")
    pool = text.get("pool_type", "argmax")
    poolings = {"argmax": "argmax", "last": "last", "eos": "end"}
    if pool not in poolings:
        raise CheckpointError(
            f"`pool_type` must be one of {', '.join(poolings)}.\nReceived: {pool!r} in open_clip_config.json."
        )
    return {
        "num_heads": text.get("heads", 8),
        **open_clip_functions(model, text, NAME),
        "causal": not text.get("no_causal_mask", False),
        "pooling": poolings[pool],
        "end_id": text.get("eos_id", 2) if pool == "eos" else None,
        "pad_id": text.get("pad_id", 0),
        "layer_scale": "none" if text.get("ls_init_value") is None else "both",
        "projection_size": None if text.get("proj_type", "linear") == "none" else model.get("embed_dim"),
        "projection_bias": bool(text.get("proj_bias")) if text.get("proj_type", "linear") != "none" else None,
        **{name: text.get(key) for name, key in (("hidden_size", "width"), ("num_layers", "layers"))},
        **{"max_length": text.get("context_length"), "vocabulary_size": text.get("vocab_size")},
    }


def _check_kind(config: Mapping[str, Any], row: Layout, path: Path) -> None:
    """Raises for a `model_type` whose class has other tensors than the file, or is not that of `architectures`."""
    kind, names = str(config.get("model_type", "")), config.get("architectures") or []
    rows = {"siglip": "huggingface_siglip_text", "tipsv2": "tips_text", "clip": "huggingface_text"}
    expected = next((found for word, found in rows.items() if word in kind), row.name)
    swapped = any("metaclip" in str(name).lower() for name in names) != kind.startswith("metaclip")
    if expected != row.name or (names and swapped):
        raise CheckpointError(
            "`model_type`, `architectures` and the tensors must be of the same class of transformers.\n"
            f"Received: {kind!r}, {names} and tensors of {row.name}, {path}. Correct the config.json."
        )


def of_transformers(config: Mapping[str, Any]) -> Fields:
    """Fields of `TextConfig` by a `config.json` of transformers, and by its classes where it is silent.

    Raises:
        CheckpointError: for another `model_type`, and for functions that are not computed here.
    """
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
        "layer_norm_epsilon": parse_epsilon(text["layer_norm_eps"], "config.json"),
        "pad_id": text["pad_token_id"],
        **{name: text.get(key) for name, key in (("hidden_size", "hidden_size"), ("mlp_dim", "intermediate_size"))},
        **{"num_layers": text.get("num_hidden_layers"), "vocabulary_size": text.get("vocab_size")},
        "max_length": text.get("max_position_embeddings"),
    }
    if kind == "tipsv2":
        return TIPS | fields
    if kind.startswith("siglip"):
        return fields | _LAST | {"projection_bias": True}
    if "text_config" in config or "WithProjection" in str(config.get("architectures")):  # and not CLIPTextModel
        fields["projection_size"] = config.get("projection_dim", _CLIP_PROJECTION)
    end = text["eos_token_id"]
    if kind.startswith("owl"):
        return fields | {"pooling": "argmax"}
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
        "layer_scale": "both" if "block_00/layer_scale_1/gamma" in tensors else "none",
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
