"""A model's answers from the software that computes them fastest here, called as the model is called.

`accelerate` opens a model in an engine, as an export is opened, and compares its numbers with the model's. It deletes
the file that an engine needs for that.
"""
