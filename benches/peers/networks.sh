#!/bin/sh
# Compares a training epoch of labelmill with PyTorch; the options are those of networks.py (try --help).
set -eu

here=$(cd "$(dirname "$0")" && pwd)
venv="$here/.venv-networks"

# The copied list is written last: an installation cut short is done again.
if ! cmp -s "$here/requirements-networks.txt" "$venv/requirements.txt"; then
    python3 -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --requirement "$here/requirements-networks.txt"
    cp "$here/requirements-networks.txt" "$venv/requirements.txt"
fi

exec "$venv/bin/python" "$here/networks.py" "$@"
