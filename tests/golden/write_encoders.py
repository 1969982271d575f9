"""Writes folders of `encoders`: small random models of other software, and what it computes of them in float64.

Needs torch, timm 1.0.31, transformers 5.24 and open_clip 3.3, which no test needs. With names as arguments it writes
those that begin so, else all. A folder is written as its software's users have it.
"""

import json
import sys
from pathlib import Path

import numpy as np
import open_clip
import timm
import torch
import transformers
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
    if isinstance(model, transformers.PreTrainedModel):  # which changes names
        model.save_pretrained(folder)
    else:
        stored = folder / ("open_clip_" * file.startswith("open_clip") + "model.safetensors")
        save_file({key: value.contiguous() for key, value in model.state_dict().items()}, stored)
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


def tokens(model, images):
    return {"tokens": model.forward_features(images).flatten(1, 2)}


def timm_qwen3():
    """Of Qwen3-VL and Qwen3.5, with what merges patches; `img_size` is not that of the table."""
    arguments = {**SMALL, "img_size": 48, "pos_embed_grid_size": 3, "out_features": 5}
    arguments.pop("num_classes")
    model = randomise(timm.create_model("qwen3_vit_88m_enc", **arguments))
    config = {"architecture": "qwen3_vit_88m_enc", "num_classes": 0, "global_pool": "merge", "model_args": arguments}
    write("timm_qwen3", model, config, tokens)


def timm_deepseek():
    """Of DeepSeek-V4, with what merges patches."""
    arguments = {**SMALL, "out_features": 5}
    arguments.pop("num_classes")
    model = randomise(timm.create_model("deepseek_vit_412m_enc", **arguments))
    name = "deepseek_vit_412m_enc"
    config = {"architecture": name, "num_classes": 0, "global_pool": "align", "model_args": arguments}
    write("timm_deepseek", model, config, tokens)


def tower(vision, preprocess, **arguments):
    """An OpenCLIP model of a small text tower and this image tower, and its config."""
    text = {"context_length": 6, "vocab_size": 9, "width": 8, "heads": 2, "layers": 1}
    model = {"embed_dim": 5, "vision_cfg": vision, "text_cfg": text} | arguments
    kind = open_clip.model.CustomTextCLIP if model.pop("custom_text", False) else open_clip.model.CLIP
    made = randomise(kind(**model))
    return made, {"model_cfg": model, "preprocess_cfg": {"interpolation": "bicubic"} | preprocess}


def open_clip_gap():
    """As CLIPA's: the mean of the patches, then the norm."""
    vision = {"image_size": 24, "layers": 2, "width": 24, "head_width": 8, "patch_size": 8, "mlp_ratio": 2.0}
    vision |= {"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True}
    statistics = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "resize_mode": "squash"}
    model, config = tower(vision, statistics)
    write("open_clip_gap", model, config, embedded, "open_clip_config.json", SQUARE)


def open_clip_siglip():
    """A tower of timm by its name, made small in Python."""
    create, small = timm.create_model, SMALL | {"num_heads": 12, "mlp_ratio": 1.0}
    small.pop("num_classes")
    timm.create_model = lambda name, **arguments: create(name, **(arguments | small))
    vision = {"timm_model_name": "vit_base_patch32_siglip_256", "timm_pool": "map", "timm_proj": "none"}
    statistics = {"mean": [0.5] * 3, "std": [0.5] * 3, "resize_mode": "squash"}
    model, config = tower(vision | {"image_size": 24}, statistics, custom_text=True, embed_dim=24)
    timm.create_model = create
    # A name that timm lacks, as the sizes of one that it has must be those of the tensors.
    config["model_cfg"]["vision_cfg"]["timm_model_name"] = "vit_small_patch32_siglip_24"
    write("open_clip_siglip", model, config, pooled, "open_clip_config.json", SQUARE)


def embedded(model, images):
    return {"logits": model.encode_image(images)}


def pooled(model, images):
    return {"pooled": model.encode_image(images)}


SQUARE = {"": (24, 24)}


def hidden(model, images):
    return {"tokens": model(pixel_values=images).last_hidden_state}


TINY = {"patch_size": 8, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 3}
TINY |= {"image_size": 24}


def huggingface_aimv2_native():
    """Fixed positions of the images' own grid."""
    config = transformers.Aimv2VisionConfig(**TINY, is_native=True, use_head=False)
    model = randomise(transformers.Aimv2VisionModel(config))
    write("huggingface_aimv2_native", model, config.to_dict(), hidden)


def huggingface_sapiens2():
    """With names of the authors, as transformers writes them."""
    config = transformers.Sapiens2Config(**TINY, num_register_tokens=4, num_key_value_heads_per_layer=[3, 1])
    model = randomise(transformers.Sapiens2Model(config))
    write("huggingface_sapiens2", model, config.to_dict(), hidden)


def huggingface_sapiens2_plain():
    """Without registers, of which there is an empty array, a gate, and norms of queries and keys."""
    tiny = TINY | {"num_hidden_layers": 1, "hidden_act": "gelu"}
    config = transformers.Sapiens2Config(**tiny, num_register_tokens=0, use_gated_mlp=False, use_qk_norm=False)
    model = randomise(transformers.Sapiens2Model(config))
    write("huggingface_sapiens2_plain", model, config.to_dict(), hidden, sizes=SQUARE)


def huggingface_mlcd():
    """Rotary positions, with learned angles of the class token."""
    config = transformers.MLCDVisionConfig(**TINY)
    model = randomise(transformers.MLCDVisionModel(config))
    write("huggingface_mlcd", model, config.to_dict(), mlcd_arrays)


def mlcd_arrays(model, images):
    outputs = model(pixel_values=images)
    return {"tokens": outputs.last_hidden_state, "pooled": outputs.pooler_output}


WRITERS = (timm_uni2, timm_qwen3, timm_deepseek, open_clip_gap, open_clip_siglip)
WRITERS += (huggingface_aimv2_native, huggingface_sapiens2, huggingface_sapiens2_plain, huggingface_mlcd)

if __name__ == "__main__":
    for writer in WRITERS:
        if writer.__name__.startswith(tuple(sys.argv[1:]) or ("",)):
            writer()
