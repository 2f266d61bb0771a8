#include "collectives/gloo/gloo_engine.h"

#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/scatter.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/engine/blocking_transport.h"
#include "collectives/engine/library_engine.h"
#include "collectives/gloo/gloo_group.h"
#include "collectives/reduction/copy.h"

namespace tessera::collectives {
namespace {

// One collective call. Gloo reports errors by exceptions.
struct Call {
  GlooGroup& group;
  const Operation& operation;
  OperationContext& context;

  int root() const { return static_cast<int>(operation.root.value()); }
  bool is_root() const { return operation.root == group.rank(); }

  // Sets the fields that all Gloo options have in common.
  template <typename Options>
  Options MakeOptions() const {
    Options options(group.context());
    options.setTag(group.NextTag());
    options.setTimeout(TimeUntil(context.deadline()));
    return options;
  }
};

// Gloo takes non-const pointers but does not write to inputs.
uint8_t* BytesOf(ConstBuffer buffer) {
  return static_cast<uint8_t*>(const_cast<void*>(buffer.data));
}

size_t SizeOf(ConstBuffer buffer) {
  return static_cast<size_t>(buffer.bytes());
}

void CopyUnlessSame(Buffer to, ConstBuffer from) {
  if (to.data != from.data) CopyBytes(to.data, from.data, from.bytes());
}

// Sets the reduction buffer, as elements of the type's size.
template <typename Options>
void SetReduced(Options& options, Buffer buffer) {
  const auto set = [&]<typename T>(T* data) {
    options.setOutput(data, static_cast<size_t>(buffer.count));
  };
  switch (SizeInBytes(buffer.dtype)) {
    case 1:
      return set(static_cast<uint8_t*>(buffer.data));
    case 2:
      return set(static_cast<uint16_t*>(buffer.data));
    case 4:
      return set(static_cast<uint32_t*>(buffer.data));
    default:
      return set(static_cast<uint64_t*>(buffer.data));
  }
}

template <typename Options>
void SetReduction(Options& options, const Reduction& reduction, DType dtype) {
  options.setReduceFunction(
      [partial = Combination::Partial(reduction, dtype)](
          void* out, const void* a, const void* b, size_t count) {
        CombineTwo(partial, a, b, out, static_cast<int64_t>(count));
      });
}

// Copies the input to `place`, scaled if necessary; Gloo reduces there.
void Prime(const Operation& operation, Buffer place) {
  if (ScalesInput(operation.reduction)) {
    ScaleInto(operation.reduction, operation.input, place);
  } else {
    CopyUnlessSame(place, operation.input);
  }
}

absl::Status AllReduce(Call& call) {
  const Buffer output = call.operation.output;
  if (output.count == 0) return absl::OkStatus();
  Prime(call.operation, output);
  auto options = call.MakeOptions<gloo::AllreduceOptions>();
  SetReduced(options, output);
  SetReduction(options, call.operation.reduction, output.dtype);
  gloo::allreduce(options);
  Finish(call.operation.reduction, output, call.group.size());
  return absl::OkStatus();
}

// Gloo reduces in every rank's output; ranks other than the root use scratch
// memory.
absl::Status Reduce(Call& call) {
  const ConstBuffer input = call.operation.input;
  if (input.count == 0) return absl::OkStatus();
  Buffer place = call.operation.output;
  if (!call.is_root()) {
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> scratch,
                             call.context.AllocateScratch(input.bytes()));
    place = Buffer(scratch.data(), input.count, input.dtype);
  }
  Prime(call.operation, place);
  auto options = call.MakeOptions<gloo::ReduceOptions>();
  SetReduced(options, place);
  SetReduction(options, call.operation.reduction, input.dtype);
  options.setRoot(call.root());
  gloo::reduce(options);
  if (call.is_root()) {
    Finish(call.operation.reduction, place, call.group.size());
  }
  return absl::OkStatus();
}

absl::Status Broadcast(Call& call) {
  const Buffer output = call.operation.output;
  if (output.count == 0) return absl::OkStatus();
  if (call.is_root()) CopyUnlessSame(output, call.operation.input);
  auto options = call.MakeOptions<gloo::BroadcastOptions>();
  options.setOutput(BytesOf(output), SizeOf(output));
  options.setRoot(call.root());
  gloo::broadcast(options);
  return absl::OkStatus();
}

// The size of each block in bytes.
template <typename Int>
std::vector<Int> BlockBytes(const Blocks& blocks, DType dtype) {
  std::vector<Int> bytes;
  for (int64_t r = 0; r < blocks.ranks(); ++r) {
    bytes.push_back(static_cast<Int>(blocks.count(r) * SizeInBytes(dtype)));
  }
  return bytes;
}

absl::Status AllGather(Call& call) {
  const Buffer output = call.operation.output;
  const ConstBuffer input = call.operation.input;
  if (output.count == 0) return absl::OkStatus();
  const Blocks blocks = OutputBlocks(call.operation, call.group.size());
  CopyUnlessSame(
      output.Slice(blocks.offset(call.group.rank().value()), input.count),
      input);
  if (call.operation.uneven()) {
    auto options = call.MakeOptions<gloo::AllgathervOptions>();
    options.setOutput(BytesOf(output),
                      BlockBytes<size_t>(blocks, output.dtype));
    gloo::allgatherv(options);
  } else {
    auto options = call.MakeOptions<gloo::AllgatherOptions>();
    options.setOutput(BytesOf(output), SizeOf(output));
    gloo::allgather(options);
  }
  return absl::OkStatus();
}

absl::Status Gather(Call& call) {
  const ConstBuffer input = call.operation.input;
  if (input.count == 0) return absl::OkStatus();
  auto options = call.MakeOptions<gloo::GatherOptions>();
  options.setInput(BytesOf(input), SizeOf(input));
  if (call.is_root()) {
    options.setOutput(BytesOf(call.operation.output),
                      SizeOf(call.operation.output));
  }
  options.setRoot(call.root());
  gloo::gather(options);
  return absl::OkStatus();
}

absl::Status Scatter(Call& call) {
  const Buffer output = call.operation.output;
  if (output.count == 0) return absl::OkStatus();
  auto options = call.MakeOptions<gloo::ScatterOptions>();
  if (call.is_root()) {
    std::vector<uint8_t*> blocks;
    for (int64_t r = 0; r < call.group.size(); ++r) {
      blocks.push_back(
          BytesOf(call.operation.input.Slice(r * output.count, 0)));
    }
    options.setInputs(blocks, SizeOf(output));
  }
  options.setOutput(BytesOf(output), SizeOf(output));
  options.setRoot(call.root());
  gloo::scatter(options);
  return absl::OkStatus();
}

absl::Status AllToAll(Call& call) {
  ConstBuffer input = call.operation.input;
  const Buffer output = call.operation.output;
  const int64_t n = call.group.size();
  if (call.operation.uneven()) {
    auto options = call.MakeOptions<gloo::AlltoallvOptions>();
    options.setInput(
        BytesOf(input),
        BlockBytes<int64_t>(InputBlocks(call.operation, n), input.dtype));
    options.setOutput(
        BytesOf(output),
        BlockBytes<int64_t>(OutputBlocks(call.operation, n), output.dtype));
    gloo::alltoallv(options);
    return absl::OkStatus();
  }
  if (input.count == 0) return absl::OkStatus();
  if (input.data == output.data) {
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> copy,
                             call.context.AllocateScratch(input.bytes()));
    CopyBytes(copy.data(), input.data, input.bytes());
    input.data = copy.data();
  }
  auto options = call.MakeOptions<gloo::AlltoallOptions>();
  options.setInput(BytesOf(input), SizeOf(input));
  options.setOutput(BytesOf(output), SizeOf(output));
  gloo::alltoall(options);
  return absl::OkStatus();
}

