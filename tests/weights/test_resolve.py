"""From what users write in `weights=` to a file: names, paths, folders and URLs."""

import hashlib
import os
import re
import shutil
import subprocess

import numpy as np
import pytest
from conftest import GOLDEN
from fault_server import FaultServer
from safetensors.numpy import save_file

import keras_vit
from keras_vit.weights.download import DownloadError, OfflineError, RemoteFile, cache_dir, fetch
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.registry import find_weights
from keras_vit.weights.resolve import check_available, find_file, remote_file

TOKEN = GOLDEN / "token.npz"
SHA256 = hashlib.sha256(TOKEN.read_bytes()).hexdigest()
SMALL = keras_vit.ViTConfig(patch_size=8, hidden_size=48, num_layers=3, num_heads=4, mlp_dim=96)


@pytest.fixture
def server():
    with FaultServer() as server:
        server.content = TOKEN.read_bytes()
        yield server


def test_url_with_its_digest_is_fetched_once_and_built(server):
    model = keras_vit.build(SMALL, weights=server.url("ok"), sha256=SHA256)
    np.testing.assert_array_equal(model.get_layer("head").kernel, np.load(TOKEN)["head/kernel"])
    keras_vit.build(SMALL, weights=server.url("ok"), sha256=SHA256.upper())
    assert len(server.log) == 1


def test_url_with_another_digest_is_refused_and_leaves_nothing(server):
    with pytest.raises(DownloadError, match="sha256"):
        keras_vit.build(SMALL, weights=server.url("ok"), sha256="0" * 64)
    assert not [path for path in cache_dir().rglob("*") if path.suffix == ".npz"]


def test_http_beyond_this_machine_is_refused():
    with pytest.raises(DownloadError, match="https"):
        find_file("http://example.org/x.npz", "B/16")


def test_scheme_of_a_url_may_be_in_capitals(server):
    assert find_file(server.url("ok").replace("http", "HTTP"), None).path.read_bytes() == server.content


def test_path_with_another_digest_is_refused():
    assert find_file(TOKEN, None, sha256=SHA256).path == TOKEN
    with pytest.raises(CheckpointError, match=SHA256):
        find_file(TOKEN, None, sha256="1" * 64)


def test_file_in_the_place_of_a_mirror_has_its_record(tmp_path):
    record = find_weights("big_vision-imagenet2012-90ep", "S/16")
    place = tmp_path / record.path
    place.parent.mkdir(parents=True)
    shutil.copy(TOKEN, place)
    assert find_file(place, "S/16").record == record
    assert find_file(place, "B/16").record is None
    assert find_file(shutil.copy(TOKEN, tmp_path), "S/16").record is None


def test_names_of_the_table_come_before_files_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    (tmp_path / "imagenet21k").mkdir()
    line = r"published weights 'imagenet21k' are taken.*'\./imagenet21k'"
    with pytest.warns(UserWarning, match=line), pytest.raises(OfflineError, match=r"ViT-B_16\.npz"):
        find_file("imagenet21k", "B/16")
    with pytest.raises(ValueError, match="one file"):
        find_file("./imagenet21k", "B/16")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("imagnet21k", ValueError, "'imagenet21k'"),
        ("sam", ValueError, "published for .*B/16"),
        ("nowhere.npz", FileNotFoundError, "nothing at that path"),
        ("no/where", FileNotFoundError, "nothing at that path"),
        ("hf:google", ValueError, "hf:owner/repository"),
        ("https:///x.npz", ValueError, "host"),
        ("B_16-i21k-300ep-lr_0.001-aug_mild-wd_0.1-do_0.0-sd_0.0", ValueError, "aug_mild"),
        (b"imagenet21k", TypeError, "name or a path"),
    ],
)
def test_what_names_nothing_is_refused_with_what_is_near(name, error, message):
    with pytest.raises(error, match=message):
        find_file(name, "H/14")


def test_augreg_file_name_is_a_name_with_or_without_its_ending(monkeypatch):
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    name = "B_16-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0--cifar100-steps_10k-lr_0.01-res_384"
    for text in (name, f"{name}.npz"):
        with pytest.raises(OfflineError, match=re.escape(f"vit_models/augreg/{name}.npz")):
            find_file(text, "B/16")


def test_the_printed_recipe_works(monkeypatch, server):
    """The two lines as printed, but for the host, which is ours."""
    record = find_weights("sam", "B/16")
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    with pytest.raises(OfflineError) as error:
        keras_vit.build(SMALL, weights=record.url)  # by its URL, which tells no size that a small file would miss
    make, curl = (line.strip() for line in str(error.value).splitlines() if line.startswith("  "))
    curl = re.sub(r"https://\S+$", server.url("ok"), curl)
    subprocess.run(["sh", "-c", f"{make} && {curl}"], check=True, capture_output=True)
    assert keras_vit.build(SMALL, weights=record.url).load_report == ()


def test_remote_file_has_the_listing_of_its_record():
    record = find_weights("imagenet21k", "B/16")
    file = remote_file(record)
    assert (file.url, file.path, file.size) == (record.url, record.path, record.bytes)
    assert file.fits(record.bytes + 2**20 // 10)
    assert not file.fits(record.bytes + 2**20 // 9)


@pytest.mark.parametrize("end", ["", ".npz", "/x.safetensors?token=1", "#a"])
def test_url_with_a_name_that_no_file_may_have_is_asked_for_or_a_download_error(server, end):
    with pytest.raises(DownloadError, match=r"404(?s:.*)aaaa"):
        find_file(f"{server.address}/404/{'a' * 300}{end}", "Ti/16")
    with pytest.raises(DownloadError):
        find_file(f"hf:owner/{'a' * 300}", None)


def test_path_that_leads_to_no_file_is_refused_with_the_reason(tmp_path):
    os.mkfifo(tmp_path / "pipe.pth")
    for path, error, message in (
        ("./" + "a" * 300, FileNotFoundError, "cannot be reached: File name too long"),
        (str(tmp_path / "pipe.pth"), CheckpointError, "a pipe, not a regular file"),
        ("/dev/zero", CheckpointError, "a device, not a regular file"),
    ):
        with pytest.raises(error, match=message):
            find_file(path, None)
        with pytest.raises(error, match=message):
            check_available(path, None)


def test_place_with_a_name_that_no_file_may_have_is_a_download_error(server):
    with pytest.raises(DownloadError, match="name too long"):
        fetch(RemoteFile(server.url("ok"), "hf/" + "a" * 300))


def test_adapter_beside_weights_is_named_and_alone_refused(tmp_path):
    shutil.copy(GOLDEN / "foreign" / "huggingface_vit.safetensors", tmp_path / "model.safetensors")
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    named = "base_model.model.vit.encoder.layer.0.attention.attention.query.lora_A.weight"
    save_file({named: np.zeros((4, 8), "float32")}, tmp_path / "adapter_model.safetensors")
    with pytest.warns(UserWarning, match=r"adapter_config.json .* not applied: .* of model.safetensors alone. Merge"):
        keras_vit.build(weights=tmp_path, num_heads=4)
    (tmp_path / "model.safetensors").unlink()
    for path in (tmp_path, tmp_path / "adapter_model.safetensors"):
        with pytest.raises(CheckpointError, match=r"a whole model, and an adapter.*\n.*adapter_.*`merge_and_unload`"):
            keras_vit.build(weights=path)
