#include "collectives/nccl/nccl_communicator.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/tensor/memory.h"
#include "collectives/engine/operation_context.h"
#include "collectives/engine/peer_table.h"
#include "collectives/groups/agreement.h"
#include "collectives/nccl/native_nccl.h"
#include "collectives/nccl/nccl_calls.h"
#include "collectives/nccl/nccl_lane.h"
#include "collectives/nccl/nccl_watcher.h"

namespace tessera::collectives {
namespace {

// Memory that NCCL has allocated and registered.
class RegisteredMemory final : public SharedMemory {
 public:
  RegisteredMemory(const NcclApi& api, Device& device, NcclLane& lane)
      : api_(api), device_(device), lane_(lane) {}
  ~RegisteredMemory() override {
    if (data_ == nullptr) return;
    static_cast<void>(api_.UseDevice(device_));
    lane_.With([&](NcclComm comm) {
      if (handle_ != nullptr) api_.CommDeregister(comm, handle_);
    });
    api_.MemFree(device_, data_, allocated_);
  }

  absl::Status Allocate(int64_t bytes) {
    TESSERA_RETURN_IF_ERROR(api_.UseDevice(device_));
    size_ = static_cast<size_t>(bytes);
    allocated_ = std::max<size_t>(size_, 1);
    const NcclResult result = api_.MemAlloc(device_, &data_, allocated_);
    if (result != NcclResult::kSuccess) {
      return absl::ResourceExhaustedError(
          absl::StrCat(NcclStatus(result, "MemAlloc").message(), " of ", bytes,
                       " bytes; allocate less"));
    }
    // Memory that cannot be registered is slower but usable.
    lane_.With([&](NcclComm comm) {
      api_.CommRegister(comm, data_, allocated_, &handle_);
    });
    return absl::OkStatus();
  }
  std::span<std::byte> bytes() const override {
    return {static_cast<std::byte*>(data_), size_};
  }
  MemoryKind kind() const override { return MemoryKind::kDevice; }

 private:
  const NcclApi& api_;
  Device& device_;
  NcclLane& lane_;
  void* data_ = nullptr;
  void* handle_ = nullptr;
  size_t size_ = 0;
  size_t allocated_ = 0;
};

// The communicators of two ranks, by the direction of the messages.
struct Pair {
  tessera::Buffer memory;  // Buffer of the message that connects them.
  std::unique_ptr<NcclLane> out;
  std::unique_ptr<NcclLane> in;
  std::thread connector;
  bool is_connected = false;
};

class NcclEngine final : public Engine {
 public:
  NcclEngine(std::unique_ptr<Communicator> base, Device& device,
             const NcclApi& api, const NcclOptions& options)
      : base_(std::move(base)),
        device_(device),
        api_(api),
        options_(options),
        generation_(ProcessGeneration()),
        collectives_(std::make_unique<NcclLane>(api, device, failure_)) {}
  ~NcclEngine() override;

  absl::Status Connect();

  std::string_view name() const override { return "nccl"; }
  Rank rank() const override { return base_->rank(); }
  int64_t size() const override { return base_->size(); }
  bool Implements(OpKind) const override { return true; }
  absl::Status Run(const Operation&, OperationContext&) override {
    return absl::UnimplementedError("engine nccl only enqueues operations");
  }
  Transport* transport() override { return nullptr; }

  bool enqueues() const override { return true; }
  absl::StatusOr<Event> Enqueue(const Operation& operation,
                                const EnqueueCall& call) override;
  void OnError(std::function<void(const absl::Status&)> on_error) override {
    const std::lock_guard lock(on_error_mutex_);
    on_error_ = std::move(on_error);
  }

  absl::StatusOr<std::unique_ptr<Engine>> CreateSubgroup(
      std::span<const Rank> members, uint32_t group, int64_t) override;
  absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateShared(
      int64_t bytes) override;
  void Abort(const absl::Status& reason) override {
    failure_.Set(reason);
    End(reason);
  }
  std::vector<PeerReport> Peers() const override { return watcher_->Peers(); }

 private:
  // A copy of a message to itself, until it is received.
  struct SelfMessage {
    tessera::Buffer memory;
    Event done;
  };

