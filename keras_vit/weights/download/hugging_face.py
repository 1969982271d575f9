"""Files of the Hugging Face Hub: huggingface_hub brings them into its own cache, and they are verified here.

So what was downloaded with transformers or timm is used, without a request. The cache (`HF_HOME`,
`HF_HUB_CACHE`), the endpoint (`HF_ENDPOINT`), the user's token and the bar are that library's.
`KERAS_VIT_TIMEOUT` limits the Hub's answer about a file, `HF_HUB_DOWNLOAD_TIMEOUT` pauses of a download. hf_xet
transfers have no limit here. Imports neither Keras nor TensorFlow.
"""

import contextlib
import dataclasses
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_vit.checks import install_hint
from keras_vit.files import file_sha256, read_json_object
from keras_vit.weights.download import cache, fetch
from keras_vit.weights.download.cache import Check, check_network, find_local
from keras_vit.weights.download.environment import mirror_url, redacted, timeout_seconds
from keras_vit.weights.download.remote import DownloadError, OfflineError, RemoteFile, download_error

# What a repository says of its weights.
JSON_FILES = ("config.json", "preprocessor_config.json", "processor_config.json")
_LARGEST_JSON = 4_000_000  # bytes; the label list of ImageNet-21k takes 1.5 MB
_LOGGER = logging.getLogger("keras_vit")


def fetch_from_hub(
    file: RemoteFile, repository: str, revision: str | None, check: Check, others: Sequence[str] = JSON_FILES
) -> Path:
    """The path of a repository's verified weights, with the other files of the same commit in the same folder.

    It is looked for in this order: the mirror directory, this package's cache, huggingface_hub's cache, a mirror's
    address, and the Hub. In huggingface_hub's cache a branch is the commit that it was; the Hub is not asked for a
    newer one.

    Args:
        file: the weights; its last part is their name in the repository.
        repository: `"owner/name"`.
        revision: branch, tag or commit; None for the main branch.
        check: as for `fetch`.
        others: names of files that a repository may have with its weights, by default what says which they are.

    Raises:
        OfflineError, DownloadError: as `fetch`; whatever huggingface_hub raises is one of them. Also if the repository
            has one of `others`, and it does not come whole.
    """
    if path := find_local(file, check):
        return path
    hub = _library()
    path = _find_cached(hub, file, repository, revision)
    if path is None and mirror_url(file.path):
        check_network(file)
        return _fetch_from_mirror(file, check, others)
    path = _fetch_verified(hub, file, repository, revision, path, check)
    for name in others:
        with _allow_missing(path.with_name(name)):
            _fetch_json(hub, _sibling(file, name), repository, path.parent)
        if others is JSON_FILES and "pretrained_cfg" in (read_json_object(path.with_name(name), _LARGEST_JSON) or {}):
            break  # timm's, which says all
    return path


def find_in_library_cache(file: RemoteFile, repository: str, revision: str | None = None) -> Path | None:
    """The file in huggingface_hub's cache, by default the main branch's; None if it or the library is not there."""
    return _find_cached(_library(), file, repository, revision)


def is_missing(error: DownloadError) -> bool:
    """Whether a server says that it has no such file."""
    return bool(re.search(r"answered 404|RemoteEntryNotFound", str(error).partition("\n")[0]))


def check_json(path: Path) -> None:
    """Raises `ValueError` unless the file is a JSON object of sensible size."""
    if read_json_object(path, _LARGEST_JSON) is None:
        raise ValueError(f"it must be a JSON object of at most {_LARGEST_JSON} bytes")


@contextlib.contextmanager
def library_faults(fault: Callable[[str, bool], Exception]) -> Iterator[None]:
    """Raises `fault(words, is_offline)` for any error of the library, whose log lines are hidden meanwhile.

    Args:
        fault: the error, from what the library says and whether there is no network.
    """
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    except Exception as error:  # of httpx, the file system and its own: whatever it is, nothing came or went
        cause = (error.__cause__ or error) if type(error) is RuntimeError else error  # which names the file alone
        kind, reason = type(cause).__name__, " ".join(str(cause).strip().partition("\n")[0].split()).rstrip(".:")
        offline = isinstance(cause, ConnectionError) or bool(re.search("Connect|Offline", kind))
        raise fault(f"huggingface_hub says {kind}: {_without_secrets(reason)}", offline) from error
    finally:
        logger.setLevel(level)


def _without_secrets(reason: str) -> str:
    """Without the secrets of signed addresses, of which the library also prints the last characters alone."""
    reason = re.sub(r"https?://[^\s'\"]+", lambda found: redacted(found[0]), reason)
    return re.sub(r" \(\(…\).*?\)", "", reason)


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        return None
    return huggingface_hub


def _library_faults(file: RemoteFile) -> contextlib.AbstractContextManager[None]:
    """Turns whatever the library raises into a `DownloadError`."""
    return library_faults(
        lambda words, offline: download_error(file, words, kind=OfflineError if offline else DownloadError)
    )


def _find_cached(hub: Any, file: RemoteFile, repository: str, revision: str | None) -> Path | None:
    with _library_faults(file):  # which says what names it takes
        found = hub and hub.try_to_load_from_cache(repository, file.name, revision=revision)
    return Path(found) if isinstance(found, str) else None  # a mark says that the repository has none


def _sibling(file: RemoteFile, name: str) -> RemoteFile:
    url, path = (f"{place.rpartition('/')[0]}/{name}" for place in (file.url, file.path))
    return RemoteFile(url, path)


def _fetch_from_mirror(file: RemoteFile, check: Check, others: Sequence[str]) -> Path:
    """A mirror has every file under its path, and it is kept in this package's cache, as those of other servers."""
    for name in others:  # before the weights, which once at hand end every later search
        with _allow_missing():
            fetch(_sibling(file, name), check=check_json if name in JSON_FILES else None)
    return fetch(file, check=check)


