// Attention kernels on Llama-3-8B's shape (32 query heads, 8 KV heads of 128, bf16, some also over
// codes of KV) against the floor of the same run: max(bytes / read bandwidth, FLOP / peak of a
// product of 8192^3). Graphs hold several layers, each on its own memory, so that the L2 cache does
// not answer, and at most so many as take kGraphSeconds. The queries are rotated already; planning
// and upload are not timed. The chip rests before each case, as it has before its ceilings are
// measured, so that no case depends on the one before.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/kernels.h"
#include "quire/attention/device_plan.h"
#include "quire/attention/device_plan_maker.h"
#include "quire/attention/entry.h"
#include "quire/device/accelerator.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/device_ceilings.h"
#include "quire/tensor/kv_format.h"
#include "timing.h"

namespace {

using namespace quire::attention;     // NOLINT(google-build-using-namespace): a program
using namespace quire::device::cuda;  // NOLINT(google-build-using-namespace)
using quire::bench::microseconds;
using quire::bench::must;

constexpr int kHeads = 32, kKvHeads = 8, kDim = 128, kBlock = 32;
constexpr std::int64_t kPoolBytes = std::int64_t{16} << 30;
// Before each case: a chip at its limit of power is slower for a while, whatever comes next.
constexpr std::chrono::milliseconds kRest{200};
// A graph holds more layers only while its floor is below this, and never fewer than kFewestLayers.
constexpr double kGraphSeconds = 0.03;
constexpr std::int64_t kFewestLayers = 3;

using quire::tensor::KVFormat;

constexpr KVFormat kCoded[] = {KVFormat::kInt8, KVFormat::kFp8, KVFormat::kInt4};

// Returns the bytes of a head block's K or V; head_block_bytes returns those of all of it.
constexpr std::int64_t half_bytes(KVFormat format) {
  return std::int64_t{kBlock} * kDim *
         quire::tensor::kv_value_bits(format, quire::tensor::DType::kBFloat16) / 8;
}
constexpr std::int64_t head_block_bytes(KVFormat format) {
  return 2 * half_bytes(format) + quire::tensor::kv_scales_bytes(format, kDim, kBlock);
}

// A step to time, with the storage that its entries borrow.
struct Case {
  struct Use {
    std::vector<std::int32_t> blocks;
    std::int32_t tokens = 0;
    std::vector<EntryRow> rows;
  };
  std::string name;
  double must = 0;  // at most so many floors; or microseconds where `in_us`; or TFLOP/s at least
  enum class Unit { kFloors, kMicroseconds, kTeraflops, kBf16 } unit = Unit::kFloors;
  // Bars over kCoded: at most so many floors, or at least so many times as fast as bf16; 0: not
  // measured.
  double coded_must[std::size(kCoded)] = {};
  Unit coded_unit = Unit::kFloors;
  std::vector<Use> uses;
  std::int32_t rows = 0;
  std::int32_t blocks = 0;  // used
  double flops = 0;

