#!/bin/bash
# Installs the wheel into a directory and runs smoke_test.py on it.
set -euo pipefail
source base/skip_test.sh
python=$1 wheel=$PWD/$2 test=$PWD/$3
"$python" -c "import torch, numpy" 2>/dev/null || skip_test "this Python cannot import torch and numpy"
site=$TEST_TMPDIR/site
"$python" -m pip install --quiet --no-index --no-deps --target="$site" "$wheel"
cd "$TEST_TMPDIR"
PYTHONPATH=$site exec "$python" "$test"
