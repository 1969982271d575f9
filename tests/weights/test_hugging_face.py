"""`hf:` names: huggingface_hub itself brings them from a server on this machine, and nothing is taken unverified."""

import errno
import json
import logging
import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import GOLDEN
from fault_server import child_environment
from hub_server import CHILD, COMMIT, WEIGHTS, HubServer, digest_of, put_into_cache, turn_to
from safetensors.numpy import load_file

import keras_vit
from keras_vit import cli
from keras_vit.cache import cache_dir
from keras_vit.files import file_sha256
from keras_vit.weights.download import DownloadError, OfflineError, cache
from keras_vit.weights.download.cache import verify_cache
from keras_vit.weights.download.hugging_face import JSON_FILES
from keras_vit.weights.file_checks import check_cached
from keras_vit.weights.resolve import find_file

HF = GOLDEN / "foreign" / "huggingface_vit.safetensors"
CONFIG = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "num_attention_heads": 4}
CONTENTS = {WEIGHTS: HF.read_bytes(), "config.json": json.dumps(CONFIG).encode()}
BOTH = CONTENTS | {"preprocessor_config.json": b"{}"}
PLACE = f"hf/me/mine/{WEIGHTS}"
SIZES = {"hidden_size": 48, "num_layers": 3, "num_heads": 4, "mlp_dim": 96, "patch_size": 8}
LINKS = pytest.mark.parametrize("links", [True, False], ids=["links", "copies"])


@pytest.fixture(scope="module")
def server():
    with HubServer() as server:
        yield server


@pytest.fixture
def hub(server, monkeypatch, tmp_path):
    """The server with its two files, and huggingface_hub turned to it, with an empty cache `hub.root`."""
    turn_to(server, monkeypatch, tmp_path)
    server.contents, server.root, server.faults = dict(CONTENTS), tmp_path / "hub", 1 << 30
    server.route, server.tags, server.status, server.code = "ok", {}, 200, None
    server.asked.clear()
    server.log.clear()
    return server


def find(name="hf:me/mine", variant="B/16", **arguments):
    return find_file(name, variant, **arguments).path


def kept(hub):
    """Names of the weights and their blobs in huggingface_hub's cache."""
    names = {WEIGHTS, digest_of(WEIGHTS, hub.contents[WEIGHTS]), hub.tags.get(WEIGHTS)}
    return [path.name for path in hub.root.rglob("*") if path.name in names or "incomplete" in path.name]


def turn_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.resolve().write_bytes(content)


# What is brought


def test_hf_name_comes_into_the_librarys_cache_with_what_stands_beside(hub, capfd):
    level = logging.getLogger("huggingface_hub").level
    model = keras_vit.build("Ti/16", weights="hf:me/mine@v2", **SIZES)
    assert (model.config.activation, model.config.layer_norm_epsilon) == ("gelu_tanh", 1e-5)
    snapshot = hub.root / "models--me--mine" / "snapshots" / COMMIT
    assert {path.name for path in snapshot.iterdir()} == CONTENTS.keys()
    assert (snapshot.parents[1] / "refs" / "v2").read_text() == COMMIT
    assert {path.split("/")[3] for path in hub.asked if not path.endswith(WEIGHTS)} == {COMMIT}  # not another one's
    assert hub.downloads == [WEIGHTS, "config.json"]
    assert not (cache_dir() / "hf").exists()
    assert capfd.readouterr().err == ""  # no bar and no line where there is no terminal
    assert logging.getLogger("huggingface_hub").level == level  # which was silenced meanwhile


def test_second_use_asks_nobody(hub, monkeypatch):  # D11
    first = find()
    hub.asked.clear()
    monkeypatch.setattr("socket.socket", None)
    assert find() == first  # without the preprocessor_config.json, which the repository was said not to have
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    assert find() == first == hub.root / "models--me--mine" / "snapshots" / COMMIT / WEIGHTS
    assert hub.asked == []


@LINKS
@pytest.mark.parametrize("forbids", ["KERAS_VIT_OFFLINE", "KERAS_VIT_MIRROR"])
def test_users_own_cache_is_used_without_a_request(hub, links, forbids, monkeypatch, tmp_path):
    """Also without a processor_config.json, which it does not have."""
    snapshot = put_into_cache(hub.root, BOTH, links=links)
    monkeypatch.setenv(forbids, "1" if forbids == "KERAS_VIT_OFFLINE" else str(tmp_path))
    monkeypatch.setattr("socket.socket", None)
    assert find() == find(f"hf:me/mine@{COMMIT}") == snapshot / WEIGHTS


