// tessera.pipeline: schedules as values, their proofs, times and pictures.
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "pipeline/draw/svg.h"
#include "pipeline/draw/terminal.h"
#include "pipeline/generate/generate.h"
#include "pipeline/passes/add_communication.h"
#include "pipeline/proof/validate.h"
#include "pipeline/schedule/schedule_text.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/synthesize/synthesize.h"
#include "tools/python/bindings.h"

namespace tessera::python {
namespace {

namespace py = pybind11;
using pipeline::Action;
using pipeline::Costs;
using pipeline::RankTimeline;
using pipeline::Schedule;
using pipeline::StageCosts;
using pipeline::Timeline;

// `costs` has one entry for all stages, or one per stage.
Costs CostsOf(const std::vector<StageCosts>& costs, int64_t stages,
              double latency, double bandwidth, bool overlap) {
  Costs all;
  all.stages = costs;
  if (costs.size() == 1) {
    all = Costs::Uniform(stages, costs.front());
  }
  all.links.everywhere = {.latency = latency, .bandwidth = bandwidth};
  all.overlap_communication = overlap;
  return all;
}

bool IsLowered(const Schedule& schedule) {
  for (const std::vector<Action>& rank : schedule.ranks) {
    for (const Action& action : rank) {
      if (Communicates(action.kind)) return true;
    }
  }
  return false;
}

// `placement` is "", or the name of a map of stages to ranks.
std::optional<pipeline::StageMap> MapOf(const std::string& placement,
                                        int64_t ranks, int64_t chunks) {
  using pipeline::StageMap;
  if (placement.empty()) return std::nullopt;
  if (placement == "linear" && chunks == 1)
    return Value(StageMap::Linear(ranks));
  if (placement == "loop") return Value(StageMap::Loop(ranks, chunks));
  if (placement == "zigzag") return Value(StageMap::Zigzag(ranks, chunks));
  throw StatusException(absl::InvalidArgumentError(
      absl::StrCat("placement \"", placement, "\" of ", chunks,
                   " stages a rank; use linear (of 1), loop or zigzag")));
}

void BindStageCosts(py::module_& module) {
  py::class_<StageCosts>(module, "StageCosts")
      .def(py::init<>())
      .def_readwrite("forward", &StageCosts::forward)
      .def_readwrite("backward_input", &StageCosts::backward_input)
      .def_readwrite("backward_weight", &StageCosts::backward_weight)
      .def_readwrite("communication", &StageCosts::communication)
      .def_readwrite("forward_bytes", &StageCosts::forward_bytes)
      .def_readwrite("backward_input_bytes", &StageCosts::backward_input_bytes)
      .def_readwrite("backward_weight_bytes",
                     &StageCosts::backward_weight_bytes)
      .def_readwrite("activation_bytes", &StageCosts::activation_bytes)
      .def_readwrite("gradient_bytes", &StageCosts::gradient_bytes)
      .def_readwrite("optimizer", &StageCosts::optimizer);
}

void BindSchedules(py::module_& module) {
  py::class_<Schedule>(module, "Schedule")
      .def_readonly("name", &Schedule::name)
      .def_readonly("microbatches", &Schedule::microbatches)
      .def_property_readonly(
          "ranks",
          [](const Schedule& schedule) { return schedule.map.ranks(); })
      .def_property_readonly(
          "stages",
          [](const Schedule& schedule) { return schedule.map.stages(); })
      .def("stages_of",
           [](const Schedule& schedule, int32_t rank) {
             if (rank < 0 || rank >= schedule.map.ranks()) {
               throw py::index_error(absl::StrCat("rank ", rank, "; there are ",
                                                  schedule.map.ranks()));
             }
             return schedule.map.StagesOf(rank);
           })
      .def_property_readonly("is_lowered", &IsLowered)
      .def("to_csv", &pipeline::WriteCsv, Release())
      .def("to_json", &pipeline::WriteJson, Release())
      .def("__eq__",
           [](const Schedule& a, const Schedule& b) { return a == b; });
  module.def("read_csv", &pipeline::ReadCsv, Release());
  module.def("read_json", &pipeline::ReadJson, Release());
}

void BindGenerators(py::module_& module) {
  module.def("generators", [] {
    std::vector<std::tuple<std::string, std::string, int64_t>> all;
    for (const pipeline::Generator& generator : pipeline::Generators()) {
      all.emplace_back(generator.name, generator.paper, generator.chunks);
    }
    return all;
  });
  module.def(
      "generate",
      [](const std::string& name, int64_t ranks, int64_t microbatches,
         int64_t chunks) {
        return pipeline::Generate(
            name,
            {.ranks = ranks, .chunks = chunks, .microbatches = microbatches});
      },
      Release());
  module.def("lower", &pipeline::AddCommunication, Release());
}

void BindProofs(py::module_& module) {
  py::class_<pipeline::Proof>(module, "Proof")
      .def_readonly("computations", &pipeline::Proof::computations)
      .def_readonly("messages", &pipeline::Proof::messages)
      .def_readonly("peak_activations", &pipeline::Proof::peak_activations);
  module.def(
      "validate",
      [](const Schedule& schedule, int64_t buffers) {
        pipeline::ValidateOptions options;
        options.buffers = buffers;
        options.communication = IsLowered(schedule)
                                    ? pipeline::Communication::kExplicit
                                    : pipeline::Communication::kImplied;
        return pipeline::Validate(schedule, options);
      },
      Release());
}

// The values of a field by rank.
template <typename T>
auto ByRank(T RankTimeline::*field) {
  return [field](const Timeline& timeline) {
    std::vector<T> values;
    for (const RankTimeline& rank : timeline.ranks) {
      values.push_back(rank.*field);
    }
    return values;
  };
}

void BindTimelines(py::module_& module) {
  py::class_<Timeline>(module, "Timeline")
      .def_readonly("makespan", &Timeline::makespan)
      .def_property_readonly(
          "bubble_rate",
          [](const Timeline& timeline) { return timeline.BubbleRate(); })
      .def_property_readonly(
          "bubble_rates",
          [](const Timeline& timeline) {
            std::vector<double> rates;
            for (size_t r = 0; r < timeline.ranks.size(); ++r) {
              rates.push_back(timeline.BubbleRate(static_cast<int32_t>(r)));
            }
            return rates;
          })
      .def_property_readonly("busy", ByRank(&RankTimeline::busy))
      .def_property_readonly("peak_bytes", ByRank(&RankTimeline::peak_bytes))
      .def_property_readonly("peak_activations",
                             ByRank(&RankTimeline::peak_activations))
      .def_property_readonly("computations", [](const Timeline& timeline) {
        std::vector<std::vector<std::tuple<std::string, double, double>>> all;
        for (const auto& rank : timeline.ranks) {
          auto& list = all.emplace_back();
          for (const auto& timed : rank.computations) {
            list.emplace_back(timed.action.ToString(), timed.begin, timed.end);
          }
        }
        return all;
      });
  module.def(
      "simulate",
      [](const Schedule& schedule, const std::vector<StageCosts>& costs,
         double latency, double bandwidth, bool overlap) {
        return pipeline::Simulate(
            schedule,
            CostsOf(costs, schedule.map.stages(), latency, bandwidth, overlap));
      },
      Release());
}

using TitledTimelines = std::vector<std::pair<std::string, Timeline>>;

std::vector<pipeline::Exhibit> ExhibitsOf(const TitledTimelines& timelines) {
  std::vector<pipeline::Exhibit> exhibits;
  for (const auto& [title, timeline] : timelines) {
    exhibits.push_back({title, timeline});
  }
  return exhibits;
}

void BindPictures(py::module_& module) {
  module.def(
      "draw_svg",
      [](const TitledTimelines& timelines, const std::string& unit,
         double microseconds) {
        return pipeline::DrawSvg(ExhibitsOf(timelines), {unit, microseconds});
      },
      Release());
  module.def(
      "draw_terminal",
      [](const TitledTimelines& timelines, const std::string& unit,
         double microseconds, int64_t width) {
        return pipeline::DrawTerminal(ExhibitsOf(timelines),
                                      {unit, microseconds}, {.width = width});
      },
      Release());
}

void BindSynthesis(py::module_& module) {
  py::class_<pipeline::Synthesis>(module, "Synthesis")
      .def_readonly("schedule", &pipeline::Synthesis::schedule)
      .def_readonly("timeline", &pipeline::Synthesis::timeline)
      .def_readonly("lower_bound", &pipeline::Synthesis::lower_bound)
      .def_readonly("gap", &pipeline::Synthesis::gap)
      .def_readonly("origin", &pipeline::Synthesis::origin);
  py::class_<std::stop_source>(module, "Stop")
      .def(py::init<>())
      .def("request", &std::stop_source::request_stop);
  module.def(
      "synthesize",
      [](int64_t ranks, int64_t microbatches, int64_t chunks,
         const std::vector<StageCosts>& costs, double latency, double bandwidth,
         bool overlap, int64_t memory_limit, double effort, uint64_t seed,
         bool prefer_makespan, const std::string& placement,
         const std::stop_source& stop) {
        pipeline::SynthesisProblem problem{
            .ranks = ranks, .chunks = chunks, .microbatches = microbatches};
        problem.costs =
            CostsOf(costs, ranks * chunks, latency, bandwidth, overlap);
        problem.memory_limit = memory_limit;
        problem.map = MapOf(placement, ranks, chunks);
        return pipeline::Synthesize(problem,
                                    {.prefer_makespan = prefer_makespan,
                                     .effort = effort,
                                     .seed = seed,
                                     .stop = stop.get_token()});
      },
      Release());
}

}  // namespace

void BindPipeline(py::module_& module) {
  BindStageCosts(module);
  BindSchedules(module);
  BindGenerators(module);
  BindProofs(module);
  BindTimelines(module);
  BindPictures(module);
  BindSynthesis(module);
}

}  // namespace tessera::python
