"""`keras_vit.export` itself, mostly with a format that costs nothing: see `fake_format`."""

import json

import keras
import numpy as np
import pytest
from conftest import make_tiny
from exporting.fake_format import FakeFormat, register
from pictures import picture

import keras_vit
from keras_vit.renamed import EXPORT_OPTIONS

LABELS = ["fig", "birch", "cedar", "douglas fir", "elm", "ash", "ginkgo"]  # in no order of their own
PHOTOS = [picture(33 + n, 47 - n, seed=n) for n in range(3)]


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(7)
    return make_tiny(num_layers=1)


@pytest.fixture
def fake(monkeypatch):
    """A format of one file, `"fake"`."""
    return register(monkeypatch, "fake", FakeFormat())


@pytest.fixture
def fake_folder(monkeypatch):
    """A format of a folder of versions, `"fake_folder"`."""
    return register(monkeypatch, "fake_folder", FakeFormat(""))


def export(model, path, format="fake", images=PHOTOS, **given):
    options = {name: given.pop(name) for name in EXPORT_OPTIONS if name in given}
    return keras_vit.export(model, path, format, images=images, options=options, **given)


def everything_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# What is written, and what is told of it


def test_report_tells_what_was_measured(model, fake, tmp_path):
    report = export(model, tmp_path / "trees.fake")
    assert (report.path, report.format, report.precision) == (tmp_path / "trees.fake", "fake", "float32")
    assert (report.runtime, report.images, report.bytes) == ("fake 1.0", 3, (tmp_path / "trees.fake").stat().st_size)
    assert [drift.output for drift in report.drift] == ["logits", "features", "scores"]
    assert (report.max_difference < 1e-6, report.top1_agreement) == (True, 1.0)  # the same numbers but for batches
    assert min(report.seconds, report.keras_seconds) > 0
    assert everything_below(tmp_path) == ["trees.fake"]


def test_defaults_reach_the_writer(model, fake, tmp_path):
    export(model, tmp_path / "trees.fake")
    (spec,) = fake.jobs
    assert spec.model is model
    assert (spec.precision, spec.top_k, spec.activation, spec.name) == ("float32", 5, "softmax", "trees")
    assert spec.labels == tuple(f"class {number}" for number in range(7))
    assert (spec.max_bytes, spec.max_pixels, spec.max_batch, spec.opset) == (8 * 2**20, 12 * 2**20, 128, 18)
    assert (spec.image_size, spec.channels) == ((20, 28), 3)
    assert (spec.calibration_photos.shape, spec.calibration_photos.dtype) == ((3, 20, 28, 3), np.uint8)


def test_arguments_reach_the_writer(model, monkeypatch, tmp_path):
    fake = register(monkeypatch, "saved_model", FakeFormat(""))
    options = {
        "top_k": 2,
        "activation": "sigmoid",
        "name": "my.trees-2",
        "max_bytes": 9999,
        "max_pixels": 1008,
        "max_batch": 3,
    }
    sizes = {"image_size": (28, 36), "verify": False}
    export(model, str(tmp_path / "x"), None, labels=LABELS, precision="float16", **sizes, **options)
    (spec,) = fake.jobs
    assert {name: getattr(spec, name) for name in options} == options
    assert (spec.labels, spec.precision, spec.image_size) == (tuple(LABELS), "float16", (28, 36))
    assert spec.calibration_photos.shape == (3, 28, 36, 3)
    assert spec.metadata()["labels"] == LABELS
    export(model, tmp_path / "x", None, top_k=100, verify=False)
    assert fake.jobs[1].top_k == 7  # at most the number of classes


def test_photos_are_those_of_scikit_learn_unless_given(model, fake, tmp_path):
    report = export(model, tmp_path / "x.fake", images=None)
    assert report.images == 16
    assert len(fake.jobs[0].calibration_photos) == 4  # to warm up a server


@pytest.mark.parametrize("count", [32, 50, 200])
def test_ranges_are_learned_from_other_photos_than_are_compared(model, fake, tmp_path, count):
    fake.calibrates, seen = ("int8",), []
    fake.spoil = lambda answers, pixels: seen.append(pixels) or answers
    photos = np.random.default_rng(0).integers(0, 256, (count, 20, 28, 3), "uint8")
    report = export(model, tmp_path / "x.fake", precision="int8", images=photos)
    compared = {photo.tobytes() for pixels in seen for photo in pixels}
    learned = {photo.tobytes() for photo in fake.jobs[0].calibration_photos}
    assert report.images == len(compared) == 16
    assert len(learned) == min(count - 16, 64)
    assert not compared & learned


def test_ranges_are_not_learned_from_a_few_photos(model, fake, tmp_path):
    fake.calibrates = ("int8",)
    with pytest.raises(ValueError, match=r"at least 32.\n.*3 in `images`"):
        export(model, tmp_path / "x.fake", precision="int8")
    export(model, tmp_path / "x.fake", precision="float16")


