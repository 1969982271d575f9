"""Words to ids: cleaning, vocabularies and prompts. Nothing here imports Keras."""
