"""What a server can do to us (rows D1 to D6 and D13), on a server with those faults."""

import base64
import email.utils
import hashlib
import shutil
import ssl
import subprocess
import time

import pytest
from fault_server import NAME, FaultServer

from keras_vit.cache import cache_dir
from keras_vit.weights.download import DownloadError, OfflineError, RemoteFile, fetch, transfer


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


def test_fetch_gives_the_bytes_of_the_server(server):
    path = fetch(listed(server, "ok"))
    assert path == cache_dir() / NAME
    assert path.read_bytes() == server.content
    assert files() == ["tiny.npz", "tiny.npz.json"]


@pytest.mark.parametrize("route", ["cut", "nolen"])
def test_short_body_is_an_error_with_expected_and_got_bytes(server, route):  # D1
    server.headers = {"ETag": None}  # so that every try begins at 0
    fails(listed(server, route), r"300000.* 150000.*4 tries")
    assert len(server.log) == 4


def test_short_body_of_unknown_size_is_seen_by_the_check(server):  # D1
    def check(path):
        if path.stat().st_size != 300_000:
            raise ValueError("a zip cut short.\nReceived: something")

    fails(listed(server, "nolen", size=None), "a zip cut short", check=check)
    assert files() == []


ZEROS = "0" * 64
REFUSED = {  # route, what is known of the file, headers of the answer, and the words of the error
    "login page by its size": ("html", {}, {}, "login or proxy.*300000 bytes.*52 bytes"),  # D2
    "login page by its hash": ("html", {"size": None, "sha256": ZEROS}, {}, "web page"),  # D2
    "endless body": ("endless", {"size_tolerance": 100}, {}, "at most 300100"),  # D6
    "endless body of unknown size": ("endless", {"size": None}, {}, "at most 1000000"),  # D6
    "encoded body": ("gzip", {}, {}, "gzip"),
    "sha256 of a redirect": ("redirect", {}, {"X-Linked-ETag": f'"{ZEROS}"'}, f"sha256.*{ZEROS}"),
}


@pytest.mark.parametrize(("route", "facts", "headers", "pattern"), REFUSED.values(), ids=REFUSED)
def test_other_bytes_are_refused_at_once_and_leave_nothing(server, monkeypatch, route, facts, headers, pattern):
    monkeypatch.setattr(transfer, "LARGEST", 1_000_000)
    server.headers, server.location = headers, server.url("ok")
    fails(listed(server, route, **facts), pattern)
    assert files() == []
    assert len(server.log) == 1 + (route == "redirect")
    assert server.log[0][1]["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    ("route", "piece", "pause", "pattern"),
    [
        ("hang", 1, 0, r"no answer within 0.4 s.*KERAS_VIT_TIMEOUT.*4 tries"),
        ("slow", 1 << 14, 2, r"body.* 0.4 s after \d+ bytes"),
        ("slow", 1, 0.02, "1024 bytes a second"),
    ],
)
def test_server_that_is_silent_or_slow_ends_in_an_error(server, route, piece, pause, pattern):  # D5
    server.piece, server.pause = piece, pause
    fails(listed(server, route), pattern, timeout=0.4)


def test_wrong_hash_leaves_nothing_and_the_next_call_succeeds(server):  # D2
    message = fails(listed(server, "ok", sha256=ZEROS), "sha256 differs")
    assert server.sha256 in message
    assert files() == []
    assert fetch(listed(server, "ok", sha256=server.sha256.upper())).read_bytes() == server.content


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_refusal_is_tried_once_and_explains_how_to_bring_the_file(server, status, monkeypatch):  # D3
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    message = fails(listed(server, f"{status}"), f"answered {status}")
    assert (len(server.log), waits) == (1, [])
    assert f"curl -gL --fail -o {cache_dir() / NAME} {server.url(status)}" in message


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_overloaded_server_is_tried_again(server, status):  # D4
    server.faults = 3
    fetch(listed(server, f"{status}"))
    assert len(server.log) == 4


def test_overloaded_server_is_tried_four_times_at_most(server):  # D4
    fails(listed(server, "500"), "500.*4 tries")
    assert len(server.log) == 4


@pytest.mark.parametrize("route", ["reset", "cut"])
def test_broken_body_is_continued_where_it_broke(server, route):  # D4
    server.faults = 1
    assert fetch(listed(server, route)).read_bytes() == server.content
    first, second = server.ranges
    assert first is None
    assert 0 < int(second.removeprefix("bytes=").removesuffix("-")) <= 150_000


