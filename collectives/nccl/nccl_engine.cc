#include "collectives/nccl/nccl_engine.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/engine/library_engine.h"
#include "collectives/nccl/nccl_group.h"
#include "collectives/nccl/nccl_types.h"

namespace tessera::collectives {
namespace {

size_t CountOf(ConstBuffer buffer) { return static_cast<size_t>(buffer.count); }

// Keeps the first error.
class Results {
 public:
  void operator+=(ncclResult_t result) {
    if (first_ == ncclSuccess && result != ncclInProgress) first_ = result;
  }
  ncclResult_t first() const { return first_; }

 private:
  ncclResult_t first_ = ncclSuccess;
};

// One collective call. Its functions enqueue NCCL calls on the stream.
class Call {
 public:
  Call(NcclGroup& group, const Operation& operation, ncclRedOp_t op)
      : group_(group),
        in_(operation.input),
        out_(operation.output),
        op_(op),
        uneven_(operation.uneven()),
        input_blocks_(InputBlocks(operation, group.size())),
        output_blocks_(OutputBlocks(operation, group.size())),
        root_(static_cast<int>(operation.root.value())),
        type_(NcclTypeOf(DTypeOf(operation))) {}

  void UseInput(ConstBuffer input) { in_ = input; }

  ncclResult_t AllReduce() {
    return ncclAllReduce(in_.data, out_.data, CountOf(in_), type_, op_, comm(),
                         stream());
  }
  ncclResult_t Reduce() {
    return ncclReduce(in_.data, out_.data, CountOf(in_), type_, op_, root_,
                      comm(), stream());
  }
  ncclResult_t Broadcast() {
    return ncclBroadcast(in_.data, out_.data, CountOf(out_), type_, root_,
                         comm(), stream());
  }
  ncclResult_t ReduceScatter();
  ncclResult_t AllGather();
  ncclResult_t Gather();
  ncclResult_t Scatter();
  ncclResult_t AllToAll();

 private:
  ncclComm_t comm() const { return group_.comm(); }
  cudaStream_t stream() const { return group_.stream(); }
  int size() const { return static_cast<int>(group_.size()); }
  bool is_root() const { return group_.rank() == Rank(root_); }

  ncclResult_t Send(ConstBuffer block, int peer) {
    if (block.count == 0) return ncclSuccess;
    return ncclSend(block.data, CountOf(block), type_, peer, comm(), stream());
  }
  ncclResult_t Receive(Buffer block, int peer) {
    if (block.count == 0) return ncclSuccess;
    return ncclRecv(block.data, CountOf(block), type_, peer, comm(), stream());
  }
  ConstBuffer InBlock(int r) const {
    return in_.Slice(input_blocks_.offset(r), input_blocks_.count(r));
  }
  Buffer OutBlock(int r) const {
    return out_.Slice(output_blocks_.offset(r), output_blocks_.count(r));
  }

