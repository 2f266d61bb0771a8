// TimeShares: what a rank's time went on. README.md says how it is measured.
#ifndef TESSERA_TOOLS_TRAIN_LOOP_TIME_SHARES_H_
#define TESSERA_TOOLS_TRAIN_LOOP_TIME_SHARES_H_

namespace tessera::train {

// Of a step, or of several. The first four add up to 1.
struct TimeShares {
  double compute = 0;        // On the rank's own processor.
  double communication = 0;  // In collectives and messages.
  double bubble = 0;   // Waiting for what a pipeline peer has not computed yet.
  double offload = 0;  // Waiting for memory tiers.

  // Of compute: matrix products and attention; the optimizer's step.
  double products = 0;
  double optimizer = 0;

  // The part of the time in which weights are gathered or gradients reduced,
  // beside whatever else; and of it that in which the rank computes meanwhile.
  double state_traffic = 0;
  double state_hidden = 0;
  // 1 if there is no such traffic.
  double HiddenShare() const {
    return state_traffic > 0 ? state_hidden / state_traffic : 1;
  }

  void Add(const TimeShares& other, double factor) {
    compute += factor * other.compute;
    communication += factor * other.communication;
    bubble += factor * other.bubble;
    offload += factor * other.offload;
    products += factor * other.products;
    optimizer += factor * other.optimizer;
    state_traffic += factor * other.state_traffic;
    state_hidden += factor * other.state_hidden;
  }

  double Sum() const { return compute + communication + bubble + offload; }
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LOOP_TIME_SHARES_H_
