#include "tools/train/predict/counting_engine.h"

#include <algorithm>
#include <numeric>

#include "base/status_macros.h"

namespace tessera::train {
namespace {

using collectives::Engine;
using collectives::Rank;

class CountingEngine final : public Engine {
 public:
  // `members`: this group's ranks in the world, in its own order.
  CountingEngine(std::unique_ptr<Engine> engine, CollectiveCount::Group members,
                 CollectiveCount& count)
      : engine_(std::move(engine)),
        members_(std::move(members)),
        sorted_(members_),
        count_(count) {
    std::sort(sorted_.begin(), sorted_.end());
  }

  std::string_view name() const override { return engine_->name(); }
  Rank rank() const override { return engine_->rank(); }
  int64_t size() const override { return engine_->size(); }
  bool Implements(collectives::OpKind kind) const override {
    return engine_->Implements(kind);
  }
  bool FoldsInRankOrder() const override { return engine_->FoldsInRankOrder(); }
  void Enter(collectives::OperationContext& context) override {
    const collectives::Signature& call = context.signature();
    // Of the engine's own: see Run.
    if (call.algorithm != collectives::Algorithm::kEngine) {
      count_.Add(sorted_, call.kind, call.count * SizeInBytes(call.dtype));
    }
    engine_->Enter(context);
  }
  void Leave(collectives::OperationContext& context) override {
    engine_->Leave(context);
  }
  absl::Status Run(const collectives::Operation& operation,
                   collectives::OperationContext& context) override {
    count_.Add(sorted_, operation.kind,
               collectives::MessageCount(operation, size()) *
                   SizeInBytes(collectives::DTypeOf(operation)));
    return engine_->Run(operation, context);
  }
  collectives::Transport* transport() override { return engine_->transport(); }
  absl::StatusOr<std::unique_ptr<Engine>> CreateSubgroup(
      std::span<const Rank> members, uint32_t group,
      int64_t deadline) override {
    TESSERA_ASSIGN_OR_RETURN(auto inner,
                             engine_->CreateSubgroup(members, group, deadline));
    CollectiveCount::Group in_world;
    for (const Rank rank : members) {
      in_world.push_back(members_[static_cast<size_t>(rank.value())]);
    }
    return std::make_unique<CountingEngine>(std::move(inner),
                                            std::move(in_world), count_);
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
  const std::unique_ptr<Engine> engine_;
  const CollectiveCount::Group members_;
  CollectiveCount::Group sorted_;
  CollectiveCount& count_;
};

}  // namespace

std::unique_ptr<Engine> CountEngine(std::unique_ptr<Engine> engine,
                                    CollectiveCount& count) {
  CollectiveCount::Group world(static_cast<size_t>(engine->size()));
  std::iota(world.begin(), world.end(), 0);
  return std::make_unique<CountingEngine>(std::move(engine), std::move(world),
                                          count);
}

}  // namespace tessera::train
