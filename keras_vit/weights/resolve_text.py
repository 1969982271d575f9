"""From what users write in `weights=` to the file with the text tower, its vocabulary, and what no file says of it.

`text.csv` has where the text towers of published names are, by those who publish both towers; files of one tower are
of the same training. Vocabularies that stand next to no weights are Google's. Imports neither Keras nor TensorFlow.
"""

import dataclasses
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError
from keras_vit.config.vit import ViTConfig
from keras_vit.files import expand_path, read_json_object
from keras_vit.text.opening import has_vocabulary, vocabulary_name
from keras_vit.weights import registry
from keras_vit.weights.download import DownloadError, OfflineError, RemoteFile, fetch
from keras_vit.weights.download.cache import Check, place_at_hand
from keras_vit.weights.download.hugging_face import find_in_library_cache, is_missing
from keras_vit.weights.read.sharded import INDEX, scan_any
from keras_vit.weights.registry import WeightsRecord, find_weights
from keras_vit.weights.registry.record import read_text_rows
from keras_vit.weights.resolve import (
    HF_NAME,
    check_weights,
    fetch_whole,
    file_of_hub,
    find_file,
    is_path,
    is_url,
    remote_file,
    warn_terms,
)

_GOOGLE = "https://storage.googleapis.com/"
_VOCABULARIES = {
    "c4_en": "t5-data/vocabs/cc_en.32000/sentencepiece.model",
    "mc4": "t5-data/vocabs/mc4.250000.100extra/sentencepiece.model",
    "gemma": "big_vision/gemma_tokenizer.model",
    "tips": "tips_data/v1_0/checkpoints/tokenizer.model",
}
_FILES_OF_WORDS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
# What a repository may have next to a file of both towers: which tower it is, and its tokenizer.
TEXT_FILES = (
    *("config.json", "open_clip_config.json", *_FILES_OF_WORDS, "tokenizer.json"),
    *("spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "vocab.json", "merges.txt"),
    *("bpe_simple_vocab_16e6.txt.gz", "keras_vit_tokenizer.json"),
)
_OPEN_CLIP_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")  # as OpenCLIP looks for them
_OWN_FILES = tuple(f"{name}{end}" for end in ("", INDEX) for name in ("model.safetensors", "pytorch_model.bin"))
_OF_OPEN_CLIP = ("timm", "laion", "apple", "UCSC-VLAA")  # whose repositories have both towers in its files


@dataclasses.dataclass(frozen=True)
class TextSource:
    """Where a text tower is.

    Attributes:
        path: the file of the weights, or a folder with one.
        vocabulary: its tokenizer's file, where that is not in the same folder.
        fields: of `TextConfig`, that no file says and the record does.
        record: the published image tower that it belongs to, or `None`.
    """

    path: Path
    vocabulary: Path | None = None
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    record: WeightsRecord | None = None

    @property
    def facts(self) -> dict[str, tuple[Any, str]]:
        """`fields`, each with its source."""
        if self.record is None:
            return {}
        return {name: (value, f"the record of {self.record.name}") for name, value in self.fields.items()}

    def contradictions(self, stated: Mapping[str, Any]) -> tuple[str, ...]:
        """A line for each of `fields` that the config of the folder has otherwise."""
        differing = {n: v for n, v in self.fields.items() if stated.get(n) not in (None, v)}
        return tuple(f"{n} {v} of the record, where the folder has {stated[n]}" for n, v in differing.items())


def find_text(weights: FilePath | WeightsRecord, variant: str | None = None) -> TextSource:
    """The text tower of weights, downloaded if it must be.

    Args:
        weights: as for `find_file`, or the record of an image tower.
        variant: an encoder as `"clip/B16"`, whose weights a name is of.

    Raises:
        FileNotFoundError: if it is a path, and nothing is there.
        ValueError: for an unknown name, or one without a text tower.
        DownloadError: (an `OSError`) if it cannot be brought.
    """
    if isinstance(weights, WeightsRecord):
        return _of_record(weights)
    check_weights(weights)
    name = str(weights)
    if is_url(name):
        return TextSource(find_file(weights, variant).path)
    if not name.startswith("hf:") and is_path(name):
        return TextSource(expand_path(weights))
    if not name.startswith("hf:"):
        return _of_record(find_weights(name, variant) if variant is not None else find_weights(name))
    match = HF_NAME.fullmatch(name)
    if match is None:
        raise ArgumentError(f"a Hugging Face name must be `hf:owner/repository`.\nReceived: weights={name!r}.")
    known = next((r for r in registry.all_records() if f"hf:{r.hf_repo}" == name and _row_of(r)), None)
    return _of_repository(match[1], match[2]) if known is None else _of_record(known)


def _row_of(record: WeightsRecord) -> Mapping[str, str] | None:
    """The row of `text.csv` of an image tower, or `None`."""
    return next((r for r in read_text_rows() if (r["name"], r["variant"]) == (record.name, record.variant)), None)


def _of_record(record: WeightsRecord) -> TextSource:
    row = _row_of(record)
    if row is None and record.layout in ("huggingface_siglip", "huggingface_clip") and record.hf_repo:
        return dataclasses.replace(_of_repository(record.hf_repo, None, (), record), record=record)
    if row is None:
        raise ArgumentError(
            "published weights must have a text tower, and these have none.\n"
            f"Received: weights={record.name!r} of {record.variant}. CLIP, SigLIP, EVA-CLIP, Perception Encoder and "
            "TIPS have one, as clip/B16 and siglip/B16."
        )
    fields: dict[str, Any] = {"num_heads": int(row["num_heads"])} if row["num_heads"] else {}
    # One switch rules the activations of both towers.
    if record.family in ("clip", "tinyclip") and isinstance(record.config, ViTConfig):
        fields["activation"] = record.config.activation
    if row["text"].startswith("hf:"):
        repository = row["text"].removeprefix("hf:")
        names = _OPEN_CLIP_FILES if _is_of_open_clip(repository) else ()
        found = _of_repository(repository, None, names, record)
        return dataclasses.replace(found, fields=fields, record=record)
    file = _remote(row["text"]) if row["text"] else remote_file(record)
    warn_terms(record, place_at_hand(file))
    path = fetch(file, check=_check)
    vocabulary = _VOCABULARIES.get(row["vocabulary"])
    return TextSource(path, None if vocabulary is None else fetch(_remote(_GOOGLE + vocabulary)), fields, record)


def _remote(url: str) -> RemoteFile:
    return RemoteFile(url, urllib.parse.urlparse(url).path.lstrip("/"))


def _check(path: Path) -> None:
    scan_any(path).check()


def _of_repository(
    repository: str, revision: str | None, names: tuple[str, ...] = (), record: WeightsRecord | None = None
) -> TextSource:
    """A repository's file of both towers, with its tokenizer, which OpenCLIP may name in another repository."""
    if not names:
        names = (*_OPEN_CLIP_FILES, *_OWN_FILES) if _is_of_open_clip(repository) else (*_OWN_FILES, *_OPEN_CLIP_FILES)
    files = [file_of_hub(repository, revision, name) for name in names]
    at_hand = (place_at_hand(file) or find_in_library_cache(file, repository, revision) for file in files)
    warn_terms(record, next(filter(None, at_hand), None) if record and record.terms else None)
    path = _first(repository, revision, files, TEXT_FILES, _check)
    elsewhere = vocabulary_name(read_json_object(path.with_name("open_clip_config.json")) or {})
    if has_vocabulary(path.parent) or not elsewhere or path.name not in _OPEN_CLIP_FILES:
        return TextSource(path)
    files = [file_of_hub(elsewhere, None, name) for name in ("tokenizer.json", "spiece.model")]
    return TextSource(path, _first(elsewhere, None, files, _FILES_OF_WORDS, lambda path: None))


def _is_of_open_clip(repository: str) -> bool:
    return repository.partition("/")[0] in _OF_OPEN_CLIP


def _first(repository: str, revision: str | None, files: Sequence[RemoteFile], others: tuple, check: Check) -> Path:
    """The first of some files that a repository has, or that is at hand without a network."""
    first: DownloadError | None = None
    for file in files:
        try:
            return fetch_whole(file, repository, revision, check, others)
        except DownloadError as error:
            if not isinstance(error, OfflineError) and not is_missing(error):
                raise
            first = first or error
    raise first or AssertionError("a repository is searched for one name at least")
