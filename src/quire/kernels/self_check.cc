#include "quire/kernels/self_check.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/str.h"
#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/context.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/elementwise.h"
#include "quire/kernels/linear.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/reference.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels {
namespace {

using reference::Tolerance;

// Numbers in [-1, 1) without any pattern that a kernel could like (splitmix64, Steele 2014).
std::vector<float> numbers(std::size_t count, std::uint64_t seed) {
  std::vector<float> values(count);
  for (float& value : values) {
    seed += 0x9e3779b97f4a7c15u;
    std::uint64_t bits = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    value = static_cast<float>(static_cast<std::int64_t>(bits) >> 40) * 0x1p-23f;
  }
  return values;
}

Status within(std::string_view kernel, device::Isa isa, double error, double bound) {
  if (error <= bound) {  // false for NaN
    return {};
  }
  return {ErrorCode::kDevice,
          base::str_cat("kernel ", kernel, " of ", device::isa_name(isa), " is wrong: error ",
                        error, ", at most ", bound, " allowed; choose another instruction set")};
}

constexpr std::int64_t kColumns = 100;
constexpr std::int64_t kDepth = 200;

// 35 rows: a full pair of AMX row blocks and a tail.
Status test_linear(const Context& context, WeightFormat format) {
  constexpr std::int64_t kRows = 35;
  const device::Isa isa = context.table->isa;
  const std::vector<float> w = numbers(kColumns * kDepth, 1);
  const std::vector<float> x = numbers(kRows * kDepth, 2);
  const std::vector<float> bias = numbers(kColumns, 3);
  const PackedWeights weights =
      PackedWeights::pack(context, format, kColumns, kDepth,
                          [&](std::int64_t first, std::int64_t rows, std::span<float> out) {
                            std::memcpy(out.data(), w.data() + first * kDepth,
                                        static_cast<std::size_t>(rows * kDepth) * sizeof(float));
                          });
  if (weights.data() == nullptr) {
    return {ErrorCode::kDevice, "no memory for the self-test of the kernels"};
  }
  PackedRows packed;
  LinearScratch scratch;
  std::vector<float> all(kRows * kColumns);
  pack_rows(context, format, {x, kDepth, kRows, kDepth}, packed);
  linear(context, weights, packed, {all, kColumns}, {.bias = bias}, scratch);
  const std::string name = base::str_cat("linear ", format_name(format));
  QUIRE_TRY_STATUS(
      within(name, isa,
             reference::relative_l2(
                 all, reference::linear(reference::unpack_rows(packed),
                                        reference::unpack_weights(weights), kDepth, bias)),
             Tolerance::kLinear));
  std::vector<float> alone(kColumns);
  pack_rows(context, format, {x, kDepth, 1, kDepth}, packed);
  linear(context, weights, packed, {alone, kColumns}, {.bias = bias}, scratch);
  const bool same = std::memcmp(alone.data(), all.data(), alone.size() * sizeof(float)) == 0;
  return within(name + " (a row alone and in a batch)", isa, same ? 0 : 1, 0);
}

Status test_row_operations(const Context& context) {
  const device::Isa isa = context.table->isa;
  const std::vector<float> x = numbers(2 * kDepth, 4);
  const std::vector<float> weight = numbers(2 * kDepth, 5);
  std::vector<float> out(2 * kDepth);
  rms_norm(context, x, weight, 1e-5, 1, out);
  QUIRE_TRY_STATUS(within("rms_norm", isa,
                          reference::relative_l2(out, reference::rms_norm(x, weight, 1e-5)),
                          Tolerance::kRmsNorm));
  silu_mul(context, x, 1, kDepth, out);
  QUIRE_TRY_STATUS(within(
      "silu_mul", isa, reference::relative_l2(std::span(out).first(kDepth), reference::silu_mul(x)),
      Tolerance::kSiluMul));
  std::vector<std::uint16_t> rounded(x.size());
  context.table->round_bf16(x.data(), static_cast<std::int64_t>(x.size()), rounded.data());
  int wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    wrong += rounded[i] == tensor::float_to_bf16(x[i]) ? 0 : 1;
  }
  return within("round_bf16", isa, wrong, 0);
}

}  // namespace

Status self_test(device::Isa isa) {
  if (!device::isa_supported(isa)) {
    return {ErrorCode::kUnsupported,
            base::str_cat("this machine cannot run ", device::isa_name(isa),
                          " kernels; it runs up to ", device::isa_name(device::best_isa()))};
  }
  device::ThreadPool pool(2);
  const Context context = {&kernels_for(isa), &pool};
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kQ8g32,
                                    WeightFormat::kQ4g32, WeightFormat::kQ4m32}) {
    QUIRE_TRY_STATUS(test_linear(context, format));
  }
  return test_row_operations(context);
}

}  // namespace quire::kernels
