#!/usr/bin/env bash
# Runs the Python that sees the packages of deploy/packages.txt: Debian's, whatever python3 is first on
# PATH (that of pyenv or conda has no numpy of Debian's). Every script and every test goes through here.
# CKV_PYTHON names another one, which then needs these packages itself.
#   deploy/python.sh [ARGUMENT]...     the arguments of python3
python=${CKV_PYTHON:-/usr/bin/python3}
if ! command -v "$python" >/dev/null; then
  if [ -n "${CKV_PYTHON:-}" ]; then
    echo "deploy/python.sh: CKV_PYTHON is $CKV_PYTHON, which is not there" >&2
  else
    echo "deploy/python.sh: no $python; install it: deploy/install-packages.sh build" >&2
  fi
  exit 127
fi
exec "$python" "$@"
