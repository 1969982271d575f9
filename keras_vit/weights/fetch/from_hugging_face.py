"""Files of the Hugging Face Hub: huggingface_hub says where they are, `fetch` brings, verifies and keeps them.

What that library alone knows is the endpoint (`HF_ENDPOINT`), the user's token, and the address, size and
sha256 of a file under it. It opens no socket for files at hand. Imports neither Keras nor TensorFlow.
"""

import contextlib
import dataclasses
import functools
import hashlib
import logging
import re
import urllib.parse
from collections.abc import Callable
from pathlib import Path

from keras_vit.files import read_json_object
from keras_vit.weights.fetch import fetch, take_local
from keras_vit.weights.fetch.cache import Check
from keras_vit.weights.fetch.environment import mirror_url, timeout_seconds
from keras_vit.weights.fetch.remote import DownloadError, OfflineError, RemoteFile, download_error

BESIDE = ("config.json", "preprocessor_config.json")  # what a repository says of its weights
_LARGEST_JSON = 4_000_000  # bytes; the label list of ImageNet-21k takes 1.5 MB
_LOGGER = logging.getLogger("keras_vit")


def fetch_from_hub(file: RemoteFile, repository: str, revision: str | None, check: Check) -> Path:
    """The path of a repository's verified weights, with the JSON that stands beside them in the same folder.

    Args:
        file: the weights; its last part is their name in the repository.
        repository: `"owner/name"`.
        revision: branch, tag or commit; None for the newest.
        check: as for `fetch`.

    Raises:
        OfflineError, DownloadError: as `fetch`; whatever huggingface_hub raises is one of them.
    """
    if path := take_local(file, check):
        return path
    hub = None if mirror_url(file.path) else _library(file)
    bring = _prepared(hub, file, repository, revision, check)
    for name in BESIDE:  # before the weights, which once at hand end every later search
        _fetch_beside(hub, RemoteFile(_sibling(file.url, name), _sibling(file.path, name)), repository, revision)
    return bring()


def check_json(path: Path):
    """Raises `ValueError` unless the file is a JSON object of sensible size."""
    if read_json_object(path, _LARGEST_JSON) is None:
        raise ValueError(f"it must be a JSON object of at most {_LARGEST_JSON} bytes")


def _sibling(place, name):
    return f"{place.rpartition('/')[0]}/{name}"


def _library(file):
    try:
        import huggingface_hub
    except ImportError as error:
        reason = 'huggingface_hub is not installed (`pip install "keras-vit-zoo[hub]"`)'
        raise download_error(file, reason) from error
    return huggingface_hub


def _fetch_beside(hub, file, repository, revision):
    """A repository need not have it; what else keeps it away is said, and does not keep the weights away."""
    try:
        take_local(file, check_json) or _prepared(hub, file, repository, revision, check_json)()
    except DownloadError as error:
        reason = str(error).partition("\n")[0]
        if not re.search(r"answered 404|EntryNotFound", reason):
            _LOGGER.warning("%s So what it says of the model is not known.", reason)


def _prepared(hub, file, repository, revision, check) -> Callable[[], Path]:
    """What brings a file: `fetch` of the address that the library tells, with size and sha256 as the Hub lists them."""
    if hub is None:  # a mirror has every file under its path
        return functools.partial(fetch, file, check=check)
    url, known = _ask(hub, file, repository, revision)
    file = dataclasses.replace(file, url=url)
    size, tag = known.size, known.etag or ""
    if size is not None and not file.fits(size):
        reason = f"its size differs, by a changed file: expected {file.listed}, got {size} bytes announced"
        raise download_error(file, reason)
    digest = tag if re.fullmatch("[0-9a-f]{64}", tag) else None  # of a file in LFS; Git's own is of 40 digits
    pinned = dataclasses.replace(file, sha256=file.sha256 or digest)
    if size is not None:
        pinned = dataclasses.replace(pinned, size=size, size_tolerance=0)
    blob = tag if re.fullmatch("[0-9a-f]{40}", tag) else None
    headers = _token(hub, url, known.location)
    return functools.partial(fetch, pinned, check=_with_blob(check, blob), source=known.location, headers=headers)


def _ask(hub, file, repository, revision):
    """The file's address by the library, and what the Hub says of it; asked once, within our timeout."""
    try:
        with _silence():
            url = hub.hf_hub_url(repository, file.name, revision=revision)
            return url, hub.get_hf_file_metadata(url, timeout=timeout_seconds())
    except Exception as error:  # of httpx, requests, the file system and its own: whatever it is, it did not come
        kind, reason = type(error).__name__, " ".join(str(error).partition("\n")[0].split()).rstrip(".:")
        offline = isinstance(error, ConnectionError) or re.search("Connect|Offline", kind)
        words = f"huggingface_hub says {kind}: {reason}"
        raise download_error(file, words, kind=OfflineError if offline else DownloadError) from error


@contextlib.contextmanager
def _silence():
    """Without the library's own lines on the error stream, since one error tells it all."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _token(hub, url, location):
    """The header that says who asks, for a file that the Hub itself hands out; a signed address needs none."""
    if urllib.parse.urlsplit(location).netloc != urllib.parse.urlsplit(url).netloc:
        return {}
    with contextlib.suppress(Exception):  # a token that cannot be read is none
        headers = hub.utils.build_hf_headers()
        return {name: text for name, text in headers.items() if name.lower() == "authorization"}
    return {}


def _with_blob(check, blob):
    """The check, and before it Git's own: sha1 of the size and the bytes, which is the tag of a file beside LFS."""
    if blob is None:
        return check

    def both(path):
        content = path.read_bytes()
        if hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest() != blob:
            raise ValueError(f"its Git digest differs: expected {blob}")
        check(path)

    return both
