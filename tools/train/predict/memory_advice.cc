#include "tools/train/predict/memory_advice.h"

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/train/settings/offload_choice.h"

namespace tessera::train {
namespace {

struct Change {
  std::string flag;
  std::function<void(Settings&)> make;
};

// From what costs least time to what costs most.
std::vector<Change> ChangesOf(const Settings& settings, const MeshSizes& mesh) {
  std::vector<Change> changes;
  const auto add = [&](bool applies, std::string flag, auto make) {
    if (applies) changes.push_back({std::move(flag), make});
  };
  add(settings.zero < 3 && mesh.dp * mesh.cp > 1, "--zero=3",
      [](Settings& to) { to.zero = 3; });
  add(mesh.tp > 1 && !settings.sequence_parallel, "--sequence_parallel",
      [](Settings& to) { to.sequence_parallel = true; });
  add(settings.recompute == "none", "--recompute=selective",
      [](Settings& to) { to.recompute = "selective"; });
  add(settings.parallel.micro_batch > 1, "--micro_batch=1",
      [](Settings& to) { to.parallel.micro_batch = 1; });
  add(settings.recompute != "full", "--recompute=full",
      [](Settings& to) { to.recompute = "full"; });
  add(settings.parallel.schedule == "gpipe" ||
          settings.parallel.schedule == "sequential",
      "--schedule=1f1b", [](Settings& to) { to.parallel.schedule = "1f1b"; });
  const auto offload = [&](std::string_view state) {
    const std::string what = WithActivationsOf(settings.offload, state);
    add(settings.offload != what || settings.offload_dir.empty(),
        absl::StrCat("--offload=", what, " --offload_dir=DIR"),
        [what](Settings& to) {
          to.offload = what;
          to.offload_dir = "DIR";
        });
  };
  offload("optimizer");
  if (settings.zero == 3) offload("all");
  return changes;
}

absl::StatusOr<MemoryAdvice> Try(const Settings& changed, std::string flag,
                                 const model_files::ModelConfig& model,
                                 const RunPrediction& before) {
  auto prediction = MakePrediction(
      changed, model, {.room = before.room, .ranks_here = before.ranks_here});
  if (!prediction.ok()) return prediction.status();
  return MemoryAdvice{.flag = std::move(flag),
                      .needed = prediction->needed,
                      .fits = prediction->fits()};
}

}  // namespace

std::vector<MemoryAdvice> AdviceFor(const Settings& settings,
                                    const model_files::ModelConfig& model,
                                    const RunPrediction& prediction,
                                    bool first_only) {
  const std::vector<Change> changes = ChangesOf(settings, prediction.mesh);
  std::vector<MemoryAdvice> alone;
  for (const Change& change : changes) {
    Settings changed = settings;
    change.make(changed);
    auto advice = Try(changed, change.flag, model, prediction);
    if (!advice.ok() || advice->needed >= prediction.needed) continue;
    alone.push_back(*std::move(advice));
  }
  const auto mildest = alone.empty() ? MemoryAdvice() : alone.front();
  std::stable_sort(
      alone.begin(), alone.end(),
      [](const auto& a, const auto& b) { return a.needed < b.needed; });
  if (alone.empty() || alone.front().fits) return alone;
  if (first_only) return {mildest};
  std::vector<MemoryAdvice> together;
  Settings changed = settings;
  int64_t needed = prediction.needed;
  for (const Change& change : changes) {
    Settings next = changed;
    change.make(next);
    auto advice = Try(next, change.flag, model, prediction);
    if (!advice.ok() || advice->needed >= needed) continue;
    advice->and_before = !together.empty();
    needed = advice->needed;
    changed = std::move(next);
    together.push_back(*std::move(advice));
    if (together.back().fits) break;
  }
  return together;
}

}  // namespace tessera::train
