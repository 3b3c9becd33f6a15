"""How qwen3-demo, the small model in the box, is made: its training text, tokenizer, trainer, export and evaluation.

sample.py is what all recipes share; each recipe file makes one family of conversations; corpus.py mixes them and turns
them into token ids. Nothing here is imported by the product.
"""
