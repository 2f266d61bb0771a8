#!/bin/bash
# processes_test.sh LAUNCH PROCESSES: the example prints, under the launcher, what the README says.
set -euo pipefail
output=$("$1" --np=4 --output=raw -- "$2")
[ "$output" = "4 ranks agree on 1.5" ] || { echo "it printed: $output" >&2; exit 1; }
