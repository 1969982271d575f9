"""Views of photos for training without labels: each change by NumPy alone, and batches by seed and step alone."""

import numpy as np
import pytest
import tensorflow as tf
from photos import make_photos
from pictures import encoded, picture
from shard_sets import write_tar

import keras_vit
from keras_vit.data import views as module
from keras_vit.data.views import VIEWS, Views, load_views, random_views

RULE = keras_vit.Preprocessing(image_size=(32, 32), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
SMALL = Views(global_size=32, local_size=16, local_crops=3)
STILL = {"jitter_share": 0, "grey_share": 0, "blur": (0, 0, 0), "solarize": (0, 0, 0), "geometric": "none"}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return make_photos(tmp_path_factory.mktemp("views") / "photos", per_class=4)


def noise(height=40, width=50, seed=0):
    return np.random.default_rng(seed).uniform(0, 255, (height, width, 3)).astype("float32")


def seeds(count):
    return [tf.constant([5, number], tf.int64) for number in range(count)]


def batches(photos, count=3, **changes):
    options = {"batch_size": 4, "preprocessing": RULE, "views": SMALL, "patch_size": 8, "seed": 3} | changes
    return [{name: each.numpy() for name, each in batch.items()} for batch in load_views(photos, **options).take(count)]


def test_blur_solarize_and_grey_are_those_of_numpy():
    pixels, sigma = noise(), 1.3
    weights = np.exp(-0.5 * (np.arange(-4, 5) / sigma) ** 2)
    weights /= weights.sum()
    wide = np.pad(pixels.astype("float64"), ((4, 4), (4, 4), (0, 0)), "reflect")
    rows = sum(weight * wide[place : place + 40] for place, weight in enumerate(weights))
    expected = sum(weight * rows[:, place : place + 50] for place, weight in enumerate(weights))
    np.testing.assert_allclose(module.blur(tf.constant(pixels), tf.constant(sigma)), expected, atol=2e-4)
    np.testing.assert_array_equal(module.solarize(tf.constant(pixels)), np.where(pixels >= 128, 255 - pixels, pixels))
    luma = pixels @ np.array([0.299, 0.587, 0.114], "float32")
    np.testing.assert_allclose(module.grey(tf.constant(pixels))[..., 0], luma, rtol=1e-5)


def test_jitter_is_one_of_the_orders_of_its_four_changes():
    pixels, found = noise(), []
    for seed in seeds(12):
        np.testing.assert_allclose(module.jitter(tf.constant(pixels), (0, 0, 0, 0), seed), pixels, atol=1e-3)
        brightness, contrast = (
            module.uniform(seed, place, 1 - strength, 1 + strength).numpy() for place, strength in ((0, 0.4), (1, 0.6))
        )
        changed = module.jitter(tf.constant(pixels), (0.4, 0.6, 0, 0), seed).numpy()

        def lighter(levels, factor=brightness):
            return np.clip(levels * factor, 0, 255)

        def harder(levels, factor=contrast):
            middle = (levels @ np.array([0.299, 0.587, 0.114])).mean()
            return np.clip(middle + (levels - middle) * factor, 0, 255)

        errors = [abs(changed - expected).max() for expected in (harder(lighter(pixels)), lighter(harder(pixels)))]
        assert min(errors) < 2e-2
        found.append(int(np.argmin(errors)))
    assert set(found) == {0, 1}
    plain = module.jitter(tf.constant(np.full((4, 4, 3), 90.0, "float32")), (0, 0.4, 0.2, 0.1), seeds(1)[0])
    np.testing.assert_allclose(plain, 90, atol=1e-3)  # grey pixels have no contrast, saturation or hue


@pytest.mark.parametrize("area", [(0.32, 1.0), (0.05, 0.32)])
def test_windows_have_the_areas_and_aspects_that_are_asked_for(area):
    windows = np.array(
        [[int(side) for side in module.crop_of_area(tf.constant([300, 400]), area, s)] for s in seeds(150)]
    )
    y, x, h, w = windows.T
    shares, aspects = h * w / 120_000, w / h
    assert (y >= 0).all()
    assert (x >= 0).all()
    assert (y + h <= 300).all()
    assert (x + w <= 400).all()
    assert area[0] - 0.01 < shares.min() < area[0] + 0.1 * (area[1] - area[0])
    assert shares.max() < area[1] + 0.01
    assert 0.74 < aspects.min() < 0.85
    assert 1.2 < aspects.max() < 1.35
    long = module.crop_of_area(tf.constant([10, 200]), (0.9, 1.0), seeds(1)[0])
    assert [int(side) for side in long] == [0, 93, 10, 13]  # no such window fits, so the largest about the centre


def test_dihedral_turns_views_in_eight_ways():
    record = Views(global_size=24, local_crops=0, global_crops=40, **STILL | {"geometric": "dihedral"})
    pixels = np.zeros((24, 24, 3), "float32")
    pixels[:12, :12], pixels[:12, 12:], pixels[12:, :12] = 50, 100, 200  # the corners of a view tell how it is turned
    (views,) = random_views(tf.constant(pixels), record, seeds(1)[0])
    corners = [tuple(np.argsort(view.numpy()[[0, 0, -1, -1], [0, -1, 0, -1], 0])) for view in views]
    assert len(set(corners)) == 8


def test_the_first_view_alone_is_never_blurred_as_released_weights_were_trained():
    assert VIEWS["dinov2"].blur == (0.0, 0.9, 0.5)
    assert VIEWS["dinov2-as-written"].blur == (1.0, 0.1, 0.5)
    options = STILL | {"blur": (0, 1, 1), "global_area": (0.9, 1.0), "local_area": (0.9, 1.0)}
    record = Views(global_size=32, local_size=32, local_crops=1, **options)
    rough = [
        [
            float(np.abs(np.diff(view, axis=1)).mean())
            for views in random_views(tf.constant(noise()), record, s)
            for view in views
        ]
        for s in seeds(12)
    ]
    first, second, local = np.mean(rough, 0)
    assert second < 0.8 * first
    assert local < 0.8 * first


def test_batches_are_a_function_of_seed_and_step_whatever_the_hosts(photos):
    found = batches(photos)
    assert {name: each.shape for name, each in found[0].items()} == {
        "global_crops": (4, 2, 32, 32, 3),
        "local_crops": (4, 3, 16, 16, 3),
        "mask": (4, 2, 16),
    }
    later = batches(photos, 1, start_step=2)[0]
    hosts = [batches(photos, 1, start_step=2, shard=(host, 2))[0] for host in range(2)]
    for name, expected in found[2].items():
        np.testing.assert_array_equal(later[name], expected)
        np.testing.assert_array_equal(np.concatenate([host[name] for host in hosts]), expected)
    assert not np.array_equal(found[0]["mask"], found[1]["mask"])
    assert not np.array_equal(batches(photos, 1, seed=4)[0]["global_crops"], found[0]["global_crops"])
    crops = np.concatenate([found[0]["global_crops"].reshape(8, -1), found[1]["global_crops"].reshape(8, -1)])
    assert len(np.unique(crops, axis=0)) == 16
    low, high = (0 - np.array(RULE.mean)) / RULE.std, (1 - np.array(RULE.mean)) / RULE.std
    assert (found[0]["global_crops"] >= low - 1e-3).all()
    assert (found[0]["global_crops"] <= high + 1e-3).all()


def test_share_of_masks_may_change_with_the_step(photos):
    found = batches(photos, 3, mask_share=lambda step: step / 2)
    masked = [batch["mask"].reshape(8, 16).any(1).sum() for batch in found]
    assert masked == [0, 4, 8]
    assert "mask" not in batches(photos, 1, patch_size=None)[0]
    assert "local_crops" not in batches(photos, 1, views=Views(global_size=32, local_crops=0))[0]


def test_photos_need_no_labels_and_none_is_lost(photos, tmp_path):
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, file in enumerate(sorted(photos.rglob("*.jpg"))):
        (flat / f"{number}.jpg").write_bytes(file.read_bytes())
    count = len(list(flat.iterdir()))
    assert load_views(flat, "train+validation+test", batch_size=2, preprocessing=RULE).num_examples == count
    (tmp_path / "list.csv").write_text("path\n" + "".join(f"flat/{number}.jpg\n" for number in range(count)))
    table = load_views(tmp_path / "list.csv", "train+validation+test", batch_size=2, preprocessing=RULE)
    assert table.num_examples == count
    write_tar(tmp_path / "set-train-0.tar", [(f"{n}.jpg", encoded(picture(40, 40, seed=n))) for n in range(3)])
    assert load_views(tmp_path / "set-train-0.tar", batch_size=2, preprocessing=RULE).num_examples == 3
    (flat / "train").mkdir()
    (flat / "train" / "0.jpg").write_bytes((flat / "0.jpg").read_bytes())
    with pytest.raises(ValueError, match="all lie in folders of splits"):
        load_views(flat, batch_size=2, preprocessing=RULE)
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="there must be photos"):
        load_views(tmp_path / "none", batch_size=2, preprocessing=RULE)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"blur": (0.5, 0.5)}, "`blur` must be 3 numbers"),
        ({"blur": (0.5, 0.5, 2)}, "three probabilities"),
        ({"jitter": (0.4, 0.4, 0.2, 0.6)}, r"hue, in \[0, 0\.5\]"),
        ({"jitter_share": 1.5}, "from 0 to 1"),
        ({"global_area": (0.5, 0.2)}, "smallest and the largest part"),
        ({"local_size": 4}, r"above 4 pixels"),
        ({"global_crops": 0}, "global_crops"),
        ({"geometric": "turn"}, "geometric"),
    ],
)
def test_records_that_cannot_be_are_refused(changes, words):
    with pytest.raises((TypeError, ValueError), match=words):
        Views(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"patch_size": 5}, r"`global_size` must be a multiple of the patch.\nReceived: global_size=32, patch_size=5"),
        ({"views": Views(global_size=32, local_size=20), "patch_size": 8}, "`local_size` must be a multiple"),
        ({"mask_share": 2}, r"`share` must be in \[0, 1\]"),
        ({"views": "dino"}, "views"),
        ({"views": 3}, "a name or a record, of `Views`"),
        ({"preprocessing": None}, "`preprocessing` must be"),
        ({"start_step": -1}, "start_step"),
    ],
)
def test_batches_that_cannot_be_are_refused(photos, changes, words):
    with pytest.raises((TypeError, ValueError), match=words):
        batches(photos, **changes)
