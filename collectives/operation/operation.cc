#include "collectives/operation/operation.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::collectives {
namespace {

constexpr std::array<std::string_view, 12> kKindNames = {
    "all_reduce", "reduce", "reduce_scatter", "all_gather",
    "broadcast",  "gather", "scatter",        "all_to_all",
    "barrier",    "send",   "receive",        "send_receive",
};

}  // namespace

std::string_view OpKindName(OpKind kind) {
  const auto index = static_cast<size_t>(kind);
  return index < kKindNames.size() ? kKindNames[index] : "invalid";
}

absl::StatusOr<OpKind> ParseOpKind(std::string_view text) {
  for (size_t i = 0; i < kKindNames.size(); ++i) {
    if (kKindNames[i] == text) return static_cast<OpKind>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no operation is named \"", text.substr(0, 64),
                   "\"; there are ", absl::StrJoin(kKindNames, ", ")));
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

namespace {

Operation RootedOf(OpKind kind, ConstBuffer input, Buffer output, Rank root) {
  return {.kind = kind, .input = input, .output = output, .root = root};
}

}  // namespace

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

Operation SendOf(ConstBuffer input, Rank destination) {
  return {.kind = OpKind::kSend, .input = input, .destination = destination};
}

Operation ReceiveOf(Buffer output, Rank source) {
  return {.kind = OpKind::kReceive, .output = output, .source = source};
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
    absl::StrAppend(&text, " from rank ", operation.source.value());
  }
  return text;
}

}  // namespace tessera::collectives
