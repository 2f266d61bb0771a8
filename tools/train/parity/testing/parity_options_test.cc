#include <cstddef>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generate.h"
#include "tools/train/parity/testing/parity_case.h"
#include "tools/train/parity/testing/train_case.h"

namespace tessera::train {
namespace {

using ::testing::HasSubstr;

size_t Place(const std::string& name) {
  return static_cast<size_t>(OptionNumber(name));
}

class ParityOptionsTest : public ::testing::Test {
 protected:
  ParityOptionsTest() : rows_(CoveringArray(ParityProblem())) {}

  // The number of rows with both values.
  int RowsWith(const std::string& option, const std::string& value,
               const std::string& other, const std::string& of_other) const {
    int rows = 0;
    for (const CoveringRow& row : rows_) {
      rows += ValueOf(row, option) == value && ValueOf(row, other) == of_other;
    }
    return rows;
  }
  static std::string ValueOf(const CoveringRow& row,
                             const std::string& option) {
    return ParityOptions()[Place(option)]
        .values[static_cast<size_t>(row[Place(option)])];
  }

  const std::vector<CoveringRow> rows_;
};

// These pairs are listed manually, independently of ParityProblem.
TEST_F(ParityOptionsTest, CoversImportantPairs) {
  for (const std::string_view schedule : pipeline::GeneratorNames()) {
    for (const char* pp : {"1", "2", "4", "8"}) {
      if (schedule == "dualpipe" && std::string_view(pp) == "1") continue;
      EXPECT_GE(RowsWith("schedule", std::string(schedule), "pp", pp), 1)
          << schedule << " pp" << pp;
    }
    for (const char* zero : {"0", "1", "2", "3"}) {
      EXPECT_GE(RowsWith("schedule", std::string(schedule), "zero", zero), 1);
    }
    EXPECT_GE(
        RowsWith("schedule", std::string(schedule), "offload", "activations"),
        1);
  }
  for (const char* recompute : {"none", "selective", "full"}) {
    EXPECT_GE(RowsWith("recompute", recompute, "offload", "activations"), 1);
  }
  for (const char* axis : {"dp", "pp", "cp", "tp"}) {
    for (const char* size : {"1", "2", "4", "8"}) {
      EXPECT_GE(RowsWith(axis, size, "offload", "all"), 1) << axis << size;
      EXPECT_GE(RowsWith(axis, size, "tier", "file"), 1) << axis << size;
      EXPECT_GE(RowsWith(axis, size, "lossless", "on"), 1) << axis << size;
      EXPECT_GE(RowsWith(axis, size, "recompute", "full"), 1) << axis << size;
      EXPECT_GE(RowsWith(axis, size, "tied", "on"), 1) << axis << size;
      EXPECT_GE(RowsWith(axis, size, "documents", "on"), 1) << axis << size;
      for (const char* architecture :
           {"llama", "llama3.1", "mistral", "qwen2", "qwen3", "mixtral",
            "dots1", "gemma", "gemma2", "olmo2", "smollm3", "gpt_oss",
            "deepseek2", "deepseek3"}) {
        EXPECT_GE(RowsWith(axis, size, "architecture", architecture), 1)
            << axis << size << architecture;
      }
      EXPECT_GE(RowsWith(axis, size, "dropout", "0.1"), 1) << axis << size;
      EXPECT_GE(RowsWith(axis, size, "decay", "all"), 1) << axis << size;
      EXPECT_GE(RowsWith(axis, size, "loss_terms", "on"), 1) << axis << size;
    }
  }
  for (const char* schedule : {"1f1b", "interleaved_1f1b", "zb_v"}) {
    for (const char* axis : {"dp", "cp", "tp"}) {
      EXPECT_GE(RowsWith("schedule", schedule, axis, "8"), 1);
    }
  }
}

TEST_F(ParityOptionsTest, CoversPairsOfExperts) {
  for (const char* ep : {"2", "4"}) {
    for (const char* architecture :
         {"mixtral", "dots1", "gpt_oss", "deepseek2", "deepseek3"}) {
      EXPECT_GE(RowsWith("ep", ep, "architecture", architecture), 1);
    }
    for (const char* zero : {"0", "1", "2", "3"}) {
      EXPECT_GE(RowsWith("ep", ep, "zero", zero), 1);
    }
    for (const char* recompute : {"none", "selective", "full"}) {
      EXPECT_GE(RowsWith("ep", ep, "recompute", recompute), 1);
    }
    for (const char* offload : {"optimizer", "params", "all", "activations"}) {
      EXPECT_GE(RowsWith("ep", ep, "offload", offload), 1);
    }
    for (const char* schedule : {"1f1b", "zb_v", "dualpipe"}) {
      EXPECT_GE(RowsWith("ep", ep, "schedule", schedule), 1);
    }
    EXPECT_GE(RowsWith("ep", ep, "tp", "2"), 1);
    EXPECT_GE(RowsWith("ep", ep, "cp", "2"), 1);
    EXPECT_GE(RowsWith("ep", ep, "sequence_parallel", "on"), 1);
  }
}

TEST_F(ParityOptionsTest, CoversPairsOfAxesAndReplicas) {
  EXPECT_GE(RowsWith("schedule", "zb_h1", "tp", "2"), 1);
  EXPECT_GE(RowsWith("tp", "8", "kv_heads", "2"), 1);
  EXPECT_GE(RowsWith("tp", "2", "kv_heads", "3"), 1);
  EXPECT_GE(RowsWith("cp", "8", "context", "contiguous"), 1);
  for (const char* size : {"2", "4", "8"}) {
    EXPECT_GE(RowsWith("tp", size, "overlap_chunks", "3"), 1);
  }
  for (const char* size : {"2", "4", "8"}) {
    EXPECT_GE(RowsWith("cp", size, "context_attention", "ulysses"), 1);
  }
  for (const char* layout : {"contiguous", "zigzag"}) {
    EXPECT_GE(RowsWith("context", layout, "context_attention", "ulysses"), 1);
  }
  for (const char* recompute : {"none", "selective", "full"}) {
    EXPECT_GE(RowsWith("recompute", recompute, "context_attention", "ulysses"),
              1);
    EXPECT_GE(RowsWith("recompute", recompute, "overlap_chunks", "3"), 1);
  }
  for (const char* zero : {"0", "1", "2", "3"}) {
    EXPECT_GE(RowsWith("dp_replicate", "2", "zero", zero), 1);
  }
  for (const char* offload : {"none", "params", "all"}) {
    EXPECT_GE(RowsWith("hpz", "2", "offload", offload), 1);
  }
}

TEST_F(ParityOptionsTest, CoversPairsOfGathersAndReductions) {
  for (const char* reduce : {"auto", "each", "last"}) {
    for (const char* zero : {"2", "3"}) {
      EXPECT_GE(RowsWith("reduce", reduce, "zero", zero), 1);
    }
    for (const char* size : {"1", "2", "4", "8"}) {
      EXPECT_GE(RowsWith("dp", size, "reduce", reduce), 1);
      EXPECT_GE(RowsWith("pp", size, "reduce", reduce), 1);
    }
    EXPECT_GE(RowsWith("micro_batch", "1", "reduce", reduce), 1);
    EXPECT_GE(RowsWith("dp_replicate", "2", "reduce", reduce), 1);
    EXPECT_GE(RowsWith("offload", "gradients", "reduce", reduce), 1);
  }
  for (const char* ahead : {"0", "1", "2", "3"}) {
    for (const std::string_view schedule : pipeline::GeneratorNames()) {
      EXPECT_GE(
          RowsWith("schedule", std::string(schedule), "gather_ahead", ahead),
          1);
    }
    EXPECT_GE(RowsWith("gather_ahead", ahead, "zero", "3"), 1);
    EXPECT_GE(RowsWith("gather_ahead", ahead, "offload", "params"), 1);
    EXPECT_GE(RowsWith("gather_ahead", ahead, "persistence", "100"), 1);
    EXPECT_GE(RowsWith("gather_ahead", ahead, "hpz", "2"), 1);
  }
  for (const std::string_view schedule : pipeline::GeneratorNames()) {
    EXPECT_GE(RowsWith("schedule", std::string(schedule), "max_gathered_bytes",
                       "42000"),
              1);
  }
  EXPECT_GE(RowsWith("max_gathered_bytes", "42000", "reduce", "each"), 1);
  EXPECT_GE(RowsWith("max_gathered_bytes", "42000", "tied", "on"), 1);
  EXPECT_GE(RowsWith("hpz", "2", "dp_replicate", "2"), 1);
  EXPECT_GE(RowsWith("hpz", "2", "pp", "4"), 1);
  for (const char* moments : {"bf16", "int8"}) {
    for (const char* size : {"2", "4", "8"}) {
      EXPECT_GE(RowsWith("dp", size, "moments", moments), 1);
      EXPECT_GE(RowsWith("pp", size, "moments", moments), 1);
      EXPECT_EQ(RowsWith("tp", size, "moments", moments), 0);
    }
    for (const char* tier : {"host", "file"}) {
      EXPECT_GE(RowsWith("tier", tier, "moments", moments), 1);
    }
    EXPECT_GE(RowsWith("lossless", "on", "moments", moments), 1);
  }
}

TEST_F(ParityOptionsTest, OmitsDisallowedPairs) {
  EXPECT_EQ(RowsWith("tp", "8", "kv_heads", "6"), 0);
  EXPECT_EQ(RowsWith("tp", "4", "kv_heads", "3"), 0);
  EXPECT_EQ(RowsWith("zero", "2", "offload", "params"), 0);
  EXPECT_EQ(RowsWith("zero", "1", "offload", "gradients"), 0);
  EXPECT_EQ(RowsWith("offload", "none", "tier", "host"), 0);
  EXPECT_EQ(RowsWith("offload", "all", "tier", "none"), 0);
  EXPECT_EQ(RowsWith("offload", "none", "lossless", "on"), 0);
  EXPECT_EQ(RowsWith("schedule", "zb_v", "chunks", "1"), 0);
  EXPECT_EQ(RowsWith("dp_replicate", "2", "dp", "1"), 0);
  EXPECT_EQ(RowsWith("hpz", "2", "zero", "2"), 0);
  EXPECT_EQ(RowsWith("gather_ahead", "2", "zero", "2"), 0);
  EXPECT_EQ(RowsWith("gather_ahead", "0", "max_gathered_bytes", "42000"), 0);
  EXPECT_EQ(RowsWith("max_gathered_bytes", "42000", "zero", "2"), 0);
  EXPECT_EQ(RowsWith("reduce", "each", "zero", "1"), 0);
  EXPECT_EQ(RowsWith("hpz", "2", "tp", "8"), 0);
  EXPECT_EQ(RowsWith("schedule", "zb_h1", "tp", "4"), 0);
  EXPECT_EQ(RowsWith("overlap_chunks", "3", "tp", "1"), 0);
  EXPECT_EQ(RowsWith("context_attention", "ulysses", "cp", "1"), 0);
  EXPECT_EQ(RowsWith("overlap_chunks", "3", "sequence_parallel", "off"), 0);
  EXPECT_TRUE(IsPossible(CoveringRow(ParityOptions().size(), kNotChosen)));
  CoveringRow row = rows_[0];
  row[Place("tier")] = ValueNumber("tier", "none");
  row[Place("offload")] = ValueNumber("offload", "all");
  EXPECT_FALSE(IsPossible(row));
  EXPECT_EQ(RowsWith("dp", "8", "micro_batch", "2"), 0);
  for (const CoveringRow& row : rows_) {
    EXPECT_LE(CaseOf(row).mesh.world_size(), 8);
  }
}

TEST_F(ParityOptionsTest, CaseMatchesRow) {
  for (const CoveringRow& row : rows_) {
    const ParityCase run = CaseOf(row);
    EXPECT_EQ(absl::StrCat(run.mesh.dp), ValueOf(row, "dp"));
    EXPECT_EQ(absl::StrCat(run.mesh.pp), ValueOf(row, "pp"));
    EXPECT_EQ(absl::StrCat(run.mesh.cp), ValueOf(row, "cp"));
    EXPECT_EQ(absl::StrCat(run.mesh.tp), ValueOf(row, "tp"));
    EXPECT_EQ(run.schedule, ValueOf(row, "schedule"));
    EXPECT_EQ(absl::StrCat(run.chunks), ValueOf(row, "chunks"));
    EXPECT_EQ(absl::StrCat(run.micro_batch), ValueOf(row, "micro_batch"));
    EXPECT_EQ(tensor_parallel::RecomputeName(run.recompute),
              ValueOf(row, "recompute"));
    EXPECT_EQ(run.sequence_parallel, ValueOf(row, "sequence_parallel") == "on");
    EXPECT_EQ(absl::StrCat(run.overlap_chunks), ValueOf(row, "overlap_chunks"));
    EXPECT_EQ(run.zigzag, ValueOf(row, "context") == "zigzag");
    EXPECT_EQ(tensor_parallel::ContextAlgorithmName(run.context_attention),
              ValueOf(row, "context_attention"));
    EXPECT_EQ(absl::StrCat(run.stage), ValueOf(row, "zero"));
    EXPECT_EQ(absl::StrCat(run.bucket_bytes), ValueOf(row, "bucket_bytes"));
    EXPECT_EQ(absl::StrCat(run.persistence_threshold),
              ValueOf(row, "persistence"));
    EXPECT_EQ(absl::StrCat(run.gather_ahead), ValueOf(row, "gather_ahead"));
    EXPECT_EQ(absl::StrCat(run.max_gathered_bytes),
              ValueOf(row, "max_gathered_bytes"));
    EXPECT_EQ(run.reduce, ValueOf(row, "reduce"));
    EXPECT_EQ(absl::StrCat(run.mesh.dp_replicate),
              ValueOf(row, "dp_replicate"));
    EXPECT_EQ(absl::StrCat(run.hpz_partition_size), ValueOf(row, "hpz"));
    EXPECT_EQ(run.offload, ValueOf(row, "offload"));
    EXPECT_EQ(run.tier, ValueOf(row, "tier"));
    EXPECT_EQ(run.lossless, ValueOf(row, "lossless") == "on");
    EXPECT_EQ(run.architecture, ValueOf(row, "architecture"));
    EXPECT_EQ(run.documents, ValueOf(row, "documents") == "on");
    EXPECT_EQ(run.tied, ValueOf(row, "tied") == "on");
    EXPECT_EQ(run.clip, ValueOf(row, "clip") == "on");
    EXPECT_EQ(absl::StrCat(run.dropout), ValueOf(row, "dropout"));
    EXPECT_EQ(absl::StrCat(run.kv_heads), ValueOf(row, "kv_heads"));
    EXPECT_EQ(run.moments, ValueOf(row, "moments"));
    EXPECT_EQ(run.decay_all, ValueOf(row, "decay") == "all");
    EXPECT_EQ(run.loss_terms, ValueOf(row, "loss_terms") == "on");
  }
}

TEST_F(ParityOptionsTest, ReportHasTheLargestDifferenceOfEachValue) {
  ParityReport report;
  report.Add(rows_[0], {1e-7, 1e-6});
  report.Add(rows_[1], {3e-7, 1e-8});
  std::ostringstream text;
  text << report;
  EXPECT_THAT(text.str(), HasSubstr("2 runs, loss 3.0e-07, gradient norm "
                                    "1.0e-06"));
  EXPECT_THAT(text.str(), HasSubstr("dp=" + ValueOf(rows_[0], "dp") + " "));
  EXPECT_EQ(report.runs(), 2);
  EXPECT_EQ(report.largest().loss, 3e-7);
}

}  // namespace
}  // namespace tessera::train
