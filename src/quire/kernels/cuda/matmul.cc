#include "quire/kernels/cuda/matmul.h"

#include <cublasLt.h>
#include <cublas_api.h>
#include <library_types.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/str.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/cuda_stream.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/cublas_lt.h"
#include "quire/kernels/cuda/gemv.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

namespace quire::kernels::cuda {
namespace {

constexpr std::int64_t kManyRows = 512;   // for which the row-invariant algorithm is chosen
constexpr std::int64_t kFewRows = 256;    // up to which others are tried that give the same bits
constexpr std::int64_t kTrialRows = 8;    // rows whose bits are compared
constexpr int kTrials = 16;               // algorithms
constexpr int kTimedRuns = 5;             // timed runs of each algorithm
constexpr std::size_t kMostPlans = 1024;  // some hundreds of bytes each

std::int64_t out_stride(const Product& call) {
  return call.out_stride == 0 ? call.outputs : call.out_stride;
}

}  // namespace

struct MatMul::Impl {
  using Shape = std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, std::int64_t>;

  struct Plan {
    Owned<cublasLtMatrixLayout_t> weights, x, out;
    cublasLtMatmulAlgo_t algorithm;
  };

  device::cuda::DeviceContext* device;
  bool row_invariant;
  tensor::DType dtype;
  std::unique_ptr<CublasLt> lt;
  Owned<cublasLtHandle_t> handle{nullptr, nullptr};
  Owned<cublasLtMatmulDesc_t> product{nullptr, nullptr};
  Owned<cublasLtMatmulPreference_t> preference{nullptr, nullptr};
  device::cuda::DeviceBuffer<std::byte> workspace;
  std::map<Shape, Plan> plans;

  [[nodiscard]] cudaDataType element() const {
    return dtype == tensor::DType::kFloat16 ? CUDA_R_16F : CUDA_R_16BF;
  }
  Status set_up();
  Result<Owned<cublasLtMatrixLayout_t>> layout(cudaDataType type, std::int64_t rows,
                                               std::int64_t columns, std::int64_t stride);
  Result<Plan> make_plan(const Product& call);
  Result<std::vector<cublasLtMatmulAlgo_t>> candidates(const Product& call, std::int64_t rows,
                                                       int count);
  Status multiply(const Product& call, const Plan& plan);

