"""A file elsewhere: where it is, what is known of it, and a recipe for people who cannot get it."""

import dataclasses
import re
import shlex
import urllib.parse
from pathlib import Path

from keras_vit.cache import cache_dir
from keras_vit.pages.formatting import printable
from keras_vit.weights.download import environment

_KEPT = "%/:@!$&'()*+,;=~[]"  # of a URL, when what no URL may hold is percent-encoded


class DownloadError(OSError):
    """A file could not be brought, or is not what it should be."""


class OfflineError(DownloadError):
    """There is no network, or it is not to be used, and the file is not at hand."""


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """A file on a server.

    Args:
        url: where it is published; https, or http to this machine.
        path: its place in the cache and in a mirror, such as `"vit_models/imagenet21k/ViT-B_16.npz"`;
            never taken from a url or a server's answer.
        size: bytes as listed, or None.
        size_tolerance: bytes that the size may differ, since listings are rounded.
        sha256: hexadecimal digest to insist on, or None.

    Raises:
        ValueError: if `path` could leave the cache, or a value is not of its kind.
    """

    url: str
    path: str
    size: int | None = None
    size_tolerance: int = 0
    sha256: str | None = None

    def __post_init__(self) -> None:
        parts = self.path.split("/")
        if {"", ".", ".."} & set(parts) or re.search(r"[\\:\x00-\x1f]", self.path):
            raise ValueError(
                "the path of a remote file must be relative, of plain parts, so that it stays inside the cache.\n"
                f"Received: path={self.path!r}"
            )
        if self.sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", self.sha256):
            raise ValueError(f"`sha256` must be 64 hexadecimal digits.\nReceived: sha256={self.sha256!r}")
        object.__setattr__(self, "sha256", self.sha256 and self.sha256.lower())

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def label(self) -> str:
        """Its name for messages. For a user's own URL it is the URL's last part, since a digest names its place."""
        if not self.path.startswith("url/"):
            return self.name
        return environment.redacted(self.url).removesuffix("?...").rstrip("/").rpartition("/")[2] or self.name

    @property
    def place(self) -> Path:
        """Its absolute path in the cache."""
        return cache_dir() / self.path

    def fits(self, size: int) -> bool:
        """True if so many bytes agree with the listing."""
        return self.size is None or abs(size - self.size) <= self.size_tolerance

    @property
    def listed(self) -> str:
        """The size for messages, such as `"412816640 bytes (412.8 MB) +- 5243"`."""
        if self.size is None:
            return "unknown size"
        tolerance = f" +- {self.size_tolerance}" if self.size_tolerance else ""
        return f"{self.size} bytes ({megabytes(self.size)}){tolerance}"


def megabytes(size: int) -> str:
    """Bytes as `"412.8 MB"`, with a megabyte of 10^6."""
    return f"{size / 1e6:.1f} MB"


def download_error(
    file: RemoteFile, reason: str, url: str | None = None, kind: type[DownloadError] = DownloadError
) -> DownloadError:
    """The error for a file that did not come: what failed, where it was asked for, and how to bring it by hand."""
    return kind(
        f"{file.label} could not be downloaded: {printable(reason)}.\n"
        f"Received: {environment.redacted(url or file.url)}; listed: {file.listed}\n{recipe(file)}"
    )


def recipe(file: RemoteFile) -> str:
    """How to bring the file by hand: two lines for a shell, and the mirror as another way.

    No line leads to an address that would be refused here. `-g`, since curl takes brackets for patterns.
    """
    mirror = f"et KERAS_VIT_MIRROR to a directory that holds {file.path}."
    if not environment.is_safe(file.url):
        return f"Have the file at {file.place} by a way you trust, or s{mirror}"
    digest = f" with sha256 {file.sha256}" if file.sha256 else ""
    url = environment.without_secrets(file.url)
    left_out = "" if url == file.url else ", adding to the URL what is left out of it here (login or query)"
    url = urllib.parse.quote(url.removesuffix("?..."), safe=_KEPT)
    return (
        f"To bring it by hand ({file.listed}{digest}), run these two lines where there is network{left_out}, and have "
        f"the file at that path here:\n"
        f"  mkdir -p {shlex.quote(str(file.place.parent))}\n"
        f"  curl -gL --fail -o {shlex.quote(str(file.place))} {shlex.quote(url)}\n"
        f"Or s{mirror}"
    )
