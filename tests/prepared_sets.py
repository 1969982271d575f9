"""Small sets that TensorFlow Datasets has prepared, for the tests of what reads them."""

import pytest


def prepare_set(folder, splits, features, keys=("image", "label"), title="leaves"):
    """Writes a prepared set and gives its builder.

    Args:
        folder: the data folder of TensorFlow Datasets.
        splits: by name, a dict of examples by their keys.
        features: a function of `tfds.features` that gives the dict of features.
        keys: the supervised keys, or `None`.
        title: its name.
    """
    tfds = pytest.importorskip("tensorflow_datasets")

    class Prepared(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        """Examples as they are given."""

        VERSION = tfds.core.Version("1.0.0")
        name = title

        def _info(self):
            described = tfds.features.FeaturesDict(features(tfds.features))
            return tfds.core.DatasetInfo(builder=self, features=described, supervised_keys=keys)

        def _split_generators(self, dl_manager):
            return {split: iter(examples.items()) for split, examples in splits.items()}

        def _generate_examples(self):
            raise NotImplementedError  # the splits are iterators already

    builder = Prepared(data_dir=folder)
    builder.download_and_prepare()
    return builder
