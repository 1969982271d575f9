"""One try of bringing a file over http into a partial file, from where the last try ended.

`requests` and its urllib3 do http, TLS, proxies and timeouts of silence. They leave to the caller what is here:
resuming, the rule for each redirect, bounds on size, space and slowness, and digests. Every fault of the network ends
in a `TransferError`. Imports neither Keras nor TensorFlow.
"""

import base64
import binascii
import contextlib
import hashlib
import io
import math
import re
import shutil
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import requests
import urllib3

from keras_vit.files import file_sha256
from keras_vit.weights.download.cache import InvalidFileError
from keras_vit.weights.download.environment import is_loopback, is_safe, redacted
from keras_vit.weights.download.partial_file import PartialFile, TransferError, validator
from keras_vit.weights.download.remote import RemoteFile, megabytes

PAUSES = (0.5, 1.0, 2.0)  # seconds before the second, third and last try
REDIRECTS = 5
LONGEST_WAIT = 60.0  # seconds that a server's Retry-After is followed
SLOWEST = 1024  # bytes a second over one timeout, below which a try is given up
LARGEST = 16 << 30  # bytes of a body that announces no size; G/14, the largest published, has 7.4e9
_CHUNK = 1 << 18  # bytes
_MOST_DIGITS = 18  # of a number of bytes; Python refuses to read some thousands
Report = Callable[[int, int | None], object]  # of bytes so far and bytes in all, None if unknown
_HEADERS = {"User-Agent": "keras_vit", "Accept-Encoding": "identity"}  # sizes and digests are of the bytes as stored


class Deadline:
    """When a step of an answer must be complete: its head, or the next piece of its body.

    The timeouts of `requests` and urllib3 bound the silence between two bytes. A server can send the bytes of a head,
    of a chunk's size or of trailers one by one; the library then waits without end.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout, self.due = timeout, math.inf

    def start(self) -> None:
        """Begins a step."""
        self.due = time.monotonic() + self.timeout


class _DeadlineReader(io.RawIOBase):
    """What a server sends until the deadline runs out."""

    def __init__(self, raw: io.RawIOBase, deadline: Deadline) -> None:
        self._raw, self._deadline = raw, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if time.monotonic() > self._deadline.due:
            raise TimeoutError
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _DeadlineSocket:
    """A socket whose file is a `_DeadlineReader`."""

    def __init__(self, sock: Any, deadline: Deadline) -> None:
        self._sock, self._deadline = sock, deadline

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def makefile(self, *_: Any) -> io.BufferedReader:
        return io.BufferedReader(_DeadlineReader(self._sock.makefile("rb", buffering=0), self._deadline))


class DeadlineAdapter(requests.adapters.HTTPAdapter):
    """Makes connections whose answers are bounded by a deadline."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def get_connection_with_tls_context(self, *arguments: Any, **keywords: Any) -> Any:
        pool = super().get_connection_with_tls_context(*arguments, **keywords)
        kind, deadline = pool.ConnectionCls, self._deadline

        def connect(connection: Any) -> None:  # which has timeouts of its own, TLS included
            kind.connect(connection)
            connection.sock = _DeadlineSocket(connection.sock, deadline)
            deadline.start()

        if kind.__name__ != "Bounded":  # as after a redirect to the same server
            pool.ConnectionCls = type("Bounded", (kind,), {"connect": connect})
        return pool


