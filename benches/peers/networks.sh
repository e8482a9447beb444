#!/bin/sh
# Compares a training epoch of labelmill with PyTorch; the options are those of networks.py (try --help).
exec "$(dirname "$0")/in_venv.sh" .venv-networks requirements-networks.txt networks.py "$@"
