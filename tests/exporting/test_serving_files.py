"""The files that TensorFlow Serving reads, against its public messages."""

import dataclasses
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from serving_model import write_served

from keras_vit.exporting import serving_files
from keras_vit.exporting.serving_files import serving_messages

# Written with tensorflow-serving-api 2.21.0: all the fields that we have, in one PredictionLog.
GOLDEN = bytes.fromhex(
    "32770a470a1c0a056269726473120208031a0f73657276696e675f64656661756c74121f0a0b696d6167655f627974657312100807120412"
    "0208024203ffd8ff4201781a0673636f726573122c0a200a0673636f726573121608011208120208011202080222080000803e0000403f12"
    "082206737461626c65"
)
# Typed from tensorflow_serving/config/model_server_config.proto, file_system_storage_path_source.proto and
# servables/tensorflow/session_bundle_config.proto: {message: {field: (number, type)}}, "[]" for a list.
PUBLIC = {
    "Latest": {"num_versions": (1, "uint32")},
    "Policy": {"latest": (100, "Latest")},
    "ModelConfig": {
        "name": (1, "string"),
        "base_path": (2, "string"),
        "model_platform": (4, "string"),
        "model_version_policy": (7, "Policy"),
    },
    "ModelConfigList": {"config": (1, "ModelConfig[]")},
    "ModelServerConfig": {"model_config_list": (1, "ModelConfigList")},
    "Int64Value": {"value": (1, "int64")},
    "BatchingParameters": {
        "max_batch_size": (1, "Int64Value"),
        "batch_timeout_micros": (2, "Int64Value"),
        "max_enqueued_batches": (3, "Int64Value"),
        "num_batch_threads": (4, "Int64Value"),
        "allowed_batch_sizes": (6, "int64[]"),
        "pad_variable_length_inputs": (7, "bool"),
    },
}


@dataclasses.dataclass
class StandInJob:
    name: str
    calibration_photos: np.ndarray
    jit_compile: bool = False
    max_batch: int = 128


@pytest.fixture(scope="module")
def spec():
    pixels = np.random.default_rng(0).integers(0, 256, (7, 20, 28, 3), dtype="uint8")
    return StandInJob("birds-2", pixels)


@pytest.fixture(scope="module")
def version(tmp_path_factory):
    """The folder of a version, not to be changed."""
    return write_served(tmp_path_factory.mktemp("served")) / "1"


@pytest.fixture(scope="module")
def written(spec, version, tmp_path_factory):
    """`(spec, folder)`, not to be changed; the version's folder is `folder/1`."""
    folder = tmp_path_factory.mktemp("written")
    return spec, write(spec, version, folder)


def write(spec, version, folder, photos=None):
    """Writes the files for a copy of the version, `folder/1`, and gives `folder`."""
    serving_files.write_serving_files(spec, folder, shutil.copytree(version, folder / "1"), photos)
    return folder


@pytest.fixture(scope="module")
def public():
    """The public messages for text files, in a pool of their own."""
    file = descriptor_pb2.FileDescriptorProto(name="public.proto", package="public", syntax="proto3")
    field_types = {"uint32": 13, "string": 9, "int64": 3, "bool": 8}
    for name, fields in PUBLIC.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            plain, repeated = kind.removesuffix("[]"), kind.endswith("[]")
            added = message.field.add(name=field, number=number, label=3 if repeated else 1)
            added.type = field_types.get(plain, 11)
            if plain not in field_types:
                added.type_name = f".public.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"public.{name}")) for name in PUBLIC}
    return types.SimpleNamespace(**found)


def logs(folder):
    records = tf.data.TFRecordDataset(str(folder / "1" / "assets.extra" / "tf_serving_warmup_requests"))
    return [serving_messages().PredictionLog.FromString(record) for record in records.as_numpy_iterator()]


def test_messages_have_the_public_field_numbers():
    log = serving_messages().PredictionLog()
    request, response = log.predict_log.request, log.predict_log.response
    request.model_spec.name, request.model_spec.signature_name = "birds", "serving_default"
    request.model_spec.version.value = 3
    request.inputs["image_bytes"].CopyFrom(tf.make_tensor_proto(np.array([b"\xff\xd8\xff", b"x"], object)))
    request.output_filter.append("scores")
    response.model_spec.version_label = "stable"
    response.outputs["scores"].CopyFrom(tf.make_tensor_proto(np.array([[0.25, 0.75]], "float32")))
    assert log.SerializeToString(deterministic=True) == GOLDEN


def test_messages_leave_no_field_of_the_public_ones_unread():
    log = serving_messages().PredictionLog.FromString(GOLDEN)
    log.DiscardUnknownFields()
    assert log.SerializeToString(deterministic=True) == GOLDEN


def test_messages_are_those_of_tensorflow_serving_api():
    pytest.importorskip("tensorflow_serving", reason="tensorflow-serving-api (install with --no-deps)")
    from tensorflow_serving.apis import model_pb2, predict_pb2, prediction_log_pb2

    for name, ours in vars(serving_messages()).items():
        public = [getattr(module, name, None) for module in (model_pb2, predict_pb2, prediction_log_pb2)]
        theirs = next(filter(None, public)).DESCRIPTOR.fields_by_name
        for field in ours.DESCRIPTOR.fields:
            other = theirs[field.name]
            assert (field.number, field.type, field.is_repeated) == (other.number, other.type, other.is_repeated)
            assert (field.containing_oneof and field.containing_oneof.name) == (
                other.containing_oneof and other.containing_oneof.name
            )


