#!/bin/sh
# Compares labelmill with its peers; the options are those of peers.py (try --help).
set -eu

here=$(cd "$(dirname "$0")" && pwd)
venv="$here/.venv"

# The copied list is written last: an installation cut short is done again.
if ! cmp -s "$here/requirements.txt" "$venv/requirements.txt"; then
    python3 -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --requirement "$here/requirements.txt"
    cp "$here/requirements.txt" "$venv/requirements.txt"
fi

exec "$venv/bin/python" "$here/peers.py" "$@"
