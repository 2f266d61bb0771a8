#include "tools/train/launch/rehearsal.h"

#include <algorithm>

#include "base/file.h"
#include "base/status_macros.h"
#include "tools/train/launch/attempt.h"
#include "tools/train/launch/product_memory.h"
#include "tools/train/launch/run_directory.h"
#include "tools/train/launch/run_result_json.h"
#include "tools/train/loop/training_data.h"
#include "tools/train/predict/run_prediction.h"
#include "tools/train/settings/model_of.h"
#include "tools/train/settings/run_options_from.h"
#include "topology/config/strategies.h"

namespace tessera::train {
namespace {

// Two ranks on each axis where the run has more than one, for each axis has
// groups and threads that move its messages; at most 8 ranks.
MeshSizes SmallMesh(const MeshSizes& mesh) {
  MeshSizes small;
  for (const auto axis :
       {&MeshSizes::tp, &MeshSizes::dp, &MeshSizes::pp, &MeshSizes::cp}) {
    if (mesh.*axis > 1 && small.world_size() < 8) small.*axis = 2;
  }
  return small;
}

// Processes are ranks of shared memory also where a launcher would have to be
// asked for others.
Settings SmallestRun(const Settings& settings, const std::string& text) {
  Settings small;
  small.data = {text};
  small.tokenizer = settings.tokenizer;
  small.engine = settings.engine == "mpi" ? "shared_memory" : settings.engine;
  small.threads = settings.threads;
  // Which measures nothing first.
  small.parallel.strategy = topology::CommunicationStrategy::kAllReduce;
  small.parallel.mesh = settings.engine == "in_process"
                            ? MeshSizes()
                            : SmallMesh(settings.parallel.mesh);
  small.zero = settings.zero;
  small.batch = 4;
  small.length = 128;
  small.steps = 6;  // In fewer the C library keeps less of what was freed.
  small.warmup_steps = 0;
  small.quiet = true;
  return small;
}

absl::StatusOr<RunResult> Run(const Settings& settings,
                              const std::string& program,
                              const RunDirectory& directory) {
  const AttemptOutcome outcome = RunAttempt(
      settings, {.files = {directory.exchange()}, .program = program});
  TESSERA_RETURN_IF_ERROR(outcome.status);
  return ParseRunResult(outcome.result);
}

absl::StatusOr<int64_t> Measure(const Settings& run,
                                const model_files::ModelConfig& model,
                                const std::string& program,
                                const RunDirectory& directory) {
  const std::string text = directory.path() + "/text.txt";
  TESSERA_RETURN_IF_ERROR(WriteFile(text, std::string(4096, 'a')));
  const Settings settings = SmallestRun(run, text);
  TESSERA_ASSIGN_OR_RETURN(const RunResult result,
                           Run(settings, program, directory));
  TESSERA_ASSIGN_OR_RETURN(const TrainingData data, OpenTrainingData(settings));
  TESSERA_ASSIGN_OR_RETURN(
      const auto small_model,
      ModelOf(settings, data.tokenizer->vocabulary_size()));
  TESSERA_ASSIGN_OR_RETURN(MachineRoom room, ReadMachineRoom());
  room.process = 0;
  TESSERA_ASSIGN_OR_RETURN(
      const RunPrediction prediction,
      MakePrediction(settings, small_model, {.room = room}));
  int64_t process = 0;
  for (size_t i = 0; i < result.ranks.size(); ++i) {
    process = std::max(process, result.ranks[i].memory.peak_resident -
                                    prediction.ranks[i].peak_bytes());
  }
  TESSERA_ASSIGN_OR_RETURN(const RunOptions small,
                           RunOptionsFrom(settings, small_model));
  TESSERA_ASSIGN_OR_RETURN(const RunOptions large, RunOptionsFrom(run, model));
  TESSERA_ASSIGN_OR_RETURN(
      const int64_t products,
      MeasureProducts(small, large, static_cast<int>(run.threads)));
  // Threads of one process have buffers of their own.
  const int64_t ranks =
      run.engine == "in_process" ? large.mesh.world_size() : 1;
  return process + ranks * products;
}

}  // namespace

absl::StatusOr<int64_t> MeasureProcess(const Settings& settings,
                                       const model_files::ModelConfig& model,
                                       const std::string& program) {
  TESSERA_ASSIGN_OR_RETURN(const RunDirectory directory,
                           RunDirectory::Create(Settings()));
  absl::StatusOr<int64_t> measured =
      Measure(settings, model, program, directory);
  directory.CleanUp();
  if (measured.ok()) return measured;
  return Annotate(measured.status(),
                  "six steps of a small model, for the memory of a process");
}

}  // namespace tessera::train
