"""A model card as text and file: its metadata are YAML, one section or field changes alone, and edited cards stay."""

import dataclasses

import pytest

import keras_vit
from keras_vit.pages.cards import (
    Card,
    classes_section,
    preprocessing_section,
    read_card,
    with_field,
    with_section,
    write_card,
    yaml_text,
)
from keras_vit.pages.formatting import printable

SECTIONS = {"Use": "old", "Used": "stays", "Last": "old"}


NUMBERS = [0.5, 1e-05, -1e-17, 0.1 + 0.2, 1.0, 0.0, 3e20, 7]  # YAML 1.1 takes 1e-05 for a text
TEXTS = ["no", "1e-05", "雛菊: #1 'a' \"b\" \\", "", "---", "a\x85b\u2028\x1b"]  # and no for False


@pytest.mark.parametrize("value", [*NUMBERS, *TEXTS, [], ["a", 2.0]])
def test_yaml_is_read_as_it_was_meant(value):
    yaml = pytest.importorskip("yaml")

    def facts(value):
        return {
            "value": value,
            "inner": {"list": [{"a": value, "b": {"c": value}}, {"d": [{"e": value}]}]},
            "last": "x",
        }

    text, shown = yaml_text(facts(value)), printable(value) if isinstance(value, str) else value
    assert repr(yaml.safe_load(text)) == repr(facts(shown))  # repr tells 1.0 from 1
    assert all(line.isprintable() for line in text.split("\n"))


def test_preprocessing_is_told_as_it_is():
    record = keras_vit.Preprocessing((20, 24), "crop", (0.1, 0.2, 0.3), interpolation="bicubic", crop_fraction=0.875)
    text = preprocessing_section(dataclasses.asdict(record))
    assert "| height x width | 20 x 24 pixels |" in text
    assert "0.875 of each side" in text
    assert "| mean, white is 1 | 0.1, 0.2, 0.3 |" in text
    assert "| interpolation | bicubic, without antialias |" in text
    assert "interpolation" not in preprocessing_section(dataclasses.asdict(keras_vit.Preprocessing(None, "none")))


def test_many_classes_are_cut_short_and_counted():
    text = classes_section([f"class {k}" for k in range(107)])
    assert text.count("\n| ") == 1 + 1 + 100
    assert text.endswith("And 7 more.")


# The file


def test_card_that_was_edited_stays_and_is_told(tmp_path):
    for title in ("one", "two"):  # as it was written, so it is replaced
        write_card(tmp_path, Card(title, "keras", {}))
    assert read_card(tmp_path) == Card("two", "keras", {}).text()
    (tmp_path / "README.md").write_text((tmp_path / "README.md").read_text().replace("two", "mine"))
    with pytest.warns(UserWarning, match=r"README\.md stays as it is"):
        write_card(tmp_path, Card("three", "keras", {}))
    assert "# mine\n" in read_card(tmp_path)


@pytest.mark.parametrize("content", [b"# a project\n", b"\xff\xfe", b""])
def test_readme_of_somebody_else_stays(tmp_path, content):
    (tmp_path / "README.md").write_bytes(content)
    with pytest.warns(UserWarning, match=r"README\.md stays as it is"):
        write_card(tmp_path, Card("ours", "keras", {}))
    assert (tmp_path / "README.md").read_bytes() == content


def test_card_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "bytes").mkdir()
    (tmp_path / "bytes" / "README.md").write_bytes(b"\xff\xfe")
    (tmp_path / "folder" / "README.md").mkdir(parents=True)
    for name in ("bytes", "folder", "nothing"):
        with pytest.raises(ValueError, match=rf"README\.md.*\n.*{name}"):
            read_card(tmp_path / name)


def test_one_section_or_field_changes_and_nothing_else():
    text = Card("t", "keras", SECTIONS).text()
    assert with_section(text, "Use", "new\n\\1") == text.replace("old", "new\n\\1", 1)
    assert with_section(text, "Last", "new") == "new".join(text.rsplit("old", 1))
    assert with_section(text, "None", "new") == text
    assert with_field(text, "library_name", 'a"b') == text.replace('"keras"', '"a\\"b"', 1)
    for unchanged in (text, "# Mine\n\nnone: none\n\n---\nnone: x\n", "---\nnone: x\n"):
        assert with_field(unchanged, "none" if unchanged != text else "absent", "mit") == unchanged


def test_card_from_an_editor_with_other_line_ends_is_read_as_ours(tmp_path):
    card, file = Card("t", "keras", SECTIONS), tmp_path / "README.md"
    write_card(tmp_path, card)
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert read_card(tmp_path) == card.text()
