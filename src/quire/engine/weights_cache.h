// WeightsCache: the packed weights of one model in a store (docs/adr/0020). Maps them when a start
// has left them there, else leaves them there for the next one. Whatever keeps it from doing so is
// a remark; the start goes on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "quire/kernels/kernel_context.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/weights_file.h"
#include "quire/model/config.h"
#include "quire/model/decoder.h"
#include "quire/result.h"
#include "quire/weights/model_files.h"

namespace quire::engine {

// One start uses it, in one thread. Borrows nothing.
class WeightsCache {
 public:
  struct Model {
    const std::string& path;
    const weights::ModelFiles& model_files;
    const model::ModelConfig& config;
    const model::PackOptions& options;
  };
  // Makes the store where there is none. kInvalidArgument for a folder that is no store,
  // kUnsupported for one of a later format. Reads a page of each tensor, which with sizes and times
  // of the files says which model it is.
  [[nodiscard]] static Result<WeightsCache> open(const std::string& store, const Model& model);

  // Returns a decoder of the file that an earlier start has left, after comparing every checksum.
  // Returns nothing when there is none that can be used.
  [[nodiscard]] std::optional<model::Decoder> find(const kernels::KernelContext& context,
                                                   const model::ModelConfig& config);
  // Leaves the weights of the decoder there, unless another process has done so meanwhile or the
  // model's files are no longer those that were packed. Waits for the disk.
  void keep(const kernels::KernelContext& context, const model::Decoder& decoder);

  // Returns the failures of the cache, for people.
  [[nodiscard]] const std::vector<std::string>& remarks() const { return remarks_; }

 private:
  [[nodiscard]] Status write(const kv_store::Folder& store, const kernels::KernelContext& context,
                             const model::Decoder& decoder) const;

  std::optional<kv_store::Folder> store_;  // nothing: it cannot be opened
  bool writable_ = false;
  kv_store::WeightsContent content_;  // without digest and parts
  std::vector<std::string> remarks_;
};

}  // namespace quire::engine
