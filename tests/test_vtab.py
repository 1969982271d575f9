"""VTAB's splits, groups and means are those of the paper; what is lacking is said for each task."""

import json
import re

import keras
import numpy as np
import pytest
from conftest import make_tiny, numpy, tiny_config

import keras_vit
from keras_vit.config.datasets import VTAB_TASKS
from keras_vit.data.tensorflow_datasets import missing_step
from keras_vit.evaluation import probe
from keras_vit.vtab_benchmark import GROUPS, Vtab, tasks_of

pytest.importorskip("sklearn")

# Table 9 of arXiv:2010.11929, typed from SPEC 5.7: caltech101 to norb-elev, and the mean.
TABLE_9 = {
    "H/14, JFT": (
        "95.3 85.5 75.2 99.7 97.2 65.0 88.9 83.3 96.7 91.4 76.6 91.7 63.8 53.1 79.4 63.3 84.5 33.2 51.2",
        77.6,
    ),
    "L/16, JFT": (
        "95.4 81.9 74.3 99.7 96.7 63.5 87.4 83.6 96.5 89.7 77.1 86.4 63.1 49.7 74.5 60.5 82.2 36.2 51.1",
        76.3,
    ),
    "L/16, I21k": (
        "90.8 84.1 74.1 99.3 92.7 61.0 80.9 82.5 95.6 85.2 75.3 70.3 56.1 41.9 74.7 64.9 79.9 30.5 41.7",
        72.7,
    ),
}
NAMES = [name.removeprefix("vtab/") for name in VTAB_TASKS]


def of_table(row):
    return Vtab("finetune", dict(zip(NAMES, map(float, TABLE_9[row][0].split()), strict=True)))


@pytest.mark.parametrize("row", TABLE_9)
def test_mean_is_that_of_the_paper(row):
    assert of_table(row).mean == pytest.approx(TABLE_9[row][1], abs=0.05)  # as it is rounded there


def test_group_means_are_over_seven_four_and_eight_tasks():
    found = of_table("H/14, JFT")
    # 606.8 / 7, 348.0 / 4 and 520.2 / 8, added by hand from the row.
    assert found.group_means == pytest.approx({"natural": 86.686, "specialised": 87.0, "structured": 65.025}, abs=5e-4)
    assert found.mean == pytest.approx((606.8 + 348.0 + 520.2) / 19, abs=1e-9)
    assert np.mean(list(found.group_means.values())) == pytest.approx(79.57, abs=5e-3)  # which is not the mean of 19
    assert [len(tasks_of(group)) for group in GROUPS] == [7, 4, 8]


def test_mean_of_a_group_needs_all_of_its_tasks():
    found = Vtab("linear", {"dtd": 0.5, "svhn": 0.25, **dict.fromkeys(tasks_of("specialised"), 0.75)})
    assert found.group_means == {"natural": None, "specialised": 0.75, "structured": None}
    assert found.mean is None
    rows = dict(found.rows())
    assert rows["natural"] == "2 of 7 tasks"
    assert rows["specialised"] == "0.7500"
    assert rows["all tasks"] == "6 of 19 tasks"
    assert json.loads(json.dumps(found.summary()))["group_means"]["specialised"] == 0.75


def photos(count, seed):
    rng = np.random.default_rng(seed)
    images = rng.normal(120, 25, (count, 20, 28, 3))
    images[np.arange(count), :, :, np.arange(count) % 3] += 5
    return images.clip(0, 255).astype("uint8"), np.arange(count) % 3


@pytest.fixture
def data():
    return {"train": photos(16, 0), "validation": photos(8, 1), "test": photos(13, 2)}


@pytest.mark.filterwarnings("ignore:dtd of VTAB has 47 classes")
def test_linear_protocol_is_the_linear_probe_and_says_what_the_others_lack(data, tmp_path, monkeypatch):
    pytest.importorskip("tensorflow_datasets")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    model, lines = make_tiny(), []
    found = keras_vit.vtab(
        model, ["vtab/dtd", "svhn", "resisc45"], data={"dtd": data}, cache=None, print_fn=lines.append
    )
    assert found.accuracies == {"dtd": probe(model, data, "linear", cache=None).accuracy}
    assert set(found.lacking) == {"svhn", "resisc45"}
    assert len(lines) == 3
    assert re.match(
        r"svhn: svhn_cropped/\S+ is not in .*; run `tfds build svhn_cropped`, up to 1\.58 GB to download", lines[1]
    )
    assert re.match(r"resisc45: .* fetched by hand, .*catalog/resisc45.*`tfds build resisc45`", lines[2])


def test_every_task_says_what_it_lacks(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow_datasets")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    lacks = {name: missing_step(name) for name in VTAB_TASKS}
    assert all("tfds build" in str(lack) for lack in lacks.values())
    by_hand = {name for name, lack in lacks.items() if "by hand" in str(lack)}
    assert by_hand == {"vtab/resisc45", "vtab/diabetic_retinopathy"}
    assert "`tfds build diabetic_retinopathy_detection/btgraham-300`" in str(lacks["vtab/diabetic_retinopathy"])


def test_data_that_are_not_the_tasks_are_told(data):
    with pytest.warns(UserWarning, match=r"dtd.* 47 .* 800 .* 200 .* 3, 16 and 8"):
        keras_vit.vtab(make_tiny(), "dtd", data={"dtd": data}, cache=None, print_fn=lambda line: None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:dtd of VTAB has 47 classes")
@pytest.mark.parametrize("fields", [{}, {"pooling": "map"}, {"representation_size": 9}], ids=["token", "map", "hidden"])
def test_finetune_protocol_trains_on_all_and_leaves_the_model_alone(data, tmp_path, fields):
    model = make_tiny() if not fields else keras_vit.build(tiny_config(**fields), input_shape=(20, 28, 3), classes=7)
    before = model.get_weights()
    changes = {"steps": 2, "batch_size": 8, "image_size": (20, 28), "learning_rate": 1e-9}
    found = keras_vit.vtab(
        model, "dtd", protocol="finetune", data={"dtd": data}, out=tmp_path, changes=changes, print_fn=lambda line: None
    )
    result = json.loads((tmp_path / "dtd" / "result.json").read_text())
    assert found.accuracies == {"dtd": result["test_accuracy"]}
    assert (result["recipe"], result["test_images"]) == ("paper-finetune-vtab", 13)
    config = json.loads((tmp_path / "dtd" / "config.json").read_text())
    assert config["data"]["sizes"] == {"train": 24, "test": 13}
    trained = keras.models.load_model(tmp_path / "dtd" / "last.keras", compile=False)
    for layer in ("patch_embedding", "block_01", "encoder_norm"):  # which two steps at that rate leave as they were
        for ours, theirs in zip(trained.get_layer(layer).weights, model.get_layer(layer).weights, strict=True):
            np.testing.assert_allclose(numpy(ours), numpy(theirs), atol=1e-6)
    assert all((old == new).all() for old, new in zip(before, model.get_weights(), strict=True))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tasks": ["dtdd"]}, "Did you mean 'dtd'"),
        ({"tasks": []}, "each once"),
        ({"tasks": ["dtd", "vtab/dtd"]}, "each once"),
        ({"protocol": "knn"}, "`protocol`"),
        ({"protocol": "finetune"}, "`out`"),
        ({"out": "x"}, "writes no run"),
        ({"changes": {"steps": 2}}, "writes no run"),
        ({"data": {"nothing": "x"}}, "VTAB"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        keras_vit.vtab(make_tiny(), **arguments)