  absl::StatusOr<Event> EnqueueCollective(const Operation& operation,
                                          const EnqueueCall& call);
  absl::StatusOr<Event> EnqueueMessage(const Operation& operation,
                                       const EnqueueCall& call);
  absl::StatusOr<Event> EnqueueBoth(const Operation& operation,
                                    const EnqueueCall& call);
  absl::StatusOr<Event> EnqueueToSelf(const Operation& operation,
                                      const EnqueueCall& call);
  absl::Status CopyInput(Operation& operation, Queue& queue,
                         const EnqueueCall& call);
  absl::StatusOr<Pair*> ConnectedTo(int64_t peer, absl::Duration timeout);
  void StartConnecting(int64_t peer, const PairIds& ids);
  absl::Status ConnectPair(int64_t peer, const PairIds& ids, Pair& pair);
  absl::StatusOr<Queue*> LocalQueue(int64_t to, int64_t from,
                                    const EnqueueCall& call);
  absl::StatusOr<PairIds> CreateIds();
  absl::Status CheckHealth();
  void Fail(const absl::Status& status);
  void End(const absl::Status& status);

  std::unique_ptr<Communicator> base_;
  Device& device_;
  const NcclApi& api_;
  const NcclOptions options_;
  const uint64_t generation_;
  Failure failure_;
  std::atomic<bool> ended_ = false;

  std::mutex on_error_mutex_;
  std::function<void(const absl::Status&)> on_error_;

  tessera::Buffer word_;  // Used by barriers.
  // The copies of in-place all_to_alls. Work in flight may still use a smaller
  // one.
  std::vector<tessera::Buffer> copies_;
  std::deque<SelfMessage> sent_to_self_;      // Not yet received.
  std::deque<SelfMessage> received_by_self_;  // Received; kept until done.
  // Destroyed before its memory.
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Queue>> local_;
  std::unique_ptr<NcclLane> collectives_;

  std::mutex pairs_mutex_;
  std::condition_variable pair_connected_;
  std::map<int64_t, Pair> pairs_;

