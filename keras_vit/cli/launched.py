"""A process that `keras-vit launch` has started ends when its launcher does, however that was killed."""

import contextlib
import os
import signal
import stat
import threading
import time

LAUNCHER = "KERAS_VIT_LAUNCHER"  # variable with the number of a pipe, whose other end the launcher alone holds
_GRACE = 30  # seconds from SIGTERM, in which a run saves itself, to the end


def end_with_launcher() -> bool:
    """Watches the launcher in a thread, where there is one, and says whether there is."""
    pipe = os.environ.pop(LAUNCHER, "")
    with contextlib.suppress(OSError, ValueError):  # of a number that is none of ours
        if pipe and stat.S_ISFIFO(os.fstat(int(pipe)).st_mode):
            threading.Thread(target=_wait, args=(int(pipe),), daemon=True).start()
            return True
    return False


def _wait(pipe: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(pipe, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os._exit(128 + signal.SIGTERM)
