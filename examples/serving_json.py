"""TensorFlow Serving's JSON: tensors in rows or columns, `{"b64": ...}` for bytes, and what a model says of itself.

A row request has `instances`, a list with one item per image, and is answered with `predictions`; a column request
has `inputs`, the whole tensor, and is answered with `outputs`. The input, of which an exported signature has one, may
be given by name or without; a single output stands without. Strings are text.
Source: the server's documentation, "RESTful API".
"""

import base64
import json

import numpy as np

MAX_VALUES = 2**22  # values and brackets of one request; 20 images of 224 x 224 as numbers. They take 300 MB at most


class NotServedError(LookupError):
    """A request for a model or version that is not here."""


class BusyError(RuntimeError):
    """A request for which there is no room at the moment."""


class BadRequestError(ValueError):
    """A request that cannot be answered; its text says why."""


def parse_body(body) -> dict:
    """The JSON object of a request.

    Args:
        body: bytes.

    Raises:
        BadRequestError: if it is no JSON object, or has so many values that they would take far more memory than it.
    """
    if sum(map(body.count, (b"[", b"{", b",", b":"))) > MAX_VALUES:  # in strings too, but those of base64 have none
        raise BadRequestError(
            f"a request must have at most {MAX_VALUES} values, lists and objects; send images as files"
        )
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"JSON Parse error: {error}") from None
    if not isinstance(found, dict):
        raise BadRequestError("JSON Value: is not an object")
    if not isinstance(found.get("signature_name", ""), str):
        raise BadRequestError("'signature_name' key must be a string value.")
    if ("instances" in found) == ("inputs" in found):
        raise BadRequestError("a request must have one of the keys 'inputs' and 'instances'")
    return found


def read_tensor(request, name, dtype) -> np.ndarray:
    """The array of a request.

    Args:
        request: as `parse_body` gives it.
        name: of the input.
        dtype: a `numpy.dtype`, of whole numbers, or `object` for strings.

    Raises:
        BadRequestError: if name, type or shape do not fit.
    """
    given = _rows(request["instances"], name) if "instances" in request else _value(request["inputs"], name)
    return _strings(given, name) if dtype.kind == "O" else _numbers(given, name, dtype)


def write_tensors(arrays, rows) -> bytes:
    """The JSON of an answer.

    Args:
        arrays: `{name: array}`, strings as `object` of bytes; in rows all `(B, ...)`.
        rows: whether the request had `instances`.
    """
    lists = {name: _list(array) for name, array in arrays.items()}
    if len(lists) == 1:
        answer = next(iter(lists.values()))
    elif rows:
        answer = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    else:
        answer = lists
    return json.dumps({"predictions" if rows else "outputs": answer}, ensure_ascii=False).encode()


def model_status(model):
    """What `GET /v1/models/NAME` answers."""
    status = {"error_code": "OK", "error_message": ""}
    return {"model_version_status": [{"version": str(model.version), "state": "AVAILABLE", "status": status}]}


def model_metadata(model):
    """What `GET /v1/models/NAME/metadata` answers: the signatures."""
    from google.protobuf.json_format import MessageToDict

    signatures = {
        name: MessageToDict(found, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        for name, found in model.signatures.items()
    }
    spec = {"name": model.name, "signature_name": "", "version": str(model.version)}
    return {"model_spec": spec, "metadata": {"signature_def": {"signature_def": signatures}}}


def _rows(instances, name):
    if not isinstance(instances, list) or not instances:
        raise BadRequestError("'instances' must be a list of at least one item")
    if len({_is_named(item) for item in instances}) > 1:
        raise BadRequestError("'instances' must be all objects or all values")
    return [_value(item, name) for item in instances]


def _value(given, name):
    """Of `{name: value}` the value; a value by itself."""
    if not _is_named(given):
        return given
    if set(given) != {name}:
        raise BadRequestError(f"the input must be {name}. Received: {', '.join(sorted(given)) or 'nothing'}")
    return given[name]


def _is_named(value):
    return isinstance(value, dict) and set(value) != {"b64"}


def _strings(given, name):
    try:
        array = np.array(_decoded(given), object)
    except RecursionError as error:
        raise BadRequestError(f"input {name}: {error}") from None
    if not all(isinstance(item, bytes) for item in array.flat):
        raise BadRequestError(f"input {name}: lists of one level must have one length")
    return array


def _decoded(value):
    """Lists as they are, with bytes in them."""
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if not isinstance(value, dict) or not isinstance(value.get("b64"), str):
        raise BadRequestError('a string must be text, or {"b64": "..."}')
    try:
        return base64.b64decode(value["b64"], validate=True)
    except ValueError as error:
        raise BadRequestError(f"Unable to base64 decode: {error}") from None


def _numbers(given, name, dtype):
    try:
        array = np.array(given)
    except (ValueError, OverflowError, RecursionError) as error:  # of lists that are no box, or huge numbers
        raise BadRequestError(f"input {name}: {error}") from None
    if array.dtype.kind not in "iu" or not np.array_equal(array, array.astype(dtype)):
        raise BadRequestError(f"input {name} must be whole numbers of type {dtype}")
    return array.astype(dtype)


def _list(array):
    array = np.asarray(array)
    if array.dtype.kind == "O":
        return np.vectorize(bytes.decode, otypes=[object])(array).tolist()
    if array.dtype == np.float32:  # the shortest decimals that mean the same number: 0.2, not 0.20000000298023224
        array = array.astype(str).astype(float)
    return array.tolist()
