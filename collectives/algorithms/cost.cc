#include "collectives/algorithms/cost.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/algorithms/bruck_schedule.h"
#include "collectives/algorithms/check_question.h"
#include "collectives/algorithms/chunks.h"
#include "collectives/algorithms/fold.h"
#include "collectives/algorithms/tree_kind.h"

namespace tessera::collectives {
namespace {

// Seconds of the parts that algorithms are made of, for n ranks, messages of up
// to S bytes and one link.
class Parts {
 public:
  Parts(int64_t ranks, const LinkCost& link, int64_t chunk)
      : n_(ranks), link_(link), chunk_(std::max<int64_t>(1, chunk)) {}

  // One message of m bytes, not cut up.
  double Message(double m) const {
    return link_.alpha_s + link_.beta_s_per_byte * m;
  }

  // m bytes in chunks: a latency for each.
  double Stream(double m) const {
    return ChunksIn(m) * link_.alpha_s + link_.beta_s_per_byte * m;
  }

  // m bytes in chunks, each combined while the next one travels: the slower of
  // the two for all chunks, the faster one for one.
  double CombiningStream(double m) const {
    const double travel = Stream(m);
    const double combine = link_.gamma_s_per_byte * m;
    return std::max(travel, combine) + std::min(travel, combine) / ChunksIn(m);
  }

  double RingReduceScatter(double s) const {
    return Others() * CombiningStream(s / Ranks());
  }
  double RingAllGather(double s) const {
    return Others() * Stream(s / Ranks());
  }

  // All contributions to the own block, each from its own rank.
  double PairwiseReduceScatter(double s) const {
    const double block = s / Ranks();
    return Others() * Stream(block) +
           Others() * link_.gamma_s_per_byte * block / ChunksIn(block);
  }
  double Pairwise(double s) const { return Others() * Message(s / Ranks()); }

  double DoublingAllReduce(double s) const {
    const Fold fold(n_);
    double seconds = FloorLog2(n_) * CombiningStream(s);
    if (fold.extra() > 0) seconds += CombiningStream(s) + Message(s);
    return seconds;
  }

  // What virtual rank 0 sends: of the ranks' blocks, those of its range.
  double DoublingAllGather(double s) const {
    const Fold fold(n_);
    double seconds = 0;
    for (int64_t width = 1; width < fold.power(); width *= 2) {
      const int64_t blocks = width + std::min(width, fold.extra());
      seconds += Message(s * static_cast<double>(blocks) / Ranks());
    }
    if (fold.extra() > 0) seconds += Message(s / Ranks()) + Message(s);
    return seconds;
  }

  // Reduce-scatter of the ranks' blocks: what virtual rank 0 keeps.
  double HalvingBlocks(double s) const {
    const Fold fold(n_);
    double seconds = 0;
    for (int64_t width = 1; width < fold.power(); width *= 2) {
      const int64_t blocks = width + std::min(width, fold.extra());
      seconds += CombiningStream(s * static_cast<double>(blocks) / Ranks());
    }
    return seconds;
  }

  // Halves of S, quarters, ... with or without combining.
  double Halving(double s) const {
    double seconds = 0;
    for (int64_t p = Fold(n_).power(); p > 1; p /= 2) {
      seconds += CombiningStream(s /= 2);
    }
    return seconds;
  }
  double Doubling(double s) const {
    double seconds = 0;
    for (int64_t p = Fold(n_).power(); p > 1; p /= 2) {
      seconds += Message(s /= 2);
    }
    return seconds;
  }
  double FoldIn(double s) const {
    return Fold(n_).extra() > 0 ? CombiningStream(s) : 0;
  }
  double FoldOut(double s) const {
    return Fold(n_).extra() > 0 ? Message(s) : 0;
  }

  // A binomial tree of which the root sends or receives parts of S.
  double BinomialParts(double s) const {
    double seconds = 0;
    for (int64_t width = 1; width < n_; width *= 2) {
      const int64_t blocks = std::min(width, n_ - width);
      seconds += Message(s * static_cast<double>(blocks) / Ranks());
    }
    return seconds;
  }

  double BruckAllToAll(double s) const {
    double seconds = 0;
    for (int64_t k = 0; k < CeilLog2(n_); ++k) {
      seconds +=
          Message(s * static_cast<double>(BruckMovingSlots(n_, k)) / Ranks());
    }
    return seconds;
  }

