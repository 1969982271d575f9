"""What a Vision Transformer is, and what can be done to one: section 3 of arXiv:2010.11929. Knows no file.

`graph` makes a `VisionTransformer` of a `ViTConfig`. `layer_access` finds its layers and weights by name,
`outputs` says what it puts out. `copies` and `precision` make the same model for another size or precision.
`freezing` says which weights learn. `training_step` computes a step on several devices and in
parts.
"""
