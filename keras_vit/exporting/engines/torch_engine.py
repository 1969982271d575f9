"""A model opened in PyTorch: the graph of its ONNX file, computed by torch on a GPU where it has one, else on the CPU.

No file is written: the graph is read as it is, and weights go into it one by one.
"""

import contextlib

import numpy as np

from keras_vit.checks import check_installed
from keras_vit.exporting import onnx
from keras_vit.exporting.folding import folded_task
from keras_vit.exporting.onnx.check import check_graph
from keras_vit.exporting.onnx.convert import graph_of
from keras_vit.exporting.report import Runtime
from keras_vit.exporting.task import ExportTask
from keras_vit.silence import silence

PRECISIONS = ("float32", "bfloat16")
CALIBRATED = ()
FOLDED = PRECISIONS


def check_packages(precision, opset) -> None:
    """Raises `ImportError` if a package is missing.

    Args:
        precision: of the engine to be.
        opset: of the graph.
    """
    check_installed("torch", 'engine="torch" computes in it', "torch")
    onnx.check_packages(precision, opset)


def opened(task: ExportTask, threads: int | None) -> Runtime:
    """The model in torch; `run` takes float32 `(B, H, W, C)` as the model does.

    Args:
        task: with `takes="images"` and a model in float32.
        threads: of a call; torch has one number for the whole process, which is as before after each call.

    Raises:
        ExportError: for an operator that is not known.
    """
    import torch

    from keras_vit.exporting.engines.torch_graph import TorchGraph

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with silence():
        graph = graph_of(folded_task(task, FOLDED, bare=False))
    check_graph(graph.proto, task.opset)
    network = TorchGraph(graph, task.precision, device)

    def run(images):
        with torch.inference_mode(), _threads(threads), _exact(device):
            found = network(torch.from_numpy(np.require(images, "float32", ["C", "W"])))
        return {name: tensor.numpy() for name, tensor in found.items()}

    return Runtime(f"torch {torch.__version__}{' on a GPU' if device == 'cuda' else ''}", run)


@contextlib.contextmanager
def _threads(count):
    """A number of threads for a while."""
    import torch

    before = torch.get_num_threads()
    if count is not None and count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def _exact(device):
    """No TensorFloat-32 in convolutions of a GPU, which torch has by default; products have none."""
    import torch

    if device == "cpu":
        return contextlib.nullcontext()
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
