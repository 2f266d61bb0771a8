#include "collectives/mpi/mpi_moving.h"

#include <vector>

#include "collectives/mpi/pieces.h"
#include "collectives/reduction/copy.h"

namespace tessera::collectives {
namespace {

using Out = std::vector<BlockOf<const void>>;
using In = std::vector<BlockOf<void>>;

// Block r of `buffer` for every rank r.
Out OutBlocks(ConstBuffer buffer, const Blocks& blocks) {
  Out out;
  for (int r = 0; r < blocks.ranks(); ++r) {
    out.push_back({r, buffer.Slice(blocks.offset(r), blocks.count(r))});
  }
  return out;
}

In InBlocks(Buffer buffer, const Blocks& blocks) {
  In in;
  for (int r = 0; r < blocks.ranks(); ++r) {
    in.push_back({r, buffer.Slice(blocks.offset(r), blocks.count(r))});
  }
  return in;
}

// The same block for every rank.
Out ToAll(ConstBuffer block, int ranks) {
  Out out;
  for (int r = 0; r < ranks; ++r) out.push_back({r, block});
  return out;
}

bool IsOwnBlock(ConstBuffer own, ConstBuffer whole, int64_t offset) {
  return own.count > 0 && own.data == whole.Slice(offset, 0).data;
}

}  // namespace

absl::Status MpiBroadcast(MpiCall& call) {
  const Buffer output = call.operation.output;
  // MPI writes the root's buffer no more than it must: not at all.
  void* const data = call.is_root()
                         ? const_cast<void*>(call.operation.input.data)
                         : output.data;
  if (output.count == 0) return absl::OkStatus();
  for (Piece piece : Pieces(output.count, call.limit())) {
    void* const start =
        Buffer(data, 0, output.dtype).Slice(piece.first, 0).data;
    TESSERA_RETURN_IF_ERROR(call.Do(
        "MPI_Ibcast",
        [&](MPI_Request* request) {
          return MPI_Ibcast(start, piece.length, call.type(), call.root(),
                            call.comm(), request);
        },
        [&] {
          return MPI_Bcast(start, piece.length, call.type(), call.root(),
                           call.comm());
        }));
  }
  if (data != output.data) CopyBytes(output.data, data, output.bytes());
  return absl::OkStatus();
}

namespace {

absl::Status AllGatherEven(MpiCall& call, const void* input, int count) {
  void* const output = call.operation.output.data;
  return call.Do(
      "MPI_Iallgather",
      [&](MPI_Request* request) {
        return MPI_Iallgather(input, count, call.type(), output, count,
                              call.type(), call.comm(), request);
      },
      [&] {
        return MPI_Allgather(input, count, call.type(), output, count,
                             call.type(), call.comm());
      });
}

absl::Status AllGatherUneven(MpiCall& call, const void* input, int count,
                             const Blocks& blocks) {
  std::vector<int> counts, offsets;
  for (int r = 0; r < call.size(); ++r) {
    counts.push_back(static_cast<int>(blocks.count(r)));
    offsets.push_back(static_cast<int>(blocks.offset(r)));
  }
  void* const output = call.operation.output.data;
  return call.Do(
      "MPI_Iallgatherv",
      [&](MPI_Request* request) {
        return MPI_Iallgatherv(input, count, call.type(), output, counts.data(),
                               offsets.data(), call.type(), call.comm(),
                               request);
      },
      [&] {
        return MPI_Allgatherv(input, count, call.type(), output, counts.data(),
                              offsets.data(), call.type(), call.comm());
      });
}

}  // namespace

absl::Status MpiAllGather(MpiCall& call) {
  const ConstBuffer input = call.operation.input;
  const Blocks blocks = OutputBlocks(call.operation, call.size());
  if (blocks.total() == 0) return absl::OkStatus();
  if (blocks.total() > call.limit()) {
    return call.Exchange(ToAll(input, call.size()),
                         InBlocks(call.operation.output, blocks));
  }
  const bool in_place =
      IsOwnBlock(input, call.operation.output, blocks.offset(call.rank()));
  const void* const send = in_place ? MPI_IN_PLACE : input.data;
  const int count = static_cast<int>(input.count);
  return call.operation.uneven() ? AllGatherUneven(call, send, count, blocks)
                                 : AllGatherEven(call, send, count);
}

absl::Status MpiGather(MpiCall& call) {
  const ConstBuffer input = call.operation.input;
  const Buffer output = call.is_root() ? call.operation.output : Buffer();
  if (input.count == 0) return absl::OkStatus();
  const Blocks blocks = Blocks::Even(call.size(), input.count);
  if (input.count > call.limit()) {
    return call.Exchange(Out{{call.root(), input}},
                         call.is_root() ? InBlocks(output, blocks) : In());
  }
  const int count = static_cast<int>(input.count);
  const void* const send =
      call.is_root() && IsOwnBlock(input, output, blocks.offset(call.rank()))
          ? MPI_IN_PLACE
          : input.data;
  return call.Do(
      "MPI_Igather",
      [&](MPI_Request* request) {
        return MPI_Igather(send, count, call.type(), output.data, count,
                           call.type(), call.root(), call.comm(), request);
      },
      [&] {
        return MPI_Gather(send, count, call.type(), output.data, count,
                          call.type(), call.root(), call.comm());
      });
}

absl::Status MpiScatter(MpiCall& call) {
  const ConstBuffer input =
      call.is_root() ? call.operation.input : ConstBuffer();
  const Buffer output = call.operation.output;
  if (output.count == 0) return absl::OkStatus();
  const Blocks blocks = Blocks::Even(call.size(), output.count);
  if (output.count > call.limit()) {
    return call.Exchange(call.is_root() ? OutBlocks(input, blocks) : Out(),
                         In{{call.root(), output}});
  }
  const int count = static_cast<int>(output.count);
  void* const receive =
      call.is_root() && IsOwnBlock(output, input, blocks.offset(call.rank()))
          ? MPI_IN_PLACE
          : output.data;
  return call.Do(
      "MPI_Iscatter",
      [&](MPI_Request* request) {
        return MPI_Iscatter(input.data, count, call.type(), receive, count,
                            call.type(), call.root(), call.comm(), request);
      },
      [&] {
        return MPI_Scatter(input.data, count, call.type(), receive, count,
                           call.type(), call.root(), call.comm());
      });
}

absl::Status MpiAllToAll(MpiCall& call) {
  ConstBuffer input = call.operation.input;
  const Buffer output = call.operation.output;
  const Blocks out = InputBlocks(call.operation, call.size());
  const Blocks in = OutputBlocks(call.operation, call.size());
  // Ranks of an uneven one must not choose by counts of which each knows only
  // its own.
  if (call.operation.uneven() || out.largest() > call.limit()) {
    if (input.data == output.data && input.count > 0) {
      TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> copy,
                               call.group.AllocateScratch(input.bytes()));
      CopyBytes(copy.data(), input.data, input.bytes());
      input.data = copy.data();
    }
    return call.Exchange(OutBlocks(input, out), InBlocks(output, in));
  }
  if (input.count == 0) return absl::OkStatus();
  const int count = static_cast<int>(out.count(0));
  const void* const send =
      input.data == output.data ? MPI_IN_PLACE : input.data;
  return call.Do(
      "MPI_Ialltoall",
      [&](MPI_Request* request) {
        return MPI_Ialltoall(send, count, call.type(), output.data, count,
                             call.type(), call.comm(), request);
      },
      [&] {
        return MPI_Alltoall(send, count, call.type(), output.data, count,
                            call.type(), call.comm());
      });
}

absl::Status MpiBarrier(MpiCall& call) {
  return call.Do(
      "MPI_Ibarrier",
      [&](MPI_Request* request) { return MPI_Ibarrier(call.comm(), request); },
      [&] { return MPI_Barrier(call.comm()); });
}

}  // namespace tessera::collectives
