#include "collectives/adaptive/adaptive_chooser.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "collectives/algorithms/algorithm_chooser.h"

namespace tessera::collectives {

namespace {

bool MayChoose(Algorithm algorithm, const ChoiceQuestion& question) {
  if (algorithm == Algorithm::kEngine) return question.engine_implements;
  return question.has_transport &&
         Supports(algorithm, question.kind, question.uneven);
}

size_t HashOf(const ChoiceQuestion& question) {
  uint64_t hash = static_cast<uint64_t>(question.bytes);
  hash = hash * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(question.ranks);
  hash = hash * 0x9e3779b97f4a7c15 +
         static_cast<uint64_t>(question.ranks_per_host);
  hash = hash * 0x9e3779b97f4a7c15 +
         (static_cast<uint64_t>(question.kind) << 16 |
          static_cast<uint64_t>(question.dtype) << 8 |
          (question.uneven ? 4u : 0u) | (question.engine_implements ? 2u : 0u) |
          (question.has_transport ? 1u : 0u));
  hash *= 0xbf58476d1ce4e5b9;
  return static_cast<size_t>(hash ^ hash >> 32);
}

// Repeated measurements differ by a tenth: an algorithm replaces the engine's
// own only if its predicted time is less than this share.
constexpr double kWorthIt = 0.9;

std::string Microseconds(double seconds) {
  return absl::StrFormat("%.4g us", seconds * 1e6);
}

std::string DescribeOrigin(const CostTable& table, const std::string& origin) {
  return absl::StrCat("costs of engine ", table.key.engine, ", ",
                      table.key.ranks, " ranks, ", table.key.ranks_per_host,
                      " a host (", origin, ")");
}

std::string TableLine(const Prediction& prediction) {
  std::string line =
      absl::StrFormat("\n  %-18s %14s", AlgorithmName(prediction.algorithm),
                      Microseconds(prediction.seconds));
  if (prediction.algorithm == Algorithm::kEngine) {
    absl::StrAppend(&line, " = as measured");
  } else {
    absl::StrAppend(
        &line, " = formula ", Microseconds(prediction.formula),
        absl::StrFormat(" x measured factor %.3g", prediction.factor));
  }
  if (prediction.left_out) {
    absl::StrAppend(&line, "; not chosen: far slower at smaller sizes");
  }
  return line;
}

}  // namespace

CostModel::CostModel(CostTable table) : table_(std::move(table)) {
  for (const auto& [what, points] : table_.measured) {
    for (const SizePoint& point : points)
      sizes_[what.first].insert(point.bytes);
    if (what.second == Algorithm::kEngine) continue;
    std::vector<SizePoint>& factors = factors_[what];
    for (const SizePoint& point : points) {
      const double formula =
          FormulaSeconds(table_.costs, what.second, what.first, point.bytes,
                         table_.key.ranks, table_.key.ranks_per_host);
      factors.push_back({point.bytes, point.value / formula});
    }
  }
}

bool CostModel::HasMeasuredShape(const ChoiceQuestion& question) const {
  return question.ranks == table_.key.ranks &&
         question.ranks_per_host == table_.key.ranks_per_host;
}

// An algorithm that was not measured gets the geometric mean of the factors of
// the other algorithms of its kind.
double CostModel::FactorOf(Algorithm algorithm,
                           const ChoiceQuestion& question) const {
  const auto own = factors_.find({question.kind, algorithm});
  if (own != factors_.end()) return FactorAt(own->second, question.bytes);
  double sum = 0;
  int count = 0;
  for (const auto& [what, factors] : factors_) {
    if (what.first != question.kind) continue;
    sum += std::log(FactorAt(factors, question.bytes));
    ++count;
  }
  return count == 0 ? 1 : std::exp(sum / count);
}

bool CostModel::LeftOut(Algorithm algorithm,
                        const ChoiceQuestion& question) const {
  const auto own = table_.measured.find({question.kind, algorithm});
  if (own == table_.measured.end()) return false;
  const auto measured_at = [&](int64_t bytes) {
    return std::any_of(
        own->second.begin(), own->second.end(),
        [&](const SizePoint& point) { return point.bytes == bytes; });
  };
  const std::set<int64_t>& sizes = sizes_.at(question.kind);
  const auto above = sizes.lower_bound(question.bytes);
  if (above != sizes.end() && measured_at(*above)) return false;
  if (above != sizes.end() && *above == question.bytes) return true;
  return above == sizes.begin() || !measured_at(*std::prev(above));
}

double CostModel::ShapeScale(const ChoiceQuestion& question) const {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  double here = kNone;
  double measured = kNone;
  for (const Algorithm algorithm : AlgorithmsFor(question.kind, false)) {
    here = std::min(here, FormulaSeconds(table_.costs, algorithm, question.kind,
                                         question.bytes, question.ranks,
                                         question.ranks_per_host));
    measured = std::min(
        measured,
        FormulaSeconds(table_.costs, algorithm, question.kind, question.bytes,
                       table_.key.ranks, table_.key.ranks_per_host));
  }
  return here == kNone ? 1 : here / measured;
}

std::optional<Prediction> CostModel::Predict(
    Algorithm algorithm, const ChoiceQuestion& question) const {
  if (!MayChoose(algorithm, question)) return std::nullopt;
  Prediction prediction;
  prediction.algorithm = algorithm;
  prediction.left_out = LeftOut(algorithm, question);
  if (algorithm != Algorithm::kEngine) {
    prediction.formula =
        FormulaSeconds(table_.costs, algorithm, question.kind, question.bytes,
                       question.ranks, question.ranks_per_host);
    prediction.factor = FactorOf(algorithm, question);
    prediction.seconds = prediction.formula * prediction.factor;
    return prediction;
  }
  const auto curve = table_.measured.find({question.kind, algorithm});
  if (curve == table_.measured.end()) return std::nullopt;
  prediction.seconds = CurveAt(curve->second, question.bytes);
  if (!HasMeasuredShape(question)) prediction.seconds *= ShapeScale(question);
  return prediction;
}

std::vector<Prediction> CostModel::PredictAll(
    const ChoiceQuestion& question) const {
  std::vector<Prediction> predictions;
  for (const Algorithm algorithm : kAllAlgorithms) {
    if (const auto prediction = Predict(algorithm, question)) {
      predictions.push_back(*prediction);
    }
  }
  std::stable_sort(predictions.begin(), predictions.end(),
                   [](const Prediction& a, const Prediction& b) {
                     return std::pair(a.left_out, a.seconds) <
                            std::pair(b.left_out, b.seconds);
                   });
  return predictions;
}

std::optional<Algorithm> DecisionMemo::Find(
    const ChoiceQuestion& question) const {
  for (size_t at = HashOf(question);; ++at) {
    const Decision* decision =
        slots_[at % kSlots].load(std::memory_order_acquire);
    if (decision == nullptr) return std::nullopt;
    if (decision->question == question) return decision->algorithm;
  }
}

void DecisionMemo::Keep(const ChoiceQuestion& question, Algorithm algorithm) {
  const std::lock_guard lock(mutex_);
  if (decisions_.size() == kMaxDecisions) return;
  size_t at = HashOf(question);
  for (;; ++at) {
    const Decision* decision =
        slots_[at % kSlots].load(std::memory_order_relaxed);
    if (decision == nullptr) break;
    if (decision->question == question) return;
  }
  decisions_.push_back(
      std::make_unique<const Decision>(Decision{question, algorithm}));
  slots_[at % kSlots].store(decisions_.back().get(), std::memory_order_release);
}

Algorithm AdaptiveChooser::Choose(const ChoiceQuestion& question) const {
  if (const std::optional<Algorithm> known = memo_.Find(question)) {
    return *known;
  }
  const Algorithm chosen = Decide(question);
  memo_.Keep(question, chosen);
  return chosen;
}

Algorithm AdaptiveChooser::Decide(const ChoiceQuestion& question) const {
  if (question.ranks <= 1) return DefaultAlgorithm(question);
  const std::vector<Prediction> predictions = model_.PredictAll(question);
  if (predictions.empty()) return DefaultAlgorithm(question);
  const double least = predictions.front().seconds;
  for (const Prediction& prediction : predictions) {
    if (prediction.algorithm == Algorithm::kEngine &&
        prediction.seconds * kWorthIt <= least) {
      return Algorithm::kEngine;
    }
  }
  return predictions.front().algorithm;
}

std::string AdaptiveChooser::Explain(const ChoiceQuestion& question) const {
  const Algorithm chosen = Choose(question);
  const std::vector<Prediction> predictions = model_.PredictAll(question);
  const std::string what = absl::StrCat(
      "strategy adaptive: ", AlgorithmName(chosen), " for ",
      question.uneven ? "uneven " : "", OpKindName(question.kind), " of ",
      question.bytes, " bytes on ", question.ranks, " ranks");
  if (question.ranks <= 1 || predictions.empty()) {
    return absl::StrCat(what, ": the default, because there is no prediction");
  }
  std::string text =
      absl::StrCat(what,
                   chosen == predictions.front().algorithm
                       ? ": the least predicted time; "
                       : ": within a tenth of the least predicted time; ",
                   DescribeOrigin(model_.table(), origin_));
  for (const Prediction& prediction : predictions) {
    absl::StrAppend(&text, TableLine(prediction));
  }
  return text;
}

}  // namespace tessera::collectives
