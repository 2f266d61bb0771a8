#include "zero3/state/gradient_reduction.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "zero3/state/int8_blocks.h"
#include "zero3/state/state_device.h"

namespace tessera::zero3 {
namespace {

using collectives::Communicator;
using collectives::Rank;

// The ranks of each host, in ascending order, with hosts in the order of their
// first ranks. Empty if two hops would not be better than one.
std::vector<std::vector<int64_t>> HostsOf(const Communicator& group) {
  const auto& hierarchy = group.options().hierarchy;
  if (hierarchy == nullptr || hierarchy->levels() == 0) return {};
  std::map<int64_t, std::vector<int64_t>> by_host;
  for (int64_t r = 0; r < group.size(); ++r) {
    by_host[hierarchy->GroupOf(hierarchy->levels() - 1, Rank(r))].push_back(r);
  }
  std::vector<std::vector<int64_t>> hosts;
  for (auto& [host, ranks] : by_host) hosts.push_back(std::move(ranks));
  const size_t ranks = hosts[0].size();
  const bool even =
      std::all_of(hosts.begin(), hosts.end(),
                  [&](const auto& host) { return host.size() == ranks; });
  if (!even || ranks == 1 || hosts.size() == 1) return {};
  return hosts;
}

// All-to-all of encodings: each receiver's bytes follow one another. All ranks
// send the same numbers of bytes, so all choose the same form.
collectives::Operation Exchange(std::span<std::byte> sent,
                                std::vector<int64_t> send_bytes,
                                std::span<std::byte> received,
                                int64_t receive_bytes, uint32_t label) {
  std::vector<int64_t> receives(send_bytes.size(), receive_bytes);
  const bool even = std::all_of(send_bytes.begin(), send_bytes.end(),
                                [&](int64_t b) { return b == receive_bytes; });
  if (even) {
    send_bytes.clear();
    receives.clear();
  }
  collectives::Operation operation = collectives::AllToAllOf(
      collectives::ConstBuffer(sent.data(), static_cast<int64_t>(sent.size()),
                               DType::kU8),
      collectives::Buffer(received.data(),
                          static_cast<int64_t>(received.size()), DType::kU8),
      std::move(send_bytes), std::move(receives));
  operation.label = label;
  return operation;
}

// Consecutive encodings, of `bytes` each.
std::vector<std::span<const std::byte>> Parts(std::span<const std::byte> all,
                                              int64_t first, int64_t bytes,
                                              int64_t stride, size_t count) {
  std::vector<std::span<const std::byte>> parts;
  for (size_t i = 0; i < count; ++i) {
    parts.push_back(all.subspan(
        static_cast<size_t>(first + static_cast<int64_t>(i) * stride),
        static_cast<size_t>(bytes)));
  }
  return parts;
}

}  // namespace

// Memory is declared before the work that uses it.
struct PendingReduction::State {
  ~State() {
    if (work) work->Wait().IgnoreError();
    GiveBack(sent);
    GiveBack(received);
  }

  GradientReduction* reduction = nullptr;
  collectives::Buffer own = {};
  float divisor = 1;
  // Buffers of the first hop; the received data belongs to `owners`, ordered by
  // sender.
  AccountedMemory sent, received;
  std::vector<int64_t> owner_counts;
  std::optional<collectives::Work> work;
  bool is_quantized = false;
  uint32_t label = 0;

