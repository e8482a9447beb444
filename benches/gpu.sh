#!/bin/sh
# gpu.sh BINARY [OPTIONS]: networks on a GPU beside the processor and PyTorch, as Markdown. It needs the binary, Python 3
# and a GPU; the options are those of peers/gpu.py (try --help).
exec python3 "$(dirname "$0")/peers/gpu.py" "$@"