def test_retry_after_is_waited_for_up_to_a_bound(server, monkeypatch, caplog):  # D4
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    for value in ("7", "100000", email.utils.formatdate(time.time() + 30, usegmt=True), "soon", "²"):
        server.faults, server.headers = 1, {"Retry-After": value}
        fetch(listed(server, "503")).unlink()
    assert waits[:2] == [7.0, transfer.LONGEST_WAIT]
    assert "Waiting 60 s for tiny.npz" in caplog.text
    assert 20 < waits[2] <= 30
    assert waits[3:] == [0.01, 0.01]


def leave_part(server, length=100_000):
    """A part as a killed process leaves it: half a file and its note."""
    server.faults, pauses = 1, transfer.PAUSES
    transfer.PAUSES = ()
    with pytest.raises(DownloadError):
        fetch(listed(server, "cut"))
    transfer.PAUSES = pauses
    server.log.clear()
    write_part((cache_dir() / f"{NAME}.part").read_bytes()[:length])


@pytest.mark.parametrize(
    ("headers", "validator"),
    [
        ({"ETag": '"one"'}, '"one"'),
        ({"ETag": None, "Last-Modified": "Wed, 21 Oct 2020 07:28:00 GMT"}, "Wed, 21 Oct 2020 07:28:00 GMT"),
        ({"ETag": 'W/"weak"'}, None),
        ({"ETag": None}, None),
    ],
)
def test_part_is_continued_only_if_the_server_can_tell_versions_apart(server, headers, validator):  # D6
    server.headers = headers
    leave_part(server)
    assert fetch(listed(server, "cut")).read_bytes() == server.content
    assert server.log[0][1]["If-Range"] == validator
    assert (server.ranges[0] is None) == (validator is None)


def test_server_that_ignores_range_is_read_from_the_beginning(server, monkeypatch):  # D6
    leave_part(server)
    monkeypatch.setattr("fault_server.Handler._send_cut", lambda handler: handler._send(with_range=False), raising=True)
    server.faults = 1
    assert fetch(listed(server, "cut")).read_bytes() == server.content
    assert server.ranges == ["bytes=100000-"]


def write_part(content):
    (cache_dir() / f"{NAME}.part").write_bytes(content)


PARTS = {  # what happens to a part of 100,000 bytes, the route of the next call, and the ranges that are asked for
    "as it was left": (lambda server: None, "cut", ["bytes=100000-"]),
    "of another version": (lambda server: setattr(server, "content", server.content[::-1]), "cut", ["bytes=100000-"]),
    "of another url": (lambda server: None, "range", [None]),
    "complete": (lambda server: write_part(server.content), "cut", []),
    "rotten": (lambda server: write_part(bytes(100_000)), "cut", ["bytes=100000-", None]),
}


@pytest.mark.parametrize("part", PARTS)
def test_part_is_continued_by_the_next_call_if_it_is_one_of_this_file(server, part):  # D6, D8
    change, route, ranges = PARTS[part]
    leave_part(server)
    change(server)
    facts = {"sha256": server.sha256} if part == "rotten" else {}  # which nothing else would tell
    assert fetch(listed(server, route, **facts)).read_bytes() == server.content
    assert server.ranges == ranges


@pytest.mark.parametrize("size", [300_000, None])
def test_part_longer_than_the_file_is_begun_afresh(server, size):  # D6
    leave_part(server)
    write_part(bytes(400_000))
    server.faults = 1
    server.url = lambda route: f"{server.address}/cut/elsewhere.bin"
    path = fetch(listed(server, "416", size=size, sha256=server.sha256))
    assert path.read_bytes() == server.content


@pytest.mark.parametrize("content_range", ["bytes 5-299999/300000", "bytes 100000-1/9", "nonsense", None])
def test_answer_to_another_range_is_begun_afresh(server, content_range):  # D6
    leave_part(server)
    server.headers = {"Content_Range": content_range}
    assert fetch(listed(server, "cut")).read_bytes() == server.content
    assert server.ranges == ["bytes=100000-", None]


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


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://192.0.2.1/x", "//[::1/x"])
def test_redirect_away_from_https_is_refused(server, target):  # D13
    server.location = target
    fails(listed(server, "redirect"), f"https.*KERAS_VIT_ALLOW_HTTP=1.*{target.split('/')[-1]}")
    assert len(server.log) == 1


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://example.org/x", "http://192.0.2.1/x", "https://", "https://[::1", "x"]
)
def test_url_without_https_is_refused(server, url):  # D13
    fails(RemoteFile(url, NAME), "https")


