#!/usr/bin/env bash
# Makes or refreshes the virtual environment that the Makefile works in.
# Usage: make_venv.sh VENV GROUP...   (groups of pyproject.toml's optional dependencies; the runtime ones always come)
# Owns every check of the machine that set-up needs, so that each missing thing is one sentence. Installs from PyPI only.
set -euo pipefail
venv=$1
shift
here=$(cd "$(dirname "$0")" && pwd)

fail() {
  echo "make: $1" >&2
  exit 1
}

if [ ! -x "$venv/bin/python" ]; then
  python=""
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      python=$candidate
      break
    fi
  done
  [ -n "$python" ] || fail "Python 3.11 or newer is needed and was not found; install it (Debian, Ubuntu: apt install python3 python3-venv) or name it with PYTHON=..."
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python has no venv module; install it (Debian, Ubuntu: apt install python3-venv) and run make again"
  "$python" -m venv "$venv" || fail "$python could not make the virtual environment $venv"
fi
command -v "${CXX:-g++}" >/dev/null || fail "g++ is needed and was not found; install it (Debian, Ubuntu: apt install g++) and run make again"

# What each group of pyproject.toml is, in words.
what="what the program imports"
for group in "$@"; do
  case $group in
    build) what+=", build tools" ;;
    checkpoints) what+=", numpy and safetensors" ;;
    clients) what+=", client programs (1.1 GB)" ;;
    cuda) what+=", nvcc" ;;
    evaluation) what+=", numpy and jsonschema" ;;
    reference) what+=", PyTorch and transformers (most of 1.8 GB)" ;;
    test) what+=", test tools and linters" ;;
    *) fail "make_venv.sh has no words for the group $group of pyproject.toml" ;;
  esac
done
echo "make: installing into $venv, once: $what (a minute or a few)" >&2
requirements=$(mktemp)
trap 'rm -f "$requirements"' EXIT
"$venv/bin/python" "$here/requirements.py" "$@" >"$requirements"
"$venv/bin/python" -m pip install --quiet --quiet --disable-pip-version-check --requirement "$requirements" ||
  fail "pip could not install the pinned packages (see above); check the network and run make again"

# `.venv/bin/qwen3-8b` runs the checkout itself; `pip install .` makes the same command from a built wheel. A first line
# may hold no path with a space: so, as pip does it, sh starts Python, which reads the exec as a string.
root=$(dirname "$here")
cat >"$venv/bin/qwen3-8b" <<SCRIPT
#!/bin/sh
'''exec' "$(cd "$venv" && pwd)/bin/python" "\$0" "\$@"
' '''
import sys

sys.path.insert(0, "$root")
from qwen3app.cli import main

sys.exit(main())
SCRIPT
chmod +x "$venv/bin/qwen3-8b"
