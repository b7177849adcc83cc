// inspect_json: what a model path holds and needs, without reading weights.
#include <cstdint>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "quire/base/home_path.h"
#include "quire/base/json.h"
#include "quire/base/no_memory.h"
#include "quire/engine/model_bundle.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/loader.h"
#include "quire/model/tensor_map.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tools.h"
#include "quire/weights/model_files.h"
#include "quire/weights/tensor_info.h"

namespace quire {
namespace {

using base::Json;
using kernels::WeightFormat;

Json shape_of(const model::ModelConfig& config) {
  return Json::object({{"layers", config.layers},
                       {"hidden_size", config.hidden_size},
                       {"intermediate_size", config.intermediate_size},
                       {"heads", config.heads},
                       {"kv_heads", config.kv_heads},
                       {"head_dim", config.head_dim},
                       {"vocab_size", config.vocab_size},
                       {"max_positions", config.max_positions},
                       {"tied_embeddings", config.tied_embeddings}});
}

// What is computed in where nothing is asked for, on the CPU.
WeightFormat computed_format(const model::ModelConfig& config) {
  const bool is_f32 = config.stored_dtype == tensor::DType::kFloat32;
  return is_f32 ? WeightFormat::kF32 : WeightFormat::kBf16;
}

// Returns the bytes of packed weights by format. Codes of model files whose types are all known
// stay codes where nothing is asked for.
Json weight_bytes_of(const model::ModelConfig& config,
                     const std::optional<weights::ModelFiles>& model_files) {
  const WeightFormat chosen = computed_format(config);
  std::int64_t chosen_bytes = model::packed_weight_bytes(config, chosen);
  if (model_files && model_files->unsupported().empty()) {
    const auto own = model::own_weight_bytes(config, *model_files, chosen);
    chosen_bytes = own.ok() ? *own : chosen_bytes;
  }
  Json bytes = Json::object({{"auto", chosen_bytes}});
  for (const auto format :
       {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kQ8g32, WeightFormat::kQ4g32}) {
    bytes.set(kernels::format_name(format), model::packed_weight_bytes(config, format));
  }
  return bytes;
}

Json kv_bytes_of(const model::ModelConfig& config) {
  Json bytes = Json::object();
  for (const auto dtype : {tensor::DType::kFloat32, tensor::DType::kBFloat16}) {
    const auto geometry = config.kv_geometry(dtype, 32);
    bytes.set(tensor::dtype_name(dtype), geometry.block_bytes() / geometry.block_tokens);
  }
  return bytes;
}

void add_config(const model::ModelConfig& config,
                const std::optional<weights::ModelFiles>& model_files, Json& report) {
  report.set("family", config.family);
  report.set("shape", shape_of(config));
  report.set("parameters", model::num_parameters(config));
  report.set("dtype", tensor::dtype_name(config.stored_dtype));
  report.set("weight_bytes", weight_bytes_of(config, model_files));
  report.set("kv_bytes_per_token", kv_bytes_of(config));
  report.set("remarks", Json::list(config.remarks));
}

// A model without a tokenizer runs on ids: nothing is missing there.
void add_text(const std::string& path, const weights::ModelFiles& model_files, Json& report,
              Json& unsupported) {
  const auto text = engine::text_of(path, model_files);
  report.set("tokenizer", nullptr);
  report.set("chat_template", false);
  if (!text.ok()) {
    unsupported.push("tokenizer: " + text.error().message);
  }
  if (!text.ok() || *text == nullptr) {
    return;
  }
  const engine::TextBundle& bundle = **text;
  report.set("tokenizer", Json::object({{"vocab_size", bundle.tokenizer.vocab_size()},
                                        {"bos_token", bundle.bos_token},
                                        {"eos_token", bundle.eos_token}}));
  report.set("chat_template", bundle.chat_template.has_value());
  if (!bundle.chat_template) {
    report.set("chat_template_error", bundle.template_error);
  }
}

// How many tensors are in which encoding, and of the quantised ones how many are computed how.
Json encodings_of(const weights::ModelFiles& model_files,
                  const std::map<std::string, std::string>& computed) {
  struct Kind {
    int tensors = 0;
    std::map<std::string, int> computed_as;
  };
  std::map<weights::Encoding, Kind> kinds;
  for (const weights::TensorInfo& tensor : model_files.tensors()) {
    Kind& kind = kinds[tensor.encoding];
    ++kind.tensors;
    if (const auto found = computed.find(tensor.name); found != computed.end()) {
      ++kind.computed_as[found->second];
    }
  }
  Json encodings = Json::object();
  for (const auto& [encoding, kind] : kinds) {
    Json entry = Json::object({{"tensors", kind.tensors}});
    if (!kind.computed_as.empty()) {
      Json computed_as = Json::object();
      for (const auto& [format, tensors] : kind.computed_as) {
        computed_as.set(format, tensors);
      }
      entry.set("computed_as", std::move(computed_as));
    }
    encodings.set(weights::encoding_name(encoding), std::move(entry));
  }
  return encodings;
}

// Tensors of unknown types, and the first that is missing, superfluous or has another shape.
void add_model_files(const weights::ModelFiles& model_files,
                     const Result<model::ModelConfig>& config, Json& report, Json& unsupported) {
  report.set("tensors", model_files.tensors().size());
  report.set("file_bytes", model_files.total_bytes());
  const auto computed = config.ok() ? model::computed_as(*config, model_files)
                                    : std::map<std::string, std::string>();  // nobody knows
  report.set(
      "encodings",
      encodings_of(model_files, computed.ok() ? *computed : std::map<std::string, std::string>()));
  for (const auto& tensor : model_files.unsupported()) {
    unsupported.push("tensor " + tensor.name + " of type " + tensor.type);
  }
  if (config.ok() && model_files.unsupported().empty()) {
    const Status fits = model::TensorMap(*config, model_files).check_all();
    if (!fits.ok()) {
      unsupported.push(fits.error().message);
    }
  }
}

}  // namespace

std::string expand_home(std::string_view path) { return base::home_path(path); }

std::string json_string(std::string_view text) { return base::write_json(Json(text)); }

Result<std::string> inspect_json(const std::string& model) try {
  Json report = Json::object({{"model", model}});
  Json unsupported = Json::array();
  auto config = engine::load_config(model);
  if (!config.ok() && config.error().code != ErrorCode::kUnsupported) {
    return config.error();
  }
  const bool is_preset = model.starts_with("preset:");
  std::string path;
  std::optional<weights::ModelFiles> model_files;
  if (!is_preset) {
    QUIRE_TRY(path, engine::locate(model));
    QUIRE_TRY(model_files, weights::ModelFiles::open(path));
  }
  if (!config.ok()) {
    for (const std::string& what : engine::refused_by_config(model)) {
      unsupported.push(what);
    }
  } else {
    if (model_files) {
      model::take_dtype(*model_files, *config);
    }
    add_config(*config, model_files, report);
  }
  if (model_files) {
    add_model_files(*model_files, config, report, unsupported);
    add_text(path, *model_files, report, unsupported);
  }
  report.set("unsupported", std::move(unsupported));
  return base::write_json(report);
} catch (const std::bad_alloc&) {
  return base::no_memory("looking at the model");
}

}  // namespace quire
