"""A model's answers from the software that computes them fastest here, called as the model is called.

`accelerate` opens a model in an engine, in the way of the exports, and holds it to the model's numbers. A file that
was needed for it is gone again.
"""
