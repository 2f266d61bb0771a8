// The checkpoint tool: lists, verifies, reshards, exports and imports
// checkpoints.
#include <cstdint>
#include <iostream>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "tools/checkpoint/hugging_face_model.h"
#include "tools/checkpoint/inspect_runs.h"
#include "tools/checkpoint/write_run.h"
#include "tools/cli/cli.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/settings/settings.h"

ABSL_FLAG(
    std::string, action, "list",
    "list (the checkpoints of --checkpoint), verify (read "
    "and check every byte), reshard (to --mesh and --zero, into --to), "
    "export (weights in the form of transformers, into --to) or import "
    "(--from, a Hugging Face model, as a checkpoint at step 0 into --to)");
ABSL_FLAG(std::string, checkpoint, "",
          "a checkpoint of //tools/train, or a directory of checkpoints, whose "
          "newest complete one is used");
ABSL_FLAG(std::string, from, "",
          "the directory to import, with config.json and safetensors");
ABSL_FLAG(
    std::string, to, "",
    "the output directory: of checkpoints for reshard and import, a new one "
    "for export");
ABSL_FLAG(std::string, mesh, "dp1,pp1,cp1,tp1",
          "axes of the mesh to reshard or import for, such as dp2,pp2,tp2");
ABSL_FLAG(int64_t, zero, 3, "ZeRO stage to reshard or import for, 0 to 3");
ABSL_FLAG(
    std::string, dtype, "",
    "export: f32 (default) or bf16, the type of the weights in the "
    "files; import: the type of the run (default: from config.json); fp32 "
    "is f32");
