#!/bin/bash
# Builds and runs a second workspace that embeds //topology:mesh, with no network and an empty repository cache: its
# own Abseil, and everything else from archives handed over by --distdir.
set -euo pipefail

here=$TEST_SRCDIR/$TEST_WORKSPACE/tools/embedding
tessera=$(dirname "$(readlink -f "$TEST_SRCDIR/$TEST_WORKSPACE/WORKSPACE")")
workspace=$TEST_TMPDIR/workspace
export HOME=$TEST_TMPDIR

mkdir -p "$workspace/distdir"
cp -L "$here/WORKSPACE.embedding" "$workspace/WORKSPACE"
cp -L "$here/BUILD.embedding" "$workspace/BUILD"
cp -L "$here/bazelrc.embedding" "$workspace/.bazelrc"
cp -L "$here/hello_mesh.cc" "$workspace/"
ln -s "$tessera" "$workspace/tessera"
cp -L "$TEST_SRCDIR"/bazel_skylib/distfile/* "$workspace/distdir/"

absl=$(dirname "$(dirname "$(readlink -f "$(ls "$TEST_SRCDIR"/com_google_absl/distfile/*.tar.gz)")")")
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
if run_bazel help startup_options 2>/dev/null | grep -q enable_workspace ||
    run_bazel help build 2>/dev/null | grep -q enable_workspace; then
  flags+=(--noenable_bzlmod --enable_workspace)
fi

run_bazel build "${flags[@]}" --spawn_strategy=local --jobs=2 //:hello_mesh
expected=$'0 1 4 5 8 9 12 13 \n2 3 6 7 10 11 14 15 '
actual=$("$workspace/bazel-bin/hello_mesh")
[ "$actual" = "$expected" ] || { echo "printed: $actual"; exit 1; }

# It gets nothing else: no library of Tessera's other modules and tests was fetched.
external=$(run_bazel info "${flags[@]}" output_base 2>/dev/null)/external
for repository in com_github_google_glog com_google_googletest com_github_google_benchmark com_github_nlohmann_json \
    hwloc mpi gloo; do
  [ ! -e "$external/$repository" ] || { echo "$repository was fetched for //topology:mesh"; exit 1; }
done
echo "embedded //topology:mesh offline"
