"""`inspector` against its definition in NumPy, on photos with a stamp where none belongs, and what it refuses."""

import dataclasses
import json
import shutil
import tracemalloc

import keras
import numpy as np
import pytest
from conftest import randomise, run_python
from PIL import Image

import keras_vit
from keras_vit import dense
from keras_vit.embedding.inspection import InspectorOptions, anomaly_score, make_inspector, resized, threshold_of
from keras_vit.images.numpy_pipeline import preprocess

SIDE = 64  # pixels; 8 x 11 patches of photos of 48 x 66


def make_encoder():
    keras.utils.set_random_seed(7)
    config = keras_vit.ViTConfig(8, 32, num_layers=2, num_heads=2, mlp_dim=64)
    return randomise(keras_vit.build(config, include_top=False, input_shape=(32, 32, 3)))


def good_photo(seed):
    """A dark board with a bright bar at one of several places."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(60, 80, (48, 66, 3), "uint8")
    top = rng.integers(0, 5)
    pixels[12 + top : 20 + top] = (200, 190, 60)
    return pixels


def flawed_photo(seed):
    """The same with a red stamp, and its mask."""
    pixels, rng = good_photo(seed), np.random.default_rng(seed)
    y, x = rng.integers(0, 34), rng.integers(0, 52)
    mask = np.zeros((48, 66), "uint8")
    mask[y : y + 14, x : x + 14] = 255
    pixels[mask > 0] = (220, 30, 200)
    return pixels, mask


@pytest.fixture(scope="module")
def encoder():
    return make_encoder()


@pytest.fixture(scope="module")
def good():
    return [good_photo(seed) for seed in range(12)]


@pytest.fixture(scope="module")
def inspector(encoder, good):
    return keras_vit.inspector(encoder, good, short_side=SIDE)


@pytest.fixture(scope="module")
def made_with(inspector, good):
    """Makes inspectors of the same photos with other options, by features that are compiled once."""
    names = [photo.name for photo in inspector.record.good_photos]

    def make(**options):
        photos = zip(names, good, strict=True)
        return make_inspector(inspector.features, photos, InspectorOptions(short_side=SIDE, **options))

    return make


def directions(encoder, pixels):
    """`(h, w, D)` of length 1, by `features`."""
    record = dataclasses.replace(encoder.preprocessing, image_size=(64, 88), resize="squash")
    free = keras_vit.with_input_shape(encoder, (None, None, 3))
    images = preprocess(pixels, record)[None].astype("float32")
    maps = keras_vit.features(free, images, blocks=(2,))[2][0].astype("float64")
    return maps / np.linalg.norm(maps, axis=-1, keepdims=True)


def test_scores_thresholds_and_maps_are_the_definition(encoder, good, inspector):
    """All patches are kept of so few, so each distance is that to the nearest of all patches of the other folds."""
    maps = [directions(encoder, pixels) for pixels in good]
    folds = np.array([photo.fold for photo in inspector.record.good_photos])
    held_out = []
    for own, fold in zip(maps, folds, strict=True):
        others = np.concatenate([maps[place].reshape(-1, 32) for place in np.flatnonzero(folds != fold)])
        held_out.append(1 - (own.reshape(-1, 32) @ others.T).max(axis=1))
    found = [photo.score for photo in inspector.record.good_photos]
    np.testing.assert_allclose(found, [each.max() for each in held_out], atol=2e-4)  # one of 88 is 1 %
    assert inspector.threshold == max(found)
    assert inspector.record.median_distance == pytest.approx(np.median(held_out), abs=2e-4)
    pixels, _ = flawed_photo(100)
    inspection = inspector.inspect(pixels)
    everything = np.concatenate([each.reshape(-1, 32) for each in maps])
    distances = 1 - np.einsum("hwd,nd->hwn", directions(encoder, pixels), everything).max(axis=-1)
    assert inspection.score == pytest.approx(distances.max(), abs=2e-4)
    wanted = dense.resize(distances[None, ..., None].astype("float32"), (48, 66))[0, ..., 0]
    np.testing.assert_allclose(inspection.anomaly_map, wanted, atol=2e-4)
    assert inspection.anomaly_map.dtype == np.float32


def test_each_five_photos_in_a_row_are_of_all_folds(inspector, made_with):
    folds = [photo.fold for photo in inspector.record.good_photos]
    assert sorted(folds[:5]) == sorted(folds[5:10]) == list(range(5))
    assert len({*folds[10:]}) == 2
    assert [photo.fold for photo in made_with(seed=1).record.good_photos] != folds
    assert made_with().record == inspector.record


def test_a_stamp_where_none_belongs_is_found(inspector):
    flawed = [flawed_photo(seed) for seed in range(200, 206)]
    unseen = [good_photo(seed) for seed in range(300, 306)]
    found = inspector.inspect([pixels for pixels, _ in flawed] + unseen)
    scores = [each.score for each in found]
    assert dense.auroc([1] * 6 + [0] * 6, scores) == 1
    assert all(each.is_flawed for each in found[:6])
    assert sum(each.is_flawed for each in found[6:]) <= 1
    masks = [mask for _, mask in flawed] + [np.zeros((48, 66))] * 6
    maps = [each.anomaly_map for each in found]
    assert dense.auroc(np.stack(masks), np.stack(maps)) > 0.95
    assert dense.au_pro(masks, maps) > 0.8
    for (_, mask), each in zip(flawed, found, strict=False):
        assert mask[np.unravel_index(each.anomaly_map.argmax(), mask.shape)]


def test_engines_agree(made_with):
    pytest.importorskip("faiss")
    pixels, _ = flawed_photo(7)
    found = {}
    for engine in ("numpy", "faiss"):
        made = made_with(coreset=300, engine=engine)
        found[engine] = [made.threshold, made.inspect(pixels).score, made.inspect(pixels).anomaly_map]
    for one, other in zip(*found.values(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_memory_bank_is_a_coreset_of_each_fold(inspector, made_with):
    everything = {row.tobytes() for row in inspector.memory_bank}
    assert inspector.memory_bank.shape == (12 * 88, 32)
    for coreset, least, most in ((300, 296, 300), (0.25, 262, 264)):
        made = made_with(coreset=coreset)
        assert least <= len(made.memory_bank) <= most
        assert {row.tobytes() for row in made.memory_bank} <= everything
        assert made.threshold >= inspector.threshold  # of fewer patches, none is nearer


def test_saved_inspector_gives_equal_scores_in_another_process(encoder, inspector, tmp_path):
    encoder.save(tmp_path / "encoder.keras")
    pixels, _ = flawed_photo(8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    named = keras_vit.inspector(tmp_path / "encoder.keras", [good_photo(s) for s in range(12)], short_side=SIDE)
    named.save(tmp_path / "named")
    inspector.save(tmp_path / "unnamed")
    code = (
        "import sys, json, keras_vit; found = keras_vit.Inspector.load(sys.argv[1]); "
        "one = found.inspect(sys.argv[2]); print(json.dumps([found.threshold, one.score, one.anomaly_map.tolist()]))"
    )
    said = run_python(code, tmp_path / "named", tmp_path / "photo.png", TF_NUM_INTRAOP_THREADS="1")
    threshold, score, maps = json.loads(said.splitlines()[-1])
    wanted = inspector.inspect(pixels)
    assert (threshold, score) == (inspector.threshold, wanted.score)
    np.testing.assert_array_equal(np.array(maps, "float32"), wanted.anomaly_map)
    with pytest.raises(ValueError, match="`model` must be passed"):
        keras_vit.Inspector.load(tmp_path / "unnamed")
    assert keras_vit.Inspector.load(tmp_path / "unnamed", encoder).inspect(pixels).score == wanted.score
    with pytest.raises(FileExistsError, match=r"memory\.npz and inspector\.json"):
        inspector.save(tmp_path / "named")


def test_files_of_another_model_or_damaged_ones_are_refused(encoder, inspector, tmp_path):
    place = tmp_path / "found"
    inspector.save(place)
    other = keras_vit.build(encoder.config, include_top=False, input_shape=(32, 32, 3))
    with pytest.raises(ValueError, match="other weights"):
        keras_vit.Inspector.load(place, other)
    scaled = keras_vit.with_input_shape(encoder, (32, 32, 3))
    scaled.preprocessing = dataclasses.replace(encoder.preprocessing, mean=(0.1, 0.2, 0.3))
    with pytest.raises(ValueError, match="one that has another preprocessing"):
        keras_vit.Inspector.load(place, scaled)
    with pytest.raises(ValueError, match=r"without inspector\.json"):
        keras_vit.Inspector.load(tmp_path, encoder)
    facts = json.loads((place / "inspector.json").read_text())
    for changed in (
        {"keras_vit_inspector": "else"},
        {"threshold": "high"},
        {"good_photos": []},
        {"good_photos": [{"name": "a"}]},
        {"memory_sha256": "0" * 64},
        {"another": 1},
        {"model": 3},
    ):
        broken = tmp_path / f"broken {next(iter(changed))} {len(str(changed))}"
        shutil.copytree(place, broken)
        (broken / "inspector.json").write_text(json.dumps(facts | changed))
        with pytest.raises(ValueError, match="must be as it was written"):
            keras_vit.Inspector.load(broken, encoder)
    (place / "memory.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"memory\.npz: its digest is another one"):
        keras_vit.Inspector.load(place, encoder)


def test_copies_of_good_photos_count_once_and_are_named(encoder, good, inspector, tmp_path):
    for number, pixels in enumerate(good[:3]):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    Image.fromarray(good[1]).save(tmp_path / "copy.bmp")
    with pytest.warns(UserWarning, match=r"1 good photo left out: .*copy\.bmp: the same pixels as|1\.png: the same"):
        made = keras_vit.inspector(encoder, tmp_path, short_side=SIDE)
    assert len(made.record.good_photos) == 3
    with pytest.warns(UserWarning, match="one of the good photos"):
        found = made.inspect(tmp_path / "0.png")
    assert found.is_good_photo
    assert not made.inspect(good[5]).is_good_photo


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"good_photos": []}, "0 photos that can be used"),
        ({"good_photos": [good_photo(1)]}, "1 photo that can be used"),
        ({"good_photos": [good_photo(1), good_photo(1)]}, "photo 1: the same pixels as photo 0"),
        ({"good_photos": [good_photo(1), np.zeros((7, 90, 3), "uint8")]}, "7 x 90 pixels, smaller than a patch of 8"),
        ({"short_side": 0}, "`short_side`"),
        ({"coreset": 0}, "`coreset`"),
        ({"coreset": 0.0}, "`coreset`"),
        ({"false_positive_rate": 1.0}, "`false_positive_rate`"),
        ({"seed": -1}, "`seed`"),
        ({"engine": "annoy"}, "`engine`"),
    ],
)
def test_what_has_no_answer_is_refused(encoder, good, changed, words):
    with pytest.raises(ValueError, match=words):
        keras_vit.inspector(**{"model": encoder, "good_photos": good[:2], "short_side": SIDE} | changed)


def test_models_without_patches_and_photos_of_other_kinds_are_refused(encoder, inspector, good, tmp_path):
    with pytest.raises(ValueError, match="one Vision Transformer"):
        keras_vit.inspector(keras_vit.build_resnet(keras_vit.ResNetConfig((1, 1, 1, 1)), include_top=False), good)
    with pytest.raises(TypeError, match="uint8"):
        keras_vit.inspector(encoder, [pixels / 255 for pixels in good])
    with pytest.raises(TypeError, match="as a list"):
        keras_vit.inspector(encoder, np.stack(good))
    with pytest.raises(ValueError, match="smaller than a patch of 8"):
        inspector.inspect(np.zeros((90, 5, 3), "uint8"))
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0nothing")
    with pytest.raises(keras_vit.images.read.ImageError, match=r"broken\.jpg"):
        inspector.inspect([good_photo(400), tmp_path / "broken.jpg"])


def test_features_of_nan_are_refused(encoder, good):
    broken = keras_vit.build(encoder.config, include_top=False, input_shape=(32, 32, 3))
    broken.weights[0].assign(np.full(broken.weights[0].shape, np.nan))
    with pytest.raises(ValueError, match="features must be finite"):
        keras_vit.inspector(broken, good[:2], short_side=SIDE)


def test_threshold_is_the_quantile_of_conformal_prediction():
    scores = np.random.default_rng(0).permutation(199) / 199
    assert threshold_of(scores, 0.05) == pytest.approx(189 / 199)  # number 190 of 199
    assert threshold_of(scores, 0.001) == scores.max()
    assert threshold_of(scores[:20], 0.01) == scores[:20].max()
    # A new photo of the same kind is above it as often as promised.
    draws = np.random.default_rng(1).random((4000, 100))
    shares = [row[99] > threshold_of(row[:99], 0.05) for row in draws]
    assert np.mean(shares) == pytest.approx(0.05, abs=0.01)


def test_score_is_the_mean_of_the_largest_hundredth():
    distances = np.random.default_rng(0).permutation(450).astype("float32")
    assert anomaly_score(distances) == pytest.approx(np.mean([446, 447, 448, 449]))
    assert anomaly_score(distances[:99]) == distances[:99].max()


def test_a_map_of_twelve_megapixels_takes_little_more_than_itself():
    distances = np.random.default_rng(0).random((32, 43), "float32")
    resized(distances, (30, 40))  # tables are kept
    tracemalloc.start()
    found = resized(distances, (3000, 4000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < found.nbytes + 2**25
    np.testing.assert_allclose(
        found[::600, ::800], dense.resize(distances[None, ..., None], found.shape)[0, ::600, ::800, 0]
    )


def scores_elsewhere():
    made = keras_vit.inspector(make_encoder(), [good_photo(seed) for seed in range(4)], short_side=SIDE)
    return [made.threshold, made.inspect(flawed_photo(9)[0]).score]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("jax", marks=pytest.mark.elsewhere("jax", "scores_elsewhere")),
        pytest.param("torch", marks=[pytest.mark.torch, pytest.mark.elsewhere("torch", "scores_elsewhere")]),
    ],
)
def test_other_backends_give_the_same_scores(kind, found):
    np.testing.assert_allclose(found, scores_elsewhere(), atol=1e-5)
