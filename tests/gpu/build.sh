#!/usr/bin/env bash
# Builds libqwen3.so with the CUDA backend on a bare GPU machine. Needs nvcc, g++, cmake and nlohmann/json.hpp.
#   tests/gpu/build.sh [ARCHITECTURES [TARGET...]]      default 90a-real qwen3; more: "80-real;90a-real" qwen3 op_twins
set -euo pipefail
cd "$(dirname "$0")/../.."
include=${NLOHMANN_INCLUDE:-}
architectures=${1:-90a-real}
shift || true
cmake -S native -B build/gpu -DCMAKE_BUILD_TYPE=Release -DQWEN3_CUDA=ON -DQWEN3_TESTS=ON \
  "-DCMAKE_CUDA_ARCHITECTURES=$architectures" ${include:+-DNLOHMANN_INCLUDE=$include} >build-gpu.log 2>&1 || { cat build-gpu.log; exit 1; }
cmake --build build/gpu --parallel "$(nproc)" --target "${@:-qwen3}" >>build-gpu.log 2>&1 || { grep -E "error|Error" -A5 build-gpu.log | head -60; exit 1; }
rm -f build-gpu.log
