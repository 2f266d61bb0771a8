#include "tools/comm_bench/bench_rank.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/adaptive/create_adaptive.h"
#include "collectives/engine/operation_context.h"

namespace tessera::tools {
namespace {

using collectives::Communicator;
using collectives::Engine;
using collectives::MonotonicNanos;
using collectives::Work;

using Seconds = std::vector<double>;

}  // namespace

std::string Variant::Name() const {
  const std::string_view name =
      adaptive
          ? "adaptive"
          : AlgorithmName(algorithm.value_or(collectives::Algorithm::kEngine));
  return absl::StrCat(name, reproducible ? "+reproducible" : "");
}

absl::StatusOr<std::unique_ptr<BenchRank>> BenchRank::Create(
    const BenchOptions& options, const BenchEngine& engine, RankParts parts) {
  std::unique_ptr<BenchRank> rank(new BenchRank(options));
  rank->engine_ = parts.engine.get();
  TESSERA_ASSIGN_OR_RETURN(rank->plain_,
                           Communicator::Create(std::move(parts.engine), {}));
  if (parts.device == nullptr) return rank;
  rank->device_ = std::move(parts.device);
  TESSERA_ASSIGN_OR_RETURN(rank->queue_,
                           rank->device_->CreateQueue("operands"));
  TESSERA_ASSIGN_OR_RETURN(
      rank->plain_, engine.OnDevice(std::move(rank->plain_), *rank->device_));
  return rank;
}

Capabilities BenchRank::capabilities() const {
  const bool on_device = device_ != nullptr;
  Capabilities result;
  result.has_transport = !on_device && engine_->transport() != nullptr;
  for (const collectives::OpKind kind : collectives::kCollectiveKinds) {
    if (on_device || engine_->Implements(kind)) {
      result.kinds |= uint32_t{1} << static_cast<int>(kind);
    }
  }
  return result;
}

// A second group of all ranks on the same engine.
absl::StatusOr<std::unique_ptr<Communicator>> BenchRank::MakeCommunicator(
    const Variant& variant) {
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<Engine> engine,
      collectives::Duplicate(*engine_, ++groups_, absl::Minutes(1)));
  collectives::CommunicatorOptions options = plain_->options();
  options.chooser = nullptr;  // Not the one of plain_.
  options.reproducible = variant.reproducible;
  return variant.adaptive
             ? collectives::CreateAdaptiveCommunicator(std::move(engine),
                                                       std::move(options))
             : Communicator::Create(std::move(engine), std::move(options));
}

absl::Status BenchRank::Prepare(const Task& task) {
  communicator_ = plain_.get();
  const Variant& variant = task.variant;
  if (variant.adaptive || variant.reproducible) {
    auto& place = others_[variant.reproducible][variant.adaptive];
    if (place == nullptr) {
      TESSERA_ASSIGN_OR_RETURN(place, MakeCommunicator(variant));
    }
    communicator_ = place.get();
  }
  call_.algorithm = variant.algorithm;
  // Registered memory belongs to a communicator.
  Communicator& owner = options_.registered ? *communicator_ : *plain_;
  // In place every operation of a batch needs its own buffers.
  const int64_t slots = task.in_place ? task.batch : 1;
  const std::string key =
      absl::StrCat(OpKindName(task.op), DTypeName(task.dtype),
                   ReduceOpName(task.reduction), task.bytes, " ", task.in_place,
                   slots, " ", reinterpret_cast<uintptr_t>(&owner));
  if (operands_.has_value() && key == operands_key_) return absl::OkStatus();
  operands_.reset();
  operands_key_ = key;
  TESSERA_ASSIGN_OR_RETURN(
      operands_,
      Operands::Allocate(
          owner,
          {.operation = MakeOperation(task.op, task.dtype,
                                      ReductionFor(task.reduction, task.dtype),
                                      task.bytes, owner.rank(), owner.size(),
                                      topology::Rank(options_.root)),
           .in_place = task.in_place,
           .registered = options_.registered,
           .slots = slots},
          queue_.get()));
  return absl::OkStatus();
}

// On a device, enqueues all operations and waits for the last: they run in the
// order of the calls.
absl::Status BenchRank::RunBatch(int64_t batch) {
  std::optional<Work> last;
  for (int64_t i = 0; i < batch; ++i) {
    const auto& operation = operands_->operation(i % operands_->slots());
    if (device_ != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(last, communicator_->Start(operation, call_));
    } else {
      TESSERA_RETURN_IF_ERROR(communicator_->Run(operation, call_));
    }
  }
  return last.has_value() ? last->Wait() : absl::OkStatus();
}

absl::StatusOr<Seconds> BenchRank::Time(const Task& task) {
  TESSERA_RETURN_IF_ERROR(Prepare(task));
  Seconds seconds;
  const int64_t total = task.warmup + task.iterations;
  for (int64_t i = 0; i < total; ++i) {
    const int64_t iteration = task.first_iteration + i;
    TESSERA_RETURN_IF_ERROR(operands_->Rewrite(iteration));
    TESSERA_RETURN_IF_ERROR(communicator_->host().Barrier());
    const int64_t begin = MonotonicNanos();
    TESSERA_RETURN_IF_ERROR(RunBatch(task.batch));
    const int64_t end = MonotonicNanos();
    // If ranks share processors, the next work of this rank would delay the
    // others.
    TESSERA_RETURN_IF_ERROR(communicator_->host().Barrier());
    if (i >= task.warmup) {
      seconds.push_back(1e-9 * static_cast<double>(end - begin) /
                        static_cast<double>(task.batch));
    }
    if (options_.check && (i == 0 || i == total - 1)) {
      TESSERA_RETURN_IF_ERROR(operands_->Check(iteration));
    }
  }
  return seconds;
}

}  // namespace tessera::tools
