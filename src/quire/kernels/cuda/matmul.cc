#include "quire/kernels/cuda/matmul.h"

#include <cublasLt.h>
#include <cublas_api.h>
#include <library_types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "quire/base/str.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/cublas_lt.h"
#include "quire/kernels/cuda/gemv.h"
#include "quire/result.h"

namespace quire::kernels::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;  // as NVIDIA advises for Hopper
constexpr std::int64_t kManyRows = 512;   // for which the row-invariant algorithm is chosen
constexpr std::size_t kMostPlans = 1024;  // some hundreds of bytes each

// A descriptor of cuBLASLt and how it goes.
template <class T>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, cublasStatus_t (*)(T)>;

}  // namespace

struct MatMul::Impl {
  using Shape = std::tuple<std::int64_t, std::int64_t, std::int64_t, bool>;

  struct Plan {
    Owned<cublasLtMatrixLayout_t> weights, x, out;
    cublasLtMatmulAlgo_t algorithm;
  };

  device::cuda::DeviceContext* device;
  bool row_invariant;
  std::unique_ptr<CublasLt> lt;
  Owned<cublasLtHandle_t> handle{nullptr, nullptr};
  Owned<cublasLtMatmulDesc_t> product{nullptr, nullptr};
  Owned<cublasLtMatmulPreference_t> preference{nullptr, nullptr};
  device::cuda::DeviceBuffer<std::byte> workspace;
  std::map<Shape, Plan> plans;

  Status set_up();
  Result<Owned<cublasLtMatrixLayout_t>> layout(cudaDataType type, std::int64_t rows,
                                               std::int64_t columns);
  Result<Plan> make_plan(const Product& call);
  Result<cublasLtMatmulAlgo_t> choose(const Product& call);
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
                                                           std::int64_t columns) {
  cublasLtMatrixLayout_t made = nullptr;
  QUIRE_TRY_STATUS(to_status(lt->layout_create(&made, type, static_cast<std::uint64_t>(rows),
                                               static_cast<std::uint64_t>(columns), rows),
                             "cublasLtMatrixLayoutCreate"));
  return Owned<cublasLtMatrixLayout_t>(made, lt->layout_destroy);
}

Result<cublasLtMatmulAlgo_t> MatMul::Impl::choose(const Product& call) {
  const std::int64_t rows = row_invariant ? kManyRows : call.rows;
  QUIRE_TRY(const auto weights, layout(CUDA_R_16BF, call.inputs, call.outputs));
  QUIRE_TRY(const auto x, layout(CUDA_R_16BF, call.inputs, rows));
  QUIRE_TRY(const auto out, layout(CUDA_R_32F, call.outputs, rows));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  QUIRE_TRY_STATUS(
      to_status(lt->get_heuristic(handle.get(), product.get(), weights.get(), x.get(), out.get(),
                                  out.get(), preference.get(), 1, &found, &count),
                "cublasLtMatmulAlgoGetHeuristic"));
  if (count == 0) {
    return {ErrorCode::kDevice,
            base::str_cat("cuBLASLt has no algorithm for a product of ", rows, " rows, ",
                          call.inputs, " inputs and ", call.outputs, " outputs")};
  }
  return found.algo;
}

Result<MatMul::Impl::Plan> MatMul::Impl::make_plan(const Product& call) {
  QUIRE_TRY(auto weights, layout(CUDA_R_16BF, call.inputs, call.outputs));
  QUIRE_TRY(auto x, layout(CUDA_R_16BF, call.inputs, call.rows));
  QUIRE_TRY(auto out, layout(CUDA_R_32F, call.outputs, call.rows));
  QUIRE_TRY(const cublasLtMatmulAlgo_t algorithm, choose(call));
  return Plan{std::move(weights), std::move(x), std::move(out), algorithm};
}

Result<MatMul> MatMul::create(device::cuda::DeviceContext& device, bool row_invariant) {
  auto impl = std::make_unique<Impl>();
  impl->device = &device;
  impl->row_invariant = row_invariant;
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
  if (call.rows == 1 && !impl_->row_invariant && call.inputs % 8 == 0) {
    return device::cuda::to_status(gemv({.x = call.x,
                                         .weights = call.weights,
                                         .out = call.out,
                                         .outputs = call.outputs,
                                         .inputs = static_cast<std::int32_t>(call.inputs),
                                         .accumulate = call.accumulate},
                                        impl_->device->compute_stream().get()),
                                   "gemv");
  }
  const Impl::Shape shape{call.rows, call.outputs, call.inputs, call.accumulate};
  auto plan = impl_->plans.find(shape);
  if (plan == impl_->plans.end()) {
    QUIRE_TRY(auto made, impl_->make_plan(call));
    if (impl_->plans.size() == kMostPlans) {
      impl_->plans
          .clear();  // those in use are made again, at the cost of some steps' first product
    }
    plan = impl_->plans.emplace(shape, std::move(made)).first;
  }
  const float one = 1, beta = call.accumulate ? 1 : 0;
  const Impl::Plan& how = plan->second;
  return to_status(
      impl_->lt->matmul(impl_->handle.get(), impl_->product.get(), &one, call.weights,
                        how.weights.get(), call.x, how.x.get(), &beta, call.out, how.out.get(),
                        call.out, how.out.get(), &how.algorithm, impl_->workspace.data(),
                        kWorkspaceBytes, impl_->device->compute_stream().get()),
      "cublasLtMatmul");
}

}  // namespace quire::kernels::cuda
