# skip_test REASON: ends an sh_test that cannot run on this machine and reports it as "skipped", which continuous
# integration counts separately. Usage: source base/skip_test.sh
skip_test() {
  local name=${TEST_TARGET:-test}
  name=${name##*:}
  echo "SKIPPED: $1"
  [ -z "${XML_OUTPUT_FILE:-}" ] || cat >"$XML_OUTPUT_FILE" <<END_OF_REPORT
<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="$name" tests="1" failures="0" errors="0" skipped="1">
<testcase name="$name" status="notrun" result="skipped"><skipped message="$(sed 's/&/\&amp;/g; s/</\&lt;/g; s/"/\&quot;/g' <<<"$1" | tr '\n' ' ')"/></testcase>
</testsuite></testsuites>
END_OF_REPORT
  exit 0
}
