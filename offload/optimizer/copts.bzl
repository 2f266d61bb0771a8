"""How kernels are compiled."""

# One instruction set must not give other bits than another: products and sums are never fused.
KERNEL_COPTS = ["-ffp-contract=off"] + select({
    "//offload/optimizer:optimised": ["-O3"],
    "//conditions:default": [],
})
