// RankGroup, VectorView and Reducer: the interface against which collective
// algorithms are written.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_RANK_GROUP_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_RANK_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"
#include "collectives/engine/transport.h"
#include "collectives/operation/blocks.h"
#include "collectives/reduction/combine.h"
#include "collectives/reduction/reduction.h"

namespace tessera::collectives {

// A pointer to elements of one size; null if there are none.
template <typename Byte>
struct BasicVectorView {
  Byte* data = nullptr;
  int64_t element = 1;  // Bytes per element.

  constexpr BasicVectorView() = default;
  constexpr BasicVectorView(Byte* data, int64_t element)
      : data(data), element(element) {}
  constexpr operator BasicVectorView<const std::byte>() const {
    return {data, element};
  }

  Byte* at(int64_t first) const {
    return data == nullptr ? nullptr : data + first * element;
  }
  BasicVectorView From(int64_t first) const { return {at(first), element}; }
  std::span<Byte> Range(int64_t first, int64_t length) const {
    return {at(first), static_cast<size_t>(length * element)};
  }
  // Blocks [begin, end), which are contiguous.
  std::span<Byte> Range(const Blocks& blocks, int64_t begin,
                        int64_t end) const {
    return Range(blocks.offset(begin),
                 blocks.offset(end) - blocks.offset(begin));
  }
};

using VectorView = BasicVectorView<std::byte>;
using ConstVectorView = BasicVectorView<const std::byte>;

// The combinations that reduce the partial results of one operation.
//
//   const Reducer reducer = Reducer::Of(reduction, dtype, world);
//   CombineTwo(reducer.partial, lower, upper, out, count);
//   CombineTwo(reducer.last, lower, upper, out, count);  // Completes a result.
//
// Inputs are scaled before the first step and results are divided in the last
// step, so messages hold plain sums (products, ...) of the type itself. Partial
// results of f16 and bf16 are rounded once per hop.
struct Reducer {
  Combination partial;
  Combination last;  // Completes a result (divides averages).

  static Reducer Of(const Reduction& reduction, DType dtype, int64_t world) {
    return {Combination::Partial(reduction, dtype),
            Combination::DivideResult(reduction, dtype, world)};
  }
  // For use before another reduction: no result is complete yet.
  Reducer WithoutLast() const { return {partial, partial}; }

  const Combination& At(bool complete) const {
    return complete ? last : partial;
  }
  int64_t element() const { return SizeInBytes(partial.dtype); }
};

// `result` may be either source.
inline void CombineTwo(const Combination& combination, const std::byte* lower,
                       const std::byte* upper, std::byte* result,
                       int64_t count) {
  const void* const sources[] = {lower, upper};
  void* const destinations[] = {result};
  if (count > 0) Combine(combination, sources, destinations, count);
}

// Scales, divides or copies a single contribution, as the combination needs.
inline void CombineOne(const Combination& combination, const std::byte* source,
                       std::byte* result, int64_t count) {
  if (count == 0) return;
  if (!combination.KeepsSingleSource()) {
    const void* const sources[] = {source};
    void* const destinations[] = {result};
    Combine(combination, sources, destinations, count);
  } else if (source != result) {
    CopyBytes(result, source, count * SizeInBytes(combination.dtype));
  }
}

// The ranks that take part in an algorithm, numbered from 0, and their
// messages.
//
//   RankGroup group(transport, context, "ring");
//   group.Step(1, 6);
//   TESSERA_ASSIGN_OR_RETURN(Request in, group.Receive(left, landing));
//   TESSERA_ASSIGN_OR_RETURN(Request out, group.Send(right, bytes));
//   TESSERA_RETURN_IF_ERROR(group.Finish(in));
//
// Messages use the collective lane with the operation's signature. Every wait
// publishes its phase and peer. Transport errors are prefixed with the
// algorithm and its step: "ring, step 2 of 6: ...". Cheap to copy; the
// transport, context and members must outlive it. Not thread-safe.
class RankGroup {
 public:
  // All ranks of the transport. `name` is a string literal used in errors.
  RankGroup(Transport& transport, OperationContext& context,
            std::string_view name);

  int64_t size() const { return size_; }
  int64_t rank() const { return rank_; }  // This rank's index.

  // This group with rotated numbers: rank 0 of the result is rank `first` of
  // this group.
  RankGroup From(int64_t first) const;

  // The subgroup of `members` (distinct ranks of this group); this rank is
  // members[rank]. `members` must outlive the result. `what` is a string
  // literal used in errors, for example "within level 0".
  absl::StatusOr<RankGroup> Select(std::span<const int64_t> members,
                                   int64_t rank, std::string_view what) const;

  // Maps a rank of this group to the transport's rank.
  Rank RankOf(int64_t number) const {
    const int64_t index = (number + first_) % size_;
    return members_.empty() ? Rank(index)
                            : members_[static_cast<size_t>(index)];
  }

  // Sets the step that errors report.
  void Step(int64_t step, int64_t steps) {
    step_ = step;
    steps_ = steps;
  }
  void Enter(Phase phase) { context_->Enter(phase); }

  absl::StatusOr<Request> Send(int64_t to, std::span<const std::byte> bytes);
  absl::StatusOr<Request> Receive(int64_t from, std::span<std::byte> bytes);

  // Waits for requests (number 0: no request) and resets them.
  absl::Status Finish(Request& request) {
    return Finish(std::span(&request, 1));
  }
  absl::Status Finish(std::span<Request> requests);

  // Sends and receives concurrently.
  absl::Status Exchange(int64_t to, std::span<const std::byte> out,
                        int64_t from, std::span<std::byte> in);
  absl::Status SendNow(int64_t to, std::span<const std::byte> bytes);
  absl::Status ReceiveNow(int64_t from, std::span<std::byte> bytes);

  // Scratch memory of the operation; Ts are value-initialised.
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
  std::span<const Rank> members_;  // Empty: all ranks of the transport.
  int64_t size_;
  int64_t rank_;
  int64_t first_ = 0;  // Rotation (From).
  int64_t step_ = 0;
  int64_t steps_ = 0;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_RANK_GROUP_H_
