"""The pages of published weights: each record on exactly one, with the record's values; the code of each page runs."""

import re
import sys

import pytest
from conftest import ROOT
from published_files import shrink, write_published

import keras_vit

sys.path.append(str(ROOT / "docs" / "generators"))
import weights_pages

PAGES = weights_pages.pages()
FAMILIES = {family.page: family for family in weights_pages.FAMILIES}


def tables(page):
    """The tables of a page, each as a list of `{column: cell}`."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        header, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in block.splitlines())
        found.append([dict(zip(header, row, strict=True)) for row in rows])
    return found


def plain(cell):
    return cell.strip("`<>")


def key(row):
    return plain(row["name"]), row["model"]


def test_every_record_stands_on_exactly_one_page_and_in_both_tables_of_it():
    listed = [(record.name, record.variant) for record in keras_vit.list_weights()]
    assert len(listed) == len(set(listed)) == len(keras_vit.weights.registry.all_records())
    for place in (0, 2):  # the models, and where the files are
        found = [key(row) for page in FAMILIES for row in tables(PAGES[page])[place]]
        assert sorted(found) == sorted(listed)


@pytest.mark.parametrize("page", FAMILIES)
def test_every_value_of_a_page_is_the_records(page):
    models, ways, places = tables(PAGES[page])
    ways = {row["number"]: row for row in ways}
    for row, place in zip(models, places, strict=True):
        record = keras_vit.find_weights(*key(row))
        assert key(place) == key(row)
        assert hasattr(keras_vit, plain(row["builder"]))
        assert (row["pixels"], row["classes"]) == (str(record.resolution), str(record.classes))
        assert (row["head"], row["licence"]) == (record.head, record.license)
        accuracy = "" if record.accuracy is None else str(record.accuracy)
        assert row["accuracy"] == accuracy + f", {record.measure}" * (record.measure != "top-1")
        assert row["parameters"] == ("" if record.parameters is None else f"{record.parameters / 1e6:.1f}")
        assert row["reported by"] == record.accuracy_source
        assert_prepared(ways[row["prepared"]], record.preprocessing)
        assert_placed(place, record)


def assert_prepared(row, preprocessing):
    for field in ("resize", "crop_fraction", "interpolation", "antialias", "rounding"):
        assert row[field] == str(getattr(preprocessing, field))
    for field in ("mean", "std"):
        assert tuple(map(float, row[field].split(", "))) == getattr(preprocessing, field)


def assert_placed(row, record):
    assert (plain(row["address"]), plain(row["path"])) == (record.url, record.path)
    assert (row["known from"], row["note"]) == (record.bytes_source, record.note)
    if record.bytes is None:
        assert row["MB"] == ""
    else:
        size, tolerance = map(float, row["MB"].split(" ± "))
        assert abs(size * 1e6 - record.bytes) <= 0.05e6 + 1  # half a unit of the digit that is printed
        assert abs(tolerance * 1e6 - record.bytes_tolerance) <= 0.05e6 + 1
    differs = dict(re.findall(r"`(\w+)=(.*?)`", row["differs from the model by"]))
    expected = dict(record.fields) | ({"resize_method": record.resize_method} if record.resize_method else {})
    assert differs == {name: repr(value) for name, value in expected.items()}


def test_ways_to_prepare_differ_and_are_all_used():
    for page in FAMILIES:
        models, ways, _ = tables(PAGES[page])
        assert {row["prepared"] for row in models} == {row["number"] for row in ways}
        assert len({tuple(value for name, value in row.items() if name != "number") for row in ways}) == len(ways)


def test_guide_has_a_row_for_each_family_that_leads_to_its_page():
    text = weights_pages.GUIDE.read_text()
    assert text == weights_pages.rewrite(text), "run python docs/generators/weights_pages.py"
    (rows,) = (table for table in tables(weights_pages.linked(text)) if "family" in table[0])
    links = [re.fullmatch(r"\[(.+)\]\(weights/(\w+)\.md\)", row["family"]).groups() for row in rows]
    assert links == [(family.title, page) for page, family in FAMILIES.items()]
    for row, (page, family) in zip(rows, FAMILIES.items(), strict=True):
        assert set(row["sizes"].split(", ")) == {record.variant.removeprefix(f"{page}/") for record in family.records}
        assert {*row["licence"].split(", ")} == {*", ".join(record.license for record in family.records).split(", ")}


@pytest.mark.docs
@pytest.mark.filterwarnings("ignore:the head of .* is all zeros:UserWarning")
@pytest.mark.parametrize("page", FAMILIES)
def test_code_of_the_page_runs_from_a_mirror(page, tmp_path, monkeypatch, capsys):
    """On a small model of the same kind: the files of full size are those of `test_published.py`, if slow."""
    code = re.search(r"```python\n(.*?)```", PAGES[page], re.DOTALL)[1]
    builder, name = re.search(r'keras_vit\.(\w+)\(weights="([^"]+)"', code).groups()
    record = keras_vit.find_weights(name, keras_vit.weights.registry.variant_of(builder))
    assert record.family == page
    assert f"keras-vit weights info {name} --model {builder}\n" in PAGES[page]
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path / "mirror"))
    (tmp_path / "mirror").mkdir()
    shrink(record, monkeypatch)
    write_published(record, tmp_path / "mirror" / record.path)
    names: dict = {}
    exec(code, names)
    assert names["model"].preprocessing == names["mine"].preprocessing == record.preprocessing
    assert names["model"].output_shape == (None, record.classes or names["model"].config.hidden_size)
    assert names["mine"].output_shape == (None, 10)
    assert "new head" in capsys.readouterr().out
