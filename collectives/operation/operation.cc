#include "collectives/operation/operation.h"

#include <functional>
#include <limits>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace tessera::collectives {

namespace {

constexpr std::array<std::string_view, kAllAlgorithms.size()> kNames = {
    "engine",       "ring",  "tree",  "recursive_doubling", "halving_doubling",
    "hierarchical", "chain", "bruck", "pairwise",
};

constexpr std::array<std::string_view, 12> kKindNames = {
    "all_reduce", "reduce", "reduce_scatter", "all_gather",
    "broadcast",  "gather", "scatter",        "all_to_all",
    "barrier",    "send",   "receive",        "send_receive",
};

Operation RootedOf(OpKind kind, ConstBuffer input, Buffer output, Rank root) {
  return {.kind = kind, .input = input, .output = output, .root = root};
}

// The error of an invalid operation.
template <typename... Parts>
absl::Status Refuse(const Operation& operation, const Parts&... parts) {
  return absl::InvalidArgumentError(
      absl::StrCat(OpKindName(operation.kind), ": ", parts...));
}

// The largest count whose bytes are addressable for every type.
constexpr int64_t kMostElements = std::numeric_limits<int64_t>::max() / 8;

absl::Status ValidateBuffer(const Operation& operation, std::string_view side,
                            ConstBuffer buffer) {
  if (!IsValid(buffer.dtype)) {
    return Refuse(operation, "the ", side, "'s type ",
                  static_cast<int>(buffer.dtype), " is not an element type");
  }
  const int64_t size = SizeInBytes(buffer.dtype);
  // Sizes are powers of two; a division would double the cost of the check.
  if (buffer.count < 0 || buffer.count > kMostElements) {
    return Refuse(operation, "the ", side, " has ", buffer.count,
                  " elements; 0 to ", kMostElements, " are allowed");
  }
  if (buffer.count > 0 && buffer.data == nullptr) {
    return Refuse(operation, "the ", side, " is null, but has ", buffer.count,
                  " elements");
  }
  if ((reinterpret_cast<uintptr_t>(buffer.data) &
       static_cast<uintptr_t>(size - 1)) != 0) {
    return Refuse(operation, "the ", side, " is not aligned to its ", size,
                  "-byte elements of type ", DTypeName(buffer.dtype));
  }
  return absl::OkStatus();
}

absl::Status ValidatePeer(const Operation& operation, std::string_view what,
                          Rank peer, int64_t world) {
  if (peer.value() >= 0 && peer.value() < world) return absl::OkStatus();
  return Refuse(operation, what, " ", peer.value(),
                " is not in the group, whose ranks are 0 to ", world - 1);
}

absl::Status ValidateCounts(const Operation& operation, std::string_view what,
                            std::span<const int64_t> counts, int64_t world) {
  if (static_cast<int64_t>(counts.size()) != world) {
    return Refuse(operation, counts.size(), " ", what, " for ", world,
                  " ranks; one for each is needed");
  }
  int64_t left = std::numeric_limits<int64_t>::max() / 8;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] < 0 || counts[i] > left) {
      return Refuse(operation, what, " of rank ", i, " is ", counts[i],
                    "; 0 or more are allowed, less than 2^60 together");
    }
    left -= counts[i];
  }
  return absl::OkStatus();
}

absl::Status ExpectCount(const Operation& operation, std::string_view side,
                         int64_t given, int64_t needed, std::string_view why) {
  if (given == needed) return absl::OkStatus();
  return Refuse(operation, "the ", side, " has ", given, " elements; ", needed,
                " are needed, ", why);
}

bool IsParted(OpKind kind) {
  return kind == OpKind::kReduceScatter || kind == OpKind::kAllGather ||
         kind == OpKind::kAllToAll;
}

absl::Status ValidateUneven(const Operation& operation, Rank rank,
                            int64_t world) {
  if (!IsParted(operation.kind)) {
    return Refuse(operation, "has no uneven form; counts must be empty");
  }
  TESSERA_RETURN_IF_ERROR(
      ValidateCounts(operation, "counts", operation.counts, world));
  const bool all_to_all = operation.kind == OpKind::kAllToAll;
  if (all_to_all) {
    TESSERA_RETURN_IF_ERROR(ValidateCounts(operation, "receive counts",
                                           operation.receive_counts, world));
    const auto self = static_cast<size_t>(rank.value());
    if (operation.counts[self] != operation.receive_counts[self]) {
      return Refuse(operation, "this rank sends itself ",
                    operation.counts[self], " elements but receives ",
                    operation.receive_counts[self], " from itself");
    }
  }
  const Blocks in = InputBlocks(operation, world);
  const Blocks out = OutputBlocks(operation, world);
  const bool gathers = operation.kind == OpKind::kAllGather;
  const bool scatters = operation.kind == OpKind::kReduceScatter;
  TESSERA_RETURN_IF_ERROR(ExpectCount(
      operation, "input", operation.input.count,
      gathers ? in.count(rank.value()) : in.total(), "as counts say"));
  return ExpectCount(operation, "output", operation.output.count,
                     scatters ? out.count(rank.value()) : out.total(),
                     "as counts say");
}

