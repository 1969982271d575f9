"""Formats for the tests of `export` itself: what they write is small, and what opens it is Keras, off as asked."""

import functools
import json

from keras_vit.exporting import formats, verification
from keras_vit.exporting.formats import Format
from keras_vit.exporting.report import Runtime

traced = functools.lru_cache(maxsize=4)(verification.Reference)  # tracing takes a second


class FakeFormat(Format):
    """Tests set what goes wrong.

    Attributes:
        jobs: what was asked for, in order.
        spoil: what becomes of the right answers to uint8 `(B, H, W, C)`.
        fault: what is called before anything is written.
        writes_data: whether a second file is written, as ONNX does for its data.
    """

    name, title, precisions = "fake", "a fake", ("float32", "float16", "int8")

    def __init__(self, extension=".fake"):
        self.extension = extension
        self.jobs, self.writes_data = [], False
        self.spoil = lambda answers, pixels: answers
        self.fault = lambda: None

    def write(self, spec, place):
        self.jobs.append(spec)
        file = place if self.extension else place / "saved_model.pb"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(json.dumps(spec.metadata()).encode() if self.extension else empty_saved_model())
        if self.writes_data:
            place.with_name(f"{place.name}.data").write_text("weights")
        self.fault()

    def is_own_file(self, file):
        return b'"keras_vit": ' in file.read_bytes() or file.read_bytes() == b"weights"

    def open_runtime(self, place):
        return fake_runtime(self.jobs[-1], lambda answers, pixels: self.spoil(answers, pixels))


def register(monkeypatch, name, format):
    """Makes a format known to `export` for one test."""
    monkeypatch.setattr(verification, "Reference", traced)  # so that a model is traced once, for both sides
    format.name, known = name, formats.FORMATS.get(name)
    if known is not None:
        format.Options, format.title = known.Options, known.title
    monkeypatch.setitem(formats.FORMATS, name, format)
    return format


def fake_runtime(spec, spoil=lambda answers, pixels: answers, photos=None):
    """Keras' own answers, spoiled."""
    reference = traced(spec.model, spec.activation, False)
    return Runtime("fake 1.0", lambda pixels: spoil(reference.run(pixels), pixels), photos=photos)


def empty_saved_model():
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel()
    saved.meta_graphs.add()
    return saved.SerializeToString()
