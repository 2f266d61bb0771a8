#!/bin/bash
# Installs the wheels into a directory and runs the tests on them: package_test.sh PYTHON WHEEL TOOLS_WHEEL README TEST...
set -euo pipefail
python=$1 wheel=$PWD/$2 tools_wheel=$PWD/$3 readme=$PWD/$4
here=$PWD
site=$TEST_TMPDIR/site
"$python" -m pip install --quiet --no-deps --no-index --no-compile --disable-pip-version-check --target "$site" "$wheel" "$tools_wheel"
cd "$TEST_TMPDIR"
export PYTHONPATH=$site
for test in "${@:5}"; do
  # Beside the sources the package would be found there.
  cp "$here/$test" .
  WHEEL=$wheel TOOLS_WHEEL=$tools_wheel README=$readme ROOT=$here "$python" "${test##*/}"
done
