// The module tessera_torch._C: a torch.distributed backend over Communicator,
// with shared memory within a host and torch's gloo between hosts.
//
// Synchronous collectives run on the caller's thread; asynchronous ones run in
// order on threads of the group, which are created when first needed
// (GroupLane). Messages need no thread while a caller waits for them
// (engine/tagged_messages.h).
//
// Supports torch 2.12 to 2.15. The methods have names that exist in all of
// these releases; newer releases forward their new names to them.
#include "tools/python/torch/backend.h"

#include <ATen/ATen.h>
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "tools/python/torch/group_lane.h"
#include "tools/python/torch/process_group.h"
#include "tools/python/torch/torch_network.h"
#include "tools/python/torch/torch_store.h"

namespace tessera::torch_backend {

void Throw(const absl::Status& status, absl::Duration timeout) {
  const std::string text =
      absl::IsDeadlineExceeded(status)
          ? absl::StrCat("tessera: Timed out waiting ",
                         absl::ToInt64Milliseconds(timeout),
                         "ms: ", status.message())
          : absl::StrCat("tessera: ", status.ToString());
  if (absl::IsInvalidArgument(status)) throw std::invalid_argument(text);
  TORCH_CHECK_WITH(DistBackendError, false, text);
}

namespace {

namespace py = pybind11;
using c10d::OpType;
using collectives::Buffer;
using collectives::CallOptions;
using collectives::Communicator;
using collectives::Operation;
using collectives::Rank;
using collectives::Reduction;
using std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

// The type in which a tensor is reduced. bool is reduced as bytes.
DType ReducedType(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return DType::kF64;
    case at::kFloat:
      return DType::kF32;
    case at::kHalf:
      return DType::kF16;
    case at::kBFloat16:
      return DType::kBF16;
    case at::kLong:
      return DType::kI64;
    case at::kInt:
      return DType::kI32;
    case at::kChar:
      return DType::kI8;
    case at::kByte:
    case at::kBool:
      return DType::kU8;
    default:
      throw std::runtime_error(absl::StrCat(
          "tessera: Invalid scalar type ", c10::toString(type),
          "; float64, float32, float16, bfloat16, int64, int32, int8, uint8, "
          "bool, complex64 and complex128 can be reduced"));
  }
}

Buffer Numbers(const at::Tensor& tensor) {
  return {tensor.data_ptr(), tensor.numel(), ReducedType(tensor.scalar_type())};
}
Buffer Bytes(const at::Tensor& tensor) {
  return {tensor.data_ptr(), static_cast<int64_t>(tensor.nbytes()), DType::kU8};
}
Rank RankOf(int64_t rank) { return Rank(rank); }

Reduction ReductionOf(const c10d::ReduceOp& op, const at::Tensor& tensor) {
  const bool is_sum = op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG;
  Require(!tensor.is_complex() || is_sum,
          "complex numbers are reduced by SUM and AVG only");
  const bool is_integer =
      at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  switch (op) {
    case c10d::ReduceOp::SUM:
      return Reduction::Sum();
    case c10d::ReduceOp::AVG:
      return Reduction::Average();
    case c10d::ReduceOp::PRODUCT:
      return Reduction::Product();
    case c10d::ReduceOp::MIN:
      return Reduction::Min();
    case c10d::ReduceOp::MAX:
      return Reduction::Max();
    case c10d::ReduceOp::BAND:
    case c10d::ReduceOp::BOR:
    case c10d::ReduceOp::BXOR:
      TORCH_CHECK(is_integer, "Cannot use ReduceOp.B* with non-integral dtype");
      return op == c10d::ReduceOp::BAND  ? Reduction::BitAnd()
             : op == c10d::ReduceOp::BOR ? Reduction::BitOr()
                                         : Reduction::BitXor();
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* const factor =
          static_cast<const c10d::NCCLPreMulSumSupplement*>(
              op.supplement_.get());
      return Reduction::ScaledSum(factor->tensor_factor.defined()
                                      ? factor->tensor_factor.item<double>()
                                      : factor->double_factor);
    }
    default:
      throw std::runtime_error("tessera: this ReduceOp is not supported");
  }
}

void CheckTensors(const Tensors& tensors) {
  Require(!tensors.empty(), "requires a non-empty list of tensors");
  for (const at::Tensor& tensor : tensors) {
    Require(tensor.is_cpu(), "a tensor is on ", tensor.device().str(),
            "; only tensors of the CPU are supported");
    Require(tensor.layout() == at::kStrided,
            "a tensor is not dense; only all_reduce takes sparse ones");
  }
}

const at::Tensor& Single(const Tensors& tensors) {
  Require(tensors.size() == 1, "requires a single tensor, given are ",
          tensors.size());
  CheckTensors(tensors);
  return tensors.front();
}

at::Tensor Flat(const Tensors& tensors) {
  Tensors rows;
  for (const at::Tensor& tensor : tensors) {
    rows.push_back(tensor.contiguous().view(-1));
  }
  return at::cat(rows);
}

