"""What a built model has is asked of `model.layer_access`: no other room spells out the name of a layer."""

import ast
import re

from test_architecture import TREES, room_of

STATION = re.compile(r"(block|resnet)_|(patch_embedding|class_token|encoder_norm|pooling|pre_logits|head)")
CODE = """
model.get_layer('head')
layer_named(model, f'block_{index}')
model.get_layer(name)
layer.name == "encoder_norm"
layer.name in ("head", "pooling")
record.name == "B/16"
"""


def test_no_module_outside_the_model_looks_a_layer_up_by_name():
    found = {module: list(layers_by_name(tree)) for module, tree in TREES.items() if room_of(module) != "model"}
    assert {module: lines for module, lines in found.items() if lines} == {}


def test_names_that_are_spelled_out_are_found():
    assert sorted(int(line.split(":")[0].removeprefix("line ")) for line in layers_by_name(ast.parse(CODE))) == [
        2,
        3,
        5,
        6,
    ]


def layers_by_name(tree):
    """Calls that look a layer up by a name that they spell out, and comparisons of a `name` with that of a station."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            literal = isinstance(node.args[-1], ast.JoinedStr | ast.Constant)
            if called in ("get_layer", "layer_named") and literal:
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Compare) and getattr(node.left, "attr", "") == "name":
            texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
            if any(isinstance(text, str) and STATION.match(text) for text in texts):
                yield f"line {node.lineno}: {ast.unparse(node)}"
