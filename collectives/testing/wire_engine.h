// WireEngine: an engine whose collectives take as long as on a network of a
// given bandwidth, but sleep instead of using a processor.
//
//   auto engine = WireEngine::Wrap(std::move(in_process), 125e6);
//
// For benchmarks of overlap: the wrapped engine moves the bytes, then the call
// sleeps for the rest of the time. The same holds for its subgroups.
#ifndef TESSERA_COLLECTIVES_TESTING_WIRE_ENGINE_H_
#define TESSERA_COLLECTIVES_TESTING_WIRE_ENGINE_H_

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
#include "base/status_macros.h"
#include "collectives/engine/engine.h"
#include "collectives/record/flight_recorder.h"

namespace tessera::collectives {

class WireEngine final : public Engine {
 public:
  // A collective takes its bytes times BusFactor divided by `bytes_per_second`.
  static std::unique_ptr<Engine> Wrap(std::unique_ptr<Engine> engine,
                                      double bytes_per_second) {
    return std::unique_ptr<Engine>(
        new WireEngine(std::move(engine), bytes_per_second));
  }

  std::string_view name() const override { return engine_->name(); }
  Rank rank() const override { return engine_->rank(); }
  int64_t size() const override { return engine_->size(); }
  bool Implements(OpKind kind) const override {
    return engine_->Implements(kind);
  }
  bool FoldsInRankOrder(const Operation& operation) const override {
    return engine_->FoldsInRankOrder(operation);
  }
  void Enter(OperationContext& context) override { engine_->Enter(context); }
  void Leave(OperationContext& context) override { engine_->Leave(context); }

  absl::Status Run(const Operation& operation,
                   OperationContext& context) override {
    const auto start = std::chrono::steady_clock::now();
    const absl::Status status = engine_->Run(operation, context);
    const int64_t bytes =
        MessageCount(operation, size()) * SizeInBytes(DTypeOf(operation));
    const double seconds = static_cast<double>(bytes) *
                           BusFactor(operation.kind, size()) /
                           bytes_per_second_;
    std::this_thread::sleep_until(
        start + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                    std::chrono::duration<double>(seconds)));
    return status;
  }

  Transport* transport() override { return engine_->transport(); }
  absl::StatusOr<std::unique_ptr<Engine>> CreateSubgroup(
      std::span<const Rank> members, uint32_t group,
      int64_t deadline) override {
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                             engine_->CreateSubgroup(members, group, deadline));
    return Wrap(std::move(engine), bytes_per_second_);
  }
  absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateShared(
      int64_t bytes) override {
    return engine_->AllocateShared(bytes);
  }
  void Abort(const absl::Status& reason) override { engine_->Abort(reason); }
  std::vector<PeerReport> Peers() const override { return engine_->Peers(); }

 private:
  WireEngine(std::unique_ptr<Engine> engine, double bytes_per_second)
      : engine_(std::move(engine)), bytes_per_second_(bytes_per_second) {}

  std::unique_ptr<Engine> engine_;
  double bytes_per_second_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_WIRE_ENGINE_H_
