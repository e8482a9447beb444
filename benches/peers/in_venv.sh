#!/bin/sh
# in_venv.sh FOLDER REQUIREMENTS SCRIPT [OPTIONS]: runs a script in a virtual environment, which it creates if needed.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
venv="$here/$1"
requirements="$here/$2"
script="$here/$3"
shift 3

# The requirements are copied last, so that an interrupted installation is repeated.
if ! cmp -s "$requirements" "$venv/requirements.txt"; then
    python3 -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements"
    cp "$requirements" "$venv/requirements.txt"
fi

exec "$venv/bin/python" "$script" "$@"
