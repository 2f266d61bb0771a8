#include "collectives/algorithms/algorithm_chooser.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace tessera::collectives {

namespace {

constexpr uint32_t Bit(OpKind kind) { return 1u << static_cast<int>(kind); }

constexpr uint32_t kAllReduce = Bit(OpKind::kAllReduce);
constexpr uint32_t kReduce = Bit(OpKind::kReduce);
constexpr uint32_t kReduceScatter = Bit(OpKind::kReduceScatter);
constexpr uint32_t kAllGather = Bit(OpKind::kAllGather);
constexpr uint32_t kBroadcast = Bit(OpKind::kBroadcast);
constexpr uint32_t kGather = Bit(OpKind::kGather);
constexpr uint32_t kScatter = Bit(OpKind::kScatter);
constexpr uint32_t kAllToAll = Bit(OpKind::kAllToAll);
constexpr uint32_t kBarrier = Bit(OpKind::kBarrier);

// Bit sets of the kinds supported with even blocks, and with uneven ones.
struct Forms {
  uint32_t even = 0;
  uint32_t uneven = 0;
};

constexpr Forms FormsOf(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kEngine:
      return {};
    case Algorithm::kRing:
      return {kAllReduce | kReduceScatter | kAllGather,
              kReduceScatter | kAllGather};
    case Algorithm::kTree:
      return {kAllReduce | kReduce | kBroadcast | kGather | kScatter | kBarrier,
              0};
    case Algorithm::kRecursiveDoubling:
      return {kAllReduce | kAllGather | kBarrier, kAllGather};
    case Algorithm::kHalvingDoubling:
      return {kAllReduce | kReduce | kReduceScatter | kBroadcast,
              kReduceScatter};
    case Algorithm::kHierarchical:
      return {kAllReduce | kReduce | kReduceScatter | kAllGather | kBroadcast |
                  kBarrier,
              kReduceScatter | kAllGather};
    case Algorithm::kChain:
      return {kAllReduce | kReduce | kBroadcast, 0};
    case Algorithm::kBruck:
      return {kAllGather | kAllToAll, kAllGather};
    case Algorithm::kPairwise:
      return {kAllReduce | kReduceScatter | kAllGather | kGather | kScatter |
                  kAllToAll,
              kReduceScatter | kAllGather | kAllToAll};
  }
  return {};
}

}  // namespace

bool Supports(Algorithm algorithm, OpKind kind, bool uneven) {
  const Forms forms = FormsOf(algorithm);
  return IsCollective(kind) &&
         ((uneven ? forms.uneven : forms.even) & Bit(kind)) != 0;
}

std::vector<Algorithm> AlgorithmsFor(OpKind kind, bool uneven) {
  std::vector<Algorithm> algorithms;
  for (Algorithm algorithm : kAllAlgorithms) {
    if (Supports(algorithm, kind, uneven)) algorithms.push_back(algorithm);
  }
  return algorithms;
}

namespace {

using topology::CommunicationStrategy;

// Below this, the number of steps matters more than the bytes.
constexpr int64_t kSmall = 64 << 10;

// The algorithm of a strategy; kEngine if the strategy names none.
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
    return absl::StrCat("strategy ", strategy, ": ",
                        chosen == Algorithm::kEngine
                            ? "the engine's own"
                            : absl::StrCat("the engine does not implement ",
                                           OpKindName(question.kind), ": ",
                                           AlgorithmName(chosen)));
  }
  if (chosen == wanted) return absl::StrCat("strategy ", strategy);
  return absl::StrCat("strategy ", strategy, " does not support ",
                      question.uneven ? "uneven " : "",
                      OpKindName(question.kind), ": ", AlgorithmName(chosen));
}

}  // namespace tessera::collectives
