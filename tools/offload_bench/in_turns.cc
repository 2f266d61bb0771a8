#include "tools/offload_bench/in_turns.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "base/tensor/memory.h"

namespace tessera::offload_bench {
namespace {

constexpr double kLeastSeconds = 1e-3;
constexpr int64_t kMostRepeats = 1 << 20;

// The value that a share `part` of the sorted values lies below, between two
// neighbours where it falls there.
double Quantile(const std::vector<double>& sorted, double part) {
  const double place = part * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] +
         (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

PassTime TimeOf(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  PassTime time;
  time.seconds = Quantile(seconds, 0.5);
  time.spread =
      (Quantile(seconds, 0.75) - Quantile(seconds, 0.25)) / time.seconds;
  return time;
}

// The compiler must assume that the bytes are looked at.
void Keep(void* data) { asm volatile("" : : "r"(data) : "memory"); }

// One turn, whose times go to the back of the lists.
absl::Status TakeTurn(const Pass& first, std::vector<double>& first_seconds,
                      const Pass& second, std::vector<double>& second_seconds) {
  TESSERA_ASSIGN_OR_RETURN(const double one, first());
  TESSERA_ASSIGN_OR_RETURN(const double other, second());
  first_seconds.push_back(one);
  second_seconds.push_back(other);
  return absl::OkStatus();
}

}  // namespace

Comparison Compare(std::vector<double> subject, std::vector<double> limit) {
  std::vector<double> shares;
  for (size_t i = 0; i < subject.size(); ++i) {
    shares.push_back(limit[i] / subject[i]);
  }
  Comparison result;
  result.turns = static_cast<int64_t>(subject.size());
  result.subject = TimeOf(std::move(subject));
  result.limit = TimeOf(std::move(limit));
  result.share = TimeOf(std::move(shares)).seconds;
  return result;
}

absl::StatusOr<Comparison> CompareInTurns(const Pass& subject,
                                          const Pass& limit, double seconds) {
  TESSERA_RETURN_IF_ERROR(subject().status());
  TESSERA_RETURN_IF_ERROR(limit().status());
  std::vector<double> subjects, limits;
  const Stopwatch watch(TimeKind::kWall);
  for (int64_t turn = 0; turn < kLeastTurns || watch.Seconds() < seconds;
       ++turn) {
    if (turn % 2 == 0) {
      TESSERA_RETURN_IF_ERROR(TakeTurn(subject, subjects, limit, limits));
    } else {
      TESSERA_RETURN_IF_ERROR(TakeTurn(limit, limits, subject, subjects));
    }
  }
  return Compare(std::move(subjects), std::move(limits));
}

Pass Timed(std::function<absl::Status()> work, TimeKind kind, int64_t threads) {
  // Found in the first pass.
  auto repeats = std::make_shared<int64_t>(0);
  return [=, work = std::move(work)]() -> absl::StatusOr<double> {
    const bool first = *repeats == 0;
    int64_t done = 0;
    const Stopwatch watch(kind, threads);
    do {
      TESSERA_RETURN_IF_ERROR(work());
      ++done;
    } while (first ? watch.Seconds() < kLeastSeconds && done < kMostRepeats
                   : done < *repeats);
    *repeats = done;
    return watch.Seconds() / static_cast<double>(done);
  };
}

absl::StatusOr<Pass> MemcpyPass(int64_t bytes, TimeKind kind) {
  const auto half = static_cast<size_t>(std::max<int64_t>(bytes / 2, 1));
  auto memory = std::make_shared<std::pair<Buffer, Buffer>>();
  TESSERA_ASSIGN_OR_RETURN(memory->first, Buffer::Allocate(HostMemory(), half));
  TESSERA_ASSIGN_OR_RETURN(memory->second,
                           Buffer::Allocate(HostMemory(), half));
  std::memset(memory->first.data(), 1, half);
  std::memset(memory->second.data(), 2, half);
  const auto copy = [memory] {
    std::memcpy(memory->second.data(), memory->first.data(),
                memory->first.size());
    Keep(memory->second.data());
    return absl::OkStatus();
  };
  return Timed(copy, kind);
}

Pass TriadPass(std::shared_ptr<offload::Triad> triad, double bytes,
               TimeKind kind) {
  return [=, triad = std::move(triad)]() -> absl::StatusOr<double> {
    double best = INFINITY;
    for (const auto stores :
         {offload::TriadStores::kOrdinary, offload::TriadStores::kStreaming}) {
      const Stopwatch watch(kind, triad->threads());
      triad->Pass(stores);
      best = std::min(best, watch.Seconds());
    }
    return best * bytes / triad->counted_bytes();
  };
}

}  // namespace tessera::offload_bench
