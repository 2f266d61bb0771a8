// The generate tool: continues a prompt, or measures the loss of a text.
#include <cmath>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/cli/cli.h"
#include "tools/generate/model_source.h"
#include "tools/train/sample/generate.h"
#include "tools/train/settings/settings.h"

ABSL_FLAG(std::string, from, "",
          "the model: the directory of a run, a checkpoint, a directory of "
          "checkpoints (its newest one), or a Hugging Face directory with "
          "config.json and safetensors");
ABSL_FLAG(std::string, tokenizer, "",
          "a directory with a tokenizer.json (Hugging Face) or tokenizer.model "
          "(SentencePiece), or the file; empty: that of the run or of the "
          "Hugging Face directory, else bytes");
ABSL_FLAG(std::string, special_tokens, "",
          "where special tokens such as <|im_start|>, written out, become ids: "
          "pairs (in --prompt), ids (also in --perplexity), text (nowhere); "
          "empty: that of the run, otherwise pairs");
ABSL_FLAG(std::string, prompt, "The ", "the text to continue");
ABSL_FLAG(int64_t, tokens, 200,
          "most tokens to generate; fewer if the model ends its text");
ABSL_FLAG(double, temperature, 0.8, "0: always the most likely token");
ABSL_FLAG(int64_t, top_k, 0,
          "chooses among the k most likely tokens; 0: among all");
ABSL_FLAG(double, top_p, 1,
          "chooses among the most likely tokens that together have this "
          "probability; 1: among all");
ABSL_FLAG(int64_t, seed, 1, "the same seed gives the same text");
ABSL_FLAG(std::string, perplexity, "",
          "a text file: prints its mean loss per token and its perplexity "
          "instead of a continuation");
ABSL_FLAG(int64_t, window, 0,
          "with --perplexity, tokens that the model sees at a time; 0: the "
          "--length of the run, or the positions of the model");
ABSL_FLAG(int64_t, threads, 0,
          "threads of the computation; 0: the processors of this process");
ABSL_FLAG(tessera::tools::OutputFormat, format,
          tessera::tools::OutputFormat::kText, "text or json");

namespace tessera::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostTextBytes = int64_t{1} << 30;

absl::Status CheckRange(std::string_view flag, int64_t value, int64_t least,
                        int64_t most, std::string_view example) {
  if (least <= value && value <= most) return absl::OkStatus();
  return FlagError(flag, absl::StrCat(value),
                   absl::InvalidArgumentError(
                       absl::StrCat("allowed: ", least, " to ", most,
                                    ", such as --", flag, "=", example)));
}

absl::Status CheckFlags() {
  if (absl::GetFlag(FLAGS_from).empty()) {
    return FlagError("from", "",
                     absl::InvalidArgumentError(
                         "give the directory of a run, a checkpoint or a "
                         "Hugging Face model"));
  }
  if (absl::GetFlag(FLAGS_format) == OutputFormat::kCsv) {
    return FlagError("format", "csv",
                     absl::InvalidArgumentError("allowed: text, json"));
  }
  TESSERA_RETURN_IF_ERROR(
      CheckRange("tokens", absl::GetFlag(FLAGS_tokens), 0, 1'000'000, "200"));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("top_k", absl::GetFlag(FLAGS_top_k), 0, INT64_MAX, "50"));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("seed", absl::GetFlag(FLAGS_seed), 0, INT64_MAX, "1"));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("threads", absl::GetFlag(FLAGS_threads), 0, 1024, "4"));
  TESSERA_RETURN_IF_ERROR(
      CheckRange("window", absl::GetFlag(FLAGS_window), 0, INT32_MAX, "1024"));
  const double temperature = absl::GetFlag(FLAGS_temperature);
  if (!(temperature >= 0) || !std::isfinite(temperature)) {
    return FlagError("temperature", absl::StrCat(temperature),
                     absl::InvalidArgumentError(
                         "allowed: 0 and finite numbers above it, such as "
                         "--temperature=0.8"));
  }
  const double top_p = absl::GetFlag(FLAGS_top_p);
  if (top_p > 0 && top_p <= 1) return absl::OkStatus();
  return FlagError("top_p", absl::StrCat(top_p),
                   absl::InvalidArgumentError(
                       "allowed: above 0 and up to 1, such as --top_p=0.9"));
}

// Formats JSON; replaces bytes that are not UTF-8.
std::string Dump(const Json& object) { return DumpJson(object) + "\n"; }

