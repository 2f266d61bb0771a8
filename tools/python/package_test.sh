#!/bin/bash
# Installs the wheel into a directory and runs the tests on it: package_test.sh PYTHON WHEEL README TEST...
set -euo pipefail
python=$1 wheel=$PWD/$2 readme=$PWD/$3
here=$PWD
site=$TEST_TMPDIR/site
"$python" -m zipfile -e "$wheel" "$site"
cd "$TEST_TMPDIR"
export PYTHONPATH=$site
for test in "${@:4}"; do
  # Beside the sources the package would be found there.
  cp "$here/$test" .
  WHEEL=$wheel README=$readme ROOT=$here "$python" "${test##*/}"
done
