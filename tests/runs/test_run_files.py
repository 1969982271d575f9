"""What is somebody else's is never deleted or replaced, and what is broken is told before anything is written."""

import json
import os
import shutil
from pathlib import Path

import pytest
from conftest import make_tiny, tiny_config
from photos import make_photos
from run_files import COLUMNS, tree
from stopped_runs import killed_run, run

from keras_vit.data import open_source
from keras_vit.data.source import fingerprint
from keras_vit.runs import run_files
from keras_vit.runs.finetune import finetune
from keras_vit.runs.resume_check import UnfinishedRun, check_resumed, check_unchanged, resume_fingerprint
from keras_vit.runs.run_directory import RunDirectory
from keras_vit.training.resuming.checkpoint_folder import Checkpoint

STEP = "checkpoints/step-0000000010-epoch-000001"
FOREIGN = {  # files of a folder of somebody else's, by path
    "checkpoints of another tool": ("checkpoints/resnet/epoch9.pt", "train.log"),
    "with a best model": ("checkpoints/mine.h5", "best.keras"),
    "with a configuration": ("config.json", "checkpoints/checkpoint-500/model.safetensors", "metrics.csv"),
    "by our names": (f"{STEP}/manifest.json", f"{STEP}/weights.pt", "result.json", "config.json"),
    "arrays by our names": (f"{STEP}/process-00000.safetensors", "metrics.csv", "failure.json"),
    "empty checkpoints": ("checkpoints/.keep", "notes.txt"),
    "what we sweep elsewhere": ("checkpoints/.old-checkpoints/a.pt", ".export-20261126/a.onnx", "a.txtabcd_123.part"),
}


def write(folder, names, text='{"model_type": "vit"}'):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("resume", ["auto", "never", "must"])
@pytest.mark.parametrize("name", FOREIGN)
def test_folder_of_somebody_else_is_refused_and_left_as_it_is(tmp_path, name, resume):
    folder = write(tmp_path / "theirs", FOREIGN[name])
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "checkpoints").symlink_to(folder / "checkpoints")
    (linked / "config.json").write_text("{}")
    before = tree(tmp_path)
    for out in (folder, linked):
        with pytest.raises(ValueError, match=r"`out`|`resume|a run replaces only|its configuration"):
            finetune("no such data", out, resume=resume)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("theirs", [["checkpoints/mine.h5"], [f"{STEP}/process-00000.safetensors"], ["result.txt"]])
def test_finished_run_in_which_somebody_put_files_stays_as_it_is(finished, tmp_path, theirs):
    out = write(Path(shutil.copytree(finished.out, tmp_path / "run")), theirs)
    before = tree(out)
    with pytest.raises(ValueError, match="a finished run"):
        finetune("no such data", out)
    assert tree(out) == before


def test_trained_run_without_its_result_is_not_begun_anew_beside_files_of_others(finished, tmp_path):
    """A folder `checkpoints` of somebody else's does not make it an unfinished run."""
    out = write(Path(shutil.copytree(finished.out, tmp_path / "run")), ["checkpoints/resnet/epoch9.pt"])
    (out / "result.json").unlink()
    before = tree(out)
    with pytest.raises(ValueError, match="`out`"):
        finetune("no such data", out)
    assert tree(out) == before


@pytest.mark.parametrize("is_folder", [False, True])
def test_best_model_that_no_run_wrote_is_not_replaced(finished, tmp_path, is_folder):
    """A run that was killed before its first best epoch finds somebody's file by that name."""
    out = tmp_path / "run"
    (out / "checkpoints").mkdir(parents=True)
    shutil.copy(finished.out / "config.json", out)
    theirs = out / "best.keras"
    write(theirs, ["mine.txt"]) if is_folder else theirs.write_text("my own model")
    before = tree(out)
    with pytest.raises(ValueError, match=r"best\.keras"):
        check_resumed(out, None, "auto", UnfinishedRun({"data": {}}))
    assert tree(out) == before


def test_folder_with_nothing_but_a_link_for_checkpoints_is_new(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "disk")
    (tmp_path / "run" / ".keras_vit-abcd1234.part").touch()  # of a run that was killed as it began
    assert RunDirectory(tmp_path / "run", COLUMNS).rows() == []


def test_link_to_a_disk_that_is_not_there_is_told(tmp_path):
    (tmp_path / "checkpoints").symlink_to(tmp_path / "disk")
    with pytest.raises(ValueError, match="a link that leads nowhere"):
        RunDirectory(tmp_path, COLUMNS)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