  void GiveBack(AccountedMemory& block) {
    reduction->pool_.Give(std::exchange(block, {}));
  }
  int64_t StrideOfSender() const {
    int64_t bytes = 0;
    for (const int64_t count : owner_counts) bytes += Int8Bytes(count);
    return bytes;
  }
  absl::Status Finish();
  absl::Status SecondHop();
};

absl::Status PendingReduction::State::Finish() {
  if (work) {
    const absl::Status done = reduction->queue().Wait(work->event());
    work.reset();
    TESSERA_RETURN_IF_ERROR(done);
  }
  if (!is_quantized) return absl::OkStatus();
  GiveBack(sent);
  if (reduction->across_ != nullptr) return SecondHop();
  const auto sources =
      Parts(received.bytes(), 0, Int8Bytes(own.count), Int8Bytes(own.count),
            static_cast<size_t>(reduction->group_.size()));
  return reduction->ops().Run(
      op::SumInt8{sources, divisor, own.dtype, own.AsBytes()});
}

absl::Status PendingReduction::State::SecondHop() {
  Communicator& across = *reduction->across_;
  const auto hosts = static_cast<size_t>(across.size());
  const auto senders = static_cast<size_t>(reduction->within_->size());
  const int64_t stride = StrideOfSender();
  TESSERA_ASSIGN_OR_RETURN(
      AccountedMemory sums,
      reduction->pool_.Take("sums of a host (int8)", stride));
  std::vector<int64_t> send_bytes;
  int64_t at = 0;
  for (const int64_t count : owner_counts) {
    const int64_t bytes = Int8Bytes(count);
    TESSERA_RETURN_IF_ERROR(reduction->ops().Run(op::SumInt8Encoded{
        Parts(received.bytes(), at, bytes, stride, senders), count,
        sums.bytes().subspan(static_cast<size_t>(at),
                             static_cast<size_t>(bytes))}));
    send_bytes.push_back(bytes);
    at += bytes;
  }
  GiveBack(received);
  const int64_t own_bytes = Int8Bytes(own.count);
  TESSERA_ASSIGN_OR_RETURN(
      AccountedMemory gathered,
      reduction->pool_.Take("sums of hosts (int8)",
                            own_bytes * static_cast<int64_t>(hosts)));
  absl::Status done = across.RunOn(
      reduction->queue(),
      Exchange(sums.bytes(), send_bytes, gathered.bytes(), own_bytes, label));
  if (done.ok()) {
    done = reduction->ops().Run(
        op::SumInt8{Parts(gathered.bytes(), 0, own_bytes, own_bytes, hosts),
                    divisor, own.dtype, own.AsBytes()});
  }
  reduction->pool_.Give(std::move(sums));
  reduction->pool_.Give(std::move(gathered));
  return done;
}

void PendingReduction::StateDeleter::operator()(State* state) const {
  delete state;
}

PendingReduction::PendingReduction(std::unique_ptr<State, StateDeleter> state)
    : state_(std::move(state)) {}

absl::Status PendingReduction::Wait() {
  const auto state = std::move(state_);
  return state->Finish();
}

GradientReduction::GradientReduction(Communicator& group,
                                     const ReductionOptions& options,
                                     BufferPool& pool)
    : group_(group), options_(options), pool_(pool) {
  for (int64_t r = 0; r < group.size(); ++r) owners_.push_back({r});
}

GradientReduction::~GradientReduction() = default;

absl::StatusOr<std::unique_ptr<GradientReduction>> GradientReduction::Create(
    Communicator& group, const ReductionOptions& options, BufferPool& pool) {
  std::unique_ptr<GradientReduction> reduction(
      new GradientReduction(group, options, pool));
  if (options.quantized) TESSERA_RETURN_IF_ERROR(reduction->JoinHosts());
  return reduction;
}

absl::Status GradientReduction::JoinHosts() {
  const std::vector<std::vector<int64_t>> hosts = HostsOf(group_);
  if (hosts.empty()) return absl::OkStatus();
  const auto ranks = hosts[0].size();
  owners_.assign(ranks, {});
  std::vector<Rank> within, across;
  for (const std::vector<int64_t>& host : hosts) {
    const auto mine =
        std::find(host.begin(), host.end(), group_.rank().value());
    if (mine != host.end()) {
      for (const int64_t r : host) within.emplace_back(r);
      const auto place = static_cast<size_t>(mine - host.begin());
      for (const std::vector<int64_t>& other : hosts) {
        across.emplace_back(other[place]);
      }
    }
    for (size_t place = 0; place < ranks; ++place) {
      owners_[place].push_back(host[place]);
    }
  }
  TESSERA_ASSIGN_OR_RETURN(
      within_, group_.Subgroup(within, absl::StrCat(group_.name(), "/host")));
  TESSERA_ASSIGN_OR_RETURN(
      across_, group_.Subgroup(across, absl::StrCat(group_.name(), "/across")));
  return absl::OkStatus();
}

absl::StatusOr<PendingReduction> GradientReduction::Start(
    collectives::Buffer values, const std::vector<int64_t>& counts,
    uint32_t label) {
  int64_t sum = 0, before = 0;
  for (size_t r = 0; r < counts.size(); ++r) {
    if (counts[r] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", r, " has ", counts[r],
                       " elements of a bucket; at least 0 are allowed"));
    }
    if (static_cast<int64_t>(r) < group_.rank().value()) before += counts[r];
    sum += counts[r];
  }
  const int64_t blocks = options_.scatters ? group_.size() : 1;
  if (static_cast<int64_t>(counts.size()) != blocks || sum != values.count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a bucket of ", values.count, " elements with ", counts.size(),
        " counts that sum to ", sum, "; expected a count for each of ", blocks,
        " ranks, of ", values.count, " elements in all"));
  }
  PendingReduction pending(
      std::unique_ptr<PendingReduction::State, PendingReduction::StateDeleter>(
          new PendingReduction::State));
  PendingReduction::State& state = *pending.state_;
  state.reduction = this;
  state.label = label;
  state.own =
      options_.scatters
          ? values.Slice(before,
                         counts[static_cast<size_t>(group_.rank().value())])
          : values;
  state.divisor = options_.average ? static_cast<float>(group_.size()) : 1.0f;
  // A single rank sends nothing.
  state.is_quantized =
      options_.quantized && HasInt8Form(values.dtype) && group_.size() > 1;
  TESSERA_RETURN_IF_ERROR(state.is_quantized
                              ? StartQuantized(values, counts, state)
                              : StartNative(values, counts, state));
  return pending;
}

