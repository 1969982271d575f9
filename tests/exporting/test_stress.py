"""Many clients at once, some of them with bad files: everyone gets the answer to their own photos.

A batch's answers may differ from those of one photo by rounding, 1e-5; those of any two photos differ by far more.
"""

import concurrent.futures
import os
import resource

import numpy as np
import pytest
import tensorflow as tf
from exporting.lively import lively
from pictures import encoded, forged_png, picture

from keras_vit.exporting.export import export

THREADS, LARGEST_BATCH = 16, 8
TOLERANCE = 1e-5
PHOTOS = 24
OUTPUTS = ("scores", "classes", "labels", "top_scores", "status")


class Server:
    """A SavedModel in the session that TensorFlow Serving would run it in; any thread may ask."""

    def __init__(self, path):
        self.session = tf.compat.v1.Session(graph=tf.Graph())
        with self.session.graph.as_default():
            self.signatures = tf.compat.v1.saved_model.load(self.session, ["serve"], str(path)).signature_def

    def ask(self, name, values):
        signature = self.signatures[name]
        (given,) = signature.inputs.values()
        fetched = {key: info.name for key, info in signature.outputs.items() if key in OUTPUTS}
        return self.session.run(fetched, {given.name: values})


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = lively("Ti/16", small=True)
    report = export(
        model, tmp_path_factory.mktemp("stress") / "served", verify=False, options={"top_k": 3, "max_batch": 300}
    )
    return Server(report.path)


def good_files():
    kinds = [("JPEG", 3), ("PNG", 3), ("PNG", 1), ("JPEG", 1)]
    files = []
    for number in range(PHOTOS):
        kind, channels = kinds[number % len(kinds)]
        pixels = picture(41 + 3 * number, 97 - number, channels, seed=number)
        files.append(encoded(pixels if channels == 3 else pixels[..., 0], kind))
    return files


def bad_files():
    jpeg, png = encoded(picture(61, 83), "JPEG"), encoded(picture(61, 83, seed=1), "PNG")
    damaged = bytearray(png)
    damaged[len(png) // 2] ^= 0x40
    return [
        b"",
        b"remember the milk",
        jpeg[: len(jpeg) // 2],
        bytes(damaged),
        forged_png(20000, 20000),
        b"\xff\xd8\xff",
    ]


def alone(server, files):
    """Each file's answer in a request of its own."""
    return [{key: array[0] for key, array in server.ask("serving_default", [file]).items()} for file in files]


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def client(server, files, wanted, valid, requests, seed):
    """Sends requests, one in ten with a bad file among its photos, and says what was wrong with the answers."""
    rng, wrong, rows = np.random.default_rng(seed), [], 0
    good, bad = np.flatnonzero(valid), np.flatnonzero(~valid)
    for number in range(requests):
        chosen = rng.choice(good, rng.integers(1, LARGEST_BATCH + 1))
        if (number + seed) % 10 == 0:
            chosen[rng.integers(len(chosen))] = rng.choice(bad)
        found = server.ask("serving_default", [files[index] for index in chosen])
        rows += len(chosen)
        for row, index in enumerate(chosen):
            wrong += differences({key: array[row] for key, array in found.items()}, wanted[index], (seed, number, row))
    return rows, wrong


def differences(found, wanted, place):
    names = [key for key in ("status", "classes", "labels") if np.any(found[key] != wanted[key])]
    names += [key for key in ("scores", "top_scores") if not np.abs(found[key] - wanted[key]).max() <= TOLERANCE]
    return [(place, key, found[key], wanted[key]) for key in names]


def storm(server, requests):
    """All threads at once; gives how many photos were answered, what was wrong, and how memory grew in bytes."""
    files = good_files() + bad_files()
    valid = np.arange(len(files)) < PHOTOS
    wanted = alone(server, files)
    assert [answer["status"] == b"ok" for answer in wanted] == valid.tolist()
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:

        def run(requests):
            parts = [pool.submit(client, server, files, wanted, valid, requests, seed) for seed in range(THREADS)]
            return [part.result() for part in parts]

        run(max(requests // 10, 1))  # every thread's first allocations
        before = resident()
        parts = run(requests)
    wrong = [line for part in parts for line in part[1]]
    return sum(rows for rows, _ in parts), wrong, resident() - before


def test_answers_of_different_photos_differ_more_than_the_tolerance(server):
    scores = np.stack([answer["scores"] for answer in alone(server, good_files())])
    distances = np.abs(scores[:, None] - scores[None]).max(-1) + np.eye(PHOTOS)
    assert distances.min() > 100 * TOLERANCE


def test_every_thread_gets_its_own_answers(server):
    rows, wrong, _ = storm(server, requests=10)
    assert rows > THREADS * 10
    assert not wrong, wrong[:5]


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is read from /proc")
def test_thousands_of_requests_get_their_answers_in_flat_memory(server):
    rows, wrong, grown = storm(server, requests=200)
    print(f"{rows} photos in {THREADS * 200} requests, {len(wrong)} wrong, memory {grown / 1e6:+.0f} MB")
    assert not wrong, wrong[:5]
    assert grown < 50e6


def test_one_request_of_hundreds_of_photos_is_answered_in_order(server):
    files = good_files()
    order = np.random.default_rng(0).integers(0, len(files), 300)
    found = server.ask("serving_default", [files[index] for index in order])
    wanted = np.stack([answer["scores"] for answer in alone(server, files)])[order]
    np.testing.assert_allclose(found["scores"], wanted, rtol=0, atol=TOLERANCE)
