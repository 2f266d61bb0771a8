// WireEngine: an engine whose collectives take the time that a wire of a given
// bandwidth would, without a processor, as a network card works.
//
//   auto engine = WireEngine::Wrap(std::move(in_process), 125e6);
//
// For benchmarks of what hides such time: the bytes go through the wrapped
// engine, and the rest of the time is slept.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_OVERLAP_TESTING_WIRE_ENGINE_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_OVERLAP_TESTING_WIRE_ENGINE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "collectives/engine/engine.h"
#include "collectives/record/flight_recorder.h"

namespace tessera::tensor_parallel {

class WireEngine final : public collectives::Engine {
 public:
  // A collective takes its bytes times BusFactor over `bytes_per_second`.
  static std::unique_ptr<collectives::Engine> Wrap(
      std::unique_ptr<collectives::Engine> engine, double bytes_per_second) {
    return std::unique_ptr<collectives::Engine>(
        new WireEngine(std::move(engine), bytes_per_second));
  }

  std::string_view name() const override { return engine_->name(); }
  collectives::Rank rank() const override { return engine_->rank(); }
  int64_t size() const override { return engine_->size(); }
  bool Implements(collectives::OpKind kind) const override {
    return engine_->Implements(kind);
  }
  bool FoldsInRankOrder() const override { return engine_->FoldsInRankOrder(); }
  void Enter(collectives::OperationContext& context) override {
    engine_->Enter(context);
  }
  void Leave(collectives::OperationContext& context) override {
    engine_->Leave(context);
  }

  absl::Status Run(const collectives::Operation& operation,
                   collectives::OperationContext& context) override {
    const auto start = std::chrono::steady_clock::now();
    const absl::Status status = engine_->Run(operation, context);
    const int64_t bytes = collectives::MessageCount(operation, size()) *
                          SizeInBytes(collectives::DTypeOf(operation));
    const double seconds = static_cast<double>(bytes) *
                           collectives::BusFactor(operation.kind, size()) /
                           bytes_per_second_;
    std::this_thread::sleep_until(
        start + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                    std::chrono::duration<double>(seconds)));
    return status;
  }

  collectives::Transport* transport() override { return engine_->transport(); }
  absl::StatusOr<std::unique_ptr<collectives::Engine>> CreateSubgroup(
      std::span<const collectives::Rank> members, uint32_t group,
      int64_t deadline) override {
    return engine_->CreateSubgroup(members, group, deadline);
  }
  absl::StatusOr<std::unique_ptr<collectives::SharedMemory>> AllocateShared(
      int64_t bytes) override {
    return engine_->AllocateShared(bytes);
  }
  void Abort(const absl::Status& reason) override { engine_->Abort(reason); }
  std::vector<collectives::PeerReport> Peers() const override {
    return engine_->Peers();
  }

 private:
  WireEngine(std::unique_ptr<collectives::Engine> engine,
             double bytes_per_second)
      : engine_(std::move(engine)), bytes_per_second_(bytes_per_second) {}

  std::unique_ptr<collectives::Engine> engine_;
  double bytes_per_second_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_OVERLAP_TESTING_WIRE_ENGINE_H_