  std::unique_ptr<NcclWatcher> watcher_;
};

absl::Status NcclEngine::Connect() {
  NcclUniqueId id;
  if (rank() == Rank(0)) {
    TESSERA_RETURN_IF_ERROR(api_.UseDevice(device_));
    TESSERA_RETURN_IF_ERROR(NcclStatus(api_.GetUniqueId(&id), "GetUniqueId"));
  }
  TESSERA_RETURN_IF_ERROR(
      base_->Broadcast(Buffer(&id, sizeof(id), DType::kU8), Rank(0)));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> peers,
                           ExchangeTexts(*base_, PeerTable::DescribeSelf(),
                                         base_->options().timeout));
  TESSERA_ASSIGN_OR_RETURN(word_,
                           tessera::Buffer::Allocate(device_.memory(), 64));
  TESSERA_RETURN_IF_ERROR(collectives_->Connect(
      id, static_cast<int>(rank().value()), static_cast<int>(size()),
      /*most_blocks=*/0, base_->name(),
      DeadlineAfter(options_.connect_timeout)));
  watcher_ = std::make_unique<NcclWatcher>(
      *base_, PeerTable::Of(peers).reports(), options_.pulse,
      NcclWatcher::Hooks{
          .check_health = [this] { return CheckHealth(); },
          .fail = [this](const absl::Status& status) { Fail(status); },
          .create_ids = [this] { return CreateIds(); },
          .connect = [this](int64_t peer,
                            const PairIds& ids) { StartConnecting(peer, ids); },
      });
  watcher_->Start();
  return absl::OkStatus();
}

NcclEngine::~NcclEngine() {
  if (ProcessGeneration() != generation_) {
    // A forked child has neither the threads nor the device.
    if (watcher_ != nullptr) watcher_->Abandon();
    static_cast<void>(watcher_.release());
    static_cast<void>(base_.release());
    static_cast<void>(collectives_.release());
    static_cast<void>(new auto(std::move(pairs_)));
    static_cast<void>(new auto(std::move(local_)));
    return;
  }
  if (watcher_ == nullptr) {
    collectives_->Abort();
    return;
  }
  watcher_->Leave();
  watcher_->Join();
  for (auto& [peer, pair] : pairs_) {
    if (pair.connector.joinable()) pair.connector.join();
  }
  watcher_.reset();
}

absl::Status NcclEngine::CheckHealth() {
  TESSERA_RETURN_IF_ERROR(collectives_->Health());
  const std::lock_guard lock(pairs_mutex_);
  for (auto& [peer, pair] : pairs_) {
    if (!pair.is_connected) continue;
    TESSERA_RETURN_IF_ERROR(pair.out->Health());
    TESSERA_RETURN_IF_ERROR(pair.in->Health());
  }
  return absl::OkStatus();
}

// Reports the error to the communicator before NCCL's kernels end, so that
// threads that wait for them see it.
void NcclEngine::Fail(const absl::Status& status) {
  if (failure_.Set(status)) {
    const std::lock_guard lock(on_error_mutex_);
    if (on_error_) on_error_(status);
  }
  End(status);
}

void NcclEngine::End(const absl::Status& status) {
  if (ended_.exchange(true)) return;
  collectives_->Abort();
  {
    const std::lock_guard lock(pairs_mutex_);
    for (auto& [peer, pair] : pairs_) {
      pair.out->Abort();
      pair.in->Abort();
    }
    pair_connected_.notify_all();
  }
  if (watcher_ != nullptr) watcher_->Stop();
  base_->Break(status);
}

absl::StatusOr<PairIds> NcclEngine::CreateIds() {
  PairIds ids;
  TESSERA_RETURN_IF_ERROR(api_.UseDevice(device_));
  for (NcclUniqueId* const id : {&ids.lower, &ids.higher}) {
    TESSERA_RETURN_IF_ERROR(NcclStatus(api_.GetUniqueId(id), "GetUniqueId"));
  }
  return ids;
}

void NcclEngine::StartConnecting(int64_t peer, const PairIds& ids) {
  const std::lock_guard lock(pairs_mutex_);
  Pair& pair = pairs_[peer];
  pair.out = std::make_unique<NcclLane>(api_, device_, failure_);
  pair.in = std::make_unique<NcclLane>(api_, device_, failure_);
  if (ended_) {
    pair.out->Abort();
    pair.in->Abort();
    return;
  }
  pair.connector = std::thread([this, peer, ids, &pair] {
    const absl::Status status = ConnectPair(peer, ids, pair);
    if (!status.ok()) {
      return Fail(
          Annotate(status, absl::StrCat("nccl: messages with rank ", peer)));
    }
    const std::lock_guard lock(pairs_mutex_);
    pair.is_connected = true;
    pair_connected_.notify_all();
  });
}

// NCCL connects two ranks at their first message, which both must call. Send
// one here, so that no later call waits for the other rank.
absl::Status NcclEngine::ConnectPair(int64_t peer, const PairIds& ids,
                                     Pair& pair) {
  const int64_t deadline = DeadlineAfter(options_.connect_timeout);
  const bool is_lower = rank().value() < peer;
  const int me = is_lower ? 0 : 1;
  // Both ranks connect the lower rank's direction first.
  for (const bool lowers : {true, false}) {
    const bool is_out = lowers == is_lower;
    TESSERA_RETURN_IF_ERROR(
        (is_out ? pair.out : pair.in)
            ->Connect(lowers ? ids.lower : ids.higher, me, 2,
                      options_.message_blocks,
                      absl::StrCat(base_->name(),
                                   is_out ? " to rank " : " from rank ", peer),
                      deadline));
  }
  TESSERA_ASSIGN_OR_RETURN(pair.memory,
                           tessera::Buffer::Allocate(device_.memory(), 512));
  const bool first_out = is_lower;
  for (const bool out : {first_out, !first_out}) {
    NcclLane& lane = out ? *pair.out : *pair.in;
    std::byte* const data = pair.memory.data() + (out ? 0 : 256);
    TESSERA_RETURN_IF_ERROR(lane.Call(
        out ? "Send" : "Recv",
        [&](NcclComm comm, NcclStream stream) {
          return out ? api_.Send(data, 1, NcclType::kUint8, 1 - me, comm,
                                 stream)
                     : api_.Recv(data, 1, NcclType::kUint8, 1 - me, comm,
                                 stream);
        },
        deadline));
  }
  return absl::OkStatus();
}

absl::StatusOr<Pair*> NcclEngine::ConnectedTo(int64_t peer,
                                              absl::Duration timeout) {
  {
    const std::lock_guard lock(pairs_mutex_);
    const auto found = pairs_.find(peer);
    if (found != pairs_.end() && found->second.is_connected) {
      return &found->second;
    }
  }
  watcher_->Connect(peer);
  const int64_t deadline =
      DeadlineAfter(std::max(timeout, options_.connect_timeout));
  std::unique_lock lock(pairs_mutex_);
  for (;;) {
    TESSERA_RETURN_IF_ERROR(failure_.status());
    const auto found = pairs_.find(peer);
    if (found != pairs_.end() && found->second.is_connected) {
      return &found->second;
    }
    if (MonotonicNanos() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "nccl: rank ", peer, " did not connect for messages within ",
          absl::FormatDuration(std::max(timeout, options_.connect_timeout)),
          "; it has left the group, or hangs"));
    }
    pair_connected_.wait_for(lock, std::chrono::milliseconds(10));
  }
}

