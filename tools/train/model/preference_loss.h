// The loss of direct preference optimization (DPO) of pairs of completions:
//
//   z    = beta * ((log p(chosen) - log r(chosen))
//                  - (log p(rejected) - log r(rejected)))
//   loss = -log sigmoid(z)
//
// for the probabilities p of the model and r of the reference, the model before
// training. Each log-probability is a sum over the tokens of a completion.
//
// Source: R. Rafailov et al., "Direct Preference Optimization", arXiv
// 2305.18290, equation 7; loss_type="sigmoid" of TRL's DPOTrainer.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_PREFERENCE_LOSS_H_
#define TESSERA_TOOLS_TRAIN_MODEL_PREFERENCE_LOSS_H_

#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

namespace tessera::train {

// Rewards, beta * (log p - log r), of one or several pairs.
struct RewardSums {
  double chosen = 0;
  double rejected = 0;
  double won = 0;  // The number of pairs whose chosen reward is larger.

  void Add(const RewardSums& other) {
    chosen += other.chosen;
    rejected += other.rejected;
    won += other.won;
  }
};

struct PreferenceLoss {
  double mean = 0;  // Over the pairs.
  // The derivatives of the mean by the negative log-probability of each
  // sequence.
  std::vector<double> slopes;
  RewardSums rewards;
};

// The loss of pairs of sequences: chosen, rejected, chosen, ... Both arguments
// have the log-probabilities of all sequences.
inline PreferenceLoss PreferenceLossOf(double beta,
                                       std::span<const double> policy,
                                       std::span<const double> reference) {
  PreferenceLoss loss;
  const double share = 2 / static_cast<double>(policy.size());
  for (size_t i = 0; i + 1 < policy.size(); i += 2) {
    const double chosen = beta * (policy[i] - reference[i]);
    const double rejected = beta * (policy[i + 1] - reference[i + 1]);
    const double z = chosen - rejected;
    const double slope = share * beta / (1 + std::exp(z));
    loss.mean +=
        share * (std::log1p(std::exp(-std::abs(z))) + std::fmax(-z, 0));
    loss.slopes.insert(loss.slopes.end(), {slope, -slope});
    loss.rewards.Add({chosen, rejected, chosen > rejected ? 1.0 : 0.0});
  }
  return loss;
}

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_PREFERENCE_LOSS_H_
