"""What transformers makes of a folder's tokenizer: the rules of its class, special words, and sides of padding.

Its classes rebuild cleaning and cutting whatever `tokenizer.json` says, and keep words and merges of the file alone.
Words that `tokenizer_config.json` names are special: each is an id of its own, wherever it stands in a text.
"""

import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from keras_vit.checks import ArgumentError
from keras_vit.files import json_object
from keras_vit.pages.formatting import printable
from keras_vit.text.tokenizer import SPECIAL_FLAGS, clip_rules, template

CONFIG, _MAP, _ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
_MOST_BYTES = 1 << 22  # of each; that of Gemma has 46 KB
_START, _END = "<|startoftext|>", "<|endoftext|>"
_GEMMA = {"bos": "<bos>", "eos": "<eos>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
# Special words of a class where no config names them, by roles.
_WORDS: Mapping[str, Mapping[str, str]] = {
    "CLIPTokenizer": {"bos": _START, "eos": _END, "unk": _END, "pad": _END},
    "SiglipTokenizer": {"eos": "</s>", "unk": "<unk>", "pad": "</s>"},
    "Siglip2Tokenizer": _GEMMA,
    "GemmaTokenizer": _GEMMA,
    "BertTokenizer": {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"},
}
# By `model_type`, where no config names the class.
_CLASSES = {**dict.fromkeys(("clip", "owlvit", "owlv2"), "CLIPTokenizer"), "siglip": "SiglipTokenizer"}
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def tokenizer_config(folder: Path) -> dict[str, Any]:
    """What transformers says of the tokenizer of a folder, in one object of its three files.

    Raises:
        ValueError: for one of them that holds no object, or an added word without an id.
    """
    config = _object(folder / CONFIG)
    if "added_tokens_decoder" in config:  # then transformers does not read the other files
        return config
    older, ids = _object(folder / _MAP), _object(folder / _ADDED)
    if wrong := [f"{word!r:.60}: {number!r:.60}" for word, number in ids.items() if type(number) is not int]:
        raise ArgumentError(
            f"an added word must have an id.\nReceived: {wrong[0]} in {printable(folder / _ADDED)}.", ("source",)
        )
    extra = [*_entries(config.get("extra_special_tokens")), *_entries(older.get("extra_special_tokens"))]
    found = {**config, **older, "extra_special_tokens": extra}
    named = (
        *(found.get(f"{role}_token") for role in _ROLES),
        *extra,
        *_entries(found.get("additional_special_tokens")),
    )
    special = {*map(_content, named)}
    added = {
        number: {"content": word, "special": word in special, "normalized": word not in special}
        for word, number in ids.items()
    }
    return {**found, "added_tokens_decoder": added}


def _object(file: Path) -> dict[str, Any]:
    """The object in a JSON file, empty without one."""
    try:
        return json_object(file, _MOST_BYTES) if os.path.lexists(file) else {}
    except ValueError as error:
        raise ArgumentError(f"{error}, {printable(file)}. Correct it, or take it away.", ("source",)) from error


def class_of(config: Mapping[str, Any], model_type: str) -> str:
    """The class of the tokenizer, by its config, else by the `model_type`; `siglip2` has one, whatever that says."""
    named = config.get("tokenizer_class") or _CLASSES.get(model_type)
    return "Siglip2Tokenizer" if model_type == "siglip2" else str(named).removesuffix("Fast")


def special_word(config: Mapping[str, Any], role: str, kind: str = "") -> str | None:
    """The word for a special id, as `pad`, by a config, else by the class."""
    return _content(config.get(f"{role}_token", _WORDS.get(kind, {}).get(role))) or None


def by_class(found: dict[str, Any], config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A `tokenizer.json` as transformers has it: by the rules of the class, and with all special words.

    Args:
        found: the object of the file.
        config: by `tokenizer_config`.
        kind: by `class_of`.

    Raises:
        ValueError: if a word that stands in each text is not in the vocabulary.
    """
    model = found["model"]
    words = model.get("vocab")
    ids = dict(words) if isinstance(words, dict) else {pair[0]: number for number, pair in enumerate(words or ())}
    added = {word["content"]: word for word in found.get("added_tokens") or ()}
    for number, word in (config.get("added_tokens_decoder") or {}).items():
        one = {"id": ids.get(content := _content(word), int(number)), "content": content}
        added.setdefault(content, {**SPECIAL_FLAGS, "special": False, **word, **one})
    roles = [config.get(f"{role}_token", _WORDS.get(kind, {}).get(role)) for role in _ROLES]
    extra = [*_entries(config.get("extra_special_tokens")), *_entries(config.get("additional_special_tokens"))]
    for word in (*roles, *extra):
        if (content := _content(word)) in ids:
            flags = {name: word[name] for name in SPECIAL_FLAGS if isinstance(word, dict) and name in word}
            added.setdefault(content, {"id": ids[content], "content": content, **SPECIAL_FLAGS, **flags})
            added[content] = added[content] | {"special": True}
    known = ids | {content: word["id"] for content, word in added.items()}
    if config.get("split_special_tokens"):  # texts that spell them are cut into pieces
        added = {content: word for content, word in added.items() if not word["special"] or content not in ids}
    found = found | {"added_tokens": sorted(added.values(), key=lambda word: word["id"])}

    def around(*named: str) -> dict[str, Any]:
        given = [str(special_word(config, role, kind)) for role in named]
        if lost := [word for word in given if word not in known]:
            raise ArgumentError(
                f"start and end of texts must be words of the vocabulary.\nReceived: {lost[0]!r:.40} in {CONFIG} or "
                f"{_MAP}. Correct it.",
                ("source",),
            )
        return {"post_processor": template(*((word, known[word]) for word in given))}

    if kind == "CLIPTokenizer" and model.get("type") == "BPE":
        made = clip_rules(found)
        made |= {"model": made["model"] | {"ignore_merges": False}} if model.get("ignore_merges") else {}
        return made | around("bos", "eos")
    if kind in ("Siglip2Tokenizer", "GemmaTokenizer") and model.get("type") == "BPE":
        rules: dict[str, Any] = {
            "dropout": None,
            "unk_token": special_word(config, "unk", kind),
            "continuing_subword_prefix": None,
        }
        rules |= {"end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False}
        blanks = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        return found | {"model": model | rules, "normalizer": blanks, "pre_tokenizer": None}  # small letters: `clean`
    if kind == "BertTokenizer" and model.get("type") == "WordPiece":
        rules = {"unk_token": special_word(config, "unk", kind), "continuing_subword_prefix": "##"}
        cleaning = {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
            "strip_accents": config.get("strip_accents"),
            "lowercase": config.get("do_lower_case", True),
        }
        changed = {"model": model | rules | {"max_input_chars_per_word": 100}, "normalizer": cleaning}
        return found | changed | {"pre_tokenizer": {"type": "BertPreTokenizer"}} | around("cls", "sep")
    return found


def sides(config: Mapping[str, Any], kind: str, found: Mapping[str, Any]) -> dict[str, str]:
    """Where texts are padded and cut: by the config, else by `tokenizer.json`, else by the class."""
    usual = {"padding": "left" if kind in ("Siglip2Tokenizer", "GemmaTokenizer") else "right", "truncation": "right"}
    written = {part: str((found.get(part) or {}).get("direction", "")).lower() for part in usual}
    chosen = {f"{part}_side": config.get(f"{part}_side") or written[part] or side for part, side in usual.items()}
    if wrong := [f"{name}={side!r}" for name, side in chosen.items() if side not in ("left", "right")]:
        raise ArgumentError(f"a side of a tokenizer must be left or right.\nReceived: {wrong[0]}.", ("source",))
    return chosen


def warn_of_other_rules(folder: Path, software: str, words: Mapping[str, Any]) -> None:
    """Warns of each value by which a folder's software makes other ids than those that its models were trained on."""
    for word, value in words.items():
        warnings.warn(
            f"{word} {value!r} of {printable(folder / CONFIG)} or of its class is followed, as {software} does. The "
            "published models were trained with other ids, so a tower of theirs finds worse.",
            UserWarning,
            stacklevel=5,
        )


def warn_of_capitals(folder: Path, kind: str) -> None:
    """Warns of the class of older folders of SigLIP 2, which leaves capitals that the network has never seen."""
    if kind == "GemmaTokenizer":
        warnings.warn(
            "capitals become small letters here, as SigLIP 2 was trained. transformers leaves them, by tokenizer_class "
            f"{kind!r} of {printable(folder / CONFIG)}.",
            UserWarning,
            stacklevel=5,
        )


def warn_of_other_kind(folder: Path, kind: str, expected: str) -> None:
    """Warns of a class that reads files of another kind than those of the folder, which are read by their own."""
    if expected and kind not in (expected, "None", "PreTrainedTokenizer", "TokenizersBackend"):  # those read any file
        warnings.warn(
            f"tokenizer_class {kind!r} of {printable(folder / CONFIG)} is of other files than those of {expected}, "
            "whose rules are followed. transformers may give other ids.",
            UserWarning,
            stacklevel=5,
        )


def warn_of_pieces(file: Path, config: Mapping[str, Any], model: Any) -> None:
    """Warns of words and switches by which transformers' SigLIP makes other ids than a model of `sentencepiece`.

    Args:
        file: of the model.
        config: by `tokenizer_config`.
        model: of `sentencepiece`.
    """
    words = [config.get(f"{role}_token") for role in _ROLES if role not in ("bos", "eos", "pad")]
    words += [*(config.get("added_tokens_decoder") or {}).values()]
    words += [*_entries(config.get("extra_special_tokens")), *_entries(config.get("additional_special_tokens"))]
    named = filter(None, dict.fromkeys(map(_content, words)))
    lost = [word for word in named if model.id_to_piece(model.piece_to_id(word)) != word]
    lines = [f"{word!r:.60} is no piece of it, so transformers gives it an id beyond them" for word in lost[:6]]
    whole, twice = map(model.normalize, ("a", "a  b"))
    switches = {"add_dummy_prefix": whole == "▁a", "remove_extra_whitespaces": twice.strip("▁") == "a▁b"}
    lines += [f"its {word} is not SigLIP's" for word, is_usual in switches.items() if not is_usual]
    for line in lines:
        warnings.warn(
            f"{printable(file)} is followed as the library `sentencepiece` does. transformers makes other ids by rules "
            f"of its own: {line}.",
            UserWarning,
            stacklevel=5,
        )


def _entries(words: Any) -> Iterable[Any]:
    return words.values() if isinstance(words, dict) else words if isinstance(words, list) else ()


def _content(word: Any) -> str:
    return str(word.get("content", "")) if isinstance(word, dict) else word if isinstance(word, str) else ""
