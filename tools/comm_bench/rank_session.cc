#include "tools/comm_bench/rank_session.h"

#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/adaptive/create_adaptive.h"
#include "collectives/algorithms/hierarchy.h"
#include "collectives/engine/operation_context.h"
#include "tools/comm_bench/timing.h"

namespace tessera::tools {
namespace {

using collectives::CallOptions;
using collectives::Communicator;
using collectives::Engine;
using collectives::MonotonicNanos;
using topology::Rank;

Capabilities CapabilitiesOf(Engine& engine) {
  Capabilities capabilities;
  capabilities.has_transport = engine.transport() != nullptr;
  for (const collectives::OpKind kind : collectives::kCollectiveKinds) {
    if (engine.Implements(kind)) {
      capabilities.kinds |= uint32_t{1} << static_cast<int>(kind);
    }
  }
  return capabilities;
}

// In place every operation of a batch needs its own buffers.
int64_t SlotsOf(const Task& task) { return task.in_place ? task.batch : 1; }

bool HaveSameOperands(const Task& a, const Task& b) {
  return a.op == b.op && a.dtype == b.dtype && a.in_place == b.in_place &&
         a.registered == b.registered && a.reduction == b.reduction &&
         a.count == b.count && SlotsOf(a) == SlotsOf(b);
}

CallOptions CallOf(const Task& task) {
  CallOptions call;
  if (task.carrier == Carrier::kAlgorithm) call.algorithm = task.algorithm;
  return call;
}

}  // namespace

Capabilities Capabilities::Unpack(double packed) {
  const auto bits = static_cast<uint64_t>(packed);
  return {static_cast<uint32_t>(bits >> 1), (bits & 1) != 0};
}

absl::StatusOr<std::unique_ptr<RankSession>> RankSession::Create(
    std::unique_ptr<Engine> engine, int64_t group_size) {
  std::unique_ptr<RankSession> session(new RankSession());
  session->engine_ = engine.get();
  session->capabilities_ = CapabilitiesOf(*engine);
  if (group_size > 0) {
    std::vector<int64_t> labels;
    for (int64_t r = 0; r < engine->size(); ++r) {
      labels.push_back(r / group_size);
    }
    TESSERA_ASSIGN_OR_RETURN(
        collectives::Hierarchy hierarchy,
        collectives::Hierarchy::FromLabels(std::span(&labels, 1)));
    session->options_.hierarchy =
        std::make_shared<collectives::Hierarchy>(std::move(hierarchy));
  }
  TESSERA_ASSIGN_OR_RETURN(
      session->plain_,
      Communicator::Create(std::move(engine), session->options_));
  return session;
}

// A group of all ranks beside the first one, on the same engine.
absl::StatusOr<std::unique_ptr<Communicator>> RankSession::MakeCommunicator(
    const Task& task) {
  std::vector<Rank> everyone;
  for (int64_t r = 0; r < plain_->size(); ++r) everyone.push_back(Rank(r));
  constexpr int64_t kTimeout = 60'000'000'000;
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<Engine> engine,
      engine_->CreateSubgroup(everyone, ++groups_,
                              MonotonicNanos() + kTimeout));
  collectives::CommunicatorOptions options = options_;
  options.reproducible = task.reproducible;
  if (task.carrier != Carrier::kAdaptive) {
    return Communicator::Create(std::move(engine), std::move(options));
  }
  return collectives::CreateAdaptiveCommunicator(std::move(engine),
                                                 std::move(options));
}

absl::StatusOr<Communicator*> RankSession::CommunicatorFor(const Task& task) {
  const bool adaptive = task.carrier == Carrier::kAdaptive;
  if (!adaptive && !task.reproducible) return plain_.get();
  std::unique_ptr<Communicator>& place = others_[task.reproducible][adaptive];
  if (place == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(place, MakeCommunicator(task));
  }
  return place.get();
}

absl::StatusOr<Operands*> RankSession::OperandsFor(const Task& task,
                                                   Communicator* owner) {
  if (operands_.has_value() && operands_owner_ == owner &&
      HaveSameOperands(task, operands_task_)) {
    return &*operands_;
  }
  operands_.reset();
  OperandShape shape;
  shape.kind = task.op;
  shape.dtype = task.dtype;
  shape.reduction = task.reduction;
  shape.count = task.count;
  shape.in_place = task.in_place;
  shape.registered = task.registered;
  shape.slots = SlotsOf(task);
  TESSERA_ASSIGN_OR_RETURN(Operands operands,
                           Operands::Allocate(*owner, shape));
  operands_.emplace(std::move(operands));
  operands_task_ = task;
  operands_owner_ = owner;
  return &*operands_;
}

absl::Status RankSession::Carry(const Task& task, Answer* answer) {
  TESSERA_ASSIGN_OR_RETURN(Communicator* const communicator,
                           CommunicatorFor(task));
  // Registered memory belongs to a communicator.
  Communicator* const owner = task.registered ? communicator : plain_.get();
  TESSERA_ASSIGN_OR_RETURN(Operands* const operands, OperandsFor(task, owner));
  if (task.kind == TaskKind::kChoose) {
    TESSERA_ASSIGN_OR_RETURN(
        const collectives::Algorithm algorithm,
        communicator->AlgorithmFor(operands->operation(0)));
    answer->text =
        absl::StrCat(AlgorithmName(algorithm), "\n",
                     communicator->ExplainAlgorithm(operands->operation(0)));
    return absl::OkStatus();
  }
  const auto time =
      task.kind == TaskKind::kOverlap ? TimeOverlap : TimeOperation;
  TESSERA_ASSIGN_OR_RETURN(answer->seconds,
                           time(*communicator, CallOf(task), task, *operands));
  return absl::OkStatus();
}

Answer RankSession::Execute(const Task& task) {
  Answer answer;
  answer.status = Carry(task, &answer);
  return answer;
}

}  // namespace tessera::tools
