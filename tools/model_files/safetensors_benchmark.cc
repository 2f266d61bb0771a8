// Reads and writes a tensor of a file in the page cache. The lower bound is one
// copy of every byte by the kernel.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/testing/memcpy_bandwidth.h"
#include "benchmark/benchmark.h"
#include "tools/model_files/safetensors_file.h"

namespace tessera::model_files {
namespace {

std::string Path() {
  const char* const directory = std::getenv("TMPDIR");
  return absl::StrCat(directory == nullptr ? "/tmp" : directory,
                      "/benchmark.safetensors");
}

absl::Status WriteOne(int64_t bytes, std::span<const std::byte> data) {
  auto writer =
      SafetensorsWriter::Create(Path(), {{"w", ElementType::kU8, {bytes}}});
  if (!writer.ok()) return writer.status();
  if (auto status = writer->Write("w", data); !status.ok()) return status;
  return writer->Commit();
}

void BM_Read(benchmark::State& state) {
  const int64_t bytes = state.range(0);
  std::vector<std::byte> data(static_cast<size_t>(bytes));
  if (!WriteOne(bytes, data).ok()) return state.SkipWithError("cannot write");
  const auto file = SafetensorsFile::Open(Path());
  if (!file.ok()) return state.SkipWithError("cannot open");
  BandwidthMeter meter(2 * data.size());
  for (auto _ : state) {
    if (!file->Read("w", data).ok()) return state.SkipWithError("cannot read");
  }
  meter.Report(state);
  std::remove(Path().c_str());
}
BENCHMARK(BM_Read)->Arg(1 << 20)->Arg(64 << 20);

// Includes creating, syncing and renaming the file; the disk is the limit.
void BM_Write(benchmark::State& state) {
  const std::vector<std::byte> data(static_cast<size_t>(state.range(0)));
  BandwidthMeter meter(2 * data.size());
  for (auto _ : state) {
    if (!WriteOne(state.range(0), data).ok()) {
      return state.SkipWithError("cannot write");
    }
  }
  meter.Report(state);
  std::remove(Path().c_str());
}
BENCHMARK(BM_Write)->Arg(1 << 20)->Arg(64 << 20);

}  // namespace
}  // namespace tessera::model_files
