#include "tools/train/testing/measured_run.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "collectives/in_process/in_process.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/text/corpus.h"
#include "tools/text/tokenizer.h"
#include "tools/train/predict/rank_traffic.h"
#include "tools/train/step/train_rank.h"
#include "zero3/state/sharded_state.h"

namespace tessera::train {

namespace {

using collectives::Engine;
using collectives::Rank;

class CountingEngine final : public Engine {
 public:
  // `members` are the ranks of this group in the world, in the group's order.
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
  bool FoldsInRankOrder(
      const collectives::Operation& operation) const override {
    return engine_->FoldsInRankOrder(operation);
  }
  void Enter(collectives::OperationContext& context) override {
    const collectives::Signature& call = context.signature();
    // Counts only collectives that the engine implements; see Run.
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

namespace {

using collectives::Communicator;

absl::StatusOr<std::shared_ptr<const text::Corpus>> Text() {
  std::string text;
  for (int i = 0; i < 600; ++i) {
    text += "a rank holds " + std::to_string(i * i % 97) + " shards\n";
  }
  const std::string texts[] = {text};
  TESSERA_ASSIGN_OR_RETURN(
      std::shared_ptr<const text::Corpus> corpus,
      text::Corpus::FromTexts(texts, text::ByteTokenizer()));
  return corpus;
}

absl::StatusOr<MeasuredRank> RunRank(Communicator& world,
                                     const RunOptions& options,
                                     const text::Samples& samples,
                                     CollectiveCount& count) {
  tensor_parallel::CpuOps ops({.threads = 1});
  TESSERA_ASSIGN_OR_RETURN(auto rank,
                           TrainRank::Create(world, options, samples, ops));
  MeasuredRank measured;
  for (int step = 0; step < 3; ++step) {
    TESSERA_RETURN_IF_ERROR(rank->model().AwaitGathers());
    const RankTraffic before = TrafficOf(*rank);
    count.Take();
    TESSERA_RETURN_IF_ERROR(rank->Step().status());
    TESSERA_RETURN_IF_ERROR(rank->model().AwaitGathers());
    measured.collectives = count.Take();
    measured.messages = MessagesOf(TrafficOf(*rank).Since(before));
  }
  measured.state = rank->state().usage();
  measured.activations = rank->activation_bytes();
  return measured;
}

}  // namespace

absl::StatusOr<std::vector<MeasuredRank>> MeasureRun(
    const RunOptions& options,
    const std::function<absl::Status(int64_t, RunOptions&)>& prepare) {
  const int64_t ranks = options.mesh.world_size();
  TESSERA_ASSIGN_OR_RETURN(auto engines,
                           collectives::CreateInProcessEngines(ranks));
  TESSERA_ASSIGN_OR_RETURN(const auto corpus, Text());
  TESSERA_ASSIGN_OR_RETURN(
      const text::Samples samples,
      text::Samples::Create(corpus, {.sequence = options.length, .seed = 5}));
  std::vector<absl::StatusOr<MeasuredRank>> results(
      static_cast<size_t>(ranks), absl::UnknownError("did not run"));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < results.size(); ++r) {
    threads.emplace_back([&, r] {
      results[r] = [&]() -> absl::StatusOr<MeasuredRank> {
        RunOptions own = options;
        if (prepare) {
          TESSERA_RETURN_IF_ERROR(prepare(static_cast<int64_t>(r), own));
        }
        CollectiveCount count;
        TESSERA_ASSIGN_OR_RETURN(
            auto world,
            Communicator::Create(CountEngine(std::move(engines[r]), count)));
        return RunRank(*world, own, samples, count);
      }();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<MeasuredRank> measured;
  for (auto& result : results) {
    TESSERA_RETURN_IF_ERROR(result.status());
    measured.push_back(*std::move(result));
  }
  return measured;
}

}  // namespace tessera::train