  Use& add(std::int32_t tokens) {
    Use& use = uses.emplace_back();
    use.tokens = tokens;
    for (std::int32_t i = 0; i < (tokens + kBlock - 1) / kBlock; ++i) {
      use.blocks.push_back(blocks++);
    }
    return use;
  }
  void see(Use& use, std::int32_t row, std::int32_t end) {
    use.rows.push_back({row, end - 1, end});
    flops += 4.0 * kHeads * kDim * end;
  }
  void scatter() {
    std::vector<std::int32_t> place(static_cast<std::size_t>(blocks));
    std::iota(place.begin(), place.end(), 0);
    std::shuffle(place.begin(), place.end(), std::mt19937(1));
    for (Use& use : uses) {
      for (std::int32_t& block : use.blocks) {
        block = place[static_cast<std::size_t>(block)];
      }
    }
  }
  // K and V once, queries and output.
  [[nodiscard]] double bytes(KVFormat format) const {
    double tokens = 0;
    for (const Use& use : uses) {
      tokens += use.tokens;
    }
    const double head_token = static_cast<double>(head_block_bytes(format)) / kBlock;
    return tokens * kKvHeads * head_token + rows * double{kHeads} * kDim * 4.0;
  }
};

Case decode(std::string name, double must, const std::vector<std::int32_t>& lengths) {
  Case made{.name = std::move(name), .must = must};
  for (const std::int32_t tokens : lengths) {
    made.see(made.add(tokens), made.rows++, tokens);
  }
  return made;
}

Case one(std::int32_t tokens, double most_us) {
  Case made = decode("1 x " + std::to_string(tokens), most_us, {tokens});
  made.unit = Case::Unit::kMicroseconds;
  return made;
}

Case shared(std::int32_t requests, std::int32_t common, std::int32_t own) {
  Case made{.name = std::to_string(requests) + " x (" + std::to_string(common) + " shared + " +
                    std::to_string(own) + ")",
            .must = 2};
  made.add(common);
  for (std::int32_t row = 0; row < requests; ++row) {
    made.see(made.uses[0], row, common);
    made.see(made.add(own), row, own);
  }
  made.rows = requests;
  return made;
}

// 64 requests, each behind 8 of 32 chunks of 1024 tokens, in an order of its own.
Case composition() {
  Case made{.name = "64 x 8 of 32 chunks of 1024 + 256", .must = 2};
  constexpr std::int32_t kChunks = 32, kUsed = 8, kTokens = 1024, kOwn = 256, kRequests = 64;
  for (std::int32_t i = 0; i < kChunks; ++i) {
    made.add(kTokens);
  }
  std::mt19937 random(2);
  std::vector<std::int32_t> order(kChunks);
  std::iota(order.begin(), order.end(), 0);
  for (std::int32_t row = 0; row < kRequests; ++row) {
    std::shuffle(order.begin(), order.end(), random);
    for (std::int32_t i = 0; i < kUsed; ++i) {
      made.see(made.uses[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])], row,
               kTokens);
    }
    made.see(made.add(kOwn), row, kOwn);
  }
  made.rows = kRequests;
  return made;
}

Case prefill(std::int32_t tokens, double least_teraflops) {
  Case made{.name = "prefill " + std::to_string(tokens),
            .must = least_teraflops,
            .unit = Case::Unit::kTeraflops};
  Case::Use& use = made.add(tokens);
  for (std::int32_t row = 0; row < tokens; ++row) {
    made.see(use, row, row + 1);
  }
  made.rows = tokens;
  return made;
}

constexpr int kFillBlocks = 1024, kFillThreads = 256;

// bf16 numbers in [-1, 1), from a mix of their places (Steele, Lea, Flood 2014, splitmix).
__device__ __host__ std::uint16_t random_bf16(std::uint32_t place) {
  std::uint32_t bits = place * 0x9e3779b9u;
  bits = (bits ^ bits >> 16) * 0x85ebca6bu;
  bits ^= bits >> 13;
  const float number = static_cast<float>(bits & 0xffffu) / 32768.0f - 1.0f;
  return static_cast<std::uint16_t>(__builtin_bit_cast(std::uint32_t, number) >> 16);
}

__global__ void fill_random(std::uint16_t* data, std::int64_t count) {
  for (std::int64_t i = blockIdx.x * kFillThreads + threadIdx.x; i < count;
       i += kFillBlocks * kFillThreads) {
    data[i] = random_bf16(static_cast<std::uint32_t>(i));
  }
}

