"""Which tokenizer a folder or file has: its vocabulary, and what the software of the folder does around it."""

import base64
import contextlib
import json
import string
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_vit.checks import ArgumentError
from keras_vit.config.text import merge_config_dicts
from keras_vit.files import read_head, read_json_object, read_regular
from keras_vit.pages.formatting import printable
from keras_vit.text.classes import (
    by_class,
    class_of,
    sides,
    special_word,
    tokenizer_config,
    warn_of_capitals,
    warn_of_other_kind,
    warn_of_other_rules,
    warn_of_pieces,
)
from keras_vit.text.tokenizer import (
    CLIP_NORMALIZER,
    Pieces,
    Tokenizer,
    check_ids,
    check_pairs,
    clip_pieces,
    gemma_pieces,
    is_lower_ascii,
    read_pieces,
    sentencepiece_model,
    transformers_pieces,
)

_SENTENCEPIECE = ("spiece.model", "tokenizer.model", "sentencepiece.model", "sentencepiece.bpe.model")
_CLIP = "bpe_simple_vocab_16e6.txt.gz"
_FILES = ("tokenizer.json", *_SENTENCEPIECE, "vocab.json", _CLIP)  # the first that is there is taken
_MOST_BYTES = 1 << 27  # of a vocabulary; that of 900,000 pieces has 20 MB
_SINGLE = "keras_vit_tokenizer"  # first key of a file by `write_tokenizer_file`
_CLIP_LENGTH, _OTHER_LENGTH = 77, 64
_CLEANINGS = ("lower", "whitespace", "canonicalize")  # of OpenCLIP
_HF_LENGTHS = {"clip": 77, "metaclip_2": 77, "siglip": 64, "siglip2": 64, "tipsv2": 64}


_OWN = "keras_vit_tokenizer.json"  # what this package has written beside a vocabulary, which the library does not say
_WRITTEN = {"tokenizers": "tokenizer.json", "sentencepiece": "tokenizer.model", "fairseq": "sentencepiece.bpe.model"}


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes a vocabulary into a folder, with what is done around it, so that `open_tokenizer` gives the same ids."""
    (folder / _WRITTEN[tokenizer.pieces.kind]).write_bytes(tokenizer.pieces.data)
    (folder / _OWN).write_text(json.dumps({"kind": tokenizer.pieces.kind, **tokenizer.get_config()}, indent=2))


def write_transformers_tokenizer(tokenizer: Tokenizer, folder: Path, model_type: str) -> dict[str, Any]:
    """Writes a vocabulary as transformers opens it, and gives its `tokenizer_config.json`.

    Raises:
        ValueError: for a vocabulary that no tokenizer of transformers reads for such a model.

    Warns:
        UserWarning: if transformers cleans texts by other rules, which gives some texts other ids.
    """
    is_siglip = model_type in ("siglip", "siglip2")
    pieces = tokenizer.pieces
    if pieces.kind == "sentencepiece" and is_siglip:
        pieces = gemma_pieces(pieces.data) or pieces  # of SigLIP 2
    kind, data = pieces.kind, pieces.data
    config: dict[str, Any] = {"model_max_length": tokenizer.max_length, "model_input_names": ["input_ids"]}
    config["padding_side"] = tokenizer.padding_side  # on the left by default of some classes
    config["truncation_side"] = tokenizer.truncation_side
    special: dict[str, str | None]
    if kind == "sentencepiece" and is_siglip:
        name, cleaned = "SiglipTokenizer", "siglip_transformers"
        (folder / "spiece.model").write_bytes(data)
        special = {"eos": "</s>", "pad": "</s>", "unk": "<unk>"}
    elif kind == "tokenizers":
        found = json.loads(data)
        is_clip, is_pairs = '"</w>"' in data.decode(), found["model"].get("type") == "BPE"
        name, cleaned = ("CLIPTokenizer", "none") if is_clip else ("PreTrainedTokenizerFast", "none")
        if is_siglip and is_pairs and not is_clip:
            name, cleaned = "Siglip2Tokenizer", "lowercase"
            if tokenizer.clean == "lower_ascii" and model_type == "siglip":  # the other opens that class at any rate
                name, cleaned = "PreTrainedTokenizerFast", "lower_ascii"
                found |= {"normalizer": _lower_ascii(found, pieces)}
            # Without words for special ids texts that spell them are cut into pieces, as sentencepiece does.
            config |= {"mask_token": None} if name == "Siglip2Tokenizer" else {}  # which is a piece like others
            config["split_special_tokens"] = not any(word["special"] for word in found["added_tokens"])
        found |= {"normalizer": found.get("normalizer") or CLIP_NORMALIZER} if is_clip else {}
        (folder / "tokenizer.json").write_text(json.dumps(found), encoding="utf-8")
        word = read_pieces(data).id_to_token
        end = None if tokenizer.end_id is None else word(tokenizer.end_id)
        special = {"bos": None if tokenizer.start_id is None else word(tokenizer.start_id), "eos": end}
        special |= {"pad": end if is_clip else word(tokenizer.pad_id), "unk": end if is_clip else "<unk>"}
    else:
        raise ArgumentError(
            f"transformers must have a tokenizer of this vocabulary for {model_type}.\n"
            f"Received: pieces of {kind}. Save both towers for OpenCLIP.",
            ("format",),
        )
    if tokenizer.clean != cleaned:
        warnings.warn(
            f"transformers cleans texts otherwise than clean={tokenizer.clean!r} of this tokenizer, so that texts with "
            "punctuation, HTML entities or unusual letters may get other ids there.",
            UserWarning,
            stacklevel=4,
        )
    named = {f"{role}_token": token for role, token in special.items() if token is not None}
    return {"tokenizer_class": name, **named, **config}


def _lower_ascii(vocabulary: Mapping[str, Any], pieces: Pieces) -> Any:
    """The normalizer of a file of `tokenizers`, with small letters of ASCII first."""
    usual = vocabulary.get("normalizer")
    if is_lower_ascii(pieces):
        return usual
    rules = [{"type": "Replace", "pattern": {"String": a}, "content": a.lower()} for a in string.ascii_uppercase]
    return {"type": "Sequence", "normalizers": [*rules, *([usual] if usual else [])]}


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


def clip_tokenizer(max_length: int | None = None, clean: str | None = None) -> Tokenizer:
    """OpenAI's tokenizer of CLIP, whose vocabulary is shipped."""
    return Tokenizer(clip_pieces(), max_length or _CLIP_LENGTH, "lower" if clean is None else clean, pad_id=0)


