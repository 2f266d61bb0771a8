#!/bin/bash
# processes_test.sh LAUNCH PROCESSES: under the launcher the example prints the README's output.
set -euo pipefail
output=$("$1" --np=4 --output=raw -- "$2")
[ "$output" = "4 ranks agree on 1.5" ] || { echo "it printed: $output" >&2; exit 1; }
