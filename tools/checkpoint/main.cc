// The checkpoint tool: lists, verifies, reshards, exports and imports
// checkpoints.
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/byte_size.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "tools/checkpoint/hugging_face_model.h"
#include "tools/checkpoint/inspect_runs.h"
#include "tools/checkpoint/write_run.h"
#include "tools/cli/cli.h"
#include "tools/text/load_tokenizer.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/settings/settings.h"

ABSL_FLAG(std::string, mesh, "dp1,pp1,cp1,tp1",
          "axes of the mesh to write for, such as dp2,pp2,tp2");
ABSL_FLAG(int64_t, zero, 3, "ZeRO stage to write for, 0 to 3");
ABSL_FLAG(
    std::string, dtype, "",
    "fp32, bf16 or fp16: export: the type of the weights in the files (default "
    "fp32); import: the type of the run (default: from config.json)");
ABSL_FLAG(tessera::ByteSize, max_shard_bytes, tessera::ByteSize(5'000'000'000),
          "largest number of bytes of weights in a file");
ABSL_FLAG(std::string, files, "safetensors",
          "files of the weights: safetensors, dcp (torch.distributed.checkpoint"
          ") or torch_dist (Megatron-LM)");
ABSL_FLAG(std::string, tokenizer, "",
          "a directory with tokenizer files to copy into the export");
ABSL_FLAG(bool, adapter, false,
          "write only the LoRA adapters, for Hugging Face's PEFT");
ABSL_FLAG(std::string, base, "",
          "with --adapter, the name or directory of the model that they are "
          "for");
ABSL_FLAG(
    std::string, holders, "",
    "print the files that hold this tensor, or all tensors under a dotted "
    "prefix such as layers.3, instead of the checkpoints");
ABSL_FLAG(std::string, element, "",
          "NAME:INDEX, such as embedding.weight:17: print the file, rank and "
          "offset that hold this element of a tensor");
ABSL_FLAG(std::string, place, "",
          "FILE:OFFSET, such as tp0-pp0.rank-00000.state:17: print the element "
          "at this offset of the file's rank");
ABSL_FLAG(bool, dry_run, false,
          "write nothing, and print the bytes that move between each pair of "
          "files; DIR may be any");
ABSL_FLAG(tessera::tools::OutputFormat, format,
          tessera::tools::OutputFormat::kText, "text, json or csv");

namespace tessera::tools {
namespace {

using Operands = std::vector<std::string>;

absl::StatusOr<train::MeshSizes> MeshFlag() {
  const std::string text = absl::GetFlag(FLAGS_mesh);
  absl::StatusOr<train::MeshSizes> mesh = train::MeshSizes::Parse(text);
  if (!mesh.ok()) return FlagError("mesh", text, mesh.status());
  return mesh;
}

absl::StatusOr<int> ZeroFlag() {
  const int64_t zero = absl::GetFlag(FLAGS_zero);
  if (zero >= 0 && zero <= 3) return static_cast<int>(zero);
  return FlagError("zero", absl::StrCat(zero), "allowed: 0 to 3");
}

absl::StatusOr<std::optional<DType>> DTypeFlag() {
  const std::string text = absl::GetFlag(FLAGS_dtype);
  if (text.empty()) return std::optional<DType>();
  if (text == "f32" || text == "fp32") return DType::kF32;
  if (text == "bf16") return DType::kBF16;
  if (text == "f16" || text == "fp16") return DType::kF16;
  return FlagError("dtype", text, "allowed: fp32, bf16, fp16");
}

// The text and the number of TEXT:NUMBER.
absl::StatusOr<std::pair<std::string, int64_t>> NumberedFlag(
    std::string_view flag, const std::string& text, std::string_view form) {
  const std::vector<std::string> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  int64_t number = 0;
  if (parts.size() == 2 && absl::SimpleAtoi(parts[1], &number)) {
    return std::pair(parts[0], number);
  }
  return FlagError(flag, text, absl::StrCat("expected ", form));
}

absl::Status ListElement(const Operands& operands) {
  const std::string element = absl::GetFlag(FLAGS_element);
  const std::string place = absl::GetFlag(FLAGS_place);
  if (!element.empty() && !place.empty()) {
    return FlagError("place", place, "give it or --element, not both");
  }
  TESSERA_ASSIGN_OR_RETURN(
      const auto given,
      element.empty()
          ? NumberedFlag("place", place,
                         "FILE:OFFSET, such as tp0-pp0.rank-00000.state:17")
          : NumberedFlag("element", element,
                         "NAME:INDEX, such as embedding.weight:17"));
  TESSERA_ASSIGN_OR_RETURN(const std::string found,
                           train::ResolveCheckpoint(operands[0]));
  TESSERA_ASSIGN_OR_RETURN(const ElementPlace at,
                           element.empty()
                               ? ElementAt(found, given.first, given.second)
                               : PlaceOf(found, given.first, given.second));
  PrintPlace(at, absl::GetFlag(FLAGS_format), std::cout);
  return absl::OkStatus();
}

absl::Status List(const Operands& operands) {
  if (!absl::GetFlag(FLAGS_element).empty() ||
      !absl::GetFlag(FLAGS_place).empty()) {
    return ListElement(operands);
  }
  const std::string name = absl::GetFlag(FLAGS_holders);
  if (!name.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const std::string found,
                             train::ResolveCheckpoint(operands[0]));
    TESSERA_ASSIGN_OR_RETURN(const std::vector<TensorHolder> holders,
                             HoldersOf(found, name));
    PrintHolders(holders, absl::GetFlag(FLAGS_format), std::cout);
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ListedRun> runs,
                           ListRuns(operands[0]));
  PrintRuns(runs, absl::GetFlag(FLAGS_format), std::cout);
  return absl::OkStatus();
}

absl::Status Verify(const Operands& operands) {
  TESSERA_ASSIGN_OR_RETURN(const std::string found,
                           train::ResolveCheckpoint(operands[0]));
  TESSERA_ASSIGN_OR_RETURN(
      const zero3::VerifiedBytes verified,
      VerifyRun(found, [&](const zero3::VerifiedBytes& so_far) {
        std::cerr << "verified " << so_far.files << " of " << so_far.all_files
                  << " files, " << so_far.bytes << " of " << so_far.all_bytes
                  << " bytes" << std::endl;
      }));
  std::cout << found << ": " << verified.files << " files, " << verified.bytes
            << " bytes, all intact\n";
  return absl::OkStatus();
}

absl::Status Reshard(const Operands& operands) {
  ReshardOptions options;
  TESSERA_ASSIGN_OR_RETURN(options.mesh, MeshFlag());
  TESSERA_ASSIGN_OR_RETURN(options.zero, ZeroFlag());
  if (absl::GetFlag(FLAGS_dry_run)) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<FileMove> moves,
                             PlanReshard(operands[0], options));
    PrintMoves(moves, absl::GetFlag(FLAGS_format), std::cout);
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string path,
                           ReshardRun(operands[0], operands[1], options));
  std::cout << path << "\n";
  return absl::OkStatus();
}

