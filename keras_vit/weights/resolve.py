"""From what users write in `weights=` to a file on this machine, and the record of what it is.

A published name, a path, a folder, an https URL, or `hf:owner/repository`; imports neither Keras nor
TensorFlow, and huggingface_hub only for `hf:` names.
"""

import dataclasses
import hashlib
import logging
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError, with_parameters
from keras_vit.config.variants import RESNETS, VARIANTS
from keras_vit.files import access_error, expand_path, file_sha256
from keras_vit.weights.checkpoint import TOWERS_FILE, WEIGHT_FILES, file_in
from keras_vit.weights.download import fetch
from keras_vit.weights.download.cache import Check, place_at_hand
from keras_vit.weights.download.hugging_face import JSON_FILES, fetch_from_hub, find_in_library_cache, is_missing
from keras_vit.weights.download.remote import DownloadError, RemoteFile
from keras_vit.weights.file_checks import check_file, check_for
from keras_vit.weights.metadata.open_clip import NAME as OPEN_CLIP
from keras_vit.weights.read import CheckpointError, open_checkpoint
from keras_vit.weights.read.sharded import INDEX, read_index, scan_any
from keras_vit.weights.registry import WeightsRecord, all_records, find_weights
from keras_vit.weights.registry.augreg import looks_like_augreg
from keras_vit.weights.registry.record import display_name

_SUFFIXES = (".npz", ".safetensors", ".pth", ".pt", ".pth.tar", ".bin", INDEX)
_USUAL_NAMES = ("model.safetensors", "pytorch_model.bin")  # which some records have; other names are of one model
_LOGGER = logging.getLogger("keras_vit")
_RANDOM = ("", "false", "none", "null", "random", "scratch")  # which other software takes for no weights
HF_NAME = re.compile(r"hf:([\w.-]+/[\w.-]+)(?:@(\w[\w./-]*))?")


@dataclasses.dataclass(frozen=True)
class WeightsFile:
    """A file, and the record of the table if it is a published one."""

    path: Path
    record: WeightsRecord | None = None


def find_file(weights: FilePath, variant: str | None, *, sha256: str | None = None) -> WeightsFile:
    """The file that `weights` names, downloaded if it must be.

    Args:
        weights: a name of the table or an AugReg file name, `"hf:owner/repository"`, an https URL, the path of
            a file, or a folder: of a mirror (the file of `variant` is taken), or one that `file_in` finds a file in.
        variant: a key of `VARIANTS` or `RESNETS`, or `None` for an architecture that is none of them.
        sha256: hexadecimal digest that the file must have.

    Raises:
        TypeError: if `weights` is neither text nor a path.
        ValueError: for an unknown name; the error lists the nearest ones.
        FileNotFoundError: if it is a path, and nothing is there.
        CheckpointError: for a pipe or a device, and for a file that cannot be read or whose sha256 is another.
        DownloadError: (an `OSError`) if it cannot be brought.
    """
    check_weights(weights)
    if isinstance(weights, str):
        if weights.startswith("hf:"):
            return _from_hugging_face(weights, variant, sha256)
        if is_url(weights):
            return WeightsFile(fetch(_remote_url(weights, sha256), check=check_file))
        if not is_path(weights):
            record = find_weights(weights, _check_variant(variant, weights))
            if os.path.exists(weights):
                words = f"the published weights {weights!r} are taken, not the file or folder of that name"
                warnings.warn(f"{words}, which is './{weights}'.", UserWarning, stacklevel=2)
            if record.hf_repo is not None:
                return _from_hugging_face(f"hf:{record.hf_repo}", variant, sha256)
            file = remote_file(record, sha256)
            warn_terms(record, place_at_hand(file))
            return WeightsFile(fetch(file, check=check_for(record)), record)
    path = expand_path(weights)
    if os.path.isdir(path):
        return _from_folder(path, variant, sha256)
    _check_place(weights, path)
    return WeightsFile(_check_sha256(path, sha256), _find_record(path, variant))


def only_variant(weights: FilePath) -> str | None:
    """The model that published weights are of, by their name alone; `None` for what is not in the table.

    Raises:
        ValueError: for a name that no model or several have.
    """
    if not isinstance(weights, str) or is_url(weights):
        return None
    if match := HF_NAME.fullmatch(weights):
        return next((record.variant for record in all_records() if record.hf_repo == match[1]), None)
    return None if is_path(weights) else find_weights(weights).variant


def warn_terms(record: WeightsRecord | None, at_hand: Path | None) -> None:
    """Warns once, before the first download, of what a licence forbids."""
    if record is not None and record.terms and at_hand is None:
        _LOGGER.warning("%s", record.terms)


