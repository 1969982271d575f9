"""The layouts of models that have one task, encoder and head in one file."""
