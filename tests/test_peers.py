"""Full-size models against timm, from the same official-layout file. Run with `-m peers`.

timm and torch run in a process of their own: `KERAS_VIT_PEERS_PYTHON` names their interpreter, by default
this one. timm computes the exact GELU unless told otherwise; the official weights need the tanh form.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import images

import keras_vit

TIMM_NAMES = {
    "Ti/16": "vit_tiny_patch16_224",
    "S/16": "vit_small_patch16_224",
    "B/16": "vit_base_patch16_224",
    "B/32": "vit_base_patch32_224",
    "L/16": "vit_large_patch16_224",
}
TIMM_LOGITS = """
import functools, importlib.machinery, sys, types
class StandIns:  # timm imports torchvision, which has no build for a CPU-only torch; empty modules content it
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = self.attribute
        return module
    def attribute(self, name):
        if name.startswith("__") or name == "InterpolationMode":
            raise AttributeError(name)
        return type(name, (), {})
    def exec_module(self, module):
        pass
sys.meta_path.insert(0, StandIns())
import numpy as np, torch, timm
architecture, weights, images, out = sys.argv[1:]
gelu = functools.partial(torch.nn.GELU, approximate="tanh")
model = timm.create_model(architecture, num_classes=1000, act_layer=gelu).eval()
model.load_pretrained(weights)
with torch.no_grad():
    logits = model(torch.from_numpy(np.load(images)).permute(0, 3, 1, 2))
np.save(out, logits.numpy())
"""


def official_file(variant, path):
    """A file of random weights, none of which is zero; made by us, read by timm."""
    model = keras_vit.build(variant)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        scale = 0.05 if weight.path.startswith("head") else 0.02
        weight.assign_add(rng.normal(0, scale, weight.shape).astype("float32"))
    keras_vit.save_checkpoint(model, path)


@pytest.mark.peers
@pytest.mark.parametrize("variant", TIMM_NAMES)
def test_full_size_logits_equal_timm_from_the_same_file(tmp_path, variant):
    official_file(variant, tmp_path / "weights.npz")
    x = images(2, 224, 224, 3)
    np.save(tmp_path / "images.npy", x)
    python = os.environ.get("KERAS_VIT_PEERS_PYTHON", sys.executable)
    files = [tmp_path / name for name in ("weights.npz", "images.npy", "logits.npy")]
    subprocess.run([python, "-c", TIMM_LOGITS, TIMM_NAMES[variant], *map(str, files)], check=True)
    expected = np.load(tmp_path / "logits.npy")
    model = keras_vit.build(variant, weights=tmp_path / "weights.npz")
    assert model.weights_report == ()
    error = np.abs(model.predict(x, verbose=0) - expected).max() / expected.std()
    print(f"{variant}: {error:.1e} of the logits' standard deviation, {expected.std():.2f}")
    assert error < 5e-5
