"""From texts to ids: the vocabularies of CLIP, SigLIP, SigLIP 2, MetaCLIP 2, CLIPA and TIPS, by the libraries of each.

`tokenizers` and `sentencepiece` cut a text into pieces. What stands before (cleaning) and after (start, end, padding
and the cut to the length) is here, since no file of a vocabulary says it.
"""

import collections
import dataclasses
import functools
import gzip
import importlib.resources
import io
import json
import re
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Any

import numpy as np

from keras_vit.checks import ArgumentError, check_choice, check_installed, check_positive_int, with_parameters
from keras_vit.text.cleaning import CLEANINGS

_HALVES = re.compile("[\ud800-\udfff]")
_SPELLED = re.compile("▁?(<.+>)?")  # what the words of special ids are, of which there may be none
_AT_ONCE = 8192  # texts; the libraries keep much more of each than its ids
_CLIP_MERGES = 49152 - 256 - 2  # of the lines below the header; the others are not read
_MOST_BYTES = 1 << 24  # of them; OpenAI's have 3 MB
_CLIP_PIECES = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
SPECIAL_FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
_SPECIAL = {"openai": ("<|startoftext|>", "<|endoftext|>"), "open_clip": ("<start_of_text>", "<end_of_text>")}


@dataclasses.dataclass(frozen=True)
class Pieces:
    """A vocabulary as its file has it: what a `.keras` file and a pickle keep of it.

    Attributes:
        kind: `"tokenizers"`, the JSON of that library; `"sentencepiece"`, a model of that one; or `"fairseq"`, such a
            model whose ids are in the order of XLM-R.
        data: of it.
    """

    kind: str
    data: bytes


