#include "collectives/engine/operation_context.h"

#include <time.h>

namespace tessera::collectives {

std::string_view PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kIdle:
      return "idle";
    case Phase::kEntering:
      return "entering";
    case Phase::kSending:
      return "sending";
    case Phase::kReceiving:
      return "receiving";
    case Phase::kReducing:
      return "reducing";
    case Phase::kCopying:
      return "copying";
    case Phase::kLeaving:
      return "leaving";
  }
  return "in an unknown phase";
}

int64_t MonotonicNanos() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace tessera::collectives
