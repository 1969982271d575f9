"""From a trained model to a file for another runtime, or to an engine here, compared with the model.

`export` writes into a staging folder, opens the file, compares it with the model, and publishes it.
"""