class TransientError(TransferError):
    """A try failed, and another may succeed, after `wait` seconds if the server says so."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


class UnreachableError(TransientError):
    """No connection: no network, no such host, or no server."""


def download(file: RemoteFile, url: str, part: PartialFile, *, timeout: float, report: Report) -> str:
    """Tries once to complete the part, and gives its sha256.

    Args:
        url: where to get it; `file.url` or a mirror's.
        timeout: longest silence in seconds, and of a head or a frame the longest time.
        report: called with bytes so far and bytes in all, None if unknown.

    Raises:
        InvalidFileError: what came, or is announced, is not the file.
        TransferError: the try failed; the part is kept if it can be continued.
    """
    note: Any = part.read_note(url)
    if note is None or part.size != note["size"]:
        deadline = Deadline(timeout)
        with _open_response(url, _range_headers(part, note), deadline) as (response, announced):
            continues = response.status_code == 206
            if continues:
                _check_continuation(response, note, part)
            else:
                note = _make_note(url, response, announced)
                _check_listed(file, note["size"])
            _check_space(part, (note["size"] or file.size or 0) - (part.size if continues else 0))
            if not continues:
                part.restart(note)
            _receive(response, part, file, note, deadline, report)
    return _check_complete(file, note, part)


@contextlib.contextmanager
def _open_response(url: str, headers: dict, deadline: Deadline) -> Iterator[tuple[requests.Response, dict[str, str]]]:
    """The response after at most five redirects, its status accepted, and the digests the hops announced."""
    announced: dict[str, str] = {}
    with requests.Session() as session:
        for scheme in ("http://", "https://"):
            session.mount(scheme, DeadlineAdapter(deadline))
        for _ in range(REDIRECTS + 1):
            _check_safe(url)
            settings = _settings(session, url)
            proxy = requests.utils.select_proxy(url, settings["proxies"])
            with _name_proxy(proxy):
                response = _get(session, url, headers, deadline.timeout, settings)
            announced |= _announced_digests(response.headers)
            target = _redirect_target(session, response)
            if target is None:
                break
            response.close()
            with contextlib.suppress(ValueError):  # such as an unclosed bracket; then the target itself is refused
                target = urllib.parse.urljoin(url, target)
            url = target
        else:
            raise TransferError(f"more than {REDIRECTS} redirects")
        with response:
            with _name_proxy(proxy):
                _check_status(response, with_range="Range" in headers)
            yield response, announced


def _redirect_target(session: requests.Session, response: requests.Response) -> str | None:
    """Where a redirect leads to, None if it is none."""
    try:
        return session.get_redirect_target(response)
    except UnicodeDecodeError:
        response.close()
        raise TransferError("the server redirects to an address that is no text") from None


def _check_safe(url: str) -> None:
    if not is_safe(url):
        raise TransferError(
            "the way there leaves https, which alone says who answers (http is for this machine, or with "
            f"KERAS_VIT_ALLOW_HTTP=1): {redacted(url)}"
        )


@contextlib.contextmanager
def _name_proxy(proxy: str | None) -> Iterator[None]:
    """Adds the proxy to the words of a fault, since the fault may be the proxy's."""
    try:
        yield
    except TransferError as fault:
        if proxy is not None:
            fault.args = (f"{fault}, through the proxy {redacted(proxy)}",)
        raise


def _settings(session: requests.Session, url: str) -> dict:
    """Proxies and certificates of the environment. No proxy stands before an address of this machine."""
    settings = session.merge_environment_settings(url, {}, True, None, None)
    return settings | {"proxies": {}} if is_loopback(urllib.parse.urlsplit(url).hostname or "") else settings


def _get(session: requests.Session, url: str, headers: dict, timeout: float, settings: dict) -> requests.Response:
    """Sends one request. Errors of libraries become a `TransferError` without their text, which can hold secrets."""
    try:
        request = session.prepare_request(requests.Request("GET", url, headers=headers))
        # Not `session.send`, which reads the body of a redirect, however long, even if it is not to follow it.
        return session.get_adapter(url).send(request, timeout=timeout, **settings)
    except requests.exceptions.SSLError as error:
        raise TransferError(
            f"the server did not prove its identity ({_cause(error)}); behind a proxy that opens TLS, name its "
            "certificate in REQUESTS_CA_BUNDLE"
        ) from None
    except requests.exceptions.ReadTimeout:
        raise TransientError(f"no answer within {timeout:g} s (KERAS_VIT_TIMEOUT)") from None
    except requests.exceptions.ConnectionError as error:
        began = error.args and isinstance(error.args[0], urllib3.exceptions.ProtocolError)
        raise (TransientError if began else UnreachableError)(f"no connection ({_cause(error)})") from None
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, ValueError) as error:
        raise TransferError(f"no request could be made of it ({type(error).__name__})") from None


