// RunPage: a run as one HTML page: losses, throughput, memory, shares of time,
// the schedule and the settings.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       auto page, RunPage::Open({.path = "run.html", .settings = settings}));
//   TESSERA_RETURN_IF_ERROR(page->Add(step, remaining.Estimate()));
//   TESSERA_RETURN_IF_ERROR(page->Finish());
//
// The page is well-formed XML, contains its pictures as SVG and has no scripts
// and no links: browsers load nothing else, which a Content-Security-Policy in
// it enforces. While the run goes on it reloads itself.
//
// Memory and the size of the page do not depend on the number of steps: a curve
// has at most kMostPoints points, each of them the mean over as many steps as
// needed, with their range behind it.
#ifndef TESSERA_TOOLS_TRAIN_REPORT_RUN_PAGE_H_
#define TESSERA_TOOLS_TRAIN_REPORT_RUN_PAGE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "tools/train/report/remaining_time.h"
#include "tools/train/report/run_result.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

// The values of a curve by step, in at most `most` groups of as many steps.
class StepSeries {
 public:
  struct Point {
    int64_t count = 0;  // 0: no step of the group has a value.
    double sum = 0;
    double least = std::numeric_limits<double>::infinity();
    double most = -std::numeric_limits<double>::infinity();

    double mean() const { return sum / static_cast<double>(count); }
    void Add(const Point& other);
  };

  explicit StepSeries(size_t most) : most_(most) {}

  // `step` is 0 or more. Values that are not finite are left out.
  void Add(int64_t step, double value);

  // Point i stands for the steps [i * width, (i + 1) * width).
  const std::vector<Point>& points() const { return points_; }
  int64_t width() const { return width_; }

 private:
  size_t most_;
  int64_t width_ = 1;
  std::vector<Point> points_;
};

struct RunPageOptions {
  std::string path = "";
  Settings settings = {};
  int64_t parameters = 0;  // Of the model.
  // A whole SVG document, which is trusted; empty: no picture.
  std::string schedule = "";
  // The page is written at most this often, and at the end.
  absl::Duration interval = absl::Seconds(10);
  std::function<absl::Time()> now = absl::Now;
};

// One thread at a time.
class RunPage {
 public:
  static constexpr size_t kMostPoints = 400;

  // Writes a page without steps. Errors of the file system with the flag
  // --html, here and below; the file is replaced as a whole each time.
  static absl::StatusOr<std::unique_ptr<RunPage>> Open(
      const RunPageOptions& options);

  // Adds a step of an earlier run that this one continues: a line of its
  // metrics file, of which only `step` is checked.
  void AddEarlier(const nlohmann::json& line);

  // Adds a step, and writes the page if it is due.
  absl::Status Add(const StepMetrics& step,
                   const std::optional<RemainingEstimate>& remaining);

  // Writes the page of a run that has ended.
  absl::Status Finish();

  // The page as it would be written now.
  std::string Html() const;

 private:
  explicit RunPage(const RunPageOptions& options);

  absl::Status Write();
  std::string Summary() const;  // A table.

  const RunPageOptions options_;
  absl::Time written_ = absl::InfinitePast();
  bool has_ended_ = false;
  std::optional<StepRecord> last_;
  std::optional<double> last_eval_loss_;
  std::optional<RemainingEstimate> remaining_;
  std::map<std::string_view, StepSeries> series_;  // By key of MetricsOf.
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_RUN_PAGE_H_