  NcclGroup& group_;
  ConstBuffer in_;
  const Buffer out_;
  const ncclRedOp_t op_;
  const bool uneven_;
  const Blocks input_blocks_;
  const Blocks output_blocks_;
  const int root_;
  const ncclDataType_t type_;
};

ncclResult_t Call::ReduceScatter() {
  if (!uneven_) {
    return ncclReduceScatter(in_.data, out_.data, CountOf(out_), type_, op_,
                             comm(), stream());
  }
  Results results;
  for (int r = 0; r < size(); ++r) {
    const ConstBuffer block = InBlock(r);
    if (block.count == 0) continue;
    results += ncclReduce(block.data, out_.data, CountOf(block), type_, op_, r,
                          comm(), stream());
  }
  return results.first();
}

ncclResult_t Call::AllGather() {
  if (!uneven_) {
    return ncclAllGather(in_.data, out_.data, CountOf(in_), type_, comm(),
                         stream());
  }
  Results results;
  for (int r = 0; r < size(); ++r) {
    const Buffer block = OutBlock(r);
    if (block.count == 0) continue;
    results += ncclBroadcast(in_.data, block.data, CountOf(block), type_, r,
                             comm(), stream());
  }
  return results.first();
}

ncclResult_t Call::Gather() {
  Results results;
  const bool in_place =
      is_root() && in_.data == out_.Slice(in_.count * root_, 0).data;
  if (!in_place) results += Send(in_, root_);
  for (int r = 0; is_root() && r < size(); ++r) {
    if (in_place && r == root_) continue;
    results += Receive(out_.Slice(in_.count * r, in_.count), r);
  }
  return results.first();
}

ncclResult_t Call::Scatter() {
  Results results;
  const bool in_place =
      is_root() && out_.data == in_.Slice(out_.count * root_, 0).data;
  for (int r = 0; is_root() && r < size(); ++r) {
    if (in_place && r == root_) continue;
    results += Send(in_.Slice(out_.count * r, out_.count), r);
  }
  if (!in_place) results += Receive(out_, root_);
  return results.first();
}

ncclResult_t Call::AllToAll() {
  Results results;
  for (int r = 0; r < size(); ++r) {
    results += Send(InBlock(r), r);
    results += Receive(OutBlock(r), r);
  }
  return results.first();
}

using Enqueue = ncclResult_t (Call::*)();

Enqueue EnqueueOf(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduce:
      return &Call::AllReduce;
    case OpKind::kReduce:
      return &Call::Reduce;
    case OpKind::kReduceScatter:
      return &Call::ReduceScatter;
    case OpKind::kAllGather:
      return &Call::AllGather;
    case OpKind::kBroadcast:
      return &Call::Broadcast;
    case OpKind::kGather:
      return &Call::Gather;
    case OpKind::kScatter:
      return &Call::Scatter;
    case OpKind::kAllToAll:
      return &Call::AllToAll;
    default:
      return nullptr;
  }
}

// All ranks execute it, or none.
absl::Status Barrier(NcclGroup& group, OperationContext& context) {
  TESSERA_ASSIGN_OR_RETURN(void* const word, group.control().Reserve(64));
  return group.Run("ncclAllReduce (barrier)", context, [&] {
    return ncclAllReduce(word, word, 1, ncclUint8, ncclMax, group.comm(),
                         group.stream());
  });
}

absl::Status ExchangeSignatures(NcclGroup& group, OperationContext& context) {
  const auto n = static_cast<size_t>(group.size());
  const auto me = static_cast<size_t>(group.rank().value());
  std::vector<Signature> all(n, context.signature());
  TESSERA_ASSIGN_OR_RETURN(void* const device,
                           group.control().Reserve(n * sizeof(Signature)));
  auto* const place = static_cast<std::byte*>(device) + me * sizeof(Signature);
  TESSERA_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(place, &all[me], sizeof(Signature),
                                 cudaMemcpyHostToDevice, group.stream()),
                 "cudaMemcpyAsync"));
  TESSERA_RETURN_IF_ERROR(group.Run("ncclAllGather (signatures)", context, [&] {
    return ncclAllGather(place, device, sizeof(Signature), ncclUint8,
                         group.comm(), group.stream());
  }));
  TESSERA_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(all.data(), device, n * sizeof(Signature),
                                 cudaMemcpyDeviceToHost, group.stream()),
                 "cudaMemcpyAsync"));
  TESSERA_RETURN_IF_ERROR(group.AwaitStream("cudaMemcpyAsync", context));
  return CheckSignatures(all, group.rank());
}

// An in-place all_to_all reads from a copy.
absl::StatusOr<ConstBuffer> CopyOf(NcclGroup& group, ConstBuffer input) {
  const auto bytes = static_cast<size_t>(input.bytes());
  TESSERA_ASSIGN_OR_RETURN(void* const copy, group.scratch().Reserve(bytes));
  TESSERA_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(copy, input.data, bytes,
                                 cudaMemcpyDeviceToDevice, group.stream()),
                 "cudaMemcpyAsync"));
  return ConstBuffer(copy, input.count, input.dtype);
}

// Owns NCCL's operator for a scaled sum.
class Operator {
 public:
  Operator(NcclGroup& group, const Reduction& reduction, DType dtype)
      : group_(group), op_(NcclOpOf(reduction.op)) {
    if (!ScalesInput(reduction)) return;
    std::array<std::byte, 8> scalar = ScalarOf(dtype, reduction.scale);
    result_ = ncclRedOpCreatePreMulSum(&op_, scalar.data(), NcclTypeOf(dtype),
                                       ncclScalarHostImmediate, group.comm());
    made_ = result_ == ncclSuccess;
  }
  ~Operator() {
    if (made_ && group_.comm() != nullptr) ncclRedOpDestroy(op_, group_.comm());
  }
  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;

  ncclRedOp_t op() const { return op_; }
  absl::Status status() const {
    return NcclStatus(result_, "ncclRedOpCreatePreMulSum");
  }

 private:
  NcclGroup& group_;
  ncclRedOp_t op_;
  ncclResult_t result_ = ncclSuccess;
  bool made_ = false;
};

