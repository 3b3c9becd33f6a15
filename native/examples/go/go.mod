module qwen3/examples/serve

go 1.19
