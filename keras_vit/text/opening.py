"""Which tokenizer a folder or file has: its vocabulary, and what the software of the folder does around it."""

import base64
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_vit.checks import ArgumentError
from keras_vit.files import read_head, read_json_object, read_regular
from keras_vit.pages.formatting import printable
from keras_vit.text.tokenizer import (
    CLIP_NORMALIZER,
    Pieces,
    Tokenizer,
    clip_pieces,
    read_pieces,
    transformers_pieces,
)

_SENTENCEPIECE = ("spiece.model", "tokenizer.model", "sentencepiece.model", "sentencepiece.bpe.model")
_CLIP = "bpe_simple_vocab_16e6.txt.gz"
_FILES = ("tokenizer.json", *_SENTENCEPIECE, "vocab.json", _CLIP)  # the first that is there is taken
_MOST_BYTES = 1 << 27  # of a vocabulary; that of 900,000 pieces has 20 MB
_SINGLE = "keras_vit_tokenizer"  # first key of a file by `write_tokenizer_file`
_CLIP_LENGTH, _OTHER_LENGTH = 77, 64
_HF_LENGTHS = {"clip": 77, "metaclip_2": 77, "siglip": 64, "siglip2": 64, "tipsv2": 64}


_OWN = "keras_vit_tokenizer.json"  # what this package has written beside a vocabulary, which the library does not say
_WRITTEN = {"tokenizers": "tokenizer.json", "sentencepiece": "tokenizer.model", "fairseq": "sentencepiece.bpe.model"}


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes a vocabulary into a folder, with what is done around it, so that `open_tokenizer` gives the same ids."""
    (folder / _WRITTEN[tokenizer.pieces.kind]).write_bytes(tokenizer.pieces.data)
    (folder / _OWN).write_text(json.dumps({"kind": tokenizer.pieces.kind, **tokenizer.get_config()}, indent=2))


def _own_tokenizer(folder: Path, given: dict[str, Any]) -> Tokenizer | None:
    """The tokenizer of a folder that `write_tokenizer` has written."""
    facts = read_json_object(folder / _OWN)
    if facts is None:
        return None
    kind = facts.pop("kind", None)
    if kind not in _WRITTEN or not {"max_length", "clean"} <= set(facts):
        raise ArgumentError(
            f"a tokenizer's facts must be as they were written.\nReceived: {folder / _OWN}.", ("source",)
        )
    return Tokenizer(Pieces(kind, read_regular(folder / _WRITTEN[kind], _MOST_BYTES)), **facts | given)


def open_tokenizer(
    path: Path,
    max_length: int | None = None,
    clean: str | None = None,
    *,
    is_clip: bool = False,
    weights: Path | None = None,
) -> Tokenizer:
    """The tokenizer of a folder, or of one of its files.

    Args:
        path: a folder, or a file of a vocabulary.
        max_length: T; by default that of the config in the folder, else 77 for CLIP's vocabulary and 64 for others.
        clean: a word of `CLEANINGS`; by default what the software of the folder does.
        is_clip: whether the weights of the folder are of CLIP's vocabulary, which is then taken where there is none.
        weights: the file that the tokenizer is for, whose folder has the config; by default it is that of `path`.

    Raises:
        FileNotFoundError: if there is no vocabulary.
        ValueError: for a file that is none.
    """
    folder = weights.parent if weights else path if path.is_dir() else path.parent
    given = {name: value for name, value in (("max_length", max_length), ("clean", clean)) if value is not None}
    if path.is_dir() and (own := _own_tokenizer(path, given)):
        return own
    file = next((path / name for name in _FILES if (path / name).is_file()), None) if path.is_dir() else path
    if file is not None and (written := _written(file)) is not None:
        return Tokenizer(Pieces(written["kind"], base64.b64decode(written["pieces"])), **written["facts"] | given)
    if file is None and not is_clip:
        raise FileNotFoundError(
            f"a folder must have a tokenizer's file: {', '.join(_FILES)}.\nReceived: {path} without one. Put the file "
            "of the model's authors into it, or pass the folder that has one."
        )
    software, config = _software(folder, weights)
    model = str(config.get("model_type", ""))
    text = _object(config, "model_cfg", "text_cfg") if software == "open_clip" else _object(config, "text_config")
    options = _object(text, "tokenizer_kwargs")
    is_by_name = software == "open_clip" and "hf_tokenizer_name" in text
    facts: dict[str, Any] = {}
    if is_clip and software == "open_clip" and not is_by_name and file is not None and not file.name.endswith(".gz"):
        file = None  # OpenCLIP reads its own copy of CLIP's vocabulary, and a folder may have transformers' too
    name = "" if file is None else file.name
    if file is None or name.endswith((".gz", ".txt")):
        data = None if file is None else read_regular(file, _MOST_BYTES)
        pieces, usual, length = (
            clip_pieces(data, "open_clip" if software == "open_clip" else "openai"),
            "lower",
            _CLIP_LENGTH,
        )
        facts["pad_id"] = 0
    elif name.endswith(".model"):
        pieces = Pieces("fairseq" if "bpe" in name else "sentencepiece", read_regular(file, _MOST_BYTES))
        usual = "siglip_transformers" if model.startswith("siglip") else "lower_ascii"
        length = _OTHER_LENGTH
    else:
        pieces, kind = _of_json(file)
        usual = "none"
        if model.startswith("siglip"):
            usual = "siglip_transformers" if kind == "Unigram" else "lowercase"
        length = _CLIP_LENGTH if '"</w>"' in pieces.data.decode() else _OTHER_LENGTH
        facts["pad_id"] = _padding(file.parent, pieces)
    if software == "open_clip":
        usual = options.get("clean") or ("whitespace" if is_by_name else "lower")
        facts["pad_id"] = facts.get("pad_id") if is_by_name else 0
        facts["written_end"] = 0 if options.get("strip_sep_token") else None
        length = text.get("context_length", _CLIP_LENGTH)
    elif model in _HF_LENGTHS:
        _warn_of_left_sides(folder)
        length = text.get("max_position_embeddings", _HF_LENGTHS[model])
    return Tokenizer(pieces, max_length or length, usual if clean is None else clean, **facts)


def has_vocabulary(folder: Path) -> bool:
    """Whether one of a tokenizer's files is in a folder."""
    return any((folder / name).is_file() for name in _FILES)