absl::StatusOr<Event> NcclEngine::Enqueue(const Operation& operation,
                                          const EnqueueCall& call) {
  if (call.algorithm.value_or(Algorithm::kEngine) != Algorithm::kEngine) {
    return absl::UnimplementedError(absl::StrCat(
        "engine nccl has only its own algorithms, not ",
        AlgorithmName(*call.algorithm), "; leave out CallOptions::algorithm"));
  }
  if (Reduces(operation.kind) && IsBitwise(operation.reduction.op)) {
    return absl::UnimplementedError(absl::StrCat(
        "engine nccl has no reduction ", ReduceOpName(operation.reduction.op),
        "; gather the elements and combine them"));
  }
  TESSERA_RETURN_IF_ERROR(failure_.status());
  if (IsCollective(operation.kind)) return EnqueueCollective(operation, call);
  if (operation.kind == OpKind::kSendReceive) {
    return EnqueueBoth(operation, call);
  }
  return EnqueueMessage(operation, call);
}

// All ranks agree that there is nothing to move.
bool IsEmpty(const Operation& operation, int64_t size) {
  return operation.kind != OpKind::kBarrier &&
         MessageCount(operation, size) == 0 &&
         (operation.kind != OpKind::kAllToAll || !operation.uneven());
}

absl::StatusOr<Event> NcclEngine::EnqueueCollective(const Operation& operation,
                                                    const EnqueueCall& call) {
  watcher_->Enter(call.signature.sequence);
  Queue& queue = collectives_->queue();
  TESSERA_RETURN_IF_ERROR(queue.Wait(call.after, call.place));
  if (IsEmpty(operation, size())) return queue.Record(call.place);
  WatchedCall watched = {.timeout = call.timeout, .signature = call.signature};
  TESSERA_ASSIGN_OR_RETURN(watched.begun, queue.Record(call.place));
  Operation real = operation;
  TESSERA_RETURN_IF_ERROR(CopyInput(real, queue, call));
  watched.deadline = DeadlineAfter(call.timeout);
  const absl::Status called = collectives_->Call(
      OpKindName(operation.kind),
      [&](NcclComm comm, NcclStream stream) {
        return collectives::EnqueueCollective(
            {api_, comm, stream, rank().value(), size()}, real, word_.data());
      },
      watched.deadline);
  if (absl::IsDeadlineExceeded(called) && !failure_.failed()) {
    return watcher_->Overdue(watched);
  }
  TESSERA_RETURN_IF_ERROR(called);
  watched.deadline = 0;
  TESSERA_ASSIGN_OR_RETURN(watched.done, queue.Record(call.place));
  const Event done = watched.done;
  watcher_->Watch(std::move(watched));
  return done;
}

// An in-place all_to_all reads from a copy.
absl::Status NcclEngine::CopyInput(Operation& operation, Queue& queue,
                                   const EnqueueCall& call) {
  if (operation.kind != OpKind::kAllToAll || operation.input.count == 0 ||
      operation.input.data != operation.output.data) {
    return absl::OkStatus();
  }
  const std::span<const std::byte> input = operation.input.AsBytes();
  if (copies_.empty() || copies_.back().size() < input.size()) {
    TESSERA_ASSIGN_OR_RETURN(
        tessera::Buffer copy,
        tessera::Buffer::Allocate(device_.memory(), input.size()));
    copies_.push_back(std::move(copy));
  }
  const std::span<std::byte> copy = copies_.back().bytes().first(input.size());
  operation.input.data = copy.data();
  return queue.Copy(input, copy, call.place);
}

