#include "collectives/emulated/emulated_communicator.h"

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/operation/operation.h"

namespace tessera::collectives {
namespace {

// The group that executes operations. After a device failure queued functions
// are never called; they keep this object alive, but not the group.
class Executor {
 public:
  explicit Executor(std::unique_ptr<Communicator> group)
      : group_(std::move(group)) {}

  absl::StatusOr<Event> Start(Operation operation, const CallOptions& call) {
    std::shared_ptr<Communicator> group;
    {
      const std::lock_guard lock(mutex_);
      group = group_;
    }
    if (group == nullptr) {
      return absl::AbortedError("the communicator was destroyed");
    }
    TESSERA_ASSIGN_OR_RETURN(const Work work,
                             group->Start(std::move(operation), call));
    return work.event();
  }

  // Destroys the group once no call uses it.
  void Leave() {
    std::shared_ptr<Communicator> group;
    {
      const std::lock_guard lock(mutex_);
      group.swap(group_);
    }
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<Communicator> group_;
};

class EmulatedEngine final : public Engine {
 public:
  EmulatedEngine(std::unique_ptr<Communicator> group, Device& device)
      : group_(*group),
        executor_(std::make_shared<Executor>(std::move(group))),
        device_(device) {}

  // Waits for enqueued operations, then leaves the group.
  ~EmulatedEngine() override {
    queues_.clear();
    executor_->Leave();
  }

  std::string_view name() const override { return "emulated"; }
  Rank rank() const override { return group_.rank(); }
  int64_t size() const override { return group_.size(); }
  bool Implements(OpKind) const override { return true; }
  absl::Status Run(const Operation&, OperationContext&) override {
    return absl::UnimplementedError("engine emulated only enqueues operations");
  }
  Transport* transport() override { return nullptr; }

  bool enqueues() const override { return true; }
  absl::StatusOr<Event> Enqueue(const Operation& operation,
                                const EnqueueCall& call) override;
  void OnError(std::function<void(const absl::Status&)> on_error) override {
    group_.OnBreak(std::move(on_error));
  }

  absl::StatusOr<std::unique_ptr<Engine>> CreateSubgroup(
      std::span<const Rank> members, uint32_t group, int64_t) override {
    TESSERA_ASSIGN_OR_RETURN(
        std::unique_ptr<Communicator> subgroup,
        group_.Subgroup(members, absl::StrCat(group_.name(), "/", group)));
    return std::make_unique<EmulatedEngine>(std::move(subgroup), device_);
  }

  absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateShared(
      int64_t bytes) override {
    return AllocateSharedFrom(device_.memory(), bytes);
  }

  void Abort(const absl::Status& reason) override { group_.Break(reason); }
  std::vector<PeerReport> Peers() const override { return group_.Peers(); }

 private:
  static constexpr int64_t kNobody = -1;

  absl::StatusOr<Queue*> QueueOf(int64_t to, int64_t from,
                                 std::string_view group);
  absl::StatusOr<Event> EnqueueOn(Queue& queue, const Operation& operation,
                                  const EnqueueCall& call);
  absl::StatusOr<Event> EnqueueBoth(const Operation& operation,
                                    const EnqueueCall& call);

  Communicator& group_;  // Owned by the executor.
  const std::shared_ptr<Executor> executor_;
  Device& device_;
  // By destination and source rank; the queue of collectives has neither.
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Queue>> queues_;
};

absl::StatusOr<Queue*> EmulatedEngine::QueueOf(int64_t to, int64_t from,
                                               std::string_view group) {
  std::unique_ptr<Queue>& queue = queues_[{to, from}];
  if (queue == nullptr) {
    std::string name(group);
    if (to != kNobody) absl::StrAppend(&name, " to rank ", to);
    if (from != kNobody) absl::StrAppend(&name, " from rank ", from);
    absl::StatusOr<std::unique_ptr<Queue>> created = device_.CreateQueue(name);
    if (!created.ok()) return created.status();
    queue = *std::move(created);
  }
  return queue.get();
}

absl::StatusOr<Event> EmulatedEngine::Enqueue(const Operation& operation,
                                              const EnqueueCall& call) {
  int64_t to = kNobody, from = kNobody;
  switch (operation.kind) {
    case OpKind::kSendReceive:
      return EnqueueBoth(operation, call);
    case OpKind::kSend:
      to = operation.destination.value();
      break;
    case OpKind::kReceive:
      from = operation.source.value();
      break;
    default:
      break;
  }
  TESSERA_ASSIGN_OR_RETURN(Queue* const queue, QueueOf(to, from, call.group));
  return EnqueueOn(*queue, operation, call);
}

// The send and the receive use separate queues, so that neither delays messages
// in the other direction. A queue for these two peers joins them.
absl::StatusOr<Event> EmulatedEngine::EnqueueBoth(const Operation& operation,
                                                  const EnqueueCall& call) {
  TESSERA_ASSIGN_OR_RETURN(
      const Event sent,
      Enqueue(SendOf(operation.input, operation.destination), call));
  TESSERA_ASSIGN_OR_RETURN(
      const Event received,
      Enqueue(ReceiveOf(operation.output, operation.source), call));
  TESSERA_ASSIGN_OR_RETURN(Queue* const both,
                           QueueOf(operation.destination.value(),
                                   operation.source.value(), call.group));
  TESSERA_RETURN_IF_ERROR(both->Wait(sent, call.place));
  TESSERA_RETURN_IF_ERROR(both->Wait(received, call.place));
  return both->Record(call.place);
}

absl::StatusOr<Event> EmulatedEngine::EnqueueOn(Queue& queue,
                                                const Operation& operation,
                                                const EnqueueCall& call) {
  TESSERA_RETURN_IF_ERROR(queue.Wait(call.after, call.place));
  HostFunction function = {.name = OpKindName(operation.kind)};
  const Sides sides = SidesOf(operation, rank());
  if (sides.input) {
    function.accesses.push_back(ReadsFrom(operation.input.AsBytes()));
  }
  if (sides.output) {
    function.accesses.push_back(WritesTo(operation.output.AsBytes()));
  }
  const CallOptions options = {.timeout = call.timeout,
                               .algorithm = call.algorithm};
  function.run = [executor = executor_, operation,
                  options](const DeviceAddresses& at) {
    Operation real = operation;
    real.input.data = at(operation.input.data);
    real.output.data = at(operation.output.data);
    return executor->Start(std::move(real), options);
  };
  TESSERA_RETURN_IF_ERROR(queue.Launch(std::move(function), call.place));
  return queue.Record(call.place);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateEmulatedEngine(Communicator& host,
                                                             Device& device) {
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<Communicator> group,
      host.Subgroup(AllRanks(host.size()),
                    absl::StrCat(host.name(), "/emulated")));
  return std::make_unique<EmulatedEngine>(std::move(group), device);
}

absl::StatusOr<std::unique_ptr<Communicator>> CreateEmulatedCommunicator(
    std::unique_ptr<Communicator> host, Device& device) {
  if (host == nullptr) {
    return absl::InvalidArgumentError(
        "host is null; give the communicator for memory of the host");
  }
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                           CreateEmulatedEngine(*host, device));
  return Communicator::CreateOnDevice(std::move(host), std::move(engine));
}

}  // namespace tessera::collectives
