#include "zero3/parameters/use/divergence.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/quoted.h"

namespace tessera::zero3 {
namespace {

constexpr int kRanksShown = 8;

std::string Describe(std::optional<ParameterId> use,
                     const ModelParameters& model) {
  if (!use.has_value()) return "nothing more";
  if (!model.Contains(*use)) {
    return absl::StrCat("parameter ", use->value(), " (not in the model)");
  }
  return absl::StrCat("parameter ", use->value(), " ",
                      Quoted(model[*use].name()));
}

int64_t CountOf(std::optional<ParameterId> use, std::span<const UseAt> ranks) {
  return std::count_if(ranks.begin(), ranks.end(),
                       [&](const UseAt& at) { return at.use == use; });
}

// What most ranks do; the first of equals.
UseAt MostCommon(std::span<const UseAt> ranks) {
  std::vector<std::optional<ParameterId>> uses;
  for (const UseAt& at : ranks) uses.push_back(at.use);
  std::sort(uses.begin(), uses.end());
  const auto count = [&](const UseAt& at) {
    const auto [begin, end] =
        std::equal_range(uses.begin(), uses.end(), at.use);
    return end - begin;
  };
  return *std::max_element(
      ranks.begin(), ranks.end(),
      [&](const UseAt& a, const UseAt& b) { return count(a) < count(b); });
}

std::string Guess(const UseAt& rank, const UseAt& most) {
  if (rank.use.has_value() && rank.use == most.next) return ": it skips that";
  if (rank.next.has_value() && rank.next == most.use) {
    return ": it uses that one later, and this one in addition";
  }
  return "";
}

// "; ranks 3, 5 differ as well", or "".
std::string OthersText(std::span<const UseAt> ranks, const UseAt& most,
                       size_t first) {
  std::string others;
  int count = 0;
  for (size_t rank = first + 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].use == most.use) continue;
    if (++count > kRanksShown) continue;
    absl::StrAppend(&others, count == 1 ? "" : ", ", rank);
  }
  if (count == 0) return "";
  if (count > kRanksShown) {
    absl::StrAppend(&others, " and ", count - kRanksShown, " more");
  }
  return absl::StrCat("; also different: ranks ", others);
}

}  // namespace

UseAt UseAtPosition(std::span<const ParameterId> order, size_t position) {
  UseAt at;
  if (position < order.size()) at.use = order[position];
  if (position + 1 < order.size()) at.next = order[position + 1];
  return at;
}

absl::Status DivergenceError(size_t position, std::span<const UseAt> ranks,
                             const ModelParameters& model) {
  if (ranks.empty()) return absl::OkStatus();
  const UseAt most = MostCommon(ranks);
  const auto differs =
      std::find_if(ranks.begin(), ranks.end(),
                   [&](const UseAt& at) { return at.use != most.use; });
  if (differs == ranks.end()) return absl::OkStatus();
  const auto rank = static_cast<size_t>(differs - ranks.begin());
  return absl::FailedPreconditionError(absl::StrCat(
      "rank ", rank, " uses ", Describe(differs->use, model), " as use ",
      position, " of the step (counted from 0), where ",
      CountOf(most.use, ranks), " of ", ranks.size(), " ranks use ",
      Describe(most.use, model), Guess(*differs, most),
      OthersText(ranks, most, rank),
      "; every rank must use the same parameters in the same order: make the "
      "order the same, or set allow_unused_parameters where ranks only leave "
      "some out"));
}

absl::Status CheckOrders(std::span<const std::vector<ParameterId>> orders,
                         const ModelParameters& model) {
  size_t longest = 0;
  for (const auto& order : orders) longest = std::max(longest, order.size());
  for (size_t position = 0; position < longest; ++position) {
    std::vector<UseAt> ranks;
    for (const auto& order : orders) {
      ranks.push_back(UseAtPosition(order, position));
    }
    const absl::Status status = DivergenceError(position, ranks, model);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

std::vector<ParameterId> UnusedParameters(std::span<const ParameterId> order,
                                          const ModelParameters& model) {
  std::vector<bool> used(static_cast<size_t>(model.count()), false);
  for (const ParameterId id : order) {
    if (model.Contains(id)) used[static_cast<size_t>(id.value())] = true;
  }
  std::vector<ParameterId> unused;
  for (const Parameter& parameter : model.all()) {
    if (!parameter.trainable()) continue;
    if (used[static_cast<size_t>(parameter.id.value())]) continue;
    unused.push_back(parameter.id);
  }
  return unused;
}

}  // namespace tessera::zero3
