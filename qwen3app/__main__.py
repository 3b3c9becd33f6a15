"""`python -m qwen3app` is the same command as `qwen3-8b`."""

import sys

from qwen3app.cli import main

if __name__ == "__main__":
    sys.exit(main())