ABSL_FLAG(tessera::ByteSize, max_shard_bytes, tessera::ByteSize(5'000'000'000),
          "export: largest number of bytes of weights in a file");
ABSL_FLAG(std::string, tokenizer, "",
          "export: a directory whose tokenizer files are copied");
ABSL_FLAG(tessera::tools::OutputFormat, format,
          tessera::tools::OutputFormat::kText, "list: text, json or csv");

namespace tessera::tools {
namespace {

absl::StatusOr<std::string> PathFlag(const absl::Flag<std::string>& flag,
                                     std::string_view name,
                                     std::string_view what) {
  const std::string path = absl::GetFlag(flag);
  if (!path.empty()) return train::UserPath(path);
  return FlagError(
      name, path,
      absl::InvalidArgumentError(absl::StrCat(
          "--action=", absl::GetFlag(FLAGS_action), " needs ", what)));
}

absl::StatusOr<std::string> CheckpointFlag() {
  return PathFlag(FLAGS_checkpoint, "checkpoint",
                  "a checkpoint or a directory of them");
}

absl::StatusOr<std::string> ToFlag() {
  return PathFlag(FLAGS_to, "to", "a directory to write");
}

absl::StatusOr<train::MeshSizes> MeshFlag() {
  const std::string text = absl::GetFlag(FLAGS_mesh);
  absl::StatusOr<train::MeshSizes> mesh = train::MeshSizes::Parse(text);
  if (!mesh.ok()) return FlagError("mesh", text, mesh.status());
  return mesh;
}

absl::StatusOr<int> ZeroFlag() {
  const int64_t zero = absl::GetFlag(FLAGS_zero);
  if (zero >= 0 && zero <= 3) return static_cast<int>(zero);
  return FlagError("zero", absl::StrCat(zero),
                   absl::InvalidArgumentError("allowed: 0 to 3"));
}

absl::StatusOr<std::optional<DType>> DTypeFlag() {
  const std::string text = absl::GetFlag(FLAGS_dtype);
  if (text.empty()) return std::optional<DType>();
  if (text == "f32" || text == "fp32") return DType::kF32;
  if (text == "bf16") return DType::kBF16;
  return FlagError("dtype", text,
                   absl::InvalidArgumentError("allowed: f32, bf16"));
}

absl::Status List(std::ostream& out) {
  TESSERA_ASSIGN_OR_RETURN(const std::string path, CheckpointFlag());
  TESSERA_ASSIGN_OR_RETURN(const std::vector<ListedRun> runs, ListRuns(path));
  PrintRuns(runs, absl::GetFlag(FLAGS_format), out);
  return absl::OkStatus();
}

absl::Status Verify(std::ostream& out, std::ostream& progress) {
  TESSERA_ASSIGN_OR_RETURN(const std::string path, CheckpointFlag());
  TESSERA_ASSIGN_OR_RETURN(const std::string found,
                           train::ResolveCheckpoint(path));
  TESSERA_ASSIGN_OR_RETURN(const VerifiedBytes verified,
                           VerifyRun(found, [&](const VerifiedBytes& so_far) {
                             progress << "verified " << so_far.files << " of "
                                      << so_far.all_files << " files, "
                                      << so_far.bytes << " of "
                                      << so_far.all_bytes << " bytes"
                                      << std::endl;
                           }));
  out << found << ": " << verified.files << " files, " << verified.bytes
      << " bytes, all intact\n";
  return absl::OkStatus();
}

absl::Status Reshard(std::ostream& out) {
  TESSERA_ASSIGN_OR_RETURN(const std::string checkpoint, CheckpointFlag());
  TESSERA_ASSIGN_OR_RETURN(const std::string to, ToFlag());
  ReshardOptions options;
  TESSERA_ASSIGN_OR_RETURN(options.mesh, MeshFlag());
  TESSERA_ASSIGN_OR_RETURN(options.zero, ZeroFlag());
  TESSERA_ASSIGN_OR_RETURN(const std::string path,
                           ReshardRun(checkpoint, to, options));
  out << path << "\n";
  return absl::OkStatus();
}

absl::Status Export(std::ostream& out) {
  TESSERA_ASSIGN_OR_RETURN(const std::string checkpoint, CheckpointFlag());
  TESSERA_ASSIGN_OR_RETURN(const std::string to, ToFlag());
  TESSERA_ASSIGN_OR_RETURN(const std::optional<DType> dtype, DTypeFlag());
  ExportOptions options = {
      .dtype = dtype.value_or(DType::kF32),
      .max_shard_bytes = absl::GetFlag(FLAGS_max_shard_bytes).bytes()};
  if (options.max_shard_bytes < 1) {
    return FlagError("max_shard_bytes", absl::StrCat(options.max_shard_bytes),
                     absl::InvalidArgumentError("give 1 or more"));
  }
  const std::string tokenizer = absl::GetFlag(FLAGS_tokenizer);
  if (!tokenizer.empty()) options.tokenizer = train::UserPath(tokenizer);
  TESSERA_RETURN_IF_ERROR(ExportModel(checkpoint, to, options));
  out << to << "\n";
  return absl::OkStatus();
}

absl::Status Import(std::ostream& out) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::string from,
      PathFlag(FLAGS_from, "from", "the directory of a Hugging Face model"));
  TESSERA_ASSIGN_OR_RETURN(const std::string to, ToFlag());
  ImportOptions options;
  TESSERA_ASSIGN_OR_RETURN(options.mesh, MeshFlag());
  TESSERA_ASSIGN_OR_RETURN(options.zero, ZeroFlag());
  TESSERA_ASSIGN_OR_RETURN(options.dtype, DTypeFlag());
  TESSERA_ASSIGN_OR_RETURN(const std::string path,
                           ImportModel(from, to, options));
  out << path << "\n";
  return absl::OkStatus();
}

const Tool& CheckpointTool() {
  static const Tool* const tool = new Tool{
      .name = "checkpoint",
      .summary =
          "Lists, verifies, reshards, exports and imports checkpoints of "
          "//tools/train.",
      .example = "--action=list --checkpoint=run/checkpoints",
      .flags = {"action", "checkpoint", "from", "to", "mesh", "zero", "dtype",
                "max_shard_bytes", "tokenizer", "format"}};
  return *tool;
}

absl::Status RunCheckpointTool(std::ostream& out, std::ostream& progress) {
  const std::string action = absl::GetFlag(FLAGS_action);
  if (action == "list") return List(out);
  if (action == "verify") return Verify(out, progress);
  if (action == "reshard") return Reshard(out);
  if (action == "export") return Export(out);
  if (action == "import") return Import(out);
  return FlagError("action", action,
                   absl::InvalidArgumentError(
                       "allowed: list, verify, reshard, export, import"));
}

}  // namespace
}  // namespace tessera::tools

int main(int argc, char** argv) {
  using namespace tessera::tools;
  return RunTool(CheckpointTool(), argc, argv,
                 [] { return RunCheckpointTool(std::cout, std::cerr); });
}
