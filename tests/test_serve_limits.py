"""What the stand-in server of `examples/serve.py` refuses, and that slow or large requests cost nobody else much."""

import contextlib
import gc
import socket
import threading
import tracemalloc

import numpy as np
import pytest
from serving_calls import LIMIT, PREDICT, b64, grpc, predict_by_grpc, rest_calls, running_server, scores_of
from serving_model import expected_scores, photo
from serving_stand_in import Room

pytestmark = pytest.mark.docs  # an example


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    yield from running_server(tmp_path_factory.mktemp("served"))


@pytest.fixture
def rest(server):
    yield from rest_calls(server)


def without_collections(ask):
    """Bytes that three calls leave, after one that fills what is filled once."""
    ask()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(3):
            ask()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize(
    ("signature", "item", "words"),
    [
        ("serving_default", '{"b64":""}', "at most"),
        ("predict_pixels", "[[1]]", "shape"),
        ("predict_pixels", '{"b64":""}', "whole numbers"),
        ("nothing", '{"b64":""}', "not found"),
    ],
)
def test_refused_request_leaves_nothing_in_memory(rest, signature, item, words):
    items = ",".join([item] * 25_000)
    body = f'{{"signature_name": "{signature}", "instances": [{items}]}}'.encode()

    def ask():
        status, answer = rest("/v1/models/birds:predict", body)
        assert status == 400
        assert words in answer["error"]

    assert without_collections(ask) < len(body)  # each would leave ten times as much


def test_client_that_leaves_is_no_error_of_the_server(server, rest, caplog):
    with socket.create_connection(("127.0.0.1", server.rest_port), timeout=60) as client:
        client.sendall(f"POST {PREDICT} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{{".encode())
        assert rest(PREDICT, {"instances": [b64(photo(50))]})[0] == 200
    assert rest(PREDICT, {"instances": [b64(photo(50))]})[0] == 200
    assert "Exception in ASGI application" not in caplog.text


def test_head_with_two_ends_is_refused(server):
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.rest_port), timeout=60) as client:
        client.sendall(f"{head}0\r\n\r\n".encode())
        answer = b"".join(iter(lambda: client.recv(1000), b""))  # to the end, as the server closes
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'{"error": "a request must have Content-Length or Transfer-Encoding, not both"}' in answer


def test_body_of_a_petabyte_is_refused_before_it_comes(server):
    with socket.create_connection(("127.0.0.1", server.rest_port), timeout=60) as client:
        client.sendall(f"POST {PREDICT} HTTP/1.1\r\nHost: a\r\nContent-Length: {10**15}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: client.recv(1000), b""))
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_body_for_which_there_is_no_room_is_answered_503(server, rest, monkeypatch):
    def full(self):
        monkeypatch.setattr(self, "held", self.most)
        return of_one(self)

    of_one = Room.of_one
    with monkeypatch.context() as patched:
        patched.setattr(Room, "of_one", full)
        status, found = rest(PREDICT, {"instances": [b64(photo(50))]})
    assert (status, "ask again later" in found["error"]) == (503, True)
    monkeypatch.undo()
    assert rest(PREDICT, {"instances": [b64(photo(50))]})[0] == 200


def test_slow_sender_is_told_to_hurry_and_holds_up_nobody(server, rest, monkeypatch):
    monkeypatch.setattr("serving_stand_in.SECONDS_TO_SEND", 0.5)
    with socket.create_connection(("127.0.0.1", server.rest_port), timeout=60) as slow:
        slow.sendall(f"POST {PREDICT} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{{".encode())
        assert rest(PREDICT, {"instances": [b64(photo(50))]})[0] == 200
        assert slow.recv(100).startswith(b"HTTP/1.1 408")


def test_forty_slow_senders_hold_up_nobody(server, rest):
    heads = [f"POST {PREDICT} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{{", f"POST {PREDICT} HTT"]
    with contextlib.ExitStack() as stack:
        for number in range(80):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", server.rest_port), timeout=60))
            slow.sendall(heads[number % 2].encode())
        assert rest(PREDICT, {"instances": [b64(photo(50))]})[0] == 200


def test_connection_without_a_whole_head_is_closed(server, rest, monkeypatch):
    monkeypatch.setattr("serving_stand_in.SECONDS_TO_SEND", 0.5)
    whole = b"GET /v1/models/birds HTTP/1.1\r\nHost: a\r\n\r\n"
    for first in (b"", whole):
        with socket.create_connection(("127.0.0.1", server.rest_port), timeout=30) as slow:
            slow.sendall(first + b"GET /v1/models")
            said = b"".join(iter(lambda: slow.recv(1000), b""))
        assert said.count(b"HTTP/1.1 200") == bool(first)


def test_forty_slow_senders_by_grpc_hold_up_nobody(server):
    done = threading.Event()

    def never():
        done.wait()
        yield from ()

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", [("grpc.enable_http_proxy", 0)]) as channel:
        send = channel.stream_unary("/tensorflow.serving.PredictionService/Predict")
        calls = [send.future(never()) for _ in range(40)]
        try:
            np.testing.assert_allclose(scores_of(predict_by_grpc(server, [50])), expected_scores([50]), atol=1e-6)
        finally:
            for call in calls:
                call.cancel()
            done.set()


def test_rest_body_beyond_the_limit_is_refused_and_the_next_request_answered(rest):
    assert rest(PREDICT, {"instances": [b64(photo(LIMIT))]})[0] == 413
    assert rest(PREDICT, {"instances": [b64(photo(LIMIT // 2))]})[0] == 200