absl::Status ValidateEven(const Operation& operation, Sides sides,
                          int64_t world) {
  const int64_t in = operation.input.count;
  const int64_t out = operation.output.count;
  switch (operation.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
    case OpKind::kBroadcast:
      if (!sides.input || !sides.output) return absl::OkStatus();
      return ExpectCount(operation, "output", out, in, "as many as the input");
    case OpKind::kReduceScatter:
    case OpKind::kScatter:
      if (!sides.input) return absl::OkStatus();
      return ExpectCount(operation, "input", in, world * out,
                         "one block of the output's size per rank");
    case OpKind::kAllGather:
    case OpKind::kGather:
      if (!sides.output) return absl::OkStatus();
      return ExpectCount(operation, "output", out, world * in,
                         "one block of the input's size per rank");
    case OpKind::kAllToAll:
      if (in % world != 0) {
        return Refuse(operation, "the input has ", in, " elements, which ",
                      world, " ranks do not divide; give counts");
      }
      return ExpectCount(operation, "output", out, in, "as many as the input");
    default:
      return absl::OkStatus();
  }
}

// The memory shared by input and output of an in-place operation: the part of
// the input that is the whole output, or vice versa.
bool IsInPlace(const Operation& operation, Rank rank, int64_t world) {
  const ConstBuffer in = operation.input;
  const ConstBuffer out = operation.output;
  switch (operation.kind) {
    case OpKind::kReduceScatter:
    case OpKind::kScatter: {
      const int64_t offset = InputBlocks(operation, world).offset(rank.value());
      return out.data == in.Slice(offset, 0).data;
    }
    case OpKind::kAllGather:
    case OpKind::kGather: {
      const int64_t offset =
          OutputBlocks(operation, world).offset(rank.value());
      return in.data == out.Slice(offset, 0).data;
    }
    case OpKind::kAllToAll:
      return in.data == out.data && !operation.uneven();
    case OpKind::kSendReceive:
      return false;
    default:
      return in.data == out.data;
  }
}

absl::Status ValidateOverlap(const Operation& operation, Rank rank,
                             int64_t world) {
  const ConstBuffer in = operation.input;
  const ConstBuffer out = operation.output;
  if (in.bytes() == 0 || out.bytes() == 0) return absl::OkStatus();
  const std::less<const std::byte*> before;
  const bool apart = !before(in.Bytes(), out.Bytes() + out.bytes()) ||
                     !before(out.Bytes(), in.Bytes() + in.bytes());
  if (apart || IsInPlace(operation, rank, world)) return absl::OkStatus();
  return Refuse(
      operation,
      "input and output overlap but are not in place; use "
      "separate memory or the in-place form described in operation.h");
}

absl::Status ValidatePeers(const Operation& operation, int64_t world) {
  if (HasRoot(operation.kind)) {
    return ValidatePeer(operation, "root", operation.root, world);
  }
  if (operation.kind == OpKind::kSend ||
      operation.kind == OpKind::kSendReceive) {
    TESSERA_RETURN_IF_ERROR(
        ValidatePeer(operation, "destination", operation.destination, world));
  }
  if (operation.kind == OpKind::kReceive && operation.source == kAnySource) {
    if (operation.tag != kNoTag) return absl::OkStatus();
    return Refuse(operation, "from any rank without a tag; give one");
  }
  if (operation.kind == OpKind::kReceive ||
      operation.kind == OpKind::kSendReceive) {
    return ValidatePeer(operation, "source", operation.source, world);
  }
  return absl::OkStatus();
}

absl::Status ValidateTypes(const Operation& operation, Sides sides) {
  if (sides.input && sides.output && operation.kind != OpKind::kSendReceive &&
      operation.input.dtype != operation.output.dtype) {
    return Refuse(operation, "the input is of ",
                  DTypeName(operation.input.dtype), ", the output of ",
                  DTypeName(operation.output.dtype), "; they must be the same");
  }
  if (!Reduces(operation.kind)) return absl::OkStatus();
  return Annotate(Validate(operation.reduction, operation.input.dtype),
                  OpKindName(operation.kind));
}

