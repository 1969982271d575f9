"""`python -m keras_vit` is the command line."""

import sys

from keras_vit.cli import main

if __name__ == "__main__":
    sys.exit(main())
