#include "collectives/mpi/mpi_engine.h"

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/engine/library_engine.h"
#include "collectives/engine/operation_context.h"
#include "collectives/mpi/mpi_group.h"
#include "collectives/mpi/mpi_transport.h"
#include "collectives/mpi/mpi_types.h"
#include "collectives/mpi/pieces.h"
#include "collectives/operation/operation.h"
#include "collectives/reduction/copy.h"

namespace tessera::collectives {
namespace {

// A block that is sent to or received from `peer`.
template <typename Void>
struct BlockOf {
  int peer;
  BasicBuffer<Void> block;
};

struct MpiCall {
  MpiGroup& group;
  const Operation& operation;
  OperationContext& context;

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  MPI_Comm comm() const { return group.comm(); }
  int root() const { return static_cast<int>(operation.root.value()); }
  bool is_root() const { return rank() == root(); }
  MPI_Datatype type() const { return group.types().TypeOf(DTypeOf(operation)); }
  MPI_Op op() const {
    return group.types().OpOf(operation.reduction.op, DTypeOf(operation));
  }
  int limit() const { return group.options().largest_count; }

  // Calls an MPI function in its blocking form `block`, or in its non-blocking
  // form `start`, which takes a request after the same arguments.
  template <typename Start, typename... Arguments>
  absl::Status Do(const char* name, const Start& start,
                  int (*block)(Arguments...),
                  std::type_identity_t<Arguments>... arguments) {
    if (group.options().blocking) return MpiStatus(block(arguments...), name);
    MPI_Request request = MPI_REQUEST_NULL;
    TESSERA_RETURN_IF_ERROR(MpiStatus(start(arguments..., &request), name));
    return Annotate(group.Await({&request, 1}, context), name);
  }

  // Exchanges blocks of any size with their peers and waits for all of them.
  // Blocks of this rank itself are copied.
  absl::Status Exchange(std::span<const BlockOf<const void>> out,
                        std::span<const BlockOf<void>> in);

  // Returns the input, or for a scaled sum a copy multiplied by the factor, in
  // `place` or in scratch memory if `place` is null.
  absl::StatusOr<ConstBuffer> ScaledInput(void* place);
};

absl::StatusOr<ConstBuffer> MpiCall::ScaledInput(void* place) {
  const ConstBuffer input = operation.input;
  if (!ScalesInput(operation.reduction)) return input;
  if (place == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> scratch,
                             group.AllocateScratch(input.bytes()));
    place = scratch.data();
  }
  const Buffer scaled(place, input.count, input.dtype);
  ScaleInto(operation.reduction, input, scaled);
  return ConstBuffer(scaled);
}

// The requests of an exchange and the expected sizes of its receives.
struct Posted {
  std::vector<MPI_Request> requests;
  std::vector<int> expected;  // Sizes of the receives, which come first.
  std::vector<int> peers;
};

absl::Status CheckSizes(const Posted& posted,
                        const std::vector<MPI_Status>& statuses) {
  for (size_t i = 0; i < posted.expected.size(); ++i) {
    int bytes = 0;
    MPI_Get_count(&statuses[i], MPI_BYTE, &bytes);
    if (bytes == posted.expected[i]) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", posted.peers[i], " sent ", bytes, " bytes, but ",
        posted.expected[i], " are expected: the ranks' counts differ"));
  }
  return absl::OkStatus();
}

absl::Status MpiCall::Exchange(std::span<const BlockOf<const void>> out,
                               std::span<const BlockOf<void>> in) {
  Posted posted;
  ConstBuffer own_out;
  Buffer own_in;
  for (const BlockOf<void>& from : in) {
    if (from.peer == rank()) own_in = from.block;
    if (from.peer == rank() || from.block.count == 0) continue;
    for (Piece piece : Pieces(from.block.bytes(), limit())) {
      posted.expected.push_back(piece.length);
      posted.peers.push_back(from.peer);
      MPI_Request& request = posted.requests.emplace_back(MPI_REQUEST_NULL);
      TESSERA_RETURN_IF_ERROR(
          MpiStatus(MPI_Irecv(from.block.Bytes() + piece.first, piece.length,
                              MPI_BYTE, from.peer, kBlockTag, comm(), &request),
                    "MPI_Irecv"));
    }
  }
  for (const BlockOf<const void>& to : out) {
    if (to.peer == rank()) own_out = to.block;
    if (to.peer == rank() || to.block.count == 0) continue;
    for (Piece piece : Pieces(to.block.bytes(), limit())) {
      MPI_Request& request = posted.requests.emplace_back(MPI_REQUEST_NULL);
      TESSERA_RETURN_IF_ERROR(
          MpiStatus(MPI_Isend(to.block.Bytes() + piece.first, piece.length,
                              MPI_BYTE, to.peer, kBlockTag, comm(), &request),
                    "MPI_Isend"));
    }
  }
  if (own_in.data != own_out.data) {
    CopyBytes(own_in.data, own_out.data, own_in.bytes());
  }
  std::vector<MPI_Status> statuses(posted.requests.size());
  TESSERA_RETURN_IF_ERROR(
      group.Await(posted.requests, context, statuses.data()));
  return CheckSizes(posted, statuses);
}

