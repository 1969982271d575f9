"""Features or scores of any number of photos: an object that other software calls, and a job that survives kills.

Nothing here imports Keras before a model needs it: a worker that runs a file of ONNX never does.
"""
