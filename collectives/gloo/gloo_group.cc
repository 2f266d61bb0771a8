#include "collectives/gloo/gloo_group.h"

#include <gloo/barrier.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <net/if.h>
#include <signal.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/channel/message_cipher.h"
#include "collectives/engine/library_engine.h"

namespace tessera::collectives {

namespace {

// The key without the number at its end.
std::string_view StemOf(std::string_view key) {
  while (!key.empty() && std::isdigit(static_cast<unsigned char>(key.back()))) {
    key.remove_suffix(1);
  }
  return key;
}

std::optional<int64_t> NumberAtEnd(std::string_view key) {
  int64_t number = 0;
  if (!absl::SimpleAtoi(key.substr(StemOf(key).size()), &number)) {
    return std::nullopt;
  }
  return number;
}

}  // namespace

void StoreAdapter::set(const std::string& key, const std::vector<char>& data) {
  const absl::Status status =
      store_.SetFor(/*reads=*/0, absl::StrCat(prefix_, key),
                    std::string_view(data.data(), data.size()), deadline_);
  if (!status.ok()) throw StoreError(status);
  set_keys_.push_back(key);
}

std::vector<char> StoreAdapter::get(const std::string& key) {
  const std::optional<int64_t> number = NumberAtEnd(key);
  const bool known =
      number.has_value() && *number < static_cast<int64_t>(members_.size());
  const Rank owner = known ? members_[static_cast<size_t>(*number)]
                           : collectives::Store::kAnyRank;
  const absl::StatusOr<std::string> value =
      store_.GetFrom(owner, absl::StrCat(prefix_, key), deadline_);
  if (!value.ok()) throw StoreError(value.status());
  return {value->begin(), value->end()};
}

absl::Status StoreAdapter::Erase() {
  for (const std::string& key : set_keys_) {
    const std::optional<int64_t> number = NumberAtEnd(key);
    if (!number.has_value()) continue;
    const Rank rank(*number);
    TESSERA_RETURN_IF_ERROR(store_.Erase(absl::StrCat(prefix_, StemOf(key)),
                                         {&rank, 1}, deadline_));
  }
  set_keys_.clear();
  return absl::OkStatus();
}

namespace {

// Checked here because Gloo leaks memory if the interface does not exist.
absl::Status CheckInterface(const std::string& interface) {
  if (interface.empty() || if_nametoindex(interface.c_str()) != 0) {
    return absl::OkStatus();
  }
  std::string known;
  if (struct if_nameindex* all = if_nameindex(); all != nullptr) {
    for (const auto* each = all; each->if_index != 0; ++each) {
      absl::StrAppend(&known, known.empty() ? "" : ", ", each->if_name);
    }
    if_freenameindex(all);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("gloo: there is no interface \"", interface.substr(0, 64),
                   "\"; this machine has ", known.empty() ? "none" : known));
}

// Gloo writes to a connection whose peer may just have died, which would end a
// process that leaves SIGPIPE as it is.
void SurviveBrokenConnections() {
  struct sigaction action = {};
  if (sigaction(SIGPIPE, nullptr, &action) != 0) return;
  if (action.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
}

}  // namespace

absl::StatusOr<std::shared_ptr<gloo::transport::Device>> CreateGlooDevice(
    const GlooOptions& options) {
  SurviveBrokenConnections();
  TESSERA_RETURN_IF_ERROR(CheckInterface(options.interface));
  gloo::transport::tcp::attr attributes;
  attributes.iface = options.interface;
  if (options.interface.empty()) attributes.hostname = options.hostname;
  try {
    return gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gloo: cannot listen on interface \"", options.interface.substr(0, 64),
        "\", host name \"", options.hostname.substr(0, 64),
        "\"; give one of this machine: ",
        std::string_view(error.what()).substr(0, 256)));
  }
}

namespace {

class BufferMessage : public BlockingGroup::Message {
 public:
  using Buffer = gloo::transport::UnboundBuffer;

  BufferMessage(std::unique_ptr<Buffer> buffer, Direction direction)
      : buffer_(std::move(buffer)), direction_(direction) {}

