#include "collectives/host_memory/host_memory_collectives.h"

#include <algorithm>
#include <bit>

#include "base/status_macros.h"
#include "collectives/host_memory/staged.h"
#include "collectives/host_memory/zero_copy.h"

namespace tessera::collectives::host_memory {

ExchangeHistory::Entry& ExchangeHistory::EntryOf(OpKind kind, int64_t bytes) {
  const auto size_class =
      static_cast<size_t>(std::bit_width(static_cast<uint64_t>(bytes) | 1)) - 1;
  return entries_[static_cast<size_t>(kind)][size_class];
}

bool ExchangeHistory::Asks(OpKind kind, int64_t bytes) {
  if (bytes >= kLargeBytes) return true;
  Entry& entry = EntryOf(kind, bytes);
  if (entry.left == 0) return true;
  --entry.left;
  return false;
}

void ExchangeHistory::Learn(OpKind kind, int64_t bytes, bool enough) {
  if (bytes >= kLargeBytes) return;
  Entry& entry = EntryOf(kind, bytes);
  entry.skips = enough ? uint8_t{0}
                       : static_cast<uint8_t>(
                             std::min<int>(2 * entry.skips + 1, most_skips_));
  entry.left = entry.skips;
}

namespace {

// Collectives of a group of one rank.
void RunAlone(const Call& call) {
  const Operation& operation = call.operation;
  if (operation.kind == OpKind::kBarrier) return;
  if (!Reduces(operation.kind) || call.whole.KeepsSingleSource()) {
    Move(call.output(), call.input(), operation.output.bytes());
    return;
  }
  const void* const source[] = {call.input()};
  void* const destination[] = {call.output()};
  Combine(call.whole, source, destination, operation.output.count);
}

// Ranks of an uneven all_to_all do not know each other's sizes.
bool SizesDiffer(const Operation& operation) {
  return operation.kind == OpKind::kAllToAll && operation.uneven();
}

// Runs an operation whose method depends on its size alone: by notes, or staged
// below the size from which ranks exchange addresses.
class ShortPlan final : public OperationPlan {
 public:
  ShortPlan(const Operation& operation, OperationContext& context,
            CollectiveState& state)
      : call_(operation, context, state), by_notes_(FitsNotes(call_)) {}

  bool Fits() const {
    return call_.ranks > 1 &&
           (by_notes_ ||
            call_.bytes < call_.state.group.tuning().zero_copy_bytes);
  }
  absl::Status Run() override {
    TESSERA_RETURN_IF_ERROR(call_.state.group.Whole());
    return by_notes_ ? RunByNotes(call_) : RunStaged(call_);
  }

 private:
  Call call_;
  const bool by_notes_;
};

}  // namespace

std::unique_ptr<OperationPlan> HostMemoryCollectives::Plan(
    const Operation& operation, OperationContext& context) {
  auto plan = std::make_unique<ShortPlan>(operation, context, state_);
  if (SizesDiffer(operation) || !plan->Fits()) return nullptr;
  return plan;
}

absl::Status HostMemoryCollectives::Run(const Operation& operation,
                                        OperationContext& context) {
  TESSERA_RETURN_IF_ERROR(state_.group.Whole());
  Call call(operation, context, state_);
  if (call.ranks == 1) {
    RunAlone(call);
    return absl::OkStatus();
  }
  if (SizesDiffer(operation)) return RunStaged(call);
  if (FitsNotes(call)) return RunByNotes(call);
  if (call.bytes >= state_.group.tuning().zero_copy_bytes &&
      history_.Asks(operation.kind, call.bytes)) {
    TESSERA_ASSIGN_OR_RETURN(const Reachable reachable, ExchangeOffsets(call));
    history_.Learn(operation.kind, call.bytes, reachable.enough);
    if (reachable.enough) return RunZeroCopy(call, reachable);
  }
  return RunStaged(call);
}

}  // namespace tessera::collectives::host_memory
