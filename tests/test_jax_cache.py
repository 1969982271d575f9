"""Programs that JAX has compiled are kept by commands: damage, other users and full disks cost time alone."""

import os
import stat
import types

import pytest

from keras_vit.cache import cache_dir
from keras_vit.cli import cache_command as programs


class Config(types.SimpleNamespace):
    def update(self, name, value):
        setattr(self, name, value)


@pytest.fixture
def config(monkeypatch):
    """JAX' settings, of which none is changed; and no digests are written as the tests end."""
    found = Config(jax_compilation_cache_dir=None)
    monkeypatch.setitem(__import__("sys").modules, "jax", types.SimpleNamespace(config=found))
    monkeypatch.setattr(programs.atexit, "register", lambda *_: None)
    for name in (*programs._CHOSEN, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"):
        monkeypatch.delenv(name, raising=False)
    return found


def kept(config):
    programs.enable_jax_cache()
    return config.jax_compilation_cache_dir


def test_folder_is_ours_alone_and_what_the_user_says_goes_first(config, monkeypatch):
    folder = kept(config)
    assert os.path.dirname(folder) == str(cache_dir("compiled"))
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert config.jax_persistent_cache_min_compile_time_secs < 1
    config.jax_compilation_cache_dir = "mine"
    assert kept(config) == "mine"
    config.jax_compilation_cache_dir = None
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    assert kept(config) is None


def test_nothing_is_kept_where_another_user_may_write(config):
    cache_dir("compiled").mkdir(parents=True)
    cache_dir("compiled").chmod(0o777)
    assert kept(config) is None
    cache_dir("compiled").rmdir()
    cache_dir("compiled").symlink_to(cache_dir("compiled").parent)
    assert kept(config) is None


def test_nothing_is_kept_on_a_full_disk(config, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(programs.Path, "mkdir", full)
    assert kept(config) is None


def test_programs_that_are_damaged_unsigned_or_too_many_are_removed(tmp_path, monkeypatch):
    for number, name in enumerate(("old", "damaged", "kept")):
        (tmp_path / f"{name}-cache").write_bytes(name.encode() * 10)
        os.utime(tmp_path / f"{name}-cache", (number, number))
    programs._sign(tmp_path)
    (tmp_path / "damaged-cache").write_bytes(b"damagee" * 10)  # of a bit
    (tmp_path / "killed-cache").write_bytes(b"k")  # by a command that did not come to its end
    monkeypatch.setattr(programs, "_MOST_BYTES", 50)
    programs._sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept-cache", "kept-sha256"]