at::Tensor AsReal(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

// Calls the function with the tensor, or with a dense copy whose result is
// copied back.
template <typename Function>
void OnDense(const at::Tensor& tensor, const Function& function) {
  const at::Tensor dense = tensor.contiguous();
  function(dense);
  if (!dense.is_same(tensor)) tensor.copy_(dense);
}

// Copies consecutive elements of a flat tensor into others.
void CopyParts(const at::Tensor& flat, const Tensors& parts) {
  int64_t begin = 0;
  for (const at::Tensor& part : parts) {
    part.copy_(flat.narrow(0, begin, part.numel()).view(part.sizes()));
    begin += part.numel();
  }
}

// The name of a group in error messages.
std::string NameOf(const std::string& group) {
  return group.empty() ? "world" : absl::StrCat("group ", group);
}

// Throws in a process that was forked after the group was made.
void CheckFork(const ForkGuard& guard) {
  const absl::Status status = guard.Check();
  TORCH_CHECK_WITH(DistBackendError, status.ok(),
                   "tessera: ", std::string(status.message()));
}

// A collective.
class CollectiveWork final : public c10d::Work {
 public:
  // `title` names the rank, the group and the operation.
  CollectiveWork(int rank, OpType type, Tensors outputs, uint64_t sequence,
                 const char* profiled, const Tensors& inputs, std::string title,
                 std::shared_ptr<GroupLane> lane)
      : Work(rank, type, profiled,
             inputs.empty() ? std::nullopt : std::optional<Tensors>(inputs)),
        outputs_(std::move(outputs)),
        sequence_(sequence),
        title_(std::move(title)),
        lane_(std::move(lane)) {}
  ~CollectiveWork() override { fork_guard_.Free(lane_); }

  Tensors result() override { return outputs_; }
  uint64_t getSequencenumber() const override { return sequence_; }

  // Without a timeout it ends with the collective, which has a deadline.
  bool wait(milliseconds timeout) override {
    CheckFork(fork_guard_);
    if (!isCompleted()) {
      lane_->BeforeWait(number_);
      std::unique_lock lock(mutex_);
      const auto ended = [this] { return completed_; };
      if (timeout == kNoTimeout) {
        cv_.wait(lock, ended);
      } else if (!cv_.wait_for(lock, timeout, ended)) {
        Throw(absl::DeadlineExceededError(
                  absl::StrCat(title_, " has not ended; it continues")),
              absl::FromChrono(timeout));
      }
    }
    return Work::wait(kNoTimeout);
  }

  // Creates the future on the first call, because most works never need one.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const std::lock_guard lock(future_mutex_);
    if (future_) return future_;
    future_ = c10::make_intrusive<at::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()));
    future_taken_ = GroupLane::Now();
    if (ended_) {
      EndFuture();
    } else {
      // The first callback: the work is complete before others run, which may
      // wait for it, and not before the future is.
      future_->addCallback([this](at::ivalue::Future&) { finish(error_); });
    }
    return future_;
  }

  // The launch number, if the collective runs on a thread of the lane.
  void SetNumber(uint64_t number) { number_ = number; }

  // Called once. Returns the callbacks to run, if a future was taken.
  GroupLane::Callbacks End(std::exception_ptr error) {
    const std::lock_guard lock(future_mutex_);
    ended_ = true;
    error_ = error;
    if (future_) {
      return {[work = c10::intrusive_ptr<
                   CollectiveWork>::unsafe_reclaim_from_nonowning(this)] {
                work->EndFuture();
              },
              future_taken_};
    }
    finish(error);
    return {};
  }

 private:
  void EndFuture() {
    if (error_) {
      future_->setError(error_);
    } else {
      future_->markCompleted(at::IValue(outputs_));
    }
  }

  const ForkGuard fork_guard_;
  const Tensors outputs_;
  const uint64_t sequence_;
  const std::string title_;
  std::shared_ptr<GroupLane> lane_;
  std::atomic<uint64_t> number_ = 0;
  std::mutex future_mutex_;
  bool ended_ = false;
  std::exception_ptr error_;
  uint64_t future_taken_ = 0;
  c10::intrusive_ptr<at::ivalue::Future> future_;
};

// Keeps the tensors of pending messages whose works were destroyed.
class AbandonedMessages {
 public:
  void Add(collectives::Work work, at::Tensor tensor) {
    const std::lock_guard lock(mutex_);
    std::erase_if(messages_, [](const auto& message) {
      const absl::StatusOr<bool> done = message.first.Test();
      return !done.ok() || *done;
    });
    messages_.emplace_back(std::move(work), std::move(tensor));
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<collectives::Work, at::Tensor>> messages_;
};

// A group, and the tensors that must outlive it.
struct Group {
  AbandonedMessages abandoned;
  JoinedGroup joined;
};

// A message. Like gloo's, it has no future.
class MessageWork final : public c10d::Work {
 public:
  MessageWork(OpType type, at::Tensor tensor, at::Tensor dense,
              collectives::Work work, uint64_t sequence, absl::Duration timeout,
              std::shared_ptr<Group> group)
      : Work(-1, type),
        tensor_(std::move(tensor)),
        dense_(std::move(dense)),
        work_(std::move(work)),
        sequence_(sequence),
        timeout_(timeout),
        group_(std::move(group)) {}

  ~MessageWork() override {
    if (fork_guard_.IsForked()) {
      new collectives::Work(std::move(work_));
    } else if (!isCompleted()) {
      group_->abandoned.Add(std::move(work_), dense_);
    }
    fork_guard_.Free(group_);
  }

  bool isCompleted() override {
    const absl::StatusOr<bool> done = work_.Test();
    return !done.ok() || *done;
  }
  int sourceRank() const override {
    const std::optional<Rank> source = work_.source();
    return source ? static_cast<int>(source->value()) : -1;
  }
  uint64_t getSequencenumber() const override { return sequence_; }