def test_redirect_is_followed_five_times_at_most(server):  # D13
    server.location = "../ok/x?signature=secret"
    assert fetch(listed(server, "redirect")).exists()
    server.log.clear()
    fails(RemoteFile(server.url("loop"), "other.npz"), "5 redirects")
    assert len(server.log) == 6


def test_local_name_never_comes_from_the_url(server):  # D13
    path = fetch(RemoteFile(server.address + "/ok/..%2f..%2fevil.npz", NAME))
    assert path == cache_dir() / NAME
    assert files() == ["tiny.npz", "tiny.npz.json"]


def test_proxy_of_the_environment_is_used(server, monkeypatch):
    monkeypatch.setenv("http_proxy", server.address)
    monkeypatch.setenv("KERAS_VIT_ALLOW_HTTP", "1")
    fetch(RemoteFile("http://files.invalid/ok/x", NAME))
    assert server.log[0][0] == "http://files.invalid/ok/x"


def test_unproven_server_is_refused(server):
    url = server.url("ok").replace("http:", "https:")
    fails(RemoteFile(url, NAME), "REQUESTS_CA_BUNDLE")


def test_nobody_listening_is_an_offline_error_at_once(server):  # D11
    with pytest.raises(OfflineError, match="Connection refused"):
        fetch(RemoteFile("http://127.0.0.1:1/x", NAME))


def test_secrets_of_a_url_never_show(server):
    url = server.url("500").replace("://", "://user:hunter2@") + "?token=hunter2#hunter2"
    with pytest.raises(DownloadError) as caught:
        fetch(RemoteFile(url, NAME))
    path = fetch(RemoteFile(url.replace("500", "ok"), NAME))
    texts = [str(caught.value), *(each.read_text(errors="ignore") for each in path.parent.iterdir() if each != path)]
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
    url = server.url("range").replace("http:", "https:")
    fails(RemoteFile(url, NAME), "CERTIFICATE_VERIFY_FAILED.*REQUESTS_CA_BUNDLE")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    assert fetch(RemoteFile(url, NAME)).read_bytes() == server.content


def test_proxy_is_not_asked_for_this_machine(server, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert fetch(listed(server, "ok")).read_bytes() == server.content


@pytest.mark.parametrize("route", ["403", "503"])
def test_answer_of_a_proxy_names_it_without_its_password(server, monkeypatch, route):
    monkeypatch.setenv("http_proxy", server.address.replace("://", "://me:hunter2@"))
    monkeypatch.setenv("KERAS_VIT_ALLOW_HTTP", "1")
    with pytest.raises(DownloadError, match=f"{route}.* proxy {server.address}") as caught:
        fetch(RemoteFile(f"http://files.invalid/{route}/x", NAME))
    assert "hunter2" not in str(caught.value)


def test_proxy_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://me:hunter2@127.0.0.1:1")
    with pytest.raises(OfflineError, match=r"proxy http://127\.0\.0\.1:1") as caught:
        fetch(RemoteFile("https://files.invalid/x", NAME))
    assert "hunter2" not in str(caught.value)


def test_cut_chunked_body_tells_no_size_that_nobody_announced(server, monkeypatch):  # D1
    def send(handler):
        handler._head(200, None, Transfer_Encoding="chunked")
        handler.wfile.write(b"ffff\r\n" + bytes(1000))

    monkeypatch.setattr("fault_server.Handler._send_cut", send)
    message = fails(listed(server, "cut", size=None), "unknown size.* 1000 bytes")
    assert str(transfer.LARGEST) not in message


def test_part_of_another_program_stays_as_it_is(server):
    place = cache_dir() / f"{NAME}.part"
    place.parent.mkdir(parents=True)
    for note in (None, b'{"browser": 1}'):
        place.write_bytes(b"half of a file that a browser brings")
        if note:
            place.with_suffix(".part.json").write_bytes(note)
        (cache_dir() / NAME).unlink(missing_ok=True)
        assert fetch(listed(server, "ok")).read_bytes() == server.content
        assert place.read_bytes() == b"half of a file that a browser brings"
    assert files() == ["tiny.npz", "tiny.npz.json", "tiny.npz.part", "tiny.npz.part.json"]
