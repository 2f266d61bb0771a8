// Weights held in fewer bytes: what each codec saves, and what it costs.
#include "offload/codec/codec.h"

#include <iomanip>
#include <iostream>
#include <random>
#include <vector>

#include "base/status_macros.h"

absl::Status Run() {
  using namespace tessera;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> weights(1 << 20);
  for (float& weight : weights) weight = normal(random);
  const auto values = std::as_bytes(std::span(weights));

  for (const char* name : {"bf16", "int8", "nf4", "lossless_fast"}) {
    TESSERA_ASSIGN_OR_RETURN(auto codec, offload::CreateCodec(name));
    TESSERA_ASSIGN_OR_RETURN(
        const int64_t room,
        codec->MaxEncodedBytes(DType::kF32, int64_t(weights.size())));
    std::vector<std::byte> held(room);
    TESSERA_ASSIGN_OR_RETURN(const int64_t bytes,
                             codec->Encode(DType::kF32, values, held));
    held.resize(bytes);
    std::vector<float> back(weights.size());
    TESSERA_RETURN_IF_ERROR(codec->Decode(
        DType::kF32, held, std::as_writable_bytes(std::span(back))));
    std::cout << std::setw(13) << name << std::fixed << std::setprecision(2)
              << "  ratio " << double(values.size()) / double(bytes)
              << (back == weights ? "  same bits\n" : "  rounded\n");
  }
  return absl::OkStatus();
}

int main() { return Run().ok() ? 0 : 1; }
