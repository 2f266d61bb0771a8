// tessera.plan and tessera.estimate: the planner, and the resources that a
// training run needs. Results are JSON in the format of the tools.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "base/byte_size.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"
#include "tools/plan/request.h"
#include "tools/plan/search.h"
#include "tools/python/bindings.h"
#include "tools/train/predict/print_prediction.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/settings/check_settings.h"
#include "tools/train/settings/memory_ladder.h"
#include "tools/train/settings/run_options_from.h"
#include "tools/train/settings/settings.h"
#include "tools/train/settings/settings_table.h"

namespace tessera::python {
namespace {

namespace py = pybind11;

absl::StatusOr<std::string> FindPlans(const plan::PlanQuestion& question,
                                      const topology::Cluster& cluster) {
  TESSERA_ASSIGN_OR_RETURN(const plan::PlanRequest request,
                           plan::MakeRequest(question, cluster));
  TESSERA_ASSIGN_OR_RETURN(const plan::PlanReport report,
                           plan::FindPlans(request));
  std::ostringstream json;
  plan::PrintPlans(request, report, tools::OutputFormat::kJson, json);
  return json.str();
}

// Estimates the needs of a run. The machine's memory is in bytes; 0 stands for
// this machine's. Ranks do not include the memory of an idle process.
absl::StatusOr<std::string> Estimate(const std::string& json,
                                     int64_t vocabulary, int64_t memory) {
  TESSERA_ASSIGN_OR_RETURN(train::Settings settings,
                           train::ParseSettings(json));
  TESSERA_RETURN_IF_ERROR(train::CheckSettings(settings));
  settings = train::AtLowestRung(settings, train::ScratchOf(settings));
  TESSERA_ASSIGN_OR_RETURN(const model_files::ModelConfig model,
                           train::ModelOf(settings, vocabulary));
  train::MachineRoom room = {.bytes = memory, .limit = "memory"};
  if (memory == 0) {
    TESSERA_ASSIGN_OR_RETURN(room, train::ReadMachineRoom());
    room.process = 0;
  }
  TESSERA_ASSIGN_OR_RETURN(const train::RunPrediction prediction,
                           train::PredictRun(settings, model, {.room = room}));
  return train::PredictionAsJson(prediction);
}

// Name and help of each setting.
std::vector<std::tuple<std::string, std::string>> SettingsHelp() {
  std::vector<std::tuple<std::string, std::string>> all;
  for (const train::SettingsField& field : train::SettingsFields()) {
    all.emplace_back(field.name, field.help);
  }
  return all;
}

}  // namespace

void BindPlan(py::module_& module) {
  module.def(
      "find_plans",
      [](const std::string& model, const topology::Cluster& cluster,
         int64_t ranks, int64_t memory, int64_t batch, int64_t length,
         const std::string& dtype, double tflops, double efficiency,
         int64_t top) {
        return FindPlans({.model = model,
                          .ranks = ranks,
                          .memory = memory,
                          .batch = batch,
                          .length = length,
                          .dtype = dtype,
                          .tflops = tflops,
                          .efficiency = efficiency,
                          .top = top},
                         cluster);
      },
      Release());
  module.def("parse_bytes", [](const std::string& text) {
    return Value(ParseByteSize(text)).bytes();
  });
  module.def("model_presets", &model_files::PresetNames);
  module.def("settings", &SettingsHelp);
  module.def("default_settings",
             [] { return train::FormatSettings(train::Settings()); });
  module.def("estimate", &Estimate, Release());
}

}  // namespace tessera::python
