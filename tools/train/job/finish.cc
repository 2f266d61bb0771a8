#include "tools/train/job/finish.h"

#include "base/file.h"
#include "base/status_macros.h"
#include "tensor_parallel/ops/cpu/cpu_ops.h"
#include "tools/train/job/result/run_result_json.h"
#include "tools/train/job/result/summary.h"
#include "tools/train/job/result/verify_losses.h"
#include "tools/train/report/print_report.h"
#include "tools/train/report/run_report.h"
#include "tools/train/sample/generate.h"

namespace tessera::train {
namespace {

absl::Status PrintSample(const FinishedRun& run, const RunResult& result,
                         std::ostream& out) {
  const Settings& settings = run.settings;
  if (settings.sample_tokens == 0 || result.checkpoint.empty()) {
    return absl::OkStatus();
  }
  tensor_parallel::CpuOps ops({.threads = static_cast<int>(settings.threads)});
  TESSERA_ASSIGN_OR_RETURN(
      const std::string text,
      GenerateText(result.checkpoint, *run.tokenizer, ops,
                   {.prompt = settings.sample_prompt,
                    .tokens = settings.sample_tokens,
                    .temperature = settings.sample_temperature,
                    .seed = static_cast<uint64_t>(settings.seed)}),
      Annotate(_, "the sample"));
  out << "\n" << text << "\n";
  return absl::OkStatus();
}

absl::Status Verify(const FinishedRun& run, const RunResult& result,
                    std::ostream& out, std::ostream& err) {
  err << "train: the same steps on one rank, to compare the losses"
      << std::endl;
  TESSERA_ASSIGN_OR_RETURN(const std::string text,
                           run.train(OneRankSettings(run.settings)),
                           Annotate(_, "--verify"));
  TESSERA_ASSIGN_OR_RETURN(const RunResult alone, ParseRunResult(text));
  const LossDifference difference = CompareLosses(result, alone);
  TESSERA_RETURN_IF_ERROR(CheckDifference(difference, run.settings));
  out << "\nverified: " << DescribeDifference(difference) << "\n";
  return absl::OkStatus();
}

}  // namespace

absl::Status FinishRun(const FinishedRun& run, const std::string& text,
                       std::ostream& out, std::ostream& err) {
  TESSERA_ASSIGN_OR_RETURN(const RunResult result, ParseRunResult(text));
  TESSERA_RETURN_IF_ERROR(WriteFile(run.directory.result(), text));
  out << SummaryText(run.settings, result) << std::flush;
  TESSERA_RETURN_IF_ERROR(PrintSample(run, result, out));
  if (run.prediction.has_value()) {
    out << "\n";
    PrintRunReport(MakeRunReport(result, run.settings, *run.prediction), out);
  }
  out.flush();
  if (!run.settings.verify) return absl::OkStatus();
  return Verify(run, result, out, err);
}

}  // namespace tessera::train