  // Returns the bits of the product, to compare algorithms for row-invariant products of few rows.
  Result<std::vector<float>> bits_of(const Product& trial, const Plan& plan);
  Result<float> milliseconds_of(const Product& trial, const Plan& plan);
  Status take_fastest_equal(const Product& call, Plan& plan);
};

Status MatMul::Impl::set_up() {
  cublasLtHandle_t new_handle = nullptr;
  QUIRE_TRY_STATUS(to_status(lt->create(&new_handle), "cublasLtCreate"));
  handle = {new_handle, lt->destroy};
  cublasLtMatmulDesc_t new_product = nullptr;
  QUIRE_TRY_STATUS(to_status(lt->desc_create(&new_product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                             "cublasLtMatmulDescCreate"));
  product = {new_product, lt->desc_destroy};
  // cuBLAS counts down columns: our rows are its columns, so out^T = weights x^T.
  const cublasOperation_t transpose = CUBLAS_OP_T;
  QUIRE_TRY_STATUS(to_status(
      lt->desc_set(new_product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose),
      "cublasLtMatmulDescSetAttribute"));
  cublasLtMatmulPreference_t new_preference = nullptr;
  QUIRE_TRY_STATUS(
      to_status(lt->preference_create(&new_preference), "cublasLtMatmulPreferenceCreate"));
  preference = {new_preference, lt->preference_destroy};
  // Split sums need the workspace: without one a row's sum has one order.
  const std::size_t bytes = row_invariant ? 0 : kWorkspaceBytes;
  QUIRE_TRY_STATUS(
      to_status(lt->preference_set(new_preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                   sizeof bytes),
                "cublasLtMatmulPreferenceSetAttribute"));
  QUIRE_TRY(workspace,
            device::cuda::DeviceBuffer<std::byte>::make(device->device_pool(), kWorkspaceBytes));
  return {};
}

Result<Owned<cublasLtMatrixLayout_t>> MatMul::Impl::layout(cudaDataType type, std::int64_t rows,
                                                           std::int64_t columns,
                                                           std::int64_t stride) {
  cublasLtMatrixLayout_t made = nullptr;
  QUIRE_TRY_STATUS(to_status(lt->layout_create(&made, type, static_cast<std::uint64_t>(rows),
                                               static_cast<std::uint64_t>(columns), stride),
                             "cublasLtMatrixLayoutCreate"));
  return Owned<cublasLtMatrixLayout_t>(made, lt->layout_destroy);
}

// Lists algorithms for products of this shape with `rows` rows, the one that cuBLASLt thinks best
// first.
Result<std::vector<cublasLtMatmulAlgo_t>> MatMul::Impl::candidates(const Product& call,
                                                                   std::int64_t rows, int count) {
  QUIRE_TRY(const auto weights, layout(element(), call.inputs, call.outputs, call.inputs));
  QUIRE_TRY(const auto x, layout(element(), call.inputs, rows, call.inputs));
  QUIRE_TRY(const auto out, layout(CUDA_R_32F, call.outputs, rows, out_stride(call)));
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(count));
  int there = 0;
  QUIRE_TRY_STATUS(
      to_status(lt->get_heuristic(handle.get(), product.get(), weights.get(), x.get(), out.get(),
                                  out.get(), preference.get(), count, found.data(), &there),
                "cublasLtMatmulAlgoGetHeuristic"));
  if (there == 0) {
    return {ErrorCode::kDevice,
            base::str_cat("cuBLASLt has no algorithm for a product of ", rows, " rows, ",
                          call.inputs, " inputs and ", call.outputs, " outputs")};
  }
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  algorithms.reserve(found.size());
  for (int i = 0; i < there; ++i) {
    algorithms.push_back(found[static_cast<std::size_t>(i)].algo);
  }
  return algorithms;
}

Result<MatMul::Impl::Plan> MatMul::Impl::make_plan(const Product& call) {
  QUIRE_TRY(auto weights, layout(element(), call.inputs, call.outputs, call.inputs));
  QUIRE_TRY(auto x, layout(element(), call.inputs, call.rows, call.inputs));
  QUIRE_TRY(auto out, layout(CUDA_R_32F, call.outputs, call.rows, out_stride(call)));
  QUIRE_TRY(const auto algorithms, candidates(call, row_invariant ? kManyRows : call.rows, 1));
  Plan plan{std::move(weights), std::move(x), std::move(out), algorithms.front()};
  if (row_invariant && call.rows <= kFewRows) {
    QUIRE_TRY_STATUS(take_fastest_equal(call, plan));
  }
  return plan;
}

Status MatMul::Impl::multiply(const Product& call, const Plan& plan) {
  const float one = 1, beta = call.accumulate ? 1 : 0;
  return to_status(lt->matmul(handle.get(), product.get(), &one, call.weights, plan.weights.get(),
                              call.x, plan.x.get(), &beta, call.out, plan.out.get(), call.out,
                              plan.out.get(), &plan.algorithm, workspace.data(), kWorkspaceBytes,
                              device->compute_stream().get()),
                   "cublasLtMatmul");
}

// Computes the results of the first rows.
Result<std::vector<float>> MatMul::Impl::bits_of(const Product& trial, const Plan& plan) {
  constexpr unsigned char kSomeFloat = 0x3f;  // 0x3f3f3f3f is 0.747
  CUstream_st* const stream = device->compute_stream().get();
  const auto size = static_cast<std::size_t>(std::min(trial.rows, kTrialRows) * trial.outputs);
  QUIRE_TRY_STATUS(device::cuda::fill_async(trial.out, kSomeFloat, size * sizeof(float), stream));
  QUIRE_TRY_STATUS(multiply(trial, plan));
  std::vector<float> bits(size);
  QUIRE_TRY_STATUS(device::cuda::copy_async(bits.data(), trial.out, size * sizeof(float), stream));
  QUIRE_TRY_STATUS(device->compute_stream().synchronize());
  return bits;
}

Result<float> MatMul::Impl::milliseconds_of(const Product& trial, const Plan& plan) {
  const device::cuda::CudaStream& stream = device->compute_stream();
  QUIRE_TRY(const auto start, device::cuda::Event::create(true));
  QUIRE_TRY(const auto end, device::cuda::Event::create(true));
  QUIRE_TRY_STATUS(stream.record(start));
  for (int i = 0; i < kTimedRuns; ++i) {
    QUIRE_TRY_STATUS(multiply(trial, plan));
  }
  QUIRE_TRY_STATUS(stream.record(end));
  QUIRE_TRY_STATUS(end.synchronize());
  return end.milliseconds_since(start);
}

// Takes the fastest algorithm that sums as the one for many rows does. The tiles of that one leave
// most of the device idle when rows are few. Others differ in their tiles alone and sum in the same
// order. They are those that give all of some thousand sums of random numbers the same bits. The
// numbers are of many magnitudes: few of one magnitude add up without rounding, in any order.
Status MatMul::Impl::take_fastest_equal(const Product& call, Plan& plan) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<std::uint16_t> values(static_cast<std::size_t>(call.rows * call.inputs));
  for (std::uint16_t& value : values) {
    const float number = std::ldexp(uniform(random), static_cast<int>(random() % 16));
    value = dtype == tensor::DType::kFloat16 ? tensor::float_to_fp16(number)
                                             : tensor::float_to_bf16(number);
  }
  auto& pool = device->device_pool();
  QUIRE_TRY(const auto x, device::cuda::DeviceBuffer<std::uint16_t>::make(pool, values.size()));
  QUIRE_TRY(const auto out, device::cuda::DeviceBuffer<float>::make(
                                pool, static_cast<std::size_t>(call.rows * call.outputs)));
  QUIRE_TRY_STATUS(device::cuda::copy_async(x.data(), values.data(),
                                            values.size() * sizeof(std::uint16_t),
                                            device->compute_stream().get()));
  Product trial = call;
  trial.x = x.data();
  trial.out = out.data();
  QUIRE_TRY(const std::vector<float> want, bits_of(trial, plan));
  QUIRE_TRY(float best, milliseconds_of(trial, plan));
  QUIRE_TRY(const auto algorithms, candidates(call, call.rows, kTrials));
  cublasLtMatmulAlgo_t fastest = plan.algorithm;
  for (const cublasLtMatmulAlgo_t& algorithm : algorithms) {
    plan.algorithm = algorithm;
    const auto got = bits_of(trial, plan);
    if (!got.ok() || std::memcmp(got->data(), want.data(), want.size() * sizeof(float)) != 0) {
      continue;
    }
    QUIRE_TRY(const float time, milliseconds_of(trial, plan));
    if (time < best) {
      best = time;
      fastest = algorithm;
    }
  }
  plan.algorithm = fastest;
  return {};
}

