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


def config_of(case):
    facts = CASES[case]
    names = {field for field in facts if field not in ("image_size", "classes")}
    return keras_vit.ViTConfig(**{name: facts[name] for name in names})


@pytest.mark.parametrize("case", CASES)
def test_foreign_file_gives_the_logits_of_its_own_software(case):
    with np.load(FOREIGN / f"{case}.expected.npz") as expected:
        shape = (*CASES[case]["image_size"], 3)  # sin-cos positions do not tell it
        # timm's layout does not tell that this one was built with tanh, so the config's word is an adaptation.
        strict = case != "timm_token_tanh"
        model = keras_vit.build(config_of(case), weights=file_of(case), input_shape=shape, strict=strict)
        logits = model.predict_on_batch(expected["images"])
        np.testing.assert_allclose(logits, expected["logits"], atol=2e-5, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_a_variant_of_the_files_sizes_follows_it_in_all_else(case):
    """Pooling, activation, epsilon, tokens and positions are left open, as users of variant names leave them."""
    facts = CASES[case]
    sizes = {name: facts[name] for name in SIZES} | ({"activation": "gelu_tanh"} if "tanh" in case else {})
    with np.load(FOREIGN / f"{case}.expected.npz") as expected:
        model = keras_vit.build("Ti/16", weights=file_of(case), input_shape=(*facts["image_size"], 3), **sizes)
        np.testing.assert_allclose(model.predict_on_batch(expected["images"]), expected["logits"], atol=2e-5, rtol=0)
