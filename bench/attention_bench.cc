// Attention over paged KV for the shape of a 1.1 B Llama (22 layers, 32 heads over 4 KV heads of
// 64). Ratios: decode to the read bandwidth, prefill to the register peak of the same run.
//   attention_bench [ISA [THREADS [CASE]]]   (every supported set, 2 threads, every case)
// CASE is a part of the names of cases.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/entry.h"
#include "quire/attention/plan_maker.h"
#include "quire/attention/run.h"
#include "quire/base/check.h"
#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/ceilings.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/rotary.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"

namespace {
using namespace quire;  // NOLINT: a program, not a header

constexpr attention::AttentionShape kShape = {
    .heads = 32, .kv_heads = 4, .head_dim = 64, .softmax_scale = 0.125};
constexpr int kLayers = 22, kBlockTokens = 32;

struct Case {
  const char* name;
  int requests, context, new_rows;
  double scale = 1;  // of scores, which lie within 1 of each other by default
};
constexpr Case kCases[] = {
    {"decode at 2k", 1, 2048, 1},
    {"decode at 8k", 1, 8192, 1},
    {"decode 16 x 2k", 16, 2048, 1},
    {"32 more at 4k", 1, 4096, 32},
    {"prefill 512 at 2k", 1, 2048, 512},
    {"prefill 512 at 8k", 1, 8192, 512},
    // Many probabilities below the smallest normal number, as in heads with one large key.
    {"32 more, far apart", 1, 4096, 32, 200}};

// Request i owns blocks [i * n, (i + 1) * n); its new rows are its last tokens.
struct Batch {
  std::vector<std::int32_t> blocks;
  std::vector<attention::EntryRow> rows;
  std::vector<attention::Entry> entries;

