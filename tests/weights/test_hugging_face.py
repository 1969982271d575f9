"""`hf:` names: huggingface_hub says where a file is, and everything else is as for every download."""

import hashlib
import json
import logging
import shutil
import sys
import types

import pytest
from conftest import GOLDEN
from fault_server import FaultServer

import keras_vit
from keras_vit.weights.fetch import DownloadError, OfflineError, cache_dir, verify_cache
from keras_vit.weights.file_checks import check_cached
from keras_vit.weights.resolve import find_file

HF = GOLDEN / "foreign" / "huggingface_vit.safetensors"
CONFIG = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "num_attention_heads": 4}
PLACE = "hf/me/mine/model.safetensors"


class EntryNotFoundError(Exception):
    """As huggingface_hub has it."""


class Hub(types.SimpleNamespace):
    """A huggingface_hub of one repository on a `FaultServer`; `route` is that of the addresses it gives."""

    def __init__(self, server):
        super().__init__(server=server, asked=[], route="ok", host=server.address, fault=None, tags={})
        self.utils = types.SimpleNamespace(build_hf_headers=lambda: {"authorization": "Bearer token", "x": "y"})

    def hf_hub_url(self, repo_id, filename, *, revision=None):
        return f"{self.server.address}/{repo_id}/resolve/{revision or 'main'}/{filename}"

    def get_hf_file_metadata(self, url, *, timeout):
        self.asked.append(url.removeprefix(f"{self.server.address}/"))
        logging.getLogger("huggingface_hub").warning("Retrying in 1s [Retry 1/5].")
        name = url.rpartition("/")[2]
        if self.fault:
            raise self.fault
        if name not in self.server.contents:
            raise EntryNotFoundError("404 Client Error. (Request ID: Root=1)\n\nEntry Not Found.")
        content = self.server.contents[name]
        tag = self.tags.get(name) or hashlib.sha256(content).hexdigest()
        location = f"{self.host}/{self.route}/{name}?signature=secret"
        return types.SimpleNamespace(commit_hash="c", etag=tag, location=location, size=len(content))


@pytest.fixture
def hub(monkeypatch):
    with FaultServer() as server:
        server.contents = {"model.safetensors": HF.read_bytes(), "config.json": json.dumps(CONFIG).encode()}
        hub = Hub(server)
        monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
        yield hub


def cached_names():
    return sorted(path.name for path in cache_dir().rglob("*") if path.is_file() and path.suffix != ".lock")


def test_hf_name_comes_into_the_cache_with_what_stands_beside(hub):
    model = keras_vit.build(
        "Ti/16", weights="hf:me/mine@v2", hidden_size=48, num_layers=3, num_heads=4, mlp_dim=96, patch_size=8
    )
    names = ("model.safetensors", "config.json", "preprocessor_config.json")
    assert hub.asked == [f"me/mine/resolve/v2/{name}" for name in names]
    assert (model.config.activation, model.config.layer_norm_epsilon) == ("gelu_tanh", 1e-5)
    folder = cache_dir() / "hf" / "me" / "mine@v2"
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors", ".lock"}
    note = json.loads((folder / "model.safetensors.json").read_text())
    assert note["sha256"] == hashlib.sha256(HF.read_bytes()).hexdigest()
    assert "secret" not in note["url"]
    found = {each.path.name: each.reason for each in verify_cache(check_cached)}
    assert found == {"config.json": "sha256 as noted", "model.safetensors": "sha256 as noted"}


def test_second_use_needs_neither_network_nor_library(hub, monkeypatch):  # D11
    first = find_file("hf:me/mine", "B/16").path
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr("socket.socket", None)
    assert find_file("hf:me/mine", "B/16").path == first
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    assert find_file("hf:me/mine", "B/16").path == first == cache_dir() / PLACE


def test_file_put_at_its_place_is_taken_and_nobody_asked(hub):
    (cache_dir() / PLACE).parent.mkdir(parents=True)
    shutil.copy(HF, cache_dir() / PLACE)
    assert find_file("hf:me/mine", "B/16").path == cache_dir() / PLACE
    assert hub.asked == hub.server.log == []


