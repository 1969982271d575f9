"""`keras-vit evaluate|vtab`: probes, pages and ReaL on the command line."""

import json
import re

import keras
import numpy as np
import pytest
from conftest import GOLDEN, assert_one_line, tiny_config

import keras_vit
from keras_vit import cli
from keras_vit.cache import cache_dir
from keras_vit.cli import terminal

pytest.importorskip("sklearn")


@pytest.fixture
def photos(few_photos):
    return few_photos


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A file of a model for seven other classes."""
    keras.utils.set_random_seed(5)
    path = tmp_path_factory.mktemp("model") / "tiny.keras"
    keras_vit.build(tiny_config(), input_shape=(20, 28, 3), classes=7).save(path)
    return path


@pytest.mark.parametrize("kind", ["fewshot", "linear", "knn"])
def test_probe_is_that_of_the_function_and_needs_no_classes_of_the_model(run, model, photos, kind):
    options = {"fewshot": ("--shots", "1,5", "--seeds", "2"), "knn": ("--neighbours", "3"), "linear": ()}[kind]
    given = ("--train-split", "train+validation", *options)
    code, lines, error = run("evaluate", model, "--data", photos, "--probe", kind, "--json", *given)
    assert (code, error) == (0, [])
    arguments = {"fewshot": {"shots": (1, 5), "seeds": (0, 1)}, "knn": {"num_neighbors": 3}, "linear": {}}[kind]
    arguments["train_split"] = "train+validation"
    expected = keras_vit.probe(keras.saving.load_model(model), photos, kind, **arguments).summary()
    told = json.loads("\n".join(lines))
    assert told.pop("split") == "test"
    assert told | {"seconds": 0} == json.loads(json.dumps(expected | {"seconds": 0}))


def test_probe_prints_a_table_and_keeps_its_features(run, model, photos):
    code, lines, _ = run("evaluate", model, "--data", photos, "--probe", "fewshot", "--split", "validation")
    assert code == 0
    assert re.match("fewshot.* 24 .* 3 .* secret place$", lines[1])
    assert lines[2].endswith(": 10, 25 shots")
    assert lines[3].split() == ["trained", "on", "accuracy", "deviation", "trials", "chosen"]
    assert re.fullmatch(r"1 shot +\d\.\d{4} +\d\.\d{4} +3 +none", lines[4])
    assert [line.split()[:2] for line in lines[-3:]] == [["disc", "1"], ["stripes", "1"], ["tiles", "1"]]
    assert len(list(cache_dir("features").iterdir())) == 2


def test_no_cache_keeps_no_features(run, model, photos):
    assert run("evaluate", model, "--data", photos, "--probe", "knn", "--neighbours", "3", "--no-cache")[0] == 0
    assert not cache_dir("features").exists()


@pytest.mark.parametrize("below", ["", "pages"])
def test_page_in_place_of_a_file_is_refused_before_the_work(below, run, model, photos, tmp_path):
    (tmp_path / "notes").write_text("mine")
    code, lines, error = run("evaluate", model, "--data", photos, "--page", tmp_path / "notes" / below)
    assert code != 0
    assert re.search(r"a page goes into a folder, .* Received: \S*notes, which is a file\. Choose another", error[0])
    assert (tmp_path / "notes").read_text() == "mine"
    assert not any("accuracy" in line for line in lines)


def test_page_is_written_and_named(run, model, photos, tmp_path):
    code, lines, _ = run("evaluate", model, "--data", photos, "--probe", "fewshot", "--page", tmp_path / "page")
    assert code == 0
    assert lines[-1] == f"open {tmp_path / 'page' / 'index.html'}"
    assert "tiles" in (tmp_path / "page" / "index.html").read_text()


def test_head_of_other_classes_is_refused_without_a_probe(run, model, photos):
    code, _, error = run("evaluate", model, "--data", photos)
    assert code == 1
    assert_one_line(error, ".* 3 classes.* 7")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--shots 5", "`--shots`.*`--probe fewshot`"),
        ("--probe knn --seeds 2", "`--seeds`.*`--probe fewshot`"),
        ("--probe linear --neighbours 2", "`--neighbours`.*`--probe knn`"),
        ("--probe linear --real x.json", "`--real`.*`--probe`"),
        ("--no-cache", "`--no-cache`.*`--probe fewshot.linear.knn`"),
        ("--probe fewshot --seeds 0", "`--seeds`.*1"),
        ("--probe fewshot --shots 9", "`--shots`.*disc 8"),
    ],
)
def test_options_that_do_not_go_together_are_refused(run, model, photos, options, words):
    code, _, error = run("evaluate", model, "--data", photos, *options.split())
    assert code == 1
    assert_one_line(error, words)


def test_shots_that_are_no_numbers_are_wrong_usage(model, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["evaluate", str(model), "--probe", "fewshot", "--shots", "1,x"])
    assert re.search("--shots.*'1,x'", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("vtab run --tasks dtdd", "'dtd'"),
        ("vtab run --protocol finetune", "`--out`"),
        ("export run x.onx", "--format"),
        ("export numbers x.onnx --top 3", "`--top`"),
        ("export run x.onnx --images nowhere", "`--images`"),
        ("look numbers photo.jpg --out new --top 2", "`--top`"),
        ("look R50x1 photo.jpg --out new", "ResNet"),
        ("look run photo.jpg --out run", "`--out`"),
        ("push run owner/name --license MIT", "`license`"),
        ("push . owner/name", "best.keras"),
        ("evaluate run --probe knn --neighbours 0", "`--neighbours`"),
        ("evaluate numbers --real photo.jpg", "`--real`"),
        ("evaluate run --engine onnxruntime --precision bfloat16", "bfloat16"),
        ("predict photo.jpg --model numbers --top 2", "`--top`"),
        ("predict photo.jpg --model clip/B16 --classes ,", "`classes`"),
        ("finetune --data digits --out .", "`--out`"),
        ("finetune --data digits --out new --model B/16 --weights no.npz", "no.npz"),
    ],
)
def test_what_an_argument_alone_shows_is_refused_before_keras_is_imported(run, tmp_path, monkeypatch, command, words):
    monkeypatch.chdir(tmp_path)
    for name, task in (("run", {}), ("numbers", {"task": {"name": "regression"}})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "best.keras").touch()
        (tmp_path / name / "config.json").write_text(json.dumps({"data": {"class_names": ["a"]}, "seed": 0} | task))
    (tmp_path / "photo.jpg").touch()
    monkeypatch.setattr(terminal, "start_tensorflow", lambda: pytest.fail("Keras is imported"))
    code, lines, error = run(*command.split())
    assert (code, lines) == (1, [])
    assert_one_line(error, words)


def test_vtab_says_what_each_task_lacks_and_of_which_group_how_many_there_are(run, model, tmp_path, monkeypatch):
    pytest.importorskip("tensorflow_datasets")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    code, lines, error = run("vtab", model)
    assert (code, error) == (0, [])
    assert sum("tfds build" in line for line in lines) == 19
    assert [line.split() for line in lines[-4:]] == [
        ["natural", "0", "of", "7", "tasks"],
        ["specialised", "0", "of", "4", "tasks"],
        ["structured", "0", "of", "8", "tasks"],
        ["all", "tasks", "0", "of", "19", "tasks"],
    ]
    code, lines, _ = run("vtab", model, "--tasks", "dtd", "--json")
    assert code == 0
    assert list(json.loads("\n".join(lines))["lacking"]) == ["dtd"]


@pytest.mark.slow  # 1,053 files are prepared, and 47 classes told apart; tests/runs/test_vtab.py has a quick one
def test_vtab_measures_the_tasks_that_are_there(run, model, tmp_path, monkeypatch, capfd):
    """A set by the name of a task, prepared as tensorflow-datasets does it."""
    tfds = pytest.importorskip("tensorflow_datasets")

    class Dtd(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        """Plain pictures in place of textures, as many as VTAB takes."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            label = tfds.features.ClassLabel(num_classes=47)
            features = tfds.features.FeaturesDict({"image": tfds.features.Image(), "label": label})
            return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=("image", "label"))

        def _split_generators(self, dl_manager):
            sizes = {"train": 800, "validation": 200, "test": 53}
            return {name: self._generate_examples(size) for name, size in sizes.items()}

        def _generate_examples(self, count):
            for number in range(count):
                pixels = np.full((6, 7, 3), 5 * (number % 47), "uint8")
                yield number, {"image": pixels, "label": number % 47}

    builder = Dtd(data_dir=tmp_path)
    builder.download_and_prepare()
    capfd.readouterr()
    monkeypatch.setattr(tfds, "builder", lambda name: builder)
    code, lines, error = run("vtab", model, "--tasks", "dtd", "--no-cache")
    assert (code, error) == (0, [])
    assert re.fullmatch(r"dtd +0\.\d{4}|dtd +1\.0000", lines[-5])
    assert lines[-4].split() == ["natural", "1", "of", "7", "tasks"]


def test_folder_of_an_encoder_is_a_model_for_all_that_needs_no_classes(run, photos, tmp_path):
    folder = GOLDEN / "encoders" / "huggingface_dinov2_registers"
    code, lines, _ = run("evaluate", folder, "--data", photos, "--probe", "knn", "--neighbours", "2", "--json")
    assert (code, json.loads("".join(lines))["kind"]) == (0, "knn")
    photo = next(photos.rglob("*.jpg"))
    for command in (("evaluate", folder, "--data", photos), ("predict", photo, "--model", folder)):
        code, _, error = run(*command)
        assert code == 1
        assert_one_line(error, "the weights must have a classifier.*finetune --weights")
    tower = GOLDEN / "encoders" / "huggingface_clip"
    code, _, error = run("predict", photo, "--model", tower)
    assert code == 1
    assert_one_line(error, "an image tower. Its output is an embedding.*--classes")
