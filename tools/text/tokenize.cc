// The tokenize tool: encodes text as an indexed data set, on all processors.
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/json/json.h"
#include "base/os/processors.h"
#include "base/os/thread_pool.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/cli/cli.h"
#include "tools/cli/tool_registry.h"
#include "tools/cli/typed_flags.h"
#include "tools/text/data_files.h"
#include "tools/text/document_encoder.h"
#include "tools/text/indexed_dataset.h"
#include "tools/text/load_tokenizer.h"
#include "tools/text/tokenizer.h"

namespace tessera::tools {
namespace {

struct TokenizeFlags {
  std::vector<std::string> data;
  std::string tokenizer, output;
  std::string special_tokens = "pairs";
  int64_t max_bad_lines = 0;
  int64_t threads = 0;
  bool quiet = false;
  OutputFormat format = OutputFormat::kText;
};

std::vector<Flag> FlagsOf(TokenizeFlags& flags) {
  return {
      FieldFlag("data",
                "text files, JSON lines, directories and patterns, separated "
                "by commas",
                flags.data),
      FieldFlag("tokenizer",
                "a directory with a tokenizer.json (Hugging Face) or "
                "tokenizer.model (SentencePiece), or the file; empty: bytes",
                flags.tokenizer),
      FieldFlag("output", "writes the data set to this name with .bin and .idx",
                flags.output),
      FieldFlag("special_tokens",
                "where special tokens such as <|im_start|>, written out, "
                "become ids: pairs (prompts and completions), ids "
                "(everywhere), text (nowhere)",
                flags.special_tokens),
      RangeFlag("max_bad_lines",
                "invalid JSON lines to skip before the tool fails",
                flags.max_bad_lines, 0, INT64_MAX),
      RangeFlag("threads", "0: the processors of this process", flags.threads,
                0, 1024),
      FieldFlag("quiet", "prints no progress", flags.quiet),
      FieldFlag("format", "text or json", flags.format)};
}

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Reports the progress and the result.
class Reporter {
 public:
  Reporter(bool quiet, int threads) : quiet_(quiet), threads_(threads) {}

  // Prints at most every 5 seconds.
  void Progress(const text::DocumentEncoder& encoder) {
    if (quiet_ || SecondsSince(printed_) < 5) return;
    printed_ = Clock::now();
    std::cerr << absl::StrFormat(
                     "tokenize: %d documents, %.1f MB, %d tokens, %.1f MB/s",
                     encoder.documents(), Megabytes(encoder), encoder.tokens(),
                     Megabytes(encoder) / SecondsSince(begin_))
              << std::endl;
  }

  void Print(const text::DocumentEncoder& encoder, OutputFormat format,
             const std::string& output, int64_t bad_lines) const {
    const double seconds = SecondsSince(begin_);
    if (format == OutputFormat::kJson) {
      const nlohmann::ordered_json result = {
          {"output", output},           {"documents", encoder.documents()},
          {"tokens", encoder.tokens()}, {"bytes", encoder.bytes()},
          {"seconds", seconds},         {"threads", threads_},
          {"bad_lines", bad_lines}};
      std::cout << DumpJson(result) << "\n";
      return;
    }
    std::cout << absl::StrFormat(
        "%s.bin, .idx: %d tokens of %d documents, from %.1f MB of text in %.1f "
        "s (%.1f MB/s by %d threads)%s\n",
        output, encoder.tokens(), encoder.documents(), Megabytes(encoder),
        seconds, Megabytes(encoder) / seconds, threads_,
        bad_lines == 0 ? "" : absl::StrCat("; ", bad_lines, " invalid lines"));
  }

 private:
  static double Megabytes(const text::DocumentEncoder& encoder) {
    return static_cast<double>(encoder.bytes()) / 1e6;
  }

  const bool quiet_;
  const int threads_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point printed_ = begin_;
};

absl::StatusOr<std::unique_ptr<text::Tokenizer>> OpenTokenizer(
    const TokenizeFlags& flags) {
  TESSERA_ASSIGN_OR_RETURN(
      const text::SpecialTokenPolicy policy,
      text::ParseSpecialTokens(flags.special_tokens),
      FlagError("special_tokens", flags.special_tokens, _));
  if (flags.tokenizer.empty()) return std::make_unique<text::ByteTokenizer>();
  TESSERA_ASSIGN_OR_RETURN(auto tokenizer,
                           text::LoadTokenizer(flags.tokenizer, policy),
                           FlagError("tokenizer", flags.tokenizer, _));
  return tokenizer;
}

absl::Status Run(const TokenizeFlags& flags) {
  if (flags.data.empty()) {
    return FlagError("data", "", "give files, directories or patterns");
  }
  if (flags.output.empty()) {
    return FlagError("output", "", "give the name of a data set");
  }
  if (flags.format == OutputFormat::kCsv) {
    return FlagError("format", "csv", "allowed: text, json");
  }
  const std::vector<std::string> data =
      text::JoinNames(flags.data, text::NamesData);
  const std::string names = absl::StrJoin(data, ",");
  TESSERA_ASSIGN_OR_RETURN(const std::vector<text::DataFile> files,
                           text::FindDataFiles(data),
                           FlagError("data", names, _));
  for (const text::DataFile& file : files) {
    if (text::IsText(file.kind)) continue;
    return FlagError("data", names,
                     absl::StrCat(file.path, " has tokens already; give text"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<text::Tokenizer> tokenizer,
                           OpenTokenizer(flags));
  TESSERA_ASSIGN_OR_RETURN(auto writer,
                           text::IndexedDatasetWriter::Create(
                               flags.output, tokenizer->vocabulary_size()),
                           FlagError("output", flags.output, _));
  const auto asked = static_cast<int>(flags.threads);
  ThreadPool pool(asked > 0 ? asked : static_cast<int>(AvailableProcessors()));
  Reporter reporter(flags.quiet, pool.threads());
  text::DocumentEncoder encoder(
      *tokenizer, pool, std::move(writer),
      std::bind_front(&Reporter::Progress, &reporter));
  int64_t bad_lines_left = flags.max_bad_lines;
  for (const text::DataFile& file : files) {
    TESSERA_RETURN_IF_ERROR(text::ForEachDocument(
        file, std::bind_front(&text::DocumentEncoder::Add, &encoder),
        {tokenizer->vocabulary_size(), &bad_lines_left}));
  }
  TESSERA_RETURN_IF_ERROR(encoder.Finish());
  reporter.Print(encoder, flags.format, flags.output,
                 flags.max_bad_lines - bad_lines_left);
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera::tools

TESSERA_TOOL(tokenize) {
  using namespace tessera::tools;
  TokenizeFlags flags;
  const Tool tool = {
      .name = "text:tokenize",
      .summary =
          "Writes text as an indexed data set of tokens (PREFIX.bin and "
          "PREFIX.idx, as Megatron-LM has them).",
      .example = "--data=books,web/*.jsonl --tokenizer=smollm --output=train",
      .flags = FlagsOf(flags)};
  return RunTool(tool, argc, argv, [&] { return Run(flags); });
}
