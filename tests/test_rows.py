"""Every CSV file of facts: each row parses, has a source, and stands once."""

import collections
import re

import pytest
from conftest import ROOT

import keras_vit
from keras_vit.config import datasets, recipes, variants
from keras_vit.config.rows import read_rows, value_of, values_of
from keras_vit.weights.registry import all_records

PACKAGE = ROOT / "keras_vit"
CONFIG, REGISTRY = PACKAGE / "config" / "rows.py", PACKAGE / "weights" / "registry" / "record.py"
# file: (a module beside it, columns that name a row, column that says the source, the objects made of its rows)
FILES = {
    "variants.csv": (CONFIG, ("name",), "source", [*variants.VARIANTS, *variants.RESNETS]),
    "encoders.csv": (CONFIG, ("family", "size"), "papers", [*variants.FAMILIES, *variants.ENCODERS]),
    "datasets.csv": (CONFIG, ("key",), "source", [*datasets.OFFICIAL_DATASETS, *datasets.VTAB_TASKS]),
    "recipes.csv": (CONFIG, ("name",), "source", [*keras_vit.RECIPES]),
    "registry vit.csv": (REGISTRY, ("name", "variant"), "source", []),
    "registry encoders.csv": (REGISTRY, ("name", "variant"), "source", []),
}


def rows_of(name):
    return read_rows(FILES[name][0], name.removeprefix("registry "))


@pytest.mark.parametrize("name", FILES)
def test_every_row_is_an_object_and_stands_once(name):
    _, key, _, made = FILES[name]
    rows = rows_of(name)
    assert len({tuple(row[column] for column in key) for row in rows}) == len(rows)
    assert not made or len(made) == len(rows)
    assert all(None not in row and None not in row.values() for row in rows)  # as many cells as columns


def test_table_of_weights_has_every_row():
    rows = [row for name in ("registry vit.csv", "registry encoders.csv") for row in rows_of(name)]
    assert [(row["name"], row["variant"]) for row in rows] == [(r.name, r.variant) for r in all_records()]


def test_every_row_says_its_source_or_is_of_a_family_without_a_paper():
    assert all(row["source"] for name in ("variants.csv", "datasets.csv", "recipes.csv") for row in rows_of(name))
    assert [row["family"] for row in rows_of("encoders.csv") if not row["size"] and not row["papers"]] == ["sbb"]
    assert all(row["source"] for name in FILES if "registry" in name for row in rows_of(name) if row["accuracy"])


def test_stub_of_builders_has_every_encoder():
    stub = (PACKAGE / "encoder_builders.pyi").read_text()
    assert re.findall(r"^(\w+) = _Builder$", stub, re.MULTILINE) == [*variants.ENCODERS.values()]


def test_every_citation_is_of_a_recipe():
    cited = {name for row in read_rows(recipes.__file__, "citations.csv") for name in row["citations"].split()}
    assert cited == {name for row in rows_of("recipes.csv") for name in row["citations"].split()}
    for recipe in keras_vit.RECIPES.values():
        assert max(collections.Counter(field for field, _ in recipe.citations).values()) == 1, recipe.name


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("3", 3),
        ("1e-05", 1e-5),
        ("True", True),
        ("None", None),
        ("()", ()),
        ("4,", (4,)),
        ("3,4,6", (3, 4, 6)),
        ("gap", "gap"),
    ],
)
def test_cell_says_a_value(word, value):
    assert value_of(word) == value
    assert type(value_of(word)) is type(value)
    assert values_of(f"a={word} b=x") == {"a": value, "b": "x"}
