// A decode step of the model allocates nothing once a step like it has been computed, and asks
// nothing of the kernel; several threads may yield and sleep while they wait for each other, and
// wake each other. The rows share a prefix, as chunks do.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "counted.h"
#include "quire/attention/entry.h"
#include "quire/base/sanitized.h"
#include "quire/device/aligned_buffer.h"
#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/model/decoder.h"
#include "quire/model/forward_batch.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"
#include "runner.h"

namespace quire::model {
namespace {

const std::filesystem::path kFolder = QUIRE_SOURCE_DIR "/models/cardfile/model";
constexpr std::int32_t kBlockTokens = 16;
constexpr std::int32_t kPrefixBlocks = 20;  // 320 tokens: two pieces of attention
constexpr std::int32_t kOwnBlocks = 2;

// `rows` sequences behind one shared prefix; each has computed `num_own` tokens of its own.
class Batch {
 public:
  Batch(Decoder& decoder, std::int32_t rows)
      : decoder_(decoder),
        pool_(kv_store::PagedPool::create(
                  decoder.config().kv_geometry(tensor::DType::kBFloat16, kBlockTokens),
                  kPrefixBlocks + rows * kOwnBlocks)
                  .value()),
        rows_(rows) {
    for (int layer = 0; layer < decoder.config().layers; ++layer) {
      views_.push_back(pool_.view(layer));
    }
    for (std::int32_t block = 0; block < kPrefixBlocks + rows * kOwnBlocks; ++block) {
      blocks_.push_back(block);
    }
    fill_prefix();
  }

  // One more token of each; what the forward pass allocated.
  std::int64_t step() {
    ids_.clear();
    positions_.clear();
    slots_.clear();
    entry_rows_.clear();
    logit_rows_.clear();
    entries_.clear();
    for (std::int32_t row = 0; row < rows_; ++row) {
      ids_.push_back(1 + row);
      positions_.push_back(prefix_tokens() + own_);
      slots_.push_back(
          {kPrefixBlocks + row * kOwnBlocks + own_ / kBlockTokens, own_ % kBlockTokens});
      logit_rows_.push_back(row);
      entry_rows_.push_back({row, prefix_tokens() + own_, prefix_tokens()});
    }
    for (std::int32_t row = 0; row < rows_; ++row) {
      entry_rows_.push_back({row, own_, own_ + 1});
    }
    ++own_;
    const std::span<const attention::EntryRow> all = entry_rows_;
    const std::span<const std::int32_t> blocks = blocks_;
    entries_.push_back({.blocks = blocks.first(kPrefixBlocks),
                        .num_tokens = prefix_tokens(),
                        .rows = all.first(static_cast<std::size_t>(rows_))});
    for (std::int32_t row = 0; row < rows_; ++row) {
      const auto first = static_cast<std::size_t>(kPrefixBlocks + row * kOwnBlocks);
      entries_.push_back({.blocks = blocks.subspan(first, kOwnBlocks),
                          .num_tokens = own_,
                          .rows = all.subspan(static_cast<std::size_t>(rows_ + row), 1)});
    }
    return forward();
  }

 private:
  static std::int32_t prefix_tokens() { return kPrefixBlocks * kBlockTokens; }

  std::int64_t forward() {
    const std::int64_t before = quire::testing::num_allocations();
    const auto logits = decoder_.forward({.token_ids = ids_,
                                          .positions = positions_,
                                          .slots = slots_,
                                          .entries = entries_,
                                          .logit_rows = logit_rows_},
                                         views_);
    const std::int64_t after = quire::testing::num_allocations();
    EXPECT_TRUE(logits.ok());
    return after - before;
  }

  void fill_prefix() {
    for (std::int32_t token = 0; token < prefix_tokens(); ++token) {
      ids_.push_back(2 + token % 7);
      positions_.push_back(token);
      slots_.push_back({token / kBlockTokens, token % kBlockTokens});
      entry_rows_.push_back({token, token, token + 1});
    }
    entries_.push_back({.blocks = blocks_, .num_tokens = prefix_tokens(), .rows = entry_rows_});
    logit_rows_.push_back(prefix_tokens() - 1);
    forward();
  }

