"""Answers byte by byte, as no library would send them: versions that change, heads and frames that never end."""

import contextlib
import itertools
import logging
import socket
import threading

import pytest

from keras_vit.cache import cache_dir
from keras_vit.weights.download import DownloadError, RemoteFile, fetch, transfer

NAME = "some/place/tiny.npz"
OLD, NEW = bytes(range(256)) * 400, bytes(range(255, -1, -1)) * 400  # two versions of equal size
HALF = len(OLD) // 2


class RawServer:
    """Answers request number k by `answers[k]`, the last one from then on: bytes, or a function of the connection."""

    def __init__(self, *answers):
        self.answers, self.requests, self.released = list(answers), [], threading.Event()
        self.socket = socket.create_server(("127.0.0.1", 0))

    def __enter__(self):
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.released.set()
        self.socket.shutdown(socket.SHUT_RDWR)  # else `accept` would go on waiting
        self.thread.join()
        self.socket.close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}/tiny.npz"

    def drip(self, connection, pieces):
        """Sends the pieces, endless or not, every 50 ms."""
        for piece in pieces:
            if self.released.wait(0.05):
                return
            connection.sendall(piece)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.socket.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection):
        with contextlib.suppress(OSError), connection:
            request = b""
            while b"\r\n\r\n" not in request:
                request += connection.recv(65536)
            self.requests.append(request.decode("latin1"))
            answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
            if isinstance(answer, bytes):
                connection.sendall(answer)
            else:
                answer(self, connection)


def answer(status, body=b"", **headers):
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin1") + body


def whole(content, **headers):
    return answer("200 OK", content, Content_Length=len(content), **headers)


def cut(content, **headers):
    return answer("200 OK", content[:HALF], Content_Length=len(content), **headers)


def rest(content, **headers):
    place = f"bytes {HALF}-{len(content) - 1}/{len(content)}"
    return answer("206 Partial Content", content[HALF:], Content_Length=HALF, Content_Range=place, **headers)


def listed(server, **facts):
    return RemoteFile(server.url, NAME, **facts)


def files():
    return sorted(path.name for path in cache_dir().rglob("*") if path.is_file() and path.suffix != ".lock")


MONDAY, TUESDAY = "Mon, 19 Oct 2020 07:28:00 GMT", "Tue, 20 Oct 2020 07:28:00 GMT"
TAGGED, DATED = {"ETag": '"one"'}, {"Last_Modified": MONDAY}
WEAK = DATED | {"ETag": 'W/"one"'}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (TAGGED, {"ETag": '"two"'}),
        (TAGGED, {"ETag": 'W/"one"'}),
        (TAGGED, {}),
        (DATED, {"Last_Modified": TUESDAY}),
        (DATED, {}),
        (TAGGED | DATED, TAGGED | {"Last_Modified": TUESDAY}),
        (WEAK, DATED | {"ETag": 'W/"two"'}),
        (DATED, DATED | TAGGED),
    ],
)
def test_two_versions_are_never_stitched_together(before, after):  # D15
    """A server that ignores `If-Range` goes on with another version, or does not say that it is the same."""
    with RawServer(cut(OLD, **before), rest(NEW, **after), whole(NEW, **after)) as server:
        assert fetch(listed(server)).read_bytes() == NEW
    assert [f"\r\nRange: bytes={HALF}-\r\n" in request for request in server.requests] == [False, True, False]
    validator = before["ETag"] if before in (TAGGED, TAGGED | DATED) else MONDAY
    assert f"\r\nIf-Range: {validator}\r\n" in server.requests[1]


@pytest.mark.parametrize("after", [TAGGED | DATED, TAGGED])
def test_same_version_is_continued(after):
    """The date may be left out beside `If-Range` (RFC 9110, section 15.3.7); the ETag may not."""
    with RawServer(cut(OLD, **TAGGED, **DATED), rest(OLD, **after)) as server:
        assert fetch(listed(server)).read_bytes() == OLD
    assert len(server.requests) == 2


def test_validator_that_cannot_be_printed_is_not_repeated():
    with RawServer(cut(OLD, ETag='"one\x0btwo"'), whole(OLD)) as server:
        assert fetch(listed(server)).read_bytes() == OLD
    assert not any("If-Range" in request for request in server.requests)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
