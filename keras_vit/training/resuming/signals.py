"""SIGTERM and Ctrl-C, heard between two steps; a second one ends the process at once, even within a step."""

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any, NoReturn

_HEARD = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Notes the first of these signals instead of ending the process.

    A step computes outside of Python, where no handler runs. So a thread reads the signals as they come, and ends the
    process at the second.

    Attributes:
        received: the first signal; `None` before.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}
        self._read = self._write = self._fd_before = -1

    def listen(self) -> None:
        """Begins; does nothing outside of the main thread, which alone hears signals."""
        if self._before or threading.current_thread() is not threading.main_thread():
            return
        self.received = None
        for number in _HEARD:
            self._before[number] = signal.signal(number, self._handle)
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._fd_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if self._fd_before != -1:  # somebody's event loop, which needs it more
            signal.set_wakeup_fd(self._fd_before)
        threading.Thread(target=_leave_at_second, args=(self._read,), daemon=True).start()

    def close(self) -> None:
        """Gives the signals back to whom they belonged."""
        if not self._before or threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}
        if self._fd_before == -1:
            signal.set_wakeup_fd(-1)
        with contextlib.suppress(OSError):
            os.close(self._write)  # which ends the thread

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = number


def leave(number: int) -> NoReturn:
    """Raises what a signal stands for: `KeyboardInterrupt`, or `SystemExit` with 143, as shells count SIGTERM."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _leave_at_second(pipe: int) -> None:
    """Waits for two signals, or until the other end of the pipe is closed."""
    heard = 0
    with contextlib.suppress(OSError):
        while content := os.read(pipe, 1):
            heard += content[0] in _HEARD
            if heard == 2:
                os._exit(128 + content[0])
    with contextlib.suppress(OSError):
        os.close(pipe)
