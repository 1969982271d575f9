"""Brings a file over http into a partial file, and goes on where an earlier try or a killed process ended.

`requests` and its urllib3 do http, TLS, proxies and redirects, and bound the silence of a server. They leave to the
caller what is here: resuming, https at each redirect, bounds on size, space and slowness, and digests. Imports neither
Keras nor TensorFlow.
"""

import base64
import contextlib
import errno
import hashlib
import json
import logging
import re
import shutil
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import requests
import urllib3

from keras_vit.files import read_json_object
from keras_vit.pages.formatting import printable
from keras_vit.weights.download.cache import Check, InvalidFileError, check_valid
from keras_vit.weights.download.environment import is_loopback, is_safe, redacted
from keras_vit.weights.download.remote import DownloadError, OfflineError, RemoteFile, download_error, megabytes

PAUSES = (0.5, 1.0, 2.0)  # seconds before the second, third and last try
LONGEST_WAIT = 60.0  # seconds that a server's Retry-After is followed
SLOWEST = 1024  # bytes a second over one timeout, below which a try is given up
LARGEST = 16 << 30  # bytes of a body that announces no size; nor more than half of what the disk has free
_SILENT = 5.0  # seconds of waiting without a message
_CHUNK = 1 << 18  # bytes
_REDIRECTS = 5
_STRONG = re.compile(r'"[!#-~]*"')  # an ETag that promises equal bytes
_HEADERS = {"User-Agent": "keras_vit", "Accept-Encoding": "identity"}  # sizes and digests are of the bytes as stored
_LIBRARY_ERRORS = (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, ValueError)
_LOGGER = logging.getLogger("keras_vit")
Report = Callable[[int, int | None], object]  # of bytes so far and bytes in all, None if unknown


class TransferError(Exception):
    """A try failed; another may succeed after `wait` seconds, and none will if that is None."""

    def __init__(self, reason: str, wait: float | None = None, kind: type[DownloadError] = DownloadError) -> None:
        super().__init__(reason)
        self.wait, self.kind = wait, kind


def download(file: RemoteFile, url: str, part: Path, check: Check | None, timeout: float, report: Report) -> str:
    """Completes the partial file in at most four tries, and returns its sha256.

    Args:
        url: where to get it; `file.url` or a mirror's.
        part: its bytes are continued if a note next to it says of which version of the file they are.
        check: as for `fetch`.
        timeout: longest silence in seconds.
        report: called with bytes so far and bytes in all, None if unknown.
    """
    for number, pause in enumerate((*PAUSES, None), 1):
        continued = _read_note(part, url) is not None
        try:
            note = _bring(file, url, part, timeout, report)
            return _check_complete(file, part, note, check)
        except InvalidFileError as error:
            remove_part(part)
            fault = TransferError(str(error), 0.0 if continued else None)  # the bytes from before may be to blame
        except TransferError as error:
            fault = error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                remove_part(part)
            raise
        if pause is None or fault.wait is None or (number == 1 and fault.kind is OfflineError):
            break
        wait = max(pause, fault.wait)
        level = logging.WARNING if wait > _SILENT else logging.INFO
        _LOGGER.log(level, "Waiting %.0f s for %s: %s.", wait, file.label, printable(fault))
        time.sleep(wait)
    tries = f", after {number} tries" if number > 1 else ""
    raise download_error(file, f"{fault}{tries}", url, fault.kind)


def _bring(file: RemoteFile, url: str, part: Path, timeout: float, report: Report) -> dict:
    """Tries once to bring what the part lacks; returns the note of what the server says of the file."""
    note: Any = _read_note(part, url)
    size = part.stat().st_size if note else 0
    if note and size == note["size"]:
        return note
    asked = {"Range": f"bytes={size}-", "If-Range": note["etag"]} if note else {}
    with _open(url, asked, timeout) as (response, adapter):
        if response.status_code == 200:
            note, size = _make_note(url, response), 0
            if note["size"] is not None and not file.fits(note["size"]):
                raise InvalidFileError(
                    "its size differs, by a changed file, or a login or proxy that answers instead: expected "
                    f"{file.listed}, got {note['size']} bytes announced"
                )
        elif not _goes_on(response, note, size):
            remove_part(part)
            sent = response.headers.get("Content-Range", "")
            sent = f"another part ({sent!r:.99})" if sent else "another version"
            raise TransferError(f"asked to continue at byte {size}, the server sent {sent}", 0)
        _check_space(part, (note["size"] or file.size or 0) - size)
        if size == 0:
            remove_part(part)  # and not cut to nothing, since it may be a pipe or a link
            part.touch()
            if note["etag"] and note["size"]:  # else it could not be continued
                note_of(part).write_text(json.dumps(note))
        _receive(file, part, note, response, adapter, report)
    return note


def note_of(part: Path) -> Path:
    """The place of the note of a partial file."""
    return part.with_name(f"{part.name}.json")


