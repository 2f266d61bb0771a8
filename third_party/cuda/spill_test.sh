#!/bin/bash
# spill_test.sh FILE...: fails if ptxas's resource usage names a kernel whose registers spill to memory.
cat "$@" | awk '
  /Compiling entry function/ { kernel = $0; sub(/^.*Compiling entry function /, "", kernel); ++kernels }
  /Function properties for/ { name = $NF }
  /spill stores/ {
    stores = loads = $0
    sub(/ bytes spill stores.*/, "", stores); sub(/^.*, /, "", stores)
    sub(/ bytes spill loads.*/, "", loads); sub(/^.*, /, "", loads)
    if (stores + loads > 0) { printf "%s (in %s) spills: %d bytes stored, %d bytes loaded\n", name, kernel, stores, loads; ++spills }
  }
  END {
    if (!kernels) { print "no kernel in the report of ptxas"; exit 1 }
    printf "%d kernels, %d functions that spill\n", kernels, spills
    exit spills > 0
  }'
