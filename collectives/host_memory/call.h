// Call: one running collective of HostMemoryCollectives, with its sizes and
// state.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_CALL_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_CALL_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "collectives/engine/operation_context.h"
#include "collectives/host_memory/group.h"
#include "collectives/host_memory/window.h"
#include "collectives/operation/operation.h"
#include "collectives/operation/signature.h"
#include "collectives/reduction/combine.h"

namespace tessera::collectives::host_memory {

using Sources = absl::InlinedVector<const void*, 16>;
using Destinations = absl::InlinedVector<void*, 16>;

// The state of a group's collectives. Used by one thread at a time.
struct CollectiveState {
  explicit CollectiveState(Group& group)
      : group(group), notes(group), window(group) {}

  Group& group;
  Notes notes;
  Window window;
  uint64_t next_piece = 0;  // First unused piece number.
};

struct Call {
  Call(const Operation& operation, OperationContext& context,
       CollectiveState& state)
      : operation(operation),
        context(context),
        state(state),
        fingerprint(Fingerprint(context.signature())),
        ranks(state.group.size()),
        me(state.group.rank()),
        element(SizeInBytes(DTypeOf(operation))),
        bytes(MessageCount(operation, ranks) * element),
        whole(Combination::Whole(operation.reduction, DTypeOf(operation),
                                 ranks)) {}

  bool IsRoot() const { return operation.root.value() == me; }
  const std::byte* input() const { return operation.input.Bytes(); }
  std::byte* output() const { return operation.output.Bytes(); }

  // The i-th peer, starting after this rank, so that ranks do not all access
  // the same peer first.
  int64_t PeerAt(int64_t i) const { return (me + i) % ranks; }

  const Operation& operation;
  OperationContext& context;
  CollectiveState& state;
  const uint32_t fingerprint;
  const int64_t ranks;
  const int64_t me;
  const int64_t element;  // Bytes.
  const int64_t bytes;    // Size of the whole message.
  const Combination whole;
};

// The bytes [first, last) of a buffer.
struct ByteRange {
  int64_t first = 0;
  int64_t last = 0;
  int64_t length() const { return last - first; }
  bool empty() const { return first >= last; }
};

// Slice `i` of `bytes` bytes, split among `ranks` ranks at cache line
// boundaries.
ByteRange LineSlice(int64_t bytes, int64_t ranks, int64_t i);

// Copies `bytes` bytes unless source and destination are the same.
void Move(std::byte* to, const std::byte* from, int64_t bytes,
          StoreMode mode = StoreMode::kCached);

}  // namespace tessera::collectives::host_memory

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_CALL_H_
