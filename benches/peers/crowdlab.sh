#!/bin/sh
# Compares `crowdlab` with cleanlab; see crowdlab.py.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/in_venv.sh" .venv-crowdlab requirements-crowdlab.txt crowdlab.py "$@"