def test_cache_of_timm_is_used_without_a_request(hub, monkeypatch):  # whose config.json says all
    snapshot = put_into_cache(hub.root, CONTENTS | {"config.json": b'{"pretrained_cfg": {}}'})
    monkeypatch.setattr("socket.socket", None)
    assert find() == snapshot / WEIGHTS


def test_what_a_users_cache_lacks_beside_the_weights_is_brought(hub):
    snapshot = put_into_cache(hub.root, {WEIGHTS: CONTENTS[WEIGHTS]})
    find()
    assert (snapshot / "config.json").read_bytes() == CONTENTS["config.json"]
    assert hub.downloads == ["config.json"]


def test_file_put_at_its_place_is_taken_and_nobody_asked(hub):
    (cache_dir() / PLACE).parent.mkdir(parents=True)
    shutil.copy(HF, cache_dir() / PLACE)
    assert find() == cache_dir() / PLACE
    assert hub.asked == hub.log == []


# What is refused


def listed_as(digest):
    return lambda hub: hub.tags.update({WEIGHTS: digest})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (listed_as("0" * 64), "sha256.* 0{64}.* [0-9a-f]{64}"),
        (listed_as("0" * 40), "Git digest.* 0{40}.* [0-9a-f]{40}"),
        (lambda hub: setattr(hub, "route", "spliced"), "sha256 differs"),  # and the library resumed
        (lambda hub: setattr(hub, "route", "html"), "OSError: Consistency check"),
        (lambda hub: setattr(hub, "route", "403"), "HfHubHTTPError: 403"),
    ],
    ids=["digest", "git", "spliced", "html", "403"],
)
def test_other_bytes_than_the_hub_lists_are_refused_and_leave_nothing(hub, spoil, message):  # D1, D2
    spoil(hub)
    with pytest.raises(DownloadError, match=message) as error:
        find()
    assert kept(hub) == []
    assert "secret" not in str(error.value)
    assert f"curl -gL --fail -o {cache_dir() / PLACE} {hub.address}/me/mine/resolve/main/" in str(error.value)
    hub.route, hub.tags = "ok", {}
    assert file_sha256(find()) == digest_of(WEIGHTS, CONTENTS[WEIGHTS])


@LINKS
def test_damaged_file_of_a_users_cache_comes_anew(hub, links, caplog):
    path = put_into_cache(hub.root, BOTH, links=links) / WEIGHTS
    digest = digest_of(WEIGHTS, CONTENTS[WEIGHTS])
    find()  # which notes the digest of what has no blob
    turn_a_bit(path)
    assert find() == path
    assert re.search(f"{path}.*damaged.*{digest}", caplog.text)
    assert path.read_bytes() == CONTENTS[WEIGHTS]
    assert hub.downloads == [WEIGHTS]


