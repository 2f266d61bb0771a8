#include "tools/checkpoint/inspect_runs.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <numeric>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/byte_size.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/nearest_name.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/cli/records.h"
#include "tools/train/checkpoint/held_tensor.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/checkpoint/saved_run.h"
#include "topology/rank.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/file_calls.h"
#include "zero3/checkpoint/load_checkpoint.h"
#include "zero3/layout/state_format.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/model_parameters.h"

namespace tessera::tools {

namespace {

ListedRun ListOne(const std::string& path) {
  ListedRun run = {.path = path, .state = "complete"};
  const auto manifest = zero3::ReadManifest(path);
  if (!manifest.ok()) {
    run.state = std::string(manifest.status().message());
    return run;
  }
  run.step = manifest->step;
  run.ranks = manifest->world;
  for (const zero3::CheckpointPart& part : manifest->parts) {
    for (const zero3::CheckpointFile& file : part.files)
      run.bytes += file.bytes;
  }
  const zero3::CheckpointPart& first = manifest->parts[0];
  run.zero = first.stage;
  const auto mesh = first.metadata.find(std::string(train::kMeshKey));
  if (mesh != first.metadata.end()) run.mesh = mesh->second;
  const auto identity = train::IdentityFrom(first.metadata);
  if (identity.ok()) run.parameters = identity->model.ParameterCount();
  const absl::Status status = zero3::CheckComplete({run.step, path});
  if (!status.ok()) run.state = std::string(status.message());
  return run;
}

// One cell of a table.
std::string Cell(std::string_view text) {
  return absl::StrReplaceAll(text, {{"\n", " "}, {"\"", "'"}});
}

absl::Status NoSuchTensor(const std::string& path, std::string_view name,
                          const train::SavedRun& saved) {
  std::vector<std::string_view> names;
  for (const auto& [known, tensor] : saved.tensors()) names.push_back(known);
  return absl::NotFoundError(absl::StrCat(QuotedPath(path), " has no tensor \"",
                                          name, "\"; the nearest name is ",
                                          NearestName(name, names)));
}

}  // namespace

absl::StatusOr<std::vector<ListedRun>> ListRuns(const std::string& path) {
  const std::string manifest = absl::StrCat(path, "/", zero3::kManifestName);
  if (PathExists(manifest)) {
    return std::vector<ListedRun>{ListOne(path)};
  }
  const std::string of_run = absl::StrCat(path, "/checkpoints");
  if (PathExists(of_run)) return ListRuns(of_run);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           zero3::ListDirectory(path));
  std::vector<ListedRun> runs;
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, "step-")) continue;
    const std::string one = absl::StrCat(path, "/", name);
    if (absl::EndsWith(name, ".writing") || absl::EndsWith(name, ".removing")) {
      runs.push_back({.path = one, .state = "interrupted or in progress"});
    } else {
      runs.push_back(ListOne(one));
    }
  }
  if (!runs.empty()) return runs;
  return absl::NotFoundError(absl::StrCat(
      QuotedPath(path),
      " is not a checkpoint and contains none, such as step-00000020"));
}

void PrintRuns(std::span<const ListedRun> runs, OutputFormat format,
               std::ostream& out) {
  if (format == OutputFormat::kText) {
    out << absl::StrFormat("%10s %6s %-18s %4s %14s %10s  %s\n", "step",
                           "ranks", "mesh", "zero", "parameters", "bytes",
                           "path");
  }
  RecordPrinter printer(format, "", out);
  for (const ListedRun& run : runs) {
    const bool is_complete = run.state == "complete";
    printer.Print(
        {{"step", run.step},
         {"ranks", run.ranks},
         {"mesh", run.mesh},
         {"zero", run.zero},
         {"parameters", run.parameters},
         {"bytes", run.bytes},
         {"state", run.state},
         {"path", run.path}},
        absl::StrFormat("%10d %6d %-18s %4d %14d %10s  %s%s%s\n", run.step,
                        run.ranks, Cell(run.mesh), run.zero, run.parameters,
                        ByteSize(run.bytes).ToString(), run.path,
                        is_complete ? "" : ": ",
                        is_complete ? "" : Cell(run.state)));
  }
  printer.Finish();
}