using Out = std::vector<BlockOf<const void>>;
using In = std::vector<BlockOf<void>>;

// Block r of `buffer` for every rank r.
template <typename Void>
std::vector<BlockOf<Void>> BlocksOf(BasicBuffer<Void> buffer,
                                    const Blocks& blocks) {
  std::vector<BlockOf<Void>> result;
  for (int r = 0; r < blocks.ranks(); ++r) {
    result.push_back({r, buffer.Slice(blocks.offset(r), blocks.count(r))});
  }
  return result;
}

// Sends the same block to every rank.
Out ToAll(ConstBuffer block, int ranks) {
  Out out;
  for (int r = 0; r < ranks; ++r) out.push_back({r, block});
  return out;
}

bool IsOwnBlock(ConstBuffer own, ConstBuffer whole, int64_t offset) {
  return own.count > 0 && own.data == whole.Slice(offset, 0).data;
}

absl::Status MpiBroadcast(MpiCall& call) {
  const Buffer output = call.operation.output;
  // MPI does not write to the root's buffer.
  void* const data = call.is_root()
                         ? const_cast<void*>(call.operation.input.data)
                         : output.data;
  if (output.count == 0) return absl::OkStatus();
  for (Piece piece : Pieces(output.count, call.limit())) {
    void* const start =
        Buffer(data, 0, output.dtype).Slice(piece.first, 0).data;
    TESSERA_RETURN_IF_ERROR(call.Do("MPI_Ibcast", MPI_Ibcast, MPI_Bcast, start,
                                    piece.length, call.type(), call.root(),
                                    call.comm()));
  }
  if (data != output.data) CopyBytes(output.data, data, output.bytes());
  return absl::OkStatus();
}

absl::Status MpiAllGather(MpiCall& call) {
  const ConstBuffer input = call.operation.input;
  const Blocks blocks = OutputBlocks(call.operation, call.size());
  if (blocks.total() == 0) return absl::OkStatus();
  if (blocks.total() > call.limit()) {
    return call.Exchange(ToAll(input, call.size()),
                         BlocksOf(call.operation.output, blocks));
  }
  const bool in_place =
      IsOwnBlock(input, call.operation.output, blocks.offset(call.rank()));
  const void* const send = in_place ? MPI_IN_PLACE : input.data;
  const int count = static_cast<int>(input.count);
  void* const output = call.operation.output.data;
  if (!call.operation.uneven()) {
    return call.Do("MPI_Iallgather", MPI_Iallgather, MPI_Allgather, send, count,
                   call.type(), output, count, call.type(), call.comm());
  }
  std::vector<int> counts, offsets;
  for (int r = 0; r < call.size(); ++r) {
    counts.push_back(static_cast<int>(blocks.count(r)));
    offsets.push_back(static_cast<int>(blocks.offset(r)));
  }
  return call.Do("MPI_Iallgatherv", MPI_Iallgatherv, MPI_Allgatherv, send,
                 count, call.type(), output, counts.data(), offsets.data(),
                 call.type(), call.comm());
}

absl::Status MpiGather(MpiCall& call) {
  const ConstBuffer input = call.operation.input;
  const Buffer output = call.is_root() ? call.operation.output : Buffer();
  if (input.count == 0) return absl::OkStatus();
  const Blocks blocks = Blocks::Even(call.size(), input.count);
  if (input.count > call.limit()) {
    return call.Exchange(Out{{call.root(), input}},
                         call.is_root() ? BlocksOf(output, blocks) : In());
  }
  const int count = static_cast<int>(input.count);
  const void* const send =
      call.is_root() && IsOwnBlock(input, output, blocks.offset(call.rank()))
          ? MPI_IN_PLACE
          : input.data;
  return call.Do("MPI_Igather", MPI_Igather, MPI_Gather, send, count,
                 call.type(), output.data, count, call.type(), call.root(),
                 call.comm());
}

