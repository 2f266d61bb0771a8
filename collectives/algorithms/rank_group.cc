#include "collectives/algorithms/rank_group.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tessera::collectives {

RankGroup::RankGroup(Transport& transport, OperationContext& context,
                     std::string_view name)
    : transport_(&transport),
      context_(&context),
      name_(name),
      size_(transport.size()),
      rank_(transport.rank().value()) {}

RankGroup RankGroup::From(int64_t first) const {
  RankGroup group = *this;
  group.first_ = (first_ + first) % size_;
  group.rank_ = (rank_ + size_ - first) % size_;
  return group;
}

absl::StatusOr<RankGroup> RankGroup::Select(std::span<const int64_t> members,
                                            int64_t rank,
                                            std::string_view what) const {
  RankGroup group = *this;
  TESSERA_ASSIGN_OR_RETURN(
      const std::span<Rank> ranks,
      group.ScratchOf<Rank>(static_cast<int64_t>(members.size())));
  std::transform(members.begin(), members.end(), ranks.begin(),
                 [this](int64_t member) { return RankOf(member); });
  group.members_ = ranks;
  group.size_ = static_cast<int64_t>(members.size());
  group.rank_ = rank;
  group.first_ = 0;
  group.what_ = what;
  return group;
}

absl::Status RankGroup::Explain(const absl::Status& status) const {
  std::string where(name_);
  if (!what_.empty()) absl::StrAppend(&where, ", ", what_);
  if (steps_ > 0) absl::StrAppend(&where, ", step ", step_, " of ", steps_);
  return Annotate(status, where);
}

absl::StatusOr<Request> RankGroup::Send(int64_t to,
                                        std::span<const std::byte> bytes) {
  absl::StatusOr<Request> request = transport_->StartSend(
      RankOf(to), Lane::kCollective, context_->signature(), bytes);
  if (!request.ok()) return Explain(request.status());
  return request;
}

absl::StatusOr<Request> RankGroup::Receive(int64_t from,
                                           std::span<std::byte> bytes) {
  absl::StatusOr<Request> request = transport_->StartReceive(
      RankOf(from), Lane::kCollective, context_->signature(), bytes);
  if (!request.ok()) return Explain(request.status());
  return request;
}

absl::Status RankGroup::Finish(std::span<Request> requests) {
  const auto end =
      std::remove_if(requests.begin(), requests.end(),
                     [](const Request& r) { return r.number == 0; });
  const std::span<Request> active(requests.begin(), end);
  if (active.empty()) return absl::OkStatus();
  const Request& first = active.front();
  context_->Enter(
      first.direction == Direction::kSend ? Phase::kSending : Phase::kReceiving,
      first.peer);
  const absl::Status status = transport_->Wait(active, *context_);
  if (!status.ok()) return Explain(status);
  std::fill(requests.begin(), requests.end(), Request());
  return absl::OkStatus();
}

absl::Status RankGroup::Exchange(int64_t to, std::span<const std::byte> out,
                                 int64_t from, std::span<std::byte> in) {
  Request requests[2];
  TESSERA_ASSIGN_OR_RETURN(requests[0], Receive(from, in));
  TESSERA_ASSIGN_OR_RETURN(requests[1], Send(to, out));
  return Finish(requests);
}

absl::Status RankGroup::SendNow(int64_t to, std::span<const std::byte> bytes) {
  TESSERA_ASSIGN_OR_RETURN(Request request, Send(to, bytes));
  return Finish(request);
}

absl::Status RankGroup::ReceiveNow(int64_t from, std::span<std::byte> bytes) {
  TESSERA_ASSIGN_OR_RETURN(Request request, Receive(from, bytes));
  return Finish(request);
}

}  // namespace tessera::collectives
