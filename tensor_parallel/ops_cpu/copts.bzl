"""How kernels are compiled."""

# One instruction set must not give other bits than another: products and sums are never fused.
# Sanitizers (fastbuild) take minutes over these templates at -O3.
VECTOR_COPTS = ["-ffp-contract=off"] + select({
    "//tensor_parallel/ops_cpu:optimised": ["-O3"],
    "//conditions:default": [],
})
