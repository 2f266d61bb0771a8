// Encodes source code. The lower bound is a copy that reads the text and writes
// the ids.
#include <fstream>
#include <iterator>
#include <string>

#include "base/testing/memcpy_bandwidth.h"
#include "benchmark/benchmark.h"
#include "tools/text/load_tokenizer.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {
namespace {

constexpr char kDirectory[] = "tools/text/";

// The sources of this package, repeated.
std::string SourceText() {
  std::string text;
  for (const char* name :
       {"word_splitter.cc", "bpe_tokenizer.cc", "tokenizer_json.cc"}) {
    std::ifstream file(std::string(kDirectory) + name);
    text.append(std::istreambuf_iterator<char>(file), {});
  }
  while (text.size() < (1 << 22)) text += text;
  return text;
}

void Encode(benchmark::State& state, const Tokenizer& tokenizer) {
  const std::string text = SourceText();
  std::vector<TokenId> ids = tokenizer.Encode(text);
  state.counters["bytes_per_token"] =
      static_cast<double>(text.size()) / static_cast<double>(ids.size());
  BandwidthMeter meter(text.size() + ids.size() * sizeof(TokenId));
  for (auto _ : state) {
    ids.clear();
    tokenizer.AppendTokens(text, SpecialTokens::kAsText, ids);
  }
  meter.Report(state);
  state.SetBytesProcessed(state.iterations() *
                          static_cast<int64_t>(text.size()));
}

void BM_Bytes(benchmark::State& state) { Encode(state, ByteTokenizer()); }
BENCHMARK(BM_Bytes);

void BM_Bpe(benchmark::State& state) {
  const auto tokenizer =
      LoadTokenizer(std::string(kDirectory) + "testdata/tokenizer.json");
  if (!tokenizer.ok()) return state.SkipWithError("run in the workspace");
  Encode(state, **tokenizer);
}
BENCHMARK(BM_Bpe);

void BM_SentencePiece(benchmark::State& state, const char* model) {
  const auto tokenizer =
      LoadTokenizer(std::string(kDirectory) + "testdata/" + model);
  if (!tokenizer.ok()) {
    return state.SkipWithError(tokenizer.status().ToString().c_str());
  }
  Encode(state, **tokenizer);
}
BENCHMARK_CAPTURE(BM_SentencePiece, bpe, "llama.model");
BENCHMARK_CAPTURE(BM_SentencePiece, unigram, "unigram.model");

}  // namespace
}  // namespace tessera::text
