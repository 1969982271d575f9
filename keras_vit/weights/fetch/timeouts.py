"""A bound on how long one step of an answer takes, however slowly its bytes come.

The timeouts of `requests` and urllib3 bound the silence between two bytes. A server can send the bytes of a head, of a
chunk's size or of trailers one by one. It is then never silent for long, and the library waits without end.
"""

import io
import math
import time
from typing import Any

import requests


class Clock:
    """When a step of an answer must have come: its head, or the next piece of its body."""

    def __init__(self, timeout: float) -> None:
        self.timeout, self.due = timeout, math.inf

    def start(self) -> None:
        """Begins a step."""
        self.due = time.monotonic() + self.timeout


class _BoundedReader(io.RawIOBase):
    """What a server sends until the clock runs out."""

    def __init__(self, raw: io.RawIOBase, clock: Clock) -> None:
        self._raw, self._clock = raw, clock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if time.monotonic() > self._clock.due:
            raise TimeoutError
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _BoundedSocket:
    """A socket whose file is a `_BoundedReader`."""

    def __init__(self, sock: Any, clock: Clock) -> None:
        self._sock, self._clock = sock, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def makefile(self, *_: Any) -> io.BufferedReader:
        return io.BufferedReader(_BoundedReader(self._sock.makefile("rb", buffering=0), self._clock))


class BoundedAdapter(requests.adapters.HTTPAdapter):
    """Makes connections whose answers are bounded by a clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def get_connection_with_tls_context(self, *arguments: Any, **keywords: Any) -> Any:
        pool = super().get_connection_with_tls_context(*arguments, **keywords)
        kind, clock = pool.ConnectionCls, self._clock

        def connect(connection: Any) -> None:  # which has timeouts of its own, TLS included
            kind.connect(connection)
            connection.sock = _BoundedSocket(connection.sock, clock)
            clock.start()

        if kind.__name__ != "Bounded":  # as behind a redirect to the same server
            pool.ConnectionCls = type("Bounded", (kind,), {"connect": connect})
        return pool
