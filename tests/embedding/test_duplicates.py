"""Near duplicates: all pairs above a cosine and their groups, and the command with its table and page."""

import csv
import json
import re

import numpy as np
import pytest
from photos import make_photos

import keras_vit
from keras_vit.embedding import duplicates
from keras_vit.embedding.job import write_broken
from keras_vit.embedding.manifest import Manifest, read_manifest
from keras_vit.embedding.part_files import Part, read_part, write_part
from keras_vit.embedding.photo_lists import list_photos
from keras_vit.pages import formatting

WIDTH = 24


def planted(count=150):
    """Vectors whose rows 3, 70 and 140 are a chain, 8 and 100 a pair, and 20 to 29 the same; some have no direction."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(count, WIDTH)).astype("float32")
    vectors[[3, 70, 140]] = 0
    vectors[[3, 70, 140], 0], vectors[[3, 70, 140], 1] = np.cos([0, 0.3, 0.6]), np.sin([0, 0.3, 0.6])
    vectors[100] = vectors[8] * 5
    vectors[20:30] = vectors[20]
    vectors[50], vectors[51:53] = np.nan, 0
    return vectors


@pytest.mark.parametrize("side", [3, 32, 2048])
def test_pairs_and_groups_are_those_of_a_plain_computation(monkeypatch, side):
    monkeypatch.setattr(duplicates, "_SIDE", side)
    vectors = planted()
    wide = vectors.astype("float64")
    with np.errstate(invalid="ignore"):
        wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    cosines = np.float32(wide @ wide.T)
    for threshold in (0.3, 0.95):
        found = duplicates.near_duplicates(vectors, threshold)
        expected = set(zip(*np.nonzero(np.triu(cosines >= np.float32(threshold), 1)), strict=True))
        assert set(zip(found.first, found.second, strict=True)) == expected
        assert found.number == len(found.first) == len(expected)
        np.testing.assert_allclose(found.similarities, cosines[found.first, found.second], atol=1e-6)
        assert (np.diff(found.similarities) <= 0).all()
        assert duplicates.near_duplicates(vectors, float(found.similarities[-1])).number == found.number
    groups = [set(np.flatnonzero(found.groups == group)) for group in range(found.groups.max() + 1)]
    assert groups == [{3, 70, 140}, {8, 100}, set(range(20, 30))]
    assert cosines[3, 140] < 0.95  # a chain: the ends are no pair


def test_most_similar_pairs_are_kept_and_all_are_counted():
    """In blocks that are much smaller than the number of pairs; the groups are of all."""
    vectors = planted()
    vectors[60:] = vectors[20] + np.linspace(0, 0.5, 90)[:, None] * vectors[0]
    whole = duplicates.near_duplicates(vectors, 0.9)
    least = duplicates.near_duplicates(vectors, 0.9, most=100)
    assert least.number == whole.number > 1000
    for name in ("first", "second", "similarities"):
        np.testing.assert_array_equal(getattr(least, name), getattr(whole, name)[:100])
    np.testing.assert_array_equal(least.groups, whole.groups)


def test_progress_says_the_expected_end(monkeypatch):
    monkeypatch.setattr(formatting, "FIRST_LINE", 0)
    monkeypatch.setattr(duplicates, "_SIDE", 75)
    said = []
    duplicates.near_duplicates(planted(), say=said.append)
    assert len(said) == 1
    assert re.fullmatch(r"2 of 3 blocks compared, [\d.,]+ a second, 0:00:0\d left, until \d\d:\d\d", said[0])


@pytest.fixture
def job(tmp_path):
    """A finished job of 12 photos, of which two pairs are alike; one is broken, and names are odd."""
    photos = make_photos(tmp_path / "photos", per_class=4)
    (photos / "disc" / "0.jpg").rename(photos / "disc" / "=1+1,<b>.jpg")
    (photos / "disc" / "1.jpg").write_bytes(b"no photo")
    listed = list_photos(photos)
    names = [str(entry) for entry in listed.entries]
    vectors = np.random.default_rng(0).normal(size=(12, WIDTH)).astype("float32")
    alike = ("disc/=1+1,<b>", "tiles/2", "disc/2", "disc/3")
    odd, other, third, fourth = (names.index(f"{name}.jpg") for name in alike)
    vectors[other], vectors[fourth] = vectors[odd] * 2, vectors[third] + 0.1
    status = np.full(12, "ok", object)
    status[names.index("disc/1.jpg")] = "not an image"
    out = tmp_path / "vectors"
    out.mkdir()
    facts = {name: "0" * 64 for name in Manifest.__dataclass_fields__} | {"preprocessing": {}, "form": "npz"}
    facts |= dict.fromkeys(("file", "file_sha256", "before_projection", "precision", "weights", "shards"))
    facts |= {"photos": 12, "part": 5, "width": WIDTH, "threads": 1, "batch_size": 4}
    facts |= {"outputs": "features", "photos_sha256": listed.fingerprint()}
    manifest = Manifest(**facts | {"top": str(photos)})
    manifest.write(out)
    listed.write(out)
    for number in range(manifest.parts):
        rows = slice(manifest.rows(number).start, manifest.rows(number).stop)
        write_part(out, manifest, number, Part(np.array(names, object)[rows], status[rows], vectors[rows]))
    return out


def test_command_writes_a_table_and_a_page(job, tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, said, _ = run("duplicates", job, "--page", "seen")
    assert code == 0, said
    assert said[0].startswith("12 photos, 2 pairs with a cosine of at least 0.95, in 2 groups of 4 photos")
    rows = list(csv.reader((tmp_path / "duplicates.csv").read_text().splitlines()))
    assert rows[:2] == [
        ["photo", "other", "similarity", "group"],
        ["disc/=1+1,<b>.jpg", "tiles/2.jpg", "1.000000", "1"],
    ]
    assert rows[2][:2] == ["disc/2.jpg", "disc/3.jpg"]
    page = (tmp_path / "seen" / "duplicates.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 4
    assert "&lt;b&gt;" in page
    assert "<b>.jpg" not in page
    found = keras_vit.nearest_neighbors(job, k=1)
    names = found.photos[found.indices[:, 0]]
    assert names[found.photos == "tiles/2.jpg"] == ["disc/=1+1,<b>.jpg"]
    assert found.indices[found.photos == "disc/1.jpg"] == -1


@pytest.mark.parametrize(("has_list", "words"), [(True, "it has 12 photos, and the manifest"), (False, "another job")])
def test_manifest_of_more_photos_is_refused_before_memory_is_taken(job, has_list, words):
    facts = json.loads((job / "manifest.json").read_text())
    (job / "manifest.json").write_text(json.dumps(facts | {"photos": 10**11}))
    if not has_list:
        (job / "photos.jsonl").unlink()
    with pytest.raises(ValueError, match=words):
        keras_vit.nearest_neighbors(job)


def test_command_says_that_most_photos_are_in_a_group(job, tmp_path, run):
    for threshold, is_told in ((0.1, True), (0.9999, False)):
        code, said, _ = run("duplicates", job, "--out", tmp_path / "pairs.csv", "--threshold", threshold)
        assert (code, any("raise --threshold" in line for line in said)) == (0, is_told)
    assert "1 pair with a cosine of at least 0.9999, in 1 group of 2 photos" in said[0]


def test_formulas_in_the_table_of_broken_photos_are_text_to_a_spreadsheet(job):
    manifest = read_manifest(job)
    part = read_part(job, manifest, 0)
    part.photos[0], part.status[0] = "=cmd.jpg", "empty"
    write_part(job, manifest, 0, part)
    write_broken(job, manifest)
    assert "0,'=cmd.jpg,empty" in (job / "broken_photos.csv").read_text().splitlines()


def test_photo_that_is_gone_is_said_and_moved_ones_are_found(job, tmp_path, run):
    (tmp_path / "photos" / "tiles" / "2.jpg").unlink()
    (tmp_path / "photos").rename(tmp_path / "moved")
    out = tmp_path / "pairs.csv"
    words = ("--out", out, "--page", tmp_path, "--photos-in", tmp_path / "moved", "--threshold", 0.9999)
    for _ in range(2):  # over its own files
        code, said, _ = run("duplicates", job, *words)
        assert code == 0, said
    assert said[-1].startswith("1 of the photos")
    page = (tmp_path / "duplicates.html").read_text()
    assert (page.count("no such file"), page.count("data:image/jpeg")) == (1, 1)
    code, said, _ = run("duplicates", job, "--out", out, "--threshold", 0.9999, "--json")
    facts = json.loads(said[0])
    assert (code, facts["photos"], facts["pairs"], facts["groups"], facts["page"]) == (0, 12, 1, 1, None)


def test_command_refuses_in_words_and_loses_no_file_of_others(job, tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text("photo,mine\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "duplicates.html").write_text("mine")
    for words, told in (
        (("--out", "mine.csv"), "mine.csv"),
        (("--out", "no/such/duplicates.csv"), "--out"),
        (("--page", "mine"), "something else"),
        (("--out", "/proc/duplicates.csv"), "/proc/duplicates.csv"),
        (("--threshold", 0), "--threshold"),
        (("--engine", "faiss", "--threshold", 2), "--threshold"),
        (("--threshold", "nan"), "--threshold"),
        (("--page", "seen", "--photos-in", "no"), "--photos-in"),
    ):
        code, _, error = run("duplicates", job, *words)
        assert (code, told in str(error)) == (1, True), error
    assert (tmp_path / "mine.csv").read_text() == "photo,mine\n"
    assert (tmp_path / "mine" / "duplicates.html").read_text() == "mine"
    code, _, error = run("duplicates", tmp_path / "photos")
    assert (code, "of no job" in str(error), "ove it away" in str(error)) == (1, True, False)
    (job / "part-00001.npz").unlink()
    code, _, error = run("duplicates", job)
    assert (code, "part-00001.npz" in str(error), "missing" in str(error)) == (1, True, True)
    assert not (tmp_path / "duplicates.csv").exists()
