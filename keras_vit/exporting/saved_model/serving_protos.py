"""The few messages of TensorFlow Serving that a prediction needs, as Python classes.

They are built from the table below, since the package that has all of them, tensorflow-serving-api, installs
`tensorflow` over a `tensorflow-cpu`. On the wire a message is its field numbers, so these are the same messages. Their
package has a name of its own, so that both can be imported in one process.
Source: tensorflow_serving/apis/{model,predict,prediction_log}.proto.
"""

import functools
import types
from typing import Any

SERVICE = "tensorflow.serving.PredictionService"  # its method `Predict`: PredictRequest to PredictResponse
_PACKAGE = "keras_vit_serving"
_TENSOR, _INT64 = "tensorflow.TensorProto", "google.protobuf.Int64Value"
# {message: {field: (number, type)}}; "map" is from names to tensors, "many" a list of strings.
_MESSAGES = {
    "ModelSpec": {
        "name": (1, "string"),
        "version": (2, _INT64),
        "signature_name": (3, "string"),
        "version_label": (4, "string"),
    },
    "PredictRequest": {"model_spec": (1, "ModelSpec"), "inputs": (2, "map"), "output_filter": (3, "many")},
    "PredictResponse": {"outputs": (1, "map"), "model_spec": (2, "ModelSpec")},
    "PredictLog": {"request": (1, "PredictRequest"), "response": (2, "PredictResponse")},
    "PredictionLog": {"predict_log": (6, "PredictLog")},
}
_ONE_OF = {"version": "version_choice", "version_label": "version_choice", "predict_log": "log_type"}


@functools.cache
def serving_messages() -> types.SimpleNamespace:
    """The classes `ModelSpec`, `PredictRequest`, `PredictResponse`, `PredictLog` and `PredictionLog`.

    Raises:
        ImportError: without TensorFlow, whose `TensorProto` they hold.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2
    from tensorflow.core.framework import tensor_pb2

    file = descriptor_pb2.FileDescriptorProto(
        name="keras_vit/serving.proto",
        package=_PACKAGE,
        syntax="proto3",
        dependency=[wrappers_pb2.DESCRIPTOR.name, tensor_pb2.DESCRIPTOR.name],
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            _add_field(message, field, number, kind)
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    found = {name: pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in _MESSAGES}
    return types.SimpleNamespace(**{name: message_factory.GetMessageClass(kind) for name, kind in found.items()})


def _add_field(message: Any, name: str, number: int, kind: str) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

    field = message.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL, type=Field.TYPE_STRING)
    if kind == "map":
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, "string")
        _add_field(entry, "value", 2, _TENSOR)
        kind = f"{_PACKAGE}.{message.name}.{entry.name}"
        field.label = Field.LABEL_REPEATED
    if kind == "many":
        field.label = Field.LABEL_REPEATED
    elif kind != "string":
        field.type = Field.TYPE_MESSAGE
        field.type_name = f".{kind if '.' in kind else f'{_PACKAGE}.{kind}'}"
    if name in _ONE_OF:
        if not message.oneof_decl:
            message.oneof_decl.add(name=_ONE_OF[name])
        field.oneof_index = 0
