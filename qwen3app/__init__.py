"""qwen3-8b: an inference engine and server for Qwen3 models. Python does text, HTTP and the terminal."""

__version__ = "0.1.0"
