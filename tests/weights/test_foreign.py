"""Files of timm, transformers and big_vision give the logits that their own software computes."""

import json

import numpy as np
import pytest
from conftest import GOLDEN

import keras_vit

FOREIGN = GOLDEN / "foreign"
CASES = json.loads((FOREIGN / "cases.json").read_text())
SIZES = ("patch_size", "hidden_size", "num_layers", "num_heads", "mlp_dim")


def file_of(case):
    return next(path for path in FOREIGN.glob(f"{case}.*") if ".expected" not in path.name)


@pytest.mark.parametrize("by", ["config", "variant"])
@pytest.mark.parametrize("case", CASES)
def test_foreign_file_gives_the_logits_of_its_own_software(case, by):
    """By the name of a variant, pooling, activation, epsilon, tokens and positions are left to the file."""
    facts = CASES[case]
    arguments = {"weights": file_of(case), "input_shape": (*facts["image_size"], 3)}  # sin-cos positions tell no size
    if case.startswith("huggingface"):  # computed with this, where a file alone gets transformers' default, 1e-12
        arguments["layer_norm_epsilon"] = 1e-6
    tanh = {"activation": "gelu_tanh"} if "tanh" in case else {}  # no tensor tells it, so that it is an adaptation
    if by == "config":
        config = keras_vit.ViTConfig(**{name: facts[name] for name in facts.keys() - {"image_size", "classes"}})
        model = keras_vit.build(config, **arguments, strict=not tanh, **tanh)
    else:
        model = keras_vit.build("Ti/16", **arguments, **{name: facts[name] for name in SIZES}, **tanh)
    with np.load(FOREIGN / f"{case}.expected.npz") as expected:
        np.testing.assert_allclose(model.predict_on_batch(expected["images"]), expected["logits"], atol=2e-5, rtol=0)