def test_warmup_has_a_request_for_every_signature(written):
    _, folder = written
    asked = [log.predict_log.request for log in logs(folder)]
    found = [(request.model_spec.signature_name, list(request.inputs)) for request in asked]
    assert found == [
        ("features_pixels", ["pixels"]),
        ("predict_pixels", ["pixels"]),
        ("serving_default", ["image_bytes"]),
        ("serving_default", ["image_bytes"]),
    ]
    assert {request.model_spec.name for request in asked} == {"birds-2"}


def test_warmup_sends_jpegs_that_decode_to_the_photos(written):
    spec, folder = written
    files = tf.make_ndarray(logs(folder)[-1].predict_log.request.inputs["image_bytes"])
    assert files.shape == (4,)
    smooth = tf.image.resize(spec.calibration_photos[0], (5, 7)).numpy()
    decoded = tf.image.resize(tf.io.decode_jpeg(files[0]), (5, 7)).numpy()
    assert tf.io.decode_jpeg(files[0]).shape == (20, 28, 3)
    assert np.abs(smooth - decoded).mean() < 60  # of noise JPEG keeps the coarse part; another photo is 100 apart


def test_warmup_sends_pixels_of_the_model_as_they_are(written):
    spec, folder = written
    sent = tf.make_ndarray(logs(folder)[0].predict_log.request.inputs["pixels"])
    np.testing.assert_array_equal(sent, spec.calibration_photos[:1])
    assert sent.dtype == np.uint8


def test_warmup_takes_given_photos_of_many_sizes(spec, version, tmp_path):
    photos = [np.full((height, 31, 3), 90, "uint8") for height in (11, 23)]
    files = tf.make_ndarray(logs(write(spec, version, tmp_path, photos))[-1].predict_log.request.inputs["image_bytes"])
    assert [tf.io.decode_jpeg(data).shape[0] for data in files] == [11, 23]


@pytest.mark.parametrize(("channels", "of_file"), [(1, 1), (2, 1), (5, 3)])
def test_warmup_photos_of_other_channels_become_jpegs(channels, of_file):
    photos = [np.zeros((9, 13, channels), "uint8")]
    requests = serving_files.warmup_requests("a", {"serving_default": {"image_bytes"}}, photos, None)
    data = tf.make_ndarray(requests[0].predict_log.request.inputs["image_bytes"])[0]
    assert tf.io.decode_jpeg(data).shape == (9, 13, of_file)


def test_warmup_leaves_out_signatures_that_take_other_things():
    photos = [np.zeros((9, 13, 3), "uint8")]
    signatures = {"train": {"pixels", "labels"}, "serving_default": {"text"}}
    assert serving_files.warmup_requests("a", signatures, photos, np.zeros((1, 9, 13, 3), "uint8")) == []


def test_warmup_requests_are_answered_by_a_session(written):
    _, folder = written
    requests = serving_files.read_warmup_requests(folder / "1")
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(folder / "1"))
        for request in requests:
            signature = loaded.signature_def[request.model_spec.signature_name]
            fed = {signature.inputs[key].name: tf.make_ndarray(tensor) for key, tensor in request.inputs.items()}
            answers = session.run({key: info.name for key, info in signature.outputs.items()}, fed)
            assert all(status == b"ok" for status in answers.get("status", []))
    assert len(requests) == 4


def test_version_without_warmup_has_no_requests(tmp_path):
    assert serving_files.read_warmup_requests(tmp_path) == []


def test_config_is_a_model_server_config(written, public):
    _, folder = written
    found = text_format.Parse((folder / "config.pbtxt").read_text(), public.ModelServerConfig())
    (config,) = found.model_config_list.config
    assert (config.name, config.base_path, config.model_platform) == ("birds-2", "/models/birds-2", "tensorflow")
    assert config.model_version_policy.latest.num_versions == 1


def test_config_is_what_tensorflow_serving_api_parses(written):
    pytest.importorskip("tensorflow_serving", reason="tensorflow-serving-api (install with --no-deps)")
    from tensorflow_serving.config import model_server_config_pb2

    text = (written[1] / "config.pbtxt").read_text()
    found = text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
    assert found.model_config_list.config[0].model_version_policy.latest.num_versions == 1


def test_batching_parameters_pad_nothing(written, public):
    _, folder = written
    found = text_format.Parse((folder / "batching_parameters.txt").read_text(), public.BatchingParameters())
    assert found.max_batch_size.value == 32
    assert not found.pad_variable_length_inputs  # padding would change what the model sees
    assert not found.allowed_batch_sizes


@pytest.mark.parametrize(
    ("fields", "sizes", "allowed", "largest"),
    [
        ({"max_batch": 3}, [1, 3], [], 3),
        ({"max_batch": 3, "jit_compile": True}, [1, 2, 3], [1, 2, 3], 3),
        ({"jit_compile": True}, [1, 2, 4, 8], [1, 2, 4, 8], 8),  # the server wants the last of the sizes
    ],
    ids=str,
)
def test_warmup_has_every_number_of_photos_that_is_compiled_and_none_beyond_the_limit(
    fields, sizes, allowed, largest, spec, version, public, tmp_path
):
    write(dataclasses.replace(spec, **fields), version, tmp_path)
    found = text_format.Parse((tmp_path / "batching_parameters.txt").read_text(), public.BatchingParameters())
    requests = serving_files.read_warmup_requests(tmp_path / "1")
    sent = [tf.make_ndarray(request.inputs["image_bytes"]) for request in requests if "image_bytes" in request.inputs]
    assert [len(files) for files in sent] == sizes
    assert all(tf.io.decode_jpeg(file).shape == (20, 28, 3) for file in sent[-1])
    assert (found.max_batch_size.value, list(found.allowed_batch_sizes)) == (largest, allowed)
