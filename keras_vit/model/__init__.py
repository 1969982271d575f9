"""What a Vision Transformer is, and what can be done to one: section 3 of arXiv:2010.11929. Knows no file.

`graph` makes a `VisionTransformer` of a `ViTConfig`. `layer_lookup` finds its layers and weights by name,
`outputs` says what it puts out. `copies` and `precision` make the same model for another size or precision.
`freezing` and `lora` say which weights learn. `accumulation` computes a step in parts, and `deferred` gives variables
their values.
"""
