"""A stand-in for tensorflow_model_server on 127.0.0.1: the same REST and gRPC prediction calls, for one model.

It runs the newest version of an exported folder in a TensorFlow 1 session, as the real server does, and sends it the
warm-up requests first. Starlette and Uvicorn speak HTTP, grpcio speaks gRPC. What the real server has beyond that,
it has not: several models, new versions while it runs, version labels, batching of requests, classify and regress,
metadata by gRPC, metrics.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import json
import re
import socket
import threading
import traceback
from pathlib import Path

from serving_json import (
    BadRequestError,
    BusyError,
    NotServedError,
    model_metadata,
    model_status,
    parse_body,
    read_tensor,
    write_tensors,
)
from serving_tensors import predict_message

HOST = "127.0.0.1"
MAX_BODY = 64 * 2**20  # bytes of one request, by REST or gRPC; a photo of 8 MB takes 11 MB in JSON
WORKERS = 8  # requests that are computed at once, in each protocol
MAX_HELD = WORKERS * MAX_BODY  # bytes of all requests that are read or computed, by REST
MAX_CONNECTIONS = 256  # by REST, and calls at once by gRPC; slow clients hold one each
THROWN_AWAY = 4  # times the limit: a longer body is not read to its end for the sake of who sends it
SECONDS_TO_SEND = 30  # in which a client must have sent the head of its request, and then the rest of it
_SHOWN = 200  # letters of what was asked, in an error
_PATH = re.compile(r"/v1/models/([^/:]+)(?:/versions/([0-9]+))?(?::(predict)|/(metadata))?", re.IGNORECASE)


class ServedModel:
    """The newest version of an exported folder, in a session.

    Args:
        folder: with the versions `1`, `2`, ... in it.
        name: of the model in addresses.
    """

    def __init__(self, folder, name):
        import tensorflow as tf

        names = [path.parent.name for path in Path(folder).glob("*/saved_model.pb")]
        versions = [int(name) for name in names if name.isdecimal()]
        if not versions:
            raise FileNotFoundError(f"{folder} has no version folder with a saved_model.pb in it")
        self.name, self.version = name, max(versions)
        self.session = tf.compat.v1.Session(graph=tf.Graph())
        place = Path(folder) / str(self.version)
        with self.session.graph.as_default():
            tf.get_logger().setLevel("ERROR")  # it advises against the loader that the real server uses
            loaded = tf.compat.v1.saved_model.load(self.session, ["serve"], str(place))
        # As many inputs as an exported signature has; a SavedModel also has one without any, for its initialisation.
        self.signatures = {name: found for name, found in loaded.signature_def.items() if len(found.inputs) == 1}

    def check(self, name, version=None):
        """Raises `NotServedError` unless it is this model."""
        if name != self.name or version not in (None, self.version):
            asked = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            raise NotServedError(f"Servable not found for request: {asked}")

    def signature(self, name):
        """The signature of that name, by default `serving_default`."""
        name = name or "serving_default"
        if name not in self.signatures:
            raise BadRequestError(f'Serving signature name: "{name}" not found in signature def')
        return self.signatures[name]

    def check_names(self, signature, inputs, outputs):
        """Raises `BadRequestError` unless a signature has these inputs, all of them, and these outputs."""
        if set(inputs) != set(signature.inputs) or not set(outputs) <= set(signature.outputs):
            raise BadRequestError(
                f"the signature has the inputs {sorted(signature.inputs)} and the outputs {sorted(signature.outputs)}, "
                f"but the request has {sorted(inputs)} and {sorted(outputs)}"
            )

    def predict(self, signature_name, arrays, outputs=()):
        """Runs one request; many may run at once.

        Args:
            signature_name: empty for the default one.
            arrays: `{name of the input: array}`.
            outputs: names of the outputs to compute; none for all.

        Returns:
            `{name of the output: array}`.

        Raises:
            BadRequestError: if names, types or shapes do not fit.
        """
        import tensorflow as tf

        signature = self.signature(signature_name)
        self.check_names(signature, arrays, outputs)
        fetches = {name: signature.outputs[name].name for name in outputs or sorted(signature.outputs)}
        try:
            return self.session.run(fetches, {signature.inputs[name].name: array for name, array in arrays.items()})
        except (tf.errors.InvalidArgumentError, ValueError, TypeError) as error:
            raise BadRequestError(getattr(error, "message", None) or str(error)) from None

    def warm_up(self, folder):
        """Sends itself the requests of `assets.extra`, and gives their number."""
        from keras_vit.exporting.serving_files import read_warmup_requests

        requests = read_warmup_requests(Path(folder) / str(self.version))
        for request in requests:
            predict_message(self, request, MAX_BODY)
        return len(requests)


def predict_json(model, body):
    """The JSON that answers the JSON of a request, as bytes."""
    import numpy as np
    import tensorflow as tf

    request = parse_body(body)
    signature = request.get("signature_name", "")
    ((name, info),) = model.signature(signature).inputs.items()
    array = read_tensor(request, name, np.dtype(tf.as_dtype(info.dtype).as_numpy_dtype))
    return write_tensors(model.predict(signature, {name: array}), rows="instances" in request)


def rest_application(model, max_body=MAX_BODY):
    """The REST interface as an ASGI application.

    Args:
        model: a `ServedModel`.
        max_body: bytes that a request may have; the server answers 413 to more.
    """
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    free, room = asyncio.Semaphore(WORKERS), Room(MAX_HELD)

    async def answer(request):
        with room.of_one() as taken:
            status, content = await _answer(model, request, max_body, free, taken)
        unread = status in (408, 413, 503) or _is_ambiguous(request)
        headers = {"connection": "close"} if unread else None
        return Response(content, status, headers, media_type="application/json")

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST", "PUT", "DELETE", "PATCH"])])


class Room:
    """How many bytes of requests may be held at once, so that many senders may be waited for.

    Args:
        most: bytes of all requests together.
    """

    def __init__(self, most):
        self.most, self.held = most, 0

    @contextlib.contextmanager
    def of_one(self):
        """Gives a function that takes room for some bytes of one request, or raises `BusyError`."""
        taken = 0

        def take(size):
            nonlocal taken
            if self.held + size > self.most:
                raise BusyError(f"the server holds {self.held} bytes of other requests; ask again later")
            taken, self.held = taken + size, self.held + size

        try:
            yield take
        finally:
            self.held -= taken


async def _answer(model, request, max_body, free, take):
    """Status and bytes of the answer."""
    from starlette.concurrency import run_in_threadpool

    try:
        if _is_ambiguous(request):
            raise BadRequestError("a request must have Content-Length or Transfer-Encoding, not both")
        if int(request.headers.get("content-length", 0)) > THROWN_AWAY * max_body:
            return _too_large(max_body)
        body = await asyncio.wait_for(_read(request, max_body, take), SECONDS_TO_SEND)
        if body is None:
            return _too_large(max_body)
        async with free:
            return await run_in_threadpool(_routed, model, request.method, request.url.path, body)
    except TimeoutError:
        return _error(408, f"a request must be sent within {SECONDS_TO_SEND} seconds")
    except BusyError as error:
        return _error(503, error)
    except BadRequestError as error:
        return _error(400, error)
    except Exception as error:  # as of a client that has gone
        return _error(500, f"{type(error).__name__}: {error}")


def _is_ambiguous(request):
    """Whether a request declares its length in two ways, of which a proxy may have used the other."""
    return {"content-length", "transfer-encoding"} <= set(request.headers)


def _routed(model, method, path, body):
    """Status and bytes of the answer. No error leaves it, nor what it had in hand."""
    try:
        return 200, _answered(model, method, path, body)
    except Exception as error:  # whatever it was, the server goes on
        statuses = {NotServedError: 404, BadRequestError: 400}
        return _error(statuses.get(type(error), 500), _told(error))


def _told(error):
    """The words for a client. A cycle of errors and frames would keep the request until garbage is looked for."""
    words = str(error) if isinstance(error, (NotServedError, BadRequestError)) else f"{type(error).__name__}: {error}"
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
    return words


def _answered(model, method, path, body):
    found = _PATH.fullmatch(path)
    name, version, predict, metadata = found.groups() if found else (None,) * 4
    if not found or method != ("POST" if predict else "GET"):
        raise BadRequestError(f"Malformed request: {method} {path[:_SHOWN]}")
    if version is not None and (len(version) > _SHOWN or int(version) >= 2**63):
        raise BadRequestError(f"Failed to convert version: {version[:_SHOWN]} to numeric; it must be below 2**63")
    model.check(name, version and int(version))
    if predict:
        return predict_json(model, body)
    return json.dumps((model_metadata if metadata else model_status)(model), indent=1).encode()


async def _read(request, limit, take):
    """The body; `None` if it is larger than the limit. Then the rest is thrown away, so that the client listens."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size <= limit:
            take(len(part))
            parts.append(part)
        else:
            parts.clear()
    return b"".join(parts) if size <= limit else None


