#include "collectives/host_memory/by_notes.h"

#include <span>

#include "base/status_macros.h"

namespace tessera::collectives::direct {
namespace {

absl::Status WriteNote(Call& call, const std::byte* payload, int64_t bytes) {
  return call.means.notes.Write(call.context, call.fingerprint,
                                std::span(payload, static_cast<size_t>(bytes)));
}

// Combines elements [first, first + count) of all notes into `output`.
void CombineNotes(const Call& call, int64_t first, int64_t count,
                  std::byte* output) {
  Sources sources;
  for (int64_t rank = 0; rank < call.ranks; ++rank) {
    sources.push_back(call.means.notes.Of(rank) + first * call.element);
  }
  void* const destination[] = {output};
  Combine(call.whole, sources, destination, count);
}

absl::Status AllReduceNotes(Call& call) {
  TESSERA_RETURN_IF_ERROR(WriteNote(call, call.input(), call.bytes));
  TESSERA_RETURN_IF_ERROR(
      call.means.notes.AwaitAll(call.context, call.fingerprint));
  CombineNotes(call, 0, call.operation.output.count, call.output());
  return absl::OkStatus();
}

absl::Status ReduceNotes(Call& call) {
  TESSERA_RETURN_IF_ERROR(WriteNote(call, call.input(), call.bytes));
  if (!call.IsRoot()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(
      call.means.notes.AwaitAll(call.context, call.fingerprint));
  CombineNotes(call, 0, call.operation.output.count, call.output());
  return absl::OkStatus();
}

absl::Status ReduceScatterNotes(Call& call) {
  TESSERA_RETURN_IF_ERROR(WriteNote(call, call.input(), call.bytes));
  TESSERA_RETURN_IF_ERROR(
      call.means.notes.AwaitAll(call.context, call.fingerprint));
  const Blocks blocks = InputBlocks(call.operation, call.ranks);
  CombineNotes(call, blocks.offset(call.me), blocks.count(call.me),
               call.output());
  return absl::OkStatus();
}

// Everybody's block to everybody, or to the root.
absl::Status GatherNotes(Call& call) {
  TESSERA_RETURN_IF_ERROR(
      WriteNote(call, call.input(), call.operation.input.bytes()));
  if (call.operation.kind == OpKind::kGather && !call.IsRoot()) {
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(
      call.means.notes.AwaitAll(call.context, call.fingerprint));
  const Blocks blocks = OutputBlocks(call.operation, call.ranks);
  for (int64_t rank = 0; rank < call.ranks; ++rank) {
    CopyBytes(call.output() + blocks.offset(rank) * call.element,
              call.means.notes.Of(rank), blocks.count(rank) * call.element);
  }
  return absl::OkStatus();
}

// What the root writes: all of it to everybody, or each block to its rank.
absl::Status SpreadNotes(Call& call) {
  const bool scatters = call.operation.kind == OpKind::kScatter;
  const int64_t mine = call.operation.output.bytes();
  const int64_t offset = scatters ? call.me * mine : 0;
  if (call.IsRoot()) {
    TESSERA_RETURN_IF_ERROR(WriteNote(call, call.input(), call.bytes));
    Move(call.output(), call.input() + offset, mine);
    return absl::OkStatus();
  }
  const int64_t root = call.operation.root.value();
  TESSERA_RETURN_IF_ERROR(
      call.means.notes.Await(call.context, call.fingerprint, root));
  CopyBytes(call.output(), call.means.notes.Of(root) + offset, mine);
  return absl::OkStatus();
}

absl::Status AllToAllNotes(Call& call) {
  TESSERA_RETURN_IF_ERROR(WriteNote(call, call.input(), call.bytes));
  TESSERA_RETURN_IF_ERROR(
      call.means.notes.AwaitAll(call.context, call.fingerprint));
  const int64_t block = call.bytes / call.ranks;
  for (int64_t rank = 0; rank < call.ranks; ++rank) {
    CopyBytes(call.output() + rank * block,
              call.means.notes.Of(rank) + call.me * block, block);
  }
  return absl::OkStatus();
}

absl::Status BarrierNotes(Call& call) {
  TESSERA_RETURN_IF_ERROR(WriteNote(call, nullptr, 0));
  return call.means.notes.AwaitAll(call.context, call.fingerprint);
}

absl::Status Dispatch(Call& call) {
  switch (call.operation.kind) {
    case OpKind::kAllReduce:
      return AllReduceNotes(call);
    case OpKind::kReduce:
      return ReduceNotes(call);
    case OpKind::kReduceScatter:
      return ReduceScatterNotes(call);
    case OpKind::kAllGather:
    case OpKind::kGather:
      return GatherNotes(call);
    case OpKind::kBroadcast:
    case OpKind::kScatter:
      return SpreadNotes(call);
    case OpKind::kAllToAll:
      return AllToAllNotes(call);
    default:
      return BarrierNotes(call);
  }
}

}  // namespace

bool FitsNotes(const Call& call) {
  const bool gathers = call.operation.kind == OpKind::kAllGather ||
                       call.operation.kind == OpKind::kGather;
  if (!gathers) return call.bytes <= kNoteBytes;
  return OutputBlocks(call.operation, call.ranks).largest() * call.element <=
         kNoteBytes;
}

absl::Status RunByNotes(Call& call) {
  TESSERA_RETURN_IF_ERROR(Dispatch(call));
  call.means.notes.FinishRound();
  return absl::OkStatus();
}

}  // namespace tessera::collectives::direct
