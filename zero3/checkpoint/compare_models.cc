#include "zero3/checkpoint/compare_models.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/quoted.h"

namespace tessera::zero3 {
namespace {

// Collects the problems of one kind, and prints the first few.
class Findings {
 public:
  explicit Findings(std::string_view what) : what_(what) {}

  void Add(std::string text) {
    if (++count_ <= kShown) texts_.push_back(std::move(text));
  }
  int64_t count() const { return count_; }
  std::string ToString() const {
    return absl::StrCat(
        what_, ": ", absl::StrJoin(texts_, ", "),
        count_ > kShown ? absl::StrCat(" and ", count_ - kShown, " more") : "");
  }

 private:
  static constexpr int64_t kShown = 3;
  std::string_view what_;
  std::vector<std::string> texts_;
  int64_t count_ = 0;
};

std::string ShapeText(const ParameterSpec& spec) {
  constexpr size_t kDimensionsShown = 8;
  const size_t shown = std::min(spec.shape.size(), kDimensionsShown);
  return absl::StrCat(
      DTypeName(spec.dtype), " [",
      absl::StrJoin(spec.shape.begin(), spec.shape.begin() + shown, ", "),
      shown < spec.shape.size() ? ", ..." : "", "]",
      spec.orthogonalized ? " of Muon" : "");
}

bool IsAlike(const ParameterSpec& a, const ParameterSpec& b) {
  return a.shape == b.shape && a.dtype == b.dtype &&
         a.orthogonalized == b.orthogonalized;
}

bool HasMoments(const ModelParameters& model) {
  return std::any_of(model.all().begin(), model.all().end(),
                     [](const ModelParameter& parameter) {
                       return parameter.trainable() &&
                              parameter.dtype() != DType::kF64;
                     });
}

bool IsTrained(const ModelParameters& model) {
  return std::any_of(
      model.all().begin(), model.all().end(),
      [](const ModelParameter& parameter) { return parameter.trainable(); });
}

absl::Status CompareMoments(const CheckpointPart& saved,
                            const ModelParameters& model,
                            const MomentKinds& moments) {
  if (IsTrained(model) && moments.count != saved.moment_count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the checkpoint has ", saved.moment_count,
        " moments of each trained element, the state ", moments.count,
        " (AdamW and Muon have 2, SGD 1 with momentum and 0 without); create "
        "the state "
        "with the optimizer of the checkpoint"));
  }
  if (HasMoments(model) && moments.count > 0 &&
      moments.format != saved.moments) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the moments of the checkpoint are ", saved.moments.ToString(),
        ", those of the state ", moments.format.ToString(),
        "; create the state with the format of the checkpoint"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CompareModels(const CheckpointPart& saved,
                           const ModelParameters& model,
                           const MomentKinds& moments) {
  Findings missing("missing in the checkpoint");
  Findings extra("only in the checkpoint");
  Findings different("different");
  Findings frozen("frozen in the checkpoint, so without moments");
  for (const ModelParameter& parameter : model.all()) {
    const auto id = saved.model().Find(parameter.name());
    if (!id.ok()) {
      missing.Add(Quoted(parameter.name()));
      continue;
    }
    const ModelParameter& other = saved.model()[*id];
    if (!IsAlike(parameter.spec, other.spec)) {
      different.Add(absl::StrCat(
          Quoted(parameter.name()), " is ", ShapeText(other.spec),
          " in the checkpoint and ", ShapeText(parameter.spec), " here"));
    } else if (parameter.trainable() && !other.trainable()) {
      frozen.Add(Quoted(parameter.name()));
    }
  }
  for (const ModelParameter& parameter : saved.model().all()) {
    if (!model.Find(parameter.name()).ok()) extra.Add(Quoted(parameter.name()));
  }
  std::vector<std::string> texts;
  for (const Findings* findings : {&missing, &extra, &different, &frozen}) {
    if (findings->count() > 0) texts.push_back(findings->ToString());
  }
  if (!texts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the checkpoint is of another model; parameters ",
                     absl::StrJoin(texts, "; "),
                     "; load it into the model that it was saved from"));
  }
  return CompareMoments(saved, model, moments);
}

}  // namespace tessera::zero3
