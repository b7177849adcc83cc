// cuBLASLt's functions, found at run time.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <memory>
#include <type_traits>

#include "quire/result.h"

namespace quire::kernels::cuda {

class CublasLt {
 public:
  // Loads the library of the toolkit that this was compiled with, from where the loader looks or
  // from the toolkit's folder. kDevice naming what is missing.
  [[nodiscard]] static Result<std::unique_ptr<CublasLt>> load();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;
  ~CublasLt();

  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;

 private:
  explicit CublasLt(void* library) : library_(library) {}
  void* library_;
};

// A descriptor of cuBLASLt and how it goes.
template <class T>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, cublasStatus_t (*)(T)>;

// Bytes of workspace that NVIDIA advises for Hopper.
inline constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

// Returns Ok, or kDevice with a message such as "cublasLtMatmul failed: status 7".
[[nodiscard]] Status to_status(cublasStatus_t status, const char* call);

}  // namespace quire::kernels::cuda
