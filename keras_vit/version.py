"""What the metadata of the installed distribution say: the version, and which scripts are its own."""

import importlib.metadata
from pathlib import Path

_DISTRIBUTION = "keras-vit-zoo"

try:
    __version__ = importlib.metadata.version(_DISTRIBUTION)
except importlib.metadata.PackageNotFoundError:  # a checkout that was put on the path
    __version__ = "unknown"


def is_installed_script(path: str) -> bool:
    """Whether a file is one of the distribution's own commands, and not one of somebody else's of that name.

    Args:
        path: of a program, as `sys.argv[0]` has it.
    """
    try:
        files = importlib.metadata.files(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return False
    scripts = (file.locate() for file in files if file.stem == Path(path).stem)
    return Path(path).resolve() in {Path(script).resolve() for script in scripts}
