#!/bin/bash
# Renders the page of a small run in a headless browser without a network, and looks for the colours of its curves in
# the picture. Skipped without a browser.
set -uo pipefail
source base/skip_test.sh
train=$PWD/$1
cd "$TEST_TMPDIR"
export XDG_CACHE_HOME=$TEST_TMPDIR/cache HOME=$TEST_TMPDIR/home
mkdir -p cache home
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

for browser in chromium chromium-browser google-chrome chrome; do
  browser=$(command -v $browser) && break
done
[ -n "$browser" ] || skip_test "no chromium or chrome"

for i in $(seq 3000); do echo "line $i of a text that is easy to learn, line after line"; done >text.txt
"$train" --data=$PWD/text.txt --length=32 --batch=8 --mesh=dp2,pp2 --steps=12 --sample_tokens=0 --warmup_steps=1 --strategy=all_reduce \
  --validation_fraction=0.1 --eval_every=3 --eval_batches=1 --html=$PWD/run.html --run_dir=run >out 2>err || fail "train: $(cat err)"
"$browser" --headless --no-sandbox --disable-gpu --user-data-dir=$PWD/profile --host-resolver-rules="MAP * ~NOTFOUND" \
  --window-size=1000,2600 --screenshot=$PWD/page.png "file://$PWD/run.html" >browser 2>&1 || fail "$browser: $(tail -3 browser)"
"$browser" --headless --no-sandbox --disable-gpu --user-data-dir=$PWD/profile --host-resolver-rules="MAP * ~NOTFOUND" \
  --dump-dom "file://$PWD/run.html" >dom 2>browser || fail "$browser: $(tail -3 browser)"
python3 - <<'END' || fail "the page"
import re, struct, zlib
dom = open("dom").read()
assert dom.count("<svg") == 5 and dom.count('data-name="training"') == 1, dom.count("<svg")
assert "12 of 12, ended" in dom and "validation loss" in dom
data, at, packed = open("page.png", "rb").read(), 8, b""
while at < len(data):  # the chunks of a PNG
    size, kind = struct.unpack(">I4s", data[at:at + 8])
    if kind == b"IHDR": width, height, depth, colour = struct.unpack(">IIBB", data[at + 8:at + 18])
    if kind == b"IDAT": packed += data[at + 8:at + 8 + size]
    at += size + 12
assert depth == 8 and colour in (2, 6) and width == 1000, (depth, colour, width, height)
step = 3 if colour == 2 else 4
raw, stride = zlib.decompress(packed), width * step
rows, before = [], bytearray(stride)
for y in range(height):  # undoes the filters
    kind, line = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
    for x in range(stride):
        a, b, c = line[x - step] if x >= step else 0, before[x], before[x - step] if x >= step else 0
        if kind == 4:
            p = a + b - c
            best = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
        line[x] = (line[x] + (0, a, b, (a + b) // 2, best if kind == 4 else 0)[kind]) & 255
    rows.append(line)
    before = line
pixels = {}
for line in rows:
    for x in range(0, stride, step):
        rgb = bytes(line[x:x + 3])
        pixels[rgb] = pixels.get(rgb, 0) + 1
for name, colour in (("training and compute", "0072b2"), ("validation", "d55e00"), ("tokens/s", "009e73"), ("memory", "7a4a9c"),
                     ("communication", "56b4e9")):
    count = pixels.get(bytes.fromhex(colour), 0)
    assert count > 60, (name, count)
END
exit $((failures > 0))
