import functools
import re

import numpy as np
import pytest
import tensorflow as tf
from conftest import make_tiny, numpy
from exporting.served import LABELS, RECORDS, logits, make_job, softmax, with_record
from pictures import encoded, forged_png, picture, turned
from tensorflow.core.protobuf import saved_model_pb2

from keras_vit.exporting.formats.saved_model import SavedModel
from keras_vit.exporting.verification import verify
from keras_vit.model.outputs import inference_model
from keras_vit.model.precision import in_precision
from keras_vit.silence import silence

CLOSE = 1e-5  # the bound of an export in float32
PICTURES = [picture(45 + 7 * n, 67 - 5 * n, seed=n) for n in range(5)]
FILES = [encoded(pixels, "PNG") for pixels in PICTURES]
# What a record does to photos is proven in `test_file_inputs`, so one is enough for the default run.
SOME_RECORDS = [name if name == "squash" else pytest.param(name, marks=pytest.mark.nightly) for name in RECORDS]


@pytest.fixture(scope="module")
def served(of_record):
    """A model, and the signatures of its folder."""
    spec, place = of_record("squash")
    return spec, place, tf.saved_model.load(str(place))


@pytest.fixture(scope="module")
def of_record(tmp_path_factory):
    """By the name of a record, a spec with it and its folder, written once."""

    @functools.cache
    def of_record(name):
        spec, place = make_job(with_record(name)), tmp_path_factory.mktemp("record") / "1"
        SavedModel().write(spec, place)
        return spec, place

    return of_record


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A spec whose network is compiled and whose scores are sigmoids, its folder, and its signatures."""
    spec = make_job(make_tiny(num_layers=1), jit_compile=True, activation="sigmoid")
    place = tmp_path_factory.mktemp("compiled") / "1"
    SavedModel().write(spec, place)
    return spec, place, tf.saved_model.load(str(place))


def signatures_of(spec, place):
    SavedModel().write(spec, place)
    return signatures_in(place)


def signatures_in(place):
    loaded = tf.saved_model.load(str(place))
    return loaded.signatures, loaded  # the weights live as long as what was loaded


def sigmoid(values):
    return 1 / (1 + np.exp(-values))


def test_signatures_have_the_documented_names_and_shapes(served):
    signatures = served[2].signatures
    found = {
        name: {key: (spec.dtype.name, spec.shape.as_list()) for key, spec in signature.structured_outputs.items()}
        for name, signature in signatures.items()
    }
    named = {
        "scores": ("float32", [None, 7]),
        "classes": ("int32", [None, 3]),
        "labels": ("string", [None, 3]),
        "top_scores": ("float32", [None, 3]),
    }
    features, status = {"features": ("float32", [None, 12])}, {"status": ("string", [None])}
    assert found == {
        "serving_default": named | status,
        "predict_pixels": named | {"logits": ("float32", [None, 7])},
        "features": features | status,
        "features_pixels": features,
    }
    inputs = {name: signature.structured_input_signature[1] for name, signature in signatures.items()}
    files, pixels = (
        {"image_bytes": tf.TensorSpec((None,), tf.string, "image_bytes")},
        {"pixels": tf.TensorSpec((None, None, None, 3), tf.uint8, "pixels")},
    )
    assert inputs == {
        "serving_default": files,
        "predict_pixels": pixels,
        "features": files,
        "features_pixels": pixels,
    }


@pytest.mark.parametrize("record", SOME_RECORDS)
def test_files_get_the_scores_that_keras_gives_their_pixels(record, of_record):
    spec, place = of_record(record)
    signatures, _kept = signatures_in(place)
    found = signatures["serving_default"](image_bytes=tf.constant(FILES))
    wanted = np.stack([softmax(logits(spec.model, pixels)) for pixels in PICTURES])
    np.testing.assert_allclose(found["scores"], wanted, atol=CLOSE)
    for pixels in PICTURES[:2]:
        found = signatures["predict_pixels"](pixels=tf.constant(pixels[None]))
        np.testing.assert_allclose(found["logits"][0], logits(spec.model, pixels), atol=CLOSE)
    assert verify(
        spec.model, SavedModel().open_runtime(place), PICTURES, spec
    ).passed  # a crop also of the model's own size


def test_best_classes_come_first_with_their_labels(served):
    found = served[2].signatures["serving_default"](image_bytes=tf.constant(FILES))
    order = np.argsort(-found["scores"].numpy(), axis=1, kind="stable")[:, :3]
    np.testing.assert_array_equal(found["classes"], order)
    np.testing.assert_array_equal(found["labels"].numpy().astype(str), np.array(LABELS)[order])
    np.testing.assert_array_equal(found["top_scores"], np.take_along_axis(found["scores"].numpy(), order, 1))


def test_features_are_what_the_head_reads(served):
    spec, _, loaded = served
    prepared = np.concatenate([numpy(spec.model.preprocessing(pixels[None])) for pixels in PICTURES])
    wanted = inference_model(spec.model)(prepared, training=False)["features"]
    np.testing.assert_allclose(
        loaded.signatures["features"](image_bytes=tf.constant(FILES))["features"], wanted, atol=CLOSE
    )
    found = loaded.signatures["features_pixels"](pixels=tf.constant(PICTURES[3][None]))["features"]
    np.testing.assert_allclose(found, wanted[3:4], atol=CLOSE)


def test_photo_that_asks_to_be_turned_is_turned(served):
    spec, _, loaded = served
    found = loaded.signatures["serving_default"](image_bytes=tf.constant([turned(PICTURES[0], 6, "PNG")]))
    wanted = softmax(logits(spec.model, np.rot90(PICTURES[0], -1)))
    np.testing.assert_allclose(found["scores"][0], wanted, atol=CLOSE)


@pytest.mark.parametrize(
    ("status", "bad"),
    [
        ("empty", b""),
        ("too many bytes", FILES[0] + bytes(2**17)),
        ("not a JPEG or PNG", b"text"),
        ("too many pixels", forged_png(20000, 20000)),
        ("damaged", FILES[0][:-30]),
    ],
)
def test_bad_file_gets_its_status_and_changes_no_bit_of_the_others(served, status, bad):
    answer = served[2].signatures["serving_default"]
    whole, mixed = answer(image_bytes=tf.constant(FILES)), answer(image_bytes=tf.constant([bad, *FILES[1:]]))
    assert mixed["status"].numpy().tolist() == [status.encode(), *[b"ok"] * 4]
    for name, rows in mixed.items():
        np.testing.assert_array_equal(rows[1:], whole[name][1:], err_msg=name)
    assert not mixed["scores"][0].numpy().any()
    assert mixed["classes"][0].numpy().tolist() == [-1] * 3
    assert mixed["labels"][0].numpy().tolist() == [b""] * 3


def test_empty_batch_gets_empty_answers(served):
    signatures = served[2].signatures
    found = signatures["serving_default"](image_bytes=tf.zeros((0,), tf.string))
    found |= signatures["predict_pixels"](pixels=tf.zeros((0, 31, 41, 3), tf.uint8))
    assert {len(rows) for rows in found.values()} == {0}


def test_request_of_too_many_images_is_refused_by_every_signature(served):
    """A server makes INVALID_ARGUMENT and HTTP 400 of it."""
    files, pixels = tf.fill((129,), ""), tf.zeros((129, 20, 28, 3), tf.uint8)
    for name, signature in served[2].signatures.items():
        given = {"pixels": pixels} if name.endswith("pixels") else {"image_bytes": files}
        with pytest.raises(tf.errors.InvalidArgumentError, match="at most 128 images"):
            signature(**given)


def test_signature_of_pixels_is_converted_to_litert(served):
    """By its built-in operations alone, as most weights prepare photos: squashed, bilinear, without antialias."""
    spec, place, _ = served
    converter = tf.lite.TFLiteConverter.from_saved_model(str(place), signature_keys=["predict_pixels"])
    with silence():
        interpreter = tf.lite.Interpreter(model_content=converter.convert())
        runner = interpreter.get_signature_runner("predict_pixels")
        found = [runner(pixels=pixels[None]) for pixels in (picture(20, 28), *PICTURES[:2])]
    wanted = [logits(spec.model, pixels) for pixels in (picture(20, 28), *PICTURES[:2])]
    np.testing.assert_allclose([one["logits"][0] for one in found], wanted, atol=CLOSE)
    assert [one["labels"][0, 0].decode() for one in found] == [LABELS[one.argmax()] for one in wanted]


def test_compiled_network_answers_as_keras(compiled):
    """Of one, three and no photo, each of which XLA compiles, by either loader, and a bad one among them."""
    spec, place, loaded = compiled
    signatures, runtime = loaded.signatures, SavedModel().open_runtime(place)
    wanted = [sigmoid(logits(spec.model, pixels)) for pixels in PICTURES[:2]]
    found = runtime.photos(FILES[:1])
    np.testing.assert_allclose(found["scores"], wanted[:1], atol=CLOSE)
    found = signatures["serving_default"](image_bytes=tf.constant([FILES[0], b"text", FILES[1]]))
    np.testing.assert_allclose(found["scores"].numpy()[::2], wanted, atol=CLOSE)
    assert not len(signatures["predict_pixels"](pixels=tf.zeros((0, 20, 28, 3), tf.uint8))["scores"])
    functions = graph_of(place).graph_def.library.function
    assert sum(function.attr["_XlaMustCompile"].b for function in functions) == 1


def graph_of(place):
    saved = saved_model_pb2.SavedModel.FromString((place / "saved_model.pb").read_bytes())
    return saved.meta_graphs[0]


ALLOWED = set(
    """
    Abs AddV2 All Any ArgMax Assert AssignVariableOp BatchDatasetV2 BatchMatMulV2 BiasAdd BroadcastTo Cast
    ConcatV2 ConcatenateDataset Const Conv2D DatasetToSingleElement DecodeJpeg DecodePaddedRaw DecodePng
    DecodeRaw DisableCopyOnRead Einsum EnsureShape Equal Erf Erfc Exp ExpandDims ExtractJpegShape Fill Floor FloorDiv
    FloorMod GatherV2 Greater GreaterEqual Identity If IgnoreErrorsDataset LeftShift Less LessEqual LogicalAnd
    LogicalNot LogicalOr MapDataset MatMul Max Maximum Mean MergeV2Checkpoints Min Minimum Mul Neg NoOp NotEqual
    OptionsDataset Pack ParallelMapDatasetV2 Placeholder Pow Range RangeDataset ReadVariableOp RealDiv ReduceJoin
    Reshape ResizeBilinear RestoreV2 ReverseV2 RewriteDataset Round Rsqrt SaveV2 ScaleAndTranslate Select SelectV2 Shape
    ShardedFilename Size Slice Softmax SquaredDifference Squeeze StatefulPartitionedCall StatelessCase
    StatelessIf StatelessWhile StaticRegexFullMatch StopGradient StridedSlice StringJoin StringLength Sub Substr
    Sum Tanh TensorDataset TensorListConcatV2 TensorListFromTensor TensorListGetItem TensorListReserve
    TensorListSetItem TensorListStack TensorScatterUpdate TensorSliceDataset TopKV2 Transpose Unpack VarHandleOp
    While ZipDataset
    """.split()  # noqa: SIM905
)  # the Python side saves and restores the weights by RestoreV2, SaveV2 and what is around them


@pytest.mark.parametrize("record", SOME_RECORDS)
def test_graph_has_no_operation_beyond_the_list(record, of_record):
    graph = graph_of(of_record(record)[1]).graph_def
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    assert {node.op for node in nodes} - ALLOWED == set()


def test_operations_on_files_serve_the_weights_alone(served):
    graph = graph_of(served[1]).graph_def
    on_files = {"RestoreV2", "SaveV2", "ShardedFilename", "MergeV2Checkpoints"}
    users = {
        function.signature.name for function in graph.library.function for n in function.node_def if n.op in on_files
    }
    assert {re.sub(r"_\d+$", "", user) for user in users} <= {"__inference__traced_save", "__inference__traced_restore"}


def test_folder_holds_nothing_of_the_machine_or_of_keras(served):
    _, place, _ = served
    assert {path.name for path in place.iterdir()} <= {"assets", "variables", "saved_model.pb", "fingerprint.pb"}
    data = (place / "saved_model.pb").read_bytes()
    for word in (b"keras_vit", b".py", b"/home", b"/tmp", b"/work"):
        assert word not in data, word


def test_model_without_a_head_serves_features_alone(tmp_path):
    spec = make_job(make_tiny(include_top=False, classes=None, num_layers=1))
    signatures, _kept = signatures_of(spec, tmp_path / "1")
    assert set(signatures) == {"serving_default", "features", "features_pixels"}
    found = signatures["serving_default"](image_bytes=tf.constant([*FILES[:2], b""]))
    np.testing.assert_allclose(found["features"][1], logits(spec.model, PICTURES[1]), atol=CLOSE)
    assert not found["features"][2].numpy().any()
    assert set(SavedModel().open_runtime(tmp_path / "1").photos(FILES[:1])) == {"features", "status"}


def test_model_of_any_size_takes_pixels_of_any_size(tmp_path):
    spec = make_job(make_tiny(input_shape=(None, None, 3), num_layers=1))
    signatures, _kept = signatures_of(spec, tmp_path / "1")
    assert set(signatures) == {"serving_default", "predict_pixels", "features_pixels"}
    pixels = picture(24, 36)
    np.testing.assert_allclose(
        signatures["serving_default"](pixels=tf.constant(pixels[None]))["logits"][0],
        logits(spec.model, pixels),
        atol=CLOSE,
    )
    assert SavedModel().open_runtime(tmp_path / "1").photos is None


def test_sigmoid_scores_come_of_the_logits(compiled):
    found = compiled[2].signatures["predict_pixels"](pixels=tf.constant(PICTURES[0][None]))
    np.testing.assert_allclose(found["scores"], sigmoid(found["logits"].numpy()), atol=1e-6)


def test_model_that_ends_in_scores_has_no_logits(tmp_path):
    """And takes no files, whose signatures are slow to write."""
    model = make_tiny(classifier_activation="softmax", input_shape=(None, None, 3), num_layers=1)
    spec, pixels = make_job(model, activation="none"), picture(24, 36)
    signatures, _kept = signatures_of(spec, tmp_path / "1")
    found = signatures["predict_pixels"](pixels=tf.constant(pixels[None]))
    assert "logits" not in found
    np.testing.assert_allclose(found["scores"][0], logits(spec.model, pixels), atol=CLOSE)


def test_int8_is_served_as_keras_computes_it(tmp_path):
    model = in_precision(make_tiny(num_layers=1, input_shape=(None, None, 3)), "int8")
    spec, pixels = make_job(model, precision="int8"), picture(24, 36)
    signatures, _kept = signatures_of(spec, tmp_path / "1")
    found = signatures["serving_default"](pixels=tf.constant(pixels[None]))
    assert found["logits"].dtype == tf.float32
    # The same operations; fused otherwise, a number of 8 bits may round to its neighbour.
    np.testing.assert_allclose(found["logits"][0], logits(model, pixels), atol=1e-4)
