// PoolReplay: what a TensorPool would hold, without its memory.
//
//   PoolReplay pool;
//   PoolReplay::Slot x;
//   pool.Reserve(4096, x);
//   pool.Release(x);
//   pool.peak();
//
// Blocks have the sizes of tensor_pool.h's classes; a slot keeps its block
// where that is large enough, as PooledTensor does.
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_ACTIVATIONS_POOL_REPLAY_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_ACTIVATIONS_POOL_REPLAY_H_

#include <cstdint>
#include <map>

namespace tessera::train {

class PoolReplay {
 public:
  // A tensor: the size of its block; 0 where it has none.
  struct Slot {
    int64_t block = 0;
    bool held = false;
  };
  // Blocks of one size.
  struct Blocks {
    int64_t now = 0;
    int64_t most = 0;
  };

  void Reserve(int64_t bytes, Slot& slot);
  void Release(Slot& slot);

  // Begins to measure anew, from what is held.
  void ResetPeaks();

  int64_t taken() const { return taken_; }
  int64_t peak() const { return peak_; }
  // By size.
  const std::map<int64_t, Blocks>& blocks() const { return blocks_; }

 private:
  int64_t taken_ = 0;
  int64_t peak_ = 0;
  std::map<int64_t, Blocks> blocks_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_ACTIVATIONS_POOL_REPLAY_H_
