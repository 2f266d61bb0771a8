// The generate tool: continues a prompt, or measures the loss of a text.
#include <cmath>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

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
#include "tools/cli/tool_registry.h"
#include "tools/cli/typed_flags.h"
#include "tools/generate/model_source.h"
#include "tools/train/sample/generate.h"
#include "tools/train/settings/settings.h"

namespace tessera::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostTextBytes = int64_t{1} << 30;

struct GenerateFlags {
  std::string from, tokenizer, special_tokens, perplexity;
  train::SampleOptions sample;
  int64_t seed = 1;
  int64_t window = 0;
  int64_t threads = 0;
  OutputFormat format = OutputFormat::kText;
};

std::vector<Flag> FlagsOf(GenerateFlags& flags) {
  return {
      FieldFlag("from",
                "the model: the directory of a run, a checkpoint, a directory "
                "of checkpoints (its newest one), or a Hugging Face directory "
                "with config.json and safetensors",
                flags.from),
      FieldFlag("tokenizer",
                "a directory with a tokenizer.json (Hugging Face) or "
                "tokenizer.model (SentencePiece), or the file; empty: that of "
                "the run or of the Hugging Face directory, else bytes",
                flags.tokenizer),
      FieldFlag("special_tokens",
                "where special tokens such as <|im_start|>, written out, "
                "become ids: pairs (in --prompt), ids (also in --perplexity), "
                "text (nowhere); empty: that of the run, otherwise pairs",
                flags.special_tokens),
      FieldFlag("prompt", "the text to continue", flags.sample.prompt),
      RangeFlag("tokens",
                "most tokens to generate; fewer if the model ends its text",
                flags.sample.tokens, 0, 1'000'000),
      FieldFlag("temperature", "0: always the most likely token",
                flags.sample.temperature),
      RangeFlag("top_k", "chooses among the k most likely tokens; 0: among all",
                flags.sample.top_k, 0, INT64_MAX),
      FieldFlag("top_p",
                "chooses among the most likely tokens that together have this "
                "probability; 1: among all",
                flags.sample.top_p),
      RangeFlag("seed", "the same seed gives the same text", flags.seed, 0,
                INT64_MAX),
      FieldFlag("perplexity",
                "a text file: prints its mean loss per token and its "
                "perplexity instead of a continuation",
                flags.perplexity),
      RangeFlag("window",
                "with --perplexity, tokens that the model sees at a time; 0: "
                "the --length of the run, or the positions of the model",
                flags.window, 0, INT32_MAX),
      RangeFlag("threads",
                "threads of the computation; 0: the processors of this process",
                flags.threads, 0, 1024),
      FieldFlag("format", "text or json", flags.format)};
}

absl::Status Check(const GenerateFlags& flags) {
  if (flags.from.empty()) {
    return FlagError("from", "",
                     "give the directory of a run, a checkpoint or a Hugging "
                     "Face model");
  }
  if (flags.format == OutputFormat::kCsv) {
    return FlagError("format", "csv", "allowed: text, json");
  }
  const auto& [prompt, tokens, temperature, top_k, top_p, seed] = flags.sample;
  if (!(temperature >= 0) || !std::isfinite(temperature)) {
    return FlagError("temperature", absl::StrCat(temperature),
                     "allowed: 0 and finite numbers above it, such as "
                     "--temperature=0.8");
  }
  if (top_p > 0 && top_p <= 1) return absl::OkStatus();
  return FlagError("top_p", absl::StrCat(top_p),
                   "allowed: above 0 and up to 1, such as --top_p=0.9");
}

// Formats JSON; replaces bytes that are not UTF-8.
std::string Dump(const Json& object) { return DumpJson(object) + "\n"; }

absl::Status Continue(const LoadedModel& model, const GenerateFlags& flags,
                      tensor_parallel::Ops& ops) {
  train::SampleOptions options = flags.sample;
  options.seed = static_cast<uint64_t>(flags.seed);
  TESSERA_ASSIGN_OR_RETURN(
      const train::Continuation continuation,
      train::ContinueTokens(*model.weights, *model.tokenizer, ops, options));
  // Decodes after the prompt, because the text of some tokens depends on the
  // text before them.
  std::string whole = options.prompt;
  model.tokenizer->AppendText(continuation.tokens, whole);
  if (flags.format == OutputFormat::kText) {
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

absl::Status MeasureText(const LoadedModel& model, const GenerateFlags& flags,
                         tensor_parallel::Ops& ops) {
  const std::string& path = flags.perplexity;
  TESSERA_ASSIGN_OR_RETURN(const std::string text,
                           ReadFile(path, kMostTextBytes),
                           FlagError("perplexity", path, _));
  const std::vector<text::TokenId> ids =
      model.tokenizer->Encode(text, model.tokenizer->SpecialTokensOfTexts());
  if (ids.size() < 2) {
    return FlagError("perplexity", path,
                     absl::StrCat("the text has ", ids.size(),
                                  " tokens; give one of at least 2"));
  }
  const int64_t positions = model.weights->config().max_positions;
  TESSERA_RETURN_IF_ERROR(CheckFlagRange("window", flags.window, 0, positions));
  const int64_t seen =
      flags.window > 0 ? flags.window : std::min(model.length, positions);
  TESSERA_ASSIGN_OR_RETURN(
      const train::TextLoss loss,
      train::LossOfTokens(*model.weights,
                          std::vector<int64_t>(ids.begin(), ids.end()), seen,
                          ops));
  if (flags.format == OutputFormat::kText) {
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

absl::Status Run(const GenerateFlags& flags) {
  TESSERA_RETURN_IF_ERROR(Check(flags));
  TESSERA_ASSIGN_OR_RETURN(
      const LoadedModel model,
      OpenModel(flags.from, flags.tokenizer, flags.special_tokens));
  tensor_parallel::CpuOps ops({.threads = static_cast<int>(flags.threads)});
  return flags.perplexity.empty() ? Continue(model, flags, ops)
                                  : MeasureText(model, flags, ops);
}

}  // namespace
}  // namespace tessera::tools

TESSERA_TOOL(generate) {
  using namespace tessera::tools;
  GenerateFlags flags;
  const Tool tool = {
      .name = "generate",
      .summary =
          "Continues a prompt, or measures the perplexity of a text, "
          "with the model of a run or a Hugging Face directory.",
      .example = "--from=run --prompt=\"The \" --tokens=100",
      .flags = FlagsOf(flags)};
  return RunTool(tool, argc, argv, [&] { return Run(flags); });
}
