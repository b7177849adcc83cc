// Pools and files of layers whose heads differ: a head of 40 beside heads of 24. The oracle are the
// numbers that were stored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/kv_append.h"
#include "quire/kernels/kv_read.h"
#include "quire/kernels/rotary.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kv_store {
namespace {

using tensor::DType;
using tensor::KVFormat;
using tensor::KVGeometry;
using tensor::KVSlot;
using ::testing::HasSubstr;

constexpr int kBlockTokens = 4;

KVGeometry mixed_geometry(DType dtype = DType::kFloat32, KVFormat format = KVFormat::kPlain) {
  return {.layers = 3,
          .kv_heads = 2,
          .head_dim = 32,
          .dtype = dtype,
          .block_tokens = kBlockTokens,
          .window_tokens = {16, 0, 16},
          .format = format,
          .layer_sizes = {{2, 24}, {1, 40}, {2, 24}}};
}

// Returns a number that no other place holds. K is 0, V is 1.
float number(int layer, int head, int token, int part, int d) {
  return static_cast<float>(layer * 4096 + head * 2048 + token * 128 + part * 64 + d);
}

// Stores tokens one after the other, from slot 0 of `blocks` on.
void store(PagedPool& pool, std::span<const BlockId> blocks, int tokens) {
  device::ThreadPool threads(1);
  const kernels::KernelContext context{&kernels::kernels_for(device::Isa::kPortable), &threads};
  const kernels::RotaryTable none;
  for (int layer = 0; layer < pool.geometry().layers; ++layer) {
    const KVGeometry own = pool.geometry().of_layer(layer);
    const int width = own.kv_heads * own.head_dim;
    std::vector<float> k, v;
    std::vector<KVSlot> slots;
    for (int token = 0; token < tokens; ++token) {
      slots.push_back({.block = blocks[static_cast<std::size_t>(token / kBlockTokens)].value,
                       .offset = token % kBlockTokens});
      for (int i = 0; i < width; ++i) {
        k.push_back(number(layer, i / own.head_dim, token, 0, i % own.head_dim));
        v.push_back(number(layer, i / own.head_dim, token, 1, i % own.head_dim));
      }
    }
    kernels::kv_append(context,
                       {.k = k,
                        .v = v,
                        .k_stride = width,
                        .v_stride = width,
                        .head_dim = own.head_dim,
                        .rotary = &none,
                        .slots = slots},
                       pool.view(layer));
  }
}

// Counts the numbers of a token that do not stand in its slot.
int wrong_numbers(const PagedPool& pool, int token, KVSlot slot) {
  int wrong = 0;
  for (int layer = 0; layer < pool.geometry().layers; ++layer) {
    const KVGeometry own = pool.geometry().of_layer(layer);
    std::vector<float> row(static_cast<std::size_t>(own.head_dim));
    for (int head = 0; head < own.kv_heads; ++head) {
      for (int part = 0; part < 2; ++part) {
        (part == 0 ? kernels::read_key : kernels::read_value)(pool.view(layer), head, slot, row);
        for (int d = 0; d < own.head_dim; ++d) {
          wrong += row[static_cast<std::size_t>(d)] == number(layer, head, token, part, d) ? 0 : 1;
        }
      }
    }
  }
  return wrong;
}

int wrong_tokens(const PagedPool& pool, std::span<const BlockId> blocks, int tokens) {
  int wrong = 0;
  for (int token = 0; token < tokens; ++token) {
    wrong += wrong_numbers(pool, token,
                           {.block = blocks[static_cast<std::size_t>(token / kBlockTokens)].value,
                            .offset = token % kBlockTokens});
  }
  return wrong;
}

class LayerSizes : public ::testing::Test {
 protected:
  void SetUp() override { store(from_, blocks_, 7); }