def vocabulary_name(config: Mapping[str, Any]) -> str:
    """The repository whose tokenizer an `open_clip_config.json` names, or `""`."""
    return str(_object(config, "model_cfg", "text_cfg").get("hf_tokenizer_name") or "")


def write_tokenizer_file(tokenizer: Tokenizer, file: Path) -> None:
    """Writes all that makes ids into one JSON file, which `open_tokenizer` reads.

    `pieces` are the bytes of the file of the library `kind`, in base64; `facts` what is done before and after it.
    """
    pieces = base64.b64encode(tokenizer.pieces.data).decode("ascii")
    ends = {"start_id": tokenizer.start_id, "end_id": tokenizer.end_id}
    facts = {_SINGLE: 1, **ends, "facts": tokenizer.get_config(), "kind": tokenizer.pieces.kind, "pieces": pieces}
    file.write_text(json.dumps(facts) + "\n", encoding="utf-8")


def is_tokenizer_file(file: Path) -> bool:
    """Whether `write_tokenizer_file` wrote a file."""
    return (read_head(file) or b"").startswith(f'{{"{_SINGLE}": '.encode())


def _written(file: Path) -> dict[str, Any] | None:
    """What `write_tokenizer_file` wrote; `None` for another file."""
    return json.loads(read_regular(file, _MOST_BYTES)) if is_tokenizer_file(file) else None


def _software(folder: Path, weights: Path | None) -> tuple[str, dict]:
    """`"open_clip"`, `"transformers"` or `"authors"`, by the config in the folder, and that config."""
    found = {
        "transformers": read_json_object(folder / "config.json"),
        "open_clip": read_json_object(folder / "open_clip_config.json"),
    }
    if weights is not None and weights.name.startswith("open_clip"):  # a folder may have the files of both
        found = dict(reversed(found.items()))
    for software, config in found.items():
        if config is not None and (software == "open_clip" or "model_type" in config):
            return software, config
    return "authors", {}


def _object(config: Mapping[str, Any], *names: str) -> dict:
    for name in names:
        found = config.get(name)
        config = found if isinstance(found, dict) else {}
    return dict(config)


def _of_json(file: Path) -> tuple[Pieces, str]:
    """The pieces of a `tokenizer.json`, or of a `vocab.json` with its merges; and the kind of the model."""
    data = read_regular(file, _MOST_BYTES)
    try:
        found = json.loads(data)
    except ValueError as error:
        raise ArgumentError(f"a tokenizer's file must be JSON.\nReceived: {file}, {error}.", ("source",)) from error
    if file.name == "vocab.json":
        if not file.with_name("merges.txt").is_file():
            raise FileNotFoundError(f"a vocab.json needs the merges.txt next to it.\nReceived: {file} alone.")
        return transformers_pieces(found, read_regular(file.with_name("merges.txt"), _MOST_BYTES).decode()), "BPE"
    model = found.get("model") if isinstance(found, dict) else None
    if not isinstance(model, dict):
        raise ArgumentError(
            f"a tokenizer's file must be one of the library `tokenizers`.\nReceived: {file} without `model`.",
            ("source",),
        )
    if found.get("normalizer") is None and str(_config(file.parent).get("tokenizer_class")).startswith("CLIPTokenizer"):
        data = json.dumps(found | {"normalizer": CLIP_NORMALIZER}).encode()  # by its class, whatever the file says
    return Pieces("tokenizers", data), str(model.get("type"))


def _config(folder: Path) -> dict[str, Any]:
    """What transformers says of the tokenizer of a folder."""
    return read_json_object(folder / "tokenizer_config.json") or {}


def _warn_of_left_sides(folder: Path) -> None:
    config = _config(folder)
    if left := [side for side in ("padding_side", "truncation_side") if config.get(side) == "left"]:
        warnings.warn(
            "texts are padded and cut on the right, as these models were trained. transformers obeys "
            f"{' and '.join(left)} 'left' of {printable(folder / 'tokenizer_config.json')}, which gives other ids.",
            UserWarning,
            stacklevel=4,
        )


def _padding(folder: Path, pieces: Pieces) -> int:
    """The id of padding: that of the folder's config, else of the tokenizer's file, else 0."""
    config = _config(folder)
    model, word = read_pieces(pieces.data), config.get("pad_token")
    known = model.token_to_id(word.get("content", "") if isinstance(word, dict) else word) if word else None
    return known if known is not None else (model.padding or {}).get("pad_id", 0)