  explicit Batch(const Case& c)
      : blocks(static_cast<std::size_t>(c.requests * c.context / kBlockTokens)) {
    std::iota(blocks.begin(), blocks.end(), 0);
    for (int row = 0; row < c.requests * c.new_rows; ++row) {
      const int position = c.context - c.new_rows + row % c.new_rows;
      rows.push_back({row, position, position + 1});
    }
    const auto new_rows = static_cast<std::size_t>(c.new_rows);
    for (std::size_t i = 0; i < static_cast<std::size_t>(c.requests); ++i) {
      const std::size_t count = blocks.size() / static_cast<std::size_t>(c.requests);
      entries.push_back({{&blocks[i * count], count}, c.context, {&rows[i * new_rows], new_rows}});
    }
  }
};

// Sets all scales and minimums so that numbers are within 0.25 or so.
void set_scales(kv_store::PagedPool& pool, const tensor::KVGeometry& geometry, int num_blocks) {
  constexpr std::uint16_t kScale = 0x1800;      // 2^-9, of int8
  constexpr std::uint16_t kInt4Scale = 0x2800;  // 2^-5, minimums too
  constexpr float kFp8Scale = 0x1p-10F;
  for (std::int64_t block = 0;
       block < std::int64_t{num_blocks} * geometry.layers * geometry.kv_heads; ++block) {
    std::byte* scales =
        pool.view(0).data + block * geometry.head_block_bytes() + geometry.scale_offset();
    std::byte* const end = scales + geometry.head_block_bytes() - geometry.scale_offset();
    const auto fill = [&](auto scale) {
      for (; scales != end; scales += sizeof(scale)) {
        std::memcpy(scales, &scale, sizeof(scale));
      }
    };
    if (geometry.format == tensor::KVFormat::kFp8) {
      fill(kFp8Scale);
    } else {
      fill(geometry.format == tensor::KVFormat::kInt8 ? kScale : kInt4Scale);
    }
  }
}

kv_store::PagedPool filled_pool(const tensor::KVGeometry& geometry, int num_blocks) {
  auto pool = kv_store::PagedPool::create(geometry, num_blocks);
  QUIRE_CHECK(pool.ok(), pool.error().message.c_str());
  auto* values = reinterpret_cast<std::uint16_t*>(pool->view(0).data);
  // +-0.25 .. 0.5, not zeros: those run too fast.
  for (std::int64_t i = 0; i < geometry.block_bytes() / 2 * num_blocks; ++i) {
    const auto bits = static_cast<std::uint32_t>(i) * 2654435761u;
    values[i] = static_cast<std::uint16_t>(0x3e80u | (bits >> 16 & 0x807fu));
  }
  if (geometry.format != tensor::KVFormat::kPlain) {
    set_scales(*pool, geometry, num_blocks);
  }
  return std::move(pool).value();
}

double seconds_per_step(const kernels::KernelContext& context, const Case& c, tensor::DType dtype,
                        tensor::KVFormat format) {
  const tensor::KVGeometry geometry = {
      kLayers, kShape.kv_heads, kShape.head_dim, dtype, kBlockTokens, {}, format};
  attention::AttentionShape shape = kShape;
  shape.softmax_scale *= c.scale;
  const Batch batch(c);
  const kv_store::PagedPool pool = filled_pool(geometry, static_cast<int>(batch.blocks.size()));
  const auto plan =
      attention::make_plan(kShape, batch.entries, kBlockTokens, 0, context.pool->threads());
  const kernels::RotaryTable rotary;  // no angles: no rotation
  constexpr std::size_t kWidth = std::size_t{kShape.heads} * kShape.head_dim;
  std::vector<float> q(plan.query_positions.size() * kWidth), out(q.size());
  for (std::size_t i = 0; i < q.size(); ++i) {
    q[i] = static_cast<float>(i * 7919 % 2001) / 1000 - 1;
  }
  attention::AttentionScratch scratch;
  std::vector<double> times;
  for (int i = 0; i < 6; ++i) {
    const auto start = std::chrono::steady_clock::now();
    for (int layer = 0; layer < kLayers; ++layer) {
      attention::run(context,
                     {.shape = shape,
                      .entries = batch.entries,
                      .plan = &plan,
                      .q = q,
                      .q_stride = kWidth,
                      .rotary = &rotary,
                      .out = out},
                     pool.view(layer), scratch);
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    times.push_back(elapsed.count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void bench(device::Isa isa, int threads, const char* only, tensor::DType dtype,
           tensor::KVFormat format = tensor::KVFormat::kPlain) {
  device::ThreadPool pool(threads);
  const kernels::KernelContext context = {&kernels::kernels_for(isa), &pool};
  const double read = kernels::measure_read_bandwidth(context, std::size_t{1} << 30);
  const bool expanded = tensor::is_written_by_block(format) && isa != device::Isa::kAmx;
  const bool fp32 = dtype == tensor::DType::kFloat32 || expanded;
  const auto plain = fp32 ? kernels::WeightFormat::kF32 : kernels::WeightFormat::kBf16;
  const bool integers = format == tensor::KVFormat::kInt8 && isa != device::Isa::kAmx;
  const double peak = kernels::measure_peak(
      context, integers ? kernels::Product::kInt16Pairs : kernels::product_of(context, plain, 1));
  for (const Case& c : kCases) {
    if (std::strstr(c.name, only) == nullptr) {
      continue;
    }
    const double seconds = seconds_per_step(context, c, dtype, format);
    const double pairs = static_cast<double>(c.requests) * c.new_rows *
                         (c.context - (c.new_rows - 1) / 2.0) * kLayers;  // (row, token)
    const bool decode = c.new_rows == 1;
    const tensor::KVGeometry geometry = {1, 1, kShape.head_dim, dtype, kBlockTokens, {}, format};
    const double token_bytes = static_cast<double>(geometry.block_bytes()) / kBlockTokens;
    const double work =
        decode ? pairs * kShape.kv_heads * token_bytes : pairs * 4 * kShape.heads * kShape.head_dim;
    const double ceiling = decode ? read : peak;
    const std::string isa_name(device::isa_name(isa));
    std::printf("%-9s %s %-18s %9.3f ms %9.2f %s  %5.2f\n", isa_name.c_str(),
                tensor::kv_format_name(format, dtype), c.name, seconds * 1e3, work / seconds / 1e9,
                decode ? "GB/s" : "GF/s", work / seconds / ceiling);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto isa = argc > 1 ? device::parse_isa(argv[1]) : device::best_isa();
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  const char* only = argc > 3 ? argv[3] : "";
  if (!isa.has_value() || !device::isa_supported(*isa) || threads < 1) {
    std::fprintf(stderr, "error: no such instruction set here, or threads below 1\n");
    return 2;
  }
  for (const device::Isa each : device::supported_isas()) {
    if (argc == 1 || each == *isa) {
      bench(each, threads, only, tensor::DType::kBFloat16);
      bench(each, threads, only, tensor::DType::kFloat32);
      for (const tensor::KVFormat format :
           {tensor::KVFormat::kInt8, tensor::KVFormat::kFp8, tensor::KVFormat::kInt4}) {
        bench(each, threads, only, tensor::DType::kBFloat16, format);
      }
    }
  }
  return 0;
}
