#include "collectives/host_memory/zero_copy.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include "base/status_macros.h"

namespace tessera::collectives::host_memory {
namespace {

// A rank's buffers, as sent to its peers.
struct OffsetNote {
  DomainOffset input = 0;
  DomainOffset output = 0;
  uint64_t input_address = 0;
  uint32_t input_reachable = 0;
  uint32_t output_reachable = 0;
};
static_assert(sizeof(OffsetNote) <= kNoteBytes);

template <typename Void>
uint32_t Reach(const Domain& domain, const BasicBuffer<Void>& buffer,
               DomainOffset& offset) {
  if (buffer.count == 0) return 1;
  const std::optional<DomainOffset> found =
      domain.UserOffsetOf(buffer.data, buffer.bytes());
  if (!found) return 0;
  offset = *found;
  return 1;
}

OffsetNote MyOffsets(const Call& call) {
  const Domain& domain = call.state.group.domain();
  OffsetNote note;
  note.input_reachable = Reach(domain, call.operation.input, note.input);
  note.output_reachable = Reach(domain, call.operation.output, note.output);
  note.input_address = reinterpret_cast<uintptr_t>(call.input());
  // In place, a rank would overwrite blocks that others still read.
  const bool overwritten =
      call.operation.kind == OpKind::kAllToAll && call.input() == call.output();
  if (overwritten) note.input_reachable = note.input_address = 0;
  return note;
}

// Returns true if the kernel should copy from peers' private memory. If ranks
// share processors, windows stay in the caches and are faster.
bool KernelCopies(const Call& call) {
  const Group& group = call.state.group;
  return group.domain().ReadsPeers() && !group.crowded() &&
         call.bytes >= group.tuning().peer_copy_bytes;
}

// Returns true if the accessible buffers of `rank` suffice for this kind.
bool Suffices(const Call& call, int64_t rank, const OffsetNote& note) {
  const bool root = rank == call.operation.root.value();
  const bool readable =
      note.input_reachable || (KernelCopies(call) && note.input_address != 0);
  switch (call.operation.kind) {
    case OpKind::kAllReduce:
      return note.input_reachable && note.output_reachable;
    case OpKind::kReduce:
      return note.input_reachable && (!root || note.output_reachable);
    case OpKind::kReduceScatter:
      return note.input_reachable;
    case OpKind::kAllGather:
    case OpKind::kAllToAll:
      return readable;
    case OpKind::kBroadcast:
    case OpKind::kScatter:
      return !root || readable;
    case OpKind::kGather:
      return !root || note.output_reachable;
    default:
      return false;
  }
}

// A barrier: no rank returns while another one uses its buffers.
absl::Status AwaitEnd(Call& call) {
  call.context.Enter(Phase::kLeaving);
  TESSERA_RETURN_IF_ERROR(
      call.state.notes.Exchange(call.context, call.fingerprint, {}));
  call.state.notes.FinishRound();
  return absl::OkStatus();
}

// Uses non-temporal stores if the caches cannot hold the working set of all
// ranks.
StoreMode StoresFor(const Call& call, int64_t bytes_of_all) {
  return bytes_of_all > call.state.group.tuning().streaming_bytes
             ? StoreMode::kStreaming
             : StoreMode::kCached;
}

// Reduces this rank's slice of all inputs into the outputs of `to`.
void ReduceSlice(Call& call, const Reachable& reachable,
                 std::span<std::byte* const> to) {
  call.context.Enter(Phase::kReducing);
  const ByteRange slice = LineSlice(call.bytes, call.ranks, call.me);
  if (slice.empty()) return;
  Sources sources;
  for (const std::byte* input : reachable.inputs) {
    sources.push_back(input + slice.first);
  }
  Destinations destinations;
  for (std::byte* output : to) destinations.push_back(output + slice.first);
  Combination combination = call.whole;
  combination.stores = StoresFor(call, 2 * call.bytes * call.ranks);
  Combine(combination, sources, destinations, slice.length() / call.element);
}

void ReduceScatterInto(Call& call, const Reachable& reachable) {
  call.context.Enter(Phase::kReducing);
  const Blocks blocks = InputBlocks(call.operation, call.ranks);
  Sources sources;
  for (const std::byte* input : reachable.inputs) {
    sources.push_back(input + blocks.offset(call.me) * call.element);
  }
  void* const destination[] = {call.output()};
  Combination combination = call.whole;
  combination.stores = StoresFor(call, call.bytes * (call.ranks + 1));
  Combine(combination, sources, destination, blocks.count(call.me));
}

// Copies bytes [first, first + bytes) of a peer's input.
absl::Status Fetch(Call& call, const Reachable& reachable, int64_t peer,
                   int64_t first, std::byte* to, int64_t bytes,
                   StoreMode mode) {
  if (bytes == 0) return absl::OkStatus();
  const auto p = static_cast<size_t>(peer);
  const std::byte* const input =
      peer == call.me ? call.input() : reachable.inputs[p];
  if (input != nullptr) {
    Move(to, input + first, bytes, mode);
    return absl::OkStatus();
  }
  Group& group = call.state.group;
  const absl::Status read = group.domain().ReadPeer(
      group.members()[p],
      reachable.addresses[p] + static_cast<uintptr_t>(first), to, bytes);
  return read.ok() ? read : group.Lost(call.context, peer, read);
}

absl::Status AllGatherFrom(Call& call, const Reachable& reachable) {
  call.context.Enter(Phase::kCopying);
  const Blocks blocks = OutputBlocks(call.operation, call.ranks);
  const StoreMode mode = StoresFor(call, call.bytes * (call.ranks + 1));
  for (int64_t i = 0; i < call.ranks; ++i) {
    const int64_t peer = call.PeerAt(i);
    TESSERA_RETURN_IF_ERROR(
        Fetch(call, reachable, peer, 0,
              call.output() + blocks.offset(peer) * call.element,
              blocks.count(peer) * call.element, mode));
  }
  return absl::OkStatus();
}

absl::Status AllToAllFrom(Call& call, const Reachable& reachable) {
  call.context.Enter(Phase::kCopying);
  const int64_t block = call.bytes / call.ranks;
  const StoreMode mode = StoresFor(call, 2 * call.bytes * call.ranks);
  for (int64_t i = 0; i < call.ranks; ++i) {
    const int64_t peer = call.PeerAt(i);
    TESSERA_RETURN_IF_ERROR(Fetch(call, reachable, peer, call.me * block,
                                  call.output() + peer * block, block, mode));
  }
  return absl::OkStatus();
}

// Rooted kinds: copies from or to the root.
absl::Status MoveWithRoot(Call& call, const Reachable& reachable) {
  call.context.Enter(Phase::kCopying);
  const int64_t root = call.operation.root.value();
  const StoreMode mode = StoresFor(call, call.bytes * (call.ranks + 1));
  const int64_t out = call.operation.output.bytes();
  switch (call.operation.kind) {
    case OpKind::kBroadcast:
      return Fetch(call, reachable, root, 0, call.output(), out, mode);
    case OpKind::kScatter:
      return Fetch(call, reachable, root, call.me * out, call.output(), out,
                   mode);
    default: {  // kGather
      const int64_t in = call.operation.input.bytes();
      Move(reachable.outputs[static_cast<size_t>(root)] + call.me * in,
           call.input(), in, mode);
      return absl::OkStatus();
    }
  }
}

}  // namespace

absl::StatusOr<Reachable> ExchangeOffsets(Call& call) {
  Notes& notes = call.state.notes;
  const OffsetNote mine = MyOffsets(call);
  TESSERA_RETURN_IF_ERROR(notes.Exchange(call.context, call.fingerprint,
                                         std::as_bytes(std::span(&mine, 1))));
  const Domain& domain = call.state.group.domain();
  Reachable reachable;
  reachable.enough = true;
  for (int64_t rank = 0; rank < call.ranks; ++rank) {
    OffsetNote note;
    std::memcpy(&note, notes.Of(rank), sizeof(note));
    reachable.inputs.push_back(note.input_reachable ? domain.At(note.input)
                                                    : nullptr);
    reachable.addresses.push_back(note.input_address);
    reachable.outputs.push_back(domain.At(note.output));
    reachable.enough = reachable.enough && Suffices(call, rank, note);
  }
  notes.FinishRound();
  return reachable;
}

absl::Status RunZeroCopy(Call& call, const Reachable& reachable) {
  const auto root = static_cast<size_t>(call.operation.root.value());
  switch (call.operation.kind) {
    case OpKind::kAllReduce:
      ReduceSlice(call, reachable, reachable.outputs);
      break;
    case OpKind::kReduce:
      ReduceSlice(call, reachable, std::span(&reachable.outputs[root], 1));
      break;
    case OpKind::kReduceScatter:
      ReduceScatterInto(call, reachable);
      break;
    case OpKind::kAllGather:
      TESSERA_RETURN_IF_ERROR(AllGatherFrom(call, reachable));
      break;
    case OpKind::kAllToAll:
      TESSERA_RETURN_IF_ERROR(AllToAllFrom(call, reachable));
      break;
    default:
      TESSERA_RETURN_IF_ERROR(MoveWithRoot(call, reachable));
  }
  return AwaitEnd(call);
}

}  // namespace tessera::collectives::host_memory
