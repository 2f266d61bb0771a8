#!/bin/bash
# Tests the shared library as C programs use it: abi_test.sh LIBRARY HEADER SYMBOLS EXAMPLE README LAUNCH TRAIN MODULE RUST
set -uo pipefail
library=$PWD/$1 header=$PWD/$2 symbols=$PWD/$3 example=$PWD/$4 readme=$PWD/$5 launch=$PWD/$6 train=$PWD/$7 module=$PWD/$8 rust=$PWD/$9
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
cd "$TEST_TMPDIR"
ln -s "$library" libtessera.so && ln -s "$library" libtessera.so.1
export LD_LIBRARY_PATH=$PWD

# The linker also exports functions of std::string, weak ones, that libgloo.so uses.
nm -D --defined-only libtessera.so | awk '$2 != "W" {print $3}' | grep -v '^TESSERA_1$' | sort >exported
sed 's/$/@@TESSERA_1/' "$symbols" | diff - exported || fail "exported symbols differ from symbols.txt"
grep -o 'tessera_[a-z_]*(' "$header" | tr -d '(' | sort -u | diff - "$symbols" || fail "functions of the header differ"

run_example() {
  "$launch" --np=4 --output=raw -- ./example >out 2>err || fail "$1: $(cat err)"
  sort out | diff - <(for rank in 0 1 2 3; do
    echo "rank $rank: the sum of all ranks is 6; tensor group $((rank % 2)) and $((rank % 2 + 2))"
  done) || fail "output of $1"
}
gcc -std=c99 -pedantic -Wall -Wextra -Werror -I"$(dirname "$header")" "$example" -L. -ltessera -o example || fail "example.c"
run_example example.c
if command -v rustc >/dev/null; then
  rustc -D warnings "$rust" -L . -o example || fail "example.rs"
  run_example example.rs
else
  echo "example.rs is not compiled: there is no rustc here"
fi

sed -n '/^```python$/,/^```$/p' "$readme" | grep -v '^```' >ctypes_example.py
sed -n '/^```text$/,/^```$/p' "$readme" | grep -v '^```' >expected
python3 ctypes_example.py | diff - expected || fail "example of the README"

# A checkpoint of two tensor-parallel ranks as whole tensors.
"$train" --mesh=tp2 --steps=1 --sample_tokens=0 --run_dir=run >out 2>err || fail "train: $(cat err)"
cat >read.py <<'END'
import ctypes, os
library = ctypes.CDLL("libtessera.so")
library.tessera_error_message.restype = library.tessera_checkpoint_tensor_name.restype = ctypes.c_char_p
library.tessera_checkpoint_tensor_count.restype = ctypes.c_int64
run = ctypes.c_void_p()
assert library.tessera_checkpoint_open(b"run", ctypes.byref(run)) == 0, library.tessera_error_message()
elements = 0
for index in range(library.tessera_checkpoint_tensor_count(run)):
    name = library.tessera_checkpoint_tensor_name(run, ctypes.c_int64(index))
    dtype, rank, shape = ctypes.c_int32(), ctypes.c_int32(), (ctypes.c_int64 * 2)()
    assert library.tessera_checkpoint_tensor_shape(run, name, ctypes.byref(dtype), shape, ctypes.byref(rank)) == 0
    count = shape[0] * (shape[1] if rank.value == 2 else 1)
    values = (ctypes.c_float * count)()
    assert dtype.value == 1 and library.tessera_checkpoint_read(run, name, values, ctypes.c_int64(4 * count)) == 0
    assert any(values) or b"bias" in name, name
    assert library.tessera_checkpoint_read(run, name, values, ctypes.c_int64(4)) == 3
    elements += count
print(elements)
END
python3 read.py >elements || fail "reading a checkpoint"
[ "$(cat elements)" -gt 1000000 ] && [ "$(cat elements)" -lt 1100000 ] || fail "elements: $(cat elements)"

version=$(python3 -c '
import ctypes
version = ctypes.CDLL("libtessera.so").tessera_version
version.restype = ctypes.c_char_p
print(version().decode())')
grep -q "name = \"tessera\", version = \"$version\"" "$module" || fail "the version $version is not that of MODULE.bazel"

[ $failures = 0 ] && echo PASSED
exit $failures
