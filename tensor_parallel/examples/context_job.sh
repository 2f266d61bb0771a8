#!/bin/bash
# Runs the example "context" on four ranks.
exec tools/launch/launch --np=4 --output=raw -- tensor_parallel/examples/context
