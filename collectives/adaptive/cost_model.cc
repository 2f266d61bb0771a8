#include "collectives/adaptive/cost_model.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "collectives/algorithms/supports.h"

namespace tessera::collectives {
namespace {

bool MayChoose(Algorithm algorithm, const ChoiceQuestion& question) {
  if (algorithm == Algorithm::kEngine) return question.engine_implements;
  return question.has_transport &&
         Supports(algorithm, question.kind, question.uneven);
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

// An algorithm that was not measured is held to be off as the others of the
// kind are (in the geometric mean).
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

}  // namespace tessera::collectives
