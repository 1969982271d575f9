"""timm's own export of the model in ONNX Runtime, by torch.onnx, and in OpenVINO, by its converter of torch modules.

int8 is what each runtime's own tool makes of it: `quantize_dynamic`, and nncf as for transformers, calibrated on images
like those that are timed. What that leaves to floats OpenVINO computes as by default, in bfloat16 where the processor
can.
"""

import tempfile
from pathlib import Path

from answering import LeftOutError, serve
from timm_peer import Timm

_CALIBRATION = 32  # images


class Exported(Timm):
    def example(self):
        return self.tensors()[0]

    def training(self, model):
        raise LeftOutError("this runtime does not train")


class OpenVINO(Exported):
    packages = ("openvino", "torch", "timm", "nncf")

    def bring_packages(self):
        super().bring_packages()
        import openvino  # noqa: F401

    def load(self, model):
        import openvino

        half = self.job["precision"] == "bfloat16"
        core = openvino.Core()
        can = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if half and not can:
            raise LeftOutError("this processor has no instructions for bfloat16, and OpenVINO would take float32")
        network = openvino.convert_model(super().load(model).eval(), example_input=self.example())
        if self.job["precision"] == "int8":
            network, half = self.in_int8(network), can
        options = {"INFERENCE_PRECISION_HINT": "bf16" if half else "f32", "INFERENCE_NUM_THREADS": self.job["threads"]}
        return core.compile_model(network, "CPU", options)

    def in_int8(self, network):
        import nncf
        import numpy as np

        shape = (_CALIBRATION, 1, *self.example().shape[1:])
        images = np.random.default_rng(2).uniform(-1, 1, shape).astype("float32")
        return nncf.quantize(
            network, nncf.Dataset(images), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(images)
        )

    def inference(self, model):
        images = self.example().numpy()
        return lambda: model(images)[0]


class OnnxRuntime(Exported):
    packages = ("onnxruntime", "torch", "timm", "onnx")

    def bring_packages(self):
        super().bring_packages()
        import onnxruntime  # noqa: F401

    def load(self, model):
        import onnxruntime
        import torch

        with tempfile.TemporaryDirectory() as folder:
            file = str(Path(folder, "model.onnx"))
            model = super().load(model).eval()
            torch.onnx.export(model, (self.example(),), file, input_names=["images"], dynamo=True, verbose=False)
            if self.job["precision"] == "int8":
                from onnxruntime.quantization import quantize_dynamic

                quantize_dynamic(file, file := str(Path(folder, "int8.onnx")))
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self.job["threads"]
            return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def inference(self, model):
        images = self.example().numpy()
        return lambda: model.run(None, {"images": images})[0]


if __name__ == "__main__":
    serve({"openvino": OpenVINO, "onnxruntime": OnnxRuntime})