absl::Status RunNcclCollective(NcclGroup& group, const Operation& operation,
                               OperationContext& context) {
  TESSERA_RETURN_IF_ERROR(group.failure().status());
  context.Enter(Phase::kEntering);
  TESSERA_RETURN_IF_ERROR(
      CudaStatus(cudaSetDevice(*group.options().device), "cudaSetDevice"));
  if (group.options().check_signatures) {
    TESSERA_RETURN_IF_ERROR(ExchangeSignatures(group, context));
  }
  if (operation.kind == OpKind::kBarrier) return Barrier(group, context);
  const Enqueue enqueue = EnqueueOf(operation.kind);
  if (enqueue == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(OpKindName(operation.kind), " is not a collective"));
  }
  // All ranks agree that there is nothing to move.
  if (MessageCount(operation, group.size()) == 0 &&
      (operation.kind != OpKind::kAllToAll || !operation.uneven())) {
    return absl::OkStatus();
  }
  const Operator op(group, operation.reduction, DTypeOf(operation));
  TESSERA_RETURN_IF_ERROR(op.status());
  Call call(group, operation, op.op());
  if (operation.kind == OpKind::kAllToAll && operation.input.count > 0 &&
      operation.input.data == operation.output.data) {
    TESSERA_ASSIGN_OR_RETURN(const ConstBuffer copy,
                             CopyOf(group, operation.input));
    call.UseInput(copy);
  }
  return group.Run(std::string(OpKindName(operation.kind)).c_str(), context,
                   [&] { return (call.*enqueue)(); });
}

// Device memory; cudaMalloc aligns it to 256.
class NcclMemory : public SharedMemory {
 public:
  absl::Status Allocate(int64_t bytes) {
    TESSERA_ASSIGN_OR_RETURN(void* const data,
                             memory_.Reserve(static_cast<size_t>(bytes)));
    bytes_ = {static_cast<std::byte*>(data), static_cast<size_t>(bytes)};
    return absl::OkStatus();
  }
  std::span<std::byte> bytes() const override { return bytes_; }

 private:
  DeviceMemory memory_;
  std::span<std::byte> bytes_;
};

class NcclEngine : public Engine {
 public:
  explicit NcclEngine(std::shared_ptr<NcclGroup> group)
      : group_(std::move(group)) {}

  std::string_view name() const override { return "nccl"; }
  Rank rank() const override { return group_->rank(); }
  int64_t size() const override { return group_->size(); }
  bool Implements(OpKind kind) const override { return IsCollective(kind); }

  absl::Status Run(const Operation& operation,
                   OperationContext& context) override {
    return RunNcclCollective(*group_, operation, context);
  }

  Transport* transport() override { return nullptr; }

  absl::StatusOr<std::unique_ptr<Engine>> CreateSubgroup(
      std::span<const Rank> members, uint32_t group,
      int64_t deadline) override {
    TESSERA_ASSIGN_OR_RETURN(auto subgroup,
                             group_->Subgroup(members, group, deadline));
    return std::make_unique<NcclEngine>(std::move(subgroup));
  }

  absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateShared(
      int64_t bytes) override {
    if (bytes < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "nccl: cannot allocate ", bytes, " bytes; use at least 0"));
    }
    TESSERA_RETURN_IF_ERROR(
        CudaStatus(cudaSetDevice(*group_->options().device), "cudaSetDevice"));
    auto memory = std::make_unique<NcclMemory>();
    TESSERA_RETURN_IF_ERROR(memory->Allocate(bytes));
    return memory;
  }

  void Abort(const absl::Status& reason) override { group_->Abort(reason); }

  std::vector<PeerReport> Peers() const override {
    return group_->peers().reports();
  }

 private:
  const std::shared_ptr<NcclGroup> group_;
};

absl::Status Validate(const NcclOptions& options) {
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("nccl: timeout is ", absl::FormatDuration(options.timeout),
                     "; it must be more than 0"));
  }
  constexpr size_t kMaxNameBytes = 64;
  if (options.name.empty() || options.name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("nccl: the name has ", options.name.size(),
                     " bytes; use 1 to ", kMaxNameBytes));
  }
  int devices = 0;
  TESSERA_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceCount(&devices), "cudaGetDeviceCount"),
      Annotate(_, "nccl"));
  const int device = options.device.value_or(0);
  if (device >= 0 && device < devices) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("nccl: device ", device, " of ", devices,
                   " GPUs; devices are 0 to ", devices - 1));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateNcclEngine(
    Store& store, const NcclOptions& options) {
  TESSERA_RETURN_IF_ERROR(Validate(options));
  const int64_t deadline =
      MonotonicNanos() + absl::ToInt64Nanoseconds(options.timeout);
  std::vector<Rank> members;
  for (int64_t r = 0; r < store.size(); ++r) members.push_back(Rank(r));
  TESSERA_ASSIGN_OR_RETURN(
      auto group, NcclGroup::Connect(store, std::move(members), options.name,
                                     options, deadline));
  return std::make_unique<NcclEngine>(std::move(group));
}

}  // namespace tessera::collectives
