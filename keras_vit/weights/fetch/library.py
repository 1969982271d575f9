"""What huggingface_hub raises and says, made one error of ours: its own lines are not heard, as that error tells it."""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator

from keras_vit.weights.fetch.environment import redacted


@contextlib.contextmanager
def library_faults(fault: Callable[[str, bool], Exception]) -> Iterator[None]:
    """Raises `fault(words, is_offline)` for whatever the library raises, and keeps its log lines quiet meanwhile.

    Args:
        fault: the error, from what the library says and whether there is no network.
    """
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    except Exception as error:  # of httpx, the file system and its own: whatever it is, nothing came or went
        cause = (error.__cause__ or error) if type(error) is RuntimeError else error  # which names the file alone
        kind, reason = type(cause).__name__, " ".join(str(cause).strip().partition("\n")[0].split()).rstrip(".:")
        offline = isinstance(cause, ConnectionError) or bool(re.search("Connect|Offline", kind))
        raise fault(f"huggingface_hub says {kind}: {_without_secrets(reason)}", offline) from error
    finally:
        logger.setLevel(level)


def _without_secrets(reason):
    """Without the secrets of signed addresses, of which the library also prints the last characters alone."""
    reason = re.sub(r"https?://[^\s'\"]+", lambda found: redacted(found[0]), reason)
    return re.sub(r" \(\(…\).*?\)", "", reason)
