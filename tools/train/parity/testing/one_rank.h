// The trainer's layers on one rank without a pipeline, with given weights, for
// comparison with RunReference.
//
//   TESSERA_ASSIGN_OR_RETURN(auto rank, OneRank::Create(options, weights));
//   TESSERA_ASSIGN_OR_RETURN(double loss, rank->Forward(tokens));
//   TESSERA_RETURN_IF_ERROR(rank->Backward());
//   TESSERA_ASSIGN_OR_RETURN(ReferenceWeights gradients, rank->Gradients());
#ifndef TESSERA_TOOLS_TRAIN_PARITY_TESTING_ONE_RANK_H_
#define TESSERA_TOOLS_TRAIN_PARITY_TESTING_ONE_RANK_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/train/model/llama_stage.h"
#include "tools/train/parity/testing/reference_llama.h"
#include "tools/train/testing/whole_llama.h"

namespace tessera::train {

// Copies the value of a whole parameter to the tensors that it consists of.
absl::Status ReadReference(const std::string& name, const TensorView& value,
                           ReferenceWeights& weights);

class OneRank final : private TokenSource {
 public:
  static absl::StatusOr<std::unique_ptr<OneRank>> Create(
      const RunOptions& options, ReferenceWeights weights);

  // For finite differences, change these weights and call SetWeights.
  ReferenceWeights& weights() { return weights_; }
  absl::Status SetWeights();

  // The loss of one micro-batch of [sequences, length + 1] tokens. Backward
  // follows Forward; Loss needs no backward.
  absl::StatusOr<double> Forward(std::vector<int64_t> tokens);
  absl::StatusOr<double> Loss(std::vector<int64_t> tokens);
  // Runs the backward in one pass, or, as zero-bubble schedules do, split into
  // input and weight gradients.
  absl::Status Backward(bool split = false);

  // Sets the tokens whose targets are ignored from now on; empty: none.
  void SetMasked(std::vector<bool> masked);
  // Scales the loss, and thereby the gradients.
  void SetLossFactor(double factor) { whole_->SetLossFactor(factor); }
  // Summed over all backward passes.
  absl::StatusOr<ReferenceWeights> Gradients();

 private:
  explicit OneRank(const model_files::ModelConfig& model,
                   ReferenceWeights weights)
      : model_(model), weights_(std::move(weights)), ops_({.threads = 1}) {}

  absl::StatusOr<std::span<const int64_t>> Tokens(int32_t) override {
    return std::span<const int64_t>(tokens_);
  }
  absl::StatusOr<std::span<const int64_t>> Targets(int32_t) override {
    return std::span<const int64_t>(targets_);
  }

  const model_files::ModelConfig model_;
  int64_t sequences_ = 1;
  ReferenceWeights weights_;
  tensor_parallel::CpuOps ops_;
  std::vector<int64_t> tokens_;
  std::vector<bool> masked_;
  std::vector<int64_t> targets_;  // Empty if no target is masked.
  double target_factor_ = 1;
  std::unique_ptr<WholeLlama> whole_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PARITY_TESTING_ONE_RANK_H_
