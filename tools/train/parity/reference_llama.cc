#include "tools/train/parity/reference_llama.h"

#include <cmath>

#include "tools/train/parity/plain_formulas.h"

namespace tessera::train {
namespace {

using plain::Numbers;

// What a layer computes on its way.
struct LayerPass {
  Numbers input, normalised, query, key, value, attended;
  Numbers middle, middle_normalised, gate, up, product;
};

void AddTo(Numbers& x, const Numbers& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

Numbers ZerosLike(const Numbers& x) { return Numbers(x.size()); }

class Model {
 public:
  Model(const model_files::ModelConfig& model, const ReferenceWeights& weights,
        const ReferenceBatch& batch)
      : model_(model),
        weights_(weights),
        batch_(batch),
        width_(static_cast<size_t>(model.hidden)),
        vocabulary_(static_cast<size_t>(model.vocabulary)),
        heads_{batch.sequences, batch.length, static_cast<size_t>(model.heads),
               static_cast<size_t>(model.kv_heads),
               static_cast<size_t>(model.head_size)} {}

  void Forward() {
    Numbers x;
    for (size_t t = 0; t < tokens(); ++t) {
      const double* row = &weights_.embedding[InputOf(t) * width_];
      x.insert(x.end(), row, row + width_);
    }
    for (const ReferenceLayer& layer : weights_.layers) {
      x = ForwardLayer(layer, std::move(x));
    }
    last_ = std::move(x);
    normalised_ =
        plain::RmsNorm(last_, weights_.final_norm, model_.norm_epsilon);
    logits_ = plain::Linear(normalised_, table(), width_);
  }

  double Loss() const {
    double sum = 0;
    for (size_t t = 0; t < tokens(); ++t) {
      const Numbers p = plain::Softmax(&logits_[t * vocabulary_], vocabulary_);
      sum -= std::log(p[TargetOf(t)]);
    }
    return sum / static_cast<double>(tokens());
  }

  const Numbers& logits() const { return logits_; }

  ReferenceWeights Backward() const {
    ReferenceWeights gradients = ReferenceZeros(model_);
    Numbers dx = BackwardHead(gradients);
    for (size_t l = weights_.layers.size(); l-- > 0;) {
      dx = BackwardLayer(weights_.layers[l], passes_[l], dx,
                         gradients.layers[l]);
    }
    for (size_t t = 0; t < tokens(); ++t) {
      for (size_t i = 0; i < width_; ++i) {
        gradients.embedding[InputOf(t) * width_ + i] += dx[t * width_ + i];
      }
    }
    return gradients;
  }

 private:
  size_t tokens() const { return batch_.sequences * batch_.length; }
  size_t InputOf(size_t token) const {
    const size_t sequence = token / batch_.length;
    return static_cast<size_t>(batch_.tokens[token + sequence]);
  }
  size_t TargetOf(size_t token) const {
    const size_t sequence = token / batch_.length;
    return static_cast<size_t>(batch_.tokens[token + sequence + 1]);
  }
  const Numbers& table() const {
    return model_.tied_embeddings ? weights_.embedding : weights_.head;
  }

  // m = x + Wo attention(norm(x)); y = m + Wdown swiglu(norm(m)).
  Numbers ForwardLayer(const ReferenceLayer& w, Numbers x) {
    LayerPass& p = passes_.emplace_back();
    p.input = std::move(x);
    p.normalised =
        plain::RmsNorm(p.input, w.attention_norm, model_.norm_epsilon);
    p.query = plain::Linear(p.normalised, w.query, width_);
    p.key = plain::Linear(p.normalised, w.key, width_);
    p.value = plain::Linear(p.normalised, w.value, width_);
    plain::Rotate(heads_, heads_.heads, model_.rope_theta, 1, p.query);
    plain::Rotate(heads_, heads_.kv_heads, model_.rope_theta, 1, p.key);
    p.attended = plain::Attend(heads_, p.query, p.key, p.value);
    p.middle = plain::Linear(p.attended, w.output, Queries());
    AddTo(p.middle, p.input);
    p.middle_normalised =
        plain::RmsNorm(p.middle, w.mlp_norm, model_.norm_epsilon);
    p.gate = plain::Linear(p.middle_normalised, w.gate, width_);
    p.up = plain::Linear(p.middle_normalised, w.up, width_);
    p.product = plain::SwiGlu(p.gate, p.up);
    Numbers y = plain::Linear(p.product, w.down, Intermediate());
    AddTo(y, p.middle);
    return y;
  }

  // The gradient of a softmax's cross-entropy is p - 1 at the target.
  Numbers BackwardHead(ReferenceWeights& gradients) const {
    Numbers dlogits;
    for (size_t t = 0; t < tokens(); ++t) {
      Numbers p = plain::Softmax(&logits_[t * vocabulary_], vocabulary_);
      p[TargetOf(t)] -= 1;
      for (double& value : p) value /= static_cast<double>(tokens());
      dlogits.insert(dlogits.end(), p.begin(), p.end());
    }
    Numbers dnormalised = ZerosLike(normalised_), dx = ZerosLike(last_);
    plain::LinearBackward(
        dlogits, normalised_, table(), width_, dnormalised,
        model_.tied_embeddings ? gradients.embedding : gradients.head);
    plain::RmsNormBackward(dnormalised, last_, weights_.final_norm,
                           model_.norm_epsilon, dx, gradients.final_norm);
    return dx;
  }

  Numbers BackwardLayer(const ReferenceLayer& w, const LayerPass& p,
                        const Numbers& dy, ReferenceLayer& gradients) const {
    Numbers dmiddle = BackwardMlp(w, p, dy, gradients);
    AddTo(dmiddle, dy);
    Numbers dx = BackwardAttention(w, p, dmiddle, gradients);
    AddTo(dx, dmiddle);
    return dx;
  }

  Numbers BackwardMlp(const ReferenceLayer& w, const LayerPass& p,
                      const Numbers& dy, ReferenceLayer& gradients) const {
    Numbers dproduct = ZerosLike(p.product), dgate = ZerosLike(p.gate),
            dup = ZerosLike(p.up), dnormalised = ZerosLike(p.middle),
            dmiddle = ZerosLike(p.middle);
    plain::LinearBackward(dy, p.product, w.down, Intermediate(), dproduct,
                          gradients.down);
    plain::SwiGluBackward(dproduct, p.gate, p.up, dgate, dup);
    plain::LinearBackward(dgate, p.middle_normalised, w.gate, width_,
                          dnormalised, gradients.gate);
    plain::LinearBackward(dup, p.middle_normalised, w.up, width_, dnormalised,
                          gradients.up);
    plain::RmsNormBackward(dnormalised, p.middle, w.mlp_norm,
                           model_.norm_epsilon, dmiddle, gradients.mlp_norm);
    return dmiddle;
  }

  Numbers BackwardAttention(const ReferenceLayer& w, const LayerPass& p,
                            const Numbers& dmiddle,
                            ReferenceLayer& gradients) const {
    Numbers dattended = ZerosLike(p.attended), dquery = ZerosLike(p.query),
            dkey = ZerosLike(p.key), dvalue = ZerosLike(p.value),
            dnormalised = ZerosLike(p.input), dx = ZerosLike(p.input);
    plain::LinearBackward(dmiddle, p.attended, w.output, Queries(), dattended,
                          gradients.output);
    plain::AttendBackward(heads_, dattended, p.query, p.key, p.value, dquery,
                          dkey, dvalue);
    plain::Rotate(heads_, heads_.heads, model_.rope_theta, -1, dquery);
    plain::Rotate(heads_, heads_.kv_heads, model_.rope_theta, -1, dkey);
    plain::LinearBackward(dquery, p.normalised, w.query, width_, dnormalised,
                          gradients.query);
    plain::LinearBackward(dkey, p.normalised, w.key, width_, dnormalised,
                          gradients.key);
    plain::LinearBackward(dvalue, p.normalised, w.value, width_, dnormalised,
                          gradients.value);
    plain::RmsNormBackward(dnormalised, p.input, w.attention_norm,
                           model_.norm_epsilon, dx, gradients.attention_norm);
    return dx;
  }

  size_t Queries() const { return heads_.heads * heads_.head_size; }
  size_t Intermediate() const {
    return static_cast<size_t>(model_.intermediate);
  }

  const model_files::ModelConfig& model_;
  const ReferenceWeights& weights_;
  const ReferenceBatch& batch_;
  const size_t width_;
  const size_t vocabulary_;
  const plain::HeadSizes heads_;
  std::vector<LayerPass> passes_;
  Numbers last_, normalised_, logits_;
};

}  // namespace

ReferencePass RunReference(const model_files::ModelConfig& model,
                           const ReferenceWeights& weights,
                           const ReferenceBatch& batch) {
  Model run(model, weights, batch);
  run.Forward();
  return {run.logits(), run.Loss(), run.Backward()};
}

double ReferenceLoss(const model_files::ModelConfig& model,
                     const ReferenceWeights& weights,
                     const ReferenceBatch& batch) {
  Model run(model, weights, batch);
  run.Forward();
  return run.Loss();
}

}  // namespace tessera::train