// Blocks of any codes, with scales and minimums of fp16 that make keys and values up to 0.5 or 1.
// Two of them as one of fp32 are small, too.
__global__ void fill_codes(std::uint16_t* data, std::int64_t count, int block_words,
                           int words_of_codes) {
  for (std::int64_t i = blockIdx.x * kFillThreads + threadIdx.x; i < count;
       i += kFillBlocks * kFillThreads) {
    std::uint32_t bits = static_cast<std::uint32_t>(i) * 0x9e3779b9u;
    bits = (bits ^ bits >> 16) * 0x85ebca6bu;
    bits ^= bits >> 13;
    constexpr std::uint32_t kScale = 0x1c00;  // 2^-8
    data[i] =
        static_cast<std::uint16_t>(i % block_words < words_of_codes ? bits : kScale | bits % 0x400);
  }
}

std::vector<std::uint16_t> random_numbers(std::size_t count) {
  std::vector<std::uint16_t> numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    numbers[i] = random_bf16(static_cast<std::uint32_t>(i));
  }
  return numbers;
}

class Runner {
 public:
  explicit Runner(quire::device::Accelerator& accelerator)
      : context_(accelerator.context()),
        ceilings_(must(quire::kernels::measure_device_ceilings(accelerator))),
        pool_(must(DeviceBuffer<std::uint16_t>::make(context_.device_pool(), kPoolBytes / 2))),
        codes_(must(DeviceBuffer<std::uint16_t>::make(context_.device_pool(), kPoolBytes / 4))) {
    std::printf("read %.0f GB/s, products %.0f TFLOP/s\n", ceilings_.read_bytes_per_second * 1e-9,
                ceilings_.flops_per_second * 1e-12);
    // Constant numbers would take less power, and so less time.
    fill_random<<<kFillBlocks, kFillThreads, 0, stream()>>>(pool_.data(), kPoolBytes / 2);
    must(cudaGetLastError());
  }
  // Makes the codes blocks of a format.
  void fill(KVFormat format) {
    fill_codes<<<kFillBlocks, kFillThreads, 0, stream()>>>(
        codes_.data(), kPoolBytes / 4, static_cast<int>(head_block_bytes(format) / 2),
        static_cast<int>(half_bytes(format)));
    must(cudaGetLastError());
  }

  // Prints one line and returns whether the bar is met. `us`: time of bf16, where that is a bar;
  // set to the time of this format.
  bool run(Case& made, std::int32_t range, KVFormat format, double& us) {
    made.scatter();
    std::vector<Entry> entries;
    for (const Case::Use& use : made.uses) {
      entries.push_back({.blocks = use.blocks, .num_tokens = use.tokens, .rows = use.rows});
    }
    const DevicePlan plan = make_device_plan(
        {.heads = kHeads, .kv_heads = kKvHeads, .head_dim = kDim}, entries, made.rows,
        cuda::fit_to_device({.block_tokens = kBlock, .range_tokens = range}, kDim));
    cuda::AttentionArgs args = upload(plan, made.rows, format);
    const std::int64_t head_block = head_block_bytes(format) / 2;  // words
    const std::int64_t layer = std::int64_t{made.blocks} * kKvHeads * head_block;
    const std::int64_t room = static_cast<std::int64_t>(pool(format).size());
    const auto timed = static_cast<std::int64_t>(kGraphSeconds / floor_seconds(made, format));
    const auto layers = static_cast<int>(
        std::clamp<std::int64_t>(std::min(room / layer, std::max(timed, kFewestLayers)), 1, 32));
    args.kv.head_stride = made.blocks * head_block;
    const double bf16_us = us;
    us = microseconds(context_, layers, [&](int i) {
      cuda::AttentionArgs each = args;
      each.kv.data += i * layer;
      must(cuda::launch_attention(each, stream()));
    });
    return print(made, format, us, bf16_us, plan);
  }

 private:
  [[nodiscard]] CUstream_st* stream() { return context_.compute_stream().get(); }

  [[nodiscard]] const DeviceBuffer<std::uint16_t>& pool(KVFormat format) const {
    return format == KVFormat::kPlain ? pool_ : codes_;
  }

