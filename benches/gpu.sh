#!/bin/sh
# gpu.sh BINARY [OPTIONS]: compares networks on a GPU with the CPU and PyTorch; prints Markdown. It needs the binary,
# Python 3, a GPU with its driver, and CUDA's libraries of the major version that the binary was built with: the runtime,
# cuBLAS, cuRAND, and NVRTC, which compiles the kernels when they are first used. It needs no nvcc. The options are those of
# peers/gpu.py (try --help).
exec python3 "$(dirname "$0")/peers/gpu.py" "$@"
