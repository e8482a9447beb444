#!/bin/sh
# Compares labelmill with its peers; the options are those of peers.py (try --help).
exec "$(dirname "$0")/in_venv.sh" .venv requirements.txt peers.py "$@"