  template <class T>
  T* send(const std::vector<T>& values) {
    const std::size_t bytes = std::max<std::size_t>(values.size() * sizeof(T), 16);
    buffers_.push_back(must(DeviceBuffer<std::byte>::make(context_.device_pool(), bytes)));
    must(copy_async(buffers_.back().data(), values.data(), values.size() * sizeof(T), stream()));
    return reinterpret_cast<T*>(buffers_.back().data());
  }

  // Bytes that nobody has written.
  template <class T>
  T* room(std::size_t count) {
    buffers_.push_back(
        must(DeviceBuffer<std::byte>::make(context_.device_pool(), count * sizeof(T))));
    return reinterpret_cast<T*>(buffers_.back().data());
  }

  cuda::AttentionArgs upload(const DevicePlan& plan, std::int32_t rows, KVFormat format) {
    buffers_.clear();
    const auto partials = static_cast<std::size_t>(plan.num_partials) * kHeads;
    const auto out = static_cast<std::size_t>(rows) * kHeads * kDim;
    return {.kv = {.data = pool(format).data(),
                   .block_stride = head_block_bytes(format) / 2,
                   .v_offset = half_bytes(format) / 2,
                   .block_tokens = kBlock,
                   .block_shift = cuda::block_shift(kBlock),
                   .head_dim = kDim,
                   .format = format,
                   .scale_offset = half_bytes(format),
                   .v_scale_offset = half_bytes(format) + kBlock},
            .work = {.few = send(plan.few),
                     .many = send(plan.many),
                     .rows = send(plan.rows),
                     .partials = send(plan.partials),
                     .blocks = send(plan.blocks),
                     .queues = send(plan.queues),
                     .num_few = static_cast<std::int32_t>(plan.few.size()),
                     .num_many = static_cast<std::int32_t>(plan.many.size()),
                     .wide = plan.widest_few > 8,
                     .num_rows = rows,
                     .merges = plan.num_merged > 0,
                     .like_many = plan.like_many,
                     .partial_values = room<float>(partials * kDim),
                     .partial_stats = room<float2>(partials),
                     .partials_there = send(std::vector<std::uint32_t>(out / kDim))},
            .q = send(random_numbers(plan.query_rows.size() * kHeads * kDim)),
            .heads = kHeads,
            .kv_heads = kKvHeads,
            .head_dim = kDim,
            .scale_log2 = 1.44269504f / std::sqrt(static_cast<float>(kDim)),
            .out = room<std::uint16_t>(out),
            .lse = nullptr};
  }

  [[nodiscard]] double floor_seconds(const Case& made, KVFormat format) const {
    return std::max(made.bytes(format) / ceilings_.read_bytes_per_second,
                    made.flops / ceilings_.flops_per_second);
  }

  bool print(const Case& made, KVFormat format, double us, double bf16_us,
             const DevicePlan& plan) const {
    using Unit = Case::Unit;
    const bool plain = format == KVFormat::kPlain;
    const auto* const coded = std::ranges::find(kCoded, format);
    const Unit unit = plain ? made.unit : made.coded_unit;
    const double must = plain ? made.must : made.coded_must[coded - std::begin(kCoded)];
    const double floor = 1e6 * floor_seconds(made, format);
    const double teraflops = made.flops / us * 1e-6;
    const double figure = unit == Unit::kFloors         ? us / floor
                          : unit == Unit::kMicroseconds ? us
                          : unit == Unit::kTeraflops    ? teraflops
                                                        : bf16_us / us;
    const bool at_least = unit == Unit::kTeraflops || unit == Unit::kBf16;
    const bool met = at_least ? figure >= must : figure <= must;
    std::printf(
        "%-36s %9.1f us %6.2f floors %6.0f TFLOP/s %6d partials bar %5.4g %s",
        (made.name + (plain ? "" : " ") + (plain ? "" : quire::tensor::kv_format_name(format, {})))
            .c_str(),
        us, us / floor, teraflops, plan.num_partials, must, met ? "" : "NOT MET");
    std::printf(plain ? "\n" : " %.2f x bf16\n", bf16_us / us);
    return met;
  }