def check_weights(weights: FilePath) -> None:
    """Raises for what cannot be weights of any model: see `find_file`, which looks further."""
    if not isinstance(weights, (str, os.PathLike)):
        raise with_parameters(
            TypeError(f"`weights` must be None, a name or a path.\nReceived: weights={weights!r}."), "weights"
        )
    if str(weights).lower() in _RANDOM and not os.path.exists(weights):
        raise ArgumentError(
            "`weights` must be a name or a path, or None for random initialisation, which a command line writes `none`."
            f"\nReceived: weights={weights!r}."
        )
    path = expand_path(weights)
    # `os.path` knows no error, where `Path` raises one for names that are too long, as those of some URLs.
    is_run = os.path.isfile(path / "best.keras") and not os.path.isfile(path / TOWERS_FILE)
    if path.suffix == ".keras" or is_run:
        raise ArgumentError(
            "`weights` must be a checkpoint, and a .keras file or the folder of a run holds a whole model.\n"
            f"Received: weights={os.fspath(weights)!r}. `keras-vit evaluate`, `predict` and `export` take it as the "
            "model. In Python, keras.saving.load_model opens it, and keras_vit.save_checkpoint writes a checkpoint."
        )


def check_available(weights: FilePath, variant: str | None) -> None:
    """Raises for what `find_file` can refuse without bringing a file: a name of no weights, a path to nowhere."""
    check_weights(weights)
    if isinstance(weights, str):
        if weights.startswith("hf:") or is_url(weights):
            return
        if not is_path(weights):
            find_weights(weights, _check_variant(variant, weights))
            return
    _check_place(weights, expand_path(weights))


def _check_place(weights: FilePath, path: Path) -> None:
    """Raises unless a folder or a file that can be read is there."""
    if os.path.isdir(path):
        return
    if os.path.exists(path):
        with open_checkpoint(path):
            return
    reason = access_error(path)
    found = "there is nothing at that path" if reason is None else f"that path cannot be reached: {reason}"
    is_like_one = isinstance(weights, str) and HF_NAME.fullmatch(f"hf:{weights}") and weights[0] not in ".~"
    hub = f" A repository of the Hugging Face Hub is named 'hf:{weights}'." if is_like_one and reason is None else ""
    raise FileNotFoundError(
        "`weights` must be None, a published name (`keras_vit.list_weights()` has them), or the path of a "
        f"file or folder.\nReceived: weights={os.fspath(weights)!r}, and {found}.{hub}"
    )


def remote_file(record: WeightsRecord, sha256: str | None = None) -> RemoteFile:
    """Where a record's file is, and what is known of its bytes."""
    return RemoteFile(record.url, record.path, record.bytes, record.bytes_tolerance, sha256)


def is_url(text: str) -> bool:
    """Whether text is meant as the URL of a file."""
    return bool(re.match(r"https?://", text, re.IGNORECASE))


def is_path(text: str) -> bool:
    """Whether text means a place on disk. Names of the table come first; `./name` always means a file."""
    if any(record.name == text for record in all_records()):
        return False
    if looks_like_augreg(text) and os.sep not in text and not os.path.exists(text):
        return False
    return (
        os.path.exists(expand_path(text)) or text.startswith((".", "~")) or os.sep in text or text.endswith(_SUFFIXES)
    )


def _check_variant(variant: str | None, weights: FilePath) -> str:
    if variant is None:
        raise ArgumentError(
            "published weights belong to the published variants, and this architecture is none of them.\n"
            f"Received: weights={weights!r}. The variants are {', '.join((*VARIANTS, *RESNETS))}, and encoders as "
            "'dinov2/S14'."
        )
    return variant


def _check_sha256(path: Path, sha256: str | None) -> Path:
    """`path`; raises if its digest is not `sha256`."""
    if sha256 is not None and path.name.endswith(INDEX):
        raise ArgumentError(
            "`sha256` is of one file, and that of an index says nothing of its shards.\n"
            f"Received: {path}, sha256={sha256!r}. Leave it out, or pass the checkpoint as one file."
        )
    if sha256 is not None and (found := file_sha256(path)) != sha256.lower():
        raise CheckpointError(
            f"the file must have the sha256 that was asked for.\nReceived: {path} with {found}, sha256={sha256!r}."
        )
    return path


def _find_record(path: Path, variant: str | None) -> WeightsRecord | None:
    """The record of a file that lies where a mirror or a cache has it."""
    place = path.absolute().as_posix()
    return next((r for r in all_records() if r.variant == variant and place.endswith(f"/{r.path}")), None)


