"""Environment variables about downloads. Each is read when it is needed, never at import.

`KERAS_VIT_CACHE` is the folder of downloaded files. `KERAS_VIT_MIRROR` is a directory or a URL prefix with the same
files. `KERAS_VIT_OFFLINE=1` forbids every socket. `KERAS_VIT_TIMEOUT` bounds the silence of a server in seconds.
`KERAS_VIT_ALLOW_HTTP=1` allows http where https is the rule. Imports neither Keras nor TensorFlow.
"""

import ipaddress
import math
import os
import urllib.parse
from pathlib import Path

from keras_vit.files import expand_dir
from keras_vit.pages.formatting import printable

_DEFAULT_TIMEOUT = 30.0  # seconds
_LONGEST_TIMEOUT = 1e6  # likewise, 12 days; sockets and threads refuse to wait for much more
_ON, _OFF = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def mirror_directory() -> Path | None:
    """The directory in `KERAS_VIT_MIRROR`, or None if that is unset or a URL prefix.

    Raises:
        ValueError: if it names no directory, so that a typing error never leads to a download.
    """
    value = os.environ.get("KERAS_VIT_MIRROR")
    if not value or "://" in value:
        return None
    path = expand_dir("KERAS_VIT_MIRROR", value)
    if not path.is_dir():
        raise ValueError(
            "KERAS_VIT_MIRROR must be an existing directory or a URL prefix, so that files are taken from where you "
            f"mean.\nReceived: KERAS_VIT_MIRROR={value}, and there is no directory {path}. Create or unset it."
        )
    return path


def mirror_url(path: str) -> str | None:
    """The place of `path` below the URL prefix in `KERAS_VIT_MIRROR`, or None if there is no prefix.

    Raises:
        ValueError: if the prefix is neither https nor an allowed http, or has a query.
    """
    prefix = os.environ.get("KERAS_VIT_MIRROR", "")
    if "://" not in prefix:
        return None
    if "?" in prefix or "#" in prefix or not is_safe(prefix):
        raise ValueError(
            "a URL prefix in KERAS_VIT_MIRROR must be https (http only for this machine, or with "
            "KERAS_VIT_ALLOW_HTTP=1) and have no query, since the places of files are appended to it.\n"
            f"Received: KERAS_VIT_MIRROR={redacted(prefix)}"
        )
    return f"{prefix.rstrip('/')}/{urllib.parse.quote(path)}"


def is_offline() -> bool:
    """True if `KERAS_VIT_OFFLINE` forbids sockets; ValueError if it is no switch."""
    return _switch("KERAS_VIT_OFFLINE")


def timeout_seconds(value: float | None = None) -> float:
    """The longest silence of a server in seconds, at most 1e6: `value`, else `KERAS_VIT_TIMEOUT`, else 30.

    Raises:
        ValueError: if it is no finite number above 0.
    """
    name = "KERAS_VIT_TIMEOUT" if value is None else "timeout"
    wanted = os.environ.get("KERAS_VIT_TIMEOUT", "") or _DEFAULT_TIMEOUT if value is None else value
    try:
        seconds = float(wanted)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(
            f"{name} must be a number of seconds above 0, as silence has to end.\nReceived: {name}={wanted}"
        )
    return min(seconds, _LONGEST_TIMEOUT)


def is_safe(url: str) -> bool:
    """True for https, and for http to this machine or with `KERAS_VIT_ALLOW_HTTP=1`."""
    try:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname
    except ValueError:  # such as an unclosed bracket of an IPv6 address
        return False
    if not host or parts.scheme not in ("http", "https"):
        return False
    return parts.scheme == "https" or is_loopback(host) or _switch("KERAS_VIT_ALLOW_HTTP")


def redacted(url: str) -> str:
    """The URL for messages: printable, since a redirect may be a stranger's, and without what can be a secret."""
    return printable(without_secrets(url))


def without_secrets(url: str) -> str:
    """The URL without user, password, query and fragment, any of which can be a secret."""
    address, question, _ = url.partition("#")[0].partition("?")
    scheme, separator, rest = address.rpartition("://")
    authority, slash, path = rest.partition("/")
    return scheme + separator + authority.rpartition("@")[2] + slash + path + (question and "?...")


def is_loopback(host: str) -> bool:
    """True for this machine: `localhost`, 127.0.0.0/8 and ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _switch(name: str) -> bool:
    value = os.environ.get(name, "")
    if value.lower() not in _ON + _OFF:
        raise ValueError(f"{name} must be 1 or 0, so that it is clear what is meant.\nReceived: {name}={value}")
    return value.lower() in _ON