absl::Status Barrier(Call& call) {
  auto options = call.MakeOptions<gloo::BarrierOptions>();
  gloo::barrier(options);
  return absl::OkStatus();
}

absl::Status ExchangeSignatures(Call& call) {
  std::vector<Signature> all(static_cast<size_t>(call.group.size()));
  all[static_cast<size_t>(call.group.rank().value())] =
      call.context.signature();
  auto options = call.MakeOptions<gloo::AllgatherOptions>();
  options.setOutput(reinterpret_cast<uint8_t*>(all.data()),
                    all.size() * sizeof(Signature));
  gloo::allgather(options);
  return CheckSignatures(all, call.group.rank());
}

absl::Status RunCall(Call& call) {
  if (call.group.options().check_signatures) {
    TESSERA_RETURN_IF_ERROR(ExchangeSignatures(call));
  }
  switch (call.operation.kind) {
    case OpKind::kAllReduce:
      return AllReduce(call);
    case OpKind::kReduce:
      return Reduce(call);
    case OpKind::kAllGather:
      return AllGather(call);
    case OpKind::kBroadcast:
      return Broadcast(call);
    case OpKind::kGather:
      return Gather(call);
    case OpKind::kScatter:
      return Scatter(call);
    case OpKind::kAllToAll:
      return AllToAll(call);
    case OpKind::kBarrier:
      return Barrier(call);
    default:
      return absl::UnimplementedError(absl::StrCat(
          "Gloo does not support ", OpKindName(call.operation.kind)));
  }
}

