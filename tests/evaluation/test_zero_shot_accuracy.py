"""Zero-shot accuracy on a folder of photos, by one command: classes are matched by their names."""

import json
import shutil
from argparse import Namespace

import pytest
from conftest import GOLDEN, assert_one_line
from photos import make_photos

import keras_vit
from keras_vit.cli.evaluation import words_of_classes
from keras_vit.cli.models import class_words
from keras_vit.images.preprocessing import class_labels
from keras_vit.text.templates import imagenet_classes

pytestmark = pytest.mark.filterwarnings("ignore:.*(scaled|range|preprocessing|has no splits)")
CLIP = GOLDEN / "text" / "towers" / "hf_clip"


def test_classes_are_matched_by_their_names(run, tmp_path):
    """In any order; the names of folders are the words where none are given. Python gives the same numbers."""
    make_photos(tmp_path / "photos", 2)
    shutil.move(tmp_path / "photos" / "tiles", tmp_path / "photos" / "many_tiles")
    names = ["disc", "many_tiles", "stripes"]
    words = ["stripes", "Many tiles", "disc"]
    accuracies = []
    for options in (("--classes", ", ".join(words)), ("--templates", "a photo of a {}.")):
        code, lines, error = run("evaluate", CLIP, "--data", tmp_path / "photos", *options, "--json")
        assert (code, error) == (0, [])
        accuracies.append(json.loads("".join(lines))["loss"])
    model = keras_vit.zero_shot(CLIP, classes=["disc", "Many tiles", "stripes"])
    found = keras_vit.evaluate(model, tmp_path / "photos", class_names=names)
    assert accuracies[0] == pytest.approx(found.loss, abs=1e-5)
    lower = keras_vit.zero_shot(CLIP, classes=["disc", "many tiles", "stripes"], class_names=names)
    assert accuracies[1] == pytest.approx(keras_vit.evaluate(lower, tmp_path / "photos").loss, abs=1e-5)
    with pytest.raises(ValueError, match="'many_tiles' where the model has 'Many tiles'"):
        keras_vit.evaluate(model, tmp_path / "photos")
    code, _, error = run("evaluate", CLIP, "--data", tmp_path / "photos", "--classes", "disc,cat,stripes")
    assert code == 1
    assert_one_line(error, "not in --classes: 'many_tiles'; not in the data: 'cat'")
    for options in (("--probe", "knn", "--data", tmp_path / "photos"), ()):
        code, _, error = run("evaluate", CLIP, "--classes", "a,b", *options)
        assert code == 1
        assert_one_line(error, "`--classes`.* goe?s? with|`--classes` and `--templates` go with")


def test_names_with_commas_come_from_a_file(tmp_path):
    (tmp_path / "names.txt").write_text("\ufeffkite (bird of prey), kite\n\n  cat \n", encoding="utf8")
    assert class_words(Namespace(classes=f"{tmp_path}/names.txt")) == ["kite (bird of prey), kite", "cat"]
    assert class_words(Namespace(classes=" cat, red car")) == ["cat", "red car"]
    with pytest.raises(ValueError, match="`classes` must be a text file"):
        class_words(Namespace(classes="missing.txt"))


def test_words_are_in_the_order_of_the_data():
    assert words_of_classes(["a_b", "c"], ["C", "A b"]) == ("A b", "C")
    assert words_of_classes(["a_b", "c"], None) == ("a b", "c")
    assert words_of_classes(["cafe\u0301"], ["CAF\u00c9"]) == ("CAF\u00c9",)  # a folder as macOS writes it
    assert words_of_classes(["cafe\u0301"], None) == ("caf\u00e9",)
    folders = [number for number, _ in class_labels(1000)]
    assert words_of_classes(folders, None) == imagenet_classes()
    for words in (["c"], ["c", "c"], ["c", "a b", "d"]):
        with pytest.raises(ValueError, match="must name each class of the data once"):
            words_of_classes(["a_b", "c"], words)
