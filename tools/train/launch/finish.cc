#include "tools/train/launch/finish.h"

#include "base/file.h"
#include "base/status_macros.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/train/launch/run_outcome.h"
#include "tools/train/launch/run_result_json.h"
#include "tools/train/launch/summary.h"
#include "tools/train/launch/verify_losses.h"
#include "tools/train/report/print_report.h"
#include "tools/train/report/run_report.h"
#include "tools/train/sample/generate.h"

namespace tessera::train {
namespace {

// Empty where none is asked for.
absl::StatusOr<std::string> DrawSample(const FinishedRun& run,
                                       const RunResult& result) {
  const Settings& settings = run.settings;
  if (settings.sample_tokens == 0 || result.checkpoint.empty()) return "";
  tensor_parallel::CpuOps ops({.threads = static_cast<int>(settings.threads)});
  return GenerateText(result.checkpoint, *run.tokenizer, ops,
                      {.prompt = settings.sample_prompt,
                       .tokens = settings.sample_tokens,
                       .temperature = settings.sample_temperature,
                       .seed = static_cast<uint64_t>(settings.seed)});
}

absl::StatusOr<LossDifference> Verify(const FinishedRun& run,
                                      const RunResult& result,
                                      std::ostream& err) {
  err << "train: the same steps on one rank, to compare the losses"
      << std::endl;
  TESSERA_ASSIGN_OR_RETURN(const std::string text,
                           run.train(OneRankSettings(run.settings)),
                           Annotate(_, "--verify"));
  TESSERA_ASSIGN_OR_RETURN(const RunResult alone, ParseRunResult(text));
  return CompareLosses(result, alone);
}

// Piece by piece: some take long.
absl::Status FinishAsText(const FinishedRun& run, RunOutcome& outcome,
                          std::ostream& out, std::ostream& err) {
  out << SummaryText(run.settings, outcome.result) << std::flush;
  TESSERA_ASSIGN_OR_RETURN(outcome.sample, DrawSample(run, outcome.result),
                           Annotate(_, "the sample"));
  if (!outcome.sample.empty()) out << "\n" << outcome.sample << "\n";
  if (outcome.report) {
    out << "\n";
    PrintRunReport(*outcome.report, out);
  }
  out.flush();
  if (!run.settings.verify) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(outcome.verified, Verify(run, outcome.result, err));
  TESSERA_RETURN_IF_ERROR(CheckDifference(*outcome.verified, run.settings));
  out << "\nverified: " << DescribeDifference(*outcome.verified) << "\n";
  return absl::OkStatus();
}

absl::Status FinishAsJson(const FinishedRun& run, RunOutcome& outcome,
                          std::ostream& out, std::ostream& err) {
  TESSERA_ASSIGN_OR_RETURN(outcome.sample, DrawSample(run, outcome.result),
                           Annotate(_, "the sample"));
  if (run.settings.verify) {
    TESSERA_ASSIGN_OR_RETURN(outcome.verified,
                             Verify(run, outcome.result, err));
  }
  out << OutcomeAsJson(outcome) << std::flush;
  return outcome.verified ? CheckDifference(*outcome.verified, run.settings)
                          : absl::OkStatus();
}

}  // namespace

absl::Status FinishRun(const FinishedRun& run, const std::string& text,
                       std::ostream& out, std::ostream& err) {
  RunOutcome outcome = {.settings = run.settings,
                        .run_dir = run.directory.path()};
  TESSERA_ASSIGN_OR_RETURN(outcome.result, ParseRunResult(text));
  TESSERA_RETURN_IF_ERROR(WriteFile(run.directory.result(), text));
  if (run.prediction.has_value()) {
    outcome.report =
        MakeRunReport(outcome.result, run.settings, *run.prediction);
  }
  return run.settings.format == "json" ? FinishAsJson(run, outcome, out, err)
                                       : FinishAsText(run, outcome, out, err);
}

}  // namespace tessera::train