  void Wait(std::chrono::milliseconds timeout) override {
    const bool is_complete = direction_ == Direction::kSend
                                 ? buffer_->waitSend(timeout)
                                 : buffer_->waitRecv(timeout);
    if (!is_complete) throw std::runtime_error("the wait was interrupted");
  }
  void Interrupt() override { buffer_->abortWaitRecv(); }

 private:
  const std::unique_ptr<Buffer> buffer_;
  const Direction direction_;
};

}  // namespace

// Gloo takes a non-const pointer but does not write to it.
std::unique_ptr<BlockingGroup::Message> GlooGroup::Send(Rank to, uint64_t slot,
                                                        const void* data,
                                                        size_t bytes) {
  auto buffer = context_->createUnboundBuffer(const_cast<void*>(data), bytes);
  buffer->send(static_cast<int>(to.value()), slot);
  return std::make_unique<BufferMessage>(std::move(buffer), Direction::kSend);
}

std::unique_ptr<BlockingGroup::Message> GlooGroup::Receive(Rank from,
                                                           uint64_t slot,
                                                           void* data,
                                                           size_t bytes) {
  auto buffer = context_->createUnboundBuffer(data, bytes);
  buffer->recv(static_cast<int>(from.value()), slot);
  return std::make_unique<BufferMessage>(std::move(buffer),
                                         Direction::kReceive);
}

absl::StatusOr<std::shared_ptr<GlooGroup>> GlooGroup::Connect(
    Store& store, std::vector<Rank> members, const std::string& id,
    std::shared_ptr<gloo::transport::Device> device, const GlooOptions& options,
    int64_t deadline) {
  const std::shared_ptr<GlooGroup> group(
      new GlooGroup(store, std::move(members), id, std::move(device), options));
  std::unique_ptr<KeyExchange> keys;
  if (options.encrypt) {
    // The store authenticates the public keys.
    TESSERA_ASSIGN_OR_RETURN(keys, KeyExchange::Create(/*secret=*/""));
  }
  TESSERA_RETURN_IF_ERROR(group->Meet(deadline, std::move(keys)),
                          Annotate(_, "gloo"));
  if (group->size() > 1) {
    TESSERA_RETURN_IF_ERROR(group->ConnectAll(deadline), Annotate(_, "gloo"));
  }
  return group;
}

absl::StatusOr<std::shared_ptr<GlooGroup>> GlooGroup::Subgroup(
    std::span<const Rank> members, uint32_t group, int64_t deadline) {
  TESSERA_RETURN_IF_ERROR(failure().status());
  std::vector<Rank> in_job = InJob(members);
  const std::string id = SubgroupId(id_, in_job, group);
  return Connect(store_, std::move(in_job), id, device_, options_, deadline);
}

absl::Status GlooGroup::ConnectAll(int64_t deadline) {
  StoreAdapter adapter(store_, absl::StrCat("tessera/gloo/", id_, "/"),
                       members_, TimeOfDeadline(deadline));
  auto context = std::make_shared<gloo::rendezvous::Context>(
      static_cast<int>(rank().value()), static_cast<int>(size()));
  // Gloo waits five times as long for a connection.
  context->setTimeout(
      std::max(TimeUntil(deadline) / 5, std::chrono::milliseconds(1)));
  try {
    std::shared_ptr<gloo::transport::Device> device = device_;
    context->connectFullMesh(adapter, device);
    gloo::BarrierOptions barrier(context);
    barrier.setTimeout(TimeUntil(deadline));
    gloo::barrier(barrier);
  } catch (const StoreError& error) {
    return error.status();
  } catch (const std::exception& error) {
    const std::string text(std::string_view(error.what()).substr(0, 512));
    return MonotonicNanos() >= deadline
               ? absl::DeadlineExceededError(
                     absl::StrCat("connecting the ranks: ", text))
               : absl::UnavailableError(
                     absl::StrCat("connecting the ranks: ", text));
  }
  context_ = std::move(context);
  return adapter.Erase();
}

}  // namespace tessera::collectives
