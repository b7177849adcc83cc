// ModelFiles: named tensors of a model file or folder, whatever the container. Safetensors and GGUF
// readers fill it; the packer of weights reads it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"
#include "quire/weights/tensor_info.h"  // IWYU pragma: export

namespace quire::weights {

class GgufFile;

// Returns whether a path names a GGUF file: by its extension in any case, or by its first bytes.
[[nodiscard]] bool is_gguf_file(const std::string& path);

// One of a model's files, as it was when it was opened.
struct ModelFile {
  std::string path;
  std::int64_t bytes = 0;
  std::int64_t modified_ns = 0;  // nanoseconds since 1970
};

// Immutable after open; any thread may read it. Move only.
class ModelFiles {
 public:
  // Opens a folder with model.safetensors, or model.safetensors.index.json, or one GGUF file
  // (looked for in this order). Opens a .safetensors or GGUF file itself, too. Every offset, shape,
  // overlap and header bound is checked before it returns; no tensor data is read. Errors name file
  // and tensor. kIo when something is missing, kCorrupt when it contradicts itself, kUnsupported
  // for folders with only pickled weights and for split GGUF files.
  [[nodiscard]] static Result<ModelFiles> open(const std::string& path);

  ModelFiles(ModelFiles&&) noexcept;
  ModelFiles& operator=(ModelFiles&&) noexcept;
  ~ModelFiles();

  [[nodiscard]] const TensorInfo* find(std::string_view name) const;  // nullptr when absent
  // Finds the tensor, but absent is kCorrupt and a tensor that is only in unsupported() is
  // kUnsupported.
  [[nodiscard]] Result<const TensorInfo*> require(std::string_view name) const;
  [[nodiscard]] std::span<const TensorInfo> tensors() const;  // in file order
  // Returns the tensors whose element type is not decoded here. The packer refuses those that it
  // would need.
  [[nodiscard]] std::span<const UnsupportedTensor> unsupported() const;
  [[nodiscard]] std::int64_t total_bytes() const;  // bytes of the data of tensors()
  [[nodiscard]] std::vector<ModelFile> files() const;
  // Returns kIo naming the first file that was cut while its tensors were read.
  [[nodiscard]] Status check_whole() const;
  // Returns the metadata when it is a GGUF file, else nullptr. It lives as long as the ModelFiles.
  [[nodiscard]] const GgufFile* gguf() const;

 private:
  struct Impl;
  explicit ModelFiles(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::weights