def open_tokenizer(
    path: Path,
    max_length: int | None = None,
    clean: str | None = None,
    *,
    is_clip: bool = False,
    spelling: str = "openai",
    weights: Path | None = None,
) -> Tokenizer:
    """The tokenizer of a folder, or of one of its files.

    Args:
        path: a folder, or a file of a vocabulary.
        max_length: T; by default that of the config in the folder, else 77 for CLIP's vocabulary and 64 for others.
        clean: a word of `CLEANINGS`; by default what the software of the folder does.
        is_clip: whether the weights of the folder are of CLIP's vocabulary, which is then taken where there is none.
        spelling: how the software of the weights spells start and end where no config says it: `"openai"` or
            `"open_clip"`.
        weights: the file that the tokenizer is for, whose folder has the config; by default it is that of `path`.

    Raises:
        FileNotFoundError: if there is no vocabulary.
        ValueError: for a file that is none.
    """
    folder = weights.parent if weights else path if path.is_dir() else path.parent
    given = {name: value for name, value in (("max_length", max_length), ("clean", clean)) if value is not None}
    if path.is_dir() and (made := _own_tokenizer(path, given)):
        return made
    file = next((path / name for name in _FILES if (path / name).is_file()), None) if path.is_dir() else path
    if file is not None and (own := _written(file)) is not None:
        return Tokenizer(Pieces(own["kind"], own["pieces"]), **own["facts"] | given)
    if file is None and not is_clip:
        raise FileNotFoundError(
            f"a folder must have a tokenizer's file: {', '.join(_FILES)}.\nReceived: {path} without one. Put the file "
            "of the model's authors into it, or pass the folder that has one."
        )
    software, config = _software(folder, weights)
    model = str(config.get("model_type", ""))
    text = _object(config, "model_cfg", "text_cfg") if software == "open_clip" else _object(config, "text_config")
    is_by_name = software == "open_clip" and "hf_tokenizer_name" in text
    options = _open_clip_options(text, is_by_name)
    words = tokenizer_config(folder if file is None else file.parent)
    kind = class_of(words, model)
    facts: dict[str, Any] = {}
    unusual: dict[str, Any] = {}  # what other ids come from than those of training
    written: Mapping[str, Any] = {}
    if is_clip and software == "open_clip" and not is_by_name and file is not None and not file.name.endswith(".gz"):
        file = None  # OpenCLIP reads its own copy of CLIP's vocabulary, and a folder may have transformers' too
    name = "" if file is None else file.name
    if file is None or name.endswith((".gz", ".txt")):
        data = None if file is None else read_regular(file, _MOST_BYTES)
        with _named(file):
            pieces = clip_pieces(data, "open_clip" if software == "open_clip" else spelling)
        usual, length = "lower", _CLIP_LENGTH
        facts["pad_id"] = 0
    elif name.endswith(".model"):
        pieces = Pieces("fairseq" if "bpe" in name else "sentencepiece", read_regular(file, _MOST_BYTES))
        usual = "siglip_transformers" if model.startswith("siglip") else "lower_ascii"
        length = _OTHER_LENGTH
        is_named = name == "spiece.model" or "tokenizer_class" in words  # as that class has its file
        if model.startswith("siglip") and kind == "SiglipTokenizer" and is_named:
            with _named(file):
                unusual, facts["pad_id"] = _siglip_options(words, pieces)
            warn_of_pieces(file, words, sentencepiece_model(pieces))
            usual = "siglip_transformers_cased" if "do_lower_case" in unusual else usual
    else:
        # Small letters of that class are `clean` elsewhere, and OpenCLIP has another rule there.
        pieces, written = _of_json(file, words, kind, is_lower=is_by_name and kind == "Siglip2Tokenizer")
        usual = _usual_cleaning(model, written, pieces)
        length = _CLIP_LENGTH if '"</w>"' in pieces.data.decode() else _OTHER_LENGTH
        with _named(file):
            facts["pad_id"] = _padding(words, pieces, kind)
    if software == "open_clip":
        usual = options.get("clean") or ("whitespace" if is_by_name else "lower")
        facts["pad_id"] = facts.get("pad_id") if is_by_name else 0
        facts["written_end"] = 0 if options.get("strip_sep_token") else None
        length = text.get("context_length", _CLIP_LENGTH)
    elif model in _HF_LENGTHS:
        length = text.get("max_position_embeddings", _HF_LENGTHS[model])
    with _named(file):
        if file is not None and (model in _HF_LENGTHS or is_by_name):
            facts |= sides(words, kind, written)
            unusual |= {side: "left" for side in ("padding_side", "truncation_side") if facts[side] == "left"}
            warn_of_other_rules(file.parent, "OpenCLIP" if is_by_name else "transformers", unusual)
            warn_of_capitals(file.parent, kind if model == "siglip" and clean is None else "")
            warn_of_other_kind(file.parent, kind, _expected_class(file, model, pieces))
        return Tokenizer(pieces, max_length or length, usual if clean is None else clean, **facts)


