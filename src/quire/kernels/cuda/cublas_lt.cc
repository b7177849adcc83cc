#include "quire/kernels/cuda/cublas_lt.h"

#include <cublas_api.h>
#include <dlfcn.h>

#include <memory>
#include <string>

#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::kernels::cuda {
namespace {

std::string library_name() { return base::str_cat("libcublasLt.so.", CUBLAS_VER_MAJOR); }

void* open_library() {
  const std::string name = library_name();
  for (const std::string& path :
       {name, base::str_cat("/usr/local/cuda/lib64/", name),
        base::str_cat("/usr/local/cuda/targets/x86_64-linux/lib/", name)}) {
    if (void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) {
      return library;
    }
  }
  return nullptr;
}

template <class Function>
Status find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr
             ? Status()
             : Status(ErrorCode::kDevice, base::str_cat(library_name(), " has no ", name));
}

}  // namespace

Result<std::unique_ptr<CublasLt>> CublasLt::load() {
  void* const library = open_library();
  if (library == nullptr) {
    return {ErrorCode::kDevice,
            base::str_cat("cannot load ", library_name(),
                          "; install cuBLAS of the CUDA toolkit or put it on LD_LIBRARY_PATH")};
  }
  std::unique_ptr<CublasLt> lt(new CublasLt(library));
  QUIRE_TRY_STATUS(find(library, "cublasLtCreate", lt->create));
  QUIRE_TRY_STATUS(find(library, "cublasLtDestroy", lt->destroy));
  QUIRE_TRY_STATUS(find(library, "cublasLtMatmul", lt->matmul));
  QUIRE_TRY_STATUS(find(library, "cublasLtMatmulAlgoGetHeuristic", lt->get_heuristic));
  QUIRE_TRY_STATUS(find(library, "cublasLtMatmulDescCreate", lt->desc_create));
  QUIRE_TRY_STATUS(find(library, "cublasLtMatmulDescDestroy", lt->desc_destroy));
  QUIRE_TRY_STATUS(find(library, "cublasLtMatmulDescSetAttribute", lt->desc_set));
  QUIRE_TRY_STATUS(find(library, "cublasLtMatrixLayoutCreate", lt->layout_create));
  QUIRE_TRY_STATUS(find(library, "cublasLtMatrixLayoutDestroy", lt->layout_destroy));
  QUIRE_TRY_STATUS(find(library, "cublasLtMatmulPreferenceCreate", lt->preference_create));
  QUIRE_TRY_STATUS(find(library, "cublasLtMatmulPreferenceDestroy", lt->preference_destroy));
  QUIRE_TRY_STATUS(find(library, "cublasLtMatmulPreferenceSetAttribute", lt->preference_set));
  return lt;
}

CublasLt::~CublasLt() { ::dlclose(library_); }

Status to_status(cublasStatus_t status, const char* call) {
  return status == CUBLAS_STATUS_SUCCESS
             ? Status()
             : Status(ErrorCode::kDevice,
                      base::str_cat(call, " failed: status ", static_cast<int>(status)));
}

}  // namespace quire::kernels::cuda
