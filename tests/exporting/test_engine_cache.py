"""The second `keras_vit.accelerate` of a model reads what the first one kept, and never gives a stale answer."""

import dataclasses
import errno
import hashlib
import json
import resource
import shutil

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy
from exporting.fake_format import traced
from pictures import picture

import keras_vit
from keras_vit.cache import Cache, cache_dir
from keras_vit.exporting.engines import accelerate as module
from keras_vit.exporting.engines import cache
from keras_vit.exporting.engines.cache import EngineCache, Request, max_bytes_kept
from keras_vit.files import staging

PHOTOS = [picture(33 + n, 47 - n, seed=n) for n in range(3)]
CLOSE = 1e-5  # the promise of float32; numbers of these models are below 5
X = images(2, 20, 28, 3)


@pytest.fixture(autouse=True, scope="module")
def one_reference():
    """A model is traced once for all comparisons with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Reference", lambda *arguments, **_: traced(*arguments))
        yield


@pytest.fixture(scope="module")
def model():
    return make_tiny(num_layers=1)


@pytest.fixture(scope="module")
def first(model, tmp_path_factory):
    """The engine of a first call by OpenVINO, and the folder in which it was kept."""
    folder = tmp_path_factory.mktemp("first") / "engines"
    return accelerated(model, cache=folder), folder


@pytest.fixture
def folder(first):
    """The cache's own folder, as that call has left it."""
    return shutil.copytree(first[1], cache_dir("engines"))


@pytest.fixture
def made(monkeypatch):
    """Names of the engines that were made anew, in order."""
    names, opened = [], module.open_engine

    def noted(engine, *arguments):
        names.append(engine)
        return opened(engine, *arguments)

    monkeypatch.setattr(module, "open_engine", noted)
    return names


def accelerated(model, engine="openvino", *asked, **options):
    return keras_vit.accelerate(model, engine, *asked, images=PHOTOS, **options)


def with_the_weights_of(model):
    """Another model, whose names Keras has numbered anew."""
    other = make_tiny(num_layers=1, name="another")
    other.set_weights(model.get_weights())
    return other


def assert_right(engine, model):
    assert np.abs(engine(X) - numpy(model(X, training=False))).max() < CLOSE


def networks():
    return [path.parent for path in cache_dir("engines").glob("*/network.xml")]


@pytest.mark.parametrize(
    ("name", "precision"), [("openvino", "float32"), ("onnxruntime", "int8"), ("tensorflow", "float32")]
)
def test_second_call_reads_what_the_first_one_kept(model, folder, first, made, name, precision):
    before = first[0] if name == "openvino" else accelerated(model, name, precision)
    del made[:]
    other = with_the_weights_of(model)
    again = accelerated(other, name, precision)
    assert made == (["tensorflow"] if name == "tensorflow" else [])  # which computes with the model's own weights
    np.testing.assert_array_equal(again(X), before(X))
    assert (before.report.kept_on, again.name) == (None, "another")
    assert dataclasses.replace(again.report, kept_on=None) == before.report
    assert again.report.line() == f"{before.report.line()}; as measured on {again.report.kept_on}"
    if name == "tensorflow":
        other.layers[-1].bias.assign_add(np.ones(7))
        assert_right(again, other)


def test_calls_with_other_threads_and_batches_share_a_network(model, folder, made):
    for _ in range(2):
        engine = accelerated(model, threads=1, batch_size=2)
        assert (engine.threads, engine.report.batch_size) == (1, 2)
    assert engine.report.kept_on is not None
    assert made == []
    assert len(networks()) == 1


def test_one_changed_weight_is_answered_for(model, folder, made):
    other = with_the_weights_of(model)
    kernel = other.layers[-1].kernel
    value = np.array(kernel)
    value[3, 5] = np.nextafter(value[3, 5], np.float32(9))
    kernel.assign(value)
    assert_right(accelerated(other), other)
    assert made == ["openvino"]


