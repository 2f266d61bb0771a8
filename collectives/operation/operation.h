// Operation, a collective or point-to-point call as a value, with Buffer (its
// operands) and Algorithm. Communicator's methods create operations; engines
// and algorithms execute them.
//
// Input and output of each kind, on n ranks:
//
//   kind            input                        output
//   all_reduce      count                        count
//   reduce          count                        count, on the root
//   reduce_scatter  blocks of all ranks          the rank's own block
//   all_gather      the rank's own block         blocks of all ranks
//   broadcast       count, on the root           count
//   gather          count                        n * count, on the root
//   scatter         n * count, on the root       count
//   all_to_all      a block for every rank       a block from every rank
//   send            count                        -
//   receive         -                            count
//   send_receive    count                        count
//   barrier         -                            -
//
// In-place operations: for all_reduce, reduce and broadcast input and output
// are the same memory; for reduce_scatter and scatter the output is the rank's
// own block of the input; for all_gather and gather the input is the rank's own
// block of the output; for all_to_all with even blocks they are the same
// memory. Otherwise input and output must not overlap.
#ifndef TESSERA_COLLECTIVES_OPERATION_OPERATION_H_
#define TESSERA_COLLECTIVES_OPERATION_OPERATION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/dtype/dtype_traits.h"
#include "collectives/operation/blocks.h"
#include "collectives/reduction/reduction.h"
#include "topology/rank.h"

namespace tessera::collectives {

// The values are stable because they are sent between processes.
enum class Algorithm : uint8_t {
  kEngine = 0,             // The engine's own algorithm.
  kRing = 1,               //
  kTree = 2,               // Double binary tree; binomial for small messages.
  kRecursiveDoubling = 3,  //
  kHalvingDoubling = 4,    // Rabenseifner's algorithm.
  kHierarchical = 5,       // Within each host (or socket), then across.
  kChain = 6,              // Pipelined along a chain.
  kBruck = 7,              //
  kPairwise = 8,           // Every rank exchanges with every other in turn.
};

inline constexpr std::array<Algorithm, 9> kAllAlgorithms = {
    Algorithm::kEngine,
    Algorithm::kRing,
    Algorithm::kTree,
    Algorithm::kRecursiveDoubling,
    Algorithm::kHalvingDoubling,
    Algorithm::kHierarchical,
    Algorithm::kChain,
    Algorithm::kBruck,
    Algorithm::kPairwise,
};

// "engine" "ring" "tree" "recursive_doubling" "halving_doubling"
// "hierarchical" "chain" "bruck" "pairwise".
std::string_view AlgorithmName(Algorithm algorithm);

// InvalidArgument lists the allowed names.
absl::StatusOr<Algorithm> ParseAlgorithm(std::string_view text);

inline std::ostream& operator<<(std::ostream& os, Algorithm algorithm) {
  return os << AlgorithmName(algorithm);
}

// The element types of a buffer of `Void`: const elements need a ConstBuffer.
template <typename T, typename Void>
concept BufferElement = std::is_const_v<Void> || !std::is_const_v<T>;

// The elements that an operation reads or writes. `Void` is void (Buffer) or
// const void (ConstBuffer).
//
//   std::vector<float> gradients(1000);
//   communicator.AllReduce(Buffer(std::span(gradients)), Reduction::Sum());
//   communicator.Send(ConstBuffer(pointer, 10, DType::kBF16), Rank(1));
//
// A buffer is contiguous. The caller owns the memory and must keep it valid
// until the operation completes. The engine defines which memory (host, shared,
// device) it accepts.
template <typename Void>
struct BasicBuffer {
  Void* data = nullptr;
  int64_t count = 0;  // Elements.
  DType dtype = DType::kU8;

  constexpr BasicBuffer() = default;
  constexpr BasicBuffer(Void* data, int64_t count, DType dtype)
      : data(data), count(count), dtype(dtype) {}

  // The elements of a span of a type that has a DType.
  template <BufferElement<Void> T, size_t extent>
  explicit constexpr BasicBuffer(std::span<T, extent> elements)
      : data(elements.data()),
        count(static_cast<int64_t>(elements.size())),
        dtype(kDTypeOf<std::remove_const_t<T>>) {}

  // A Buffer converts to a ConstBuffer.
  constexpr operator BasicBuffer<const void>() const
      requires(!std::is_const_v<Void>) {
    return {data, count, dtype};
  }

  constexpr int64_t bytes() const { return count * SizeInBytes(dtype); }

  // Elements [first, first + length).
  constexpr BasicBuffer Slice(int64_t first, int64_t length) const {
    return {Bytes() + first * SizeInBytes(dtype), length, dtype};
  }

 private:
  using Byte =
      std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;

