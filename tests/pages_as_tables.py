"""Tables of a page in Markdown, as data."""

import re


def tables(page):
    """The tables of a page, each as a list of `{column: cell}`."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        header, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in block.splitlines())
        found.append([dict(zip(header, row, strict=True)) for row in rows])
    return found
