"""What is known of a remote file, and the words for people who cannot get it."""

import re

import pytest
from conftest import use_cache
from fault_server import NAME

from keras_vit.weights.download.remote import OfflineError, RemoteFile, download_error


@pytest.fixture(autouse=True)
def cache_in_tmp_path(monkeypatch, tmp_path):
    use_cache(monkeypatch, tmp_path)


@pytest.mark.parametrize("path", ["", "/x", "../x", "a/../x", "a//x", "a/", "./x", "a\\x", "C:x", "a\nb", "a\0"])
def test_path_that_could_leave_the_cache_is_refused(path):  # D13
    with pytest.raises(ValueError, match="relative"):
        RemoteFile("https://example.org/x", path)


@pytest.mark.parametrize("sha256", ["abc", "g" * 64])
def test_impossible_digest_is_refused(sha256):
    with pytest.raises(ValueError, match=f"64 hexadecimal(.|\n)*{sha256}"):
        RemoteFile("https://example.org/x", "x", sha256=sha256)


def test_error_tells_what_from_where_how_large_and_where_to_put_it(tmp_path):  # D11
    file = RemoteFile("https://example.org/x.npz", NAME, 412_800_000, 50, "A" * 64)
    what, received, by_hand, *recipe, mirror = str(
        download_error(file, "no connection", kind=OfflineError)
    ).splitlines()
    size = re.escape("412800000 bytes (412.8 MB) +- 50")
    assert re.match("tiny.npz .*no connection", what)
    assert re.search(f"https://example.org/x.npz.*{size}", received)
    assert re.search(f"{size}.*{'a' * 64}", by_hand)
    assert recipe == [
        f"  mkdir -p {tmp_path}/some/place",
        f"  curl -gL --fail -o {tmp_path}/some/place/tiny.npz https://example.org/x.npz",
    ]
    assert re.search("KERAS_VIT_MIRROR .*some/place/tiny.npz", mirror)


def test_recipe_survives_spaces_and_quotes_in_paths(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "it's here"))
    message = str(download_error(RemoteFile("https://example.org/x&y", "x"), "no"))
    assert f"""-o '{tmp_path}/it'"'"'s here/x' 'https://example.org/x&y'""" in message


def test_recipe_says_what_its_url_lacks_and_encodes_the_rest():
    message = str(download_error(RemoteFile("https://me:pw@example.org/a b[1]/x.npz?sig=1", "x.npz"), "no"))
    assert "left out" in message
    assert "curl -gL --fail -o " in message
    assert message.splitlines()[-2].endswith(" 'https://example.org/a%20b[1]/x.npz'")
    assert "left out" not in str(download_error(RemoteFile("https://example.org/x.npz", "x.npz"), "no"))


@pytest.mark.parametrize("url", ["http://example.org/x.npz", "file:///etc/passwd", "https://[::1"])
def test_no_recipe_leads_to_an_address_that_is_refused(url):  # D13
    message = str(download_error(RemoteFile(url, NAME), "no"))
    assert "curl" not in message
    assert str(RemoteFile(url, NAME).place) in message


@pytest.mark.parametrize(
    ("url", "label"),
    [
        ("https://example.org/a/mine.npz?token=secret", "mine.npz"),
        ("https://example.org/folder/", "folder"),
        ("", "0123"),
    ],
)
def test_a_users_own_url_is_called_by_its_last_part(url, label):
    assert RemoteFile(url, "url/0123").label == label
    assert str(download_error(RemoteFile(url, "url/0123"), "no")).startswith(f"{label} could not")
    assert RemoteFile(url, NAME).label == "tiny.npz"