  bool wait(milliseconds timeout) override {
    CheckFork(fork_guard_);
    const absl::Status status = timeout.count() > 0
                                    ? work_.WaitFor(absl::FromChrono(timeout))
                                    : work_.Wait();
    std::exception_ptr error;
    try {
      if (!status.ok()) {
        const int64_t rank = group_->joined.communicator->rank().value();
        Throw(Annotate(status, absl::StrCat("rank ", rank)),
              timeout.count() > 0 ? absl::FromChrono(timeout) : timeout_);
      }
      if (!dense_.is_same(tensor_)) tensor_.copy_(dense_);
    } catch (...) {
      error = std::current_exception();
    }
    finishAndThrow(error);
    return true;
  }
  void abort() override {
    group_->joined.communicator->Abort("a message was aborted");
  }

 private:
  const ForkGuard fork_guard_;
  const at::Tensor tensor_;
  const at::Tensor dense_;
  collectives::Work work_;
  const uint64_t sequence_;
  const absl::Duration timeout_;
  std::shared_ptr<Group> group_;
};

class TesseraBackend final : public c10d::Backend {
 public:
  // `prefix` is the name of the backend in profiles.
  TesseraBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                 milliseconds timeout, JoinedGroup group, std::string prefix)
      : Backend(rank, size),
        store_(std::move(store)),
        timeout_(timeout),
        group_(std::make_shared<Group>()),
        prefix_(std::move(prefix)) {
    group_->joined = std::move(group);
    const std::lock_guard lock(live_mutex_);
    live_.insert(this);
  }

  // Releases the interpreter's lock, because jobs of the lane may need it.
  ~TesseraBackend() override {
    std::optional<py::gil_scoped_release> release;
    if (Py_IsInitialized() && PyGILState_Check()) release.emplace();
    if (!fork_guard_.IsForked()) {
      {
        const std::lock_guard lock(live_mutex_);
        live_.erase(this);
      }
      EndJobs(std::chrono::steady_clock::now() + kGrace);
      lane_->Close();
    }
    fork_guard_.Free(lane_);
    fork_guard_.Free(group_);
  }

  // Called at the interpreter's exit. Aborts operations that do not end within
  // a few seconds, so that no thread of a group waits for other ranks.
  static void EndAllJobs() {
    const auto deadline = std::chrono::steady_clock::now() + kGrace;
    const std::lock_guard lock(live_mutex_);
    for (TesseraBackend* const backend : live_) {
      if (!backend->fork_guard_.IsForked()) backend->EndJobs(deadline);
    }
  }

  // Throws if this process was forked after the group was made.
  Communicator& communicator() const {
    CheckFork(fork_guard_);
    return *group_->joined.communicator;
  }
  std::shared_ptr<Communicator> shared_communicator() const {
    communicator();
    return group_->joined.communicator;
  }

