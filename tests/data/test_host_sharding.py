"""What several processes read: every image once in an evaluation, the batch of one process in training."""

import numpy as np
import pytest
from test_pipeline import GREY, numbered

from keras_vit.data import load_dataset, pipeline
from keras_vit.data.augmentation import Augmentation
from keras_vit.data.pipeline import HostShard


@pytest.mark.parametrize("hosts", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 5, 6, 7, 12, 35])
def test_places_part_all_examples(hosts, size):
    places = [HostShard(host, hosts, 6) for host in range(hosts)]
    numbers = [[place.number(counter) for counter in range(place.count(size))] for place in places]
    assert sorted(number for part in numbers for number in part) == list(range(size))
    assert [[n for n in range(size) if place.has(n)] for place in places] == numbers


@pytest.mark.parametrize("size", [3, 4, 5, 12])
def test_each_image_counts_once_in_as_many_batches_for_every_process(monkeypatch, size):
    labels, batches = [], []
    for host in range(2):
        monkeypatch.setattr(pipeline, "find_shard", lambda shard, host=host: (host, 2))
        read = list(load_dataset(numbered(size), batch_size=4, preprocessing=GREY).as_numpy_iterator())
        batches.append(len(read))
        assert all(images.shape[0] == 2 for images, _, _ in read)
        labels += [label for _, targets, weights in read for label in targets[~np.isnan(weights)]]
    assert batches == [-(-size // 4)] * 2
    assert sorted(labels) == sorted(number % 3 for number in range(size))


def test_mixed_images_are_those_of_one_process(monkeypatch):
    arguments = {"batch_size": 6, "preprocessing": GREY, "training": True, "labels": "one_hot"}
    arguments["augmentation"] = Augmentation(crop="none", mixup_alpha=0.5)

    def read(host, hosts):
        monkeypatch.setattr(pipeline, "find_shard", lambda shard: (host, hosts))
        return [part.numpy() for part in next(iter(load_dataset(numbered(9), **arguments)))]

    whole, parts = read(0, 1), [read(host, 3) for host in range(3)]
    for index in range(2):
        np.testing.assert_array_equal(np.concatenate([part[index] for part in parts]), whole[index])