  // Up a tree, down it, or both. See trees.h: a wavefront of units of time.
  double Tree(TreeKind kind, double s, bool up, bool down) const {
    if (kind == TreeKind::kBinomial) return Binomial(s, up, down);
    const bool twice = kind == TreeKind::kDouble;
    const bool rooted = !(up && down);
    const double part = twice ? s / 2 : s;
    const double chunk = part / ChunksIn(part);
    const double height =
        !twice ? Others()
               : static_cast<double>(rooted ? 1 + FloorLog2(n_ - 1)
                                            : FloorLog2(n_));
    // Messages of a unit on one rank's port, and vectors that it combines. A
    // chain's ends do half of the work, and of two ranks both are ends.
    const double messages = twice ? 2 : 1;
    const double travel = messages * Message(chunk);
    const double combine = messages * link_.gamma_s_per_byte * chunk;
    const double both = up && down && n_ > 2 ? 2 : 1;
    const double fill =
        (up ? height * (travel + combine) : 0) + (down ? height * travel : 0);
    const double unit = std::max(both * travel, up ? combine : 0);
    return fill + (ChunksIn(part) - 1) * unit;
  }

 private:
  double Ranks() const { return static_cast<double>(n_); }
  double Others() const { return static_cast<double>(n_ - 1); }
  double ChunksIn(double m) const {
    return std::max(1.0, std::ceil(m / static_cast<double>(chunk_)));
  }

  // The root sends (receives) CeilLog2 n times. Up, a rank combines all that
  // its children send at once: of the longest path, 1 + 2 + ... vectors.
  double Binomial(double s, bool up, bool down) const {
    const auto steps = static_cast<double>(CeilLog2(n_));
    double seconds = 0;
    if (up) {
      seconds += steps * Stream(s) + steps * (steps + 1) / 2 *
                                         link_.gamma_s_per_byte * s /
                                         ChunksIn(s);
    }
    if (down) seconds += steps * Stream(s);
    // Chunks go both ways at once.
    if (up && down) seconds -= steps * Stream(s) * (1 - 1 / ChunksIn(s));
    return seconds;
  }

  int64_t n_;
  LinkCost link_;
  int64_t chunk_;
};

double AllReduceSeconds(Algorithm algorithm, double s, int64_t n,
                        const Parts& parts) {
  switch (algorithm) {
    case Algorithm::kRing:
      return parts.RingReduceScatter(s) + parts.RingAllGather(s);
    case Algorithm::kTree:
      return parts.Tree(TreeKindFor(static_cast<int64_t>(s), n), s, true, true);
    case Algorithm::kChain:
      return parts.Tree(TreeKind::kChain, s, true, true);
    case Algorithm::kRecursiveDoubling:
      return parts.DoublingAllReduce(s);
    case Algorithm::kHalvingDoubling:
      return parts.FoldIn(s) + parts.Halving(s) + parts.Doubling(s) +
             parts.FoldOut(s);
    default:  // kPairwise
      return parts.PairwiseReduceScatter(s) + parts.Pairwise(s);
  }
}

double RootedSeconds(Algorithm algorithm, double s, int64_t n, bool up,
                     const Parts& parts) {
  if (algorithm != Algorithm::kHalvingDoubling) {
    const TreeKind kind = algorithm == Algorithm::kChain
                              ? TreeKind::kChain
                              : TreeKindFor(static_cast<int64_t>(s), n);
    return parts.Tree(kind, s, up, !up);
  }
  return up ? parts.FoldIn(s) + parts.Halving(s) + parts.Doubling(s)
            : parts.BinomialParts(s) + parts.DoublingAllGather(s);
}

double ReduceScatterSeconds(Algorithm algorithm, double s, int64_t n,
                            const Parts& parts) {
  switch (algorithm) {
    case Algorithm::kRing:
      return parts.RingReduceScatter(s);
    case Algorithm::kHalvingDoubling:
      return parts.FoldIn(s) + parts.HalvingBlocks(s) +
             parts.FoldOut(s / static_cast<double>(n));
    default:  // kPairwise
      return parts.PairwiseReduceScatter(s);
  }
}

double AllGatherSeconds(Algorithm algorithm, double s, const Parts& parts) {
  switch (algorithm) {
    case Algorithm::kRing:
      return parts.RingAllGather(s);
    case Algorithm::kRecursiveDoubling:
      return parts.DoublingAllGather(s);
    case Algorithm::kBruck:
      return parts.BinomialParts(s);  // The same steps.
    default:                          // kPairwise
      return parts.Pairwise(s);
  }
}

double FlatSeconds(const CostQuestion& question, double s, const Parts& parts) {
  const Algorithm algorithm = question.algorithm;
  const int64_t n = question.ranks;
  switch (question.kind) {
    case OpKind::kAllReduce:
      return AllReduceSeconds(algorithm, s, n, parts);
    case OpKind::kReduce:
    case OpKind::kBroadcast:
      return RootedSeconds(algorithm, s, n, question.kind == OpKind::kReduce,
                           parts);
    case OpKind::kReduceScatter:
      return ReduceScatterSeconds(algorithm, s, n, parts);
    case OpKind::kAllGather:
      return AllGatherSeconds(algorithm, s, parts);
    case OpKind::kGather:
    case OpKind::kScatter:
      return algorithm == Algorithm::kTree ? parts.BinomialParts(s)
                                           : parts.Pairwise(s);
    case OpKind::kAllToAll:
      return algorithm == Algorithm::kBruck ? parts.BruckAllToAll(s)
                                            : parts.Pairwise(s);
    default: {  // kBarrier
      const auto steps = static_cast<double>(CeilLog2(n));
      return (algorithm == Algorithm::kTree ? 2 : 1) * steps * parts.Message(0);
    }
  }
}

// What flat_choice.h takes.
Algorithm FlatChoice(OpKind kind, double s) {
  const bool small = s <= static_cast<double>(kSmallMessageBytes);
  switch (kind) {
    case OpKind::kAllReduce:
      return small ? Algorithm::kRecursiveDoubling : Algorithm::kRing;
    case OpKind::kReduceScatter:
      return small ? Algorithm::kPairwise : Algorithm::kRing;
    case OpKind::kAllGather:
      return small ? Algorithm::kBruck : Algorithm::kRing;
    default:
      return Algorithm::kTree;
  }
}

// One level of kHierarchical and what follows.
class Levels {
 public:
  Levels(std::span<const LevelCost> levels, int64_t chunk)
      : levels_(levels), chunk_(chunk) {}