# A run that was killed, and what is wrong in it


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run that was killed in its third epoch; the best model is that of an epoch before."""
    return killed_run(tmp_path_factory.mktemp("killed") / "run", step=15)


def edit(name, change):
    """An edit of a JSON file that is there."""

    def do(out):
        facts = json.loads((out / name).read_text())
        change(facts)
        (out / name).write_text(json.dumps(facts, indent=2))

    return do


def folder_at(name):
    def do(out):
        (out / name).unlink(missing_ok=True)
        (out / name).mkdir()

    return do


def put(name, content):
    return lambda out: (out / name).write_bytes(content)


def other_model(out):
    RunDirectory(out.parent / "other", COLUMNS).save_model(make_tiny(), "best.keras", 1)
    shutil.copy(out.parent / "other" / "best.keras", out)


def of_another_epoch(out):
    mark, epoch = run_files.read_stamp(out / "best.keras")
    run_files.stamp(out / "best.keras", mark, epoch + 1 if epoch == 1 else 1)


WRONG = {
    "configuration of nothing": (put("config.json", b"{}"), {}, "config.json': .*no `versions`"),
    "list for a record": (edit("config.json", lambda c: c.update(plan=[])), {}, "`plan` is list"),
    "text for a record": (edit("config.json", lambda c: c.update(data="digits")), {}, "`data` is str"),
    "number for a record": (edit("config.json", lambda c: c["plan"].update(accumulation_steps="x")), {}, "plan.acc"),
    "text for a list": (edit("config.json", lambda c: c.update(weights_report="x")), {}, "weights_report: str before"),
    "no configuration": (lambda out: os.unlink(out / "config.json"), {"seed": 1}, "options.seed: 0 before, 1 now"),
    "checkpoint of a seed": (
        edit("config.json", lambda c: [c.update(seed=1), c["arguments"].update(seed=1)]),
        {"seed": 1},
        "other facts than in .*options.seed: 0 before, 1 now",
    ),
    "checkpoint of a model": (
        edit("config.json", lambda c: c["model"].update(mlp_dim=19)),
        {"model": tiny_config(num_layers=1, dropout_rate=0.1, mlp_dim=19)},
        "other facts than in .*model.mlp_dim: 17 before, 19 now",
    ),
    "folder for figures": (folder_at("metrics.csv"), {}, "metrics.csv', which is a folder"),
    "folder for a failure": (folder_at("failure.json"), {}, "failure.json', which is a folder"),
    "last model of another": (put("last.keras", b"PK"), {}, "last.keras', which is a file of something else"),
    "figures of another": (put("metrics.csv", b"epoch;loss\n"), {}, "metrics.csv', which is a file of something else"),
    "page of another": (put("report.html", b"<html>mine"), {}, "report.html', which is a file of something else"),
    "picture of another": (put("curves.png", b"\x89PNG\r\n"), {}, "curves.png', which is a file of something else"),
    "list of another": (put("bad_images.txt", b"mine"), {}, "bad_images.txt', which is a file of something else"),
    "no best model": (lambda out: os.unlink(out / "best.keras"), {}, "best.keras', which is not there"),
    "best model cut": (lambda out: os.truncate(out / "best.keras", 9000), {}, "best.keras', which is cut short"),
    "best model of another": (other_model, {}, "best.keras', which is not of this run"),
    "best model of an epoch": (of_another_epoch, {}, "best.keras', which is of epoch"),
    "best model a folder": (folder_at("best.keras"), {}, "best.keras', which is a folder"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_could_not_go_on_or_end_is_told_and_nothing_is_changed(killed, tmp_path, name):
    out = tmp_path / "run"
    shutil.copytree(killed, out)
    change, options, words = WRONG[name]
    change(out)
    before = tree(out)
    with pytest.raises(ValueError, match=rf"(?s){words}"):
        run(out, **options)
    assert tree(out) == before


def test_disk_that_would_fill_up_is_told_before_anything_is_written(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=20_000_000))
    with pytest.raises(ValueError, match=r"disk(?s:.*)0\.02 GB are free and 0\.02 GB are needed"):
        run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_run_goes_on_beside_the_files_of_others_and_its_link_stays_one(killed, tmp_path):
    out, disk = tmp_path / "run", tmp_path / "disk"
    shutil.copytree(killed, out)
    os.rename(out / "checkpoints", disk)
    (out / "checkpoints").symlink_to(disk)
    step = next(path.name for path in disk.iterdir() if path.name.startswith("step-"))
    theirs = ["mine.h5", "resnet/epoch9.pt", f"{step}/notes.txt", ".old-step-1/a"]
    write(disk, theirs)
    write(out, ["notes.txt", ".old-checkpoints/a.pt", ".export-20261126/a.onnx", "best.kerasabcd_123.part.keras"])
    kept = tree(tmp_path)
    run(out)
    after = tree(tmp_path)
    assert json.loads((out / "config.json").read_text())["arguments"]["out"] == str(out)  # where it is now
    assert os.readlink(out / "checkpoints") == str(disk)
    assert {name for name in after if name.startswith("disk/") and after[name][0] is not None} == {
        f"disk/{name}" for name in theirs
    }
    for name in (*(f"disk/{each}" for each in theirs), "run/notes.txt", "run/.old-checkpoints/a.pt"):
        assert after[name] == kept[name]
    assert {"run/.export-20261126/a.onnx", "run/best.kerasabcd_123.part.keras"} <= after.keys()


def test_last_model_of_a_run_that_could_not_be_taken_up_is_not_replaced(killed, tmp_path, monkeypatch):
    out = tmp_path / "run"
    shutil.copytree(killed, out)
    before = (out / "last.keras").read_bytes()
    monkeypatch.setattr(Checkpoint, "read", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(out)
    assert (out / "last.keras").read_bytes() == before


def test_data_that_were_moved_as_a_whole_are_the_same_and_others_are_not(tmp_path):
    place = make_photos(tmp_path / "photos", per_class=6)
    (place / "disc" / "bad.jpg").write_bytes(b"no photo")
    moved = Path(shutil.copytree(place, tmp_path / "elsewhere" / "pictures"))
    before = facts_of(place)
    (moved / "disc" / "notes.txt").write_bytes(b"of nobody's training")
    assert resume_fingerprint(facts_of(moved), UnfinishedRun(before)) == resume_fingerprint(before)
    (moved / "disc" / "0.jpg").rename(moved / "disc" / "00.jpg")
    assert resume_fingerprint(facts_of(moved), UnfinishedRun(before)) != resume_fingerprint(before)


def test_field_that_records_have_got_since_is_a_difference_only_with_another_value(tmp_path):
    place = make_photos(tmp_path / "photos", per_class=6)
    (place / "disc" / "bad.jpg").write_bytes(b"no photo")
    begun = facts_of(place) | {"model": {"name": "vit", "patch_size": 4}}
    del begun["data"]["ignored_kinds"]
    now = begun | {"model": begun["model"] | {"registers": 0, "qkv_bias": "all"}}
    now["data"] = begun["data"] | {"ignored_kinds": {"other files": 1}}
    assert resume_fingerprint(now, UnfinishedRun(begun)) == resume_fingerprint(begun)
    now["model"]["registers"] = 4
    assert resume_fingerprint(now, UnfinishedRun(begun))["model"] == begun["model"] | {"registers": 4}


def test_unfinished_run_goes_on_with_its_photos_alone(tmp_path):
    place = make_photos(tmp_path / "photos", per_class=6)
    (place / "disc" / "bad.jpg").write_bytes(b"no photo")
    begun = facts_of(place)
    check_unchanged(tmp_path, UnfinishedRun(begun), facts_of(place))
    (place / "disc" / "0.jpg").rename(place / "disc" / "9.jpg")  # as many photos of as many classes
    with pytest.raises(ValueError, match=r"data have changed: 18 photos when it began, 18 now(?s:.*)data_hash: .* now"):
        check_unchanged(tmp_path, UnfinishedRun(begun), facts_of(place))
    for number in (9, 2):
        (place / "disc" / f"{number}.jpg").unlink()
    with pytest.raises(ValueError, match=r"whose data have changed: 18 photos when it began, 16 now\. It differs in:"):
        check_unchanged(tmp_path, UnfinishedRun(begun), facts_of(place))
    with pytest.raises(ValueError, match=r"run', which differs in:\n(.*\n)?  versions\.keras: 1 before, nothing now\n"):
        check_unchanged("run", UnfinishedRun(begun | {"versions": {"keras": "1"}}), begun)


def facts_of(folder):
    with pytest.warns(UserWarning, match="bad"):
        source = open_source(folder)
    return {"arguments": {}, "versions": {}, "data": source.describe(), "data_hash": fingerprint(source)}


def test_signature_is_read_from_whole_archives_of_ours_alone(tmp_path):
    directory = RunDirectory(tmp_path / "run", COLUMNS)
    directory.save_model(make_tiny(), "best.keras", 3)
    path = tmp_path / "run" / "best.keras"
    assert run_files.read_stamp(path) == (directory.mark, 3)
    assert run_files.archive_fault(path) is None
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert run_files.archive_fault(path).startswith("which is ")
    make_tiny().save(tmp_path / "plain.keras")
    assert run_files.read_stamp(tmp_path / "plain.keras") is None