def _usual_cleaning(model_type: str, found: Mapping[str, Any], pieces: Pieces) -> str:
    """How transformers cleans texts before the library `tokenizers` does what a `tokenizer.json` says."""
    if not model_type.startswith("siglip"):
        return "none"
    if found["model"].get("type") == "Unigram":
        return "siglip_transformers"
    return "lower_ascii" if is_lower_ascii(pieces) else "lowercase"


def _open_clip_options(text: Mapping[str, Any], is_by_name: bool) -> dict[str, Any]:
    """`tokenizer_kwargs` of a `text_cfg`; raises for those by which OpenCLIP would make other ids than are made here.

    Args:
        text: `text_cfg`.
        is_by_name: whether it names a tokenizer of transformers, whose class has other arguments than CLIP's.
    """
    options = _object(text, "tokenizer_kwargs")
    known = {"clean": _CLEANINGS} | ({"strip_sep_token": (True, False)} if is_by_name else {"reduction_mask": ("",)})
    wrong = {word: value for word, value in options.items() if value not in known.get(word, ())}
    wrong |= {word: text[word] for word in ("tokenizer_mode",) if text.get(word)}
    if wrong:
        word = next(iter(wrong))
        raise ArgumentError(
            "`tokenizer_kwargs` may set `clean` to lower, whitespace or canonicalize, and `strip_sep_token` where "
            "`hf_tokenizer_name` is given; with others OpenCLIP makes other ids, or opens no tokenizer.\n"
            f"Received: {word}={wrong[word]!r:.60} in open_clip_config.json. If OpenCLIP opens the folder without it, "
            "take it out.",
            ("source",),
        )
    return options


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
    if not is_tokenizer_file(file):
        return None
    try:
        found = json.loads(read_regular(file, _MOST_BYTES))
        pieces = base64.b64decode(found["pieces"], validate=True)
        if found[_SINGLE] == 1 and found["kind"] in _WRITTEN and {"max_length", "clean"} <= set(found["facts"]):
            return found | {"pieces": pieces}
    except (ValueError, KeyError, TypeError):
        pass
    raise ArgumentError(
        "a tokenizer's file must be whole, and as this version of keras_vit or an older one wrote it.\n"
        f"Received: {printable(file)}. Export the text tower again.",
        ("source",),
    )


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
            return software, merge_config_dicts(config)
    return "authors", {}


def _object(config: Mapping[str, Any], *names: str) -> dict:
    for name in names:
        found = config.get(name)
        config = found if isinstance(found, dict) else {}
    return dict(config)


@contextlib.contextmanager
def _named(file: Path | None) -> Iterator[None]:
    """Adds the file to an error on its vocabulary."""
    try:
        yield
    except ArgumentError as error:
        if file is None or "source" not in error.parameters:
            raise
        raise ArgumentError(f"{error} File: {printable(file)}.", error.parameters) from error