def test_every_fact_has_a_part_in_the_names(model, tmp_path, monkeypatch):
    kept = Cache(tmp_path / "kept", 1)

    def names(photos="photos", **changed):
        asked = {"model": model, "engine": "auto", "precision": "float32", "threads": None, "batch_size": 1}
        calls = EngineCache(Request(**{**asked, "images": None, **changed}), kept, photos)
        return calls._report_name(), calls._network_name("openvino")

    note, network = names()
    frozen = with_the_weights_of(model)
    frozen.trainable = False
    assert names(model=frozen) == (note, network)
    for changed in ({"engine": "openvino"}, {"threads": 1}, {"batch_size": 2}, {"photos": "others"}):
        assert names(**changed)[0] != note
        assert names(**changed)[1] == network
    int8 = names(precision="int8")
    assert names(precision="int8", photos="others")[1] != int8[1]  # which is calibrated on them
    others = [int8, names(precision="bfloat16"), names(model=make_tiny(num_layers=1, activation="gelu"))]
    preparation = dataclasses.replace(model.preprocessing, mean=(0.4, 0.5, 0.6))
    for target, name, value in (
        (model, "preprocessing", preparation),
        (cache, "_versions", lambda: "other"),
        (cache, "_sources", lambda: "other"),
        (cache, "cpu_fingerprint", lambda: "other"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, value)
            others.append(names())
    for part, expected in enumerate((note, network)):
        assert len({expected, *(other[part] for other in others)}) == 1 + len(others)
    for variable, value in (("TF_NUM_INTRAOP_THREADS", "7"), ("UNRELATED", "7")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            assert (names()[0] != note) == (variable == "TF_NUM_INTRAOP_THREADS")
    monkeypatch.setattr(cache, "cores", lambda: range(99))
    assert names()[0] != note
    assert names()[1] == network


def test_what_no_digest_tells_is_seen_on_a_photo(model, made, monkeypatch):
    monkeypatch.setattr(cache, "model_fingerprint", lambda model: hashlib.sha256(b"the same"))
    accelerated(model)
    other = with_the_weights_of(model)
    other.layers[-1].bias.assign_add(np.ones(7))
    with pytest.warns(UserWarning, match="does not compute what the model computes"):
        assert_right(accelerated(other), other)
    assert_right(accelerated(model, batch_size=2), model)  # of which there is no report, and another's network
    assert made == ["openvino"] * 3


def test_damaged_network_is_converted_anew(model, folder, made):
    (place,) = networks()
    content = bytearray((place / "network.bin").read_bytes())
    content[len(content) // 2] ^= 4
    (place / "network.bin").write_bytes(content)
    with pytest.warns(UserWarning, match=r"is of no use and is made anew: the digest of network\.bin differs"):
        assert_right(accelerated(model), model)
    assert made == ["openvino"]
    assert accelerated(model).report.kept_on is not None


def test_network_that_its_engine_does_not_take_is_converted_anew(model, folder, made):
    (place,) = networks()
    (place / "network.xml").write_text("<net/>")
    rewrite_digests(place)
    assert_right(accelerated(model), model)
    assert made == ["openvino"]


@pytest.mark.parametrize(
    "photo", [np.full((9, 9, 3), np.nan), np.zeros((0, 9, 3), "uint8"), np.zeros((9, 9, 4), "uint8")]
)
def test_report_with_a_photo_of_no_numbers_is_damaged_whatever_its_digest(model, folder, made, photo):
    (place,) = cache_dir("engines").glob("*/photo.npy")
    np.save(place, photo)
    rewrite_digests(place.parent)
    with pytest.warns(UserWarning, match=rf"{place.parent} is of no use and is made anew: photo\.npy is "):
        assert_right(accelerated(model), model)
    assert accelerated(model).report.kept_on is not None


def test_report_with_nan_is_damaged_whatever_its_digest(model, folder, made):
    (place,) = cache_dir("engines").glob("*/report.json")
    facts = json.loads(place.read_text())
    facts["seconds"]["openvino"] = float("nan")
    place.write_text(json.dumps(facts))
    rewrite_digests(place.parent)
    with pytest.warns(UserWarning, match=r"is made anew: report\.json has NaN for a number"):
        assert_right(accelerated(model), model)


def rewrite_digests(place):
    files = [file for file in place.iterdir() if file.name != "kept.json"]
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    (place / "kept.json").write_text(json.dumps(digests))


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("name", "fault"), [("openvino", "all writing"), ("onnxruntime", "disk"), ("tensorflow", "rights")]
)
def test_engine_works_where_nothing_can_be_kept(model, name, fault, monkeypatch, recwarn):
    """With "all writing" the process may write no longer files, which OpenVINO would not tell."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    cache_dir("engines").mkdir(parents=True)
    cache_dir("engines").chmod(0o777 if fault == "rights" else 0o700)
    monkeypatch.setattr("keras_vit.cache.staging", full if fault == "disk" else staging)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6_000 if fault == "all writing" else limits[0], limits[1]))
    try:
        engine = accelerated(model, name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_right(engine, model)
    (said,) = [str(warning.message) for warning in recwarn if warning.category is UserWarning]
    assert "is not kept for the next call: " in said
    assert "\n" not in said
    assert list(cache_dir("engines").iterdir()) == []


def test_engine_works_without_a_home(model, monkeypatch, recwarn):
    monkeypatch.delenv("KERAS_VIT_CACHE")
    homeless = RuntimeError("Could not determine home directory.")
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: (_ for _ in ()).throw(homeless))
    assert_right(accelerated(model, "tensorflow"), model)
    (said,) = [str(warning.message) for warning in recwarn if warning.category is UserWarning]
    assert said.startswith("nothing is kept for the next call: the cache must have a folder. Could not determine home")
    assert said.endswith("Set KERAS_VIT_CACHE to a folder of yours.")
    monkeypatch.setenv("KERAS_VIT_CACHE", "~nobody_here/cache")  # a wrong value is no missing one
    with pytest.raises(ValueError, match="KERAS_VIT_CACHE"):
        accelerated(model, "tensorflow")


def test_who_asks_for_it_keeps_elsewhere_or_nothing(model, first, monkeypatch):
    assert accelerated(model, cache=str(first[1])).report.kept_on is not None
    monkeypatch.setenv("KERAS_VIT_ENGINES_GB", "0")
    accelerated(model, "tensorflow")
    monkeypatch.delenv("KERAS_VIT_ENGINES_GB")
    accelerated(model, "tensorflow", cache=None)
    assert not cache_dir().exists()
    with pytest.raises(ValueError, match="`cache` must be a folder"):
        accelerated(model, cache="")


def test_model_with_layers_of_the_users_own_is_not_kept(model):
    class Mine(type(model.layers[-2])):
        """Whose code may be another one tomorrow."""

    assert not cache.has_user_code(model)
    assert cache.has_user_code(keras.Sequential([Mine.from_config(model.layers[-2].get_config())]))


def test_photos_that_cannot_be_read_are_told_as_ever(model, folder, tmp_path):
    for photos, error in ((tmp_path / "nowhere", FileNotFoundError), (3, TypeError), ([], ValueError)):
        with pytest.raises(error, match="`images`"):
            keras_vit.accelerate(model, "openvino", images=photos)


def test_limit_is_a_number_of_gigabytes(monkeypatch):
    assert max_bytes_kept() == 4 * 10**9
    for text, expected in (("0", 0), ("", 4 * 10**9), ("0.5", 5 * 10**8)):
        monkeypatch.setenv("KERAS_VIT_ENGINES_GB", text)
        assert max_bytes_kept() == expected
    for text in ("four", "-1", "nan", "inf", "1e300"):
        monkeypatch.setenv("KERAS_VIT_ENGINES_GB", text)
        with pytest.raises(ValueError, match=rf"to 1e299\.\nReceived: KERAS_VIT_ENGINES_GB={text}"):
            max_bytes_kept()