  PagedPool from_ = PagedPool::create(mixed_geometry(), 6).value();
  const std::vector<BlockId> blocks_ = ids({4, 1});
};

TEST_F(LayerSizes, ABlockHasRoomForAll) {
  EXPECT_EQ(from_.geometry().all_stored_heads(), 2 + 2 + 2);
  EXPECT_EQ(from_.geometry().block_bytes(), 6 * 2 * 32 * kBlockTokens * 4);
  EXPECT_EQ(wrong_tokens(from_, blocks_, 7), 0);
}

TEST_F(LayerSizes, CopiesMoveTheSlotsOfEveryHead) {
  ASSERT_TRUE(from_.copy({.from = blocks_[1], .to = BlockId{0}, .tokens = 2}).ok());
  EXPECT_EQ(wrong_tokens(from_, ids({4, 0}), 6), 0);
  ASSERT_TRUE(from_.copy_run(blocks_, 3, 4, ids({5})).ok());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(wrong_numbers(from_, 3 + i, {.block = 5, .offset = i}), 0);
  }
}

TEST_F(LayerSizes, BlocksGoThroughHostMemory) {
  PagedPool to = PagedPool::create(mixed_geometry(), 3).value();
  std::vector<std::byte> bytes(2 * static_cast<std::size_t>(from_.geometry().block_bytes()));
  ASSERT_TRUE(from_.read_blocks(blocks_, bytes).ok());
  ASSERT_TRUE(to.write_blocks(ids({2, 0}), bytes).ok());
  EXPECT_EQ(wrong_tokens(to, ids({2, 0}), 7), 0);
  const PagedPool layer = from_.copy_of_layer(1, blocks_).value();
  std::vector<float> row(40);
  kernels::read_value(layer.view(0), 0, {.block = 1, .offset = 2}, row);
  EXPECT_EQ(row[39], number(1, 0, 6, 1, 39));
}

TEST_F(LayerSizes, AFileOfVersion5BringsThemBack) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a.qkv";
  const KVFileContent content = {
      .fingerprint = fingerprint_of(1), .geometry = mixed_geometry(), .runs = {run_of(7)}};
  for (const Compression compress : {Compression(), Compression(Compression::kLz4)}) {
    ASSERT_TRUE(write_kv_file(path, content, from_, {{blocks_}}, {.compress = compress}).ok());
    EXPECT_EQ(file_bytes_of(path)[8], 5) << "the version";
    const auto file = KVFile::open(path);
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_TRUE(file->verify().ok());
    EXPECT_TRUE(file->check_fits(fingerprint_of(1), mixed_geometry()).ok());
    PagedPool to = PagedPool::create(mixed_geometry(), 3).value();
    for (int layer = 0; layer < 3; ++layer) {
      ASSERT_TRUE(file->read_layer(0, layer, 0, ids({0, 2}), to).ok());
    }
    EXPECT_EQ(wrong_tokens(to, ids({0, 2}), 7), 0);
    KVGeometry other = mixed_geometry();
    other.layer_sizes[1] = {2, 24};
    EXPECT_THAT(file->check_fits(fingerprint_of(1), other).error().message,
                HasSubstr("the sizes of the layers' heads are others"));
  }
}

TEST(LayerSizesOfAPool, AreRefusedByNameWhereTheyDoNotAddUp) {
  const auto message = [](const KVGeometry& geometry) {
    const auto pool = PagedPool::create(geometry, 1);
    return pool.ok() ? "created" : pool.error().message;
  };
  KVGeometry bad = mixed_geometry();
  bad.layer_sizes.pop_back();
  EXPECT_THAT(message(bad), HasSubstr("sizes of 2 of 3 layers"));
  bad = mixed_geometry();
  bad.layer_sizes[1].head_dim = 577;
  EXPECT_THAT(message(bad), HasSubstr("head_dim of a layer is 577, must be at most 576"));
  bad = mixed_geometry();
  bad.head_dim = 64;
  EXPECT_THAT(message(bad), HasSubstr("head_dim of layer 0 is 24, no multiple of stored heads"));
}

}  // namespace
}  // namespace quire::kv_store
