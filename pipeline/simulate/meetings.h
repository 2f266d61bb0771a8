// Meetings: sends and receives that wait for each other.
#ifndef TESSERA_PIPELINE_SIMULATE_MEETINGS_H_
#define TESSERA_PIPELINE_SIMULATE_MEETINGS_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/results.h"

namespace tessera::pipeline {

class Meetings {
 public:
  explicit Meetings(const Schedule& schedule)
      : microbatches_(static_cast<size_t>(schedule.microbatches)),
        posts_(static_cast<size_t>(schedule.map.stages()) * microbatches_ * 2) {
  }

  // The sender or the receiver has come to the message of `send` at `time`. The
  // time when both have, which then is forgotten; nothing while one has not.
  std::optional<double> Meet(const Action& send, bool sends, double time) {
    Posts& posts = posts_[Index(send)];
    (sends ? posts.send : posts.receive) = time;
    if (posts.send == kNever || posts.receive == kNever) return std::nullopt;
    const double both = std::max(posts.send, posts.receive);
    posts = Posts();
    return both;
  }

  // Whether that end has come, and waits for the other.
  bool Waits(const Action& send, bool sends) const {
    const Posts& posts = posts_[Index(send)];
    return (sends ? posts.send : posts.receive) != kNever;
  }

 private:
  struct Posts {
    double send = kNever;
    double receive = kNever;
  };

  size_t Index(const Action& send) const {
    const size_t row = static_cast<size_t>(send.stage) * 2 +
                       (send.kind == ActionKind::kSendBackward ? 1 : 0);
    return row * microbatches_ + static_cast<size_t>(send.microbatch);
  }

  size_t microbatches_;
  std::vector<Posts> posts_;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_MEETINGS_H_
