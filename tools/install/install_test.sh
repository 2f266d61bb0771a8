#!/bin/bash
# Installs the libraries into a directory, moves it, and builds the modules' examples against it with CMake and pkg-config.
set -euo pipefail
source base/skip_test.sh
install=$PWD/$1 example=$PWD/$2 here=$PWD
for tool in cmake make c++ clang++ pkg-config; do
  command -v "$tool" >/dev/null || skip_test "there is no $tool here"
done
# Only this directory and the machine's own are searched.
unset CMAKE_PREFIX_PATH PKG_CONFIG_PATH RUNFILES_DIR
cd "$TEST_TMPDIR"

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
expect() {  # expect TEXT FILE
  grep -qF -- "$1" "$2" || { cat "$2" >&2; fail "no \"$1\" in the output above"; }
}

# Invalid use.
! "$install" >out 2>&1 || fail "no prefix was accepted"
expect "the following arguments are required: --prefix" out
touch file
! "$install" --prefix="$PWD/file" >out 2>&1 || fail "a file was accepted as prefix"
expect "Not a directory" out

# A second installation removes what only the first had.
"$install" --prefix="$PWD/first" >out
expect "CMake: find_package(tessera)" out
touch first/include/tessera/topology/gone.h first/include/tessera/topology/foreign.h
echo include/tessera/topology/gone.h >>first/lib/cmake/tessera/installed-files.txt
"$install" --prefix="$PWD/first" --quiet >out
[ ! -s out ] || fail "--quiet printed something"
[ ! -e first/include/tessera/topology/gone.h ] || fail "a stale file was left"
[ -e first/include/tessera/topology/foreign.h ] || fail "a file of somebody else was removed"
! find first -name '.install-*' | grep . || fail "temporary files were left"
# The tree may be moved.
mv first moved
root=$PWD/moved

# run_like README PROGRAM: the README has the program's output as a block.
run_like() {
  "$2" >out || fail "$2"
  python3 - "$here/$1" out <<'PYTHON' || fail "the output of $2 is not in $1"
import re, sys
blocks = re.findall(r"^```[^\n]*\n(.*?)^```$", open(sys.argv[1]).read(), re.M | re.S)
sys.exit(open(sys.argv[2]).read().strip() not in [block.strip() for block in blocks])
PYTHON
}

# Three modules with CMake.
mkdir project
cp -L "$example" "$here"/topology/examples/hello_mesh.cc "$here"/collectives/examples/hello_all_reduce.cc \
  "$here"/pipeline/examples/quickstart.cc project/
cmake -S project -B build -DCMAKE_PREFIX_PATH="$root" -DCMAKE_CXX_COMPILER=c++ >log 2>&1 || { cat log >&2; fail "cmake"; }
cmake --build build >log 2>&1 || { cat log >&2; fail "the build with CMake"; }
run_like topology/README.md build/hello_mesh
run_like collectives/README.md build/hello_all_reduce
run_like pipeline/README.md build/quickstart

# A component that is not there.
mkdir unknown
printf 'cmake_minimum_required(VERSION 3.18)\nproject(x CXX)\nfind_package(tessera REQUIRED COMPONENTS topologie)\n' \
  >unknown/CMakeLists.txt
! cmake -S unknown -B build_unknown -DCMAKE_PREFIX_PATH="$root" >log 2>&1 || fail "an unknown component was found"
tr -s ' \n' ' ' <log >out
expect 'tessera has no component "topologie" here; there are: base, collectives' out

# The other modules with clang, where warnings are errors; with pkg-config the headers are no system headers.
export PKG_CONFIG_PATH=$root/lib/pkgconfig
for module in tensor_parallel offload zero3; do
  # shellcheck disable=SC2046
  clang++ -std=c++20 -Wall -Wextra -Werror "$here/$module/examples/quickstart.cc" -o "$module" \
    $(pkg-config --cflags --libs "tessera-$module") 2>log || { head -50 log >&2; fail "$module with pkg-config and clang"; }
done
run_like tensor_parallel/README.md ./tensor_parallel
run_like offload/README.md ./offload
run_like zero3/README.md ./zero3

# Engines register themselves.
# shellcheck disable=SC2046
clang++ -std=c++20 "$here/tools/install/list_engines.cc" -o list_engines $(pkg-config --cflags --libs tessera-collectives)
./list_engines >out
expect shared_memory out

# The headers of the entry points compile in any order.
python3 - "$here/tools/install/install.json" >headers.cc <<'PYTHON'
import json, random, sys
manifest = json.load(open(sys.argv[1]))
headers = {
    short
    for library in manifest["libraries"] if library["label"] in manifest["modules"]
    for _, short in library["headers"] if short.endswith(".h") and not short.endswith("-inl.h")
}
headers = sorted(headers)
assert len(headers) > 100, headers
random.Random(1).shuffle(headers)
print("\n".join('#include "%s"' % header for header in headers))
PYTHON
# shellcheck disable=SC2046
clang++ -std=c++20 -Wall -Wextra -Werror -fsyntax-only headers.cc \
  $(pkg-config --cflags tessera-zero3 tessera-pipeline tessera-tensor_parallel) 2>log || { head -50 log >&2; fail "the headers"; }

# The C interface.
# shellcheck disable=SC2046
cc -std=c99 "$here/tools/c/example.c" -o c_example $(pkg-config --cflags --libs tessera) "-Wl,-rpath,$root/lib" || fail "C"
! ./c_example 2>out || fail "the C example joined no job"
expect "join: " out
