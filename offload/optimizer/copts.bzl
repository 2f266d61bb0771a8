"""Compiler flags of kernels."""

# Every instruction set must give the same bits, so products and sums are never fused.
KERNEL_COPTS = ["-ffp-contract=off"] + select({
    "//offload/optimizer:optimised": ["-O3"],
    "//conditions:default": [],
})
