// Subjects of gradient tests: blocks and their parts.
#ifndef TESSERA_TENSOR_PARALLEL_BLOCKS_TESTING_BLOCK_SUBJECTS_H_
#define TESSERA_TENSOR_PARALLEL_BLOCKS_TESTING_BLOCK_SUBJECTS_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/blocks/attention.h"
#include "tensor_parallel/blocks/gated_mlp.h"
#include "tensor_parallel/blocks/moe_mlp.h"
#include "tensor_parallel/blocks/output_head.h"
#include "tensor_parallel/blocks/testing/layer_subjects.h"
#include "tensor_parallel/blocks/testing/subject.h"
#include "tensor_parallel/blocks/transformer_block.h"

namespace tessera::tensor_parallel::subject_internal {

class MlpSubject final : public LayerSubject {
 public:
  MlpSubject(const Setting& setting, GatedMlp layer)
      : LayerSubject(setting),
        layer_(std::move(layer)),
        activations_(*setting.pool) {}
  void AppendParameters(std::vector<Parameter*>& parameters) override {
    layer_.AppendParameters("mlp", parameters);
  }
  absl::Status DoForward(TensorView y) override {
    return layer_.Forward(tokens_, x(), y, activations_);
  }
  absl::Status DoBackwardInput(TensorView x_gradient) override {
    return layer_.BackwardInput(tokens_, gradient(), x_gradient, activations_);
  }
  absl::Status BackwardWeight() override {
    return layer_.BackwardWeight(tokens_, gradient(), x(), activations_);
  }
  absl::Status Backward(ConstTensorView gradient,
                        TensorView x_gradient) override {
    return layer_.Backward(tokens_, gradient, x(), x_gradient, activations_);
  }
  absl::Status FinishGradients() override { return layer_.FinishGradients(); }
  int64_t bytes() const override { return activations_.bytes(); }

 private:
  GatedMlp layer_;
  GatedMlpActivations activations_;
};

class MoeSubject final : public LayerSubject {
 public:
  MoeSubject(const Setting& setting, MoeMlp layer)
      : LayerSubject(setting),
        layer_(std::move(layer)),
        activations_(*setting.pool) {}
  void AppendParameters(std::vector<Parameter*>& parameters) override {
    layer_.AppendParameters("mlp", parameters);
  }
  absl::Status DoForward(TensorView y) override {
    activations_.loss_tokens = sequences_ * setting_.context.layout.length();
    return layer_.Forward(tokens_, sequences_, x(), y, activations_);
  }
  absl::Status DoBackwardInput(TensorView x_gradient) override {
    return layer_.BackwardInput(tokens_, gradient(), x_gradient, activations_);
  }
  absl::Status BackwardWeight() override {
    return layer_.BackwardWeight(tokens_, gradient(), x(), activations_);
  }
  absl::Status Backward(ConstTensorView gradient,
                        TensorView x_gradient) override {
    return layer_.Backward(tokens_, gradient, x(), x_gradient, activations_);
  }
  absl::Status FinishGradients() override { return layer_.FinishGradients(); }
  int64_t bytes() const override { return activations_.bytes(); }

 private:
  MoeMlp layer_;
  MoeActivations activations_;
};

class AttentionSubject final : public LayerSubject {
 public:
  AttentionSubject(const Setting& setting, Attention layer)
      : LayerSubject(setting),
        layer_(std::move(layer)),
        activations_(*setting.pool) {}
  void AppendParameters(std::vector<Parameter*>& parameters) override {
    layer_.AppendParameters("attention", parameters);
  }
  absl::Status DoForward(TensorView y) override {
    TESSERA_ASSIGN_OR_RETURN(batch_, layer_.BatchOf(sequences_));
    TESSERA_RETURN_IF_ERROR(layer_.Forward(batch_, x(), y, activations_));
    if (setting_.options.recompute != Recompute::kNone) {
      activations_.ClearCore();
    }
    return absl::OkStatus();
  }
  absl::Status DoBackwardInput(TensorView x_gradient) override {
    return layer_.BackwardInput(batch_, gradient(), x_gradient, activations_);
  }
  absl::Status BackwardWeight() override {
    return layer_.BackwardWeight(batch_, gradient(), x(), activations_);
  }
  absl::Status Backward(ConstTensorView gradient,
                        TensorView x_gradient) override {
    return layer_.Backward(batch_, gradient, x(), x_gradient, activations_);
  }
  absl::Status FinishGradients() override { return layer_.FinishGradients(); }
  int64_t bytes() const override { return activations_.bytes(); }

