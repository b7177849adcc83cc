#include "quire/engine/weights_cache.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "quire/base/sha256.h"
#include "quire/base/str.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_folder.h"
#include "quire/kv_store/store_layout.h"
#include "quire/kv_store/weights_file.h"
#include "quire/kv_store/weights_folder.h"
#include "quire/model/config.h"
#include "quire/model/decoder.h"
#include "quire/result.h"
#include "quire/weights/model_files.h"

namespace quire::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kSampleBytes = 4096;  // bytes of each tensor that are hashed

std::string absolute_path(const fs::path& path) {
  std::error_code failure;
  const fs::path whole = fs::weakly_canonical(path, failure);  // follows links as the system does
  return (failure ? path : whole).string();
}

// Returns the key of packed weights and of how they are packed. Neither where the model lies nor
// which kernels will compute is part of it: packed bytes depend on neither.
std::string key_of(const WeightsCache::Model& model) {
  base::FieldHasher hasher;
  hasher.add("packed weights").add_int(kernels::kPackingVersion);
  hasher.add(model.config.family);
  model::add_config(hasher, model.config);
  hasher.add_int(static_cast<std::int64_t>(model.options.format));
  hasher.add_int(std::int64_t{model.options.keep_codes});
  for (const weights::ModelFile& file : model.model_files.files()) {
    hasher.add(std::filesystem::path(file.path).filename().string())
        .add_int(file.bytes)
        .add_int(file.modified_ns);
  }
  for (const weights::TensorInfo& tensor : model.model_files.tensors()) {
    hasher.add(tensor.name).add_int(static_cast<std::int64_t>(tensor.encoding));
    for (const std::int64_t size : tensor.shape) {
      hasher.add_int(size);
    }
    hasher.add_bytes(tensor.bytes.first(std::min(kSampleBytes, tensor.bytes.size())));
    if (tensor.reader != nullptr) {
      hasher.add(tensor.reader->rule());
    }
  }
  return base::to_hex(hasher.finish());
}

// Returns whether a folder cannot be made, read or written to. Everything else is the user's
// mistake.
bool is_refused_by_system(const Error& error) {
  return error.code == ErrorCode::kIo || error.code == ErrorCode::kNotFound;
}

}  // namespace

Result<WeightsCache> WeightsCache::open(const std::string& store, const Model& model) {
  WeightsCache cache;
  cache.content_ = {.key = key_of(model), .model = absolute_path(model.path)};
  for (const weights::ModelFile& file : model.model_files.files()) {
    cache.content_.sources.push_back(
        {.path = absolute_path(file.path), .bytes = file.bytes, .modified_ns = file.modified_ns});
  }
  auto opened = kv_store::open_store_folder(store, true, true);
  if (opened.ok()) {
    cache.writable_ = opened->writable();
    cache.store_ = std::move(opened->folder);
  } else if (is_refused_by_system(opened.error())) {
    cache.remarks_.push_back(
        base::str_cat("packed weights are not cached: ", opened.error().message));
  } else {
    return std::move(opened).error();
  }
  return cache;
}

std::optional<model::Decoder> WeightsCache::find(const kernels::KernelContext& context,
                                                 const model::ModelConfig& config) {
  if (!store_) {
    return std::nullopt;
  }
  const auto mapped = [&]() -> Result<model::Decoder> {
    QUIRE_TRY(const kv_store::Folder folder, store_->open_in(kv_store::kWeightsName, false));
    QUIRE_TRY(kv_store::WeightsFile file, kv_store::WeightsFile::open(folder, content_.key));
    QUIRE_TRY_STATUS(file.verify(*context.pool));
    model::MappedWeights weights{.parts = file.content().parts, .digest = file.content().digest};
    weights.file = std::move(file).take_mapping();
    return model::Decoder::map(context, config, std::move(weights));
  };
  auto decoder = mapped();
  if (decoder.ok()) {
    return std::move(decoder).value();
  }
  if (decoder.error().code != ErrorCode::kNotFound) {
    remarks_.push_back(base::str_cat(decoder.error().message, "; the weights were packed anew"));
  }
  return std::nullopt;
}

void WeightsCache::keep(const kernels::KernelContext& context, const model::Decoder& decoder) {
  if (!store_) {
    return;
  }
  if (const Status kept = write(*store_, context, decoder); !kept.ok()) {
    remarks_.push_back(base::str_cat("packed weights are not cached: ", kept.error().message));
  }
}

Status WeightsCache::write(const kv_store::Folder& store, const kernels::KernelContext& context,
                           const model::Decoder& decoder) const {
  if (!writable_) {
    return {ErrorCode::kIo,
            base::str_cat("the store ", store.path.string(), " cannot be written to")};
  }
  // With all that a store has, so that whoever looks into a new one finds an index.
  QUIRE_TRY([[maybe_unused]] const auto whole, kv_store::Store::open(store.path));
  QUIRE_TRY(const kv_store::Folder folder, store.open_in(kv_store::kWeightsName, true));
  const auto others = kv_store::WeightsFile::open(folder, content_.key);
  if (others.ok() && others->verify(*context.pool).ok()) {
    return {};
  }
  if (const std::string changed = kv_store::changed_source(content_.sources); !changed.empty()) {
    return {ErrorCode::kIo, base::str_cat(changed, " while it was packed")};
  }
  kv_store::WeightsContent content = content_;
  content.digest = decoder.weights_digest();
  content.parts = decoder.packed_parts();
  const auto written = kv_store::write_weights_file(folder, content, *context.pool);
  return written.ok() ? Status() : Status(written.error());
}

}  // namespace quire::engine
