"""Text from outside made harmless before it is shown or written: a server's words, names of files and of classes."""

import json
import re

_FULL_WIDTH = 0xFEE0  # from an ASCII character to that of East Asian typesetting
_FORMULAS = ("\t", "\r", *(chr(ord(each) + width) for each in "=+-@" for width in (0, _FULL_WIDTH)))

# What Markdown gives a meaning to within a line, tables and links without brackets included. An underscore inside a
# word has none.
_MARKDOWN = re.compile(r"[&<>\\`*\[\]|~$:@#{}^]|(?<![^\W_])_|_(?![^\W_])|(?<=www)\.", re.IGNORECASE)


def printable(text: object) -> str:
    """Text in one line that steers no terminal: control characters, line ends and lone bytes as Python spells them.

    Args:
        text: of a stranger, or an object, as a path.

    Returns:
        The same text where every character can be printed. Else each that cannot is escaped, as `\\x1b` or `\\u2028`,
        and a backslash is doubled.
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() and each != "\\" else _escaped(each) for each in text)


def printable_json(facts: object) -> str:
    """JSON in indented lines with every letter as it is, and escaped what cannot be printed."""
    text = json.dumps(facts, indent=2, ensure_ascii=False)
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def spreadsheet_cell(text: object) -> str:
    """Text for a cell of a CSV file: printable, and with `'` before what a spreadsheet would compute."""
    cell = printable(text)
    return f"'{cell}" if str(text).startswith(_FORMULAS) else cell


def table_cell(text: str) -> str:
    """Text for a table cell in Markdown that is read on a terminal as well: one line, without a bar that ends it."""
    return " ".join(text.replace("|", "\\|").split())


def markdown_text(text: object) -> str:
    """Text for a line or a table cell of a Markdown file: printable, and shown as it is, whatever it holds.

    What could be markup or HTML becomes a character reference, which CommonMark never takes for structure.
    """
    return _MARKDOWN.sub(lambda found: f"&#{ord(found[0])};", printable(text))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
