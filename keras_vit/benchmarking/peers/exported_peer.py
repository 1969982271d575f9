"""timm's own export of the model in ONNX Runtime, by torch.onnx, and in OpenVINO, by its converter of torch modules."""

import tempfile
from pathlib import Path

from answering import LeftOutError, serve
from timm_peer import Timm


class Exported(Timm):
    def example(self):
        return self.tensors()[0]

    def training(self, model):
        raise LeftOutError("this runtime does not train")


class OpenVINO(Exported):
    packages = ("openvino", "torch", "timm")

    def bring_packages(self):
        super().bring_packages()
        import openvino  # noqa: F401

    def load(self, model):
        import openvino

        half = self.job["precision"] == "bfloat16"
        core = openvino.Core()
        if half and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise LeftOutError("this processor has no instructions for bfloat16, and OpenVINO would take float32")
        network = openvino.convert_model(super().load(model).eval(), example_input=self.example())
        options = {"INFERENCE_PRECISION_HINT": "bf16" if half else "f32", "INFERENCE_NUM_THREADS": self.job["threads"]}
        return core.compile_model(network, "CPU", options)

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

        if self.job["precision"] != "float32":
            raise LeftOutError(f"ONNX Runtime has no {self.job['precision']} on a CPU")
        with tempfile.TemporaryDirectory() as folder:
            file = str(Path(folder, "model.onnx"))
            model = super().load(model).eval()
            torch.onnx.export(model, (self.example(),), file, input_names=["images"], dynamo=True, verbose=False)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self.job["threads"]
            return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def inference(self, model):
        images = self.example().numpy()
        return lambda: model.run(None, {"images": images})[0]


if __name__ == "__main__":
    serve({"openvino": OpenVINO, "onnxruntime": OnnxRuntime})