def test_damaged_file_behind_a_second_link_is_replaced_inside_the_cache_alone(hub, tmp_path):
    path = put_into_cache(hub.root, BOTH) / WEIGHTS
    for store in (hub.root / "blobs" / "ab", tmp_path / "elsewhere"):  # as of a store that repositories share
        store.mkdir(parents=True)
        (store / "x").write_bytes(b"<html>")
        blob = path.parents[2] / "blobs" / digest_of(WEIGHTS, CONTENTS[WEIGHTS])
        blob.unlink()
        blob.symlink_to(store / "x")
        assert find().read_bytes() == CONTENTS[WEIGHTS]
        assert (store / "x").read_bytes() == b"<html>"


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_damaged_file_that_cannot_be_removed_is_refused_each_time(hub, name, monkeypatch):  # as of a shared cache
    path = put_into_cache(hub.root, BOTH) / name
    path.resolve().write_bytes(b"something else")

    def unlink(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.unlink", unlink)
    for _ in range(2):
        with pytest.raises(DownloadError, match=f"Permission denied.*{path}"):
            find()


def test_damaged_file_is_refused_without_the_hub(hub, monkeypatch):
    put_into_cache(hub.root, BOTH | {WEIGHTS: b"something else"})
    turn_a_bit(hub.root / "models--me--mine" / "snapshots" / COMMIT / WEIGHTS)
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    with pytest.raises(OfflineError, match="KERAS_VIT_OFFLINE"):
        find()


@LINKS
def test_file_is_hashed_at_every_use_and_its_content_read_once(hub, links, monkeypatch):
    path, read = put_into_cache(hub.root, BOTH, links=links) / WEIGHTS, []
    check = cache.check_valid
    monkeypatch.setattr(cache, "check_valid", lambda p, *more: read.append(p.name) or check(p, *more))
    for _ in range(2):
        find()
    assert read.count(WEIGHTS) == 1
    status = path.stat()
    turn_a_bit(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    find()
    assert path.read_bytes() == CONTENTS[WEIGHTS]


def test_file_brought_without_links_is_compared_with_the_listing(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_SYMLINKS", True)
    assert not find().is_symlink()
    shutil.rmtree(hub.root)
    listed_as("0" * 64)(hub)
    with pytest.raises(DownloadError, match=r"sha256.* 0{64}"):
        find()
    assert kept(hub) == []


def test_file_of_the_hub_that_is_not_valid_for_us_is_refused_and_stays(hub):  # other programs may use it
    path = put_into_cache(hub.root, BOTH | {WEIGHTS: b"something else"}) / WEIGHTS
    with pytest.raises(DownloadError, match=f"stays.* {path}"):
        find()
    assert path.exists()


def test_other_digest_than_asked_for_is_refused_before_anything_comes(hub):
    with pytest.raises(DownloadError, match=r"sha256.* 1{64}.*Hub lists"):
        find(sha256="1" * 64)
    assert hub.log == []
    path = find(sha256=digest_of(WEIGHTS, CONTENTS[WEIGHTS]))
    with pytest.raises(DownloadError, match=r"sha256.* 1{64}.*stays"):
        find(sha256="1" * 64)
    assert path.exists()


def test_known_repository_must_hold_the_model_of_its_record(hub):
    with pytest.raises(DownloadError, match="size differs"):  # of the listing, before anything comes
        find("hf:google/vit-base-patch16-224")
    assert hub.log == []


@pytest.mark.parametrize("name", ["hf:google/vit-base-patch16-224", "hf:timm/deit_base_patch16_224.fb_in1k"])
def test_name_that_the_table_has_for_another_variant_asks_nobody(hub, name):
    with pytest.raises(ValueError, match=r"L/16.* B/16: use ViTB16"):
        find_file(name, "L/16")
    assert hub.asked == []


# What stands beside


def test_json_that_does_not_come_whole_is_an_error_and_one_that_is_not_there_none(hub, caplog):
    """By its config.json a model has other numbers, so that none is made without one that the repository has."""
    hub.tags["config.json"] = "0" * 40
    with pytest.raises(DownloadError, match=r"config\.json.*Git digest"):
        find()
    del hub.tags["config.json"]
    assert (find().parent / "config.json").exists()
    assert "preprocessor_config.json" not in caplog.text  # which the repository does not have


def test_damaged_json_of_a_users_cache_comes_anew(hub, caplog):
    snapshot = put_into_cache(hub.root, BOTH)
    (snapshot / "config.json").resolve().write_bytes(b"<html>Log in</html>")
    find()
    assert re.search("config.json.*damaged.*Git digest", caplog.text)
    assert (snapshot / "config.json").read_bytes() == BOTH["config.json"]


# Without the Hub


def test_mirror_prefix_comes_before_the_hub(hub, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setenv("KERAS_VIT_MIRROR", f"{hub.address}/ok")
    hub.contents |= {name: b"{}" for name in JSON_FILES} | {"config.json": b"<html>Log in</html>"}
    with pytest.raises(DownloadError, match=r"config\.json.*JSON object"):
        find()
    hub.contents["config.json"] = CONTENTS["config.json"]
    assert find() == cache_dir() / PLACE
    assert f"/ok/{PLACE}" in [path for path, _ in hub.log]
    assert hub.asked == []
    found = {each.path.name: each.reason for each in verify_cache(check_cached)}
    assert found == dict.fromkeys((*JSON_FILES, WEIGHTS), "sha256 as noted")


def test_mirror_prefix_stands_in_for_the_hub_beside_a_users_cache_too(hub, monkeypatch, caplog):
    path = put_into_cache(hub.root, {WEIGHTS: CONTENTS[WEIGHTS]}) / WEIGHTS
    monkeypatch.setenv("KERAS_VIT_MIRROR", f"{hub.address}/ok")
    assert find() == path
    assert re.search("config.json.*KERAS_VIT_MIRROR", caplog.text)
    assert hub.asked == hub.log == []


def test_mirror_directory_without_the_file_asks_nobody(hub, monkeypatch, tmp_path):
    (tmp_path / "mirror").mkdir()
    monkeypatch.setenv("KERAS_VIT_MIRROR", str(tmp_path / "mirror"))
    with pytest.raises(DownloadError, match="KERAS_VIT_MIRROR"):
        find()
    assert hub.asked == []


def test_offline_says_so_and_opens_no_socket(hub, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    monkeypatch.setattr("socket.socket", None)
    with pytest.raises(OfflineError, match="KERAS_VIT_OFFLINE"):
        find()
    monkeypatch.delenv("KERAS_VIT_OFFLINE")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(OfflineError, match="OfflineModeIsEnabled"):
        find()


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (404, "RepoNotFound", "RepositoryNotFoundError"),
        (404, "RevisionNotFound", "RevisionNotFoundError"),
        (404, "EntryNotFound", "RemoteEntryNotFoundError"),
        (403, "GatedRepo", "GatedRepoError"),
        (503, None, "HfHubHTTPError"),
    ],
)
def test_refusal_of_the_hub_is_one_error_of_ours(hub, status, code, message, caplog, capfd):
    hub.status, hub.code = status, code
    with pytest.raises(DownloadError, match=f"{message}.*{status}") as error:
        find()
    assert type(error.value) is DownloadError
    assert "\n  curl -gL --fail -o " in str(error.value)
    assert (caplog.text, capfd.readouterr().err) == ("", "")


def test_no_network_is_told_at_once(hub, monkeypatch):
    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"  # where nobody listens
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("time.sleep", None)  # no second try
    with pytest.raises(OfflineError, match="ConnectError"):
        find()


def test_hub_that_does_not_answer_ends_in_an_error(hub, monkeypatch):
    hub.status = "hang"
    monkeypatch.setenv("KERAS_VIT_TIMEOUT", "0.2")
    with pytest.raises(DownloadError, match="ReadTimeout"):
        find()


def test_name_that_the_library_does_not_take_is_one_error_of_ours(hub):
    with pytest.raises(DownloadError, match="HFValidationError"):
        find("hf:me/a--b")


def test_not_installed_says_how_to_install_it_and_how_to_do_without(hub, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DownloadError, match=r'pip install "\.\[hub\]"'):
        find()
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    with pytest.raises(OfflineError, match=r"curl .*/hf/me/mine/model.safetensors https://huggingface.co/me/"):
        find()


# The command line, and other processes


def test_commands_know_files_of_the_librarys_cache(hub, capsys):
    path = put_into_cache(hub.root, BOTH) / WEIGHTS
    assert cli.main(["weights", "fetch", "hf:me/mine", "--model", "B/16"]) == 0
    assert cli.main(["weights", "verify"]) == cli.main(["weights", "verify", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(path), *[f"ok  {path}  sha256 as noted"] * 2]
    turn_a_bit(path)
    assert cli.main(["weights", "verify"]) == 1
    assert capsys.readouterr().out.startswith(f"BAD  {path}  sha256 differs: expected ")
    path.unlink()  # as by the library's own commands; then there is nothing to verify
    assert cli.main(["weights", "verify"]) == 0
    assert capsys.readouterr().out == f"no file in the cache, {cache_dir()}\n"
    path = put_into_cache(hub.root, CONTENTS, "google/vit-base-patch16-224") / WEIGHTS
    assert cli.main(["weights", "info", "hf:google/vit-base-patch16-224"]) == 0
    assert str(path) in capsys.readouterr().out


def test_two_processes_at_once_bring_a_file_once(hub, tmp_path):
    hub.route, hub.piece = "slow", 1 << 15
    settings = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    clean = {k: v for k, v in child_environment(tmp_path / "ours").items() if k != "HF_HUB_CACHE"} | settings
    command = [sys.executable, "-c", CHILD]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, env=clean, **pipes) for _ in range(2)]
    answers = [child.communicate(timeout=60) for child in children]
    path = tmp_path / "home" / "hub" / "models--me--mine" / "snapshots" / COMMIT / WEIGHTS
    assert answers == [(f"{path} False False\n", "")] * 2
    assert hub.downloads.count(WEIGHTS) == 1
    assert path.read_bytes() == CONTENTS[WEIGHTS]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model-00001-of-00001.safetensors"], ids=["bin", "shard"])
def test_repository_without_a_model_safetensors_gives_the_file_that_it_has(hub, name):
    """An index brings its shards too."""
    hub.contents[name] = hub.contents.pop(WEIGHTS)
    if name.startswith("model-"):
        index = {"weight_map": dict.fromkeys(load_file(HF), name)}
        hub.contents["model.safetensors.index.json"] = json.dumps(index).encode()
    path = find()
    assert (path.parent / name).read_bytes() == hub.contents[name]
    assert (path.name, (path.parent / "config.json").is_file()) == (
        name if ".bin" in name else WEIGHTS + ".index.json",
        True,
    )
    assert find() == path


def test_repository_without_weights_says_so(hub):
    del hub.contents[WEIGHTS]
    with pytest.raises(DownloadError, match=f"{WEIGHTS}(?s:.*)RemoteEntryNotFound"):
        find()