absl::Status Continue(const LoadedModel& model, tensor_parallel::Ops& ops) {
  const train::SampleOptions options = {
      .prompt = absl::GetFlag(FLAGS_prompt),
      .tokens = absl::GetFlag(FLAGS_tokens),
      .temperature = absl::GetFlag(FLAGS_temperature),
      .top_k = absl::GetFlag(FLAGS_top_k),
      .top_p = absl::GetFlag(FLAGS_top_p),
      .seed = static_cast<uint64_t>(absl::GetFlag(FLAGS_seed))};
  TESSERA_ASSIGN_OR_RETURN(
      const train::Continuation continuation,
      train::ContinueTokens(*model.weights, *model.tokenizer, ops, options));
  // Decodes after the prompt, because the text of some tokens depends on the
  // text before them.
  std::string whole = options.prompt;
  model.tokenizer->AppendText(continuation.tokens, whole);
  if (absl::GetFlag(FLAGS_format) == OutputFormat::kText) {
    std::cout << train::PrintableText(whole) << "\n";
    return absl::OkStatus();
  }
  const std::string text = whole.substr(options.prompt.size());
  std::cout << Dump({{"prompt", options.prompt},
                     {"text", text},
                     {"prompt_tokens", continuation.prompt_tokens},
                     {"tokens", continuation.tokens},
                     {"ended", continuation.ended}});
  return absl::OkStatus();
}

absl::Status MeasureText(const LoadedModel& model, const std::string& path,
                         tensor_parallel::Ops& ops) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text,
                           ReadFile(path, kMostTextBytes),
                           FlagError("perplexity", path, _));
  const std::vector<text::TokenId> ids =
      model.tokenizer->Encode(text, model.tokenizer->SpecialTokensOfTexts());
  if (ids.size() < 2) {
    return FlagError(
        "perplexity", path,
        absl::InvalidArgumentError(absl::StrCat(
            "the text has ", ids.size(), " tokens; give one of at least 2")));
  }
  const int64_t window = absl::GetFlag(FLAGS_window);
  const int64_t positions = model.weights->config().max_positions;
  if (window > positions) {
    return CheckRange("window", window, 0, positions, absl::StrCat(positions));
  }
  const int64_t seen = window > 0 ? window : std::min(model.length, positions);
  TESSERA_ASSIGN_OR_RETURN(
      const train::TextLoss loss,
      train::LossOfTokens(*model.weights,
                          std::vector<int64_t>(ids.begin(), ids.end()), seen,
                          ops));
  if (absl::GetFlag(FLAGS_format) == OutputFormat::kText) {
    std::cout << absl::StrFormat(
        "loss %.5f, perplexity %.5g: %d tokens in %d windows of %d\n",
        loss.loss, loss.perplexity(), loss.tokens, loss.windows, seen);
    return absl::OkStatus();
  }
  std::cout << Dump({{"file", path},
                     {"loss", loss.loss},
                     {"perplexity", loss.perplexity()},
                     {"tokens", loss.tokens},
                     {"windows", loss.windows},
                     {"window", seen}});
  return absl::OkStatus();
}

absl::Status Run() {
  TESSERA_RETURN_IF_ERROR(CheckFlags());
  TESSERA_ASSIGN_OR_RETURN(
      const LoadedModel model,
      OpenModel(absl::GetFlag(FLAGS_from), absl::GetFlag(FLAGS_tokenizer),
                absl::GetFlag(FLAGS_special_tokens)));
  tensor_parallel::CpuOps ops(
      {.threads = static_cast<int>(absl::GetFlag(FLAGS_threads))});
  const std::string text = absl::GetFlag(FLAGS_perplexity);
  return text.empty() ? Continue(model, ops) : MeasureText(model, text, ops);
}

}  // namespace
}  // namespace tessera::tools

int main(int argc, char** argv) {
  using tessera::tools::Tool;
  const Tool tool = {
      .name = "generate",
      .summary =
          "Continues a prompt, or measures the perplexity of a text, "
          "with the model of a run or a Hugging Face directory.",
      .example = "--from=run --prompt=\"The \" --tokens=100",
      .flags = {"from", "tokenizer", "special_tokens", "prompt", "tokens",
                "temperature", "top_k", "top_p", "seed", "perplexity", "window",
                "threads", "format"}};
  return tessera::tools::RunTool(tool, argc, argv, tessera::tools::Run);
}
