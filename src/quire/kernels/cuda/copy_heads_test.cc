// Heads that change places on a GPU. Oracle: the same loop on the host.
#include "quire/kernels/cuda/copy_heads.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/gpu_test_util.h"
#include "quire/kernels/test_util.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

using device::cuda::to_status;
using device::cuda::test::must;

constexpr int kRows = 5, kHeads = 3, kWidth = 150, kFrom = 520, kHead = 160;

class CopyHeads : public device::cuda::test::GpuTest {};

TEST_F(CopyHeads, RowsOfHeadsBecomeHeadsOfRoundedRows) {
  const auto from = test::random_floats(kRows, kFrom, 1);
  const auto there = upload(from);
  const auto out = upload(std::vector<std::uint16_t>(kHeads * kRows * kWidth, 7));
  must(to_status(copy_heads(HeadCopy<float, Half>{.from = there.data(),
                                                  .from_row = kFrom,
                                                  .from_head = kHead,
                                                  .to = out.data(),
                                                  .to_row = kWidth,
                                                  .to_head = kRows * kWidth,
                                                  .rows = kRows,
                                                  .heads = kHeads,
                                                  .width = kWidth},
                            stream()),
                 "copy_heads"));
  const auto got = download(out, kHeads * kRows * kWidth);
  for (int head = 0; head < kHeads; ++head) {
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < kWidth; ++i) {
        ASSERT_EQ(
            got[static_cast<std::size_t>((head * kRows + row) * kWidth + i)],
            tensor::float_to_bf16(from[static_cast<std::size_t>(row * kFrom + head * kHead + i)]))
            << "head " << head << ", row " << row << ", number " << i;
      }
    }
  }
}

TEST_F(CopyHeads, NothingElseIsWrittenAndNoSourceMeansZeros) {
  const auto before = test::random_floats(kRows, kFrom, 2);
  const auto there = upload(before);
  must(to_status(copy_heads(HeadCopy<float, float>{.to = there.data(),
                                                   .to_row = kFrom,
                                                   .to_head = kHead,
                                                   .rows = kRows,
                                                   .heads = kHeads,
                                                   .width = kWidth},
                            stream()),
                 "copy_heads"));
  const auto got = download(there, before.size());
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::size_t in_row = i % kFrom;
    const bool written = in_row < kHeads * kHead && in_row % kHead < kWidth;
    ASSERT_EQ(got[i], written ? 0.0f : before[i]) << i;
  }
}

}  // namespace
}  // namespace quire::kernels::cuda
