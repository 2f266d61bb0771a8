// DecisionMemo: decisions that were made, by their questions.
//
// A training step asks the same few questions over and over: reading takes some
// nanoseconds and no lock. Entries are never taken out; when it is full, it
// keeps what it has.
#ifndef TESSERA_COLLECTIVES_ADAPTIVE_DECISION_MEMO_H_
#define TESSERA_COLLECTIVES_ADAPTIVE_DECISION_MEMO_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "collectives/algorithms/algorithm_chooser.h"

namespace tessera::collectives {

class DecisionMemo {
 public:
  static constexpr size_t kMaxDecisions = 1024;

  // Thread-safe, both of them. Find makes no promise after a Keep by another
  // thread: it may still find nothing.
  std::optional<Algorithm> Find(const ChoiceQuestion& question) const;
  void Keep(const ChoiceQuestion& question, Algorithm algorithm);

 private:
  struct Decision {
    ChoiceQuestion question;
    Algorithm algorithm;
  };
  // Open addressing with linear steps, at most half full.
  static constexpr size_t kSlots = 2 * kMaxDecisions;

  std::array<std::atomic<const Decision*>, kSlots> slots_ = {};
  std::mutex mutex_;
  std::vector<std::unique_ptr<const Decision>> decisions_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ADAPTIVE_DECISION_MEMO_H_