def remove_part(part: Path) -> None:
    """Removes a partial file and its note, if they are there."""
    part.unlink(missing_ok=True)
    note_of(part).unlink(missing_ok=True)


def _read_note(part: Path, url: str) -> dict | None:
    """The note of a part that can be continued from this url, else None."""
    note = read_json_object(note_of(part)) or {}
    etag, size = str(note.get("etag")), note.get("size")
    if note.get("url") != redacted(url) or not _STRONG.fullmatch(etag) or not isinstance(size, int):
        return None
    return note if part.is_file() and 0 < part.stat().st_size <= size else None


def _make_note(url: str, response: requests.Response) -> dict:
    """What the server says of this version of the file: an ETag for If-Range, the size and digests, or None."""
    length, etag = response.headers.get("Content-Length", ""), response.headers.get("ETag", "")
    if length.isdecimal() and len(length) > 18:  # which no disk has, and Python reads no int of thousands
        raise TransferError(f"the server announces a body of {len(length):,} digits of bytes")
    note: dict[str, Any] = {"url": redacted(url), "etag": etag if _STRONG.fullmatch(etag) else None}
    note |= {"size": int(length) if length.isdecimal() else None, "date": response.headers.get("Last-Modified")}
    # Google's store sends an md5, a redirect of Hugging Face a sha256.
    for headers in (hop.headers for hop in (*response.history, response)):
        md5 = re.search(r"\bmd5=([\w+/]{22}==)", headers.get("x-goog-hash", ""), re.ASCII)
        sha256 = re.fullmatch(r'"?([0-9a-f]{64})"?', headers.get("x-linked-etag", ""))
        note |= {"md5": base64.b64decode(md5[1]).hex()} if md5 else {}
        note |= {"sha256": sha256[1]} if sha256 else {}
    return note


def _goes_on(response: requests.Response, note: dict, size: int) -> bool:
    """Whether the answer goes on after `size` bytes with the noted version, also if the server knows no If-Range."""
    headers = response.headers
    is_rest = re.fullmatch(rf"bytes {size}-\d+/{note['size']}", headers.get("Content-Range", "")) is not None
    is_same = headers.get("ETag") == note["etag"] and headers.get("Last-Modified") in (None, note.get("date"))
    return response.status_code == 206 and is_rest and is_same


