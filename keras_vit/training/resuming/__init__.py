"""A checkpoint as one atomic unit: there whole and proven by checksums, or not there at all.

`pieces` is one file of arrays, and `checkpoint_folder` the folder of checkpoints. `variables` takes the state of a
model to the host and back, and `writing` writes it in a thread. `agreement` is for several processes, and `signals`
hears that a run is to stop. What a checkpoint is used for is in `keras_vit.training.checkpoints`.
"""