def _too_large(most):
    return _error(413, f"a request must have at most {most} bytes")


def _error(status, text):
    return status, json.dumps({"error": str(text)}).encode()


def grpc_server(model, port, max_body=MAX_BODY):
    """A started gRPC server with `PredictionService.Predict`, and its port.

    Args:
        model: a `ServedModel`.
        port: to listen on; 0 takes a free one.
        max_body: bytes that a request may have; more is answered with RESOURCE_EXHAUSTED.
    """
    import grpc

    from keras_vit.exporting.serving_files import SERVICE, serving_messages

    free = threading.Semaphore(WORKERS)

    def predict(request, context):
        try:
            version = request.model_spec.version.value if request.model_spec.HasField("version") else None
            model.check(request.model_spec.name, version)
            with free:
                return predict_message(model, request, MAX_BODY)
        except Exception as error:  # any error goes to the client
            codes = {NotServedError: grpc.StatusCode.NOT_FOUND, BadRequestError: grpc.StatusCode.INVALID_ARGUMENT}
            status, text = codes.get(type(error), grpc.StatusCode.INTERNAL), _told(error)
        return context.abort(status, text)  # which raises

    messages = serving_messages()
    method = grpc.unary_unary_rpc_method_handler(
        predict, messages.PredictRequest.FromString, messages.PredictResponse.SerializeToString
    )
    pool = concurrent.futures.ThreadPoolExecutor(MAX_CONNECTIONS, "grpc")  # a thread waits for each slow sender
    options = [
        ("grpc.max_connection_age_ms", 4000 * SECONDS_TO_SEND),  # then clients connect anew, and slow ones are gone
        ("grpc.max_connection_age_grace_ms", 1000 * SECONDS_TO_SEND),
        ("grpc.max_receive_message_length", max_body),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.server(pool, options=options, maximum_concurrent_rpcs=MAX_CONNECTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Predict": method}),))
    port = server.add_insecure_port(f"{HOST}:{port}")
    server.start()
    return server, port


def _protocol():
    """Uvicorn's protocol, which itself waits for ever for the head of a request."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Protocol(H11Protocol):
        closing = None

        def connection_made(self, transport):
            super().connection_made(transport)
            self.wait()

        def data_received(self, data):
            super().data_received(data)
            self.wait()

        def wait(self):
            """From when no request is at work until the head of one is there, SECONDS_TO_SEND may pass."""
            if self.cycle is None or self.cycle.response_complete:
                self.closing = self.closing or self.loop.call_later(SECONDS_TO_SEND, self.transport.close)
            elif self.closing:
                self.closing.cancel()
                self.closing = None

    return Protocol


@dataclasses.dataclass
class StandIn:
    """A running server; a context manager that stops it.

    Attributes:
        model: the `ServedModel`.
        rest_port: as it is, also where 0 was asked for.
        grpc_port: the same.
    """

    model: ServedModel
    rest_port: int = 0
    grpc_port: int = 0
    max_body: int = MAX_BODY

    def __enter__(self):
        import uvicorn

        listening = socket.create_server((HOST, self.rest_port), backlog=128)
        self.rest_port = listening.getsockname()[1]
        try:
            self._grpc, self.grpc_port = grpc_server(self.model, self.grpc_port, self.max_body)
        except BaseException:  # its port is taken
            listening.close()
            raise
        config = uvicorn.Config(
            rest_application(self.model, self.max_body),
            lifespan="off",
            http=_protocol(),
            limit_concurrency=MAX_CONNECTIONS,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=10,
        )
        self._rest = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._rest.run, kwargs={"sockets": [listening]})
        self._thread.start()
        return self

    @property
    def alive(self):
        """Whether the REST server runs."""
        return self._thread.is_alive()

    def __exit__(self, *_):
        """Requests that run are answered first, for up to ten seconds."""
        self._rest.should_exit = True
        stopped = self._grpc.stop(10)
        self._thread.join()
        stopped.wait()
        self.model.session.close()