absl::StatusOr<std::vector<TensorHolder>> HoldersOf(const std::string& path,
                                                    std::string_view name) {
  TESSERA_ASSIGN_OR_RETURN(const auto saved, train::SavedRun::Open(path));
  std::map<size_t, std::vector<zero3::ParameterId>> by_part;
  for (const auto& [tensor_name, tensor] : saved->tensors()) {
    if (tensor_name != name &&
        !absl::StartsWith(tensor_name, absl::StrCat(name, "."))) {
      continue;
    }
    for (const train::SavedTensor::Holder& holder : tensor.holders) {
      by_part[holder.part].push_back(holder.id);
    }
  }
  if (by_part.empty()) return NoSuchTensor(path, name, *saved);
  std::vector<TensorHolder> holders;
  for (const auto& [index, ids] : by_part) {
    const zero3::CheckpointPart& part = saved->manifest().parts[index];
    TESSERA_ASSIGN_OR_RETURN(const auto ranks, part.layout.HoldersOf(ids));
    for (const topology::Rank rank : ranks) {
      TensorHolder& holder = holders.emplace_back(
          TensorHolder{.file = zero3::ShardFileName(part.name, rank.value()),
                       .rank = rank.value()});
      for (const zero3::ParameterId id : ids) {
        holder.elements += part.layout.ExtentOf(rank, id).size();
      }
    }
  }
  return holders;
}

void PrintHolders(std::span<const TensorHolder> holders, OutputFormat format,
                  std::ostream& out) {
  if (format == OutputFormat::kText) out << "  rank       elements  file\n";
  RecordPrinter printer(format, "", out);
  for (const auto& [file, rank, elements] : holders) {
    printer.Print({{"file", file}, {"rank", rank}, {"elements", elements}},
                  absl::StrFormat("%6d %14d  %s\n", rank, elements, file));
  }
  printer.Finish();
}

namespace {

// The copies of all values into the whole tensor.
absl::StatusOr<std::vector<train::TensorCopy>> WholeCopies(
    const train::SavedRun& saved, const train::SavedTensor& tensor,
    int64_t begin, int64_t end) {
  return saved.CopiesOf(tensor, zero3::StatePart::kValue,
                        train::WholeTensor(tensor.name, tensor.shape), begin,
                        end);
}

int64_t ElementsOf(const train::SavedTensor& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1},
                         std::multiplies<>());
}

absl::StatusOr<ElementPlace> Place(const train::SavedRun& saved,
                                   const train::SavedTensor& tensor,
                                   int64_t index) {
  TESSERA_ASSIGN_OR_RETURN(const auto copies,
                           WholeCopies(saved, tensor, index, index + 1));
  const auto& holder = tensor.holders[copies.at(0).source];
  const zero3::CheckpointPart& part = saved.manifest().parts[holder.part];
  TESSERA_ASSIGN_OR_RETURN(const zero3::LocalIndex local,
                           part.layout.LocalOf(holder.id, copies[0].from));
  ElementPlace place = {
      .tensor = tensor.name,
      .index = index,
      .file = zero3::ShardFileName(part.name, local.rank.value()),
      .rank = local.rank.value(),
      .offset = local.offset};
  for (const zero3::StatePart state : zero3::kAllStateParts) {
    const auto format = saved.FormatOf(tensor, state);
    if (!format) continue;
    place.parts.push_back(
        absl::StrCat(zero3::StatePartName(state), " ", format->ToString()));
  }
  return place;
}