absl::Status Export(const Operands& operands) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<DType> dtype, DTypeFlag());
  ExportOptions options = {
      .dtype = dtype.value_or(DType::kF32),
      .max_shard_bytes = absl::GetFlag(FLAGS_max_shard_bytes).bytes()};
  if (options.max_shard_bytes < 1) {
    return FlagError("max_shard_bytes", absl::StrCat(options.max_shard_bytes),
                     "give 1 or more");
  }
  const std::string files = absl::GetFlag(FLAGS_files);
  TESSERA_ASSIGN_OR_RETURN(options.files, ParseWeightFiles(files),
                           FlagError("files", files, _));
  const std::string tokenizer = absl::GetFlag(FLAGS_tokenizer);
  if (!tokenizer.empty()) {
    options.tokenizer = tokenizer;
    // Tokenizers that training does not support are copied all the same.
    const auto loaded = text::LoadTokenizer(tokenizer);
    if (loaded.ok()) options.end_of_text = (*loaded)->end_of_text();
  }
  const std::string to = operands[1];
  const std::string base = absl::GetFlag(FLAGS_base);
  const bool is_adapter = absl::GetFlag(FLAGS_adapter);
  if (!base.empty() && !is_adapter) {
    return FlagError("base", base, "has no effect without --adapter");
  }
  if (is_adapter && options.files != WeightFiles::kSafetensors) {
    return FlagError("files", files, "adapters are safetensors");
  }
  TESSERA_RETURN_IF_ERROR(is_adapter
                              ? ExportAdapter(operands[0], to, base, options)
                              : ExportModel(operands[0], to, options));
  std::cout << to << "\n";
  return absl::OkStatus();
}

