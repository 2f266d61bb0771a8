#!/bin/bash
# Installs the wheel into a directory and runs the tests on it: smoke_test.sh PYTHON WHEEL TEST... A test that ends with 77
# cannot run here.
set -euo pipefail
source base/skip_test.sh
python=$1 wheel=$PWD/$2
"$python" -c "import torch, numpy" 2>/dev/null || skip_test "this Python cannot import torch and numpy"
site=$TEST_TMPDIR/site
"$python" -m pip install --quiet --no-index --no-deps --target="$site" "$wheel"
tests=("${@:3}")
here=$PWD
cd "$TEST_TMPDIR"
for test in "${tests[@]}"; do
  code=0
  PYTHONPATH=$site "$python" "$here/$test" || code=$?
  [ $code != 77 ] || skip_test "$test cannot run on this machine"
  [ $code = 0 ] || exit $code
done
