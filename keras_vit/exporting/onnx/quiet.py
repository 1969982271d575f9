"""What converters say on the way is not for a user: the file is judged by what is in it."""

import contextlib
import importlib
import logging
import warnings


def required(*packages) -> None:
    """Raises unless all these packages can be imported."""
    for package in packages:
        try:
            with quiet():
                importlib.import_module(package)
        except ImportError as error:
            raise ImportError(f'format="onnx" needs {package}: pip install "keras-vit-zoo[export]"') from error


@contextlib.contextmanager
def quiet():
    """No warnings and log lines of packages, below errors that stop them."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