  const std::string getBackendName() const override { return "tessera"; }
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setTimeout(milliseconds timeout) override { timeout_ = timeout; }
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<Options>("tessera", timeout_.load());
  }
  void abort() override {
    communicator().Abort("the process group was aborted");
  }
  void shutdown() override {}
  void enableCollectivesTiming() override {}  // Always enabled.

  c10::intrusive_ptr<Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const c10::intrusive_ptr<Options>& options) override {
    const auto at = std::find(ranks.begin(), ranks.end(), rank_);
    if (at == ranks.end()) return nullptr;
    std::vector<Rank> members;
    for (const int rank : ranks) members.push_back(RankOf(rank));
    auto group = communicator().Subgroup(
        members, options ? NameOf(options->group_name) : std::string(),
        absl::FromChrono(options ? options->timeout : timeout_.load()));
    if (!group.ok()) Throw(group.status(), GroupTimeout());
    return c10::make_intrusive<TesseraBackend>(
        store, static_cast<int>(at - ranks.begin()),
        static_cast<int>(ranks.size()),
        options ? options->timeout : timeout_.load(),
        JoinedGroup{group_->joined.store, nullptr, *std::move(group)}, prefix_);
  }

  WorkPointer allreduce(Tensors& tensors,
                        const c10d::AllreduceOptions& options) override {
    Require(tensors.size() == 1, "requires a single tensor, given are ",
            tensors.size());
    if (tensors.front().is_sparse()) return allreduce_sparse(tensors, options);
    const at::Tensor tensor = Single(tensors);
    const Reduction reduction = ReductionOf(options.reduceOp, tensor);
    return Launch(OpType::ALLREDUCE, tensors, tensors, options, "all_reduce",
                  [=, this](const CallOptions& call) {
                    AllReduce(tensor, reduction, call);
                  });
  }

  WorkPointer allreduce_coalesced(
      Tensors& tensors,
      const c10d::AllreduceCoalescedOptions& options) override {
    CheckTensors(tensors);
    for (const at::Tensor& tensor : tensors) {
      Require(tensor.scalar_type() == tensors.front().scalar_type(),
              "tensors that are reduced together must have one type");
    }
    const Reduction reduction = ReductionOf(options.reduceOp, tensors.front());
    return Launch(OpType::ALLREDUCE_COALESCED, tensors, tensors, options,
                  "all_reduce", [=, this](const CallOptions& call) {
                    const at::Tensor flat = Flat(tensors);
                    AllReduce(flat, reduction, call);
                    CopyParts(flat, tensors);
                  });
  }

  // Sums sparse tensors by gathering their indices and values.
  WorkPointer allreduce_sparse(Tensors& tensors,
                               const c10d::AllreduceOptions& options) override {
    Require(tensors.size() == 1 && tensors.front().is_sparse() &&
                tensors.front().is_cpu(),
            "requires a single sparse tensor of the CPU");
    Require(options.reduceOp == c10d::ReduceOp::SUM,
            "sparse tensors are reduced by SUM only");
    const at::Tensor tensor = tensors.front();
    return Launch(OpType::_ALLREDUCE_SPARSE, tensors, tensors, options,
                  "all_reduce", [=, this](const CallOptions& call) {
                    tensor.copy_(SumSparse(tensor.coalesce(), call));
                  });
  }

  WorkPointer broadcast(Tensors& tensors,
                        const c10d::BroadcastOptions& options) override {
    const at::Tensor tensor = Single(tensors);
    CheckRoot(options.rootRank);
    return Launch(OpType::BROADCAST, tensors, tensors, options, "broadcast",
                  [=, this, root = options.rootRank](const CallOptions& call) {
                    OnDense(tensor, [&](const at::Tensor& dense) {
                      Run(BroadcastOf(Bytes(dense), Bytes(dense), RankOf(root)),
                          call);
                    });
                  });
  }

  WorkPointer reduce(Tensors& tensors,
                     const c10d::ReduceOptions& options) override {
    const at::Tensor tensor = Single(tensors);
    CheckRoot(options.rootRank);
    const Reduction reduction = ReductionOf(options.reduceOp, tensor);
    return Launch(OpType::REDUCE, tensors, tensors, options, "reduce",
                  [=, this, root = options.rootRank](const CallOptions& call) {
                    OnDense(AsReal(tensor), [&](const at::Tensor& dense) {
                      Run(ReduceOf(Numbers(dense), Numbers(dense), reduction,
                                   RankOf(root)),
                          call);
                    });
                  });
  }

  WorkPointer allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override {
    const at::Tensor input = Single(inputs);
    Require(outputs.size() == 1, "requires a single list of outputs");
    CheckList(outputs.front(), input, "outputs");
    return Launch(OpType::ALLGATHER, inputs, outputs.front(), options,
                  "all_gather",
                  [=, this, parts = outputs.front()](const CallOptions& call) {
                    GatherParts(input, parts, call);
                  });
  }

  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options) override {
    Tensors outputs{output}, inputs{input};
    return GatherInto(OpType::_ALLGATHER_BASE, outputs, inputs, options);
  }
  WorkPointer allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::AllgatherOptions& options) override {
    return GatherInto(OpType::COALESCED, outputs, inputs, options);
  }
  WorkPointer allgather_coalesced(
      std::vector<Tensors>& outputs, Tensors& inputs,
      const c10d::AllgatherOptions& options) override {
    CheckTensors(inputs);
    Require(static_cast<int>(outputs.size()) == size_,
            "requires a list of outputs for each rank");
    Tensors all;
    for (const Tensors& list : outputs) {
      Require(list.size() == inputs.size(),
              "requires an output of each rank for each input");
      all.insert(all.end(), list.begin(), list.end());
    }
    return Launch(OpType::ALLGATHER_COALESCED, inputs, all, options,
                  "all_gather", [=, this](const CallOptions& call) {
                    for (size_t i = 0; i < inputs.size(); ++i) {
                      Tensors parts;
                      for (const Tensors& list : outputs) {
                        parts.push_back(list[i]);
                      }
                      GatherParts(inputs[i], parts, call);
                    }
                  });
  }

  WorkPointer gather(std::vector<Tensors>& outputs, Tensors& inputs,
                     const c10d::GatherOptions& options) override {
    const at::Tensor input = Single(inputs);
    CheckRoot(options.rootRank);
    const bool is_root = options.rootRank == rank_;
    Require(outputs.size() == (is_root ? 1u : 0u),
            is_root ? "the root of a gather requires a single list of outputs"
                    : "requires empty output on non-root ranks");
    const Tensors parts = is_root ? outputs.front() : Tensors();
    if (is_root) CheckList(parts, input, "outputs");
    return Launch(
        OpType::GATHER, inputs, parts, options, "gather",
        [=, this, root = options.rootRank](const CallOptions& call) {
          const at::Tensor all =
              at::empty({is_root ? size_ * input.numel() : 0}, input.options());
          Run(GatherOf(Bytes(input.contiguous()), Bytes(all), RankOf(root)),
              call);
          CopyParts(all, parts);
        });
  }

  WorkPointer scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                      const c10d::ScatterOptions& options) override {
    const at::Tensor output = Single(outputs);
    CheckRoot(options.rootRank);
    const bool is_root = options.rootRank == rank_;
    Require(inputs.size() == (is_root ? 1u : 0u),
            is_root ? "the root of a scatter requires a single list of inputs"
                    : "requires empty input on non-root ranks");
    const Tensors parts = is_root ? inputs.front() : Tensors();
    if (is_root) CheckList(parts, output, "inputs");
    return Launch(
        OpType::SCATTER, parts, outputs, options, "scatter",
        [=, this, root = options.rootRank](const CallOptions& call) {
          const at::Tensor all =
              is_root ? Flat(parts) : at::empty({0}, output.options());
          OnDense(output, [&](const at::Tensor& dense) {
            Run(ScatterOf(Bytes(all), Bytes(dense), RankOf(root)), call);
          });
        });
  }

  WorkPointer reduce_scatter(
      Tensors& outputs, std::vector<Tensors>& inputs,
      const c10d::ReduceScatterOptions& options) override {
    const at::Tensor output = Single(outputs);
    Require(inputs.size() == 1, "requires a single list of inputs");
    const Tensors& parts = inputs.front();
    CheckTensors(parts);
    Require(static_cast<int>(parts.size()) == size_, "requires ", size_,
            " inputs, one of each rank; given are ", parts.size());
    std::vector<int64_t> counts;
    for (const at::Tensor& part : parts) {
      counts.push_back(AsReal(part).numel());
    }
    const Reduction reduction = ReductionOf(options.reduceOp, output);
    return Launch(OpType::REDUCE_SCATTER, parts, outputs, options,
                  "reduce_scatter", [=, this](const CallOptions& call) {
                    ReduceParts(Flat(parts), output, counts, reduction, call);
                  });
  }

  WorkPointer _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input,
      const c10d::ReduceScatterOptions& options) override {
    Tensors outputs{output}, inputs{input};
    return ReduceScatterInto(OpType::_REDUCE_SCATTER_BASE, outputs, inputs,
                             options);
  }
  WorkPointer reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs,
      const c10d::ReduceScatterOptions& options) override {
    return ReduceScatterInto(OpType::COALESCED, outputs, inputs, options);
  }

  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input,
                            std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits,
                            const c10d::AllToAllOptions& options) override {
    Tensors outputs{output}, inputs{input};
    CheckTensors(outputs);
    CheckTensors(inputs);
    c10d::checkSplitSizes(input_splits, input, size_);
    c10d::checkSplitSizes(output_splits, output, size_);
    return Launch(OpType::ALLTOALL_BASE, inputs, outputs, options, "all_to_all",
                  [=, this](const CallOptions& call) {
                    OnDense(output, [&](const at::Tensor& dense) {
                      Run(AllToAllOf(Bytes(input.contiguous()), Bytes(dense),
                                     BytesOfSplits(input, input_splits),
                                     BytesOfSplits(dense, output_splits)),
                          call);
                    });
                  });
  }

  WorkPointer alltoall(Tensors& outputs, Tensors& inputs,
                       const c10d::AllToAllOptions& options) override {
    CheckTensors(outputs);
    CheckTensors(inputs);
    Require(static_cast<int>(outputs.size()) == size_ &&
                static_cast<int>(inputs.size()) == size_,
            "requires ", size_, " inputs and outputs; given are ",
            inputs.size(), " and ", outputs.size());
    return Launch(
        OpType::ALLTOALL, inputs, outputs, options, "all_to_all",
        [=, this](const CallOptions& call) {
          std::vector<int64_t> sent, received;
          int64_t count = 0;
          for (const at::Tensor& t : inputs) sent.push_back(t.nbytes());
          for (const at::Tensor& t : outputs) {
            received.push_back(t.nbytes());
            count += t.numel();
          }
          const at::Tensor all = at::empty({count}, outputs.front().options());
          Run(AllToAllOf(Bytes(Flat(inputs)), Bytes(all), sent, received),
              call);
          CopyParts(all, outputs);
        });
  }

  WorkPointer barrier(const c10d::BarrierOptions& options) override {
    return Launch(OpType::BARRIER, {}, {}, options, "barrier",
                  [this](const CallOptions& call) {
                    Run(collectives::BarrierOf(), call);
                  });
  }

  // Uses the store, so that a late rank does not break the group.
  void monitoredBarrier(const c10d::BarrierOptions& options,
                        bool wait_all_ranks) override {
    const milliseconds timeout = options.timeout == c10d::kUnsetTimeout
                                     ? timeout_.load()
                                     : options.timeout;
    const std::string number = std::to_string(++monitored_);
    const auto key = [&](std::string_view what, int rank) {
      return absl::StrCat("monitored/", what, "/", number, "/", rank);
    };
    const absl::Time deadline = absl::Now() + absl::FromChrono(timeout);
    if (rank_ != 0) {
      store_->set(key("in", rank_), "1");
      std::string answer = "no answer";
      if (Await(*store_, {key("out", 0)}, deadline + absl::Milliseconds(500))) {
        answer = store_->get_to_str(key("out", 0));
      }
      TORCH_CHECK(
          answer.empty(), "[Rank ", rank_, "]: Rank ", rank_,
          " successfully reached monitoredBarrier, but received errors "
          "while waiting for send/recv from rank 0. Please check rank 0 "
          "logs for faulty rank. (",
          answer, ")");
      return;
    }
    std::vector<int> late;
    for (int rank = 1; rank < size_; ++rank) {
      TORCH_CHECK(timeout.count() > 0,
                  "[Rank 0]: Rank 0 timed out in "
                  "monitoredBarrier after ",
                  timeout.count(), " ms.");
      if (Await(*store_, {key("in", rank)}, deadline)) continue;
      late.push_back(rank);
      if (!wait_all_ranks) break;
    }
    std::string text;
    if (!late.empty()) {
      text = absl::StrCat(
          late.size() > 1 ? "Ranks " : "Rank ", absl::StrJoin(late, ", "),
          " failed to pass monitoredBarrier in ", timeout.count(), " ms");
    }
    store_->set(key("out", 0), text);
    TORCH_CHECK(text.empty(), "[Rank 0]: ", text);
  }

  WorkPointer send(Tensors& tensors, int to, int tag) override {
    const at::Tensor dense = Single(tensors).contiguous();
    return Message(OpType::SEND, dense, dense,
                   SendOf(Bytes(dense), RankOf(to), tag));
  }
  WorkPointer recv(Tensors& tensors, int from, int tag) override {
    return Receive(OpType::RECV, tensors, RankOf(from), tag);
  }
  WorkPointer recvAnysource(Tensors& tensors, int tag) override {
    return Receive(OpType::RECVANYSOURCE, tensors, collectives::kAnySource,
                   tag);
  }

  // All-reduces in place without creating a work, for callers that bypass c10d.
  void AllReduceNow(const at::Tensor& tensor, const c10d::ReduceOp& op) {
    CheckTensors({tensor});
    const Reduction reduction = ReductionOf(op, tensor);
    CheckFork(fork_guard_);
    TORCH_CHECK(lane_->TryEnter(),
                "tessera: asynchronous operations are under way; wait "
                "for them before tessera::all_reduce_");
    ++sequence_;
    CallOptions call;
    call.timeout = GroupTimeout();
    try {
      AllReduce(tensor, reduction, call);
    } catch (...) {
      lane_->Leave();
      throw;
    }
    lane_->Leave();
  }

 private:
  using Body = std::function<void(const CallOptions&)>;

  // The time that pending operations have to end when a group is destroyed.
  static constexpr std::chrono::seconds kGrace{3};

  void EndJobs(std::chrono::steady_clock::time_point deadline) {
    if (lane_->AwaitIdle(deadline)) return;
    group_->joined.communicator->Abort(
        "the process group was destroyed with operations under way");
    lane_->AwaitIdle(deadline + kGrace);
  }

  absl::Duration GroupTimeout() const {
    return absl::FromChrono(timeout_.load());
  }

  void CheckRoot(int64_t root) const {
    Require(root >= 0 && root < size_, "invalid root rank: ", root);
  }
  void CheckList(const Tensors& list, const at::Tensor& like,
                 std::string_view what) const {
    CheckTensors(list);
    Require(static_cast<int>(list.size()) == size_, "requires ", size_, " ",
            what, "; given are ", list.size());
    for (const at::Tensor& tensor : list) {
      Require(tensor.sizes() == like.sizes() &&
                  tensor.scalar_type() == like.scalar_type(),
              "invalid tensor size or type among the ", what,
              "; all must be like the rank's own tensor");
    }
  }
  static std::vector<int64_t> BytesOfSplits(
      const at::Tensor& tensor, const std::vector<int64_t>& splits) {
    std::vector<int64_t> bytes;
    const int64_t rows = tensor.size(0);
    const int64_t row =
        rows == 0 ? 0 : static_cast<int64_t>(tensor.nbytes()) / rows;
    for (const int64_t split : splits) bytes.push_back(split * row);
    return bytes;
  }

  void Run(const Operation& operation, const CallOptions& call) {
    const absl::Status status =
        group_->joined.communicator->Run(operation, call);
    if (!status.ok()) {
      Throw(Annotate(status, absl::StrCat("rank ", rank_)), *call.timeout);
    }
  }

  void AllReduce(const at::Tensor& tensor, const Reduction& reduction,
                 const CallOptions& call) {
    OnDense(AsReal(tensor), [&](const at::Tensor& dense) {
      Run(AllReduceOf(Numbers(dense), Numbers(dense), reduction), call);
    });
  }

  void GatherParts(const at::Tensor& input, const Tensors& parts,
                   const CallOptions& call) {
    const at::Tensor all = at::empty({size_ * input.numel()}, input.options());
    Run(AllGatherOf(Bytes(input.contiguous()), Bytes(all)), call);
    CopyParts(all, parts);
  }

  WorkPointer GatherInto(OpType type, const Tensors& outputs,
                         const Tensors& inputs,
                         const c10d::AllgatherOptions& options) {
    CheckPairs(outputs, inputs,
               [&](const at::Tensor& out, const at::Tensor& in) {
                 return out.numel() == in.numel() * size_;
               });
    return Launch(
        type, inputs, outputs, options, "all_gather",
        [=, this](const CallOptions& call) {
          for (size_t i = 0; i < inputs.size(); ++i) {
            OnDense(outputs[i], [&](const at::Tensor& dense) {
              Run(AllGatherOf(Bytes(inputs[i].contiguous()), Bytes(dense)),
                  call);
            });
          }
        });
  }

  void ReduceParts(const at::Tensor& input, const at::Tensor& output,
                   const std::vector<int64_t>& counts,
                   const Reduction& reduction, const CallOptions& call) {
    const at::Tensor real = AsReal(input);
    OnDense(AsReal(output), [&](const at::Tensor& dense) {
      Run(ReduceScatterOf(Numbers(real), Numbers(dense), reduction, counts),
          call);
    });
  }

  WorkPointer ReduceScatterInto(OpType type, const Tensors& outputs,
                                const Tensors& inputs,
                                const c10d::ReduceScatterOptions& options) {
    CheckPairs(outputs, inputs,
               [&](const at::Tensor& out, const at::Tensor& in) {
                 return in.numel() == out.numel() * size_;
               });
    const Reduction reduction = ReductionOf(options.reduceOp, inputs.front());
    return Launch(type, inputs, outputs, options, "reduce_scatter",
                  [=, this](const CallOptions& call) {
                    for (size_t i = 0; i < inputs.size(); ++i) {
                      ReduceParts(inputs[i].contiguous(), outputs[i], {},
                                  reduction, call);
                    }
                  });
  }

  template <typename Fits>
  void CheckPairs(const Tensors& outputs, const Tensors& inputs,
                  const Fits& fits) const {
    CheckTensors(outputs);
    CheckTensors(inputs);
    Require(outputs.size() == inputs.size(),
            "requires an output for each input");
    for (size_t i = 0; i < inputs.size(); ++i) {
      Require(outputs[i].scalar_type() == inputs[i].scalar_type(),
              "input and output must have the same type");
      Require(fits(outputs[i], inputs[i]),
              "the tensor of all ranks must have world size (", size_,
              ") times the elements of the other; given are an output of ",
              outputs[i].numel(), " and an input of ", inputs[i].numel());
    }
  }

  at::Tensor SumSparse(const at::Tensor& own, const CallOptions& call) {
    const int64_t dims = own.sparse_dim();
    const std::vector<int64_t> shape = own.sizes().vec();
    std::vector<int64_t> head = {own._nnz(), dims, own.dim()};
    std::vector<int64_t> heads(head.size() * static_cast<size_t>(size_));
    Run(AllGatherOf(collectives::ConstBuffer(std::span(std::as_const(head))),
                    Buffer(std::span(heads))),
        call);
    std::vector<int64_t> index_counts, value_counts;
    int64_t total = 0;
    const int64_t width =
        own._nnz() == 0 ? std::accumulate(shape.begin() + dims, shape.end(),
                                          int64_t{1}, std::multiplies<>())
                        : own._values().numel() / own._nnz();
    for (int rank = 0; rank < size_; ++rank) {
      const auto at = static_cast<size_t>(3 * rank);
      TORCH_CHECK(heads[at + 1] == dims && heads[at + 2] == own.dim(),
                  "tessera: sparse tensors differ in their dimensions: rank ",
                  rank, " has ", heads[at + 1], " sparse of ", heads[at + 2],
                  ", rank ", rank_, " has ", dims, " of ", own.dim());
      index_counts.push_back(heads[at] * dims);
      value_counts.push_back(heads[at] * width);
      total += heads[at];
    }
    const at::Tensor indices = own._indices().t().contiguous();
    const at::Tensor values = AsReal(own._values().contiguous());
    const int64_t parts = own.is_complex() ? 2 : 1;
    for (int64_t& count : value_counts) count *= parts;
    const at::Tensor all_indices = at::empty({total, dims}, indices.options());
    std::vector<int64_t> value_shape = {total};
    value_shape.insert(value_shape.end(), shape.begin() + dims, shape.end());
    const at::Tensor all_values =
        at::empty(value_shape, own._values().options());
    Run(AllGatherOf(Numbers(indices), Numbers(all_indices), index_counts),
        call);
    Run(AllGatherOf(Numbers(values), Numbers(AsReal(all_values)), value_counts),
        call);
    return at::sparse_coo_tensor(all_indices.t(), all_values, shape).coalesce();
  }

  WorkPointer Receive(OpType type, Tensors& tensors, Rank from, int tag) {
    const at::Tensor tensor = Single(tensors);
    const at::Tensor dense =
        tensor.is_contiguous() ? tensor : at::empty_like(tensor).contiguous();
    return Message(type, tensor, dense, ReceiveOf(Bytes(dense), from, tag));
  }

  WorkPointer Message(OpType type, const at::Tensor& tensor,
                      const at::Tensor& dense, const Operation& operation) {
    CallOptions call;
    call.timeout = GroupTimeout();
    absl::StatusOr<collectives::Work> work =
        communicator().Start(operation, call);
    if (!work.ok()) Throw(work.status(), GroupTimeout());
    return c10::make_intrusive<MessageWork>(type, tensor, dense,
                                            *std::move(work), ++sequence_,
                                            GroupTimeout(), group_);
  }

  // Runs the body on this thread if the call is synchronous and the lane is
  // idle, otherwise on the lane's thread.
  template <typename CallerOptions>
  WorkPointer Launch(OpType type, const Tensors& inputs, const Tensors& outputs,
                     const CallerOptions& options, std::string_view title,
                     Body body) {
    CheckFork(fork_guard_);
    const std::string profiled = absl::StrCat(prefix_, ":", title);
    const uint64_t sequence = ++sequence_;
    const auto work = c10::make_intrusive<CollectiveWork>(
        rank_, type, outputs, sequence, profiled.c_str(), inputs,
        absl::StrCat("rank ", rank_, ": ", group_->joined.communicator->name(),
                     ": ", title, " #", sequence),
        lane_);
    CallOptions call;
    call.timeout = absl::FromChrono(
        options.timeout.count() > 0 ? options.timeout : timeout_.load());
    const auto run = [work, body = std::move(body), call] {
      std::exception_ptr error;
      try {
        const at::NoGradGuard no_grad;
        body(call);
      } catch (...) {
        error = std::current_exception();
      }
      return work->End(error);
    };
    // In a callback, the collectives that it starts run at its place.
    const bool runs_here = !options.asyncOp || lane_->IsInCallback();
    if (runs_here && lane_->TryEnter()) {
      run();
      lane_->Leave();
    } else {
      work->SetNumber(lane_->Push(run));
    }
    return work;
  }

  // The groups of this process.
  static inline std::mutex live_mutex_;
  static inline std::set<TesseraBackend*> live_;

  const ForkGuard fork_guard_;
  const c10::intrusive_ptr<c10d::Store> store_;
  std::atomic<milliseconds> timeout_;
  std::shared_ptr<Group> group_;
  const std::string prefix_;
  std::atomic<uint64_t> sequence_ = 0;
  std::atomic<uint64_t> monitored_ = 0;
  std::shared_ptr<GroupLane> lane_ = GroupLane::Create();
};

