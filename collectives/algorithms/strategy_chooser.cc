#include "collectives/algorithms/strategy_chooser.h"

#include "absl/strings/str_cat.h"
#include "collectives/algorithms/supports.h"

namespace tessera::collectives {
namespace {

using topology::CommunicationStrategy;

// Below this, the number of steps matters more than the bytes.
constexpr int64_t kSmall = 64 << 10;

// The algorithm that a strategy asks for; kEngine where it asks for none.
Algorithm Wanted(CommunicationStrategy strategy) {
  switch (strategy) {
    case CommunicationStrategy::kRing:
      return Algorithm::kRing;
    case CommunicationStrategy::kTree:
      return Algorithm::kTree;
    case CommunicationStrategy::kHierarchical:
      return Algorithm::kHierarchical;
    case CommunicationStrategy::kAllReduce:
    case CommunicationStrategy::kAdaptive:
      return Algorithm::kEngine;
  }
  return Algorithm::kEngine;
}

Algorithm DefaultOverTransport(const ChoiceQuestion& question) {
  const bool small = question.bytes <= kSmall;
  switch (question.kind) {
    case OpKind::kAllReduce:
      return small ? Algorithm::kRecursiveDoubling : Algorithm::kRing;
    case OpKind::kAllGather:
      return small && !question.uneven ? Algorithm::kRecursiveDoubling
                                       : Algorithm::kRing;
    case OpKind::kReduceScatter:
      return Algorithm::kRing;
    case OpKind::kAllToAll:
      return Algorithm::kPairwise;
    case OpKind::kBarrier:
      return Algorithm::kRecursiveDoubling;
    default:
      return Algorithm::kTree;
  }
}

}  // namespace

Algorithm DefaultAlgorithm(const ChoiceQuestion& question) {
  if (question.engine_implements || !question.has_transport) {
    return Algorithm::kEngine;
  }
  return DefaultOverTransport(question);
}

Algorithm StrategyChooser::Choose(const ChoiceQuestion& question) const {
  const Algorithm wanted = Wanted(strategy_);
  if (wanted != Algorithm::kEngine && question.has_transport &&
      Supports(wanted, question.kind, question.uneven)) {
    return wanted;
  }
  return DefaultAlgorithm(question);
}

std::string StrategyChooser::Explain(const ChoiceQuestion& question) const {
  const Algorithm wanted = Wanted(strategy_);
  const Algorithm chosen = Choose(question);
  const std::string_view strategy = topology::EnumName(strategy_);
  if (wanted == Algorithm::kEngine) {
    return absl::StrCat(
        "strategy ", strategy, ": ",
        chosen == Algorithm::kEngine
            ? "the engine's own"
            : absl::StrCat("the engine has no ", OpKindName(question.kind),
                           ": ", AlgorithmName(chosen)));
  }
  if (chosen == wanted) return absl::StrCat("strategy ", strategy);
  return absl::StrCat("strategy ", strategy, " has no ",
                      question.uneven ? "uneven " : "",
                      OpKindName(question.kind), ": ", AlgorithmName(chosen));
}

}  // namespace tessera::collectives
