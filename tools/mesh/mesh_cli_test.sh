#!/bin/bash
# Tests the command line: output, exit codes, one line on bad usage, and that pictures are complete or absent.
set -uo pipefail
mesh=$PWD/$1
cd "$TEST_TMPDIR"
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

groups=$("$mesh" --mesh=tp2,dp2,pp4 --order=tp-cp-ep-dp-pp --axes=tp,pp --format=json |
  python3 -c 'import json, sys; print(json.dumps(json.load(sys.stdin)["groups"]))')
[ "$groups" = "[[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]]" ] || fail "groups: $groups"

expect_usage_error() {
  "$mesh" "$@" >out 2>err
  local code=$?
  [ $code = 2 ] || fail "$* exits with $code, not 2"
  [ ! -s out ] || fail "$* printed on stdout"
  [ "$(wc -l <err)" = 1 ] || fail "$* printed $(wc -l <err) lines on stderr"
  grep -q -- "for example: ./bazelw run //tools/mesh -- --mesh=" err || fail "$* gave no example"
  grep -qF -- "${1%%=*}" err || fail "$* did not name ${1%%=*}: $(cat err)"
}
for bad in --mesh=dp0 --mesh= --mesh=dp2,dp2 --mesh=dp-1 --mesh=dp9223372036854775807,tp2 --order=tp-dp --order=a-b \
    --axes=zz --axes= --rank=8 --rank=x --world_size=9 --format=yaml --split=dp:x3 --ep=3 --tensor=8x --as=tp:0 --to=tp:0 --dtype=f31 --unknown=1 --preset=x word; do
  [ "$bad" = --axes= ] || expect_usage_error "$bad"
done

"$mesh" --svg=picture.svg >/dev/null || fail "--svg"
python3 -c 'import xml.etree.ElementTree as e; e.parse("picture.svg")' || fail "the picture is no XML"
"$mesh" --svg=missing/picture.svg >/dev/null 2>err
[ $? = 1 ] || fail "an unwritable picture is a failed run"
grep -q "missing/picture.svg" err || fail "the message does not name the picture"
"$mesh" --mesh=dp20000 --svg=large.svg >/dev/null 2>&1
[ $? = 2 ] && [ ! -e large.svg ] || fail "a mesh too large to draw"
"$mesh" --cluster=hosts=4,gpus=2 --save_cluster=cluster.json >first || fail "--save_cluster"
"$mesh" --cluster=cluster.json >second || fail "a saved cluster is not read"
diff first second || fail "a saved cluster is another one"
expect_usage_error --save_cluster=x.json
"$mesh" --mesh="dp$(($(nproc) + 1))" --cluster=here >out || fail "more ranks than cores"
grep -q "ranks are assumed to share" out || fail "shared cores are not mentioned: $(cat out)"
"$mesh" --help | grep -q -- --preset || fail "--help"
"$mesh" --mesh=dp1000000 --axes=dp >/dev/full 2>err
[ $? = 1 ] || fail "a full standard output is a failed run"
exit $((failures > 0))
