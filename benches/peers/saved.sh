#!/bin/sh
# Loads saved models into PyTorch and compares the probabilities; the options are those of saved.py (try --help).
exec "$(dirname "$0")/in_venv.sh" .venv-networks requirements-networks.txt saved.py "$@"
