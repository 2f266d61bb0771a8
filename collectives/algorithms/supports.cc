#include "collectives/algorithms/supports.h"

#include <cstdint>

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

// Kinds with even blocks, and those that may be uneven.
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

}  // namespace tessera::collectives
