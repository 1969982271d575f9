"""What is done to a text before it is cut into pieces: the rules of each software, by name.

Source of the rules: the tokenizers of CLIP, OpenCLIP, big_vision and transformers. They differ, and so do the ids of
many texts.
"""

import html
import string
from collections.abc import Callable, Mapping

from keras_vit.checks import check_installed

PUNCTUATION = str.maketrans("", "", string.punctuation)
_LETTERS = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def repaired(text: str) -> str:
    """A text with broken letters mended by ftfy and HTML entities read, as OpenAI's and OpenCLIP's code does first.

    Raises:
        ImportError: without ftfy, for a text in which it may change something: all but printable ASCII without "&".
    """
    if text.isascii() and text.isprintable() and "&" not in text:
        return text.strip()
    check_installed("ftfy", "CLIP's tokenizers clean such texts by it", "text")
    import ftfy

    return html.unescape(html.unescape(ftfy.fix_text(text))).strip()


def joined(text: str) -> str:
    """The words of a text with one blank between them."""
    return " ".join(text.split())


def canonicalized(text: str) -> str:
    """Small letters without punctuation, `_` as a blank: class names and prompts in SigLIP's own evaluation."""
    return joined(text.replace("_", " ").translate(PUNCTUATION).lower())


CLEANINGS: Mapping[str, Callable[[str], str]] = {
    "lower": lambda text: joined(repaired(text)).lower(),
    "whitespace": lambda text: joined(repaired(text)),
    "canonicalize": lambda text: canonicalized(repaired(text)),
    "siglip_transformers": lambda text: joined(text.lower().translate(PUNCTUATION)),
    "siglip_transformers_cased": lambda text: joined(text.translate(PUNCTUATION)),  # with `do_lower_case: false`
    "lowercase": lambda text: "".join(map(str.lower, text)),  # letter by letter: a last sigma stays as it is inside
    "lower_ascii": lambda text: text.translate(_LETTERS),
    "none": lambda text: text,
}