absl::Status MpiScatter(MpiCall& call) {
  const ConstBuffer input =
      call.is_root() ? call.operation.input : ConstBuffer();
  const Buffer output = call.operation.output;
  if (output.count == 0) return absl::OkStatus();
  const Blocks blocks = Blocks::Even(call.size(), output.count);
  if (output.count > call.limit()) {
    return call.Exchange(call.is_root() ? BlocksOf(input, blocks) : Out(),
                         In{{call.root(), output}});
  }
  const int count = static_cast<int>(output.count);
  void* const receive =
      call.is_root() && IsOwnBlock(output, input, blocks.offset(call.rank()))
          ? MPI_IN_PLACE
          : output.data;
  return call.Do("MPI_Iscatter", MPI_Iscatter, MPI_Scatter, input.data, count,
                 call.type(), receive, count, call.type(), call.root(),
                 call.comm());
}

absl::Status MpiAllToAll(MpiCall& call) {
  ConstBuffer input = call.operation.input;
  const Buffer output = call.operation.output;
  const Blocks out = InputBlocks(call.operation, call.size());
  const Blocks in = OutputBlocks(call.operation, call.size());
  // Ranks of an uneven all_to_all know only their own counts and must not base
  // the choice on them.
  if (call.operation.uneven() || out.largest() > call.limit()) {
    if (input.data == output.data && input.count > 0) {
      TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> copy,
                               call.group.AllocateScratch(input.bytes()));
      CopyBytes(copy.data(), input.data, input.bytes());
      input.data = copy.data();
    }
    return call.Exchange(BlocksOf(input, out), BlocksOf(output, in));
  }
  if (input.count == 0) return absl::OkStatus();
  const int count = static_cast<int>(out.count(0));
  const void* const send =
      input.data == output.data ? MPI_IN_PLACE : input.data;
  return call.Do("MPI_Ialltoall", MPI_Ialltoall, MPI_Alltoall, send, count,
                 call.type(), output.data, count, call.type(), call.comm());
}

absl::Status MpiBarrier(MpiCall& call) {
  return call.Do("MPI_Ibarrier", MPI_Ibarrier, MPI_Barrier, call.comm());
}

// The send operand: MPI_IN_PLACE if source and target are equal.
const void* SendPointer(const void* source, const void* target) {
  return source == target ? MPI_IN_PLACE : source;
}

// MPICH 4.0 crashes if a root other than rank 0 reduces in place.
#ifdef MPICH_VERSION
constexpr bool kOnlyRankZeroReducesInPlace = true;
#else
constexpr bool kOnlyRankZeroReducesInPlace = false;
#endif

// Reduces `input` to `output` on rank `root`, in pieces.
absl::Status ReducePieces(MpiCall& call, ConstBuffer input, void* output,
                          int root) {
  const bool in_place = call.rank() == root && input.data == output;
  if (kOnlyRankZeroReducesInPlace && in_place && root != 0) {
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> copy,
                             call.group.AllocateScratch(input.bytes()));
    CopyBytes(copy.data(), input.data, input.bytes());
    input.data = copy.data();
  }
  for (Piece piece : Pieces(input.count, call.limit())) {
    const void* const from = input.Slice(piece.first, 0).data;
    void* const to =
        call.rank() == root
            ? Buffer(output, 0, input.dtype).Slice(piece.first, 0).data
            : nullptr;
    const void* const send = SendPointer(from, to);
    TESSERA_RETURN_IF_ERROR(call.Do("MPI_Ireduce", MPI_Ireduce, MPI_Reduce,
                                    send, to, piece.length, call.type(),
                                    call.op(), root, call.comm()));
  }
  return absl::OkStatus();
}

absl::Status MpiAllReduce(MpiCall& call) {
  const Buffer output = call.operation.output;
  if (output.count == 0) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const ConstBuffer input,
                           call.ScaledInput(output.data));
  for (Piece piece : Pieces(output.count, call.limit())) {
    const void* const from = input.Slice(piece.first, 0).data;
    void* const to = output.Slice(piece.first, 0).data;
    const void* const send = SendPointer(from, to);
    TESSERA_RETURN_IF_ERROR(call.Do("MPI_Iallreduce", MPI_Iallreduce,
                                    MPI_Allreduce, send, to, piece.length,
                                    call.type(), call.op(), call.comm()));
  }
  Finish(call.operation.reduction, output, call.size());
  return absl::OkStatus();
}

