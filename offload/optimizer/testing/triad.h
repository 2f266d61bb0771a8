// Triad: measures memory bandwidth by STREAM's triad a[i] = b[i] + s * c[i],
// which is the limit for code that passes over memory once.
//
//   TESSERA_ASSIGN_OR_RETURN(TriadBandwidth triad,
//                            MeasureTriad(threads, int64_t{1} << 28));
//   double share = bytes_moved / seconds / triad.best();
//
// On a busy machine, alternate passes with the code under test and compare
// pairs, instead of the best of each:
//
//   TESSERA_ASSIGN_OR_RETURN(auto triad, Triad::Create(threads, 1 << 28));
//   for (...) { Step(); bandwidths.push_back(triad->Measure().best()); }
//
// Counts 24 bytes per element, as STREAM does (read b, read c, write a).
// Ordinary stores also read each line of `a` before they overwrite it; these 8
// bytes are not counted. Streaming (non-temporal) stores do not read it, so all
// bytes that move are counted. best() is the larger of the two, the stricter
// reference.
//
// Source: J. McCalpin, "Memory Bandwidth and Machine Balance in Current High
// Performance Computers", 1995.
#ifndef TESSERA_OFFLOAD_OPTIMIZER_TESTING_TRIAD_H_
#define TESSERA_OFFLOAD_OPTIMIZER_TESTING_TRIAD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace tessera::offload {

// Bytes per second.
struct TriadBandwidth {
  double ordinary = 0;
  double streaming = 0;

  double best() const { return std::max(ordinary, streaming); }
};

enum class TriadStores { kOrdinary, kStreaming };

// The arrays, and the threads that process them. Not thread-safe.
class Triad {
 public:
  // Uses `threads` threads, including the caller of Measure, and three arrays
  // of f64 with `bytes` bytes in total. To measure memory and not caches, use
  // more than four times the size of the last-level cache. InvalidArgument
  // unless 1 <= threads <= 1024 and there are 4 KiB for each thread;
  // ResourceExhausted if there is no memory for it.
  static absl::StatusOr<std::unique_ptr<Triad>> Create(int threads,
                                                       int64_t bytes);
  ~Triad();
  Triad(const Triad&) = delete;
  Triad& operator=(const Triad&) = delete;

  // Executes one pass, which takes bytes / bandwidth seconds. Returns bytes per
  // second.
  double Pass(TriadStores stores);
  // Executes one pass of each kind.
  TriadBandwidth Measure();

  int threads() const;
  // The bytes that a pass counts: `bytes` rounded down to whole steps.
  double counted_bytes() const;

 private:
  class Team;

  explicit Triad(std::unique_ptr<Team> team);

  const std::unique_ptr<Team> team_;
};

// Returns the best of `passes` passes of each kind. Errors as for
// Triad::Create, and InvalidArgument unless passes >= 1.
absl::StatusOr<TriadBandwidth> MeasureTriad(int threads, int64_t bytes,
                                            int passes = 10);

// The kernels: a[i] = b[i] + s * c[i] with the best instruction set of the
// processor.

// `count` of TriadArrays is a multiple of this.
inline constexpr size_t kTriadStep = 64;

// Arrays are aligned to 64 bytes, `count` is a multiple of kTriadStep.
struct TriadArrays {
  double* a;
  const double* b;
  const double* c;
  size_t count;
};

void RunTriad(const TriadArrays& arrays, double scale);

// With non-temporal stores, complete when it returns.
void RunStreamingTriad(const TriadArrays& arrays, double scale);

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_OPTIMIZER_TESTING_TRIAD_H_
