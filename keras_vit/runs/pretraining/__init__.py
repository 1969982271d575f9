"""One call from images without labels to an encoder: `keras_vit.pretrain` and `keras_vit.distil`.

`recipes` says what is chosen for so many images. `trainings` builds what `fit` trains, `guarding` what measures it, and
`run` does the rest with the options, the plan, the folder and the progress of `keras_vit.runs`.
"""
