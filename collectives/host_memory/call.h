// Call: one collective as the direct collectives see it.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_CALL_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_CALL_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "collectives/engine/operation_context.h"
#include "collectives/host_memory/group.h"
#include "collectives/host_memory/notes.h"
#include "collectives/host_memory/window.h"
#include "collectives/operation/operation.h"
#include "collectives/operation/signature.h"
#include "collectives/reduction/combine.h"

namespace tessera::collectives::direct {

using Sources = absl::InlinedVector<const void*, 16>;
using Destinations = absl::InlinedVector<void*, 16>;

// A group and the means of its collectives, which one thread uses at a time.
struct Means {
  explicit Means(Group& group) : group(group), notes(group), window(group) {}

  Group& group;
  Notes notes;
  Window window;
  uint64_t next_piece = 0;  // The first that no collective has used.
};

struct Call {
  Call(const Operation& operation, OperationContext& context, Means& means)
      : operation(operation),
        context(context),
        means(means),
        fingerprint(Fingerprint(context.signature())),
        ranks(means.group.size()),
        me(means.group.rank()),
        element(SizeInBytes(DTypeOf(operation))),
        bytes(MessageCount(operation, ranks) * element),
        whole(Combination::Whole(operation.reduction, DTypeOf(operation),
                                 ranks)) {}

  bool IsRoot() const { return operation.root.value() == me; }
  const std::byte* input() const { return operation.input.Bytes(); }
  std::byte* output() const { return operation.output.Bytes(); }

  // The ranks other than this one, those after it first, so that not all turn
  // to the same one.
  int64_t PeerAt(int64_t i) const { return (me + i) % ranks; }

  const Operation& operation;
  OperationContext& context;
  Means& means;
  const uint32_t fingerprint;
  const int64_t ranks;
  const int64_t me;
  const int64_t element;  // Bytes.
  const int64_t bytes;    // Of the whole message.
  const Combination whole;
};

// The bytes [first, last) of a buffer.
struct ByteRange {
  int64_t first = 0;
  int64_t last = 0;
  int64_t length() const { return last - first; }
  bool empty() const { return first >= last; }
};

// Slice `i` of `bytes` bytes parted among `ranks` ranks at whole cache lines.
ByteRange LineSlice(int64_t bytes, int64_t ranks, int64_t i);

// Copies unless both are the same place.
void Move(std::byte* to, const std::byte* from, int64_t bytes,
          StoreMode mode = StoreMode::kCached);

}  // namespace tessera::collectives::direct

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_CALL_H_
