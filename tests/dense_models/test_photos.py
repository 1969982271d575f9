"""`segment` and `estimate_depth`: photos of any size against programs in float64, and depths against transformers'.

golden/dense/depths_of_photos.npz holds what Depth Anything and DPT put out for an image, and the same at the size of a
photo as their software resizes it: transformers 5.24.0 and Depth-Anything-V2 a561b84.
"""

import functools

import keras
import numpy as np
import pytest
from conftest import GOLDEN, randomise
from PIL import Image

import keras_vit
from keras_vit import dense
from keras_vit.dense_models import photos as module
from keras_vit.dense_models.photos import PhotoDepths, PhotoSegmenter
from keras_vit.model.copies import with_dtype

PATCH = 8


def photo(height, width, seed=0):
    """A smooth picture with noise, so that neither windows nor resizes are alike."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 9 + channel) * np.cos(y / 7 - channel) for channel in range(3)]
    return np.clip(128 + 70 * np.stack(waves, -1) + rng.normal(0, 20, (height, width, 3)), 0, 255).astype("uint8")


def encoder(shape=(24, 24, 3), **arguments):
    config = keras_vit.ViTConfig(PATCH, 16, 4, 2, 32, activation="gelu")
    arguments = {"include_top": False, "pooling": "none", "input_shape": shape} | arguments
    return randomise(keras_vit.build(config, **arguments))


def random(model):
    """Random weights, but no variance below 0."""
    for weight in randomise(model).weights:
        if weight.name == "moving_variance":
            weight.assign(np.abs(weight) + 0.1)
    return model


def segmenter(shape=(24, 24, 3), head="linear", classes=4, **arguments):
    return random(keras_vit.segmenter(encoder(shape, **arguments), head, classes=classes))


def resized(maps, size):
    """Bilinear with half-pixel centres, float64."""
    for axis, m in enumerate(size):
        n = maps.shape[axis]
        places = (np.arange(m) + 0.5) * n / m - 0.5
        maps = np.apply_along_axis(lambda line, p=places, n=n: np.interp(p, np.arange(n), line), axis, maps)
    return maps


def starts_of(n, side, step):
    count = max(n - side + step - 1, 0) // step + 1
    return [(max(min(k * step + side, n) - side, 0), min(k * step + side, n)) for k in range(count)]


of_shape = functools.cache(keras_vit.with_input_shape)


def logits_of(model, window):
    """A head's own logits of one prepared window: padded around the centre to whole patches."""
    missing = [-side % PATCH for side in window.shape[:2]]
    around = [(each // 2, each - each // 2) for each in missing]
    padded = np.pad(window, (*around, (0, 0)))[None].astype("float32")
    whole = of_shape(model.encoder, padded.shape[1:])
    found = keras_vit.features(whole, padded, model.blocks)
    taps = np.concatenate([found[block][0] for block in model.blocks], -1)
    gamma, beta, mean, variance, kernel, bias = (np.asarray(w, "float64") for w in model.head.get_weights())
    return ((taps - mean) / np.sqrt(variance + 1e-5) * gamma + beta) @ kernel[0, 0] + bias


def slid(model, pixels, short, window, stride, ratios=(1.0,), flips=(False,)):
    """Scores by section E of mmsegmentation's rules, in float64."""
    height, width = pixels.shape[:2]
    mean, std = (255 * np.array(each) for each in (model.preprocessing.mean, model.preprocessing.std))
    parts = []
    for ratio in ratios:
        scale = ratio * (1 if short is None else short / min(height, width))
        size = [int(side * scale + 0.5) for side in (height, width)]
        for flip in flips:
            image = pixels[:, ::-1] if flip else pixels
            image = (resized(image.astype("float64"), size) - mean) / std
            total, count = np.zeros((*size, model.classes)), np.zeros((*size, 1))
            for y0, y1 in starts_of(size[0], window[0], stride[0]):
                for x0, x1 in starts_of(size[1], window[1], stride[1]):
                    total[y0:y1, x0:x1] += resized(logits_of(model, image[y0:y1, x0:x1]), (y1 - y0, x1 - x0))
                    count[y0:y1, x0:x1] += 1
            found = resized(total / count, (height, width))
            parts.append(found[:, ::-1] if flip else found)
    if len(parts) == 1:
        return parts[0]
    powers = [np.exp(part - part.max(-1, keepdims=True)) for part in parts]
    return np.mean([power / power.sum(-1, keepdims=True) for power in powers], 0)


WAYS = {  # of `segment`, and of the program
    "by default": ((37, 61), {}, (24, (24, 24), (16, 16))),
    "tall": ((61, 37), {}, (24, (24, 24), (16, 16))),
    "no patch tiles the windows": ((37, 61), {"window": (21, 29), "stride": (13, 17)}, (24, (21, 29), (13, 17))),
    "own size": ((37, 61), {"short_side": None, "window": 24}, (None, (24, 24), (16, 16))),
    "smaller than a window": ((9, 13), {"short_side": None, "window": 24}, (None, (24, 24), (16, 16))),
    "a window over all": ((37, 61), {"window": 512}, (24, (512, 512), (341, 341))),
    "mirrored": ((37, 61), {"flip": True}, (24, (24, 24), (16, 16), (1.0,), (False, True))),
    "several sizes": (
        (37, 61),
        {"ratios": (0.5, 1.5), "flip": True},
        (24, (24, 24), (16, 16), (0.5, 1.5), (False, True)),
    ),
}


def faults():
    """Where `segment` gives other scores than the program, by way."""
    found = {}
    for head in ("linear", "linear4"):
        model = segmenter(head=head)
        for way, (size, arguments, numbers) in WAYS.items():
            pixels = photo(*size)
            got = keras_vit.segment(model, pixels, **arguments, scores=True)
            wanted = slid(model, pixels, *numbers)
            error = np.abs(got.scores - wanted).max() / max(1, np.abs(wanted).max() / 5)
            sure = np.diff(np.sort(wanted, -1)[..., -2:], axis=-1)[..., 0] > 1e-4
            right = (got.classes == wanted.argmax(-1))[sure].all() and sure.mean() > 0.9
            if not (error <= 2e-5 and right and got.scores.dtype == "float32" and got.classes.dtype == "int32"):
                found[f"{head} {way}"] = float(error)
    return found


def test_scores_are_those_of_a_program_in_float64():
    assert faults() == {}


@pytest.mark.elsewhere("jax", "faults")
def test_scores_are_the_same_on_jax(found):
    assert found == {}


@pytest.mark.elsewhere("torch", "faults")
def test_scores_are_the_same_on_torch(found):
    assert found == {}


def test_blocks_of_a_photo_give_the_whole(monkeypatch):
    """However small the blocks are, and however few windows may be kept."""
    model, pixels = segmenter(), photo(70, 111)
    arguments = {"short_side": None, "window": 24, "stride": 11, "flip": True, "scores": True}
    whole = keras_vit.segment(model, pixels, **arguments)
    monkeypatch.setattr(module, "_BLOCK", 90)
    monkeypatch.setattr(module, "_KEPT", 1)
    most = []
    mean = module._Pass._mean
    monkeypatch.setattr(module._Pass, "_mean", lambda self, *box: (most.append(len(self.found)), mean(self, *box))[1])
    parts = keras_vit.segment(model, pixels, **arguments)
    np.testing.assert_allclose(parts.scores, whole.scores, 0, 1e-6)
    assert max(most) < 30  # those of a strip; of whole rows they are 36
    assert len(dense.windows((70, 111), 24, 11)) > 45


def test_heads_that_do_not_pad_take_multiples_of_the_patch():
    model, pixels = segmenter((24, 40, 3), "dpt"), photo(37, 61)
    sizes = []
    find = PhotoSegmenter(model)
    maps = find.maps.__class__.__call__
    find.maps.__class__ = type(
        "Watched", (find.maps.__class__,), {"__call__": lambda s, x, g: (sizes.append(x.shape), maps(s, x, g))[1]}
    )
    found = find(pixels)
    assert found.classes.shape == (37, 61)
    assert sizes == [(24, 24, 3), (24, 24, 3)]  # of 24 x 40
    assert keras_vit.segment(model, pixels, short_side=None, window=40).classes.shape == (37, 61)
    with pytest.raises(ValueError, match=r"`window` must be multiples of the patch, 8 pixels.*\n.*\(30, 30\)"):
        keras_vit.segment(model, pixels, window=30)


def test_photos_are_arrays_paths_or_lists_of_them(tmp_path):
    model, pixels = segmenter(), photo(30, 41)
    model.class_names = ("sky", "sea", "sand", "dune")
    Image.fromarray(pixels).save(tmp_path / "a.png")
    found = keras_vit.segment(model, pixels)
    assert found.scores is None
    assert found.class_names == model.class_names
    several = keras_vit.segment(model, [tmp_path / "a.png", str(tmp_path / "a.png"), pixels[..., :1], pixels[:1, :1]])
    assert [each.classes.shape for each in several] == [(30, 41)] * 3 + [(1, 1)]
    np.testing.assert_array_equal(several[0].classes, found.classes)
    np.testing.assert_array_equal(several[2].classes, keras_vit.segment(model, pixels[..., [0, 0, 0]]).classes)
    assert keras_vit.segment(model, []) == []


def test_an_own_head_takes_its_models_side_and_a_published_one_its_familys(tmp_path):
    model = segmenter((24, 40, 3))
    assert (model.short_side, PhotoSegmenter(model).window, PhotoSegmenter(model).stride) == (24, (24, 24), (16, 16))
    model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").short_side == 24
    with pytest.warns(UserWarning, match="the official code computes the tanh GELU"):
        keras_vit.save_checkpoint(model, tmp_path / "folder")
    assert keras_vit.segmenter(weights=tmp_path / "folder").short_side == 24
    for head, blocks, side, stride in (("linear", (4,), 512, 341), ("linear4", (1, 2, 3, 4), 640, 426)):
        model = segmenter(head=head)
        model.short_side = None  # as of a file
        find = PhotoSegmenter(model)
        assert (model.blocks, find.short_side, find.window, find.stride) == (blocks, side, (side,) * 2, (stride,) * 2)
    model.layouts = ("dinov3_segmentation", "")
    assert PhotoSegmenter(model).short_side == 512
    assert PhotoSegmenter(model)._pass(photo(20, 200), 1.0, False).boxes[-1][2:] == (205, 2048)


def test_half_precision_gives_the_classes_of_float32():
    model, pixels = segmenter(), photo(37, 61)
    wanted = keras_vit.segment(model, pixels, flip=True, scores=True)
    for policy in ("mixed_bfloat16", "mixed_float16"):
        half = with_dtype(model, policy)
        assert half.encoder.layers[-1].compute_dtype == policy[6:]
        found = keras_vit.segment(half, pixels, flip=True, scores=True)
        assert found.scores.dtype == "float32"
        np.testing.assert_allclose(found.scores.sum(-1), 1, 0, 1e-5)
        assert np.abs(found.scores - wanted.scores).max() < 0.1
        depths = with_dtype(depth_model("dinov2_depth"), policy)
        assert keras_vit.estimate_depth(depths, pixels).values.dtype == "float32"


WRONG = {
    "a `short_side` of words": ({"short_side": "large"}, "must be pixels, None for the photo's size, or 'family'"),
    "no pixel": ({"short_side": 0}, "`short_side` must be"),
    "three sides": ({"window": (1, 2, 3)}, "`window` must be one side, or"),
    "gaps": ({"window": 24, "stride": 25}, r"`stride` must be at most the window(.|\n)*\(24, 24\), stride=\(25, 25\)"),
    "no ratio": ({"ratios": ()}, "`ratios` must be one or more"),
    "a ratio of nothing": ({"ratios": (1.0, 0)}, "`ratios` must be above 0"),
    "no flag": ({"flip": "yes"}, "`flip` must be True or False"),
}


def test_wrong_arguments_are_refused():
    model, pixels = segmenter(), photo(9, 9)
    for arguments, words in WRONG.values():
        with pytest.raises((TypeError, ValueError), match=words):
            keras_vit.segment(model, pixels, **arguments)
    depths = keras_vit.depth_estimator(encoder(), "linear", depth_range=(0.1, 10))
    with pytest.raises(TypeError, match=r"needs a model of classes for each pixel.\n.*a model of depth. Build one by"):
        keras_vit.segment(depths, pixels)
    with pytest.raises(TypeError, match=r"needs a model of depths for each pixel.\n.*keras_vit.depth_estimator"):
        keras_vit.estimate_depth(encoder(), pixels)
    with pytest.raises(TypeError, match=r"Did you mean 'window'"):
        keras_vit.segment(model, pixels, windows=3)


def test_wrong_photos_are_refused(tmp_path):
    model = segmenter()
    for wrong, words in (
        (np.zeros((9, 9, 3)), r"must be a path, or its pixels as uint8.*\n.*float64. Pass pixels from 0 to 255"),
        (np.zeros((2, 9, 9, 3), "uint8"), r"axes \(H, W, C\), and a pixel.\n.*\(2, 9, 9, 3\). Pass several as a list"),
        (np.zeros((0, 9, 3), "uint8"), "and a pixel"),
        (np.zeros((9, 9, 2), "uint8"), "with 3 channels"),
        (tmp_path, "a folder, not an image"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            keras_vit.segment(model, wrong)
    with pytest.raises(FileNotFoundError):
        keras_vit.segment(model, tmp_path / "none.png")
    model.head.set_weights([weight * np.nan for weight in model.head.get_weights()])
    with pytest.raises(ValueError, match="answers must be finite"):
        keras_vit.segment(model, photo(9, 9))


# Depths


def depth_model(layout, **arguments):
    """A model that is taken for one of a file."""
    arguments |= {"depth_range": (0.1, 10)} if layout.startswith("dino") else {}
    head = "linear" if layout.startswith("dino") else "dpt"
    model = random(keras_vit.depth_estimator(encoder(), head, **arguments))
    model.layouts, model.short_side = (layout, ""), None
    return model


def test_depths_come_back_to_the_photo_as_each_software_resizes_them():
    with np.load(GOLDEN / "dense" / "depths_of_photos.npz") as arrays:
        for name, layout in (
            ("hf_depth_anything", "huggingface_depth_anything"),
            ("authors_depth_anything_v2", "depth_anything"),
            ("hf_dpt_depth", "huggingface_dpt"),
        ):
            find = PhotoDepths(depth_model(layout))
            head, wanted = arrays[f"{name}/head"], arrays[f"{name}/photo"]
            find.maps.__class__ = type(
                "Given", (find.maps.__class__,), {"__call__": lambda s, x, h=head: h[0][..., None]}
            )
            found = find(np.zeros((*wanted.shape[1:], 3), "uint8")).values
            assert np.abs(found - wanted[0]).max() <= 1e-5, name


def prepared(model, pixels):
    return PhotoDepths(model)._prepared(pixels)


def test_photos_reach_a_model_of_depths_as_its_software_prepares_them():
    pixels = photo(300, 411)
    # Depth Anything's authors: OpenCV's bicubic of a = -0.75, without antialias
    model = depth_model("depth_anything")
    size = tuple(int(each) for each in dense.lower_bound_size([[300, 411]], 518, PATCH)[0])
    assert size == (520, 712)
    mean, std = (255 * np.array(each) for each in (model.preprocessing.mean, model.preprocessing.std))
    wanted = (dense.resize(pixels[None].astype("float64"), size, "bicubic")[0] - mean) / std
    np.testing.assert_allclose(prepared(model, pixels), wanted, 0, 1e-5)
    # transformers: Pillow's bicubic
    for layout, side in (("huggingface_dpt", 384), ("huggingface_depth_anything", 518)):
        size = tuple(int(each) for each in dense.minimal_size([[300, 411]], side, PATCH)[0])
        wanted = np.asarray(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BICUBIC))
        found = prepared(depth_model(layout), pixels) * std + mean
        assert np.abs(found - wanted).max() <= 1.001, layout
        assert np.abs(found - wanted).mean() < 0.01, layout
    # DINOv2: as it is
    np.testing.assert_allclose(prepared(depth_model("dinov2_depth"), pixels), (pixels - mean) / std, 0, 1e-6)


def test_depths_are_those_of_the_model_at_that_size_and_of_the_mirror_image():
    pixels = photo(37, 61)
    model = depth_model("dinov2_depth", input_shape=(20, 20, 3))
    images = model.preprocessing.__class__(image_size=None)(pixels)
    whole = keras_vit.with_input_shape(model, (37, 61, 3))
    once = keras_vit.estimate_depth(model, pixels)
    straight, mirrored = (np.asarray(whole(each[None]))[0] for each in (images, images[:, ::-1]))
    np.testing.assert_allclose(once.values, straight, 1e-5)
    assert once.unit == "metres"
    twice = keras_vit.estimate_depth(model, [pixels], flip=True)[0]
    np.testing.assert_allclose(twice.values, (straight + mirrored[:, ::-1]) / 2, 1e-5)
    assert np.abs(straight - twice.values).max() > 1e-3


def test_a_large_photo_passes_at_a_million_pixels_and_an_own_head_at_its_models_side():
    large = np.zeros((3000, 4000, 3), "uint8")
    for layout in ("dinov2_depth", "depth_anything"):
        height, width = prepared(depth_model(layout), large[:, :400] if layout == "depth_anything" else large).shape[:2]
        assert (1 << 20) * 0.98 < height * width <= (1 << 20) * 1.01, layout
    own = keras_vit.depth_estimator(encoder(), "linear", depth_range=(0.1, 10))
    assert own.short_side == 24
    assert prepared(own, large).shape == (24, 32, 3)
