#include "collectives/nccl/testing/nccl_stand_in.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/dtype_traits.h"
#include "base/tensor/memory.h"
#include "collectives/reduction/combine.h"

namespace tessera::collectives {
namespace {

enum class Kind {
  kAllReduce,
  kReduce,
  kBroadcast,
  kReduceScatter,
  kAllGather,
  kSend,
  kReceive
};

// Operators that RedOpCreatePreMulSum creates.
constexpr int kFirstCreatedOp = 100;

class Comm;

struct Call {
  Kind kind;
  const void* send = nullptr;
  void* receive = nullptr;
  size_t count = 0;  // As passed to NCCL's function.
  NcclType type = NcclType::kUint8;
  int op = 0;
  int peer = 0;  // The peer or the root.
  double scale = 1;
  std::shared_ptr<Comm> comm = nullptr;
  Queue* queue = nullptr;
};

bool Match(const Call& a, const Call& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type &&
         a.op == b.op && a.peer == b.peer;
}

// Calls on one queue that execute together.
class Bundle final : public EventState {
 public:
  explicit Bundle(size_t calls) : left_(calls) {}
  absl::StatusOr<bool> Test() override { return left_ == 0; }
  absl::Status Wait() override {
    while (left_ > 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return absl::OkStatus();
  }
  void FinishOne() { --left_; }
  void FinishAll() { left_ = 0; }

 private:
  std::atomic<size_t> left_;
};

// A call that its queue has reached.
struct Posted {
  Call call;
  std::shared_ptr<Bundle> bundle;
};

// The state shared by the ranks of a communicator. Guarded by mutex().
struct World {
  int ranks = 0;
  int come = 0;
  // By the number of the collective and the rank.
  std::map<uint64_t, std::map<int, Posted>> collectives;
  // By the sender and the receiver.
  std::map<std::pair<int, int>, std::deque<Posted>> sends, receives;
};

// Never destroyed: threads of tests may outlive main's objects.
std::mutex& mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

std::map<std::string, std::shared_ptr<World>>& worlds() {
  static auto* const worlds = new std::map<std::string, std::shared_ptr<World>>;
  return *worlds;
}

class Comm {
 public:
  std::shared_ptr<World> world;
  int rank = 0;
  bool aborted = false;
  uint64_t collectives = 0;  // Number of posted collectives.
  std::vector<std::weak_ptr<Bundle>> bundles;
  std::vector<double> scales;  // Factors of created operators.
  Event last;                  // The last call that was enqueued.
};

DType DTypeOfNccl(NcclType type) {
  switch (type) {
    case NcclType::kInt8:
      return DType::kI8;
    case NcclType::kUint8:
      return DType::kU8;
    case NcclType::kInt32:
      return DType::kI32;
    case NcclType::kInt64:
      return DType::kI64;
    case NcclType::kFloat16:
      return DType::kF16;
    case NcclType::kFloat32:
      return DType::kF32;
    case NcclType::kFloat64:
      return DType::kF64;
    case NcclType::kBfloat16:
      return DType::kBF16;
  }
  return DType::kU8;
}

size_t BytesOf(const Call& call, size_t count) {
  return count * static_cast<size_t>(SizeInBytes(DTypeOfNccl(call.type)));
}

Reduction ReductionOf(const Call& call) {
  switch (static_cast<NcclOp>(call.op)) {
    case NcclOp::kSum:
      return Reduction::Sum();
    case NcclOp::kProd:
      return Reduction::Product();
    case NcclOp::kMax:
      return Reduction::Max();
    case NcclOp::kMin:
      return Reduction::Min();
    case NcclOp::kAvg:
      return Reduction::Average();
  }
  return Reduction::ScaledSum(call.scale);
}

// Combines elements [first, first + count) of all inputs into `outputs`, which
// may be inputs of other ranks: a copy of the result keeps them until then.
void Fold(const std::map<int, Posted>& ranks, size_t first, size_t count,
          std::vector<std::byte>& result) {
  const Call& call = ranks.begin()->second.call;
  std::vector<const void*> inputs;
  for (const auto& [rank, posted] : ranks) {
    inputs.push_back(static_cast<const std::byte*>(posted.call.send) +
                     BytesOf(call, first));
  }
  result.resize(BytesOf(call, count) + 64);
  void* output = result.data();
  Combine(Combination::Whole(ReductionOf(call), DTypeOfNccl(call.type),
                             static_cast<int64_t>(ranks.size())),
          inputs, {&output, 1}, static_cast<int64_t>(count));
}

void Execute(const std::map<int, Posted>& ranks) {
  const Call& first = ranks.begin()->second.call;
  const size_t n = ranks.size();
  std::vector<std::vector<std::byte>> results(n);
  const size_t bytes = BytesOf(first, first.count);
  switch (first.kind) {
    case Kind::kAllReduce:
    case Kind::kReduce:
      Fold(ranks, 0, first.count, results[0]);
      for (const auto& [rank, posted] : ranks) {
        if (first.kind == Kind::kReduce && rank != first.peer) continue;
        std::memcpy(posted.call.receive, results[0].data(), bytes);
      }
      return;
    case Kind::kReduceScatter:
      for (size_t r = 0; r < n; ++r) {
        Fold(ranks, r * first.count, first.count, results[r]);
      }
      for (const auto& [rank, posted] : ranks) {
        std::memcpy(posted.call.receive,
                    results[static_cast<size_t>(rank)].data(), bytes);
      }
      return;
    case Kind::kBroadcast:
      for (const auto& [rank, posted] : ranks) {
        std::memmove(posted.call.receive, ranks.at(first.peer).call.send,
                     bytes);
      }
      return;
    case Kind::kAllGather:
      for (const auto& [rank, posted] : ranks) {
        for (const auto& [from, source] : ranks) {
          std::memmove(static_cast<std::byte*>(posted.call.receive) +
                           static_cast<size_t>(from) * bytes,
                       source.call.send, bytes);
        }
      }
      return;
    default:
      return;
  }
}

// Posts a call and executes all complete calls. Requires mutex().
void Post(Posted posted) {
  Comm& comm = *posted.call.comm;
  World& world = *comm.world;
  const Call& call = posted.call;
  if (call.kind != Kind::kSend && call.kind != Kind::kReceive) {
    const uint64_t number = ++comm.collectives;
    std::map<int, Posted>& ranks = world.collectives[number];
    ranks[comm.rank] = std::move(posted);
    if (static_cast<int>(ranks.size()) < world.ranks) return;
    for (const auto& [rank, other] : ranks) {
      if (!Match(ranks.begin()->second.call, other.call)) return;
    }
    Execute(ranks);
    for (const auto& [rank, other] : ranks) other.bundle->FinishOne();
    world.collectives.erase(number);
    return;
  }
  const bool sends = call.kind == Kind::kSend;
  const std::pair<int, int> ends =
      sends ? std::pair(comm.rank, call.peer) : std::pair(call.peer, comm.rank);
  (sends ? world.sends : world.receives)[ends].push_back(std::move(posted));
  auto& out = world.sends[ends];
  auto& in = world.receives[ends];
  while (!out.empty() && !in.empty()) {
    const Call& from = out.front().call;
    const Call& to = in.front().call;
    if (from.count != to.count || from.type != to.type) return;
    std::memmove(to.receive, from.send, BytesOf(from, from.count));
    out.front().bundle->FinishOne();
    in.front().bundle->FinishOne();
    out.pop_front();
    in.pop_front();
  }
}

absl::StatusOr<Event> Begin(const std::vector<Call>& calls,
                            const DeviceAddresses& at) {
  auto bundle = std::make_shared<Bundle>(calls.size());
  const std::lock_guard lock(mutex());
  Comm& comm = *calls.front().comm;
  if (comm.aborted) return Event();
  std::erase_if(comm.bundles, [](const auto& one) { return one.expired(); });
  comm.bundles.push_back(bundle);
  for (const Call& call : calls) {
    Call real = call;
    real.send = at(static_cast<const std::byte*>(call.send));
    real.receive = at(static_cast<std::byte*>(call.receive));
    Post({std::move(real), bundle});
  }
  return Event(std::move(bundle));
}

void AddAccesses(const Call& call, HostFunction& function) {
  const auto n = static_cast<size_t>(call.comm->world->ranks);
  const bool is_root = call.comm->rank == call.peer;
  size_t reads = call.count, writes = call.count;
  switch (call.kind) {
    case Kind::kReduceScatter:
      reads *= n;
      break;
    case Kind::kAllGather:
      writes *= n;
      break;
    case Kind::kReduce:
      if (!is_root) writes = 0;
      break;
    case Kind::kBroadcast:
      if (!is_root) reads = 0;
      break;
    case Kind::kSend:
      writes = 0;
      break;
    case Kind::kReceive:
      reads = 0;
      break;
    default:
      break;
  }
  if (reads > 0) {
    function.accesses.push_back({static_cast<const std::byte*>(call.send),
                                 BytesOf(call, reads), false});
  }
  if (writes > 0) {
    function.accesses.push_back({static_cast<const std::byte*>(call.receive),
                                 BytesOf(call, writes), true});
  }
}

// Enqueues calls of one communicator on one queue.
NcclResult Enqueue(std::vector<Call> calls) {
  Queue& queue = *calls.front().queue;
  Comm& comm = *calls.front().comm;
  HostFunction function = {.name = "nccl"};
  for (const Call& call : calls) {
    if (call.queue != &queue || call.comm.get() != &comm) {
      return NcclResult::kInvalidUsage;
    }
    AddAccesses(call, function);
  }
  function.run = [calls = std::move(calls)](const DeviceAddresses& at) {
    return Begin(calls, at);
  };
  if (!queue.Wait(comm.last).ok() || !queue.Launch(std::move(function)).ok()) {
    return NcclResult::kUnhandledCudaError;
  }
  const absl::StatusOr<Event> last = queue.Record();
  if (!last.ok()) return NcclResult::kUnhandledCudaError;
  comm.last = *last;
  return NcclResult::kSuccess;
}

// The group of the calling thread.
struct Group {
  int depth = 0;
  std::vector<Call> calls;
};
thread_local Group group;

// A communicator's handle points to a shared pointer.
std::shared_ptr<Comm>& From(NcclComm comm) {
  return *static_cast<std::shared_ptr<Comm>*>(comm);
}

NcclResult Add(Call call, NcclComm comm, NcclStream stream) {
  call.comm = From(comm);
  call.queue = static_cast<Queue*>(stream);
  if (call.op >= kFirstCreatedOp) {
    call.scale =
        call.comm->scales[static_cast<size_t>(call.op - kFirstCreatedOp)];
    call.op = kFirstCreatedOp;
  }
  if (group.depth == 0) return Enqueue({std::move(call)});
  group.calls.push_back(std::move(call));
  return NcclResult::kSuccess;
}

NcclResult GroupEnd() {
  if (--group.depth > 0 || group.calls.empty()) return NcclResult::kSuccess;
  return Enqueue(std::exchange(group.calls, {}));
}

NcclResult GetUniqueId(NcclUniqueId* id) {
  static std::atomic<uint64_t> next = 1;
  const uint64_t number = next++;
  std::memcpy(id->bytes.data(), &number, sizeof(number));
  return NcclResult::kSuccess;
}

NcclResult CommInit(NcclComm* comm, int ranks, const NcclUniqueId& id, int rank,
                    int) {
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    return NcclResult::kInvalidArgument;
  }
  const std::lock_guard lock(mutex());
  const std::string key(id.bytes.data(), id.bytes.size());
  std::shared_ptr<World>& world = worlds()[key];
  if (world == nullptr) {
    world = std::make_shared<World>();
    world->ranks = ranks;
  }
  auto created = std::make_shared<Comm>();
  created->world = world;
  created->rank = rank;
  *comm = new std::shared_ptr<Comm>(created);
  if (++world->come == ranks) worlds().erase(key);
  return NcclResult::kInProgress;
}

NcclResult CommGetAsyncError(NcclComm comm, NcclResult* result) {
  const std::lock_guard lock(mutex());
  const World& world = *From(comm)->world;
  *result = world.come == world.ranks ? NcclResult::kSuccess
                                      : NcclResult::kInProgress;
  return NcclResult::kSuccess;
}

// Removes the calls that the rank has posted, so that other ranks cannot match
// them. Requires mutex().
void Withdraw(Comm& comm) {
  comm.aborted = true;
  World& world = *comm.world;
  for (auto& [number, ranks] : world.collectives) ranks.erase(comm.rank);
  for (auto* const messages : {&world.sends, &world.receives}) {
    for (auto& [ends, posted] : *messages) {
      std::erase_if(posted, [&](const Posted& one) {
        return one.call.comm.get() == &comm;
      });
    }
  }
  for (const std::weak_ptr<Bundle>& bundle : comm.bundles) {
    if (const auto alive = bundle.lock()) alive->FinishAll();
  }
}

NcclResult CommAbort(NcclComm comm) {
  const std::lock_guard lock(mutex());
  Withdraw(*From(comm));
  delete &From(comm);
  return NcclResult::kSuccess;
}

NcclResult CommDestroy(NcclComm comm) {
  const std::lock_guard lock(mutex());
  delete &From(comm);
  return NcclResult::kSuccess;
}

double ScalarFrom(const void* scalar, NcclType type) {
  // One f64 element, multiplied by one in the type itself.
  std::vector<std::byte> bytes(8);
  std::memcpy(bytes.data(), scalar,
              static_cast<size_t>(SizeInBytes(DTypeOfNccl(type))));
  double value = 0;
  DispatchDType(DTypeOfNccl(type), [&]<typename T>(std::type_identity<T>) {
    T element;
    std::memcpy(&element, bytes.data(), sizeof(T));
    if constexpr (std::is_arithmetic_v<T>) {
      value = static_cast<double>(element);
    } else {
      value = static_cast<double>(static_cast<float>(element));
    }
  });
  return value;
}

NcclResult RedOpCreatePreMulSum(NcclOp* op, void* scalar, NcclType type,
                                NcclComm comm) {
  std::vector<double>& scales = From(comm)->scales;
  *op = static_cast<NcclOp>(kFirstCreatedOp + static_cast<int>(scales.size()));
  scales.push_back(ScalarFrom(scalar, type));
  return NcclResult::kSuccess;
}

NcclResult MemAlloc(Device& device, void** data, size_t bytes) {
  const absl::StatusOr<void*> memory = device.memory()->Allocate(bytes, 256);
  if (!memory.ok()) return NcclResult::kUnhandledCudaError;
  *data = *memory;
  return NcclResult::kSuccess;
}

constexpr NcclApi kStandIn = {
    .StreamOf = [](Queue& queue) -> absl::StatusOr<NcclStream> {
      return static_cast<NcclStream>(&queue);
    },
    .UseDevice = [](Device&) { return absl::OkStatus(); },
    .LastError = [](NcclComm) { return std::string("stand-in"); },
    .GetUniqueId = GetUniqueId,
    .CommInit = CommInit,
    .CommGetAsyncError = CommGetAsyncError,
    .CommFinalize = [](NcclComm) { return NcclResult::kSuccess; },
    .CommDestroy = CommDestroy,
    .CommAbort = CommAbort,
    .GroupStart =
        [] {
          ++group.depth;
          return NcclResult::kSuccess;
        },
    .GroupEnd = GroupEnd,
    .AllReduce =
        [](const void* send, void* receive, size_t count, NcclType type,
           NcclOp op, NcclComm comm, NcclStream stream) {
          return Add({.kind = Kind::kAllReduce,
                      .send = send,
                      .receive = receive,
                      .count = count,
                      .type = type,
                      .op = static_cast<int>(op)},
                     comm, stream);
        },
    .Reduce =
        [](const void* send, void* receive, size_t count, NcclType type,
           NcclOp op, int root, NcclComm comm, NcclStream stream) {
          return Add({.kind = Kind::kReduce,
                      .send = send,
                      .receive = receive,
                      .count = count,
                      .type = type,
                      .op = static_cast<int>(op),
                      .peer = root},
                     comm, stream);
        },
    .Broadcast =
        [](const void* send, void* receive, size_t count, NcclType type,
           int root, NcclComm comm, NcclStream stream) {
          return Add({.kind = Kind::kBroadcast,
                      .send = send,
                      .receive = receive,
                      .count = count,
                      .type = type,
                      .peer = root},
                     comm, stream);
        },
    .ReduceScatter =
        [](const void* send, void* receive, size_t count, NcclType type,
           NcclOp op, NcclComm comm, NcclStream stream) {
          return Add({.kind = Kind::kReduceScatter,
                      .send = send,
                      .receive = receive,
                      .count = count,
                      .type = type,
                      .op = static_cast<int>(op)},
                     comm, stream);
        },
    .AllGather =
        [](const void* send, void* receive, size_t count, NcclType type,
           NcclComm comm, NcclStream stream) {
          return Add({.kind = Kind::kAllGather,
                      .send = send,
                      .receive = receive,
                      .count = count,
                      .type = type},
                     comm, stream);
        },
    .Send =
        [](const void* send, size_t count, NcclType type, int peer,
           NcclComm comm, NcclStream stream) {
          return Add({.kind = Kind::kSend,
                      .send = send,
                      .count = count,
                      .type = type,
                      .peer = peer},
                     comm, stream);
        },
    .Recv =
        [](void* receive, size_t count, NcclType type, int peer, NcclComm comm,
           NcclStream stream) {
          return Add({.kind = Kind::kReceive,
                      .receive = receive,
                      .count = count,
                      .type = type,
                      .peer = peer},
                     comm, stream);
        },
    .RedOpCreatePreMulSum = RedOpCreatePreMulSum,
    .RedOpDestroy = [](NcclOp, NcclComm) { return NcclResult::kSuccess; },
    .MemAlloc = MemAlloc,
    .MemFree =
        [](Device& device, void* data, size_t bytes) {
          device.memory()->Deallocate(data, bytes, 256);
          return NcclResult::kSuccess;
        },
    .CommRegister =
        [](NcclComm, void*, size_t, void** handle) {
          *handle = nullptr;
          return NcclResult::kSuccess;
        },
    .CommDeregister = [](NcclComm, void*) { return NcclResult::kSuccess; },
};

}  // namespace

const NcclApi& StandInNccl() { return kStandIn; }

}  // namespace tessera::collectives
