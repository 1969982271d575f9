"""`keras-vit inspect`: every file that it writes against the function, later photos, masks, and what it refuses."""

import csv
import json
import re

import numpy as np
import pytest
from conftest import assert_one_line
from embedding.test_inspection import flawed_photo, good_photo, make_encoder
from PIL import Image

import keras_vit
from keras_vit import dense
from keras_vit.cli.inspect_command import STEP


def save(pixels, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, good photos with a broken one and a copy, and photos with masks as MVTec AD has them."""
    folder = tmp_path_factory.mktemp("inspect")
    make_encoder().save(folder / "encoder.keras")
    for number in range(7):
        save(good_photo(number), folder / "good" / f"{number}.png")
    save(good_photo(6), folder / "good" / "copy.bmp")
    (folder / "good" / "short.jpg").write_bytes(b"\xff\xd8\xff\xe0nothing")
    for number in range(4):
        pixels, mask = flawed_photo(20 + number)
        save(pixels, folder / "photos" / "stamp" / f"{number}.png")
        save(mask, folder / "masks" / "stamp" / f"{number}_mask.png")
        save(good_photo(30 + number), folder / "photos" / "good" / f"{number}.png")
    save(np.zeros((48, 66), "uint8"), folder / "masks" / "good" / "0.png")
    save(good_photo(2), folder / "photos" / "seen.png")
    save(good_photo(3)[:5], folder / "photos" / "small.png")
    (folder / "photos" / "=broken.jpg").write_bytes(b"\xff\xd8\xff\xe0nothing")
    return folder


def table(file):
    with file.open(newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


@pytest.fixture(scope="module")
def options(folder):
    return ("--model", folder / "encoder.keras", "--short-side", "64")


def test_scores_maps_page_and_measures_are_those_of_the_function(run, folder, options, tmp_path):
    out = tmp_path / "out"
    arguments = ("inspect", folder / "good", folder / "photos", "--masks", folder / "masks", *options)
    code, lines, errors = run(*arguments, "--out", out, "--values", "both")
    assert code == 0, errors
    assert errors == [
        f"keras-vit: warning: 2 good photos not used: the column status of {out}/good.csv says why",
        "keras-vit: warning: 1 photo with the pixels of a good photo, whose scores say nothing and are not measured: "
        f"{folder / 'photos' / 'seen.png'}",
        f"keras-vit: warning: 2 photos without a score: the column status of {out}/scores.csv says why",
    ]
    given = [folder / "good" / f"{number}.png" for number in range(7)]
    inspector = keras_vit.Inspector.load(out)
    rows = {row["path"]: row for row in table(out / "scores.csv")}
    assert len(rows) == 11
    assert rows.pop(str(folder / "photos" / "=broken.jpg"))["status"] == "truncated JPEG"
    small = rows.pop(str(folder / "photos" / "small.png"))
    assert (small["status"], small["score"]) == ("5 x 66 pixels, smaller than a patch of 8", "")
    labels, scores, masks, maps = [], [], [], []
    for path, row in rows.items():
        if path.endswith("seen.png"):
            assert row["status"] == "ok: one of the good photos"
            continue
        wanted = inspector.inspect(path)
        assert row["status"] == "ok"
        assert float(row["score"]) == pytest.approx(wanted.score, abs=1e-6)
        assert (row["flawed"] == "yes") is wanted.is_flawed
        np.testing.assert_array_equal(np.load(out / row["npy"]), wanted.anomaly_map)
        with Image.open(out / row["png"]) as levels:
            assert (levels.mode, float(levels.info["step"])) == ("I;16", STEP)
            assert np.abs(np.asarray(levels) * STEP - wanted.anomaly_map).max() <= 0.501 * STEP
            maps.append(np.asarray(levels).astype("int64"))
        masks.append(dense.read_mask(row["mask"]) if row["mask"] else np.zeros((48, 66), int))
        labels.append(masks[-1].any())
        scores.append(float(row["score"]))
    assert sum(labels) == 4
    measures = json.loads((out / "measures.json").read_text())
    assert measures["image_auroc"] == pytest.approx(dense.auroc(labels, scores))
    assert measures["pixel_auroc"] == pytest.approx(dense.auroc(np.stack(masks), np.stack(maps)))
    assert measures["au_pro"] == pytest.approx(dense.au_pro(masks, maps))
    assert measures["au_pro"] > 0.7
    assert (measures["labelled_flawed"], measures["labelled_good"], measures["unread"]) == (4, 4, 2)
    assert f"AU-PRO       {measures['au_pro']:.4f}" in lines
    good = table(out / "good.csv")
    assert [row["path"] for row in good[:7]] == sorted(map(str, given))
    assert {row["path"]: row["status"] for row in good[7:]} == {
        str(folder / "good" / "copy.bmp"): f"the same pixels as {folder / 'good' / '6.png'}",
        str(folder / "good" / "short.jpg"): "truncated JPEG",
    }
    page = (out / "index.html").read_text()
    assert page.count("data:image/jpeg") == 2 * 9
    shown = [float(text) for text in re.findall(r"<figcaption><b>([\d.]+)</b>", page)]
    assert shown == sorted(shown, reverse=True)
    assert "=broken.jpg: truncated JPEG" in page
    captions = " ".join(page.split())
    assert captions.count('class="flawed">flawed, labelled flawed</span>') == 4
    assert captions.count(", labelled good</span>") == 4
    assert captions.count(", one of the good photos</span>") == 1

    # Later photos, by the folder alone.
    later = tmp_path / "later"
    code, lines, errors = run("inspect", out, folder / "photos" / "stamp", "--out", later, "--values", "none", "--json")
    assert (code, errors) == (0, [])
    facts = json.loads("\n".join(lines))
    assert (facts["photos"], facts["flawed"], "au_pro" in facts) == (4, 4, False)
    for row in table(later / "scores.csv"):
        assert row["score"] == rows[row["path"]]["score"]
    assert not list(later.rglob("*.png"))
    assert keras_vit.Inspector.load(later).threshold == inspector.threshold
    code, _, errors = run("inspect", out, folder / "photos", "--out", tmp_path / "x", "--seed", "3")
    assert code == 1
    assert_one_line(errors, "an inspector that is there has its options.*`--seed`")
    code, _, errors = run(*arguments, "--out", out)
    assert code == 1
    assert_one_line(errors, "`--out` must be a new or empty folder")


def test_measures_need_both_kinds(run, folder, options, tmp_path):
    save(np.zeros((48, 66), "uint8"), tmp_path / "masks" / "1.png")
    arguments = (folder / "good", folder / "photos" / "good", "--masks", tmp_path / "masks", *options)
    code, lines, _ = run("inspect", *arguments, "--out", tmp_path / "out")
    assert code == 0
    assert "0 flawed and 4 good by the masks: AUROC and PRO need both" in lines
    assert json.loads((tmp_path / "out" / "measures.json").read_text())["image_auroc"] is None


def test_what_cannot_be_is_refused_before_anything_is_written(run, folder, options, tmp_path):
    good, photos, out = folder / "good", folder / "photos" / "stamp", tmp_path / "out"
    wrong = tmp_path / "wrong"
    save(np.zeros((48, 65), "uint8"), wrong / "size" / "0.png")
    save(np.zeros((48, 66), "uint8"), wrong / "unpaired" / "9.png")
    save(np.zeros((48, 66), "uint8"), wrong / "twice" / "0.png")
    save(np.zeros((48, 66), "uint8"), wrong / "twice" / "0_mask.png")
    save(np.random.default_rng(0).integers(0, 9, (48, 66, 3), "uint8"), wrong / "colours" / "0.png")
    save(np.zeros((48, 66), "uint8"), wrong / "jpeg" / "0.jpg")
    (wrong / "empty").mkdir()
    save(good_photo(1), wrong / "one" / "1.png")
    (wrong / "one" / "2.png").write_bytes(b"none")
    keras_vit.build_resnet(keras_vit.ResNetConfig((1, 1, 1, 1)), False).save(wrong / "resnet.keras")
    masked = (good, photos, *options, "--masks")
    for arguments, words in (
        ((*masked, wrong / "size"), r"0\.png: 48 x 65 pixels for a photo of 48 x 66"),
        ((*masked, wrong / "unpaired"), r"9\.png: no photo has its stem"),
        ((*masked, wrong / "twice"), r"0_mask\.png: several photos or masks have its stem"),
        ((*masked, wrong / "colours"), r"0\.png with \d+ colours"),
        ((*masked, wrong / "jpeg"), "kept without loss"),
        ((*masked, wrong / "empty"), "without a mask"),
        ((*masked, wrong / "none"), "`--masks` must be a folder"),
        ((good, photos), "`--model` must be given with good photos"),
        ((wrong / "empty", photos, *options), "without a photo"),
        ((wrong / "one", photos, *options), r"1 photo that can be used; not .*2\.png: "),
        ((good, tmp_path / "none", *options), "the photos must exist"),
        ((good, photos, "--model", wrong / "resnet.keras"), "one Vision Transformer"),
        ((good, photos, "--model", "dinov2/S15"), "."),
        ((good, photos, *options, "--coreset", "1.5"), "`--coreset` must be an int"),
        ((good, photos, *options, "--false-positive-rate", "1"), r"`--false-positive-rate` must be in \[0, 1\)"),
    ):
        code, _, errors = run("inspect", *arguments, "--out", out)
        assert code == 1, arguments
        assert_one_line(errors, words)
        assert not out.exists()
