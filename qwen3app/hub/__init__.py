"""Models by name: finding them in the Hub's cache on this machine, and getting them from the Hub."""

import os

# huggingface_hub reads this when it is imported, which only this package does: it would tell the Hub of other programs.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
