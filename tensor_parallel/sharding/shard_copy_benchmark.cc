// Splits a tensor into the shards of all ranks and reassembles it, compared
// with the bandwidth of memcpy.
//
// share_of_memcpy: time of one memcpy of the whole tensor divided by that of
// the copies; the two alternate, medians of both. The targets are 0.8 for
// contiguous shards and 0.5 for strided ones.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/tensor/copy.h"
#include "benchmark/benchmark.h"
#include "tensor_parallel/sharding/distributed_tensor.h"
#include "topology/mesh.h"

namespace tessera::tensor_parallel {
namespace {

struct Question {
  std::string axes;
  Dims shape;
  ShardSpec spec;
  DType dtype = DType::kF32;
};

absl::StatusOr<std::vector<DistributedTensor>> ShardsOf(
    const Question& question) {
  TESSERA_ASSIGN_OR_RETURN(const auto axes, topology::ParseAxes(question.axes));
  TESSERA_ASSIGN_OR_RETURN(const topology::Mesh mesh,
                           topology::Mesh::Create(axes));
  std::vector<DistributedTensor> shards;
  for (int64_t r = 0; r < mesh.world_size(); ++r) {
    TESSERA_ASSIGN_OR_RETURN(
        DistributedTensor shard,
        DistributedTensor::Create(mesh, topology::Rank(r), question.spec,
                                  question.dtype, question.shape));
    TESSERA_RETURN_IF_ERROR(Fill(shard.local().view(), 1.0f));
    shards.push_back(std::move(shard));
  }
  return shards;
}

double SecondsOf(const std::function<absl::Status()>& call,
                 absl::Status& status) {
  const auto start = std::chrono::steady_clock::now();
  status.Update(call());
  benchmark::ClobberMemory();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

double Median(std::vector<double> values) {
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

absl::Status CopyAll(bool gather, std::vector<DistributedTensor>& shards,
                     Tensor& full) {
  const Shard whole = WholeOf(full.shape());
  for (DistributedTensor& shard : shards) {
    TESSERA_RETURN_IF_ERROR(
        gather ? CopyShared(shard.shard(), shard.local().view(), whole,
                            full.view())
               : CopyShared(whole, full.view(), shard.shard(),
                            shard.local().view()));
  }
  return absl::OkStatus();
}

absl::Status Run(benchmark::State& state, const Question& question,
                 bool gather) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<DistributedTensor> shards,
                           ShardsOf(question));
  TESSERA_ASSIGN_OR_RETURN(Tensor full,
                           Tensor::Create(question.dtype, question.shape));
  TESSERA_RETURN_IF_ERROR(Fill(full.view(), 2.0f));
  TESSERA_ASSIGN_OR_RETURN(Tensor other,
                           Tensor::Create(question.dtype, question.shape));
  TESSERA_RETURN_IF_ERROR(Fill(other.view(), 3.0f));
  const auto bytes = static_cast<size_t>(full.view().size_in_bytes());
  std::vector<double> copies, memcpys;
  absl::Status status;
  for (auto _ : state) {
    copies.push_back(
        SecondsOf([&] { return CopyAll(gather, shards, full); }, status));
    memcpys.push_back(SecondsOf(
        [&] {
          std::memcpy(other.view().data(), full.view().data(), bytes);
          return absl::OkStatus();
        },
        status));
    state.SetIterationTime(copies.back());
  }
  const double moved = 2 * static_cast<double>(bytes) / 1e9;
  state.counters["GB/s"] = moved / Median(copies);
  state.counters["memcpy_GB/s"] = moved / Median(memcpys);
  state.counters["share_of_memcpy"] = Median(memcpys) / Median(copies);
  return status;
}

void BM_Shards(benchmark::State& state, const Question& question, bool gather) {
  const absl::Status status = Run(state, question, gather);
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}

// Splits a matrix by rows or by columns over `ranks` ranks.
Question Rows(int64_t side, int64_t ranks) {
  return {"tp" + std::to_string(ranks), {side, side}, {{{{"tp"}}, {}}, {}}};
}
Question Columns(int64_t side, int64_t ranks, DType dtype = DType::kF32) {
  return {
      "tp" + std::to_string(ranks), {side, side}, {{{}, {{"tp"}}}, {}}, dtype};
}

// 32 query heads and 8 of keys and values, of 128 elements.
Question Qkv(size_t dim) {
  Question question = {"tp4", {2048, 2048}, ShardSpec::Replicated(2)};
  question.shape[dim] = 6144;
  question.spec.dims[dim] = {{"tp"},
                             PartitionRule::Fused(*QkvParts(32, 8, 128, 4))};
  return question;
}

void Add(const std::string& name, const Question& question) {
  for (const bool gather : {false, true}) {
    benchmark::RegisterBenchmark(
        ((gather ? "BM_Gather/" : "BM_Slice/") + name).c_str(),
        [=](benchmark::State& state) { BM_Shards(state, question, gather); })
        ->UseManualTime();
  }
}

const bool registered = [] {
  Add("contiguous_rows_64MiB", Rows(4096, 4));
  Add("contiguous_rows_256KiB", Rows(256, 4));
  Add("contiguous_qkv_rows_48MiB", Qkv(0));
  Add("strided_columns_of_4KiB", Columns(4096, 4));
  Add("strided_columns_of_1KiB", Columns(4096, 16));
  Add("strided_columns_of_256B", Columns(4096, 64));
  Add("strided_columns_of_128B", Columns(4096, 64, DType::kBF16));
  Add("strided_columns_of_32B", Columns(1024, 64, DType::kBF16));
  Add("strided_columns_of_256B_256KiB", Columns(256, 4));
  Add("strided_qkv_columns_48MiB", Qkv(1));
  return true;
}();

}  // namespace
}  // namespace tessera::tensor_parallel