def _fetch_json(hub: Any, file: RemoteFile, repository: str, snapshot: Path) -> None:
    """Brings a JSON file into the snapshot if the repository has one; the library remembers if it has none."""
    found = hub.try_to_load_from_cache(repository, file.name, revision=snapshot.name)
    if found is None and mirror_url(file.path):
        reason = "it is not in the folder of the weights, and KERAS_VIT_MIRROR stands in for the Hub"
        raise download_error(file, reason, kind=OfflineError)
    if found is None or isinstance(found, str):  # a mark says that the repository has none
        _fetch_verified(hub, file, repository, snapshot.name, Path(found) if found else None, None)


@contextlib.contextmanager
def _allow_missing(path: Path | None = None) -> Iterator[None]:
    """Goes on without a file that the repository has not, and with a warning if only the network is missing.

    Any other fault is an error, as a model is computed and photos are prepared by what the file says.
    """
    try:
        yield
    except DownloadError as error:
        if is_missing(error):
            return
        if not isinstance(error, OfflineError) or (path and path.exists()):
            raise
        _LOGGER.warning("%s So what it says of the model is not known.", str(error).partition("\n")[0])


def _fetch_verified(
    hub: Any, file: RemoteFile, repository: str, revision: str | None, path: Path | None, check: Check | None
) -> Path:
    """The library's file, with the Hub's digest; downloaded if it is missing or damaged."""
    if path is not None:
        if not (damage := _damage(path, file, check)):
            return path
        _LOGGER.warning("%s is damaged, and is to be downloaded again: %s.", path, damage)
        check_network(file)
        _remove(path, file)
    check_network(file)
    if hub is None:
        raise download_error(file, f"huggingface_hub is not installed ({install_hint('hub')})")
    path, file, listed = _download(hub, file, repository, revision)
    if damage := _damage(path, file, check, listed):
        _remove(path, file)
        raise download_error(file, f"{damage}. It is removed, and the next call downloads it again")
    return path


def _download(hub: Any, file: RemoteFile, repository: str, revision: str | None) -> tuple[Path, RemoteFile, str]:
    """Downloads a file by the library: the path in its cache, the file with its address, and the Hub's digest.

    Raises:
        DownloadError: also, before a byte comes, if the Hub lists another size or digest than those of `file`.
    """
    timeout, known = timeout_seconds(), None
    with _library_faults(file):
        from huggingface_hub.errors import RemoteEntryNotFoundError

        file = dataclasses.replace(file, url=hub.hf_hub_url(repository, file.name, revision=revision))
    # Asked here first, since the download would try for half a minute to reach a Hub that is not there. What the
    # repository has not is asked for again, so that the library remembers the answer.
    with _library_faults(file), contextlib.suppress(RemoteEntryNotFoundError):
        known = hub.get_hf_file_metadata(file.url, timeout=timeout)
    if known and known.size is not None and not file.fits(known.size):
        raise download_error(file, f"its size differs: expected {file.listed}, and the Hub lists {known.size} bytes")
    if known and file.sha256 and re.fullmatch("[0-9a-f]{64}", known.etag or "") and file.sha256 != known.etag:
        raise download_error(file, f"its sha256 differs: expected {file.sha256}, and the Hub lists {known.etag}")
    with _library_faults(file):
        path = Path(hub.hf_hub_download(repository, file.name, revision=revision, etag_timeout=timeout))
    return path, file, known.etag if known and known.commit_hash == path.parent.name else ""


def _remove(path: Path, file: RemoteFile) -> None:
    """Removes a damaged file from a snapshot, and its blob, which the library would else link to again."""
    try:
        if blob := _blob_name(path):
            (path.parents[2] / "blobs" / blob).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    except OSError as error:
        raise download_error(file, f"it is damaged and could not be removed ({error.strerror}): {path}") from error


def _damage(path: Path, file: RemoteFile, check: Check | None, listed: str = "") -> str:
    """How a snapshot's file differs from the Hub's, in words; empty if it does not, and then its content is checked.

    Its digest by the Hub is the name of its blob, else `listed`, else that of its note. Its content is checked once.

    Raises:
        DownloadError: for a file that is the Hub's, and yet not the one asked for or not valid for us. It stays, since
            other programs may use it.
    """
    try:
        place = cache.external_note_path(path)
        noted, sha256 = (cache.read_note(place) or {}).get("sha256"), file_sha256(path)
        expected, found, kind = _blob_name(path) or listed or noted or "", sha256, "sha256"
        if re.fullmatch("[0-9a-f]{40}", expected):  # of a file that is not in LFS
            start, kind = b"blob %d\0" % path.stat().st_size, "Git digest"
            with open(path, "rb") as content:
                found = hashlib.file_digest(content, lambda: hashlib.sha1(start, usedforsecurity=False)).hexdigest()
        if found != expected and re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", expected):
            return f"its {kind} differs: expected {expected}, got {found}{cache.page_hint(path)}"
        if noted != sha256 or file.sha256 not in (None, sha256):
            cache.check_valid(path, file, check, sha256)
            if check is not None:
                cache.write_note(place, path, sha256, file.url)
    except cache.InvalidFileError as fault:
        raise download_error(file, f"{fault}. It stays in huggingface_hub's cache, at {path}") from fault
    except OSError as error:
        reason = f"it cannot be read in huggingface_hub's cache ({error.strerror or error}): {path}"
        raise download_error(file, reason) from error
    return ""


def _blob_name(path: Path) -> str:
    """The digest that a snapshot's file links to, of the first link and not of the last; empty without links."""
    return os.path.basename(os.readlink(path)) if path.is_symlink() else ""
