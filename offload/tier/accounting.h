// Accounting: a byte budget that is never exceeded, and who uses it.
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
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "offload/tier/purpose.h"

namespace tessera::offload {

inline constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// One moment of an Accounting, in bytes.
struct Usage {
  struct Part {
    int64_t current = 0;
    int64_t peak = 0;  // the most at any moment, of this part alone
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
  // `name` is what errors call it. `budget` is at least 0; kUnlimited counts
  // without refusing.
  Accounting(std::string name, int64_t budget);

  const std::string& name() const { return name_; }

  // Counts `bytes` (at least 0) from now until the Reservation goes.
  // ResourceExhausted, with nothing changed, where they would exceed the
  // budget; another message where they alone exceed it. `key` is named in the
  // message. The Reservation keeps `accounting` alive.
  static absl::StatusOr<Reservation> Reserve(
      std::shared_ptr<Accounting> accounting, std::string_view key,
      int64_t bytes, Purpose purpose);

  Usage usage() const;

  // Every peak becomes the current value: a new measurement begins.
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

// Bytes that are counted while it lives. Move-only; a moved-from or
// default-constructed one counts nothing. Not safe for concurrent use.
class Reservation {
 public:
  Reservation() = default;
  ~Reservation() { Release(); }
  Reservation(Reservation&& other) noexcept { *this = std::move(other); }
  Reservation& operator=(Reservation&& other) noexcept;

  int64_t bytes() const { return bytes_; }
  Purpose purpose() const { return purpose_; }

  // Counts `bytes` from now on. Shrinking always works; growing is refused as
  // by Reserve, with nothing changed.
  absl::Status Resize(std::string_view key, int64_t bytes);
  // Counts the same bytes for another purpose. The total stays.
  void SetPurpose(Purpose purpose);
  // Counts nothing any more.
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