c10::intrusive_ptr<c10d::Backend> CreateBackend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    milliseconds timeout, const std::string& name,
    const std::vector<int64_t>& members, const std::string& prefix) {
  const py::gil_scoped_release release;
  static auto& groups = *new JobGroups;  // Forked processes do not free it.
  auto group = groups.Join(
      {.rank = rank,
       .size = size,
       .timeout = absl::FromChrono(timeout),
       .name = NameOf(name),
       .members = members},
      [&]() -> absl::StatusOr<Meeting> {
        const absl::Duration limit = absl::FromChrono(timeout);
        TESSERA_ASSIGN_OR_RETURN(
            std::shared_ptr<TorchStore> meeting,
            TorchStore::Create(store, rank, size, absl::Now() + limit));
        return Meeting{.store = meeting,
                       .create_network = [&network_store = *meeting, limit] {
                         return CreateTorchNetwork(network_store, "world",
                                                   limit);
                       }};
      });
  if (!group.ok()) {
    Throw(Annotate(group.status(),
                   absl::StrCat("rank ", rank, " creates ", NameOf(name))),
          absl::FromChrono(timeout));
  }
  return c10::make_intrusive<TesseraBackend>(store, rank, size, timeout,
                                             *std::move(group), prefix);
}

TesseraBackend& BackendOf(c10d::ProcessGroup& group) {
  auto* const backend =
      dynamic_cast<TesseraBackend*>(group.getBackend(at::kCPU).get());
  Require(backend != nullptr,
          "the process group has another backend for tensors of the CPU");
  return *backend;
}