CONTINUE, TRAILER = b"HTTP/1.1 100 Continue\r\n\r\n", b"X-Trailer: x\r\n"
ENDLESS = {  # how it begins, what comes then without end, and what is waited for in vain
    "head": (b"HTTP/1.1 200 OK\r\nX-Header: ", b"x", "no answer"),
    "status": (b"HTTP/1.1 200 ", b"O", "no answer"),
    "continue": (b"", CONTINUE, "no answer"),
    "flood of continue": (b"", CONTINUE, "no answer"),
    "chunk size": (CHUNKED, b"0", "body"),
    "chunk extension": (CHUNKED + b"5;", b"x", "body"),
    "trailers": (CHUNKED + b"5\r\nhello\r\n0\r\n", TRAILER, "body"),
    "flood of trailers": (CHUNKED + b"5\r\nhello\r\n0\r\n", TRAILER, "body"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_answer_without_end_is_an_error_in_bounded_time(kind):  # D16
    start, piece, words = ENDLESS[kind]

    def answer(server, connection):
        connection.sendall(start)
        while "flood" in kind:
            connection.sendall(piece * 1000)
        server.drip(connection, itertools.repeat(piece))

    pattern = rf"{words} .*0.2 s.*KERAS_VIT_TIMEOUT.*4 tries"
    with RawServer(answer) as server, pytest.raises(DownloadError, match=pattern):
        fetch(listed(server), timeout=0.2)
    assert len(server.requests) == 4
    assert not [name for name in files() if name.endswith(".npz")]


def test_slow_answer_within_the_bounds_is_taken():
    def answer(server, connection):
        server.drip(connection, [b"HTTP/1.1 100 Continue\r\n\r\n", CHUNKED[:30], CHUNKED[30:], b"5\r\n", b"hello\r\n"])
        server.drip(connection, [b"0\r\n", b"X-Trailer: x\r\n", b"\r\n"])

    with RawServer(answer) as server:
        assert fetch(listed(server), timeout=20).read_bytes() == b"hello"
    assert len(server.requests) == 1


def test_timeout_longer_than_any_clock_is_taken():
    with RawServer(whole(OLD)) as server:
        assert fetch(listed(server), timeout=1e300).read_bytes() == OLD


DIGITS = "9" * 5000  # Python makes no int of more than 4,300


@pytest.mark.parametrize("size", [None, len(OLD)])
def test_length_that_is_no_number_of_bytes_is_an_error(size):
    server = RawServer(answer("200 OK", OLD, Content_Length=DIGITS))
    with server, pytest.raises(DownloadError, match="5,000 digits"):
        fetch(listed(server, size=size))
    assert len(server.requests) == 1


@pytest.mark.parametrize("place", ["bytes {0}-1/2", "bytes 51200-{0}/{0}", "bytes 51200-99999/{0}"])
def test_range_of_too_many_digits_is_begun_afresh(place):
    continued = answer("206 Partial Content", OLD[HALF:], Content_Range=place.format(DIGITS), **TAGGED)
    with RawServer(cut(OLD, **TAGGED), continued, whole(OLD)) as server:
        assert fetch(listed(server)).read_bytes() == OLD
    assert len(server.requests) == 3


@pytest.mark.parametrize("value", [DIGITS, f"Mon, {DIGITS} Jan 2020 00:00:00 GMT", f"Mon, 1 Jan {10**18} 00:00:00 GMT"])
def test_retry_after_of_any_length_is_bounded(value, monkeypatch):
    waits = []
    monkeypatch.setattr(transfer.time, "sleep", waits.append)
    with RawServer(answer("503 Busy", Retry_After=value, Content_Length=0), whole(OLD)) as server:
        assert fetch(listed(server)).read_bytes() == OLD
    assert 0 <= waits[0] <= transfer.LONGEST_WAIT


EVIL = "\x1b[2J\x85keras-vit: error: all is well\x07"
LINES = EVIL.encode().decode("latin1")  # the same as UTF-8, which an address has to be
HOSTILE = {
    "reason": answer(f"404 {EVIL}"),
    "encoding": answer("200 OK", Content_Encoding=EVIL),
    "redirect": answer("302 Found", Location=f"ftp://host/{LINES}"),
    "redirect of bytes": answer("302 Found", Location=f"ftp://host/{EVIL}"),
    "header": answer("200 OK", OLD, Content_Length=len(OLD), ETag=EVIL, x_goog_hash=EVIL, X_Linked_ETag=EVIL),
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
def test_words_of_a_server_never_steer_the_terminal(answer, caplog):  # D17
    caplog.set_level(logging.INFO, "keras_vit")
    with RawServer(answer) as server, pytest.raises(DownloadError, match="could not be") as caught:
        fetch(listed(server, size=1))
    for text in (str(caught.value), *caplog.messages):
        assert all(line.isprintable() for line in text.split("\n"))


def test_words_of_a_server_are_escaped_in_a_continuation(caplog):  # D17
    continued = answer("206 Partial Content", Content_Range=f"bytes {EVIL}", **TAGGED)
    with RawServer(cut(OLD, **TAGGED), continued, whole(OLD)) as server, caplog.at_level(logging.INFO, "keras_vit"):
        fetch(listed(server))
    assert "'bytes \\x1b[2J" in caplog.messages[1]
    assert all(line.isprintable() for message in caplog.messages for line in message.split("\n"))
