#include "zero3/checkpoint/toy_run.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "zero3/state/toy_training.h"

namespace tessera::zero3::testing {

absl::Status FillFirst(ShardedState& state) {
  return state.Fill(
      [](const Parameter& parameter, int64_t begin, TensorView elements) {
        std::vector<double> values;
        for (int64_t i = 0; i < elements.element_count(); ++i) {
          values.push_back(FirstValue(parameter.id.value(), begin + i));
        }
        return Convert(
            DType::kF64, std::as_bytes(std::span(values)), elements.dtype(),
            {elements.data(), static_cast<size_t>(elements.size_in_bytes())});
      });
}

absl::Status TrainSteps(ShardedState& state, const RankGroups& groups,
                        int64_t parts, int64_t begin, int64_t end) {
  const int64_t world = groups.world->size();
  const int64_t mine = parts / world;
  for (int64_t step = begin; step < end; ++step) {
    for (int64_t i = 0; i < mine; ++i) {
      const bool reduce = state.options().stage >= 2 || i + 1 == mine;
      TESSERA_RETURN_IF_ERROR(
          RunPart(state, step, groups.rank + i * world, reduce));
    }
    TESSERA_RETURN_IF_ERROR(state.Step().status());
  }
  return absl::OkStatus();
}

std::string NewDirectory(const std::string& name) {
  static std::atomic<int> counter = 0;
  const char* const base = std::getenv("TEST_TMPDIR");
  const std::string path =
      absl::StrCat(base != nullptr ? base : "/tmp", "/", name, ".", counter++);
  std::filesystem::remove_all(path);
  std::filesystem::create_directory(path);
  return path;
}

absl::Status AllOk(const std::vector<absl::Status>& statuses) {
  absl::Status first;
  for (const absl::Status& status : statuses) first.Update(status);
  return first;
}

}  // namespace tessera::zero3::testing
