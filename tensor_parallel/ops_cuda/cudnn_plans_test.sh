#!/bin/bash
# cudnn_plans_test.sh PROGRAM STUB: runs the test with the stub as its driver.
set -euo pipefail
LD_LIBRARY_PATH=$(dirname "$(readlink -f "$2")")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$1"