  DeviceContext& context_;
  quire::kernels::DeviceCeilings ceilings_;
  DeviceBuffer<std::uint16_t> pool_, codes_;  // KV in bf16, in codes
  std::vector<DeviceBuffer<std::byte>> buffers_;
};

std::vector<Case> cases() {
  std::vector<std::int32_t> mixed;
  std::mt19937 random(3);
  for (int i = 0; i < 64; ++i) {
    mixed.push_back(static_cast<std::int32_t>(
        256 * std::exp2(7 * std::uniform_real_distribution<double>()(random))));
  }
  std::vector<Case> all;
  const auto coded_too = [&](double int8, double fp8, double int4,
                             Case::Unit unit = Case::Unit::kFloors) {
    std::ranges::copy(std::array{int8, fp8, int4}, all.back().coded_must);
    all.back().coded_unit = unit;
  };
  all.push_back(decode("64 x 8192", 1.1, std::vector<std::int32_t>(64, 8192)));
  coded_too(1.15, 1.15, 1.35);
  all.push_back(decode("16 x 8192", 1.1, std::vector<std::int32_t>(16, 8192)));
  coded_too(1.41, 1.41, 1.9);
  all.push_back(decode("256 x 128", 1.6, std::vector<std::int32_t>(256, 128)));
  all.push_back(decode("64 x 1024", 1.6, std::vector<std::int32_t>(64, 1024)));
  coded_too(1.49, 1.49, 1.9);
  all.push_back(decode("64 mixed 256..32k", 1.12, mixed));
  coded_too(1.37, 1.37, 1.6);
  all.push_back(one(1024, 8));
  all.push_back(one(8192, 16));
  coded_too(1.25, 1.25, 1.25, Case::Unit::kBf16);
  all.push_back(one(32768, 40));
  coded_too(1.5, 1.5, 1.7, Case::Unit::kBf16);
  for (const std::int32_t requests : {64, 256}) {
    for (const std::int32_t common : {8192, 32768}) {
      for (const std::int32_t own : {128, 512}) {
        all.push_back(shared(requests, common, own));
      }
    }
  }
  all.push_back(shared(64, 16384, 128));
  all.push_back(shared(128, 8192, 256));
  coded_too(0.69, 0.69, 0.6, Case::Unit::kBf16);
  all.push_back(composition());
  coded_too(0.81, 0.81, 0.7, Case::Unit::kBf16);
  all.push_back(prefill(8192, 450));
  coded_too(0.64, 0.64, 0.55, Case::Unit::kBf16);
  all.push_back(prefill(32768, 500));
  coded_too(0.64, 0.64, 0.55, Case::Unit::kBf16);
  return all;
}

}  // namespace

// With an argument only the cases whose names contain it.
int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  const auto accelerator = must(quire::device::Accelerator::open("cuda"));
  std::printf("%s\n", accelerator->name().c_str());
  Runner runner(*accelerator);
  int missed = 0;
  for (const std::int32_t range : {0, 2048}) {
    std::printf("%s\n", range == 0 ? "ranges by load" : "fixed ranges of 2048 tokens");
    for (Case& each : cases()) {
      if (argc > 1 && each.name.find(argv[1]) == std::string::npos) {
        continue;
      }
      double us = 0;
      for (const KVFormat format :
           {KVFormat::kPlain, KVFormat::kInt8, KVFormat::kFp8, KVFormat::kInt4}) {
        if (format != KVFormat::kPlain) {
          if (each.coded_must[0] == 0) {
            continue;
          }
          runner.fill(format);
        }
        std::this_thread::sleep_for(kRest);
        missed += runner.run(each, range, format, us) ? 0 : range == 0 ? 1 : 0;
      }
    }
  }
  std::printf("%d bars not met\n", missed);
  return missed == 0 ? 0 : 1;
}
