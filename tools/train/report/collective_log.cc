#include "tools/train/report/collective_log.h"

#include <utility>

#include "base/dtype/dtype.h"
#include "base/status_macros.h"

namespace tessera::train {

namespace {

constexpr size_t kMost = size_t{1} << 20;

}  // namespace

void CollectiveLog::Add(const LoggedCollective& one) {
  const std::lock_guard lock(mutex_);
  if (entries_.size() < kMost) entries_.push_back(one);
}

std::vector<LoggedCollective> CollectiveLog::Take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(entries_, {});
}

void CollectiveLog::SetOn(bool on) {
  const std::lock_guard lock(mutex_);
  is_on_ = on;
}

bool CollectiveLog::is_on() const {
  const std::lock_guard lock(mutex_);
  return is_on_;
}

void CollectiveLog::AbortAll(const absl::Status& reason) {
  const std::lock_guard lock(engines_mutex_);
  for (collectives::Engine* engine : engines_) engine->Abort(reason);
}

void CollectiveLog::Join(collectives::Engine* engine) {
  const std::lock_guard lock(engines_mutex_);
  engines_.insert(engine);
}

void CollectiveLog::Leave(collectives::Engine* engine) {
  const std::lock_guard lock(engines_mutex_);
  engines_.erase(engine);
}

namespace {

using collectives::Engine;
using collectives::OperationContext;
using collectives::Rank;

class MeasuredEngine final : public Engine {
 public:
  MeasuredEngine(std::unique_ptr<Engine> inner,
                 std::shared_ptr<CollectiveLog> log)
      : inner_(std::move(inner)),
        log_(std::move(log)),
        is_logged_(log_->is_on()) {
    log_->Join(inner_.get());
  }
  ~MeasuredEngine() override { log_->Leave(inner_.get()); }

  std::string_view name() const override { return inner_->name(); }
  Rank rank() const override { return inner_->rank(); }
  int64_t size() const override { return inner_->size(); }
  bool Implements(collectives::OpKind kind) const override {
    return inner_->Implements(kind);
  }
  bool FoldsInRankOrder(
      const collectives::Operation& operation) const override {
    return inner_->FoldsInRankOrder(operation);
  }

  void Enter(OperationContext& context) override {
    if (is_logged_) begin_ns_ = collectives::MonotonicNanos();
    inner_->Enter(context);
  }
  void Leave(OperationContext& context) override {
    inner_->Leave(context);
    if (!is_logged_) return;
    const collectives::Signature& signature = context.signature();
    log_->Add({.kind = signature.kind,
               .bytes = signature.count * SizeInBytes(signature.dtype),
               .ranks = inner_->size(),
               .begin_ns = begin_ns_,
               .end_ns = collectives::MonotonicNanos(),
               .is_state = context.label() != 0});
  }

  absl::Status Run(const collectives::Operation& operation,
                   OperationContext& context) override {
    return inner_->Run(operation, context);
  }
  // Prepared operations pass Enter and Leave too.
  std::unique_ptr<collectives::OperationPlan> Plan(
      const collectives::Operation& operation,
      OperationContext& context) override {
    return inner_->Plan(operation, context);
  }
  collectives::Transport* transport() override { return inner_->transport(); }

  absl::StatusOr<std::unique_ptr<Engine>> CreateSubgroup(
      std::span<const Rank> members, uint32_t group,
      int64_t deadline) override {
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                             inner_->CreateSubgroup(members, group, deadline));
    return MeasureEngine(std::move(engine), log_);
  }
  absl::StatusOr<std::unique_ptr<collectives::SharedMemory>> AllocateShared(
      int64_t bytes) override {
    return inner_->AllocateShared(bytes);
  }
  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }
  std::vector<collectives::PeerReport> Peers() const override {
    return inner_->Peers();
  }

 private:
  const std::unique_ptr<Engine> inner_;
  const std::shared_ptr<CollectiveLog> log_;
  const bool is_logged_;
  int64_t begin_ns_ = 0;  // Collectives of a group run one at a time.
};

}  // namespace

std::unique_ptr<Engine> MeasureEngine(std::unique_ptr<Engine> engine,
                                      std::shared_ptr<CollectiveLog> log) {
  return std::make_unique<MeasuredEngine>(std::move(engine), std::move(log));
}

}  // namespace tessera::train