absl::Status MpiReduce(MpiCall& call) {
  if (call.operation.input.count == 0) return absl::OkStatus();
  const Buffer output = call.operation.output;
  TESSERA_ASSIGN_OR_RETURN(
      const ConstBuffer input,
      call.ScaledInput(call.is_root() ? output.data : nullptr));
  TESSERA_RETURN_IF_ERROR(ReducePieces(call, input, output.data, call.root()));
  if (call.is_root()) {
    Finish(call.operation.reduction, output, call.size());
  }
  return absl::OkStatus();
}

// MPI counts are ints; larger blocks are reduced one after the other.
absl::Status ReduceBlocks(MpiCall& call, ConstBuffer input,
                          const Blocks& blocks, void* output) {
  for (int r = 0; r < call.size(); ++r) {
    if (blocks.count(r) == 0) continue;
    TESSERA_RETURN_IF_ERROR(ReducePieces(
        call, input.Slice(blocks.offset(r), blocks.count(r)), output, r));
  }
  return absl::OkStatus();
}

absl::Status MpiReduceScatter(MpiCall& call) {
  const Buffer output = call.operation.output;
  const Blocks blocks = InputBlocks(call.operation, call.size());
  if (blocks.total() == 0) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const ConstBuffer input, call.ScaledInput(nullptr));
  // MPI's in-place mode places the output differently.
  const std::byte* const end = input.Bytes() + input.bytes();
  const bool inside = output.count > 0 && output.Bytes() >= input.Bytes() &&
                      output.Bytes() < end;
  Buffer result = output;
  if (inside) {
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> scratch,
                             call.group.AllocateScratch(output.bytes()));
    result.data = scratch.data();
  }
  if (blocks.total() > call.limit()) {
    TESSERA_RETURN_IF_ERROR(ReduceBlocks(call, input, blocks, result.data));
  } else if (call.operation.uneven()) {
    const std::vector<int> counts(call.operation.counts.begin(),
                                  call.operation.counts.end());
    TESSERA_RETURN_IF_ERROR(call.Do("MPI_Ireduce_scatter", MPI_Ireduce_scatter,
                                    MPI_Reduce_scatter, input.data, result.data,
                                    counts.data(), call.type(), call.op(),
                                    call.comm()));
  } else {
    TESSERA_RETURN_IF_ERROR(call.Do(
        "MPI_Ireduce_scatter_block", MPI_Ireduce_scatter_block,
        MPI_Reduce_scatter_block, input.data, result.data,
        static_cast<int>(output.count), call.type(), call.op(), call.comm()));
  }
  Finish(call.operation.reduction, result, call.size());
  if (inside) CopyBytes(output.data, result.data, output.bytes());
  return absl::OkStatus();
}

// Checks that all ranks called the same operation.
absl::Status ExchangeSignatures(MpiCall& call) {
  constexpr int kBytes = static_cast<int>(sizeof(Signature));
  TESSERA_ASSIGN_OR_RETURN(
      const std::span<std::byte> scratch,
      call.group.AllocateScratch(int64_t{kBytes} * (call.size() + 1)));
  auto* const all = reinterpret_cast<Signature*>(scratch.data());
  Signature& mine = all[call.size()];
  mine = call.context.signature();
  TESSERA_RETURN_IF_ERROR(call.Do("MPI_Iallgather", MPI_Iallgather,
                                  MPI_Allgather, &mine, kBytes, MPI_BYTE, all,
                                  kBytes, MPI_BYTE, call.comm()));
  return CheckSignatures({all, static_cast<size_t>(call.size())},
                         Rank(call.rank()));
}

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

class MpiEngine final
    : public LibraryEngine<MpiEngine, MpiGroup, MpiTransport> {
 public:
  using LibraryEngine::LibraryEngine;

  std::string_view name() const override { return "mpi"; }
  bool Implements(OpKind kind) const override { return IsCollective(kind); }
  absl::Status Run(const Operation& operation,
                   OperationContext& context) override {
    return RunMpiCollective(*group_, operation, context);
  }
  void Abort(const absl::Status& reason) override {
    group_->Abort(reason);
    transport_.CancelReceives();
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateMpiEngine(
    const MpiOptions& options) {
  if (options.largest_count < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "mpi: largest_count is ", options.largest_count, "; use at least 1"));
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("mpi: timeout is ", absl::FormatDuration(options.timeout),
                     "; it must be more than 0"));
  }
  TESSERA_ASSIGN_OR_RETURN(auto world, MpiGroup::World(options));
  return std::make_unique<MpiEngine>(std::move(world));
}

}  // namespace tessera::collectives