Result<MatMul> MatMul::create(device::cuda::DeviceContext& device, bool row_invariant,
                              tensor::DType dtype) {
  QUIRE_CHECK(dtype != tensor::DType::kFloat32, "products are of 16-bit floats");
  auto impl = std::make_unique<Impl>();
  impl->device = &device;
  impl->row_invariant = row_invariant;
  impl->dtype = dtype;
  QUIRE_TRY(impl->lt, CublasLt::load());
  QUIRE_TRY_STATUS(impl->set_up());
  return MatMul(std::move(impl));
}

MatMul::MatMul(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MatMul::MatMul(MatMul&&) noexcept = default;
MatMul& MatMul::operator=(MatMul&&) noexcept = default;
MatMul::~MatMul() = default;

Status MatMul::run(const Product& call) {
  if (call.rows == 0) {
    return {};
  }
  QUIRE_CHECK(!impl_->row_invariant || out_stride(call) == call.outputs,
              "row-invariant products write whole rows");
  if (call.rows == 1 && !impl_->row_invariant && call.inputs % 8 == 0) {
    return device::cuda::to_status(gemv({.dtype = impl_->dtype,
                                         .x = call.x,
                                         .weights = call.weights,
                                         .out = call.out,
                                         .outputs = call.outputs,
                                         .inputs = static_cast<std::int32_t>(call.inputs),
                                         .accumulate = call.accumulate},
                                        impl_->device->compute_stream().get()),
                                   "gemv");
  }
  const Impl::Shape shape{call.rows, call.outputs, call.inputs, call.accumulate, out_stride(call)};
  auto plan = impl_->plans.find(shape);
  if (plan == impl_->plans.end()) {
    QUIRE_TRY(auto made, impl_->make_plan(call));
    if (impl_->plans.size() == kMostPlans) {
      impl_->plans
          .clear();  // those in use are made again, at the cost of some steps' first product
    }
    plan = impl_->plans.emplace(shape, std::move(made)).first;
  }
  return impl_->multiply(call, plan->second);
}

}  // namespace quire::kernels::cuda
