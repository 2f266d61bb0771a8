#!/bin/bash
# Builds and runs a second workspace that embeds //topology:mesh, without network and with an empty repository cache. It
# has its own Abseil; other sources come from --distdir. It uses a WORKSPACE before Bazel 7 and a MODULE.bazel from then
# on.
set -euo pipefail

here=$TEST_SRCDIR/$TEST_WORKSPACE/tools/embedding
tessera=$(dirname "$(readlink -f "$TEST_SRCDIR/$TEST_WORKSPACE/WORKSPACE")")
workspace=$TEST_TMPDIR/workspace
export HOME=$TEST_TMPDIR

# repository NAME: prints the directory of an external repository; modules have a prefix.
repository() {
  local path
  for path in "$TEST_SRCDIR/$1" "$TEST_SRCDIR"/*[~+]"$1"; do
    [ ! -e "$path" ] || { echo "$path"; return; }
  done
}
mkdir -p "$workspace/distdir"
cp -L "$here/WORKSPACE.embedding" "$workspace/WORKSPACE"
cp -L "$here/BUILD.embedding" "$workspace/BUILD"
cp -L "$here/bazelrc.embedding" "$workspace/.bazelrc"
cp -L "$here/hello_mesh.cc" "$workspace/"
ln -s "$tessera" "$workspace/tessera"
cp -L "$(repository bazel_skylib)"/distfile/* "$workspace/distdir/"

absl=$(dirname "$(dirname "$(readlink -f "$(ls "$(repository com_google_absl)"/distfile/*.tar.gz)")")")
cp -r "$absl" "$workspace/own_absl"
echo '#define EMBEDDING_WORKSPACE_OWN_ABSEIL 1' >> "$workspace/own_absl/absl/base/config.h"

bazel=$(PATH=$PATH:/usr/bin:/usr/local/bin command -v bazel || PATH=$PATH:/usr/bin:/usr/local/bin command -v bazelisk)
run_bazel() {
  (cd "$workspace" && "$bazel" --nohome_rc --output_user_root="$TEST_TMPDIR/bazel" \
    --host_jvm_args=-Xmx1g --max_idle_secs=5 "$@")
}
trap 'run_bazel shutdown >/dev/null 2>&1 || true' EXIT
flags=(--distdir="$workspace/distdir" --repository_cache="$TEST_TMPDIR/empty_cache"
  --experimental_repository_disable_download --color=no --curses=no --noshow_progress)
run_bazel help info-keys >/dev/null
knows_modules() { run_bazel help build 2>/dev/null | grep enable_workspace >/dev/null; }

# build_and_run FLAG...: builds hello_mesh, checks its output and that only dependencies of //topology:mesh were fetched.
build_and_run() {
  run_bazel build "${flags[@]}" "$@" --spawn_strategy=local --jobs=2 //:hello_mesh
  expected=$'0 1 4 5 8 9 12 13 \n2 3 6 7 10 11 14 15 '
  actual=$("$workspace/bazel-bin/hello_mesh")
  [ "$actual" = "$expected" ] || { echo "printed: $actual"; exit 1; }
  external=$(run_bazel info "${flags[@]}" "$@" output_base 2>/dev/null)/external
  for repository in com_github_google_glog com_google_googletest com_github_google_benchmark com_github_nlohmann_json \
      hwloc mpi gloo; do
    for path in "$external/$repository" "$external"/*[~+]"$repository"; do
      [ ! -e "$path" ] || { echo "$path was fetched for //topology:mesh"; exit 1; }
    done
  done
}

if ! knows_modules; then
  build_and_run
  echo "embedded //topology:mesh offline by WORKSPACE"
  exit 0
fi
rm "$workspace/WORKSPACE"
cp -L "$here/MODULE.embedding" "$workspace/MODULE.bazel"
mkdir "$workspace/own_skylib"
tar -xf "$workspace"/distdir/bazel-skylib* -C "$workspace/own_skylib"
[ -e "$workspace/own_skylib/lib" ] || mv "$workspace"/own_skylib/*/* "$workspace/own_skylib"
echo 'module(name = "bazel_skylib", version = "1.0.3")' >"$workspace/own_skylib/MODULE.bazel"
printf '%s\n' 'module(name = "abseil-cpp", version = "20220623.1")' 'bazel_dep(name = "bazel_skylib", version = "1.0.3")' \
  'bazel_dep(name = "platforms", version = "0.0.10")' >"$workspace/own_absl/MODULE.bazel"
modules=(--enable_bzlmod --noenable_workspace --lockfile_mode=off)
(cd "$workspace" && python3 "$here/offline_registry.py" "$workspace/registry" "$bazel" --nohome_rc \
  --output_user_root="$TEST_TMPDIR/bazel" --host_jvm_args=-Xmx1g --max_idle_secs=5 build --nobuild "${flags[@]}" \
  "${modules[@]}" //:hello_mesh)
build_and_run "${modules[@]}" --registry="file://$workspace/registry"
echo "embedded //topology:mesh offline by MODULE.bazel"
