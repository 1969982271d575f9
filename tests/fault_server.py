"""A server with every fault a network has, and fresh processes that fetch from it without Keras."""

import contextlib
import hashlib
import http.server
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time

from conftest import ROOT

NAME = "some/place/tiny.npz"
PART = "some/place/.keras_vit-tiny.npz.part"  # of a download under way
EMPTY_PACKAGES = f"""
import sys, types
for name in ("keras_vit", "keras_vit.weights"):
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = [{str(ROOT)!r} + "/" + name.replace(".", "/")]
"""  # above what is imported alone
_CHILD = f"""{EMPTY_PACKAGES}
from keras_vit.weights.download import RemoteFile, fetch
sha256 = sys.argv[3] if len(sys.argv) > 3 else None
print("ready", flush=True)
try:
    print(fetch(RemoteFile(sys.argv[1], sys.argv[2], sha256=sha256)))
except OSError as error:
    sys.exit(f"{{type(error).__name__}}: {{error}}")
"""


class FaultServer(http.server.ThreadingHTTPServer):
    """Serves `content` at `/<route>/...`; the route names the fault, which the first `faults` requests meet.

    Routes: ok and range (without and with Range), 404, 500, cut (half a body), html, hang, slow (`piece` bytes every
    `pause` s), reset, redirect (to `location`), and raw: request k gets `answers[k]`, the last one from then on, which
    are bytes or functions of the handler.
    """

    daemon_threads = True

    def __init__(self, size=300_000, handler=None):
        super().__init__(("127.0.0.1", 0), handler or Handler)
        self.content = random.Random(5).randbytes(size)
        self.contents = {}  # of files by the last part of their path, where they differ from `content`
        self.faults, self.headers, self.location = 1 << 30, {}, ""
        self.piece, self.pause = 1 << 14, 0.05
        self.log, self.answers, self.released = [], [], threading.Event()

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.released.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """Clients that are killed are no news."""

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def sha256(self):
        return hashlib.sha256(self.content).hexdigest()

    @property
    def ranges(self):
        """The Range header of each request so far, None where there was none."""
        return [headers["Range"] for _, headers in self.log]

    def url(self, route):
        return f"{self.address}/{route}/elsewhere.bin"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.log.append((self.path, self.headers))
        route = self.path.removeprefix("http://").partition("/")[2].partition("/")[0]
        self.server.faults -= 1
        self.close_connection = True
        fault = getattr(self, f"_send_{route}", None)
        if self.server.faults >= 0 and fault:
            fault()
        elif route.isdigit() and self.server.faults >= 0:
            self._head(int(route), 0)
        else:
            self._send(with_range=route != "ok")

    def _head(self, status, length, **headers):
        self.send_response(status)
        self.send_header("Connection", "close")
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in ({"ETag": f'"{self.server.sha256[:8]}"'} | headers | self.server.headers).items():
            if value is not None:
                self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def _send(self, with_range=True, write=None):
        name = self.path.partition("?")[0].rpartition("/")[2]
        content, start, status, headers = self.server.contents.get(name, self.server.content), 0, 200, {}
        asked = self.headers["Range"]
        if with_range and asked and self.headers["If-Range"] == f'"{self.server.sha256[:8]}"':
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            status, headers = 206, {"Content_Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        self._head(status, len(content) - start, **headers)
        (write or self.wfile.write)(content[start:])

    def _send_cut(self):
        self._send(write=lambda body: self.wfile.write(body[: len(body) // 2]))

    def _send_html(self):
        page = b"<!doctype html><title>Log in to this network</title>"
        self._head(200, len(page))
        self.wfile.write(page)

    def _send_hang(self):
        self.server.released.wait()  # to the end of the test

    def _send_slow(self):
        self._send(write=self._write_slowly)

    def _write_slowly(self, body):
        for start in range(0, len(body), self.server.piece):
            self.wfile.write(body[start : start + self.server.piece])
            time.sleep(self.server.pause)

    def _send_reset(self):
        self._send(write=lambda body: self.wfile.write(body[: len(body) // 2]))
        time.sleep(0.05)  # a reset throws away what was not read yet
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def _send_redirect(self):
        self._head(302, 1 << 30, Location=self.server.location)  # a body that never comes

    def _send_raw(self):
        answer = self.server.answers[min(len(self.server.log), len(self.server.answers)) - 1]
        if callable(answer):
            answer(self)
        else:
            self.wfile.write(answer)

    def drip(self, pieces):
        """Sends the pieces, endless or not, every 50 ms."""
        for piece in pieces:
            if self.server.released.wait(0.05):
                return
            self.wfile.write(piece)


def child_environment(cache, **variables):
    clean = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    return clean | {"KERAS_VIT_CACHE": str(cache)} | variables


@contextlib.contextmanager
def child(url, cache, *arguments, prefix=(), **variables):
    """A process that fetches url into the cache, killed at the end if it still runs."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", _CHILD, url, NAME, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(cache, **variables),
    )
    with process:
        try:
            yield process
        finally:
            process.kill()