absl::Status Import(const Operands& operands) {
  ImportOptions options;
  TESSERA_ASSIGN_OR_RETURN(options.mesh, MeshFlag());
  TESSERA_ASSIGN_OR_RETURN(options.zero, ZeroFlag());
  TESSERA_ASSIGN_OR_RETURN(options.dtype, DTypeFlag());
  TESSERA_ASSIGN_OR_RETURN(const std::string path,
                           ImportModel(operands[0], operands[1], options));
  std::cout << path << "\n";
  return absl::OkStatus();
}

const Tool& CheckpointTool() {
  static const Tool* const tool = new Tool{
      .name = "checkpoint",
      .summary =
          "Lists, verifies, reshards, exports and imports checkpoints of "
          "//tools/train. RUN is a checkpoint, or a directory of checkpoints "
          "or the --run_dir of a run, whose newest complete one is used.",
      .example = "list run/checkpoints",
      .flags = {}};
  return *tool;
}

std::vector<Verb> CheckpointVerbs() {
  return {
      {.name = "list",
       .operands = {"RUN"},
       .summary = "Lists the checkpoints of a directory and their states, the "
                  "files that hold a tensor, or the place of an element.",
       .example = "list run/checkpoints",
       .flags = {"holders", "element", "place", "format"},
       .body = List},
      {.name = "verify",
       .operands = {"RUN"},
       .summary = "Reads and checks every byte of a checkpoint.",
       .example = "verify run/checkpoints",
       .flags = {},
       .body = Verify},
      {.name = "reshard",
       .operands = {"RUN", "DIR"},
       .summary = "Writes the checkpoint for another mesh or ZeRO stage.",
       .example = "reshard run/checkpoints resharded --mesh=dp2,tp2",
       .flags = {"mesh", "zero", "dry_run", "format"},
       .body = Reshard},
      {.name = "export",
       .operands = {"RUN", "DIR"},
       .summary = "Writes the weights as a Hugging Face model, or for torch or "
                  "Megatron-LM.",
       .example = "export run/checkpoints model --dtype=bf16",
       .flags = {"dtype", "files", "max_shard_bytes", "tokenizer", "adapter",
                 "base"},
       .body = Export},
      {.name = "import",
       .operands = {"MODEL", "DIR"},
       .summary = "Writes a Hugging Face model, or a config.json with a "
                  "checkpoint of torch or Megatron-LM beside it, as a "
                  "checkpoint of step 0.",
       .example = "import models/smollm run/checkpoints --mesh=dp2,pp2",
       .flags = {"mesh", "zero", "dtype"},
       .body = Import},
  };
}

}  // namespace
}  // namespace tessera::tools

int main(int argc, char** argv) {
  using namespace tessera::tools;
  return RunVerb(CheckpointTool(), CheckpointVerbs(), argc, argv);
}