def _of_json(file: Path, config: Mapping[str, Any], kind: str, is_lower: bool) -> tuple[Pieces, Mapping[str, Any]]:
    """The pieces of a `tokenizer.json`, or of a `vocab.json` with its merges; and the object of the file.

    Args:
        file: of the vocabulary.
        config: what transformers says of it.
        kind: the class of transformers that opens it.
        is_lower: whether all letters become small before they are cut.
    """
    data = read_regular(file, _MOST_BYTES)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"a tokenizer's file must be JSON.\nReceived: {file}, {error}.", ("source",)) from error
    if file.name == "vocab.json":
        if not file.with_name("merges.txt").is_file():
            raise FileNotFoundError(f"a vocab.json needs the merges.txt next to it.\nReceived: {file} alone.")
        merges = read_regular(file.with_name("merges.txt"), _MOST_BYTES)
        with _named(file):
            data, kind = transformers_pieces(found, merges.decode(errors="replace")).data, "CLIPTokenizer"
        found = json.loads(data)
    model = found.get("model") if isinstance(found, dict) else None
    if not isinstance(model, dict):
        raise ArgumentError(
            f"a tokenizer's file must be one of the library `tokenizers`.\nReceived: {file} without `model`.",
            ("source",),
        )
    with _named(file):
        if isinstance(model.get("vocab"), (dict, list)):  # without, the library says what it misses
            made = by_class(found, config, kind)
            if is_lower:
                rules = [{"type": "Lowercase"}, *([made["normalizer"]] if made.get("normalizer") else [])]
                made |= {"normalizer": {"type": "Sequence", "normalizers": rules}}
            data, found = (data, found) if made == found else (json.dumps(made).encode(), made)
        _check_pairs(found)
    return Pieces("tokenizers", data), found


def _check_pairs(found: Mapping[str, Any]) -> None:
    """Raises for a `tokenizer.json` whose ids are drawn, or a damaged one."""
    model = found["model"]
    vocab, merges, suffix = model.get("vocab"), model.get("merges"), model.get("end_of_word_suffix")
    is_clip = isinstance(vocab, dict) and isinstance(merges, list) and any(word.endswith("</w>") for word in vocab)
    if model.get("dropout") or (is_clip and (suffix != "</w>" or not found.get("pre_tokenizer"))):
        raise ArgumentError(
            "a tokenizer must give a text the same ids each time, and one of CLIP's kind reads words with '</w>' at "
            f"their ends.\nReceived: dropout={model.get('dropout')}, end_of_word_suffix={suffix!r}, pre_tokenizer "
            f"{found.get('pre_tokenizer')!r:.40}. Take the file of the model's authors.",
            ("source",),
        )
    if isinstance(vocab, dict) and vocab:
        with contextlib.suppress(TypeError, KeyError):  # of what the library refuses
            others = [word["id"] for word in found.get("added_tokens") or ()]
            if not is_clip:
                return check_ids(vocab, others)
            check_pairs(vocab, [pair.split(" ") if isinstance(pair, str) else pair for pair in merges], others)


def _expected_class(file: Path, model_type: str, pieces: Pieces) -> str:
    """The class of transformers that reads the files of a folder, `""` where there are several."""
    if model_type == "siglip" and file.name == "spiece.model":
        return "SiglipTokenizer"
    return "CLIPTokenizer" if pieces.kind == "tokenizers" and b'"</w>"' in pieces.data else ""


def _siglip_options(config: Mapping[str, Any], pieces: Pieces) -> tuple[dict[str, Any], int | None]:
    """What a config sets otherwise than that of the published SigLIP, and the id of padding."""
    unusual: dict[str, Any] = {} if config.get("do_lower_case", True) else {"do_lower_case": False}
    model = sentencepiece_model(pieces)
    end, pad = (special_word(config, role, "SiglipTokenizer") for role in ("eos", "pad"))
    number = None if pad is None else model.piece_to_id(pad)
    if (end and model.piece_to_id(end) != model.eos_id()) or (pad and model.id_to_piece(number) != pad):
        raise ArgumentError(
            "the end of texts must be the piece that ends them in the model of sentencepiece, and padding one of its "
            f"pieces.\nReceived: eos_token {end!r} and pad_token {pad!r}, where the model has "
            f"{model.id_to_piece(max(model.eos_id(), 0))!r}. Correct the folder's config.",
            ("source",),
        )
    return unusual | ({} if pad in (None, "</s>") else {"pad_token": pad}), number


def _padding(config: Mapping[str, Any], pieces: Pieces, kind: str) -> int:
    """The id of padding: that of the folder's config or its class, else of the tokenizer's file, else 0."""
    model, word = read_pieces(pieces.data), special_word(config, "pad", kind)
    known = model.token_to_id(word) if word else None
    return known if known is not None else (model.padding or {}).get("pad_id", 0)