def test_without_verify_the_file_is_not_opened(model, fake, tmp_path):
    fake.open_runtime = None
    report = export(model, tmp_path / "x.fake", verify=False)
    assert (report.runtime, report.drift, report.max_difference, report.top1_agreement) == (None, (), None, None)
    assert (tmp_path / "x.fake").exists()


@pytest.mark.parametrize("path", ["kept.fake", "a/b/kept.fake"])
def test_folders_above_are_made(model, fake, tmp_path, path):
    export(model, tmp_path / path, verify=False)
    assert (tmp_path / path).is_file()


def test_path_of_the_report_is_that_of_the_version(model, fake_folder, tmp_path):
    assert export(model, tmp_path / "trees", "fake_folder", verify=False).path == tmp_path / "trees" / "1"


# Names


@pytest.mark.parametrize(
    ("path", "name"), [("B 16 (ü).fake", "B_16_"), ("birds.v2.fake", "birds.v2"), ("up/../x.fake", "x")]
)
def test_name_is_that_of_the_file_in_plain_letters(model, fake, tmp_path, path, name):
    (tmp_path / "up").mkdir()
    export(model, tmp_path / path, verify=False)
    assert fake.jobs[0].name.rstrip("_") == name.rstrip("_")


def test_name_of_a_folder_keeps_what_follows_a_point(model, fake_folder, tmp_path, monkeypatch):
    export(model, tmp_path / "birds.v2", "fake_folder", verify=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    export(model, ".", "fake_folder", verify=False)
    assert [spec.name for spec in fake_folder.jobs] == ["birds.v2", "here"]


@pytest.mark.parametrize("labels", [LABELS, tuple(LABELS), np.array(LABELS)], ids=["list", "tuple", "array"])
def test_labels_may_be_any_sequence(model, fake, tmp_path, labels):
    export(model, tmp_path / "x.fake", labels=labels, verify=False)
    assert fake.jobs[0].labels == tuple(LABELS)


def test_labels_of_imagenet_are_known(fake, tmp_path):
    with pytest.warns(UserWarning, match="1,000 outputs without names, so ImageNet's are taken"):  # random weights
        export(make_tiny(classes=1000, num_layers=1), tmp_path / "x.fake", verify=False)
    assert fake.jobs[0].labels[1].startswith("goldfish")


# What is refused, before anything is written


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"format": "fakes"}, ValueError, "format='fakes'. Did you mean 'fake'"),
        ({"top_k": 2.0}, TypeError, "top_k=2.0"),
        ({"max_pixels": True}, TypeError, "max_pixels=True"),
        ({"max_pixels": 559, "format": "saved_model"}, ValueError, "`max_pixels`.*\n.*20 x 28 pixels"),
        ({"opset": "18"}, TypeError, "opset='18'"),
        ({"jit_compile": 1}, TypeError, "jit_compile=1"),
        ({"name": "a b"}, ValueError, "name='a b'"),
        ({"name": ""}, ValueError, "name=''"),
        ({"name": ".."}, ValueError, "name='..'"),
        ({"name": 5}, ValueError, "name=5"),
        ({"image_size": 224}, TypeError, "image_size=224"),
        ({"image_size": "all"}, TypeError, "image_size='all'"),
        ({"image_size": (21, 28)}, ValueError, r"`image_size`.*\n.* Nearest: \(20, 28\)"),
        ({"labels": LABELS[1:]}, ValueError, "`labels`.* 7 names.*\n.*: 6"),
        ({"labels": [*LABELS[1:], "\ud800"]}, ValueError, r"among them '\\ud800'"),
        ({"max_bytes": 2**31}, ValueError, "max_bytes=2147483648"),
        ({"max_bytes": 1023}, ValueError, "max_bytes=1023"),
        ({"labels": [*LABELS[1:], 7]}, ValueError, "among them 7"),
        ({"labels": [*LABELS[1:], " "]}, ValueError, "among them ' '"),
        ({"labels": [*LABELS[1:], "a\nb"]}, ValueError, r"among them 'a\\nb'"),
        ({"labels": [*LABELS[1:], "a\r"]}, ValueError, r"among them 'a\\r'"),
        ({"labels": "abcdefg"}, TypeError, "`labels`.*\n.*type str"),
        ({"labels": set(LABELS)}, TypeError, "of type set"),
        ({"labels": dict.fromkeys(LABELS)}, TypeError, "of type dict"),
        ({"labels": 7}, TypeError, "`labels`"),
        ({"images": []}, ValueError, "`images`.* at least one"),
        ({"images": 5}, TypeError, "images=5"),
    ],
)
def test_wrong_argument_is_refused_and_nothing_is_left(model, fake, tmp_path, options, error, message):
    name = "x" if options.get("format") == "saved_model" else "x.fake"
    with pytest.raises(error, match=message):
        export(model, tmp_path / "new" / name, **options)
    assert (fake.jobs, everything_below(tmp_path)) == ([], [])


def test_path_must_be_one(model, fake):
    with pytest.raises(TypeError, match="path=None"):
        export(model, None)
    with pytest.raises(ValueError, match="path=''"):
        export(model, "")


