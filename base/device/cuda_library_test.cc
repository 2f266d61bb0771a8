#include "base/device/cuda_library.h"

#include <cstdlib>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CudaLibraryTest, OpensLibraryOnLoaderPath) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const SharedLibrary* const library,
                               OpenCudaLibrary("libm.so.6"));
  double (*root)(double) = nullptr;
  TESSERA_EXPECT_OK(library->Require("sqrt", root));
}

TEST(CudaLibraryTest, NamesMissingLibraryAndSearchedPaths) {
  setenv("CUDA_HOME", "/opt/no-cuda", /*replace=*/1);
  EXPECT_THAT(
      OpenCudaLibrary("libtessera_none.so.1"),
      StatusIs(absl::StatusCode::kNotFound,
               AllOf(HasSubstr("libtessera_none.so.1 cannot be opened"),
                     HasSubstr("LD_LIBRARY_PATH"),
                     HasSubstr("/opt/no-cuda/lib64/libtessera_none.so.1"))));
}

}  // namespace
}  // namespace tessera
