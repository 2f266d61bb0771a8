// Accounting: a byte budget that is never exceeded, counted by Purpose.
//
//   auto accounting = std::make_shared<Accounting>("host", 32LL << 30);
//   TESSERA_ASSIGN_OR_RETURN(
//       Reservation room,
//       Accounting::Reserve(accounting, "layer.3.weight", bytes,
//                           Purpose::kParameters));
//   // ... allocate; the bytes count until `room` is destroyed.
//
// Several tiers may share one Accounting, and so one budget.
#ifndef TESSERA_OFFLOAD_TIER_ACCOUNTING_H_
#define TESSERA_OFFLOAD_TIER_ACCOUNTING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace tessera::offload {

// The kind of model state in a block. The values are stored in block files and
// must never change.
enum class Purpose : uint8_t {
  kParameters = 0,
  kGradients = 1,
  kOptimizer = 2,
  kActivations = 3,
  kBuffers = 4,  // temporary: staging, bounce buffers
};

inline constexpr std::array<Purpose, 5> kAllPurposes = {
    Purpose::kParameters, Purpose::kGradients, Purpose::kOptimizer,
    Purpose::kActivations, Purpose::kBuffers};

// Returns true if `purpose` is one of the above; a number from a file may be
// invalid.
constexpr bool IsValid(Purpose purpose) {
  return static_cast<size_t>(purpose) < kAllPurposes.size();
}

// "parameters", "gradients", "optimizer", "activations", "buffers"; "invalid"
// if `purpose` is invalid.
constexpr std::string_view PurposeName(Purpose purpose) {
  constexpr std::array<std::string_view, kAllPurposes.size()> kNames = {
      "parameters", "gradients", "optimizer", "activations", "buffers"};
  return IsValid(purpose) ? kNames[static_cast<size_t>(purpose)] : "invalid";
}

inline std::ostream& operator<<(std::ostream& os, Purpose purpose) {
  return os << PurposeName(purpose);
}

inline constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// A snapshot of an Accounting, in bytes.
struct Usage {
  struct Part {
    int64_t current = 0;
    int64_t peak = 0;  // of this part alone
    friend bool operator==(const Part&, const Part&) = default;
  };

  const Part& of(Purpose purpose) const {
    return parts[static_cast<size_t>(purpose)];
  }

  int64_t budget = kUnlimited;
  int64_t current = 0;
  int64_t peak = 0;  // never above `budget`
  std::array<Part, kAllPurposes.size()> parts = {};
  friend bool operator==(const Usage&, const Usage&) = default;
};

class Reservation;

// Safe for concurrent use.
class Accounting {
 public:
  // `name` appears in errors. `budget` is at least 0; kUnlimited counts without
  // a limit.
  Accounting(std::string name, int64_t budget);

  const std::string& name() const { return name_; }

  // Counts `bytes` (at least 0) until the Reservation is destroyed.
  // ResourceExhausted, without side effects, if this would exceed the budget;
  // the message names `key`, and says so if `bytes` alone exceeds the whole
  // budget. The Reservation keeps `accounting` alive.
  static absl::StatusOr<Reservation> Reserve(
      std::shared_ptr<Accounting> accounting, std::string_view key,
      int64_t bytes, Purpose purpose);

  Usage usage() const;

  // Sets every peak to the current value.
  void ResetPeaks();

 private:
  friend class Reservation;

  absl::Status Add(std::string_view key, int64_t bytes, Purpose purpose);
  void Remove(int64_t bytes, Purpose purpose);
  void Move(int64_t bytes, Purpose from, Purpose to);
  absl::Status Refusal(std::string_view key, int64_t bytes,
                       Purpose purpose) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string name_;
  mutable absl::Mutex mutex_;
  Usage usage_ ABSL_GUARDED_BY(mutex_);
};

// Counts bytes for its lifetime. Move-only; counts nothing if moved-from or
// default-constructed. Not safe for concurrent use.
class Reservation {
 public:
  Reservation() = default;
  ~Reservation() { Release(); }
  Reservation(Reservation&& other) noexcept { *this = std::move(other); }
  Reservation& operator=(Reservation&& other) noexcept;

  int64_t bytes() const { return bytes_; }
  Purpose purpose() const { return purpose_; }

  // Changes the number of bytes counted. Shrinking always succeeds; growing
  // fails like Reserve, without side effects.
  absl::Status Resize(std::string_view key, int64_t bytes);
  // Counts the same bytes for another purpose. The total does not change.
  void SetPurpose(Purpose purpose);
  // Stops counting.
  void Release();

 private:
  friend class Accounting;
  Reservation(std::shared_ptr<Accounting> accounting, int64_t bytes,
              Purpose purpose)
      : accounting_(std::move(accounting)), bytes_(bytes), purpose_(purpose) {}

  std::shared_ptr<Accounting> accounting_;
  int64_t bytes_ = 0;
  Purpose purpose_ = Purpose::kBuffers;
};

}  // namespace tessera::offload

#endif  // TESSERA_OFFLOAD_TIER_ACCOUNTING_H_
