"""Variables are read at call time, and a bad value of any is an error that names it."""

import re
from pathlib import Path

import pytest
from conftest import use_cache

from keras_vit.cache import cache_dir
from keras_vit.weights.download import RemoteFile, environment, fetch


@pytest.fixture(autouse=True)
def cache_in_tmp_path(monkeypatch, tmp_path):
    use_cache(monkeypatch, tmp_path)


def test_cache_is_read_at_call_time_with_home_expanded(monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", "~/weights")
    assert cache_dir() == Path.home() / "weights"
    monkeypatch.setenv("KERAS_VIT_CACHE", "relative")
    assert cache_dir() == Path.cwd() / "relative"


def test_cache_is_the_users_own_by_default(monkeypatch):  # D10
    monkeypatch.delenv("KERAS_VIT_CACHE")
    assert cache_dir().is_relative_to(Path.home())
    assert cache_dir().name == "keras_vit"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KERAS_VIT_CACHE", "~no-such-user-at-all/x"),
        ("KERAS_VIT_MIRROR", "/no/such/directory"),
        ("KERAS_VIT_MIRROR", "file:///etc"),
        ("KERAS_VIT_MIRROR", "http://192.0.2.1/mirror"),
        ("KERAS_VIT_OFFLINE", "maybe"),
        ("KERAS_VIT_TIMEOUT", "soon"),
        ("KERAS_VIT_TIMEOUT", "0"),
        ("KERAS_VIT_TIMEOUT", "inf"),
        ("KERAS_VIT_MIRROR", "https://mirror.example/vit?sig=secret"),
        ("KERAS_VIT_MIRROR", "https://mirror.example/vit#secret"),
    ],
)
def test_bad_value_is_an_error_that_names_the_variable(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name}={re.split('[?#]', value)[0]}") as error:
        fetch(RemoteFile("https://192.0.2.1/x", "x"))
    assert "secret" not in str(error.value)


def test_timeout_is_the_argument_else_the_variable_else_30(monkeypatch):
    assert environment.timeout_seconds() == 30
    monkeypatch.setenv("KERAS_VIT_TIMEOUT", "2.5")
    assert environment.timeout_seconds() == 2.5
    assert environment.timeout_seconds(1) == 1
    with pytest.raises(ValueError, match=r"timeout(.|\n)*-1"):
        fetch(RemoteFile("https://192.0.2.1/x", "x"), timeout=-1)


def test_mirror_prefix_replaces_the_url_and_quotes_the_path(monkeypatch):
    monkeypatch.setenv("KERAS_VIT_MIRROR", "https://mirror.example/vit/")
    url = environment.mirror_url("a/imagenet21k+imagenet2012/x.npz")
    assert url == "https://mirror.example/vit/a/imagenet21k%2Bimagenet2012/x.npz"


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("https://example.org/x", True),
        ("http://localhost:80/x", True),
        ("http://127.8.0.1/x", True),
        ("http://[::1]/x", True),
        ("http://example.org/x", False),
        ("http://localhost.example.org/x", False),
        ("http://127.0.0.1.example.org/x", False),
        ("http://127.0.0.1@example.org/x", False),
        ("HTTPS://example.org/x", True),
        ("javascript:alert(1)", False),
        ("", False),
    ],
)
def test_http_is_for_this_machine_only(url, safe):  # D13
    assert environment.is_safe(url) is safe


def test_http_is_allowed_by_its_variable(monkeypatch):
    monkeypatch.setenv("KERAS_VIT_ALLOW_HTTP", "1")
    assert environment.is_safe("http://example.org/x")
    assert not environment.is_safe("ftp://example.org/x")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://a:b@host:1/p@th/x.npz", "https://host:1/p@th/x.npz"),
        ("https://host/x?sig=s&y=1#z", "https://host/x?..."),
        ("a:b@host/x", "host/x"),
    ],
)
def test_redacted_url_has_no_secret(url, shown):
    assert environment.redacted(url) == shown
