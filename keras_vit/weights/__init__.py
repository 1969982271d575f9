"""Where trained numbers come from and go to; nothing here builds a model, and little of it needs Keras."""