 private:
  Attention layer_;
  AttentionActivations activations_;
  TokenBatch batch_;
};

class BlockSubject final : public Subject {
 public:
  BlockSubject(const Setting& setting, TransformerBlock block)
      : setting_(setting),
        block_(std::move(block)),
        activations_(*setting.pool) {}
  int64_t out_width() const override { return setting_.options.width; }
  DType out_dtype() const override { return setting_.options.dtype; }
  void AppendParameters(std::vector<Parameter*>& parameters) override {
    block_.AppendParameters("block", parameters);
  }
  absl::Status Forward(int64_t sequences, ConstTensorView x,
                       TensorView y) override {
    return block_.Forward(sequences, x, y, activations_,
                          /*first_sequence=*/5);
  }
  absl::Status BackwardInput(ConstTensorView gradient,
                             TensorView x_gradient) override {
    return block_.BackwardInput(gradient, x_gradient, activations_);
  }
  absl::Status BackwardWeight() override {
    return block_.BackwardWeight(activations_);
  }
  absl::Status Backward(ConstTensorView gradient,
                        TensorView x_gradient) override {
    return block_.Backward(gradient, x_gradient, activations_);
  }
  absl::Status FinishGradients() override { return block_.FinishGradients(); }
  int64_t bytes() const override { return activations_.bytes(); }

 private:
  Setting setting_;
  TransformerBlock block_;
  BlockActivations activations_;
};

// y is [tokens, 1], the losses; the gradient of y is the scales.
class HeadSubject final : public Subject {
 public:
  HeadSubject(const Setting& setting, OutputHead head)
      : setting_(setting),
        head_(std::move(head)),
        activations_(*setting.pool) {}
  int64_t out_width() const override { return 1; }
  DType out_dtype() const override { return DType::kF64; }
  bool whole_output() const override { return true; }
  void AppendParameters(std::vector<Parameter*>& parameters) override {
    head_.AppendParameters("head", parameters);
  }
  absl::Status Forward(int64_t sequences, ConstTensorView x,
                       TensorView y) override {
    TESSERA_RETURN_IF_ERROR(setting_.tensor.queue().Synchronize());
    TESSERA_ASSIGN_OR_RETURN(words_, setting_.UploadWords(sequences));
    TESSERA_ASSIGN_OR_RETURN(const TensorView losses,
                             y.Reshape({{y.element_count()}}));
    return head_.Forward(setting_.TokensOf(sequences), x, words_->view(),
                         losses, activations_);
  }
  absl::Status BackwardInput(ConstTensorView gradient,
                             TensorView x_gradient) override {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView scales,
                             gradient.Reshape({{gradient.element_count()}}));
    return head_.BackwardInput(scales, x_gradient, activations_);
  }
  absl::Status BackwardWeight() override {
    return head_.BackwardWeight(activations_);
  }
  absl::Status Backward(ConstTensorView gradient,
                        TensorView x_gradient) override {
    TESSERA_ASSIGN_OR_RETURN(const ConstTensorView scales,
                             gradient.Reshape({{gradient.element_count()}}));
    return head_.Backward(scales, x_gradient, activations_);
  }
  absl::Status FinishGradients() override { return head_.FinishGradients(); }
  int64_t bytes() const override { return activations_.bytes(); }

 private:
  Setting setting_;
  OutputHead head_;
  HeadActivations activations_;
  std::optional<Tensor> words_;  // The targets.
};

}  // namespace tessera::tensor_parallel::subject_internal

#endif  // TESSERA_TENSOR_PARALLEL_BLOCKS_TESTING_BLOCK_SUBJECTS_H_
