"""Times text towers and tokenizers beside OpenCLIP's."""
