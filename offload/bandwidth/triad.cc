#include "offload/bandwidth/triad.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "hwy/aligned_allocator.h"
#include "offload/bandwidth/triad_kernel.h"

namespace tessera::offload {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxThreads = 1024;
constexpr int64_t kLeastBytesPerThread = 4096;

absl::Status CheckArguments(int threads, int64_t bytes, int passes) {
  if (threads < 1 || threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("MeasureTriad: ", threads, " threads; give 1 to ",
                     kMaxThreads, ", at best one for each processor"));
  }
  if (bytes < threads * kLeastBytesPerThread) {
    return absl::InvalidArgumentError(absl::StrCat(
        "MeasureTriad: ", bytes, " bytes for ", threads,
        " threads; give at least ", kLeastBytesPerThread, " for each"));
  }
  if (passes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("MeasureTriad: ", passes, " passes; give at least 1"));
  }
  return absl::OkStatus();
}

// The three arrays, and who works on which part.
class Field {
 public:
  Field(int threads, int64_t bytes)
      : part_(static_cast<size_t>(bytes) / (3 * sizeof(double)) /
              static_cast<size_t>(threads) / kTriadStep * kTriadStep),
        count_(part_ * static_cast<size_t>(threads)),
        a_(hwy::AllocateAligned<double>(count_)),
        b_(hwy::AllocateAligned<double>(count_)),
        c_(hwy::AllocateAligned<double>(count_)) {}

  bool allocated() const {
    return a_ != nullptr && b_ != nullptr && c_ != nullptr;
  }
  double counted_bytes() const {
    return static_cast<double>(count_ * 3 * sizeof(double));
  }

  TriadArrays PartOf(int thread) const {
    const size_t from = part_ * static_cast<size_t>(thread);
    return {a_.get() + from, b_.get() + from, c_.get() + from, part_};
  }

  // By the thread that works on the part, which is where its pages then lie.
  void Touch(int thread) const {
    const size_t from = part_ * static_cast<size_t>(thread);
    std::fill_n(a_.get() + from, part_, 0.0);
    std::fill_n(b_.get() + from, part_, 1.0);
    std::fill_n(c_.get() + from, part_, 2.0);
  }

 private:
  size_t part_;
  size_t count_;
  hwy::AlignedFreeUniquePtr<double[]> a_, b_, c_;
};

// What one thread does; thread 0 keeps the time from the moment at which all
// are ready to the one at which all are done.
void Work(const Field& field, int thread, int passes, std::barrier<>& together,
          TriadBandwidth& best) {
  field.Touch(thread);
  const TriadArrays arrays = field.PartOf(thread);
  for (int pass = 0; pass < 2 * passes; ++pass) {
    const bool streaming = pass % 2 == 1;
    together.arrive_and_wait();
    const auto start = Clock::now();
    (streaming ? RunStreamingTriad : RunTriad)(arrays, 3.0);
    together.arrive_and_wait();
    if (thread != 0) continue;
    const std::chrono::duration<double> seconds = Clock::now() - start;
    double& kept = streaming ? best.streaming : best.ordinary;
    kept = std::max(kept, field.counted_bytes() / seconds.count());
  }
}

}  // namespace

absl::StatusOr<TriadBandwidth> MeasureTriad(int threads, int64_t bytes,
                                            int passes) {
  if (absl::Status status = CheckArguments(threads, bytes, passes);
      !status.ok()) {
    return status;
  }
  const Field field(threads, bytes);
  if (!field.allocated()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("MeasureTriad: no memory for three arrays of ", bytes,
                     " bytes together; give fewer bytes"));
  }
  TriadBandwidth best;
  std::barrier<> together(threads);
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) {
    others.emplace_back(
        [&, thread] { Work(field, thread, passes, together, best); });
  }
  Work(field, 0, passes, together, best);
  for (std::thread& other : others) other.join();
  return best;
}

}  // namespace tessera::offload
