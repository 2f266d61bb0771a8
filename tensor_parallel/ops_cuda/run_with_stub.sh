#!/bin/bash
# run_with_stub.sh PROGRAM STUB: runs the test with the directory of the stub of
# a library before all others.
set -euo pipefail
LD_LIBRARY_PATH=$(dirname "$(readlink -f "$2")")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$1"
