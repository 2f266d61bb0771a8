// The checkpoint tool: lists, verifies, reshards, exports and imports
// checkpoints.
#include <cstdint>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
#include "tools/cli/tool_registry.h"
#include "tools/cli/typed_flags.h"
#include "tools/text/load_tokenizer.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/settings/settings.h"

namespace tessera::tools {
namespace {

using Operands = std::vector<std::string>;
using Numbered = std::optional<std::pair<std::string, int64_t>>;

// The values of all verbs' flags.
struct CheckpointFlags {
  train::MeshSizes mesh = {};
  int64_t zero = 3;
  std::optional<DType> dtype;
  WeightFiles files = WeightFiles::kSafetensors;
  ByteSize max_shard_bytes = ByteSize(5'000'000'000);
  std::string tokenizer, base, holders;
  bool adapter = false;
  Numbered element, place;
  bool dry_run = false;
  OutputFormat format = OutputFormat::kText;
};

absl::StatusOr<std::optional<DType>> ParseWeightType(std::string_view text) {
  if (text.empty()) return std::optional<DType>();
  if (text == "f32" || text == "fp32") return DType::kF32;
  if (text == "bf16") return DType::kBF16;
  if (text == "f16" || text == "fp16") return DType::kF16;
  return absl::InvalidArgumentError("allowed: fp32, bf16, fp16");
}

// A flag of a text and a number; its help begins with their form and ": ".
Flag NumberedFlag(std::string_view name, std::string_view help,
                  Numbered& field) {
  return ParsedFlag(
      name, help, "", field,
      [help](std::string_view text) -> absl::StatusOr<Numbered> {
        const std::vector<std::string> parts =
            absl::StrSplit(text, absl::MaxSplits(':', 1));
        int64_t number = 0;
        if (parts.size() == 2 && absl::SimpleAtoi(parts[1], &number)) {
          return std::pair(parts[0], number);
        }
        return absl::InvalidArgumentError(
            absl::StrCat("expected ", help.substr(0, help.find(": "))));
      });
}

Flag MeshFlag(CheckpointFlags& flags) {
  return ParsedFlag("mesh",
                    "axes of the mesh to write for, such as dp2,pp2,tp2",
                    "dp1,pp1,cp1,tp1", flags.mesh, train::MeshSizes::Parse);
}

Flag ZeroFlag(CheckpointFlags& flags) {
  return RangeFlag("zero", "ZeRO stage to write for, 0 to 3", flags.zero, 0, 3);
}

Flag DTypeFlag(CheckpointFlags& flags) {
  return ParsedFlag("dtype",
                    "fp32, bf16 or fp16: export: the type of the weights in "
                    "the files (default fp32); import: the type of the run "
                    "(default: from config.json)",
                    "", flags.dtype, ParseWeightType);
}

Flag FormatFlag(CheckpointFlags& flags) {
  return FieldFlag("format", "text, json or csv", flags.format);
}

absl::Status List(const CheckpointFlags& flags, const Operands& operands) {
  if (flags.element && flags.place) {
    return FlagError("place",
                     absl::StrCat(flags.place->first, ":", flags.place->second),
                     "give it or --element, not both");
  }
  if (!flags.element && !flags.place && flags.holders.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<ListedRun> runs,
                             ListRuns(operands[0]));
    PrintRuns(runs, flags.format, std::cout);
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string found,
                           train::ResolveCheckpoint(operands[0]));
  if (flags.element || flags.place) {
    const auto& [text, number] = flags.element ? *flags.element : *flags.place;
    TESSERA_ASSIGN_OR_RETURN(const ElementPlace at,
                             flags.element ? PlaceOf(found, text, number)
                                           : ElementAt(found, text, number));
    PrintPlace(at, flags.format, std::cout);
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<TensorHolder> holders,
                           HoldersOf(found, flags.holders));
  PrintHolders(holders, flags.format, std::cout);
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

absl::Status Reshard(const CheckpointFlags& flags, const Operands& operands) {
  const ReshardOptions options = {.mesh = flags.mesh,
                                  .zero = static_cast<int>(flags.zero)};
  if (flags.dry_run) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<FileMove> moves,
                             PlanReshard(operands[0], options));
    PrintMoves(moves, flags.format, std::cout);
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string path,
                           ReshardRun(operands[0], operands[1], options));
  std::cout << path << "\n";
  return absl::OkStatus();
}

absl::Status Export(const CheckpointFlags& flags, const Operands& operands) {
  ExportOptions options = {.files = flags.files,
                           .dtype = flags.dtype.value_or(DType::kF32),
                           .max_shard_bytes = flags.max_shard_bytes.bytes(),
                           .tokenizer = flags.tokenizer};
  if (options.max_shard_bytes < 1) {
    return FlagError("max_shard_bytes", absl::StrCat(options.max_shard_bytes),
                     "give 1 or more");
  }
  if (!flags.tokenizer.empty()) {
    // Tokenizers that training does not support are copied all the same.
    const auto loaded = text::LoadTokenizer(flags.tokenizer);
    if (loaded.ok()) options.end_of_text = (*loaded)->end_of_text();
  }
  const std::string& to = operands[1];
  if (!flags.base.empty() && !flags.adapter) {
    return FlagError("base", flags.base, "has no effect without --adapter");
  }
  if (flags.adapter && flags.files != WeightFiles::kSafetensors) {
    return FlagError("adapter", "true",
                     "adapters are safetensors; omit --files");
  }
  TESSERA_RETURN_IF_ERROR(
      flags.adapter ? ExportAdapter(operands[0], to, flags.base, options)
                    : ExportModel(operands[0], to, options));
  std::cout << to << "\n";
  return absl::OkStatus();
}

absl::Status Import(const CheckpointFlags& flags, const Operands& operands) {
  TESSERA_ASSIGN_OR_RETURN(const std::string path,
                           ImportModel(operands[0], operands[1],
                                       {.mesh = flags.mesh,
                                        .zero = static_cast<int>(flags.zero),
                                        .dtype = flags.dtype}));
  std::cout << path << "\n";
  return absl::OkStatus();
}

Verb ListVerb(CheckpointFlags& flags) {
  return {.name = "list",
          .operands = {"RUN"},
          .summary =
              "Lists the checkpoints of a directory and their states, "
              "the files that hold a tensor, or the place of an "
              "element.",
          .example = "list run/checkpoints",
          .flags = {FieldFlag("holders",
                              "print the files that hold this tensor, or all "
                              "tensors under a dotted prefix such as layers.3, "
                              "instead of the checkpoints",
                              flags.holders),
                    NumberedFlag("element",
                                 "NAME:INDEX, such as embedding.weight:17: "
                                 "print the file, rank and offset that hold "
                                 "this element of a tensor",
                                 flags.element),
                    NumberedFlag("place",
                                 "FILE:OFFSET, such as "
                                 "tp0-pp0.rank-00000.state:17: print the "
                                 "element at this offset of the file's rank",
                                 flags.place),
                    FormatFlag(flags)},
          .body = std::bind_front(List, std::cref(flags))};
}

Verb ExportVerb(CheckpointFlags& flags) {
  return {.name = "export",
          .operands = {"RUN", "DIR"},
          .summary =
              "Writes the weights as a Hugging Face model, or for torch or "
              "Megatron-LM.",
          .example = "export run/checkpoints model --dtype=bf16",
          .flags = {DTypeFlag(flags),
                    ParsedFlag("files",
                               "files of the weights: safetensors, dcp "
                               "(torch.distributed.checkpoint) or torch_dist "
                               "(Megatron-LM)",
                               "safetensors", flags.files, ParseWeightFiles),
                    FieldFlag("max_shard_bytes",
                              "largest number of bytes of weights in a file",
                              flags.max_shard_bytes),
                    FieldFlag("tokenizer",
                              "a directory with tokenizer files to copy into "
                              "the export",
                              flags.tokenizer),
                    FieldFlag("adapter",
                              "write only the LoRA adapters, for Hugging "
                              "Face's PEFT",
                              flags.adapter),
                    FieldFlag("base",
                              "with --adapter, the name or directory of the "
                              "model that they are for",
                              flags.base)},
          .body = std::bind_front(Export, std::cref(flags))};
}

std::vector<Verb> CheckpointVerbs(CheckpointFlags& flags) {
  return {
      ListVerb(flags),
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
       .flags = {MeshFlag(flags), ZeroFlag(flags),
                 FieldFlag("dry_run",
                           "write nothing, and print the bytes that move "
                           "between each pair of files; DIR may be any",
                           flags.dry_run),
                 FormatFlag(flags)},
       .body = std::bind_front(Reshard, std::cref(flags))},
      ExportVerb(flags),
      {.name = "import",
       .operands = {"MODEL", "DIR"},
       .summary =
           "Writes a Hugging Face model, or a config.json with a checkpoint of "
           "torch or Megatron-LM beside it, as a checkpoint of step 0.",
       .example = "import models/smollm run/checkpoints --mesh=dp2,pp2",
       .flags = {MeshFlag(flags), ZeroFlag(flags), DTypeFlag(flags)},
       .body = std::bind_front(Import, std::cref(flags))},
  };
}

}  // namespace
}  // namespace tessera::tools

TESSERA_TOOL(checkpoint) {
  using namespace tessera::tools;
  CheckpointFlags flags;
  return RunVerb(
      {.name = "checkpoint",
       .summary =
           "Lists, verifies, reshards, exports and imports checkpoints of "
           "//tools/train. RUN is a checkpoint, or a directory of checkpoints "
           "or the --run_dir of a run, whose newest complete one is used.",
       .example = "list run/checkpoints",
       .flags = {}},
      CheckpointVerbs(flags), argc, argv);
}
