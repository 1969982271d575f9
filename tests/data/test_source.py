"""The hash of a data set: equal where every example is, and not else."""

import shutil

import numpy as np
import pytest
from photos import make_photos

from keras_vit.data import open_source
from keras_vit.data.source import fingerprint


def arrays(value=3, label=1, dtype="uint8"):
    images, labels = np.full((6, 2, 2, 1), 7, dtype), np.arange(6) % 2
    images[4, 1, 0], labels[5] = value, label
    return {"train": (images, labels), "validation": (images[:2], labels[:2])}


def test_arrays_are_known_by_every_value_and_label():
    found = fingerprint(open_source(arrays()))
    assert found == fingerprint(open_source(arrays()))
    others = [arrays(value=4), arrays(label=0), arrays(dtype="float32")]
    assert len({found, *(fingerprint(open_source(other)) for other in others)}) == 4


def test_files_are_known_by_names_and_labels_wherever_they_lie(tmp_path):
    first = make_photos(tmp_path / "a", 4)
    found = fingerprint(open_source(first))
    shutil.copytree(first, tmp_path / "elsewhere" / "b")
    assert fingerprint(open_source(tmp_path / "elsewhere" / "b")) == found
    assert fingerprint(open_source(first, seed=1)) != found  # divided otherwise
    file = next((first / "disc").iterdir())
    file.rename(file.with_name("renamed.jpg"))
    assert fingerprint(open_source(first)) != found


def test_prepared_sets_are_known_by_name_and_version():
    pytest.importorskip("tensorflow_datasets")
    from types import SimpleNamespace

    from keras_vit.data.source import Source

    def prepared(version):
        builder = SimpleNamespace(info=SimpleNamespace(full_name=f"leaves/{version}"))
        train = SimpleNamespace(builder=builder, name="train", size=3, numbers=None)
        return Source("x", "tensorflow_datasets", ("a", "b"), {"train": train})

    assert fingerprint(prepared("1.0.0")) == fingerprint(prepared("1.0.0")) != fingerprint(prepared("1.0.1"))
