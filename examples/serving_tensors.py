"""Tensors as messages of gRPC: what they declare must be what they hold, before arrays are made of them."""

import math

from serving_json import BadRequestError

MAX_AXES = 8  # of a tensor
MAX_STRINGS = 2**16  # of a tensor: arrays of objects take many times the bytes of the message
_VALUES = {"string": "string_val", "float32": "float_val"}  # fields of a message, by the type; others have int_val


def check_tensor(tensor, key, wanted, most) -> None:
    """Raises for another type than is wanted, and for a shape that has more or less values than there are.

    The real server lets the last value stand for all that are missing; here none may be missing.

    Args:
        tensor: a `TensorProto`.
        key: name of the input.
        wanted: number of the type.
        most: values that it may have.

    Raises:
        BadRequestError: if it does not fit.
    """
    import tensorflow as tf

    if tensor.dtype != wanted:
        names = [_name_of_type(number) for number in (wanted, tensor.dtype)]
        raise BadRequestError(f"input {key} must be of type {names[0]}, but the request has {names[1]}")
    sides = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.tensor_shape.unknown_rank or len(sides) > MAX_AXES or min(sides, default=0) < 0:
        raise BadRequestError(f"input {key} must have a shape of at most {MAX_AXES} sides, all known and none negative")
    count = math.prod(sides)
    if count > most:
        raise BadRequestError(f"input {key} must have at most {most} numbers, but the request declares {count}")
    dtype = tf.as_dtype(wanted)
    kind = "strings" if dtype == tf.string else "numbers"
    if dtype != tf.string and tensor.tensor_content:
        found = len(tensor.tensor_content) / dtype.size
    else:
        found = len(getattr(tensor, _VALUES.get(dtype.name, "int_val")))
    if count != found:
        raise BadRequestError(f"input {key} declares {count} {kind}, but the request has {found:g}")
    if dtype == tf.string and count > MAX_STRINGS:
        raise BadRequestError(f"input {key} must have at most {MAX_STRINGS} strings, but the request has {count}")


def _name_of_type(number):
    import tensorflow as tf

    try:
        return tf.as_dtype(number).name
    except TypeError:
        return f"type number {number}, which there is not" if number else "none"


def predict_message(model, request, most):
    """The `PredictResponse` to a `PredictRequest`, whose tensors may have `most` bytes."""
    import tensorflow as tf

    from keras_vit.exporting.serving_files import serving_messages

    name = request.model_spec.signature_name or "serving_default"
    signature = model.signature(name)
    model.check_names(signature, request.inputs, request.output_filter)
    for key, tensor in request.inputs.items():
        check_tensor(tensor, key, signature.inputs[key].dtype, most)
    try:
        arrays = {key: tf.make_ndarray(tensor) for key, tensor in request.inputs.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise BadRequestError(f"a tensor is damaged: {error}") from None
    answer = serving_messages().PredictResponse()
    answer.model_spec.name, answer.model_spec.signature_name = model.name, name
    answer.model_spec.version.value = model.version
    for key, array in model.predict(name, arrays, list(request.output_filter)).items():
        answer.outputs[key].CopyFrom(tf.make_tensor_proto(array))
    return answer
