#!/bin/bash
# Compares a program's output with the stored picture: picture_test.sh PROGRAM PICTURE.
"$1" | cmp - "$2" || { echo "$2 has changed; check the new picture, then replace it: $1 >$2"; exit 1; }