 public:
  // The same memory as bytes.
  constexpr Byte* Bytes() const { return static_cast<Byte*>(data); }
  constexpr std::span<Byte> AsBytes() const {
    return {Bytes(), static_cast<size_t>(bytes())};
  }
};

using Buffer = BasicBuffer<void>;
using ConstBuffer = BasicBuffer<const void>;

using topology::Rank;

// The values are stable because they are sent between processes.
enum class OpKind : uint8_t {
  kAllReduce = 0,
  kReduce = 1,
  kReduceScatter = 2,
  kAllGather = 3,
  kBroadcast = 4,
  kGather = 5,
  kScatter = 6,
  kAllToAll = 7,
  kBarrier = 8,
  kSend = 9,
  kReceive = 10,
  kSendReceive = 11,
};

inline constexpr std::array<OpKind, 9> kCollectiveKinds = {
    OpKind::kAllReduce, OpKind::kReduce,    OpKind::kReduceScatter,
    OpKind::kAllGather, OpKind::kBroadcast, OpKind::kGather,
    OpKind::kScatter,   OpKind::kAllToAll,  OpKind::kBarrier,
};

// "all_reduce", "reduce_scatter", "send", ...; "invalid" if `kind` is not a
// kind.
std::string_view OpKindName(OpKind kind);
absl::StatusOr<OpKind> ParseOpKind(std::string_view text);

constexpr bool IsCollective(OpKind kind) { return kind <= OpKind::kBarrier; }
constexpr bool Reduces(OpKind kind) { return kind <= OpKind::kReduceScatter; }
constexpr bool HasRoot(OpKind kind) {
  return kind == OpKind::kReduce || kind == OpKind::kBroadcast ||
         kind == OpKind::kGather || kind == OpKind::kScatter;
}

inline constexpr int32_t kNoTag = -1;

// The source of a receive from any rank. Such a receive needs a tag.
inline constexpr Rank kAnySource(-1);

struct Operation {
  OpKind kind = OpKind::kBarrier;
  ConstBuffer input = {};
  Buffer output = {};
  Reduction reduction = {};
  Rank root = {};         // If HasRoot(kind).
  Rank destination = {};  // For send and send_receive.
  Rank source = {};       // For receive and send_receive.

  // Elements of each rank's block in uneven forms; empty: even blocks.
  // reduce_scatter and all_gather use `counts`, equal on every rank. all_to_all
  // uses `counts` for sent and `receive_counts` for received blocks, which must
  // match between each pair of ranks. Blocks are stored without gaps.
  std::vector<int64_t> counts = {};
  std::vector<int64_t> receive_counts = {};

  // For send and receive: a receive takes the first message with its tag, 0 or
  // more. With kNoTag messages match by rank and order alone.
  int32_t tag = kNoTag;

  // An optional label, for example a parameter's number, which must match
  // between ranks like the count. 0: no label.
  uint32_t label = 0;

  bool uneven() const { return !counts.empty(); }
};

// One function per kind. For operations in place pass the same buffer twice.
Operation AllReduceOf(ConstBuffer input, Buffer output, Reduction reduction);
Operation ReduceOf(ConstBuffer input, Buffer output, Reduction reduction,
                   Rank root);
Operation ReduceScatterOf(ConstBuffer input, Buffer output, Reduction reduction,
                          std::vector<int64_t> counts = {});
Operation AllGatherOf(ConstBuffer input, Buffer output,
                      std::vector<int64_t> counts = {});
Operation BroadcastOf(ConstBuffer input, Buffer output, Rank root);
Operation GatherOf(ConstBuffer input, Buffer output, Rank root);
Operation ScatterOf(ConstBuffer input, Buffer output, Rank root);
Operation AllToAllOf(ConstBuffer input, Buffer output,
                     std::vector<int64_t> send_counts = {},
                     std::vector<int64_t> receive_counts = {});
Operation BarrierOf();
Operation SendOf(ConstBuffer input, Rank destination, int32_t tag = kNoTag);
Operation ReceiveOf(Buffer output, Rank source, int32_t tag = kNoTag);
Operation SendReceiveOf(ConstBuffer input, Rank destination, Buffer output,
                        Rank source);

// The blocks of the input (reduce_scatter, scatter, all_to_all) or output
// (all_gather, gather, all_to_all). `world` is the number of ranks.
Blocks InputBlocks(const Operation& operation, int64_t world);
Blocks OutputBlocks(const Operation& operation, int64_t world);

// The type of the elements.
DType DTypeOf(const Operation& operation);

// The number of elements of the whole message, which selects the algorithm and
// is counted in statistics: `count` for all_reduce, reduce and broadcast, the
// total of all blocks for kinds with blocks. Equal on every rank, except that
// an uneven all_to_all counts this rank's blocks.
int64_t MessageCount(const Operation& operation, int64_t world);

// The buffers of an operation that a rank uses.
struct Sides {
  bool input = true;
  bool output = true;
};
Sides SidesOf(const Operation& operation, Rank rank);

// InvalidArgument, naming the operation, the given and the allowed value, for:
// a null or misaligned pointer with a count greater than 0, a negative count,
// counts that do not match, types that differ or cannot be reduced, an invalid
// root or peer, or buffers that overlap but are not in place.
absl::Status ValidateOperation(const Operation& operation, Rank rank,
                               int64_t world);

// "all_reduce of 1024 f32, sum", "broadcast of 8 bf16 from rank 3".
std::string DescribeOperation(const Operation& operation);

inline std::ostream& operator<<(std::ostream& os, OpKind kind) {
  return os << OpKindName(kind);
}

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_OPERATION_OPERATION_H_
