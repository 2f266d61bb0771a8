#include "collectives/adaptive/formula.h"

#include <algorithm>
#include <cmath>

namespace tessera::collectives {
namespace {

constexpr double kLeast = 1e-9;

// The formulas' letters.
struct Letters {
  double n;
  double m;
  double p;
  double r;
  double a;
  double b;
  double g;
};

Letters LettersOf(OpKind kind, double ranks, double bytes, const Line& line,
                  double gamma) {
  return {ranks,
          bytes,
          bytes * (ranks - 1) / ranks,
          std::ceil(std::log2(ranks)),
          line.alpha,
          line.beta,
          Reduces(kind) ? gamma : 0};
}

double HalvingDoubling(OpKind kind, const Letters& x) {
  if (kind == OpKind::kReduceScatter) return x.r * x.a + x.p * (x.b + x.g);
  return 2 * x.r * x.a + 2 * x.p * x.b + x.p * x.g;
}

double Tree(OpKind kind, const Letters& x) {
  if (kind == OpKind::kGather || kind == OpKind::kScatter) {
    return x.r * x.a + x.p * x.b;
  }
  const double once = x.r * x.a + x.m * (x.b + x.g);
  return kind == OpKind::kAllReduce || kind == OpKind::kBarrier ? 2 * once
                                                                : once;
}

double Flat(Algorithm algorithm, OpKind kind, const Letters& x) {
  const bool all_reduce = kind == OpKind::kAllReduce;
  switch (algorithm) {
    case Algorithm::kRing:
      return all_reduce ? 2 * (x.n - 1) * x.a + 2 * x.p * x.b + x.p * x.g
                        : (x.n - 1) * x.a + x.p * (x.b + x.g);
    case Algorithm::kRecursiveDoubling:
      return kind == OpKind::kAllGather ? x.r * x.a + x.p * x.b
                                        : x.r * (x.a + x.m * (x.b + x.g));
    case Algorithm::kHalvingDoubling:
      return HalvingDoubling(kind, x);
    case Algorithm::kChain:
      return (all_reduce ? 2 : 1) * ((x.n - 1) * x.a + x.m * (x.b + x.g));
    case Algorithm::kBruck:
      return kind == OpKind::kAllToAll ? x.r * (x.a + x.m / 2 * x.b)
                                       : x.r * x.a + x.p * x.b;
    case Algorithm::kPairwise:
      return (x.n - 1) * x.a + x.p * (x.b + x.g);
    default:
      return Tree(kind, x);
  }
}

double Level(OpKind kind, double ranks, double bytes, const Line& line,
             double gamma) {
  if (ranks <= 1) return 0;
  const Letters letters = LettersOf(kind, ranks, bytes, line, gamma);
  const bool by_halves = kind == OpKind::kAllReduce ||
                         kind == OpKind::kReduceScatter ||
                         kind == OpKind::kAllGather;
  return by_halves ? HalvingDoubling(kind, letters) : Tree(kind, letters);
}

}  // namespace

double FormulaSeconds(const FormulaCosts& costs, Algorithm algorithm,
                      OpKind kind, int64_t bytes, int64_t ranks,
                      int64_t ranks_per_host) {
  if (ranks <= 1) return kLeast;
  const auto n = static_cast<double>(ranks);
  const auto m = static_cast<double>(bytes);
  const auto host =
      static_cast<double>(std::clamp<int64_t>(ranks_per_host, 1, ranks));
  if (algorithm == Algorithm::kHierarchical) {
    return kLeast + Level(kind, host, m, costs.near, costs.gamma) +
           Level(kind, std::ceil(n / host), m, costs.far, costs.gamma);
  }
  const Line& line = host < n ? costs.far : costs.near;
  return kLeast +
         Flat(algorithm, kind, LettersOf(kind, n, m, line, costs.gamma));
}

}  // namespace tessera::collectives