// Collectives of a group of one rank.
absl::Status RunAlone(const Operation& operation) {
  const Buffer output = operation.output;
  if (output.count == 0) return absl::OkStatus();
  if (Reduces(operation.kind)) {
    Prime(operation, output);
  } else {
    CopyUnlessSame(output, operation.input);
  }
  return absl::OkStatus();
}

bool GlooImplements(OpKind kind) {
  return IsCollective(kind) && kind != OpKind::kReduceScatter;
}

absl::Status RunGlooCollective(GlooGroup& group, const Operation& operation,
                               OperationContext& context) {
  TESSERA_RETURN_IF_ERROR(group.failure().status());
  if (group.size() == 1) return RunAlone(operation);
  context.Enter(Phase::kEntering);
  Call call{group, operation, context};
  try {
    return RunCall(call);
  } catch (const std::exception& error) {
    return group.Explain(error, &context);
  }
}

class GlooEngine final
    : public LibraryEngine<GlooEngine, GlooGroup, BlockingTransport> {
 public:
  using LibraryEngine::LibraryEngine;

  std::string_view name() const override { return "gloo"; }
  // Gloo's collectives do not encrypt.
  bool Implements(OpKind kind) const override {
    return GlooImplements(kind) && !group_->encrypts();
  }
  absl::Status Run(const Operation& operation,
                   OperationContext& context) override {
    return RunGlooCollective(*group_, operation, context);
  }
  void Abort(const absl::Status& reason) override {
    group_->Abort(reason);
    transport_.Abort(reason);
  }
};

absl::Status Validate(const GlooOptions& options) {
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("gloo: timeout is ", absl::FormatDuration(options.timeout),
                     "; it must be more than 0"));
  }
  constexpr size_t kMaxNameBytes = 64;
  if (options.name.empty() || options.name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("gloo: the name has ", options.name.size(),
                     " bytes; use 1 to ", kMaxNameBytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateGlooEngine(
    Store& store, const GlooOptions& options) {
  TESSERA_RETURN_IF_ERROR(Validate(options));
  const int64_t deadline = DeadlineAfter(options.timeout);
  TESSERA_ASSIGN_OR_RETURN(auto device, CreateGlooDevice(options));
  TESSERA_ASSIGN_OR_RETURN(
      auto group,
      GlooGroup::Connect(store, AllRanks(store.size()), options.name,
                         std::move(device), options, deadline));
  return std::make_unique<GlooEngine>(std::move(group));
}

}  // namespace tessera::collectives
