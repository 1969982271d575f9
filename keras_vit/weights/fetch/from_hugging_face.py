"""Files of the Hugging Face Hub: huggingface_hub brings them into its own cache, and they are verified here.

So what was downloaded with transformers or timm is used, without a request. The cache (`HF_HOME`,
`HF_HUB_CACHE`), the endpoint (`HF_ENDPOINT`), the user's token and the bar are that library's.
`KERAS_VIT_TIMEOUT` bounds the Hub's answer about a file; the silence of a download `HF_HUB_DOWNLOAD_TIMEOUT`,
and nothing here the transfers of hf_xet. Imports neither Keras nor TensorFlow.
"""

import contextlib
import dataclasses
import logging
import re
from pathlib import Path

from keras_vit.checks import install_hint
from keras_vit.files import read_json_object
from keras_vit.weights.fetch import fetch, hugging_face_cache, require_network, take_local
from keras_vit.weights.fetch.cache import Check
from keras_vit.weights.fetch.environment import mirror_url, timeout_seconds
from keras_vit.weights.fetch.library import library_faults
from keras_vit.weights.fetch.remote import DownloadError, OfflineError, RemoteFile, download_error

BESIDE = ("config.json", "preprocessor_config.json")  # what a repository says of its weights
_LARGEST_JSON = 4_000_000  # bytes; the label list of ImageNet-21k takes 1.5 MB
_LOGGER = logging.getLogger("keras_vit")


def fetch_from_hub(file: RemoteFile, repository: str, revision: str | None, check: Check) -> Path:
    """The path of a repository's verified weights, with the JSON of the same commit in the same folder.

    A file in the mirror directory or our cache comes first, then one in huggingface_hub's cache: a branch is the
    commit that it was there, and nobody is asked for a newer one. Then a mirror's address, then the Hub.

    Args:
        file: the weights; its last part is their name in the repository.
        repository: `"owner/name"`.
        revision: branch, tag or commit; None for the main branch.
        check: as for `fetch`.

    Raises:
        OfflineError, DownloadError: as `fetch`; whatever huggingface_hub raises is one of them.
    """
    if path := take_local(file, check):
        return path
    hub = _library()
    if path := _cached(hub, file, repository, revision):
        hugging_face_cache.require_valid(path, file, check)
    else:
        require_network(file)
        if mirror_url(file.path):
            return _fetch_from_mirror(file, check)
        if hub is None:
            raise download_error(file, f"huggingface_hub is not installed ({install_hint('hub')})")
        path, known = _bring(hub, file, repository, revision)
        hugging_face_cache.require_valid(path, dataclasses.replace(file, url=known.url), check, known.digest)
    for name in BESIDE:
        _bring_beside(hub, _sibling(file, name), repository, path.parent)
        if "pretrained_cfg" in (read_json_object(path.with_name(name), _LARGEST_JSON) or {}):
            break  # timm's, which says all
    return path


def find_in_library_cache(file: RemoteFile, repository: str) -> Path | None:
    """The main branch's file in huggingface_hub's cache, not verified; None if it or the library is not there."""
    return _cached(_library(), file, repository, None)


def check_json(path: Path):
    """Raises `ValueError` unless the file is a JSON object of sensible size."""
    if read_json_object(path, _LARGEST_JSON) is None:
        raise ValueError(f"it must be a JSON object of at most {_LARGEST_JSON} bytes")


def _library():
    try:
        import huggingface_hub
    except ImportError:
        return None
    return huggingface_hub


def _cached(hub, file, repository, revision):
    with _library_faults(file):  # which says what names it takes
        found = hub and hub.try_to_load_from_cache(repository, file.name, revision=revision)
    return Path(found) if isinstance(found, str) else None  # a mark says that the repository has none


def _sibling(file, name):
    url, path = (f"{place.rpartition('/')[0]}/{name}" for place in (file.url, file.path))
    return RemoteFile(url, path)


def _fetch_from_mirror(file, check):
    """A mirror has every file under its path, and it is kept in our cache, as those of other servers."""
    for name in BESIDE:  # before the weights, which once at hand end every later search
        with _warned():
            fetch(_sibling(file, name), check=check_json)
    return fetch(file, check=check)


def _bring_beside(hub, file, repository, snapshot):
    """Has a JSON file in the snapshot if the repository has one; the library's cache remembers if it has none."""
    found = hub.try_to_load_from_cache(repository, file.name, revision=snapshot.name)
    with _warned(snapshot / file.name):
        if found is None:
            require_network(file)
            if mirror_url(file.path):
                raise download_error(file, "it is not beside the weights, and KERAS_VIT_MIRROR stands in for the Hub")
            path, known = _bring(hub, file, repository, snapshot.name)
            hugging_face_cache.require_authentic(path, file, known.digest)
        elif isinstance(found, str):
            hugging_face_cache.require_authentic(Path(found), file)


@contextlib.contextmanager
def _warned(path=None):
    """Says what keeps a file away that a repository need not have; a damaged one at `path` is not passed over."""
    try:
        yield
    except DownloadError as error:
        if path and path.exists():
            raise
        reason = str(error).partition("\n")[0]
        if not re.search(r"answered 404|RemoteEntryNotFound", reason):
            _LOGGER.warning("%s So what it says of the model is not known.", reason)


@dataclasses.dataclass(frozen=True)
class _Known:
    """The address of a file, and the digest that the Hub lists for it, of the commit that was brought."""

    url: str
    digest: str | None


def _bring(hub, file, repository, revision):
    """Has the library download a file, once its listing fits; the path in its cache, and what the Hub said."""
    timeout = timeout_seconds()
    with _library_faults(file):
        from huggingface_hub.errors import RemoteEntryNotFoundError

        url = hub.hf_hub_url(repository, file.name, revision=revision)
    file = dataclasses.replace(file, url=url)
    with _library_faults(file):
        try:  # asked here first, since the download would try for half a minute to reach a Hub that is not there
            known = hub.get_hf_file_metadata(url, timeout=timeout)
        except RemoteEntryNotFoundError:
            known = None  # asked again below, where the library remembers the answer
    if known:
        _require_listed(file, known)
    with _library_faults(file):
        path = Path(hub.hf_hub_download(repository, file.name, revision=revision, etag_timeout=timeout))
    same = known and known.commit_hash == path.parent.name
    return path, _Known(url, known.etag if same else None)


def _require_listed(file, known):
    """Refuses before anything comes what the Hub itself lists as another file."""
    if known.size is not None and not file.fits(known.size):
        reason = f"its size differs, by a changed file: expected {file.listed}, got {known.size} bytes announced"
        raise download_error(file, reason)
    if file.sha256 and re.fullmatch("[0-9a-f]{64}", known.etag or "") and file.sha256 != known.etag:
        raise download_error(file, f"its sha256 differs: expected {file.sha256}, and the Hub lists {known.etag}")


def _library_faults(file):
    """Whatever the library raises is one error of ours."""
    return library_faults(
        lambda words, offline: download_error(file, words, kind=OfflineError if offline else DownloadError)
    )
