"""What a server can do to us (rows D1 to D6, D13 and D15 to D17), on a server with those faults."""

import base64
import email.utils
import hashlib
import itertools
import logging
import shutil
import ssl
import subprocess
import time

import pytest
from fault_server import NAME, PART, FaultServer

from keras_vit.cache import cache_dir
from keras_vit.weights.download import DownloadError, OfflineError, RemoteFile, fetch, transfer

ZEROS = "0" * 64
DIGITS = "9" * 5000  # Python makes no int of more than 4,300


@pytest.fixture
def server():
    with FaultServer() as server:
        yield server


def listed(server, route, **facts):
    return RemoteFile(server.url(route), NAME, **{"size": len(server.content)} | facts)


def files():
    return sorted(path.name for path in cache_dir().rglob("*") if path.is_file() and path.suffix != ".lock")


def fails(file, pattern, **arguments):
    with pytest.raises(DownloadError, match=pattern) as caught:
        fetch(file, **arguments)
    assert not file.place.exists()
    assert file.url in str(caught.value)
    return str(caught.value)


def head(status, body=b"", **headers):
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin1") + body


# What is taken


def test_fetch_gives_the_bytes_of_the_server_under_a_name_of_ours(server):
    path = fetch(RemoteFile(server.address + "/ok/..%2f..%2fevil.npz", NAME))
    assert path == cache_dir() / NAME
    assert path.read_bytes() == server.content
    assert files() == ["tiny.npz", "tiny.npz.json"]


def test_listed_size_holds_within_its_tolerance_only(server):
    assert fetch(listed(server, "ok", size=299_990, size_tolerance=10)).exists()
    fetch(listed(server, "ok")).unlink()
    fails(listed(server, "ok", size=299_989, size_tolerance=10), r"299989 bytes.*\+- 10.* 300000")


@pytest.mark.parametrize(
    "form", ["md5={}", "crc32c=AAAAAA==,md5={}", "crc32c=AAAAAA==, md5={}", "md5={},crc32c=AAAAAA=="]
)
def test_google_md5_is_compared_in_every_form_of_the_header(server, form):
    right = base64.b64encode(hashlib.md5(server.content).digest()).decode()
    server.headers = {"x-goog-hash": form.format(right)}
    fetch(listed(server, "ok")).unlink()
    server.headers = {"x-goog-hash": form.format(base64.b64encode(bytes(16)).decode())}
    fails(listed(server, "ok"), f"md5.*{'0' * 32}")


def test_slow_answer_within_the_bounds_is_taken_with_any_timeout(server):
    start = [b"HTTP/1.1 100 Continue\r\n\r\n", CHUNKED[:30], CHUNKED[30:], b"5\r\n", b"hello\r\n"]
    server.answers = [lambda handler: handler.drip([*start, b"0\r\n", b"X-Trailer: x\r\n", b"\r\n"])]
    assert fetch(listed(server, "raw", size=5), timeout=1e300).read_bytes() == b"hello"
    assert len(server.log) == 1


# What is refused at once


def send_endless(handler):
    for piece in (head("200 OK"), *[bytes(1 << 16)] * 2000):
        handler.wfile.write(piece)


LOOP = head("302 x", Location="x")
REFUSED = {  # route or answer, what is known of the file, and the words of the error
    "login page by its size": ("html", {}, "login or proxy.*300000 bytes.*52 bytes"),  # D2
    "login page by its hash": ("html", {"size": None, "sha256": ZEROS}, "web page"),  # D2
    "another hash": ("ok", {"sha256": ZEROS}, "sha256 differs"),  # D2
    "another hash by a redirect": (head("302 x", Location="/ok/x", X_Linked_ETag=f'"{ZEROS}"'), {}, f"sha256.*{ZEROS}"),
    "endless body": (send_endless, {"size_tolerance": 100}, "at most 300100"),  # D6
    "endless body of unknown size": (send_endless, {"size": None}, "at most 1000000"),  # D6
    "size of too many digits": (head("200 OK", Content_Length=DIGITS), {}, "5,000 digits"),
    "encoded body": (head("200 OK", Content_Encoding="gzip"), {}, "gzip"),
    "range that nobody asked for": (head("206 x", Content_Range="bytes 0-9/10"), {}, "answered 206"),
    "redirects without end": (LOOP, {}, "TooManyRedirects"),  # D13
    **{f"status {status}": (str(status), {}, f"answered {status}") for status in (401, 403, 404, 410)},  # D3
}


