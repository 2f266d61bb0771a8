// A complete custom engine: TCP over loopback under the name "sockets".
//
// It provides messages between two ranks (socket_transport.h) and connects the
// ranks (links.h); Tessera's algorithms provide all collectives. Linking this
// target registers the name.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto engine,
//       CreateEngine("sockets", {.rank = rank, .size = size, .store = store}));
#include "collectives/engine/engine.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "collectives/engine/engine_registry.h"
#include "collectives/examples/links.h"
#include "collectives/examples/socket_transport.h"

namespace tessera::collectives::example {
namespace {

// Uses ordinary memory.
class Memory : public SharedMemory {
 public:
  explicit Memory(int64_t bytes) : memory_(static_cast<size_t>(bytes) + 63) {}
  std::span<std::byte> bytes() const override {
    const auto misaligned = reinterpret_cast<uintptr_t>(memory_.data()) % 64;
    auto* const start = const_cast<std::byte*>(memory_.data());
    return {start + (64 - misaligned) % 64, memory_.size() - 63};
  }

 private:
  std::vector<std::byte> memory_;
};

class SocketEngine : public Engine {
 public:
  SocketEngine(Store& store, std::vector<Rank> members, std::string name,
               Links links)
      : store_(store),
        members_(std::move(members)),
        name_(std::move(name)),
        transport_(std::move(links)) {}

  static absl::StatusOr<std::unique_ptr<Engine>> Create(
      Store& store, std::vector<Rank> members, std::string name,
      absl::Time deadline) {
    TESSERA_ASSIGN_OR_RETURN(Links links,
                             Links::Connect(store, members, name, deadline));
    return std::make_unique<SocketEngine>(store, std::move(members),
                                          std::move(name), std::move(links));
  }

  std::string_view name() const override { return "sockets"; }
  Rank rank() const override { return transport_.rank(); }
  int64_t size() const override { return transport_.size(); }

  // Implements no collective: Communicator runs algorithms over the messages.
  bool Implements(OpKind) const override { return false; }
  absl::Status Run(const Operation& operation, OperationContext&) override {
    return absl::UnimplementedError(absl::StrCat("sockets does not implement ",
                                                 OpKindName(operation.kind)));
  }
  Transport* transport() override { return &transport_; }

  absl::StatusOr<std::unique_ptr<Engine>> CreateSubgroup(
      std::span<const Rank> members, uint32_t group,
      int64_t deadline) override {
    std::vector<Rank> in_job;
    std::string name = absl::StrCat(name_, "/", group);
    for (Rank member : members) {
      in_job.push_back(members_[static_cast<size_t>(member.value())]);
      absl::StrAppend(&name, ".", in_job.back().value());
    }
    return Create(store_, std::move(in_job), std::move(name),
                  absl::Now() + absl::Nanoseconds(deadline - MonotonicNanos()));
  }

  absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateShared(
      int64_t bytes) override {
    if (bytes < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot allocate ", bytes, " bytes; use at least 0"));
    }
    return std::make_unique<Memory>(bytes);
  }

  void Abort(const absl::Status& reason) override { transport_.Abort(reason); }
  std::vector<PeerReport> Peers() const override { return transport_.Peers(); }

 private:
  Store& store_;
  const std::vector<Rank> members_;  // Ranks of the job.
  const std::string name_;
  SocketTransport transport_;
};

absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineSetup& setup) {
  absl::Duration timeout = absl::Seconds(30);
  OptionReader reader("sockets", setup.options);
  reader.Read("timeout", timeout);
  TESSERA_RETURN_IF_ERROR(reader.Finish());
  if (setup.store == nullptr) {
    return absl::InvalidArgumentError(
        "engine sockets needs a store through which its ranks meet");
  }
  std::vector<Rank> members;
  for (int64_t r = 0; r < setup.size; ++r) members.push_back(Rank(r));
  return SocketEngine::Create(*setup.store, std::move(members), "world",
                              absl::Now() + timeout);
}

[[maybe_unused]] const bool registered = RegisterEngine("sockets", Create);

}  // namespace
}  // namespace tessera::collectives::example