def _cause(error: Any) -> str:
    """The innermost error in words if it is the system's own, else the name of its kind."""
    inner = error
    while inner is not None:
        error = inner
        nearest = (getattr(error, "reason", None), error.__cause__, *error.args)
        inner = next((each for each in nearest if isinstance(each, Exception)), None)
    plain = isinstance(error, OSError) and not isinstance(error, requests.exceptions.RequestException)
    return str(error) if plain else type(error).__name__


def _check_status(response: Any, with_range: bool) -> None:
    status = response.status_code
    if status == 200 or (status == 206 and with_range):
        if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
            raise TransferError(f"the server sent it as {encoding}, though it was asked for the bytes as stored")
        return
    reason = f"the server answered {status} ({response.reason})"
    if status in (408, 429) or status >= 500:
        raise TransientError(reason, _retry_after(response.headers.get("Retry-After", "")))
    if status == 416:  # the part is longer than the file has become
        raise InvalidFileError(f"{reason} to {response.request.headers['Range']}")
    raise TransferError(reason)


def _retry_after(value: str) -> float:
    """Seconds from a Retry-After header, which holds seconds or a date; 0 if it holds neither."""
    try:
        return min(urllib3.Retry().parse_retry_after(value), LONGEST_WAIT)
    except (urllib3.exceptions.InvalidHeader, ValueError, OverflowError):
        return 0.0


def _range_headers(part: PartialFile, note: Any) -> dict:
    if note is None:
        return _HEADERS
    return _HEADERS | {"Range": f"bytes={part.size}-", "If-Range": validator(note)}


def _make_note(url: str, response: requests.Response, announced: dict[str, str]) -> dict:
    """The note of what the server says of this version of the file."""
    return {
        "url": redacted(url),
        "etag": _header(response, "ETag"),
        "last_modified": _header(response, "Last-Modified"),
        "size": _announced_size(response.headers.get("Content-Length", "")),
        "md5": announced.get("md5"),
        "sha256": announced.get("sha256"),
    }


def _header(response: requests.Response, name: str) -> str | None:
    """A header, None without one or if no request could repeat it."""
    value = response.headers.get(name)
    return value if value and value.isascii() and value.isprintable() else None


def _announced_size(length: str) -> int | None:
    if not length.isdecimal():
        return None
    if len(length) > _MOST_DIGITS:
        raise TransferError(f"the server announces a body of {len(length):,} digits of bytes")
    return int(length)


def _announced_digests(headers: Any) -> dict[str, str]:
    """Hexadecimal digests by kind. Google's store sends an md5 in `x-goog-hash`, Hugging Face's redirect a sha256."""
    digests = {}
    md5 = re.search(r"(?:^|[,\s])md5=([\w+/]+=*)", headers.get("x-goog-hash", ""))
    if md5:
        with contextlib.suppress(binascii.Error):
            digests["md5"] = base64.b64decode(md5[1], validate=True).hex()
    sha256 = re.fullmatch(r'"?([0-9a-f]{64})"?', headers.get("x-linked-etag", ""))
    if sha256:
        digests["sha256"] = sha256[1]
    return digests


def _check_continuation(response: requests.Response, note: dict, part: PartialFile) -> None:
    """Raises unless the server goes on where the part ends, with the version of the file that the part has."""
    header = response.headers.get("Content-Range", "")
    match = re.fullmatch(rf"bytes (\d{{1,{_MOST_DIGITS}}})-\d+/(\d+|\*)", header)
    sizes = ("*", match and match[2] if note["size"] is None else str(note["size"]))
    fault = None
    if match is None or int(match[1]) != part.size or match[2] not in sizes:
        fault = f"asked to continue at byte {part.size} of {note['size']}, the server sent {header[:100]!r}"
    elif not _is_version(response, note):
        fault = "asked to continue, the server sent another version, or did not say that it is the same"
    if fault:
        part.remove()
        raise TransientError(fault)


