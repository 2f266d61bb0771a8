#include "collectives/nccl/nccl_calls.h"

#include <array>

#include "collectives/engine/library_engine.h"

namespace tessera::collectives {
namespace {

size_t CountOf(ConstBuffer buffer) { return static_cast<size_t>(buffer.count); }

// Keeps the first error; otherwise the result is kInProgress if any call
// returned it.
class Results {
 public:
  void operator+=(NcclResult result) {
    if (first_ == NcclResult::kSuccess || first_ == NcclResult::kInProgress) {
      if (result != NcclResult::kSuccess) first_ = result;
    }
  }
  NcclResult first() const { return first_; }

 private:
  NcclResult first_ = NcclResult::kSuccess;
};

class Call {
 public:
  Call(const NcclRank& rank, const Operation& operation, NcclOp op)
      : api_(rank.api),
        rank_(rank),
        in_(operation.input),
        out_(operation.output),
        op_(op),
        uneven_(operation.uneven()),
        input_blocks_(InputBlocks(operation, rank.size)),
        output_blocks_(OutputBlocks(operation, rank.size)),
        root_(static_cast<int>(operation.root.value())),
        type_(NcclTypeOf(DTypeOf(operation))) {}

  NcclResult Enqueue(OpKind kind, void* word);

 private:
  NcclResult ReduceScatter();
  NcclResult AllGather();
  NcclResult Gather();
  NcclResult Scatter();
  NcclResult AllToAll();

  int size() const { return static_cast<int>(rank_.size); }
  bool is_root() const { return rank_.rank == root_; }

  NcclResult Send(ConstBuffer block, int peer) {
    if (block.count == 0) return NcclResult::kSuccess;
    return api_.Send(block.data, CountOf(block), type_, peer, rank_.comm,
                     rank_.stream);
  }
  NcclResult Receive(Buffer block, int peer) {
    if (block.count == 0) return NcclResult::kSuccess;
    return api_.Recv(block.data, CountOf(block), type_, peer, rank_.comm,
                     rank_.stream);
  }
  ConstBuffer InBlock(int r) const {
    return in_.Slice(input_blocks_.offset(r), input_blocks_.count(r));
  }
  Buffer OutBlock(int r) const {
    return out_.Slice(output_blocks_.offset(r), output_blocks_.count(r));
  }

  const NcclApi& api_;
  const NcclRank& rank_;
  const ConstBuffer in_;
  const Buffer out_;
  const NcclOp op_;
  const bool uneven_;
  const Blocks input_blocks_;
  const Blocks output_blocks_;
  const int root_;
  const NcclType type_;
};

NcclResult Call::Enqueue(OpKind kind, void* word) {
  switch (kind) {
    case OpKind::kAllReduce:
      return api_.AllReduce(in_.data, out_.data, CountOf(in_), type_, op_,
                            rank_.comm, rank_.stream);
    case OpKind::kReduce:
      return api_.Reduce(in_.data, out_.data, CountOf(in_), type_, op_, root_,
                         rank_.comm, rank_.stream);
    case OpKind::kBroadcast:
      return api_.Broadcast(in_.data, out_.data, CountOf(out_), type_, root_,
                            rank_.comm, rank_.stream);
    case OpKind::kBarrier:
      return api_.AllReduce(word, word, 1, NcclType::kUint8, NcclOp::kMax,
                            rank_.comm, rank_.stream);
    case OpKind::kReduceScatter:
      return ReduceScatter();
    case OpKind::kAllGather:
      return AllGather();
    case OpKind::kGather:
      return Gather();
    case OpKind::kScatter:
      return Scatter();
    case OpKind::kAllToAll:
      return AllToAll();
    default:
      return NcclResult::kInvalidArgument;
  }
}

NcclResult Call::ReduceScatter() {
  if (!uneven_) {
    return api_.ReduceScatter(in_.data, out_.data, CountOf(out_), type_, op_,
                              rank_.comm, rank_.stream);
  }
  Results results;
  for (int r = 0; r < size(); ++r) {
    const ConstBuffer block = InBlock(r);
    if (block.count == 0) continue;
    results += api_.Reduce(block.data, out_.data, CountOf(block), type_, op_, r,
                           rank_.comm, rank_.stream);
  }
  return results.first();
}

NcclResult Call::AllGather() {
  if (!uneven_) {
    return api_.AllGather(in_.data, out_.data, CountOf(in_), type_, rank_.comm,
                          rank_.stream);
  }
  Results results;
  for (int r = 0; r < size(); ++r) {
    const Buffer block = OutBlock(r);
    if (block.count == 0) continue;
    results += api_.Broadcast(in_.data, block.data, CountOf(block), type_, r,
                              rank_.comm, rank_.stream);
  }
  return results.first();
}

NcclResult Call::Gather() {
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

NcclResult Call::Scatter() {
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

NcclResult Call::AllToAll() {
  Results results;
  for (int r = 0; r < size(); ++r) {
    results += Send(InBlock(r), r);
    results += Receive(OutBlock(r), r);
  }
  return results.first();
}

}  // namespace

NcclResult EnqueueCollective(const NcclRank& rank, const Operation& operation,
                             void* word) {
  NcclOp op = NcclOpOf(operation.reduction.op);
  const bool scales =
      Reduces(operation.kind) && ScalesInput(operation.reduction);
  if (scales) {
    const DType dtype = DTypeOf(operation);
    std::array<std::byte, 8> scalar =
        ScalarOf(dtype, operation.reduction.scale);
    const NcclResult created = rank.api.RedOpCreatePreMulSum(
        &op, scalar.data(), NcclTypeOf(dtype), rank.comm);
    if (created != NcclResult::kSuccess) return created;
  }
  const NcclResult result =
      Call(rank, operation, op).Enqueue(operation.kind, word);
  // NCCL has copied the factor into the call.
  if (scales) rank.api.RedOpDestroy(op, rank.comm);
  return result;
}

}  // namespace tessera::collectives
