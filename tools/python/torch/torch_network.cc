#include "tools/python/torch/torch_network.h"

#include <ATen/ATen.h>
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/network_options.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/job_secret.h"
#include "collectives/channel/message_cipher.h"
#include "collectives/engine/blocking_transport.h"
#include "collectives/engine/library_engine.h"
#include "collectives/engine/transport.h"

namespace tessera::torch_backend {
namespace {

namespace py = pybind11;
using collectives::BlockingGroup;
using collectives::BlockingTransport;
using collectives::Engine;
using collectives::Operation;
using collectives::OperationContext;
using collectives::Rank;

std::optional<std::string> Variable(std::string_view name) {
  const char* const value = std::getenv(std::string(name).c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// torch chooses the address if there are no options.
absl::StatusOr<std::map<std::string, std::string>> AddressOptions(
    absl::Duration timeout) {
  TESSERA_ASSIGN_OR_RETURN(auto options,
                           collectives::NetworkOptions(Variable, timeout));
  const std::string& address = options["hostname"];
  if (absl::StartsWith(address, "127.") || address == "::1") {
    return absl::FailedPreconditionError(absl::StrCat(
        "the job has several hosts, but the route to MASTER_ADDR leaves from ",
        address,
        ", which only this host can reach; set MASTER_ADDR to an address that "
        "all hosts reach, or GLOO_SOCKET_IFNAME to an interface"));
  }
  if (address.empty()) options.erase("hostname");
  return options;
}

// The keys in `store` are not used otherwise.
absl::StatusOr<c10::intrusive_ptr<c10d::Backend>> ConnectGloo(
    c10::intrusive_ptr<c10d::Store> store, int rank, int size,
    absl::Duration timeout) {
  const auto deadline = collectives::Deadline::After(timeout);
  TESSERA_ASSIGN_OR_RETURN(const auto options, AddressOptions(timeout));
  const py::gil_scoped_acquire gil;
  try {
    py::dict address;
    for (const auto& [name, value] : options) {
      if (name != "encrypt") address[name.c_str()] = value;
    }
    return py::module_::import("tessera_torch")
        .attr("_connect_gloo")(store, rank, size,
                               absl::ToChronoMilliseconds(timeout), **address)
        .cast<c10::intrusive_ptr<c10d::Backend>>();
  } catch (const std::exception& error) {
    const std::string text =
        absl::StrCat("connecting the ranks with torch's gloo: ",
                     std::string_view(error.what()).substr(0, 512));
    return deadline.Expired() ? absl::DeadlineExceededError(text)
                              : absl::UnavailableError(text);
  }
}

// The keys of a group if the user wants encryption. torch's store does not
// authenticate, so that ranks must know a secret.
absl::StatusOr<std::unique_ptr<collectives::KeyExchange>> CreateKeys() {
  TESSERA_ASSIGN_OR_RETURN(const bool encrypts,
                           collectives::EncryptsData(Variable));
  if (!encrypts) return nullptr;
  TESSERA_ASSIGN_OR_RETURN(
      const std::string secret,
      collectives::FindJobSecret(Variable, /*local_only=*/false),
      Annotate(_, collectives::kEncryptDataVariable));
  return collectives::KeyExchange::Create(secret);
}

// Gloo matches the messages between two ranks by a tag of 31 bits.
int TagOf(uint64_t slot) {
  constexpr uint64_t kKinds = 256;
  constexpr uint64_t kLanes = collectives::kLaneCountWithTags;
  constexpr uint64_t kSizes = ((uint64_t{1} << 31) - kKinds) / kLanes;
  const uint64_t kind = slot >> 56;
  const uint64_t bytes = slot & ((uint64_t{1} << 56) - 1);
  const uint64_t tag =
      bytes == 0 ? kind : kKinds + (kind % kLanes) * kSizes + bytes % kSizes;
  return static_cast<int>(tag);
}

class GlooMessage final : public BlockingGroup::Message {
 public:
  explicit GlooMessage(c10::intrusive_ptr<c10d::Work> work)
      : work_(std::move(work)) {}

  void Wait(std::chrono::milliseconds timeout) override {
    if (!work_->wait(timeout)) throw std::runtime_error("interrupted");
  }
  void Interrupt() override { work_->abort(); }

 private:
  const c10::intrusive_ptr<c10d::Work> work_;
};

class GlooGroup final : public BlockingGroup {
 public:
  static absl::StatusOr<std::shared_ptr<GlooGroup>> Connect(
      TorchStore& store, std::vector<Rank> members, const std::string& id,
      int64_t deadline) {
    const std::shared_ptr<GlooGroup> group(
        new GlooGroup(store, std::move(members), id));
    TESSERA_ASSIGN_OR_RETURN(auto keys, CreateKeys());
    TESSERA_RETURN_IF_ERROR(group->Meet(deadline, std::move(keys)));
    if (group->size() == 1) return group;
    TESSERA_ASSIGN_OR_RETURN(
        group->gloo_,
        ConnectGloo(store.WithPrefix(absl::StrCat("gloo/", id)),
                    static_cast<int>(group->rank().value()),
                    static_cast<int>(group->size()),
                    collectives::TimeOfDeadline(deadline) - absl::Now()));
    return group;
  }

  absl::StatusOr<std::shared_ptr<GlooGroup>> Subgroup(
      std::span<const Rank> members, uint32_t group, int64_t deadline) {
    TESSERA_RETURN_IF_ERROR(failure().status());
    std::vector<Rank> in_job = InJob(members);
    const std::string id = collectives::SubgroupId(id_, in_job, group);
    return Connect(torch_store_, std::move(in_job), id, deadline);
  }

  // Gloo does not write to what it sends.
  std::unique_ptr<Message> Send(Rank to, uint64_t slot, const void* data,
                                size_t bytes) override {
    std::vector<at::Tensor> tensors = {Wrap(const_cast<void*>(data), bytes)};
    return std::make_unique<GlooMessage>(
        gloo_->send(tensors, static_cast<int>(to.value()), TagOf(slot)));
  }
  std::unique_ptr<Message> Receive(Rank from, uint64_t slot, void* data,
                                   size_t bytes) override {
    std::vector<at::Tensor> tensors = {Wrap(data, bytes)};
    return std::make_unique<GlooMessage>(
        gloo_->recv(tensors, static_cast<int>(from.value()), TagOf(slot)));
  }

 private:
  GlooGroup(TorchStore& store, std::vector<Rank> members, const std::string& id)
      : BlockingGroup(store, std::move(members), id), torch_store_(store) {}

  static at::Tensor Wrap(void* data, size_t bytes) {
    return at::from_blob(data, {static_cast<int64_t>(bytes)}, at::kByte);
  }

  TorchStore& torch_store_;
  c10::intrusive_ptr<c10d::Backend> gloo_;  // Null if the group has one rank.
};

class TorchNetwork final
    : public collectives::LibraryEngine<TorchNetwork, GlooGroup,
                                        BlockingTransport> {
 public:
  using LibraryEngine::LibraryEngine;

  std::string_view name() const override { return "gloo"; }
  bool Implements(collectives::OpKind) const override { return false; }
  absl::Status Run(const Operation&, OperationContext&) override {
    return absl::UnimplementedError("it has messages only");
  }
  void Abort(const absl::Status& reason) override {
    group_->Abort(reason);
    transport_.Abort(reason);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateTorchNetwork(
    TorchStore& store, const std::string& name, absl::Duration timeout) {
  TESSERA_ASSIGN_OR_RETURN(
      auto group,
      GlooGroup::Connect(store, collectives::AllRanks(store.size()), name,
                         collectives::DeadlineAfter(timeout)));
  TESSERA_ASSIGN_OR_RETURN(const auto options, AddressOptions(timeout));
  const std::string note = collectives::ClearDataNote(
      options, absl::StrCat(collectives::kEncryptDataVariable, "=1"));
  if (store.rank() == Rank(0) && !note.empty()) {
    TORCH_WARN_ONCE(note);
  }
  return std::make_unique<TorchNetwork>(std::move(group));
}

}  // namespace tessera::torch_backend
