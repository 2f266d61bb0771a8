#include "collectives/mpi/mpi_collective.h"

#include <cstddef>
#include <span>

#include "absl/strings/str_cat.h"
#include "collectives/engine/message_header.h"
#include "collectives/mpi/mpi_call.h"
#include "collectives/mpi/mpi_moving.h"
#include "collectives/mpi/mpi_reducing.h"

namespace tessera::collectives {
namespace {

// Every rank learns what every other one called.
absl::Status ExchangeSignatures(MpiCall& call) {
  constexpr int kBytes = static_cast<int>(sizeof(Signature));
  TESSERA_ASSIGN_OR_RETURN(
      const std::span<std::byte> scratch,
      call.group.AllocateScratch(int64_t{kBytes} * (call.size() + 1)));
  auto* const all = reinterpret_cast<Signature*>(scratch.data());
  Signature& mine = all[call.size()];
  mine = call.context.signature();
  TESSERA_RETURN_IF_ERROR(call.Do(
      "MPI_Iallgather",
      [&](MPI_Request* request) {
        return MPI_Iallgather(&mine, kBytes, MPI_BYTE, all, kBytes, MPI_BYTE,
                              call.comm(), request);
      },
      [&] {
        return MPI_Allgather(&mine, kBytes, MPI_BYTE, all, kBytes, MPI_BYTE,
                             call.comm());
      }));
  return CheckSignatures({all, static_cast<size_t>(call.size())},
                         Rank(call.rank()));
}

}  // namespace

namespace {

absl::Status RunCall(MpiCall& call) {
  call.context.Enter(Phase::kEntering);
  if (call.group.options().check_signatures) {
    TESSERA_RETURN_IF_ERROR(ExchangeSignatures(call));
  }
  switch (call.operation.kind) {
    case OpKind::kAllReduce:
      return MpiAllReduce(call);
    case OpKind::kReduce:
      return MpiReduce(call);
    case OpKind::kReduceScatter:
      return MpiReduceScatter(call);
    case OpKind::kAllGather:
      return MpiAllGather(call);
    case OpKind::kBroadcast:
      return MpiBroadcast(call);
    case OpKind::kGather:
      return MpiGather(call);
    case OpKind::kScatter:
      return MpiScatter(call);
    case OpKind::kAllToAll:
      return MpiAllToAll(call);
    case OpKind::kBarrier:
      return MpiBarrier(call);
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          OpKindName(call.operation.kind), " is not a collective"));
  }
}

}  // namespace

absl::Status RunMpiCollective(MpiGroup& group, const Operation& operation,
                              OperationContext& context) {
  if (group.failed()) return group.CheckAlive();
  MpiCall call{group, operation, context};
  absl::Status status = RunCall(call);
  if (status.ok()) {
    group.ResetScratch();
  } else {
    group.MarkBroken();
  }
  return status;
}

}  // namespace tessera::collectives