absl::StatusOr<Event> NcclEngine::EnqueueMessage(const Operation& operation,
                                                 const EnqueueCall& call) {
  const bool sends = operation.kind == OpKind::kSend;
  const int64_t peer =
      (sends ? operation.destination : operation.source).value();
  if (peer == rank().value()) return EnqueueToSelf(operation, call);
  TESSERA_ASSIGN_OR_RETURN(Pair* const pair, ConnectedTo(peer, call.timeout));
  NcclLane& lane = sends ? *pair->out : *pair->in;
  Queue& queue = lane.queue();
  TESSERA_RETURN_IF_ERROR(queue.Wait(call.after, call.place));
  const int64_t count = sends ? operation.input.count : operation.output.count;
  if (count == 0) return queue.Record(call.place);
  const auto self = static_cast<int32_t>(rank().value());
  const auto other = static_cast<int32_t>(peer);
  WatchedCall watched = {
      .timeout = call.timeout,
      .signature = SignatureOf(operation, size(), call.signature.group,
                               lane.NextNumber(), Algorithm::kEngine),
      .from = sends ? self : other,
      .to = sends ? other : self};
  TESSERA_ASSIGN_OR_RETURN(watched.begun, queue.Record(call.place));
  // The peer's rank in the communicator of two.
  const int at = peer < rank().value() ? 0 : 1;
  const NcclType type = NcclTypeOf(DTypeOf(operation));
  TESSERA_RETURN_IF_ERROR(lane.Call(
      sends ? "Send" : "Recv",
      [&](NcclComm comm, NcclStream stream) {
        const auto elements = static_cast<size_t>(count);
        return sends ? api_.Send(operation.input.data, elements, type, at, comm,
                                 stream)
                     : api_.Recv(operation.output.data, elements, type, at,
                                 comm, stream);
      },
      DeadlineAfter(call.timeout)));
  TESSERA_ASSIGN_OR_RETURN(watched.done, queue.Record(call.place));
  const Event done = watched.done;
  watcher_->Watch(std::move(watched));
  return done;
}

// A queue without NCCL calls.
absl::StatusOr<Queue*> NcclEngine::LocalQueue(int64_t to, int64_t from,
                                              const EnqueueCall& call) {
  std::unique_ptr<Queue>& queue = local_[{to, from}];
  if (queue == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(
        queue, device_.CreateQueue(absl::StrCat(call.group, " to rank ", to,
                                                ", from rank ", from)));
  }
  return queue.get();
}

// The send and the receive use separate queues, so that neither delays messages
// in the other direction. A queue for these two peers joins them.
absl::StatusOr<Event> NcclEngine::EnqueueBoth(const Operation& operation,
                                              const EnqueueCall& call) {
  TESSERA_ASSIGN_OR_RETURN(
      const Event sent,
      EnqueueMessage(SendOf(operation.input, operation.destination), call));
  TESSERA_ASSIGN_OR_RETURN(
      const Event received,
      EnqueueMessage(ReceiveOf(operation.output, operation.source), call));
  TESSERA_ASSIGN_OR_RETURN(Queue* const both,
                           LocalQueue(operation.destination.value(),
                                      operation.source.value(), call));
  TESSERA_RETURN_IF_ERROR(both->Wait(sent, call.place));
  TESSERA_RETURN_IF_ERROR(both->Wait(received, call.place));
  return both->Record(call.place);
}

