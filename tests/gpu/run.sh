#!/usr/bin/env bash
# Builds, tests and measures the CUDA backend on a bare GPU machine, and leaves one JSON and one table.
#   tests/gpu/run.sh [correct] [sanitize] [speed] [--quick] [--skip STEP] [--out DIR]      (no part: all)
# Needs nvcc, g++, cmake, nlohmann/json.hpp (or NLOHMANN_INCLUDE) and a python3 with torch, transformers and cffi. What
# each part does: docs/measuring.md. Exit status 1 if a step failed.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec python3 tests/gpu/run.py "$@"