def _check_space(part: Path, needed: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        raise TransferError(
            f"the disk of {part.parent} is too full: {megabytes(needed)} are needed, {megabytes(free)} are free; "
            "make room, or set KERAS_VIT_CACHE to a folder elsewhere"
        )


def _receive(
    file: RemoteFile, part: Path, note: dict, response: requests.Response, adapter: "_Adapter", report: Report
) -> None:
    """Appends the body to the part."""
    listed = file.size + file.size_tolerance if file.size else min(LARGEST, shutil.disk_usage(part.parent).free // 2)
    most = listed if note["size"] is None else note["size"]
    with open(part, "ab") as out:
        while chunk := response.raw.read1(_CHUNK):
            adapter.size += len(chunk)
            if out.tell() + len(chunk) > most:
                raise InvalidFileError(f"more bytes came than expected: expected at most {most}")
            out.write(chunk)
            report(out.tell(), note["size"])
    if adapter.fault:  # since the end of a body without a length looks the same
        raise adapter.fault


def _check_complete(file: RemoteFile, part: Path, note: dict, check: Check | None) -> str:
    """The sha256 of a part with all bytes, the announced digests, and a valid content."""
    size, least = part.stat().st_size, note["size"] or (file.size or 0) - file.size_tolerance
    if size < least:
        raise TransferError(f"the body ended early: expected at least {least} bytes, got {size}", 0.0)
    found = {"sha256": check_valid(part, file, check)}
    if "md5" in note:
        with open(part, "rb") as content:
            found["md5"] = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    for name, digest in found.items():
        if note.get(name, digest) != digest:
            raise InvalidFileError(f"its {name} must be {note[name]}, as its server says, and is {digest}")
    return found["sha256"]


class _Adapter(requests.adapters.HTTPAdapter):
    """Sends each request of a chain of redirects: by https, and without a proxy to this machine.

    It ends a connection that brings fewer than `SLOWEST` bytes a second over one timeout. The timeouts of `requests`
    bound the silence between two bytes alone, and a server can send a head or the size of a chunk byte by byte.

    Attributes:
        size: bytes of bodies so far, which the reader counts.
        fault: why a connection was ended.
        proxy: of the last request.
    """

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self.timeout, self.size = timeout, 0
        self.fault: TransferError | None = None
        self.proxy: str | None = None
        self._socket, self._ended = None, threading.Event()

    def send(  # with the arguments of requests, by place and by name
        self,
        request: Any,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        _check_safe(request.url)
        if is_loopback(urllib.parse.urlsplit(request.url).hostname or ""):
            proxies = {}
            request.headers.pop("Proxy-Authorization", None)
        self.proxy = requests.utils.select_proxy(request.url, proxies)
        response = super().send(request, stream, timeout, verify, cert, proxies)
        self.stop()
        if response.is_redirect:
            response.close()  # else the session reads its body, however long
        else:
            self._start(self._socket)
        return response

    def get_connection_with_tls_context(self, *arguments: Any, **keywords: Any) -> Any:
        pool = super().get_connection_with_tls_context(*arguments, **keywords)
        kind, start = pool.ConnectionCls, self._start

        def connect(connection: Any) -> None:  # which has timeouts of its own, TLS included
            kind.connect(connection)
            start(connection.sock)

        pool.ConnectionCls = type("Watched", (kind,), {"connect": connect})
        return pool

    def stop(self) -> None:
        """Ends the watch."""
        self._ended.set()

    def _start(self, connection: Any) -> None:
        self.stop()
        self._socket, self._ended = connection, threading.Event()
        threading.Thread(target=self._watch, args=(connection, self._ended), daemon=True).start()

    def _watch(self, connection: Any, ended: threading.Event) -> None:
        before = self.size
        while not ended.wait(self.timeout):
            came, before = self.size - before, self.size
            if came < SLOWEST * self.timeout:
                self.fault = TransferError(f"only {came} bytes came within {self.timeout:g} s (KERAS_VIT_TIMEOUT)", 0.0)
                with contextlib.suppress(OSError):  # closed by now
                    # Not `connection.shutdown`, after which a socket of TLS gives what comes without decrypting it.
                    socket.socket.shutdown(getattr(connection, "socket", connection), socket.SHUT_RDWR)
                return


def _check_safe(url: str) -> None:
    if not is_safe(url):
        raise TransferError(
            "the way there leaves https, which alone says who answers (http is for this machine, or with "
            f"KERAS_VIT_ALLOW_HTTP=1): {redacted(url)}"
        )


@contextlib.contextmanager
def _open(url: str, headers: dict, timeout: float) -> Iterator[tuple[requests.Response, _Adapter]]:
    """The accepted answer after at most five redirects. Every fault of the network ends in a `TransferError`."""
    _check_safe(url)
    adapter = _Adapter(timeout)
    try:
        with requests.Session() as session:
            session.max_redirects = _REDIRECTS
            for scheme in ("", "http://", "https://"):
                session.mount(scheme, adapter)
            with session.get(url, headers=_HEADERS | headers, timeout=timeout, stream=True) as response:
                _check_status(response, "Range" in headers)
                yield response, adapter
    except (TransferError, *_LIBRARY_ERRORS) as error:
        fault = adapter.fault or (error if isinstance(error, TransferError) else _fault(error, adapter))
        if adapter.proxy is not None:
            fault.args = (f"{fault}, through the proxy {redacted(adapter.proxy)}",)
        raise fault from None
    finally:
        adapter.stop()


def _check_status(response: Any, continues: bool) -> None:
    status, wait = response.status_code, None
    if status in (408, 429) or status >= 500:
        wait = 0.0
        with contextlib.suppress(urllib3.exceptions.InvalidHeader, ValueError, OverflowError):
            wait = min(urllib3.Retry().parse_retry_after(response.headers.get("Retry-After", "")), LONGEST_WAIT)
    if status != 200 and not (continues and status in (206, 416)):
        raise TransferError(f"the server answered {status} ({response.reason})", wait)
    if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise TransferError(f"the server sent it as {encoding}, though it was asked for the bytes as stored")


def _fault(error: Any, adapter: _Adapter) -> TransferError:
    """What an error of a library means, without its text, which can hold secrets."""
    cause = error
    while cause.__context__ is not None:
        cause = cause.__context__
    cause = str(cause) if isinstance(cause, OSError) and cause.strerror else type(cause).__name__
    if isinstance(error, (requests.exceptions.ReadTimeout, urllib3.exceptions.ReadTimeoutError)):
        return TransferError(f"nothing came within {adapter.timeout:g} s (KERAS_VIT_TIMEOUT)", 0.0)
    if isinstance(error, requests.exceptions.SSLError):
        return TransferError(
            f"the server did not prove its identity ({cause}); behind a proxy that opens TLS, name its certificate in "
            "REQUESTS_CA_BUNDLE"
        )
    if isinstance(error, requests.exceptions.ConnectionError):
        began = any(isinstance(each, urllib3.exceptions.ProtocolError) for each in error.args)
        what, kind = ("no answer in http", DownloadError) if began else ("no connection", OfflineError)
        return TransferError(f"{what} ({cause})", 0.0, kind)
    if isinstance(error, urllib3.exceptions.HTTPError) and not isinstance(error, ValueError):  # of a URL
        return TransferError(f"the connection broke after {adapter.size} bytes ({cause})", 0.0)
    return TransferError(f"no request could be made of it ({type(error).__name__})")
