// ModelBundle: everything that one model path stands for: decoder, tokenizer, chat template.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quire/engine/bundle_options.h"
#include "quire/kernels/kernel_context.h"
#include "quire/model/config.h"
#include "quire/model/decoder.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/text/chat_template.h"
#include "quire/text/tokenizer.h"
#include "quire/types.h"
#include "quire/weights/model_files.h"

namespace quire::engine {

// The text side of a model. Immutable once opened; shared by all threads.
struct TextBundle {
  text::Tokenizer tokenizer;
  std::optional<text::ChatTemplate> chat_template;
  std::optional<text::ChatTemplate> tool_template;  // "tool_use": instead, when there are tools
  std::string bos_token, eos_token;  // spellings that templates use; empty when there is none
  std::string template_error;        // why there is no chat template, and which others there are
  bool template_unusable = false;    // true: a template is there, but cannot be read
  std::string tool_template_error;   // why it cannot be read; "": it is read, or not there
};

// Returns the path of a model on disk, which is there: a folder, or a GGUF file of any name. A
// folder that holds one GGUF file and no config.json stands for the file.
[[nodiscard]] Result<std::string> locate(const std::string& model);

// Opens the tokenizer and template of a folder or GGUF file, without weights.
[[nodiscard]] Result<std::shared_ptr<const TextBundle>> open_text(const std::string& model);
// Returns the tokenizer and template of a path that locate() gave; null where it has none.
[[nodiscard]] Result<std::shared_ptr<TextBundle>> text_of(const std::string& path,
                                                          const weights::ModelFiles& model_files);

struct ModelBundle {
  std::optional<model::Decoder> decoder;           // always there after open_model
  std::shared_ptr<const TextBundle> text;          // null for presets and folders without tokenizer
  std::string text_error;                          // why text is null
  tensor::DType dtype = tensor::DType::kBFloat16;  // type that the model computes in
  tensor::DType kv_dtype = tensor::DType::kBFloat16;  // type that KV is computed in
  tensor::KVFormat kv_format = tensor::KVFormat::kPlain;
  // Returns what both are as a kv_dtype.
  [[nodiscard]] const char* kv_name() const { return tensor::kv_format_name(kv_format, kv_dtype); }
  std::vector<TokenId> eos_token_ids;
  std::vector<std::string>
      remarks;  // failures that need not stop the model from opening, for people
};

// Returns the digest of weights, RoPE, KV format and tokenizer. Reads all weights.
[[nodiscard]] std::string digest_of(const ModelBundle& bundle);

// Opens a model. `model` is a folder, a GGUF file or "preset:NAME". Errors name file, tensor or
// key.
[[nodiscard]] Result<ModelBundle> open_model(const kernels::KernelContext& context,
                                             const std::string& model,
                                             const BundleOptions& options);

// Reads the model's shape alone, which is what inspect needs.
[[nodiscard]] Result<model::ModelConfig> read_config(const std::string& model);
// Returns everything for which read_config is kUnsupported, one message each.
[[nodiscard]] std::vector<std::string> refused_by_config(const std::string& model);

}  // namespace quire::engine
