"""What becomes of a file that lacks something: each role, each single tensor, rows of tables, and tokens.

No model is built: the config that is inferred says which weights a model has, and the check of the fit would refuse a
file with others.
"""

import re
import shutil
from collections import defaultdict

import numpy as np
from conftest import GOLDEN
from safetensors.numpy import load_file, save_file

from keras_vit.config.parts import PART_FIELDS, block_parts, pooling_parts
from keras_vit.weights.adapt import select_head
from keras_vit.weights.infer_config import assumed_defaults, infer_config, open_checkpoint
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.resolve import WeightsFile

_HEADS = ("head", "pre_logits", "resnet_")  # which a caller may leave out
_TABLE = re.compile(r"(.*[./])?pos(ition(al)?)?_?embed(ding)?s?(\.weight)?")
_CLASS = re.compile(r"(.*[./])?(cls_token|class_embedding)")
_GROUPS = {
    "biases of query, key and value": r".*\*.*\b(q|k|v|query|key|value)(_proj)?\.bias|.*\*.*[qv]_bias",
    "both scales": r".*\*.*(ls|gamma_|lambda_|layer_scale)[12*].*",
    "biases of the MLP": r".*\*.*(mlp|intermediate|ffn).*bias|.*\*\.output\.dense\.bias",
    "all biases": r".*bias",
    "all biases of norms": r".*norm.*bias",
    "norms of queries and keys": r".*[qk]_norm.*",
}


def cases(arrays, everything):
    """Pairs of what is changed and the changed arrays; `everything` has single tensors, whole layers and groups too."""
    roles, layers = defaultdict(list), defaultdict(list)
    for name in arrays:
        role = re.sub(r"(?<![a-zA-Z])\d+(?=[./])", "*", name)
        roles[role].append(name)
        layers[role.rpartition(".")[0]].append(name)
    dropped = {f"every {role}": names for role, names in roles.items()}
    if everything:
        dropped |= {f"only {name}": [name] for names in roles.values() for name in (names[0], names[-1])}
        dropped |= {f"the layer {layer}": names for layer, names in layers.items()}
        for what, pattern in _GROUPS.items():
            dropped[what] = [name for role, names in roles.items() if re.fullmatch(pattern, role) for name in names]
    for what, names in dropped.items():
        if 0 < len(names) < len(arrays):
            yield what, {name: array for name, array in arrays.items() if name not in names}
    for table in filter(_TABLE.fullmatch, arrays):
        short = np.delete(arrays[table], 0, -2)
        yield "the first row of the table", arrays | {table: short}
        for token in filter(_CLASS.fullmatch, arrays):
            yield "class token and row", {name: a for name, a in arrays.items() if name != token} | {table: short}


def silent_changes(tmp_path, folder, has_config, everything=False):
    """What can be changed in a folder of `tests/golden` so that it loads with other numbers and without a word."""
    source, copy = GOLDEN / folder, tmp_path / folder.replace("/", "_")
    copy.mkdir()
    for file in source.glob("*.json") if has_config else ():
        shutil.copy(file, copy)
    (file,) = source.glob("*.safetensors")
    arrays, path, found = load_file(file), copy / file.name, []

    def opened(changed):
        save_file({name: np.ascontiguousarray(array) for name, array in changed.items()}, path)
        checkpoint = select_head(open_checkpoint(WeightsFile(path)), classifies=True)
        given = {} if checkpoint.num_heads else {"num_heads": 3}
        config = infer_config(checkpoint, None, given)
        return checkpoint, config, (*checkpoint.remarks, *assumed_defaults(checkpoint, given))

    whole, usual, said = opened(arrays)
    assert _body(whole.tensors) == paths_of(usual), folder  # so that the law below holds
    for what, changed in cases(arrays, everything):
        try:
            checkpoint, config, lines = opened(changed)
        except CheckpointError as error:
            found += [] if str(path) in str(error) else [f"{what}: the error names no file"]
            continue
        if whole.classes != checkpoint.classes:
            continue  # which is said where a head is wanted
        fits = _body(checkpoint.tensors) == paths_of(config) and (checkpoint.grid or not checkpoint.has_positions)
        if fits and not _same(whole.tensors, checkpoint.tensors) and {*lines} <= {*said}:
            found.append(what)
    return found


def _body(tensors):
    return {path for path in tensors if not path.startswith(_HEADS)}


def _same(one, other):
    return _body(one) == _body(other) and all(np.array_equal(one[path], other[path]) for path in _body(one))


def paths_of(config):
    """The paths of the weights of a model without a head, by its config."""
    leaves = ("gamma",) if config.norm == "rms" else ("gamma", "beta")
    norms = [name for name in ("patch_norm", "pre_norm") if getattr(config, name)]
    norms += {"tokens": ["encoder_norm"], "pooled": ["pooled_norm"], "none": []}[config.final_norm]
    found = {"patch_embedding/projection/kernel"} | (
        {"patch_embedding/projection/bias"} if config.patch_bias else set()
    )
    there = {
        "class_token/token": config.has_class_token,
        "distillation_token/token": config.distilled,
        "register_tokens/tokens": config.registers,
        "position_embedding/table": config.position_embedding == "learned",
        "relative_bias_shared/table": config.relative_bias == "shared",
        "rotary_positions/periods": config.rotary_periods == "stored",
        "rotary_positions/class_angles": config.rotary_class_angles,
        "pooling/probe": config.pooling in ("map", "attentive"),
    }
    found |= {path for path, is_there in there.items() if is_there}
    fields = {name: getattr(config, name) for name in PART_FIELDS if name not in ("num_heads", "kv_heads")}
    parts = [(f"block_{n:02}", part) for n in range(config.num_layers) for part in block_parts(4, 4, **fields)]
    parts += [("pooling", part) for part in pooling_parts(4, 4, config.pooling)] if there["pooling/probe"] else []
    norms += ["pooling/norm"] if config.pooling == "map" else []
    for layer, part in parts:
        found |= {f"{layer}/{part.path}/{leaf}" for leaf in ("kernel", *(("bias",) if part.bias else ()))}
        found |= {f"{layer}/{part.scale}/gamma"} if part.scale else set()
        norms += [f"{layer}/{part.norm}"] if part.norm and "/" in part.norm else []
    for n in range(config.num_layers):
        norms += [f"block_{n:02}/norm_1", f"block_{n:02}/norm_2"]
        norms += [f"block_{n:02}/attention/{of}_norm" for of in ("query", "key") if config.qk_norm != "none"]
        found |= {f"relative_bias_{n:02}/table"} if config.relative_bias == "blocks" else set()
        found |= {f"rotary_positions_{n:02}/frequencies"} if config.rotary == "mixed" else set()
    return found | {f"{norm}/{leaf}" for norm in norms for leaf in leaves}
