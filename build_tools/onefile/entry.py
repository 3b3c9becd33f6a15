"""First Python line of the packed program: hands over to the command line."""

import sys

from qwen3app.cli import main

sys.exit(main())
