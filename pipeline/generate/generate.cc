#include "pipeline/generate/generate.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "pipeline/generate/generators.h"

namespace tessera::pipeline {
namespace {

constexpr Generator kGenerators[] = {
    {"sequential", "", 0, false, &GenerateSequential},
    {"gpipe", "arXiv 1811.06965", 1, false, &GenerateGpipe},
    {"round_robin", "arXiv 2211.05953", 0, false, &GenerateRoundRobin},
    {"1f1b", "arXiv 2104.04473", 1, false, &GenerateOneFOneB},
    {"interleaved_1f1b", "arXiv 2104.04473", 0, false,
     &GenerateInterleavedOneFOneB},
    {"looped_bfs", "arXiv 2211.05953", 0, false, &GenerateLoopedBfs},
    {"zb_h1", "arXiv 2401.10241", 1, false, &GenerateZbH1},
    {"zb_h2", "arXiv 2401.10241", 1, false, &GenerateZbH2},
    {"zb_v", "arXiv 2401.10241", 2, false, &GenerateZbV},
    {"v_half", "arXiv 2405.15362", 2, false, &GenerateVHalf},
    {"v_min", "arXiv 2405.15362", 2, false, &GenerateVMin},
    {"dualpipe", "arXiv 2412.19437", 1, true, &GenerateDualPipe},
    {"dualpipev", "arXiv 2412.19437", 2, false, &GenerateDualPipeV},
};

}  // namespace

std::span<const Generator> Generators() { return kGenerators; }

std::vector<std::string_view> GeneratorNames() {
  std::vector<std::string_view> names;
  for (const Generator& generator : kGenerators) {
    names.push_back(generator.name);
  }
  return names;
}

absl::StatusOr<Schedule> Generate(std::string_view name,
                                  const PipelineShape& shape) {
  for (const Generator& generator : kGenerators) {
    if (generator.name == name) return generator.generate(shape);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown generator \"", absl::CEscape(name.substr(0, 40)),
                   "\"; there are ", absl::StrJoin(GeneratorNames(), ", ")));
}

}  // namespace tessera::pipeline
