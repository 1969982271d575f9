"""Every plain Vision Transformer that timm 1.0.31 has weights of builds with exactly its number of parameters.

`census.csv` has a line for each architecture: the names of its weights, sizes as `ViTConfig` takes them, fields that
differ from a plain one with exact GELU, pixels, classes, rows of timm's position table, and parameters as timm counts
them. `lacks` is what no switch of ours computes. The figures were read from models that timm built.
"""

import csv
from pathlib import Path

import keras
import pytest

import keras_vit
from keras_vit.config.vit import RECORD_OF, ViTConfig
from keras_vit.weights.registry import all_records

LINES = list(csv.DictReader(Path(__file__).with_name("census.csv").read_text().splitlines()))
WORDS = {"True": True, "False": False, "None": None}
OPEN = 434  # of 466 names, at least


def names_of(lines):
    return [name for line in lines for name in line["names"].split()]


def value(word):
    """A field's value: a word, a number, or several numbers in brackets or with commas."""
    if word in WORDS:
        return WORDS[word]
    if word.startswith("(") or "," in word:
        return tuple(int(part) for part in word.strip("()").split(",") if part)
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def fields_of(line):
    return {name: value(word) for name, _, word in (pair.partition("=") for pair in line["fields"].split())}


def missing(line):
    """What a line needs and a `ViTConfig` has not, or `""`."""
    if line["lacks"]:
        return line["lacks"]
    if unknown := [name for name in fields_of(line) if name not in RECORD_OF]:
        return ", ".join(unknown)
    try:
        config_of(line)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def config_of(line):
    return ViTConfig(*map(int, line["sizes"].split()), **{"activation": "gelu"} | fields_of(line))


def counted(line, config):
    """Parameters as this package counts them.

    Pixels that fill no patch are dropped. A class token without a position in timm has one of zeros here.
    Positions of timm's registers are added to these.
    """
    height, _, width = line["pixels"].partition("x")
    shape = *(int(side) // config.stride * config.stride for side in (height, width or height)), 3
    tops = {"classes": int(line["classes"])} if line["classes"] != "0" else {"include_top": False}
    with keras.StatelessScope(initialize_variables=False):
        model = keras_vit.build(config, input_shape=shape, **tops)
    grid = config.grid(*shape[:2])
    rows = grid[0] * grid[1] + len(config.positioned_tokens) if config.position_embedding == "learned" else 0
    return model.count_params() - (rows - int(line["rows"])) * config.hidden_size


def drawn(lines):
    """The smallest of each set of switches."""
    smallest = {}
    for line in sorted(lines, key=lambda line: int(line["parameters"])):
        smallest.setdefault(tuple(sorted(fields_of(line))), line)
    return list(smallest.values())


BUILT = [line for line in LINES if not missing(line)]
FEW = drawn(BUILT)[::6]


def test_census_is_whole_and_counts_what_is_open():
    assert len(set(names_of(LINES))) == len(names_of(LINES)) == 466
    closed = {missing(line): line["names"] for line in LINES}
    assert len(names_of(BUILT)) >= OPEN, closed
    assert len(names_of([line for line in LINES if line["lacks"]])) == 21  # which no switch is planned for


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, marks=() if line in FEW else pytest.mark.slow) for line in BUILT],
    ids=lambda line: line["names"].split()[0],
)
def test_architecture_builds_with_the_parameters_of_the_census(line):
    assert counted(line, config_of(line)) == int(line["parameters"])


def test_records_of_timms_files_are_what_the_census_says():
    """By name; the census has what timm computes, so the authors' activation and pooling may be others."""
    lines = {name: line for line in LINES for name in line["names"].split()}
    records = {r.hf_repo.removeprefix("timm/"): r for r in all_records() if (r.hf_repo or "").startswith("timm/")}
    assert len(records.keys() & lines.keys()) > 390
    for name in records.keys() & lines.keys():
        record, line = records[name], lines[name]
        config, wanted = record.config, config_of(line)
        authors = ("activation", "pooling", "class_token", "rotary_reference", "dropout_rate")
        same = {field: getattr(wanted, field) for field in authors}
        assert config.replace(**same) == wanted, name
        assert record.classes == int(line["classes"]), name
        assert record.parameters in (None, int(line["parameters"])), name
