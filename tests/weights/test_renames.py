"""Every row of the table of layouts, both ways on random sizes, bitwise, and no name of it is without use."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_vit.weights.families import LAYOUTS, from_file, recognize, sort_names, to_file
from keras_vit.weights.read import CheckpointError

# What each layout can hold besides the encoder: typed here a second time, not read off the rows.
STEM = {"root", "stages"}
SWITCHES = {"registers", "pre_norm", "pooled_norm", "scales", "gated", "attention_norm", "mlp_norm"}
DINOV2 = {"class", "table", "scales"}
DINOV3 = {"class", "registers", "scales"}
CLIP = {"class", "table", "pre_norm"}
ALWAYS = {  # without which a file is not known again
    **{f"{of}dinov2": DINOV2 for of in ("", "huggingface_")},
    **{f"{of}dinov2_registers": {*DINOV2, "registers"} for of in ("", "huggingface_")},
    **dict.fromkeys(("huggingface_clip", "open_clip"), CLIP),
    "huggingface_clip_classifier": {*CLIP, "head"},
    "huggingface_mlcd": {"class", "pre_norm", "class_angles"},
    "open_clip_gap": {"class", "table", "pooled_norm"},
    **dict.fromkeys(("huggingface_internvit", "internvit"), DINOV2),
    **{name: {*DINOV2, "registers"} for name in ("huggingface_tipsv2", "tips")},
    **{name: {"class", "table"} for name in ("huggingface_pixio", "mmseg")},
    "timm_beit3": {"attention_norm", "mlp_norm"},
    "timm_qwen3": {"table"},
    "timm_deepseek": {"gated", "rms"},
    "timm_eva": {"table", "no_key_bias"},
    "eva02": {"table", "no_key_bias", "gated"},
    **{f"{of}_sapiens2": {"registers", "gated", "qk_norm"} for of in ("timm", "huggingface")},
    **{f"{of}_beit": {"biases", "no_key_bias"} for of in ("timm", "huggingface")},
    **{f"{of}aimv2": {"table", "gated", "bare"} for of in ("", "timm_", "huggingface_")},
    "huggingface_radio": {"class", "table", "registers", "scales"},
    "dinov3": DINOV3,
    "huggingface_dinov3": {"class", "scales"},
    "timm_dinov3": {*DINOV3, "no_key_bias"},
    "timm_rope": {"class", "scales"},
    "huggingface_eomt": {"class", "table", "scales"},
    "huggingface_eomt_dinov3": {"class", "scales"},
    "huggingface_yolos": {"class"},
    "huggingface_vitpose": {"table", "offset"},
    "huggingface_owl": CLIP,
    **{name: {"table", "axis_positions", "neck"} for name in ("huggingface_sam", "sam", "timm_sam")},
    "timm_rope_registers": {"registers", "scales", "no_key_bias"},
    **{f"{of}pe{end}": {"pre_norm", *more} for of in ("timm_", "") for end, more in (("", ()), ("_core", ("map",)))},
}
WITHOUT_LAST_NORM = {"timm_qwen3", "open_clip_gap", "internvit", "huggingface_radio", "timm_pe", "pe"}
WITHOUT_LAST_NORM |= {"huggingface_sam", "sam", "timm_sam"}
OF_EVA = {"class", "distillation", "table", "head", *SWITCHES}
RELATIVE = {"biases", "shared_bias", "no_key_bias"}
PARTS = {
    "official": {"class", "table", "pre_logits", "head", *STEM},
    "linen": {"class", "table", "pre_logits", "head", *STEM},
    "big_vision": {"class", "table", "pre_logits", "head", "map"},
    "timm": {"class", "distillation", "table", "head", "map", *STEM, *SWITCHES},
    **{name: {*OF_EVA, "map"} for name in ("timm_eva", "eva02", "timm_pe_core")},
    "timm_beit3": {*OF_EVA, "map", *STEM},
    **{name: ALWAYS[name] for name in ("timm_qwen3", "timm_deepseek", "mmseg")},
    "timm_pe": OF_EVA,
    "pe": {"class", "table", "head", "scales", "pre_norm"},
    "pe_core": {"class", "table", "head", "scales", "pre_norm", "map"},
    "huggingface_sapiens2": {"class", "registers", "gated", "scales", "qk_norm"},
    "timm_sapiens2": {"class", "head", "registers", "gated", "scales", "qk_norm"},
    "timm_beit": {*OF_EVA, "map", *RELATIVE},
    "huggingface_beit": {"class", "table", "head", "scales", "pooled_norm", *RELATIVE},
    "huggingface": {"class", "distillation", "table", "pre_logits", "head"},
    **{name: {*parts, "gated"} for name, parts in ALWAYS.items() if "dinov2" in name or "tips" in name},
    **{f"huggingface_{name}": {*ALWAYS[name], "gated", "head"} for name in ("dinov2", "dinov2_registers")},
    **{name: {*DINOV2, "qk_norm"} for name in ("huggingface_internvit", "internvit")},
    "dinov3": {*DINOV3, "gated", "no_key_bias", "periods"},
    "huggingface_dinov3": {*DINOV3, "gated", "no_key_bias"},
    "timm_dinov3": {*DINOV3, "gated", "pooled_norm", "head", "no_key_bias"},
    "timm_rope": {"class", "table", "scales", "pooled_norm", "head", "frequencies"},
    "timm_rope_registers": {"registers", "scales", "pooled_norm", "head", "no_key_bias"},
    **{f"huggingface_clip{end}": {*CLIP, "head"} for end in ("", "_classifier")},
    "huggingface_mlcd": {"class", "pre_norm", "class_angles"},
    **{name: {"table", "map", "head"} for name in ("huggingface_siglip", "huggingface_siglip2")},
    "huggingface_pixio": {"class", "table"},
    "huggingface_radio": {"class", "table", "registers", "scales", "gated"},
    "huggingface_eomt": {*DINOV2, "registers", "gated"},
    "huggingface_eomt_dinov3": {*DINOV3, "gated", "no_key_bias"},
    "huggingface_yolos": {"class", "table", "tables"},
    **{name: ALWAYS[name] for name in ("huggingface_owl", "huggingface_vitpose", "huggingface_sam", "sam", "timm_sam")},
    "open_clip": {*CLIP, "head", "scales"},
    "open_clip_gap": {*ALWAYS["open_clip_gap"], "head", "scales"},
    "aimv2": ALWAYS["aimv2"],
    "timm_aimv2": {*ALWAYS["aimv2"], "head", "pooled_norm"},
    "huggingface_aimv2": {*ALWAYS["aimv2"], "attentive"},
    "bit": {"head"},
    "bit_paper": {"head"},
}
ODD = st.sampled_from([3, 5, 7, 9, 11])
SIZES = st.fixed_dictionaries({"heads": st.integers(1, 4), "each": ODD, "mlp_dim": ODD, "classes": ODD, "side": ODD})


def dense(path, *shape):
    return {f"{path}/kernel": shape, f"{path}/bias": shape[-1:]}


def norm(path, size):
    return {f"{path}/gamma": (size,), f"{path}/beta": (size,)}


def block(path, width, mlp_dim, gated=False):
    """Attention and MLP of a block, or of attention pooling."""
    *first, last = ("gate", "up", "down") if gated else ("dense_1", "dense_2")
    found = dense(f"{path}/mlp/{last}", mlp_dim, width)
    for name in first:
        found |= dense(f"{path}/mlp/{name}", width, mlp_dim)
    for part in ("query", "key", "value", "out"):
        found |= dense(f"{path}/attention/{part}", width, width)
    return found


def units(first, norms, with_norm_proj):
    """Units of a ResNet, the first of a stage with a projection."""
    found = {}
    for path in ("resnet_stage_1_unit_1", "resnet_stage_2_unit_1", "resnet_stage_2_unit_10"):
        for part in ("1", "2", "3", "proj")[: 4 if path.endswith("_1") else 3]:
            found[f"{path}/conv_{part}/kernel"] = (3, 5, first, norms)
            found |= norm(f"{path}/norm_{part}", norms) if part != "proj" or with_norm_proj else {}
    return found


def shapes_of(layout, parts, heads, each, mlp_dim, classes, side):
    """`{our path: shape}` of a model with these parts."""
    width, prefix = heads * each, len(parts & {"class", "distillation"})
    heads_of_classes = dense("head", width, classes) if "head" in parts else {}
    if LAYOUTS[layout].is_resnet:
        root = {"resnet_root/conv/kernel": (7, 5, 3, each)}
        return root | norm("resnet_norm", width) | units(each, mlp_dim, False) | heads_of_classes
    found = dense("patch_embedding/projection", side, side + 1, 3, width)
    if layout == "huggingface_siglip2":  # likewise
        found = dense("patch_embedding/projection", side, side, 3, width)
    if LAYOUTS[layout].metadata_arrays:  # patches are rows of a matrix, so they are square
        found = {"patch_embedding/projection/kernel": (side, side, 3, width)}
    found |= {} if layout in WITHOUT_LAST_NORM else norm("encoder_norm", width)
    for index in (0, 3, 10):
        path = f"block_{index:02}"
        found |= (
            block(path, width, mlp_dim, "gated" in parts)
            | norm(f"{path}/norm_1", width)
            | norm(f"{path}/norm_2", width)
        )
    if parts & STEM:
        found |= {"resnet_root/conv/kernel": (7, 5, 3, each)} | norm("resnet_root/norm", each)
    optional = {
        "class": {"class_token/token": (1, 1, width)},
        "distillation": {"distillation_token/token": (1, 1, width)} | dense("head_distillation", width, classes),
        "table": {"position_embedding/table": (1, prefix + side * (side if "neck" in parts else 4), width)},
        "axis_positions": {
            f"block_{i:02}/positions/{axis}": (7, each) for i in (0, 3, 10) for axis in ("rows", "columns")
        },
        "neck": {
            **{"neck/conv_1/kernel": (1, 1, width, classes), "neck/conv_2/kernel": (3, 3, classes, classes)},
            **{path: size for number in (1, 2) for path, size in norm(f"neck/norm_{number}", classes).items()},
        },
        "tables": {f"position_embedding_{i:02}/table": (1, prefix + side * 4, width) for i in (0, 1, 2)},
        "pre_logits": dense("pre_logits", width, width),
        "map": block("pooling", width, mlp_dim) | norm("pooling/norm", width) | {"pooling/probe": (1, 1, width)},
        "stages": units(each, mlp_dim, True),
        "biases": {f"relative_bias_{i:02}/table": (12, heads) for i in (0, 3, 10)},
        "shared_bias": {"relative_bias_shared/table": (12, heads)},
        "offset": {"position_offset/token": (1, 1, width)},
        "registers": {"register_tokens/tokens": (1, 2, width)},
        "pre_norm": norm("pre_norm", width),
        "pooled_norm": norm("pooled_norm", width),
        "periods": {"rotary_positions/periods": (each,)},
        "class_angles": {"rotary_positions/class_angles": (each,)},
        "frequencies": {f"rotary_positions_{i:02}/frequencies": (2, heads, each) for i in (0, 1, 2)},
        "scales": {f"block_{i:02}/layer_scale_{part}/gamma": (width,) for i in (0, 3, 10) for part in (1, 2)},
    }
    optional |= {
        f"{of}_norm": {k: v for i in (0, 3, 10) for k, v in norm(f"block_{i:02}/{of}/norm", size).items()}
        for of, size in (("attention", width), ("mlp", mlp_dim))
    }
    for part in parts & optional.keys():
        found |= optional[part]
    if "qk_norm" in parts:  # and RMSNorm, which such models have
        norms = {f"block_{i:02}/attention/{part}_norm/gamma": (each,) for i in (0, 3, 10) for part in ("query", "key")}
        found = {path: shape for path, shape in found.items() if not path.endswith("/beta")} | norms
    if "no_key_bias" in parts:
        found = {path: shape for path, shape in found.items() if not re.match("block.*/key/bias", path)}
    if "bare" in parts:  # RMSNorm, also of patches, and no biases in the blocks
        found = {path: s for path, s in found.items() if not re.search(r"/beta$|^block_.*/bias$", path)}
        found |= {"patch_norm/gamma": (width,)}
    if "rms" in parts:  # and no biases in the MLP
        found = {path: s for path, s in found.items() if not re.search(r"/beta$|/mlp/.*/bias$", path)}
    if "attentive" in parts:
        found |= {f"pooling/attention/{part}/kernel": (width, width) for part in ("key", "value")}
        found |= dense("pooling/attention/out", width, width) | {"pooling/probe": (1, 1, width)}
    return found | heads_of_classes


def zeros(layout, parts, more=()):
    return {path: np.zeros(shape) for path, shape in (shapes_of(layout, parts, 3, 5, 7, 9, 11) | dict(more)).items()}


def possible(layout, parts):
    """The parts that go together."""
    parts = (parts if {"class", "head"} <= parts else parts - {"distillation"}) | ALWAYS.get(layout, set())
    as_timm = layout in ("timm", "timm_beit3")
    parts = parts - {"map"} if as_timm and "pre_norm" in parts else parts  # so has Perception Encoder
    parts = parts - {"mlp_norm"} if layout.startswith("timm_pe") else parts  # else it is written as EVA
    parts = parts - {"mlp_norm"} if layout == "timm" and "attention_norm" in parts else parts  # so has BEiT-3
    parts = parts - {"no_key_bias"} if layout == "timm_beit3" else parts
    parts |= {"table"} if layout == "linen" else set()  # without one it is taken for a file of big_vision
    if layout == "huggingface_yolos":  # after the stem, or before each block
        parts = parts - {"table"} if "tables" in parts else parts | {"table"}
    return parts - {"pre_logits"} if layout == "huggingface" and "head" in parts else parts


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(data=st.data())
def test_ours_to_theirs_to_ours_to_theirs_is_bitwise(layout, data):
    parts = possible(layout, data.draw(st.sets(st.sampled_from(sorted(PARTS[layout])))))
    sizes = data.draw(SIZES)
    rng = np.random.default_rng(sizes["classes"])
    shapes = shapes_of(layout, parts, **sizes)
    ours = {path: rng.normal(size=shape).astype("float32") for path, shape in shapes.items()}
    if layout == "big_vision" and {"class", "table"} <= parts:
        ours["position_embedding/table"][:, 0] = 0  # of which the file keeps the sum with the token
    folds_rows = LAYOUTS[layout].software in ("timm", "the authors' EVA-02") and {"registers", "table"} <= parts
    if folds_rows or (layout == "timm_rope" and "table" in parts):
        ours["position_embedding/table"][:, : len(parts & {"class", "distillation"})] = 0  # likewise
    if layout in ("huggingface_radio", "huggingface_eomt"):
        ours["position_embedding/table"][:, :1] = 0  # likewise
    if layout in ("huggingface_clip", "open_clip", "open_clip_gap", "pe", "pe_core") and "head" in parts:
        ours["head/bias"][:] = 0  # it has none
    row, fields = LAYOUTS[layout], {"class_tokens": 1, "pixel_statistics": ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))}
    facts = {row.prefix + name: array for name, array in row.write_metadata(fields).items()}
    theirs = dict(to_file(layout, ours, sizes["heads"])) | facts
    same = "gated" in parts or layout == "huggingface_siglip2"  # names of another layout: TIPS, DINOv2, SigLIP
    said = layout if same else ""
    name, prefix = recognize(LAYOUTS[layout].suffix[1:], theirs, said)
    assert (name, prefix) == (layout, LAYOUTS[layout].prefix)
    weights = {name: theirs[name] for name in sort_names(layout, prefix, theirs)[0]} | facts
    back, heads = from_file(layout, prefix, weights, sizes["side"] * 4)
    assert heads in (None, sizes["heads"])
    assert_same(ours, back)
    assert_same(theirs, dict(to_file(layout, back, sizes["heads"])) | facts)


def assert_same(one, other):
    assert set(one) == set(other)
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name, strict=True)


def test_every_row_and_every_name_of_it_is_sent_both_ways():
    assert set(PARTS) == set(LAYOUTS)
    sizes = {"heads": 3, "each": 5, "mlp_dim": 7, "classes": 9, "side": 11}
    for layout, row in LAYOUTS.items():
        gated = set() if PARTS[layout] & {"bare", "rms"} else {"gated"}
        kinds = [shapes_of(layout, PARTS[layout] - without, **sizes) for without in (set(), gated)]
        assert [row.unmapped(paths) for paths in kinds] == [[], []]
        paths = kinds[0] | kinds[1] | {"mask_token/token": (1, 15)}  # which no model has, and a training may
        for (prefix, _), layers in row.names.items():
            pattern = re.sub(r"\{.*?\}", r"\\d+", prefix)
            for layer in (part for names in layers for part in ([names] if isinstance(names, str) else names)):
                assert any(re.match(rf"{pattern}{layer}(/|$)", path) for path in paths), f"{layout}: {prefix}{layer}"


FUSED = {("attention/query", "attention/key", "attention/value"), ("attention/key", "attention/value")}
FUSED |= {("mlp/gate", "mlp/up")}
MEANINGS = {  # what the software calls a part of a block
    **{part: {part, f"{part[0]}_proj", part[0]} for part in ("query", "key", "value")},
    "query_norm": {"q_norm"},
    "key_norm": {"k_norm"},
    "gate": {"fc1", "fc1_g", "gate_proj", "w1"},
    "up": {"fc3", "fc1_x", "up_proj", "gated_up_proj", "w2"},
    "norm_1": {"norm1", "norm_1", "ln1", "ln_1", "layer_norm1", "rms_norm1", "layernorm_before", "LayerNorm_0"},
    "norm_2": {
        "norm2",
        "norm_2",
        "ln2",
        "ln_2",
        "layer_norm2",
        "rms_norm2",
        "layernorm_after",
        "LayerNorm_1",
        "LayerNorm_2",
    },
}


def test_names_of_a_block_mean_what_they_say():
    """A wrong row is wrong both ways, so what it writes it reads again bit by bit."""
    tables = [item for layout in LAYOUTS.values() for names in (layout.names, layout.also) for item in names.items()]
    rows = [row for (block, _), layers in tables for row in layers.items() if block.startswith(("block_", "pooling/"))]
    for parts, name in rows:
        if isinstance(parts, tuple):
            assert parts in FUSED, name
            continue
        path, last = parts.removesuffix("/gamma"), re.split(r"[./]", name)[-1]
        assert last in MEANINGS.get(path.rpartition("/")[2], {last}), (parts, name)
        if path.startswith("layer_scale_"):
            assert re.search(r"\d", name)[0] == path[-1], (parts, name)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_read_too_has_a_place_that_is_written_or_none(layout):
    """Names of older versions lead to weights of ours that are known, and are never written."""
    row = LAYOUTS[layout]
    written = {(theirs, name) for (_, theirs), layers in row.names.items() for name in layers.values()}
    older = {(theirs, name) for (_, theirs), layers in row.also.items() for name in layers.values()}
    assert not written & older


@pytest.mark.parametrize("layout", [name for name, row in LAYOUTS.items() if not row.is_resnet])
@pytest.mark.parametrize("own", ["projection", "adapter/nested"])
def test_a_weight_without_a_place_is_listed_with_its_shape_and_a_way_out(layout, own):
    arrays = zeros(layout, {"class", "table", "head"}, dense(own, 13, 17))
    with pytest.raises(CheckpointError, match=rf" {own}/kernel \(13, 17\)\n +{own}/bias \(17,\)\n.*\.keras"):
        to_file(layout, arrays, 3)


def test_layouts_that_have_a_place_are_named():
    arrays = zeros("timm", {"map", "table"})
    with pytest.raises(CheckpointError, match="'big_vision', 'timm'"):
        to_file("official", arrays, 3)


@pytest.mark.parametrize("kept", ["query", "key", "value"])
def test_a_part_of_a_fused_matrix_alone_has_no_place(kept):
    arrays = zeros("timm", {"table"})
    del arrays[f"block_03/attention/{kept}/kernel"]
    with pytest.raises(CheckpointError, match=r"2 of(.|\n)*block_03/attention/\w+/kernel \(15, 15\)"):
        to_file("timm", arrays, 3)


@pytest.mark.parametrize("name", ["vit.classifier.weight", "cls_classifier.weight"])
def test_two_names_of_one_weight_are_refused(name):
    ours = zeros("huggingface", {"class", "head"})
    theirs = dict(to_file("huggingface", ours, None))
    with pytest.raises(CheckpointError, match=r"once(.|\n)*classifier.weight(.|\n)*head/kernel"):
        from_file("huggingface", "", theirs | {name: np.zeros((9, 15))})


NOT_OFFICIAL = (
    "00/LayerNorm_0/scale",
    "0/LayerNorm_1/scale",  # Linen's name in a pre-Linen file
    "0/MlpBlock_3/Dense_2/kernel",
    "0/MultiHeadDotProductAttention_1/query/scale",
)


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ("timm", "blocks.00.norm1.weight"),
        ("timm", "blocks.\N{ARABIC-INDIC DIGIT ONE}.norm1.weight"),
        ("timm", f"blocks.{'1' * 5000}.norm1.weight"),
        ("bit", "block0/unit01/a/group_norm/gamma"),
        ("bit", "block1/unit1/a/group_norm/gamma"),
        ("official", "block1/unit01/conv1/kernel"),
        ("official", "block1/unit1/conv_1/kernel"),
        ("official", "opt/target/cls"),
        *(("official", f"Transformer/encoderblock_{name}") for name in NOT_OFFICIAL),
    ],
)
def test_name_that_the_layout_does_not_have_is_not_guessed(layout, name):
    ours, _ = from_file(layout, "", {name: np.zeros(3)})
    assert list(ours) == [name]
