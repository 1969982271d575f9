"""Writes folders of `encoders`: small random models of other software, and what it computes of them in float64.

Needs torch, timm 1.0.31, transformers 5.24 and open_clip 3.3, which no test needs. With names as arguments it writes
those that begin so, else all. A folder is written as its software's users have it.
"""

import json
import sys
from pathlib import Path

import numpy as np
import timm
import torch
from safetensors.torch import save_file

FOLDER = Path(__file__).parent / "encoders"
SIZES = {"": (24, 24), "_other": (16, 32)}


def randomise(model, seed=0):
    """No weight is zero or one, so that each of them counts: by shapes, as names differ between software."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            normal = torch.randn(weight.shape, generator=generator)
            if weight.ndim < 2:
                is_gain = name.endswith("weight") or "gamma" in name or "lambda" in name
                weight.copy_((1.0 if is_gain else 0.0) + 0.3 * normal)
            else:
                fan_in = weight[0].numel() if weight.ndim in (2, 4) and "embedding.weight" not in name else 4
                weight.copy_(normal / fan_in**0.5)
    return model.eval()


def write(name, model, config, compute, file="config.json", sizes=SIZES):
    """`compute(model, images)` gives arrays by their names, of images (B, C, H, W) in float64."""
    folder = FOLDER / name
    folder.mkdir(exist_ok=True)
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, folder / "model.safetensors")
    (folder / file).write_text(json.dumps(config, indent=1) + "\n")
    arrays, generator = {}, torch.Generator().manual_seed(1)
    model.double()
    for end, (height, width) in sizes.items():
        images = torch.randn((2, 3, height, width), generator=generator)
        with torch.no_grad():
            found = compute(model, images.double())
        arrays |= {f"images{end}": images.permute(0, 2, 3, 1).numpy()}
        arrays |= {f"{key}{end}": array.numpy().astype("float32") for key, array in found.items()}
    np.savez_compressed(folder / "expected.npz", **arrays)


def timm_arrays(model, images):
    tokens = model.forward_features(images)
    return {"tokens": tokens, "pooled": model.forward_head(tokens, pre_logits=True)}


SMALL = {"patch_size": 8, "img_size": 24, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 0}


def timm_uni2():
    """As `MahmoodLab/UNI2-h`: the gate of its MLP is an argument in Python, and not in the file."""
    arguments = SMALL | {"init_values": 1e-5, "mlp_ratio": 2.66667 * 2, "reg_tokens": 8, "no_embed_class": True}
    in_python = {"mlp_layer": timm.layers.SwiGLUPacked, "act_layer": torch.nn.SiLU}
    model = timm.create_model("vit_giant_patch14_224", **arguments, **in_python, dynamic_img_size=True)
    config = {"architecture": "vit_giant_patch14_224", "num_classes": 0, "model_args": arguments}
    write("timm_uni2", randomise(model), config, timm_arrays)


WRITERS = (timm_uni2,)

if __name__ == "__main__":
    for writer in WRITERS:
        if writer.__name__.startswith(tuple(sys.argv[1:]) or ("",)):
            writer()
