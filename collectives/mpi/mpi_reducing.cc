#include "collectives/mpi/mpi_reducing.h"

#include <cstddef>
#include <span>
#include <vector>

#include "collectives/engine/reduction_steps.h"
#include "collectives/mpi/pieces.h"
#include "collectives/reduction/copy.h"

namespace tessera::collectives {
namespace {

// MPI's operand: its mark for in place where source and target are the same.
const void* SendPointer(const void* source, const void* target) {
  return source == target ? MPI_IN_PLACE : source;
}

// MPICH 4.0 crashes where a root other than rank 0 reduces in place.
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
    TESSERA_RETURN_IF_ERROR(call.Do(
        "MPI_Ireduce",
        [&](MPI_Request* request) {
          return MPI_Ireduce(send, to, piece.length, call.type(), call.op(),
                             root, call.comm(), request);
        },
        [&] {
          return MPI_Reduce(send, to, piece.length, call.type(), call.op(),
                            root, call.comm());
        }));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MpiAllReduce(MpiCall& call) {
  const Buffer output = call.operation.output;
  if (output.count == 0) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const ConstBuffer input,
                           call.ScaledInput(output.data));
  for (Piece piece : Pieces(output.count, call.limit())) {
    const void* const from = input.Slice(piece.first, 0).data;
    void* const to = output.Slice(piece.first, 0).data;
    const void* const send = SendPointer(from, to);
    TESSERA_RETURN_IF_ERROR(call.Do(
        "MPI_Iallreduce",
        [&](MPI_Request* request) {
          return MPI_Iallreduce(send, to, piece.length, call.type(), call.op(),
                                call.comm(), request);
        },
        [&] {
          return MPI_Allreduce(send, to, piece.length, call.type(), call.op(),
                               call.comm());
        }));
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

namespace {

// MPI takes blocks as ints: where they do not fit, block after block.
absl::Status ReduceBlocks(MpiCall& call, ConstBuffer input,
                          const Blocks& blocks, void* output) {
  for (int r = 0; r < call.size(); ++r) {
    if (blocks.count(r) == 0) continue;
    TESSERA_RETURN_IF_ERROR(ReducePieces(
        call, input.Slice(blocks.offset(r), blocks.count(r)), output, r));
  }
  return absl::OkStatus();
}

absl::Status ReduceScatterEven(MpiCall& call, const void* input, int count,
                               void* output) {
  return call.Do(
      "MPI_Ireduce_scatter_block",
      [&](MPI_Request* request) {
        return MPI_Ireduce_scatter_block(input, output, count, call.type(),
                                         call.op(), call.comm(), request);
      },
      [&] {
        return MPI_Reduce_scatter_block(input, output, count, call.type(),
                                        call.op(), call.comm());
      });
}

absl::Status ReduceScatterUneven(MpiCall& call, const void* input,
                                 void* output) {
  const std::vector<int> counts(call.operation.counts.begin(),
                                call.operation.counts.end());
  return call.Do(
      "MPI_Ireduce_scatter",
      [&](MPI_Request* request) {
        return MPI_Ireduce_scatter(input, output, counts.data(), call.type(),
                                   call.op(), call.comm(), request);
      },
      [&] {
        return MPI_Reduce_scatter(input, output, counts.data(), call.type(),
                                  call.op(), call.comm());
      });
}

}  // namespace

absl::Status MpiReduceScatter(MpiCall& call) {
  const Buffer output = call.operation.output;
  const Blocks blocks = InputBlocks(call.operation, call.size());
  if (blocks.total() == 0) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const ConstBuffer input, call.ScaledInput(nullptr));
  // MPI's way of working in place wants the output elsewhere than ours.
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
    TESSERA_RETURN_IF_ERROR(ReduceScatterUneven(call, input.data, result.data));
  } else {
    TESSERA_RETURN_IF_ERROR(ReduceScatterEven(
        call, input.data, static_cast<int>(output.count), result.data));
  }
  Finish(call.operation.reduction, result, call.size());
  if (inside) CopyBytes(output.data, result.data, output.bytes());
  return absl::OkStatus();
}

}  // namespace tessera::collectives