def _is_version(response: requests.Response, note: dict) -> bool:
    """Whether an answer is of the noted version: it repeats the validator, and contradicts nothing in the note.

    A server that knows no If-Range goes on with whatever it has by now. One that knows it repeats at least the ETag
    (RFC 9110, section 15.3.7); where only a date is known, that date must be the same.
    """
    sent = {"etag": response.headers.get("ETag"), "last_modified": response.headers.get("Last-Modified")}
    return validator(note) in sent.values() and all(sent[name] in (None, note[name]) for name in sent)


def _check_listed(file: RemoteFile, size: int | None) -> None:
    if size is not None and not file.fits(size):
        raise InvalidFileError(
            f"its size differs, by a changed file, or a login or proxy that answers instead: expected {file.listed}, "
            f"got {size} bytes announced"
        )


def _check_space(part: PartialFile, needed: int) -> None:
    free = shutil.disk_usage(part.path.parent).free
    if needed > free:
        raise TransferError(
            f"the disk of {part.path.parent} is too full: {megabytes(needed)} are needed, {megabytes(free)} are free; "
            "make room, or set KERAS_VIT_CACHE to a folder elsewhere"
        )


def _limit(file: RemoteFile, note: dict) -> int:
    if note["size"] is not None:
        return note["size"]
    return LARGEST if file.size is None else file.size + file.size_tolerance


def _receive(
    response: Any, part: PartialFile, file: RemoteFile, note: dict, deadline: Deadline, report: Report
) -> None:
    """Appends the body; ends in a fault when it breaks off, exceeds the limit or comes too slowly."""
    window, begun, limit, timeout = time.monotonic(), part.size, _limit(file, note), deadline.timeout
    size, expected = begun, file.listed if note["size"] is None else f"{note['size']} bytes"
    with open(part.path, "ab") as out:
        while chunk := _read(response, size, expected, deadline):
            size += len(chunk)
            if size > limit:
                raise InvalidFileError(f"more bytes came than expected: expected at most {limit}, got {size}")
            out.write(chunk)
            report(size, note["size"])
            if time.monotonic() - window > timeout:
                if size - begun < SLOWEST * timeout:
                    raise TransientError(f"fewer than {SLOWEST} bytes a second came over {timeout:g} s")
                window, begun = time.monotonic(), size


def _read(response: requests.Response, size: int, expected: str, deadline: Deadline) -> bytes:
    """The bytes that have come, up to one chunk; empty at the end."""
    deadline.start()
    try:
        return response.raw.read1(_CHUNK)
    except urllib3.exceptions.ReadTimeoutError:
        words = f"no more of the body came within {deadline.timeout:g} s after {size} bytes"
        raise TransientError(f"{words} (KERAS_VIT_TIMEOUT)") from None
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise TransientError(
            f"the connection broke: expected {expected}, got {size} bytes ({type(error).__name__})"
        ) from None


def _check_complete(file: RemoteFile, note: dict, part: PartialFile) -> str:
    """The sha256 of a part that has all its bytes, and the digests that its server announces."""
    least = note["size"] or (file.size or 0) - file.size_tolerance
    if part.size < least:
        raise TransientError(f"the body ended early: expected at least {least} bytes, got {part.size}")
    found = {"sha256": file_sha256(part.path)}
    if note["md5"]:
        with open(part.path, "rb") as content:
            found["md5"] = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    for name, digest in found.items():
        if note[name] not in (None, digest):
            raise InvalidFileError(
                f"its {name} differs from the one its server announces: expected {note[name]}, got {digest}"
            )
    return found["sha256"]
