// What every engine must do, checked one layer below Communicator, on any
// engine that is there.
//
//   // on every rank of the group, as threads or processes
//   CheckCollectives(*engine, {});
//
// Every rank of the group calls the same checks in the same order; what is
// wrong is reported through GoogleTest on the rank that sees it.
#ifndef TESSERA_COLLECTIVES_TESTING_ENGINE_CHECKS_H_
#define TESSERA_COLLECTIVES_TESTING_ENGINE_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/scratch.h"
#include "collectives/operation/operation.h"
#include "collectives/operation/signature.h"

namespace tessera::collectives {

// Runs collectives on an engine as Communicator does.
class Caller {
 public:
  explicit Caller(Engine& engine, absl::Duration timeout = absl::Seconds(60))
      : engine_(engine), timeout_(timeout) {}

  // By the engine where it implements the kind, else by an algorithm over its
  // messages.
  absl::Status Run(const Operation& operation);

  int64_t Deadline() const;
  // The signature of message number `number`.
  static Signature MessageSignature(uint64_t number, int64_t bytes);

 private:
  Engine& engine_;
  absl::Duration timeout_;
  Scratch scratch_;
  uint64_t sequence_ = 0;
};

struct CollectiveChecks {
  std::vector<int64_t> counts = {0, 1, 7, 1001};
  std::vector<int64_t> large_counts = {70'001};  // f32 and bf16 alone.

  // Memory that this process and the engine reach. Null: ordinary memory.
  std::function<std::shared_ptr<std::byte>(int64_t bytes)> allocate = nullptr;
};

// All kinds x types x reductions x counts, even and uneven, in place and not,
// against exact or double-precision references.
void CheckCollectives(Engine& engine, const CollectiveChecks& checks);

// Messages of all sizes on both lanes: order, many under way, to itself,
// everybody to everybody with sends waited for first, Test until complete.
void CheckMessages(Engine& engine);

// The last rank stays away: the others get DeadlineExceeded in time, from a
// collective (`collective`) or a message. Breaks the group. Every rank returns.
void CheckLateRank(Engine& engine, bool collective);

// Rank 0 aborts while all others wait, from a collective or for a message; they
// return long before their deadline where `reaches_peers`. Breaks the group.
void CheckAbort(Engine& engine, bool collective, bool reaches_peers);

// Rank 0's call differs (`collective`) or its message does: FailedPrecondition
// with both sides on the ranks that see it. Breaks the group.
void CheckMismatch(Engine& engine, bool collective);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_ENGINE_CHECKS_H_
