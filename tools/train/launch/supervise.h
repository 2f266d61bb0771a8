// Supervise: a job that goes on after a rank has died.
//
//   const AttemptOutcome outcome = Supervise(settings, {
//       .attempt = [&](const Settings& s) { return RunAttempt(s, options); },
//       .last_checkpoint = [&] { return run.LastCheckpoint(); },
//       .is_valid = [](const Settings& s) { return CheckSettings(s).ok(); },
//       .notice = [](const std::string& line) { std::cerr << line; }});
//
// A failed attempt is followed by another one, up to max_restarts of them,
// where it might go better: a rank died, or failed for a reason outside the
// job's own data (MayPass). All ranks start again from the newest complete
// checkpoint, or where there is none as the first attempt did.
//
// With `elastic` the next attempt has fewer data-parallel ranks where
//   - a rank could not get what it needs: ResourceExhausted (memory, disk,
//     processes), or
//   - the attempt took no step, or
//   - the same rank failed in two attempts, one after the other.
// The data axis then becomes the largest smaller size that the settings allow:
// the batch is divided by it, and stays what it is, as do the losses. At one
// data-parallel rank it stays one.
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_SUPERVISE_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_SUPERVISE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "tools/train/launch/attempt.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

struct JobHooks {
  std::function<AttemptOutcome(const Settings&)> attempt;
  std::function<std::string()> last_checkpoint;    // "": there is none.
  std::function<bool(const Settings&)> is_valid;   // Of a smaller mesh.
  std::function<void(const std::string&)> notice;  // One line, of a restart.
};

// Whether an attempt that ended like this may succeed when it is repeated: not
// where the settings, the data or a file are at fault.
bool MayPass(const AttemptOutcome& outcome);

// The settings with the next smaller data axis that is valid; nothing where
// there is none.
std::optional<Settings> ShrinkDataAxis(
    const Settings& settings,
    const std::function<bool(const Settings&)>& is_valid);

// The outcome of the last attempt. Its message says how many restarts there
// were.
AttemptOutcome Supervise(const Settings& settings, const JobHooks& hooks);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_SUPERVISE_H_
