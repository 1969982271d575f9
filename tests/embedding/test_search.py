"""Photos found by words: the nearest vectors of a job, the command and its page; and what cannot be compared."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import GOLDEN, assert_one_line
from photos import make_photos

import keras_vit
from keras_vit.checks import ArgumentError
from keras_vit.weights.checkpoint import read_checkpoint

TOWERS = GOLDEN / "text" / "towers"
pytestmark = pytest.mark.filterwarnings("ignore:.*(scaled|range|preprocessing):UserWarning")


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Jobs by tower and outputs, as `keras-vit embed` writes them, of 8 photos."""
    from keras_vit.embedding import job
    from keras_vit.embedding.pool import Pool

    def here_or_pool(*arguments):  # the model is converted here, where TensorFlow has started
        return Pool(*arguments) if len(arguments) > 2 else ThreadPoolExecutor(1)

    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(job, "Pool", here_or_pool)
    place = tmp_path_factory.mktemp("search")
    make_photos(place / "photos", 4)
    made = {}
    every = (("hf_clip", "logits"), ("hf_clip", "features"), ("hf_clip", "scores"), ("hf_siglip", "features"))
    for tower, outputs in every:
        lines = []
        made[tower, outputs] = place / f"{tower}_{outputs}"
        options = job.JobOptions(outputs=outputs, engine="onnxruntime", form="npz", processes=1)
        job.embed(place / "photos", str(TOWERS / tower), made[tower, outputs], options, say=lines.append)
        is_before = (tower, outputs) == ("hf_clip", "features")
        assert any("needs --outputs logits" in line for line in lines) is is_before
        assert json.loads((made[tower, outputs] / "manifest.json").read_text())["before_projection"] is is_before
    monkeypatch.undo()
    return made


def test_output_that_a_tower_does_not_have_is_refused_before_it_is_opened(vectors, tmp_path, monkeypatch):
    from keras_vit.embedding import job

    photos, tower = vectors["hf_clip", "logits"].parent / "photos", str(TOWERS / "hf_siglip")
    monkeypatch.setattr(job, "Pool", lambda *_: pytest.fail("opened"))
    for outputs in ("logits", "scores"):
        with pytest.raises(ArgumentError, match=rf"the model has, features(?s:.*)outputs='{outputs}'.*no projection"):
            job.embed(photos, tower, tmp_path / outputs, job.JobOptions(outputs=outputs), say=str)


def test_nearest_photos_of_a_text_come_first(vectors, run, tmp_path):
    for tower, outputs in (("hf_clip", "logits"), ("hf_siglip", "features")):
        folder = vectors[tower, outputs]
        texts = ["a red car", "a cat"]
        found = keras_vit.search_photos(folder, texts, TOWERS / tower, k=3)
        words = keras_vit.build_text(weights=TOWERS / tower).embed(texts)
        expected = keras_vit.nearest_neighbors(folder, words, 3)
        np.testing.assert_array_equal(found.indices, expected.indices)
        code, lines, error = run(
            "search", folder, *texts, "--model", TOWERS / tower, "-k", 3, "--json", "--page", tmp_path / "page"
        )
        assert (code, error) == (0, [])
        hits = json.loads(lines[-1])["hits"]
        assert [hit["photo"] for hit in hits] == list(map(str, found.photos[found.indices.ravel()]))
        page = (tmp_path / "page" / "search.html").read_text()
        assert page.count("data:image/jpeg") == 6
        assert "a red car" in page


def test_what_cannot_be_compared_is_refused(vectors, run, tmp_path):
    clip, siglip = TOWERS / "hf_clip", TOWERS / "hf_siglip"
    with pytest.raises(ArgumentError, match="`--outputs logits`"):
        keras_vit.search_photos(vectors["hf_clip", "features"], "a cat", clip)
    with pytest.raises(ArgumentError, match="`--outputs logits`"):
        keras_vit.search_photos(vectors["hf_clip", "scores"], "a cat", clip)
    words = keras_vit.build_text(weights=clip).embed(["a cat"])
    same_width = np.repeat(words, 2, axis=1)[:, :32]  # as the features of PE L/14 have that of its texts
    with pytest.raises(ArgumentError, match="not with the features before it"):
        keras_vit.nearest_neighbors(vectors["hf_clip", "features"], queries=same_width, k=1)
    assert (
        keras_vit.nearest_neighbors(vectors["hf_clip", "features"], queries=np.asarray(same_width), k=1).photos
        is not None
    )
    assert read_checkpoint(TOWERS / "pe_core" / "PE-Core-mini.pt", compares_checksums=False).embeds()
    with pytest.raises(ArgumentError, match="same model"):
        keras_vit.search_photos(vectors["hf_clip", "logits"], "a cat", siglip)
    text = keras_vit.build_text(weights=siglip)
    for texts in (["a cat", " "], []):
        with pytest.raises(ArgumentError, match="none of them empty"):
            keras_vit.search_photos(vectors, texts, "clip/B16")
    for k, kind in (("3", TypeError), (0, ArgumentError)):
        with pytest.raises(kind, match="`k` must be"):
            keras_vit.search_photos(vectors, "a cat", "clip/B16", k)
    with pytest.raises(ArgumentError, match="`text` must be the text tower of `model`"):
        keras_vit.search_photos(vectors["hf_clip", "logits"], "a cat", clip, text=text)
    changed = keras_vit.build_text(weights=clip, layer_norm_epsilon=1e-3)  # the same weights
    with pytest.raises(ArgumentError, match="`text` must be the text tower of `model`"):
        keras_vit.search_photos(vectors["hf_clip", "logits"], "a cat", clip, text=changed)
    found = keras_vit.search_photos(vectors["hf_siglip", "features"], "a cat", siglip, 3, text=text)
    assert found.indices.shape == (1, 3)
    code, _, error = run("search", tmp_path, "a cat", "--model", clip)
    assert code == 1
    assert_one_line(error, "must be that of a job")


def test_photos_are_classified_by_names(run, tmp_path):
    """On the terminal and as a table, with the probabilities of the software's loss."""
    make_photos(tmp_path / "photos", 2)
    photo = next((tmp_path / "photos").rglob("*.png"), None) or next((tmp_path / "photos").rglob("*.*"))
    shutil.copy(photo, tmp_path / f"one{photo.suffix}")
    for tower, total in (("hf_clip", 1), ("hf_siglip", None)):
        options = ("--model", TOWERS / tower, "--classes", "cat, red car", "--json")
        code, lines, error = run("predict", tmp_path / f"one{photo.suffix}", *options)
        assert (code, error) == (0, [])
        (answer,) = json.loads("".join(lines))
        names = {each["class"] if "class" in each else each["label"] for each in answer["predictions"]}
        assert names == {"cat", "red car"}
        values = [each["probability"] for each in answer["predictions"]]
        assert total is None or sum(values) == pytest.approx(total, abs=1e-4)
    long = "cat " * 30
    options = ("--model", TOWERS / "hf_clip", "--classes", f"{long}cat,{long}dog")
    code, _, error = run("predict", tmp_path / f"one{photo.suffix}", *options)
    assert code == 1
    assert_one_line(error, "must differ in the first")
    for options in (
        ("--model", TOWERS / "hf_clip", "--templates", "imagenet"),
        ("--model", "B/16", "--classes", "a,b"),
    ):
        code, _, error = run("predict", photo, *options)
        assert code == 1
        assert_one_line(error, "(`--templates` goes with|must have a text tower)")