  double At(size_t level, OpKind kind, double s) const {
    while (level < levels_.size() && levels_[level].groups == 1) ++level;
    if (level == levels_.size()) return 0;
    const bool last = level + 1 == levels_.size();
    if (last) return Flat(level, kind, s);
    const double part = s / static_cast<double>(levels_[level].groups);
    switch (kind) {
      case OpKind::kAllReduce:
        if (s <= static_cast<double>(kSmallMessageBytes)) {
          return Flat(level, OpKind::kReduce, s) + At(level + 1, kind, s) +
                 Flat(level, OpKind::kBroadcast, s);
        }
        return Flat(level, OpKind::kReduceScatter, s) +
               At(level + 1, kind, part) + Flat(level, OpKind::kAllGather, s);
      case OpKind::kReduceScatter:
      case OpKind::kAllGather:
        return Flat(level, kind, s) + At(level + 1, kind, part);
      default:
        return Flat(level, kind, s) + At(level + 1, kind, s);
    }
  }

 private:
  double Flat(size_t level, OpKind kind, double s) const {
    const LevelCost& cost = levels_[level];
    const Parts parts(cost.groups, cost.link, chunk_);
    return FlatSeconds(
        {.algorithm = FlatChoice(kind, s), .kind = kind, .ranks = cost.groups},
        s, parts);
  }

  std::span<const LevelCost> levels_;
  int64_t chunk_;
};

}  // namespace

absl::StatusOr<double> PredictSeconds(const CostQuestion& question,
                                      const LinkCost& link) {
  const LevelCost level = {question.ranks, link};
  if (question.algorithm == Algorithm::kHierarchical) {
    return PredictSeconds(question, std::span(&level, 1));
  }
  TESSERA_RETURN_IF_ERROR(CheckQuestion(question));
  if (question.ranks == 1) return 0.0;
  const Parts parts(question.ranks, link, question.chunk_bytes);
  return FlatSeconds(question, static_cast<double>(question.bytes), parts);
}

absl::StatusOr<double> PredictSeconds(const CostQuestion& question,
                                      std::span<const LevelCost> levels) {
  TESSERA_RETURN_IF_ERROR(CheckQuestion(question));
  if (question.algorithm != Algorithm::kHierarchical) {
    return absl::InvalidArgumentError(
        absl::StrCat("algorithm ", AlgorithmName(question.algorithm),
                     " has no levels; give one link, or ask for hierarchical"));
  }
  int64_t ranks = 1;
  for (const LevelCost& level : levels) ranks *= level.groups;
  if (ranks != question.ranks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "levels of ", ranks, " ranks for ", question.ranks, " ranks"));
  }
  const bool barrier = question.kind == OpKind::kBarrier;
  return Levels(levels, question.chunk_bytes)
      .At(0, barrier ? OpKind::kAllReduce : question.kind,
          barrier ? 0 : static_cast<double>(question.bytes));
}

}  // namespace tessera::collectives
