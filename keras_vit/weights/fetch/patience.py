"""A bound on how long one step of an answer takes, whatever comes meanwhile.

The timeouts of `requests` and urllib3 bound the silence between two bytes. A server that drips the bytes of a head,
of a chunk's size or of trailers never keeps silent for long, and the library waits for their end.
"""

import contextlib
import math
import socket
import ssl
import threading
import time
from typing import Any

import requests

_MORE = 1.25  # of the timeout, so that plain silence is told as such by the library


class ImpatienceError(Exception):
    """A step of an answer took too long, and its connection was shut down."""


class Patience:
    """Shuts a connection down once a step of its answer takes longer than the timeout and a quarter of it.

    A thread looks after it, as nothing else ends a call of a library that reads.

    Args:
        timeout: seconds.
    """

    def __init__(self, timeout: float):
        self.timeout = timeout
        self._limit = timeout * _MORE
        self._due = math.inf
        self._connection: socket.socket | None = None
        self._left = threading.Event()
        self._lost = False

    def __enter__(self):
        threading.Thread(target=self._watch, name="keras_vit-patience", daemon=True).start()
        return self

    def __exit__(self, *_):
        self._left.set()
        self._close()

    @contextlib.contextmanager
    def step(self, connects: bool = False):
        """Bounds what is done inside; an `ImpatienceError` takes the place of whatever came of a shut connection.

        Args:
            connects: whether it makes a connection first, which has timeouts of its own; the clock starts behind that.
        """
        self._due = math.inf if connects else time.monotonic() + self._limit
        try:
            yield
        except Exception:
            if not self._lost:
                raise
        finally:
            self._due = math.inf
        if self._lost:
            raise ImpatienceError

    def adapter(self) -> requests.adapters.HTTPAdapter:
        """An adapter for a session whose connections are looked after."""
        return _Adapter(self)

    def look_after(self, connection: Any):
        """Starts the clock of a new socket, and again of the one that TLS puts in its place."""
        if isinstance(connection, socket.socket) and not isinstance(connection, ssl.SSLSocket):
            self._close()
            self._connection = connection.dup()  # TLS closes the plain object, and the connection stays the same
        self._due = time.monotonic() + self._limit

    def _watch(self):
        while not self._left.wait(min(max(self._due - time.monotonic(), 0), self._limit)):
            if time.monotonic() >= self._due:
                self._lost = True
                with contextlib.suppress(OSError):  # the server closed it just now
                    if self._connection is not None:
                        self._connection.shutdown(socket.SHUT_RDWR)
                return

    def _close(self):
        if self._connection is not None:
            self._connection.close()


class _Watched:
    """A connection of urllib3 that tells of each socket as soon as there is one, before TLS and a proxy's answer."""

    patience: Patience

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "sock" and value is not None:
            self.patience.look_after(value)


class _Adapter(requests.adapters.HTTPAdapter):
    """Makes connections that are looked after."""

    def __init__(self, patience):
        super().__init__()
        self._patience = patience

    def get_connection_with_tls_context(self, *arguments, **keywords):
        pool = super().get_connection_with_tls_context(*arguments, **keywords)
        if not issubclass(pool.ConnectionCls, _Watched):  # as behind a redirect to the same server
            pool.ConnectionCls = type("Watched", (_Watched, pool.ConnectionCls), {"patience": self._patience})
        return pool
