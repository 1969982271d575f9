"""Files to a repository of the Hugging Face Hub, in one commit: all of them arrive, or none.

huggingface_hub brings them there, with the endpoint and the token that are its own. Imports neither Keras nor
TensorFlow.
"""

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_vit.checks import check_installed
from keras_vit.pages.cards import CARD
from keras_vit.pages.formatting import printable
from keras_vit.weights.checkpoint import SAFETENSORS_NAME, TOWERS_NAME
from keras_vit.weights.download.environment import is_offline
from keras_vit.weights.download.hugging_face import JSON_FILES, library_faults
from keras_vit.weights.download.remote import OfflineError
from keras_vit.weights.metadata.photo_differences import DIFFERENCES_FILE
from keras_vit.weights.resolve_text import TEXT_FILES

_PUBLIC = (
    "`private` must be left out for a repository that all can see; nothing was sent.\nReceived: private=True and {}, "
    "which is public. Make it private in its settings on the Hub, or choose another name."
)
_OTHER_FILES = (
    "a push replaces only files that keras_vit has sent, which it knows by the tag `keras_vit` in README.md; nothing "
    "was sent.\nReceived: {}, which has {} of something else. Choose another name, or write that tag into its card."
)
# All that a push writes.
FILES = (*dict.fromkeys((SAFETENSORS_NAME, TOWERS_NAME, *JSON_FILES, *TEXT_FILES, DIFFERENCES_FILE)), CARD)


class UploadError(OSError):
    """Files could not be put on the Hugging Face Hub."""


def upload(files: Mapping[str, Path], repository: str, *, private: bool, message: str) -> str:
    """Sends files to a repository, which is created if it does not exist.

    Args:
        files: by name, of `FILES`. Those of `FILES` that are not given are removed there, as they would be of other
            weights; all else in the repository stays.
        repository: `"owner/name"`.
        private: whether it is to be seen by its owner alone: made so if it is new, and refused if all can see it.
        message: of the commit.

    Returns:
        The commit.

    Raises:
        ValueError: with `private` for a repository that is there and public; for one with such files of others.
        OfflineError: without a network, or if it may not be used.
        UploadError: if the Hub does not take the files.
        ImportError: without the extra `hub`.
    """
    check_installed("huggingface_hub", "it speaks with the Hugging Face Hub", "hub")
    import huggingface_hub

    if is_offline():
        raise _fault(repository, "KERAS_VIT_OFFLINE forbids the network", True)
    with library_faults(lambda words, offline: _fault(repository, words, offline)), _bars_on_terminals():
        api = huggingface_hub.HfApi()
        api.create_repo(repository, private=private, exist_ok=True)
        is_public = private and not api.repo_info(repository).private
        there = [name for name in FILES if api.file_exists(repository, name)]
        card = Path(api.hf_hub_download(repository, CARD)).read_bytes() if CARD in there else b""
    if is_public:
        raise ValueError(_PUBLIC.format(repository))
    if there and not _was_pushed(card, there):
        raise ValueError(_OTHER_FILES.format(repository, ", ".join(there)))
    with library_faults(lambda words, offline: _fault(repository, words, offline)), _bars_on_terminals():
        stale = [name for name in there if name not in files]
        operations = [huggingface_hub.CommitOperationAdd(name, str(path)) for name, path in files.items()]
        operations += [huggingface_hub.CommitOperationDelete(name) for name in stale]
        return api.create_commit(repository, operations, commit_message=message).oid


def check_license(license: Any) -> None:
    """Raises for what is no name of a licence as the Hub has it, or `None`."""
    if license is not None and not isinstance(license, str):
        raise TypeError(f"`license` must be a text.\nReceived: license={license!r} of type {type(license).__name__}.")
    if license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", license):
        raise ValueError(
            "`license` must be a name as the Hub has it, in small letters, such as 'apache-2.0', 'mit' or "
            f"'cc-by-4.0'.\nReceived: license={license!r}."
        )


def check_repository(name: str) -> None:
    """Raises unless a name is `owner/name`, as the Hub has them."""
    if not isinstance(name, str):
        raise TypeError(f"`repository` must be a text.\nReceived: {name!r} of type {type(name).__name__}.")
    part = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?"
    if not re.fullmatch(f"{part}/{part}", name, re.ASCII) or re.search(r"--|\.\.|\.git$", name) or len(name) > 96:
        raise ValueError(
            "`repository` must be `owner/name` as the Hub has them: letters, digits, `-`, `_` and `.`, at most 96.\n"
            f"Received: repository={name!r}."
        )


def _was_pushed(card: bytes, there: Sequence[str]) -> bool:
    """Whether files are those of an earlier push, or just the card with a licence that the Hub makes by itself."""
    head, _, body = card.replace(b"\r\n", b"\n").removeprefix(b"---\n").partition(b"\n---")
    return b"keras_vit" in head or (there == [CARD] and not body.strip())


def existing_files(folder: Path, names: Iterable[str] = FILES) -> dict[str, Path]:
    """The files of a folder that belong on the Hub, by name."""
    return {name: folder / name for name in names if (folder / name).is_file()}


@contextlib.contextmanager
def _bars_on_terminals() -> Iterator[None]:
    """Hides the library's progress bar where no terminal is, since it would be drawn into files and logs."""
    from huggingface_hub import utils

    hidden = not (sys.stderr and sys.stderr.isatty()) and not utils.are_progress_bars_disabled()
    if hidden:
        utils.disable_progress_bars()
    try:
        yield
    finally:
        if hidden:
            utils.enable_progress_bars()


def _fault(repository: str, words: str, offline: bool) -> OSError:
    return (OfflineError if offline else UploadError)(
        f"the files could not be put on the Hugging Face Hub: {printable(words)}.\nReceived: {repository}. Where the "
        "Hub must know you, `hf auth login` or HF_TOKEN signs you in; the token must be one that may write."
    )
