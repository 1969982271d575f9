"""`keras-vit segment` and `keras-vit depth`: every file that they write against the functions, and what they refuse."""

import csv
import json

import numpy as np
import pytest
from conftest import assert_one_line, randomise
from PIL import Image

import keras_vit
from keras_vit.analysis.overlay import class_colors, paint_depths
from keras_vit.cli.maps import file_names, step_of
from keras_vit.cli.predict import Photo


def encoder():
    config = keras_vit.ViTConfig(8, 16, 4, 2, 32)
    return randomise(keras_vit.build(config, include_top=False, pooling="none", input_shape=(24, 24, 3)))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A segmenter of three and one of 300 classes, and a model of metres and one of inverse depths, as files."""
    folder = tmp_path_factory.mktemp("models")
    made = {
        "few": keras_vit.segmenter(encoder(), "linear", classes=3),
        "many": keras_vit.segmenter(encoder(), "linear", classes=300),
        "metres": keras_vit.depth_estimator(encoder(), "linear", depth_range=(0.1, 10)),
        "inverse": keras_vit.depth_estimator(encoder(), "dpt"),
    }
    made["few"].class_names = ("sky", "=sea", "sand")
    for name, model in made.items():
        model.save(folder / f"{name}.keras")
    return folder, made


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Photos with equal stems, in a folder below, in grey, and one that is damaged."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "below").mkdir()
    rng = np.random.default_rng(0)
    for name, shape in (("a.png", (30, 41, 3)), ("A.bmp", (24, 24, 3)), ("below/a.png", (25, 61, 3))):
        Image.fromarray(rng.integers(0, 255, shape, "uint8")).save(folder / name)
    Image.fromarray(rng.integers(0, 255, (33, 27), "uint8")).save(folder / "grey.png")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0nothing")
    return folder


def table(file):
    with file.open(newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def test_segment_writes_masks_overlays_and_a_table(run, models, photos, tmp_path):
    folder, made = models
    arguments = ("segment", photos, "--model", folder / "few.keras", "--out", tmp_path / "out", "--overlay", "--flip")
    code, lines, errors = run(*arguments)
    assert (code, lines[-1]) == (0, f"wrote {tmp_path / 'out'}: 4 photos")
    assert errors == [
        f"keras-vit: warning: 1 photo could not be read: the column status of {tmp_path / 'out/photos.csv'} says why"
    ]
    rows = {row["path"]: row for row in table(tmp_path / "out" / "photos.csv")}
    assert len(rows) == 5
    bad = rows.pop(str(photos / "broken.jpg"))
    assert (bad["status"], bad["mask"]) == ("truncated JPEG", "")
    colors = class_colors(3)
    for path, row in rows.items():
        pixels = keras_vit.read_image(path)
        wanted = keras_vit.segment(made["few"], pixels, flip=True).classes
        with Image.open(tmp_path / "out" / row["mask"]) as mask:
            assert mask.mode == "P"
            np.testing.assert_array_equal(np.asarray(mask), wanted)
            np.testing.assert_array_equal(np.asarray(mask.convert("RGB")), colors[wanted])
        np.testing.assert_array_equal(keras_vit.dense.read_mask(tmp_path / "out" / row["mask"]), wanted)
        picture = np.asarray(Image.open(tmp_path / "out" / row["overlay"]))
        height, width = wanted.shape
        mixed = np.rint(0.6 * colors[wanted] + 0.4 * pixels)
        np.testing.assert_array_equal(picture[:height, :width], mixed)
        assert (picture[height:] == colors[np.bincount(wanted.ravel()).argmax()]).all(-1).any()  # the legend
        assert (row["status"], row["height"], row["width"]) == ("ok", str(height), str(width))
    masks = sorted(row["mask"] for row in rows.values())
    assert masks == ["masks/A.png", "masks/a.png.png", "masks/below/a.png", "masks/grey.png"]
    classes = table(tmp_path / "out" / "classes.csv")
    assert [(row["class"], row["name"]) for row in classes] == [("0", "sky"), ("1", "'=sea"), ("2", "sand")]
    code, _, errors = run(*arguments)
    assert code == 1
    assert_one_line(errors, "`--out` must be a new or empty folder.*Or add --overwrite")
    code, lines, _ = run(*arguments, "--overwrite", "--json")
    assert code == 0
    facts = json.loads("\n".join(lines))
    assert (facts["photos"], facts["unread"], facts["table"]) == (5, 1, str(tmp_path / "out" / "photos.csv"))


def test_more_than_255_classes_are_16_bits(run, models, photos, tmp_path):
    folder, made = models
    given = ("--short-side", "photo", "--window", "24x32", "--stride", "20", "--ratios", "1,1.5")
    code, *_ = run("segment", photos / "a.png", "--model", folder / "many.keras", "--out", tmp_path / "out", *given)
    assert code == 0
    ways = {"short_side": None, "window": (24, 32), "stride": 20, "ratios": (1, 1.5)}
    with Image.open(tmp_path / "out" / "masks" / "a.png") as mask:
        assert mask.mode == "I;16"
        wanted = keras_vit.segment(made["many"], photos / "a.png", **ways).classes
        assert wanted.max() > 255
        np.testing.assert_array_equal(np.asarray(mask), wanted)


def test_depth_writes_levels_numbers_and_pictures(run, models, photos, tmp_path):
    folder, made = models
    for name in ("metres", "inverse"):
        out = tmp_path / name
        code, _, errors = run(
            "depth", photos / "below", tmp_path / "none.png", "--model", folder / f"{name}.keras", "--out", out
        )
        assert (code, len(errors)) == (0, 1)
        row, missing = table(out / "photos.csv")
        assert missing["status"] == "no such file"
        wanted = keras_vit.estimate_depth(made[name], photos / "below" / "a.png")
        np.testing.assert_array_equal(np.load(out / row["npy"]), wanted.values)
        with Image.open(out / row["png"]) as levels:
            assert (levels.mode, levels.info["unit"]) == ("I;16", wanted.unit)
            step = float(levels.info["step"])
            assert np.abs(np.asarray(levels) * step - wanted.values).max() <= 0.51 * step
        assert float(row["step"]) == step
        assert step == (0.001 if name == "metres" else wanted.values.max() / 65535)
        assert row["unit"] == wanted.unit
        picture = np.asarray(Image.open(out / row["picture"]))
        nearest = np.unravel_index((wanted.values if name == "inverse" else -wanted.values).argmax(), (25, 61))
        assert picture[nearest].tolist() == [252, 255, 164]
    metres = keras_vit.dense.read_mask(tmp_path / "metres" / "depths" / "a.png", "depth_mm")
    np.testing.assert_allclose(metres, np.load(tmp_path / "metres" / "depths" / "a.npy"), 0, 0.00051)
    code, *_ = run(
        "depth", photos / "a.png", "--model", folder / "metres.keras", "--out", tmp_path / "png", "--values", "png"
    )
    assert code == 0
    assert not list((tmp_path / "png").rglob("*.npy"))


def test_a_step_reaches_the_range_of_the_model():
    assert step_of("metres", (0.001, 10), 9.0) == 0.001
    assert step_of("metres", (0.001, 80), 9.0) == 1 / 256
    assert step_of("metres", None, 66.0) == 1 / 256
    assert step_of("inverse", None, 6.5535) * 65535 == pytest.approx(6.5535)
    assert step_of("inverse", None, 0.0) > 0


def test_pictures_of_depths_are_bright_where_it_is_near():
    values = np.tile(np.linspace(1, 5, 300, dtype="float32"), (20, 1))
    for unit, left, right in (("metres", [252, 255, 164], [0, 0, 4]), ("inverse", [0, 0, 4], [252, 255, 164])):
        picture = paint_depths(values, unit)
        assert picture.shape[1] == 300
        assert (picture[0, 0].tolist(), picture[0, -1].tolist()) == (left, right)
    assert paint_depths(np.ones((2, 2), "float32"), "metres").shape[1] == 240


def test_names_of_files_are_unique_and_stay_in_the_folder(tmp_path):
    (tmp_path / "in").mkdir()
    given = [tmp_path / "in", tmp_path / "b.jpg"]
    inside = [
        Photo(str(tmp_path / "in" / name), str(tmp_path / "in" / name)) for name in ("x/1.jpg", "x/1.png", "X/1.gif")
    ]
    others = [Photo(str(tmp_path / "b.jpg"), str(tmp_path / "b.jpg"))] * 3
    shards = [Photo("shard.tar/../../e.jpg", ("shard.tar", 0, 1))]
    found = list(file_names([*inside, *others, *shards], given))
    assert found == ["x/1", "x/1.png", "X/1.gif", "b", "b.jpg", "b-2", "shard.tar/e"]


def test_a_head_in_a_folder_is_a_model_and_what_cannot_be_is_refused(run, models, photos, tmp_path):
    folder, made = models
    with (
        pytest.warns(UserWarning, match="GELU")
        if made["metres"].config.activation == "gelu"
        else pytest.MonkeyPatch.context()
    ):
        keras_vit.save_checkpoint(made["metres"], tmp_path / "head")
    code, *_ = run("depth", photos / "a.png", "--model", tmp_path / "head", "--out", tmp_path / "a", "--values", "npy")
    assert code == 0
    wanted = keras_vit.estimate_depth(made["metres"], photos / "a.png").values
    np.testing.assert_allclose(np.load(tmp_path / "a" / "depths" / "a.npy"), wanted, 1e-5)
    few, out = folder / "few.keras", ("--out", tmp_path / "new")
    for arguments, words in (
        (("segment", photos, "--model", "dinov2/S14", *out), "published weights of a name have none.*--encoder"),
        (("segment", photos, "--model", tmp_path / "none", *out), "or the file or folder of a head.*nothing is there"),
        (("segment", photos, "--model", folder / "metres.keras", *out), "a model of classes for each pixel"),
        (("depth", photos, "--model", few, *out), "a model of depths for each pixel"),
        (("segment", photos, "--model", few, "--encoder", "B/16", *out), "`--encoder` is for a head that is published"),
        (("segment", photos, "--model", few, "--stride", "30", *out), "`--stride` must be at most the window"),
        (("segment", photos, "--model", few, "--ratios", "1,0", *out), "`--ratios` must be above 0"),
        (("segment", photos / "broken.jpg", "--model", few, *out), "no photo could be read; the column status"),
    ):
        code, _, errors = run(*arguments)
        assert code == 1, arguments
        assert_one_line(errors, words)
