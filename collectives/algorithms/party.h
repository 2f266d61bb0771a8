// Party: the ranks that take part in an algorithm, numbered from 0, and how
// they talk. What algorithms are written against.
//
//   Party party(transport, context, "ring");
//   party.Step(1, 6);
//   TESSERA_ASSIGN_OR_RETURN(Request in, party.Receive(left, landing));
//   TESSERA_ASSIGN_OR_RETURN(Request out, party.Send(right, bytes));
//   TESSERA_RETURN_IF_ERROR(party.Finish(in));
//
// Every message carries the operation's signature on the collective lane, and
// every wait publishes its phase and peer. Errors of the transport come back
// behind the algorithm and its step: "ring, step 2 of 6: ...". A small value;
// the transport, the context and the members outlive it. Not thread-safe.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_PARTY_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_PARTY_H_

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"
#include "collectives/engine/transport.h"

namespace tessera::collectives {

class Party {
 public:
  // All ranks of the transport. `name` is a literal.
  Party(Transport& transport, OperationContext& context, std::string_view name);

  int64_t size() const { return size_; }
  int64_t rank() const { return rank_; }  // This rank's number.

  // The same ranks counted from `first`: number 0 is this party's `first`.
  Party From(int64_t first) const;

  // `members` of this party, by their numbers in it, distinct; this rank is
  // member number `rank`. `members` outlives the result. `what` is a literal
  // that errors name: "within level 0".
  absl::StatusOr<Party> Select(std::span<const int64_t> members, int64_t rank,
                               std::string_view what) const;

  // This rank's number in the group that the transport joins.
  Rank RankOf(int64_t number) const {
    const int64_t index = (number + first_) % size_;
    return members_.empty() ? Rank(index)
                            : members_[static_cast<size_t>(index)];
  }

  // For errors: step `step` of `steps` is next.
  void Step(int64_t step, int64_t steps) {
    step_ = step;
    steps_ = steps;
  }
  void Enter(Phase phase) { context_->Enter(phase); }

  absl::StatusOr<Request> Send(int64_t to, std::span<const std::byte> bytes);
  absl::StatusOr<Request> Receive(int64_t from, std::span<std::byte> bytes);

  // Waits for requests; number 0 stands for none. Afterwards all are none.
  absl::Status Finish(Request& request) {
    return Finish(std::span(&request, 1));
  }
  absl::Status Finish(std::span<Request> requests);

  // Both at once, in one wait.
  absl::Status Exchange(int64_t to, std::span<const std::byte> out,
                        int64_t from, std::span<std::byte> in);
  absl::Status SendNow(int64_t to, std::span<const std::byte> bytes);
  absl::Status ReceiveNow(int64_t from, std::span<std::byte> bytes);

  // Memory of the operation's scratch; Ts are value-initialised.
  absl::StatusOr<std::span<std::byte>> Scratch(int64_t bytes) {
    return context_->AllocateScratch(bytes);
  }
  template <typename T>
  absl::StatusOr<std::span<T>> ScratchOf(int64_t count) {
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                             Scratch(count * static_cast<int64_t>(sizeof(T))));
    T* first = reinterpret_cast<T*>(memory.data());
    for (int64_t i = 0; i < count; ++i) new (first + i) T();
    return std::span<T>(first, static_cast<size_t>(count));
  }

 private:
  absl::Status Explain(const absl::Status& status) const;

  Transport* transport_;
  OperationContext* context_;
  std::string_view name_;
  std::string_view what_;
  std::span<const Rank> members_;  // Empty: all ranks, by themselves.
  int64_t size_;
  int64_t rank_;
  int64_t first_ = 0;  // Where counting starts.
  int64_t step_ = 0;
  int64_t steps_ = 0;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_PARTY_H_
