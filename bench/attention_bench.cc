// Attention over paged KV for the shape of a 1.1 B Llama (22 layers, 32 heads over 4 KV heads of
// 64): decode in GB/s of KV read, as a ratio to the read bandwidth of the same run; prefill in
// GF/s, as a ratio to the register peak of the KV's type.
//   attention_bench [--isa=NAME]... [--threads=N] [--block-tokens=N] [--fp32]
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/attention/entry.h"
#include "quire/attention/plan.h"
#include "quire/attention/run.h"
#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/ceilings.h"
#include "quire/kernels/context.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/rotary.h"
#include "quire/kv_store/paged_store.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_geometry.h"

namespace {

using namespace quire;  // NOLINT: a program, not a header

constexpr attention::AttentionShape kShape = {
    .heads = 32, .kv_heads = 4, .head_dim = 64, .softmax_scale = 0.125};
constexpr int kLayers = 22;

struct Case {
  const char* name;
  int requests, context, new_rows;
};
constexpr Case kCases[] = {{"decode at 2k", 1, 2048, 1},
                           {"decode at 8k", 1, 8192, 1},
                           {"decode 16 x 2k", 16, 2048, 1},
                           {"prefill 512 at 2k", 1, 2048, 512},
                           {"prefill 512 at 8k", 1, 8192, 512}};

struct Options {
  std::vector<device::Isa> isas;
  int threads = 2;
  int block_tokens = 32;
  tensor::DType dtype = tensor::DType::kBFloat16;
};

// Every request owns consecutive blocks; its new rows are its last tokens.
struct Batch {
  std::vector<std::vector<std::int32_t>> blocks;
  std::vector<std::vector<attention::EntryRow>> rows;
  std::vector<attention::Entry> entries;

  Batch(const Case& c, int block_tokens) {
    const int per_request = (c.context + block_tokens - 1) / block_tokens;
    for (int i = 0; i < c.requests; ++i) {
      blocks.emplace_back(per_request);
      std::iota(blocks.back().begin(), blocks.back().end(), i * per_request);
      rows.emplace_back();
      for (int r = 0; r < c.new_rows; ++r) {
        const int position = c.context - c.new_rows + r;
        rows.back().push_back({i * c.new_rows + r, position, position + 1});
      }
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      entries.push_back({blocks[i], c.context, rows[i]});
    }
  }
};

kv_store::PagedStore filled_store(const tensor::KVGeometry& geometry, int num_blocks) {
  auto store = kv_store::PagedStore::create(geometry, num_blocks);
  if (!store.ok()) {
    std::fprintf(stderr, "error: %s\n", store.error().message.c_str());
    std::exit(1);
  }
  auto* values = reinterpret_cast<std::uint16_t*>(store->view(0).data);
  const std::int64_t count = geometry.block_bytes() / 2 * num_blocks;
  for (std::int64_t i = 0; i < count; ++i) {  // +-0.25 .. 0.5, not zeros: those run too fast
    const auto bits = static_cast<std::uint32_t>(i) * 2654435761u;
    values[i] = static_cast<std::uint16_t>(0x3e80u | (bits >> 16 & 0x807fu));
  }
  return std::move(store).value();
}

// Median seconds of all layers.
double seconds_per_step(const kernels::Context& context, const Case& c, const Options& options) {
  const tensor::KVGeometry geometry = {.layers = kLayers,
                                       .kv_heads = kShape.kv_heads,
                                       .head_dim = kShape.head_dim,
                                       .dtype = options.dtype,
                                       .block_tokens = options.block_tokens};
  const Batch batch(c, options.block_tokens);
  const auto num_blocks = static_cast<int>(batch.blocks.size() * batch.blocks[0].size());
  const kv_store::PagedStore store = filled_store(geometry, num_blocks);
  const auto plan =
      attention::make_plan(kShape, batch.entries, options.block_tokens, 0, context.pool->threads());
  kernels::RotaryConfig config;
  for (int i = 0; i < kShape.head_dim / 2; ++i) {
    config.inverse_frequencies.push_back(std::pow(10000.0, -i / 32.0));
  }
  kernels::RotaryTable rotary;
  rotary.fill(context, config, plan.query_positions);
  const std::size_t width = static_cast<std::size_t>(kShape.heads) * kShape.head_dim;
  std::vector<float> q(plan.query_positions.size() * width), out(q.size());
  for (std::size_t i = 0; i < q.size(); ++i) {
    q[i] = static_cast<float>(i * 7919 % 2001) / 1000 - 1;
  }
  attention::AttentionScratch scratch;
  std::vector<double> times;
  for (int i = 0; i < 6; ++i) {
    const auto start = std::chrono::steady_clock::now();
    for (int layer = 0; layer < kLayers; ++layer) {
      attention::run(context,
                     {.shape = kShape,
                      .entries = batch.entries,
                      .plan = &plan,
                      .q = q,
                      .q_stride = static_cast<std::ptrdiff_t>(width),
                      .rotary = &rotary,
                      .out = out},
                     store.view(layer), scratch);
    }
    times.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void bench(device::Isa isa, const Options& options) {
  device::ThreadPool pool(options.threads);
  const kernels::Context context = {&kernels::kernels_for(isa), &pool};
  const double read = kernels::measure_read_bandwidth(context, std::size_t{1} << 30);
  const kernels::ComputePeaks peaks = kernels::measure_compute_peaks(context);
  const bool fp32 = options.dtype == tensor::DType::kFloat32;
  for (const Case& c : kCases) {
    const double seconds = seconds_per_step(context, c, options);
    const double pairs = static_cast<double>(c.requests) * c.new_rows *
                         (c.context - (c.new_rows - 1) / 2.0) * kLayers;  // (row, token)
    const bool decode = c.new_rows == 1;
    const double work = decode ? pairs * 2 * kShape.kv_heads * kShape.head_dim * (fp32 ? 4 : 2)
                               : pairs * 4 * kShape.heads * kShape.head_dim;
    const double ceiling = decode ? read : fp32 ? peaks.f32 : peaks.bf16;
    std::printf("%-9s %-18s %9.3f ms %9.2f %s  %5.2f\n", device::isa_name(isa).data(), c.name,
                seconds * 1e3, work / seconds / 1e9, decode ? "GB/s" : "GF/s",
                work / seconds / ceiling);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const std::string_view value = arg.substr(std::min(arg.find('=') + 1, arg.size()));
    const auto number = [&](int& out) {
      return std::from_chars(value.data(), value.data() + value.size(), out).ec == std::errc() &&
             out > 0;
    };
    const auto isa = device::parse_isa(value);
    if (arg.starts_with("--isa=") && isa.has_value() && device::isa_supported(*isa)) {
      options.isas.push_back(*isa);
    } else if (arg == "--fp32") {
      options.dtype = tensor::DType::kFloat32;
    } else if (!(arg.starts_with("--threads=") && number(options.threads)) &&
               !(arg.starts_with("--block-tokens=") && number(options.block_tokens))) {
      std::fprintf(stderr, "error: unknown option or value %s\n", argv[i]);
      return 2;
    }
  }
  for (const device::Isa isa : options.isas.empty() ? device::supported_isas() : options.isas) {
    bench(isa, options);
  }
  return 0;
}
