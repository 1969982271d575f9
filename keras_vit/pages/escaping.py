"""Escapes text from outside before it is shown or written: messages of servers, names of files and classes."""

import json
import re

_FULL_WIDTH = 0xFEE0  # distance of an ASCII character to its full-width form
_FORMULAS = ("\t", "\r", *(chr(ord(each) + width) for each in "=+-@" for width in (0, _FULL_WIDTH)))

# Characters with a meaning in a line of Markdown, including tables and bare links. An underscore inside a word has
# none.
_MARKDOWN = re.compile(r"[&<>\\`*\[\]|~$:@#{}^]|(?<![^\W_])_|_(?![^\W_])|(?<=www)\.", re.IGNORECASE)


def printable(text: object) -> str:
    """Text in one line without control characters, line ends or lone bytes, which are escaped as in Python.

    Args:
        text: text from outside, or an object, as a path.

    Returns:
        The same text if every character is printable. Otherwise others are escaped, as `\\x1b` or `\\u2028`, and
        backslashes are doubled.
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() and each != "\\" else _escaped(each) for each in text)


def printable_json(facts: object) -> str:
    """Indented JSON in which letters are kept and unprintable characters are escaped."""
    text = json.dumps(facts, indent=2, ensure_ascii=False)
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def spreadsheet_cell(text: object) -> str:
    """Printable text for a cell of a CSV file, with `'` in front of a formula."""
    cell = printable(text)
    return f"'{cell}" if str(text).startswith(_FORMULAS) else cell


def table_cell(text: str) -> str:
    """Text for a cell of a Markdown table that is also read on a terminal: one line, with bars escaped."""
    return " ".join(text.replace("|", "\\|").split())


def markdown_text(text: object) -> str:
    """Printable text for a line or table cell of Markdown, which is shown literally.

    Characters of markup or HTML become character references, which CommonMark never takes for structure.
    """
    return _MARKDOWN.sub(lambda found: f"&#{ord(found[0])};", printable(text))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