absl::StatusOr<Event> NcclEngine::EnqueueToSelf(const Operation& operation,
                                                const EnqueueCall& call) {
  const int64_t self = rank().value();
  TESSERA_ASSIGN_OR_RETURN(Queue* const queue, LocalQueue(self, self, call));
  while (!received_by_self_.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const bool done,
                             received_by_self_.front().done.Test());
    if (!done) break;
    received_by_self_.pop_front();
  }
  if (operation.kind == OpKind::kSend) {
    const std::span<const std::byte> input = operation.input.AsBytes();
    TESSERA_RETURN_IF_ERROR(queue->Wait(call.after, call.place));
    SelfMessage message;
    if (!input.empty()) {
      TESSERA_ASSIGN_OR_RETURN(
          message.memory,
          tessera::Buffer::Allocate(device_.memory(), input.size()));
      TESSERA_RETURN_IF_ERROR(
          queue->Copy(input, message.memory.bytes(), call.place));
    }
    TESSERA_ASSIGN_OR_RETURN(message.done, queue->Record(call.place));
    sent_to_self_.push_back(std::move(message));
    return sent_to_self_.back().done;
  }
  if (sent_to_self_.empty()) {
    return absl::UnimplementedError(
        absl::StrCat(DescribeOperation(operation), " on rank ", rank().value(),
                     ": nccl receives a message of a rank to itself after it "
                     "was sent; call Send first"));
  }
  SelfMessage& message = sent_to_self_.front();
  const std::span<std::byte> output = operation.output.AsBytes();
  if (message.memory.size() != output.size()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", rank().value(), " sends itself ", message.memory.size(),
        " bytes, but receives ", output.size()));
  }
  TESSERA_RETURN_IF_ERROR(queue->Wait(call.after, call.place));
  if (!output.empty()) {
    TESSERA_RETURN_IF_ERROR(
        queue->Copy(message.memory.bytes(), output, call.place));
  }
  TESSERA_ASSIGN_OR_RETURN(message.done, queue->Record(call.place));
  received_by_self_.push_back(std::move(message));
  sent_to_self_.pop_front();
  return received_by_self_.back().done;
}

absl::StatusOr<std::unique_ptr<Engine>> CreateOn(
    std::unique_ptr<Communicator> base, Device& device, const NcclApi& api,
    const NcclOptions& options) {
  auto engine =
      std::make_unique<NcclEngine>(std::move(base), device, api, options);
  TESSERA_RETURN_IF_ERROR(engine->Connect());
  return engine;
}

// ncclCommSplit would require a call by all ranks of this group, but only the
// members call.
absl::StatusOr<std::unique_ptr<Engine>> NcclEngine::CreateSubgroup(
    std::span<const Rank> members, uint32_t group, int64_t) {
  TESSERA_RETURN_IF_ERROR(failure_.status());
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<Communicator> base,
      base_->Subgroup(members, absl::StrCat(base_->name(), "/", group)));
  return CreateOn(std::move(base), device_, api_, options_);
}

absl::StatusOr<std::unique_ptr<SharedMemory>> NcclEngine::AllocateShared(
    int64_t bytes) {
  if (bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "nccl: cannot allocate ", bytes, " bytes; use at least 0"));
  }
  auto memory =
      std::make_unique<RegisteredMemory>(api_, device_, *collectives_);
  TESSERA_RETURN_IF_ERROR(memory->Allocate(bytes));
  return memory;
}

absl::Status Validate(const NcclOptions& options) {
  if (options.connect_timeout <= absl::ZeroDuration() ||
      options.pulse <= absl::ZeroDuration() || options.message_blocks < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("nccl: connect_timeout is ",
                     absl::FormatDuration(options.connect_timeout), ", pulse ",
                     absl::FormatDuration(options.pulse), ", message_blocks ",
                     options.message_blocks,
                     "; times must be more than 0, blocks at least 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateNcclEngine(
    Communicator& host, Device& device, const NcclApi& api,
    const NcclOptions& options) {
  TESSERA_RETURN_IF_ERROR(Validate(options));
  {
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Queue> queue,
                             device.CreateQueue("nccl"));
    TESSERA_RETURN_IF_ERROR(api.StreamOf(*queue).status());
  }
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<Communicator> base,
      host.Subgroup(AllRanks(host.size()), absl::StrCat(host.name(), "/nccl")));
  return CreateOn(std::move(base), device, api, options);
}

absl::StatusOr<std::unique_ptr<Communicator>> CreateNcclCommunicator(
    std::unique_ptr<Communicator> host, Device& device,
    const NcclOptions& options) {
  if (host == nullptr) {
    return absl::InvalidArgumentError(
        "host is null; give the communicator for memory of the host");
  }
  TESSERA_ASSIGN_OR_RETURN(const NcclApi* const api, NativeNccl());
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                           CreateNcclEngine(*host, device, *api, options));
  return Communicator::CreateOnDevice(std::move(host), std::move(engine));
}

}  // namespace tessera::collectives
