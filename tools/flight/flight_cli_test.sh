#!/bin/bash
# Tests the command line of //tools/flight, and that the example of its README is its output.
set -uo pipefail
flight=$PWD/$1 readme=$PWD/$2
cp -rL tools/flight/testdata/run7 "$TEST_TMPDIR/run7" && chmod -R u+w "$TEST_TMPDIR/run7" && cd "$TEST_TMPDIR" || exit 1
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

"$flight" --run_dir=run7 >out || fail "flight exits with $?"
sed 's/^/    /' out >indented
python3 - "$readme" indented <<'END' || fail "the README has another output than: $(cat out)"
import sys
sys.exit(open(sys.argv[2]).read() not in open(sys.argv[1]).read())
END
"$flight" --run_dir=run7 --quiet >quiet || fail "--quiet"
[ "$(cat quiet)" = "$(tail -2 out)" ] || fail "--quiet prints: $(cat quiet)"
"$flight" --run_dir=run7/flight/1 --format=json --html=page.html | python3 -c 'import json, sys; assert json.load(sys.stdin)["culprits"] == [1]' ||
  fail "--format=json"
python3 -c 'import xml.dom.minidom; xml.dom.minidom.parse("page.html")' || fail "the page is not well-formed"
"$flight" --help | grep -q "^ *--run_dir" || fail "--help"

# Bad usage: exit code 2 and one line.
expect_bad() {
  local text=$1
  shift
  "$flight" "$@" >out 2>err
  [ $? = 2 ] && [ ! -s out ] && [ "$(wc -l <err)" = 1 ] && grep -q -- "$text" err || fail "$*: $(cat err)"
}
expect_bad '--run_dir=: expected the directory of a run'
expect_bad '--run_dir=none: ' --run_dir=none
expect_bad '--format=csv: expected text or json' --run_dir=run7 --format=csv
echo '{"rank": 0}' >run7/flight/1/rank2.json
expect_bad 'rank2.json: ' --run_dir=run7

[ $failures = 0 ] && echo PASSED
exit $failures
