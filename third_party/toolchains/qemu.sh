#!/bin/bash
# Runs a program for 64-bit Arm, and the programs that it starts, under qemu-aarch64-static: registers it in namespaces
# of its own (Linux 6.7 or later). The processor has SVE but not SME, for which the pinned OpenBLAS selects kernels that it
# lacks; QEMU_CPU selects another, such as cortex-a72.
#   third_party/toolchains/qemu.sh bazel-bin/tools/train/train --help
set -euo pipefail
export QEMU_LD_PREFIX=${QEMU_LD_PREFIX:-/usr/aarch64-linux-gnu}
export QEMU_CPU=${QEMU_CPU:-max,sme=off}
exec unshare --user --map-root-user --mount bash -c '
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
magic="\\x7fELF\\x02\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02\\x00\\xb7\\x00"
mask="\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x00\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xfe\\xff\\xff\\xff"
echo ":aarch64:M::$magic:$mask:/usr/bin/qemu-aarch64-static:F" >/proc/sys/fs/binfmt_misc/register
exec "$@"' qemu "$@"