class Tokenizer:
    """Makes ids of texts. `keras_vit.tokenizer` opens one.

    Attributes:
        max_length: T, ids of a text.
        vocabulary_size: number of ids.
        pad_id: what follows the end of a short text.
        start_id: first id of every text, or `None`.
        end_id: last id of every text, or `None`.
        clean: what is done to a text first, a word of `keras_vit.text.cleaning.CLEANINGS`.
        padding_side: `"right"`, or `"left"`, where a short text is padded.
        truncation_side: the same of where a long one is cut.
    """

    def __init__(
        self,
        pieces: Pieces,
        max_length: int,
        clean: str,
        pad_id: int | None = None,
        written_end: int | None = None,
        padding_side: str = "right",
        truncation_side: str = "right",
    ) -> None:
        self.max_length = check_positive_int("max_length", max_length)
        check_choice("clean", clean, tuple(CLEANINGS))
        self.pieces, self.clean, self.written_end = pieces, clean, written_end
        self.padding_side, self.truncation_side = padding_side, truncation_side
        self.start_id, self.end_id, self.vocabulary_size, default = _facts(self._encode)
        self.pad_id = default if pad_id is None else pad_id
        if self.max_length < sum(special is not None for special in (self.start_id, self.end_id)):
            raise ArgumentError(
                f"`max_length` must leave room for start and end.\nReceived: max_length={max_length}.", ("max_length",)
            )

    @functools.cached_property
    def _encode(self) -> "_Encoder":
        return _ENCODERS[self.pieces.kind](self.pieces.data)

    def __call__(self, texts: str | Sequence[str]) -> np.ndarray:
        """int32 `(B, max_length)` of one text or of several.

        A text that is too long loses what stands before its end, or behind its start if it is cut on the left.

        Raises:
            TypeError: for what is no text.
            ImportError: if a library that this text needs is not installed.
        """
        return self.ids_and_lengths(texts)[0]

    def ids_and_lengths(self, texts: str | Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The same, and how many ids each text has, `(B,)`: above `max_length` where it is cut."""
        texts = check_texts("texts", texts)
        ids = np.full((len(texts), self.max_length), self.pad_id, "int32")
        lengths = np.zeros(len(texts), "int64")
        clean = CLEANINGS[self.clean]
        parts = (texts[start : start + _AT_ONCE] for start in range(0, len(texts), _AT_ONCE))
        encoded = (found for part in parts for found in self._encode([clean(text) for text in part]))
        for number, (row, found) in enumerate(zip(ids, encoded, strict=True)):
            lengths[number] = len(found)
            if len(found) > self.max_length and self.truncation_side == "left":
                first = int(self.start_id is not None)
                found = found[:first] + found[len(found) - self.max_length + first :]
            elif len(found) > self.max_length:
                found = found[: self.max_length]
                found[-1] = found[-1] if self.end_id is None else self.end_id
            begin = self.max_length - len(found) if self.padding_side == "left" else 0
            row[begin : begin + len(found)] = found
        if self.written_end is not None:  # CLIPA's networks were trained with another id in place of the end
            ids[ids == self.end_id] = self.written_end
        return ids, lengths

    def has_words_from(self, first: int) -> bool:
        """Whether an id of at least `first` is a piece of texts, and no special one in `<>`."""
        return any(not _SPELLED.fullmatch(self._encode.word(number)) for number in range(first, self.vocabulary_size))

    def get_config(self) -> dict[str, Any]:
        """What `__init__` takes, but for the pieces."""
        names = ("max_length", "clean", "pad_id", "written_end", "padding_side", "truncation_side")
        return {name: getattr(self, name) for name in names}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_encode"}

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocabulary_size} ids, max_length={self.max_length}, clean={self.clean!r})"


def cut_and_equal_texts(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[set[str], list[list[str]]]:
    """Those of different texts that are cut, and groups of those that have the same ids."""
    cut, by_ids = set(), collections.defaultdict(list)
    for start in range(0, len(texts), _AT_ONCE):
        part = texts[start : start + _AT_ONCE]
        for text, row, length in zip(part, *tokenizer.ids_and_lengths(part), strict=True):
            if length > tokenizer.max_length:
                cut.add(text)
            by_ids[hash(row.tobytes())].append(text)
    return cut, [group for group in by_ids.values() if len(group) > 1]


def check_texts(name: str, texts: Any, rule: str = "a text or a list of texts") -> list[str]:
    """`texts` as a list; raises unless it is a `str` or a sequence of them. The order of a set follows hashes."""
    found = texts.tolist() if isinstance(texts, np.ndarray) and texts.ndim < 2 else texts
    if isinstance(found, (bytes, Mapping, Set)) or not hasattr(found, "__iter__"):
        raise with_parameters(TypeError(f"`{name}` must be {rule}.\nReceived: {texts!r:.80}."), name)
    found = [found] if isinstance(found, str) else list(found)
    for place, text in enumerate(found):
        if not isinstance(text, str):
            raise with_parameters(
                TypeError(f"`{name}` must be texts.\nReceived: {text!r:.60} of type {type(text).__name__} at {place}."),
                name,
            )
        if not text.isascii() and _HALVES.search(text):
            raise ArgumentError(
                f"`{name}` must be whole letters, and no halves of UTF-16's pairs, which no vocabulary has.\n"
                f"Received: {text!r:.60} at {place}. Read the file as UTF-8."
            )
    return found


_Facts = tuple[int | None, int | None, int, int]  # start, end, vocabulary, padding
_Encoder = Any  # a call of texts gives their ids, and `word` that of an id


def _no_vocabulary(library: str, error: Exception) -> ArgumentError:
    return ArgumentError(
        f"a tokenizer's file must be one of the library `{library}`.\nReceived: {' '.join(str(error).split())[:120]}. "
        "It may be cut short, or a pointer of Git LFS.",
        ("source",),
    )


def read_pieces(data: bytes) -> Any:
    """The JSON of the library `tokenizers` as its own object."""
    check_installed("tokenizers", "this vocabulary is read by it", "text")
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(data.decode())
    except Exception as error:  # the library has no kind of its own
        raise _no_vocabulary("tokenizers", error) from error


class _ByTokenizers:
    """Ids by the library `tokenizers`; special ids stand where its file puts them."""

    def __init__(self, data: bytes) -> None:
        self.model = read_pieces(data)
        self.model.no_padding()
        self.model.no_truncation()
        (whole,), (bare,) = self(["a"]), ([*self.model.encode("a", add_special_tokens=False).ids],)
        begin = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
        after = whole[begin + len(bare) :]
        self.start, self.end = (whole[0] if begin else None), (after[-1] if after else None)
        self.size, self.padding = self.model.get_vocab_size(), 0

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.model.encode_batch_fast(list(texts))]

    def word(self, number: int) -> str:
        return self.model.id_to_token(number) or ""


class _BySentencePiece:
    """Ids by the library `sentencepiece`, with the end that its model names; a start is never added."""

    def __init__(self, data: bytes) -> None:
        check_installed("sentencepiece", "this vocabulary is read by it", "text")
        import sentencepiece

        try:
            if not data:  # which the library takes, and fails at the first text
                raise RuntimeError("an empty file")
            self.model = sentencepiece.SentencePieceProcessor(model_proto=data)
        except RuntimeError as error:
            raise _no_vocabulary("sentencepiece", error) from error
        end = self.model.eos_id()
        self.start: int | None = None
        self.end: int | None = None if end < 0 else end
        self.size = self.model.vocab_size()
        self.padding = end if self.model.bos_id() < 0 <= end else 0

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        ends = [] if self.end is None else [self.end]
        return [ids + ends for ids in self.model.encode(list(texts), out_type=int)]

    def word(self, number: int) -> str:
        return str(self.model.id_to_piece(number))


def sentencepiece_model(pieces: Pieces) -> Any:
    """The own object of the library `sentencepiece`."""
    return _BySentencePiece(pieces.data).model


class _ByFairseq(_BySentencePiece):
    """The same in the order of fairseq: ids 0 to 3 are start, padding, end and unknown, and pieces are one further."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.start, self.end, self.size, self.padding = 0, 2, self.size + 1, 1

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        unknown = self.model.unk_id()
        found = self.model.encode(list(texts), out_type=int)
        return [[0, *(3 if piece == unknown else piece + 1 for piece in ids), 2] for ids in found]

    def word(self, number: int) -> str:
        return super().word(number - 1)


_ENCODERS: Mapping[str, Callable[[bytes], Any]] = {
    "tokenizers": _ByTokenizers,
    "sentencepiece": _BySentencePiece,
    "fairseq": _ByFairseq,
}


def _facts(encoder: Any) -> _Facts:
    return encoder.start, encoder.end, encoder.size, encoder.padding


def clip_pieces(vocabulary: bytes | None = None, software: str = "openai") -> Pieces:
    """CLIP's byte pairs as a file of the library `tokenizers`.

    Args:
        vocabulary: lines of merges below a header, perhaps in gzip; by default OpenAI's, which is shipped.
        software: `"openai"` or `"open_clip"`, which spell start and end otherwise.
    """
    if vocabulary is None:
        vocabulary = (importlib.resources.files("keras_vit.text") / "vocabulary" / "clip.txt.gz").read_bytes()
    try:
        is_gzip, file = vocabulary[:2] == b"\x1f\x8b", io.BytesIO(vocabulary)
        data = (gzip.GzipFile(fileobj=file) if is_gzip else file).read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES:,} bytes")
        text = data.decode()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise _no_vocabulary("open_clip", error) from error
    merges, letters = _merges(text), _byte_letters()
    if not merges:
        raise _no_vocabulary("open_clip", ValueError("no merges"))
    words = [*letters, *(f"{letter}</w>" for letter in letters), *map("".join, merges), *_SPECIAL[software]]
    return _byte_pairs({word: number for number, word in enumerate(words)}, merges, _SPECIAL[software], None)