def flip_a_bit(hub):
    content = bytearray(hub.server.contents["model.safetensors"])
    hub.tags["model.safetensors"] = hashlib.sha256(content).hexdigest()
    content[-1] ^= 1
    hub.server.contents["model.safetensors"] = bytes(content)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (flip_a_bit, "sha256 differs"),
        (lambda hub: setattr(hub, "route", "html"), "its size differs"),
        (lambda hub: setattr(hub, "route", "404"), "answered 404"),
    ],
)
def test_other_bytes_than_the_hub_lists_are_refused_and_leave_nothing(hub, spoil, message):  # D1, D2
    spoil(hub)
    with pytest.raises(DownloadError, match=message) as error:
        find_file("hf:me/mine", "B/16")
    assert not [name for name in cached_names() if "safetensors" in name]
    assert "secret" not in str(error.value)
    assert f"curl -gL --fail -o {cache_dir() / PLACE} {hub.server.address}/me/mine/resolve/main/" in str(error.value)


def test_mirror_prefix_comes_before_the_hub(hub, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setenv("KERAS_VIT_MIRROR", f"{hub.server.address}/ok")
    assert find_file("hf:me/mine", "B/16").path == cache_dir() / PLACE
    assert f"/ok/{PLACE}" in [path for path, _ in hub.server.log]
    assert hub.asked == []


def test_mirror_directory_without_the_file_asks_nobody(hub, monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path))
    with pytest.raises(DownloadError, match="must be in the directory of KERAS_VIT_MIRROR"):
        find_file("hf:me/mine", "B/16")
    assert hub.asked == []


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (RuntimeError("503 Server Error.\nmore"), DownloadError),
        (ConnectionError("no way."), OfflineError),
        (type("ConnectTimeout", (Exception,), {})("timed out"), OfflineError),
    ],
)
def test_whatever_the_library_raises_is_one_error_of_ours(hub, fault, kind, caplog):
    hub.fault, name = fault, type(fault).__name__
    with pytest.raises(kind, match=rf"not be downloaded: huggingface_hub says {name}: [\w ]+\.\nReceived") as error:
        find_file("hf:me/mine", "B/16")
    assert type(error.value) is kind
    assert caplog.text == ""
    assert len(hub.asked) == 1


def test_json_that_does_not_come_is_told_and_keeps_no_weights_away(hub, caplog):
    hub.server.contents["config.json"] = b"<html>Log in</html>"
    assert find_file("hf:me/mine", "B/16").path.exists()
    assert "config.json could not be downloaded: it must be a JSON object" in caplog.text
    assert "preprocessor_config.json" not in caplog.text  # which the repository does not have
    assert cached_names() == ["model.safetensors", "model.safetensors.json"]


def test_json_is_compared_with_its_git_digest(hub, caplog):
    content = hub.server.contents["config.json"]
    hub.tags["config.json"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    find_file("hf:me/mine", "B/16")
    assert "config.json" in cached_names()
    shutil.rmtree(cache_dir())
    hub.tags["config.json"] = "0" * 40
    find_file("hf:me/mine", "B/16")
    assert "its Git digest differs" in caplog.text
    assert "config.json" not in cached_names()


def test_token_goes_to_the_hub_alone(hub):
    find_file("hf:me/mine", "B/16")
    assert {headers["Authorization"] for _, headers in hub.server.log} == {"Bearer token"}
    with FaultServer() as store:
        store.contents, hub.host = hub.server.contents, store.address
        find_file("hf:me/mine@v2", "B/16")
        assert {headers["Authorization"] for _, headers in store.log} == {None}
        hub.host, hub.route, hub.server.location = (
            hub.server.address,
            "redirect",
            f"{store.address}/ok/model.safetensors",
        )
        store.log.clear()
        hub.server.contents.pop("config.json")
        find_file("hf:me/mine@v3", "B/16")
        assert [headers["Authorization"] for _, headers in store.log] == [None]


def test_not_installed_says_how_to_install_it_and_how_to_do_without(hub, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DownloadError, match=r'pip install "keras-vit-zoo\[hub\]"'):
        find_file("hf:me/mine", "B/16")
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    with pytest.raises(
        OfflineError, match=r"curl -gL --fail -o \S+/hf/me/mine/model.safetensors https://huggingface.co/me/"
    ):
        find_file("hf:me/mine", "B/16")


@pytest.mark.parametrize("name", ["hf:google/vit-base-patch16-224", "hf:timm/deit_base_patch16_224.fb_in1k"])
def test_name_that_the_table_has_for_another_variant_asks_nobody(hub, name):
    with pytest.raises(ValueError, match="for L/16, and it is B/16: use ViTB16"):
        find_file(name, "L/16")
    assert hub.asked == []


def test_known_repository_must_hold_the_model_of_its_record(hub):
    with pytest.raises(DownloadError, match=r"size differs.*announced"):  # of the listing, before anything comes
        find_file("hf:google/vit-base-patch16-224", "B/16")