@pytest.mark.parametrize(("answer", "facts", "pattern"), REFUSED.values(), ids=REFUSED)
def test_other_bytes_are_refused_at_once_and_leave_nothing(server, monkeypatch, answer, facts, pattern):
    monkeypatch.setattr(transfer, "LARGEST", 1_000_000)
    monkeypatch.setattr(time, "sleep", None)
    server.answers, route = [answer], answer if isinstance(answer, str) else "raw"
    message = fails(listed(server, route, **facts), pattern)
    assert f"curl -gL --fail -o {cache_dir() / NAME} {server.url(route)}" in message
    assert files() == []
    assert len(server.log) == (6 if answer is LOOP else 2 if ZEROS in pattern else 1)
    assert server.log[0][1]["Accept-Encoding"] == "identity"
    assert fetch(listed(server, "ok")).read_bytes() == server.content


def test_short_body_of_unknown_size_is_seen_by_the_check(server):  # D1
    def check(path):
        if path.stat().st_size != 300_000:
            raise ValueError("a zip cut short.\nReceived: something")

    server.answers = [head("200 OK", bytes(150_000))]
    fails(listed(server, "raw", size=None), "a zip cut short", check=check)
    assert files() == []


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://192.0.2.1/x", "//[::1/x"])
def test_redirect_away_from_https_is_refused(server, target):  # D13
    server.location = target
    message = fails(listed(server, "redirect"), "could not be downloaded")
    assert ("KERAS_VIT_ALLOW_HTTP=1" in message and target in message) == ("[" not in target)
    assert len(server.log) == 1


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://example.org/x", "http://192.0.2.1/x", "https://", "https://[::1", "x"]
)
def test_url_without_https_is_refused(url):  # D13
    fails(RemoteFile(url, NAME), "KERAS_VIT_ALLOW_HTTP=1")