absl::Status ValidateTag(const Operation& operation) {
  if (operation.tag == kNoTag) return absl::OkStatus();
  if (operation.kind != OpKind::kSend && operation.kind != OpKind::kReceive) {
    return Refuse(operation, "has no tag, given is ", operation.tag);
  }
  if (operation.tag >= 0) return absl::OkStatus();
  return Refuse(operation, "tag ", operation.tag,
                " is invalid; 0 to 2147483647 are allowed");
}

}  // namespace

std::string_view AlgorithmName(Algorithm algorithm) {
  const auto index = static_cast<size_t>(algorithm);
  return index < kNames.size() ? kNames[index] : "invalid";
}

absl::StatusOr<Algorithm> ParseAlgorithm(std::string_view text) {
  for (Algorithm algorithm : kAllAlgorithms) {
    if (AlgorithmName(algorithm) == text) return algorithm;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown algorithm \"",
                                                 text.substr(0, 64), "\"; use ",
                                                 absl::StrJoin(kNames, ", ")));
}

std::string_view OpKindName(OpKind kind) {
  const auto index = static_cast<size_t>(kind);
  return index < kKindNames.size() ? kKindNames[index] : "invalid";
}

absl::StatusOr<OpKind> ParseOpKind(std::string_view text) {
  for (size_t i = 0; i < kKindNames.size(); ++i) {
    if (kKindNames[i] == text) return static_cast<OpKind>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown operation \"", text.substr(0, 64), "\"; use ",
                   absl::StrJoin(kKindNames, ", ")));
}

Operation AllReduceOf(ConstBuffer input, Buffer output, Reduction reduction) {
  return {.kind = OpKind::kAllReduce,
          .input = input,
          .output = output,
          .reduction = reduction};
}

Operation ReduceOf(ConstBuffer input, Buffer output, Reduction reduction,
                   Rank root) {
  Operation operation = AllReduceOf(input, output, reduction);
  operation.kind = OpKind::kReduce;
  operation.root = root;
  return operation;
}

Operation ReduceScatterOf(ConstBuffer input, Buffer output, Reduction reduction,
                          std::vector<int64_t> counts) {
  Operation operation = AllReduceOf(input, output, reduction);
  operation.kind = OpKind::kReduceScatter;
  operation.counts = std::move(counts);
  return operation;
}

Operation AllGatherOf(ConstBuffer input, Buffer output,
                      std::vector<int64_t> counts) {
  return {.kind = OpKind::kAllGather,
          .input = input,
          .output = output,
          .counts = std::move(counts)};
}

Operation BroadcastOf(ConstBuffer input, Buffer output, Rank root) {
  return RootedOf(OpKind::kBroadcast, input, output, root);
}

Operation GatherOf(ConstBuffer input, Buffer output, Rank root) {
  return RootedOf(OpKind::kGather, input, output, root);
}

Operation ScatterOf(ConstBuffer input, Buffer output, Rank root) {
  return RootedOf(OpKind::kScatter, input, output, root);
}

Operation AllToAllOf(ConstBuffer input, Buffer output,
                     std::vector<int64_t> send_counts,
                     std::vector<int64_t> receive_counts) {
  Operation operation = AllGatherOf(input, output, std::move(send_counts));
  operation.kind = OpKind::kAllToAll;
  operation.receive_counts = std::move(receive_counts);
  return operation;
}

Operation BarrierOf() { return Operation{}; }

Operation SendOf(ConstBuffer input, Rank destination, int32_t tag) {
  return {.kind = OpKind::kSend,
          .input = input,
          .destination = destination,
          .tag = tag};
}

Operation ReceiveOf(Buffer output, Rank source, int32_t tag) {
  return {
      .kind = OpKind::kReceive, .output = output, .source = source, .tag = tag};
}

Operation SendReceiveOf(ConstBuffer input, Rank destination, Buffer output,
                        Rank source) {
  Operation operation = SendOf(input, destination);
  operation.kind = OpKind::kSendReceive;
  operation.output = output;
  operation.source = source;
  return operation;
}

Blocks InputBlocks(const Operation& operation, int64_t world) {
  if (operation.uneven()) return Blocks::Of(operation.counts);
  const bool own_is_output = operation.kind == OpKind::kReduceScatter ||
                             operation.kind == OpKind::kScatter;
  return Blocks::Even(world, own_is_output ? operation.output.count
                                           : operation.input.count / world);
}