def test_other_models_are_refused(model, fake, tmp_path):
    features = keras.Model(model.input, model.get_layer("pooling").output)
    for other in (features, "B/16", None):
        with pytest.raises(TypeError, match="VisionTransformer or ResNet"):
            export(other, tmp_path / "x.fake")


@pytest.mark.parametrize("arguments", [{"include_top": False, "classes": None}, {}])
def test_model_with_an_answer_for_each_token_is_refused(fake, tmp_path, arguments):
    with pytest.raises(ValueError, match=r"one row for each image.*\n.*`pooling`"):
        export(make_tiny(pooling="none", num_layers=1, **arguments), tmp_path / "x.fake")


def test_another_backend_is_refused(model, fake, tmp_path, monkeypatch):
    monkeypatch.setattr("keras.config.backend", lambda: "jax")
    with pytest.raises(RuntimeError, match=r"backend 'jax'. .*KERAS_BACKEND=tensorflow"):
        export(model, tmp_path / "x.fake")


# Files that are there


def test_only_a_file_of_an_export_is_replaced_once_the_new_one_is_proven(model, fake, tmp_path):
    file, data = tmp_path / "x.fake", tmp_path / "x.fake.data"
    fake.writes_data = True
    export(model, file, name="first")
    before, seen = file.read_bytes(), []
    fake.spoil = lambda answers, pixels: seen.append(file.read_bytes()) or answers
    export(model, file, overwrite=True)
    assert (set(seen), json.loads(file.read_text())["name"]) == ({before}, "x")
    fake.spoil = lambda answers, pixels: {**answers, "logits": answers["logits"] + 1}
    before = file.read_bytes()
    with pytest.raises(keras_vit.ExportError):
        export(model, file, overwrite=True)
    assert file.read_bytes() == before
    for another in (data, file):
        another.write_text("precious")
        with pytest.raises(FileExistsError, match=rf"only a file that an export.*\n.*{another}, "):
            export(model, file, overwrite=True, verify=False)
        assert another.read_text() == "precious"
    assert everything_below(tmp_path) == ["x.fake", "x.fake.data"]


def test_folder_in_the_place_of_a_file_is_kept(model, fake, tmp_path):
    (tmp_path / "x.fake").mkdir()
    with pytest.raises(FileExistsError, match="a folder is at"):
        export(model, tmp_path / "x.fake", overwrite=True)


def test_file_in_the_place_of_a_folder_is_kept(model, fake_folder, tmp_path):
    (tmp_path / "trees").write_text("precious")
    with pytest.raises(FileExistsError, match=r"SavedModel.*\n.*trees, a file"):
        export(model, tmp_path / "trees", "fake_folder", overwrite=True)


# Failures on the way leave nothing


def test_file_that_is_not_the_model_is_deleted_and_told_in_a_sentence(model, fake, tmp_path):
    fake.spoil = lambda answers, pixels: {**answers, "features": answers["features"] + 0.5}
    with pytest.raises(keras_vit.ExportError) as caught:
        export(model, tmp_path / "new" / "x.fake")
    assert "features differ by up to 0.5, in the mean by 0.5; " in str(caught.value)
    assert everything_below(tmp_path) == []


def raising(error):
    def fail(*_):
        raise error

    return fail


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (RuntimeError("no such operation"), (keras_vit.ExportError, "no such operation")),
        (ImportError('pip install ".[export]"'), (ImportError, "pip install")),
        (keras_vit.ExportError("not valid"), (keras_vit.ExportError, "^not valid$")),
    ],
)
def test_file_that_its_runtime_does_not_open_is_deleted(model, fake, tmp_path, raised, told):
    fake.open_runtime = raising(raised)
    with pytest.raises(told[0], match=told[1]):
        export(model, tmp_path / "x.fake")
    assert everything_below(tmp_path) == []


def test_folder_that_was_there_stays_when_an_export_fails(model, fake_folder, tmp_path):
    fake_folder.fault = raising(RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
        export(model, tmp_path, "fake_folder")
    assert tmp_path.is_dir()


# Versions


def test_each_export_is_the_next_version_and_edited_files_beside_stay(model, fake_folder, tmp_path):
    export(model, tmp_path / "trees", "fake_folder", verify=False)
    (tmp_path / "trees" / "config.pbtxt").write_text("edited")
    (tmp_path / "trees" / "batching_parameters.txt").unlink()
    (tmp_path / "trees" / "7").mkdir()
    (tmp_path / "trees" / "notes").mkdir()
    report = export(model, tmp_path / "trees", "fake_folder", verify=False)
    assert report.path.name == "8"
    assert (tmp_path / "trees" / "config.pbtxt").read_text() == "edited"
    found = sorted(path.name for path in (tmp_path / "trees").iterdir())
    assert found == ["1", "7", "8", "README.md", "batching_parameters.txt", "config.pbtxt", "notes"]
    assert (report.path / "saved_model.pb").is_file()
