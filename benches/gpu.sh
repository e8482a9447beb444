#!/bin/sh
# gpu.sh BINARY [OPTIONS]: compares networks on a GPU with the CPU and PyTorch; prints Markdown. It needs the binary,
# Python 3 and a GPU; the options are those of peers/gpu.py (try --help).
exec python3 "$(dirname "$0")/peers/gpu.py" "$@"