Blocks OutputBlocks(const Operation& operation, int64_t world) {
  if (!operation.receive_counts.empty()) {
    return Blocks::Of(operation.receive_counts);
  }
  if (operation.uneven()) return Blocks::Of(operation.counts);
  const bool own_is_input =
      operation.kind == OpKind::kAllGather || operation.kind == OpKind::kGather;
  return Blocks::Even(world, own_is_input ? operation.input.count
                                          : operation.output.count / world);
}

DType DTypeOf(const Operation& operation) {
  switch (operation.kind) {
    case OpKind::kBarrier:
      return DType::kU8;
    case OpKind::kBroadcast:
    case OpKind::kScatter:
    case OpKind::kReceive:
      return operation.output.dtype;
    default:
      return operation.input.dtype;
  }
}

int64_t MessageCount(const Operation& operation, int64_t world) {
  switch (operation.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
    case OpKind::kSend:
    case OpKind::kSendReceive:
      return operation.input.count;
    case OpKind::kBroadcast:
    case OpKind::kReceive:
      return operation.output.count;
    case OpKind::kReduceScatter:
    case OpKind::kScatter:
    case OpKind::kAllToAll:
      return InputBlocks(operation, world).total();
    case OpKind::kAllGather:
    case OpKind::kGather:
      return OutputBlocks(operation, world).total();
    case OpKind::kBarrier:
      return 0;
  }
  return 0;
}

std::string DescribeOperation(const Operation& operation) {
  if (operation.kind == OpKind::kBarrier) return "barrier";
  const ConstBuffer shown = operation.kind == OpKind::kBroadcast ||
                                    operation.kind == OpKind::kScatter ||
                                    operation.kind == OpKind::kReceive
                                ? ConstBuffer(operation.output)
                                : operation.input;
  std::string text = absl::StrCat(OpKindName(operation.kind), " of ",
                                  shown.count, " ", DTypeName(shown.dtype),
                                  operation.uneven() ? ", uneven" : "");
  if (Reduces(operation.kind)) {
    absl::StrAppend(&text, ", ", ReduceOpName(operation.reduction.op));
  }
  if (HasRoot(operation.kind)) {
    absl::StrAppend(&text, ", root ", operation.root.value());
  }
  if (operation.kind == OpKind::kSend ||
      operation.kind == OpKind::kSendReceive) {
    absl::StrAppend(&text, " to rank ", operation.destination.value());
  }
  if (operation.kind == OpKind::kReceive ||
      operation.kind == OpKind::kSendReceive) {
    absl::StrAppend(&text, " from ",
                    operation.source == kAnySource
                        ? std::string("any rank")
                        : absl::StrCat("rank ", operation.source.value()));
  }
  if (operation.tag != kNoTag) absl::StrAppend(&text, ", tag ", operation.tag);
  return text;
}

Sides SidesOf(const Operation& operation, Rank rank) {
  const bool root = rank == operation.root;
  switch (operation.kind) {
    case OpKind::kReduce:
    case OpKind::kGather:
      return {true, root};
    case OpKind::kBroadcast:
    case OpKind::kScatter:
      return {root, true};
    case OpKind::kSend:
      return {true, false};
    case OpKind::kReceive:
      return {false, true};
    case OpKind::kBarrier:
      return {false, false};
    default:
      return {true, true};
  }
}

absl::Status ValidateOperation(const Operation& operation, Rank rank,
                               int64_t world) {
  TESSERA_RETURN_IF_ERROR(ValidateTag(operation));
  TESSERA_RETURN_IF_ERROR(ValidatePeers(operation, world));
  const Sides sides = SidesOf(operation, rank);
  if (sides.input) {
    TESSERA_RETURN_IF_ERROR(
        ValidateBuffer(operation, "input", operation.input));
  }
  if (sides.output) {
    TESSERA_RETURN_IF_ERROR(
        ValidateBuffer(operation, "output", operation.output));
  }
  TESSERA_RETURN_IF_ERROR(ValidateTypes(operation, sides));
  if (operation.uneven() || !operation.receive_counts.empty()) {
    TESSERA_RETURN_IF_ERROR(ValidateUneven(operation, rank, world));
  } else {
    TESSERA_RETURN_IF_ERROR(ValidateEven(operation, sides, world));
  }
  if (!sides.input || !sides.output) return absl::OkStatus();
  return ValidateOverlap(operation, rank, world);
}

}  // namespace tessera::collectives
