#include "collectives/gloo/gloo_group.h"

#include <gloo/barrier.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>
#include <net/if.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
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

// A tag that no message uses.
constexpr uint64_t kSilentSlot = uint64_t{0xff} << 56;

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

}  // namespace

absl::StatusOr<std::shared_ptr<gloo::transport::Device>> CreateGlooDevice(
    const GlooOptions& options) {
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

std::chrono::milliseconds TimeUntil(int64_t deadline) {
  constexpr int64_t kLongest = int64_t{1000} * 3600 * 1000;
  const int64_t ms = (deadline - MonotonicNanos()) / 1'000'000 + 1;
  return std::chrono::milliseconds(std::clamp<int64_t>(ms, 1, kLongest));
}

GlooGroup::GlooGroup(Store& store, std::vector<Rank> members, std::string id,
                     std::shared_ptr<gloo::transport::Device> device,
                     const GlooOptions& options)
    : store_(store),
      members_(std::move(members)),
      id_(std::move(id)),
      device_(std::move(device)),
      options_(options),
      rank_(std::find(members_.begin(), members_.end(), store.rank()) -
            members_.begin()) {}

absl::StatusOr<std::shared_ptr<GlooGroup>> GlooGroup::Connect(
    Store& store, std::vector<Rank> members, const std::string& id,
    std::shared_ptr<gloo::transport::Device> device, const GlooOptions& options,
    int64_t deadline) {
  const std::shared_ptr<GlooGroup> group(
      new GlooGroup(store, std::move(members), id, std::move(device), options));
  TESSERA_RETURN_IF_ERROR(group->Meet(deadline), Annotate(_, "gloo"));
  if (group->size() > 1) {
    TESSERA_RETURN_IF_ERROR(group->ConnectAll(deadline), Annotate(_, "gloo"));
  }
  return group;
}

absl::StatusOr<std::shared_ptr<GlooGroup>> GlooGroup::Subgroup(
    std::span<const Rank> members, uint32_t group, int64_t deadline) {
  TESSERA_RETURN_IF_ERROR(failure_.status());
  std::vector<Rank> in_job;
  for (Rank member : members) {
    in_job.push_back(members_[static_cast<size_t>(member.value())]);
  }
  const std::string id = SubgroupId(id_, in_job, group);
  return Connect(store_, std::move(in_job), id, device_, options_, deadline);
}

// Exchange first, so that missing ranks are known before connecting.
absl::Status GlooGroup::Meet(int64_t deadline) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> all,
      AllGather(store_, members_, absl::StrCat("tessera/gloo/", id_, "/peers"),
                PeerTable::DescribeSelf(), TimeOfDeadline(deadline)));
  peers_ = PeerTable::Of(all);
  return absl::OkStatus();
}

absl::Status GlooGroup::ConnectAll(int64_t deadline) {
  StoreAdapter adapter(store_, absl::StrCat("tessera/gloo/", id_, "/"),
                       members_, TimeOfDeadline(deadline));
  auto context = std::make_shared<gloo::rendezvous::Context>(
      static_cast<int>(rank_.value()), static_cast<int>(size()));
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

absl::Status GlooGroup::Explain(const std::exception& error,
                                const OperationContext* context,
                                std::optional<Rank> peer) const {
  if (failure_.failed()) return failure_.status();
  std::vector<Rank> named;
  if (peer.has_value()) named.push_back(*peer);
  if (context != nullptr && context->Expired()) {
    return peers_.Missing(*context, rank_, named);
  }
  std::string message = "a connection was lost";
  if (peer.has_value()) {
    const PeerReport& report =
        peers_.reports()[static_cast<size_t>(peer->value())];
    message = absl::StrCat("the connection to rank ", peer->value(), " (host ",
                           report.host, ", pid ", report.pid, ") was lost");
  }
  if (context != nullptr) {
    message = absl::StrCat(DescribeSignature(context->signature()), ", while ",
                           PhaseName(context->phase().phase()), ": ", message);
  }
  return absl::UnavailableError(absl::StrCat(
      message, ": ", std::string_view(error.what()).substr(0, 512)));
}

void GlooGroup::Abort(const absl::Status& reason) {
  if (!failure_.Set(reason) || context_ == nullptr) return;
  // A timed-out wait makes Gloo close all connections and wake all waiters;
  // wait for a message that is never sent.
  std::byte nothing{};
  try {
    const auto silent = context_->createUnboundBuffer(&nothing, 1);
    silent->recv(rank_ == Rank(0) ? 1 : 0, kSilentSlot);
    silent->waitRecv(std::chrono::milliseconds(1));
  } catch (const std::exception&) {
    // Expected.
  }
}

}  // namespace tessera::collectives
