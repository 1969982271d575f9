"""Draws `docs/pictures/house.svg`: the rooms of the package by floors, what each is, and which floors stand on which.

    python docs/generators/house.py

The floors are `TIERS` of `tests/test_architecture.py`, the words are the first sentences of the modules' docstrings,
and the lines are the imports that the modules have today. A test holds the picture to what this draws.
"""

import ast
import re
import textwrap
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "keras_vit"
PICTURE = ROOT / "docs" / "pictures" / "house.svg"
LETTERS = 43  # of a line of a room; more would leave its box where letters are wide
_WIDTH, _RAILS, _GAP, _LINE = 700, 112, 8, 15  # pixels; the lines on the left stand on `_RAILS`
_ROOM = (_WIDTH - _RAILS - 3 * _GAP) / 2  # the width of a room, of which two stand side by side
_STYLE = (
    "text { font: 12px Arial, 'Liberation Sans', Helvetica, sans-serif; fill: #222 }"
    " .name { font-weight: bold; fill: #123a63 } .floor { font-weight: bold }"
    " .flat { fill: #eef2f6 } .room { fill: #fff; stroke: #9fb3c8 }"
    " .rail { stroke: #8a97a6; stroke-width: 1.5; fill: none } .dot { fill: #b4532a } .end { fill: #8a97a6 }"
)


def floors() -> list[list[str]]:
    """Names of the rooms, from the lowest floor; those of a floor in the order of the alphabet."""
    tree = ast.parse((ROOT / "tests" / "test_architecture.py").read_text())
    (value,) = (
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TIERS"
    )
    return [sorted(rooms) for rooms in ast.literal_eval(value)]


def sentence(room: str) -> str:
    """The first sentence of a room's docstring."""
    text = " ".join(ast.get_docstring(ast.parse(_files(room)[0].read_text())).split())
    return re.match(r".*?\.(?= [A-Z`]|$)|.*", text)[0].replace("`", "")


def _files(room):
    """The file of a room, or its `__init__.py` and then the others."""
    folder = PACKAGE / room
    if not folder.is_dir():
        return [folder.with_suffix(".py")]
    return sorted(folder.rglob("*.py"), key=lambda path: (path != folder / "__init__.py", path))


def needs(rooms: list[str], below: list[list[str]]) -> set[int]:
    """Numbers of the lower floors that any module of these rooms imports from."""
    imported = set()
    for path in (path for room in rooms for path in _files(room)):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [f"{node.module}.{alias.name}" for alias in node.names] if names else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported |= {name.split(".")[1] for name in names if name.startswith("keras_vit.")}
    return {number for number, others in enumerate(below) if imported & set(others)}


def svg() -> str:
    """The picture as text."""
    levels = floors()
    stands_on = [needs(rooms, levels[:number]) for number, rooms in enumerate(levels)]
    parts, places, top = [], {}, _GAP
    for number in reversed(range(len(levels))):
        drawn, height = _floor(number, levels[number], stands_on[number], top)
        parts += drawn
        places[number] = top + 20
        top += height + _GAP
    parts += _rails(stands_on, places)
    size = f'width="{_WIDTH}" height="{top}" viewBox="0 0 {_WIDTH} {top}"'
    title = "<title>The rooms of keras_vit by floors, and which floors each imports from</title>"
    back = f'<rect width="{_WIDTH}" height="{top}" fill="#fff"/>'
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">', title, f"<style>{_STYLE}</style>", back]
    return "\n".join([*head, *parts, "</svg>", ""])


def _floor(number, rooms, stands_on, top):
    """The parts of one floor, and its height."""
    imports_text = f"imports from {_ranges(stands_on)}" if stands_on else "imports from no floor"
    rows = [rooms[index : index + 2] for index in range(0, len(rooms), 2)]
    parts, y = [], top + 30
    for row in rows:
        words = [_wrapped(sentence(room), LETTERS * (1 if len(row) == 2 else 2)) for room in row]
        height = _LINE * (1 + max(map(len, words))) + 10
        width = _ROOM if len(row) == 2 else 2 * _ROOM + _GAP
        for index, (room, lines) in enumerate(zip(row, words, strict=True)):
            parts += _room(_RAILS + _GAP + index * (_ROOM + _GAP), y, width, height, room, lines)
        y += height + _GAP
    flat = f'<rect class="flat" x="{_RAILS}" y="{top}" width="{_WIDTH - _RAILS}" height="{y - top}"/>'
    head = [f'<tspan class="floor">Floor {number + 1}</tspan>', f'<tspan dx="6">{imports_text}</tspan>']
    return [flat, f'<text x="{_RAILS + _GAP}" y="{top + 20}">{"".join(head)}</text>', *parts], y - top


def _wrapped(text, letters):
    return textwrap.wrap(text, letters, break_on_hyphens=False, break_long_words=False)


def _room(x, y, width, height, room, lines):
    name = f"{room}/" if (PACKAGE / room).is_dir() else f"{room}.py"
    parts = [f'<rect class="room" x="{x:g}" y="{y}" width="{width:g}" height="{height}" rx="3"/>']
    parts.append(f'<text class="name" x="{x + 7:g}" y="{y + _LINE + 1}">{escape(name)}</text>')
    for index, line in enumerate(lines, 2):
        parts.append(f'<text x="{x + 7:g}" y="{y + _LINE * index + 2}">{escape(line)}</text>')
    return parts


def _rails(stands_on, places):
    """Of every floor one line, up to the highest that imports from it; a dot at each that does."""
    parts = []
    for number in range(len(stands_on) - 1):
        above = [other for other, found in enumerate(stands_on) if number in found]
        x = _RAILS - 8 - 6 * number  # the last at 8 pixels of the edge
        y = places[number] - 4
        if above:
            top = places[max(above)] - 4
            parts.append(f'<path class="rail" d="M{_RAILS} {y}H{x}V{top}"/>')
            parts += [f'<circle class="dot" cx="{x}" cy="{places[other] - 4}" r="3"/>' for other in above]
    return parts


def _ranges(numbers):
    """Floors as `floors 1, 2 and 4 to 6`, counted from one."""
    runs = []
    for number in sorted(number + 1 for number in numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = []
    for run in runs:
        words += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
    listed = " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
    return f"floor {listed}" if len(numbers) == 1 else f"floors {listed}"


if __name__ == "__main__":
    PICTURE.write_text(svg())