CLIP_NORMALIZER = {  # of transformers' CLIPTokenizer
    "type": "Sequence",
    "normalizers": [
        {"type": "NFC"},
        {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
        {"type": "Lowercase"},
    ],
}


def transformers_pieces(vocab: Mapping[str, int], merges: str) -> Pieces:
    """The same of transformers' two files, whose software cleans texts by rules of its own.

    Args:
        vocab: the object of `vocab.json`.
        merges: the text of `merges.txt`.

    Raises:
        ValueError: as `check_pairs`.
    """
    pairs = _merges(merges)
    check_pairs(vocab, pairs)
    return _byte_pairs(vocab, pairs, _SPECIAL["openai"], CLIP_NORMALIZER)


def check_pairs(vocab: Mapping[str, int], pairs: Sequence[Sequence[str]], others: Collection[int] = ()) -> None:
    """Raises for a damaged vocabulary of CLIP's kind, by which texts would get other ids.

    Args:
        vocab: ids by words.
        pairs: that are merged.
        others: ids of special words, which may be outside of `vocab`.

    Raises:
        ValueError: for words, other than bytes and those in `<>`, that no merge makes; for ids that are not 0, 1, ...
    """
    made = {"".join(pair) for pair in pairs}
    words = [word for word in vocab if len(word.removesuffix("</w>")) > 1 and not re.fullmatch("<.+>", word)]
    lost = [word for word in words if word not in made]
    rule = "each word of a vocabulary of CLIP's kind must have one id and be a byte, or be made by a merge"
    if lost:
        raise _damaged(rule, vocab, f"{len(pairs):,} merges, which do not make {len(lost):,}, as {lost[0]!r:.40}")
    check_ids(vocab, others, rule)


def check_ids(
    vocab: Mapping[str, int],
    others: Collection[int] = (),
    rule: str = "each word of a vocabulary must have one id, and no id from 0 on may be left out",
) -> None:
    """Raises unless the ids of words, with those of `others`, are 0, 1, ..., each once; arguments as `check_pairs`."""
    ids = [*vocab.values()]
    if len({*ids}) < len(ids) or {*ids, *others} != {*range(len({*ids, *others}))}:
        raise _damaged(rule, vocab, f"ids that stand twice or are left out of 0 to {max(ids)}")


def _damaged(rule: str, vocab: Mapping[str, int], wrong: str) -> ArgumentError:
    return ArgumentError(
        f"{rule}.\nReceived: {len(vocab):,} words and {wrong}. The file may be cut short, or of another model.",
        ("source",),
    )


def clip_rules(found: dict[str, Any]) -> dict[str, Any]:
    """A `tokenizer.json` by the rules of transformers' CLIPTokenizer, which keeps words and merges of a file alone."""
    special = _SPECIAL["openai"]
    usual = json.loads(_byte_pairs(dict.fromkeys(special, 0), (), special, CLIP_NORMALIZER).data)
    model = {name: usual["model"][name] for name in ("end_of_word_suffix", "dropout", "continuing_subword_prefix")}
    rules = {name: usual[name] for name in ("normalizer", "pre_tokenizer")}
    return found | rules | {"model": found["model"] | model}


def gemma_pieces(data: bytes) -> Pieces | None:
    """Gemma's model of sentencepiece, that of SigLIP 2, as a file of the library `tokenizers`, with the same ids.

    A text that spells a special id, as `<eos>`, is cut into pieces as sentencepiece cuts it.

    Args:
        data: of the model.

    Returns:
        `None` for a model of another kind: one that is no BPE, or that changes texts itself.
    """
    model = _BySentencePiece(data).model
    ids, end = range(model.vocab_size()), model.eos_id()
    words, scores = model.id_to_piece([*ids]), model.get_score([*ids])
    changes = "".join(model.encode("a  ﬁ", out_type=str)) not in ("a▁▁ﬁ", "a▁▁<0xEF><0xAC><0x81>")
    if changes or end < 0 or -1.0 not in scores or not all(map(float.is_integer, scores)):  # of a BPE: 0, -1, -2, ...
        return None
    check_installed("tokenizers", "this vocabulary is written by it", "text")
    import tokenizers

    first = scores.index(-1.0) - 1  # that is merged; the file has whole words of its makers before it
    known = {words[i]: scores[i] for i in ids[first:] if not model.is_unused(i) and not model.is_byte(i)}
    halves = (
        (word[:cut], word[cut:])
        for word in sorted(known, key=known.__getitem__, reverse=True)
        for cut in range(1, len(word))
    )
    pairs = [pair for pair in halves if known.keys() >= {*pair}]
    options = {"fuse_unk": True, "byte_fallback": any(map(model.is_byte, ids))}
    vocabulary = {word: number for number, word in enumerate(words)}
    pieces = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, pairs, unk_token=words[model.unk_id()], **options))
    pieces.post_processor = tokenizers.processors.TemplateProcessing(
        single=["$A", words[end]], pair=["$A", "$B", words[end]], special_tokens=[(words[end], end)]
    )
    pieces.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    special = (model.is_control, model.is_unknown, model.is_byte, model.is_unused)
    wholes = [words[i] for i in ids[:first] if not any(is_special(i) for is_special in special)]
    # Those with capitals never stand in a text, whose letters are small.
    pieces.add_tokens([tokenizers.AddedToken(word, normalized=True) for word in wholes if word == word.lower()])
    return Pieces("tokenizers", pieces.to_str().encode())


