"""The job of `keras-vit embed`: every row once, and the same bytes whoever was killed; and what it refuses."""

import dataclasses
import errno
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, randomise, tiny_config
from killed_jobs import kill_and_go_on, parts_of, start
from photos import BAD, add_odd_files, make_photos
from PIL import Image

import keras_vit
from keras_vit.embedding import job as embed_job
from keras_vit.embedding import part_files, pool
from keras_vit.embedding.embedder import read_photo_bytes
from keras_vit.embedding.job import BROKEN, cluster_shard
from keras_vit.embedding.manifest import read_manifest
from keras_vit.embedding.part_files import Part, part_error, read_part, read_vectors, write_part
from keras_vit.embedding.photo_lists import PhotoList, list_photos, photo_key, photo_location, read_list
from keras_vit.exporting.engines.accelerate import write_engine
from keras_vit.files import is_partial_file, lock_dir
from keras_vit.images.pillow_formats import PillowError

# TensorFlow counts the tracing of every test's own function as one that is traced again and again.
pytestmark = pytest.mark.filterwarnings("ignore:.*triggered tf.function retracing")
SMALL = ("--part", 4, "--batch-size", 3)  # so that some photos are many parts, each with a batch that is not full


def small_model():
    return randomise(keras_vit.build(tiny_config(num_layers=1), input_shape=(20, 28, 3), classes=7))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A file of ONNX that takes prepared images, which needs no Keras."""
    path = tmp_path_factory.mktemp("engine") / "engine.onnx"
    write_engine(small_model(), path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """60 photos, two of which are broken; most are one large photo by several names, which takes a while."""
    folder = add_odd_files(make_photos(tmp_path_factory.mktemp("embed") / "photos", per_class=4))
    large = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype="uint8")
    Image.fromarray(large).resize((1000, 750)).save(folder / "large.jpg", quality=90)
    for number in range(42):
        os.link(folder / "large.jpg", folder / f"large {number}.jpg")
    return folder


@pytest.fixture(scope="module")
def undisturbed(photos, engine, tmp_path_factory):
    """A finished job, by one process."""
    out = tmp_path_factory.mktemp("undisturbed") / "vectors"
    done = start("embed", photos, "--model", engine, "--out", out, *SMALL, "--processes", 1)
    said = done.communicate()[0]
    assert done.returncode == 0, said
    return out


@pytest.fixture
def job(undisturbed, tmp_path):
    """A copy of the finished job, to be damaged."""
    return shutil.copytree(undisturbed, tmp_path / "vectors")


def test_killed_three_times_every_row_is_there_once_with_the_same_bytes(photos, engine, undisturbed, tmp_path):
    command = ("embed", photos, "--model", engine, *SMALL, "--processes", 2)
    kill_and_go_on(command, tmp_path / "vectors", ("worker", "job", "interrupt"), random.Random(0))
    assert parts_of(tmp_path / "vectors") == parts_of(undisturbed)
    hidden = [path for path in (tmp_path / "vectors").iterdir() if path.name.startswith(".")]
    assert all(map(is_partial_file, hidden))  # of a writer killed within a part: they are swept an hour later


def test_shards_write_the_same_bytes_and_the_last_one_lists_broken_photos(photos, engine, undisturbed, tmp_path, run):
    out = tmp_path / "vectors"
    for index in (1, 0):
        assert not (out / BROKEN).exists()
        words = ("--shard", f"{index}/2", "--processes", 1)
        code, said, _ = run("embed", photos, "--model", engine, "--out", out, *SMALL, *words)
        assert code == 0, said
    assert parts_of(out) == parts_of(undisturbed)
    assert (out / BROKEN).read_text() == (undisturbed / BROKEN).read_text()
    assert "other shards are not done" not in said


def test_rows_are_those_of_the_embedder_in_the_order_of_names(photos, engine, undisturbed):
    parts = list(read_vectors(undisturbed))
    names = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.*"))
    assert [name for part in parts for name in part.photos] == names
    found = keras_vit.Embedder(engine, batch_size=3, threads=1)([photos / name for name in names])
    np.testing.assert_array_equal(np.concatenate([part.vectors for part in parts]), found["features"])
    assert np.concatenate([part.status for part in parts]).tolist() == found["status"].tolist()
    listed = (undisturbed / BROKEN).read_text().splitlines()
    rows = [f"{names.index(name)},{name},{reason}" for name, reason in BAD.items()]
    assert listed == ["row,photo,reason", *sorted(rows, key=lambda row: int(row.split(",")[0]))]


def test_check_counts_rows_and_names_what_is_missing_damaged_or_of_other_rows(job, run):
    place, manifest = job / "part-00000.parquet", read_manifest(job)
    known, whole = pq.read_schema(place).metadata[b"keras_vit_part"].decode(), read_part(job, manifest, 0)
    of_old = json.dumps({"job": manifest.fingerprint, "part": 0})  # of 0.6.0, without a digest
    swapped, is_first = [1, 0, 2, 3], np.arange(4)[:, None] == 0
    for edited, words in (
        (whole, None),
        (Part(*(column[swapped] for column in whole)), "whose photos are not those of the job's list"),
        (Part(*(column[[0, 0, 2, 3]] for column in whole)), "whose photos are not those of the job's list"),
        (whole._replace(vectors=np.where(is_first, np.float32("nan"), whole.vectors)), "whose status says ok where"),
        (whole._replace(vectors=whole.vectors[swapped]), None),
    ):
        of_new = edited is not whole and "which has other rows than the job wrote"
        for about, reason in ((known, of_new), (of_old, words)):
            part_files._write_parquet(place, edited, "features", about)
            code, _, errors = run("embed", "--out", job, "--check")
            assert code == bool(reason)
            assert not reason or f"part-00000.parquet, rows 0 to 3, {reason}" in errors[-1]
    shutil.copy(job / "part-00001.parquet", place)
    code, _, errors = run("embed", "--out", job, "--check")
    assert (code, "part-00000.parquet, rows 0 to 3, which says that it is part 1" in errors[-1]) == (1, True)
    write_part(job, manifest, 0, whole)
    code, printed, _ = run("embed", "--out", job, "--check")
    assert (code, "60 rows in 15 parts" in printed[0], "2 of them of broken photos" in printed[0]) == (0, True, True)
    place = job / "part-00003.parquet"
    data = bytearray(place.read_bytes())
    data[300] ^= 1
    place.write_bytes(data)
    (job / "part-00010.parquet").unlink()
    code, _, errors = run("embed", "--out", job, "--check")
    assert code == 1
    assert "52 of 60 rows are there; 2 of 15 parts are" in errors[-1]
    assert "part-00003.parquet, rows 12 to 15, which is damaged" in errors[-1]
    assert "part-00010.parquet, rows 40 to 43, which is missing. Move" in errors[-1]


def test_embed_again_refuses_a_part_that_was_damaged_inside_since(photos, engine, job, run):
    place = job / "part-00003.parquet"
    data = bytearray(place.read_bytes())
    data[300] ^= 1
    place.write_bytes(data)
    for missing in (False, True):  # the last part is computed, and the other one is reported still
        (job / "part-00014.parquet").unlink(missing_ok=missing)
        code, said, errors = run("embed", photos, "--model", engine, "--out", job, "--processes", 1)
        assert (code, any("done" in line for line in said)) == (1, False)
        assert "56 of 60 rows are there; 1 of 15 parts is missing or damaged" in errors[-1]
        assert "part-00003.parquet, rows 12 to 15, which is damaged" in errors[-1]
    assert (job / "part-00014.parquet").exists()


def test_parts_that_are_pipes_or_inflate_and_numbers_of_a_manifest_are_refused_at_once(photos, engine, job, run):
    pipe, packed = job / "part-00003.parquet", job / "part-00010.parquet"
    pq.write_table(pq.read_table(packed), packed, compression="zstd")
    pipe.unlink()
    os.mkfifo(pipe)
    (job / "part-00005.parquet").unlink()
    (job / "part-00005.parquet").symlink_to("gone")
    code, _, errors = run("embed", "--out", job, "--check")
    assert "part-00005.parquet, rows 20 to 23, which is a link to nothing" in errors[-1]
    assert (code, "part-00003.parquet, rows 12 to 15, which is a pipe" in errors[-1]) == (1, True)
    assert "part-00010.parquet, rows 40 to 43, which is compressed" in errors[-1]
    code, _, errors = run("embed", photos, "--model", engine, "--out", job)
    assert (code, "which is a pipe" in errors[-1]) == (1, True)
    assert "part-00005.parquet, rows 20 to 23, which is a link to nothing. Move" in errors[-1]
    with pytest.raises(ValueError, match="rows 12 to 15, which is a pipe"):
        list(read_vectors(job))
    manifest = dataclasses.replace(read_manifest(job), form="npz")
    with zipfile.ZipFile(job / manifest.name(0), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("features.npy", bytes(10**6))
    with pytest.raises(ValueError, match="rows 0 to 3, which is compressed"):
        read_part(job, manifest, 0)
    facts = json.loads((job / "manifest.json").read_text())
    wrong = [{"photos": 10**12}, {"photos": -1}, {"photos": True}, {"width": "4"}, {"form": "../x"}, {"form": [1]}]
    wrong += [{name: 5 if name != "preprocessing" else []} for name in facts if isinstance(facts[name], str | dict)]
    wrong += [{name: [0]} for name in facts] + [{"file": "../x"}, {"outputs": "x"}, {"top": "a\0b"}]
    for change in (change for change in wrong if "keras_vit_embedding" not in change):
        (job / "manifest.json").write_text(json.dumps(facts | change))
        with pytest.raises(ValueError, match=f"manifest as it was written.*\\n.*`{next(iter(change))}` must be"):
            read_manifest(job)
    (job / "manifest.json").write_text(json.dumps({name: facts[name] for name in facts if name != "photos"}))
    with pytest.raises(ValueError, match=r"manifest as it was written.*\n.*missing 1 required.*'photos'"):
        read_manifest(job)
    (job / "manifest.json").write_text(json.dumps(facts | {"photos": 61}))
    code, _, errors = run("embed", "--out", job, "--check")
    assert (code, "photos.jsonl, which differs from the manifest" in errors[-1]) == (1, True)
    head = (job / "photos.jsonl").read_text().splitlines()[0]
    (job / "photos.jsonl").write_text(f"{head}\n{'[' * 10**5}\n")
    with pytest.raises(ValueError, match=r"list of photos must be as the job wrote it(?s:.*)recursion"):
        read_list(job, photos)


def test_finished_job_sweeps_mends_its_list_and_names_copies_of_parts(photos, engine, job, run, monkeypatch):
    monkeypatch.setattr("keras_vit.embedding.job.write_broken", lambda folder, manifest: [])  # which sweeps too
    left = job / ".keras_vit-abcd_123.part"
    left.touch()
    os.utime(left, (0, 0))
    listed, copy = (job / "photos.jsonl").read_text(), "part-00001 (1).parquet"
    (job / "photos.jsonl").write_text("".join(listed.splitlines(keepends=True)[:-1]))
    shutil.copy(job / "part-00001.parquet", job / copy)
    code, _, errors = run("embed", "--out", job, "--check")
    assert (code, "from the manifest. `keras-vit embed` writes it again, if" in errors[-1]) == (1, True)
    code, printed, errors = run("embed", photos, "--model", engine, "--out", job)
    assert (code, left.exists(), (job / "photos.jsonl").read_text()) == (0, False, listed), errors
    assert [line for line in printed if "written again" in line]
    assert [line for line in printed if line.startswith(f"{copy} in ")]
    code, _, errors = run("embed", "--out", job, "--check")
    assert (code, f"{copy} in" in errors[-1]) == (1, True)


def test_all_parts_that_are_no_good_are_named_up_to_ten(photos, engine, job, run):
    for path in sorted(job.glob("part-*"))[:12]:
        path.write_bytes(b"mine")
    for words in (("--check",), (photos, "--model", engine)):
        code, _, errors = run("embed", *words, "--out", job)
        assert (code, "12 of 15 parts are" in errors[-1], "and 2 more" in errors[-1]) == (1, True, True)
        assert all(f"part-{number:05d}" in errors[-1] for number in range(10))
        assert "part-00010" not in errors[-1]


def test_npz_holds_the_same_rows_without_pyarrow_and_the_same_bytes_each_time(undisturbed, tmp_path):
    manifest = read_manifest(undisturbed)
    part, as_npz = read_part(undisturbed, manifest, 3), dataclasses.replace(manifest, form="npz")
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        write_part(folder, as_npz, 3, part)
    assert parts_of(tmp_path / "one") == parts_of(tmp_path / "two")
    for ours, theirs in zip(read_part(folder, as_npz, 3), part, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert part_error(folder, as_npz, 3) is None
    data = bytearray((folder / "part-00003.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "part-00003.npz").write_bytes(data)
    with pytest.raises(ValueError, match=r"part-00003\.npz, rows 12 to 15, which is damaged"):
        read_part(folder, as_npz, 3)


def test_a_photo_that_vanished_has_a_row_that_says_so_and_a_new_one_is_refused(photos, engine, job, tmp_path, run):
    moved = shutil.copytree(photos, tmp_path / "photos")
    (moved / "large 9.jpg").unlink()
    first = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.*")).index("large 9.jpg")
    (job / f"part-{first // 4:05d}.parquet").unlink()
    code, said, _ = run("embed", moved, "--model", engine, "--out", job)
    assert (code, "56 of 60 photos were there already" in said) == (0, True)
    assert any(
        f"1 photo has gone since the job began, as large 9.jpg of row {first}; its row says so" in line for line in said
    )
    assert f"{first},large 9.jpg,no such file" in (job / BROKEN).read_text()
    (moved / "large 8.jpg").unlink()  # whose row was computed before
    code, said, _ = run("embed", moved, "--model", engine, "--out", job)
    assert (code, any("2 photos have gone" in line and "; computed rows stay" in line for line in said)) == (0, True)
    shutil.copy(moved / "large.jpg", moved / "new.jpg")
    code, _, errors = run("embed", moved, "--model", engine, "--out", job)
    assert (code, "1 photo not in" in errors[-1], "'new.jpg'" in errors[-1]) == (1, True, True)


def test_a_job_goes_on_only_if_at_least_half_of_its_photos_are_there(photos, engine, job, tmp_path, run):
    """As of a disk that is not mounted, in a folder and in a table of which two rows are gone from the start."""
    moved = shutil.copytree(photos, tmp_path / "photos")
    for path in moved.glob("large*.jpg"):
        path.unlink()
    words = ("embed", moved, "--model", engine, "--out", job, "--processes", 1)
    assert run(*words)[0] == 0  # nothing is to be read
    (job / "part-00014.parquet").unlink()
    assert run(*words)[0] == 0  # what is to be read is there
    (job / "part-00008.parquet").unlink()
    code, _, errors = run(*words)
    assert (code, "43 of 60 that were checked are gone" in errors[-1]) == (1, True)
    assert not (job / "part-00008.parquet").exists()
    for there, expected in ((2, 0), (1, 1)):
        names = [*["disc/0.jpg", "disc/1.jpg"][:there], "no/1.jpg", "no/2.jpg"]
        (moved / "some.csv").write_text("\n".join(["path", *names, ""]))
        out = tmp_path / f"of {there}"
        code, _, errors = run("embed", moved / "some.csv", "--model", engine, "--out", out, *SMALL)
        assert (code, (out / "manifest.json").exists()) == (expected, not expected)
    assert "as no/1.jpg" in errors[-1]


def test_a_job_goes_on_only_with_all_shards_that_are_to_be_read(photos, engine, tmp_path, run):
    (shards := tmp_path / "shards").mkdir()
    for shard in ("a", "b"):
        with tarfile.open(shards / f"{shard}.tar", "w") as archive:
            for number in range(4):
                archive.add(photos / f"large {number}.jpg", f"{number}.jpg")
    out = tmp_path / "vectors"
    words = ("embed", shards, "--model", engine, "--out", out, *SMALL, "--processes", 1)
    assert run(*words)[0] == 0
    facts = json.loads((out / "manifest.json").read_text())
    os.utime(shards / "b.tar", ns=(0, 0))
    for command in (words, ("embed", "--out", out, "--check")):
        assert any(
            "1 shard of another size or time than when" in line and "as b.tar" in line for line in run(*command)[1]
        )
    (out / "manifest.json").write_text(json.dumps(facts | {"shards": None}))  # of an earlier version
    assert not any("another size or time" in line for line in run(*words)[1])
    (shards / "a.tar").unlink()
    (out / "part-00001.parquet").unlink()
    assert run(*words)[0] == 0  # a.tar is not needed
    (out / "part-00000.parquet").unlink()
    code, _, errors = run(*words)
    assert (code, "without a.tar. Restore what is gone" in errors[-1]) == (1, True)
    assert not (out / "part-00000.parquet").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("--outputs", "logits"), "--outputs logits, and features in the manifest"),
        (("--part", 5), "--part 5, and 4 in the manifest"),
        (("--threads", 2), "--threads 2, and 1 in the manifest"),
        (("--model", "other.onnx"), "`--model` 'other.onnx', which is another"),
    ],
)
def test_a_job_goes_on_with_what_it_was_begun_with(photos, engine, job, tmp_path, monkeypatch, run, change, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.onnx").write_bytes(engine.read_bytes() + b" ")
    before = parts_of(job)
    code, _, errors = run("embed", photos, "--model", engine, "--out", job, *change)
    assert code == 1
    assert words.replace("`--model` ", "") in errors[-1].replace("model=", "").replace("--model ", "")
    assert parts_of(job) == before


def test_files_of_others_are_never_replaced(photos, engine, job, tmp_path, run):
    words = ("embed", photos, "--model", engine, "--out")
    for name, content in (("manifest.json", "{}"), ("photos.jsonl", "mine"), ("part-00000.parquet", "mine")):
        place = (job if name.startswith("part") else tmp_path / name) / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(content)
        code, _, errors = run(*words, place.parent)
        assert (code, name in errors[-1], "ove it away" in errors[-1]) == (1, True, True)
        assert place.read_text() == content
    assert "rows 0 to 3" in errors[-1]
    code, _, errors = run(*words, photos)
    assert (code, "a folder of its own" in errors[-1]) == (1, True)


def test_every_photo_has_a_row_also_in_linked_folders_and_of_kinds_that_are_not_read(
    engine, tmp_path, monkeypatch, run
):
    photos = make_photos(tmp_path / "photos", per_class=1)
    make_photos(tmp_path / "disk", per_class=1, seed=1)
    (photos / "y2023").symlink_to(tmp_path / "disk")
    (photos / "again").symlink_to(photos / "disc")
    (photos / "y2024").symlink_to(tmp_path / "not mounted")
    for suffix in ("gif", "tif"):
        Image.new("RGB", (20, 28)).save(photos / f"a.{suffix}", "TIFF" if suffix == "tif" else "GIF")
    (photos / "a.cr2").write_bytes((photos / "a.tif").read_bytes())
    out, words = tmp_path / "vectors", ("--model", engine, "--processes", 1)
    code, said, _ = run("embed", photos, "--out", out, *words)
    assert (code, said[0]) == (
        0,
        f"1 link not followed, so that no photo counts twice: {photos}/again, which is {photos}/disc",
    )
    assert any("4 of them of broken photos (1 CR2, 1 GIF, 1 TIFF, 1 a link to nothing)" in line for line in said), said
    (part,) = read_vectors(out)
    assert [*part.photos] == sorted([*part.photos])
    assert {name for name in part.photos if name.startswith("y")} == {
        *(f"y2023/{kind}/0.jpg" for kind in ("disc", "stripes", "tiles")),
        "y2024",
    }
    assert len(part.photos) == 10
    old = [name for name in part.photos if not name.startswith("a.")]  # what 0.6 listed
    monkeypatch.setattr("keras_vit.embedding.job.list_photos", lambda what: list_photos(what)._replace(entries=old))
    assert run("embed", photos, "--out", tmp_path / "old", *words)[0] == 0
    monkeypatch.undo()
    code, said, _ = run("embed", photos, "--out", tmp_path / "old", *words)
    assert (code, "3 files of kinds that are not read, as GIF, are not in the list of this job" in said) == (0, True)
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path=".": scandir(f"{path}/gone" if "tiles" in str(path) else path))
    code, _, errors = run("embed", photos, "--out", tmp_path / "third", *words)
    assert (code, "photos/tiles, a folder that cannot be listed" in errors[-1]) == (1, True)


@pytest.mark.parametrize(("whole", "code"), [(0, 1), (1, 0)])
def test_a_job_without_a_photo_that_can_be_read_fails_as_does_its_check(engine, tmp_path, run, whole, code):
    photos, out = make_photos(tmp_path / "photos", per_class=1), tmp_path / "vectors"
    for photo in sorted(photos.rglob("*.jpg"))[whole:]:
        photo.write_bytes(b"no photo")
    for words in ((photos, "--model", engine, "--processes", 1), (photos, "--model", engine), ("--check",)):
        found, said, errors = run("embed", *words, "--out", out)
        assert (found, len(errors)) == (code, code), errors
        assert f"{3 - whole} of them of broken photos" in said[-1 - (code == 0 and "--check" not in words)]
        assert not code or f"no photo could be read; {out / BROKEN} says why" in errors[-1]


def test_what_cannot_be_embedded_is_reported(engine, tmp_path, run, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "table.csv").write_text("file\na.jpg\n")
    (tmp_path / "one.csv").write_text(f"path\n{engine}\n")
    (tmp_path / "twice.csv").write_text("path\na.jpg\na.jpg\n")
    out = tmp_path / "out"
    for photos, words in (("empty", "without a photo"), ("no", "nothing is"), ("table.csv", "column path")):
        code, _, errors = run("embed", tmp_path / photos, "--model", engine, "--out", out)
        assert (code, words in errors[-1]) == (1, True), errors
    assert "'a.jpg' twice" in run("embed", tmp_path / "twice.csv", "--model", engine, "--out", out)[2][-1]
    (tmp_path / "twice.csv").write_text(f"path\nx/../a.jpg\n{tmp_path / 'a.jpg'}\n")
    assert (
        "a.jpg' and 'x/../a.jpg', which are one photo"
        in run("embed", tmp_path / "twice.csv", "--model", engine, "--out", out)[2][-1]
    )
    (tmp_path / "link").symlink_to("gone")
    os.mkfifo(tmp_path / "pipe.csv")
    assert "`--out` must be a folder" in run("embed", photos, "--model", engine, "--out", tmp_path / "link")[2][-1]
    assert "a pipe" in run("embed", tmp_path / "pipe.csv", "--model", engine, "--out", out)[2][-1]
    assert "`--model` must be given" in run("embed", tmp_path, "--out", out)[2][-1]
    (out / "manifest.json").unlink(missing_ok=True)
    for folder, what in ((out, "without a manifest.json, so of no job"), (tmp_path / "nothing", "where nothing is")):
        said = run("embed", "--out", folder, "--check")[2][-1]
        assert (what in said, "ove it away" in said) == (True, False)
    monkeypatch.setattr("keras_vit.embedding.job.list_photos", None)  # a walk of minutes, which comes later
    for words, told in (
        (("--model", engine, "--engine", "openvino"), "its own software, onnxruntime"),
        (("--model", "no.onnx"), "`--model` must be there"),
    ):
        assert told in run("embed", tmp_path, "--out", out, *words)[2][-1]
    for name in (".keras", ".onnx", ".xml", "checkpoint", "dinov2/S14"):
        assert name in run("embed", tmp_path / "one.csv", "--model", "nothere", "--out", out)[2][-1]


def test_tables_and_shards_are_lists_of_the_same_photos_as_folders(photos, tmp_path):
    names = ["disc/0.jpg", "tiles/1.jpg", "disc/short.jpg"]
    (tmp_path / "some.csv").write_text("\n".join(["path,label", *(f"{photos / name},x" for name in names), ""]))
    (tmp_path / "shards").mkdir()
    with tarfile.open(tmp_path / "shards" / "a.tar", "w") as archive:
        for name in names:
            archive.add(photos / name, name)
    for given, top in ((tmp_path / "some.csv", f"{photos}/"), (tmp_path / "shards", "a.tar:")):
        listed = list_photos(given)
        assert [photo_key(entry) for entry in listed.entries] == [f"{top}{name}" for name in sorted(names)]
        listed.write(tmp_path)
        assert read_list(tmp_path, listed.top)._replace(states=listed.states) == listed
        read = [read_photo_bytes(photo_location(listed.top, entry, listed.states)) for entry in listed.entries]
        assert read == [(photos / name).read_bytes() for name in sorted(names)]
    os.utime(tmp_path / "shards" / "a.tar", ns=(0, 0))
    with pytest.raises(PillowError, match="in a shard that has changed"):
        read_photo_bytes(photo_location(listed.top, listed.entries[0], listed.states))


def test_a_second_job_of_a_shard_is_refused_while_the_first_computes(photos, engine, job, run):
    (place := job / ".keras_vit-shard-0-of-1.lock").mkdir()
    lock = lock_dir(place)
    try:
        code, _, errors = run("embed", photos, "--model", engine, "--out", job)
    finally:
        os.close(lock)
    assert (code, "another one computes shard 0/1 now" in errors[-1]) == (1, True)


def test_a_part_that_fails_is_named_after_all_others_were_computed(photos, engine, job):
    before, manifest, listed = parts_of(job), read_manifest(job), read_list(job, photos)
    for number in (1, 2):
        (job / manifest.name(number)).unlink()
    listed.entries[5] = 5
    with pytest.raises(ValueError, match=r"1 of 2 parts could.*\n.*part-00001\.parquet \(rows 4 to 7\): TypeError"):
        embed_job._compute(job, str(engine), manifest, listed, [1, 2], embed_job.JobOptions(processes=1), str)
    assert parts_of(job) == {name: data for name, data in before.items() if name != "part-00001.parquet"}


def test_a_full_disk_ends_the_job_and_names_the_part(undisturbed, photos, engine, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    embedder = keras_vit.Embedder(engine, threads=1, batch_size=3)
    setup = pool.JobSetup(undisturbed, read_manifest(undisturbed), PhotoList(photos, []), embedder)
    monkeypatch.setattr(pool, "_setup", (setup, queue.SimpleQueue()))
    monkeypatch.setattr(pool, "write_part", full)
    with pytest.raises(OSError, match=r"part-00000\.parquet cannot be written: No space left on device\. Make room\."):
        pool.compute_part(0, ["large.jpg"] * 4)


def test_a_worker_of_a_file_imports_neither_keras_nor_tensorflow(job, photos, engine, tmp_path):
    before = parts_of(job)
    (job / "part-00000.parquet").unlink()
    for name in ("keras", "tensorflow", "jax", "pandas"):
        words = f"' '.join(sys.orig_argv) and open({str(tmp_path / 'imported')!r}, 'a').write({name!r})"
        (tmp_path / f"{name}.py").write_text(f"import sys\n'spawn_main' in {words}")
    command = [sys.executable, "-m", "keras_vit", "embed", photos, "--model", engine, "--out", job]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr, parts_of(job)) == (0, b"", before)
    assert not (tmp_path / "imported").exists()


READS = """
import os, pathlib, sys
import pyarrow.parquet
from keras_vit.embedding.manifest import read_manifest
from keras_vit.embedding.part_files import read_part, read_statuses
folder = pathlib.Path(sys.argv[1])
before, manifest = len(os.listdir("/proc/self/task")), read_manifest(folder)
read_statuses(folder, manifest, 0), read_part(folder, manifest, 1)
assert len(os.listdir("/proc/self/task")) == before
"""


def test_parts_are_read_without_threads_that_could_abort_the_end_of_the_process(undisturbed):
    done = subprocess.run([sys.executable, "-c", READS, undisturbed], env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0


@pytest.mark.slow
def test_a_model_of_keras_is_converted_once_and_then_never_again(photos, tmp_path, run):
    model, out = small_model(), tmp_path / "vectors"
    model.save(tmp_path / "model.keras")
    words = ("embed", photos, "--model", tmp_path / "model.keras", "--out", out, *SMALL)
    code, said, _ = run(*words)
    assert (code, said[1]) == (0, "converting the model once; this takes a while ...")
    before = parts_of(out)
    (out / "part-00004.parquet").unlink()
    code, said, _ = run(*words)
    assert (code, any("opening" in line or "converting" in line for line in said)) == (0, False)
    assert parts_of(out) == before


SLURM = {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "4"}


@pytest.mark.parametrize(
    ("text", "variables", "expected"),
    [
        ("2/8", {"RANK": "1", "WORLD_SIZE": "2"}, (2, 8)),
        (None, {}, (0, 1)),
        (None, {"WORLD_SIZE": "4"}, (0, 1)),
        (None, {"RANK": "3", "WORLD_SIZE": "4"}, (3, 4)),
        (None, {"RANK": "3", "NUM_SHARDS": "5", "WORLD_SIZE": "4"}, (3, 5)),
        (None, {"JOB_COMPLETION_INDEX": "0", "NUM_SHARDS": "3"}, (0, 3)),
        (None, {**SLURM, "SLURM_ARRAY_TASK_STEP": "2", "RANK": "0"}, (2, 4)),
        (None, {**SLURM, "SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_STEP": "2"}, (1, 4)),
        (None, SLURM, "no gaps"),
        (None, {"JOB_COMPLETION_INDEX": "0"}, "NUM_SHARDS"),
        (None, {"RANK": "x", "WORLD_SIZE": "2"}, "RANK=x"),
        (None, {"JOB_COMPLETION_INDEX": "2", "NUM_SHARDS": "2"}, "NUM_SHARDS=2"),
        ("8/8", {}, "from 0.*\n.*--shard 8/8.$"),
        ("1", {}, "--shard 1"),
    ],
)
def test_shard_is_that_of_the_command_or_the_variables(text, variables, expected):
    if isinstance(expected, tuple):
        assert cluster_shard(text, variables) == expected
        return
    with pytest.raises(ValueError, match=expected):
        cluster_shard(text, variables)
