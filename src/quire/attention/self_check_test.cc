// The self-test passes with the kernels as they are, and names each one that is broken.
#include "quire/attention/self_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "quire/attention/cpu/kernel_table.h"
#include "quire/attention/tile.h"
#include "quire/device/cpu/isa.h"
#include "quire/result.h"

namespace quire::attention {
namespace {

using device::Isa;

TEST(AttentionSelfTest, PassesOnEveryInstructionSetOfTheMachine) {
  for (const Isa isa : device::supported_isas()) {
    const Status status = self_test(isa);
    EXPECT_TRUE(status.ok()) << status.error().message;
  }
}

// These faults leave queries unrotated, hide the last token of each row, and keep the weight of the
// old state.
template <auto kFunction>
void load_unrotated(const QueryTask& task) {
  QueryTask other = task;
  const auto angles = static_cast<std::size_t>(task.rows / task.rows_per_angle * task.half);
  const std::vector<float> cos(angles, 1.0f), sin(angles);
  other.cos = cos.data();
  other.sin = sin.data();
  (portable_kernels().*kFunction)(other);
}
template <auto kFunction>
void attend_short(const AttentionTask& task) {
  std::vector<TokenRange> seen(task.visible, task.visible + task.rows);
  for (TokenRange& range : seen) {
    range.end -= range.end > range.begin ? 1 : 0;
  }
  AttentionTask other = task;
  other.visible = seen.data();
  (portable_kernels().*kFunction)(other);
}
void add_up(const MergeTask& task) {
  for (int row = 0; row < task.rows; ++row) {
    task.state.max[row] = std::fmax(task.state.max[row], task.piece.max[row]);
    task.state.sum[row] += task.piece.sum[row];
    for (int i = row * task.padded_dim; i < (row + 1) * task.padded_dim; ++i) {
      task.state.acc[i] += task.piece.acc[i];
    }
  }
}

TEST(AttentionSelfTest, NamesTheOneKernelThatIsBroken) {
  std::vector<std::pair<std::string, KernelTable>> broken;
  const auto table = [&](const std::string& name) -> KernelTable& {
    return broken.emplace_back(name, portable_kernels()).second;
  };
  table("load_queries_fp32").load_queries_fp32 = load_unrotated<&KernelTable::load_queries_fp32>;
  table("load_queries_bf16").load_queries_bf16 = load_unrotated<&KernelTable::load_queries_bf16>;
  table("attend_fp32").attend_fp32 = attend_short<&KernelTable::attend_fp32>;
  table("attend_bf16").attend_bf16 = attend_short<&KernelTable::attend_bf16>;
  table("load_queries_int8").load_queries_int8 = load_unrotated<&KernelTable::load_queries_int8>;
  table("attend_int8").attend_int8 = attend_short<&KernelTable::attend_int8>;
  table("attend_fp8").attend_fp8 = attend_short<&KernelTable::attend_fp8>;
  table("attend_int4").attend_int4 = attend_short<&KernelTable::attend_int4>;
  table("merge").merge = add_up;
  for (const auto& [name, kernels] : broken) {
    const Status status = self_test(kernels);
    ASSERT_FALSE(status.ok()) << name;
    EXPECT_EQ(status.error().code, ErrorCode::kDevice);
    EXPECT_THAT(status.error().message, testing::HasSubstr("kernel " + name + " of portable"));
  }
}

}  // namespace
}  // namespace quire::attention