// The index in the whole tensor of an element that part `part` holds.
absl::StatusOr<int64_t> IndexOf(const train::SavedRun& saved,
                                const train::SavedTensor& tensor, size_t part,
                                int64_t element) {
  TESSERA_ASSIGN_OR_RETURN(const auto copies,
                           WholeCopies(saved, tensor, 0, ElementsOf(tensor)));
  for (const train::TensorCopy& copy : copies) {
    if (tensor.holders[copy.source].part != part || element < copy.from) {
      continue;
    }
    const int64_t width = std::max<int64_t>(copy.from_width, 1);
    const int64_t row = (element - copy.from) / width;
    const int64_t column = (element - copy.from) % width;
    if (row < copy.rows && column < copy.columns) {
      return copy.to + row * copy.to_width + column;
    }
  }
  return absl::NotFoundError(
      absl::StrCat("the file has a copy of an element of ", Quoted(tensor.name),
                   " whose owner is another rank"));
}

}  // namespace

absl::StatusOr<ElementPlace> PlaceOf(const std::string& path,
                                     std::string_view tensor, int64_t index) {
  TESSERA_ASSIGN_OR_RETURN(const auto saved, train::SavedRun::Open(path));
  const auto found = saved->tensors().find(std::string(tensor));
  if (found == saved->tensors().end()) {
    return NoSuchTensor(path, tensor, *saved);
  }
  const int64_t elements = ElementsOf(found->second);
  if (index < 0 || index >= elements) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Quoted(tensor), " has no element ", index,
                     "; allowed: 0 to below ", elements));
  }
  return Place(*saved, found->second, index);
}

absl::StatusOr<ElementPlace> ElementAt(const std::string& path,
                                       std::string_view file, int64_t offset) {
  TESSERA_ASSIGN_OR_RETURN(const auto saved, train::SavedRun::Open(path));
  for (size_t i = 0; i < saved->manifest().parts.size(); ++i) {
    const zero3::CheckpointPart& part = saved->manifest().parts[i];
    for (int64_t rank = 0; rank < part.layout.ranks(); ++rank) {
      if (zero3::ShardFileName(part.name, rank) != file) continue;
      TESSERA_ASSIGN_OR_RETURN(
          const zero3::GlobalIndex at,
          part.layout.GlobalOf(topology::Rank(rank), offset));
      const std::string name(part.model()[at.parameter].name());
      if (at.is_padding) {
        return absl::NotFoundError(absl::StrCat("offset ", offset, " of ", file,
                                                " is padding after ", name));
      }
      TESSERA_ASSIGN_OR_RETURN(const auto* const tensor, saved->Get(name));
      TESSERA_ASSIGN_OR_RETURN(const int64_t index,
                               IndexOf(*saved, *tensor, i, at.element));
      return Place(*saved, *tensor, index);
    }
  }
  return absl::NotFoundError(
      absl::StrCat(QuotedPath(path), " has no file ", Quoted(file),
                   "; list --holders=NAME prints names of files"));
}

void PrintPlace(const ElementPlace& place, OutputFormat format,
                std::ostream& out) {
  nlohmann::ordered_json record = {
      {"tensor", place.tensor}, {"index", place.index},
      {"file", place.file},     {"rank", place.rank},
      {"offset", place.offset}, {"parts", place.parts}};
  if (format == OutputFormat::kJson) {
    out << DumpJson(record, 1) << "\n";
    return;
  }
  record["parts"] = absl::StrJoin(place.parts, "; ");
  RecordPrinter(format, "", out)
      .Print(record, absl::StrCat(place.tensor, ":", place.index,
                                  " is at offset ", place.offset, " of rank ",
                                  place.rank, " in ", place.file, ": ",
                                  absl::StrJoin(place.parts, ", "), "\n"));
}

absl::StatusOr<zero3::VerifiedBytes> VerifyRun(
    const std::string& path,
    absl::FunctionRef<void(const zero3::VerifiedBytes&)> progress) {
  TESSERA_RETURN_IF_ERROR(train::SavedRun::Open(path).status());
  zero3::VerifiedBytes verified;
  TESSERA_RETURN_IF_ERROR(
      zero3::VerifyCheckpoint(path, [&](const zero3::VerifiedBytes& so_far) {
        verified = so_far;
        progress(so_far);
      }));
  return verified;
}

}  // namespace tessera::tools
