"""What the layers compute by, for each backend: the plain form with `keras.ops`, and what is faster or keeps less."""
