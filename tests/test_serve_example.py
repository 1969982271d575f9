"""`examples/serve.py` and its stand-in server, by what a client of TensorFlow Serving would send them.

A server in this process is asked about a model with known answers.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from serving_calls import (
    LIMIT,
    PREDICT,
    StandIn,
    b64,
    example,
    grpc,
    predict_by_grpc,
    rest_calls,
    running_server,
    scores_of,
)
from serving_model import LABELS, expected_scores, photo

pytestmark = pytest.mark.docs  # an example


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    yield from running_server(tmp_path_factory.mktemp("served"))


@pytest.fixture
def rest(server):
    yield from rest_calls(server)


def test_rest_rows_are_one_object_for_each_photo(rest):
    status, found = rest(PREDICT, {"instances": [b64(photo(50)), b64(photo(61))]})
    assert status == 200
    assert [sorted(row) for row in found["predictions"]] == [
        ["classes", "labels", "scores", "status", "top_scores"]
    ] * 2
    scores = [row["scores"] for row in found["predictions"]]
    np.testing.assert_allclose(scores, expected_scores([50, 61]), atol=1e-6)


def test_rest_rows_may_be_named(rest):
    plain = rest(PREDICT, {"instances": [b64(photo(50))]})
    assert rest(PREDICT, {"instances": [{"image_bytes": b64(photo(50))}]}) == plain


def test_rest_columns_are_whole_tensors(rest):
    status, found = rest(PREDICT, {"inputs": {"image_bytes": [b64(photo(50)), b64(photo(61))]}})
    assert status == 200
    np.testing.assert_allclose(found["outputs"]["scores"], expected_scores([50, 61]), atol=1e-6)
    assert rest(PREDICT, {"inputs": [b64(photo(50)), b64(photo(61))]}) == (status, found)


def test_rest_labels_are_text(rest):
    _, found = rest(PREDICT, {"instances": [b64(photo(20))]})  # 20 is 6, 9, 7 over 7, 11, 13
    assert found["predictions"][0]["labels"] == [LABELS[1], LABELS[2]]


def test_rest_floats_are_the_shortest_decimals_of_float32(rest):
    _, found = rest(PREDICT, {"instances": [b64(photo(31))]})
    for score in found["predictions"][0]["scores"]:
        assert repr(score) == str(np.float32(score))


def test_rest_one_output_has_no_name(rest):
    pixels = np.full((2, 3, 5, 3), 1, int).tolist()
    status, found = rest(PREDICT, {"signature_name": "features_pixels", "instances": pixels})
    assert (status, found) == (200, {"predictions": [[0.75, 0.25, 1.5]] * 2})  # 45 over 7, 11 and 13, by 4
    assert rest(PREDICT, {"signature_name": "features_pixels", "inputs": pixels})[1] == {
        "outputs": [[0.75, 0.25, 1.5]] * 2
    }


def test_rest_takes_pixels(rest):
    pixels = np.random.default_rng(2).integers(0, 256, (2, 5, 7, 3))
    status, found = rest(PREDICT, {"signature_name": "predict_pixels", "instances": pixels.tolist()})
    assert status == 200
    scores = [row["scores"] for row in found["predictions"]]
    np.testing.assert_allclose(scores, expected_scores(pixels.sum((1, 2, 3))), atol=1e-6)


def test_rest_bad_photo_has_its_own_status_and_changes_no_other(rest):
    _, alone = rest(PREDICT, {"instances": [b64(photo(50))]})
    _, beside = rest(PREDICT, {"instances": [b64(b"no photo"), b64(photo(50)), "text"]})
    assert [row["status"] for row in beside["predictions"]] == ["not a JPEG or PNG", "ok", "not a JPEG or PNG"]
    assert beside["predictions"][1] == alone["predictions"][0]
    assert beside["predictions"][0]["classes"] == [-1, -1]


def test_rest_newest_version_is_served_and_tells_so(rest):
    status, found = rest("/v1/models/birds")
    (version,) = found["model_version_status"]
    assert (status, version["version"], version["state"]) == (200, "10", "AVAILABLE")
    assert version["status"] == {"error_code": "OK", "error_message": ""}
    assert rest("/v1/models/birds/versions/10") == (status, found)


def test_rest_version_can_be_asked_by_number(rest):
    body = {"instances": [b64(photo(50))]}
    assert rest("/v1/models/birds/versions/10:predict", body) == rest(PREDICT, body)


def test_rest_metadata_has_the_signatures(rest):
    status, found = rest("/v1/models/birds/metadata")
    assert (status, found["model_spec"]["version"]) == (200, "10")
    signature = found["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    image_bytes = signature["inputs"]["image_bytes"]
    assert image_bytes["dtype"] == "DT_STRING"
    assert image_bytes["tensor_shape"]["dim"] == [{"size": "-1", "name": ""}]


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/v1/models/fish:predict", {"instances": ["a"]}, 404, "Servable not found for request: Latest(fish)"),
        ("/v1/models/birds/versions/9:predict", {"instances": ["a"]}, 404, "Specific(birds, 9)"),
        ("/v1/models/birds/versions/11", None, 404, "Specific(birds, 11)"),
        (f"/v1/models/birds/versions/{2**63 - 1}", None, 404, "Specific(birds, 9223372036854775807)"),
        (f"/v1/models/birds/versions/{2**63}", None, 400, "Failed to convert version: 9223372036854775808 to numeric"),
        (f"/v1/models/birds/versions/{'9' * 5000}", None, 400, "Failed to convert version: 999"),
        ("/v1/models/birds/versions/\u0661\u0660", None, 400, "Malformed request"),
        (f"/v1/models/{'a/' * 5000}", None, 400, "Malformed request"),
        ("/v1/models/fish", None, 404, "Latest(fish)"),
        ("/v1/models/fish/metadata", None, 404, "Latest(fish)"),
        ("/v1/models/birds:classify", {"examples": []}, 400, "Malformed request: POST"),
        ("/v1/models/birds:predict", None, 400, "Malformed request: GET"),
        ("/", None, 400, "Malformed request: GET /"),
        (PREDICT, b"", 400, "JSON Parse error"),
        (PREDICT, b"\xff{", 400, "JSON Parse error"),
        (PREDICT, b"[" * 100_000, 400, "JSON Parse error"),
        (PREDICT, [], 400, "not an object"),
        (PREDICT, {}, 400, "'inputs' and 'instances'"),
        (PREDICT, {"instances": ["a"], "inputs": ["a"]}, 400, "'inputs' and 'instances'"),
        (PREDICT, {"instances": []}, 400, "at least one"),
        (PREDICT, {"instances": "a"}, 400, "must be a list"),
        (PREDICT, {"instances": ["a", {"image_bytes": "a"}]}, 400, "all objects or all values"),
        (PREDICT, {"instances": [{"photo": "a"}]}, 400, "the input must be image_bytes. Received: photo"),
        (PREDICT, {"inputs": {"photo": ["a"]}}, 400, "the input must be image_bytes. Received: photo"),
        (PREDICT, {"instances": [3]}, 400, '{"b64": "..."}'),
        (PREDICT, {"instances": [{"b64": "@"}]}, 400, "Unable to base64 decode"),
        (PREDICT, {"instances": [{"b64": "é"}]}, 400, "Unable to base64 decode"),
        (PREDICT, {"instances": [["a"], "b"]}, 400, "one length"),
        (PREDICT, {"instances": [["a"], ["b"]]}, 400, "shape"),
        (PREDICT, {"signature_name": "train", "instances": ["a"]}, 400, 'Serving signature name: "train" not found'),
        (PREDICT, {"signature_name": 3, "instances": ["a"]}, 400, "must be a string"),
        (PREDICT, {"signature_name": "predict_pixels", "instances": [[[[256, 0, 0]]]]}, 400, "whole numbers"),
        (PREDICT, {"signature_name": "predict_pixels", "instances": [[[[-1, 0, 0]]]]}, 400, "whole numbers"),
        (PREDICT, {"signature_name": "predict_pixels", "instances": [[[[0.5, 0, 0]]]]}, 400, "whole numbers"),
        (PREDICT, {"signature_name": "predict_pixels", "instances": [[[["1", 0, 0]]]]}, 400, "whole numbers"),
        (PREDICT, {"signature_name": "predict_pixels", "instances": [[[[1, 2]]]]}, 400, "shape"),
        (PREDICT, {"signature_name": "predict_pixels", "instances": [[1], [1, 2]]}, 400, "input pixels"),
        (PREDICT, {"signature_name": "predict_pixels", "instances": [10**400]}, 400, "input pixels"),
    ],
)
def test_rest_error_says_what_is_wrong(rest, path, body, status, text):
    found_status, found = rest(path, body)
    assert found_status == status, found
    assert list(found) == ["error"]
    assert text in found["error"]


def declared(kind, *shape, **values):
    """A tensor of one number, or of the given ones, whatever its shape says."""
    from tensorflow.core.framework import tensor_pb2

    values = values or {"int_val": [1], "float_val": [1.0], "string_val": [b"x"]}
    tensor = tensor_pb2.TensorProto(dtype=kind, **values)
    for size in shape or (1, 20, 28, 3):
        tensor.tensor_shape.dim.add(size=size)
    return tensor


def test_grpc_answers_as_rest(server):
    files = [photo(50), b"no photo", photo(61)]
    by_rest = example.ask_by_rest(files, "birds", server.rest_port)
    by_grpc = example.ask_by_grpc(files, "birds", server.grpc_port)
    assert example.difference(by_rest, by_grpc) < 1e-7  # decimals of float32
    for key in ("classes", "labels", "status"):
        assert [row[key] for row in by_rest] == [row[key] for row in by_grpc]


def test_grpc_tells_model_version_and_signature(server):
    spec = predict_by_grpc(server, [50], version=10).model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("birds", 10, "serving_default")


def test_grpc_gives_the_asked_outputs_only(server):
    assert list(predict_by_grpc(server, [50], outputs=["labels"]).outputs) == ["labels"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ({"version": 9}, "NOT_FOUND", "Specific(birds, 9)"),
        ({"signature": "train"}, "INVALID_ARGUMENT", "not found in signature def"),
        ({"signature": "predict_pixels"}, "INVALID_ARGUMENT", "['pixels']"),
        ({"outputs": ["depth"]}, "INVALID_ARGUMENT", "['depth']"),
        ({"lengths": [LIMIT + 1]}, "RESOURCE_EXHAUSTED", "larger than max"),
        ({"files": declared(7, 10_000_000)}, "INVALID_ARGUMENT", "declares 10000000 strings, but the request has 1"),
        ({"files": declared(7, 70_000, string_val=[b""] * 70_000)}, "INVALID_ARGUMENT", "at most 65536 strings, but"),
        ({"files": declared(7, -1)}, "INVALID_ARGUMENT", "a shape of at most 8 sides, all known and none negative"),
        ({"files": declared(7, *[1] * 9)}, "INVALID_ARGUMENT", "a shape of at most 8 sides"),
        ({"files": declared(999, 1)}, "INVALID_ARGUMENT", "of type string, but the request has type number 999"),
        ({"files": declared(0, 1)}, "INVALID_ARGUMENT", "must be of type string, but the request has none"),
        ({"pixels": declared(1)}, "INVALID_ARGUMENT", "must be of type uint8, but the request has float32"),
        ({"pixels": declared(4)}, "INVALID_ARGUMENT", "input pixels declares 1680 numbers, but the request has"),
        ({"pixels": declared(4, 1, 1, 1, 3, tensor_content=b"12")}, "INVALID_ARGUMENT", "declares 3 numbers, but"),
        ({"pixels": declared(4, 1, 1, 1, 3, tensor_content=b"1234")}, "INVALID_ARGUMENT", "but the request has 4"),
        ({"pixels": declared(4, 1, 1, 1, 3, int_val=[1, 2, 3, 4])}, "INVALID_ARGUMENT", "but the request has 4"),
        ({"pixels": declared(4, 1, 1, 1, 3, int_val=[1, 2, 300])}, "INVALID_ARGUMENT", "a tensor is damaged"),
        ({"pixels": declared(4, 2**62, 2**62, int_val=[])}, "INVALID_ARGUMENT", "at most 67108864 numbers, but"),
        ({"pixels": declared(4, 40000, 20, 28, 3)}, "INVALID_ARGUMENT", "but the request declares 67200000"),
    ],
)
def test_grpc_error_says_what_is_wrong(server, arguments, code, text):
    if "pixels" in arguments:
        arguments["signature"] = "predict_pixels"
    with pytest.raises(grpc.RpcError) as caught:
        predict_by_grpc(server, **{"lengths": [50]} | arguments)
    assert caught.value.code().name == code
    assert text in caught.value.details()


def test_concurrent_requests_get_their_own_answers(server):
    """16 threads, 400 requests of random batches by both protocols, each with another right answer."""
    local = threading.local()

    def one(seed):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(4, 3000, rng.integers(1, 9))
        if seed % 4 == 0:
            return np.abs(scores_of(predict_by_grpc(server, lengths)) - expected_scores(lengths)).max()
        if not hasattr(local, "session"):
            local.session = example.local_session()
        body = {"instances": [b64(photo(n)) for n in lengths] + ["bad"] * (seed % 10 == 0)}
        answer = local.session.post(f"http://127.0.0.1:{server.rest_port}{PREDICT}", json=body, timeout=60).json()
        found = [row["scores"] for row in answer["predictions"] if row["status"] == "ok"]
        return np.abs(found - expected_scores(lengths)).max()

    with ThreadPoolExecutor(16) as pool:
        assert max(pool.map(one, range(400))) < 1e-6


def test_fault_of_the_server_is_told_by_grpc_too(server, monkeypatch):
    monkeypatch.setattr(server.model, "predict", lambda *_: 1 / 0)
    with pytest.raises(grpc.RpcError) as caught:
        predict_by_grpc(server, [50])
    assert (caught.value.code().name, caught.value.details()) == ("INTERNAL", "ZeroDivisionError: division by zero")


def test_taken_port_is_an_error(server):
    with pytest.raises(OSError, match="in use"), StandIn(server.model, rest_port=server.rest_port):
        pass


def test_grpc_port_that_is_taken_is_an_error(server):
    with pytest.raises(RuntimeError, match="bind"), StandIn(server.model, grpc_port=server.grpc_port):
        pass