// Allocates a tensor in memory that the group's collectives use without copies.
at::Tensor EmptyShared(c10d::ProcessGroup& group,
                       const std::vector<int64_t>& shape, at::ScalarType type) {
  struct Owner {
    std::shared_ptr<Communicator> communicator;
    std::unique_ptr<collectives::SharedMemory> memory;
    const ForkGuard fork_guard;
  };
  int64_t bytes = static_cast<int64_t>(c10::elementSize(type));
  for (const int64_t size : shape) {
    Require(size >= 0, "a size of ", size);
    bytes *= size;
  }
  auto* const owner = new Owner{CommunicatorOf(group), nullptr, {}};
  auto memory = owner->communicator->AllocateShared(bytes);
  if (!memory.ok()) {
    delete owner;
    Throw(memory.status());
  }
  owner->memory = *std::move(memory);
  return at::from_blob(
      owner->memory->bytes().data(), shape,
      [owner](void*) {
        if (owner->fork_guard.IsForked()) return;
        owner->memory.reset();
        delete owner;
      },
      at::TensorOptions(type));
}

c10d::ReduceOp ReduceOpOf(std::string_view name) {
  constexpr std::pair<std::string_view, c10d::ReduceOp::RedOpType> kNames[] = {
      {"sum", c10d::ReduceOp::SUM},         {"avg", c10d::ReduceOp::AVG},
      {"product", c10d::ReduceOp::PRODUCT}, {"min", c10d::ReduceOp::MIN},
      {"max", c10d::ReduceOp::MAX},         {"band", c10d::ReduceOp::BAND},
      {"bor", c10d::ReduceOp::BOR},         {"bxor", c10d::ReduceOp::BXOR}};
  for (const auto& [text, op] : kNames) {
    if (text == name) return op;
  }
  throw std::invalid_argument(
      absl::StrCat("tessera: reduction \"", name,
                   "\"; use sum, avg, product, min, max, band, bor or bxor"));
}

