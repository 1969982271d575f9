"""A stand-in server in this process, of a model with known answers, and calls to it by REST and gRPC."""

import base64
import json
import sys

import numpy as np
import pytest
from conftest import ROOT
from serving_model import photo, write_served

grpc = pytest.importorskip("grpc")
pytest.importorskip("requests")
pytest.importorskip("uvicorn")
sys.path.insert(0, str(ROOT / "examples"))

import serve as example  # noqa: E402
from serving_stand_in import ServedModel, StandIn  # noqa: E402

LIMIT = 300_000  # bytes of a request, in these tests
PREDICT = "/v1/models/birds:predict"


def running_server(folder):
    """Of two versions, of which the newer is served."""
    write_served(folder, version=9)
    write_served(folder, version=10)
    with StandIn(ServedModel(folder, "birds"), max_body=LIMIT) as running:
        yield running


def rest_calls(server):
    """`rest(path, json or bytes)` gives status and JSON; without a body it is a GET."""
    with example.local_session() as session:

        def ask(path, body=None):
            body = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
            url = f"http://127.0.0.1:{server.rest_port}{path}"
            answer = session.request("GET" if body is None else "POST", url, data=body, timeout=60)
            assert answer.headers["content-type"] == "application/json"
            return answer.status_code, answer.json()

        yield ask


def b64(data):
    return {"b64": base64.b64encode(data).decode()}


def predict_by_grpc(server, lengths, version=None, signature="", outputs=(), pixels=None, files=None):
    import tensorflow as tf

    from keras_vit.exporting.serving_files import serving_messages

    messages = serving_messages()
    request = messages.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = "birds", signature
    if version is not None:
        request.model_spec.version.value = version
    if pixels is None:
        files = files or tf.make_tensor_proto(np.array([photo(n) for n in lengths], object))
        request.inputs["image_bytes"].CopyFrom(files)
    else:
        request.inputs["pixels"].CopyFrom(pixels)
    request.output_filter.extend(outputs)
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", [("grpc.enable_http_proxy", 0)]) as channel:
        call = channel.unary_unary(
            "/tensorflow.serving.PredictionService/Predict",
            messages.PredictRequest.SerializeToString,
            messages.PredictResponse.FromString,
        )
        return call(request, timeout=60)


def scores_of(response):
    import tensorflow as tf

    return tf.make_ndarray(response.outputs["scores"])