  Decoder& decoder_;
  kv_store::PagedPool pool_;
  std::int32_t rows_;
  std::int32_t own_ = 0;
  std::vector<tensor::PagedKVView> views_;
  std::vector<std::int32_t> blocks_;
  std::vector<TokenId> ids_;
  std::vector<std::int32_t> positions_;
  std::vector<tensor::KVSlot> slots_;
  std::vector<attention::EntryRow> entry_rows_;
  std::vector<attention::Entry> entries_;
  std::vector<std::int32_t> logit_rows_;
};

class StepAllocations : public ::testing::TestWithParam<kernels::WeightFormat> {};

TEST_P(StepAllocations, ADecodeStepLikeTheOneBeforeAllocatesNothing) {
  auto decoder = testing::open_decoder(kFolder, device::best_isa(), GetParam());
  ASSERT_TRUE(decoder.ok()) << decoder.error().message;
  for (const std::int32_t rows : {1, 3, 16}) {
    Batch batch(*decoder, rows);
    EXPECT_GT(batch.step() + batch.step(), 0) << "the first step grows buffers: is it counted?";
    for (int step = 2; step < kOwnBlocks * kBlockTokens; ++step) {
      ASSERT_EQ(batch.step(), 0) << rows << " rows, step " << step;
    }
  }
}

// Ends the process, with 0 if decode steps ask for nothing, with 2 if that cannot be counted: the
// pool's threads could not end any more.
[[noreturn]] void count_system_calls_of_steps(std::int32_t rows, int threads) {
  device::ThreadPool pool(threads);
  auto decoder = testing::open_decoder(
                     kFolder, {.table = &kernels::kernels_for(device::best_isa()), .pool = &pool},
                     {.format = kernels::WeightFormat::kBf16})
                     .value();
  Batch batch(decoder, rows);
  int step = 0;
  for (; step < 4; ++step) {
    batch.step();
  }
  if (!quire::testing::refuse_system_calls(quire::testing::Threads::kAll)) {
    std::_Exit(2);
  }
  const auto calls = [&] {
    using namespace quire::testing;
    return num_refused() + (threads == 1 ? num_waits() + num_wakes() : 0);
  };
  const std::int64_t before = calls();
  for (; step < kOwnBlocks * kBlockTokens; ++step) {
    batch.step();
  }
  std::_Exit(calls() == before ? 0 : 1);
}

TEST(StepSystemCalls, ADecodeStepLikeTheOneBeforeAsksNothingOfTheKernel) {
  if (base::kSanitized) {
    GTEST_SKIP() << "a sanitizer asks the kernel for memory of its own";
  }
  for (const int threads : {1, 2}) {
    for (const std::int32_t rows : {1, 16}) {
      EXPECT_EXIT(count_system_calls_of_steps(rows, threads), ::testing::ExitedWithCode(0), "")
          << rows << " rows, " << threads << " threads";
    }
  }
}

// A buffer of the kernels grows without operator new, small and large.
TEST(NumAllocations, CountsBuffersToo) {
  if (base::kSanitized) {
    GTEST_SKIP() << "a sanitizer has its own functions";
  }
  for (const std::size_t bytes : {std::size_t{1} << 10, std::size_t{1} << 22}) {
    const std::int64_t before = quire::testing::num_allocations();
    const device::AlignedBuffer<std::byte> buffer(bytes);
    EXPECT_EQ(quire::testing::num_allocations(), before + 1) << buffer.size();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, StepAllocations,
    ::testing::Values(kernels::WeightFormat::kF32, kernels::WeightFormat::kBf16,
                      kernels::WeightFormat::kQ8g32, kernels::WeightFormat::kQ4g32,
                      kernels::WeightFormat::kQ4m32),
    [](const auto& info) { return std::string(kernels::format_name(info.param)); });

}  // namespace
}  // namespace quire::model
