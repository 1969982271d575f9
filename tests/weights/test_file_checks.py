"""A name of the table is given to the model that it promises and to no other."""

import dataclasses
import shutil

import pytest
from conftest import GOLDEN
from fault_server import FaultServer

from keras_vit.config.variants import VARIANTS
from keras_vit.files import file_sha256
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.download import DownloadError, cache_dir
from keras_vit.weights.download.cache import verify_cache
from keras_vit.weights.file_checks import check_cached, check_for
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.registry import find_weights
from keras_vit.weights.registry.record import read_records
from keras_vit.weights.resolve import find_file

TOKEN = GOLDEN / "token.npz"


@pytest.fixture
def record(monkeypatch):
    """A record for B/16, narrowed to what TOKEN holds."""
    return record_of(TOKEN, monkeypatch)


def record_of(path, monkeypatch):
    checkpoint = read_checkpoint(path)
    sizes = ("patch_size", "hidden_size", "num_layers", "mlp_dim", "resnet_stages")
    fields = dict(zip(sizes, checkpoint.measured(), strict=True)) | {"num_heads": checkpoint.num_heads}
    monkeypatch.setitem(VARIANTS, "B/16", dataclasses.replace(VARIANTS["B/16"], **fields))
    return dataclasses.replace(find_weights("gsam", "B/16"), classes=checkpoint.classes)


@pytest.mark.parametrize("name", ["token", "hybrid_stages", "hybrid_root"])
def test_the_model_of_the_record_is_let_through(name, monkeypatch):
    path = GOLDEN / f"{name}.npz"
    check_for(record_of(path, monkeypatch))(path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 64, "num_heads": 4}, "width: expected 64, got 48"),
        ({"num_layers": 4}, "blocks: expected 4, got 3"),
        ({"mlp_dim": 97}, "MLP: expected 97, got 96"),
        ({"num_heads": 6}, "heads: expected 6, got 4"),
        ({"patch_size": 16}, "patch size: expected 16, got 8"),
        ({"resnet_stages": (2, 2)}, r"ResNet stages: expected \(2, 2\), got None"),
    ],
)
def test_another_model_is_refused_with_what_differs(record, monkeypatch, fields, message):
    monkeypatch.setitem(VARIANTS, "B/16", dataclasses.replace(VARIANTS["B/16"], **fields))
    with pytest.raises(CheckpointError, match=rf"'gsam' for ViT B/16.*{message}"):
        check_for(record)(TOKEN)


def test_other_classes_are_refused(record):
    with pytest.raises(CheckpointError, match=f"classes: expected 1000, got {record.classes}"):
        check_for(dataclasses.replace(record, classes=1000))(TOKEN)


def test_published_beginning_of_the_sha256_is_compared(record):
    sha256 = file_sha256(TOKEN)
    check_for(dataclasses.replace(record, sha256_start=sha256[:8]))(TOKEN)
    other = f"{int(sha256[:8], 16) ^ 1:08x}"
    with pytest.raises(CheckpointError, match=f"begin with {other}(.|\n)*{sha256}"):
        check_for(dataclasses.replace(record, sha256_start=other))(TOKEN)


def test_flexible_record_may_have_any_patch(record, monkeypatch):
    monkeypatch.setitem(VARIANTS, "B/16", dataclasses.replace(VARIANTS["B/16"], patch_size=16))
    check_for(dataclasses.replace(record, name="flexivit-x", resize_method="bilinear_antialias"))(TOKEN)
    assert [r for r in read_records("vit.csv") if r.is_flexible] == [
        r for r in read_records("vit.csv") if "/flexivit_" in r.path
    ]


def test_downloaded_file_of_another_model_never_enters_the_cache(monkeypatch):  # D2
    with FaultServer() as server:
        server.content = TOKEN.read_bytes()
        monkeypatch.setenv("KERAS_VIT_MIRROR", f"{server.address}/ok")
        with pytest.raises(DownloadError, match=r"ViT-B_16.npz .* 'gsam' for ViT B/16"):
            find_file("gsam", "B/16")
    assert not [path for path in cache_dir().rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.fixture
def put_by_hand():
    place = cache_dir() / find_weights("gsam", "B/16").path
    place.parent.mkdir(parents=True)
    return shutil.copy(TOKEN, place)


def test_file_of_another_model_put_by_hand_is_kept_and_its_removal_told(put_by_hand):
    with pytest.raises(DownloadError, match=rf"'gsam'(.|\n)*`rm -f {put_by_hand}"):
        find_file("gsam", "B/16")
    assert put_by_hand.exists()


def test_verify_knows_what_belongs_at_a_published_place(put_by_hand):
    (found,) = verify_cache(check_cached)
    assert "is another model: " in found.reason
    for place in (
        find_weights("imagenet21k", "B/16").path,
        "vit_models/augreg/B_16-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0.npz",
    ):
        path = cache_dir() / place
        path.parent.mkdir(parents=True)
        shutil.copy(TOKEN, path)
        with pytest.raises(CheckpointError, match=r"size .*\d+ \+- \d+ bytes"):
            check_cached(path)
    check_cached(shutil.copy(TOKEN, path.with_name("mine.npz")))
