"""Peers on torch: timm, eager and compiled, transformers, and timm's own export in ONNX Runtime and OpenVINO.

int8 is what each runtime's own tool makes of the export: `quantize_dynamic`, and nncf as for transformers, calibrated
on images like those that are timed. What that leaves to floats OpenVINO computes as by default, in bfloat16 where the
processor can.
"""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import tempfile
import types
from pathlib import Path

from answering import LeftOutError, Runner, serve

_CALIBRATION = 32  # images


class TorchRunner(Runner):
    """A model of torch; a subclass builds it, and says how its logits are got."""

    packages: tuple[str, ...] = ("torch",)

    def bring_packages(self):
        import torch

        torch.set_num_threads(self.job["threads"])
        self.device = "cuda" if self.job["device"] == "gpu" else "cpu"

    def logits(self, model, images):
        """Of a module of this peer."""
        return model(images)

    def compiled(self, model):
        """The module as it will be called."""
        return model

    def tensors(self):
        """The batch as `(B, 3, H, W)` and `(B,)`, in the order that torch wants."""
        import torch

        images, labels = self.batch()
        return torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), torch.from_numpy(labels)

    def inference(self, model):
        import torch

        half = self.job["precision"] == "bfloat16"
        dtype = torch.bfloat16 if half else torch.float32  # of weights too: faster than autocast
        model = self.compiled(model.to(self.device, dtype).eval())
        images = self.tensors()[0]

        def call():
            with torch.inference_mode():
                return self.logits(model, images.to(self.device, dtype)).float().cpu().numpy()

        return call

    def train(self, model):
        import torch

        model = model.to(self.device).train()
        forward, optimizer = self.compiled(model), self.optimizer(model)
        images, labels = self.tensors()
        half = self.job["precision"] == "bfloat16"

        def step():
            with torch.autocast(self.device, torch.bfloat16) if half else contextlib.nullcontext():
                logits = self.logits(forward, images.to(self.device))
                loss = torch.nn.functional.cross_entropy(logits.float(), labels.to(self.device))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), self.job["clip_norm"])
            optimizer.step()
            optimizer.zero_grad()  # here, so that the next forward pass runs without gradients
            return loss.item()

        return step

    def optimizer(self, model):
        """AdamW with decay of kernels alone, or SGD with momentum."""
        import torch

        if self.job["optimizer"] == "sgd":
            return torch.optim.SGD(model.parameters(), self.job["learning_rate"], momentum=self.job["momentum"])
        kernels = [value for name, value in model.named_parameters() if is_kernel(name, value)]
        others = [value for name, value in model.named_parameters() if not is_kernel(name, value)]
        decay = self.job["weight_decay"]
        groups = [{"params": kernels, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, self.job["learning_rate"])  # with Adam's usual betas and 1e-8, as here

    def facts(self):
        import torch

        if self.device == "cpu":
            return {}
        return {"device_memory": torch.cuda.max_memory_allocated(), "accelerator": torch.cuda.get_device_name()}


def is_kernel(name, value):
    """Whether a parameter is decayed: a matrix or a convolution, no table of positions and no token."""
    return name.endswith(".weight") and value.ndim > 1


class Timm(TorchRunner):
    packages: tuple[str, ...] = ("torch", "timm")

    def bring_packages(self):
        super().bring_packages()
        stand_in()
        import safetensors.torch  # noqa: F401
        import timm  # noqa: F401

    def build(self):
        import timm
        import torch

        sizes, approximate = self.job["sizes"], "tanh" if self.job["activation"] == "gelu_tanh" else "none"
        return timm.models.vision_transformer.VisionTransformer(
            self.job["image_size"],
            sizes["patch_size"],
            num_classes=self.job["classes"],
            embed_dim=sizes["hidden_size"],
            depth=sizes["num_layers"],
            num_heads=sizes["num_heads"],
            mlp_ratio=(sizes["mlp_dim"] + 0.5) / sizes["hidden_size"],  # of which timm takes the integer below
            act_layer=lambda: torch.nn.GELU(approximate=approximate),
        )

    def load(self, model):
        from safetensors.torch import load_file

        model.load_state_dict(load_file(self.job["files"]["timm"]))
        return model


class CompiledTimm(Timm):
    def compiled(self, model):
        import torch

        return torch.compile(model)


class OpenVINO(Timm):
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
        network = openvino.convert_model(super().load(model).eval(), example_input=self.tensors()[0])
        if self.job["precision"] == "int8":
            network, half = self.in_int8(network), can
        options = {"INFERENCE_PRECISION_HINT": "bf16" if half else "f32", "INFERENCE_NUM_THREADS": self.job["threads"]}
        return core.compile_model(network, "CPU", options)

    def in_int8(self, network):
        import nncf
        import numpy as np

        shape = (_CALIBRATION, 1, *self.tensors()[0].shape[1:])
        images = np.random.default_rng(2).uniform(-1, 1, shape).astype("float32")
        return nncf.quantize(
            network, nncf.Dataset(images), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(images)
        )

    def inference(self, model):
        images = self.tensors()[0].numpy()
        return lambda: model(images)[0]


class OnnxRuntime(Timm):
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
            torch.onnx.export(model, (self.tensors()[0],), file, input_names=["images"], dynamo=True, verbose=False)
            if self.job["precision"] == "int8":
                from onnxruntime.quantization import quantize_dynamic

                quantize_dynamic(file, file := str(Path(folder, "int8.onnx")))
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self.job["threads"]
            return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def inference(self, model):
        images = self.tensors()[0].numpy()
        return lambda: model.run(None, {"images": images})[0]


class Transformers(TorchRunner):
    packages = ("torch", "transformers")
    builds_apart = False  # names in files are not those of modules, which `from_pretrained` alone knows

    def bring_packages(self):
        super().bring_packages()
        from transformers import ViTForImageClassification  # noqa: F401

    def build(self):
        from transformers import ViTConfig, ViTForImageClassification

        sizes = self.job["sizes"]
        config = ViTConfig(
            image_size=self.job["image_size"],
            patch_size=sizes["patch_size"],
            hidden_size=sizes["hidden_size"],
            num_hidden_layers=sizes["num_layers"],
            num_attention_heads=sizes["num_heads"],
            intermediate_size=sizes["mlp_dim"],
            hidden_act={"gelu_tanh": "gelu_pytorch_tanh", "gelu": "gelu"}[self.job["activation"]],
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            layer_norm_eps=1e-6,
            num_labels=self.job["classes"],
        )
        return ViTForImageClassification(config)

    def from_file(self):
        from transformers import ViTForImageClassification

        return ViTForImageClassification.from_pretrained(self.job["files"]["huggingface"])

    def logits(self, model, images):
        return model(images).logits


class StandIns(importlib.abc.Loader):
    """Finds torchvision and whatever is asked of it: timm imports it, and a CPU-only torch has no build of it."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        vars(module)["__getattr__"] = self.attribute
        return module

    def attribute(self, name):
        if name.startswith("__") or name == "InterpolationMode":
            raise AttributeError(name)
        return type(name, (), {})

    def exec_module(self, module):
        """Nothing to run."""


def stand_in():
    """Empty modules in place of torchvision from now on, unless the real one is installed."""
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.insert(0, StandIns())


if __name__ == "__main__":
    serve(
        {
            **{"timm": Timm, "timm-compiled": CompiledTimm, "transformers": Transformers},
            **{"openvino": OpenVINO, "onnxruntime": OnnxRuntime},
        }
    )