def is_lower_ascii(pieces: Pieces) -> bool:
    """Whether a vocabulary of the library `tokenizers` makes letters small itself, of ASCII alone."""
    normalizer = read_pieces(pieces.data).normalizer
    return normalizer is not None and normalizer.normalize_str("AÉ") == "aÉ"


def _merges(text: str) -> list[tuple[str, ...]]:
    return [tuple(line.split()) for line in text.split("\n")[1 : 1 + _CLIP_MERGES] if line]


def _byte_pairs(
    vocab: Mapping[str, int],
    merges: Sequence[tuple[str, ...]],
    special: tuple[str, str],
    normalizer: Any,
) -> Pieces:
    # OpenAI's and OpenCLIP's code looks for these without regard to case, that of transformers in small letters alone.
    regex = _CLIP_PIECES if normalizer else f"(?i:{'|'.join(map(re.escape, special))}|{_CLIP_PIECES})"
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Removed", "invert": True}
    to_letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    model = {"type": "BPE", "end_of_word_suffix": "</w>", "vocab": vocab, "merges": merges, "unk_token": None}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": vocab[word], "content": word, **SPECIAL_FLAGS} for word in special],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, to_letters]},
        "post_processor": template(*((word, vocab[word]) for word in special)),
        "model": model
        | {"dropout": None, "continuing_subword_prefix": None, "fuse_unk": False, "byte_fallback": False},
    }
    return Pieces("tokenizers", json.dumps(tokenizer).encode())


def template(start: tuple[str, int], end: tuple[str, int]) -> dict[str, Any]:
    """What puts start and end, each a word and its id, around the ids of a text, for the library `tokenizers`."""
    (first, last) = ({"SpecialToken": {"id": word, "type_id": 0}} for word, _ in (start, end))
    text, other = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [first, text, last],
        "pair": [first, text, other, last],
        "special_tokens": {word: {"id": word, "ids": [number], "tokens": [word]} for word, number in (start, end)},
    }


def _byte_letters() -> list[str]:
    """A letter for each byte, in the order of CLIP's ids: printable ones first, the others from letter 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [*map(chr, printable), *(chr(256 + place) for place in range(len(others)))]