absl::Status GradientReduction::StartNative(collectives::Buffer values,
                                            const std::vector<int64_t>& counts,
                                            PendingReduction::State& state) {
  if (group_.size() == 1) return absl::OkStatus();  // In place.
  const bool even = std::adjacent_find(counts.begin(), counts.end(),
                                       std::not_equal_to<>()) == counts.end();
  const auto reduction = options_.average ? collectives::Reduction::Average()
                                          : collectives::Reduction::Sum();
  collectives::Operation operation =
      options_.scatters
          ? collectives::ReduceScatterOf(values, state.own, reduction,
                                         even ? std::vector<int64_t>() : counts)
          : collectives::AllReduceOf(values, values, reduction);
  operation.label = state.label;
  TESSERA_ASSIGN_OR_RETURN(state.work,
                           group_.StartOn(queue(), std::move(operation)));
  return absl::OkStatus();
}

absl::Status GradientReduction::StartQuantized(
    collectives::Buffer values, const std::vector<int64_t>& counts,
    PendingReduction::State& state) {
  Communicator& group = within_ == nullptr ? group_ : *within_;
  std::vector<int64_t> offsets;
  int64_t offset = 0;
  for (const int64_t count : counts) {
    offsets.push_back(offset);
    offset += count;
  }
  std::vector<int64_t> send_bytes;
  for (const std::vector<int64_t>& owners : owners_) {
    int64_t bytes = 0;
    for (const int64_t owner : owners) {
      bytes += Int8Bytes(counts[static_cast<size_t>(owner)]);
    }
    send_bytes.push_back(bytes);
  }
  const auto place = static_cast<size_t>(group.rank().value());
  for (const int64_t owner : owners_[place]) {
    state.owner_counts.push_back(counts[static_cast<size_t>(owner)]);
  }
  int64_t total = 0;
  for (const int64_t bytes : send_bytes) total += bytes;
  TESSERA_ASSIGN_OR_RETURN(state.sent,
                           pool_.Take("gradients to send (int8)", total));
  const int64_t received = send_bytes[place] * group.size();
  TESSERA_ASSIGN_OR_RETURN(state.received,
                           pool_.Take("received gradients (int8)", received));
  int64_t at = 0;
  for (const std::vector<int64_t>& owners : owners_) {
    for (const int64_t owner : owners) {
      const auto index = static_cast<size_t>(owner);
      const int64_t bytes = Int8Bytes(counts[index]);
      TESSERA_RETURN_IF_ERROR(ops().Run(op::EncodeInt8{
          values.dtype, values.Slice(offsets[index], counts[index]).AsBytes(),
          state.sent.bytes().subspan(static_cast<size_t>(at),
                                     static_cast<size_t>(bytes))}));
      at += bytes;
    }
  }
  TESSERA_ASSIGN_OR_RETURN(
      state.work,
      group.StartOn(queue(), Exchange(state.sent.bytes(), send_bytes,
                                      state.received.bytes(), send_bytes[place],
                                      state.label)));
  return absl::OkStatus();
}

void GradientReduction::Abort(std::string_view reason) {
  if (within_ != nullptr) within_->Abort(reason);
  if (across_ != nullptr) across_->Abort(reason);
}

}  // namespace tessera::zero3
