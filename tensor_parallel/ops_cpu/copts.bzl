"""Compiler flags of kernels."""

# Every instruction set must give the same bits, so products and sums are never fused.
# Sanitizers (fastbuild) take minutes over these templates at -O3.
VECTOR_COPTS = ["-ffp-contract=off"] + select({
    "//tensor_parallel/ops_cpu:optimised": ["-O3"],
    "//conditions:default": [],
})
