"""A model card as text and file: what the Hub reads, one section or field changed, and what is never replaced."""

import math

import pytest
from huggingface_hub import ModelCard

import keras_vit
from keras_vit.cards import (
    Card,
    Measured,
    classes_section,
    preprocessing_section,
    read_card,
    wilson_interval,
    with_field,
    with_section,
    write_card,
)


@pytest.mark.parametrize("value", [0.5, 1e-05, 1e-17, 0.1 + 0.2, 1.0, 0.0, 3e20])
def test_figures_come_back_exactly(value):  # YAML 1.1 takes 1e-05 for a text
    measured = Measured("set", "folder", "test", 7, (("loss", "Loss", value),))
    found = ModelCard(Card("t", "keras", (), measured=measured).text()).data.eval_results[0].metric_value
    assert (found, type(found)) == (value, float)


def test_interval_is_wilsons():
    """Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    wanted = {(81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605), (0, 20): (0, 0.1611), (1, 29): (0.0061, 0.1718)}
    for (hits, count), bounds in wanted.items():
        assert wilson_interval(hits / count, count) == pytest.approx(bounds, abs=5e-5)  # four digits are printed
    assert wilson_interval(1.0, 20) == pytest.approx((1 - 0.1611, 1), abs=5e-5)
    assert all(0 <= bound <= 1 and math.isfinite(bound) for n in (1, 10**9) for bound in wilson_interval(1.0, n))


def test_preprocessing_is_told_as_it_is():
    record = keras_vit.Preprocessing((20, 24), "crop", (0.1, 0.2, 0.3), interpolation="bicubic", crop_fraction=0.875)
    text = preprocessing_section(record)
    assert "| height x width | 20 x 24 pixels |" in text
    assert "0.875 of each side" in text
    assert "| mean, white is 1 | 0.1, 0.2, 0.3 |" in text
    assert "| interpolation | bicubic, without antialias |" in text
    assert "interpolation" not in preprocessing_section(keras_vit.Preprocessing(None, "none"))


def test_many_classes_are_cut_short_and_counted():
    text = classes_section([f"class {k}" for k in range(107)])
    assert text.count("\n| ") == 1 + 1 + 100
    assert text.endswith("And 7 more.")


# The file


def test_card_that_was_edited_stays_and_is_told(tmp_path):
    write_card(tmp_path, "one\n")
    write_card(tmp_path, "two\n")  # as it was written, so it is replaced
    assert read_card(tmp_path) == "two\n"
    (tmp_path / "README.md").write_text((tmp_path / "README.md").read_text().replace("two", "mine"))
    with pytest.warns(UserWarning, match=r"README\.md stays as it is.*\n.*Remove it"):
        write_card(tmp_path, "three\n")
    assert "mine" in read_card(tmp_path)


@pytest.mark.parametrize("content", [b"# a project\n", b"\xff\xfe", b""])
def test_readme_of_somebody_else_stays(tmp_path, content):
    (tmp_path / "README.md").write_bytes(content)
    with pytest.warns(UserWarning, match="stays as it is"):
        write_card(tmp_path, "ours\n")
    assert (tmp_path / "README.md").read_bytes() == content


def test_card_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "README.md").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"must have its card, README\.md, in UTF-8"):
        read_card(tmp_path)
    (tmp_path / "other" / "README.md").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"must have its card, README\.md, in UTF-8"):
        read_card(tmp_path / "other")


def test_one_section_or_field_changes_and_nothing_else():
    text = Card("t", "keras", (("Use", "old"), ("Used", "stays"), ("Last", "old"))).text()
    assert with_section(text, "Use", "new\n\\1") == text.replace("old", "new\n\\1", 1)
    assert with_section(text, "Last", "new") == "new".join(text.rsplit("old", 1))
    assert with_section(text, "None", "new") == text
    assert with_field(text, "library_name", 'a"b') == text.replace('"keras"', '"a\\"b"', 1)
    assert with_field(text, "none", "x") == text


def test_text_without_metadata_has_no_field_to_change():
    for text in ("# Mine\n\nlicense: none\n\n---\nlicense: x\n", "---\nlicense: x\n"):
        assert with_field(text, "license", "mit") == text


def test_card_from_an_editor_with_other_line_ends_is_read_as_ours(tmp_path):
    text = Card("t", "keras", (("Use", "old"),)).text()
    write_card(tmp_path, text)
    file = tmp_path / "README.md"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert read_card(tmp_path) == text
