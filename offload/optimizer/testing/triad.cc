#include "offload/optimizer/testing/triad.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/highway_targets.h"
#include "hwy/aligned_allocator.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/optimizer/testing/triad.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::offload {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <bool kStreaming>
HWY_INLINE void Triad(const TriadArrays& arrays, double scale) {
  const hn::CappedTag<double, kTriadStep> d;
  const auto s = hn::Set(d, scale);
  for (size_t i = 0; i < arrays.count; i += hn::Lanes(d)) {
    const auto sum = hn::Add(hn::Load(d, arrays.b + i),
                             hn::Mul(s, hn::Load(d, arrays.c + i)));
    if constexpr (kStreaming) {
      hn::Stream(sum, d, arrays.a + i);
    } else {
      hn::Store(sum, d, arrays.a + i);
    }
  }
}

void OrdinaryTriad(const TriadArrays& arrays, double scale) {
  Triad<false>(arrays, scale);
}
void StreamingTriad(const TriadArrays& arrays, double scale) {
  Triad<true>(arrays, scale);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::offload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::offload {

HWY_EXPORT(OrdinaryTriad);
HWY_EXPORT(StreamingTriad);

void RunTriad(const TriadArrays& arrays, double scale) {
  HWY_DYNAMIC_DISPATCH(OrdinaryTriad)(arrays, scale);
}
void RunStreamingTriad(const TriadArrays& arrays, double scale) {
  HWY_DYNAMIC_DISPATCH(StreamingTriad)(arrays, scale);
  hwy::FlushStream();
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxThreads = 1024;
constexpr int64_t kLeastBytesPerThread = 4096;

absl::Status CheckArguments(int threads, int64_t bytes) {
  if (threads < 1 || threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("Triad: ", threads, " threads; give 1 to ", kMaxThreads,
                     ", at best one for each processor"));
  }
  if (bytes < threads * kLeastBytesPerThread) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Triad: ", bytes, " bytes for ", threads, " threads; give at least ",
        kLeastBytesPerThread, " for each"));
  }
  return absl::OkStatus();
}

// The three arrays, and the part of each thread.
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

  // The thread that processes the part writes it first, which places its pages.
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

}  // namespace

// The threads. Thread 0 is the caller. It measures the time from when all are
// ready until all are done.
class Triad::Team {
 public:
  Team(int threads, int64_t bytes)
      : field_(threads, bytes), together_(threads) {
    if (!field_.allocated()) return;
    for (int thread = 1; thread < threads; ++thread) {
      others_.emplace_back([this, thread] { Work(thread); });
    }
    field_.Touch(0);
  }

  ~Team() {
    if (others_.empty()) return;
    stopping_ = true;
    together_.arrive_and_wait();
    for (std::thread& other : others_) other.join();
  }

  bool allocated() const { return field_.allocated(); }
  int threads() const { return static_cast<int>(others_.size()) + 1; }
  double counted_bytes() const { return field_.counted_bytes(); }

  // Bytes per second of one pass.
  double Pass(bool streaming) {
    streaming_ = streaming;
    together_.arrive_and_wait();
    const auto start = Clock::now();
    Run(0);
    together_.arrive_and_wait();
    const std::chrono::duration<double> seconds = Clock::now() - start;
    return field_.counted_bytes() / seconds.count();
  }

 private:
  void Run(int thread) const {
    (streaming_ ? RunStreamingTriad : RunTriad)(field_.PartOf(thread), 3.0);
  }

  void Work(int thread) {
    field_.Touch(thread);
    while (true) {
      together_.arrive_and_wait();
      if (stopping_) return;
      Run(thread);
      together_.arrive_and_wait();
    }
  }

  const Field field_;
  // Written by the caller before the barrier, read by the others after it.
  bool streaming_ = false;
  bool stopping_ = false;
  std::barrier<> together_;
  std::vector<std::thread> others_;
};

Triad::Triad(std::unique_ptr<Team> team) : team_(std::move(team)) {}
Triad::~Triad() = default;

absl::StatusOr<std::unique_ptr<Triad>> Triad::Create(int threads,
                                                     int64_t bytes) {
  if (absl::Status s = CheckArguments(threads, bytes); !s.ok()) return s;
  auto team = std::make_unique<Team>(threads, bytes);
  if (!team->allocated()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("Triad: no memory for three arrays of ", bytes,
                     " bytes together; give fewer bytes"));
  }
  return absl::WrapUnique(new Triad(std::move(team)));
}

double Triad::Pass(TriadStores stores) {
  return team_->Pass(stores == TriadStores::kStreaming);
}

TriadBandwidth Triad::Measure() {
  TriadBandwidth bandwidth;
  bandwidth.ordinary = Pass(TriadStores::kOrdinary);
  bandwidth.streaming = Pass(TriadStores::kStreaming);
  return bandwidth;
}

int Triad::threads() const { return team_->threads(); }
double Triad::counted_bytes() const { return team_->counted_bytes(); }

absl::StatusOr<TriadBandwidth> MeasureTriad(int threads, int64_t bytes,
                                            int passes) {
  if (passes < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("MeasureTriad: ", passes, " passes; give at least 1"));
  }
  absl::StatusOr<std::unique_ptr<Triad>> triad = Triad::Create(threads, bytes);
  if (!triad.ok()) return triad.status();
  TriadBandwidth best;
  for (int pass = 0; pass < passes; ++pass) {
    const TriadBandwidth now = (*triad)->Measure();
    best.ordinary = std::max(best.ordinary, now.ordinary);
    best.streaming = std::max(best.streaming, now.streaming);
  }
  return best;
}

}  // namespace tessera::offload
#endif  // HWY_ONCE
