#include "offload/prefetch/flow.h"

#include <algorithm>

namespace tessera::offload {

void Flow::Start(int64_t now_ns) {
  busy_ns_ = busy_ns(now_ns);
  since_ns_ = now_ns;
  ++in_flight_;
}

void Flow::Finish(int64_t now_ns, int64_t bytes) {
  busy_ns_ = busy_ns(now_ns);
  since_ns_ = now_ns;
  window_.full += in_flight_ >= depth_.value();
  window_.bytes += bytes;
  ++window_.count;
  bytes_ += bytes;
  --in_flight_;
  if (window_.count >= std::max(8, 2 * depth_.value())) CloseWindow(now_ns);
}

void Flow::CloseWindow(int64_t now_ns) {
  const int64_t busy = busy_ns(now_ns);
  if (2 * window_.full >= window_.count) {
    depth_.Record(window_.bytes, busy - window_.busy_ns_before);
  }
  window_ = {.busy_ns_before = busy};
}

}  // namespace tessera::offload
