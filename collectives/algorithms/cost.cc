#include "collectives/algorithms/cost.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/algorithms/schedule.h"

namespace tessera::collectives {
namespace {

// Times of the building blocks of algorithms, for n ranks, messages of up to S
// bytes and one link.
class Parts {
 public:
  Parts(int64_t ranks, const LinkCost& link, int64_t chunk)
      : n_(ranks), link_(link), chunk_(std::max<int64_t>(1, chunk)) {}

  // One message of m bytes in one piece.
  double Message(double m) const {
    return link_.alpha_s + link_.beta_s_per_byte * m;
  }

  // m bytes in chunks, with one latency each.
  double Stream(double m) const {
    return ChunksIn(m) * link_.alpha_s + link_.beta_s_per_byte * m;
  }

  // m bytes in chunks, each reduced while the next is in transit: the slower of
  // the two for all chunks, the faster one for one chunk.
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

  // Receives all contributions to this rank's block directly.
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

  // The blocks that virtual rank 0 sends.
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

  // Reduce-scatter of the ranks' blocks: those that virtual rank 0 keeps.
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

  // A binomial tree whose root sends or receives parts of S.
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

  // Up a tree, down it, or both, as a wavefront of time units (see trees.h).
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
    // Messages per time unit on one rank's port, and vectors that it reduces.
    // The ends of a chain do half of the work; with two ranks both are ends.
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

  // The root sends (receives) CeilLog2 n times. On the way up a rank reduces
  // all its children's vectors at once: 1 + 2 + ... vectors on the longest
  // path.
  double Binomial(double s, bool up, bool down) const {
    const auto steps = static_cast<double>(CeilLog2(n_));
    double seconds = 0;
    if (up) {
      seconds += steps * Stream(s) + steps * (steps + 1) / 2 *
                                         link_.gamma_s_per_byte * s /
                                         ChunksIn(s);
    }
    if (down) seconds += steps * Stream(s);
    // Chunks travel both ways concurrently.
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

// The algorithm that layered.cc uses among equally near ranks.
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

// The time of kHierarchical from one level outwards.
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

// Bytes that virtual rank 0 sends while doubling, and to the rank that folded
// into it.
int64_t DoublingAllGatherBytes(int64_t s, int64_t n) {
  const Fold fold(n);
  int64_t blocks = 0;
  for (int64_t width = 1; width < fold.power(); width *= 2) {
    blocks += width + std::min(width, fold.extra());
  }
  return blocks * (s / n) + (fold.extra() > 0 ? s : 0);
}

int64_t AllReduceBytes(Algorithm algorithm, int64_t s, int64_t n) {
  const Fold fold(n);
  const int64_t folded = fold.extra() > 0 ? s : 0;
  switch (algorithm) {
    case Algorithm::kTree:
      if (TreeKindFor(s, n) == TreeKind::kBinomial) return CeilLog2(n) * s;
      return n == 3 ? s + s / 2 : 2 * s;
    case Algorithm::kChain:
      return n == 2 ? s : 2 * s;
    case Algorithm::kRecursiveDoubling:
      return FloorLog2(n) * s + folded;
    case Algorithm::kHalvingDoubling:
      return 2 * (s - s / fold.power()) + folded;
    default:  // kRing, kPairwise
      return 2 * (s - s / n);
  }
}

int64_t ReduceBytes(Algorithm algorithm, int64_t s, int64_t n) {
  if (algorithm != Algorithm::kHalvingDoubling) return s;
  return s - s / Fold(n).power() + s / 2;
}

int64_t BroadcastBytes(Algorithm algorithm, int64_t s, int64_t n) {
  switch (algorithm) {
    case Algorithm::kTree:
      return TreeKindFor(s, n) == TreeKind::kBinomial ? CeilLog2(n) * s : s;
    case Algorithm::kChain:
      return s;
    default:  // kHalvingDoubling
      return s - s / n + DoublingAllGatherBytes(s, n);
  }
}

// The largest subtree below the root of the binomial tree.
int64_t GatherBytes(Algorithm algorithm, int64_t s, int64_t n) {
  if (algorithm == Algorithm::kPairwise) return s / n;
  const int64_t half = int64_t{1} << (CeilLog2(n) - 1);
  return std::max(n - half, half / 2) * (s / n);
}

int64_t AllToAllBytes(Algorithm algorithm, int64_t s, int64_t n) {
  if (algorithm == Algorithm::kPairwise) return s - s / n;
  int64_t slots = 0;
  for (int64_t k = 0; k < CeilLog2(n); ++k) slots += BruckMovingSlots(n, k);
  return slots * (s / n);
}

absl::Status CheckQuestion(const CostQuestion& question) {
  if (!Supports(question.algorithm, question.kind, false)) {
    return absl::InvalidArgumentError(
        absl::StrCat("algorithm ", AlgorithmName(question.algorithm),
                     " does not support ", OpKindName(question.kind)));
  }
  if (question.bytes >= 0 && question.ranks >= 1 && question.chunk_bytes >= 1) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "cannot predict a cost for ", question.bytes, " bytes, ", question.ranks,
      " ranks and chunks of ", question.chunk_bytes,
      " bytes; give at least 0 bytes, 1 rank and chunks of 1 byte"));
}

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
    return absl::InvalidArgumentError(
        absl::StrCat("the levels have ", ranks, " ranks, but the question has ",
                     question.ranks));
  }
  const bool barrier = question.kind == OpKind::kBarrier;
  return Levels(levels, question.chunk_bytes)
      .At(0, barrier ? OpKind::kAllReduce : question.kind,
          barrier ? 0 : static_cast<double>(question.bytes));
}

absl::StatusOr<int64_t> BytesOnWire(const CostQuestion& question) {
  TESSERA_RETURN_IF_ERROR(CheckQuestion(question));
  const Algorithm algorithm = question.algorithm;
  if (algorithm == Algorithm::kHierarchical) {
    return absl::UnimplementedError(
        "no bytes on the wire for hierarchical algorithms; ask for each level");
  }
  const int64_t s = question.bytes;
  const int64_t n = question.ranks;
  if (n == 1) return 0;
  switch (question.kind) {
    case OpKind::kAllReduce:
      return AllReduceBytes(algorithm, s, n);
    case OpKind::kReduce:
      return ReduceBytes(algorithm, s, n);
    case OpKind::kBroadcast:
      return BroadcastBytes(algorithm, s, n);
    case OpKind::kReduceScatter:
      return algorithm == Algorithm::kHalvingDoubling && Fold(n).extra() > 0
                 ? s
                 : s - s / n;
    case OpKind::kAllGather:
      return algorithm == Algorithm::kRecursiveDoubling
                 ? DoublingAllGatherBytes(s, n)
                 : s - s / n;
    case OpKind::kGather:
      return GatherBytes(algorithm, s, n);
    case OpKind::kScatter:
      return s - s / n;
    case OpKind::kAllToAll:
      return AllToAllBytes(algorithm, s, n);
    default:
      return 0;
  }
}

}  // namespace tessera::collectives