# What is tried again

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
CONTINUE, TRAILER = b"HTTP/1.1 100 Continue\r\n\r\n", b"X-Trailer: x\r\n"
ENDLESS = {  # how an answer begins, and what comes then without end
    "head": (b"HTTP/1.1 200 OK\r\nX-Header: ", b"x"),
    "status": (b"HTTP/1.1 200 ", b"O"),
    "continue": (b"", CONTINUE),
    "flood of continue": (b"", CONTINUE),
    "body": (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
    "chunk size": (CHUNKED, b"0"),
    "chunk extension": (CHUNKED + b"5;", b"x"),
    "trailers": (CHUNKED + b"5\r\nhello\r\n0\r\n", TRAILER),
    "flood of trailers": (CHUNKED + b"5\r\nhello\r\n0\r\n", TRAILER),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_answer_without_end_is_an_error_in_bounded_time(server, kind):  # D5, D16
    start, piece = ENDLESS[kind]

    def answer(handler):
        handler.wfile.write(start)
        while "flood" in kind:
            handler.wfile.write(piece * 1000)
        handler.drip(itertools.repeat(piece))

    server.answers = [answer]
    fails(listed(server, "raw", size=None), r"0.2 s.*KERAS_VIT_TIMEOUT.*4 tries", timeout=0.2)
    assert len(server.log) == 4


FAULTS = {  # route, bytes and seconds of a piece, and the words of the error after four tries
    "silent": ("hang", 1, 0, "0.4 s .*KERAS_VIT_TIMEOUT"),  # D5
    "silent body": ("slow", 1 << 14, 2, "0.4 s .*KERAS_VIT_TIMEOUT"),  # D5
    "slow body": ("slow", 1, 0.02, r"only \d+ bytes .* 0.4 s"),  # D5
    "short": ("cut", 1, 0, "after 150000 bytes"),  # D1
    "short of no length": ("raw", 1, 0, "300000 bytes, got 150000"),  # D1
    "overloaded": ("500", 1, 0, "answered 500"),  # D4
}


@pytest.mark.parametrize(("route", "piece", "pause", "pattern"), FAULTS.values(), ids=FAULTS)
def test_passing_fault_is_an_error_after_four_tries(server, route, piece, pause, pattern):
    server.piece, server.pause, server.headers = piece, pause, {"ETag": None}  # so that every try begins at 0
    server.answers = [head("200 OK", bytes(150_000))]
    fails(listed(server, route), f"{pattern}.*4 tries", timeout=0.4)
    assert len(server.log) == 4


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_overloaded_server_is_tried_again(server, status):  # D4
    server.faults = 3
    fetch(listed(server, f"{status}"))
    assert len(server.log) == 4


def test_retry_after_is_waited_for_up_to_a_bound(server, monkeypatch, caplog):  # D4
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    soon = email.utils.formatdate(time.time() + 30, usegmt=True)
    dates = (f"Mon, {DIGITS} Jan 2020 00:00:00 GMT", f"Mon, 1 Jan {10**18} 00:00:00 GMT")
    for value in ("7", "100000", soon, "soon", "²", DIGITS, *dates):
        server.faults, server.headers = 1, {"Retry-After": value}
        fetch(listed(server, "503")).unlink()
    assert waits[:2] == [7.0, transfer.LONGEST_WAIT]
    assert "Waiting 60 s for tiny.npz" in caplog.text
    assert 20 < waits[2] <= 30
    assert waits[3:5] == [0.01, 0.01]
    assert max(waits) <= transfer.LONGEST_WAIT


# What is continued


@pytest.mark.parametrize("route", ["reset", "cut"])
def test_broken_body_is_continued_where_it_broke(server, route):  # D4
    server.faults = 1
    assert fetch(listed(server, route)).read_bytes() == server.content
    first, second = server.ranges
    assert first is None
    assert 0 < int(second.removeprefix("bytes=").removesuffix("-")) <= 150_000


def write_part(content):
    (cache_dir() / PART).write_bytes(content)


def leave_part(server, monkeypatch):
    """A part as a killed process leaves it: 100,000 bytes and their note."""
    server.faults = 1
    with monkeypatch.context() as patch:
        patch.setattr(transfer, "PAUSES", ())
        fails(listed(server, "cut"), "after 150000 bytes")
    server.log.clear()
    write_part((cache_dir() / PART).read_bytes()[:100_000])


@pytest.mark.parametrize(
    ("headers", "validator"),
    [
        ({}, True),
        ({"Last-Modified": "Wed, 21 Oct 2020 07:28:00 GMT"}, True),
        *(({"ETag": etag}, False) for etag in (None, 'W/"weak"', '"one\x0btwo"', '"ä"')),
    ],
)
def test_part_is_continued_only_if_the_server_can_tell_versions_apart(server, monkeypatch, headers, validator):  # D6
    server.headers = headers
    leave_part(server, monkeypatch)
    assert fetch(listed(server, "cut")).read_bytes() == server.content
    assert server.log[0][1]["If-Range"] == (f'"{server.sha256[:8]}"' if validator else None)
    assert server.ranges == ["bytes=100000-" if validator else None]


PARTS = {  # what happens to a part of 100,000 bytes, the route of the next call, and the ranges that are asked for
    "as it was left": (lambda server: None, "cut", ["bytes=100000-"]),
    "of another version": (lambda server: setattr(server, "content", server.content[::-1]), "cut", ["bytes=100000-"]),
    "of another url": (lambda server: None, "range", [None]),
    "complete": (lambda server: write_part(server.content), "cut", []),
    "rotten": (lambda server: write_part(bytes(100_000)), "cut", ["bytes=100000-", None]),
    "too long": (lambda server: write_part(bytes(400_000)), "cut", [None]),
}


@pytest.mark.parametrize("part", PARTS)
def test_part_is_continued_by_the_next_call_if_it_is_one_of_this_file(server, monkeypatch, part):  # D6, D8
    change, route, ranges = PARTS[part]
    leave_part(server, monkeypatch)
    change(server)
    facts = {"sha256": server.sha256} if part == "rotten" else {}  # which nothing else would tell
    assert fetch(listed(server, route, **facts)).read_bytes() == server.content
    assert server.ranges == ranges


OLD, NEW = bytes(range(256)) * 400, bytes(range(255, -1, -1)) * 400  # two versions of equal size
HALF, SIZE = len(OLD) // 2, len(OLD)
ONE, DATE = {"ETag": '"one"'}, {"Last_Modified": "Mon, 19 Oct 2020 07:28:00 GMT"}
REST = {"Content_Range": f"bytes {HALF}-{SIZE - 1}/{SIZE}"}


def continued(server, before, status, after):
    """What comes of half of the old version, and an answer to who asks for the rest."""
    first = head("200 OK", OLD[:HALF], Content_Length=SIZE, **before)
    second = head(status, (OLD if after.pop("same", False) else NEW)[HALF:], Content_Length=HALF, **after)
    server.answers = [first, second, head("200 OK", NEW, Content_Length=SIZE)]
    content = fetch(RemoteFile(server.url("raw"), NAME)).read_bytes()
    assert server.ranges[:2] == [None, f"bytes={HALF}-"]
    assert server.log[1][1]["If-Range"] == before["ETag"]
    return content


@pytest.mark.parametrize(
    ("before", "status", "after"),
    [
        (ONE, 206, REST | {"ETag": '"two"'}),
        (ONE, 206, REST | {"ETag": 'W/"one"'}),
        (ONE, 206, REST),
        (ONE | DATE, 206, REST | ONE | {"Last_Modified": "Tue, 20 Oct 2020 07:28:00 GMT"}),
        *((ONE, 206, ONE | {"Content_Range": f"bytes {place}"}) for place in ("5-9/9", f"{HALF}-1/9", f"{DIGITS}-1/2")),
        (ONE, 206, ONE | {"Content_Range": "nonsense"}),
        (ONE, 206, ONE),
        (ONE, 416, ONE),
    ],
)
def test_two_versions_are_never_stitched_together(server, before, status, after):  # D6, D15
    """A server that ignores `If-Range` goes on with another version, or elsewhere, or does not say with which."""
    assert continued(server, before, f"{status} x", after) == NEW
    assert server.ranges[2:] == [None]


@pytest.mark.parametrize("after", [ONE | DATE, ONE])
def test_same_version_is_continued(server, after):
    """The date may be left out beside `If-Range` (RFC 9110, section 15.3.7); the ETag may not."""
    assert continued(server, ONE | DATE, "206 x", REST | after | {"same": True}) == OLD


def test_server_that_ignores_range_is_read_from_the_beginning(server):  # D6
    server.answers = [head("200 OK", OLD[:HALF], Content_Length=SIZE, **ONE), head("200 OK", NEW, Content_Length=SIZE)]
    assert fetch(RemoteFile(server.url("raw"), NAME)).read_bytes() == NEW


def test_file_of_another_program_stays_as_it_is(server):
    place = cache_dir() / f"{NAME}.part"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"half of a file that a browser brings")
    assert fetch(listed(server, "ok")).read_bytes() == server.content
    assert place.read_bytes() == b"half of a file that a browser brings"
    assert files() == ["tiny.npz", "tiny.npz.json", "tiny.npz.part"]


# Ways to a server


def test_redirect_is_followed_to_a_place_with_a_secret(server):  # D13
    server.location = "../ok/x?signature=secret"
    assert fetch(listed(server, "redirect")).exists()
    assert not any("secret" in path.read_text(errors="ignore") for path in cache_dir().rglob("*.json"))


def test_proxy_of_the_environment_is_used(server, monkeypatch):
    monkeypatch.setenv("http_proxy", server.address)
    monkeypatch.setenv("KERAS_VIT_ALLOW_HTTP", "1")
    fetch(RemoteFile("http://files.invalid/ok/x", NAME))
    assert server.log[0][0] == "http://files.invalid/ok/x"


def test_proxy_is_not_asked_for_this_machine_nor_its_password_sent(server, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://me:hunter2@127.0.0.1:1")
    server.location = server.url("ok")
    assert fetch(listed(server, "redirect")).read_bytes() == server.content
    assert [headers["Proxy-Authorization"] for _, headers in server.log] == [None, None]


@pytest.mark.parametrize("route", ["403", "503", None])
def test_fault_behind_a_proxy_names_it_without_its_password(server, monkeypatch, route):
    address = server.address if route else "http://127.0.0.1:1"  # where nobody listens
    monkeypatch.setenv("http_proxy", address.replace("://", "://me:hunter2@"))
    monkeypatch.setenv("KERAS_VIT_ALLOW_HTTP", "1")
    with pytest.raises(DownloadError, match=f"{route or 'refused'}.* proxy {address}") as caught:
        fetch(RemoteFile(f"http://files.invalid/{route}/x", NAME))
    assert "hunter2" not in str(caught.value)
    assert isinstance(caught.value, OfflineError) == (route is None)


def test_unproven_server_is_refused(server):
    url = server.url("ok").replace("http:", "https:")
    fails(RemoteFile(url, NAME), "REQUESTS_CA_BUNDLE")


def test_nobody_listening_is_an_offline_error_at_once(monkeypatch):  # D11
    monkeypatch.setattr(time, "sleep", None)
    with pytest.raises(OfflineError, match="Connection refused"):
        fetch(RemoteFile("http://127.0.0.1:1/x", NAME))


def test_secrets_of_a_url_never_show(server, caplog):
    caplog.set_level(logging.INFO, "keras_vit")
    url = server.url("500").replace("://", "://user:hunter2@") + "?token=hunter2#hunter2"
    with pytest.raises(DownloadError) as caught:
        fetch(RemoteFile(url, NAME))
    path = fetch(RemoteFile(url.replace("500", "ok"), NAME))
    texts = [str(caught.value), caplog.text]
    texts += [each.read_text(errors="ignore") for each in path.parent.iterdir() if each != path]
    assert not any("hunter2" in text or "user" in text for text in texts)
    assert server.log[-1][1]["Authorization"].startswith("Basic ")


@pytest.mark.skipif(not shutil.which("openssl"), reason="making a certificate needs openssl")
def test_https_is_spoken_with_a_certificate_of_the_environment(server, monkeypatch, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    make = [*make.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(make, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    url = server.url("raw").replace("http:", "https:")
    fails(RemoteFile(url, NAME), "CERTIFICATE_VERIFY_FAILED.*REQUESTS_CA_BUNDLE")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    server.answers = [head("200 OK", OLD, Content_Length=SIZE)]
    assert fetch(RemoteFile(url, NAME)).read_bytes() == OLD
    server.answers = [lambda handler: handler.drip([head("200 OK", Content_Length=SIZE, **ONE), *[b"x"] * 100])]
    with pytest.raises(DownloadError, match="came within"):
        fetch(RemoteFile(url, "slow.npz"), timeout=0.2)
    assert {*(cache_dir() / ".keras_vit-slow.npz.part").read_bytes()} == {*b"x"}  # and no byte that is not decrypted


EVIL = "\x1b[2J\x85keras-vit: error: all is well\x07"
LINES = EVIL.encode().decode("latin1")  # the same as UTF-8, which an address has to be
HOSTILE = {
    "reason": head(f"404 {EVIL}"),
    "encoding": head("200 OK", Content_Encoding=EVIL),
    "redirect": head("302 Found", Location=f"ftp://host/{LINES}"),
    "redirect of bytes": head("302 Found", Location=f"ftp://host/{EVIL}"),
    "header": head("200 OK", OLD, Content_Length=SIZE, ETag=EVIL, x_goog_hash=EVIL, X_Linked_ETag=EVIL),
    "continuation": head("206 x", Content_Range=f"bytes {EVIL}", **ONE),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_words_of_a_server_never_steer_the_terminal(server, caplog, kind):  # D17
    caplog.set_level(logging.INFO, "keras_vit")
    server.answers = [HOSTILE[kind], head("404 x")]
    if kind == "continuation":
        server.answers.insert(0, head("200 OK", OLD[:HALF], Content_Length=SIZE, **ONE))
    with pytest.raises(DownloadError, match="could not be") as caught:
        fetch(listed(server, "raw", size=SIZE if kind == "continuation" else 1))
    for text in (str(caught.value), *caplog.messages):
        assert all(line.isprintable() for line in text.split("\n"))
