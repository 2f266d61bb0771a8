// Reads samples of 2048 tokens in training order from a file of 10 million
// 16-bit tokens. The lower bound is a copy that reads the file's tokens and
// writes the ids. A training step of a model with P parameters needs 6 P
// operations per token, so that at tokens_per_second loading takes
//
//   share_of_1m_step   of a step of 10^6 parameters at 10^11 operations per
//                      second, a core of a processor,
//   share_of_7b_step   of a step of 7 * 10^9 parameters at 4 * 10^14, a GPU.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "base/testing/memcpy_bandwidth.h"
#include "benchmark/benchmark.h"
#include "tools/text/corpus.h"
#include "tools/text/data_files.h"
#include "tools/text/samples.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {
namespace {

constexpr int64_t kTokens = 10'000'000;
constexpr int64_t kSequence = 2048;

std::string TokensFile() {
  const std::string path =
      (std::filesystem::temp_directory_path() / "samples_benchmark.u16")
          .string();
  std::mt19937 random(1);
  std::vector<uint16_t> tokens(kTokens);
  for (uint16_t& token : tokens) token = static_cast<uint16_t>(random() % 256);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens.data()),
             static_cast<std::streamsize>(2 * tokens.size()));
  return path;
}

void BM_ReadTraining(benchmark::State& state) {
  const std::string path = TokensFile();
  auto corpus = Corpus::Open({{path}}, ByteTokenizer());
  std::filesystem::remove(path);  // The mapping remains valid.
  if (!corpus.ok()) {
    return state.SkipWithError(corpus.status().ToString().c_str());
  }
  const Samples samples =
      *Samples::Create(*corpus, {.sequence = kSequence, .seed = 1});
  std::vector<TokenId> tokens(kSequence + 1);
  BandwidthMeter meter(tokens.size() * (sizeof(uint16_t) + sizeof(TokenId)));
  int64_t index = 0;
  for (auto _ : state) {
    if (!samples.ReadTraining(index++, tokens).ok()) {
      state.SkipWithError("read");
    }
    benchmark::DoNotOptimize(tokens.data());
  }
  meter.Report(state);
  const auto read = static_cast<double>(state.iterations() * kSequence);
  using benchmark::Counter;
  state.counters["tokens_per_second"] = Counter(read, Counter::kIsRate);
  const auto share = [&](double parameters, double rate) {
    const double seconds_per_token = 6 * parameters / rate;
    // 1 / (tokens per second) / seconds per token.
    return Counter(read * seconds_per_token,
                   Counter::kIsRate | Counter::kInvert);
  };
  state.counters["share_of_1m_step"] = share(1e6, 1e11);
  state.counters["share_of_7b_step"] = share(7e9, 4e14);
}
BENCHMARK(BM_ReadTraining);

// Counts the targets of a sample among a million prompts, as every rank does
// for each sample of a step.
void BM_CountTargets(benchmark::State& state) {
  const std::vector<Document> documents(1'000'000, {"abc", "defgh"});
  const auto corpus = Corpus::FromDocuments(documents, ByteTokenizer());
  const Samples samples =
      *Samples::Create(*corpus, {.sequence = kSequence, .seed = 1});
  int64_t index = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        samples.CountTargets(SampleUse::kTraining, index++));
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_CountTargets);

}  // namespace
}  // namespace tessera::text
