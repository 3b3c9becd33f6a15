"""Times cuBLAS (through torch) on the matrix products of the 8B shape, the way cuda_linear_bench times ours.

A graph of a few launches over rotating weights, short bursts with pauses, because the card lowers its clock under
sustained load. Prints microseconds and TFLOP/s. Needs torch with CUDA; not part of the product.
"""

import time

import torch

SHAPES = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (24576, 4096),
    "down": (4096, 12288),
    "lm_head": (151936, 4096),
}


def burst(launch: torch.cuda.CUDAGraph, repeats: int) -> float:
    """Milliseconds per launch of the graph, back to back."""
    begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(repeats):
        launch.replay()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / repeats


def main() -> None:
    for rows in (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192):
        for name, (n, k) in SHAPES.items():
            if name == "lm_head" and rows > 256:  # only sampled rows go through it
                continue
            count = 2 if name == "lm_head" else 16 if rows <= 256 else 8 if rows <= 1024 else 3
            x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
            weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * 0.02 for _ in range(count)]
            for weight in weights[:2]:
                torch.nn.functional.linear(x, weight)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for weight in weights:
                    torch.nn.functional.linear(x, weight)
            graph.replay()
            torch.cuda.synchronize()
            repeats = max(1, int(2.5 / burst(graph, 1)))
            best = 1e9
            for _ in range(3):
                time.sleep(0.025)
                best = min(best, burst(graph, repeats))
            us = best * 1e3 / count
            print(f"cublas M={rows:<5d} {name:8s} {us:8.1f} us {2 * rows * n * k / us / 1e6:5.0f} TFLOP/s", flush=True)
            del graph, weights, x


if __name__ == "__main__":
    main()
