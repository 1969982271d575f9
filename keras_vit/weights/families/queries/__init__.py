"""The layouts of heads that read queries among an encoder's tokens, and of the encoders in their files."""