def _from_folder(folder: Path, variant: str | None, sha256: str | None) -> WeightsFile:
    """The file of `variant` in a mirror or a part of one, or the `model.safetensors` of a repository."""
    found: dict[Path, WeightsRecord | None] = {}
    for record in all_records():
        if record.variant == variant and (path := _find_below(folder, record.path)):
            found.setdefault(path, record)
    places = {Path(record.path).name for record in all_records()}
    if not found and (file := file_in(folder)) != folder and (file.name in _USUAL_NAMES or file.name not in places):
        found[file] = None
    if len(found) != 1:
        others = (f"{name}, which is no regular file" for name in _USUAL_NAMES if os.path.lexists(folder / name))
        files = ", ".join(sorted(path.relative_to(folder).as_posix() for path in found)) or next(others, "no such file")
        of_model = "" if variant is None else f" of {display_name(variant)}"
        raise ArgumentError(
            f"a folder as `weights` must hold one file{of_model}: a mirror's part such as "
            "vit_models/imagenet21k, or a model.safetensors or pytorch_model.bin, whole or in shards with an index.\n"
            f"Received: {folder} with {files}. Pass the file."
        )
    ((path, known),) = found.items()
    return WeightsFile(_check_sha256(path, sha256), known)


def _find_below(folder: Path, place: str) -> Path | None:
    """The file of a mirror's `place` in a folder that is the mirror's root or one of its branches."""
    parts = place.split("/")
    for cut in range(len(parts)):
        head = "/".join(parts[:cut])
        at_branch = not head or folder.absolute().as_posix().endswith(f"/{head}")
        if at_branch and (path := folder.joinpath(*parts[cut:])).is_file():
            return path
    return None


def _remote_url(url: str, sha256: str | None) -> RemoteFile:
    """A user's own URL; its place in the cache is named by a digest, never by what the URL says."""
    if not re.match(r"https?://[^/?#]", url, re.IGNORECASE):
        raise ArgumentError(f"a URL as `weights` must name a host, as `https://host/path`.\nReceived: weights={url!r}.")
    suffix = next((suffix for suffix in _SUFFIXES if url.split("?")[0].endswith(suffix)), "")
    return RemoteFile(url, f"url/{hashlib.sha256(url.encode()).hexdigest()[:32]}{suffix}", sha256=sha256)


def _from_hugging_face(name: str, variant: str | None, sha256: str | None) -> WeightsFile:
    """A file of the Hugging Face Hub, and its record if the table has one."""
    match = HF_NAME.fullmatch(name)
    if match is None:
        raise ArgumentError(
            "a Hugging Face name must be `hf:owner/repository`, with `@revision` if need be.\n"
            f"Received: weights={name!r}."
        )
    repository, revision = match.groups()
    if all(record.hf_repo != repository for record in all_records()):
        return WeightsFile(_any_of_repository(repository, revision, sha256))
    record = find_weights(f"hf:{repository}", _check_variant(variant, f"hf:{repository}"))
    file = file_of_hub(repository, revision, record.path.rpartition("/")[2])
    file = dataclasses.replace(file, size=record.bytes, size_tolerance=record.bytes_tolerance, sha256=sha256)
    if record.terms:
        warn_terms(record, place_at_hand(file) or find_in_library_cache(file, repository))
    return WeightsFile(fetch_from_hub(file, repository, revision, check_for(record)), record)


def file_of_hub(repository: str, revision: str | None, name: str) -> RemoteFile:
    place = f"hf/{repository}/{name}" if revision is None else f"hf/{repository}@{revision}/{name}"
    return RemoteFile(f"https://huggingface.co/{repository}/resolve/{revision or 'main'}/{name}", place)


def _any_of_repository(repository: str, revision: str | None, sha256: str | None) -> Path:
    """The first file of a repository that has one of the usual names, those first that are at hand."""
    files = [file_of_hub(repository, revision, name) for name in WEIGHT_FILES]
    at_hand = [f for f in files if place_at_hand(f) or find_in_library_cache(f, repository, revision)]
    missing = []
    for file in at_hand or files:
        try:
            others = (*JSON_FILES, OPEN_CLIP) if file.name.startswith("open_clip_") else JSON_FILES
            return fetch_whole(file, repository, revision, check_file, others, sha256)
        except DownloadError as error:
            if not is_missing(error):
                raise
            missing.append(error)
    raise missing[0]


def fetch_whole(
    file: RemoteFile,
    repository: str,
    revision: str | None,
    check: Check,
    others: Sequence[str],
    sha256: str | None = None,
) -> Path:
    """A file of a repository, or an index with its shards; arguments and errors are those of `fetch_from_hub`."""
    if not file.name.endswith(INDEX):
        return fetch_from_hub(dataclasses.replace(file, sha256=sha256), repository, revision, check, others)
    index = _check_sha256(fetch_from_hub(file, repository, revision, read_index, others), sha256)
    for shard in read_index(index):
        valid = lambda path: scan_any(path).check()  # noqa: E731
        fetch_from_hub(file_of_hub(repository, revision, shard), repository, revision, valid, ())
    check(index)
    return index
