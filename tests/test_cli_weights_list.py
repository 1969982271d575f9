"""The list of published weights for a terminal: it fits, and tells the facts of every file."""

import pytest

from keras_vit.cli.weights import weights_lines
from keras_vit.weights.registry import list_weights


def read_back(lines):
    """`(name, variant, licence, cells)` of each file, by where the header's columns end."""
    header, *rest, count, _, _ = lines
    assert count.startswith(f"{len(list_weights()):,} files. ")
    ends = [header.index(name) + len(name) for name in ("pixels", "classes", "MB")]
    found, group, waiting = [], ("", ""), None
    for line in rest:
        if not line.startswith(" "):
            group = tuple(line.split(", ", 1))
        elif len(line.split()) == 1:
            waiting = line.strip()
        else:
            name = line[: ends[0] - 6].strip() or waiting
            cells = [line[start:end].strip() for start, end in zip([ends[0] - 6, *ends], [*ends, None], strict=True)]
            found.append((name, *group, cells))
    return found


@pytest.mark.parametrize("width", [80, 100])
def test_list_of_all_weights_fits_and_tells_their_facts(width):
    table = list_weights()
    lines = list(weights_lines(table, width))
    assert max(map(len, lines)) < width
    found = read_back(lines)
    assert [(name, variant, licence) for name, variant, licence, _ in found] == [
        (record.name, record.variant, record.license) for record in table
    ]
    for record, (*_, (pixels, classes, megabytes, accuracy)) in zip(table, found, strict=True):
        assert pixels == str(record.resolution)
        assert classes == (str(record.classes) if record.classes else "-")
        assert megabytes == record.megabytes
        if record.accuracy is not None:
            expected = f"{record.accuracy:.1f} {record.measure}".removesuffix(" top-1")
        else:
            expected = "zero head" if record.head == "zero" else "?"
        assert accuracy == expected + "  text" * record.has_text
    assert {record.family for record in table if record.has_text} > {"clip", "siglip", "tips"}


def test_list_without_files_says_so():
    assert list(weights_lines(list_weights("ViTg14"), 80)) == ["No weights are published for this model."]


def test_last_lines_explain_the_cells_and_lead_on():
    lines = list(weights_lines(list_weights("B/16", "paper"), 80))
    assert "top-1" in lines[-3]
    assert "~ is computed" in lines[-2]
    assert "keras-vit weights info" in lines[-1]
    assert lines[1] == "B/16, Apache-2.0"
