#include "collectives/host_memory/direct_collectives.h"

#include "base/status_macros.h"
#include "collectives/host_memory/by_notes.h"
#include "collectives/host_memory/staged.h"
#include "collectives/host_memory/zero_copy.h"

namespace tessera::collectives::direct {
namespace {

// A group of one.
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

}  // namespace

absl::Status DirectCollectives::Run(const Operation& operation,
                                    OperationContext& context) {
  TESSERA_RETURN_IF_ERROR(means_.group.Whole());
  Call call(operation, context, means_);
  if (call.ranks == 1) {
    RunAlone(call);
    return absl::OkStatus();
  }
  // Ranks of an uneven all_to_all do not know each other's sizes.
  const bool sizes_differ =
      operation.kind == OpKind::kAllToAll && operation.uneven();
  if (sizes_differ) return RunStaged(call);
  if (FitsNotes(call)) return RunByNotes(call);
  if (call.bytes >= means_.group.tuning().zero_copy_bytes &&
      history_.Asks(operation.kind, call.bytes)) {
    TESSERA_ASSIGN_OR_RETURN(const Reachable reachable, ExchangePlaces(call));
    history_.Learn(operation.kind, call.bytes, reachable.enough);
    if (reachable.enough) return RunZeroCopy(call, reachable);
  }
  return RunStaged(call);
}

}  // namespace tessera::collectives::direct
