#include "collectives/adaptive/adaptive_chooser.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "collectives/algorithms/strategy_chooser.h"

namespace tessera::collectives {
namespace {

// What is measured again differs by a tenth: an algorithm is taken instead of
// the engine's own way where it is predicted to take less than this share of
// its time.
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
    absl::StrAppend(&line, "; not taken: far behind at smaller sizes");
  }
  return line;
}

}  // namespace

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
    return absl::StrCat(what, ": the default, because nothing is predicted");
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
