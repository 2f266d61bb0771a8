#include "pipeline/execute/shared_gradients.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::pipeline {
namespace {

using collectives::Rank;

// The buffer of a message. InvalidArgument if the tensor is not contiguous.
absl::StatusOr<collectives::Buffer> MessageOf(const TensorView& view) {
  if (view.IsContiguous()) {
    return collectives::Buffer(view.data(), view.element_count(), view.dtype());
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "a gradient ", DTypeName(view.dtype()), " ", DimsToString(view.shape()),
      " has gaps between its elements; it must be contiguous"));
}

// The ranks that hold a tie's stages, for micro-batches from one end.
std::vector<Rank> HoldersOf(const Schedule& schedule, const TiedWeights& tied,
                            bool back) {
  std::set<Rank> ranks;
  for (const int32_t stage : tied.stages) {
    ranks.insert(Rank(back ? schedule.map.RankFromBack(stage)
                           : schedule.map.RankOf(stage)));
  }
  return {ranks.begin(), ranks.end()};
}

// Checks that the gradients can be added.
absl::Status CheckAlike(std::span<const TensorView> views) {
  for (const TensorView& view : views) {
    if (SizeInBytes(view.dtype()) == 1 && IsFloating(view.dtype())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "gradients of ", DTypeName(view.dtype()), " cannot be added"));
    }
    if (view.dtype() != views[0].dtype() ||
        view.element_count() != views[0].element_count()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "its gradient is ", DTypeName(view.dtype()), " ",
          DimsToString(view.shape()), ", that of another stage ",
          DTypeName(views[0].dtype()), " ", DimsToString(views[0].shape())));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTied(const std::vector<TiedWeights>& tied, int64_t stages) {
  std::set<std::string> names;
  for (const TiedWeights& weights : tied) {
    const std::string name = absl::CEscape(weights.name.substr(0, 64));
    const auto refuse = [&](auto&&... why) {
      return absl::InvalidArgumentError(
          absl::StrCat("tied weights \"", name, "\" ", why...));
    };
    if (name.empty() || !names.insert(weights.name).second) {
      return refuse(name.empty() ? "have no name" : "are named twice");
    }
    const std::set<int32_t> distinct(weights.stages.begin(),
                                     weights.stages.end());
    if (distinct.size() < 2 || distinct.size() != weights.stages.size()) {
      return refuse("are of ", weights.stages.size(), " stages, ",
                    distinct.size(), " different; 2 or more are allowed, each ",
                    "once");
    }
    if (*distinct.begin() < 0 || *distinct.rbegin() >= stages) {
      return refuse("are of stages ", *distinct.begin(), " to ",
                    *distinct.rbegin(), "; there are stages 0 to ", stages - 1);
    }
  }
  return absl::OkStatus();
}

std::string SharedGradients::At(int32_t stage) const {
  return absl::StrCat("rank ", rank_, ": gradients of stage ", stage);
}

absl::StatusOr<SharedGradients> SharedGradients::Create(
    collectives::Communicator& communicator, Queue& queue,
    const Schedule& schedule, const std::vector<TiedWeights>& tied,
    const collectives::CallOptions& call) {
  SharedGradients shared(queue);
  shared.rank_ = communicator.rank().value();
  shared.call_ = call;
  const auto own = static_cast<int32_t>(shared.rank_);
  const int64_t twin = schedule.map.ranks() - 1 - shared.rank_;
  if (schedule.map.two_way() && twin != shared.rank_) {
    const auto [first, second] = std::minmax(shared.rank_, twin);
    const std::vector<Rank> pair = {Rank(first), Rank(second)};
    TESSERA_ASSIGN_OR_RETURN(shared.copies_, communicator.Subgroup(pair));
    shared.copied_ = schedule.map.StagesOf(own);
  }
  // All ranks process the groups in the same order, so that they cannot
  // deadlock.
  for (const TiedWeights& weights : tied) {
    for (const bool back : {false, true}) {
      if (back && !schedule.map.two_way()) continue;
      const std::vector<Rank> holders = HoldersOf(schedule, weights, back);
      if (!std::binary_search(holders.begin(), holders.end(), Rank(own))) {
        continue;
      }
      Tie tie{weights.name, {}, nullptr};
      for (const int32_t stage : weights.stages) {
        const int32_t holder = back ? schedule.map.RankFromBack(stage)
                                    : schedule.map.RankOf(stage);
        if (holder == own) tie.stages.push_back(stage);
      }
      if (holders.size() > 1) {
        TESSERA_ASSIGN_OR_RETURN(tie.group, communicator.Subgroup(holders));
      }
      shared.ties_.push_back(std::move(tie));
    }
  }
  return shared;
}

absl::Status SharedGradients::AddCopies(Stage& implementation) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<TensorView> gradients,
                           implementation.Gradients());
  for (const TensorView& gradient : gradients) {
    TESSERA_ASSIGN_OR_RETURN(const collectives::Buffer message,
                             MessageOf(gradient));
    TESSERA_RETURN_IF_ERROR(
        copies_->RunOn(*queue_,
                       collectives::AllReduceOf(message, message,
                                                collectives::Reduction::Sum()),
                       call_));
  }
  return absl::OkStatus();
}

absl::Status SharedGradients::AddTied(const Tie& tie, const StageOf& stage_of) {
  std::vector<TensorView> views;
  std::vector<collectives::Buffer> messages;
  for (const int32_t stage : tie.stages) {
    TESSERA_ASSIGN_OR_RETURN(const TensorView view,
                             stage_of(stage).TiedGradient(tie.name),
                             Annotate(_, At(stage)));
    views.push_back(view);
    TESSERA_ASSIGN_OR_RETURN(messages.emplace_back(), MessageOf(view),
                             Annotate(_, At(stage)));
  }
  const std::string place = absl::StrCat(At(tie.stages.back()), ", tied \"",
                                         tie.name.substr(0, 64), "\"");
  if (views.size() > 1) {
    TESSERA_RETURN_IF_ERROR(CheckAlike(views), Annotate(_, place));
  }
  Stage& first = stage_of(tie.stages.front());
  for (size_t i = 1; i < views.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(first.AddGradient(views[i], views[0]),
                            Annotate(_, place));
  }
  if (tie.group != nullptr) {
    TESSERA_RETURN_IF_ERROR(tie.group->RunOn(*queue_,
                                             collectives::AllReduceOf(
                                                 messages[0], messages[0],
                                                 collectives::Reduction::Sum()),
                                             call_),
                            Annotate(_, place));
  }
  for (size_t i = 1; i < views.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(first.CopyGradient(views[0], views[i]),
                            Annotate(_, place));
  }
  return absl::OkStatus();
}

absl::Status SharedGradients::Add(const StageOf& stage_of) {
  for (const int32_t stage : copied_) {
    TESSERA_RETURN_IF_ERROR(AddCopies(stage_of(stage)), Annotate(_, At(stage)));
  }
  for (const Tie& tie : ties_) {
    TESSERA_RETURN_IF_ERROR(AddTied(tie, stage_of));
  }
  return absl::OkStatus();
}

void SharedGradients::Abort(std::string_view reason) {
  if (copies_ != nullptr) copies_->Abort(reason);
  for (const Tie& tie : ties_) {
    if (tie.group != nullptr) tie.group->Abort(reason);
  }
}

}  // namespace tessera::pipeline
