// QkClip: keeps the scores of attention below a threshold T by scaling the
// weights of queries and keys after the optimizer's step, as MuonClip does
// (Kimi Team, Kimi K2, arXiv 2507.20534, section 2.1).
//
//   QkClip clip(layers);
//   TESSERA_RETURN_IF_ERROR(clip.Begin());              // before the passes
//   TESSERA_RETURN_IF_ERROR(clip.Finish(data, model));  // after them
//   record.max_attention_score = clip.Largest();
//   model.Step(clip.Factors());
//
// The score of a head is S, the largest product of a query and a key that it
// sees, times the scale, over all sequences of the step. If S is above T, the
// factor g = T / S is applied to its scores:
//
//   attention              rows of queries        rows of keys
//   multi-head             sqrt(g)                sqrt(g)
//   grouped queries        g                      1, since heads share them
//   latent, not rotated    sqrt(g)                sqrt(g)
//   latent, rotated        g                      1, since heads share them
//
// Biases are scaled like the weights. S is of the weights before the step.
// Without RunOptions::qk_clip all of this does nothing.
#ifndef TESSERA_TOOLS_TRAIN_STEP_QK_CLIP_H_
#define TESSERA_TOOLS_TRAIN_STEP_QK_CLIP_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/device/staging.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/sharding/partition.h"
#include "tools/model_files/model_config.h"
#include "tools/train/model/llama_stage.h"
#include "tools/train/model/sharded_model.h"

namespace tessera::train {

// A factor on rows of the tensors of an attention whose names end in
// `projection`, followed by ".weight" or ".bias".
struct HeadScale {
  std::string_view projection;
  tensor_parallel::IndexRange rows = {};
  double factor = 1;

  friend bool operator==(const HeadScale&, const HeadScale&) = default;
};

// The factors that multiply the scores of a head by `factor` and change no
// other head.
std::vector<HeadScale> HeadScalesOf(const model_files::ModelConfig& model,
                                    int64_t head, double factor);

class QkClip {
 public:
  // `layers` must outlive this.
  explicit QkClip(LlamaLayers& layers)
      : layers_(layers),
        memory_(layers.tensor().memory(), layers.tensor().queue()),
        staging_(layers.tensor().queue()) {}

  // Forwards keep their largest scores from now on, until Finish.
  absl::Status Begin();
  // Finds the largest scores of all heads of the model. A collective of the
  // groups: the data and context ranks, and the tensor and pipeline ranks.
  absl::Status Finish(collectives::Communicator& data,
                      collectives::Communicator& model);

  // The largest score of the step; nullopt if none was computed.
  std::optional<double> Largest() const;
  // For the attention of this rank's layers.
  std::vector<ShardedModel::RowScale> Factors() const;

 private:
  bool is_on() const { return layers_.options().qk_clip > 0; }
  int64_t heads() const { return layers_.options().model.heads; }
  // Calls f(window, attention) for each of the rank's attentions with heads.
  template <typename Function>
  void ForEachAttention(const Function& f) const;
  absl::Status Download();

  LlamaLayers& layers_;
  tensor_parallel::ReusableTensor memory_;
  StagingPool staging_;
  // Of the rank's heads, one attention after another; set by Begin.
  std::optional<TensorView> scores_;
  std::vector<double> largest_;  // [layers, heads]
  std::optional<collectives::PreparedOperation> data_max_, model_max_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_STEP_QK_CLIP_H_
