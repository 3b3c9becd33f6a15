"""Text in and out: tokenizer, chat template, detokenizer, stop strings, the split of thoughts and answer.

Pure functions and small classes. Knows nothing of asyncio, HTTP or the engine.
"""
