#include "tools/train/parity/testing/covering_array.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <utility>

namespace tessera::train {
namespace {

class Generator {
 public:
  explicit Generator(const CoveringProblem& problem)
      : problem_(problem), random_(problem.seed) {
    for (const int levels : problem.levels) {
      first_value_.push_back(values_);
      values_ += static_cast<size_t>(levels);
    }
    missing_.resize(values_ * values_);
  }

  std::vector<CoveringRow> Run() {
    FindPairs();
    std::vector<CoveringRow> rows;
    while (!pairs_.empty()) {
      CoveringRow best;
      int most = -1;
      for (int i = 0; i < std::max(problem_.candidates, 1); ++i) {
        CoveringRow row = Candidate();
        if (const int gain = GainOf(row); gain > most) {
          most = gain;
          best = std::move(row);
        }
      }
      Cover(best);
      rows.push_back(std::move(best));
    }
    return rows;
  }

 private:
  struct Pair {
    size_t factor, other;
    int value, of_other;
  };

  size_t factors() const { return problem_.levels.size(); }
  size_t IndexOf(size_t factor, int value) const {
    return first_value_[factor] + static_cast<size_t>(value);
  }
  // `factor` < `other`.
  size_t PlaceOf(const Pair& pair) const {
    return IndexOf(pair.factor, pair.value) * values_ +
           IndexOf(pair.other, pair.of_other);
  }
  size_t RandomBelow(size_t count) { return random_() % count; }

  CoveringRow NothingChosen() const {
    return CoveringRow(factors(), kNotChosen);
  }

  // True if the row can be completed; searches in the order of the factors.
  bool CanComplete(CoveringRow& row, size_t factor = 0) const {
    if (!problem_.allowed(row)) return false;
    while (factor < factors() && row[factor] != kNotChosen) ++factor;
    if (factor == factors()) return true;
    for (int value = 0; value < problem_.levels[factor]; ++value) {
      row[factor] = value;
      const bool can = CanComplete(row, factor + 1);
      row[factor] = kNotChosen;
      if (can) return true;
    }
    return false;
  }

  void FindPairs() {
    for (size_t f = 0; f < factors(); ++f) {
      for (size_t g = f + 1; g < factors(); ++g) {
        for (int v = 0; v < problem_.levels[f]; ++v) {
          for (int w = 0; w < problem_.levels[g]; ++w) {
            CoveringRow row = NothingChosen();
            row[f] = v;
            row[g] = w;
            if (!CanComplete(row)) continue;
            pairs_.push_back({f, g, v, w});
            missing_[PlaceOf(pairs_.back())] = true;
          }
        }
      }
    }
  }

  CoveringRow Candidate() {
    CoveringRow row = NothingChosen();
    const Pair& begin = pairs_[RandomBelow(pairs_.size())];
    row[begin.factor] = begin.value;
    row[begin.other] = begin.of_other;
    std::vector<size_t> order(factors());
    std::iota(order.begin(), order.end(), size_t{0});
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[RandomBelow(i)]);
    }
    for (const size_t factor : order) {
      if (row[factor] == kNotChosen) row[factor] = BestValue(row, factor);
    }
    return row;
  }

  // A value exists, because the row can be completed.
  int BestValue(CoveringRow& row, size_t factor) {
    const auto levels = static_cast<size_t>(problem_.levels[factor]);
    const size_t first = RandomBelow(levels);
    int best = kNotChosen, most = -1;
    for (size_t i = 0; i < levels; ++i) {
      const auto value = static_cast<int>((first + i) % levels);
      const int gain = GainOf(row, factor, value);
      if (gain <= most) continue;
      row[factor] = value;
      if (CanComplete(row)) {
        most = gain;
        best = value;
      }
      row[factor] = kNotChosen;
    }
    return best;
  }

  bool IsMissing(size_t f, int v, size_t g, int w) const {
    return f < g ? missing_[PlaceOf({f, g, v, w})]
                 : missing_[PlaceOf({g, f, w, v})];
  }

  // The number of missing pairs of this value with the chosen ones.
  int GainOf(const CoveringRow& row, size_t factor, int value) const {
    int gain = 0;
    for (size_t g = 0; g < factors(); ++g) {
      if (g == factor || row[g] == kNotChosen) continue;
      gain += IsMissing(factor, value, g, row[g]) ? 1 : 0;
    }
    return gain;
  }
  int GainOf(const CoveringRow& row) const {
    int twice = 0;
    for (size_t f = 0; f < factors(); ++f) twice += GainOf(row, f, row[f]);
    return twice / 2;
  }

  void Cover(const CoveringRow& row) {
    const auto is_covered = [&](const Pair& pair) {
      const bool covered =
          row[pair.factor] == pair.value && row[pair.other] == pair.of_other;
      if (covered) missing_[PlaceOf(pair)] = false;
      return covered;
    };
    pairs_.erase(std::remove_if(pairs_.begin(), pairs_.end(), is_covered),
                 pairs_.end());
  }

  const CoveringProblem& problem_;
  std::mt19937_64 random_;
  std::vector<size_t> first_value_;  // By factor.
  size_t values_ = 0;                // The total over all factors.
  std::vector<bool> missing_;        // Indexed by PlaceOf.
  std::vector<Pair> pairs_;          // The missing pairs.
};

}  // namespace

std::vector<CoveringRow> CoveringArray(const CoveringProblem& problem) {
  return Generator(problem).Run();
}

}  // namespace tessera::train