at::Tensor& AllReduceInPlace(at::Tensor& tensor, std::string op,
                             std::string group) {
  BackendOf(*c10d::resolve_process_group(group))
      .AllReduceNow(tensor, ReduceOpOf(op));
  return tensor;
}

}  // namespace

std::shared_ptr<Communicator> CommunicatorOf(c10d::ProcessGroup& group) {
  return BackendOf(group).shared_communicator();
}

}  // namespace tessera::torch_backend

TORCH_LIBRARY(tessera, library) {
  library.def(
      "all_reduce_(Tensor(a!) tensor, str reduce_op, str group_name) -> "
      "Tensor(a!)",
      &tessera::torch_backend::AllReduceInPlace);
}

PYBIND11_MODULE(_C, module) {
  using namespace tessera::torch_backend;
  module.doc() = "The C++ part of tessera_torch.";
  WatchForks();
  module.def("end_all_jobs", &TesseraBackend::EndAllJobs,
             pybind11::call_guard<pybind11::gil_scoped_release>(),
             "Ends the operations that are under way, at the exit.");
  module.def("create", &CreateBackend, pybind11::arg("store"),
             pybind11::arg("rank"), pybind11::arg("size"),
             pybind11::arg("timeout"), pybind11::arg("name"),
             pybind11::arg("members"), pybind11::arg("prefix") = "tessera",
             "Creates the backend of one group.");
  module.def(
      "empty_shared",
      [](const c10::intrusive_ptr<c10d::ProcessGroup>& group,
         const std::vector<int64_t>& shape,
         at::ScalarType type) { return EmptyShared(*group, shape, type); },
      pybind11::arg("group"), pybind11::arg("shape"), pybind11::arg("dtype"));
  BindZero(module);
}
